//! Token → entry: a slab of chunks that never move, whose entries are memory of the epoch.
//!
//! A place is a pointer and a bit. Inserting takes a free bit with one compare-and-swap, then writes the pointer; removing
//! exchanges the pointer for null, which has one winner, and frees the bit afterwards. Chunks double in size, are put in place by
//! one compare-and-swap, and live as long as the table; so nothing is ever copied.
//!
//! A place is used again, an entry's [tag](Tagged::tag) never is: who looks one up names the tag, and finds nothing if another
//! entry stands there. The table owns one `Arc` of each entry. It lets that go through the epoch once the entry is unlinked, so
//! what was found under a guard stays memory as long as the guard.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`Table::get`] | wait-free | three loads |
//! | [`Table::insert`] | lock-free | a load per 64 places in use, two read-modify-writes |
//! | [`Table::remove`] | wait-free but for the deferral, which is lock-free | two read-modify-writes, one deferral |
//! | [`Table::iter`], [`Table::places`] | wait-free | a load per 64 places, one per entry |

use super::once::WriteOnce;
use crate::sync::{
    Arc,
    atomic::{AtomicPtr, AtomicU64, Ordering::*},
    epoch::Guard,
};
use std::{marker::PhantomData, ops::Deref, ptr, ptr::NonNull};

/// Places per occupancy word.
const WIDTH: usize = if cfg!(any(liveslot_loom, liveslot_shuttle)) { 2 } else { 64 };
/// Chunk `k` has 2ᵏ words.
const CHUNKS: usize = if cfg!(liveslot_loom) {
    3
} else if cfg!(liveslot_shuttle) {
    6
} else {
    26
};

/// What tells an entry from every other that ever stands in its place.
pub trait Tagged {
    /// Never used again.
    fn tag(&self) -> u64;
}

/// Where an entry stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place(u32);

/// Every place is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFull;

struct Word<T> {
    /// A bit per place: taken. Only a hint to readers: the pointer decides.
    taken: AtomicU64,
    entries: [AtomicPtr<T>; WIDTH],
}

pub struct Table<T> {
    chunks: [WriteOnce<Box<[Word<T>]>>; CHUNKS],
    owns: PhantomData<Arc<T>>,
}

/// An entry that was found under a guard: memory for as long as that guard, whatever becomes of the entry.
pub struct Found<'g, T> {
    /// From `Arc::into_raw`.
    entry: NonNull<T>,
    guard: PhantomData<&'g Guard>,
}

// SAFETY: owns `Arc`s of the entries and hands out `&T` to any thread.
unsafe impl<T: Send + Sync> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Table<T> {}

impl<T: Tagged + Send + Sync + 'static> Table<T> {
    pub fn new() -> Self {
        Self { chunks: std::array::from_fn(|_| WriteOnce::new()), owns: PhantomData }
    }

    fn chunk(&self, index: usize) -> &[Word<T>] {
        let word = |_| Word { taken: AtomicU64::new(0), entries: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())) };
        match self.chunks[index].get() {
            Some(chunk) => chunk,
            None => self.chunks[index].set((0..1 << index).map(word).collect()),
        }
    }

    /// The word and the place in it.
    fn locate(&self, Place(place): Place) -> Option<(&Word<T>, usize)> {
        let (word, at) = (place as usize / WIDTH, place as usize % WIDTH);
        let chunk = (word + 1).ilog2() as usize;
        let words = self.chunks.get(chunk)?.get()?;
        Some((&words[word + 1 - (1 << chunk)], at))
    }

    /// Puts an entry in a free place.
    pub fn insert(&self, entry: Arc<T>) -> Result<Place, TableFull> {
        for chunk in 0..CHUNKS {
            for (index, word) in self.chunk(chunk).iter().enumerate() {
                let Some(at) = word.take() else { continue };
                // Release: publishes the entry. Pairs with the Acquire in `find`.
                word.entries[at].store(Arc::into_raw(entry).cast_mut(), Release);
                let word = (1 << chunk) - 1 + index;
                return Ok(Place((word * WIDTH + at) as u32));
            }
        }
        Err(TableFull)
    }

    /// The entry with this tag, if it stands in this place.
    pub fn get<'g>(&self, place: Place, tag: u64, guard: &'g Guard) -> Option<Found<'g, T>> {
        let (word, at) = self.locate(place)?;
        word.find(at, guard).filter(|entry| entry.tag() == tag)
    }

    /// Unlinks the entry with this tag; says whether this call did. The table's `Arc` of it goes to the epoch.
    pub fn remove(&self, place: Place, tag: u64, guard: &Guard) -> bool {
        let Some((word, at)) = self.locate(place) else { return false };
        let Some(entry) = word.find(at, guard).filter(|entry| entry.tag() == tag) else { return false };
        let entry = entry.entry.as_ptr();
        // AcqRel: of racing removals one wins; the place's next entry comes after. An entry under a guard is not freed,
        // so its address can't have come back.
        if word.entries[at].compare_exchange(entry, ptr::null_mut(), AcqRel, Relaxed).is_err() {
            return false;
        }
        // SAFETY: `insert` put it there with `into_raw`, and the exchange, which has one winner, took it out.
        let owned = unsafe { Arc::from_raw(entry.cast_const()) };
        guard.defer(move || drop(owned));
        word.give_back(at);
        true
    }

    /// Every entry. One that stands during the whole walk is met; one that comes or goes may be.
    pub fn iter<'g>(&'g self, guard: &'g Guard) -> impl Iterator<Item = Found<'g, T>> {
        self.places(guard).map(|(_, found)| found)
    }

    /// Every entry with where it stands, as [`iter`](Self::iter).
    pub fn places<'g>(&'g self, guard: &'g Guard) -> impl Iterator<Item = (Place, Found<'g, T>)> {
        let words = self.chunks.iter().map_while(WriteOnce::get).flat_map(|words| words.iter());
        words.enumerate().flat_map(move |(index, word)| {
            let place = move |at| Some((Place((index * WIDTH + at) as u32), word.find(at, guard)?));
            word.taken().filter_map(place)
        })
    }
}

impl<T> Word<T> {
    /// Takes a free place of this word.
    fn take(&self) -> Option<usize> {
        const FULL: u64 = u64::MAX >> (u64::BITS as usize - WIDTH);
        // Relaxed: a stale word costs a retry.
        let mut taken = self.taken.load(Relaxed);
        while taken != FULL {
            let at = taken.trailing_ones();
            // AcqRel: Acquire pairs with the Release in `give_back`, so that our pointer comes after the null.
            // Release, for walkers: a place is seen taken before an entry that was inserted in it counts as missed.
            match self.taken.compare_exchange(taken, taken | 1 << at, AcqRel, Relaxed) {
                Ok(_) => return Some(at as usize),
                Err(newer) => taken = newer,
            }
        }
        None
    }

    fn give_back(&self, at: usize) {
        // Release: the null is written before the place can be taken. Pairs with `take`.
        self.taken.fetch_and(!(1 << at), Release);
    }

    fn taken(&self) -> impl Iterator<Item = usize> {
        // Acquire: as strong as the walk needs; whoever must not miss an entry has a fence between the insertion and the walk.
        let mut left = self.taken.load(Acquire);
        std::iter::from_fn(move || {
            let at = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (at < u64::BITS).then_some(at as usize)
        })
    }

    fn find<'g>(&self, at: usize, _guard: &'g Guard) -> Option<Found<'g, T>> {
        // Acquire: pairs with the Release in `insert`.
        NonNull::new(self.entries[at].load(Acquire)).map(|entry| Found { entry, guard: PhantomData })
    }
}

impl<T> Found<'_, T> {
    /// Another owner of the entry.
    pub fn own(&self) -> Arc<T> {
        let entry = self.entry.as_ptr().cast_const();
        // SAFETY: from `Arc::into_raw`. Whoever unlinks the entry defers the release of the table's count through the epoch, so
        // that count stands while the guard does.
        unsafe {
            Arc::increment_strong_count(entry);
            Arc::from_raw(entry)
        }
    }
}

impl<T> Deref for Found<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: as in `own`: the guard keeps the table's count of the entry.
        unsafe { self.entry.as_ref() }
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for word in self.chunks.iter().filter_map(WriteOnce::get).flat_map(|words| words.iter()) {
            for entry in &word.entries {
                // Acquire: pairs with the Release in `insert`.
                let entry = entry.load(Acquire);
                if !entry.is_null() {
                    // SAFETY: `insert` put it there with `into_raw`; `&mut self` says that nobody looks any more.
                    drop(unsafe { Arc::from_raw(entry.cast_const()) });
                }
            }
        }
    }
}
