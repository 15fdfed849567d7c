//! A list of what is shared: each thing stands in it once, with how many shares it has, until the last of them goes.
//!
//! A thing is an entry of a [table](super::table), which owns it; its shares point to it. One word counts them, by kind:
//!
//! ```text
//!  63 .. 36     35 .. 0
//!  handles      records
//! ```
//!
//! Only who has a share can count another, so a word that has come to zero stays there: whoever brought it there is alone with the entry,
//! unlinks it, and the entry's memory goes through the epoch. A reader that finds the entry in between finds zero, and passes it by. So a
//! thing leaves the list at one instant, with its last share, whichever thread that is on; and whoever is stopped while it counts, lists or
//! unlinks keeps one place and nothing more.
//!
//! A share points into the roll and does not keep it: whoever enters a thing vouches that the roll outlasts the shares. What stands in
//! the roll is plain data, whose drop frees memory only.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`Roll::enter`] | lock-free | one allocation, a load per 64 places in use, two RMWs |
//! | [`Share::another`] | wait-free | one RMW |
//! | [`Share::leave`] | wait-free; the last one but for the epoch | one RMW; the last one an epoch pin, two RMWs and a deferral |
//! | [`Roll::read`] | wait-free but for the epoch | a load per 64 places, three per thing |
//!
//! Limits per thing: 2²⁷ handles and 2³⁵ records; a share beyond aborts the process, as in std's `Arc`. The fields hold twice that, so that
//! those who get there at once can't carry into a neighbour.

use super::table::{Place, Table, TableFull, Tagged};
use crate::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::*},
    epoch,
};
use std::ptr::NonNull;

const HANDLE: u64 = 1 << 36;
const RECORD: u64 = 1;
/// A field has come to its limit: its highest bit.
const FULL: u64 = 1 << 63 | 1 << 35;

/// What a share is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Handle,
    Record,
}

impl Kind {
    const fn one(self) -> u64 {
        match self {
            Self::Handle => HANDLE,
            Self::Record => RECORD,
        }
    }
}

/// The shares of one thing, at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    pub handles: usize,
    pub records: usize,
}

pub struct Roll<T> {
    things: Table<Entry<T>>,
}

struct Entry<T> {
    tag: u64,
    shares: AtomicU64,
    thing: T,
}

impl<T> Tagged for Entry<T> {
    fn tag(&self) -> u64 {
        self.tag
    }
}

/// One share of a thing, until it [leaves](Self::leave).
pub struct Share<T> {
    entry: NonNull<Entry<T>>,
    place: Place,
    kind: Kind,
}

// SAFETY: a share gives `&T` to its thread and may be the one whose end frees the `T`, as with `Arc`.
unsafe impl<T: Send + Sync> Send for Share<T> {}
// SAFETY: as above, since another share can be counted through a `&Share`.
unsafe impl<T: Send + Sync> Sync for Share<T> {}

impl<T: Send + Sync + 'static> Roll<T> {
    pub fn new() -> Self {
        Self { things: Table::new() }
    }

    /// Lists `thing`, with one handle. `tag` is never used again.
    ///
    /// # Safety
    ///
    /// The roll outlasts this share and all that are counted from it.
    pub unsafe fn enter(&self, tag: u64, thing: T) -> Result<Share<T>, TableFull> {
        let entry = Arc::new(Entry { tag, shares: AtomicU64::new(HANDLE), thing });
        let shared = NonNull::from(&*entry);
        Ok(Share { entry: shared, place: self.things.insert(entry)?, kind: Kind::Handle })
    }

    /// Shows `read` everything that is listed, with its tag and its shares. A thing that is listed during the whole call is met once.
    pub fn read(&self, mut read: impl FnMut(u64, &T, Shares)) {
        let guard = epoch::pin();
        for entry in self.things.iter(&guard) {
            // Relaxed: the thing was published with its entry; the count orders nothing. Who comes after the last share's end sees zero here,
            // if it finds the entry at all.
            let shares = entry.shares.load(Relaxed);
            if shares != 0 {
                read(entry.tag, &entry.thing, Shares { handles: (shares / HANDLE) as usize, records: (shares % HANDLE) as usize });
            }
        }
    }
}

impl<T: Send + Sync + 'static> Share<T> {
    const fn entry(&self) -> &Entry<T> {
        // SAFETY: this share is counted, so the entry stands in the roll, which owns it and outlasts the share.
        unsafe { self.entry.as_ref() }
    }

    pub const fn thing(&self) -> &T {
        &self.entry().thing
    }

    /// Counts another share, beside this one.
    pub fn another(&self, kind: Kind) -> Self {
        // Relaxed: this share keeps the thing, whatever order others see.
        let before = self.entry().shares.fetch_add(kind.one(), Relaxed);
        if before & FULL != 0 {
            std::process::abort();
        }
        Self { entry: self.entry, place: self.place, kind }
    }

    /// Ends this share. The last one takes the thing off the list.
    ///
    /// # Safety
    ///
    /// The thing was entered in `roll`, and this share is not used afterwards.
    pub unsafe fn leave(&self, roll: &Roll<T>) {
        // AcqRel: Release, so that what was done with the thing comes before its end; Acquire, so that all of that comes before who is
        // last. Nothing of the entry is touched after this subtraction unless it was the last.
        let before = self.entry().shares.fetch_sub(self.kind.one(), AcqRel);
        if before == self.kind.one() {
            let unlinked = roll.things.remove(self.place, self.entry().tag, &epoch::pin());
            debug_assert!(unlinked, "one share is the last");
        }
    }
}
