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

    fn intern(&self, value: &Arc<T>) -> usize {
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        let known = stored.iter().position(|known| Arc::ptr_eq(known, value));
        known.unwrap_or_else(|| {
            stored.push(Arc::clone(value));
            stored.len() - 1
        })
    }

    pub(crate) fn load(&self) -> ArcGuard<T> {
        ArcGuard(self.load_full())
    }

    pub(crate) fn load_full(&self) -> Arc<T> {
        // Acquire: what arc-swap promises for a load. Pairs with `replace`.
        let index = self.index.load(Acquire);
        Arc::clone(&self.stored.lock().unwrap_or_else(PoisonError::into_inner)[index])
    }

    #[must_use]
    pub(crate) fn replace(&self, current: &Arc<T>, new: Arc<T>) -> bool {
        let (current, new) = (self.intern(current), self.intern(&new));
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
