//! Allocator → authority → context, exactly once, on every path.
//!
//! Whoever brings a mechanism's handle count to zero runs this at once, on its own thread, with nothing of ours held. Each
//! destructor is the user's: it may call anything, or panic. A panic is kept until everything that is due has been done, and then goes on to the
//! caller. A thread that is unwinding already can't take another panic: it is counted, [`suppressed_panics`], and dropped.
//!
//! A destructor may let go of the last pin of something else, whose destructor does the same, and so on. What falls due within a
//! destructor is therefore left to the outermost call, which carries it out before it returns: one after the other, on a stack that
//! does not grow.

use crate::sync::{
    process::{AssertUnwindSafe, AtomicU64, Ordering::Relaxed, catch_unwind, panicking, resume_unwind},
    thread_local,
};
use std::{any::Any, cell::RefCell, collections::VecDeque, mem};

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

type Due = Box<dyn FnOnce(&mut Destruction)>;

thread_local! {
    /// What has fallen due within a destructor of this thread; `None` outside of destructors.
    static NESTED: RefCell<Option<VecDeque<Due>>> = const { RefCell::new(None) };
}

/// What a call has to destroy.
#[must_use = "what is due is carried out in `finish`"]
#[derive(Default)]
pub(crate) struct Destruction {
    due: VecDeque<Due>,
    first: Option<Box<dyn Any + Send>>,
}

impl Destruction {
    /// Notes something to be carried out. Runs nothing yet.
    pub(crate) fn owe(&mut self, due: impl FnOnce(&mut Self) + 'static) {
        self.due.push_back(Box::new(due));
    }

    /// Drops one thing of the user's, whatever becomes of it. For what is being carried out.
    pub(crate) fn destroy<T>(&mut self, thing: T) {
        // AssertUnwindSafe: what is left half-done belongs to the user's own destructor.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(thing))) {
            match self.first {
                None => self.first = Some(panic),
                Some(_) => suppress(panic),
            }
        }
    }

    /// Carries out what is due, then passes the first panic on, if this thread can take it. Within a destructor that another call
    /// carries out, leaves all of it to that call.
    pub(crate) fn finish(mut self) {
        if self.is_left_to_the_outermost() {
            return;
        }
        loop {
            while let Some(due) = self.due.pop_front() {
                due(&mut self);
            }
            self.due = nested();
            if self.due.is_empty() {
                break;
            }
        }
        match self.first {
            Some(panic) if panicking() => suppress(panic),
            Some(panic) => resume_unwind(panic),
            None => {}
        }
    }

    /// Hands what is due to the outermost call of this thread, or becomes that call.
    fn is_left_to_the_outermost(&mut self) -> bool {
        let left = NESTED.try_with(|nested| match &mut *nested.borrow_mut() {
            Some(outermost) => {
                outermost.append(&mut self.due);
                true
            }
            outside => {
                *outside = Some(VecDeque::new());
                false
            }
        });
        // At a thread's end, once the list has gone, each call carries out its own.
        left.unwrap_or(false)
    }
}

/// What the destructors so far have left to the outermost call. If that is nothing, it is the outermost no more.
fn nested() -> VecDeque<Due> {
    let left = NESTED.try_with(|nested| {
        let mut nested = nested.borrow_mut();
        let left = nested.as_mut().map(mem::take).unwrap_or_default();
        if left.is_empty() {
            *nested = None;
        }
        left
    });
    left.unwrap_or_default()
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
