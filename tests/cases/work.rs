//! Work on a device that is done when the test says so, and releases that wait for it.

use crate::common::queue::Queue;
use liveslot::{
    DeferredReleaseQueue,
    release::{BoundedQueue, Drained},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

/// A piece of work that may use memory. Clones are the same piece.
#[derive(Clone, Debug, Default)]
pub struct Work(Arc<AtomicBool>);

impl Work {
    pub fn complete(&self) {
        self.0.store(true, SeqCst);
    }

    fn is_done(&self) -> bool {
        self.0.load(SeqCst)
    }
}

/// Requests that wait, each until all of its own work is done. Dropped, it gives all work up.
pub struct Waiting(BoundedQueue<Vec<Work>>);

impl Default for Waiting {
    fn default() -> Self {
        Self(BoundedQueue::with_markers(64))
    }
}

impl Waiting {
    /// A queue for what `work` uses.
    pub fn after(&self, work: &[&Work]) -> impl DeferredReleaseQueue {
        Queue(move |request| self.0.enqueue_marked(request, work.iter().copied().cloned().collect()))
    }

    /// Executes what has nothing to wait for any more. Returns how many of these releases were complete, and how many were not.
    pub fn poll(&self) -> (usize, usize) {
        let Drained { released, quarantined, .. } = self.0.drain_ready(usize::MAX, |_, work| work.iter().all(Work::is_done));
        (released, quarantined)
    }
}
