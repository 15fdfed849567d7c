//! Snapshots and lists: what they count, when, and that looking calls nobody.

mod common {
    pub mod another;
    pub mod arm;
    pub mod doubles;
    pub mod lifecycle;
    pub mod refused;
    pub mod rig;
}

use common::{
    another::another,
    arm::arm,
    lifecycle::{REASON, bring},
    refused::refused,
    rig::{DEVICE, Rig},
};
use liveslot::{MechanismLifecycle::*, *};
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

/// Live, queued, operations, quarantined, quarantined bytes.
fn counts(snapshot: MechanismSnapshot) -> (usize, usize, usize, usize, u64) {
    let MechanismSnapshot { live_allocations, queued_releases, active_operations, quarantined_allocations, quarantined_bytes, .. } =
        snapshot;
    (live_allocations, queued_releases, active_operations, quarantined_allocations, quarantined_bytes)
}

/// R99: what was registered stays as it was, and the lifecycle is the current one, through the registry and through a binding.
#[test]
fn a_snapshot_is_what_was_registered() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    for phase in [Active, Retired, DeviceLost, Terminated] {
        match phase {
            Terminated => rig.registry.confirm_context_terminated(rig.context).unwrap(),
            phase => bring(&rig, phase),
        }
        let expected = MechanismSnapshot {
            identity: rig.mechanism.identity(),
            device: DEVICE,
            provider_context: rig.context.identity(),
            authority: rig.authority.identity(),
            coherence: rig.mechanism.coherence(),
            lifecycle: phase,
            live_allocations: 0,
            active_operations: 0,
            queued_releases: 0,
            quarantined_allocations: 0,
            quarantined_bytes: 0,
        };
        assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), expected);
        assert_eq!(binding.mechanism_snapshot().unwrap(), expected);
        assert_eq!(rig.registry.snapshots().unwrap(), [expected]);
    }
    drop(binding);
    rig.finish();
}

/// R100, R101, R108: one allocation through all its states, seen from inside each call and after it.
#[test]
fn an_allocation_is_counted_once_in_each_state() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let now = |binding: &MemoryBinding| counts(binding.mechanism_snapshot().unwrap());
    assert_eq!(now(&binding), (0, 0, 0, 0, 0));

    let inside = binding.clone();
    arm(&rig.script.allocate, move || {
        assert_eq!(now(&inside), (0, 0, 1, 0, 0));
        Ok(())
    });
    let first = binding.allocate(64, 8).unwrap();
    assert_eq!(now(&binding), (1, 0, 0, 0, 0));
    let second = binding.allocate(32, 8).unwrap();
    let view = second.view(0, 8).unwrap();
    assert_eq!(now(&binding), (2, 0, 0, 0, 0));
    binding.with_view(&view, |_| assert_eq!(now(&binding), (2, 0, 1, 0, 0))).unwrap();

    let inside = binding.clone();
    arm(&rig.script.release, move || {
        assert_eq!(now(&inside), (1, 1, 1, 0, 0));
        AllocationReleaseOutcome::complete(ReleaseAccounting::eager(64))
    });
    binding.release(first).unwrap();
    assert_eq!(now(&binding), (1, 0, 0, 0, 0));

    let inside = binding.clone();
    arm(&rig.script.release, move || {
        assert_eq!(now(&inside), (0, 1, 1, 0, 0));
        AllocationReleaseOutcome::failed("stuck")
    });
    drop(binding.release(second).unwrap_err());
    assert_eq!(now(&binding), (0, 0, 0, 1, 32));

    drop((binding, view));
    bring(&rig, Terminated);
    assert_eq!(counts(rig.registry.snapshot(rig.mechanism).unwrap()), (0, 0, 0, 0, 0));
    rig.finish();
}

/// R100: what allocators claim is summed as far as a number goes.
#[test]
fn retained_bytes_saturate() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let retained = |retained_bytes| {
        let residual = ResidualOwnership {
            state: AllocationReleaseState::PartiallyUnmapped,
            reason: QuarantineReason::PartialRelease,
            retained_bytes,
            address: 0,
            align: 0,
        };
        let allocation = binding.allocate(8, 8).unwrap();
        arm(&rig.script.release, move || AllocationReleaseOutcome::quarantined(ReleaseAccounting::eager(8), residual));
        drop(binding.release(allocation).unwrap_err());
        let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
        (snapshot.quarantined_allocations, snapshot.quarantined_bytes)
    };
    assert_eq!(retained(0), (1, 0));
    assert_eq!(retained(7), (2, 7));
    assert_eq!(retained(u64::MAX - 7), (3, u64::MAX));
    assert_eq!(retained(u64::MAX), (4, u64::MAX));
    drop(binding);
    bring(&rig, Terminated);
    rig.finish();
}

/// R101: calls that are refused leave the count of operations as it was.
#[test]
fn refused_calls_are_not_counted() {
    let (rig, elsewhere) = (Rig::new(), Rig::new());
    let binding = rig.registry.bind(DEVICE).unwrap();
    let other = elsewhere.registry.bind(DEVICE).unwrap();
    let foreign = other.allocate(8, 8).unwrap();
    let foreign_view = foreign.view(0, 8).unwrap();
    let operations = || rig.registry.snapshot(rig.mechanism).unwrap().active_operations;
    let out_of_bounds = |end| BindingError::ViewOutOfBounds { offset: 0, end, allocation_bytes: 8 };

    let mismatch = || BindingError::BindingMismatch { expected: binding.identity().id(), actual: other.identity().id() };
    refused(binding.with_view(&foreign_view, |_| ()), mismatch());
    assert_eq!(operations(), 0);
    let (error, foreign) = binding.release(foreign).unwrap_err().into_parts();
    refused::<()>(Err(error), mismatch());
    assert_eq!(operations(), 0);
    refused(foreign.view(0, 9), out_of_bounds(9));
    arm(&rig.script.allocate, || Err(MemoryError::InvalidRequest { tier: "test", requested: 0, reason: "no" }));
    binding.allocate(8, 8).unwrap_err();
    assert_eq!(operations(), 0);
    rig.registry.retire(rig.mechanism).unwrap();
    for _ in 0..3 {
        refused(binding.allocate(8, 8), (rig.mechanism, Retired));
        refused(binding.with_view(&foreign_view, |_| ()), (rig.mechanism, Retired));
        refused(rig.registry.bind_registered(rig.mechanism), (rig.mechanism, Retired));
    }
    assert_eq!(operations(), 0);

    other.release(foreign).unwrap();
    drop((binding, other, foreign_view));
    elsewhere.finish();
    rig.finish();
}

/// R103: the list has each registered mechanism once, of all devices, and none that was removed.
#[test]
fn the_list_has_what_is_registered() {
    let rig = Rig::new();
    let mut registered: HashSet<MechanismIdentity> = HashSet::from([rig.mechanism.identity()]);
    let listed = || {
        let snapshots = rig.registry.snapshots().unwrap();
        let listed: HashSet<MechanismIdentity> = snapshots.iter().map(|snapshot| snapshot.identity).collect();
        assert_eq!(listed.len(), snapshots.len(), "nothing twice");
        listed
    };
    assert_eq!(listed(), registered);

    let mut tokens = Vec::new();
    for index in [1, 63, 64, 65, 128, 1_000_000] {
        for tier in Tier::ALL {
            let device = DeviceKey { tier, index };
            let context = rig.registry.register_provider_context(device, Arc::new(())).unwrap();
            let authority = rig.registry.register_authority(device, Arc::new(())).unwrap();
            for _ in 0..5 {
                let allocator = Arc::new(HostAllocator);
                let mechanism = rig.registry.register_allocator_with_device(context, authority, allocator, device).unwrap();
                registered.insert(mechanism.identity());
                tokens.push(mechanism);
            }
        }
    }
    assert_eq!(listed(), registered);
    for (at, mechanism) in tokens.into_iter().enumerate() {
        rig.registry.retire(mechanism).unwrap();
        assert!(listed().contains(&mechanism.identity()), "retired is registered");
        rig.registry.remove(mechanism).unwrap();
        registered.remove(&mechanism.identity());
        if at % 16 == 0 {
            assert_eq!(listed(), registered);
        }
    }
    assert_eq!(listed(), registered);
    rig.finish();
}

/// R103: while others come and go, what stays is listed each time.
#[test]
fn the_list_has_what_stays() {
    let rig = Rig::new();
    let staying: HashSet<_> = (0..100).map(|_| another(&rig, "B").identity()).chain([rig.mechanism.identity()]).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..500 {
                let passing = another(&rig, "D");
                rig.registry.retire(passing).unwrap();
                rig.registry.remove(passing).unwrap();
            }
            done.store(true, SeqCst);
        });
        while !done.load(SeqCst) {
            let snapshots = rig.registry.snapshots().unwrap();
            let listed: HashSet<_> = snapshots.iter().map(|snapshot| snapshot.identity).collect();
            assert_eq!(listed.len(), snapshots.len());
            assert!(listed.is_superset(&staying));
        }
    });
    assert_eq!(rig.registry.snapshots().unwrap().len(), staying.len());
}

/// R104: at rest, list and counts agree.
#[test]
fn the_quarantine_agrees_with_the_counts() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let mut expected = HashSet::new();
    for bytes in 1..20 {
        let allocation = binding.allocate(bytes, 8).unwrap();
        let (identity, address) = (allocation.identity(), allocation.as_ptr().addr().get());
        arm(&rig.script.release, || AllocationReleaseOutcome::failed("stuck"));
        drop(binding.release(allocation).unwrap_err());
        expected.insert(QuarantinedAllocation {
            identity,
            address,
            bytes,
            align: 8,
            state: AllocationReleaseState::Quarantined,
            reason: QuarantineReason::AllocatorRefused,
            retained_bytes: bytes as u64,
        });
        let listed = rig.registry.quarantined(rig.mechanism).unwrap();
        let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!(listed.len(), snapshot.quarantined_allocations);
        assert_eq!(listed.iter().map(|entry| entry.retained_bytes).sum::<u64>(), snapshot.quarantined_bytes);
        assert_eq!(listed.into_iter().collect::<HashSet<_>>(), expected);
        assert_eq!(binding.quarantined().unwrap().into_iter().collect::<HashSet<_>>(), expected);
    }
    drop(binding);
    bring(&rig, Terminated);
    rig.finish();
}

/// R105, R110: observing, selecting and every step of a life call no allocator, and nobody's `Debug`.
#[test]
fn looking_calls_nobody() {
    let rig = Rig::new();
    let second = another(&rig, "B");
    let binding = rig.registry.bind(DEVICE).unwrap();
    let allocation = binding.allocate(8, 8).unwrap();
    let view = allocation.view(0, 8).unwrap();
    rig.log.take();

    let device = rig.registry.device(DEVICE);
    rig.registry.snapshot(rig.mechanism).unwrap();
    rig.registry.snapshots().unwrap();
    rig.registry.quarantined(rig.mechanism).unwrap();
    binding.mechanism_snapshot().unwrap();
    binding.quarantined().unwrap();
    rig.registry.select(second).unwrap();
    let _ = (device.bind().unwrap(), device.selected(), device.version());
    rig.registry.bind_registered(rig.mechanism).unwrap();
    binding.with_view(&view, |_| ()).unwrap();
    rig.registry.retire(second).unwrap();
    rig.registry.invalidate_device(DEVICE, REASON).unwrap();
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    assert_eq!(rig.log.take(), [""; 0]);

    rig.registry.remove(second).unwrap();
    assert_eq!(rig.log.take(), ["B dropped"]);
    drop((binding, allocation, view, device));
    rig.finish();
}
