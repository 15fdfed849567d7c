//! A small number for each living thread (of the first 1 024; threads beyond share lane 0), so that threads which are no
//! more than the stripes share none.
//!
//! A thread takes the lowest free lane at its first call and gives it back when it ends. Which lane a thread has matters
//! for speed alone: two threads on one lane are correct, and slower. So the lane can be read without a guard, by every
//! call, and a thread that runs after its own lane was given back (in the destructor of another thread-local) keeps using it.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`current`] | wait-free; a thread's first call lock-free | one thread-local load |
//! | a thread's end | wait-free | one read-modify-write |

#[cfg(not(any(liveslot_loom, liveslot_shuttle)))]
use crate::sync::process::AtomicU64;
use crate::sync::{Word, atomic::Ordering::*};

/// Lanes per word of the pool.
const WIDTH: usize = u64::BITS as usize;

/// Which lanes are taken: a bit each.
pub struct Pool<W, const WORDS: usize> {
    taken: [W; WORDS],
}

impl<W: Word, const WORDS: usize> Pool<W, WORDS> {
    pub const fn new(taken: [W; WORDS]) -> Self {
        Self { taken }
    }

    /// Takes the lowest free lane, if one is free.
    pub fn take(&self) -> Option<usize> {
        for (index, word) in self.taken.iter().enumerate() {
            // Relaxed, here and below: rivals meet on this word alone, and a lane publishes nothing.
            let mut taken = word.load(Relaxed);
            while taken != u64::MAX {
                let bit = taken.trailing_ones();
                match word.compare_exchange(taken, taken | 1 << bit, Relaxed, Relaxed) {
                    Ok(_) => return Some(index * WIDTH + bit as usize),
                    Err(newer) => taken = newer,
                }
            }
        }
        None
    }

    /// Gives back a lane that [`take`](Self::take) handed to the caller.
    pub fn give_back(&self, lane: usize) {
        // Relaxed: as in `take`.
        self.taken[lane / WIDTH].fetch_and(!(1 << (lane % WIDTH)), Relaxed);
    }
}

#[cfg(not(any(liveslot_loom, liveslot_shuttle)))]
mod threads {
    use super::*;
    use std::cell::Cell;

    /// Threads beyond the pool share lane 0.
    static POOL: Pool<AtomicU64, 16> = Pool::new([const { AtomicU64::new(0) }; 16]);

    const UNKNOWN: usize = usize::MAX;

    thread_local! {
        // Constant and without a destructor: reading it is one instruction, at any time.
        static LANE: Cell<usize> = const { Cell::new(UNKNOWN) };
        static GIVE_BACK: GiveBack = const { GiveBack(Cell::new(None)) };
    }

    struct GiveBack(Cell<Option<usize>>);

    impl Drop for GiveBack {
        fn drop(&mut self) {
            if let Some(lane) = self.0.take() {
                POOL.give_back(lane);
            }
        }
    }

    /// The calling thread's lane.
    #[inline]
    pub fn current() -> usize {
        let lane = LANE.get();
        if lane == UNKNOWN { first() } else { lane }
    }

    #[cold]
    fn first() -> usize {
        // In the destructor of another thread-local, at the end of a thread that never called before, nothing would give
        // a lane back: share the first one.
        let lane = GIVE_BACK.try_with(|give_back| {
            let lane = POOL.take();
            give_back.0.set(lane);
            lane
        });
        let lane = lane.ok().flatten().unwrap_or(0);
        LANE.set(lane);
        lane
    }
}

#[cfg(not(any(liveslot_loom, liveslot_shuttle)))]
pub use threads::current;
