//! Locks that are not ours.

use crate::{
    OTHER,
    common::{
        another::another,
        api::Reach,
        arm::arm,
        doubles::{Double, Script},
        park::gate,
        refused::refused,
        rig::{DEVICE, Rig},
        watchdog::in_time,
        woken::{Woken, poll, ready},
    },
    counting, hold,
};
use liveslot::*;
use std::{
    sync::{Arc, Mutex},
    thread::{self},
};

/// C134: an allocator that waits for a user's lock holds up nobody who has that lock and calls the library.
#[test]
fn a_users_lock_is_nobody_elses() {
    let rig = Rig::new();
    let lock = Arc::new(Mutex::new(()));
    let held = lock.lock().unwrap();
    let (stop, arrived) = gate();
    let wanted = lock.clone();
    arm(&rig.script.allocate, move || {
        let waits = wanted.try_lock().is_err();
        assert!(waits, "the test has the lock");
        stop.park();
        drop(wanted.lock().unwrap());
        Ok(())
    });
    let binding = rig.registry.bind(DEVICE).unwrap();
    let allocating = thread::spawn(move || {
        let block = binding.allocate(8, 8).unwrap();
        binding.release(block).unwrap();
    });
    arrived.reached();
    arrived.open();
    // From now on it is waiting for the lock, or about to.
    let reach = Reach::of(&rig);
    in_time(|| reach.whole_api());
    drop(held);
    allocating.join().unwrap();
    rig.finish();
}

/// C137: the allocator of a refused registration may call the registry as it ends.
#[test]
fn a_refused_allocator_may_call_the_registry() {
    let rig = Rig::new();
    let script = Arc::<Script>::default();
    let reach = Reach::of(&rig);
    arm(&script.drop, || reach.whole_api());
    let allocator = Double::new("B", ["Q", "C"], OTHER, &rig.log, &script);
    let (registry, context, authority) = (rig.registry.clone(), rig.context, rig.authority);
    let result = in_time(move || registry.register_allocator(context, authority, allocator));
    refused(result, BindingError::DeviceMismatch { subject: "allocator", expected: DEVICE, actual: OTHER });
    assert!(script.is_spent());
    rig.finish();
}

/// C139: an allocator that lets go of the last handle it can reach, in one of its own calls, ends once, afterwards.
#[test]
fn the_last_handle_may_go_within_a_call() {
    for in_release in [false, true] {
        let Rig { registry, log, script, mechanism, .. } = Rig::new();
        let binding = registry.bind(DEVICE).unwrap();
        let reachable = (registry.bind(DEVICE).unwrap(), binding.clone());
        let let_go = move || {
            registry.retire(mechanism).unwrap();
            drop(reachable);
            drop(registry);
        };
        let last = in_time(move || {
            if in_release {
                let block = binding.allocate(8, 8).unwrap();
                arm(&script.release, || {
                    let_go();
                    AllocationReleaseOutcome::complete(ReleaseAccounting::eager(8))
                });
                binding.release(block).unwrap();
                binding
            } else {
                arm(&script.allocate, || {
                    let_go();
                    Ok(())
                });
                binding.release(binding.allocate(8, 8).unwrap()).unwrap();
                binding
            }
        });
        assert_eq!(log.take(), ["A allocate 8 8", "A release 8 8"]);
        drop(last);
        assert_eq!(log.take(), ["A dropped", "Q dropped", "C dropped"]);
    }
}

/// C139: so may the last handle's waker, when it is told of a loss or of a drain: who wakes destroys, and goes on.
#[test]
fn the_last_handle_may_go_with_a_waker() {
    for at_the_loss in [true, false] {
        let rig = Rig::new();
        let (binding, block) = hold(&rig);
        let mut watch = rig.registry.device(DEVICE).watch();
        let mut drain = rig.registry.drain(rig.mechanism).unwrap();
        let (last, registry, mechanism) = (binding.clone(), rig.registry.clone(), rig.mechanism);
        let woken = Woken::with(move || {
            registry.remove(mechanism).unwrap();
            drop(last);
        });
        let mut lost = watch.lost();
        if at_the_loss {
            binding.release(block).unwrap();
            drop(binding);
            assert!(poll(&mut lost, &woken).is_pending());
            let registry = rig.registry.clone();
            in_time(move || registry.invalidate_device(DEVICE, "fell off the bus").unwrap());
        } else {
            assert!(poll(&mut drain, &woken).is_pending());
            rig.registry.retire(rig.mechanism).unwrap();
            in_time(move || {
                binding.release(block).unwrap();
                drop(binding);
            });
        }
        assert_eq!(woken.times(), 1);
        assert_eq!(rig.log.take(), ["A release 64 8", "A dropped"]);
    }
}

/// C136: the waker of a drain, and that of a teardown, may call everything.
#[test]
fn a_drains_waker_may_call_everything() {
    let _alone = counting();
    let rig = Rig::new();
    let going = another(&rig, "B");
    let binding = rig.registry.bind_registered(going).unwrap();
    let block = binding.allocate(8, 8).unwrap();
    let mut drain = rig.registry.retire_and_drain(going).unwrap();
    let mut teardown = rig.registry.teardown(going).unwrap();
    let suppressed = suppressed_panics();
    let woken = [(); 2].map(|()| {
        let reach = Reach::of(&rig);
        Woken::with(|| reach.whole_api())
    });
    assert!(poll(&mut drain, &woken[0]).is_pending() && poll(&mut teardown, &woken[1]).is_pending());
    let registry = rig.registry.clone();
    in_time(move || {
        binding.release(block).unwrap();
        registry.remove(going).unwrap();
        drop(binding);
    });
    assert_eq!(woken.each_ref().map(|woken| woken.times()), [1, 1]);
    assert_eq!(suppressed_panics(), suppressed, "a waker panicked");
    assert_eq!((ready(poll(&mut drain, &woken[0])), poll(&mut teardown, &woken[1]).is_ready()), (Ok(()), true));
    rig.finish();
}
