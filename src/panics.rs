//! What becomes of a panic in code of the user's that a call of ours runs.
//!
//! A call that has more to do when a piece of the user's code panics keeps the panic, does the rest, and then passes it on: the caller
//! learns of it, and nothing is left half-done. A panic that nobody can take, since the thread is unwinding already, another one
//! came first, or the code was somebody else's, is counted and dropped.

use crate::{
    callback::Inside,
    sync::process::{AssertUnwindSafe, AtomicU64, Ordering::Relaxed, catch_unwind, panicking, resume_unwind},
};
use std::any::Any;

/// How many payloads that panic when they are dropped are followed up before one is leaked.
const MOST_PAYLOADS: usize = 8;

static SUPPRESSED: AtomicU64 = AtomicU64::new(0);

/// How many panics of users' code this process has caught and not passed on: of destructors, of allocators in a
/// [trim](crate::BindingRegistry::trim), of recorders and subscribers, because the thread was unwinding already, or because another one had
/// panicked before in the same teardown, trim or call; and of wakers.
///
/// # Progress
///
/// Wait-free: one load.
#[must_use]
pub fn suppressed_panics() -> u64 {
    // Relaxed: a count for observers, which orders nothing.
    SUPPRESSED.load(Relaxed)
}

/// The panics of users' code in a call that runs several pieces of it, each whatever became of those before.
#[must_use = "the first panic is the caller's"]
#[derive(Default)]
pub(crate) struct Panics {
    first: Option<Box<dyn Any + Send>>,
    /// How many there were.
    count: usize,
}

impl Panics {
    /// Runs one piece. `None` if it panics: the first panic is kept, the others are counted.
    pub(crate) fn catch<R>(&mut self, code: impl FnOnce() -> R) -> Option<R> {
        let _inside = Inside::enter();
        // AssertUnwindSafe: what is left half-done belongs to the user's own code.
        match catch_unwind(AssertUnwindSafe(code)) {
            Ok(result) => Some(result),
            Err(panic) => {
                self.count += 1;
                match self.first {
                    None => self.first = Some(panic),
                    Some(_) => suppress(panic),
                }
                None
            }
        }
    }

    /// Passes the first panic on, if this thread can take it.
    pub(crate) fn pass_on(self) {
        match self.first {
            Some(panic) if panicking() => suppress(panic),
            Some(panic) => resume_unwind(panic),
            None => {}
        }
    }

    /// Drops the first panic; says how many there were. For a call that reports instead of panicking.
    pub(crate) fn suppress(self) -> usize {
        self.first.into_iter().for_each(suppress);
        self.count
    }
}

/// Runs code of the user's whose panic is nothing to the caller.
pub(crate) fn suppressing(code: impl FnOnce()) {
    let _inside = Inside::enter();
    // AssertUnwindSafe: what is left half-done belongs to the user's own code.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(code)) {
        suppress(panic);
    }
}

#[cold]
fn suppress(panic: Box<dyn Any + Send>) {
    let _inside = Inside::enter();
    // Relaxed: as in `suppressed_panics`.
    SUPPRESSED.fetch_add(1, Relaxed);
    // A payload is the user's as well, and may panic when it is dropped, with another one. Somewhere that has to end.
    let mut left = Some(panic);
    for _ in 0..MOST_PAYLOADS {
        let Some(payload) = left.take() else { return };
        left = catch_unwind(AssertUnwindSafe(|| drop(payload))).err();
    }
    std::mem::forget(left);
}
