//! Models of `src/primitives/slot.rs`: what becomes of racing selections, offers, clearings, retirements and readers.
//!
//! Most tests list every outcome that their race may have: what the roles were told, then the record that stands in the slot, as
//! `candidate@version`. An outcome that is not listed fails, and so does a listed one that no schedule leads to. The record is
//! read raw, after all have joined: reading through the slot would repair what a mistake has left there.

mod support;

use liveslot_loom::{Candidate, Liveness, NotReplaced, Offer, Selected, SelectionSlot};
use loom::sync::atomic::{AtomicBool, Ordering::*, fence};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use support::{Role, race};

struct Named {
    liveness: Liveness,
    name: &'static str,
}

impl Candidate for Named {
    fn liveness(&self) -> &Liveness {
        &self.liveness
    }
}

fn named(name: &'static str) -> Arc<Named> {
    Arc::new(Named { liveness: Liveness::new(), name })
}

fn name(candidate: Option<Arc<Named>>) -> &'static str {
    candidate.map_or("none", |candidate| candidate.name)
}

/// A slot, and who may be selected in it.
struct State {
    slot: SelectionSlot<Named>,
    p: Arc<Named>,
    c1: Arc<Named>,
    c2: Arc<Named>,
    /// Whether `lose` finds `c2` in its list; `p` is always there.
    c2_listed: AtomicBool,
}

/// An empty slot, at version 0.
fn empty() -> State {
    State { slot: SelectionSlot::new(), p: named("P"), c1: named("C1"), c2: named("C2"), c2_listed: AtomicBool::new(false) }
}

/// `P` is selected, at version 1.
fn p_selected() -> State {
    let state = empty();
    assert!(state.slot.select(Arc::clone(&state.p)).is_ok());
    state
}

fn select(state: &State, candidate: &Arc<Named>) -> &'static str {
    let Err(refused) = state.slot.select(Arc::clone(candidate)) else { return "selected" };
    assert!(Arc::ptr_eq(&refused, candidate), "another candidate is handed back");
    assert!(!refused.liveness.is_live(), "refused, and alive to the one who is told so");
    "refused"
}

fn select_c1(state: &State) -> &'static str {
    select(state, &state.c1)
}

fn select_c2(state: &State) -> &'static str {
    select(state, &state.c2)
}

fn offer(state: &State, candidate: &Arc<Named>) -> &'static str {
    match state.slot.offer(Arc::clone(candidate)) {
        Offer::Installed => "installed",
        Offer::Occupied => "occupied",
        Offer::Died => {
            assert!(!candidate.liveness.is_live(), "died, and alive to the one who is told so");
            "died"
        }
    }
}

fn offer_c2(state: &State) -> &'static str {
    offer(state, &state.c2)
}

/// Replaces what [`p_selected`] starts with, and nothing that came later.
fn replace_p(state: &State, candidate: &Arc<Named>) -> Result<u64, NotReplaced<Named>> {
    let replaced = state.slot.replace_if(1, Arc::clone(candidate));
    if let Err(NotReplaced::Conflict { candidate: refused, .. } | NotReplaced::Died(refused)) = &replaced {
        assert!(Arc::ptr_eq(refused, candidate), "another candidate is handed back");
    }
    replaced
}

fn replace(state: &State, candidate: &Arc<Named>) -> &'static str {
    match replace_p(state, candidate) {
        Ok(2) => "replaced",
        Ok(version) => panic!("version 1 replaced by {version}"),
        Err(NotReplaced::Conflict { current, .. }) => {
            let found = format!("found {}@{}", name(current.candidate), current.version);
            let known = ["found C1@2", "found C2@2", "found none@2", "found none@3", "found P@3"];
            known.into_iter().find(|known| *known == found).unwrap_or_else(|| panic!("in no version of these models: {found}"))
        }
        Err(NotReplaced::Died(refused)) => {
            assert!(!refused.liveness.is_live(), "refused, and alive to the one who is told so");
            "refused"
        }
    }
}

fn replace_with_c1(state: &State) -> &'static str {
    replace(state, &state.c1)
}

fn replace_with_c2(state: &State) -> &'static str {
    replace(state, &state.c2)
}

/// Who is told to have been taken out.
fn clear(state: &State) -> &'static str {
    name(state.slot.clear())
}

/// What a role returns that is told nothing.
const UNTOLD: &str = "";

/// Terminal first, then out of the slot.
fn retire(state: &State, candidate: &Named) -> &'static str {
    candidate.liveness.retire();
    state.slot.sweep();
    UNTOLD
}

fn retire_p(state: &State) -> &'static str {
    retire(state, &state.p)
}

fn retire_c1(state: &State) -> &'static str {
    retire(state, &state.c1)
}

fn load(state: &State) -> &'static str {
    name(state.slot.load())
}

/// The record that stands in the slot once nobody is at work: decided, and its prior cut.
fn standing(state: &State) -> (&'static str, u64) {
    let (committed, candidate, version, cut) = state.slot.raw();
    assert!(committed, "at rest with an undecided or a failed record, version {version}");
    assert!(cut, "at rest with a prior that is not cut, version {version}");
    (name(candidate), version)
}

/// As [`standing`], once everybody who ended a life has swept the slot: what it names is alive.
fn at_rest(state: &State) -> (&'static str, u64) {
    let (name, version) = standing(state);
    let dead = [&state.p, &state.c1, &state.c2].into_iter().find(|candidate| candidate.name == name && !candidate.liveness.is_live());
    assert!(dead.is_none(), "at rest with a dead candidate: {name}@{version}");
    (name, version)
}

/// What a test allows and has met.
struct Outcomes {
    rest: fn(&State) -> (&'static str, u64),
    allowed: &'static [&'static str],
    met: BTreeSet<String>,
}

thread_local! {
    /// Those of the calling test. loom runs all of a model on the thread that asked for it.
    static OUTCOMES: RefCell<Option<Outcomes>> = const { RefCell::new(None) };
}

/// Races the roles: what comes of it, with what `rest` finds afterwards, is one of `allowed`, and each of those comes of some schedule.
fn outcomes_with(
    rest: fn(&State) -> (&'static str, u64),
    setup: fn() -> State,
    roles: &[Role<State, &'static str>],
    allowed: &'static [&'static str],
) {
    OUTCOMES.set(Some(Outcomes { rest, allowed, met: BTreeSet::new() }));
    race(setup, roles, |state, told| {
        let told: Vec<_> = told.into_iter().filter(|told| *told != UNTOLD).collect();
        OUTCOMES.with_borrow_mut(|outcomes| {
            let outcomes = outcomes.as_mut().unwrap();
            let (name, version) = (outcomes.rest)(state);
            let outcome = format!("{} => {name}@{version}", told.join(", "));
            assert!(outcomes.allowed.contains(&&*outcome), "not an outcome of this race: {outcome}");
            outcomes.met.insert(outcome);
        });
    });
    let Outcomes { allowed, met, .. } = OUTCOMES.take().unwrap();
    let missed: Vec<_> = allowed.iter().filter(|allowed| !met.contains(**allowed)).collect();
    assert!(missed.is_empty(), "no schedule leads to {missed:?}");
}

/// For roles that sweep when they have ended a life.
fn outcomes(setup: fn() -> State, roles: &[Role<State, &'static str>], allowed: &'static [&'static str]) {
    outcomes_with(at_rest, setup, roles, allowed);
}

/// For roles that have stopped short of it.
fn outcomes_unswept(setup: fn() -> State, roles: &[Role<State, &'static str>], allowed: &'static [&'static str]) {
    outcomes_with(standing, setup, roles, allowed);
}

/// R20, R120: a select that fails brings its predecessor back, through two records if it had been published; one that is `Ok`
/// leaves the slot to the retirement.
#[test]
fn a_failed_select_brings_its_predecessor_back() {
    outcomes(p_selected, &[select_c1, retire_c1], &["refused => P@1", "refused => P@3", "selected => none@3"]);
}

/// R18, R25: a retirement clears the selection that names its mechanism, and no newer one.
#[test]
fn a_retired_predecessor_takes_nobody_along() {
    outcomes(p_selected, &[select_c1, retire_p], &["selected => C1@2", "selected => C1@3"]);
}

/// R20: a predecessor that dies while the select that replaced it fails does not come back, or does not stay.
#[test]
fn a_dead_predecessor_does_not_stay() {
    outcomes(
        p_selected,
        &[select_c1, retire_c1, retire_p],
        &["refused => none@2", "refused => none@3", "refused => none@4", "selected => none@3", "selected => none@4"],
    );
}

/// R20: a predecessor that had died before the select failed is not put back, though whoever ended it has stopped short of the slot.
#[test]
fn a_predecessor_that_died_first_is_not_put_back() {
    let end_p_then_c1 = |state: &State| {
        state.p.liveness.retire();
        state.c1.liveness.retire();
        UNTOLD
    };
    outcomes_unswept(
        p_selected,
        &[select_c1, end_p_then_c1],
        // P@1: refused before anything was published.
        &["refused => P@1", "refused => none@3", "selected => C1@2"],
    );
}

/// R20: a predecessor that dies while it is put back does not stay, though whoever ended it looked at the slot before and stopped
/// short of sweeping it: the one who put it back has to notice by itself.
#[test]
fn a_predecessor_that_dies_while_it_is_put_back_does_not_stay() {
    let end_c1_then_p_and_look = |state: &State| {
        state.c1.liveness.retire();
        state.p.liveness.retire();
        fence(SeqCst);
        // Shows the version in the slot, and finishes nothing.
        let shown = format!("{:?}", state.slot);
        let saw = ["saw version 1", "saw version 2", "saw version 3", "saw version 4"];
        saw.into_iter().find(|saw| shown.contains(&saw.replace("saw version", "version:"))).unwrap()
    };
    outcomes_unswept(
        p_selected,
        &[select_c1, end_c1_then_p_and_look],
        &[
            "refused, saw version 1 => P@1",
            "refused, saw version 1 => none@3",
            "refused, saw version 2 => none@3",
            "refused, saw version 2 => none@4",
            // P had been put back, and looked at, before it died.
            "refused, saw version 3 => P@3",
            "refused, saw version 3 => none@3",
            "refused, saw version 3 => none@4",
            "refused, saw version 4 => none@4",
            "selected, saw version 2 => C1@2",
        ],
    );
}

/// R20: who is refused by somebody else's verdict sees what that one saw, a dead candidate; `select` above asserts it.
#[test]
fn a_refused_candidate_is_dead_to_its_selector() {
    let end_c1 = |state: &State| {
        state.c1.liveness.retire();
        UNTOLD
    };
    outcomes_unswept(
        p_selected,
        &[select_c1, end_c1, load],
        &["refused, P => P@1", "refused, P => P@3", "selected, C1 => C1@2", "selected, P => C1@2", "selected, none => C1@2"],
    );
}

/// R19: a candidate that was dead before the call is not published, nor is anything else.
#[test]
fn a_dead_candidate_leaves_no_trace() {
    let retire_and_select_c1 = |state: &State| {
        state.c1.liveness.retire();
        select_c1(state)
    };
    outcomes(p_selected, &[retire_and_select_c1, load], &["refused, P => P@1"]);
}

/// R122: of two selects that do not fail, the later one stays.
#[test]
fn the_later_of_two_selects_stays() {
    outcomes(p_selected, &[select_c1, select_c2], &["selected, selected => C1@3", "selected, selected => C2@3"]);
}

/// R20, R123: a failing select leaves the selection of another call alone, however they overlap.
#[test]
fn a_failed_select_leaves_a_newer_selection() {
    outcomes(
        p_selected,
        &[select_c1, retire_c1, select_c2],
        &[
            "refused, selected => C2@2",
            "refused, selected => C2@4",
            "selected, selected => C2@3",
            "selected, selected => C2@4",
            // C1 over C2, then retired.
            "selected, selected => none@4",
        ],
    );
}

/// R20, R123: as above, while the predecessor dies as well: C2, selected once C1 is out of use, stays.
#[test]
fn a_newer_selection_outlives_a_failed_and_a_dead_one() {
    let retire_c1_and_select_c2 = |state: &State| {
        retire_c1(state);
        select_c2(state)
    };
    outcomes(
        p_selected,
        &[select_c1, retire_c1_and_select_c2, retire_p],
        &[
            "refused, selected => C2@2",
            "refused, selected => C2@3",
            "refused, selected => C2@4",
            "refused, selected => C2@5",
            "selected, selected => C2@4",
            "selected, selected => C2@5",
        ],
    );
}

/// R123: of two failing selects neither leaves a trace, whichever of the records stands on the other.
#[test]
fn two_failed_selects_keep_the_healthy_selection() {
    let retire_both = |state: &State| {
        retire_c1(state);
        retire(state, &state.c2)
    };
    outcomes(
        p_selected,
        &[select_c1, select_c2, retire_both],
        &[
            "refused, refused => P@1",
            "refused, refused => P@3",
            "refused, refused => P@5",
            "refused, selected => none@3",
            "refused, selected => none@4",
            "refused, selected => none@5",
            "selected, refused => none@3",
            "selected, refused => none@5",
            "selected, selected => none@4",
            "selected, selected => none@5",
        ],
    );
}

/// R123: selecting one candidate twice is two publications, each with an end of its own.
#[test]
fn one_candidate_is_selected_twice() {
    outcomes(
        p_selected,
        &[select_c1, select_c1, retire_c1],
        &[
            "refused, refused => P@1",
            "refused, refused => P@3",
            "refused, refused => P@5",
            "refused, selected => none@3",
            "refused, selected => none@4",
            "refused, selected => none@5",
            "selected, refused => none@3",
            "selected, refused => none@4",
            "selected, refused => none@5",
            "selected, selected => none@4",
        ],
    );
}

/// R24, I2: nobody is given the candidate of a select that fails, or nothing while its predecessor lives; and who meets the undecided
/// record decides it as its author would have.
#[test]
fn a_reader_sees_no_failed_select() {
    outcomes(
        p_selected,
        &[load, select_c1, retire_c1],
        &["C1, selected => none@3", "P, refused => P@1", "P, refused => P@3", "P, selected => none@3", "none, selected => none@3"],
    );
}

/// R13, R124: of two offers to an empty slot, one is installed.
#[test]
fn one_of_two_offers_is_installed() {
    let offer_c1 = |state: &State| offer(state, &state.c1);
    outcomes(empty, &[offer_c1, offer_c2], &["installed, occupied => C1@1", "occupied, installed => C2@1"]);
}

/// R125: an offer does not replace what is selected, nor stay in its way.
#[test]
fn an_offer_does_not_stand_against_a_select() {
    outcomes(empty, &[offer_c2, select_c1], &["installed, selected => C1@2", "occupied, selected => C1@1"]);
}

/// R127: an offer that meets a dead selection takes its place; one that came before the death changes nothing.
#[test]
fn an_offer_takes_the_place_of_a_dead_selection() {
    outcomes(p_selected, &[offer_c2, retire_p], &["installed => C2@2", "installed => C2@3", "occupied => none@2"]);
}

/// R127: a selection that is dead counts as absent also before it has been swept.
#[test]
fn a_dead_selection_is_no_obstacle() {
    let end_p_and_offer_c2 = |state: &State| {
        state.p.liveness.retire();
        offer_c2(state)
    };
    let sweep = |state: &State| {
        state.slot.sweep();
        UNTOLD
    };
    outcomes(p_selected, &[end_p_and_offer_c2, sweep], &["installed => C2@2", "installed => C2@3"]);
}

/// R20, R124: an offer is not refused on account of a select that fails.
#[test]
fn an_offer_outlives_a_failed_select() {
    outcomes(
        empty,
        &[offer_c2, select_c1, retire_c1],
        &[
            "installed, refused => C2@1",
            "installed, refused => C2@3",
            "installed, selected => C2@2",
            "installed, selected => C2@3",
            // C1 over C2, then retired.
            "installed, selected => none@3",
            "occupied, selected => none@2",
        ],
    );
}

/// R126: an offer and a loss, with the list that the loss goes by: the newcomer is lost too, or finds the slot free.
#[test]
fn an_offer_during_a_loss_is_lost_or_installed() {
    let register_c2 = |state: &State| {
        state.c2_listed.store(true, Release);
        offer_c2(state)
    };
    let lose = |state: &State| {
        let mut marked = true;
        while marked {
            let c2 = state.c2_listed.load(Acquire).then_some(&state.c2);
            let alive: Vec<_> = [&state.p].into_iter().chain(c2).filter(|listed| listed.liveness.is_live()).collect();
            alive.iter().for_each(|listed| listed.liveness.retire());
            fence(SeqCst);
            marked = !alive.is_empty();
        }
        state.slot.sweep();
        if state.c2.liveness.is_live() { "loses P" } else { "loses P and C2" }
    };
    outcomes(
        p_selected,
        &[register_c2, lose],
        &[
            "died, loses P and C2 => none@3",
            "died, loses P and C2 => none@4",
            "installed, loses P => C2@2",
            "installed, loses P => C2@3",
            "installed, loses P and C2 => none@3",
            "occupied, loses P and C2 => none@2",
        ],
    );
}

/// C006: of two that would replace the same selection one does, and the other is told whom it has met, at which version.
#[test]
fn one_of_two_conditional_selects_wins() {
    outcomes(p_selected, &[replace_with_c1, replace_with_c2], &["replaced, found C1@2 => C1@2", "found C2@2, replaced => C2@2"]);
}

/// C006: a conditional select never stands on an unconditional one; that one may stand on it.
#[test]
fn a_conditional_select_replaces_no_newer_selection() {
    outcomes(p_selected, &[replace_with_c1, select_c2], &["replaced, selected => C2@3", "found C2@2, selected => C2@2"]);
}

/// R20: a conditional select that fails leaves no trace but a version.
#[test]
fn a_failed_conditional_select_brings_its_predecessor_back() {
    outcomes(p_selected, &[replace_with_c1, retire_c1], &["refused => P@1", "refused => P@3", "replaced => none@3"]);
}

/// The death of what was to be replaced is a change: who comes after it finds nothing, and who came before is left alone.
#[test]
fn a_conditional_select_replaces_no_dead_selection() {
    outcomes(p_selected, &[replace_with_c1, retire_p], &["found none@2 => none@2", "replaced => C1@2"]);
}

/// C006: as above, also while nobody sweeps: a dead selection gets a version of its own before it is reported.
#[test]
fn an_unswept_selection_is_no_longer_expected() {
    let end_p = |state: &State| {
        state.p.liveness.retire();
        UNTOLD
    };
    outcomes_unswept(p_selected, &[replace_with_c1, end_p], &["found none@2 => none@2", "replaced => C1@2"]);
}

/// C006, R20, R123: beside one that fails, a conditional select wins, or finds the predecessor at the version that it came back with.
#[test]
fn a_conditional_select_beside_one_that_fails() {
    outcomes(
        p_selected,
        &[replace_with_c1, replace_with_c2, retire_c1],
        &[
            "refused, replaced => C2@2",
            "refused, found P@3 => P@3",
            "replaced, found C1@2 => none@3",
            "replaced, found none@3 => none@3",
            "found C2@2, replaced => C2@2",
        ],
    );
}

/// C002: of a select and a clearing the later one stays, and the clearing takes out what stood there then.
#[test]
fn the_later_of_a_select_and_a_clearing_stays() {
    outcomes(p_selected, &[clear, select_c1], &["P, selected => C1@3", "C1, selected => none@3"]);
}

/// C002, R20: what was taken out does not come back, also when a select fails that began before.
#[test]
fn a_cleared_predecessor_does_not_come_back() {
    outcomes(
        p_selected,
        &[clear, select_c1, retire_c1],
        &["P, refused => none@2", "P, refused => none@4", "P, selected => none@4", "C1, selected => none@3", "none, selected => none@3"],
    );
}

/// C002: a selection is taken out once.
#[test]
fn one_of_two_clearings_is_told() {
    outcomes(p_selected, &[clear, clear], &["P, none => none@2", "none, P => none@2"]);
}

/// C002, R13: an offer takes the place that a clearing has left, or came before and finds it occupied.
#[test]
fn an_offer_takes_the_cleared_place() {
    outcomes(p_selected, &[clear, offer_c2], &["P, installed => C2@3", "P, occupied => none@2"]);
}

/// C002, C006: a clearing is a change like any other.
#[test]
fn a_conditional_select_and_a_clearing() {
    outcomes(p_selected, &[replace_with_c1, clear], &["replaced, C1 => none@3", "found none@2, P => none@2"]);
}

/// What an observer was shown, in order.
type Seen = Vec<(&'static str, u64)>;

fn observe(state: &State) -> (&'static str, u64) {
    let Selected { candidate, version } = state.slot.observe();
    (name(candidate), version)
}

fn observe_twice(state: &State) -> Seen {
    vec![observe(state), observe(state)]
}

fn told_nothing(_: &'static str) -> Seen {
    Vec::new()
}

/// To nobody a version falls, and one version has one content: to all observers, and at rest.
fn versions_are_consistent(state: &State, seen: Vec<Seen>) {
    for seen in &seen {
        assert!(seen.is_sorted_by_key(|(_, version)| *version), "a version fell: {seen:?}");
    }
    let mut contents = BTreeMap::new();
    for (name, version) in seen.into_iter().flatten().chain([at_rest(state)]) {
        let known = *contents.entry(version).or_insert(name);
        assert_eq!(known, name, "version {version} has two contents");
    }
}

/// A select that fails in between shows an observer no version of its own.
#[test]
fn versions_during_a_failing_select() {
    race(
        p_selected,
        &[observe_twice, |state| told_nothing(select_c1(state)), |state| told_nothing(retire_c1(state))],
        versions_are_consistent,
    );
}

/// An observer that finds a dead selection reports emptiness under a version of its own.
#[test]
fn a_dead_selection_is_not_reported_under_its_version() {
    race(p_selected, &[observe_twice, |state| told_nothing(retire_p(state))], versions_are_consistent);
}

/// As above, with two observers, one of which has seen the selection alive.
#[test]
fn observers_agree_on_versions() {
    let observe_once = |state: &State| vec![observe(state)];
    race(p_selected, &[observe_twice, observe_once, |state| told_nothing(retire_p(state))], versions_are_consistent);
}

/// Two selects that stay are two versions.
#[test]
fn versions_during_two_selects() {
    race(
        p_selected,
        &[observe_twice, |state| told_nothing(select_c1(state)), |state| told_nothing(select_c2(state))],
        versions_are_consistent,
    );
}

/// What a conditional select and a clearing report is what observers see.
#[test]
fn versions_during_a_conditional_select_and_a_clearing() {
    let replace_p = |state: &State| match replace_p(state, &state.c1) {
        Ok(version) => vec![("C1", version)],
        Err(NotReplaced::Conflict { current, .. }) => vec![(name(current.candidate), current.version)],
        Err(NotReplaced::Died(_)) => panic!("nobody ends this one"),
    };
    race(p_selected, &[observe_twice, replace_p, |state| told_nothing(clear(state))], versions_are_consistent);
}
