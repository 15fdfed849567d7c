//! Models of `src/primitives/once.rs`.

mod support;

use liveslot_loom::internals::{UnsafeCell, once::WriteOnce};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use support::race;

/// Written by its writer, read by whoever finds it, counted when it goes.
struct Value {
    number: UnsafeCell<usize>,
    gone: Arc<AtomicUsize>,
}

// SAFETY: loom checks each access against every other.
unsafe impl Sync for Value {}

#[derive(Default)]
struct State {
    once: Once,
    gone: Arc<AtomicUsize>,
}

struct Once(WriteOnce<Value>);

impl Default for Once {
    fn default() -> Self {
        Self(WriteOnce::new())
    }
}

impl Value {
    fn number(&self) -> usize {
        // SAFETY: loom has just checked that nobody writes.
        self.number.with(|number| unsafe { *number })
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.gone.fetch_add(1, Relaxed);
    }
}

impl State {
    fn set(&self, number: usize) -> usize {
        self.once.0.set(Value { number: UnsafeCell::new(number), gone: Arc::clone(&self.gone) }).number()
    }

    fn get(&self) -> Option<usize> {
        self.once.0.get().map(Value::number)
    }
}

/// Of racing writers one wins, all are told the winner's value with its contents, and the loser's is dropped.
#[test]
fn racing_writers_see_one_winner() {
    race(State::default, &[|state| state.set(1), |state| state.set(2)], |state, told| {
        let stands = state.get().unwrap();
        assert_eq!(told, [stands, stands], "two winners");
        assert_eq!(state.gone.load(Relaxed), 1, "one value went");
    });
}

/// Who finds a value finds what was written in it, and the same value ever after.
#[test]
fn what_is_found_is_whole_and_stays() {
    race(
        State::default,
        &[|state| vec![Some(state.set(1))], |state| vec![Some(state.set(2))], |state| vec![state.get(), state.get()]],
        |state, told| {
            let stands = state.get();
            assert_eq!(told[..2], [vec![stands], vec![stands]], "two winners");
            let found = &told[2];
            assert!(found.iter().all(|found| found.is_none() || *found == stands), "another value was found before: {found:?}");
            assert!(found[0].is_none() || found[1].is_some(), "a value was found, and then none");
        },
    );
}
