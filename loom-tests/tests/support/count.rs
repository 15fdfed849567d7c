//! A waker that counts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::Wake,
};

/// Counts how often it was woken. In std's words, so that counting orders nothing.
#[derive(Default)]
pub struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl Count {
    pub fn times(&self) -> usize {
        self.0.load(Relaxed)
    }
}
