//! Confirming that a context has terminated: all its mechanisms or none.

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

fn busy(rig: &Rig, active_operations: usize) -> BindingError {
    BindingError::ContextNotQuiescent { context: rig.context.identity(), active_operations }
}

/// R36, R37: mechanisms that are not lost refuse it, the first registered one decides, and nothing changes.
#[test]
fn the_living_refuse_in_order_of_registration() {
    let rig = Rig::new();
    let second = another(&rig, "B");
    rig.registry.retire(second).unwrap();
    let refuses = |mechanism, lifecycle| {
        let before = [rig.mechanism, second].map(|mechanism| rig.registry.snapshot(mechanism).unwrap());
        refused(rig.registry.confirm_context_terminated(rig.context), (mechanism, lifecycle));
        assert_eq!([rig.mechanism, second].map(|mechanism| rig.registry.snapshot(mechanism).unwrap()), before);
    };
    refuses(rig.mechanism, Active);
    rig.registry.retire(rig.mechanism).unwrap();
    refuses(rig.mechanism, Retired);

    rig.registry.invalidate_device(DEVICE, REASON).unwrap();
    let third = another(&rig, "D");
    // The lost ones before it satisfy; it alone does not, and they stay lost.
    refuses(third, Active);
    rig.registry.retire(third).unwrap();
    refuses(third, Retired);
    rig.registry.invalidate_device(DEVICE, REASON).unwrap();
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    for mechanism in [second, third] {
        assert_eq!(rig.registry.snapshot(mechanism).unwrap().lifecycle, Terminated);
        rig.registry.remove(mechanism).unwrap();
    }
    rig.finish();
}

/// R36: the order is that of registration also where an earlier place in the tables was free again.
#[test]
fn the_order_is_not_that_of_the_tables() {
    let rig = Rig::new();
    let early = another(&rig, "B");
    let late = another(&rig, "D");
    rig.registry.retire(early).unwrap();
    rig.registry.remove(early).unwrap();
    // Takes the place that B had.
    let last = another(&rig, "E");
    rig.registry.invalidate_device(DEVICE, REASON).unwrap();
    let (x, y) = (another(&rig, "F"), another(&rig, "G"));
    rig.registry.retire(y).unwrap();
    refused(rig.registry.confirm_context_terminated(rig.context), (x, Active));
    rig.registry.retire(x).unwrap();
    rig.registry.remove(x).unwrap();
    let z = another(&rig, "H");
    refused(rig.registry.confirm_context_terminated(rig.context), (y, Retired));
    rig.registry.invalidate_device(DEVICE, REASON).unwrap();
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    for mechanism in [late, last, y, z] {
        rig.registry.remove(mechanism).unwrap();
    }
    rig.finish();
}

/// R36, R136: operations in progress refuse it, with their exact number; lifecycle and operations are looked at mechanism by mechanism.
#[test]
fn operations_refuse_with_their_number() {
    let rig = Rig::new();
    let held = hold(&rig);
    let (stop, allocating) = gate();
    arm(&rig.script.allocate, || {
        stop.park();
        Ok(())
    });
    thread::scope(|scope| {
        let one = scope.spawn(|| held.binding.allocate(16, 8));
        allocating.reached();
        let looked = held.binding.with_view(&held.view, |_| {
            rig.registry.invalidate_device(DEVICE, REASON).unwrap();
            let later = another(&rig, "B");
            // The lost one is busy, and was registered first.
            refused(rig.registry.confirm_context_terminated(rig.context), busy(&rig, 2));
            rig.registry.retire(later).unwrap();
            rig.registry.remove(later).unwrap();
            assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().lifecycle, DeviceLost);
        });
        looked.unwrap();
        refused(rig.registry.confirm_context_terminated(rig.context), busy(&rig, 1));
        allocating.open();
        drop(one.join().unwrap().unwrap());
    });
    // Two live allocations, one of them with nobody to release it, refuse nothing.
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().live_allocations, 2);
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    drop(held);
    rig.finish();
}

/// R36, R39: a release under way is queued, and that is an operation.
#[test]
fn a_queued_release_refuses() {
    let rig = Rig::new();
    let held = hold(&rig);
    let (stop, releasing) = gate();
    arm(&rig.script.release, || {
        stop.park();
        AllocationReleaseOutcome::failed("too late")
    });
    thread::scope(|scope| {
        let release = scope.spawn(|| held.binding.release(held.allocation));
        releasing.reached();
        rig.registry.invalidate_device(DEVICE, REASON).unwrap();
        refused(rig.registry.confirm_context_terminated(rig.context), busy(&rig, 1));
        let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!((snapshot.lifecycle, snapshot.queued_releases, snapshot.active_operations), (DeviceLost, 1, 1));
        releasing.open();
        drop(release.join().unwrap().unwrap_err());
    });
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().quarantined_bytes, 64);
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    drop((held.binding, held.view));
    rig.finish();
}

/// R38: what was live or quarantined is written off, without a call of the allocator.
#[test]
fn ownership_is_written_off() {
    let rig = Rig::new();
    let held = hold(&rig);
    let stuck = held.binding.allocate(16, 8).unwrap();
    arm(&rig.script.release, || AllocationReleaseOutcome::failed("stuck"));
    drop(held.binding.release(stuck).unwrap_err());
    rig.registry.invalidate_device(DEVICE, REASON).unwrap();
    let before = rig.registry.snapshot(rig.mechanism).unwrap();
    assert_eq!((before.live_allocations, before.quarantined_allocations), (1, 1));
    rig.log.take();

    rig.registry.confirm_context_terminated(rig.context).unwrap();
    let after =
        MechanismSnapshot { lifecycle: Terminated, live_allocations: 0, quarantined_allocations: 0, quarantined_bytes: 0, ..before };
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), after);
    assert_eq!(held.binding.mechanism_snapshot().unwrap(), after);
    assert_eq!(held.binding.quarantined().unwrap(), []);
    assert_eq!(rig.registry.quarantined(rig.mechanism).unwrap(), []);
    assert_eq!(rig.log.take(), [""; 0]);
    drop(held);
    rig.finish();
}

/// R39: a context without mechanisms is confirmed, whatever its device has been through.
#[test]
fn an_idle_context_is_confirmed() {
    let rig = Rig::new();
    let idle = rig.registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
    let untouched = rig.registry.register_provider_context(DeviceKey::device(9), Arc::new(())).unwrap();
    rig.registry.confirm_context_terminated(idle).unwrap();
    rig.registry.confirm_context_terminated(untouched).unwrap();
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().lifecycle, Active);
    rig.finish();
}

/// R38: the mechanisms of another context of the device are none of its business.
#[test]
fn contexts_are_apart() {
    let rig = Rig::new();
    let context = rig.registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
    let other = rig.registry.register_allocator_with_device(context, rig.authority, Arc::new(HostAllocator), DEVICE).unwrap();
    rig.registry.invalidate_device(DEVICE, REASON).unwrap();
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    assert_eq!(rig.registry.snapshot(other).unwrap().lifecycle, DeviceLost);
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().lifecycle, Terminated);
    rig.registry.remove(other).unwrap();
    rig.finish();
}

/// R40: afterwards everything is refused by the lifecycle, and what is dropped leaves no trace.
#[test]
fn the_terminated_refuse_everything() {
    let rig = Rig::new();
    let held = hold(&rig);
    bring(&rig, Terminated);
    let before = rig.registry.snapshot(rig.mechanism).unwrap();
    new_work_is_refused(&rig, &held, (rig.mechanism, Terminated));
    let (error, allocation) = held.binding.release(held.allocation).unwrap_err().into_parts();
    refused::<()>(Err(error), (rig.mechanism, Terminated));
    drop((allocation, held.view));
    assert_eq!(rig.log.take(), [""; 0]);
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), before);
    drop(held.binding);
    rig.finish();
}

/// R41: confirming again is accepted; siblings that were lost since are terminated as well.
#[test]
fn confirming_again_is_accepted() {
    let rig = Rig::new();
    bring(&rig, Terminated);
    let before = rig.registry.snapshot(rig.mechanism).unwrap();
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), before);

    let sibling = another(&rig, "B");
    refused(rig.registry.confirm_context_terminated(rig.context), (sibling, Active));
    rig.registry.invalidate_device(DEVICE, REASON).unwrap();
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    assert_eq!(rig.registry.snapshot(sibling).unwrap().lifecycle, Terminated);
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), before);
    rig.registry.remove(sibling).unwrap();
    rig.finish();
}
