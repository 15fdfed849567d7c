//! The swappable `Arc` in a model: a loom atomic that holds an index into a table of every `Arc` ever stored here.
//!
//! Stale loads are explored, and no edge is added that the real cell does not promise. `Arc`s are interned by pointer,
//! so that the index means pointer identity, ABA included. The table's mutex is std's, which loom does not see; it
//! keeps its `Arc`s until the cell is dropped, so no model may wait for a stored value's drop.

use loom::sync::atomic::{AtomicUsize, Ordering::*};
use std::{
    ops::Deref,
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

#[derive(Debug)]
pub(crate) struct ArcCell<T> {
    index: AtomicUsize,
    stored: Mutex<Vec<Arc<T>>>,
}

pub(crate) struct ArcGuard<T>(Arc<T>);

impl<T> ArcCell<T> {
    pub(crate) fn new(value: Arc<T>) -> Self {
        Self { index: AtomicUsize::new(0), stored: Mutex::new(vec![value]) }
    }

    fn stored(&self) -> MutexGuard<'_, Vec<Arc<T>>> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn index_of(&self, value: *const T) -> Option<usize> {
        self.stored().iter().position(|known| ptr::eq(Arc::as_ptr(known), value))
    }

    fn intern(&self, value: Arc<T>) -> usize {
        self.index_of(Arc::as_ptr(&value)).unwrap_or_else(|| {
            let mut stored = self.stored();
            stored.push(value);
            stored.len() - 1
        })
    }

    pub(crate) fn load(&self) -> ArcGuard<T> {
        ArcGuard(self.load_full())
    }

    pub(crate) fn load_full(&self) -> Arc<T> {
        // Acquire: what arc-swap promises for a load. Pairs with `replace`.
        let index = self.index.load(Acquire);
        Arc::clone(&self.stored()[index])
    }

    #[must_use]
    pub(crate) fn replace(&self, current: *const T, new: Arc<T>) -> bool {
        let Some(current) = self.index_of(current) else { return false };
        let new = self.intern(new);
        // A plain load first: loom's failed exchange reads the newest store only, arc-swap's may read an older one.
        // Acquire, AcqRel: what arc-swap promises for a failed and for a successful compare-and-swap.
        self.index.load(Acquire) == current && self.index.compare_exchange(current, new, AcqRel, Acquire).is_ok()
    }
}

impl<T> Deref for ArcGuard<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        &self.0
    }
}
