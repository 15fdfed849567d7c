//! The thread that executes the releases which workers have prepared and put into the queue.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use liveslot::release::Drained;

use crate::shared::Shared;

/// Requests that wait at most.
pub(crate) const QUEUE: usize = 64;

pub(crate) struct Releaser {
    shared: Arc<Shared>,
    done: Drained,
}

impl Releaser {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, done: Drained::default() }
    }

    /// Works until the run stops. What is in the queue then stays there.
    pub(crate) fn run(&mut self) {
        const BATCH: usize = 16;
        const PAUSE: Duration = Duration::from_micros(50);
        while !self.shared.stopping() {
            if self.drain(BATCH) == 0 {
                thread::sleep(PAUSE);
            }
        }
    }

    /// Executes everything that is left. To be called when nobody enqueues any more.
    pub(crate) fn finish(mut self) -> Drained {
        while self.drain(usize::MAX) != 0 {}
        self.done
    }

    fn drain(&mut self, limit: usize) -> usize {
        let drained = self.shared.releases.drain(limit);
        self.done.released += drained.released;
        self.done.released_bytes += drained.released_bytes;
        self.done.unmapped_bytes += drained.unmapped_bytes;
        self.done.quarantined += drained.quarantined;
        self.done.retained_bytes += drained.retained_bytes;
        drained.executed()
    }
}
