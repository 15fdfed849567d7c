//! A thread's lane in a model: 0 unless the model says otherwise.

use std::cell::Cell;

loom::thread_local! {
    static LANE: Cell<usize> = Cell::new(0);
}

/// Puts the calling model thread on `lane`.
pub fn set(lane: usize) {
    LANE.with(|cell| cell.set(lane));
}

pub fn current() -> usize {
    LANE.with(Cell::get)
}
