//! The loss of a device, and who meets it: selections, registrations, operations, another loss, the end of its context.

use crate::support::{DEVICE, Meanwhile, Site, Stopped, all_steps_were_reached, at, inactive, watched};
use liveslot_gated::{
    BindingError,
    MechanismLifecycle::{Active, DeviceLost, Retired, Terminated},
    RegisteredMechanism,
    internals::gates::Step::{self, Admitting, Judged, Listed, Lost, Marked, PriorRead, Published, Registered, Restored, Trimming},
};
use std::{cell::Cell, rc::Rc, sync::atomic::Ordering::SeqCst};

/// R121: a loss meets a selection that is on its way: it fails, and nothing of the device stays selected, its predecessor as little as
/// the candidate.
#[test]
fn a_loss_leaves_neither_the_candidate_nor_its_predecessor() {
    for step in [Published, Judged] {
        let (site, p) = Site::selecting();
        let c = site.register();
        let losing = site.clone();
        at(step, move || losing.lose());
        inactive(site.select(c), DeviceLost);
        site.rests_on(None);
        assert_eq!([p, c].map(|m| site.lifecycle(m)), [DeviceLost, DeviceLost]);
        all_steps_were_reached();
    }
}

/// R121: a selection meets a loss that is on its way: it is `Ok` as long as its candidate is not marked, and in no case the candidate
/// stays.
#[test]
fn a_selection_during_a_loss_does_not_stay() {
    for step in [Listed, Lost, Marked] {
        let (site, p) = Site::selecting();
        let c = site.register();
        let selecting = site.clone();
        at(step, move || match step {
            Marked => inactive(selecting.select(c), DeviceLost),
            _ => selecting.select(c).unwrap(),
        });
        site.lose();
        site.rests_on(None);
        assert_eq!([p, c].map(|m| site.lifecycle(m)), [DeviceLost, DeviceLost]);
        all_steps_were_reached();
    }
}

/// R20, R121: the candidate has failed, and the device is lost while its predecessor is put back: that does not stay, whether the loss
/// comes to the slot itself or is stopped before.
#[test]
fn a_predecessor_that_is_lost_while_it_is_put_back_does_not_stay() {
    watched(|| {
        for step in [PriorRead, Restored] {
            let (site, _) = Site::selecting();
            let c = site.register();
            let retiring = site.clone();
            let retirement = Meanwhile::at(Published, Step::Retired, move || retiring.retire(c), || {});
            let losing = site.clone();
            at(step, move || losing.lose());
            inactive(site.select(c), DeviceLost);
            site.rests_on(None);
            all_steps_were_reached();
            retirement.go_on();

            let (site, _) = Site::selecting();
            let c = site.register();
            let retiring = site.clone();
            let retirement = Meanwhile::at(Published, Step::Retired, move || retiring.retire(c), || {});
            let losing = site.clone();
            // The predecessor was registered first, so it is the first to be marked.
            let loss = Meanwhile::at(step, Lost, move || losing.lose(), || {});
            inactive(site.select(c), Retired);
            site.rests_on(None);
            loss.go_on();
            site.rests_on(None);
            retirement.go_on();
        }
    });
}

/// When this thread comes to `step`, it registers a mechanism, which is told later.
fn registers(site: &Site, step: Step) -> Rc<Cell<Option<RegisteredMechanism>>> {
    let registered = Rc::new(Cell::new(None));
    let (registering, tell) = (site.clone(), Rc::clone(&registered));
    at(step, move || tell.set(Some(registering.register())));
    registered
}

/// R126, G1: a mechanism is registered while the device's are being marked: the loss comes back for it, before it clears the slot. With one
/// pass, what is registered behind the first mark would stay Active, unselected because of a selection that is about to go.
#[test]
fn a_registration_between_list_and_mark_is_lost_too() {
    for step in [Listed, Lost, Marked] {
        let (site, _) = Site::selecting();
        let n = registers(&site, step);
        site.lose();
        assert_eq!(site.lifecycle(n.take().expect("registered")), DeviceLost);
        site.rests_on(None);
        all_steps_were_reached();
    }
}

/// R126, R15: as long as a pass finds something new, another follows; what is registered behind the last one is not lost, and is selected,
/// for the old selection is dead by then.
#[test]
fn a_registration_behind_the_last_pass_is_selected() {
    let (site, p) = Site::selecting();
    // The first two are found by the next pass; the third pass finds the second, the fourth nothing.
    let found = [Marked, Marked].map(|step| registers(&site, step));
    at(Marked, || {});
    let n = registers(&site, Marked);
    site.lose();
    all_steps_were_reached();
    assert_eq!(found.map(|m| site.lifecycle(m.take().expect("registered"))), [DeviceLost, DeviceLost]);
    let n = n.take().expect("registered");
    assert_eq!([p, n].map(|m| site.lifecycle(m)), [DeviceLost, Active]);
    site.rests_on(Some(n));
}

/// R126: a loss meets a registration that is in the table and not in the slot, or in the slot and not decided.
#[test]
fn a_loss_meets_a_registration_on_its_way() {
    for step in [Registered, Published] {
        let (site, p) = Site::selecting();
        site.retire(p);
        let losing = site.clone();
        at(step, move || losing.lose());
        let n = site.register();
        assert_eq!(site.lifecycle(n), DeviceLost);
        site.rests_on(None);
        all_steps_were_reached();
    }
}

/// R130: an operation has seen the word Active, and the device is lost before it is counted: it is refused, and the allocator not called.
#[test]
fn an_operation_that_is_not_counted_before_the_loss_is_refused() {
    let site = Site::new();
    let (_, calls) = site.register_watched();
    let binding = site.registry.bind(DEVICE).unwrap();
    let losing = site.clone();
    at(Admitting, move || losing.lose());
    let refused = binding.allocate(8, 8);
    assert!(matches!(refused, Err(BindingError::DeviceLost { device: DEVICE, .. })), "{refused:?}");
    assert_eq!(calls.allocate.load(SeqCst), 0);
    all_steps_were_reached();
}

/// R36, R136, R111: a loss is stopped when the word says so and no stripe does. Who decides on the word closes the stripes itself: so a
/// context whose end is confirmed then lets nobody in, not even an operation that had seen the word before.
#[test]
fn a_stopped_loss_lets_nobody_in_after_the_end_of_its_context() {
    watched(|| {
        for lose_again in [true, false] {
            let site = Site::new();
            let (m, calls) = site.register_watched();
            let binding = site.registry.bind(DEVICE).unwrap();
            let operation = Stopped::at(Admitting, move || binding.allocate(8, 8).map(drop));
            let losing = site.clone();
            let loss = Stopped::at(Lost, move || losing.lose());

            if lose_again {
                site.lose();
                site.rests_on(None);
            }
            site.registry.confirm_context_terminated(site.context).unwrap();
            assert_eq!(site.lifecycle(m), Terminated);
            inactive(operation.go_on(), Terminated);
            assert_eq!(calls.allocate.load(SeqCst), 0, "an allocator of a terminated context was called");
            loss.go_on();
            site.rests_on(None);
            site.registry.remove(m).unwrap();
        }
    });
}

/// R32, R142: of two losses at once, the reason of the one that marks first stays.
#[test]
fn the_reason_of_the_first_loss_stays() {
    for (step, stays) in [(Listed, "inner"), (Lost, "outer")] {
        let (site, p) = Site::selecting();
        let losing = site.clone();
        at(step, move || losing.registry.invalidate_device(DEVICE, "inner").unwrap());
        site.registry.invalidate_device(DEVICE, "outer").unwrap();
        let refused = site.registry.bind_registered(p).unwrap_err();
        assert!(matches!(&refused, BindingError::DeviceLost { reason, .. } if &**reason == stays), "{refused:?}");
        all_steps_were_reached();
    }
}

/// R141: a retirement and a loss: lost, whoever comes first, and not selected.
#[test]
fn a_retirement_and_a_loss_end_lost() {
    let (site, p) = Site::selecting();
    let losing = site.clone();
    at(Step::Retired, move || losing.lose());
    site.retire(p);
    assert_eq!(site.lifecycle(p), DeviceLost);
    site.rests_on(None);

    let (site, p) = Site::selecting();
    let retiring = site.clone();
    at(Listed, move || retiring.retire(p));
    site.lose();
    assert_eq!(site.lifecycle(p), DeviceLost);
    site.rests_on(None);
    all_steps_were_reached();
}

/// R145, R37: a registration on a lost context is in the table when the end of the context is to be confirmed: refused because of it,
/// and nothing is changed.
#[test]
fn a_registration_is_included_in_the_confirmation() {
    let (site, p) = Site::selecting();
    site.lose();
    let confirming = site.clone();
    at(Registered, move || inactive(confirming.registry.confirm_context_terminated(confirming.context), Active));
    let n = site.register();
    assert_eq!([p, n].map(|m| site.lifecycle(m)), [DeviceLost, Active]);
    site.rests_on(Some(n));
    all_steps_were_reached();
}

/// R31: a trim has come to a mechanism whose device is lost before it is counted, retired or not: its allocator is not asked.
#[test]
fn a_trim_meets_a_loss() {
    for retired in [false, true] {
        let site = Site::new();
        let (m, calls) = site.register_watched();
        let binding = site.registry.bind(DEVICE).unwrap();
        let allocation = binding.allocate(8, 8).unwrap();
        if retired {
            site.retire(m);
        }
        assert_eq!(site.registry.trim(DEVICE, 0), 1);
        let losing = site.clone();
        at(Trimming, move || losing.lose());
        assert_eq!((site.registry.trim(DEVICE, 0), calls.trim.load(SeqCst)), (0, 1));
        all_steps_were_reached();
        drop(allocation);
    }
}
