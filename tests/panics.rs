//! User code that panics: the panic reaches whoever called it, and the library goes on as if nothing had happened.

mod common {
    pub mod another;
    pub mod api;
    pub mod arm;
    pub mod capable;
    pub mod doubles;
    pub mod held;
    pub mod lifecycle;
    pub mod queue;
    pub mod refused;
    pub mod rig;
}

use common::{
    another::another,
    api::Reach,
    arm::arm,
    capable::Capable,
    doubles::{Double, Log, Resource, Script},
    held::hold,
    lifecycle::bring,
    queue::Queue,
    refused::refused,
    rig::{DEVICE, Rig},
};
use liveslot::{MechanismLifecycle::*, *};
use std::{
    any::Any,
    fmt::Debug,
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What is thrown: a payload that nothing else throws.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Thrown(&'static str);

/// Demands that `call` throws `expected` at its caller.
#[track_caller]
fn throws<T: Debug>(expected: &'static str, call: impl FnOnce() -> T) {
    let panic = catch_unwind(AssertUnwindSafe(call)).expect_err("the panic reaches the caller");
    match panic.downcast_ref::<Thrown>() {
        Some(thrown) => assert_eq!(*thrown, Thrown(expected)),
        None => panic!("another panic: {:?}", panic.downcast_ref::<String>()),
    }
}

fn throw(what: &'static str) -> impl FnOnce() + Send {
    move || panic_any(Thrown(what))
}

/// The count of suppressed panics is the process's: who looks at it, or adds to it, has it alone.
fn counting() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// R114, R119: a panic in `device()` registers nothing, and drops the allocator.
#[test]
fn device() {
    let rig = Rig::new();
    for round in 0..2 {
        arm(&rig.script.device, throw("device"));
        let allocator = Double::new("B", ["Q", "C"], DEVICE, &rig.log, &rig.script);
        if round == 0 {
            throws("device", || rig.registry.register_allocator(rig.context, rig.authority, allocator));
        } else {
            // SAFETY: the double is one object, so all its parts are coherent.
            throws("device", || unsafe { rig.registry.register_trusted_composite(rig.context, rig.authority, allocator) });
        }
        assert_eq!(rig.log.take(), ["B device", "B dropped"]);
        assert_eq!(rig.registry.snapshots().unwrap().len(), 1);
        assert_eq!(rig.registry.bind(DEVICE).unwrap().identity().mechanism(), rig.mechanism.identity());
    }
    Reach::of(&rig).whole_api();
    rig.finish();
}

/// R114, R118: if the allocator's destructor panics behind `device()`, that is counted; the first panic is passed on, nothing is
/// registered.
#[test]
fn device_and_destructor() {
    let _alone = counting();
    let rig = Rig::new();
    for composite in [false, true] {
        arm(&rig.script.device, throw("device"));
        arm(&rig.script.drop, throw("allocator"));
        let allocator = Double::new("B", ["Q", "C"], DEVICE, &rig.log, &rig.script);
        let before = suppressed_panics();
        throws("device", || match composite {
            false => rig.registry.register_allocator(rig.context, rig.authority, allocator),
            // SAFETY: the double is one object, so all its parts are coherent.
            true => unsafe { rig.registry.register_trusted_composite(rig.context, rig.authority, allocator) },
        });
        assert_eq!(suppressed_panics() - before, 1);
        assert_eq!(rig.log.take(), ["B device", "B dropped"]);
        assert_eq!(rig.registry.snapshots().unwrap().len(), 1);
    }
    rig.finish();
}

/// R115, R119: a panic in `allocate` records nothing.
#[test]
fn allocate() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let before = rig.registry.snapshot(rig.mechanism).unwrap();
    for _ in 0..3 {
        arm(&rig.script.allocate, || panic_any(Thrown("allocate")));
        throws("allocate", || binding.allocate(8, 8));
        assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), before);
    }
    binding.release(binding.allocate(8, 8).unwrap()).unwrap();
    drop(binding);
    Reach::of(&rig).whole_api();
    rig.finish();
}

/// R115: also when the mechanism is retired or lost meanwhile.
#[test]
fn allocate_while_dying() {
    for phase in [Retired, DeviceLost] {
        let rig = Rig::new();
        let binding = rig.registry.bind(DEVICE).unwrap();
        let (registry, mechanism) = (rig.registry.clone(), rig.mechanism);
        arm(&rig.script.allocate, move || {
            match phase {
                Retired => registry.retire(mechanism).unwrap(),
                _ => registry.invalidate_device(DEVICE, "lost").unwrap(),
            }
            panic_any(Thrown("allocate"))
        });
        throws("allocate", || binding.allocate(8, 8));
        let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!((snapshot.lifecycle, snapshot.live_allocations, snapshot.active_operations), (phase, 0, 0));
        drop(binding);
        rig.finish();
    }
}

/// R115, R119: a panic in a closure that looks at a view ends the look.
#[test]
fn with_view() {
    let rig = Rig::new();
    let held = hold(&rig);
    let before = rig.registry.snapshot(rig.mechanism).unwrap();
    throws("look", || held.binding.with_view(&held.view, |_| panic_any(Thrown("look"))));
    throws("inner", || held.binding.with_view(&held.view, |_| held.binding.with_view(&held.view, |_| panic_any(Thrown("inner")))));
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), before);
    held.binding.with_view(&held.view, |_| ()).unwrap();
    held.binding.release(held.allocation).unwrap();
    drop((held.binding, held.view));
    Reach::of(&rig).whole_api();
    rig.finish();
}

/// R117, R119: a panic in `release` leaves the ownership in quarantine, as abandoned, and the operation ends.
#[test]
fn release() {
    for phase in [Active, Retired] {
        let rig = Rig::new();
        let held = hold(&rig);
        let (identity, address) = (held.allocation.identity(), held.allocation.as_ptr().addr().get());
        bring(&rig, phase);
        arm(&rig.script.release, || panic_any(Thrown("release")));
        throws("release", || held.binding.release(held.allocation));
        assert_eq!(rig.log.take(), ["A release 64 8"]);

        let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!((snapshot.live_allocations, snapshot.queued_releases, snapshot.active_operations), (0, 0, 0));
        assert_eq!((snapshot.quarantined_allocations, snapshot.quarantined_bytes), (1, 64));
        let entry = QuarantinedAllocation {
            identity,
            address,
            bytes: 64,
            align: 8,
            state: AllocationReleaseState::Quarantined,
            reason: QuarantineReason::AbandonedRequest,
            retained_bytes: 64,
        };
        assert_eq!(held.binding.quarantined().unwrap(), [entry]);
        if phase == Active {
            refused(held.binding.with_view(&held.view, |_| ()), BindingError::StaleAllocation(identity));
            Reach::of(&rig).whole_api();
        }
        drop((held.binding, held.view));
        bring(&rig, Terminated);
        rig.finish();
    }
}

/// R117: the same however the release was prepared, on whichever way it gets to the allocator.
#[test]
fn prepared_releases() {
    type Release = fn(OwningAllocation);
    let releases: [Release; 4] = [
        |owner| drop(owner.prepare_release().unwrap().execute()),
        |owner| drop(owner.release_now()),
        |owner| {
            drop(owner.release_deferred(&Queue(|request: PreparedAllocationRelease| {
                request.execute();
                Ok(())
            })))
        },
        |owner| {
            let request = owner.prepare_release().unwrap();
            drop(DeferredEnqueueError::new(DeferredEnqueueRejection::Full, request).into_request().execute());
        },
    ];
    for release in releases {
        let rig = Rig::new();
        let held = hold(&rig);
        let identity = held.allocation.identity();
        arm(&rig.script.release, || panic_any(Thrown("release")));
        throws("release", || release(OwningAllocation::new(held.allocation)));
        assert_eq!(rig.log.take(), ["A release 64 8"]);
        let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!((snapshot.live_allocations, snapshot.queued_releases, snapshot.active_operations), (0, 0, 0));
        let entries = held.binding.quarantined().unwrap();
        assert_eq!(
            entries.iter().map(|entry| (entry.identity, entry.reason)).collect::<Vec<_>>(),
            [(identity, QuarantineReason::AbandonedRequest)]
        );
        Reach::of(&rig).whole_api();
        drop((held.binding, held.view));
        bring(&rig, Terminated);
        rig.finish();
    }
}

/// R115, R119: a panic in a question for a capability, or in any method of one, leaves everything as it was.
#[test]
fn capabilities() {
    type Call = fn(&Capable, &BoundSharedPrefix, &BoundAllocation);
    let calls: [Call; 9] = [
        |own, _, _| own.binding.release(own.backing.allocate_committed(8, 8, &[]).unwrap()).unwrap(),
        |own, _, allocation| drop(own.backing.commit_allocation_range(allocation, 0, 8)),
        |own, _, allocation| drop(own.backing.commit_allocation_ranges(&[(allocation, 0, 8)])),
        |own, _, _| drop(own.backing.mapped_bytes_for_allocation(8, 8)),
        |own, _, allocation| drop(own.backing.decommit_allocation_range(allocation, 0, 8)),
        |own, _, allocation| drop(own.backing.allocation_committed_bytes(allocation)),
        |own, _, _| drop(own.mapping.create_shared_prefix(8)),
        |own, prefix, _| drop(own.mapping.incremental_owned_bytes_for_shared_prefix(prefix)),
        |own, prefix, allocation| drop(own.mapping.commit_shared_prefix(prefix, allocation, 0)),
    ];
    for call in calls {
        let rig = Rig::new();
        let own = Capable::of(&rig);
        let (prefix, allocation) = (own.mapping.create_shared_prefix(32).unwrap(), own.binding.allocate(64, 8).unwrap());
        let before = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!((before.live_allocations, before.active_operations), (1, 0));
        for _ in 0..2 {
            arm(&rig.script.capability, || panic_any(Thrown("capability")));
            throws("capability", || call(&own, &prefix, &allocation));
            assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), before);
            arm(&rig.script.discovery, throw("discovery"));
            throws("discovery", || call(&own, &prefix, &allocation));
            assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), before);
        }
        call(&own, &prefix, &allocation);
        own.binding.release(allocation).unwrap();
        drop((own, prefix));
        Reach::of(&rig).whole_api();
        bring(&rig, Retired);
        rig.finish();
    }

    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    arm(&rig.script.discovery, throw("backing"));
    throws("backing", || binding.virtual_backing());
    arm(&rig.script.discovery, throw("mapping"));
    throws("mapping", || binding.shared_mapping());
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().active_operations, 0);
    drop(binding);
    rig.finish();
}

/// R116, R119: a queue that panics before it has stored the request abandons it; what it has stored is its own.
#[test]
fn enqueue() {
    let rig = Rig::new();
    let held = hold(&rig);
    let identity = held.allocation.identity();
    let dropping = Queue(|_| panic_any(Thrown("enqueue")));
    throws("enqueue", || OwningAllocation::new(held.allocation).release_deferred(&dropping));
    let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
    assert_eq!((snapshot.live_allocations, snapshot.queued_releases, snapshot.active_operations), (0, 0, 0));
    let entries = held.binding.quarantined().unwrap();
    assert_eq!((entries.len(), entries[0].identity, entries[0].reason), (1, identity, QuarantineReason::AbandonedRequest));
    assert_eq!((entries[0].state, entries[0].retained_bytes), (AllocationReleaseState::Quarantined, 64));

    let kept = Mutex::new(None);
    let storing = Queue(|request| {
        *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(request);
        panic_any(Thrown("enqueue"))
    });
    throws("enqueue", || held.binding.allocate_owning(16, 8).unwrap().release_deferred(&storing));
    let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
    assert_eq!((snapshot.queued_releases, snapshot.active_operations, snapshot.quarantined_allocations), (1, 1, 1));
    let request = kept.lock().unwrap_or_else(PoisonError::into_inner).take();
    rig.log.take();
    assert!(request.unwrap().execute().is_complete());
    assert_eq!(rig.log.take(), ["A release 16 8"]);

    let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
    assert_eq!((snapshot.queued_releases, snapshot.active_operations, snapshot.quarantined_allocations), (0, 0, 1));
    Reach::of(&rig).whole_api();
    drop((held.binding, held.view));
    bring(&rig, Terminated);
    rig.finish();
}

/// R94, R116: a request that is dropped by unwinding is abandoned, an owner that is, dropped.
#[test]
fn owners_and_requests_while_unwinding() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    throws("first", || {
        let _owner = binding.allocate_owning(32, 8).unwrap();
        let _request = binding.allocate_owning(64, 8).unwrap().prepare_release().unwrap();
        panic_any(Thrown("first"));
    });
    let mut reasons: Vec<_> = binding.quarantined().unwrap().iter().map(|entry| (entry.bytes, entry.reason)).collect();
    reasons.sort_by_key(|(bytes, _)| *bytes);
    assert_eq!(reasons, [(32, QuarantineReason::OwnerDropped), (64, QuarantineReason::AbandonedRequest)]);
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().active_operations, 0);
    drop(binding);
    bring(&rig, Terminated);
    rig.finish();
}

/// R119: an accessor of a prefix that panics does so at its caller, and the prefix goes on.
#[test]
fn prefix_accessors() {
    let rig = Rig::new();
    let own = Capable::of(&rig);
    let prefix = own.mapping.create_shared_prefix(32).unwrap();
    let accessors: [fn(&BoundSharedPrefix) -> u64; 4] = [
        |prefix| prefix.device_ptr(),
        |prefix| prefix.committed_physical_bytes(),
        |prefix| prefix.mapped_bytes() as u64,
        |prefix| prefix.requested_bytes() as u64,
    ];
    for access in accessors {
        arm(&rig.script.prefix, throw("accessor"));
        throws("accessor", || access(&prefix));
        assert_ne!(access(&prefix), 0);
    }
    drop((own, prefix));
    rig.finish();
}

/// Throws when it is converted.
struct Reason;

impl From<Reason> for Arc<str> {
    fn from(Reason: Reason) -> Self {
        panic_any(Thrown("reason"))
    }
}

/// R118, R119: a reason that cannot be converted loses nothing.
#[test]
fn reason() {
    let rig = Rig::new();
    let before = rig.registry.snapshot(rig.mechanism).unwrap();
    throws("reason", || rig.registry.invalidate_device(DEVICE, Reason));
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), before);
    Reach::of(&rig).whole_api();
    rig.finish();
}

/// R118: a source whose `Debug` panics does so at whoever prints the error.
#[test]
fn debug() {
    struct Source;

    impl Debug for Source {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic_any(Thrown("debug"))
        }
    }

    impl std::fmt::Display for Source {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            unreachable!("no text repeats its source")
        }
    }

    impl std::error::Error for Source {}

    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    arm(&rig.script.allocate, || {
        let source = Some(Box::from(Source));
        let role = MemoryRole::Weights;
        Err(MemoryError::CapacityUnavailable { tier: "test", requested: 8, available: 0, role, detail: "full".into(), source })
    });
    let error = binding.allocate(8, 8).unwrap_err();
    assert!(error.to_string().contains("full"));
    throws("debug", || format!("{error:?}"));
    drop((binding, error));
    rig.finish();
}

/// What panics in a teardown, and what is logged all the same.
type Armed = [Option<&'static str>; 3];

fn arm_destructors(script: &Script, [allocator, authority, context]: Armed) {
    for (hook, thrown) in [(&script.drop, allocator), (&script.authority_drop, authority), (&script.context_drop, context)] {
        if let Some(thrown) = thrown {
            arm(hook, throw(thrown));
        }
    }
}

/// Which destructors panic: each alone, and all together. The first one's panic is the one that is passed on; the others are counted.
const DESTRUCTORS: [(Armed, &str, u64); 5] = [
    ([Some("allocator"), None, None], "allocator", 0),
    ([None, Some("authority"), None], "authority", 0),
    ([None, None, Some("context")], "context", 0),
    ([Some("allocator"), None, Some("context")], "allocator", 1),
    ([Some("allocator"), Some("authority"), Some("context")], "allocator", 2),
];

const ALL: [&str; 3] = ["A dropped", "Q dropped", "C dropped"];

/// R48, R118: in the drop of the last handle, the pins behind a panicking destructor still go in order, and the caller is told afterwards.
#[test]
fn destructors_in_a_handles_drop() {
    let _alone = counting();
    for (armed, thrown, suppressed) in DESTRUCTORS {
        let rig = Rig::new();
        let binding = rig.registry.bind(DEVICE).unwrap();
        rig.registry.retire(rig.mechanism).unwrap();
        rig.registry.remove(rig.mechanism).unwrap();
        rig.registry.remove_authority(rig.authority).unwrap();
        rig.registry.remove_provider_context(rig.context).unwrap();
        arm_destructors(&rig.script, armed);
        let before = suppressed_panics();
        throws(thrown, || drop(binding));
        assert_eq!(suppressed_panics() - before, suppressed);
        assert_eq!(rig.log.take(), ALL);
        assert_eq!(rig.registry.snapshots().unwrap(), []);
        a_whole_life(&rig.registry, &rig.log);
    }
}

/// R48, R118: the same at the end of the registry.
#[test]
fn destructors_at_the_registrys_end() {
    let _alone = counting();
    for (armed, thrown, suppressed) in DESTRUCTORS {
        let Rig { registry, log, script, .. } = Rig::new();
        arm_destructors(&script, armed);
        let before = suppressed_panics();
        throws(thrown, || drop(registry));
        assert_eq!(suppressed_panics() - before, suppressed);
        assert_eq!(log.take(), ALL);
    }
}

/// R118, R119: in the three removals, which have done their work when they throw.
#[test]
fn destructors_in_removals() {
    let rig = Rig::new();
    arm_destructors(&rig.script, [Some("allocator"), Some("authority"), Some("context")]);
    let (registry, mechanism) = (&rig.registry, rig.mechanism);
    registry.retire(mechanism).unwrap();
    throws("allocator", || registry.remove(mechanism));
    refused(registry.remove(mechanism), BindingError::UnregisteredMechanism(mechanism.identity()));
    assert_eq!(registry.snapshots().unwrap(), []);
    throws("authority", || registry.remove_authority(rig.authority));
    refused(registry.remove_authority(rig.authority), BindingError::UnregisteredAuthority(rig.authority.identity()));
    throws("context", || registry.remove_provider_context(rig.context));
    refused(registry.remove_provider_context(rig.context), BindingError::UnregisteredProviderContext(rig.context.identity()));
    assert_eq!(rig.log.take(), ALL);
    a_whole_life(registry, &rig.log);
}

/// R11, R118: the allocator of a refused registration may panic as it is dropped; nothing is registered, nothing in use.
#[test]
fn destructors_in_a_refused_registration() {
    let rig = Rig::new();
    let script = Arc::<Script>::default();
    let elsewhere = DeviceKey::device(1);
    let allocator = Double::new("B", ["Q", "C"], elsewhere, &rig.log, &script);
    arm(&script.drop, throw("allocator"));
    throws("allocator", || rig.registry.register_allocator(rig.context, rig.authority, allocator));
    assert_eq!(rig.log.take(), ["B device", "B dropped"]);
    assert_eq!(rig.registry.snapshots().unwrap().len(), 1);
    rig.finish();
}

/// R118: what else is due in the same call is carried out: the other mechanisms of a registry, and what was registered and never used.
#[test]
fn other_teardowns_are_carried_out() {
    let _alone = counting();
    let rig = Rig::new();
    let second = Arc::<Script>::default();
    let allocator = Double::new("B", ["Q", "C"], DEVICE, &rig.log, &second);
    rig.registry.register_allocator_with_device(rig.context, rig.authority, allocator, DEVICE).unwrap();
    let idle = Arc::<Script>::default();
    rig.registry.register_authority(DEVICE, Resource::authority("idle authority", &rig.log, &idle)).unwrap();
    rig.registry.register_provider_context(DEVICE, Resource::context("idle context", &rig.log, &idle)).unwrap();
    another(&rig, "D");
    arm(&rig.script.drop, throw("thrown"));
    arm(&second.drop, throw("thrown"));
    arm(&idle.authority_drop, throw("thrown"));

    let Rig { registry, log, .. } = rig;
    let before = suppressed_panics();
    throws("thrown", || drop(registry));
    assert_eq!(suppressed_panics() - before, 2);
    let mut ended = log.take();
    let at = |ended: &[String], name: &str| ended.iter().position(|entry| *entry == format!("{name} dropped")).unwrap();
    for allocator in ["A", "B", "D"] {
        assert!(at(&ended, allocator) < at(&ended, "Q") && at(&ended, "Q") < at(&ended, "C"), "{ended:?}");
    }
    ended.sort();
    let all = ["A dropped", "B dropped", "C dropped", "D dropped", "Q dropped", "idle authority dropped", "idle context dropped"];
    assert_eq!(ended, all);
}

/// R118: on a thread that is unwinding, panics of destructors are caught and counted, whatever goes last.
#[test]
fn destructors_while_unwinding() {
    let _alone = counting();
    for (armed, _, suppressed) in DESTRUCTORS {
        for handle_last in [false, true] {
            let rig = Rig::new();
            let held = hold(&rig);
            let Rig { registry, log, script, .. } = rig;
            arm_destructors(&script, armed);
            let before = suppressed_panics();
            throws("first", move || {
                // Locals go in the reverse order.
                let (_second, _first): (Box<dyn Any>, Box<dyn Any>) =
                    if handle_last { (Box::new(held), Box::new(registry)) } else { (Box::new(registry), Box::new(held)) };
                panic_any(Thrown("first"));
            });
            assert_eq!(suppressed_panics() - before, suppressed + 1);
            assert_eq!(log.take(), ALL);
            assert!(script.is_spent());
        }
    }
}

/// R118: the same in the drop of a handle, with the registry alive, which goes on.
#[test]
fn a_handle_dropped_while_unwinding() {
    let _alone = counting();
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    rig.registry.retire(rig.mechanism).unwrap();
    rig.registry.remove(rig.mechanism).unwrap();
    arm_destructors(&rig.script, [Some("allocator"), None, None]);
    let before = suppressed_panics();
    throws("first", move || {
        let _binding = binding;
        panic_any(Thrown("first"));
    });
    assert_eq!(suppressed_panics() - before, 1);
    assert_eq!(rig.log.take(), ["A dropped"]);
    rig.registry.remove_authority(rig.authority).unwrap();
    rig.registry.remove_provider_context(rig.context).unwrap();
    assert_eq!(rig.log.take(), ["Q dropped", "C dropped"]);
    a_whole_life(&rig.registry, &rig.log);
}

/// R50, R118: what a destructor has made due is carried out though both panic; the outermost call passes on the first.
#[test]
fn nested_destructors() {
    let _alone = counting();
    for outer_too in [false, true] {
        let rig = Rig::new();
        let nested = Arc::<Script>::default();
        let allocator = Double::new("B", ["Q", "C"], DEVICE, &rig.log, &nested);
        let next = rig.registry.register_allocator_with_device(rig.context, rig.authority, allocator, DEVICE).unwrap();
        arm(&nested.drop, throw("nested"));
        let registry = rig.registry.clone();
        arm(&rig.script.drop, move || {
            registry.retire(next).unwrap();
            registry.remove(next).expect("its panic is the outermost call's");
            if outer_too {
                panic_any(Thrown("outer"));
            }
        });
        rig.registry.retire(rig.mechanism).unwrap();
        let before = suppressed_panics();
        throws(if outer_too { "outer" } else { "nested" }, || rig.registry.remove(rig.mechanism));
        assert_eq!(suppressed_panics() - before, u64::from(outer_too));
        assert_eq!(rig.log.take(), ["A dropped", "B dropped"]);
        assert_eq!(rig.registry.snapshots().unwrap(), []);
        a_whole_life(&rig.registry, &rig.log);
    }
}

/// R49, R118: a prefix that panics as it ends, with its mechanism about: nothing else happens.
#[test]
fn a_prefix_alone() {
    let rig = Rig::new();
    let own = Capable::of(&rig);
    let prefix = own.mapping.create_shared_prefix(32).unwrap();
    arm(&rig.script.prefix_drop, throw("prefix"));
    rig.log.take();
    throws("prefix", || drop(prefix));
    assert_eq!(rig.log.take(), ["P dropped"]);
    drop(own);
    Reach::of(&rig).whole_api();
    rig.finish();
}

/// A prefix that is the last pin of everything but the registry that is handed out with it.
fn last_prefix(armed: Armed) -> (BoundSharedPrefix, BindingRegistry, Log) {
    let rig = Rig::new();
    let own = Capable::of(&rig);
    let prefix = own.mapping.create_shared_prefix(32).unwrap();
    drop(own);
    rig.registry.retire(rig.mechanism).unwrap();
    rig.registry.remove(rig.mechanism).unwrap();
    rig.registry.remove_authority(rig.authority).unwrap();
    rig.registry.remove_provider_context(rig.context).unwrap();
    arm(&rig.script.prefix_drop, throw("prefix"));
    arm_destructors(&rig.script, armed);
    rig.log.take();
    (prefix, rig.registry, rig.log)
}

/// Which destructors panic behind that of a prefix, and how many.
const BEHIND: [(Armed, u64); 4] = [
    ([None; 3], 0),
    ([Some("allocator"), None, None], 1),
    ([None, None, Some("context")], 1),
    ([Some("allocator"), Some("authority"), Some("context")], 3),
];
const PREFIX_AND_ALL: [&str; 4] = ["P dropped", "A dropped", "Q dropped", "C dropped"];

/// R48, R49, R118: a prefix that is the last pin and panics: what it pinned still ends after it, in order, whatever else panics; it is
/// the first, so its panic is passed on.
#[test]
fn a_prefix_as_the_last_pin() {
    let _alone = counting();
    for (armed, suppressed) in BEHIND {
        let (prefix, registry, log) = last_prefix(armed);
        let before = suppressed_panics();
        throws("prefix", || drop(prefix));
        assert_eq!(suppressed_panics() - before, suppressed);
        assert_eq!(log.take(), PREFIX_AND_ALL);
        a_whole_life(&registry, &log);
    }
}

/// R49, R118: on a thread that is unwinding the panics are counted.
#[test]
fn a_prefix_while_unwinding() {
    let _alone = counting();
    for (armed, suppressed) in BEHIND {
        let (prefix, registry, log) = last_prefix(armed);
        let before = suppressed_panics();
        throws("first", move || {
            let _prefix = prefix;
            panic_any(Thrown("first"));
        });
        assert_eq!(suppressed_panics() - before, suppressed + 1);
        assert_eq!(log.take(), PREFIX_AND_ALL);
        a_whole_life(&registry, &log);
    }
}

/// R49, R50, R118: within another destructor, the prefix and all that it pins end before the outermost call returns, in order.
#[test]
fn a_prefix_within_a_destructor() {
    let _alone = counting();
    for (armed, suppressed) in BEHIND {
        for outer_too in [false, true] {
            let (prefix, registry, log) = last_prefix(armed);
            let script = Arc::<Script>::default();
            let outer = registry.register_provider_context(DEVICE, Resource::context("outer", &log, &script)).unwrap();
            arm(&script.context_drop, move || {
                drop(prefix);
                if outer_too {
                    panic_any(Thrown("outer"));
                }
            });
            let before = suppressed_panics();
            throws(if outer_too { "outer" } else { "prefix" }, || registry.remove_provider_context(outer));
            assert_eq!(suppressed_panics() - before, suppressed + u64::from(outer_too));
            assert_eq!(log.take(), [&["outer dropped"][..], &PREFIX_AND_ALL].concat());
            a_whole_life(&registry, &log);
        }
    }
}

/// R118: a payload that panics when it is dropped is the end of that panic, too.
#[test]
fn payloads_that_panic() {
    struct Payload;

    impl Drop for Payload {
        fn drop(&mut self) {
            panic_any(Thrown("payload"))
        }
    }

    let _alone = counting();
    let Rig { registry, log, script, .. } = Rig::new();
    arm(&script.drop, throw("allocator"));
    arm(&script.authority_drop, || panic_any(Payload));
    let before = suppressed_panics();
    throws("allocator", || drop(registry));
    assert_eq!(suppressed_panics() - before, 1);
    assert_eq!(log.take(), ALL);
}

/// R119: registers on `registry`, works, and removes all of it.
fn a_whole_life(registry: &BindingRegistry, log: &Log) {
    let script = Arc::default();
    let context = registry.register_provider_context(DEVICE, Resource::context("C2", log, &script)).unwrap();
    let authority = registry.register_authority(DEVICE, Resource::authority("Q2", log, &script)).unwrap();
    let allocator = Double::new("A2", ["Q2", "C2"], DEVICE, log, &script);
    let mechanism = registry.register_allocator(context, authority, allocator).unwrap();
    let binding = registry.bind(DEVICE).unwrap();
    binding.release(binding.allocate(8, 8).unwrap()).unwrap();
    drop(binding);
    registry.retire(mechanism).unwrap();
    registry.remove(mechanism).unwrap();
    registry.remove_authority(authority).unwrap();
    registry.remove_provider_context(context).unwrap();
    assert_eq!(log.take(), ["A2 device", "A2 allocate 8 8", "A2 release 8 8", "A2 dropped", "Q2 dropped", "C2 dropped"]);
}
