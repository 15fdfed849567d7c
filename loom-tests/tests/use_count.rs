//! Models of `src/primitives/use_count.rs`.

mod support;

use liveslot_loom::internals::use_count::{Remove, UseCount};
use support::race;

/// R144: a use and a removal on an unused thing: exactly one of them wins.
#[test]
fn a_use_or_a_removal_wins() {
    race(
        UseCount::new,
        &[|uses| uses.enter().is_ok(), |uses| uses.remove() == Remove::Removed],
        |_, won| assert!(won[0] != won[1], "used and removed, or neither: {won:?}"),
    );
}
