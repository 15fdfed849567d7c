//! Callbacks may call everything, and stop for as long as they like.

mod common {
    pub mod another;
    pub mod api;
    pub mod arm;
    pub mod capable;
    pub mod doubles;
    pub mod held;
    pub mod park;
    pub mod queue;
    pub mod refused;
    pub mod rig;
    pub mod watchdog;
}

use common::{
    another::another,
    api::Reach,
    arm::arm,
    capable::Capable,
    doubles::{Double, Resource, Script},
    held::{Held, hold},
    park::gate,
    queue::Queue,
    refused::refused,
    rig::{DEVICE, Rig},
    watchdog::in_time,
};
use liveslot::{MechanismLifecycle::*, *};
use std::{
    ptr::NonNull,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

type Action = Box<dyn FnOnce() + Send>;

/// Makes the call in the middle of which a callback runs the action, and takes the rig apart.
type Callback = fn(Rig, Action);

/// Where the library calls a user's code.
const CALLBACKS: [(&str, Callback); 27] = [
    ("device, of a registration", |rig, action| {
        arm(&rig.script.device, action);
        let allocator = Double::new("B", ["Q", "C"], DEVICE, &rig.log, &rig.script);
        let second = rig.registry.register_allocator(rig.context, rig.authority, allocator).unwrap();
        rig.registry.retire(second).unwrap();
        rig.registry.remove(second).unwrap();
        rig.finish();
    }),
    ("allocate", |rig, action| {
        let binding = rig.registry.bind(DEVICE).unwrap();
        arm(&rig.script.allocate, || {
            action();
            Ok(())
        });
        let allocation = binding.allocate(16, 8).unwrap();
        binding.release(allocation).unwrap();
        drop(binding);
        rig.finish();
    }),
    ("release", |rig, action| {
        let held = hold(&rig);
        arm(&rig.script.release, || {
            action();
            AllocationReleaseOutcome::complete(ReleaseAccounting::eager(64))
        });
        held.binding.release(held.allocation).unwrap();
        drop((held.binding, held.view));
        rig.finish();
    }),
    ("deallocate, of a provided release", |rig, action| {
        let allocator = Arc::new(Plain(Mutex::new(Some(action))));
        let plain = rig.registry.register_allocator_with_device(rig.context, rig.authority, allocator, DEVICE).unwrap();
        let binding = rig.registry.bind_registered(plain).unwrap();
        binding.release(binding.allocate(16, 8).unwrap()).unwrap();
        drop(binding);
        rig.registry.retire(plain).unwrap();
        rig.registry.remove(plain).unwrap();
        rig.finish();
    }),
    ("the closure of with_view", |rig, action| {
        let held = hold(&rig);
        held.binding.with_view(&held.view, |_| action()).unwrap();
        held.binding.release(held.allocation).unwrap();
        drop((held.binding, held.view));
        rig.finish();
    }),
    ("as_virtual_backing", |rig, action| {
        arm(&rig.script.discovery, action);
        drop(Capable::of(&rig));
        rig.finish();
    }),
    ("as_shared_mapping", |rig, action| {
        let binding = rig.registry.bind(DEVICE).unwrap();
        arm(&rig.script.discovery, action);
        assert!(binding.shared_mapping().unwrap().is_none());
        drop(binding);
        rig.finish();
    }),
    ("allocate_committed", |rig, action| {
        in_capability(rig, action, |own, _, _| {
            own.binding.release(own.backing.allocate_committed(16, 8, &[0..4, 8..16]).unwrap()).unwrap();
        });
    }),
    ("commit_allocation_range", |rig, action| {
        in_capability(rig, action, |own, _, allocation| own.backing.commit_allocation_range(allocation, 0, 8).unwrap());
    }),
    ("commit_allocation_ranges", |rig, action| {
        in_capability(rig, action, |own, _, allocation| own.backing.commit_allocation_ranges(&[(allocation, 0, 8)]).unwrap());
    }),
    ("mapped_bytes_for_allocation", |rig, action| {
        in_capability(rig, action, |own, _, _| assert_eq!(own.backing.mapped_bytes_for_allocation(16, 8).unwrap(), 5));
    }),
    ("decommit_allocation_range", |rig, action| {
        in_capability(rig, action, |own, _, allocation| {
            assert_eq!(own.backing.decommit_allocation_range(allocation, 0, 8).unwrap(), 5);
        });
    }),
    ("allocation_committed_bytes", |rig, action| {
        in_capability(rig, action, |own, _, allocation| assert_eq!(own.backing.allocation_committed_bytes(allocation).unwrap(), 5));
    }),
    ("create_shared_prefix", |rig, action| {
        in_capability(rig, action, |own, _, _| drop(own.mapping.create_shared_prefix(8).unwrap()));
    }),
    ("incremental_owned_bytes_for_shared_prefix", |rig, action| {
        in_capability(rig, action, |own, prefix, _| {
            assert_eq!(own.mapping.incremental_owned_bytes_for_shared_prefix(prefix).unwrap(), 5);
        });
    }),
    ("commit_shared_prefix", |rig, action| {
        in_capability(rig, action, |own, prefix, allocation| {
            assert_eq!(own.mapping.commit_shared_prefix(prefix, allocation, 0).unwrap().granules, 5);
        });
    }),
    ("device_ptr", |rig, action| in_prefix(rig, action, |prefix| assert_eq!(prefix.device_ptr(), 1 << 40))),
    ("committed_physical_bytes", |rig, action| in_prefix(rig, action, |prefix| assert_eq!(prefix.committed_physical_bytes(), 33))),
    ("mapped_bytes", |rig, action| in_prefix(rig, action, |prefix| assert_eq!(prefix.mapped_bytes(), 34))),
    ("requested_bytes", |rig, action| in_prefix(rig, action, |prefix| assert_eq!(prefix.requested_bytes(), 32))),
    ("the destructor of a prefix", |rig, action| {
        let own = Capable::of(&rig);
        let prefix = own.mapping.create_shared_prefix(32).unwrap();
        arm(&rig.script.prefix_drop, action);
        drop(prefix);
        drop(own);
        rig.finish();
    }),
    ("enqueue", |rig, action| {
        let held = hold(&rig);
        let action = Mutex::new(Some(action));
        let queue = Queue(|request: PreparedAllocationRelease| {
            let action = action.lock().unwrap().take();
            action.expect("called once")();
            assert!(request.execute().is_complete());
            Ok(())
        });
        assert!(OwningAllocation::new(held.allocation).release_deferred(&queue).unwrap().is_queued());
        drop((held.binding, held.view));
        rig.finish();
    }),
    ("the conversion of a loss's reason", |rig, action| {
        rig.registry.invalidate_device(DEVICE, Reason(action)).unwrap();
        refused(rig.registry.bind_registered(rig.mechanism), BindingError::DeviceLost { device: DEVICE, reason: "converted".into() });
        rig.finish();
    }),
    ("the destructor of an allocator, in remove", |rig, action| {
        arm(&rig.script.drop, action);
        rig.finish();
    }),
    ("the destructor of an allocator, in a handle's drop", |rig, action| {
        let binding = rig.registry.bind(DEVICE).unwrap();
        rig.registry.retire(rig.mechanism).unwrap();
        rig.registry.remove(rig.mechanism).unwrap();
        arm(&rig.script.drop, action);
        drop(binding);
        assert_eq!(rig.log.take(), ["A dropped"]);
    }),
    ("the destructor of an authority", |rig, action| {
        arm(&rig.script.authority_drop, action);
        rig.finish();
    }),
    ("the destructor of a context", |rig, action| {
        arm(&rig.script.context_drop, action);
        rig.finish();
    }),
];

/// Has a capability called, which acts and answers 5.
fn in_capability(rig: Rig, action: Action, call: fn(&Capable, &BoundSharedPrefix, &BoundAllocation)) {
    let own = Capable::of(&rig);
    let (prefix, allocation) = (own.mapping.create_shared_prefix(32).unwrap(), own.binding.allocate(64, 8).unwrap());
    arm(&rig.script.capability, || {
        action();
        Ok(5)
    });
    call(&own, &prefix, &allocation);
    own.binding.release(allocation).unwrap();
    drop((own, prefix));
    rig.finish();
}

/// Has an accessor of a prefix called, which acts.
fn in_prefix(rig: Rig, action: Action, call: fn(&BoundSharedPrefix)) {
    let own = Capable::of(&rig);
    let prefix = own.mapping.create_shared_prefix(32).unwrap();
    drop(own);
    arm(&rig.script.prefix, action);
    call(&prefix);
    drop(prefix);
    rig.finish();
}

/// Acts once, when it gives memory back.
struct Plain(Mutex<Option<Action>>);

impl std::fmt::Debug for Plain {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        unreachable!("nobody prints an allocator")
    }
}

impl DeviceAllocator for Plain {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        HostAllocator.allocate(bytes, align)
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, bytes: usize, align: usize) {
        let action = self.0.lock().unwrap().take();
        action.expect("called once")();
        // SAFETY: the caller's promise is passed on; all memory is the heap's.
        unsafe { HostAllocator.deallocate(pointer, bytes, align) };
    }

    fn device(&self) -> DeviceKey {
        unreachable!("the caller says it")
    }
}

/// Acts when it is converted.
struct Reason(Action);

impl From<Reason> for Arc<str> {
    fn from(Reason(action): Reason) -> Self {
        action();
        "converted".into()
    }
}

/// R106: from within each callback, every call returns.
#[test]
fn every_callback_may_call_everything() {
    for (callback, run) in CALLBACKS {
        println!("in {callback}");
        in_time(move || {
            let rig = Rig::new();
            let reach = Reach::of(&rig);
            run(rig, Box::new(|| reach.whole_api()));
        });
    }
}

/// A shutdown is refused in each of them, whatever the time and whichever the registry, and changes nothing; another thread may call it
/// meanwhile.
#[test]
fn no_callback_shuts_a_registry_down() {
    for (callback, run) in CALLBACKS {
        println!("in {callback}");
        in_time(move || {
            let rig = Rig::new();
            let other = Rig::new();
            let (own, others) = (rig.registry.clone(), other.registry.clone());
            run(
                rig,
                Box::new(move || {
                    assert_eq!(own.shutdown(Duration::ZERO), Err(InsideCallback));
                    assert_eq!(own.shutdown(Duration::MAX), Err(InsideCallback));
                    assert_eq!(others.shutdown(Duration::MAX), Err(InsideCallback));
                    let beside = thread::spawn(move || others.shutdown(Duration::MAX)).join().unwrap();
                    assert!(beside.unwrap().is_complete());
                }),
            );
            assert_eq!(other.log.take(), ["A dropped", "Q dropped", "C dropped"]);
        });
    }
}

/// R107: while a thread is stopped in a callback, every call returns on another thread.
#[test]
fn a_parked_callback_stops_nobody() {
    for (callback, run) in CALLBACKS {
        println!("parked in {callback}");
        let rig = Rig::new();
        let reach = Reach::of(&rig);
        let (stop, parked) = gate();
        let stopped = thread::spawn(move || run(rig, Box::new(|| stop.park())));
        parked.reached();
        in_time(|| reach.whole_api());
        parked.open();
        stopped.join().unwrap();
    }
}

/// R107: the same on the very mechanism, whose whole end can be prepared meanwhile, with the outcomes that its operation calls for.
#[test]
fn a_parked_operation_delays_the_end_of_its_mechanism_alone() {
    for lose in [false, true] {
        let rig = Rig::new();
        let held = hold(&rig);
        let (stop, parked) = gate();
        arm(&rig.script.allocate, || {
            stop.park();
            Ok(())
        });
        thread::scope(|scope| {
            let allocating = scope.spawn(|| held.binding.allocate(16, 8));
            parked.reached();
            // Others allocate from it meanwhile.
            held.binding.release(held.binding.allocate(32, 8).unwrap()).unwrap();
            let lifecycle = if lose {
                rig.registry.invalidate_device(DEVICE, "lost").unwrap();
                let busy = BindingError::ContextNotQuiescent { context: rig.context.identity(), active_operations: 1 };
                refused(rig.registry.confirm_context_terminated(rig.context), busy);
                DeviceLost
            } else {
                rig.registry.retire(rig.mechanism).unwrap();
                refused(rig.registry.confirm_context_terminated(rig.context), (rig.mechanism, Retired));
                held.binding.release(held.allocation).unwrap();
                Retired
            };
            refused(rig.registry.remove(rig.mechanism), (rig.mechanism, lifecycle));
            let in_use = BindingError::ProviderContextInUse(rig.context.identity());
            refused(rig.registry.remove_provider_context(rig.context), in_use);
            let successor = another(&rig, "B");
            assert_eq!(rig.registry.bind(DEVICE).unwrap().identity().mechanism(), successor.identity());
            rig.registry.retire(successor).unwrap();
            rig.registry.remove(successor).unwrap();
            parked.open();
            let allocation = allocating.join().unwrap().unwrap();
            if lose {
                rig.registry.confirm_context_terminated(rig.context).unwrap();
            } else {
                held.binding.release(allocation).unwrap();
            }
        });
        drop((held.binding, held.view));
        rig.finish();
    }
}

/// R107: a destructor that stops at the end of its registry stops no other mechanism.
#[test]
fn a_parked_destructor_stops_no_other_mechanism() {
    let rig = Rig::new();
    let other = another(&rig, "B");
    let binding = rig.registry.bind_registered(other).unwrap();
    let (stop, parked) = gate();
    arm(&rig.script.drop, || stop.park());
    let Rig { registry, log, .. } = rig;
    let ending = thread::spawn(move || drop(registry));
    parked.reached();
    let log_of_work = log.clone();
    in_time(move || {
        binding.release(binding.allocate(16, 8).unwrap()).unwrap();
        drop(binding);
        assert_eq!(log_of_work.take(), ["B allocate 16 8", "B release 16 8", "B dropped"]);
    });
    parked.open();
    ending.join().unwrap();
    assert_eq!(log.take(), ["A dropped", "Q dropped", "C dropped"]);
}

/// R50, R107: a destructor of what nobody uses, stopped at the end of its registry, keeps no mechanism's authority and context.
#[test]
fn a_parked_destructor_keeps_nothing_that_others_use() {
    for of_a_context in [false, true] {
        let rig = Rig::new();
        let (idle, (stop, parked)) = (Arc::<Script>::default(), gate());
        if of_a_context {
            rig.registry.register_provider_context(DEVICE, Resource::context("idle", &rig.log, &idle)).unwrap();
            arm(&idle.context_drop, || stop.park());
        } else {
            rig.registry.register_authority(DEVICE, Resource::authority("idle", &rig.log, &idle)).unwrap();
            arm(&idle.authority_drop, || stop.park());
        }
        // Its supports stand behind the idle one.
        let context = rig.registry.register_provider_context(DEVICE, Resource::context("later C", &rig.log, &idle)).unwrap();
        let authority = rig.registry.register_authority(DEVICE, Resource::authority("later Q", &rig.log, &idle)).unwrap();
        let allocator = Double::new("B", ["later Q", "later C"], DEVICE, &rig.log, &rig.script);
        let later = rig.registry.register_allocator_with_device(context, authority, allocator, DEVICE).unwrap();
        let bindings = [rig.mechanism, later].map(|mechanism| rig.registry.bind_registered(mechanism).unwrap());
        let Rig { registry, log, .. } = rig;
        let ending = thread::spawn(move || drop(registry));
        parked.reached();
        in_time(move || drop(bindings));
        let ended = log.take();
        parked.open();
        ending.join().unwrap();
        assert_eq!(ended, ["A dropped", "Q dropped", "C dropped", "B dropped", "later Q dropped", "later C dropped"]);
        assert_eq!(log.take(), ["idle dropped"]);
    }
}

/// R106: the reason is converted before anything is lost.
#[test]
fn a_reason_is_converted_first() {
    let rig = Rig::new();
    let (registry, mechanism) = (rig.registry.clone(), rig.mechanism);
    let look = move || {
        assert_eq!(registry.snapshot(mechanism).unwrap().lifecycle, Active);
        assert_eq!(registry.bind(DEVICE).unwrap().identity().mechanism(), mechanism.identity());
    };
    rig.registry.invalidate_device(DEVICE, Reason(Box::new(look))).unwrap();
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().lifecycle, DeviceLost);
    rig.finish();
}

/// R108: nested calls see each other.
#[test]
fn nested_operations_are_counted() {
    let rig = Rig::new();
    let Held { binding, allocation, view } = hold(&rig);
    let (inner, script) = (binding.clone(), Arc::clone(&rig.script));
    arm(&rig.script.release, move || {
        let within = inner.clone();
        arm(&script.allocate, move || {
            let snapshot = within.mechanism_snapshot().unwrap();
            // The queued release, and the allocation within it.
            assert_eq!((snapshot.live_allocations, snapshot.queued_releases, snapshot.active_operations), (0, 1, 2));
            within.with_view(&view, |_| ()).expect_err("the allocation is on its way back").to_string();
            Ok(())
        });
        let nested = inner.allocate(8, 8).unwrap();
        let snapshot = inner.mechanism_snapshot().unwrap();
        assert_eq!((snapshot.live_allocations, snapshot.queued_releases, snapshot.active_operations), (1, 1, 1));
        inner.release(nested).unwrap();
        AllocationReleaseOutcome::complete(ReleaseAccounting::eager(64))
    });
    binding.release(allocation).unwrap();
    assert_eq!(rig.log.take(), ["A release 64 8", "A allocate 8 8", "A release 8 8"]);
    drop(binding);
    rig.finish();
}

/// What a callback does to its own mechanism.
type Act = fn(&BindingRegistry, RegisteredMechanism);

/// Each with the lifecycle that comes of it.
const OWN: [(Act, MechanismLifecycle); 3] = [
    (|registry, own| registry.select(own).unwrap(), Active),
    (|registry, own| registry.retire(own).unwrap(), Retired),
    (|registry, _| registry.invalidate_device(DEVICE, "by the allocator itself").unwrap(), DeviceLost),
];

/// Acts on the mechanism that is calling, then tries to end it, which its own operation forbids.
fn turn_on_oneself(rig: &Rig, act: Act, lifecycle: MechanismLifecycle) -> impl FnOnce() + Send + use<> {
    let (registry, mechanism, context) = (rig.registry.clone(), rig.mechanism, rig.context);
    move || {
        act(&registry, mechanism);
        refused(registry.remove(mechanism), (mechanism, lifecycle));
        match lifecycle {
            DeviceLost => {
                let busy = BindingError::ContextNotQuiescent { context: context.identity(), active_operations: 1 };
                refused(registry.confirm_context_terminated(context), busy);
            }
            _ => refused(registry.confirm_context_terminated(context), (mechanism, lifecycle)),
        }
    }
}

/// R109: an allocator that selects, retires or loses itself in `allocate` still has its allocation recorded.
#[test]
fn an_allocator_may_turn_on_itself_in_allocate() {
    for (act, lifecycle) in OWN {
        let rig = Rig::new();
        let binding = rig.registry.bind(DEVICE).unwrap();
        let turn = turn_on_oneself(&rig, act, lifecycle);
        arm(&rig.script.allocate, || {
            turn();
            Ok(())
        });
        let allocation = binding.allocate(16, 8).unwrap();
        let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!((snapshot.lifecycle, snapshot.live_allocations, snapshot.active_operations), (lifecycle, 1, 0));
        if lifecycle == DeviceLost {
            rig.registry.confirm_context_terminated(rig.context).unwrap();
            drop(allocation);
        } else {
            binding.release(allocation).unwrap();
        }
        drop(binding);
        rig.finish();
    }
}

/// R109: the same in `release`, whose answer counts.
#[test]
fn an_allocator_may_turn_on_itself_in_release() {
    for (act, lifecycle) in OWN {
        let rig = Rig::new();
        let held = hold(&rig);
        let turn = turn_on_oneself(&rig, act, lifecycle);
        arm(&rig.script.release, || {
            turn();
            AllocationReleaseOutcome::complete(ReleaseAccounting::eager(64))
        });
        held.binding.release(held.allocation).unwrap();
        let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!((snapshot.lifecycle, snapshot.active_operations), (lifecycle, 0));
        assert!(!snapshot.retains_ownership());
        drop((held.binding, held.view));
        rig.finish();
    }
}

/// R108, R109: the same in a capability, which is asked and called as the mechanism was when the call began.
#[test]
fn an_allocator_may_turn_on_itself_in_a_capability() {
    for (act, lifecycle) in OWN {
        for in_discovery in [false, true] {
            let rig = Rig::new();
            let own = Capable::of(&rig);
            let allocation = own.binding.allocate(64, 8).unwrap();
            let turn = turn_on_oneself(&rig, act, lifecycle);
            if in_discovery {
                arm(&rig.script.discovery, turn);
            } else {
                arm(&rig.script.capability, || {
                    turn();
                    Ok(0)
                });
            }
            rig.log.take();
            own.backing.commit_allocation_range(&allocation, 0, 8).unwrap();
            assert_eq!(rig.log.take(), ["A as_virtual_backing", "A commit_allocation_range 64 8 0 8"]);
            let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
            assert_eq!((snapshot.lifecycle, snapshot.live_allocations, snapshot.active_operations), (lifecycle, 1, 0));
        }
        // What it allocates then is recorded.
        let rig = Rig::new();
        let own = Capable::of(&rig);
        let turn = turn_on_oneself(&rig, act, lifecycle);
        arm(&rig.script.capability, || {
            turn();
            Ok(0)
        });
        let allocation = own.backing.allocate_committed(64, 8, &[]).unwrap();
        let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!((snapshot.lifecycle, snapshot.live_allocations, snapshot.active_operations), (lifecycle, 1, 0));
        if lifecycle == DeviceLost {
            rig.registry.confirm_context_terminated(rig.context).unwrap();
            drop(allocation);
        } else {
            own.binding.release(allocation).unwrap();
        }
        drop(own);
        rig.finish();
    }
}

/// R91, R108, R109: the same in a queue: the request that it is handed holds the operation, and is then executed by the lifecycle that it
/// meets.
#[test]
fn a_queue_may_turn_on_the_mechanism() {
    for (act, lifecycle) in OWN {
        let rig = Rig::new();
        let Held { binding, allocation, view } = hold(&rig);
        let turn = Mutex::new(Some(turn_on_oneself(&rig, act, lifecycle)));
        let queue = Queue(|request: PreparedAllocationRelease| {
            turn.lock().unwrap().take().unwrap()();
            let snapshot = binding.mechanism_snapshot().unwrap();
            assert_eq!((snapshot.live_allocations, snapshot.queued_releases, snapshot.active_operations), (0, 1, 1));
            assert_eq!(request.execute().is_complete(), lifecycle != DeviceLost);
            Ok(())
        });
        assert!(OwningAllocation::new(allocation).release_deferred(&queue).unwrap().is_queued());
        let snapshot = binding.mechanism_snapshot().unwrap();
        let quarantined = usize::from(lifecycle == DeviceLost);
        assert_eq!((snapshot.lifecycle, snapshot.active_operations, snapshot.quarantined_allocations), (lifecycle, 0, quarantined));
        drop((binding, view));
        if lifecycle == DeviceLost {
            assert_eq!(rig.log.take(), [""; 0]);
            rig.registry.confirm_context_terminated(rig.context).unwrap();
        }
        rig.finish();
    }
}
