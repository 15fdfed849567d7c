//! Owners: the views that they count, the releases that they are refused, what becomes of them when they are dropped.

mod common {
    pub mod arm;
    pub mod doubles;
    pub mod lifecycle;
    pub mod phases;
    pub mod queue;
    pub mod refused;
    pub mod rig;
}

use common::{
    arm::arm,
    lifecycle::{REASON, bring},
    phases::PHASES,
    queue::Queue,
    refused::{Expected, refused},
    rig::{DEVICE, Rig},
};
use liveslot::{MechanismLifecycle::*, *};
use std::{ptr::NonNull, thread};

fn owner(rig: &Rig) -> (MemoryBinding, OwningAllocation) {
    let binding = rig.registry.bind(DEVICE).unwrap();
    let owner = binding.allocate_owning(64, 8).unwrap();
    rig.log.take();
    (binding, owner)
}

/// An owner of what is on its way to nowhere: its metadata is stale. One allocation is in quarantine.
fn stale_owner(rig: &Rig) -> (MemoryBinding, OwningAllocation) {
    let (binding, owner) = owner(rig);
    arm(&rig.script.release, || AllocationReleaseOutcome::failed("stuck"));
    let stale = binding.release(owner.into_bound().unwrap()).unwrap_err().into_parts().1;
    rig.log.take();
    (binding, OwningAllocation::new(stale))
}

/// Live, queued, operations, quarantined.
fn counts(binding: &MemoryBinding) -> (usize, usize, usize, usize) {
    let snapshot = binding.mechanism_snapshot().unwrap();
    (snapshot.live_allocations, snapshot.queued_releases, snapshot.active_operations, snapshot.quarantined_allocations)
}

/// Each call that ends an owner, and what there is of it afterwards.
type End = fn(OwningAllocation) -> Result<(), OwningReleaseError>;
const ENDS: [(&str, End); 4] = [
    ("into_bound", |owner| owner.into_bound().map(drop)),
    ("prepare_release", |owner| owner.prepare_release().map(drop)),
    ("release_now", |owner| owner.release_now().map(drop)),
    ("release_deferred", |owner| owner.release_deferred(&Queue(|_| unreachable!("nothing was prepared"))).map(drop)),
];

/// What comes of a refusal: the error, and the owner as it was.
#[track_caller]
fn refused_owner(
    result: Result<(), OwningReleaseError>,
    expected: impl Into<Expected>,
    was: (AllocationIdentity, NonNull<u8>),
) -> OwningAllocation {
    let refusal = result.unwrap_err();
    assert_eq!(refusal.state(), AllocationReleaseState::Live);
    assert_eq!(refusal.to_string(), refusal.error().to_string());
    assert_eq!(refusal.allocation().identity(), was.0);
    let (error, owner) = refusal.into_parts();
    refused::<()>(Err(error), expected);
    assert_eq!((owner.identity(), owner.as_ptr(), owner.len(), owner.alignment()), (was.0, was.1, 64, 8));
    owner
}

/// R60, R87, R89: an owner is what its allocation is.
#[test]
fn an_owner_tells_what_it_owns() {
    let rig = Rig::new();
    let (binding, owner) = owner(&rig);
    assert_eq!(owner.identity().binding(), binding.identity());
    assert_eq!(owner.binding().identity(), binding.identity());
    assert_eq!((owner.len(), owner.is_empty(), owner.alignment()), (64, false, 8));
    assert_eq!((owner.bound().identity(), owner.bound().as_ptr()), (owner.identity(), owner.as_ptr()));
    assert_eq!((owner.state(), owner.outstanding_views()), (AllocationReleaseState::Live, 0));
    assert_eq!(counts(&binding), (1, 0, 0, 0));
    let empty = binding.allocate_owning(0, 1).unwrap();
    assert!(empty.is_empty());

    let identity = owner.identity();
    let bound = owner.into_bound().unwrap();
    assert_eq!(bound.identity(), identity);
    let owner = OwningAllocation::new(bound);
    assert_eq!(owner.identity(), identity);
    rig.log.take();
    assert_eq!(owner.release_now().unwrap(), AllocationReleaseOutcome::complete(ReleaseAccounting::eager(64)));
    assert!(empty.release_now().unwrap().is_complete());
    assert_eq!(rig.log.take(), ["A release 64 8", "A release 0 1"]);
    drop(binding);
    rig.finish();
}

/// R82: owned views are counted, clones included, and refuse every end, whatever the lifecycle, until the last of them has gone.
#[test]
fn views_hold_the_release_up() {
    for phase in PHASES {
        for (end, run) in ENDS {
            println!("{end}, {phase:?}");
            let rig = Rig::new();
            let (binding, owner) = owner(&rig);
            let view = owner.view(8, 16).unwrap();
            let clone = view.clone();
            // A clone of what is in it is none of the owner's business.
            let plain = view.view().clone();
            let was = (owner.identity(), owner.as_ptr());
            assert_eq!(owner.outstanding_views(), 2);
            assert_eq!((view.len(), view.is_empty(), view.allocation_identity()), (16, false, was.0));
            assert_eq!(view.binding().identity(), binding.identity());
            bring(&rig, phase);
            let before = counts(&binding);
            let outstanding = |views| BindingError::OutstandingViews { identity: was.0, views };
            let owner = refused_owner(run(owner), outstanding(2), was);
            drop(view);
            assert_eq!(owner.outstanding_views(), 1);
            let owner = refused_owner(run(owner), outstanding(1), was);
            assert_eq!((counts(&binding), rig.log.take()), (before, vec![]));
            thread::spawn(|| drop(clone)).join().unwrap();
            assert_eq!(owner.outstanding_views(), 0);
            assert!(owner.into_bound().is_ok());
            drop(plain);
        }
    }
}

/// R69, R70, R84: owned views are made, looked at and refused like plain ones; a refused one is not counted.
#[test]
fn owned_views_are_views() {
    let rig = Rig::new();
    let (binding, owner) = owner(&rig);
    let view = owner.view(16, 8).unwrap();
    let seen = binding.with_view(view.view(), |part| (part.as_ptr(), part.len())).unwrap();
    // SAFETY: within the 64 bytes that are live.
    assert_eq!(seen, (unsafe { owner.as_ptr().add(16) }, 8));
    drop(view);
    for (offset, bytes, end) in [(0, 65, 65), (65, 0, 65), (1, usize::MAX, usize::MAX)] {
        refused(owner.view(offset, bytes), BindingError::ViewOutOfBounds { offset, end, allocation_bytes: 64 });
        assert_eq!(owner.outstanding_views(), 0);
    }
    assert!(owner.view(64, 0).unwrap().is_empty());
    bring(&rig, Retired);
    refused(owner.view(0, 8), (rig.mechanism, Retired));
    assert_eq!(owner.outstanding_views(), 0);
    owner.release_now().unwrap();
    drop(binding);
    rig.finish();

    let rig = Rig::new();
    let (_, owner) = stale_owner(&rig);
    refused(owner.view(0, 8), BindingError::StaleAllocation(owner.identity()));
    assert_eq!(owner.outstanding_views(), 0);
}

/// R83: a release that fails otherwise hands the owner back, whose later views count as before.
#[test]
fn refused_owners_come_back() {
    for (end, run) in &ENDS[1..] {
        println!("{end}");
        for phase in [DeviceLost, Terminated] {
            let rig = Rig::new();
            let (binding, owner) = owner(&rig);
            let was = (owner.identity(), owner.as_ptr());
            bring(&rig, phase);
            let lost = BindingError::DeviceLost { device: DEVICE, reason: REASON.into() };
            let refusal: Expected = if phase == DeviceLost { lost.into() } else { (rig.mechanism, phase).into() };
            let before = counts(&binding);
            let owner = refused_owner(run(owner), refusal, was);
            assert_eq!((counts(&binding), rig.log.take()), (before, vec![]));
            assert_eq!(owner.outstanding_views(), 0);
        }

        let rig = Rig::new();
        let (binding, owner) = stale_owner(&rig);
        let was = (owner.identity(), owner.as_ptr());
        let owner = refused_owner(run(owner), BindingError::StaleAllocation(was.0), was);
        assert_eq!((counts(&binding), rig.log.take()), ((0, 0, 0, 1), vec![]));
        drop(owner);
        assert_eq!(counts(&binding), (0, 0, 0, 1));
    }

    let rig = Rig::new();
    let (binding, owner) = owner(&rig);
    let was = (owner.identity(), owner.as_ptr());
    let view = owner.view(0, 8).unwrap();
    let owner = refused_owner(owner.release_now().map(drop), BindingError::OutstandingViews { identity: was.0, views: 1 }, was);
    let later = owner.view(8, 8).unwrap();
    assert_eq!(owner.outstanding_views(), 2);
    drop((view, later));
    assert!(owner.release_now().unwrap().is_complete());
    drop(binding);
    rig.finish();
}

/// R85: an owner gives its metadata up in any lifecycle; the record stays as it was.
#[test]
fn metadata_can_be_had_back_at_any_time() {
    for phase in PHASES {
        let rig = Rig::new();
        let (binding, owner) = owner(&rig);
        bring(&rig, phase);
        let before = counts(&binding);
        let bound = owner.into_bound().unwrap();
        assert_eq!(counts(&binding), before);
        assert_eq!(before.0, usize::from(phase != Terminated));
        // Nothing owns it any more.
        drop(bound);
        assert_eq!((counts(&binding), rig.log.take()), (before, vec![]));
        assert_eq!(binding.quarantined().unwrap(), []);
    }
}

/// R35, R40, R86: an owner that is dropped leaves its record in quarantine where the lifecycle allows it, and else as it was; nobody is
/// called.
#[test]
fn a_dropped_owner_is_remembered() {
    for phase in PHASES {
        for with_views in [false, true] {
            let rig = Rig::new();
            let (binding, owner) = owner(&rig);
            let view = with_views.then(|| owner.view(0, 8).unwrap());
            let (identity, address) = (owner.identity(), owner.as_ptr().addr().get());
            bring(&rig, phase);
            thread::spawn(|| drop(owner)).join().unwrap();
            assert_eq!(rig.log.take(), [""; 0]);
            let entry = QuarantinedAllocation {
                identity,
                address,
                bytes: 64,
                align: 8,
                state: AllocationReleaseState::Quarantined,
                reason: QuarantineReason::OwnerDropped,
                retained_bytes: 64,
            };
            match phase {
                Active | Retired => {
                    assert_eq!(counts(&binding), (0, 0, 0, 1));
                    assert_eq!(binding.mechanism_snapshot().unwrap().quarantined_bytes, 64);
                    assert_eq!(binding.quarantined().unwrap(), [entry]);
                    assert_eq!(rig.registry.quarantined(rig.mechanism).unwrap(), [entry]);
                }
                DeviceLost => {
                    assert_eq!(counts(&binding), (1, 0, 0, 0));
                    assert_eq!(binding.quarantined().unwrap(), []);
                }
                Terminated => {
                    assert_eq!(counts(&binding), (0, 0, 0, 0));
                    assert_eq!(binding.quarantined().unwrap(), []);
                }
            }
            if let (Active, Some(view)) = (phase, view) {
                refused(binding.with_view(view.view(), |_| panic!("the closure runs")), BindingError::StaleAllocation(identity));
                let clone = view.clone();
                refused(binding.with_view(clone.view(), |_| panic!("the closure runs")), BindingError::StaleAllocation(identity));
            }
            drop(binding);
            if phase != Terminated {
                bring(&rig, Terminated);
            }
            rig.finish();
        }
    }
}

/// R86: an owner of what is stale leaves no second entry.
#[test]
fn a_stale_owner_is_dropped_without_a_trace() {
    let rig = Rig::new();
    let (binding, owner) = stale_owner(&rig);
    let before = binding.quarantined().unwrap();
    assert_eq!(before.len(), 1);
    drop(owner);
    assert_eq!(binding.quarantined().unwrap(), before);
    assert_eq!((counts(&binding), rig.log.take()), ((0, 0, 0, 1), vec![]));
}

/// R61: what was made elsewhere is adopted without a call, and is an allocation from then on.
#[test]
fn adoption() {
    let rig = Rig::new();
    let (binding, made) = owner(&rig);
    let bound = made.into_bound().unwrap();
    let pointer = bound.as_ptr();
    // Forgotten by the library, which is what makes the memory the test's.
    drop(bound);
    // SAFETY: the double made it with these values, it is live, and nobody else will give it back.
    let owner = unsafe { binding.adopt_allocation(pointer, 64, 8) }.unwrap();
    assert_eq!(rig.log.take(), [""; 0]);
    // The forgotten metadata is still counted.
    assert_eq!(counts(&binding), (2, 0, 0, 0));
    assert_eq!((owner.as_ptr(), owner.len(), owner.alignment(), owner.binding().identity()), (pointer, 64, 8, binding.identity()));
    let view = owner.view(0, 64).unwrap();
    assert_eq!(binding.with_view(view.view(), |view| view.as_ptr()).unwrap(), pointer);
    drop(view);
    assert!(owner.release_now().unwrap().is_complete());
    assert_eq!(rig.log.take(), ["A release 64 8"]);
    assert_eq!(counts(&binding), (1, 0, 0, 0));
}

/// R4, R61: adopted twice over the years, an address has two names.
#[test]
fn adopted_identities_are_fresh() {
    let rig = Rig::new();
    let (binding, first) = owner(&rig);
    let (identity, pointer) = (first.identity(), first.as_ptr());
    let view = first.view(0, 8).unwrap();
    // Quarantined: by its contract the memory stays the allocator's, so that it can be adopted again.
    drop(first);
    // SAFETY: the double made it with these values, it is live, and the quarantine is not acted upon.
    let second = unsafe { binding.adopt_allocation(pointer, 64, 8) }.unwrap();
    assert_ne!(second.identity(), identity);
    assert_eq!(second.outstanding_views(), 0);
    refused(binding.with_view(view.view(), |_| ()), BindingError::StaleAllocation(identity));
    assert!(second.release_now().unwrap().is_complete());
    assert_eq!(counts(&binding), (0, 0, 0, 1));
}

/// R26, R31, R40, R61: adoption is refused by the lifecycle, and the memory stays the caller's.
#[test]
fn refused_adoption() {
    for phase in &PHASES[1..] {
        let rig = Rig::new();
        let binding = rig.registry.bind(DEVICE).unwrap();
        bring(&rig, *phase);
        let lost = BindingError::DeviceLost { device: DEVICE, reason: REASON.into() };
        let refusal: Expected = if *phase == DeviceLost { lost.into() } else { (rig.mechanism, *phase).into() };
        let mut memory = 0_u64;
        // SAFETY: it is refused.
        refused(unsafe { binding.adopt_allocation(NonNull::from(&mut memory).cast(), 8, 8) }, refusal);
        assert_eq!(memory, 0);
        assert_eq!((counts(&binding), rig.log.take()), ((0, 0, 0, 0), vec![]));
        drop(binding);
        rig.finish();
    }
}

/// R26, R66: on a Retired mechanism owners release as before.
#[test]
fn retired_owners_release() {
    let rig = Rig::new();
    let (binding, first) = owner(&rig);
    let second = binding.allocate_owning(32, 8).unwrap();
    bring(&rig, Retired);
    rig.log.take();
    assert!(first.release_now().unwrap().is_complete());
    assert!(
        second
            .release_deferred(&Queue(|request: PreparedAllocationRelease| {
                assert!(request.execute().is_complete());
                Ok(())
            }))
            .unwrap()
            .is_queued()
    );
    assert_eq!(rig.log.take(), ["A release 64 8", "A release 32 8"]);
    drop(binding);
    rig.finish();
}

/// R90, R100: what the allocator did not release is an outcome, and the allocation passes from live to queued to quarantined.
#[test]
fn incomplete_releases_are_outcomes() {
    let rig = Rig::new();
    let (binding, owner) = owner(&rig);
    let inside = binding.clone();
    arm(&rig.script.release, move || {
        assert_eq!(counts(&inside), (0, 1, 1, 0));
        AllocationReleaseOutcome::failed("stuck")
    });
    let outcome = owner.release_now().unwrap();
    assert_eq!(outcome.residual().unwrap().reason, QuarantineReason::AllocatorRefused);
    assert_eq!(counts(&binding), (0, 0, 0, 1));
}
