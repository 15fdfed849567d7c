//! A model of which every outcome is known, and each is met: one that a bound or a placement leaves out would show nothing.

use std::{cell::RefCell, collections::BTreeSet};

#[derive(Default)]
struct Outcomes {
    allowed: &'static [&'static str],
    met: BTreeSet<&'static str>,
}

thread_local! {
    /// Those of the calling test. loom runs all of a model on the thread that asked for it.
    static OUTCOMES: RefCell<Outcomes> = RefCell::default();
}

/// Runs `race`, whose check says by [`came_to`] what has come of a schedule: one of `allowed`, and each of those comes of some schedule of
/// some placement.
pub fn outcomes(allowed: &'static [&'static str], race: impl FnOnce()) {
    OUTCOMES.set(Outcomes { allowed, met: BTreeSet::new() });
    race();
    let Outcomes { met, .. } = OUTCOMES.take();
    let missed: Vec<_> = allowed.iter().filter(|allowed| !met.contains(**allowed)).collect();
    assert!(missed.is_empty(), "no schedule leads to {missed:?}");
}

/// What has come of a schedule.
pub fn came_to(outcome: impl AsRef<str>) {
    let outcome = outcome.as_ref();
    OUTCOMES.with_borrow_mut(|Outcomes { allowed, met }| {
        let known = allowed.iter().find(|allowed| **allowed == outcome);
        met.insert(known.unwrap_or_else(|| panic!("not an outcome of this race: {outcome}")));
    });
}
