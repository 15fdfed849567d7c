//! What is charged when memory is made, backed or mapped through a capability.

use super::{double::*, figures, tally};
use liveslot::*;
use std::{ptr::NonNull, sync::Arc};

/// Makes a prefix of 50 bytes that commits `committed`.
#[track_caller]
fn prefix(allocator: &BudgetedAllocator<Double>, script: &Script, committed: u64) -> Result<Box<dyn SharedDevicePrefix>, MemoryError> {
    script.prefix.is(move || Ok(committed));
    allocator.as_shared_mapping().unwrap().create_shared_prefix(50)
}

/// An allocation made with backing is charged like any other, and backing it costs nothing more.
#[test]
fn backing_is_charged_with_the_allocation() {
    let (allocator, script, budget) = budgeted(100);
    let backing = allocator.as_virtual_backing().unwrap();
    let seen = Arc::clone(&budget);
    script.allocate.is(move || {
        figures(&seen, [60, 0, 40, 60]);
        Ok(())
    });
    let one = 0..1;
    let ptr = backing.allocate_committed(60, 8, std::slice::from_ref(&one)).unwrap();
    backing.commit_allocation_range(ptr, 60, 8, 10, 20).unwrap();
    let range = AllocationCommitRange { ptr, allocation_bytes: 60, align: 8, offset: 0, bytes: 1 };
    backing.commit_allocation_ranges(&[range; 2]).unwrap();
    script.allocate.is(|| Err(failure()));
    fails_as_told(backing.commit_allocation_range(ptr, 60, 8, 1, 2));
    assert_eq!(backing.mapped_bytes_for_allocation_ranges(&[range]).unwrap(), 11);
    assert_eq!(backing.mapped_bytes_for_allocation(60, 8).unwrap(), 12);
    assert_eq!(backing.decommit_allocation_range(ptr, 60, 8, 3, 4).unwrap(), 13);
    assert_eq!(backing.allocation_committed_bytes(ptr, 60, 8), 14);
    let calls = [
        "allocate_committed 60 8 [0..1]",
        "commit 60 8 10 20",
        "commit ranges 2",
        "commit 60 8 1 2",
        "mapped ranges 1",
        "mapped 60 8",
        "decommit 60 8 3 4",
        "committed 60 8",
    ];
    assert_eq!(script.calls(), calls);
    figures(&budget, [60, 0, 40, 60]);

    assert!(matches!(backing.allocate_committed(41, 8, &[]), Err(MemoryError::TierExhausted { requested: 41, used: 60, .. })));
    assert!(script.calls().is_empty());
    script.allocate.is(|| Err(failure()));
    fails_as_told(backing.allocate_committed(40, 8, &[]));
    script.allocate.is(|| throw());
    throws(|| backing.allocate_committed(40, 8, &[]));
    assert_eq!(allocator.charged(), tally(60, 1));
    // SAFETY: the double has no memory.
    unsafe { allocator.release(ptr, 60, 8) };
    figures(&budget, [0, 0, 100, 100]);
}

/// A prefix is charged by what it has committed, for as long as it exists: by what was asked for before that is known.
#[test]
fn a_prefix_is_charged_by_what_it_commits() {
    for committed in [0, 30, 50, 51, 100] {
        let (allocator, script, budget) = budgeted(100);
        let seen = Arc::clone(&budget);
        script.prefix.is(move || {
            figures(&seen, [50, 0, 50, 50]);
            Ok(committed)
        });
        let mapping = allocator.as_shared_mapping().unwrap();
        let prefix = mapping.create_shared_prefix(50).unwrap();
        figures(&budget, [committed, 0, 100 - committed, committed.max(50)]);
        assert_eq!(allocator.charged(), tally(committed, 1));

        assert_eq!((prefix.device_ptr(), prefix.committed_physical_bytes()), (19, committed));
        assert_eq!((prefix.mapped_bytes(), prefix.requested_bytes()), (20, 50));
        assert_eq!(format!("{prefix:?}"), format!("BudgetedPrefix {{ charged: {committed}, .. }}"));
        assert_eq!(mapping.incremental_owned_bytes_for_shared_prefix(&*prefix).unwrap(), 15);
        let info = mapping.commit_shared_prefix(&*prefix, NonNull::dangling(), 40, 3).unwrap();
        assert_eq!(info, SharedPrefixCommitInfo { additional_owned_bytes: 16, newly_mapped_bytes: 17, granules: 18 });
        assert_eq!(allocator.charged(), tally(committed, 1), "mapping costs nothing");

        let seen = Arc::clone(&budget);
        script.prefix_drop.is(move || assert_eq!(seen.used(), committed));
        drop(prefix);
        assert_eq!(script.calls(), ["prefix 50", "map prefix 40 3", "prefix dropped"]);
        figures(&budget, [0, 0, 100, committed.max(50)]);
        assert_eq!(allocator.charged(), tally(0, 0));
    }
}

/// A prefix that does not fit, before or after it was made, is refused and costs nothing.
#[test]
fn a_prefix_that_does_not_fit_is_refused() {
    let (allocator, script, budget) = budgeted(100);
    allocator.allocate(40, 8).unwrap();
    script.calls();
    let refused = prefix(&allocator, &script, 70).unwrap_err();
    assert!(matches!(refused, MemoryError::TierExhausted { requested: 20, used: 90, limit: 100, available: 10, .. }), "{refused}");
    assert_eq!(script.calls(), ["prefix 50", "prefix dropped"]);
    figures(&budget, [40, 0, 60, 90]);

    let refused = prefix(&allocator, &script, u64::MAX).unwrap_err();
    assert!(matches!(refused, MemoryError::TierExhausted { requested, .. } if requested == u64::MAX - 50), "{refused}");
    script.calls();
    let refused = allocator.as_shared_mapping().unwrap().create_shared_prefix(61).unwrap_err();
    assert!(matches!(refused, MemoryError::TierExhausted { requested: 61, used: 40, available: 60, .. }), "{refused}");
    assert!(script.calls().is_empty());
    assert_eq!(allocator.charged(), tally(40, 1));
    figures(&budget, [40, 0, 60, 90]);
}

/// R115, R118, R119: a prefix that can't be made is refunded; one whose destructor panics goes into quarantine.
#[test]
fn a_prefix_that_panics() {
    let (allocator, script, budget) = budgeted(100);
    let mapping = allocator.as_shared_mapping().unwrap();
    script.prefix.is(|| Err(failure()));
    fails_as_told(mapping.create_shared_prefix(50));
    script.prefix.is(|| throw());
    throws(|| mapping.create_shared_prefix(50));
    script.committed.is(|| throw());
    throws(|| mapping.create_shared_prefix(50));
    assert_eq!(script.calls(), ["prefix 50", "prefix 50", "prefix 50", "prefix dropped"]);
    figures(&budget, [0, 0, 100, 50]);

    let prefix = prefix(&allocator, &script, 30).unwrap();
    script.prefix_drop.is(|| throw());
    throws(|| drop(prefix));
    figures(&budget, [0, 30, 70, 50]);
    assert_eq!((allocator.charged(), allocator.quarantined()), (tally(0, 0), tally(30, 1)));
    drop(allocator);
    figures(&budget, [0, 0, 100, 50]);
}

/// A prefix of another wrapper, even of the same budget, or of the bare allocator, is foreign.
#[test]
fn a_foreign_prefix_is_refused() {
    let (allocator, script, budget) = budgeted(100);
    let (other, _) = sharing(&budget);
    let foreign = [
        other.as_shared_mapping().unwrap().create_shared_prefix(10).unwrap(),
        allocator.allocator().as_shared_mapping().unwrap().create_shared_prefix(10).unwrap(),
    ];
    script.calls();
    let mapping = allocator.as_shared_mapping().unwrap();
    for prefix in &foreign {
        let cost = mapping.incremental_owned_bytes_for_shared_prefix(&**prefix).map(drop);
        let mapped = mapping.commit_shared_prefix(&**prefix, NonNull::dangling(), 40, 0).map(drop);
        for refused in [cost, mapped] {
            assert!(matches!(refused, Err(MemoryError::InvalidRequest { tier: "device", requested: 10, .. })), "{refused:?}");
        }
    }
    assert!(script.calls().is_empty());
}

/// A prefix that outlives its allocator stays charged, and only it.
#[test]
fn a_prefix_can_outlive_its_allocator() {
    let (allocator, script, budget) = budgeted(100);
    let prefix = prefix(&allocator, &script, 30).unwrap();
    allocator.allocate(20, 8).unwrap();
    drop(allocator);
    figures(&budget, [30, 0, 70, 50]);
    drop(prefix);
    figures(&budget, [0, 0, 100, 50]);
}

/// No capability is offered that the allocator does not offer, and one that vanishes is an error.
#[test]
fn absent_capabilities() {
    let (budget, script) = (Arc::new(Budget::new(100)), Script::new());
    let allocator = BudgetedAllocator::new(Double { script: Arc::clone(&script), capable: false }, budget, MemoryRole::Activation);
    assert!(allocator.as_virtual_backing().is_none() && allocator.as_shared_mapping().is_none() && !allocator.commits_on_demand());
    let (any, backing, mapping): (_, &dyn VirtualBacking, &dyn SharedMapping) = (NonNull::dangling(), &allocator, &allocator);
    let refusals = [
        backing.allocate_committed(7, 8, &[]).map(drop),
        backing.commit_allocation_range(any, 8, 8, 0, 7),
        backing.mapped_bytes_for_allocation(7, 8).map(drop),
        backing.decommit_allocation_range(any, 8, 8, 0, 7).map(drop),
        mapping.create_shared_prefix(7).map(drop),
    ];
    for refused in refusals {
        assert!(matches!(refused, Err(MemoryError::InvalidRequest { tier: "device", requested: 7, .. })), "{refused:?}");
    }
    assert!(backing.commit_allocation_ranges(&[]).is_err() && backing.mapped_bytes_for_allocation_ranges(&[]).is_err());
    assert_eq!(backing.allocation_committed_bytes(any, 8, 8), 0);
    assert!(script.calls().is_empty());
    assert_eq!(allocator.charged(), tally(0, 0));
}
