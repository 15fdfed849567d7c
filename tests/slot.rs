//! The selection slot by itself, on the real `ArcSwap`: who is selected, what versions count, and that nothing it has named stays alive.

use liveslot::{Candidate, Liveness, NotReplaced, Offer, SelectionSlot};
use std::{
    collections::HashSet,
    fmt::{self, Write},
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

/// How many backends there are.
type Population = Arc<AtomicUsize>;

struct Backend {
    liveness: Liveness,
    name: usize,
    /// Dies of being looked at when this comes to zero,
    looks_left: AtomicUsize,
    /// and so does this one.
    companion: Option<Arc<Backend>>,
    population: Population,
}

impl Candidate for Backend {
    fn liveness(&self) -> &Liveness {
        if self.looks_left.fetch_sub(1, Relaxed) == 1 {
            self.companion.iter().for_each(|companion| companion.liveness.retire());
            self.liveness.retire();
        }
        &self.liveness
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.population.fetch_sub(1, Relaxed);
    }
}

/// A backend that dies when the slot looks at it for the `looks`th time.
fn mortal(population: &Population, name: usize, looks: usize, companion: Option<Arc<Backend>>) -> Arc<Backend> {
    population.fetch_add(1, Relaxed);
    let (liveness, looks_left, population) = (Liveness::new(), AtomicUsize::new(looks), Arc::clone(population));
    Arc::new(Backend { liveness, name, looks_left, companion, population })
}

fn backend(population: &Population, name: usize) -> Arc<Backend> {
    mortal(population, name, usize::MAX, None)
}

fn dead(population: &Population, name: usize) -> Arc<Backend> {
    let backend = backend(population, name);
    backend.liveness.retire();
    backend
}

/// `select` looks at its candidate twice: before it publishes, and when it decides. This one is dead the second time.
fn dies_undecided(population: &Population, name: usize) -> Arc<Backend> {
    mortal(population, name, 2, None)
}

fn observed(slot: &SelectionSlot<Backend>) -> (Option<usize>, u64) {
    let selected = slot.observe();
    (selected.candidate.map(|candidate| candidate.name), selected.version)
}

fn loaded(slot: &SelectionSlot<Backend>) -> Option<usize> {
    slot.load().map(|candidate| candidate.name)
}

#[test]
fn the_last_selected_one_is_loaded() {
    let (population, slot) = (Population::default(), SelectionSlot::default());
    assert_eq!((loaded(&slot), observed(&slot)), (None, (None, 0)));
    for (version, name) in [(1, 1), (2, 2), (3, 1)] {
        assert!(slot.select(backend(&population, name)).is_ok());
        assert_eq!((loaded(&slot), observed(&slot)), (Some(name), (Some(name), version)));
    }
}

#[test]
fn selecting_the_selected_one_is_a_selection() {
    let (population, slot) = (Population::default(), SelectionSlot::new());
    let candidate = backend(&population, 1);
    for version in 1..=3 {
        assert!(slot.select(Arc::clone(&candidate)).is_ok());
        assert_eq!(observed(&slot), (Some(1), version));
    }
}

/// One that was dead before the call is not even published.
#[test]
fn a_dead_candidate_is_handed_back() {
    let (population, slot) = (Population::default(), SelectionSlot::new());
    assert!(slot.select(backend(&population, 1)).is_ok());
    let candidate = dead(&population, 2);
    let refused = slot.select(Arc::clone(&candidate)).unwrap_err();
    assert!(Arc::ptr_eq(&refused, &candidate));
    assert_eq!(observed(&slot), (Some(1), 1));
    drop((refused, candidate));
    assert_eq!(population.load(Relaxed), 1);
}

/// One that dies once it is published is handed back as well, and the one before it is back.
#[test]
fn a_candidate_that_dies_undecided_is_handed_back() {
    let (population, slot) = (Population::default(), SelectionSlot::new());
    assert!(slot.select(backend(&population, 1)).is_ok());
    let candidate = dies_undecided(&population, 2);
    let refused = slot.select(Arc::clone(&candidate)).unwrap_err();
    assert!(Arc::ptr_eq(&refused, &candidate) && !candidate.liveness.is_live());
    assert_eq!((loaded(&slot), observed(&slot)), (Some(1), (Some(1), 3)));
    drop((refused, candidate));
    assert_eq!(population.load(Relaxed), 1);
}

/// The one before it is not back if it has died meanwhile, also while nobody has swept the slot.
#[test]
fn a_dead_predecessor_does_not_come_back() {
    let (population, slot) = (Population::default(), SelectionSlot::new());
    assert!(slot.select(backend(&population, 1)).is_ok());
    assert!(slot.select(mortal(&population, 2, 2, slot.load())).is_err());
    assert_eq!(observed(&slot), (None, 3));
    assert_eq!(population.load(Relaxed), 0);
}

#[test]
fn an_offer_has_three_answers() {
    let (population, slot) = (Population::default(), SelectionSlot::new());
    assert_eq!(slot.offer(backend(&population, 1)), Offer::Installed);
    assert_eq!(observed(&slot), (Some(1), 1));

    assert_eq!(slot.offer(backend(&population, 2)), Offer::Occupied);
    assert_eq!(slot.offer(dead(&population, 3)), Offer::Occupied);
    assert_eq!(observed(&slot), (Some(1), 1));

    slot.load().unwrap().liveness.retire();
    // Not swept: a dead selection is no obstacle all the same.
    assert_eq!(slot.offer(backend(&population, 4)), Offer::Installed);
    assert_eq!(observed(&slot), (Some(4), 2));

    slot.load().unwrap().liveness.retire();
    slot.sweep();
    assert_eq!(slot.offer(dead(&population, 5)), Offer::Died);
    assert_eq!(slot.offer(mortal(&population, 6, 1, None)), Offer::Died);
    assert_eq!(loaded(&slot), None);
    assert_eq!(population.load(Relaxed), 0);
}

/// What a refused conditional selection handed back, and what it found.
#[track_caller]
fn conflict(result: Result<u64, NotReplaced<Backend>>) -> (usize, Option<usize>, u64) {
    match result {
        Err(NotReplaced::Conflict { candidate, current }) => {
            (candidate.name, current.candidate.map(|candidate| candidate.name), current.version)
        }
        Err(NotReplaced::Died(candidate)) => panic!("{} died", candidate.name),
        Ok(version) => panic!("selected at version {version}"),
    }
}

#[track_caller]
fn died(result: Result<u64, NotReplaced<Backend>>) -> usize {
    match result {
        Err(NotReplaced::Died(candidate)) => {
            assert!(!candidate.liveness.is_live());
            candidate.name
        }
        Err(NotReplaced::Conflict { current, .. }) => panic!("found version {}", current.version),
        Ok(version) => panic!("selected at version {version}"),
    }
}

/// A conditional selection replaces the version that it names, empty or not, and no other; the conflict says which one stands.
#[test]
fn a_conditional_selection_replaces_one_version() {
    let (population, slot) = (Population::default(), SelectionSlot::new());
    for version in [1, u64::MAX] {
        assert_eq!(conflict(slot.replace_if(version, backend(&population, 1))), (1, None, 0));
    }
    assert_eq!(slot.replace_if(0, backend(&population, 2)).ok(), Some(1));
    assert_eq!(observed(&slot), (Some(2), 1));
    for version in [0, 2, u64::MAX] {
        assert_eq!(conflict(slot.replace_if(version, backend(&population, 3))), (3, Some(2), 1));
    }
    // The selected one anew is another version, too.
    let selected = slot.load().unwrap();
    assert_eq!(slot.replace_if(1, Arc::clone(&selected)).ok(), Some(2));
    assert_eq!(conflict(slot.replace_if(1, selected)), (2, Some(2), 2));
    assert_eq!((observed(&slot), population.load(Relaxed)), ((Some(2), 2), 1));
}

/// A candidate that is dead is handed back as such, whatever the version; one that dies once it is published leaves the one before it, in a
/// version of its own.
#[test]
fn a_conditional_selection_of_the_dead_leaves_no_trace() {
    let (population, slot) = (Population::default(), SelectionSlot::new());
    assert!(slot.select(backend(&population, 1)).is_ok());
    for version in [1, 7] {
        assert_eq!(died(slot.replace_if(version, dead(&population, 2))), 2);
    }
    assert_eq!(observed(&slot), (Some(1), 1));
    assert_eq!(died(slot.replace_if(1, dies_undecided(&population, 3))), 3);
    assert_eq!((observed(&slot), population.load(Relaxed)), ((Some(1), 3), 1));
    assert_eq!(conflict(slot.replace_if(1, backend(&population, 4))), (4, Some(1), 3));
    assert_eq!(slot.replace_if(3, backend(&population, 5)).ok(), Some(4));
    assert_eq!((observed(&slot), population.load(Relaxed)), ((Some(5), 4), 1));
}

/// A selection that has died is at its version no more, though nobody has swept the slot: the conflict reports nothing, at the next one.
#[test]
fn a_conditional_selection_replaces_nothing_dead() {
    let (population, slot) = (Population::default(), SelectionSlot::new());
    assert!(slot.select(backend(&population, 1)).is_ok());
    slot.load().unwrap().liveness.retire();
    assert_eq!(conflict(slot.replace_if(1, backend(&population, 2))), (2, None, 2));
    assert_eq!(population.load(Relaxed), 0);
    assert_eq!(slot.replace_if(2, backend(&population, 3)).ok(), Some(3));
    assert_eq!(observed(&slot), (Some(3), 3));
}

#[test]
fn a_refused_conditional_selection_says_why() {
    #[derive(Debug)]
    struct Plain(Liveness);

    impl Candidate for Plain {
        fn liveness(&self) -> &Liveness {
            &self.0
        }
    }

    let (slot, plain) = (SelectionSlot::new(), Arc::new(Plain(Liveness::new())));
    assert!(slot.select(Arc::clone(&plain)).is_ok());
    let conflict = slot.replace_if(0, Arc::clone(&plain)).unwrap_err();
    assert_eq!(conflict.to_string(), "the selection has changed, and is at version 1; decide anew");
    plain.0.retire();
    let died = slot.replace_if(0, plain).unwrap_err();
    assert_eq!(died.to_string(), "the candidate is dead; select another");
}

/// C002: clearing hands back what was selected, once, alive; an empty slot has no version more for it.
#[test]
fn clearing_hands_the_selection_back() {
    let (population, slot) = (Population::default(), SelectionSlot::new());
    assert!(slot.clear().is_none());
    assert_eq!(observed(&slot), (None, 0));
    let selected = backend(&population, 1);
    assert!(slot.select(Arc::clone(&selected)).is_ok());
    assert!(slot.clear().is_some_and(|cleared| Arc::ptr_eq(&cleared, &selected)));
    assert!(slot.clear().is_none());
    assert!(selected.liveness.is_live());
    assert_eq!((loaded(&slot), observed(&slot)), (None, (None, 2)));
    assert_eq!(conflict(slot.replace_if(1, backend(&population, 2))), (2, None, 2));

    // It is nobody's prior: not that of a selection that fails, and the slot does not keep it.
    assert!(slot.select(dies_undecided(&population, 3)).is_err());
    assert_eq!(observed(&slot), (None, 4));
    assert!(slot.select(Arc::clone(&selected)).is_ok());
    assert_eq!(slot.offer(backend(&population, 4)), Offer::Occupied);
    drop((slot.clear(), selected));
    assert_eq!(population.load(Relaxed), 0);
    assert_eq!(slot.offer(backend(&population, 5)), Offer::Installed);
    assert_eq!(observed(&slot), (Some(5), 7));
}

/// What is dead is not handed back: the slot was empty, and gets a version for it.
#[test]
fn clearing_finds_nothing_dead() {
    let (population, slot) = (Population::default(), SelectionSlot::new());
    assert!(slot.select(backend(&population, 1)).is_ok());
    slot.load().unwrap().liveness.retire();
    assert!(slot.clear().is_none());
    assert_eq!((observed(&slot), population.load(Relaxed)), ((None, 2), 0));
}

/// A sweep takes out a dead selection, and no other; each change has a version, and nothing else has.
#[test]
fn versions_count_changes() {
    let (population, slot) = (Population::default(), SelectionSlot::new());
    let (first, second) = (backend(&population, 1), backend(&population, 2));
    slot.sweep();
    assert_eq!(observed(&slot), (None, 0));
    assert!(slot.select(Arc::clone(&first)).is_ok());
    slot.sweep();
    assert_eq!(observed(&slot), (Some(1), 1));
    first.liveness.retire();
    slot.sweep();
    assert_eq!(observed(&slot), (None, 2));
    slot.sweep();
    assert_eq!(observed(&slot), (None, 2));

    assert!(slot.select(Arc::clone(&second)).is_ok());
    second.liveness.retire();
    assert_eq!(loaded(&slot), None);
    // Whoever reports emptiness gives it a version first.
    assert_eq!(observed(&slot), (None, 4));
    slot.sweep();
    assert_eq!(observed(&slot), (None, 4));
    assert!(slot.select(first).is_err());
    assert_eq!(observed(&slot), (None, 4));
}

/// Nothing keeps the one before the selected one: not its record, not the prior of the record that replaced it.
#[test]
fn a_replaced_candidate_is_dropped_at_once() {
    let (population, slot) = (Population::default(), SelectionSlot::new());
    for name in 0..100 {
        assert!(slot.select(backend(&population, name)).is_ok());
        assert_eq!(population.load(Relaxed), 1, "after selection {name}");
    }
    for name in 100..200 {
        assert!(slot.select(dies_undecided(&population, name)).is_err());
        assert_eq!(population.load(Relaxed), 1, "after the failed selection {name}");
    }
    assert_eq!(loaded(&slot), Some(99));

    slot.load().unwrap().liveness.retire();
    assert_eq!(population.load(Relaxed), 1, "dead and not swept");
    slot.sweep();
    assert_eq!(population.load(Relaxed), 0, "swept");
}

#[test]
fn the_slot_lets_go_of_its_selection() {
    let (population, slot) = (Population::default(), SelectionSlot::new());
    assert!(slot.select(backend(&population, 1)).is_ok());
    let held = slot.load();
    drop(slot);
    assert_eq!(population.load(Relaxed), 1, "still held");
    drop(held);
    assert_eq!(population.load(Relaxed), 0);
}

#[test]
fn debug_shows_version_and_occupation() {
    let (population, slot) = (Population::default(), SelectionSlot::new());
    assert_eq!(format!("{slot:?}"), "SelectionSlot { version: 0, occupied: false, .. }");
    assert!(slot.select(backend(&population, 1)).is_ok());
    assert_eq!(format!("{slot:?}"), "SelectionSlot { version: 1, occupied: true, .. }");
}

/// Nothing is held while the writer runs, which is the user's: what it replaces is dropped at once.
#[test]
fn debug_holds_nothing_while_it_writes() {
    struct Replacing<'a>(&'a SelectionSlot<Backend>, Population, Option<usize>);

    impl fmt::Write for Replacing<'_> {
        fn write_str(&mut self, _: &str) -> fmt::Result {
            if self.2.is_none() {
                assert!(self.0.select(backend(&self.1, 2)).is_ok());
                self.2 = Some(self.1.load(Relaxed));
            }
            Ok(())
        }
    }

    let (slot, population) = (SelectionSlot::new(), Population::default());
    assert!(slot.select(backend(&population, 1)).is_ok());
    let mut writer = Replacing(&slot, population, None);
    write!(writer, "{slot:?}").unwrap();
    assert_eq!(writer.2, Some(1), "backends alive once the first was replaced");
}

/// Selections that stay and selections that fail, retirements, offers and readers, all at once: nobody who was refused was given out, no
/// version falls, and in the end one backend is left, or none.
#[test]
fn nothing_stays_alive_after_a_race() {
    const ROUNDS: usize = 2_000;
    let (population, slot, start) = (Population::default(), SelectionSlot::new(), Barrier::new(4));
    let (refused, given) = thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            for name in 0..ROUNDS {
                let candidate = backend(&population, name);
                assert!(slot.select(Arc::clone(&candidate)).is_ok(), "nobody ends this one before");
                candidate.liveness.retire();
                slot.sweep();
            }
        });
        let refused = scope.spawn(|| {
            start.wait();
            let mut refused = HashSet::new();
            for name in ROUNDS..2 * ROUNDS {
                match slot.select(dies_undecided(&population, name)) {
                    // Somebody else has looked as well, one moment earlier.
                    Ok(()) => slot.sweep(),
                    Err(candidate) => assert!(refused.insert(candidate.name)),
                }
            }
            refused
        });
        scope.spawn(|| {
            start.wait();
            for name in 2 * ROUNDS..3 * ROUNDS {
                assert_ne!(slot.offer(backend(&population, name)), Offer::Died, "nobody ends this one");
            }
        });
        let given = scope.spawn(|| {
            start.wait();
            let (mut given, mut last) = (HashSet::new(), 0);
            for _ in 0..ROUNDS {
                given.extend(loaded(&slot));
                let (name, version) = observed(&slot);
                given.extend(name);
                assert!(version >= last, "from version {last} to {version}");
                last = version;
            }
            given
        });
        (refused.join().unwrap(), given.join().unwrap())
    });
    assert_eq!(refused.intersection(&given).count(), 0, "given out and refused");
    let (name, _) = observed(&slot);
    assert_eq!(population.load(Relaxed), usize::from(name.is_some()));
    drop(slot);
    assert_eq!(population.load(Relaxed), 0);
}
