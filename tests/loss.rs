//! Losing a device: all its mechanisms at once, none of another, and no allocator is called any more.

mod common {
    pub mod another;
    pub mod arm;
    pub mod doubles;
    pub mod held;
    pub mod lifecycle;
    pub mod new_work;
    pub mod park;
    pub mod refused;
    pub mod rig;
}

use common::{
    another::another,
    arm::arm,
    held::hold,
    lifecycle::{REASON, bring},
    new_work::new_work_is_refused,
    park::gate,
    refused::refused,
    rig::{DEVICE, Rig},
};
use liveslot::{MechanismLifecycle::*, *};
use std::{sync::Arc, thread};

const OTHER: DeviceKey = DeviceKey::device(1);

fn lost(reason: &str) -> BindingError {
    BindingError::DeviceLost { device: DEVICE, reason: reason.into() }
}

/// R28, R33: every mechanism of the device is lost, whatever its lifecycle, save the terminated; other devices' are not.
#[test]
fn a_loss_is_the_devices() {
    let rig = Rig::new();
    bring(&rig, Terminated);
    let (retired, active, selected) = (another(&rig, "B"), another(&rig, "D"), another(&rig, "E"));
    rig.registry.retire(retired).unwrap();
    rig.registry.select(selected).unwrap();
    let context = rig.registry.register_provider_context(OTHER, Arc::new(())).unwrap();
    let authority = rig.registry.register_authority(OTHER, Arc::new(())).unwrap();
    let elsewhere = rig.registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), OTHER).unwrap();

    let lifecycles =
        || [rig.mechanism, retired, active, selected, elsewhere].map(|mechanism| rig.registry.snapshot(mechanism).unwrap().lifecycle);
    assert_eq!(lifecycles(), [Terminated, Retired, Active, Active, Active]);
    rig.registry.invalidate_device(DEVICE, REASON).unwrap();
    assert_eq!(lifecycles(), [Terminated, DeviceLost, DeviceLost, DeviceLost, Active]);
    refused(rig.registry.bind(DEVICE), BindingError::NoSelectedMechanism(DEVICE));
    assert_eq!(rig.registry.bind(OTHER).unwrap().identity().mechanism(), elsewhere.identity());

    rig.registry.retire(elsewhere).unwrap();
    for mechanism in [retired, active, selected, elsewhere] {
        rig.registry.remove(mechanism).unwrap();
    }
    rig.finish();
}

/// R28: a device that nobody registered can be lost; nothing comes of it.
#[test]
fn an_unknown_device_can_be_lost() {
    let rig = Rig::new();
    for device in [OTHER, DeviceKey::HOST, DeviceKey::device(u32::MAX)] {
        rig.registry.invalidate_device(device, REASON).unwrap();
        refused(rig.registry.bind(device), BindingError::NoSelectedMechanism(device));
    }
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().lifecycle, Active);
    rig.finish();
}

/// R29: what is registered after a loss is not touched by it, and is selected.
#[test]
fn a_loss_ends_with_its_call() {
    let rig = Rig::new();
    rig.registry.invalidate_device(DEVICE, REASON).unwrap();
    let later = another(&rig, "B");
    assert_eq!(rig.registry.snapshot(later).unwrap().lifecycle, Active);
    let binding = rig.registry.bind(DEVICE).unwrap();
    assert_eq!(binding.identity().mechanism(), later.identity());
    let allocation = binding.allocate(8, 8).unwrap();
    binding.release(allocation).unwrap();
    drop(binding);
    rig.registry.retire(later).unwrap();
    rig.registry.remove(later).unwrap();
    rig.finish();
}

/// R30, R31: a loss calls nobody and changes no record; afterwards everything is refused with its reason, and releases hand back what they
/// got.
#[test]
fn the_lost_refuse_everything() {
    let rig = Rig::new();
    let held = hold(&rig);
    arm(&rig.script.release, || AllocationReleaseOutcome::failed("stuck"));
    let stuck = held.binding.allocate(16, 8).unwrap();
    drop(held.binding.release(stuck).unwrap_err());
    rig.log.take();

    let before = rig.registry.snapshot(rig.mechanism).unwrap();
    assert_eq!((before.live_allocations, before.quarantined_allocations, before.quarantined_bytes), (1, 1, 16));
    rig.registry.invalidate_device(DEVICE, REASON).unwrap();
    assert_eq!(rig.log.take(), [""; 0]);
    let after = MechanismSnapshot { lifecycle: DeviceLost, ..before };
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), after);
    assert_eq!(held.binding.quarantined().unwrap(), rig.registry.quarantined(rig.mechanism).unwrap());
    assert_eq!(held.binding.quarantined().unwrap().len(), 1);

    new_work_is_refused(&rig, &held, lost(REASON));
    let (identity, pointer) = (held.allocation.identity(), held.allocation.as_ptr());
    let error = held.binding.release(held.allocation).unwrap_err();
    assert!(!error.is_quarantined());
    assert_eq!((error.outcome(), error.state()), (None, AllocationReleaseState::Live));
    let (error, allocation) = error.into_parts();
    refused::<()>(Err(error), lost(REASON));
    assert_eq!((allocation.identity(), allocation.as_ptr(), allocation.len(), allocation.alignment()), (identity, pointer, 64, 8));
    assert_eq!(rig.log.take(), [""; 0]);
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), after);

    drop((held.binding, held.view, allocation));
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    rig.finish();
}

/// R32: the first reason stays, for each mechanism its own first.
#[test]
fn the_first_reason_stays() {
    let rig = Rig::new();
    rig.registry.invalidate_device(DEVICE, "first").unwrap();
    let second = another(&rig, "B");
    rig.registry.invalidate_device(DEVICE, String::from("second")).unwrap();
    rig.registry.invalidate_device(DEVICE, Arc::<str>::from("third")).unwrap();
    refused(rig.registry.bind_registered(rig.mechanism), lost("first"));
    refused(rig.registry.bind_registered(second), lost("second"));
    rig.registry.remove(second).unwrap();
    rig.finish();
}

/// R34: an allocation that began before the loss is recorded and returned; only confirmed termination writes it off.
#[test]
fn an_allocation_in_flight_is_finished() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let (stop, gate) = gate();
    arm(&rig.script.allocate, || {
        stop.park();
        Ok(())
    });
    let allocation = thread::scope(|scope| {
        let allocating = scope.spawn(|| binding.allocate(64, 8));
        gate.reached();
        rig.registry.invalidate_device(DEVICE, REASON).unwrap();
        refused(binding.allocate(8, 8), lost(REASON));
        gate.open();
        allocating.join().unwrap().unwrap()
    });
    let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
    assert_eq!((snapshot.lifecycle, snapshot.live_allocations, snapshot.active_operations), (DeviceLost, 1, 0));
    let (error, allocation) = binding.release(allocation).unwrap_err().into_parts();
    refused::<()>(Err(error), lost(REASON));
    refused(rig.registry.remove(rig.mechanism), (rig.mechanism, DeviceLost));
    assert_eq!(rig.log.take(), ["A allocate 64 8"]);

    rig.registry.confirm_context_terminated(rig.context).unwrap();
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().live_allocations, 0);
    drop((binding, allocation));
    rig.finish();
}

/// R34, R134: the answer of a release that was under way at the loss is taken as it is.
#[test]
fn a_release_in_flight_is_finished() {
    let complete = || AllocationReleaseOutcome::complete(ReleaseAccounting::eager(64));
    for (answer, quarantined) in [(complete(), 0), (AllocationReleaseOutcome::failed("the bus is gone"), 1)] {
        let rig = Rig::new();
        let held = hold(&rig);
        let (stop, gate) = gate();
        arm(&rig.script.release, || {
            stop.park();
            answer
        });
        thread::scope(|scope| {
            let releasing = scope.spawn(|| held.binding.release(held.allocation));
            gate.reached();
            rig.registry.invalidate_device(DEVICE, REASON).unwrap();
            let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
            assert_eq!((snapshot.live_allocations, snapshot.queued_releases, snapshot.active_operations), (0, 1, 1));
            gate.open();
            let released = releasing.join().unwrap();
            assert_eq!(released.is_ok(), quarantined == 0);
            if let Err(error) = released {
                // Not the loss: the allocator was asked, and said no.
                assert_eq!(error.outcome().unwrap().residual().unwrap().reason, QuarantineReason::AllocatorRefused);
            }
        });
        let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!((snapshot.live_allocations, snapshot.queued_releases, snapshot.active_operations), (0, 0, 0));
        assert_eq!(snapshot.quarantined_allocations, quarantined);
        assert_eq!(rig.log.take(), ["A release 64 8"]);
        drop((held.binding, held.view));
        rig.registry.confirm_context_terminated(rig.context).unwrap();
        rig.finish();
    }
}
