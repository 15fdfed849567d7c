//! Locks that are not ours.

use crate::{
    OTHER,
    common::{
        api::Reach,
        arm::arm,
        doubles::{Double, Script},
        park::gate,
        refused::refused,
        rig::{DEVICE, Rig},
        watchdog::in_time,
    },
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
