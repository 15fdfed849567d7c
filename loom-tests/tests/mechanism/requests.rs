//! R88, R90–R94, R98, R102, R104, R131–R136, R138, R148: prepared releases against each other, against the ends of a life, and against
//! observers.

use super::{
    outcomes::{came_to, outcomes},
    rig::*,
    support::{orders, race, race_at},
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
    outcomes(&["[0, 2, 0, 0]", "[1, 1, 1, 0]", "[2, 0, 2, 0]"], || {
        race(
            || Rig::new(1, 2, true),
            &[Rig::look, |rig| rig.prepare(0), |rig| rig.prepare(1)],
            |rig, mut saw| {
                let requests = [saw.pop(), saw.pop()].map(|saw| saw.unwrap().prepared().unwrap());
                assert_ne!(requests[0].identity(), requests[1].identity());
                assert_eq!((rig.snapshot().numbers(), rig.witness.released()), ([2, 0, 2, 0], 0));
                assert!(requests.into_iter().all(|request| request.execute().is_complete()));
                assert_eq!((rig.snapshot().numbers(), rig.witness.released()), (IDLE, 2));
                came_to(format!("{:?}", saw[0].numbers()));
            },
        );
    });
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

/// R132, R91: prepared, and retained when it is executed; or refused, with the allocation back. An observer finds it in one place, if only
/// queued for a moment on the way to the refusal.
#[test]
fn snapshot_and_prepare_and_invalidate() {
    outcomes(&["live, prepared", "queued, prepared", "live, refused", "queued, refused"], || {
        race(
            || Rig::new(1, 1, true),
            &[Rig::look, |rig| rig.prepare(0), Rig::invalidate],
            |rig, mut saw| {
                let seen = saw[0].place();
                match saw.remove(1).prepared() {
                    Ok(request) => {
                        assert_eq!(rig.snapshot().numbers(), QUEUED);
                        assert_eq!(Release::from(request.execute()), LOST);
                        assert_eq!(rig.snapshot().numbers(), RETAINED);
                        came_to(format!("{seen}, prepared"));
                    }
                    Err(refusal) => {
                        assert_eq!((refusal, rig.snapshot().numbers()), (Refusal::Lost, LIVE));
                        came_to(format!("{seen}, refused"));
                    }
                }
                assert_eq!(rig.witness.released(), 0);
            },
        );
    });
}

/// R134, R90, R91: released, and the allocator was asked once; or retained as lost, and it was not asked.
#[test]
fn execute_and_invalidate() {
    outcomes(&["released", "lost"], || {
        race(Prepared::one, &[Prepared::execute, Prepared::invalidate], |prepared, mut saw| {
            let settled = saw.remove(0).settled();
            if settled == Release::Done {
                assert_eq!((prepared.rig.snapshot().numbers(), prepared.rig.witness.released()), (IDLE, 1));
                assert_eq!(prepared.rig.retained(), []);
                came_to("released");
            } else {
                assert_eq!(settled, LOST);
                prepared.is_retained(LOST, 0);
                came_to("lost");
            }
        });
    });
}

/// R134: the answer of an allocator that refuses stands as well, with its reason.
#[test]
fn a_refused_execute_and_invalidate() {
    outcomes(&["refused", "lost"], || {
        race(Prepared::to_be_refused, &[Prepared::execute, Prepared::invalidate], |prepared, mut saw| {
            let settled = saw.remove(0).settled();
            if settled == REFUSED {
                prepared.is_retained(REFUSED, 1);
                came_to("refused");
            } else {
                assert_eq!(settled, LOST);
                prepared.is_retained(LOST, 0);
                came_to("lost");
            }
        });
    });
}

/// R88, R136: a request keeps the end from being confirmed until it has ended. After the end nobody reaches the device, and nothing is
/// recorded.
#[test]
fn execute_and_confirm() {
    outcomes(&["granted, released", "granted, lost", "Busy(1), released", "Busy(1), lost"], || {
        race(Prepared::one, &[Prepared::execute, |prepared| prepared.rig.lose_and_confirm()], |prepared, mut saw| {
            let now = prepared.rig.snapshot();
            let ended = saw[1].end();
            let (settled, left) = match saw.remove(0).settled() {
                Release::Done => ("released", IDLE),
                LOST => ("lost", RETAINED),
                settled => panic!("not an outcome of this race: {settled:?}"),
            };
            if ended == "granted" {
                assert_eq!((now.lifecycle, now.numbers(), prepared.rig.retained()), (Terminated, IDLE, vec![]));
            } else {
                assert_eq!((now.lifecycle, now.numbers()), (DeviceLost, left));
            }
            came_to(format!("{ended}, {settled}"));
        });
    });
}

/// R138, R42, R47: removed behind the last release, or refused because of it.
#[test]
fn execute_and_remove() {
    outcomes(&["granted", "Inactive(Retired)"], || {
        race(
            || Prepared::one().retired(),
            &[Prepared::execute, Prepared::remove],
            |prepared, mut saw| {
                came_to(saw[1].end());
                assert_eq!((saw.remove(0).settled(), prepared.rig.witness.released()), (Release::Done, 1));
            },
        );
    });
}

/// R138, R92: what is quarantined instead is never removed.
#[test]
fn quarantine_and_remove() {
    outcomes(&["Inactive(Retired)", "Retains(1)"], || {
        race(
            || Prepared::one().retired(),
            &[|prepared: &Prepared| prepared.quarantine(0), Prepared::remove],
            |prepared, mut saw| {
                came_to(saw[1].end());
                assert_eq!(saw.remove(0).settled(), REJECTED);
                prepared.is_retained(REJECTED, 0);
            },
        );
    });
}

/// R138, R94: nor what is abandoned.
#[test]
fn abandon_and_remove() {
    outcomes(&["Inactive(Retired)", "Retains(1)"], || {
        race(
            || Prepared::one().retired(),
            &[Prepared::abandon, Prepared::remove],
            |prepared, saw| {
                came_to(saw[1].end());
                prepared.is_retained(ABANDONED, 0);
            },
        );
    });
}

/// R138, R43, R91: nor what a lost device keeps.
#[test]
fn execute_and_remove_when_lost() {
    outcomes(&["Inactive(DeviceLost)", "Retains(1)"], || {
        race(
            || Prepared::one().lost(),
            &[Prepared::execute, Prepared::remove],
            |prepared, mut saw| {
                came_to(saw[1].end());
                assert_eq!(saw.remove(0).settled(), LOST);
                prepared.is_retained(LOST, 0);
            },
        );
    });
}

/// R98, R102: a request that is executed is queued, then gone. It is settled on another thread than it was prepared on, and where it was
/// counted.
#[test]
fn snapshot_and_execute() {
    outcomes(&["queued", "gone"], || {
        race(
            || Prepared::new(2, 1, true),
            &[Prepared::look, Prepared::execute],
            |prepared, saw| {
                came_to(saw[0].place());
                assert_eq!(prepared.rig.snapshot().numbers(), IDLE, "settled where it was not counted");
            },
        );
    });
}

/// R98, R102: one that is quarantined is queued, then retained; nothing left is not shown in between.
#[test]
fn snapshot_and_quarantine() {
    outcomes(&["queued", "retained"], || {
        race(
            || Prepared::new(2, 1, true),
            &[Prepared::look, |prepared| prepared.quarantine(0)],
            |prepared, saw| {
                came_to(saw[0].place());
                prepared.is_retained(REJECTED, 0);
            },
        );
    });
}

/// R94, R98, R102: so is one that is dropped, whether or not the device is lost meanwhile.
#[test]
fn snapshot_and_abandon_and_invalidate() {
    outcomes(&["queued", "retained"], || {
        race(
            || Prepared::new(2, 1, true),
            &[Prepared::look, Prepared::abandon, Prepared::invalidate],
            |prepared, saw| {
                came_to(saw[0].place());
                prepared.is_retained(ABANDONED, 0);
            },
        );
    });
}

/// R98, R102: and one that is executed while the device is lost: gone only if it was released.
#[test]
fn snapshot_and_execute_and_invalidate() {
    outcomes(&["queued, gone", "gone, gone", "queued, retained", "retained, retained"], || {
        race(Prepared::one, &[Prepared::look, Prepared::execute, Prepared::invalidate], |prepared, mut saw| {
            let left = if saw.remove(1).settled() == Release::Done { IDLE } else { RETAINED };
            assert_eq!(prepared.rig.snapshot().numbers(), left);
            came_to(format!("{}, {}", saw[0].place(), place(left)));
        });
    });
}

/// R102, R148: one is released and one is retained at the same time: an observer counts each of them at most once, and what is retained
/// always.
#[test]
fn snapshot_and_execute_and_quarantine() {
    outcomes(&["[2, 0, 2, 0]", "[1, 0, 1, 0]", "[1, 0, 1, 1]", "[0, 0, 0, 1]"], || {
        race(
            || Prepared::new(1, 2, true),
            &[Prepared::look, Prepared::execute, |prepared| prepared.quarantine(1)],
            |prepared, saw| {
                came_to(format!("{:?}", saw[0].numbers()));
                prepared.is_retained(REJECTED, 1);
            },
        );
    });
}

/// R104, R95: who lists while two are retained finds none, one or two, each once, and twice in a row no fewer.
#[test]
fn list_and_quarantine_and_quarantine() {
    fn twice(prepared: &Prepared) -> Saw {
        let before = prepared.rig.binding.quarantined().unwrap().len();
        let list = prepared.list();
        assert!(before <= list.listed().len(), "the list has lost an entry");
        list
    }
    outcomes(&["0", "1", "2"], || {
        race(
            || Prepared::new(1, 2, true),
            &[twice, |prepared| prepared.quarantine(0), |prepared| prepared.quarantine(1)],
            |prepared, saw| {
                came_to(saw[0].listed().len().to_string());
                assert_eq!(prepared.rig.snapshot().numbers(), [0, 0, 0, 2]);
                assert_eq!(prepared.rig.retained(), [REJECTED, REJECTED]);
            },
        );
    });
}

/// R104, R38, R136: the same while the end is confirmed, which comes behind both or is refused; the list is empty from then on.
#[test]
fn list_and_quarantine_and_quarantine_and_confirm() {
    // Bound 3 takes 10 000 iterations in a placement. The two that quarantine are alike, so only one order of them is tried.
    let placements: Vec<_> = orders(4).into_iter().filter(|order| order.iter().find(|role| [1, 2].contains(*role)) == Some(&1)).collect();
    outcomes(
        &["0, granted", "1, granted", "2, granted", "0, Busy(1)", "1, Busy(1)", "2, Busy(1)", "0, Busy(2)", "1, Busy(2)", "2, Busy(2)"],
        || {
            race_at(
                &[2],
                &placements,
                || Prepared::new(1, 2, true).lost(),
                &[Prepared::list, |prepared| prepared.quarantine(0), |prepared| prepared.quarantine(1), |prepared| prepared.rig.confirm()],
                |prepared, saw| {
                    let (listed, ended) = (saw[0].listed().len(), saw[3].end());
                    let now = prepared.rig.snapshot();
                    if ended == "granted" {
                        assert_eq!((now.lifecycle, now.numbers(), prepared.rig.retained()), (Terminated, IDLE, vec![]));
                    } else {
                        assert_eq!((now.lifecycle, now.numbers()), (DeviceLost, [0, 0, 0, 2]));
                        assert_eq!(prepared.rig.retained(), [REJECTED, REJECTED]);
                    }
                    came_to(format!("{listed}, {ended}"));
                },
            );
        },
    );
}

/// R102, R38: what is owned is counted until it is written off, and then by nobody.
#[test]
fn snapshot_and_quarantine_and_confirm() {
    outcomes(&["queued, Busy(1)", "retained, Busy(1)", "queued, granted", "retained, granted", "written off, granted"], || {
        race(
            || Prepared::one().lost(),
            &[Prepared::look, |prepared| prepared.quarantine(0), |prepared| prepared.rig.confirm()],
            |prepared, saw| {
                let (seen, now, ended) = (saw[0].counted()[0], prepared.rig.snapshot(), saw[2].end());
                let left = if ended == "granted" { (Terminated, IDLE) } else { (DeviceLost, RETAINED) };
                assert_eq!((now.lifecycle, now.numbers()), left);
                let seen = if (seen.lifecycle, seen.numbers()) == (Terminated, IDLE) { "written off" } else { saw[0].place() };
                came_to(format!("{seen}, {ended}"));
            },
        );
    });
}
