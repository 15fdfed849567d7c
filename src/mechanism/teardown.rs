//! Allocator → authority → context, exactly once, on every path.
//!
//! Whoever brings a mechanism's handle count to zero runs this at once, on its own thread, with nothing of ours held. Each
//! destructor is the user's: it may call anything, or panic. A panic is kept until everything that is due has been done, and
//! then goes on to the caller. A thread that is unwinding already can't take another panic: it is counted,
//! [`suppressed_panics`](crate::suppressed_panics), and dropped.
//!
//! A destructor may let go of the last pin of something else, whose destructor does the same, and so on. What falls due within a
//! destructor is therefore left to the outermost call, which carries it out before it returns: one after the other, on a stack that
//! does not grow.
//!
//! A waker may stop its thread for ever, and what is due there is nobody else's to destroy. So notices come behind all destructors, those
//! that have fallen due meanwhile included; threads that are parked are woken at once. A waker is called when the call has left its
//! destructions: what it causes itself it may wait for, and is destroyed before it can stop. So, other than with destructors, the stack
//! grows with a row of wakers each of which lets the last hold go that the next one's teardown waits for.

use crate::{
    panics::Panics,
    primitives::waiters::Waiters,
    sync::{Arc, thread_local},
};
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    marker::PhantomData,
    mem,
    ptr::NonNull,
};

type Due = Box<dyn FnOnce(&mut Destruction)>;

/// What a call owes, in its order.
#[derive(Default)]
struct Owed {
    destructors: VecDeque<Due>,
    /// Who is woken then.
    notices: VecDeque<Box<dyn FnOnce()>>,
}

impl Owed {
    fn append(&mut self, mut other: Self) {
        self.destructors.append(&mut other.destructors);
        self.notices.append(&mut other.notices);
    }
}

/// What falls due within the destructors that the outermost call of a thread carries out. It stands on that call's stack.
type Nested = RefCell<Owed>;

thread_local! {
    /// The outermost call's list, while there is such a call. Without a destructor, so that it is there at a thread's end as well.
    static OUTERMOST: Cell<Option<NonNull<Nested>>> = const { Cell::new(None) };
}

/// What a call has to destroy.
#[must_use = "what is due is carried out in `finish`"]
#[derive(Default)]
pub(crate) struct Destruction {
    owed: Owed,
    panics: Panics,
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    told: Vec<Box<dyn FnOnce()>>,
}

impl Destruction {
    /// Notes something to be carried out. Runs nothing yet.
    pub(crate) fn owe(&mut self, due: impl FnOnce(&mut Self) + 'static) {
        self.owed.destructors.push_back(Box::new(due));
    }

    /// Wakes the threads among the `waiters` of `of`, and notes the others, behind all destructors: none of their wakers is to delay one.
    pub(crate) fn owe_notice<T: 'static>(&mut self, of: &Arc<T>, waiters: fn(&T) -> &Waiters) {
        waiters(of).unpark();
        let of = Arc::clone(of);
        self.owed.notices.push_back(Box::new(move || waiters(&of).notify()));
    }

    /// Notes something that subscribers and recorders are told at the end. Forgotten at once without the features `tracing` and `metrics`.
    pub(crate) fn tell(&mut self, event: impl FnOnce() + 'static) {
        #[cfg(any(feature = "metrics", feature = "tracing"))]
        self.told.push(Box::new(event));
        #[cfg(not(any(feature = "metrics", feature = "tracing")))]
        drop(event);
    }

    /// Drops one thing of the user's, whatever becomes of it. Only for what [`finish`](Self::finish) carries out: it answers for the
    /// panic.
    pub(crate) fn destroy<T>(&mut self, thing: T) {
        self.panics.catch(|| drop(thing));
    }

    /// Carries out what is due, tells what is to be told, then passes the first panic on, if this thread can take it. Within a destructor
    /// that another call carries out, leaves what is due to that call.
    pub(crate) fn finish(self) {
        self.carried_out().pass_on();
    }

    /// The same, with the panics for the caller to answer for.
    pub(crate) fn carried_out(mut self) -> Panics {
        self.destroy_due();
        // Those that are left, and that is over: what a waker lets go of last is destroyed then and there.
        while let Some(notice) = self.owed.notices.pop_front() {
            notice();
        }
        #[cfg(any(feature = "metrics", feature = "tracing"))]
        for event in self.told {
            self.panics.catch(event);
        }
        self.panics
    }

    /// Destroys what is due so far; within a destructor that another call carries out, leaves it to that call. Whoever is to be woken or
    /// told is left to [`carried_out`](Self::carried_out).
    pub(crate) fn destroy_due(&mut self) {
        match OUTERMOST.with(Cell::get) {
            // SAFETY: the call whose list this is has set the pointer and not taken it back, so it is further up on this stack.
            Some(outermost) => unsafe { outermost.as_ref() }.borrow_mut().append(mem::take(&mut self.owed)),
            None => {
                let nested = Nested::default();
                let _outermost = Outermost::set(&nested);
                self.destroy_owed(&nested);
            }
        }
    }

    fn destroy_owed(&mut self, nested: &Nested) {
        while let Some(due) = self.owed.destructors.pop_front().or_else(|| nested.borrow_mut().destructors.pop_front()) {
            due(self);
        }
        self.owed.append(nested.take());
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
