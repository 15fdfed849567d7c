//! Models of `src/primitives/identity.rs`.

mod support;

use liveslot_loom::internals::{
    atomic::AtomicU64,
    identity::{Blocks, Exhausted},
};
use std::ops::Range;
use support::race;

type Taken = Result<Range<u64>, Exhausted>;

fn three_numbers() -> Blocks<AtomicU64> {
    Blocks::new(AtomicU64::new(1), 4)
}

fn three_last_numbers() -> Blocks<AtomicU64> {
    Blocks::new(AtomicU64::new(u64::MAX - 3), u64::MAX)
}

/// Every number below `limit` from `first` on was issued once, and none is left.
fn issued_once(blocks: &Blocks<AtomicU64>, first: u64, limit: u64, taken: Vec<Taken>) {
    assert_eq!(blocks.take(1), Err(Exhausted), "issued beyond the limit");
    let mut numbers: Vec<_> = taken.into_iter().flatten().flatten().collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (first..limit).collect::<Vec<_>>(), "a number was issued twice or never");
}

/// R6: blocks are disjoint; the last one is what is left, and then there is nothing.
#[test]
fn blocks_are_disjoint_and_end_at_the_limit() {
    race(three_numbers, &[|blocks| blocks.take(2), |blocks| blocks.take(2)], |blocks, taken| {
        let mut lengths: Vec<_> = taken.iter().flatten().map(|block| block.end - block.start).collect();
        lengths.sort_unstable();
        assert_eq!(lengths, [1, 2], "{taken:?}");
        issued_once(blocks, 1, 4, taken);
    });
}

/// R6: of more takers than there are numbers, the last comes out empty.
#[test]
fn who_comes_too_late_is_told() {
    race(three_numbers, &[|blocks| blocks.take(2), |blocks| blocks.take(2), |blocks| blocks.take(2)], |blocks, taken| {
        assert_eq!(taken.iter().filter(|taken| **taken == Err(Exhausted)).count(), 1, "{taken:?}");
        issued_once(blocks, 1, 4, taken);
    });
}

/// R6: the counter does not wrap at the end of its type either, however much is asked for.
#[test]
fn nothing_wraps() {
    race(three_last_numbers, &[|blocks| blocks.take(2), |blocks| blocks.take(u64::MAX)], |blocks, taken| {
        issued_once(blocks, u64::MAX - 3, u64::MAX, taken);
    });
}
