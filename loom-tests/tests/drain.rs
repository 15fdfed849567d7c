//! Models of `src/primitives/pins.rs` with those who wait until it is idle: closers, leavers and waiters.

#[path = "support/count.rs"]
mod count;
mod support;

use count::Count;
use liveslot_loom::internals::{
    atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
    pins::{Close, Home, Pins},
    waiters::Waiter,
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
    pins: Pins,
    /// Stands for the lifecycle word.
    ended: AtomicBool,
    queued: Vec<Home>,
    waker: Arc<Count>,
}

impl State {
    fn new() -> Self {
        Self { pins: Pins::new(2), ended: AtomicBool::new(false), queued: Vec::new(), waker: Arc::default() }
    }

    /// Closed, with something queued on each of so many stripes.
    fn queued<const STRIPES: usize>() -> Self {
        let mut state = Self::new();
        for lane in 0..STRIPES {
            let operation = state.pins.enter(lane).unwrap();
            let home = operation.home();
            operation.record();
            state.pins.queue(home).unwrap();
            state.queued.push(home);
        }
        assert_eq!(state.end(), Poll::Ready(()));
        state
    }

    /// One is asleep already.
    fn asleep() -> Self {
        let state = Self::new();
        assert_eq!(state.wait(), Poll::Pending);
        state
    }

    /// As a mechanism's drain looks.
    fn look(&self) -> Option<()> {
        // Acquire: as a lifecycle word is read.
        if !self.ended.load(Acquire) {
            return None;
        }
        self.pins.close_admission(Close::Retired);
        self.pins.is_idle().then_some(())
    }

    /// Waits, and sleeps on if it must.
    fn wait(&self) -> Poll<()> {
        let waker = Waker::from(Arc::clone(&self.waker));
        let mut waiter = Waiter::new(&**self.pins.waiters());
        let polled = waiter.poll(&waker, || self.look());
        mem::forget(waiter);
        polled
    }

    /// Ends the life, closes, and wakes.
    fn end(&self) -> Poll<()> {
        self.ended.store(true, Release);
        self.pins.close_admission(Close::Retired);
        if let Some(waiters) = self.pins.waiting_if_idle() {
            waiters.notify();
        }
        Poll::Ready(())
    }

    /// An operation, or one that is refused.
    fn operate(&self, lane: usize) -> Poll<()> {
        drop(self.pins.enter(lane));
        Poll::Ready(())
    }

    fn settle(&self, queued: usize) -> Poll<()> {
        self.pins.settle(self.queued[queued]);
        Poll::Ready(())
    }

    /// An operation on what is queued, which ends with it.
    fn settle_by_operation(&self) -> Poll<()> {
        self.pins.enter_release(self.queued[0]).unwrap().settle();
        Poll::Ready(())
    }

    /// Nothing is left, and who waited knows.
    #[track_caller]
    fn told(&self, polled: Poll<()>) {
        assert_eq!(self.look(), Some(()));
        assert!(polled.is_ready() || self.waker.times() > 0, "the wake is lost");
    }
}

/// C104: of the last leaver and one who goes to sleep, one notices the other.
#[test]
fn the_last_settlement_and_a_waiter() {
    race(State::queued::<1>, &[State::wait, |s| s.settle(0)], |s, polled| s.told(polled[0]));
}

/// The same, of an operation that ends with what it was for.
#[test]
fn an_operation_that_settles_and_a_waiter() {
    race(State::queued::<1>, &[State::wait, State::settle_by_operation], |s, polled| s.told(polled[0]));
}

/// Two last leavers on two stripes: each may see the other's stripe as it was, not both of them and the waiter.
#[test]
fn the_last_settlements_on_two_stripes_and_a_waiter() {
    race_at(&[2], &THREE, State::queued::<2>, &[State::wait, |s| s.settle(0), |s| s.settle(1)], |s, polled| s.told(polled[0]));
}

/// A refused operation is counted for a moment: who saw it is told when it has gone.
#[test]
fn a_refused_operation_and_a_waiter() {
    race(State::queued::<0>, &[State::wait, |s| s.operate(1)], |s, polled| s.told(polled[0]));
}

/// Who leaves last may find a refused operation on its stripe, and leave the telling to that.
#[test]
fn the_last_settlement_and_a_refused_operation() {
    let asleep = || {
        let state = State::queued::<1>();
        assert_eq!(state.wait(), Poll::Pending);
        state
    };
    race(asleep, &[|s| s.settle(0), |s| s.operate(0)], |s, _| s.told(Poll::Pending));
}

/// Whoever ends the life of what is idle tells.
#[test]
fn an_end_and_a_waiter() {
    race(State::new, &[State::wait, State::end], |s, polled| s.told(polled[0]));
}

/// An operation that leaves before its stripe is closed is the closer's to tell, one that leaves after it its own.
#[test]
fn an_end_and_the_last_operation() {
    race(State::asleep, &[State::end, |s| s.operate(1)], |s, _| s.told(Poll::Pending));
}

/// All three of them.
#[test]
fn an_end_and_the_last_operation_and_a_waiter() {
    race_at(&[1], &THREE, State::new, &[State::wait, State::end, |s| s.operate(1)], |s, polled| s.told(polled[0]));
}
