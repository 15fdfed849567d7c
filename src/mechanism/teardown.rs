//! Allocator → authority → context, exactly once, on every path.
//!
//! Whoever brings a mechanism's handle count to zero runs this at once, on its own thread, with nothing of ours held. Each
//! destructor is the user's: it may call anything, or panic. A panic is kept until everything that is due has been done, and
//! then goes on to the caller. A thread that is unwinding already can't take another panic: it is counted,
//! [`suppressed_panics`], and dropped.

use crate::sync::process::{AssertUnwindSafe, AtomicU64, Ordering::Relaxed, catch_unwind, panicking, resume_unwind};
use std::any::Any;

static SUPPRESSED: AtomicU64 = AtomicU64::new(0);

/// How many panics of users' destructors this process has caught and not passed on, because the thread was unwinding already, or because
/// another destructor of the same teardown had panicked before.
///
/// # Progress
///
/// Wait-free: one load.
#[must_use]
pub fn suppressed_panics() -> u64 {
    // Relaxed: a count for observers, which orders nothing.
    SUPPRESSED.load(Relaxed)
}

/// Runs destructors one after the other, whatever becomes of each.
#[must_use = "the first panic goes on in `finish`"]
#[derive(Default)]
pub(crate) struct Destruction {
    first: Option<Box<dyn Any + Send>>,
}

impl Destruction {
    /// Drops one thing of the user's.
    pub(crate) fn destroy<T>(&mut self, thing: T) {
        self.run(|| drop(thing));
    }

    /// Runs something that destroys.
    pub(crate) fn run(&mut self, destroy: impl FnOnce()) {
        // AssertUnwindSafe: what is left half-done belongs to the user's own destructor.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(destroy)) {
            match self.first {
                None => self.first = Some(panic),
                Some(_) => suppress(panic),
            }
        }
    }

    /// Passes the first panic on, if this thread can take it.
    pub(crate) fn finish(self) {
        match self.first {
            Some(panic) if panicking() => suppress(panic),
            Some(panic) => resume_unwind(panic),
            None => {}
        }
    }
}

#[cold]
fn suppress(panic: Box<dyn Any + Send>) {
    // Relaxed: as in `suppressed_panics`.
    SUPPRESSED.fetch_add(1, Relaxed);
    // A payload is the user's as well, and may panic when it is dropped.
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(another);
    }
}
