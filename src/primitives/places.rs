//! Places for things that wait: a slab of chunks that never move, one word per place.
//!
//! ```text
//!        claim            put                  take
//!  free ───────▶ held ─────────▶ ticket ─────────────────▶ held ───▶ free, or put again with the same ticket
//! ```
//!
//! Whoever has brought a place to *held*, by one compare-and-swap, is alone with what is in it, and everybody else passes it by: a thread
//! that is stopped there keeps one place and nothing more. A word names a ticket, which is never used for anything else; so who
//! takes by the ticket takes what he has seen, or nothing, and an address that comes back misleads nobody.
//!
//! Chunks double in size, are put in place by one compare-and-swap, and live as long as the slab. Together they have as many places as
//! may be taken at once, so that there is always one for who may claim one; it can escape a walk only because others claim and free.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`Places::claim`] | lock-free | one RMW, a load per taken place on the way; rarely a chunk |
//! | [`Claimed::put`], end of [`Claimed`] | wait-free | one store |
//! | [`Place::take`] | wait-free | one RMW |
//! | [`Places::waiting`] | wait-free | a load per place |

use super::once::WriteOnce;
use crate::sync::{
    UnsafeCell,
    atomic::{AtomicU64, Ordering::*},
};
use std::mem::{self, MaybeUninit};

/// Places in the first chunk. Chunk `k` has `FIRST` · 2ᵏ, the last what is left.
const FIRST: usize = if cfg!(any(liveslot_loom, liveslot_shuttle)) { 1 } else { 64 };
const CHUNKS: usize = if cfg!(liveslot_loom) { 3 } else { (usize::BITS - FIRST.trailing_zeros()) as usize };

const FREE: u64 = 0;
const HELD: u64 = 1;
/// Tickets come from here on.
const TICKETS: u64 = 2;

/// Names one thing that waits, for ever. The older is the smaller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

impl Ticket {
    /// Each number makes one ticket.
    pub(crate) const fn new(number: u64) -> Self {
        Self(number + TICKETS)
    }

    /// The number that made it.
    pub(crate) const fn number(self) -> u64 {
        self.0 - TICKETS
    }
}

pub(crate) struct Places<T> {
    most: usize,
    chunks: [WriteOnce<Box<[Place<T>]>>; CHUNKS],
}

pub(crate) struct Place<T> {
    word: AtomicU64,
    /// There while the word is a ticket. Touched by who holds the place.
    thing: UnsafeCell<MaybeUninit<T>>,
}

/// The right to one place, which is empty. Ends by being put to use, or with the place free.
pub(crate) struct Claimed<'a, T>(&'a Place<T>);

// SAFETY: a thing is moved in and out, or dropped, by one thread at a time, which the word decides.
unsafe impl<T: Send> Send for Place<T> {}
// SAFETY: as above. Nobody gets a `&T`.
unsafe impl<T: Send> Sync for Place<T> {}

impl<T> Places<T> {
    /// For `most` things at once.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, chunks: std::array::from_fn(|_| WriteOnce::new()) }
    }

    /// A free place. At most `most` claims may be asked for, held, and waiting at once.
    pub(crate) fn claim(&self, ticket: Ticket) -> Claimed<'_, T> {
        loop {
            // The last chunk is the largest. Things mostly leave in the order in which they came, so the place that is a ticket's by its
            // number is mostly free.
            for chunk in self.chunks().rev() {
                let (later, sooner) = chunk.split_at((ticket.0 % chunk.len() as u64) as usize);
                if let Some(claimed) = sooner.iter().chain(later).find_map(Place::claim) {
                    return claimed;
                }
            }
            self.grow();
        }
    }

    /// What waits, with its tickets, in no order. What waits all the time is met.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (Ticket, &Place<T>)> {
        self.chunks().flatten().filter_map(|place| place.ticket().map(|ticket| (ticket, place)))
    }

    fn chunks(&self) -> impl DoubleEndedIterator<Item = &[Place<T>]> {
        let there = self.chunks.partition_point(|chunk| chunk.get().is_some());
        self.chunks[..there].iter().filter_map(|chunk| chunk.get().map(|places| &places[..]))
    }

    /// Adds a chunk, unless there are as many places as may be.
    fn grow(&self) {
        let chunk = self.chunks().count();
        let before = FIRST * ((1 << chunk) - 1);
        if before < self.most {
            let places = (FIRST << chunk).min(self.most - before);
            self.chunks[chunk].set((0..places).map(|_| Place::new()).collect());
        }
    }
}

impl<T> Place<T> {
    fn new() -> Self {
        Self { word: AtomicU64::new(FREE), thing: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    fn claim(&self) -> Option<Claimed<'_, T>> {
        // Relaxed: a stale word costs another look.
        if self.word.load(Relaxed) != FREE {
            return None;
        }
        // Acquire: what was here has been moved out. Pairs with the end of `Claimed`.
        self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).ok().map(|_| Claimed(self))
    }

    fn ticket(&self) -> Option<Ticket> {
        // Relaxed: a hint. Who takes asks again; who must not miss it has a fence between the putting and this look.
        let word = self.word.load(Relaxed);
        (word >= TICKETS).then_some(Ticket(word))
    }

    /// Takes what waits here by this ticket, if it still does.
    pub(crate) fn take(&self, ticket: Ticket) -> Option<(Claimed<'_, T>, T)> {
        // Acquire: we move what was put here. Pairs with `Claimed::put`.
        self.word.compare_exchange(ticket.0, HELD, Acquire, Relaxed).ok()?;
        // SAFETY: the word was a ticket, so the thing is there; the exchange has one winner, who holds the place, and doesn't
        // read it again before something else has been put here.
        let thing = self.thing.with_mut(|thing| unsafe { thing.read().assume_init() });
        Some((Claimed(self), thing))
    }
}

impl<'a, T> Claimed<'a, T> {
    /// Lets everybody find `thing` by this ticket.
    pub(crate) fn put(self, ticket: Ticket, thing: T) -> &'a Place<T> {
        let place = self.0;
        // SAFETY: whoever holds the place is alone with it.
        place.thing.with_mut(|there| unsafe { (*there).write(thing) });
        // Release: publishes the thing. Pairs with `Place::take`.
        place.word.store(ticket.0, Release);
        mem::forget(self);
        place
    }
}

impl<T> Drop for Claimed<'_, T> {
    fn drop(&mut self) {
        // Release: what was here has been moved out. Pairs with `Place::claim`.
        self.0.word.store(FREE, Release);
    }
}

impl<T> Drop for Place<T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket() {
            drop(self.take(ticket));
        }
    }
}
