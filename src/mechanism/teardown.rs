//! Allocator → authority → context, exactly once, on every path.
//!
//! Whoever brings a mechanism's handle count to zero runs this at once, on its own thread, with nothing of ours held. Each
//! destructor is the user's: it may call anything, or panic. A panic is kept until everything that is due has been done, and
//! then goes on to the caller. A thread that is unwinding already can't take another panic: it is counted,
//! [`suppressed_panics`], and dropped.
//!
//! A destructor may let go of the last pin of something else, whose destructor does the same, and so on. What falls due within a
//! destructor is therefore left to the outermost call, which carries it out before it returns: one after the other, on a stack that
//! does not grow.

use crate::sync::{
    process::{AssertUnwindSafe, AtomicU64, Ordering::Relaxed, catch_unwind, panicking, resume_unwind},
    thread_local,
};
use std::{
    any::Any,
    cell::{Cell, RefCell},
    collections::VecDeque,
    marker::PhantomData,
    ptr::NonNull,
};

/// How many payloads that panic when they are dropped are followed up before one is leaked.
const MOST_PAYLOADS: usize = 8;

static SUPPRESSED: AtomicU64 = AtomicU64::new(0);

/// How many panics of users' code this process has caught and not passed on: of destructors, because the thread was unwinding already, or
/// because another destructor of the same teardown had panicked before; and of wakers.
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

/// What falls due within the destructors that the outermost call of a thread carries out. It stands on that call's stack.
type Nested = RefCell<VecDeque<Due>>;

thread_local! {
    /// The outermost call's list, while there is such a call. Without a destructor, so that it is there at a thread's end as well.
    static OUTERMOST: Cell<Option<NonNull<Nested>>> = const { Cell::new(None) };
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

    /// Drops one thing of the user's, whatever becomes of it. Only for what [`finish`](Self::finish) carries out: it answers for the
    /// panic.
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
        if let Some(outermost) = OUTERMOST.with(Cell::get) {
            // SAFETY: the call whose list this is has set the pointer and not taken it back, so it is further up on this stack.
            unsafe { outermost.as_ref() }.borrow_mut().append(&mut self.due);
            return;
        }
        let nested = Nested::default();
        let outermost = Outermost::set(&nested);
        while let Some(due) = self.due.pop_front().or_else(|| nested.borrow_mut().pop_front()) {
            due(&mut self);
        }
        drop(outermost);
        match self.first {
            Some(panic) if panicking() => suppress(panic),
            Some(panic) => resume_unwind(panic),
            None => {}
        }
    }
}

/// Destroys one thing of the user's, as a call has to.
pub(crate) fn destroy<T: 'static>(thing: T) {
    let mut destruction = Destruction::default();
    destruction.owe(|destruction| destruction.destroy(thing));
    destruction.finish();
}

/// While this stands, `nested` takes what falls due on this thread.
struct Outermost<'a>(PhantomData<&'a Nested>);

impl<'a> Outermost<'a> {
    fn set(nested: &'a Nested) -> Self {
        OUTERMOST.with(|outermost| outermost.set(Some(NonNull::from(nested))));
        Self(PhantomData)
    }
}

impl Drop for Outermost<'_> {
    fn drop(&mut self) {
        OUTERMOST.with(|outermost| outermost.set(None));
    }
}

/// Runs code of the user's whose panic is nothing to the caller.
pub(crate) fn suppressing(code: impl FnOnce()) {
    // AssertUnwindSafe: what is left half-done belongs to the user's own code.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(code)) {
        suppress(panic);
    }
}

#[cold]
fn suppress(panic: Box<dyn Any + Send>) {
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
