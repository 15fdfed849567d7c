//! A budget, and allocators that are charged to it: what is charged, when, and that it comes back exactly once on every path.

mod capabilities;
mod double;
mod paths;
mod registry;
mod threads;

#[path = "../common/watchdog.rs"]
mod watchdog;

use liveslot::{Budget, BudgetSnapshot, BudgetTally};

/// Demands the figures, which add up.
#[track_caller]
fn figures(budget: &Budget, [used, quarantined, free, peak]: [u64; 4]) {
    let limit = used + quarantined + free;
    assert_eq!(budget.snapshot(), BudgetSnapshot { limit, used, quarantined, free, peak });
}

const fn tally(bytes: u64, count: u64) -> BudgetTally {
    BudgetTally { bytes, count }
}
