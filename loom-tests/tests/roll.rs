//! Models of `src/primitives/roll.rs`: a thing is listed as long as it has a share, ends once, behind everything that was done with it.

#[path = "support/held.rs"]
mod held;
#[path = "support/resource.rs"]
mod resource;
mod support;

use held::Held;
use liveslot_loom::internals::{
    epoch,
    roll::{Kind, Roll, Share, Shares},
};
use resource::Resource;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};
use support::race;

/// Its destructor writes what sharers and readers read. The count of destructions is std's, so that it orders nothing.
struct Thing {
    resource: Arc<Resource>,
    ended: Arc<AtomicUsize>,
}

impl Drop for Thing {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        self.ended.fetch_add(1, Relaxed);
        self.resource.tear_down();
    }
}

/// A roll in which one thing has as many shares as `shares`, the first of them a handle, the others records; its number is 7.
struct State {
    shares: Vec<Held<Share<Thing>>>,
    ended: Arc<AtomicUsize>,
    /// Goes last, as its shares demand.
    roll: Roll<Thing>,
}

const ONE: [Kind; 1] = [Kind::Handle];
const TWO: [Kind; 2] = [Kind::Handle, Kind::Record];

impl State {
    fn new(shares: &[Kind]) -> Self {
        let (roll, ended) = (Roll::new(), Arc::new(AtomicUsize::new(0)));
        let thing = Thing { resource: Arc::new(Resource::new()), ended: Arc::clone(&ended) };
        // SAFETY: every share has left when the model ends.
        let first = unsafe { roll.enter(7, thing) }.unwrap();
        let others: Vec<_> = shares[1..].iter().map(|kind| first.another(*kind)).collect();
        Self { shares: [first].into_iter().chain(others).map(Held::new).collect(), ended, roll }
    }

    fn one() -> Self {
        Self::new(&ONE)
    }

    fn two() -> Self {
        Self::new(&TWO)
    }

    fn lazy() -> Self {
        epoch::lazy();
        Self::two()
    }

    fn leave(&self, share: &Share<Thing>) {
        share.thing().resource.read();
        // SAFETY: the only roll; who leaves drops the share.
        unsafe { share.leave(&self.roll) }
    }

    fn let_go(&self, n: usize) -> Vec<[usize; 2]> {
        self.leave(&self.shares[n].take());
        Vec::new()
    }

    fn share_and_let_go(&self, n: usize) -> Vec<[usize; 2]> {
        let share = self.shares[n].take();
        let another = share.another(Kind::Record);
        self.leave(&share);
        self.leave(&another);
        Vec::new()
    }

    /// Handles and records of what is listed, which is used.
    fn read(&self) -> Vec<[usize; 2]> {
        let mut met = Vec::new();
        self.roll.read(|tag, thing, Shares { handles, records }| {
            assert_eq!(tag, 7);
            thing.resource.read();
            met.push([handles, records]);
        });
        met
    }

    fn has_ended(&self) {
        assert_eq!(self.read(), [[0; 2]; 0], "listed after its end");
        epoch::finish();
        assert_eq!(self.ended.load(Relaxed), 1, "ended by nobody, or by several");
    }
}

/// Two last shares go at once, on two threads, beside a reader.
fn two_last_shares(setup: fn() -> State) {
    race(setup, &[|state| state.let_go(0), |state| state.let_go(1), State::read], |state, met| {
        let possible: [&[[usize; 2]]; 4] = [&[], &[[1, 1]], &[[1, 0]], &[[0, 1]]];
        assert!(possible.contains(&&*met[2]), "listed with {:?}", met[2]);
        state.has_ended();
    });
}

/// One of the two is the last, with an epoch that frees as early as it may.
#[test]
fn two_last_shares_early() {
    two_last_shares(State::two);
}

/// The same with an epoch that frees as late as it can.
#[test]
fn two_last_shares_late() {
    two_last_shares(State::lazy);
}

/// A thing has left the list when the last share's end returns.
#[test]
fn the_last_share_and_readers() {
    race(State::one, &[|state| [state.let_go(0), state.read()].concat(), State::read, State::read], |state, met| {
        assert_eq!(met[0], [[0; 2]; 0], "listed after its end");
        for met in &met[1..] {
            assert!(met.is_empty() || *met == [[1, 0]], "listed with {met:?}");
        }
        state.has_ended();
    });
}

/// A share that is counted while the others leave keeps the thing until it leaves, too.
#[test]
fn share_and_leave_and_leave() {
    race(State::two, &[|state| state.share_and_let_go(0), |state| state.let_go(1), State::read], |state, met| {
        let possible: [&[[usize; 2]]; 6] = [&[], &[[1, 0]], &[[1, 1]], &[[1, 2]], &[[0, 1]], &[[0, 2]]];
        assert!(possible.contains(&&*met[2]), "listed with {:?}", met[2]);
        state.has_ended();
    });
}
