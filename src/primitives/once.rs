//! A value that is written at most once, by whoever comes first, and never changes.
//!
//! The pointer is null until one compare-and-swap sets it. Those who come too late get their value back, so nobody waits
//! for anybody: this is what `OnceLock` is not.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`WriteOnce::get`] | wait-free | one load |
//! | [`WriteOnce::set`] | wait-free | one allocation, one compare-and-swap |

use crate::sync::atomic::{AtomicPtr, Ordering::*};
use std::{marker::PhantomData, ptr};

pub struct WriteOnce<T> {
    value: AtomicPtr<T>,
    owns: PhantomData<Box<T>>,
}

// SAFETY: owns a `T` that any thread may drop, and hands out `&T` to any thread.
unsafe impl<T: Send> Send for WriteOnce<T> {}
// SAFETY: as above; `set` moves a `T` in from any thread.
unsafe impl<T: Send + Sync> Sync for WriteOnce<T> {}

impl<T> WriteOnce<T> {
    pub fn new() -> Self {
        Self { value: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    #[inline]
    pub fn get(&self) -> Option<&T> {
        // Acquire: pairs with the Release half of the exchange in `set`, which publishes what is pointed at.
        let value = self.value.load(Acquire);
        // SAFETY: null or the box that `set` published, which lives until `self` is dropped.
        unsafe { value.as_ref() }
    }

    /// Writes `value` unless something is written already. Either way the answer is what stands there now.
    pub fn set(&self, value: T) -> &T {
        let ours = Box::into_raw(Box::new(value));
        // AcqRel: Release publishes `*ours`; on failure Acquire sees the winner's. Pairs with `get` and with itself.
        let stands = match self.value.compare_exchange(ptr::null_mut(), ours, AcqRel, Acquire) {
            Ok(_) => ours,
            Err(winner) => {
                // SAFETY: the exchange failed, so `ours` was never published and is ours alone.
                drop(unsafe { Box::from_raw(ours) });
                winner
            }
        };
        // SAFETY: published, so it lives until `self` is dropped.
        unsafe { &*stands }
    }
}

impl<T> WriteOnce<T> {
    /// Takes the value out, once nobody else can reach it.
    pub fn take(&mut self) -> Option<Box<T>> {
        // Acquire: pairs with `set`; whoever wrote need not be who takes.
        let value = self.value.swap(ptr::null_mut(), Acquire);
        // SAFETY: published by `set` from a box, and taken out; `&mut self` says that nobody can reach it any more.
        (!value.is_null()).then(|| unsafe { Box::from_raw(value) })
    }
}

impl<T> Drop for WriteOnce<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
