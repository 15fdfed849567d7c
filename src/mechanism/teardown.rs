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

/// How many panics of users' code this process has caught and not passed on: of destructors, and of allocators in a
/// [trim](crate::BindingRegistry::trim), because the thread was unwinding already, or because another one had panicked before in the same
/// teardown or trim; and of wakers.
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
    panics: Panics,
    #[cfg(feature = "tracing")]
    told: Vec<Box<dyn FnOnce()>>,
}

impl Destruction {
    /// Notes something to be carried out. Runs nothing yet.
    pub(crate) fn owe(&mut self, due: impl FnOnce(&mut Self) + 'static) {
        self.due.push_back(Box::new(due));
    }

    /// Notes something that subscribers are told at the end. Forgotten at once without the feature `tracing`.
    pub(crate) fn tell(&mut self, event: impl FnOnce() + 'static) {
        #[cfg(feature = "tracing")]
        self.told.push(Box::new(event));
        #[cfg(not(feature = "tracing"))]
        drop(event);
    }

    /// Drops one thing of the user's, whatever becomes of it. Only for what [`finish`](Self::finish) carries out: it answers for the
    /// panic.
    pub(crate) fn destroy<T>(&mut self, thing: T) {
        self.panics.catch(|| drop(thing));
    }

    /// Carries out what is due, tells what is to be told, then passes the first panic on, if this thread can take it. Within a destructor
    /// that another call carries out, leaves what is due to that call.
    pub(crate) fn finish(mut self) {
        match OUTERMOST.with(Cell::get) {
            // SAFETY: the call whose list this is has set the pointer and not taken it back, so it is further up on this stack.
            Some(outermost) => unsafe { outermost.as_ref() }.borrow_mut().append(&mut self.due),
            None => self.carry_out(),
        }
        #[cfg(feature = "tracing")]
        for event in self.told {
            self.panics.catch(event);
        }
        self.panics.pass_on();
    }

    fn carry_out(&mut self) {
        let nested = Nested::default();
        let outermost = Outermost::set(&nested);
        while let Some(due) = self.due.pop_front().or_else(|| nested.borrow_mut().pop_front()) {
            due(self);
        }
        drop(outermost);
    }
}

/// The panics of users' code in a call that runs several pieces of it, each whatever became of those before.
#[must_use = "the first panic is the caller's"]
#[derive(Default)]
pub(crate) struct Panics {
    first: Option<Box<dyn Any + Send>>,
}

impl Panics {
    /// Runs one piece. `None` if it panics: the first panic is kept, the others are counted.
    pub(crate) fn catch<R>(&mut self, code: impl FnOnce() -> R) -> Option<R> {
        // AssertUnwindSafe: what is left half-done belongs to the user's own code.
        match catch_unwind(AssertUnwindSafe(code)) {
            Ok(result) => Some(result),
            Err(panic) => {
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
