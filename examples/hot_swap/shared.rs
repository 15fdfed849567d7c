//! What the threads share, and how they know what happened before what.
//!
//! The verdicts of this example rest on two instruments, both read by the workers on every round and written only
//! when the control thread acts, so that the hot loop meets no line that another worker writes.
//!
//! - A [`Window`] is a counter that is odd while the control thread is inside one kind of call. A worker reads it
//!   before and after a call of its own and knows whether the two overlapped.
//! - The [`Log`] is an append-only list of births and deaths. The control thread appends a death *after* the call
//!   that caused it has returned. A worker that has read an entry therefore starts its next call after that return,
//!   by happens-before, and nothing excuses the library if this call still reaches the dead mechanism.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use liveslot::release::BoundedQueue;
use liveslot::{Budget, DeviceKey, MechanismIdentity};

use crate::allocators::Life;

/// State that all threads see.
pub(crate) struct Shared {
    pub(crate) device: DeviceKey,
    /// What all memory is charged to.
    pub(crate) budget: Arc<Budget>,
    /// Releases that another thread is to execute.
    pub(crate) releases: BoundedQueue,
    /// Set once, by the deadline or by Ctrl-C.
    pub(crate) stop: AtomicBool,
    pub(crate) windows: CachePadded<Windows>,
    /// Operations so far, one line per worker; written by that worker alone.
    pub(crate) operations: Box<[CachePadded<AtomicU64>]>,
    /// Written by the control thread alone, for the progress line.
    pub(crate) progress: CachePadded<ControlProgress>,
}

#[derive(Default)]
pub(crate) struct ControlProgress {
    pub(crate) selects: AtomicU64,
    pub(crate) retirements: AtomicU64,
    pub(crate) losses: AtomicU64,
}

impl Shared {
    /// `budget` is in bytes.
    pub(crate) fn new(device: DeviceKey, workers: usize, budget: u64, queue: usize) -> Self {
        Self {
            device,
            budget: Arc::new(Budget::new(budget)),
            releases: BoundedQueue::new(queue),
            stop: AtomicBool::new(false),
            windows: CachePadded::default(),
            operations: (0..workers).map(|_| CachePadded::default()).collect(),
            progress: CachePadded::default(),
        }
    }

    pub(crate) fn stopping(&self) -> bool {
        // Relaxed: the flag carries no data; results are handed over by joining the threads.
        self.stop.load(Ordering::Relaxed)
    }
}

/// The windows of one run, together on one line: they change a few thousand times a second at most.
#[derive(Default)]
pub(crate) struct Windows {
    /// Inside `select`.
    pub(crate) select: Window,
    /// Inside `invalidate_device`.
    pub(crate) loss: Window,
    /// From before a call that takes the selection away until after the call that gives a new one.
    pub(crate) vacancy: Window,
}

/// Odd while open; one writer.
#[derive(Default)]
pub(crate) struct Window(AtomicU64);

impl Window {
    pub(crate) fn open(&self) {
        self.step(0);
    }

    pub(crate) fn close(&self) {
        self.step(1);
    }

    fn step(&self, parity: u64) {
        // SeqCst: a full barrier on both sides, so that the call inside stays between the two steps.
        let before = self.0.fetch_add(1, Ordering::SeqCst);
        assert_eq!(before % 2, parity, "windows open and close in turn");
    }

    pub(crate) fn mark(&self) -> Mark {
        // Acquire: the call that follows the mark begins after it. A mark that ends a call may be read a little
        // early by the processor, which can only miss an overlap, never invent one.
        Mark(self.0.load(Ordering::Acquire))
    }
}

/// The state of a [`Window`] at one instant.
#[derive(Clone, Copy)]
pub(crate) struct Mark(u64);

impl Mark {
    /// The window was open at some instant between `self` and `after`.
    pub(crate) const fn touched(self, after: Self) -> bool {
        self.0 % 2 == 1 || self.0 != after.0
    }

    /// The window opened *and* closed between `self` and `after`: what ran between the two was under way for as long
    /// as the window was open.
    pub(crate) const fn spanned(self, after: Self) -> bool {
        after.0 - self.0 >= 2 + self.0 % 2
    }
}

enum Event {
    Born(MechanismIdentity, Arc<Life>),
    Died(MechanismIdentity),
}

/// An entry of the log. Passed entries are freed by whoever is last to leave them.
struct Node {
    event: Option<Event>,
    next: OnceLock<Arc<Node>>,
}

impl Node {
    fn new(event: Option<Event>) -> Arc<Self> {
        Arc::new(Self { event, next: OnceLock::new() })
    }
}

/// The writing end of the log: one per run, in the control thread.
pub(crate) struct Log {
    tail: Arc<Node>,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self { tail: Node::new(None) }
    }

    /// A reader of everything appended from now on.
    pub(crate) fn reader(&self) -> News {
        News { at: self.tail.clone(), lives: HashMap::new(), dead: HashSet::new(), read: 0, alive: None }
    }

    /// To be called after the registration has returned.
    pub(crate) fn born(&mut self, mechanism: MechanismIdentity, life: Arc<Life>) {
        self.append(Event::Born(mechanism, life));
    }

    /// To be called after the call that killed the mechanism has returned.
    pub(crate) fn died(&mut self, mechanism: MechanismIdentity) {
        self.append(Event::Died(mechanism));
    }

    fn append(&mut self, event: Event) {
        let node = Node::new(Some(event));
        // Publishing through the `OnceLock` is a Release store; readers load it with Acquire.
        assert!(self.tail.next.set(node.clone()).is_ok(), "the log has one writer");
        self.tail = node;
    }
}

/// One thread's reading of the log.
pub(crate) struct News {
    at: Arc<Node>,
    lives: HashMap<MechanismIdentity, Arc<Life>>,
    dead: HashSet<MechanismIdentity>,
    /// Entries read.
    read: u64,
    /// The mechanism that was last found alive, and how many entries had been read then.
    alive: Option<(MechanismIdentity, u64)>,
}

impl News {
    /// Reads what was appended. One load when nothing was.
    pub(crate) fn catch_up(&mut self) {
        while let Some(next) = self.at.next.get().cloned() {
            match &next.event {
                Some(Event::Born(mechanism, life)) => {
                    self.forget_finished_lives();
                    self.lives.insert(*mechanism, life.clone());
                }
                Some(Event::Died(mechanism)) => {
                    self.dead.insert(*mechanism);
                }
                None => {}
            }
            self.at = next;
            self.read += 1;
        }
    }

    /// A mechanism that is torn down has no handle left, so nobody will ask for its life again. Its death stays known.
    fn forget_finished_lives(&mut self) {
        const ENOUGH: usize = 256;
        if self.lives.len() >= ENOUGH {
            self.lives.retain(|_, life| !life.is_over());
        }
    }

    /// Whether the entries read so far report the mechanism dead.
    pub(crate) fn is_dead(&mut self, mechanism: MechanismIdentity) -> bool {
        let now = Some((mechanism, self.read));
        if self.alive == now {
            return false;
        }
        let dead = self.dead.contains(&mechanism);
        if !dead {
            self.alive = now;
        }
        dead
    }

    /// The life of a mechanism, as soon as its birth has been read.
    pub(crate) fn life(&self, mechanism: MechanismIdentity) -> Option<&Arc<Life>> {
        self.lives.get(&mechanism)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_stays_shut_is_not_touched() {
        let window = Window::default();
        let before = window.mark();
        assert!(!before.touched(window.mark()));
        assert!(!before.spanned(window.mark()));
    }

    #[test]
    fn only_a_whole_opening_is_spanned() {
        let window = Window::default();
        let shut = window.mark();
        window.open();
        let open = window.mark();
        assert!(shut.touched(open) && !shut.spanned(open));
        window.close();
        let shut_again = window.mark();
        assert!(shut.spanned(shut_again));
        assert!(open.touched(shut_again) && !open.spanned(shut_again));
        window.open();
        window.close();
        assert!(open.spanned(window.mark()), "began inside one opening, ended after another");
    }
}
