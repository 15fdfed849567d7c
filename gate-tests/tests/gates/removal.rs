//! Retirements and removals that are stopped half-way, and what others may do meanwhile.

use crate::support::{DEVICE, End, IN_ORDER, Site, Stopped, all_steps_were_reached, at, inactive, unregistered, watched};
use liveslot_gated::{
    BindingError,
    MechanismLifecycle::{Active, Retired},
    internals::gates::Step::{self, Admitting, Registered, RemovalMarked, Removing, Trimming},
};
use std::{cell::Cell, rc::Rc, sync::atomic::Ordering::SeqCst};

/// R129: an operation has seen the word Active, and the mechanism is retired before it is counted: refused, and the allocator not called.
#[test]
fn an_operation_that_is_not_counted_before_the_retirement_is_refused() {
    let site = Site::new();
    let (m, calls) = site.register_watched();
    let binding = site.registry.bind(DEVICE).unwrap();
    let retiring = site.clone();
    at(Admitting, move || retiring.retire(m));
    inactive(binding.allocate(8, 8), Retired);
    assert_eq!(calls.allocate.load(SeqCst), 0);
    all_steps_were_reached();
}

/// R42, R47, R111: a retirement is stopped when the word says so, and neither the stripes nor the slot do. Another thread retires the
/// mechanism as well and removes it, or removes it only: nothing is left in the slot, and nobody is let in, not even an operation that had
/// seen the word before.
#[test]
fn a_stopped_retirement_lets_nobody_into_a_removed_mechanism() {
    watched(|| {
        for retire_again in [true, false] {
            let site = Site::new();
            let (m, calls) = site.register_watched();
            let binding = site.registry.bind(DEVICE).unwrap();
            let operation = Stopped::at(Admitting, move || binding.allocate(8, 8).map(drop));
            let retiring = site.clone();
            let retirement = Stopped::at(Step::Retired, move || retiring.retire(m));

            if retire_again {
                site.retire(m);
                site.rests_on(None);
            }
            site.registry.remove(m).unwrap();
            site.rests_on(None);
            assert_eq!(site.ends.so_far(), [], "destroyed while it is bound");

            inactive(operation.go_on(), Retired);
            assert_eq!(calls.allocate.load(SeqCst), 0, "the allocator of a removed mechanism was called");
            assert_eq!(site.ends.so_far(), [End::Allocator { pinned: true }], "its last binding has gone");
            retirement.go_on();
            site.rests_on(None);
        }
    });
}

/// R139, R140: between the mark of a removal and its end the mechanism is nobody's to remove, to select or to bind.
#[test]
fn a_marked_mechanism_is_nobodys() {
    let (site, p) = Site::selecting();
    site.retire(p);
    let meeting = site.clone();
    at(RemovalMarked, move || {
        unregistered(meeting.registry.remove(p));
        unregistered(meeting.select(p));
        meeting.rests_on(None);
        assert!(meeting.registry.bind_registered(p).is_err());
        assert_eq!(meeting.ends.so_far(), []);
    });
    site.registry.remove(p).unwrap();
    assert_eq!(site.ends.so_far(), [End::Allocator { pinned: true }]);
    unregistered(site.registry.remove(p));
    all_steps_were_reached();
}

/// C051, R139: a removal has found what it is to remove, and another one removes that and registers a successor: the first is told that
/// there is nothing to remove, and the successor stays.
#[test]
fn a_late_removal_leaves_the_successor_alone() {
    let (site, p) = Site::selecting();
    site.retire(p);
    let replacing = site.clone();
    let successor = Rc::new(Cell::new(None));
    let registered = Rc::clone(&successor);
    at(Removing, move || {
        replacing.registry.remove(p).unwrap();
        registered.set(Some(replacing.register()));
    });
    unregistered(site.registry.remove(p));
    site.rests_on(successor.get());
    assert_eq!(site.lifecycle(successor.get().unwrap()), Active);
    all_steps_were_reached();
}

/// R46, R48, R143: a removal is stopped behind its mark: its context and its authority may go, and what the mechanism needs of them stays
/// until the allocator has been destroyed.
#[test]
fn context_and_authority_may_go_before_a_stopped_removal_ends() {
    watched(|| {
        let (site, p) = Site::selecting();
        site.retire(p);
        let removing = site.clone();
        let removal = Stopped::at(RemovalMarked, move || removing.registry.remove(p));
        site.registry.remove_provider_context(site.context).unwrap();
        site.registry.remove_authority(site.authority).unwrap();
        assert_eq!(site.ends.so_far(), []);
        removal.go_on().unwrap();
        assert_eq!(site.ends.so_far(), IN_ORDER);
    });
}

/// R144, G6: a registration has counted itself as a user of its context and its authority before anybody can find it: neither can be
/// removed.
#[test]
fn a_registration_keeps_its_context_and_its_authority() {
    let site = Site::new();
    let removing = site.clone();
    at(Registered, move || {
        let refused = removing.registry.remove_provider_context(removing.context);
        assert!(matches!(refused, Err(BindingError::ProviderContextInUse(_))), "{refused:?}");
        let refused = removing.registry.remove_authority(removing.authority);
        assert!(matches!(refused, Err(BindingError::AuthorityInUse(_))), "{refused:?}");
    });
    let m = site.register();
    all_steps_were_reached();
    site.retire_and_remove(m);
    site.registry.remove_provider_context(site.context).unwrap();
    site.registry.remove_authority(site.authority).unwrap();
}

/// R42, R50: a trim has come to a mechanism, which is removed before it is counted, be it Active still when the trim looks at it: its
/// allocator is not asked, and is destroyed at once. So is one that is removed at another's turn.
#[test]
fn a_trim_meets_a_removal() {
    let (site, p) = Site::selecting();
    let (q, (n, calls)) = (site.register(), site.register_watched());
    let removing = site.clone();
    at(Trimming, move || {
        removing.retire_and_remove(p);
        assert_eq!(removing.ends.so_far().len(), 1, "held before it is counted");
    });
    let removing = site.clone();
    at(Admitting, move || {
        removing.retire_and_remove(q);
        assert_eq!(removing.ends.so_far().len(), 2, "held before it is counted");
    });
    assert_eq!(site.registry.trim(DEVICE, 0), 1);
    assert_eq!((site.ends.so_far(), calls.trim.load(SeqCst)), (vec![End::Allocator { pinned: true }; 2], 1));

    let last = site.register();
    let removing = site.clone();
    at(Trimming, move || {
        removing.retire_and_remove(last);
        assert_eq!(removing.ends.so_far().len(), 3, "held before its turn");
    });
    assert_eq!(site.registry.trim(DEVICE, 0), 1);
    assert_eq!((site.lifecycle(n), calls.trim.load(SeqCst)), (Active, 2));
    all_steps_were_reached();
}
