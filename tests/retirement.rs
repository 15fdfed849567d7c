//! Retirement: no new work, and everything that was given out comes back.

mod common {
    pub mod another;
    pub mod arm;
    pub mod doubles;
    pub mod held;
    pub mod lifecycle;
    pub mod new_work;
    pub mod park;
    pub mod phases;
    pub mod refused;
    pub mod rig;
}

use common::{
    another::another,
    arm::arm,
    held::hold,
    lifecycle::bring,
    new_work::new_work_is_refused,
    park::gate,
    phases::PHASES,
    refused::refused,
    rig::{DEVICE, Rig},
};
use liveslot::{MechanismLifecycle::*, *};
use std::thread;

/// R25: only an Active mechanism changes; the call is accepted in each lifecycle.
#[test]
fn retiring_is_a_step_from_active_only() {
    for phase in PHASES {
        let rig = Rig::new();
        bring(&rig, phase);
        for _ in 0..2 {
            rig.registry.retire(rig.mechanism).unwrap();
            let lifecycle = rig.registry.snapshot(rig.mechanism).unwrap().lifecycle;
            assert_eq!(lifecycle, if phase == Active { Retired } else { phase });
        }
        rig.finish();
    }
}

/// R25: the selected one leaves its device without selection; another one's retirement leaves the selection alone.
#[test]
fn retiring_deselects_itself_only() {
    let rig = Rig::new();
    let idle = another(&rig, "B");
    let version = rig.registry.device(DEVICE).version();
    rig.registry.retire(idle).unwrap();
    assert_eq!(rig.registry.bind(DEVICE).unwrap().identity().mechanism(), rig.mechanism.identity());
    assert_eq!(rig.registry.device(DEVICE).version(), version);
    rig.registry.retire(rig.mechanism).unwrap();
    refused(rig.registry.bind(DEVICE), BindingError::NoSelectedMechanism(DEVICE));
    rig.registry.remove(idle).unwrap();
    rig.finish();
}

/// R26: a Retired mechanism refuses new work of each kind, and takes releases through its own allocator.
#[test]
fn the_retired_takes_back_and_gives_nothing() {
    let rig = Rig::new();
    let held = hold(&rig);
    rig.registry.retire(rig.mechanism).unwrap();
    new_work_is_refused(&rig, &held, (rig.mechanism, Retired));

    // Also while another one is selected.
    let successor = another(&rig, "B");
    assert_eq!(rig.registry.bind(DEVICE).unwrap().identity().mechanism(), successor.identity());
    held.binding.release(held.allocation).unwrap();
    assert_eq!(rig.log.take(), ["A release 64 8"]);
    let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
    assert!(!snapshot.retains_ownership());
    assert_eq!(snapshot.active_operations, 0);

    rig.registry.retire(successor).unwrap();
    rig.registry.remove(successor).unwrap();
    drop((held.binding, held.view));
    rig.finish();
}

/// R26: a release that the allocator does not complete is quarantined as on an Active mechanism.
#[test]
fn the_retired_quarantines() {
    let rig = Rig::new();
    let held = hold(&rig);
    rig.registry.retire(rig.mechanism).unwrap();
    arm(&rig.script.release, || AllocationReleaseOutcome::failed("busy"));
    let error = held.binding.release(held.allocation).unwrap_err();
    assert!(error.is_quarantined());
    let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
    assert_eq!((snapshot.lifecycle, snapshot.quarantined_allocations, snapshot.quarantined_bytes), (Retired, 1, 64));
    drop((held.binding, held.view, error));
    bring(&rig, Terminated);
    rig.finish();
}

/// R27, R129: an allocation that began before the retirement is recorded, returned and released.
#[test]
fn an_allocation_in_flight_is_finished() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let (stop, gate) = gate();
    arm(&rig.script.allocate, || {
        stop.park();
        Ok(())
    });
    thread::scope(|scope| {
        let allocating = scope.spawn(|| binding.allocate(64, 8));
        gate.reached();
        rig.registry.retire(rig.mechanism).unwrap();
        let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!((snapshot.lifecycle, snapshot.live_allocations, snapshot.active_operations), (Retired, 0, 1));
        refused(binding.allocate(8, 8), (rig.mechanism, Retired));
        refused(rig.registry.remove(rig.mechanism), (rig.mechanism, Retired));
        gate.open();
        let allocation = allocating.join().unwrap().unwrap();
        let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!((snapshot.lifecycle, snapshot.live_allocations, snapshot.active_operations), (Retired, 1, 0));
        refused(allocation.view(0, 8), (rig.mechanism, Retired));
        binding.release(allocation).unwrap();
    });
    assert_eq!(rig.log.take(), ["A allocate 64 8", "A release 64 8"]);
    drop(binding);
    rig.finish();
}

/// R27: a closure that is looking at a view when the mechanism is retired is not disturbed.
#[test]
fn a_look_in_flight_is_finished() {
    let rig = Rig::new();
    let held = hold(&rig);
    let seen = held.binding.with_view(&held.view, |view| {
        rig.registry.retire(rig.mechanism).unwrap();
        refused(held.binding.with_view(&held.view, |_| ()), (rig.mechanism, Retired));
        assert_eq!(held.binding.mechanism_snapshot().unwrap().active_operations, 1);
        view.len()
    });
    assert_eq!(seen.unwrap(), 32);
    held.binding.release(held.allocation).unwrap();
    drop((held.binding, held.view));
    rig.finish();
}
