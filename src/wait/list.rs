//! Who waits for the next event.
//!
//! # Protocol
//!
//! A waiter looks whether it still has to wait, puts its waker where notifiers find it, fences, and looks again. A notifier has made the
//! change, fences, and takes wakers out, one at a time. So of a waiter that goes to sleep and a notifier that comes by, at least
//! one notices the other: the waiter the change, or the notifier the waker.
//!
//! Wakers stand in [places](Places), each under a ticket of its own. Whoever takes by that ticket, which has one winner, moves the
//! waker out and frees the place before anything else: notifiers wake, and waiters drop what they took back, with nothing of ours held.
//! A waker that blocks for ever keeps the thread that woke it, and nobody else: what its notifier had not come to yet is found by the next
//! notifier, and by every waiter that looks again. A thread that is stopped with a place in its hands keeps that place; a waiter whose
//! waker it was takes another. A waker is cloned, which is the user's code, before anything is done.
//!
//! A notifier takes those alone that came before its fence, by their tickets: who comes later has looked after the change, and one that
//! comes back while its waker runs cannot keep the notifier walking.
//!
//! A waker that panics is its owner's concern: the others are woken, and whoever notified is not told.
//!
//! Every event wakes everybody. So no wake is anybody's to pass on, and a waiter that is dropped, woken or not, takes none with it.
//!
//! `atomic-waker` is made for one waiter whose waker it clones in the middle of its own protocol; a place holds a waker that is
//! cloned already, and its word is visible to the checkers.
//!
//! | operation | progress, the user's wakers excepted | cost |
//! | --- | --- | --- |
//! | [`Waiter::poll`] | lock-free | looks, and a clone of the waker; to sleep two or three RMWs and a fence, rarely a chunk of places |
//! | end of [`Waiter`] | wait-free | if it sleeps two RMWs |
//! | [`Waiters::notify`] | wait-free | a fence and a load; if anybody waits a load per place that was ever in use at once, two RMWs per waker |

use crate::{
    mechanism::teardown::suppressing,
    primitives::places::{Claimed, Place, Places, Ticket},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::*, fence},
};
use std::task::{Poll, Waker};

pub struct Waiters {
    places: Places<Waker>,
    /// How many tickets were given out.
    tickets: AtomicU64,
    /// At least as many as wakers stand in places: counted before one is put there the first time, and after it was taken out.
    asleep: AtomicUsize,
}

/// One who waits, for one event after another. Asleep from a [`poll`](Self::poll) that is pending to the next, or to its end.
pub struct Waiter<'a> {
    waiters: &'a Waiters,
    /// Where its waker was put. It may have been taken since.
    entry: Option<(&'a Place<Waker>, Ticket)>,
}

impl Waiters {
    pub fn new() -> Self {
        Self { places: Places::new(usize::MAX), tickets: AtomicU64::new(0), asleep: AtomicUsize::new(0) }
    }

    /// Wakes everybody who went to sleep before. The caller has made its change, and holds nothing. A waker's panic is counted, see
    /// [`suppressed_panics`](crate::suppressed_panics), and goes no further: the caller's own call has taken effect, and its result would
    /// be lost.
    pub fn notify(&self) {
        // SeqCst: the change was made before we look who sleeps. Pairs with the fence in `Waiter::poll`: either we find the waker, or the
        // waiter finds the change.
        fence(SeqCst);
        // Relaxed, here and for the tickets: the fence decides whether we see that a waiter counted itself and took its ticket.
        if self.asleep.load(Relaxed) == 0 {
            return;
        }
        let later = Ticket::new(self.tickets.load(Relaxed));
        for (ticket, place) in self.places.waiting() {
            if ticket >= later {
                continue;
            }
            if let Some((claimed, waker)) = place.take(ticket) {
                self.free(claimed);
                suppressing(|| waker.wake());
            }
        }
    }

    /// Frees a place whose waker was taken.
    fn free(&self, claimed: Claimed<'_, Waker>) {
        drop(claimed);
        // Relaxed: a number that comes down late costs a walk.
        self.asleep.fetch_sub(1, Relaxed);
    }
}

impl<'a> Waiter<'a> {
    pub const fn new(waiters: &'a Waiters) -> Self {
        Self { waiters, entry: None }
    }

    /// Gives what `look` finds, or has `waker` woken at the next event. `look` sees a change at the latest once a `fence(SeqCst)` has
    /// come between the two.
    pub fn poll<R>(&mut self, waker: &Waker, mut look: impl FnMut() -> Option<R>) -> Poll<R> {
        if let Some(found) = look() {
            self.leave();
            return Poll::Ready(found);
        }
        let waker = waker.clone();
        self.sleep(waker);
        // SeqCst: the waker is where it can be found before we look again. Pairs with the fence in `Waiters::notify`.
        fence(SeqCst);
        match look() {
            Some(found) => {
                self.leave();
                Poll::Ready(found)
            }
            None => Poll::Pending,
        }
    }

    /// Puts a waker where notifiers find it, instead of the one before.
    fn sleep(&mut self, waker: Waker) {
        let (claimed, ticket, before) = match self.take() {
            Some((claimed, ticket, before)) => (claimed, ticket, Some(before)),
            None => {
                // Relaxed, twice: a notifier sees both if its fence comes after ours, and needs neither otherwise.
                self.waiters.asleep.fetch_add(1, Relaxed);
                let ticket = Ticket::new(self.waiters.tickets.fetch_add(1, Relaxed));
                (self.waiters.places.claim(ticket), ticket, None)
            }
        };
        self.entry = Some((claimed.put(ticket, waker), ticket));
        // The user's code: now that nothing is held.
        drop(before);
    }

    /// Takes the waker back, unless a notifier has it.
    fn take(&mut self) -> Option<(Claimed<'a, Waker>, Ticket, Waker)> {
        let (place, ticket) = self.entry.take()?;
        let (claimed, waker) = place.take(ticket)?;
        Some((claimed, ticket, waker))
    }

    fn leave(&mut self) {
        if let Some((claimed, _, waker)) = self.take() {
            self.waiters.free(claimed);
            drop(waker);
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a waiter takes beside the future it is part of: with chunks that double, at most twice a place.
    #[test]
    fn a_place_is_small() {
        assert_eq!(size_of::<Place<Waker>>(), 24);
        assert_eq!(size_of::<Waiter<'_>>(), 24);
    }
}
