//! A shared value that counts its references, and whose only reference costs no read-modify-write to let go.
//!
//! std's `Arc` keeps a second count for weak references and pays one read-modify-write on each when the last reference goes. A
//! value that mostly has one reference in its life (an allocation's record without views) would pay both for nothing.
//! Here is one count. Only a holder can count another reference, so a holder that reads 1 is alone and stays alone: it frees the
//! value after one load.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`Counted::new`] | the process heap's | one allocation |
//! | [`Counted::clone`] | wait-free | one RMW |
//! | drop | wait-free, the value's drop excepted | one load; unless alone one RMW |

use crate::sync::atomic::{AtomicUsize, Ordering::*, fence};
use std::{marker::PhantomData, ptr::NonNull};

/// A share of a `T`.
pub struct Counted<T> {
    shared: NonNull<Shared<T>>,
    /// Dropping a share may drop the value.
    _owns: PhantomData<T>,
}

struct Shared<T> {
    references: AtomicUsize,
    value: T,
}

// SAFETY: a share gives `&T` to its thread and may drop the `T` there, as `Arc` does.
unsafe impl<T: Send + Sync> Send for Counted<T> {}
// SAFETY: as above, since a `&Counted` can be cloned.
unsafe impl<T: Send + Sync> Sync for Counted<T> {}

impl<T> Counted<T> {
    /// The only share of `value`.
    #[inline]
    pub fn new(value: T) -> Self {
        let shared = Box::new(Shared { references: AtomicUsize::new(1), value });
        Self { shared: NonNull::from(Box::leak(shared)), _owns: PhantomData }
    }

    /// The value.
    #[inline(always)]
    pub const fn get(&self) -> &T {
        // SAFETY: this share is counted, so the value stands.
        unsafe { &self.shared.as_ref().value }
    }
}

impl<T> Clone for Counted<T> {
    #[inline]
    fn clone(&self) -> Self {
        // SAFETY: this share is counted, so the count stands.
        let references = unsafe { &self.shared.as_ref().references };
        // Relaxed: our own share keeps the value, whatever order others see.
        if references.fetch_add(1, Relaxed) > isize::MAX as usize {
            // As std's `Arc` does: half of the range is left for those who get here at once.
            std::process::abort();
        }
        Self { shared: self.shared, _owns: PhantomData }
    }
}

impl<T> Drop for Counted<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this share is counted until the subtraction below, after which nothing here is touched unless it was the last.
        let references = unsafe { &self.shared.as_ref().references };
        // Acquire, here and in the fence: every other share's use of the value happens-before its end. Pairs with the Release of
        // the subtraction. One is ours; nobody else has a share to count another from.
        if references.load(Acquire) != 1 {
            // Release: our use of the value happens-before its end.
            if references.fetch_sub(1, Release) != 1 {
                return;
            }
            fence(Acquire);
        }
        // SAFETY: from `Box::leak` in `new`; ours was the last share, so this is done once and nobody looks any more.
        drop(unsafe { Box::from_raw(self.shared.as_ptr()) });
    }
}
