//! The epoch in a model: `pin` registers and fences; `defer` fences and notes who is pinned; what was deferred runs
//! once all of those have left. The book-keeping's mutex is std's, which loom does not see; so nothing that loom switches at
//! is done under it, and the pins are shared by std's `Arc`.
//!
//! *Eager* runs a deferred closure at the earliest moment the real crate could, *lazy* at the end of the model
//! ([`finish`]); between the two lies everything the real crate does. [`lazy`] chooses, eager unless said otherwise.

use loom::sync::atomic::{AtomicBool, Ordering::*, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Pin = Arc<AtomicBool>;

struct Deferred {
    waits_for: Vec<Pin>,
    free: Box<dyn FnOnce() + Send>,
}

#[derive(Default)]
struct State {
    lazy: bool,
    pinned: Vec<Pin>,
    deferred: Vec<Deferred>,
}

loom::lazy_static! {
    static ref STATE: Mutex<State> = Mutex::new(State::default());
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Guard(Pin);

pub fn pin() -> Guard {
    let left = Arc::new(AtomicBool::new(false));
    state().pinned.push(Arc::clone(&left));
    // SeqCst: pairs with the fence in `defer`. Either `defer` notes this pin, or what it unlinked is not seen under it.
    fence(SeqCst);
    Guard(left)
}

/// Lets deferred closures wait for [`finish`].
pub fn lazy() {
    state().lazy = true;
}

/// Runs everything that is deferred. All pins must have left.
pub fn finish() {
    assert!(state().pinned.is_empty(), "a pin outlives the model");
    let all = std::mem::take(&mut state().deferred);
    all.into_iter().for_each(Deferred::run);
}

impl Deferred {
    fn run(self) {
        for pin in &self.waits_for {
            // Acquire: pairs with the Release in `Guard::drop`; the reader's last look happens-before the free.
            // A read-modify-write, since loom may answer a load with an older store.
            assert!(pin.fetch_or(true, Acquire), "freed under a pin");
        }
        (self.free)();
    }
}

impl Guard {
    pub fn defer(&self, free: impl FnOnce() + Send + 'static) {
        // SeqCst: pairs with the fence in `pin`.
        fence(SeqCst);
        let mut state = state();
        let waits_for = state.pinned.clone();
        state.deferred.push(Deferred { waits_for, free: Box::new(free) });
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `Deferred::run`.
        self.0.store(true, Release);
        let due = {
            let mut state = state();
            state.pinned.retain(|pin| !Arc::ptr_eq(pin, &self.0));
            if state.lazy {
                return;
            }
            let pinned = state.pinned.clone();
            let waits = |deferred: &Deferred| deferred.waits_for.iter().any(|pin| pinned.iter().any(|pinned| Arc::ptr_eq(pin, pinned)));
            let (waiting, due): (Vec<_>, Vec<_>) = std::mem::take(&mut state.deferred).into_iter().partition(waits);
            state.deferred = waiting;
            due
        };
        due.into_iter().for_each(Deferred::run);
    }
}
