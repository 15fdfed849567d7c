//! R98, R100–R102, R104, R148: snapshots against everything that moves allocations.

use super::{rig::*, support::race};
use liveslot_loom::MechanismLifecycle::*;

/// R102, R108: an allocation is an operation, then live, in one step.
#[test]
fn snapshot_and_allocate() {
    race(
        || Rig::new(1, 0, true),
        &[Rig::look, Rig::allocate],
        |rig, saw| {
            assert!([IDLE, BUSY, LIVE].contains(&saw[0].numbers()));
            assert_eq!(rig.snapshot().numbers(), LIVE);
        },
    );
}

/// R102, R98: an allocation on its way back is live, then queued, then gone. It was made on another stripe.
#[test]
fn snapshot_and_release() {
    race(
        || Rig::new(2, 1, true),
        &[Rig::look, |rig| rig.release(0)],
        |rig, saw| {
            assert!([LIVE, QUEUED, IDLE].contains(&saw[0].numbers()), "in no place or in two: {:?}", saw[0].counted());
            assert_eq!(rig.snapshot().numbers(), IDLE, "settled where it was not counted");
        },
    );
}

/// R102, R98: or live, then queued, then quarantined: in one place, always.
#[test]
fn snapshot_and_a_refused_release() {
    race(
        || Rig::new(2, 1, false),
        &[Rig::look, |rig| rig.release(0)],
        |rig, saw| {
            assert!([LIVE, QUEUED, RETAINED].contains(&saw[0].numbers()), "in no place or in two: {:?}", saw[0].counted());
            assert_eq!(rig.snapshot().numbers(), RETAINED);
        },
    );
}

/// R102, R104: the same for two that are retained at once; bytes belong to the count, and the list to both.
#[test]
fn snapshot_and_two_refused_releases() {
    race(
        || Rig::new(1, 2, false),
        &[Rig::look, |rig| rig.release(0), |rig| rig.release(1)],
        |rig, saw| {
            let [operations, live, queued, quarantined] = saw[0].numbers();
            assert_eq!((operations, live + queued + quarantined), (queued, 2), "{:?}", saw[0].counted());
            assert_eq!(rig.snapshot().numbers(), [0, 0, 0, 2]);
            let list = rig.binding.quarantined().unwrap();
            assert_eq!(list.len(), 2);
            assert_ne!(list[0].identity, list[1].identity);
        },
    );
}

/// R102: a loss that comes between leaves the allocation in one place.
#[test]
fn snapshot_and_release_and_invalidate() {
    race(
        || Rig::new(1, 1, false),
        &[Rig::look, |rig| rig.release(0), Rig::invalidate],
        |rig, mut saw| {
            assert!([LIVE, QUEUED, RETAINED].contains(&saw[0].numbers()), "in no place or in two: {:?}", saw[0].counted());
            let left = if matches!(saw.remove(1).released(), Release::Refused(_)) { LIVE } else { RETAINED };
            assert_eq!(rig.snapshot().numbers(), left);
        },
    );
}

/// R64, R102: stale metadata changes no count, not for a moment.
#[test]
fn snapshot_and_a_stale_release() {
    fn stale() -> Rig {
        let mut rig = Rig::new(1, 1, false);
        let (_, stale) = rig.binding.release(rig.allocations[0].take()).unwrap_err().into_parts();
        rig.allocations = vec![Held::new(stale)];
        rig
    }
    race(stale, &[Rig::look, |rig| rig.release(0)], |rig, mut saw| {
        assert_eq!(saw[0].numbers(), RETAINED, "stale metadata was counted");
        let Saw::Released(Err(refused)) = saw.remove(1) else { panic!("released twice") };
        assert_eq!(Refusal::from(refused.into_parts().0), Refusal::Stale);
        assert_eq!((rig.snapshot().numbers(), rig.witness.released()), (RETAINED, 1));
    });
}

/// R102: "nothing owned, nothing in progress" on what is not Active is for ever, though the one who retired it is stopped half-way.
#[test]
fn idle_and_retired_is_for_ever() {
    race(
        || Rig::new(1, 0, true),
        &[Rig::look, Rig::retire, Rig::allocate],
        |rig, mut saw| {
            let seen = saw[0].counted()[0];
            let allocated = saw.remove(2).allocated().is_ok();
            assert!(!allocated || seen.lifecycle == Active || seen.numbers() != IDLE, "idle for ever, and then it allocated");
            assert_eq!(rig.snapshot().numbers(), if allocated { LIVE } else { IDLE });
        },
    );
}

/// R102: a life only moves on.
#[test]
fn lifecycles_do_not_go_back() {
    let twice = |rig: &Rig| Saw::Counted(vec![rig.snapshot(), rig.snapshot()]);
    let end = |rig: &Rig| {
        rig.retire();
        rig.invalidate();
        rig.confirm()
    };
    race(
        || Rig::new(1, 0, true),
        &[twice, end],
        |rig, saw| {
            let order = [Active, Retired, DeviceLost, Terminated];
            let at = |n: usize| order.iter().position(|lifecycle| *lifecycle == saw[0].counted()[n].lifecycle);
            assert!(at(0) <= at(1), "{:?}", saw[0].counted());
            assert_eq!(rig.snapshot().lifecycle, Terminated);
        },
    );
}
