//! R27, R34, R37, R112, R129–R136, R138: allocations, releases and looks against retirement, loss, confirmed end and removal.

use super::{
    rig::*,
    support::{race, race_at},
    witness::*,
};
use liveslot_loom::{
    AllocationReleaseState, BindingRegistry,
    MechanismLifecycle::*,
    QuarantineReason, RegisteredAuthority, RegisteredProviderContext,
    internals::{
        UnsafeCell,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use std::sync::Arc;

/// Active, with nothing allocated.
fn idle() -> Rig {
    Rig::new(1, 0, true)
}

/// Active, with one live allocation.
fn live() -> Rig {
    Rig::new(1, 1, true)
}

/// Retired, with one live allocation.
fn retired() -> Rig {
    let rig = live();
    rig.retire();
    rig
}

/// R129, R27: allocated, and taken back later; or refused, and the allocator was not asked.
#[test]
fn allocate_and_retire() {
    race(idle, &[Rig::allocate, Rig::retire], |rig, mut saw| {
        let now = rig.snapshot();
        assert_eq!(now.lifecycle, Retired);
        match saw.remove(0).allocated() {
            Ok(allocation) => {
                assert_eq!((now.numbers(), rig.witness.allocated()), (LIVE, 1));
                rig.binding.release(allocation).unwrap();
            }
            Err(refusal) => assert_eq!((refusal, now.numbers(), rig.witness.allocated()), (Refusal::Inactive(Retired), IDLE, 0)),
        }
    });
}

/// R130, R34: allocated, and written off at the end; or refused, and the allocator was not asked.
#[test]
fn allocate_and_invalidate() {
    race(idle, &[Rig::allocate, Rig::invalidate], |rig, mut saw| {
        let now = rig.snapshot();
        assert_eq!(now.lifecycle, DeviceLost);
        match saw.remove(0).allocated() {
            Ok(_) => assert_eq!((now.numbers(), rig.witness.allocated()), (LIVE, 1)),
            Err(refusal) => assert_eq!((refusal, now.numbers(), rig.witness.allocated()), (Refusal::Lost, IDLE, 0)),
        }
    });
}

/// R131, R133: a retirement does not show.
#[test]
fn release_and_retire() {
    race(live, &[|rig| rig.release(0), Rig::retire], |rig, mut saw| {
        assert_eq!(saw.remove(0).released(), Release::Done);
        assert_eq!((rig.snapshot().numbers(), rig.witness.released()), (IDLE, 1));
    });
}

/// R132, R134, R135: released, or refused with the allocation back, or retained without asking the allocator.
#[test]
fn release_and_invalidate() {
    race(live, &[|rig| rig.release(0), Rig::invalidate], |rig, mut saw| {
        let released = saw.remove(0).released();
        let expected = match released {
            Release::Done => (IDLE, 1),
            Release::Refused(Refusal::Lost) => (LIVE, 0),
            Release::Retained(AllocationReleaseState::DeviceLost, QuarantineReason::DeviceLost) => (RETAINED, 0),
            released => panic!("not an outcome of this race: {released:?}"),
        };
        assert_eq!((rig.snapshot().numbers(), rig.witness.released()), expected);
    });
}

/// R136: the end is confirmed only once nobody is inside the allocator, though the one who declared the loss is stopped before it has
/// told the stripes.
#[test]
fn allocate_and_a_stopped_invalidate_and_confirm() {
    race(idle, &[Rig::allocate, Rig::invalidate, Rig::confirm], |rig, mut saw| {
        let ended = saw[2].ended();
        let allocated = saw.remove(0).allocated().map(drop);
        let now = rig.snapshot();
        if ended == Ok(()) {
            assert!([Ok(()), Err(Refusal::Lost), Err(Refusal::Inactive(Terminated))].contains(&allocated), "{allocated:?}");
            assert_eq!((now.lifecycle, now.numbers()), (Terminated, IDLE));
        } else {
            assert!([Err(Refusal::Busy(1)), Err(Refusal::Inactive(Active))].contains(&ended), "{ended:?}");
            assert!([(Ok(()), LIVE), (Err(Refusal::Lost), IDLE)].contains(&(allocated, now.numbers())));
            assert_eq!(now.lifecycle, DeviceLost);
        }
    });
}

/// R136, R88: a release in progress keeps the end from being confirmed, and nothing is recorded afterwards.
#[test]
fn release_and_confirm() {
    race(live, &[|rig| rig.release(0), Rig::lose_and_confirm], |rig, mut saw| {
        let ended = saw[1].ended();
        let released = saw.remove(0).released();
        let now = rig.snapshot();
        let retained = Release::Retained(AllocationReleaseState::DeviceLost, QuarantineReason::DeviceLost);
        match ended {
            Ok(()) => {
                let refused = [Refusal::Lost, Refusal::Inactive(Terminated)].map(Release::Refused);
                assert!([Release::Done, retained].contains(&released) || refused.contains(&released), "{released:?}");
                assert_eq!((now.lifecycle, now.numbers()), (Terminated, IDLE));
            }
            refused => {
                assert_eq!((refused, now.lifecycle), (Err(Refusal::Busy(1)), DeviceLost));
                let left = match released {
                    Release::Done => IDLE,
                    // Counted until the stripe had said that the device is lost.
                    Release::Refused(Refusal::Lost) => LIVE,
                    released => {
                        assert_eq!(released, retained);
                        RETAINED
                    }
                };
                assert_eq!(now.numbers(), left);
            }
        }
    });
}

/// R136, R71: so does a view that is being looked at.
#[test]
fn with_view_and_confirm() {
    struct Viewed(Rig, liveslot_loom::BoundMemoryView);
    let viewed = || {
        let rig = live();
        let view = rig.allocations[0].take().view(0, BYTES).unwrap();
        Viewed(rig, view)
    };
    let look = |Viewed(rig, view): &Viewed| Saw::Ended(rig.binding.with_view(view, |_| rig.device.read()).map_err(Refusal::from));
    race(viewed, &[look, |viewed| viewed.0.lose_and_confirm()], |Viewed(rig, _), saw| {
        let lifecycle = rig.snapshot().lifecycle;
        match saw[1].ended() {
            Ok(()) => assert_eq!(lifecycle, Terminated),
            refused => assert_eq!((refused, lifecycle), (Err(Refusal::Busy(1)), DeviceLost)),
        }
        assert!([Ok(()), Err(Refusal::Lost), Err(Refusal::Inactive(Terminated))].contains(&saw[0].ended()));
    });
}

/// R138, R42: removed after the last settlement, or refused; and what was removed has given everything back.
#[test]
fn release_and_remove() {
    race(retired, &[|rig| rig.release(0), Rig::remove], |rig, mut saw| {
        let removed = saw[1].ended();
        assert_eq!((saw.remove(0).released(), rig.witness.released()), (Release::Done, 1));
        assert!([Ok(()), Err(Refusal::Inactive(Retired))].contains(&removed), "{removed:?}");
    });
}

/// R138, R42: what is retained is never removed.
#[test]
fn a_refused_release_and_remove() {
    let refusing = || {
        let rig = Rig::new(1, 1, false);
        rig.retire();
        rig
    };
    race(refusing, &[|rig| rig.release(0), Rig::remove], |rig, saw| {
        let removed = saw[1].ended();
        assert!([Err(Refusal::Inactive(Retired)), Err(Refusal::Retains(1))].contains(&removed), "{removed:?}");
        assert_eq!(rig.snapshot().numbers(), RETAINED);
    });
}

/// R47, R138, I3: what is removed owns nothing, and never will: though the one who retired it is stopped before it has told the stripes.
#[test]
fn allocate_and_a_stopped_retire_and_remove() {
    race(idle, &[Rig::allocate, Rig::retire, Rig::remove], |rig, mut saw| {
        let removed = saw[2].ended();
        let allocated = saw.remove(0).allocated().map(drop);
        let refused = allocated == Err(Refusal::Inactive(Retired));
        assert!(refused || allocated == Ok(()), "{allocated:?}");
        assert_eq!(rig.snapshot().numbers(), if refused { IDLE } else { LIVE });
        assert!([Ok(()), Err(Refusal::Inactive(Active)), Err(Refusal::Inactive(Retired))].contains(&removed), "{removed:?}");
        assert!(refused || removed != Ok(()), "removed while it owned something");
    });
}

/// The caller that finds the step made comes last: the other two either way round, and each of them on the main thread.
const ANY_OF_THREE: [[usize; 3]; 3] = [[1, 2, 0], [0, 2, 1], [0, 1, 2]];

struct Timed {
    rig: Rig,
    returned: AtomicBool,
}

fn timed() -> Timed {
    Timed { rig: idle(), returned: AtomicBool::new(false) }
}

impl Timed {
    // Relaxed: the promise is about time, and needs no ordering of the caller's.
    fn note(&self, saw: Saw) -> Saw {
        self.returned.store(true, Relaxed);
        saw
    }

    fn allocate(&self) -> Saw {
        let later = self.returned.load(Relaxed);
        let saw = self.rig.allocate();
        assert!(!later || !matches!(saw, Saw::Allocated(Ok(_))), "allocated after the call that forbids it had returned");
        saw
    }
}

/// I3, R26, R112: once a retirement has returned, though it found the step made, no call that starts later allocates.
#[test]
fn allocate_and_a_stopped_retire_and_retire() {
    // Bound 3 takes 20 000 iterations in a placement.
    race_at(&[2], &ANY_OF_THREE, timed, &[Timed::allocate, |timed| timed.rig.retire(), |timed| timed.note(timed.rig.retire())], |_, _| ());
}

/// I3, R31, R112: the same for a loss.
#[test]
fn allocate_and_a_stopped_invalidate_and_invalidate() {
    // Bound 3 takes 60 000 iterations in a placement.
    race_at(
        &[2],
        &ANY_OF_THREE,
        timed,
        &[Timed::allocate, |timed| timed.rig.invalidate(), |timed| timed.note(timed.rig.invalidate())],
        |_, _| (),
    );
}

/// No mechanism is registered yet.
struct Unregistered {
    registry: BindingRegistry,
    context: RegisteredProviderContext,
    authority: RegisteredAuthority,
    witness: Arc<Witness>,
    device: Arc<Device>,
}

fn unregistered() -> Unregistered {
    let registry = BindingRegistry::striped(1).unwrap();
    let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
    let authority = registry.register_authority(DEVICE, Arc::new(())).unwrap();
    Unregistered { registry, context, authority, witness: Arc::default(), device: Device::new() }
}

impl Unregistered {
    /// Makes the allocator too, which loom takes for a write of its cell.
    fn register(&self) -> Saw {
        let allocator = Allocator::new(true, &self.witness, &self.device);
        self.registry.register_allocator(self.context, self.authority, allocator).unwrap();
        Saw::Nothing
    }

    /// The allocator reads its cell.
    fn bind_and_allocate(&self) -> Saw {
        Saw::Allocated(self.registry.bind(DEVICE).and_then(|binding| binding.allocate(BYTES, 1)).map_err(Refusal::from))
    }
}

/// R112: whoever binds what another thread has registered finds what that one did before, here the allocator that it has made.
#[test]
fn register_and_bind() {
    race(unregistered, &[Unregistered::register, Unregistered::bind_and_allocate], |unregistered, mut saw| {
        let allocated = saw.remove(1).allocated();
        assert!(matches!(allocated, Ok(_) | Err(Refusal::Unselected)), "{allocated:?}");
        assert_eq!(unregistered.witness.allocated(), usize::from(allocated.is_ok()));
    });
}

/// Stands for what its user does with an allocation.
struct Contents(UnsafeCell<bool>);

// SAFETY: loom checks each access against every other.
unsafe impl Sync for Contents {}

impl Contents {
    fn write(&self) {
        // SAFETY: loom has just checked that nobody else looks.
        self.0.with_mut(|written| unsafe { *written = true });
    }

    fn read(&self) -> bool {
        // SAFETY: loom has just checked that nobody writes.
        self.0.with(|written| unsafe { *written })
    }
}

/// Active, with one live allocation, whose release will be refused.
struct Used {
    rig: Rig,
    contents: Contents,
}

impl Used {
    fn write_and_release(&self) -> Saw {
        self.contents.write();
        self.rig.release(0)
    }

    /// Looks at what the list names.
    fn list_and_read(&self) -> Saw {
        if !self.rig.registry.quarantined(self.rig.mechanism).unwrap().is_empty() {
            assert!(self.contents.read());
        }
        Saw::Nothing
    }
}

/// R95, R112: whoever finds an allocation in the quarantine finds what was done with it before its release.
#[test]
fn release_and_list() {
    let used = || Used { rig: Rig::new(1, 1, false), contents: Contents(UnsafeCell::new(false)) };
    race(used, &[Used::write_and_release, Used::list_and_read], |used, mut saw| {
        let retained = Release::Retained(AllocationReleaseState::Quarantined, QuarantineReason::AllocatorRefused);
        assert_eq!((saw.remove(0).released(), used.rig.snapshot().numbers()), (retained, RETAINED));
        assert!(used.contents.read());
    });
}
