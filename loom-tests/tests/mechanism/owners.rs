//! R35, R82, R83, R86, R102, R136, R138, R146–R148: owners and their views against each other, against the ends of a life, and against observers.

use super::{rig::*, support::race, witness::resource::Resource};
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

    /// How the owner's release went that met views. A refused owner is alone by now, and is released.
    fn is_released(&self, saw: Saw) -> Option<usize> {
        let (request, views) = match saw.prepared_by_owner() {
            Ok(request) => (request, None),
            Err((Refusal::Viewed(views), owner)) => {
                assert_eq!((owner.outstanding_views(), self.rig.snapshot().numbers()), (0, LIVE));
                (owner.prepare_release().unwrap(), Some(views))
            }
            Err((refusal, _)) => panic!("not an outcome of this race: {refusal:?}"),
        };
        assert!(request.execute().is_complete());
        assert_eq!((self.rig.snapshot().numbers(), self.rig.witness.released()), (IDLE, 1));
        views
    }
}

/// R147, R86, R35: retained for having been dropped, or live as before; an observer finds it in one place.
#[test]
fn snapshot_and_owner_drop_and_invalidate() {
    race(Owned::unviewed, &[Owned::look, Owned::drop_owner, Owned::invalidate], |owned, saw| {
        let (seen, now) = (saw[0].numbers(), owned.rig.snapshot().numbers());
        match now {
            RETAINED => assert_eq!(owned.rig.retained(), [DROPPED]),
            now => assert_eq!((now, owned.rig.retained()), (LIVE, vec![])),
        }
        // Counted as queued for a moment, perhaps, on the way to a refusal.
        assert!([LIVE, QUEUED, now].contains(&seen), "in no place or in two: {seen:?}");
        assert_eq!(owned.rig.witness.released(), 0);
    });
}

/// R136, R35, R40, R86: an owner that is being dropped keeps the end from being confirmed; on what has ended nothing is recorded.
#[test]
fn owner_drop_and_confirm() {
    race(Owned::unviewed, &[Owned::drop_owner, |owned| owned.rig.lose_and_confirm()], |owned, saw| {
        let now = owned.rig.snapshot();
        match saw[1].ended() {
            Ok(()) => assert_eq!((now.lifecycle, now.numbers(), owned.rig.retained()), (Terminated, IDLE, vec![])),
            refused => {
                assert_eq!((refused, now.lifecycle), (Err(Refusal::Busy(1)), DeviceLost));
                match now.numbers() {
                    RETAINED => assert_eq!(owned.rig.retained(), [DROPPED]),
                    // Counted as queued when the end was to be confirmed, and refused.
                    numbers => assert_eq!((numbers, owned.rig.retained()), (LIVE, vec![])),
                }
            }
        }
    });
}

/// R86, R131: a retirement does not show.
#[test]
fn owner_drop_and_retire() {
    race(Owned::unviewed, &[Owned::drop_owner, |owned| owned.rig.retire()], |owned, _| {
        assert_eq!((owned.rig.snapshot().numbers(), owned.rig.retained()), (RETAINED, vec![DROPPED]));
    });
}

/// R138, R86: a removal meets an owner that is being dropped, and is refused.
#[test]
fn owner_drop_and_remove() {
    fn retired() -> Owned {
        let owned = Owned::unviewed();
        owned.rig.retire();
        owned
    }
    race(retired, &[Owned::drop_owner, |owned| owned.rig.remove()], |owned, saw| {
        let removed = saw[1].ended();
        assert!([Err(Refusal::Inactive(Retired)), Err(Refusal::Retains(1))].contains(&removed), "removed while it owned: {removed:?}");
        assert_eq!((owned.rig.snapshot().numbers(), owned.rig.retained()), (RETAINED, vec![DROPPED]));
    });
}

/// R86, R98, R102: an owner that is dropped elsewhere is live, then queued, then retained: counted always.
#[test]
fn snapshot_and_owner_drop() {
    race(
        || Owned::new(2, 0),
        &[Owned::look, Owned::drop_owner],
        |owned, saw| {
            assert!([LIVE, QUEUED, RETAINED].contains(&saw[0].numbers()), "in no place or in two: {:?}", saw[0].counted());
            assert_eq!((owned.rig.snapshot().numbers(), owned.rig.retained()), (RETAINED, vec![DROPPED]));
        },
    );
}

/// R98, R102: one that is released is live, then queued, then gone.
#[test]
fn snapshot_and_owner_release() {
    race(
        || Owned::new(2, 0),
        &[Owned::look, Owned::release],
        |owned, mut saw| {
            assert!([LIVE, QUEUED, IDLE].contains(&saw[0].numbers()), "in no place or in two: {:?}", saw[0].counted());
            assert_eq!((saw.remove(1).settled(), owned.rig.snapshot().numbers()), (Release::Done, IDLE));
        },
    );
}

/// R146: released, and the view's use was before; or refused, with the view counted and the owner back.
#[test]
fn last_view_drop_and_release() {
    race(Owned::viewed, &[|owned| owned.drop_view(0), Owned::prepare], |owned, mut saw| {
        assert!([None, Some(1)].contains(&owned.is_released(saw.remove(1))));
    });
}

/// R82, R146: a view that hands itself on to a clone stays counted all the while.
#[test]
fn view_clone_and_drop_and_release() {
    race(Owned::viewed, &[|owned: &Owned| owned.clone_view_and_drop(0), Owned::prepare], |owned, mut saw| {
        assert!([None, Some(1), Some(2)].contains(&owned.is_released(saw.remove(1))));
    });
}

/// R82, R146: of two views the uses of both are before the release.
#[test]
fn view_clone_and_drop_and_view_drop_and_release() {
    race(
        || Owned::new(1, 2),
        &[|owned: &Owned| owned.clone_view_and_drop(0), |owned| owned.drop_view(1), Owned::prepare],
        |owned, mut saw| {
            assert!([None, Some(1), Some(2), Some(3)].contains(&owned.is_released(saw.remove(2))));
        },
    );
}

/// R82, R132: views win over a loss; without them it is refused or prepared as the stripe says.
#[test]
fn last_view_drop_and_release_and_invalidate() {
    race(Owned::viewed, &[|owned| owned.drop_view(0), Owned::prepare, Owned::invalidate], |owned, mut saw| {
        match saw.remove(1).prepared_by_owner() {
            Ok(request) => {
                let lost = Release::Retained(AllocationReleaseState::DeviceLost, QuarantineReason::DeviceLost);
                assert_eq!(Release::from(request.execute()), lost);
                assert_eq!(owned.rig.retained(), [lost]);
            }
            Err((refusal, owner)) => {
                assert!([Refusal::Viewed(1), Refusal::Lost].contains(&refusal), "{refusal:?}");
                assert_eq!((owner.outstanding_views(), owned.rig.snapshot().numbers()), (0, LIVE));
            }
        }
        assert_eq!(owned.rig.witness.released(), 0);
    });
}

/// R64, R86: an owner is dropped while somebody looks at its memory: the look is granted or the view is stale, and the allocation is retained.
#[test]
fn with_view_and_owner_drop() {
    let look = |owned: &Owned| {
        let view = owned.views[0].take();
        Saw::Ended(owned.rig.binding.with_view(view.view(), |_| owned.memory.read()).map_err(Refusal::from))
    };
    race(Owned::viewed, &[look, Owned::drop_owner], |owned, saw| {
        let looked = saw[0].ended();
        assert!([Ok(()), Err(Refusal::Stale)].contains(&looked), "{looked:?}");
        assert_eq!((owned.rig.snapshot().numbers(), owned.rig.retained()), (RETAINED, vec![DROPPED]));
    });
}
