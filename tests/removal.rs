//! Removal and teardown: what refuses it, what pins what, and in which order things end.

mod common {
    pub mod another;
    pub mod arm;
    pub mod capable;
    pub mod doubles;
    pub mod held;
    pub mod lifecycle;
    pub mod park;
    pub mod refused;
    pub mod rig;
}

use common::{
    another::another,
    arm::arm,
    capable::Capable,
    doubles::{Double, Log, Resource, Script},
    held::{Held, hold},
    lifecycle::{REASON, bring},
    park::gate,
    refused::refused,
    rig::{DEVICE, Rig},
};
use liveslot::{MechanismLifecycle::*, *};
use std::{
    any::Any,
    cell::RefCell,
    sync::{Arc, Mutex},
    thread,
};

const ALL: [&str; 3] = ["A dropped", "Q dropped", "C dropped"];

/// Lets `binding` have a release quarantined.
fn quarantine(rig: &Rig, binding: &MemoryBinding, bytes: usize) {
    let allocation = binding.allocate(bytes, 8).unwrap();
    arm(&rig.script.release, || AllocationReleaseOutcome::failed("stuck"));
    drop(binding.release(allocation).unwrap_err());
}

fn quarantined(rig: &Rig, quarantined: usize) -> BindingError {
    BindingError::QuarantinedOwnership { mechanism: rig.mechanism.identity(), quarantined }
}

/// R42: an Active mechanism is not removed, though it owns nothing.
#[test]
fn life_refuses_removal() {
    let rig = Rig::new();
    let before = rig.registry.snapshot(rig.mechanism).unwrap();
    refused(rig.registry.remove(rig.mechanism), (rig.mechanism, Active));
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), before);
    assert_eq!(rig.registry.bind(DEVICE).unwrap().identity().mechanism(), rig.mechanism.identity());
    rig.finish();
}

/// R42, R67: a live allocation refuses it, held or dropped, and whatever the lifecycle before termination.
#[test]
fn a_live_allocation_refuses_removal() {
    for phase in [Active, Retired, DeviceLost] {
        let rig = Rig::new();
        let held = hold(&rig);
        bring(&rig, phase);
        refused(rig.registry.remove(rig.mechanism), (rig.mechanism, phase));
        drop(held);
        refused(rig.registry.remove(rig.mechanism), (rig.mechanism, phase));
        assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().live_allocations, 1);
        assert_eq!(rig.log.take(), [""; 0]);
        bring(&rig, Terminated);
        rig.finish();
    }
}

/// R42: quarantined ownership refuses it, and is reported before everything else, with the count alone.
#[test]
fn quarantined_ownership_refuses_removal_first() {
    let rig = Rig::new();
    let held = hold(&rig);
    quarantine(&rig, &held.binding, 16);
    // Active, with a live allocation, quarantined ownership and an operation.
    let looked = held.binding.with_view(&held.view, |_| refused(rig.registry.remove(rig.mechanism), quarantined(&rig, 1)));
    looked.unwrap();
    quarantine(&rig, &held.binding, 32);
    for phase in [Active, Retired, DeviceLost] {
        bring(&rig, phase);
        refused(rig.registry.remove(rig.mechanism), quarantined(&rig, 2));
    }
    drop(held);
    bring(&rig, Terminated);
    rig.finish();
}

/// R42, R138: operations and queued releases refuse it until they have ended.
#[test]
fn operations_refuse_removal() {
    let rig = Rig::new();
    let held = hold(&rig);
    let idle = another(&rig, "B");
    rig.registry.retire(rig.mechanism).unwrap();

    let (stop, releasing) = gate();
    arm(&rig.script.release, || {
        stop.park();
        AllocationReleaseOutcome::complete(ReleaseAccounting::eager(64))
    });
    thread::scope(|scope| {
        let release = scope.spawn(|| held.binding.release(held.allocation));
        releasing.reached();
        let before = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!((before.live_allocations, before.queued_releases, before.active_operations), (0, 1, 1));
        refused(rig.registry.remove(rig.mechanism), (rig.mechanism, Retired));
        assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), before);
        releasing.open();
        release.join().unwrap().unwrap();
    });
    drop((held.binding, held.view));

    // An operation alone: a look that was begun in time.
    let binding = rig.registry.bind_registered(idle).unwrap();
    let allocation = binding.allocate(8, 8).unwrap();
    let view = allocation.view(0, 8).unwrap();
    let looked = binding.with_view(&view, |_| {
        rig.registry.retire(idle).unwrap();
        binding.release(allocation).unwrap();
        let snapshot = rig.registry.snapshot(idle).unwrap();
        assert!(!snapshot.retains_ownership());
        assert_eq!(snapshot.active_operations, 1);
        refused(rig.registry.remove(idle), (idle, Retired));
    });
    looked.unwrap();
    rig.registry.remove(idle).unwrap();
    drop((binding, view));
    rig.finish();
}

/// R43: a lost mechanism that owns nothing is removed without anybody's confirmation.
#[test]
fn lost_is_enough() {
    let rig = Rig::new();
    rig.registry.invalidate_device(DEVICE, REASON).unwrap();
    rig.registry.remove(rig.mechanism).unwrap();
    assert_eq!(rig.log.take(), ["A dropped"]);
    assert_eq!(rig.registry.snapshots().unwrap(), []);
}

/// R44: a removed mechanism is unknown to every call that takes its token.
#[test]
fn the_removed_are_unknown() {
    let rig = Rig::new();
    let (registry, mechanism) = (&rig.registry, rig.mechanism);
    registry.retire(mechanism).unwrap();
    registry.remove(mechanism).unwrap();
    let unknown = || BindingError::UnregisteredMechanism(mechanism.identity());
    for _ in 0..2 {
        refused(registry.select(mechanism), unknown());
        refused(registry.bind_registered(mechanism), unknown());
        refused(registry.retire(mechanism), unknown());
        refused(registry.remove(mechanism), unknown());
        refused(registry.snapshot(mechanism), unknown());
        refused(registry.quarantined(mechanism), unknown());
        refused(registry.bind(DEVICE), BindingError::NoSelectedMechanism(DEVICE));
        // Whoever takes its place in the tables is somebody else.
        another(&rig, "B");
        registry.invalidate_device(DEVICE, REASON).unwrap();
    }
}

/// R45: bindings of a removed mechanism keep what they pin, answer about it, and stay refused.
#[test]
fn bindings_outlive_removal() {
    let rig = Rig::new();
    let held = hold(&rig);
    let stale = held.binding.allocate(8, 8).unwrap();
    held.binding.release(stale).unwrap();
    bring(&rig, DeviceLost);
    bring(&rig, Terminated);
    rig.registry.remove(rig.mechanism).unwrap();
    rig.registry.remove_authority(rig.authority).unwrap();
    rig.registry.remove_provider_context(rig.context).unwrap();
    rig.log.take();

    let unregistered = BindingError::UnregisteredMechanism(rig.mechanism.identity());
    refused(rig.registry.bind_registered(rig.mechanism), unregistered);
    refused(held.binding.allocate(8, 8), (rig.mechanism, Terminated));
    refused(held.allocation.view(0, 8), (rig.mechanism, Terminated));
    refused(held.binding.with_view(&held.view, |_| ()), (rig.mechanism, Terminated));
    let snapshot = held.binding.mechanism_snapshot().unwrap();
    assert_eq!((snapshot.identity, snapshot.lifecycle), (rig.mechanism.identity(), Terminated));
    assert_eq!(held.binding.quarantined().unwrap(), []);
    assert_eq!(rig.log.take(), [""; 0]);
    drop(held);
    assert_eq!(rig.log.take(), ALL);
}

/// R45: a binding of a mechanism that was removed as retired or lost is refused by that.
#[test]
fn the_removed_keep_their_lifecycle() {
    for phase in [Retired, DeviceLost] {
        let rig = Rig::new();
        let binding = rig.registry.bind(DEVICE).unwrap();
        bring(&rig, phase);
        rig.registry.remove(rig.mechanism).unwrap();
        // No longer registered, so not lost again.
        rig.registry.invalidate_device(DEVICE, "another time").unwrap();
        rig.registry.confirm_context_terminated(rig.context).unwrap();
        match phase {
            Retired => refused(binding.allocate(8, 8), (rig.mechanism, Retired)),
            _ => refused(binding.allocate(8, 8), BindingError::DeviceLost { device: DEVICE, reason: REASON.into() }),
        }
        assert_eq!(binding.mechanism_snapshot().unwrap().lifecycle, phase);
    }
}

/// R46: context and authority are in use while a mechanism that uses them is registered, and no longer; bindings keep the resources.
#[test]
fn supports_are_in_use_by_mechanisms() {
    let rig = Rig::new();
    let sibling = another(&rig, "B");
    let binding = rig.registry.bind(DEVICE).unwrap();
    let in_use = || {
        refused(rig.registry.remove_provider_context(rig.context), BindingError::ProviderContextInUse(rig.context.identity()));
        refused(rig.registry.remove_authority(rig.authority), BindingError::AuthorityInUse(rig.authority.identity()));
    };
    in_use();
    rig.registry.invalidate_device(DEVICE, REASON).unwrap();
    in_use();
    rig.registry.remove(rig.mechanism).unwrap();
    in_use();
    rig.registry.remove(sibling).unwrap();
    assert_eq!(rig.log.take(), ["B dropped"]);
    rig.registry.remove_provider_context(rig.context).unwrap();
    rig.registry.remove_authority(rig.authority).unwrap();
    assert_eq!(rig.log.take(), [""; 0]);
    refused(rig.registry.remove_provider_context(rig.context), BindingError::UnregisteredProviderContext(rig.context.identity()));
    refused(rig.registry.remove_authority(rig.authority), BindingError::UnregisteredAuthority(rig.authority.identity()));
    drop(binding);
    assert_eq!(rig.log.take(), ALL);
}

/// What may be the last to need a mechanism, made from what a caller has. The rest is dropped.
type LastPin = fn(Held) -> Box<dyn Any + Send>;

/// Each kind of handle.
const LAST_PINS: [(&str, LastPin); 5] = [
    ("binding", |held| Box::new(held.binding)),
    ("clone of a binding", |held| Box::new(held.binding.clone())),
    ("allocation", |held| Box::new(held.allocation)),
    ("view", |held| Box::new(held.view)),
    ("error that hands an allocation back", |held| Box::new(held.binding.release(held.allocation).unwrap_err())),
];

/// R48, R50, R57: whichever handle goes last, on whichever thread, allocator, authority and context end there, in this order, before its
/// drop returns.
#[test]
fn each_kind_of_last_pin_ends_all_in_order() {
    for (kind, last_pin) in LAST_PINS {
        for elsewhere in [false, true] {
            let rig = Rig::new();
            let held = hold(&rig);
            // Lets the release be refused, and the rest be removed.
            bring(&rig, Terminated);
            let pin = last_pin(held);
            rig.registry.remove(rig.mechanism).unwrap();
            rig.registry.remove_provider_context(rig.context).unwrap();
            rig.registry.remove_authority(rig.authority).unwrap();
            assert_eq!(rig.log.take(), [""; 0], "{kind}");
            if elsewhere {
                thread::spawn(|| drop(pin)).join().unwrap();
            } else {
                drop(pin);
            }
            assert_eq!(rig.log.take(), ALL, "{kind}");
        }
    }
}

/// R48, R56, R57: the same with the registry gone before.
#[test]
fn each_kind_of_last_pin_outlives_the_registry() {
    for (kind, last_pin) in LAST_PINS {
        let rig = Rig::new();
        let held = hold(&rig);
        rig.registry.invalidate_device(DEVICE, REASON).unwrap();
        let pin = last_pin(held);
        let Rig { registry, log, .. } = rig;
        drop(registry);
        assert_eq!(log.take(), [""; 0], "{kind}");
        drop(pin);
        assert_eq!(log.take(), ALL, "{kind}");
    }
}

type End = Box<dyn FnOnce() + Send>;

/// Makes the last handle, and says how it ends.
type LastHandle = fn(&Rig, Capable) -> End;

fn owner(own: &Capable) -> OwningAllocation {
    own.binding.allocate_owning(64, 8).unwrap()
}

fn request(own: &Capable) -> PreparedAllocationRelease {
    owner(own).prepare_release().unwrap()
}

fn enqueue_error(own: &Capable) -> DeferredEnqueueError {
    DeferredEnqueueError::new(DeferredEnqueueRejection::Full, request(own))
}

fn end<T: Send + 'static>(handle: T) -> End {
    Box::new(|| drop(handle))
}

/// Each kind of handle that owns, waits, hands back or reaches a capability; what is logged of its end before everything else ends.
const LAST_HANDLES: [(&str, LastHandle, &[&str]); 16] = [
    ("owner", |_, own| end(owner(&own)), &[]),
    ("owned view", |_, own| end(owner(&own).view(0, 8).unwrap()), &[]),
    ("clone of an owned view", |_, own| end(owner(&own).view(0, 8).unwrap().clone()), &[]),
    ("virtual backing", |_, own| end(own.backing), &[]),
    ("shared mapping", |_, own| end(own.mapping.clone()), &[]),
    ("prefix", |_, own| end(own.mapping.create_shared_prefix(8).unwrap()), &["P dropped"]),
    ("request, dropped", |_, own| end(request(&own)), &[]),
    (
        "request, executed",
        |_, own| {
            let request = request(&own);
            Box::new(|| assert!(request.execute().is_complete()))
        },
        &["A release 64 8"],
    ),
    (
        "request, quarantined",
        |_, own| {
            let request = request(&own);
            Box::new(|| drop(request.quarantine_device_lost()))
        },
        &[],
    ),
    ("error of a queue, dropped", |_, own| end(enqueue_error(&own)), &[]),
    (
        "error of a queue, quarantined",
        |_, own| {
            let error = enqueue_error(&own);
            Box::new(|| drop(error.quarantine()))
        },
        &[],
    ),
    (
        "error of a queue, executed",
        |_, own| {
            let error = enqueue_error(&own);
            Box::new(|| assert!(error.into_request().execute().is_complete()))
        },
        &["A release 64 8"],
    ),
    (
        "refused owner",
        |_, own| {
            let owner = owner(&own);
            let view = owner.view(0, 8).unwrap();
            let refused = owner.release_now().unwrap_err();
            drop(view);
            end(refused)
        },
        &[],
    ),
    (
        "refused owner, released",
        |_, own| {
            let owner = owner(&own);
            let view = owner.view(0, 8).unwrap();
            let refused = owner.into_bound().unwrap_err();
            Box::new(|| {
                drop(view);
                assert!(refused.into_parts().1.release_now().unwrap().is_complete());
            })
        },
        &["A release 64 8"],
    ),
    (
        "error that hands metadata back",
        |_, own| {
            let elsewhere = Rig::new();
            let other = elsewhere.registry.bind(DEVICE).unwrap();
            end(other.prepare_release(owner(&own).into_bound().unwrap()).unwrap_err())
        },
        &[],
    ),
    (
        "error that hands stale metadata back",
        |rig, own| {
            arm(&rig.script.release, || AllocationReleaseOutcome::failed("stuck"));
            end(own.binding.release(owner(&own).into_bound().unwrap()).unwrap_err())
        },
        &[],
    ),
];

/// R48, R50, R57: the same for each of them, on whichever thread; nothing that is due waits for a later call.
#[test]
fn each_kind_of_last_handle_ends_all_in_order() {
    for (kind, last_handle, first) in LAST_HANDLES {
        for elsewhere in [false, true] {
            println!("{kind}");
            let rig = Rig::new();
            let end = last_handle(&rig, Capable::of(&rig));
            rig.log.take();
            let Rig { registry, log, .. } = rig;
            drop(registry);
            assert_eq!(log.take(), [""; 0]);
            if elsewhere {
                thread::spawn(end).join().unwrap();
            } else {
                end();
            }
            assert_eq!(log.take(), [first, &ALL].concat());
        }
    }
}

/// R48, R57: the same after a removal, for those that a removal does not wait for.
#[test]
fn handles_outlive_a_removal() {
    for (kind, last_handle, first) in LAST_HANDLES {
        let rig = Rig::new();
        let end = last_handle(&rig, Capable::of(&rig));
        rig.registry.invalidate_device(DEVICE, REASON).unwrap();
        let is_request = rig.registry.snapshot(rig.mechanism).unwrap().queued_releases != 0;
        let confirmed = rig.registry.confirm_context_terminated(rig.context);
        assert_eq!(confirmed.is_err(), is_request, "{kind}");
        if confirmed.is_err() || first == ["A release 64 8"] {
            continue;
        }
        rig.registry.remove(rig.mechanism).unwrap();
        rig.registry.remove_provider_context(rig.context).unwrap();
        rig.registry.remove_authority(rig.authority).unwrap();
        rig.log.take();
        end();
        assert_eq!(rig.log.take(), [first, &ALL].concat(), "{kind}");
    }
}

/// R57: how a release ended keeps nothing alive.
#[test]
fn outcomes_pin_nothing() {
    let rig = Rig::new();
    let own = Capable::of(&rig);
    let executed = request(&own).execute();
    let quarantined = request(&own).quarantine(QuarantineReason::OwnerDropped);
    let disposition = DeferredReleaseDisposition::Quarantined {
        identity: request(&own).identity(),
        rejection: DeferredEnqueueRejection::Full,
        outcome: quarantined.clone(),
    };
    let entries = own.binding.quarantined().unwrap();
    let Rig { registry, log, .. } = rig;
    log.take();
    drop((registry, own));
    assert_eq!(log.take(), ALL);
    drop((executed, quarantined, disposition, entries));
}

/// R48, R57: a device handle keeps the registry, which keeps the mechanism.
#[test]
fn a_device_handle_is_a_clone_of_the_registry() {
    let Rig { registry, log, mechanism, .. } = Rig::new();
    let device = registry.device(DEVICE);
    let clone = device.clone();
    drop(registry);
    drop(device);
    assert_eq!(clone.bind().unwrap().identity().mechanism(), mechanism.identity());
    assert_eq!(log.take(), [""; 0]);
    drop(clone);
    assert_eq!(log.take(), ALL);
}

/// R48, R50, R57: the registry's last clone is the last pin of what nobody holds.
#[test]
fn the_registry_ends_all_in_order() {
    let Rig { registry, log, .. } = Rig::new();
    let clone = registry.clone();
    drop(registry);
    assert_eq!(log.take(), [""; 0]);
    drop(clone);
    assert_eq!(log.take(), ALL);
}

/// R57: names and copies of state keep nothing alive.
#[test]
fn values_pin_nothing() {
    let rig = Rig::new();
    let held = hold(&rig);
    quarantine(&rig, &held.binding, 16);
    let values = (
        (rig.mechanism, rig.context, rig.authority),
        (held.binding.identity(), held.allocation.identity()),
        (rig.registry.snapshot(rig.mechanism).unwrap(), held.binding.quarantined().unwrap()),
        held.binding.with_view(&held.view, |view| view).unwrap(),
    );
    let Rig { registry, log, .. } = rig;
    log.take();
    drop((held, registry));
    assert_eq!(log.take(), ALL);
    drop(values);
}

/// R48: what several mechanisms share ends after the last of them.
#[test]
fn shared_supports_end_last() {
    let rig = Rig::new();
    let sibling = another(&rig, "B");
    let (first, second) = (rig.registry.bind(DEVICE).unwrap(), rig.registry.bind_registered(sibling).unwrap());
    let Rig { registry, log, .. } = rig;
    drop(registry);
    drop(first);
    assert_eq!(log.take(), ["A dropped"]);
    drop(second);
    assert_eq!(log.take(), ["B dropped", "Q dropped", "C dropped"]);

    // The registry alone: in whatever order the allocators go, the rest comes after both.
    let rig = Rig::new();
    another(&rig, "B");
    let Rig { registry, log, .. } = rig;
    drop(registry);
    let mut ended = log.take();
    assert_eq!(ended.split_off(2), ["Q dropped", "C dropped"]);
    ended.sort();
    assert_eq!(ended, ["A dropped", "B dropped"]);
}

/// R48: an outside owner keeps its resource, and no other.
#[test]
fn outside_owners_keep_their_own() {
    let (log, script) = (Log::default(), Arc::<Script>::default());
    let registry = BindingRegistry::new().unwrap();
    let authority = Resource::authority("Q", &log, &script);
    let context = registry.register_provider_context(DEVICE, Resource::context("C", &log, &script)).unwrap();
    let registered = registry.register_authority(DEVICE, authority.clone()).unwrap();
    registry.register_allocator(context, registered, Double::new("A", ["Q", "C"], DEVICE, &log, &script)).unwrap();
    log.take();
    drop(registry);
    assert_eq!(log.take(), ["A dropped", "C dropped"]);
    drop(authority);
    assert_eq!(log.take(), ["Q dropped"]);
}

/// R50: destruction waits for nobody who works on something else, and for no later call.
#[test]
fn destruction_is_prompt_beside_a_parked_thread() {
    let rig = Rig::new();
    let script = Arc::<Script>::default();
    let busy = Double::new("B", ["Q", "C"], DEVICE, &rig.log, &script);
    let busy = rig.registry.register_allocator(rig.context, rig.authority, busy).unwrap();
    let binding = rig.registry.bind_registered(busy).unwrap();
    let (stop, parked) = gate();
    arm(&script.allocate, || {
        stop.park();
        Ok(())
    });
    thread::scope(|scope| {
        let allocating = scope.spawn(|| binding.allocate(8, 8));
        parked.reached();
        let own = rig.registry.bind_registered(rig.mechanism).unwrap();
        rig.registry.retire(rig.mechanism).unwrap();
        rig.registry.remove(rig.mechanism).unwrap();
        rig.log.take();
        drop(own);
        assert_eq!(rig.log.take(), ["A dropped"]);

        let lone = rig.registry.register_provider_context(DEVICE, Resource::context("lone", &rig.log, &script)).unwrap();
        rig.registry.remove_provider_context(lone).unwrap();
        assert_eq!(rig.log.take(), ["lone dropped"]);
        parked.open();
        binding.release(allocating.join().unwrap().unwrap()).unwrap();
    });
}

/// R51: a mechanism that ends while it owns memory is dropped, and asked for nothing.
#[test]
fn ownership_at_the_end_is_the_allocators() {
    let rig = Rig::new();
    let held = hold(&rig);
    quarantine(&rig, &held.binding, 16);
    let Rig { registry, log, .. } = rig;
    log.take();
    drop(registry);
    drop(held);
    assert_eq!(log.take(), ALL);
}

/// R53, R106: the destructors of allocator, authority and context may call the registry that lets them go.
#[test]
fn destructors_may_call_the_registry() {
    let rig = Rig::new();
    let calls = |registry: &BindingRegistry, gone: RegisteredMechanism| {
        let registry = registry.clone();
        move || {
            refused(registry.snapshot(gone), BindingError::UnregisteredMechanism(gone.identity()));
            let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
            let authority = registry.register_authority(DEVICE, Arc::new(())).unwrap();
            let mechanism = registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), DEVICE).unwrap();
            registry.select(mechanism).unwrap();
            let binding = registry.bind(DEVICE).unwrap();
            binding.release(binding.allocate(8, 8).unwrap()).unwrap();
            registry.retire(mechanism).unwrap();
            registry.remove(mechanism).unwrap();
            drop(binding);
            registry.remove_authority(authority).unwrap();
            registry.remove_provider_context(context).unwrap();
            assert_eq!(registry.snapshots().unwrap(), []);
        }
    };
    arm(&rig.script.drop, calls(&rig.registry, rig.mechanism));
    arm(&rig.script.authority_drop, calls(&rig.registry, rig.mechanism));
    arm(&rig.script.context_drop, calls(&rig.registry, rig.mechanism));
    rig.finish();
}

/// R53: an allocator that drops everything it can reach in one of its calls is destroyed after that call.
#[test]
fn no_allocator_ends_within_its_own_call() {
    let rig = Rig::new();
    let Held { binding, allocation, view } = hold(&rig);
    let Rig { registry, log, script, mechanism, .. } = rig;
    let reachable = (registry.clone(), binding.clone(), view);
    arm(&script.release, move || {
        let (registry, binding, view) = reachable;
        registry.retire(mechanism).unwrap();
        drop((registry, binding, view));
        AllocationReleaseOutcome::complete(ReleaseAccounting::eager(64))
    });
    drop(registry);
    binding.release(allocation).unwrap();
    assert_eq!(log.take(), ["A release 64 8"]);
    drop(binding);
    assert_eq!(log.take(), ALL);
}

/// R53: the same for `allocate`; what it made is live, and pins.
#[test]
fn no_allocator_ends_while_it_allocates() {
    let Rig { registry, log, script, .. } = Rig::new();
    let binding = Arc::new(Mutex::new(Some(registry.bind(DEVICE).unwrap())));
    let own = binding.lock().unwrap().clone().unwrap();
    let reachable = (registry, Arc::clone(&binding));
    arm(&script.allocate, move || {
        let (registry, binding) = reachable;
        drop(binding.lock().unwrap().take());
        drop(registry);
        Ok(())
    });
    let allocation = own.allocate(8, 8).unwrap();
    drop(own);
    assert_eq!(log.take(), ["A allocate 8 8"]);
    assert!(binding.lock().unwrap().is_none());
    drop(allocation);
    assert_eq!(log.take(), ALL);
}

/// R50: a destructor that removes another mechanism has that one's destructor run before the outer call returns.
#[test]
fn nested_removals_are_carried_out() {
    let rig = Rig::new();
    let next = another(&rig, "B");
    let registry = rig.registry.clone();
    arm(&rig.script.drop, move || {
        registry.retire(next).unwrap();
        registry.remove(next).unwrap();
    });
    rig.registry.retire(rig.mechanism).unwrap();
    rig.registry.remove(rig.mechanism).unwrap();
    let mut ended = rig.log.take();
    ended.sort();
    assert_eq!(ended, ["A dropped", "B dropped"]);
    assert_eq!(rig.registry.snapshots().unwrap(), []);
    rig.registry.remove_authority(rig.authority).unwrap();
    rig.registry.remove_provider_context(rig.context).unwrap();
}

/// R48, R50: a last pin that a thread-local keeps ends everything as its thread ends, nested removals included, whatever the thread did
/// before.
#[test]
fn the_end_of_a_thread_may_be_the_end_of_a_mechanism() {
    thread_local! {
        static KEPT: RefCell<Option<MemoryBinding>> = const { RefCell::new(None) };
    }

    for tore_down_before in [false, true] {
        let rig = Rig::new();
        let (next, spare) = (another(&rig, "B"), another(&rig, "D"));
        let registry = rig.registry.clone();
        arm(&rig.script.drop, move || {
            registry.retire(next).unwrap();
            registry.remove(next).unwrap();
        });
        thread::scope(|scope| {
            let keep = || {
                // A teardown makes the library's own thread-local, before the test's or after it.
                let tear_down = || {
                    rig.registry.retire(spare).unwrap();
                    rig.registry.remove(spare).unwrap();
                };
                if tore_down_before {
                    tear_down();
                }
                KEPT.set(Some(rig.registry.bind_registered(rig.mechanism).unwrap()));
                if !tore_down_before {
                    tear_down();
                }
                rig.registry.retire(rig.mechanism).unwrap();
                rig.registry.remove(rig.mechanism).unwrap();
                assert_eq!(rig.log.take(), ["D dropped"]);
            };
            let thread = scope.spawn(keep);
            // Joined as a thread: a scope's own wait ends before the thread-locals do.
            thread.join().unwrap();
        });
        let mut ended = rig.log.take();
        ended.sort();
        assert_eq!(ended, ["A dropped", "B dropped"]);
        assert_eq!(rig.registry.snapshots().unwrap(), []);
    }
}

/// R13, R44: a mechanism can be removed and another one registered in its stead, again and again, with bindings of all of them about.
#[test]
fn succession() {
    let rig = Rig::new();
    let bindings: Vec<_> = (0..300)
        .map(|_| {
            let next = another(&rig, "B");
            rig.registry.select(next).unwrap();
            let binding = rig.registry.bind(DEVICE).unwrap();
            rig.registry.retire(next).unwrap();
            rig.registry.remove(next).unwrap();
            assert_eq!(binding.identity().mechanism(), next.identity());
            binding
        })
        .collect();
    assert_eq!(rig.registry.snapshots().unwrap().len(), 1);
    assert_eq!(rig.log.take(), [""; 0]);
    drop(bindings);
    assert_eq!(rig.log.take().len(), 300);
    rig.finish();
}
