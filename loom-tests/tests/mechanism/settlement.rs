//! R42, R98, R102: quarantined ownership given back or up, against another who would, against observers, and against the ends of a life.

use super::{
    outcomes::{came_to, outcomes},
    rig::*,
    support::{orders, race, race_at},
    witness::DEVICE,
};
use liveslot_loom::{
    AbandonedQuarantine, AllocationReleaseOutcome, BindingError, BindingRegistry, DeviceAllocator, DeviceKey, MemoryError,
    PreparedAllocationRelease, QuarantineReason::OwnerDropped, RegisteredMechanism, RetriedQuarantine, internals::UnsafeCell,
};
use std::{
    fmt, ptr,
    ptr::NonNull,
    sync::{Arc, Mutex},
};

/// A retry is asking the allocator.
const TRIED: [usize; 4] = [1, 0, 0, 1];
/// It has been answered, and has not settled what was released.
const SETTLING: [usize; 4] = [2, 0, 1, 0];

/// A mechanism with one entry in its quarantine, made on lane 0, and perhaps a request that is about to become another.
struct Retaining {
    rig: Rig,
    request: Option<Held<PreparedAllocationRelease>>,
}

enum Did {
    Retried(Result<RetriedQuarantine, Refusal>),
    Abandoned(AbandonedQuarantine),
    Saw(Saw),
}

impl Retaining {
    fn new(stripes: usize, allocations: usize, completes: bool) -> Self {
        let rig = Rig::new(stripes, allocations, completes);
        let prepare = |n| rig.prepare(n).prepared().unwrap();
        prepare(0).quarantine(OwnerDropped);
        let request = (allocations == 2).then(|| Held::new(prepare(1)));
        Self { rig, request }
    }

    fn one() -> Self {
        Self::new(1, 1, true)
    }

    fn retired() -> Self {
        let this = Self::one();
        this.rig.retire();
        this
    }

    fn retry(&self) -> Did {
        Did::Retried(self.rig.registry.retry_quarantined(self.rig.mechanism, usize::MAX).map_err(Refusal::from))
    }

    fn abandon(&self) -> Did {
        Did::Abandoned(self.rig.registry.abandon_quarantined(self.rig.mechanism, |_| true).unwrap())
    }

    fn look(&self) -> Did {
        Did::Saw(self.rig.look())
    }

    fn lose_and_confirm(&self) -> Did {
        Did::Saw(self.rig.lose_and_confirm())
    }

    fn remove(&self) -> Did {
        Did::Saw(self.rig.remove())
    }
}

impl Did {
    /// How many a retry has released, or why it was refused.
    fn retried(&self) -> Result<usize, Refusal> {
        let Self::Retried(answer) = self else { panic!("the role retries") };
        answer.clone().map(|done| {
            assert_eq!((done.released + done.skipped <= 1, done.kept), (true, 0));
            done.released
        })
    }

    fn abandoned(&self) -> usize {
        let Self::Abandoned(given_up) = self else { panic!("the role gives up") };
        assert_eq!(given_up.bytes(), (BYTES * given_up.allocations.len()) as u64);
        given_up.allocations.len()
    }

    fn saw(&self) -> &Saw {
        let Self::Saw(saw) = self else { panic!("the role looks") };
        saw
    }
}

/// Each entry is released by one of two who retry.
#[test]
fn retry_and_retry() {
    outcomes(&["by the first", "by the second"], || {
        race(
            || Retaining::new(2, 1, true),
            &[Retaining::retry, Retaining::retry],
            |retaining, did| {
                assert_eq!(retaining.rig.witness.released(), 1, "released twice, or by nobody");
                assert_eq!(retaining.rig.snapshot().numbers(), IDLE);
                came_to(match (did[0].retried(), did[1].retried()) {
                    (Ok(1), Ok(0)) => "by the first",
                    (Ok(0), Ok(1)) => "by the second",
                    _ => panic!("one of them has released it"),
                });
            },
        );
    });
}

/// Or it is given up.
#[test]
fn retry_and_abandon() {
    outcomes(&["released", "given up"], || {
        race(Retaining::one, &[Retaining::retry, Retaining::abandon], |retaining, did| {
            let (released, given_up) = (did[0].retried().unwrap(), did[1].abandoned());
            assert_eq!((released + given_up, retaining.rig.witness.released()), (1, released), "released and given up");
            assert_eq!(retaining.rig.snapshot().numbers(), IDLE);
            came_to(if released == 1 { "released" } else { "given up" });
        });
    });
}

/// R102: an entry that is given back is quarantined, then queued, then gone, also for who looks at another stripe's first.
#[test]
fn retry_and_snapshot() {
    outcomes(&["retained", "tried", "settling", "gone"], || {
        race(
            || Retaining::new(2, 1, true),
            &[Retaining::look, Retaining::retry],
            |retaining, did| {
                came_to(match did[0].saw().numbers() {
                    RETAINED => "retained",
                    TRIED => "tried",
                    SETTLING => "settling",
                    IDLE => "gone",
                    _ => "in no place or in two",
                });
                assert_eq!((did[1].retried(), retaining.rig.snapshot().numbers()), (Ok(1), IDLE));
            },
        );
    });
}

/// R102: one is given up while another is retained: every sum is of one moment.
#[test]
fn abandon_and_quarantine_and_snapshot() {
    race_at(
        &[2],
        &orders(3),
        || Retaining::new(1, 2, true),
        &[
            Retaining::look,
            |retaining| {
                let identity = retaining.rig.binding.quarantined().unwrap().last().map(|entry| entry.identity);
                let only_that = |entry: &liveslot_loom::QuarantinedAllocation| Some(entry.identity) == identity;
                Did::Abandoned(retaining.rig.registry.abandon_quarantined(retaining.rig.mechanism, only_that).unwrap())
            },
            |retaining| {
                retaining.request.as_ref().unwrap().take().quarantine(OwnerDropped);
                Did::Saw(Saw::Nothing)
            },
        ],
        |retaining, did| {
            let [operations, live, queued, quarantined] = did[0].saw().numbers();
            assert_eq!((operations, live), (queued, 0), "{:?}", did[0].saw().counted());
            assert!((1..=2).contains(&(queued + quarantined)), "{:?}", did[0].saw().counted());
            assert_eq!((did[1].abandoned(), retaining.rig.snapshot().numbers()), (1, RETAINED));
        },
    );
}

/// R36, R136: the end of a context waits for the allocator, or the allocator is not asked. A refused retry may count for a moment.
#[test]
fn retry_and_lose_and_confirm() {
    outcomes(&["released, granted", "released, busy", "refused, granted", "refused, busy"], || {
        race(Retaining::one, &[Retaining::retry, Retaining::lose_and_confirm], |retaining, did| {
            let asked = match did[0].retried() {
                Ok(1) => "released",
                Ok(_) => panic!("nobody else is at it"),
                Err(refusal) => {
                    assert!(matches!(refusal, Refusal::Lost | Refusal::Inactive(_)), "{refusal:?}");
                    "refused"
                }
            };
            assert_eq!(retaining.rig.witness.released(), usize::from(asked == "released"));
            let confirmed = match did[1].saw().ended() {
                Ok(()) => "granted",
                Err(Refusal::Busy(1 | 2)) => "busy",
                Err(refusal) => panic!("{refusal:?}"),
            };
            came_to(format!("{asked}, {confirmed}"));
            retaining.rig.registry.confirm_context_terminated(retaining.rig.context).unwrap();
            retaining.rig.registry.remove(retaining.rig.mechanism).unwrap();
        });
    });
}

/// R42, R47: a retired mechanism is removed once what it retained has been released, and not before.
#[test]
fn retry_and_remove() {
    outcomes(&["retains", "busy", "removed"], || {
        race(Retaining::retired, &[Retaining::retry, Retaining::remove], |retaining, did| {
            let removed = did[1].saw().ended();
            assert_eq!((did[0].retried(), retaining.rig.witness.released()), (Ok(1), 1));
            came_to(match removed {
                Ok(()) => "removed",
                Err(Refusal::Retains(1)) => "retains",
                Err(Refusal::Inactive(_)) => "busy",
                Err(refusal) => panic!("{refusal:?}"),
            });
        });
    });
}

/// An allocator that writes to the memory when it is asked to release it, and always fails.
struct Stubborn(UnsafeCell<usize>);

// SAFETY: loom checks each access against every other.
unsafe impl Sync for Stubborn {}

impl fmt::Debug for Stubborn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("stubborn")
    }
}

impl DeviceAllocator for Stubborn {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        Ok(NonNull::new(ptr::without_provenance_mut(8)).expect("not null"))
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {
        unreachable!("every release comes as one");
    }

    unsafe fn release(&self, _: NonNull<u8>, _: usize, _: usize) -> AllocationReleaseOutcome {
        // SAFETY: loom has just checked that nobody else looks.
        self.0.with_mut(|tries| unsafe { *tries += 1 });
        AllocationReleaseOutcome::failed("stubborn")
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

/// What one try did to the memory comes before what the next does, whoever makes it.
#[test]
fn tries_come_one_after_the_other() {
    struct Once {
        registry: BindingRegistry,
        mechanism: RegisteredMechanism,
        kept: Mutex<usize>,
    }
    let setup = || {
        let registry = BindingRegistry::striped(1).unwrap();
        let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
        let authority = registry.register_authority(DEVICE, Arc::new(())).unwrap();
        let mechanism = registry.register_allocator(context, authority, Arc::new(Stubborn(UnsafeCell::new(0)))).unwrap();
        let binding = registry.bind(DEVICE).unwrap();
        let failed = binding.release(binding.allocate(BYTES, 1).unwrap()).unwrap_err();
        assert!(matches!(failed.error(), BindingError::ReleaseQuarantined { .. }));
        Once { registry, mechanism, kept: Mutex::new(0) }
    };
    let retry = |once: &Once| {
        let done = once.registry.retry_quarantined(once.mechanism, 1).unwrap();
        assert_eq!((done.released, done.kept + done.skipped), (0, 1));
        *once.kept.lock().unwrap() += done.kept;
        done.kept
    };
    outcomes(&["one", "both"], || {
        race(setup, &[retry, retry], |once, kept| {
            came_to(match kept.iter().sum() {
                1 => "one",
                2 => "both",
                _ => "nobody has tried",
            });
            let snapshot = once.registry.snapshot(once.mechanism).unwrap();
            assert_eq!((snapshot.active_operations, snapshot.quarantined_allocations), (0, 1));
        });
    });
}
