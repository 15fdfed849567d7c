//! Models of `src/primitives/waiters.rs`: waiters that go to sleep, come back or leave, and events.

#[path = "support/count.rs"]
mod count;
mod support;

use count::Count;
use liveslot_loom::internals::{
    atomic::{AtomicUsize, Ordering::Relaxed},
    waiters::{Waiter, Waiters},
};
use std::{
    mem,
    sync::Arc,
    task::{Poll, Waker},
};
use support::{race, race_at};

/// Models of three roles are too large for all placements: one in which the last role comes last, one in which it comes first.
const THREE: [[usize; 3]; 2] = [[2, 1, 0], [0, 1, 2]];

struct State {
    waiters: Waiters,
    events: AtomicUsize,
    wakers: [Arc<Count>; 2],
}

impl State {
    fn new() -> Self {
        Self { waiters: Waiters::new(), events: AtomicUsize::new(0), wakers: Default::default() }
    }

    fn poll(&self, waiter: &mut Waiter<&Waiters>, waker: usize, events: usize) -> Poll<()> {
        let waker = Waker::from(Arc::clone(&self.wakers[waker]));
        // Relaxed: the fences alone say whether an event is seen.
        waiter.poll(&waker, || (self.events.load(Relaxed) >= events).then_some(()))
    }

    /// Waits for the first event, and sleeps on if it must.
    fn wait(&self, waker: usize) -> Poll<()> {
        let mut waiter = Waiter::new(&self.waiters);
        let polled = self.poll(&mut waiter, waker, 1);
        mem::forget(waiter);
        polled
    }

    fn event(&self) -> Poll<()> {
        self.events.fetch_add(1, Relaxed);
        self.waiters.notify();
        Poll::Ready(())
    }

    fn woken(&self, waker: usize) -> usize {
        self.wakers[waker].times()
    }

    #[track_caller]
    fn told(&self, polled: Poll<()>, waker: usize) {
        assert!(polled.is_ready() || self.woken(waker) > 0, "the wake of {waker} is lost");
    }
}

/// C104, C109: of a waiter that goes to sleep and a notifier, one notices the other.
#[test]
fn a_waiter_and_an_event() {
    race(State::new, &[|s| s.wait(0), State::event], |s, polled| {
        s.told(polled[0], 0);
        assert!(s.woken(0) <= 1, "woken twice by one event");
    });
}

/// C106: one event is both waiters'. At bound 1: at bound 2 there are 46 times as many schedules.
#[test]
fn two_waiters_and_one_event() {
    race_at(&[1], &THREE, State::new, &[|s| s.wait(0), |s| s.wait(1), State::event], |s, polled| {
        s.told(polled[0], 0);
        s.told(polled[1], 1);
    });
}

/// A waiter that comes back with another waker is woken by that one.
#[test]
fn another_waker_and_an_event() {
    let twice = |s: &State| {
        let mut waiter = Waiter::new(&s.waiters);
        let polled = s.poll(&mut waiter, 0, 1).is_ready() || s.poll(&mut waiter, 1, 1).is_ready();
        mem::forget(waiter);
        if polled { Poll::Ready(()) } else { Poll::Pending }
    };
    race(State::new, &[twice, State::event], |s, polled| s.told(polled[0], 1));
}

/// C107: a waiter that leaves, woken or not, takes no wake with it.
#[test]
fn a_waiter_that_leaves_and_an_event() {
    let leave = |s: &State| {
        let mut waiter = Waiter::new(&s.waiters);
        s.poll(&mut waiter, 0, 1)
    };
    let setup = || {
        let state = State::new();
        assert_eq!(state.wait(1), Poll::Pending);
        state
    };
    race(setup, &[leave, State::event], |s, _| {
        s.told(Poll::Pending, 1);
        assert_eq!(Arc::strong_count(&s.wakers[0]), 1, "the waker that left is kept");
    });
}

/// A waiter that comes back for the second event, while a notifier has its place in hand, is woken by that event or sees it.
#[test]
fn a_returning_waiter_and_two_events() {
    let second = |s: &State| {
        let mut waiter = Waiter::new(&s.waiters);
        let polled = s.poll(&mut waiter, 0, 2).is_ready() || s.poll(&mut waiter, 1, 2).is_ready();
        mem::forget(waiter);
        if polled { Poll::Ready(()) } else { Poll::Pending }
    };
    race_at(&[2], &THREE, State::new, &[second, State::event, State::event], |s, polled| s.told(polled[0], 1));
}
