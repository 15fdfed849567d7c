//! R88, R90–R94, R98, R102, R104, R131–R136, R138, R148: prepared releases against each other, against the ends of a life, and against observers.

use super::{
    rig::*,
    support::{race, race_at},
};
use liveslot_loom::{
    AllocationReleaseState, DeferredEnqueueRejection::Full, MechanismLifecycle::*, PreparedAllocationRelease, QuarantineReason,
};

const LOST: Release = Release::Retained(AllocationReleaseState::DeviceLost, QuarantineReason::DeviceLost);
const ABANDONED: Release = Release::Retained(AllocationReleaseState::Quarantined, QuarantineReason::AbandonedRequest);
const REJECTED: Release = Release::Retained(AllocationReleaseState::Quarantined, QuarantineReason::EnqueueRejected(Full));
const REFUSED: Release = Release::Retained(AllocationReleaseState::Quarantined, QuarantineReason::AllocatorRefused);

/// A mechanism, and releases that were prepared before the race.
struct Prepared {
    rig: Rig,
    requests: Vec<Held<PreparedAllocationRelease>>,
}

impl Prepared {
    fn new(stripes: usize, requests: usize, completes: bool) -> Self {
        let rig = Rig::new(stripes, requests, completes);
        let requests = (0..requests).map(|n| Held::new(rig.prepare(n).prepared().unwrap())).collect();
        Self { rig, requests }
    }

    fn one() -> Self {
        Self::new(1, 1, true)
    }

    /// Of an allocator that refuses every release.
    fn to_be_refused() -> Self {
        Self::new(1, 1, false)
    }

    fn retired(self) -> Self {
        self.rig.retire();
        self
    }

    fn lost(self) -> Self {
        self.rig.invalidate();
        self
    }

    fn execute(&self) -> Saw {
        Saw::Settled(self.requests[0].take().execute())
    }

    fn quarantine(&self, n: usize) -> Saw {
        Saw::Settled(self.requests[n].take().quarantine(QuarantineReason::EnqueueRejected(Full)))
    }

    fn abandon(&self) -> Saw {
        drop(self.requests[0].take());
        Saw::Nothing
    }

    fn look(&self) -> Saw {
        self.rig.look()
    }

    fn list(&self) -> Saw {
        Saw::Listed(self.rig.binding.quarantined().unwrap())
    }

    fn invalidate(&self) -> Saw {
        self.rig.invalidate()
    }

    fn remove(&self) -> Saw {
        self.rig.remove()
    }

    /// The allocation is retained so, and the allocator was asked so often.
    fn is_retained(&self, so: Release, asked: usize) {
        assert_eq!(self.rig.snapshot().numbers(), RETAINED);
        assert_eq!((self.rig.retained(), self.rig.witness.released()), (vec![so], asked));
    }
}

/// R88, R102: two releases prepared at once on one stripe, under the eyes of an observer: each moves its own allocation, in one step.
#[test]
fn snapshot_and_prepare_and_prepare() {
    race(
        || Rig::new(1, 2, true),
        &[Rig::look, |rig| rig.prepare(0), |rig| rig.prepare(1)],
        |rig, mut saw| {
            let seen = saw[0].numbers();
            assert!([[0, 2, 0, 0], [1, 1, 1, 0], [2, 0, 2, 0]].contains(&seen), "in no place or in two: {seen:?}");
            let requests = [saw.pop(), saw.pop()].map(|saw| saw.unwrap().prepared().unwrap());
            assert_ne!(requests[0].identity(), requests[1].identity());
            assert_eq!((rig.snapshot().numbers(), rig.witness.released()), ([2, 0, 2, 0], 0));
            assert!(requests.into_iter().all(|request| request.execute().is_complete()));
            assert_eq!((rig.snapshot().numbers(), rig.witness.released()), (IDLE, 2));
        },
    );
}

/// R131: a retirement does not show.
#[test]
fn prepare_and_retire() {
    race(
        || Rig::new(1, 1, true),
        &[|rig: &Rig| rig.prepare(0), Rig::retire],
        |rig, mut saw| {
            let request = saw.remove(0).prepared().unwrap();
            assert_eq!(rig.snapshot().numbers(), QUEUED);
            assert!(request.execute().is_complete());
            assert_eq!((rig.snapshot().numbers(), rig.witness.released()), (IDLE, 1));
        },
    );
}

/// R132, R91: prepared, and retained when it is executed; or refused, with the allocation back. An observer finds it in one place.
#[test]
fn snapshot_and_prepare_and_invalidate() {
    race(
        || Rig::new(1, 1, true),
        &[Rig::look, |rig| rig.prepare(0), Rig::invalidate],
        |rig, mut saw| {
            assert!([LIVE, QUEUED].contains(&saw[0].numbers()), "in no place or in two: {:?}", saw[0].counted());
            match saw.remove(1).prepared() {
                Ok(request) => {
                    assert_eq!(rig.snapshot().numbers(), QUEUED);
                    assert_eq!(Release::from(request.execute()), LOST);
                    assert_eq!(rig.snapshot().numbers(), RETAINED);
                }
                // Counted as queued for a moment, perhaps, on the way to the refusal.
                Err(refusal) => assert_eq!((refusal, rig.snapshot().numbers()), (Refusal::Lost, LIVE)),
            }
            assert_eq!(rig.witness.released(), 0);
        },
    );
}

/// R134, R90, R91: released, and the allocator was asked once; or retained as lost, and it was not asked.
#[test]
fn execute_and_invalidate() {
    race(Prepared::one, &[Prepared::execute, Prepared::invalidate], |prepared, mut saw| match saw.remove(0).settled() {
        Release::Done => {
            assert_eq!((prepared.rig.snapshot().numbers(), prepared.rig.witness.released()), (IDLE, 1));
            assert_eq!(prepared.rig.retained(), []);
        }
        retained => {
            assert_eq!(retained, LOST);
            prepared.is_retained(LOST, 0);
        }
    });
}

/// R134: the answer of an allocator that refuses stands as well, with its reason.
#[test]
fn a_refused_execute_and_invalidate() {
    race(Prepared::to_be_refused, &[Prepared::execute, Prepared::invalidate], |prepared, mut saw| match saw.remove(0).settled() {
        LOST => prepared.is_retained(LOST, 0),
        retained => {
            assert_eq!(retained, REFUSED);
            prepared.is_retained(REFUSED, 1);
        }
    });
}

/// R94: a request that is dropped is retained as abandoned, lost device or not.
#[test]
fn abandon_and_invalidate() {
    race(Prepared::one, &[Prepared::abandon, Prepared::invalidate], |prepared, _| prepared.is_retained(ABANDONED, 0));
}

/// R88, R136: a request keeps the end from being confirmed until it has ended. After the end nobody reaches the device, and nothing is recorded.
#[test]
fn execute_and_confirm() {
    race(Prepared::one, &[Prepared::execute, |prepared| prepared.rig.lose_and_confirm()], |prepared, mut saw| {
        let ended = saw[1].ended();
        let settled = saw.remove(0).settled();
        assert!([Release::Done, LOST].contains(&settled), "{settled:?}");
        let now = prepared.rig.snapshot();
        match ended {
            Ok(()) => assert_eq!((now.lifecycle, now.numbers(), prepared.rig.retained()), (Terminated, IDLE, vec![])),
            refused => {
                let left = if settled == LOST { RETAINED } else { IDLE };
                assert_eq!((refused, now.lifecycle, now.numbers()), (Err(Refusal::Busy(1)), DeviceLost, left));
            }
        }
    });
}

/// R138, R42, R47: removed behind the last release, or refused because of it.
#[test]
fn execute_and_remove() {
    race(
        || Prepared::one().retired(),
        &[Prepared::execute, Prepared::remove],
        |prepared, mut saw| {
            let removed = saw[1].ended();
            assert_eq!((saw.remove(0).settled(), prepared.rig.witness.released()), (Release::Done, 1));
            assert!([Ok(()), Err(Refusal::Inactive(Retired))].contains(&removed), "{removed:?}");
        },
    );
}

/// What a removal may answer that met an allocation on its way into the quarantine.
fn not_removed(saw: &Saw, lifecycle: liveslot_loom::MechanismLifecycle) {
    let removed = saw.ended();
    assert!([Err(Refusal::Inactive(lifecycle)), Err(Refusal::Retains(1))].contains(&removed), "removed while it owned: {removed:?}");
}

/// R138, R92: what is quarantined instead is never removed.
#[test]
fn quarantine_and_remove() {
    race(
        || Prepared::one().retired(),
        &[|prepared: &Prepared| prepared.quarantine(0), Prepared::remove],
        |prepared, mut saw| {
            not_removed(&saw[1], Retired);
            assert_eq!(saw.remove(0).settled(), REJECTED);
            prepared.is_retained(REJECTED, 0);
        },
    );
}

/// R138, R94: nor what is abandoned.
#[test]
fn abandon_and_remove() {
    race(
        || Prepared::one().retired(),
        &[Prepared::abandon, Prepared::remove],
        |prepared, saw| {
            not_removed(&saw[1], Retired);
            prepared.is_retained(ABANDONED, 0);
        },
    );
}

/// R138, R43, R91: nor what a lost device keeps.
#[test]
fn execute_and_remove_when_lost() {
    race(
        || Prepared::one().lost(),
        &[Prepared::execute, Prepared::remove],
        |prepared, mut saw| {
            not_removed(&saw[1], DeviceLost);
            assert_eq!(saw.remove(0).settled(), LOST);
            prepared.is_retained(LOST, 0);
        },
    );
}

/// R98, R102: a request that is executed is queued, then gone. It is settled on another thread than it was prepared on, and where it was counted.
#[test]
fn snapshot_and_execute() {
    race(
        || Prepared::new(2, 1, true),
        &[Prepared::look, Prepared::execute],
        |prepared, saw| {
            assert!([QUEUED, IDLE].contains(&saw[0].numbers()), "in no place or in two: {:?}", saw[0].counted());
            assert_eq!(prepared.rig.snapshot().numbers(), IDLE, "settled where it was not counted");
        },
    );
}

/// R98, R102: one that is quarantined is queued, then retained; nothing left is not shown in between.
#[test]
fn snapshot_and_quarantine() {
    race(
        || Prepared::new(2, 1, true),
        &[Prepared::look, |prepared| prepared.quarantine(0)],
        |prepared, saw| {
            assert!([QUEUED, RETAINED].contains(&saw[0].numbers()), "in no place or in two: {:?}", saw[0].counted());
            prepared.is_retained(REJECTED, 0);
        },
    );
}

/// R94, R98, R102: so is one that is dropped.
#[test]
fn snapshot_and_abandon() {
    race(
        || Prepared::new(2, 1, true),
        &[Prepared::look, Prepared::abandon],
        |prepared, saw| {
            assert!([QUEUED, RETAINED].contains(&saw[0].numbers()), "in no place or in two: {:?}", saw[0].counted());
            prepared.is_retained(ABANDONED, 0);
        },
    );
}

/// R98, R102: and one that is executed while the device is lost: gone only if it was released.
#[test]
fn snapshot_and_execute_and_invalidate() {
    race(
        Prepared::one,
        &[Prepared::look, Prepared::execute, Prepared::invalidate],
        |prepared, mut saw| {
            let seen = saw[0].numbers();
            let left = if saw.remove(1).settled() == Release::Done { IDLE } else { RETAINED };
            assert!([QUEUED, left].contains(&seen), "in no place or in two: {seen:?}");
            assert_eq!(prepared.rig.snapshot().numbers(), left);
        },
    );
}

/// R102, R148: one is released and one is retained at the same time: an observer counts each of them at most once, and what is retained always.
#[test]
fn snapshot_and_execute_and_quarantine() {
    race(
        || Prepared::new(1, 2, true),
        &[Prepared::look, Prepared::execute, |prepared| prepared.quarantine(1)],
        |prepared, saw| {
            let seen = saw[0].numbers();
            let expected = [[2, 0, 2, 0], [1, 0, 1, 0], [1, 0, 1, 1], [0, 0, 0, 1]];
            assert!(expected.contains(&seen), "in no place or in two: {seen:?}");
            prepared.is_retained(REJECTED, 1);
        },
    );
}

/// R104, R95: who lists while two are retained finds none, one or two, each once, and twice in a row no fewer.
#[test]
fn list_and_quarantine_and_quarantine() {
    let twice = |prepared: &Prepared| {
        let before = prepared.rig.binding.quarantined().unwrap().len();
        let list = prepared.list();
        assert!(before <= list.listed().len(), "the list has lost an entry");
        list
    };
    race(
        || Prepared::new(1, 2, true),
        &[twice, |prepared| prepared.quarantine(0), |prepared| prepared.quarantine(1)],
        |prepared, saw| {
            let list = saw[0].listed();
            assert!(list.len() < 2 || list[0].identity != list[1].identity, "listed twice: {list:?}");
            assert!(list.iter().all(|entry| entry.bytes == BYTES && entry.retained_bytes == BYTES as u64));
            assert_eq!(prepared.rig.snapshot().numbers(), [0, 0, 0, 2]);
            assert_eq!(prepared.rig.retained(), [REJECTED, REJECTED]);
        },
    );
}

/// R104, R38, R136: the same while the end is confirmed, which comes behind both or is refused; the list is empty from then on.
#[test]
fn list_and_quarantine_and_quarantine_and_confirm() {
    // All placements at bound 2 take half a minute. These have each role on the main thread once, and the confirmation spawned at each place.
    const PLACEMENTS: [[usize; 4]; 4] = [[3, 0, 1, 2], [0, 3, 2, 1], [1, 2, 3, 0], [2, 1, 0, 3]];
    race_at(
        &[2],
        &PLACEMENTS,
        || Prepared::new(1, 2, true).lost(),
        &[Prepared::list, |prepared| prepared.quarantine(0), |prepared| prepared.quarantine(1), |prepared| prepared.rig.confirm()],
        |prepared, saw| {
            let (list, ended) = (saw[0].listed(), saw[3].ended());
            assert!(list.len() < 2 || list.len() == 2 && list[0].identity != list[1].identity, "listed twice: {list:?}");
            let now = prepared.rig.snapshot();
            match ended {
                Ok(()) => assert_eq!((now.lifecycle, now.numbers(), prepared.rig.retained()), (Terminated, IDLE, vec![])),
                refused => {
                    assert!([Err(Refusal::Busy(1)), Err(Refusal::Busy(2))].contains(&refused), "{refused:?}");
                    assert_eq!((now.lifecycle, now.numbers()), (DeviceLost, [0, 0, 0, 2]));
                    assert_eq!(prepared.rig.retained(), [REJECTED, REJECTED]);
                }
            }
        },
    );
}

/// R102, R38: what is owned is counted until it is written off, and then by nobody.
#[test]
fn snapshot_and_quarantine_and_confirm() {
    race(
        || Prepared::one().lost(),
        &[Prepared::look, |prepared| prepared.quarantine(0), |prepared| prepared.rig.confirm()],
        |prepared, saw| {
            let seen = saw[0].counted()[0];
            let expected = if seen.lifecycle == Terminated { vec![IDLE] } else { vec![QUEUED, RETAINED] };
            assert!(expected.contains(&seen.numbers()), "in no place or in two: {seen:?}");
            let now = prepared.rig.snapshot();
            match saw[2].ended() {
                Ok(()) => assert_eq!((now.lifecycle, now.numbers()), (Terminated, IDLE)),
                refused => assert_eq!((refused, now.lifecycle, now.numbers()), (Err(Refusal::Busy(1)), DeviceLost, RETAINED)),
            }
        },
    );
}
