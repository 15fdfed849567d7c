//! Who waits for the next event.
//!
//! # Protocol
//!
//! A waiter looks whether it still has to wait, puts down where notifiers find it what wakes it, fences, and looks again. A notifier has
//! made the change, fences, and takes out what wakes, one at a time. So of a waiter that goes to sleep and a notifier that comes by, at
//! least one notices the other: the waiter the change, or the notifier the waiter.
//!
//! What wakes stands in [places](Places), each under a ticket of its own. Whoever takes by that ticket, which has one winner, moves it
//! out and frees the place before anything else: notifiers wake, and waiters drop what they took back, with nothing of ours held. A thread
//! that is stopped with a place in its hands keeps that place; a waiter whose place it was takes another. A waker is cloned, which is the
//! user's code, before anything is done.
//!
//! Threads that are parked are woken first, on all lists that a call notifies: unparking runs no code of the user's. A waker that blocks
//! for ever keeps the thread that woke it, and nothing else: what its notifier had not come to yet is found by the next notifier, and by
//! every waiter that looks again.
//!
//! A notifier takes those alone that came before its fence, by their tickets: who comes later has looked after the change, and one that
//! comes back while its waker runs cannot keep the notifier walking.
//!
//! A waker that panics is its owner's concern: the others are woken, and whoever notified is not told. Nor is who drops it unwoken: what a
//! look has found would be lost.
//!
//! Every event wakes everybody. So no wake is anybody's to pass on, and a waiter that is dropped, woken or not, takes none with it.
//!
//! `atomic-waker` is made for one waiter whose waker it clones in the middle of its own protocol; a place holds a waker that is
//! cloned already, and its word is visible to the checkers.
//!
//! | operation | progress, the user's wakers excepted | cost |
//! | --- | --- | --- |
//! | [`Waiter::poll`], [`Waiter::poll_parked`] | lock-free | looks, and a clone of the waker; to sleep two or three RMWs and a fence, rarely a chunk of places |
//! | end of [`Waiter`] | wait-free | if it sleeps two RMWs |
//! | [`Waiters::notify`], [`Waiters::unpark`] | wait-free | a fence and a load; if anybody waits two loads per place that was ever in use at once, two RMWs per waiter |

use super::places::{Claimed, Place, Places, Ticket};
use crate::{
    callback::{self, Theirs},
    panics::suppressing,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::*, fence},
        process::parking::Thread,
    },
};
use std::{
    ops::Deref,
    ptr::NonNull,
    task::{Poll, Waker},
};

pub struct Waiters {
    places: Places<Sleeper>,
    /// How many tickets were given out.
    tickets: AtomicU64,
    /// At least as many as stand in places: counted before one is put there the first time, and after it was taken out.
    asleep: AtomicUsize,
}

/// What wakes one who waits.
enum Sleeper {
    Thread(Thread),
    Task(Theirs<Waker>),
}

/// The lowest bit of a ticket's number says which, so that it is known before it is taken.
const THREAD: u64 = 0;
const TASK: u64 = 1;

impl Sleeper {
    const fn kind(&self) -> u64 {
        match self {
            Self::Thread(_) => THREAD,
            Self::Task(_) => TASK,
        }
    }

    fn wake(self) {
        match self {
            Self::Thread(thread) => thread.unpark(),
            Self::Task(waker) => suppressing(|| waker.into_inner().wake()),
        }
    }

    /// Drops it unwoken.
    fn discard(self) {
        match self {
            Self::Thread(thread) => drop(thread),
            Self::Task(waker) => suppressing(|| drop(waker)),
        }
    }
}

/// How a [`Waiter`] reaches the [`Waiters`] that it is one of.
///
/// # Safety
///
/// It keeps them, and they are the same ones wherever it is moved to.
pub unsafe trait Share: Deref<Target = Waiters> {}

// SAFETY: a borrow.
unsafe impl Share for &Waiters {}
// SAFETY: a share of what does not move.
unsafe impl Share for Arc<Waiters> {}

/// One who waits, for one event after another. Asleep from a poll that is pending to the next, or to its end.
pub struct Waiter<W: Share> {
    waiters: W,
    /// Where it sleeps, inside `waiters`. What wakes it may have been taken since.
    entry: Option<(NonNull<Place<Sleeper>>, Ticket)>,
}

// SAFETY: a share of the waiters and a pointer into them; places may be touched by any thread.
unsafe impl<W: Share + Send> Send for Waiter<W> {}
// SAFETY: as above.
unsafe impl<W: Share + Sync> Sync for Waiter<W> {}

impl Waiters {
    pub fn new() -> Self {
        Self { places: Places::new(usize::MAX), tickets: AtomicU64::new(0), asleep: AtomicUsize::new(0) }
    }

    /// Wakes everybody who went to sleep before. The caller has made its change, and holds nothing. A waker's panic is counted, see
    /// [`suppressed_panics`](crate::suppressed_panics), and goes no further: the caller's own call has taken effect, and its result would
    /// be lost.
    pub fn notify(&self) {
        self.wake(&[THREAD, TASK]);
    }

    /// As [`notify`](Self::notify), the threads that are parked alone. Runs no code of the user's: for who has that to run before.
    pub fn unpark(&self) {
        self.wake(&[THREAD]);
    }

    fn wake(&self, kinds: &[u64]) {
        // SeqCst: the change was made before we look who sleeps. Pairs with the fence in `Waiter::poll_as`: either we find the waiter, or
        // it finds the change.
        fence(SeqCst);
        // Relaxed, here and for the tickets: the fence decides whether we see that a waiter counted itself and took its ticket.
        if self.asleep.load(Relaxed) == 0 {
            return;
        }
        let later = self.tickets.load(Relaxed);
        for &kind in kinds {
            for (ticket, place) in self.places.waiting() {
                if ticket.number() >= later || ticket.number() & TASK != kind {
                    continue;
                }
                if let Some((claimed, sleeper)) = place.take(ticket) {
                    self.free(claimed);
                    sleeper.wake();
                }
            }
        }
    }

    /// Frees a place that was emptied.
    fn free(&self, claimed: Claimed<'_, Sleeper>) {
        drop(claimed);
        // Relaxed: a number that comes down late costs a walk.
        self.asleep.fetch_sub(1, Relaxed);
    }
}

impl<W: Share> Waiter<W> {
    pub const fn new(waiters: W) -> Self {
        Self { waiters, entry: None }
    }

    /// Gives what `look` finds, or has `waker` woken at the next event. `look` sees a change at the latest once a `fence(SeqCst)` has
    /// come between the two.
    pub fn poll<R>(&mut self, waker: &Waker, look: impl FnMut() -> Option<R>) -> Poll<R> {
        self.poll_as(|| Sleeper::Task(Theirs::new(callback::run(|| waker.clone()))), look)
    }

    /// The same for a thread that parks next.
    pub fn poll_parked<R>(&mut self, thread: &Thread, look: impl FnMut() -> Option<R>) -> Poll<R> {
        self.poll_as(|| Sleeper::Thread(thread.clone()), look)
    }

    fn poll_as<R>(&mut self, sleeper: impl FnOnce() -> Sleeper, mut look: impl FnMut() -> Option<R>) -> Poll<R> {
        if let Some(found) = look() {
            self.leave();
            return Poll::Ready(found);
        }
        self.sleep(sleeper());
        // SeqCst: what wakes us is where it can be found before we look again. Pairs with the fence in `Waiters::notify`.
        fence(SeqCst);
        match look() {
            Some(found) => {
                self.leave();
                Poll::Ready(found)
            }
            None => Poll::Pending,
        }
    }

    /// Puts what wakes us where notifiers find it, instead of what was there before.
    fn sleep(&mut self, sleeper: Sleeper) {
        let waiters = &*self.waiters;
        // Relaxed, here and below: a notifier sees both if its fence comes after ours, and needs neither otherwise.
        let ticket = || Ticket::new(waiters.tickets.fetch_add(2, Relaxed) | sleeper.kind());
        let (claimed, ticket, before) = match take(waiters, &mut self.entry) {
            Some((claimed, old, before)) if before.kind() == sleeper.kind() => (claimed, old, Some(before)),
            Some((claimed, _, before)) => (claimed, ticket(), Some(before)),
            None => {
                // Relaxed: as above.
                waiters.asleep.fetch_add(1, Relaxed);
                let ticket = ticket();
                (waiters.places.claim(ticket), ticket, None)
            }
        };
        self.entry = Some((NonNull::from(claimed.put(ticket, sleeper)), ticket));
        // The user's code: now that nothing is held.
        if let Some(before) = before {
            before.discard();
        }
    }

    /// Sleeps no more.
    pub fn leave(&mut self) {
        let waiters = &*self.waiters;
        if let Some((claimed, _, sleeper)) = take(waiters, &mut self.entry) {
            waiters.free(claimed);
            sleeper.discard();
        }
    }
}

/// Takes back what wakes a waiter, unless a notifier has it. `entry` is inside `waiters`.
fn take<'a>(
    _waiters: &'a Waiters,
    entry: &mut Option<(NonNull<Place<Sleeper>>, Ticket)>,
) -> Option<(Claimed<'a, Sleeper>, Ticket, Sleeper)> {
    let (place, ticket) = entry.take()?;
    // SAFETY: places stay where they are for as long as the waiters, which are borrowed.
    let (claimed, sleeper) = unsafe { place.as_ref() }.take(ticket)?;
    Some((claimed, ticket, sleeper))
}

impl<W: Share> Drop for Waiter<W> {
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
        assert_eq!(size_of::<Place<Sleeper>>(), 24);
        assert_eq!(size_of::<Waiter<&Waiters>>(), 24);
    }
}
