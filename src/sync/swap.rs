//! The swappable `Arc`, on arc-swap. Under shuttle each operation is one step, behind a switch point of its own.

use arc_swap::{ArcSwap, Guard};
use std::{ops::Deref, sync::Arc};

/// A cell that holds an `Arc`. Reading it writes no shared count.
#[derive(Debug)]
pub(crate) struct ArcCell<T> {
    cell: ArcSwap<T>,
    #[cfg(liveslot_shuttle)]
    switch: shuttle::sync::atomic::AtomicUsize,
}

/// What [`ArcCell::load`] protects. Held for a few instructions only, and never while user code runs.
pub(crate) struct ArcGuard<T>(Guard<Arc<T>>);

impl<T> ArcCell<T> {
    pub(crate) fn new(value: Arc<T>) -> Self {
        Self {
            cell: ArcSwap::new(value),
            #[cfg(liveslot_shuttle)]
            switch: shuttle::sync::atomic::AtomicUsize::new(0),
        }
    }

    #[inline(always)]
    fn switch(&self) {
        #[cfg(liveslot_shuttle)]
        self.switch.load(shuttle::sync::atomic::Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn load(&self) -> ArcGuard<T> {
        self.switch();
        ArcGuard(self.cell.load())
    }

    pub(crate) fn load_full(&self) -> Arc<T> {
        self.switch();
        self.cell.load_full()
    }

    /// Puts `new` in place of what stands at `current`, which the caller keeps alive, if the cell still holds that; says whether it
    /// did.
    #[must_use]
    pub(crate) fn replace(&self, current: *const T, new: Arc<T>) -> bool {
        self.switch();
        let before = self.cell.compare_and_swap(current, new);
        std::ptr::eq(Arc::as_ptr(&before), current)
    }
}

impl<T> Deref for ArcGuard<T> {
    type Target = Arc<T>;

    #[inline]
    fn deref(&self) -> &Arc<T> {
        &self.0
    }
}
