//! A count of uses and a removed mark in one word.
//!
//! A user counts itself unless the mark stands; the mark is set only over a count of zero. Both are one
//! compare-and-swap on the same word, so exactly one of "used" and "removed" wins, and the mark stays for ever.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`UseCount::enter`] | lock-free | a load, one compare-and-swap |
//! | [`UseCount::leave`] | wait-free | one read-modify-write |
//! | [`UseCount::is_used`] | wait-free | one load |
//! | [`UseCount::remove`] | wait-free | one compare-and-swap |

use crate::sync::atomic::{AtomicUsize, Ordering::*};

/// In the top bit; the count is below.
const REMOVED: usize = 1 << (usize::BITS - 1);

#[derive(Debug)]
pub struct UseCount(AtomicUsize);

/// What became of an attempt to remove.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remove {
    /// This call removed it: nobody uses it, nor ever will.
    Removed,
    InUse,
    /// Somebody else removed it.
    Already,
}

/// Refused: removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

impl UseCount {
    pub fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Counts a use. It ends with [`leave`](Self::leave).
    pub fn enter(&self) -> Result<(), Gone> {
        // A compare-and-swap rather than an addition that is undone: nothing calls this often, and a refusal leaves no trace.
        // Acquire: what was done before the thing was made is seen by its user. Relaxed on failure: tried again.
        self.0.fetch_update(Acquire, Relaxed, |word| (word & REMOVED == 0).then(|| word + 1)).map(drop).map_err(|_| Gone)
    }

    pub fn leave(&self) {
        // Release: the use happens-before the removal that finds the count at zero. Pairs with `remove`.
        self.0.fetch_sub(1, Release);
    }

    pub fn is_used(&self) -> bool {
        // Acquire: as in `remove`.
        self.0.load(Acquire) & !REMOVED != 0
    }

    pub fn remove(&self) -> Remove {
        // Acquire: pairs with the Release in `leave`. Nothing is published: who is refused reads nothing.
        match self.0.compare_exchange(0, REMOVED, Acquire, Relaxed) {
            Ok(_) => Remove::Removed,
            Err(word) if word & REMOVED != 0 => Remove::Already,
            Err(_) => Remove::InUse,
        }
    }
}
