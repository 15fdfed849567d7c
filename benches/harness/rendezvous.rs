//! Starting a chunk on every thread at once, and telling company when the measured thread is done.
//!
//! Spinning, because a thread that is woken starts tens of microseconds late. With each thread on a CPU of its own the others are not
//! kept from running by it.

use crossbeam_utils::CachePadded;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

/// A barrier that spins, with two flags that travel along.
pub(crate) struct Rendezvous {
    threads: usize,
    arrived: CachePadded<AtomicUsize>,
    /// How often all have met. On a line of its own: those who wait read it, those who arrive write the other one.
    meetings: CachePadded<AtomicUsize>,
    done: CachePadded<AtomicBool>,
}

/// What a thread does in a chunk.
pub(crate) enum Part {
    /// So many repetitions, timed.
    Measured(u64),
    /// Repeat until the measured thread is done.
    Company,
}

/// Repetitions between two looks at whether the measured thread is done.
const COMPANY_BURST: u64 = 8;

impl Rendezvous {
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads, arrived: CachePadded::default(), meetings: CachePadded::default(), done: CachePadded::default() }
    }

    /// Returns when every thread has called it. What they wrote before is visible to all afterwards.
    pub(crate) fn meet(&self) {
        // Relaxed: our own previous meeting was read with Acquire, and the next one cannot happen without us.
        let meeting = self.meetings.load(Relaxed);
        // AcqRel: the last to arrive takes over what the others wrote before they arrived.
        if self.arrived.fetch_add(1, AcqRel) + 1 == self.threads {
            // Relaxed: the others touch it again only after the Release below.
            self.arrived.store(0, Relaxed);
            // Release: hands everything on to those who wait.
            self.meetings.store(meeting + 1, Release);
        } else {
            // Acquire: pairs with the Release above.
            while self.meetings.load(Acquire) == meeting {
                spin_loop();
            }
        }
    }

    /// Runs this thread's part of a chunk, together with the others, and returns how long the part took.
    pub(crate) fn run(&self, part: Part, work: &mut dyn FnMut(u64)) -> Duration {
        if let Part::Measured(_) = part {
            // Relaxed: the meeting orders it before anybody's look.
            self.done.store(false, Relaxed);
        }
        self.meet();
        let start = Instant::now();
        match part {
            Part::Measured(times) => work(times),
            // Relaxed: nothing is read on the strength of it.
            Part::Company => {
                while !self.done.load(Relaxed) {
                    work(COMPANY_BURST);
                }
            }
        }
        let elapsed = start.elapsed();
        self.done.store(true, Relaxed);
        // Nobody's next preparations disturb what another is still measuring.
        self.meet();
        elapsed
    }
}
