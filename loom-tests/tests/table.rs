//! Models of `src/primitives/table.rs`.

#[path = "support/resource.rs"]
mod resource;
mod support;

use liveslot_loom::internals::{
    UnsafeCell,
    atomic::{
        AtomicBool,
        Ordering::{Relaxed, SeqCst},
        fence,
    },
    epoch,
    table::{Place, Table, TableFull, Tagged},
};
use resource::Resource;
use std::{
    sync::{Arc, atomic::AtomicUsize},
    thread,
};
use support::race;

/// The most entries that the table of a model holds.
const PLACES: u64 = 14;

struct Entry {
    tag: u64,
    /// Published with the entry.
    contents: UnsafeCell<u64>,
    memory: Arc<Memory>,
}

// SAFETY: loom checks each access to the cell against every other.
unsafe impl Sync for Entry {}

impl Entry {
    fn new(tag: u64, memory: Arc<Memory>) -> Arc<Self> {
        Arc::new(Self { tag, contents: UnsafeCell::new(tag), memory })
    }
}

/// Stands for an entry's memory and outlives it, so that a planted mistake reads none that is freed.
struct Memory {
    resource: Resource,
    freed: AtomicUsize,
}

impl Tagged for Entry {
    fn tag(&self) -> u64 {
        self.tag
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        self.memory.freed.fetch_add(1, Relaxed);
        self.memory.resource.tear_down();
    }
}

impl Memory {
    fn new() -> Arc<Self> {
        Arc::new(Self { resource: Resource::new(), freed: AtomicUsize::new(0) })
    }

    fn freed(&self) -> usize {
        self.freed.load(Relaxed)
    }
}

/// A table, and the memory of two entries, with the places of those that the model begins with.
struct State {
    table: Table<Entry>,
    memory: [Arc<Memory>; 2],
    places: Vec<Place>,
    /// For what a role does between its steps.
    flag: AtomicBool,
}

/// What a role has got.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Got {
    Place(Place),
    Removed(bool),
    Replaced(bool, Place),
    /// The tags of what was found.
    Found(Vec<u64>),
    Flag(bool),
}

impl State {
    fn empty() -> Self {
        let memory = [Memory::new(), Memory::new()];
        Self { table: Table::new(), memory, places: Vec::new(), flag: AtomicBool::new(false) }
    }

    /// With an entry that has tag 1.
    fn with_one() -> Self {
        let mut state = Self::empty();
        state.places.push(state.insert(1));
        state
    }

    fn lazy() -> Self {
        epoch::lazy();
        Self::with_one()
    }

    /// With entries that fill the first chunk, so that whoever inserts needs the next. Their memory is of no account.
    fn with_full_chunk() -> Self {
        let state = Self::empty();
        (3..5).for_each(|tag| assert!(state.table.insert(Entry::new(tag, Memory::new())).is_ok()));
        state
    }

    fn insert(&self, tag: u64) -> Place {
        let memory = Arc::clone(&self.memory[tag as usize - 1]);
        self.table.insert(Entry::new(tag, memory)).unwrap()
    }

    fn remove(&self, tag: u64) -> Got {
        Got::Removed(self.table.remove(self.places[tag as usize - 1], tag, &epoch::pin()))
    }

    /// Looks for `tag` where the first entry stood, and uses what it finds.
    fn get(&self, tag: u64) -> Got {
        let guard = epoch::pin();
        let found = self.table.get(self.places[0], tag, &guard);
        Got::Found(found.iter().map(|entry| self.look_at(entry)).collect())
    }

    fn iter(&self) -> Got {
        let guard = epoch::pin();
        Got::Found(self.table.iter(&guard).map(|entry| self.look_at(&entry)).collect())
    }

    fn look_at(&self, entry: &Entry) -> u64 {
        if let Some(memory) = self.memory.get(entry.tag as usize - 1) {
            memory.resource.read();
        }
        // SAFETY: loom has just checked that nobody writes.
        entry.contents.with(|contents| unsafe { *contents })
    }

    fn finish(&self) -> [usize; 2] {
        epoch::finish();
        [self.memory[0].freed(), self.memory[1].freed()]
    }
}

/// R44: what a reader has found is memory for as long as its guard, and is freed once.
fn found_is_not_freed(setup: fn() -> State) {
    race(setup, &[|state| state.get(1), |state| state.remove(1), State::iter], |state, got| {
        assert_eq!(got[1], Got::Removed(true));
        for got in [&got[0], &got[2]] {
            assert!(*got == Got::Found(vec![]) || *got == Got::Found(vec![1]), "{got:?}");
        }
        assert_eq!(state.get(1), Got::Found(vec![]), "found after its removal");
        assert_eq!(state.finish(), [1, 0], "not freed once");
    });
}

/// R44: with an epoch that frees as early as it may.
#[test]
fn found_is_not_freed_early() {
    found_is_not_freed(State::with_one);
}

/// R44: with an epoch that frees as late as it can.
#[test]
fn found_is_not_freed_late() {
    found_is_not_freed(State::lazy);
}

/// Who has found an entry under a guard may own it beyond the guard.
#[test]
fn found_can_be_owned() {
    fn own(state: &State) -> Got {
        let guard = epoch::pin();
        let owned = state.table.get(state.places[0], 1, &guard).map(|found| found.own());
        drop(guard);
        // The counts of an `Arc` are std's, which loom does not see: whether it stands is asked without a tracked cell.
        let found = owned.iter().map(|entry| (entry.memory.freed(), entry.tag));
        Got::Found(found.map(|(freed, tag)| if freed == 0 { tag } else { 0 }).collect())
    }
    race(State::with_one, &[own, |state| state.remove(1)], |state, got| {
        assert!(got[0] == Got::Found(vec![]) || got[0] == Got::Found(vec![1]), "{got:?}");
        assert_eq!((&got[1], state.finish()), (&Got::Removed(true), [1, 0]));
    });
}

/// Who finds an entry by its place finds what was written in it.
#[test]
fn what_is_found_in_a_place_is_whole() {
    fn with_free_place() -> State {
        let state = State::with_one();
        assert_eq!(state.remove(1), Got::Removed(true));
        state
    }
    race(with_free_place, &[|state| Got::Place(state.insert(2)), |state| state.get(2)], |state, got| {
        assert_eq!(got[0], Got::Place(state.places[0]), "the place was not used again");
        assert!(got[1] == Got::Found(vec![]) || got[1] == Got::Found(vec![2]), "{got:?}");
    });
}

/// R44: of two removals one unlinks the entry; the other finds it gone, or is told so.
#[test]
fn a_removal_has_one_winner() {
    race(State::with_one, &[|state| state.remove(1), |state| state.remove(1)], |state, got| {
        assert!(got[0] != got[1], "not one winner: {got:?}");
        assert_eq!(state.finish(), [1, 0]);
    });
}

/// Two insertions get different places, and who finds an entry finds what was written in it.
fn insertions_get_different_places(setup: fn() -> State) {
    race(setup, &[|state| Got::Place(state.insert(1)), |state| Got::Place(state.insert(2)), State::iter], |state, mut got| {
        let [Got::Place(one), Got::Place(two), Got::Found(met)] = &mut got[..] else { unreachable!() };
        assert_ne!(one, two, "two entries in one place");
        let guard = epoch::pin();
        for (place, tag) in [(*one, 1), (*two, 2)] {
            assert_eq!(state.table.get(place, tag, &guard).map(|found| found.tag()), Some(tag));
        }
        met.sort_unstable();
        let before = met.partition_point(|tag| *tag <= 2);
        assert_eq!(met.len() - before + 2, state.table.iter(&guard).count(), "one was missed that stood all the time: {met:?}");
        assert!(met.is_sorted_by(|one, two| one < two), "met twice: {met:?}");
    });
}

/// In the first chunk.
#[test]
fn insertions_get_different_places_in_a_chunk() {
    insertions_get_different_places(State::empty);
}

/// In a chunk that neither finds made.
#[test]
fn insertions_get_different_places_in_a_new_chunk() {
    insertions_get_different_places(State::with_full_chunk);
}

/// R16, R44: a place is used again, a tag is not: the token of what was removed finds nothing, and removes nothing.
#[test]
fn an_old_tag_finds_nothing_in_its_place() {
    fn replace(state: &State) -> Got {
        Got::Replaced(state.remove(1) == Got::Removed(true), state.insert(2))
    }
    race(State::with_one, &[replace, |state| state.remove(1), |state| state.get(1)], |state, got| {
        let Got::Replaced(removed, place) = got[0] else { unreachable!() };
        assert_eq!(got[1], Got::Removed(!removed), "not one winner");
        assert!(!removed || place == state.places[0], "the place was not used again");
        assert!(got[2] == Got::Found(vec![]) || got[2] == Got::Found(vec![1]), "found by an old tag: {got:?}");
        assert_eq!(state.table.get(place, 2, &epoch::pin()).map(|found| found.tag()), Some(2), "removed by an old tag");
        assert_eq!(state.finish(), [1, 0]);
    });
}

/// A place comes free only when its entry is unlinked.
#[test]
fn a_place_is_not_taken_before_it_is_empty() {
    race(State::with_one, &[|state| state.remove(1), |state| Got::Place(state.insert(2))], |state, got| {
        assert_eq!(got[0], Got::Removed(true), "the removal missed its entry");
        let Got::Place(place) = got[1] else { unreachable!() };
        assert_eq!(state.table.get(place, 2, &epoch::pin()).map(|found| found.tag()), Some(2), "the insertion was undone");
        assert_eq!(state.finish(), [1, 0]);
    });
}

/// A walk meets what stands all the time once, whatever comes and goes beside it.
#[test]
fn a_walk_meets_what_stands() {
    fn with_two() -> State {
        let mut state = State::with_one();
        state.places.push(state.insert(2));
        state
    }
    fn come_and_go(state: &State) -> Got {
        let place = state.table.insert(Entry::new(3, Memory::new())).unwrap();
        Got::Removed(state.table.remove(place, 3, &epoch::pin()))
    }
    race(with_two, &[State::iter, |state| state.remove(1), come_and_go], |_, got| {
        let Got::Found(mut met) = got[0].clone() else { unreachable!() };
        met.sort_unstable();
        assert!([&[2][..], &[1, 2], &[2, 3], &[1, 2, 3]].contains(&&*met), "{met:?}");
        assert_eq!(got[1..], [Got::Removed(true), Got::Removed(true)]);
    });
}

/// With a fence on either side, a walk meets the entry, or its inserter sees what was written before the walk.
#[test]
fn a_walk_behind_a_fence_misses_nobody() {
    fn insert(state: &State) -> Got {
        state.insert(1);
        fence(SeqCst);
        Got::Flag(state.flag.load(Relaxed))
    }
    fn walk(state: &State) -> Got {
        state.flag.store(true, Relaxed);
        fence(SeqCst);
        state.iter()
    }
    race(State::empty, &[insert, walk], |_, got| {
        assert!(got[0] == Got::Flag(true) || got[1] == Got::Found(vec![1]), "each has missed the other");
    });
}

/// R6: a full table refuses, and a place that comes free is used again.
#[test]
fn a_full_table_refuses() {
    fn fill(state: &State) -> Vec<Result<Place, TableFull>> {
        let insert = |tag| state.table.insert(Entry::new(tag, Memory::new()));
        let mut places: Vec<_> = (1..=PLACES + 1).map(insert).collect();
        assert!(state.table.remove(places[4].unwrap(), 5, &epoch::pin()));
        places.push(insert(PLACES + 2));
        places
    }
    race(State::empty, &[fill], |_, places| {
        let (full, then) = (places[0][PLACES as usize], places[0][PLACES as usize + 1]);
        assert_eq!((full, then), (Err(TableFull), places[0][4]));
        let distinct = (0..PLACES as usize).all(|at| !places[0][..at].contains(&places[0][at]));
        assert!(distinct, "two entries in one place");
    });
}
