//! The swappable `Arc` in a model: a loom atomic that holds an index into a table of every `Arc` ever stored here.
//!
//! Stale loads are explored, and no edge is added that the real cell does not promise. `Arc`s are interned by pointer,
//! so that the index means pointer identity, ABA included. The table's mutex is std's, which loom does not see; it
//! keeps its `Arc`s until the cell is dropped, so no model may wait for a stored value's drop.

use loom::sync::atomic::{AtomicUsize, Ordering::*};
use std::{
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
};

/// Index 0 of every cell.
const NOTHING: usize = 0;

#[derive(Debug)]
pub(crate) struct ArcCell<T> {
    index: AtomicUsize,
    stored: Mutex<Vec<Arc<T>>>,
}

pub(crate) struct ArcGuard<T>(Option<Arc<T>>);

impl<T> ArcCell<T> {
    pub(crate) fn new(value: Option<Arc<T>>) -> Self {
        let cell = Self { index: AtomicUsize::new(NOTHING), stored: Mutex::new(Vec::new()) };
        let first = cell.intern(value);
        // A model may only read what some thread stored: start from the first value, not from nothing.
        Self { index: AtomicUsize::new(first), stored: cell.stored }
    }

    fn intern(&self, value: Option<Arc<T>>) -> usize {
        let Some(value) = value else { return NOTHING };
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        let known = stored.iter().position(|known| Arc::ptr_eq(known, &value));
        known.unwrap_or_else(|| {
            stored.push(value);
            stored.len() - 1
        }) + 1
    }

    fn at(&self, index: usize) -> Option<Arc<T>> {
        let stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        index.checked_sub(1).map(|at| Arc::clone(&stored[at]))
    }

    pub(crate) fn load(&self) -> ArcGuard<T> {
        ArcGuard(self.load_full())
    }

    pub(crate) fn load_full(&self) -> Option<Arc<T>> {
        // Acquire: what arc-swap promises for a load. Pairs with the stores below.
        self.at(self.index.load(Acquire))
    }

    pub(crate) fn clear(&self) {
        // AcqRel: arc-swap's store is a swap.
        self.index.swap(NOTHING, AcqRel);
    }

    #[must_use]
    pub(crate) fn replace(&self, current: &Arc<T>, new: Arc<T>) -> bool {
        let current = self.intern(Some(Arc::clone(current)));
        let new = self.intern(Some(new));
        // A plain load first: loom's failed exchange reads the newest store only, arc-swap's may read an older one.
        // Acquire, AcqRel: what arc-swap promises for a failed and for a successful compare-and-swap.
        self.index.load(Acquire) == current && self.index.compare_exchange(current, new, AcqRel, Acquire).is_ok()
    }
}

impl<T> Deref for ArcGuard<T> {
    type Target = Option<Arc<T>>;

    fn deref(&self) -> &Option<Arc<T>> {
        &self.0
    }
}
