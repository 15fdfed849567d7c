//! R124–R127, R144, R145: registering.

use super::{
    roles::{Refusal::*, *},
    support::{race, race_at},
    world::*,
};
use liveslot_loom::{MechanismIdentity, MechanismLifecycle::*};

fn registered(answer: &Answer) -> MechanismIdentity {
    *answer.as_ref().expect("nothing refuses the registration")
}

/// R124: of two registrations on a device that nobody knew, one is selected.
#[test]
fn register_and_register() {
    race(World::<0>::new, &[|w| w.register(), |w| w.register()], |w, answers| {
        let both = [registered(&answers[0]), registered(&answers[1])];
        assert_ne!(both[0], both[1]);
        assert_eq!(both.map(|m| w.lifecycle(m)), [Some(Active); 2]);
        let selected = w.selected().expect("one of the two is selected");
        assert!(both.contains(&selected));
    });
}

/// C002, R13: a registration takes the place that was deselected, or came before and displaced nothing.
#[test]
fn register_and_deselect() {
    race(World::<1>::new, &[|w| w.register(), |w| w.deselect()], |w, answers| {
        let n = registered(&answers[0]);
        assert_eq!(answers[1], Ok(w.at(0)));
        assert!([None, Some(n)].contains(&w.selected()));
        assert_eq!([w.at(0), n].map(|m| w.lifecycle(m)), [Some(Active); 2]);
    });
}

/// R24: on a device that nobody knew, `bind` gives the newcomer or finds nothing.
#[test]
fn register_and_bind() {
    race(World::<0>::new, &[|w| w.register(), |w| w.bind()], |w, answers| {
        let n = registered(&answers[0]);
        assert!([Ok(n), Err(Unselected)].contains(&answers[1]), "{answers:?}");
        assert_eq!(w.selected(), Some(n));
    });
}

/// R103: a list has everything that was registered before, whatever else is being registered, removed, or put in a freed place.
#[test]
fn register_and_remove_and_snapshots() {
    let replace = |w: &World<2>| {
        w.retire(0)?;
        w.remove(0)?;
        w.register()
    };
    let find = |w: &World<2>| w.lifecycle(w.at(1)).map(|_| w.at(1)).ok_or(Unregistered(w.at(1)));
    race(World::<2>::new, &[replace, find], |w, answers| {
        assert_eq!(answers[1], Ok(w.at(1)), "a list missed what stood all the time");
        assert_eq!(w.selected(), Some(registered(&answers[0])));
    });
}

/// R125: a selection stands against a registration, also where nothing was selected.
#[test]
fn register_and_select() {
    let unselected = || {
        let w = World::<2>::new();
        w.retire(0).unwrap();
        w
    };
    race(unselected, &[|w| w.register(), |w| w.select(1)], |w, answers| {
        assert_eq!(w.lifecycle(registered(&answers[0])), Some(Active));
        assert_eq!(answers[1], Ok(w.at(1)));
        assert_eq!(w.selected(), Some(w.at(1)));
    });
}

/// R13, R20: a selection that fails does not keep a registration from being selected.
#[test]
fn register_and_a_failing_select() {
    let unselected = || {
        let w = World::<2>::new();
        w.retire(0).unwrap();
        w
    };
    race(unselected, &[|w| w.register(), |w| w.select(1), |w| w.retire(1)], |w, answers| {
        let [n, c] = [registered(&answers[0]), w.at(1)];
        if answers[1] == Ok(c) {
            // It came too late, if the other was still selected.
            assert!([None, Some(n)].contains(&w.selected()));
        } else {
            assert_eq!(answers[1], Err(Inactive(c, Retired)));
            assert_eq!(w.selected(), Some(n), "registered, and nothing is selected");
        }
    });
}

/// R126: the newcomer is lost, or it is Active and selected.
#[test]
fn register_and_invalidate() {
    race(World::<1>::new, &[|w| w.register(), |w| w.invalidate("gone")], |w, answers| {
        let n = registered(&answers[0]);
        assert_eq!(w.lifecycle(w.at(0)), Some(DeviceLost));
        match w.lifecycle(n) {
            Some(DeviceLost) => assert_eq!(w.selected(), None),
            lifecycle => {
                assert_eq!(lifecycle, Some(Active));
                assert_eq!(w.selected(), Some(n), "Active, and nothing is selected");
            }
        }
    });
}

/// R126 where the newcomer is the first of its device, which the loss need not have heard of.
#[test]
fn register_the_first_and_invalidate() {
    let invalidate = |w: &World<0>| {
        w.registry.invalidate_device(DEVICE, "gone")?;
        Err(Unselected)
    };
    race(World::<0>::new, &[|w| w.register(), invalidate], |w, answers| {
        let n = registered(&answers[0]);
        let selected = match w.lifecycle(n) {
            Some(Active) => Some(n),
            lifecycle => {
                assert_eq!(lifecycle, Some(DeviceLost));
                None
            }
        };
        assert_eq!(w.selected(), selected);
    });
}

/// R126 for two newcomers: while one is Active, an Active one is selected.
#[test]
fn two_registers_and_invalidate() {
    // Bound 3 takes 123 000 iterations in a placement. The two registrations are alike, so three placements are all.
    let placements = [[0, 1, 2], [0, 2, 1], [2, 0, 1]];
    race_at(&[2], &placements, World::<1>::new, &[|w| w.register(), |w| w.register(), |w| w.invalidate("gone")], |w, answers| {
        let alive = [&answers[0], &answers[1]].map(registered).map(|n| (n, w.lifecycle(n)));
        let alive: Vec<_> = alive.into_iter().filter(|(_, lifecycle)| *lifecycle == Some(Active)).map(|(n, _)| n).collect();
        match w.selected() {
            Some(selected) => assert!(alive.contains(&selected)),
            None => assert_eq!(alive, [], "Active, and nothing is selected"),
        }
    });
}

/// R127: the newcomer is selected, or nothing is.
#[test]
fn register_and_retire() {
    race(World::<1>::new, &[|w| w.register(), |w| w.retire(0)], |w, answers| {
        let n = registered(&answers[0]);
        assert_eq!([n, w.at(0)].map(|m| w.lifecycle(m)), [Some(Active), Some(Retired)]);
        assert!([None, Some(n)].contains(&w.selected()));
    });
}

/// R144: a context is used or removed, not both; the same for an authority.
#[test]
fn register_and_remove_provider_context() {
    let remove_context = |w: &World<0>| match w.registry.remove_provider_context(w.context) {
        Ok(()) => Err(NoContext),
        Err(error) => Err(error.into()),
    };
    race(World::<0>::new, &[|w| w.register(), remove_context], |w, answers| match &answers[0] {
        Ok(n) => {
            assert_eq!(answers[1], Err(ContextInUse), "used and removed");
            assert_eq!(w.selected(), Some(*n));
        }
        refused => {
            assert_eq!(*refused, Err(NoContext));
            assert_eq!(answers[1], Err(NoContext), "refused, and in use");
            assert_eq!(w.selected(), None);
        }
    });
}

/// R144: a registration that is about to fail for want of its authority holds its context for a moment only.
#[test]
fn register_and_remove_authority_and_provider_context() {
    let remove_both = |w: &World<0>| {
        let authority = w.registry.remove_authority(w.authority);
        w.registry.remove_provider_context(w.context)?;
        authority?;
        Err(NoContext)
    };
    race(World::<0>::new, &[|w| w.register(), remove_both], |w, answers| match (&answers[0], &answers[1]) {
        (Ok(n), removed) => {
            assert_eq!(*removed, Err(ContextInUse));
            assert_eq!(w.selected(), Some(*n));
        }
        (refused, removed) => {
            assert!([Err(NoContext), Err(NoAuthority)].contains(refused), "{refused:?}");
            let again = w.registry.remove_provider_context(w.context).map_err(Refusal::from);
            // What was in the way has gone.
            assert_eq!(again.is_ok(), *removed == Err(ContextInUse), "{answers:?}, then {again:?}");
        }
    });
}

/// R145: the newcomer is Active; confirming is refused because of it, or concerns those before it.
#[test]
fn register_and_confirm() {
    let lost = || {
        let w = World::<1>::new();
        w.invalidate("gone").unwrap();
        w
    };
    race(lost, &[|w| w.register(), |w| w.confirm()], |w, answers| {
        let n = registered(&answers[0]);
        assert_eq!(w.lifecycle(n), Some(Active));
        assert_eq!(w.selected(), Some(n));
        if answers[1] == Ok(w.at(0)) {
            assert_eq!(w.lifecycle(w.at(0)), Some(Terminated));
        } else {
            assert_eq!(answers[1], Err(Inactive(n, Active)));
            assert_eq!(w.lifecycle(w.at(0)), Some(DeviceLost));
        }
    });
}
