//! Whether this thread is inside code of the user's that a call of ours runs.
//!
//! Such code may make any call but one: what waits for an operation, a destructor or a waker to end must not wait from within it, since that
//! would be waiting for itself. So each thread counts how deep in such code it is, and
//! [`shutdown`](crate::BindingRegistry::shutdown) is refused there. The count is the thread's alone, and it is raised and lowered where
//! the code is called, on unwinding too, so it costs two plain additions to a word of the thread.
//!
//! | what is called | counted by |
//! | --- | --- |
//! | allocators and their capabilities | [`Called`], which is what a hold gives out to call |
//! | closures, conversions, queues, wakers' clones, gauges' recorders | [`run`] |
//! | destructors, calls of wakers, subscribers, counters' recorders | [`Panics::catch`](crate::panics::Panics::catch) and [`suppressing`](crate::panics::suppressing) |
//! | destructors of wakers, of queues' markers, and of what closures keep | [`Theirs`] |
//!
//! What a [`SelectionSlot`](crate::SelectionSlot) of the user's own runs is not counted: no registry waits for it.

use crate::sync::thread_local;
use std::{
    cell::Cell,
    marker::PhantomData,
    mem::{ManuallyDrop, needs_drop},
    ops::{Deref, DerefMut},
};

thread_local! {
    /// How many calls of the user's code are on this thread's stack. Without a destructor, so that it is there at a thread's end as well.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// While this stands, the thread is inside a callback.
pub(crate) struct Inside(PhantomData<*const ()>);

impl Inside {
    #[inline(always)]
    pub(crate) fn enter() -> Self {
        // A stack that is 2³² calls deep does not exist.
        DEPTH.with(|depth| depth.set(depth.get().wrapping_add(1)));
        Self(PhantomData)
    }
}

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get().wrapping_sub(1)));
    }
}

/// Whether the calling thread is inside a callback.
pub(crate) fn is_inside() -> bool {
    DEPTH.with(Cell::get) != 0
}

/// Runs code of the user's.
#[inline(always)]
pub(crate) fn run<R>(code: impl FnOnce() -> R) -> R {
    let _inside = Inside::enter();
    code()
}

/// An object of the user's that is being called: the thread is inside a callback while this stands.
pub(crate) struct Called<'a, T: ?Sized> {
    called: &'a T,
    inside: Inside,
}

impl<'a, T: ?Sized> Called<'a, T> {
    #[inline(always)]
    pub(crate) fn new(called: &'a T) -> Self {
        Self { called, inside: Inside::enter() }
    }

    /// A part of it, which it is asked for.
    #[inline(always)]
    pub(crate) fn map<U: ?Sized>(self, part: impl FnOnce(&'a T) -> &'a U) -> Called<'a, U> {
        Called { called: part(self.called), inside: self.inside }
    }
}

impl<T: ?Sized> Deref for Called<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.called
    }
}

/// A value of the user's, whose destructor runs inside.
pub(crate) struct Theirs<T>(ManuallyDrop<T>);

impl<T> Theirs<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }

    pub(crate) fn into_inner(self) -> T {
        let mut theirs = ManuallyDrop::new(self);
        // SAFETY: the value is moved out once: the wrapper is neither dropped nor touched again.
        unsafe { ManuallyDrop::take(&mut theirs.0) }
    }
}

impl<T> Deref for Theirs<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Theirs<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for Theirs<T> {
    fn drop(&mut self) {
        if needs_drop::<T>() {
            // SAFETY: the value is not touched again.
            run(|| unsafe { ManuallyDrop::drop(&mut self.0) });
        }
    }
}
