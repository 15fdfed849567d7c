//! R44, R45, R139, R140, R143: removing.

use super::{
    roles::{Refusal::*, *},
    support::race,
    world::*,
};
use liveslot_loom::MechanismLifecycle::*;

/// The last mechanism is retired.
fn retired<const N: usize>() -> World<N> {
    let w = World::new();
    w.retire(N - 1).unwrap();
    w
}

/// R139: one of two removals wins; to the other the mechanism is unregistered.
#[test]
fn remove_and_remove() {
    race(retired::<1>, &[|w| w.remove(0), |w| w.remove(0)], |w, answers| {
        let m = w.at(0);
        let won = answers.iter().filter(|answer| **answer == Ok(m)).count();
        assert_eq!(won, 1, "{answers:?}");
        assert!(answers.contains(&Err(Unregistered(m))), "{answers:?}");
        assert_eq!(w.lifecycle(m), None);
    });
}

/// R140: a selection of what is being removed fails, and leaves the one before it.
#[test]
fn remove_and_select() {
    race(retired::<2>, &[|w| w.remove(1), |w| w.select(1)], |w, answers| {
        let m = w.at(1);
        assert_eq!(answers[0], Ok(m));
        assert!([Err(Inactive(m, Retired)), Err(Unregistered(m))].contains(&answers[1]), "{answers:?}");
        assert_eq!(w.selected(), Some(w.at(0)));
    });
}

/// R140, R44: the same where `select` may have found it Active: the slot does not name it once the removal has returned.
#[test]
fn retire_and_remove_and_select() {
    let retire_and_remove = |w: &World<2>| {
        w.retire(1)?;
        w.remove(1)
    };
    race(World::<2>::new, &[retire_and_remove, |w| w.select(1)], |w, answers| {
        let [p, m] = [w.at(0), w.at(1)];
        assert_eq!(answers[0], Ok(m));
        if answers[1] == Ok(m) {
            assert_eq!(w.selected(), None);
        } else {
            assert!([Err(Inactive(m, Retired)), Err(Unregistered(m))].contains(&answers[1]), "{answers:?}");
            assert_eq!(w.selected(), Some(p));
        }
    });
}

/// R44: when a removal has returned the slot does not name the mechanism, though the call that retired it is stopped on its way there.
#[test]
fn remove_and_retire() {
    let remove = |w: &World<1>| {
        let removed = w.remove(0)?;
        assert_eq!(w.named(), None, "removed, and the slot names it");
        Ok(removed)
    };
    race(World::<1>::new, &[remove, |w| w.retire(0)], |w, answers| {
        let m = w.at(0);
        assert_eq!(answers[1], Ok(m));
        assert!([Ok(m), Err(Inactive(m, Active))].contains(&answers[0]), "{answers:?}");
        assert_eq!(w.lifecycle(m), if answers[0] == Ok(m) { None } else { Some(Retired) });
        assert_eq!(w.selected(), None);
    });
}

/// R43, R28: a loss and a removal do not get in each other's way.
#[test]
fn remove_and_invalidate() {
    race(retired::<2>, &[|w| w.remove(1), |w| w.invalidate("gone")], |w, answers| {
        assert_eq!(answers, [Ok(w.at(1)), Ok(w.at(0))]);
        assert_eq!([0, 1].map(|n| w.lifecycle(w.at(n))), [Some(DeviceLost), None]);
        assert_eq!(w.selected(), None);
    });
}

/// R36, R43: nor do a removal and a confirmation.
#[test]
fn remove_and_confirm() {
    let lost = || {
        let w = World::<1>::new();
        w.invalidate("gone").unwrap();
        w
    };
    race(lost, &[|w| w.remove(0), |w| w.confirm()], |w, answers| {
        assert_eq!(answers, [Ok(w.at(0)), Ok(w.at(0))]);
        assert_eq!(w.lifecycle(w.at(0)), None);
    });
}

/// R16: an old token does not name what took its place in the table.
#[test]
fn retire_and_remove_and_register_and_bind_registered() {
    let replace = |w: &World<1>| {
        w.retire(0)?;
        w.remove(0)?;
        w.register()
    };
    race(World::<1>::new, &[replace, |w| w.bind_registered(0)], |w, answers| {
        let m = w.at(0);
        assert!([Ok(m), Err(Inactive(m, Retired)), Err(Unregistered(m))].contains(&answers[1]), "{answers:?}");
        assert_eq!(w.selected(), answers[0].clone().ok());
        assert_eq!(w.bind_registered(0), Err(Unregistered(m)));
    });
}

/// R143: a context is removed after its last mechanism, or is in use until then; the same for an authority.
#[test]
fn remove_and_remove_provider_context_and_authority() {
    let remove_supports = |w: &World<1>| {
        let context = w.registry.remove_provider_context(w.context).map_err(Refusal::from);
        let authority = w.registry.remove_authority(w.authority).map_err(Refusal::from);
        vec![context, authority]
    };
    race(retired::<1>, &[|w| vec![w.remove(0).map(drop)], remove_supports], |w, answers| {
        assert_eq!(answers[0], [Ok(())]);
        let again = [
            w.registry.remove_provider_context(w.context).map_err(Refusal::from),
            w.registry.remove_authority(w.authority).map_err(Refusal::from),
        ];
        for ((answer, again), (in_use, gone)) in
            answers[1].iter().zip(again).zip([(ContextInUse, NoContext), (AuthorityInUse, NoAuthority)])
        {
            match answer {
                Ok(()) => assert_eq!(again, Err(gone)),
                Err(refusal) => assert_eq!((refusal, again), (&in_use, Ok(()))),
            }
        }
    });
}
