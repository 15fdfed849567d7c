//! Numbers that are issued once in the life of the process, in blocks per thread.
//!
//! A shared counter hands out blocks; a thread issues the numbers of its block without touching anything shared. What a
//! thread leaves unused when it ends is never issued: 64 bits outlast that. Numbers say nothing about order. When the
//! counter has reached its limit, issuing fails for ever; nothing wraps.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`issue`] | wait-free; once per [`BLOCK`] numbers lock-free | a thread-local counter; once per block a compare-and-swap |

use crate::sync::{Word, atomic::Ordering::*, process::AtomicU64};
use std::{cell::Cell, ops::Range};

/// How many numbers a thread takes at once.
const BLOCK: u64 = 1 << 16;

/// No number is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted;

/// The shared counter: the smallest number that no block has taken yet.
pub struct Blocks<W> {
    next: W,
    limit: u64,
}

impl<W: Word> Blocks<W> {
    /// Issues the numbers from `next` on, `limit` not included.
    pub const fn new(next: W, limit: u64) -> Self {
        Self { next, limit }
    }

    /// Takes up to `wanted` numbers that nobody else gets.
    #[cold]
    pub fn take(&self, wanted: u64) -> Result<Range<u64>, Exhausted> {
        // Relaxed: rivals meet on this word alone, and a number publishes nothing.
        let mut next = self.next.load(Relaxed);
        loop {
            let end = next.saturating_add(wanted).min(self.limit);
            if next >= end {
                return Err(Exhausted);
            }
            // Relaxed: as above.
            match self.next.compare_exchange(next, end, Relaxed, Relaxed) {
                Ok(_) => return Ok(next..end),
                Err(newer) => next = newer,
            }
        }
    }
}

static NUMBERS: Blocks<AtomicU64> = Blocks::new(AtomicU64::new(1), u64::MAX);

thread_local! {
    // Constant and without a destructor: reading it is one instruction, also in other thread-locals' destructors.
    static BLOCK_LEFT: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Issues a number.
#[inline]
pub fn issue() -> Result<u64, Exhausted> {
    #[cfg(liveslot_gates)]
    if !crate::sync::gates::identity_allowed() {
        return Err(Exhausted);
    }
    BLOCK_LEFT.with(|left| {
        let (next, end) = left.get();
        if next < end {
            left.set((next + 1, end));
            return Ok(next);
        }
        let block = NUMBERS.take(BLOCK)?;
        left.set((block.start + 1, block.end));
        Ok(block.start)
    })
}
