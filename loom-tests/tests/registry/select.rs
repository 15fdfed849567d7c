//! R20, R22–R24, R120–R123, R128, C002, C006: selecting, deselecting and binding.

use super::{roles::Refusal::*, support::race, world::*};
use liveslot_loom::MechanismLifecycle::*;

/// R120, R20: a selection that fails brings back the healthy one before it; one that succeeds is retired.
#[test]
fn select_and_retire() {
    race(World::<2>::new, &[|w| w.select(1), |w| w.retire(1)], |w, answers| {
        let [p, c] = [w.at(0), w.at(1)];
        assert_eq!(answers[1], Ok(c));
        assert_eq!(w.lifecycle(c), Some(Retired));
        if answers[0] == Ok(c) {
            assert_eq!(w.selected(), None, "selected, then retired");
        } else {
            assert_eq!(answers[0], Err(Inactive(c, Retired)));
            assert_eq!(w.selected(), Some(p), "the healthy selection is gone");
        }
    });
}

/// R120, R22: retiring an unselected mechanism leaves a selection alone, also one in the making.
#[test]
fn select_and_retire_of_the_one_before() {
    race(World::<2>::new, &[|w| w.select(1), |w| w.retire(0)], |w, answers| {
        assert_eq!(answers, [Ok(w.at(1)), Ok(w.at(0))]);
        assert_eq!(w.selected(), Some(w.at(1)));
    });
}

/// R20(b): what a failing selection puts back does not stay if it dies at that moment.
#[test]
fn select_and_retire_of_both() {
    race(World::<2>::new, &[|w| w.select(1), |w| w.retire(1), |w| w.retire(0)], |w, answers| {
        assert!(answers[0] == Ok(w.at(1)) || answers[0] == Err(Inactive(w.at(1), Retired)), "{answers:?}");
        assert_eq!(w.selected(), None);
    });
}

/// R121: nothing that was lost is selected, whatever `select` answered.
#[test]
fn select_and_invalidate() {
    race(World::<2>::new, &[|w| w.select(1), |w| w.invalidate("gone")], |w, answers| {
        assert!(answers[0] == Ok(w.at(1)) || answers[0] == Err(Inactive(w.at(1), DeviceLost)), "{answers:?}");
        assert_eq!([0, 1].map(|n| w.lifecycle(w.at(n))), [Some(DeviceLost); 2]);
        assert_eq!(w.selected(), None);
    });
}

/// R122: of two selections one stays.
#[test]
fn select_and_select() {
    race(World::<3>::new, &[|w| w.select(1), |w| w.select(2)], |w, answers| {
        assert_eq!(answers, [Ok(w.at(1)), Ok(w.at(2))]);
        let selected = w.selected();
        assert!(selected == Some(w.at(1)) || selected == Some(w.at(2)), "neither choice stands: {selected:?}");
    });
}

/// R20(a), R123: a selection that fails leaves a newer one alone.
#[test]
fn a_failing_select_and_a_good_one() {
    race(World::<3>::new, &[|w| w.select(1), |w| w.retire(1), |w| w.select(2)], |w, answers| {
        let [failing, good] = [w.at(1), w.at(2)];
        assert_eq!(answers[1..], [Ok(failing), Ok(good)]);
        if answers[0] == Ok(failing) {
            // It may have replaced the good one before it was retired.
            assert!([None, Some(good)].contains(&w.selected()));
        } else {
            assert_eq!(answers[0], Err(Inactive(failing, Retired)));
            assert_eq!(w.selected(), Some(good), "the newer selection is gone");
        }
    });
}

/// R123: two failing selections stacked on each other bring the healthy one back.
#[test]
fn two_failing_selects() {
    let retire_both = |w: &World<3>| w.retire(1).and_then(|_| w.retire(2));
    race(World::<3>::new, &[|w| w.select(1), |w| w.select(2), retire_both], |w, answers| {
        let failed = |n: usize| answers[n - 1] == Err(Inactive(w.at(n), Retired));
        assert!((failed(1) || answers[0] == Ok(w.at(1))) && (failed(2) || answers[1] == Ok(w.at(2))), "{answers:?}");
        let left = if failed(1) && failed(2) { Some(w.at(0)) } else { None };
        assert_eq!(w.selected(), left, "{answers:?}");
    });
}

/// R123: so do two of the same candidate.
#[test]
fn two_failing_selects_of_one_candidate() {
    race(World::<2>::new, &[|w| w.select(1), |w| w.select(1), |w| w.retire(1)], |w, answers| {
        let c = w.at(1);
        let failed = answers[..2].iter().all(|answer| *answer == Err(Inactive(c, Retired)));
        assert!(failed || answers[..2].contains(&Ok(c)), "{answers:?}");
        assert_eq!(w.selected(), if failed { Some(w.at(0)) } else { None }, "{answers:?}");
    });
}

/// C006: of two selections on one condition one wins, and the other is told of it.
#[test]
fn select_if_and_select_if() {
    race(World::<3>::new, &[|w| w.select_if_unchanged(1), |w| w.select_if_unchanged(2)], |w, answers| {
        let [a, b] = [w.at(1), w.at(2)];
        if answers[0] == Ok(a) {
            assert_eq!((&answers[1], w.selected()), (&Err(Changed(2, Some(a))), Some(a)));
        } else {
            assert_eq!((answers, w.selected()), (vec![Err(Changed(2, Some(b))), Ok(b)], Some(b)));
        }
        assert_eq!([a, b].map(|m| w.lifecycle(m)), [Some(Active); 2]);
    });
}

/// R20, R120, C006: a conditional selection fails as another does.
#[test]
fn select_if_and_retire() {
    race(World::<2>::new, &[|w| w.select_if_unchanged(1), |w| w.retire(1)], |w, answers| {
        let [p, c] = [w.at(0), w.at(1)];
        if answers[0] == Ok(c) {
            assert_eq!(w.selected(), None, "selected, then retired");
        } else {
            assert_eq!((&answers[0], w.selected()), (&Err(Inactive(c, Retired)), Some(p)));
        }
    });
}

/// C006: the retirement of what was to be replaced comes before a conditional selection, or leaves it alone.
#[test]
fn select_if_and_retire_of_the_one_before() {
    race(World::<2>::new, &[|w| w.select_if_unchanged(1), |w| w.retire(0)], |w, answers| {
        let c = w.at(1);
        let expected = if answers[0] == Ok(c) { (Ok(c), Some(c)) } else { (Err(Changed(2, None)), None) };
        assert_eq!((answers[0].clone(), w.selected()), expected);
    });
}

/// C002, R22: nothing is promoted in place of what was deselected, which stays Active.
#[test]
fn deselect_and_select() {
    race(World::<2>::new, &[|w| w.deselect(), |w| w.select(1)], |w, answers| {
        let [p, c] = [w.at(0), w.at(1)];
        let expected = if answers[0] == Ok(p) { (Ok(p), Some(c)) } else { (Ok(c), None) };
        assert_eq!((answers[0].clone(), w.selected()), expected);
        assert_eq!([p, c].map(|m| w.lifecycle(m)), [Some(Active); 2]);
    });
}

/// R24: beside a selection that succeeds, `bind` gives the old or the new one.
#[test]
fn bind_and_select() {
    race(World::<2>::new, &[|w| w.bind(), |w| w.select(1)], |w, answers| {
        assert!(answers[0] == Ok(w.at(0)) || answers[0] == Ok(w.at(1)), "{answers:?}");
        assert_eq!(w.selected(), Some(w.at(1)));
    });
}

/// R24, R20: beside a selection that fails, `bind` gives the healthy one; nobody is given the candidate.
#[test]
fn bind_and_a_failing_select() {
    race(World::<2>::new, &[|w| w.bind(), |w| w.select(1), |w| w.retire(1)], |w, answers| {
        let [p, c] = [w.at(0), w.at(1)];
        if answers[1] == Ok(c) {
            assert!([Ok(p), Ok(c), Err(Unselected)].contains(&answers[0]), "{answers:?}");
        } else {
            assert_eq!(answers[0], Ok(p), "bind met a selection that failed");
            assert_eq!(w.selected(), Some(p));
        }
    });
}

/// R128: `bind` beside the retirement of the selected one gives that or nothing.
#[test]
fn bind_and_retire() {
    race(World::<1>::new, &[|w| w.bind(), |w| w.retire(0)], |w, answers| {
        assert!([Ok(w.at(0)), Err(Unselected)].contains(&answers[0]), "{answers:?}");
        assert_eq!(w.selected(), None);
    });
}

/// R128: the same beside a loss.
#[test]
fn bind_and_invalidate() {
    race(World::<1>::new, &[|w| w.bind(), |w| w.invalidate("gone")], |w, answers| {
        assert!([Ok(w.at(0)), Err(Unselected)].contains(&answers[0]), "{answers:?}");
        assert_eq!(w.selected(), None);
    });
}

/// R128, I3: once any `retire` has returned, nothing binds the mechanism, though the call that retired it is stopped on its way to the
/// slot.
#[test]
fn bind_after_a_second_retire() {
    let after = |w: &World<1>| {
        w.retire(0)?;
        assert_eq!(w.named(), None, "retire has returned, and the slot names it");
        assert_eq!(w.bind_registered(0), Err(Inactive(w.at(0), Retired)));
        w.bind()
    };
    race(World::<1>::new, &[|w| w.retire(0), after], |w, answers| {
        assert_eq!(answers, [Ok(w.at(0)), Err(Unselected)]);
        assert_eq!(w.selected(), None);
    });
}

/// R23: `bind_registered` gives the mechanism or says what has become of it.
#[test]
fn bind_registered_and_retire_and_invalidate() {
    race(World::<1>::new, &[|w| w.bind_registered(0), |w| w.retire(0), |w| w.invalidate("gone")], |w, answers| {
        let m = w.at(0);
        assert!([Ok(m), Err(Inactive(m, Retired)), Err(Lost("gone".into()))].contains(&answers[0]), "{answers:?}");
        assert_eq!(w.selected(), None);
    });
}
