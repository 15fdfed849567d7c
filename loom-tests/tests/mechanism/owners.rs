//! R35, R82, R83, R86, R102, R136, R138, R146–R148: owners and their views against each other, against the ends of a life, and against
//! observers.

use super::{
    outcomes::{came_to, outcomes},
    rig::*,
    support::race,
    witness::resource::Resource,
};
use liveslot_loom::{AllocationReleaseState, MechanismLifecycle::*, OwnedView, OwningAllocation, QuarantineReason};

const DROPPED: Release = Release::Retained(AllocationReleaseState::Quarantined, QuarantineReason::OwnerDropped);

/// A mechanism with one owned allocation, which is looked at by way of views.
struct Owned {
    rig: Rig,
    owner: Held<OwningAllocation>,
    views: Vec<Held<OwnedView>>,
    /// What the views are of. It ends once a release may call the allocator.
    memory: Resource,
}

impl Owned {
    fn new(stripes: usize, views: usize) -> Self {
        let rig = Rig::new(stripes, 0, true);
        let owner = rig.binding.allocate_owning(BYTES, 1).unwrap();
        let views = (0..views).map(|_| Held::new(owner.view(0, BYTES).unwrap())).collect();
        Self { rig, owner: Held::new(owner), views, memory: Resource::new() }
    }

    fn unviewed() -> Self {
        Self::new(1, 0)
    }

    fn viewed() -> Self {
        Self::new(1, 1)
    }

    fn look(&self) -> Saw {
        self.rig.look()
    }

    fn invalidate(&self) -> Saw {
        self.rig.invalidate()
    }

    fn drop_owner(&self) -> Saw {
        drop(self.owner.take());
        Saw::Nothing
    }

    fn prepare(&self) -> Saw {
        let answer = self.owner.take().prepare_release();
        if answer.is_ok() {
            self.memory.tear_down();
        }
        Saw::PreparedByOwner(answer)
    }

    fn release(&self) -> Saw {
        Saw::Settled(self.owner.take().release_now().unwrap())
    }

    /// Uses the memory without being counted as an operation: what orders this is the view alone.
    fn drop_view(&self, n: usize) -> Saw {
        let view = self.views[n].take();
        self.memory.read();
        drop(view);
        Saw::Nothing
    }

    fn clone_view_and_drop(&self, n: usize) -> Saw {
        let view = self.views[n].take();
        let another = view.clone();
        drop(view);
        self.memory.read();
        drop(another);
        Saw::Nothing
    }

    /// How the owner's release went that met views, which are gone by now: a refused owner is released then.
    fn is_released(&self, saw: Saw) {
        let request = match saw.prepared_by_owner() {
            Ok(request) => {
                came_to("released");
                request
            }
            Err((refusal, owner)) => {
                assert_eq!((owner.outstanding_views(), self.rig.snapshot().numbers()), (0, LIVE));
                came_to(format!("{refusal:?}"));
                owner.prepare_release().unwrap()
            }
        };
        assert!(request.execute().is_complete());
        assert_eq!((self.rig.snapshot().numbers(), self.rig.witness.released()), (IDLE, 1));
    }

    /// Where the dropped owner's allocation is at last: with its reason if it is retained.
    fn left(&self) -> &'static str {
        let (now, retained) = (self.rig.snapshot(), self.rig.retained());
        assert_eq!(retained, if now.numbers() == RETAINED { vec![DROPPED] } else { vec![] });
        assert_eq!(self.rig.witness.released(), 0);
        place(now.numbers())
    }
}

/// R147, R86, R35: retained for having been dropped, or live as before. An observer finds it in one place, if only queued for a moment on
/// the way to the refusal.
#[test]
fn snapshot_and_owner_drop_and_invalidate() {
    outcomes(&["live, retained", "queued, retained", "retained, retained", "live, live", "queued, live"], || {
        race(Owned::unviewed, &[Owned::look, Owned::drop_owner, Owned::invalidate], |owned, saw| {
            came_to(format!("{}, {}", saw[0].place(), owned.left()));
        });
    });
}

/// R136, R35, R40, R86: an owner that is being dropped keeps the end from being confirmed; on what has ended nothing is recorded.
#[test]
fn owner_drop_and_confirm() {
    // Busy and live: counted as queued when the end was to be confirmed, and then refused.
    outcomes(&["granted, gone", "Busy(1), retained", "Busy(1), live"], || {
        race(Owned::unviewed, &[Owned::drop_owner, |owned| owned.rig.lose_and_confirm()], |owned, saw| {
            let (ended, lifecycle) = (saw[1].end(), owned.rig.snapshot().lifecycle);
            assert_eq!(lifecycle, if ended == "granted" { Terminated } else { DeviceLost });
            came_to(format!("{ended}, {}", owned.left()));
        });
    });
}

/// R86, R26: a retirement does not show.
#[test]
fn owner_drop_and_retire() {
    race(Owned::unviewed, &[Owned::drop_owner, |owned| owned.rig.retire()], |owned, _| assert_eq!(owned.left(), "retained"));
}

/// R138, R86: a removal meets an owner that is being dropped, and is refused.
#[test]
fn owner_drop_and_remove() {
    fn retired() -> Owned {
        let owned = Owned::unviewed();
        owned.rig.retire();
        owned
    }
    outcomes(&["Inactive(Retired)", "Retains(1)"], || {
        race(retired, &[Owned::drop_owner, |owned| owned.rig.remove()], |owned, saw| {
            came_to(saw[1].end());
            assert_eq!(owned.left(), "retained");
        });
    });
}

/// R86, R98, R102: an owner that is dropped elsewhere is live, then queued, then retained: counted always.
#[test]
fn snapshot_and_owner_drop() {
    outcomes(&["live", "queued", "retained"], || {
        race(
            || Owned::new(2, 0),
            &[Owned::look, Owned::drop_owner],
            |owned, saw| {
                came_to(saw[0].place());
                assert_eq!(owned.left(), "retained");
            },
        );
    });
}

/// R98, R102: one that is released is live, then queued, then gone.
#[test]
fn snapshot_and_owner_release() {
    outcomes(&["live", "queued", "gone"], || {
        race(
            || Owned::new(2, 0),
            &[Owned::look, Owned::release],
            |owned, mut saw| {
                came_to(saw[0].place());
                assert_eq!((saw.remove(1).settled(), owned.rig.snapshot().numbers()), (Release::Done, IDLE));
            },
        );
    });
}

/// R146: released, and the view's use was before; or refused, with the view counted and the owner back.
#[test]
fn last_view_drop_and_release() {
    outcomes(&["released", "Viewed(1)"], || {
        race(Owned::viewed, &[|owned| owned.drop_view(0), Owned::prepare], |owned, mut saw| owned.is_released(saw.remove(1)));
    });
}

/// R82, R146: a view that hands itself on to a clone stays counted all the while.
#[test]
fn view_clone_and_drop_and_release() {
    outcomes(&["released", "Viewed(1)", "Viewed(2)"], || {
        race(Owned::viewed, &[|owned| owned.clone_view_and_drop(0), Owned::prepare], |owned, mut saw| {
            owned.is_released(saw.remove(1));
        });
    });
}

/// R82, R146: of two views the uses of both are before the release.
#[test]
fn view_clone_and_drop_and_view_drop_and_release() {
    outcomes(&["released", "Viewed(1)", "Viewed(2)", "Viewed(3)"], || {
        race(
            || Owned::new(1, 2),
            &[|owned: &Owned| owned.clone_view_and_drop(0), |owned| owned.drop_view(1), Owned::prepare],
            |owned, mut saw| owned.is_released(saw.remove(2)),
        );
    });
}

/// R82, R132: views win over a loss; without them it is refused or prepared as the stripe says.
#[test]
fn last_view_drop_and_release_and_invalidate() {
    outcomes(&["prepared", "Viewed(1)", "Lost"], || {
        race(Owned::viewed, &[|owned| owned.drop_view(0), Owned::prepare, Owned::invalidate], |owned, mut saw| {
            match saw.remove(1).prepared_by_owner() {
                Ok(request) => {
                    let lost = Release::Retained(AllocationReleaseState::DeviceLost, QuarantineReason::DeviceLost);
                    assert_eq!(Release::from(request.execute()), lost);
                    assert_eq!(owned.rig.retained(), [lost]);
                    came_to("prepared");
                }
                Err((refusal, owner)) => {
                    assert_eq!((owner.outstanding_views(), owned.rig.snapshot().numbers()), (0, LIVE));
                    came_to(format!("{refusal:?}"));
                }
            }
            assert_eq!(owned.rig.witness.released(), 0);
        });
    });
}

/// R64, R86: an owner is dropped while somebody looks at its memory: the look is granted or the view is stale, and the allocation is
/// retained.
#[test]
fn with_view_and_owner_drop() {
    let look = |owned: &Owned| {
        let view = owned.views[0].take();
        Saw::Ended(owned.rig.binding.with_view(view.view(), |_| owned.memory.read()).map_err(Refusal::from))
    };
    outcomes(&["granted", "Stale"], || {
        race(Owned::viewed, &[look, Owned::drop_owner], |owned, saw| {
            came_to(saw[0].end());
            assert_eq!(owned.left(), "retained");
        });
    });
}
