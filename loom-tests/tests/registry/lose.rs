//! R32, R36, R137, R141, R142: losing a device, and confirming that a context is gone.

use super::{
    roles::{Refusal::*, *},
    support::race,
    world::*,
};
use liveslot_loom::MechanismLifecycle::*;

/// R141: lost, whichever came first.
#[test]
fn retire_and_invalidate() {
    race(World::<1>::new, &[|w| w.retire(0), |w| w.invalidate("gone")], |w, answers| {
        assert_eq!(answers, [Ok(w.at(0)), Ok(w.at(0))]);
        assert_eq!(w.lifecycle(w.at(0)), Some(DeviceLost));
        assert_eq!(w.selected(), None);
    });
}

/// R142, R32: the reason is that of one call, and whoever has seen it has seen it for ever.
#[test]
fn invalidate_and_invalidate() {
    fn seen(w: &World<1>, reason: &str) -> Answer {
        w.invalidate(reason).unwrap();
        w.bind_registered(0)
    }
    race(World::<1>::new, &[|w| seen(w, "first"), |w| seen(w, "second")], |w, answers| {
        let reason = w.bind_registered(0);
        assert!([Err(Lost("first".into())), Err(Lost("second".into()))].contains(&reason), "{reason:?}");
        assert_eq!(answers, [reason.clone(), reason]);
        assert_eq!(w.lifecycle(w.at(0)), Some(DeviceLost));
        assert_eq!(w.selected(), None);
    });
}

/// R29, I3: once any loss has returned, nothing binds what it was told of, though the call that marked it is stopped on its way to the
/// slot.
#[test]
fn invalidate_after_a_second_invalidate() {
    let after = |w: &World<1>| {
        w.invalidate("gone")?;
        assert_eq!(w.named(), None, "the loss has returned, and the slot names what is lost");
        w.bind()
    };
    race(World::<1>::new, &[|w| w.invalidate("gone"), after], |w, answers| {
        assert_eq!(answers, [Ok(w.at(0)), Err(Unselected)]);
        assert_eq!(w.selected(), None);
    });
}

/// R137: two confirmations agree.
#[test]
fn confirm_and_confirm() {
    let lost = || {
        let w = World::<2>::new();
        w.invalidate("gone").unwrap();
        w
    };
    race(lost, &[|w| w.confirm(), |w| w.confirm()], |w, answers| {
        assert_eq!(answers, [Ok(w.at(0)), Ok(w.at(0))]);
        assert_eq!([0, 1].map(|n| w.lifecycle(w.at(n))), [Some(Terminated); 2]);
    });
}

/// R36: confirmed if everything was lost before; else refused because of the first in the order of registration that was not.
#[test]
fn confirm_and_invalidate() {
    race(World::<2>::new, &[|w| w.confirm(), |w| w.invalidate("gone")], |w, answers| {
        let both = [0, 1].map(|n| w.lifecycle(w.at(n)));
        if answers[0] == Ok(w.at(0)) {
            assert_eq!(both, [Some(Terminated); 2]);
        } else {
            assert!([Err(Inactive(w.at(0), Active)), Err(Inactive(w.at(1), Active))].contains(&answers[0]), "{answers:?}");
            assert_eq!(both, [Some(DeviceLost); 2], "refused, and something has changed");
        }
        assert_eq!(w.selected(), None);
    });
}
