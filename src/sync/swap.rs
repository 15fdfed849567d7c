//! The swappable `Arc`, on arc-swap. Under shuttle each operation is one step, behind a switch point of its own.

use arc_swap::{ArcSwapOption, Guard};
use std::{ops::Deref, sync::Arc};

/// A cell that holds an `Arc` or nothing. Reading it writes no shared count.
#[derive(Debug)]
pub(crate) struct ArcCell<T> {
    cell: ArcSwapOption<T>,
    #[cfg(liveslot_shuttle)]
    switch: shuttle::sync::atomic::AtomicUsize,
}

/// What [`ArcCell::load`] protects. Held for a few instructions only, and never while user code runs.
pub(crate) struct ArcGuard<T>(Guard<Option<Arc<T>>>);

impl<T> ArcCell<T> {
    pub(crate) fn new(value: Option<Arc<T>>) -> Self {
        Self {
            cell: ArcSwapOption::new(value),
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

    pub(crate) fn load_full(&self) -> Option<Arc<T>> {
        self.switch();
        self.cell.load_full()
    }

    /// Empties the cell.
    pub(crate) fn clear(&self) {
        self.switch();
        self.cell.store(None);
    }

    /// Puts `new` in place of `current` if `current` still stands there; says whether it did.
    #[must_use]
    pub(crate) fn replace(&self, current: &Arc<T>, new: Arc<T>) -> bool {
        self.switch();
        let current = Arc::as_ptr(current);
        let before = self.cell.compare_and_swap(current, Some(new));
        before.as_ref().is_some_and(|before| std::ptr::eq(Arc::as_ptr(before), current))
    }
}

impl<T> Deref for ArcGuard<T> {
    type Target = Option<Arc<T>>;

    #[inline]
    fn deref(&self) -> &Option<Arc<T>> {
        &self.0
    }
}
