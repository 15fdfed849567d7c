//! A count of uses and a removed mark in one word.
//!
//! A user counts itself unless the mark stands; the mark is set only over a count of zero. Both are one
//! compare-and-swap on the same word, so exactly one of "used" and "removed" wins, and the mark stays for ever. The word counts the uses
//! that have begun as well, so that a removal can be refused if there was one since somebody looked.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`UseCount::enter`] | lock-free | a load, one compare-and-swap |
//! | [`UseCount::leave`] | wait-free | one read-modify-write |
//! | [`UseCount::unused`] | wait-free | one load |
//! | [`UseCount::remove`] | lock-free | a load, one compare-and-swap |

use crate::sync::atomic::{AtomicU64, Ordering::*};

/// In the top bit.
const REMOVED: u64 = 1 << 63;
/// How many uses have begun, modulo 2³¹, in the bits from this one on.
const BEGUN: u64 = 1 << 32;
/// How many have not ended. A table has no room for as many mechanisms.
const COUNT: u64 = BEGUN - 1;

#[derive(Debug)]
pub struct UseCount(AtomicU64);

/// That there was no use, and when.
#[derive(Clone, Copy, Debug)]
pub struct Unused(u64);

/// What became of an attempt to remove.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remove {
    /// This call removed it: nobody uses it, nor ever will.
    Removed,
    /// Or was used since somebody looked.
    InUse,
    /// Somebody else removed it.
    Already,
}

/// Refused: removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

impl UseCount {
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Counts a use. It ends with [`leave`](Self::leave).
    pub fn enter(&self) -> Result<(), Gone> {
        // A compare-and-swap rather than an addition that is undone: nothing calls this often, and a refusal leaves no trace.
        // Acquire: what was done before the thing was made is seen by its user. Relaxed on failure: tried again.
        let used = |word| (word & REMOVED == 0).then(|| ((word + BEGUN) & !REMOVED) + 1);
        self.0.fetch_update(Acquire, Relaxed, used).map(drop).map_err(|_| Gone)
    }

    pub fn leave(&self) {
        // Release: the use happens-before the removal that finds the count at zero. Pairs with `remove`.
        self.0.fetch_sub(1, Release);
    }

    /// Notes that there is no use now, if so.
    pub fn unused(&self) -> Option<Unused> {
        // Acquire: as in `remove`.
        let word = self.0.load(Acquire);
        (word & COUNT == 0).then_some(Unused(word))
    }

    /// Removes it unless there is a use, or one has begun since what was noted, of the last 2³¹.
    pub fn remove(&self, since: Option<Unused>) -> Remove {
        let removed = |word| {
            let unused = word & (REMOVED | COUNT) == 0 && since.is_none_or(|Unused(noted)| word == noted);
            unused.then_some(word | REMOVED)
        };
        // Acquire: pairs with the Release in `leave`. Nothing is published: who is refused reads nothing.
        match self.0.fetch_update(Acquire, Relaxed, removed) {
            Ok(_) => Remove::Removed,
            Err(word) if word & REMOVED != 0 => Remove::Already,
            Err(_) => Remove::InUse,
        }
    }
}
