//! A shutdown waits for one class of users, and forgets another.

use crate::{
    common::{
        another::another,
        arm::arm,
        park::gate,
        refused::refused,
        rig::{DEVICE, Rig},
        watchdog::in_time,
    },
    hold,
};
use liveslot::*;
use std::{sync::Arc, thread, time::Duration};

/// C039: a shutdown waits for a thread that is inside an allocation and owns nothing yet, and then for what it owns; nobody binds, selects
/// or registers meanwhile. Who only binds is told apart from who owns.
#[test]
fn a_shutdown_waits_for_whoever_is_inside() {
    let rig = Rig::new();
    let next = another(&rig, "B");
    let binding = rig.registry.bind(DEVICE).unwrap();
    let (stop, inside) = gate();
    arm(&rig.script.allocate, move || {
        stop.park();
        Ok(())
    });
    let allocating = thread::spawn(move || {
        let block = binding.allocate(16, 8).unwrap();
        (binding, block)
    });
    inside.reached();
    let counts = |report: &DrainReport| (report.snapshot.identity, report.snapshot.active_operations, report.snapshot.live_allocations);
    let report = rig.registry.shutdown(Duration::ZERO).unwrap();
    assert_eq!(report.left.iter().map(counts).collect::<Vec<_>>(), [(rig.mechanism.identity(), 1, 0)]);
    assert_eq!(rig.log.take(), ["A allocate 16 8", "B dropped"], "nobody was inside B");

    refused(rig.registry.bind(DEVICE), BindingError::ShutDown);
    refused(rig.registry.bind_registered(rig.mechanism), BindingError::ShutDown);
    refused(rig.registry.select(rig.mechanism), BindingError::ShutDown);
    refused(rig.registry.bind_registered(next), BindingError::UnregisteredMechanism(next.identity()));
    let late = Arc::new(HostAllocator);
    refused(rig.registry.register_allocator_with_device(rig.context, rig.authority, late, DEVICE), BindingError::ShutDown);

    let registry = rig.registry.clone();
    let shutting_down = thread::spawn(move || registry.shutdown(Duration::MAX).unwrap());
    inside.open();
    let (binding, block) = allocating.join().unwrap();
    assert_eq!(
        rig.registry.shutdown(Duration::ZERO).unwrap().left.iter().map(counts).collect::<Vec<_>>(),
        [(rig.mechanism.identity(), 0, 1)]
    );
    binding.release(block).unwrap();
    drop(binding);
    let report = in_time(move || shutting_down.join().unwrap());
    assert!(report.is_complete(), "{report}");
    assert_eq!(rig.log.take(), ["A release 16 8", "A dropped", "Q dropped", "C dropped"]);
}

/// C039: a binding that owns nothing is a class of its own: its mechanism is removed, and held.
#[test]
fn a_shutdown_names_whoever_only_binds() {
    let rig = Rig::new();
    let (binding, block) = hold(&rig);
    binding.release(block).unwrap();
    let report = rig.registry.shutdown(Duration::ZERO).unwrap();
    assert_eq!(report.left, []);
    assert_eq!(report.held.iter().map(|held| (held.mechanism, held.handles)).collect::<Vec<_>>(), [(rig.mechanism.identity(), 1)]);
    assert_eq!(rig.log.take(), ["A release 64 8"]);
    drop(binding);
    assert!(rig.registry.shutdown(Duration::ZERO).unwrap().is_complete());
    assert_eq!(rig.log.take(), ["A dropped", "Q dropped", "C dropped"]);
}
