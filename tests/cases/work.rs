//! Work on a device that is done when the test says so, and releases that wait for it.

use liveslot::{DeferredEnqueueError, DeferredReleaseQueue, PreparedAllocationRelease};
use std::sync::{
    Arc, Mutex,
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

/// Requests that wait, each until all of its own work is done.
#[derive(Debug, Default)]
pub struct Waiting(Mutex<Vec<(Vec<Work>, PreparedAllocationRelease)>>);

impl Waiting {
    /// A queue for what `work` uses.
    pub fn after<'a>(&'a self, work: &'a [&'a Work]) -> After<'a> {
        After { waiting: self, work }
    }

    /// Executes what has nothing to wait for any more. Returns how many of these releases were complete, and how many were not.
    pub fn poll(&self) -> (usize, usize) {
        let ready: Vec<_> = self.0.lock().unwrap().extract_if(.., |(work, _)| work.iter().all(Work::is_done)).collect();
        let (complete, incomplete): (Vec<_>, Vec<_>) =
            ready.into_iter().map(|(_, request)| request.execute()).partition(|outcome| outcome.is_complete());
        (complete.len(), incomplete.len())
    }

    /// Gives up on all work.
    pub fn abandon(&self) -> Vec<PreparedAllocationRelease> {
        std::mem::take(&mut *self.0.lock().unwrap()).into_iter().map(|(_, request)| request).collect()
    }
}

#[derive(Debug)]
pub struct After<'a> {
    waiting: &'a Waiting,
    work: &'a [&'a Work],
}

impl DeferredReleaseQueue for After<'_> {
    fn enqueue(&self, request: PreparedAllocationRelease) -> Result<(), DeferredEnqueueError> {
        let work = self.work.iter().copied().cloned().collect();
        self.waiting.0.lock().unwrap().push((work, request));
        Ok(())
    }
}
