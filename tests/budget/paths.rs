//! One thread, one wrapper: each way that an allocation begins and ends.

use super::{double::*, figures, tally};
use liveslot::*;
use std::{ptr::NonNull, sync::Arc};

/// How an allocation of `bytes` bytes ends.
type Ending = fn(&BudgetedAllocator<Double>, usize);

fn release(allocator: &BudgetedAllocator<Double>, bytes: usize) -> AllocationReleaseOutcome {
    // SAFETY: the double has no memory; each test ends what it has begun, once.
    unsafe { allocator.release(NonNull::dangling(), bytes, 8) }
}

/// Every method that gives an allocation back.
const ENDINGS: [Ending; 3] = [
    |allocator, bytes| assert!(release(allocator, bytes).is_complete()),
    // SAFETY: as in `release`.
    |allocator, bytes| unsafe { allocator.deallocate(NonNull::dangling(), bytes, 8) },
    // SAFETY: as in `release`.
    |allocator, bytes| assert_eq!(unsafe { allocator.deallocate_with_unmapped(NonNull::dangling(), bytes, 8) }, 3),
];

/// A new budget has its whole limit free, whatever the limit is.
#[test]
fn nothing_is_taken_at_first() {
    for limit in [0, 1, u64::MAX] {
        let budget = Budget::new(limit);
        figures(&budget, [0, 0, limit, 0]);
        assert_eq!([budget.limit(), budget.used(), budget.quarantined(), budget.free(), budget.peak()], [limit, 0, 0, limit, 0]);
    }
}

/// Bytes are charged before the allocator is called, and refunded after it has returned.
#[test]
fn the_charge_encloses_the_calls() {
    for ending in ENDINGS {
        let (allocator, script, budget) = budgeted(100);
        let seen = Arc::clone(&budget);
        script.allocate.is(move || {
            figures(&seen, [60, 0, 40, 60]);
            Ok(())
        });
        allocator.allocate(60, 8).unwrap();
        figures(&budget, [60, 0, 40, 60]);
        assert_eq!((allocator.charged(), allocator.quarantined()), (tally(60, 1), tally(0, 0)));

        let seen = Arc::clone(&budget);
        script.deallocate.is({
            let seen = Arc::clone(&seen);
            move || figures(&seen, [60, 0, 40, 60])
        });
        script.release.is(move || {
            figures(&seen, [60, 0, 40, 60]);
            AllocationReleaseOutcome::complete(ReleaseAccounting::default())
        });
        ending(&allocator, 60);
        figures(&budget, [0, 0, 100, 60]);
        assert_eq!((allocator.charged(), allocator.quarantined()), (tally(0, 0), tally(0, 0)));
    }
}

/// R66: each call is passed on as it came, to the very method it came to, and so is the answer.
#[test]
fn calls_are_passed_on() {
    let (allocator, script, _) = budgeted(100);
    assert_eq!(allocator.allocate(6, 3).unwrap(), NonNull::dangling());
    assert_eq!(release(&allocator, 6), AllocationReleaseOutcome::complete(ReleaseAccounting::new(5, 6)));
    ENDINGS[1..].iter().for_each(|ending| ending(&allocator, 6));
    assert_eq!(script.calls(), ["allocate 6 3", "release 6 8", "deallocate 6 8", "deallocate_with_unmapped 6 8"]);
    assert_eq!((allocator.device(), allocator.role()), (DeviceKey::device(0), MemoryRole::Weights));
    assert!(allocator.commits_on_demand());
}

/// What does not fit is refused with the figures that decided it, without a trace and without a call.
#[test]
fn a_refusal_has_the_figures() {
    let (allocator, script, budget) = budgeted(100);
    allocator.allocate(40, 1).unwrap();
    script.release.is(|| residual(30));
    release(&allocator, 40);
    allocator.allocate(50, 1).unwrap();
    script.calls();
    let refused = allocator.allocate(21, 1).unwrap_err();
    assert!(matches!(
        refused,
        MemoryError::TierExhausted { tier: "device", requested: 21, used: 80, limit: 100, available: 20, role: MemoryRole::Weights }
    ));
    assert!(script.calls().is_empty());
    figures(&budget, [50, 30, 20, 80]);
    assert_eq!(allocator.charged(), tally(50, 1));
    allocator.allocate(20, 1).unwrap();
    figures(&budget, [70, 30, 0, 100]);
}

/// An allocation of no bytes fits always, and is counted.
#[test]
fn zero_bytes_always_fit() {
    let (allocator, script, budget) = budgeted(0);
    for ending in ENDINGS {
        allocator.allocate(0, 1).unwrap();
        assert_eq!(allocator.charged(), tally(0, 1));
        ending(&allocator, 0);
        assert_eq!(allocator.charged(), tally(0, 0));
    }
    allocator.allocate(0, 1).unwrap();
    script.release.is(|| AllocationReleaseOutcome::failed("no"));
    release(&allocator, 0);
    assert_eq!((allocator.charged(), allocator.quarantined()), (tally(0, 0), tally(0, 1)));
    assert!(allocator.allocate(1, 1).is_err());
    figures(&budget, [0, 0, 0, 0]);
}

/// No size is too large to be judged: nothing wraps.
#[test]
fn huge_sizes() {
    let (allocator, script, budget) = budgeted(u64::MAX);
    allocator.allocate(usize::MAX, 1).unwrap();
    figures(&budget, [u64::MAX, 0, 0, u64::MAX]);
    for more in [1, 2, usize::MAX] {
        let refused = allocator.allocate(more, 1);
        assert!(matches!(refused, Err(MemoryError::TierExhausted { used: u64::MAX, available: 0, .. })), "{refused:?}");
    }
    script.release.is(|| residual(u64::MAX));
    release(&allocator, usize::MAX);
    figures(&budget, [0, u64::MAX, 0, u64::MAX]);
    drop(allocator);
    figures(&budget, [0, 0, u64::MAX, u64::MAX]);

    // What went through the quarantine is more than a word can tell.
    let (allocator, script) = sharing(&budget);
    allocator.allocate(1 << 62, 1).unwrap();
    script.release.is(|| residual(1 << 62));
    release(&allocator, 1 << 62);
    figures(&budget, [0, 1 << 62, u64::MAX - (1 << 62), u64::MAX]);

    let (small, _, budget) = budgeted(1);
    assert!(small.allocate(usize::MAX, 1).is_err());
    figures(&budget, [0, 0, 1, 0]);
}

/// R115, R119, C127: 1000 allocations that fail, by an error or a panic, leave nothing charged.
#[test]
fn a_failed_allocation_is_refunded() {
    let (allocator, script, budget) = budgeted(64);
    for round in 0..1000 {
        if round % 2 == 0 {
            script.allocate.is(|| Err(failure()));
            fails_as_told(allocator.allocate(64, 8));
        } else {
            script.allocate.is(|| throw());
            throws(|| allocator.allocate(64, 8));
        }
        figures(&budget, [0, 0, 64, 64]);
        assert_eq!(allocator.charged(), tally(0, 0));
    }
    allocator.allocate(64, 8).unwrap();
    release(&allocator, 64);
    figures(&budget, [0, 0, 64, 64]);
}

/// R63, R90: what a release retains goes into quarantine, as far as it can be true; the rest is refunded.
#[test]
fn an_incomplete_release_is_quarantined() {
    for (retained, believed) in [(0, 0), (1, 1), (59, 59), (60, 60), (61, 60), (u64::MAX, 60)] {
        let (allocator, script, budget) = budgeted(100);
        allocator.allocate(10, 8).unwrap();
        allocator.allocate(60, 8).unwrap();
        script.release.is(move || residual(retained));
        assert_eq!(release(&allocator, 60), residual(retained));
        figures(&budget, [10, believed, 90 - believed, 70]);
        assert_eq!((allocator.charged(), allocator.quarantined()), (tally(10, 1), tally(believed, 1)));
        release(&allocator, 10);
        figures(&budget, [0, believed, 100 - believed, 70]);
    }
}

/// R90: a release that failed has released nothing.
#[test]
fn a_failed_release_is_quarantined() {
    let (allocator, script, budget) = budgeted(100);
    allocator.allocate(60, 8).unwrap();
    script.release.is(|| AllocationReleaseOutcome::failed("no"));
    assert_eq!(release(&allocator, 60), AllocationReleaseOutcome::failed("no"));
    figures(&budget, [0, 60, 40, 60]);
    assert_eq!((allocator.charged(), allocator.quarantined()), (tally(0, 0), tally(60, 1)));
}

/// R117, R119: a release that panics, by whichever method, leaves all bytes in quarantine.
#[test]
fn a_panicking_release_is_quarantined() {
    for ending in ENDINGS {
        let (allocator, script, budget) = budgeted(100);
        allocator.allocate(60, 8).unwrap();
        script.release.is(|| throw());
        script.deallocate.is(|| throw());
        throws(|| ending(&allocator, 60));
        figures(&budget, [0, 60, 40, 60]);
        assert_eq!((allocator.charged(), allocator.quarantined()), (tally(0, 0), tally(60, 1)));
        script.deallocate.is(|| ());
        script.release.is(|| AllocationReleaseOutcome::complete(ReleaseAccounting::default()));
        allocator.allocate(40, 8).unwrap();
        ending(&allocator, 40);
        figures(&budget, [0, 60, 40, 100]);
    }
}

/// R48, R51, R118: the end of an allocator refunds what it still has, used and quarantined, after its destructor, also if that panics.
#[test]
fn the_end_of_an_allocator_refunds_the_rest() {
    for panics in [false, true] {
        let (allocator, script, budget) = budgeted(100);
        allocator.allocate(30, 8).unwrap();
        allocator.allocate(20, 8).unwrap();
        script.release.is(|| AllocationReleaseOutcome::failed("no"));
        release(&allocator, 20);
        script.calls();
        let seen = Arc::clone(&budget);
        script.drop.is(move || {
            figures(&seen, [30, 20, 50, 50]);
            if panics {
                throw()
            }
        });
        if panics {
            throws(|| drop(allocator));
        } else {
            drop(allocator);
        }
        assert_eq!(script.calls(), ["dropped"], "nothing else is called");
        figures(&budget, [0, 0, 100, 50]);
        assert_eq!(Arc::strong_count(&budget), 1);
    }
}

/// The peak is the most that was ever taken at once, whatever has come back since.
#[test]
fn the_peak_stays() {
    let (allocator, script, budget) = budgeted(100);
    for (bytes, peak) in [(40, 40), (70, 70), (10, 70)] {
        allocator.allocate(bytes, 8).unwrap();
        release(&allocator, bytes);
        figures(&budget, [0, 0, 100, peak]);
    }
    allocator.allocate(50, 8).unwrap();
    script.release.is(|| residual(50));
    release(&allocator, 50);
    allocator.allocate(30, 8).unwrap();
    figures(&budget, [30, 50, 20, 80]);
    assert!(allocator.allocate(30, 8).is_err());
    assert_eq!(budget.peak(), 80, "what was refused was never taken");
}

/// C131: a limit that one thread has raised is every thread's; it is never lowered.
#[test]
fn a_raised_limit_is_everybodys() {
    let (allocator, _, budget) = budgeted(10);
    let exceeds = |bytes| matches!(allocator.allocate(bytes, 1), Err(MemoryError::TierExhausted { .. }));
    std::thread::scope(|scope| {
        scope.spawn(|| budget.raise_limit(20)).join().unwrap();
        scope.spawn(|| assert!((budget.limit(), exceeds(21)) == (20, true))).join().unwrap();
        scope.spawn(|| assert!((budget.limit(), exceeds(20)) == (20, false))).join().unwrap();
        scope.spawn(|| budget.raise_limit(15)).join().unwrap();
    });
    figures(&budget, [20, 0, 0, 20]);
    budget.raise_limit(u64::MAX);
    figures(&budget, [20, 0, u64::MAX - 20, 20]);
}

/// Memory that was never charged can be given back, and takes no more from the budget than its allocator has.
#[test]
fn what_was_never_charged_is_not_refunded() {
    let (allocator, script, budget) = budgeted(100);
    let (other, _) = sharing(&budget);
    other.allocate(50, 8).unwrap();
    for ending in ENDINGS {
        ending(&allocator, 10);
    }
    script.release.is(|| residual(10));
    release(&allocator, 10);
    allocator.allocate(5, 8).unwrap();
    release(&allocator, 10);
    assert_eq!((allocator.charged(), other.charged()), (tally(0, 0), tally(50, 1)));
    figures(&budget, [50, 0, 50, 55]);
}

/// R113: printing asks nobody and holds nothing.
#[test]
fn printing_leaves_the_allocator_alone() {
    let (allocator, script, budget) = budgeted(100);
    allocator.allocate(7, 8).unwrap();
    script.calls();
    assert_eq!(format!("{budget:?}"), "Budget { limit: 100, used: 7, quarantined: 0, free: 93, peak: 7 }");
    let text = format!("{allocator:?}");
    assert!(text.contains("charged: BudgetTally { bytes: 7, count: 1 }"), "{text}");
    assert!(text.contains(&format!("{budget:?}")), "{text}");
    assert!(script.calls().is_empty());
    assert!(allocator.allocator().capable && Arc::ptr_eq(allocator.budget(), &budget));
}

/// R152: a shared allocator can be wrapped as it is: every call reaches the method of the same name, the provided ones' own versions
/// included.
#[test]
fn a_shared_allocator_is_wrapped_as_it_is() {
    let (script, budget) = (Script::new(), Arc::new(Budget::new(100)));
    let shared: Arc<dyn DeviceAllocator> = Arc::new(Double { script: Arc::clone(&script), capable: true });
    let allocator = BudgetedAllocator::new(Arc::clone(&shared), Arc::clone(&budget), MemoryRole::Weights);
    assert_eq!((allocator.device(), allocator.commits_on_demand()), (shared.device(), true));
    assert!(allocator.as_virtual_backing().is_some() && allocator.as_shared_mapping().is_some());
    type Ending = fn(&BudgetedAllocator<Arc<dyn DeviceAllocator>>);
    // SAFETY: the double has no memory; each allocation ends once, here and below.
    let release: Ending = |allocator| drop(unsafe { allocator.release(NonNull::dangling(), 60, 8) });
    // SAFETY: as above.
    let deallocate: Ending = |allocator| unsafe { allocator.deallocate(NonNull::dangling(), 60, 8) };
    // SAFETY: as above.
    let with_unmapped: Ending = |allocator| assert_eq!(unsafe { allocator.deallocate_with_unmapped(NonNull::dangling(), 60, 8) }, 3);
    for (ending, call) in [(release, "release 60 8"), (deallocate, "deallocate 60 8"), (with_unmapped, "deallocate_with_unmapped 60 8")] {
        allocator.allocate(60, 8).unwrap();
        figures(&budget, [60, 0, 40, 60]);
        ending(&allocator);
        figures(&budget, [0, 0, 100, 60]);
        assert_eq!(script.calls(), ["allocate 60 8", call]);
    }
}
