//! Drains, and the calls that end a life or remove.

use super::{
    count::Count,
    support::race,
    world::{DEVICE, World},
};
use liveslot_loom::{BoundAllocation, MemoryBinding, RemovalError};
use std::{
    future::Future,
    mem,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

struct Draining {
    world: World<1>,
    waker: Arc<Count>,
    live: Mutex<Option<(MemoryBinding, BoundAllocation)>>,
}

impl Draining {
    fn new() -> Self {
        Self { world: World::new(), waker: Arc::default(), live: Mutex::default() }
    }

    /// Retired, with one allocation live.
    fn retired() -> Self {
        let draining = Self::new();
        let binding = draining.world.registry.bind(DEVICE).unwrap();
        let allocation = binding.allocate(8, 8).unwrap();
        *draining.live.lock().unwrap() = Some((binding, allocation));
        draining.retire();
        draining
    }

    /// Polls once, and sleeps on if it must.
    fn poll<F: Future>(&self, future: F) -> Poll<F::Output> {
        let mut future = Box::pin(future);
        let waker = Waker::from(Arc::clone(&self.waker));
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        mem::forget(future);
        polled
    }

    /// Whether it has drained.
    fn drain(&self) -> bool {
        let drain = self.world.registry.drain(self.world.mechanisms[0]).unwrap();
        self.poll(drain).map(Result::unwrap).is_ready()
    }

    fn retire(&self) -> bool {
        self.world.registry.retire(self.world.mechanisms[0]).unwrap();
        true
    }

    fn release(&self) -> bool {
        let (binding, allocation) = self.live.lock().unwrap().take().unwrap();
        binding.release(allocation).unwrap();
        true
    }

    /// Whether it has removed.
    fn remove_when_drained(&self) -> bool {
        let removal = self.world.registry.remove_when_drained(self.world.mechanisms[0]);
        match removal.map(|removal| self.poll(removal)) {
            Ok(Poll::Ready(Ok(()))) => true,
            Ok(Poll::Ready(Err(RemovalError::Refused(_)))) | Err(_) => false,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn told(&self, drained: bool) {
        assert!(drained || self.waker.times() > 0, "the wake is lost");
        let drain = pin!(self.world.registry.drain(self.world.mechanisms[0]).unwrap());
        assert_eq!(drain.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())));
    }
}

/// C104: the first drain of a mechanism, and its retirement.
#[test]
fn a_drain_and_a_retirement() {
    race(Draining::new, &[Draining::drain, Draining::retire], |d, done| d.told(done[0]));
}

/// C104: a drain, and the last release.
#[test]
fn a_drain_and_the_last_release() {
    race(Draining::retired, &[Draining::drain, Draining::release], |d, done| d.told(done[0]));
}

/// One of two removes.
#[test]
fn two_removals_when_drained() {
    let setup = || {
        let draining = Draining::new();
        draining.retire();
        draining
    };
    race(setup, &[Draining::remove_when_drained, Draining::remove_when_drained], |_, removed| {
        assert_eq!(removed.iter().filter(|removed| **removed).count(), 1);
    });
}
