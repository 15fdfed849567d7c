//! One slot: selections that fail, and what they must not leave behind.
//!
//! `p` is selected and healthy at the start, `c` is the candidate whose selection meets something, `n` comes later.

use crate::support::{DEVICE, Meanwhile, Site, Stopped, all_steps_were_reached, at, inactive, unregistered, watched};
use liveslot_gated::{
    BindingError,
    MechanismLifecycle::{Active, DeviceLost, Retired},
    RegisteredMechanism, SelectIfError,
    internals::gates::{
        Step::{self, Found, Judged, Loaded, Pinning, PriorRead, Published, Registered, Reporting, Restored},
        pending,
    },
};
use std::{cell::Cell, rc::Rc};

/// A site on which `p` is selected, and `c` registered.
fn candidate() -> (Site, RegisteredMechanism, RegisteredMechanism) {
    let (site, p) = Site::selecting();
    let c = site.register();
    (site, p, c)
}

/// When this thread comes to `step`, another begins to retire `m` and stops as soon as the word says so: whoever meets `m` in the
/// slot has to take it out. Then this thread does `then`.
fn dies(site: &Site, step: Step, m: RegisteredMechanism, then: impl FnOnce() + 'static) -> Meanwhile<()> {
    let retiring = site.clone();
    Meanwhile::at(step, Step::Retired, move || retiring.retire(m), then)
}

/// R20, R120: a retirement meets the published candidate: the selection fails, and its healthy predecessor is back.
#[test]
fn a_healthy_predecessor_is_restored() {
    let (site, p, c) = candidate();
    let retiring = site.clone();
    at(Published, move || {
        retiring.retire(c);
        retiring.rests_on(Some(p));
    });
    inactive(site.select(c), Retired);
    site.rests_on(Some(p));
    all_steps_were_reached();
}

/// R20, R120: the same, and the retirement is stopped before it comes to the slot: the selection puts its predecessor back itself.
#[test]
fn a_healthy_predecessor_is_restored_without_the_retirement() {
    watched(|| {
        let (site, p, c) = candidate();
        let retirement = dies(&site, Published, c, || {});
        inactive(site.select(c), Retired);
        site.rests_on(Some(p));
        retirement.go_on();
        site.rests_on(Some(p));
    });
}

/// R20, R24: the same, and a binding is first to meet the record: it gets the predecessor, and nobody the candidate.
#[test]
fn a_binding_that_meets_a_dead_candidate_gets_the_predecessor() {
    watched(|| {
        let (site, p, c) = candidate();
        let binding = site.clone();
        let retirement = dies(&site, Published, c, move || binding.binds(Some(p)));
        inactive(site.select(c), Retired);
        site.rests_on(Some(p));
        retirement.go_on();
    });
}

/// R20, R140: the candidate is removed as well: the selection says so, and the predecessor is back.
#[test]
fn a_healthy_predecessor_is_restored_after_a_removal() {
    let (site, p, c) = candidate();
    let removing = site.clone();
    at(Published, move || removing.retire_and_remove(c));
    unregistered(site.select(c));
    site.rests_on(Some(p));
    all_steps_were_reached();
}

/// R18: a binding that meets a published candidate in good health commits it, and is given it.
#[test]
fn a_binding_commits_the_healthy_candidate_that_it_meets() {
    let (site, _, c) = candidate();
    let binding = site.clone();
    at(Published, move || {
        binding.binds(Some(c));
        binding.rests_on(Some(c));
    });
    site.select(c).unwrap();
    site.rests_on(Some(c));
    all_steps_were_reached();
}

/// R120: a selection that was decided before the retirement is `Ok`. Its candidate is dead at once and counts as absent: a binding
/// gets nothing, a registration takes its place, and the retirement leaves that alone.
#[test]
fn a_selection_decided_before_the_retirement_is_ok() {
    watched(|| {
        let (site, _, c) = candidate();
        let retirement = dies(&site, Judged, c, || {});
        site.select(c).unwrap();
        site.binds(None);
        let n = site.register();
        site.rests_on(Some(n));
        retirement.go_on();
        site.rests_on(Some(n));
        assert_eq!(site.lifecycle(c), Retired);
    });
}

/// C006, R20, R140: a conditional selection whose candidate dies, or is removed, says so; the predecessor is back, at a version that was
/// not expected before.
#[test]
fn a_failed_conditional_selection_restores_the_predecessor() {
    fn refusal(refused: Result<u64, SelectIfError>) -> Result<u64, BindingError> {
        refused.map_err(|error| match error {
            SelectIfError::Binding(error) => error,
            other => panic!("{other} instead of a refusal of the mechanism"),
        })
    }
    watched(|| {
        let (site, p, c) = candidate();
        let (device, n) = (site.registry.device(DEVICE), site.register());
        let retirement = dies(&site, Published, c, || {});
        inactive(refusal(device.select_if(1, c)), Retired);
        site.rests_on(Some(p));
        retirement.go_on();
        match device.select_if(1, n) {
            Err(SelectIfError::Conflict { version: 3, selected, .. }) => assert_eq!(selected, Some(p.identity())),
            other => panic!("{other:?} instead of a conflict"),
        }

        let (site, p, c) = candidate();
        let removing = site.clone();
        at(Published, move || removing.retire_and_remove(c));
        unregistered(refusal(site.registry.device(DEVICE).select_if(1, c)));
        site.rests_on(Some(p));
        all_steps_were_reached();
    });
}

/// C002: who deselects in the middle of a selection decides it first: what is selected by then is taken out, be it the candidate in good
/// health or, if that is dead, its predecessor, which stays out.
#[test]
fn deselecting_decides_the_selection_that_it_meets() {
    watched(|| {
        let (site, _, c) = candidate();
        let deselecting = site.clone();
        at(Published, move || assert_eq!(deselecting.registry.deselect(DEVICE), Some(c.identity())));
        site.select(c).unwrap();
        site.rests_on(None);
        all_steps_were_reached();

        for step in [Published, Judged, PriorRead, Restored] {
            let (site, p, c) = candidate();
            let deselecting = site.clone();
            let deselect = move || assert_eq!(deselecting.registry.deselect(DEVICE), Some(p.identity()));
            let retirement = if step == Published {
                dies(&site, Published, c, deselect)
            } else {
                let retirement = dies(&site, Published, c, || {});
                at(step, deselect);
                retirement
            };
            inactive(site.select(c), Retired);
            site.rests_on(None);
            all_steps_were_reached();
            retirement.go_on();
            site.rests_on(None);
            assert_eq!(site.lifecycle(p), Active);
        }
    });
}

/// R20: the predecessor is retired before the candidate fails: neither is selected, whether the candidate's retirement takes the record out
/// or, both retirements being stopped, the selection itself.
#[test]
fn a_retired_predecessor_is_not_restored() {
    watched(|| {
        let (site, p, c) = candidate();
        let retiring = site.clone();
        let retirement = dies(&site, Published, p, move || retiring.retire(c));
        inactive(site.select(c), Retired);
        site.rests_on(None);
        retirement.go_on();
        site.rests_on(None);

        let (site, p, c) = candidate();
        let (retiring, retirements) = (site.clone(), Rc::new(Cell::new(None)));
        let begun = Rc::clone(&retirements);
        at(Published, move || {
            begun.set(Some([p, c].map(|m| {
                let retiring = retiring.clone();
                Stopped::at(Step::Retired, move || retiring.retire(m))
            })));
        });
        inactive(site.select(c), Retired);
        site.rests_on(None);
        for retirement in retirements.take().expect("published") {
            retirement.go_on();
        }
        site.rests_on(None);
    });
}

/// R20: the predecessor dies between the look at it and its return, or right after that: it does not stay, whether its retirement comes
/// to the slot itself or is stopped before.
#[test]
fn a_predecessor_that_dies_while_it_is_put_back_does_not_stay() {
    watched(|| {
        for step in [PriorRead, Restored] {
            let (site, p, c) = candidate();
            let candidate_retirement = dies(&site, Published, c, || {});
            let retiring = site.clone();
            at(step, move || retiring.retire(p));
            inactive(site.select(c), Retired);
            site.rests_on(None);
            all_steps_were_reached();
            candidate_retirement.go_on();

            let (site, p, c) = candidate();
            let candidate_retirement = dies(&site, Published, c, || {});
            let retirement = dies(&site, step, p, || {});
            inactive(site.select(c), Retired);
            site.rests_on(None);
            retirement.go_on();
            site.rests_on(None);
            candidate_retirement.go_on();
        }
    });
}

/// R20: the predecessor is removed meanwhile, to its end: it is not restored, and its allocator is destroyed at once.
#[test]
fn a_removed_predecessor_is_not_restored() {
    watched(|| {
        for step in [PriorRead, Restored] {
            let (site, p, c) = candidate();
            let retirement = dies(&site, Published, c, || {});
            let removing = site.clone();
            at(step, move || {
                removing.retire_and_remove(p);
                assert_eq!(removing.ends.so_far().len(), 1, "the allocator of the removed predecessor");
            });
            inactive(site.select(c), Retired);
            site.rests_on(None);
            unregistered(site.registry.bind_registered(p));
            all_steps_were_reached();
            retirement.go_on();
        }
    });
}

/// R20, R123: another call selects `n`, at any step of a selection that fails: `n` stays.
#[test]
fn a_newer_selection_is_untouched() {
    watched(|| {
        for step in [Judged, PriorRead, Restored] {
            let (site, _, c) = candidate();
            let n = site.register();
            let retirement = dies(&site, Published, c, || {});
            let selecting = site.clone();
            at(step, move || selecting.select(n).unwrap());
            inactive(site.select(c), Retired);
            site.rests_on(Some(n));
            all_steps_were_reached();
            retirement.go_on();
            site.rests_on(Some(n));
        }
    });
}

/// R20, R123: `n` is selected over a predecessor that was put back, and that one dies: it is not the slot's any more, and `n` stays.
#[test]
fn a_newer_selection_is_untouched_by_the_second_look() {
    watched(|| {
        let (site, p, c) = candidate();
        let n = site.register();
        let candidate_retirement = dies(&site, Published, c, || {});
        let selecting = site.clone();
        let retirement = dies(&site, Restored, p, move || selecting.select(n).unwrap());
        inactive(site.select(c), Retired);
        site.rests_on(Some(n));
        retirement.go_on();
        candidate_retirement.go_on();
        site.rests_on(Some(n));
    });
}

/// R20, R123, G4: two selections fail, the second over the first: the healthy predecessor of the first is back.
#[test]
fn two_failing_selections_leave_the_healthy_predecessor() {
    watched(|| {
        let (site, p, first) = candidate();
        let second = site.register();
        let selecting = site.clone();
        let retirement = dies(&site, Published, first, move || {
            let retirement = dies(&selecting, Published, second, || {});
            inactive(selecting.select(second), Retired);
            selecting.rests_on(Some(p));
            retirement.go_on();
        });
        inactive(site.select(first), Retired);
        site.rests_on(Some(p));
        retirement.go_on();
        site.rests_on(Some(p));
    });
}

/// R20, R123: a mechanism is selected twice at once. The first selection is decided by the second, which fails over it: so the candidate
/// leaves nothing selected, and `n`, which is selected then, is lost by neither of the two.
#[test]
fn one_mechanism_selected_twice_loses_no_newer_selection() {
    let (site, _, c) = candidate();
    let n = site.register();
    let selecting = site.clone();
    at(Published, move || {
        let choosing = selecting.clone();
        at(Published, move || {
            choosing.retire(c);
            choosing.rests_on(None);
            choosing.select(n).unwrap();
        });
        inactive(selecting.select(c), Retired);
        selecting.rests_on(Some(n));
    });
    site.select(c).unwrap();
    site.rests_on(Some(n));
    all_steps_were_reached();
}

/// R20, R123, G4: the same, and the candidate dies before either is decided, while both look at it: the predecessor is back, until `n` is
/// selected, and is lost by neither.
#[test]
fn one_mechanism_selected_twice_and_failing_twice_restores_its_predecessor() {
    let (site, p, c) = candidate();
    let n = site.register();
    let selecting = site.clone();
    at(Judged, move || {
        let choosing = selecting.clone();
        at(Judged, move || {
            choosing.retire(c);
            choosing.rests_on(Some(p));
            choosing.select(n).unwrap();
        });
        inactive(selecting.select(c), Retired);
        selecting.rests_on(Some(n));
    });
    inactive(site.select(c), Retired);
    site.rests_on(Some(n));
    all_steps_were_reached();
}

/// R13, R22: nothing else is promoted when a slot is cleared; the next registration heals it.
#[test]
fn a_later_registration_heals_a_cleared_slot() {
    let (site, p, c) = candidate();
    let retiring = site.clone();
    at(PriorRead, move || retiring.retire(p));
    let retiring = site.clone();
    at(Published, move || retiring.retire(c));
    inactive(site.select(c), Retired);
    site.rests_on(None);
    all_steps_were_reached();

    let n = site.register();
    site.rests_on(Some(n));
    let later = site.register();
    assert_eq!(site.lifecycle(later), Active);
    site.rests_on(Some(n));
}

/// R20, G2: nothing is selected, and a registration meets a selection that is about to fail: it takes the place.
#[test]
fn a_registration_that_meets_a_failing_selection_is_selected() {
    watched(|| {
        let (site, p, c) = candidate();
        site.retire(p);
        let registering = site.clone();
        let retirement = dies(&site, Published, c, move || {
            let n = registering.register();
            registering.rests_on(Some(n));
        });
        inactive(site.select(c), Retired);
        assert!(site.registry.bind(DEVICE).is_ok());
        retirement.go_on();
    });
}

/// R124: two first registrations of a device: both are registered, one is selected.
#[test]
fn one_of_two_first_registrations_is_selected() {
    let site = Site::new();
    let registering = site.clone();
    at(Registered, move || {
        let inner = registering.register();
        registering.rests_on(Some(inner));
    });
    let outer = site.register();
    assert_ne!(site.registry.bind(DEVICE).unwrap().identity().mechanism(), outer.identity());
    all_steps_were_reached();

    let site = Site::new();
    let registering = site.clone();
    at(Published, move || {
        registering.register();
    });
    let outer = site.register();
    site.rests_on(Some(outer));
    all_steps_were_reached();
}

/// R125: a registration and a selection: the selected one is selected.
#[test]
fn a_selection_wins_over_a_registration() {
    let (site, _, c) = candidate();
    let registering = site.clone();
    at(Published, move || {
        registering.register();
    });
    site.select(c).unwrap();
    site.rests_on(Some(c));
    all_steps_were_reached();

    for step in [Registered, Published] {
        let (site, p, c) = candidate();
        site.retire(p);
        let selecting = site.clone();
        at(step, move || selecting.select(c).unwrap());
        site.register();
        site.rests_on(Some(c));
        all_steps_were_reached();
    }
}

/// R127: a registration and the retirement of the selected one: the new one takes the place, whether the slot has been cleared or not.
#[test]
fn a_registration_takes_the_place_of_a_retired_selection() {
    let (site, p) = Site::selecting();
    let retiring = site.clone();
    at(Registered, move || retiring.retire(p));
    let n = site.register();
    site.rests_on(Some(n));
    all_steps_were_reached();

    let (site, p) = Site::selecting();
    let registering = site.clone();
    at(Step::Retired, move || {
        let n = registering.register();
        registering.rests_on(Some(n));
    });
    site.retire(p);
    assert!(site.registry.bind(DEVICE).is_ok(), "the retirement has cleared another's selection");
    all_steps_were_reached();
}

/// R25, R29, R22: a retirement or a loss of the selected one leaves nothing selected, and the other mechanisms as they were.
#[test]
fn retirement_and_loss_drop_the_selection() {
    let (site, p, c) = candidate();
    site.retire(p);
    site.rests_on(None);
    assert_eq!(site.lifecycle(c), Active);
    site.select(c).unwrap();
    site.rests_on(Some(c));
    site.lose();
    site.rests_on(None);
    assert_eq!([p, c].map(|m| site.lifecycle(m)), [DeviceLost, DeviceLost]);

    let (site, p, c) = candidate();
    site.retire(c);
    site.rests_on(Some(p));
}

/// R120, R128: the retired one can be selected and bound no more from the moment that the word says so, before the slot is cleared.
#[test]
fn the_word_decides_before_the_slot_is_cleared() {
    watched(|| {
        let (site, p, c) = candidate();
        let retiring = site.clone();
        let retirement = Stopped::at(Step::Retired, move || retiring.retire(p));
        site.binds(None);
        inactive(site.select(p), Retired);
        inactive(site.registry.bind_registered(p), Retired);
        site.select(c).unwrap();
        site.rests_on(Some(c));
        retirement.go_on();
        site.rests_on(Some(c));
    });
}

/// R24: a binding has found a mechanism that is removed before it has a hold on it: it looks again, and gets what is selected now.
#[test]
fn a_binding_looks_again_when_its_mechanism_was_removed() {
    let (site, p, c) = candidate();
    let changing = site.clone();
    at(Found, move || {
        changing.select(c).unwrap();
        changing.retire_and_remove(p);
    });
    site.binds(Some(c));
    all_steps_were_reached();

    let (site, p) = Site::selecting();
    let removing = site.clone();
    at(Found, move || removing.retire_and_remove(p));
    site.binds(None);
    all_steps_were_reached();
}

/// R24: a binding has read a selection that is replaced and dies before it is looked at: something was selected all the while, and the
/// binding gets it.
#[test]
fn a_binding_looks_again_when_its_selection_was_replaced() {
    let (site, p, c) = candidate();
    let changing = site.clone();
    at(Loaded, move || {
        changing.select(c).unwrap();
        changing.retire(p);
    });
    site.binds(Some(c));
    all_steps_were_reached();

    // Nothing was selected for a moment, and the binding says so: what it had read still stood there.
    watched(|| {
        let (site, p) = Site::selecting();
        let retirement = dies(&site, Loaded, p, || {});
        site.binds(None);
        retirement.go_on();
    });
}

/// R128, R140: a binding by token meets a retirement, and a removal.
#[test]
fn a_binding_by_token_meets_the_end_of_its_mechanism() {
    let (site, p) = Site::selecting();
    let retiring = site.clone();
    at(Found, move || retiring.retire(p));
    let binding = site.registry.bind_registered(p).unwrap();
    inactive(binding.allocate(8, 8), Retired);
    drop(binding);
    all_steps_were_reached();

    let (site, p) = Site::selecting();
    let removing = site.clone();
    at(Found, move || removing.retire_and_remove(p));
    unregistered(site.registry.bind_registered(p));
    all_steps_were_reached();
}

/// C019, R13, R24: until the first registration has come to the slot nobody is bound, and from then on to nothing else, though it has not
/// been decided upon.
#[test]
fn the_first_registration_is_bound_once_it_is_published() {
    let site = Site::new();
    let [early, late] = [(); 2].map(|()| site.clone());
    at(Registered, move || early.binds(None));
    let bound = Rc::new(Cell::new(None));
    let binding = Rc::clone(&bound);
    at(Published, move || binding.set(Some(late.registry.bind(DEVICE).unwrap().identity().mechanism())));
    let first = site.register();
    assert_eq!(bound.get(), Some(first.identity()));
    site.rests_on(Some(first));
    all_steps_were_reached();
}

/// Every change of the slot has a version of its own, the restored and the empty records included, and no version is met twice.
#[test]
fn versions_only_rise() {
    let (site, p, c) = candidate();
    let handle = site.registry.device(DEVICE);
    let start = handle.version();
    assert_eq!(handle.selected(), Some(p.identity()));

    let watching = site.clone();
    at(Published, move || {
        assert_eq!(watching.version(), start + 1, "the candidate");
        watching.retire(c);
        assert_eq!(watching.version(), start + 2, "the predecessor, back");
    });
    inactive(site.select(c), Retired);
    assert_eq!(handle.version(), start + 2);
    assert_eq!(handle.selected(), Some(p.identity()));

    // An observer that finds the selection dead reports the empty record, and not the version of what has died.
    watched(move || {
        let retiring = site.clone();
        let retirement = Stopped::at(Step::Retired, move || retiring.retire(p));
        assert_eq!((handle.selected(), handle.version()), (None, start + 3));
        retirement.go_on();
        assert_eq!((handle.selected(), handle.version()), (None, start + 3));
    });
    all_steps_were_reached();
}

/// C062, I8: what a hot thread does over and over pins no epoch, which would look at all threads now and then: binding a device, cloning,
/// allocating, looking, releasing. A look-up by token does, once.
#[test]
fn a_hot_thread_pins_no_epoch() {
    let (site, p) = Site::selecting();
    let handle = site.registry.device(DEVICE);
    at(Pinning, || ());
    for _ in 0..1_000 {
        for binding in [site.registry.bind(DEVICE), handle.bind()] {
            let binding = binding.unwrap().clone();
            let allocation = binding.allocate(64, 8).unwrap();
            let view = allocation.view(0, 64).unwrap();
            binding.with_view(&view, |_| ()).unwrap();
            drop(view);
            binding.release(allocation).unwrap();
        }
    }
    assert_eq!(pending(), 1, "the epoch was pinned");
    drop(site.registry.bind_registered(p).unwrap());
    all_steps_were_reached();
}

/// The selected mechanism is retired when a table of the registry has copied it, and another is selected: the row of the first says that it
/// was Active and is not selected, and no row says that a mechanism is selected and not Active.
#[test]
fn what_is_reported_as_selected_is_active() {
    let (site, p) = Site::selecting();
    let n = site.register();
    let meeting = site.clone();
    at(Reporting, move || {
        meeting.retire(p);
        meeting.select(n).unwrap();
    });
    let table = site.registry.to_string();
    let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|row| row.split_whitespace().skip(3).take(2).collect()).collect();
    assert!(!rows.contains(&vec!["yes", "Retired"]), "selected and not Active:\n{table}");
    assert_eq!(rows, [["no", "Active"], ["yes", "Active"]]);
    all_steps_were_reached();
}
