//! Models of `src/primitives/liveness.rs`.

mod support;

use liveslot_loom::{
    MechanismLifecycle::{self, Active, DeviceLost, Retired, Terminated},
    internals::liveness::{
        Lifecycle,
        Step::{self, Already, First},
    },
};
use std::sync::Arc;
use support::race;

fn retired() -> Lifecycle {
    let lifecycle = Lifecycle::new();
    assert_eq!(lifecycle.retire(), First);
    lifecycle
}

fn lost() -> Lifecycle {
    let lifecycle = Lifecycle::new();
    assert_eq!(lifecycle.lose(&"first".into()), First);
    lifecycle
}

fn reason(lifecycle: &Lifecycle) -> Option<&str> {
    lifecycle.loss_reason().map(|reason| &**reason)
}

/// What a role of the models of a loss has seen.
#[derive(Debug)]
enum Saw {
    Made(Step),
    Read(MechanismLifecycle, Option<Arc<str>>),
}

fn lose(lifecycle: &Lifecycle, reason: &str) -> Saw {
    Saw::Made(lifecycle.lose(&reason.into()))
}

fn read(lifecycle: &Lifecycle) -> Saw {
    let phase = lifecycle.life().phase();
    Saw::Read(phase, lifecycle.loss_reason().cloned())
}

/// R32: whoever sees a lost device finds a reason; it is that of one of the losers, and stays. Each step has one winner.
#[test]
fn a_loss_has_one_reason_and_whoever_sees_it_finds_it() {
    race(Lifecycle::new, &[|lifecycle| lose(lifecycle, "one"), |lifecycle| lose(lifecycle, "two"), read], |lifecycle, saw| {
        assert_eq!(lifecycle.life().phase(), DeviceLost);
        let stays = reason(lifecycle);
        assert!(matches!(stays, Some("one" | "two")), "no loser's reason: {stays:?}");
        let [Saw::Made(one), Saw::Made(two), Saw::Read(phase, found)] = &*saw else { unreachable!() };
        assert!((*one == First) != (*two == First), "not one winner: {saw:?}");
        match phase {
            Active => {}
            DeviceLost => assert_eq!(found.as_deref(), stays, "lost without the reason that stays"),
            _ => panic!("a phase that nobody set: {phase:?}"),
        }
    });
}

/// R32, R33: later losses change neither the phase nor the reason.
#[test]
fn a_later_loss_changes_nothing() {
    race(
        lost,
        &[|lifecycle| lifecycle.lose(&"second".into()), |lifecycle| lifecycle.terminate(), |lifecycle| lifecycle.terminate()],
        |lifecycle, made| {
            assert_eq!(made[0], Already);
            assert!(made[1] != made[2], "not one winner: {made:?}");
            assert_eq!((lifecycle.life().phase(), reason(lifecycle)), (Terminated, Some("first")));
        },
    );
}

/// R141: a retirement and a loss: the loss always makes its step, the retirement only before it; an observer sees no step back.
#[test]
fn a_retirement_never_undoes_a_loss() {
    let observe = |lifecycle: &Lifecycle| vec![Err(lifecycle.life().phase()), Err(lifecycle.life().phase())];
    race(
        Lifecycle::new,
        &[|lifecycle| vec![Ok(lifecycle.retire())], |lifecycle| vec![Ok(lifecycle.lose(&"gone".into()))], observe],
        |lifecycle, saw| {
            assert_eq!(saw[1], [Ok(First)], "the loss was not made");
            assert_eq!(lifecycle.life().phase(), DeviceLost, "the loss was undone");
            let [Err(first), Err(second)] = saw[2][..] else { unreachable!() };
            let later = |phase| match phase {
                Active => vec![Active, Retired, DeviceLost],
                Retired => vec![Retired, DeviceLost],
                lost => vec![lost],
            };
            assert!(later(first).contains(&second), "back from {first:?} to {second:?}");
            let met_retired = [first, second].contains(&Retired);
            assert!(!met_retired || saw[0] == [Ok(First)], "retired by nobody");
        },
    );
}

/// R28: confirming the end of a context is refused before the loss, and then makes its step once.
#[test]
fn termination_comes_after_the_loss() {
    race(Lifecycle::new, &[|lifecycle| lifecycle.lose(&"gone".into()), |lifecycle| lifecycle.terminate()], |lifecycle, made| {
        assert_eq!(made[0], First);
        let ended = if made[1] == First { Terminated } else { DeviceLost };
        assert_eq!(lifecycle.life().phase(), ended);
    });
}

/// R139: of two removals one sets the mark, and no step of the phase takes it away, nor the mark the phase.
#[test]
fn the_removed_mark_has_one_winner_and_stays() {
    race(
        retired,
        &[|lifecycle| lifecycle.mark_removed(), |lifecycle| lifecycle.mark_removed(), |lifecycle| lifecycle.lose(&"gone".into())],
        |lifecycle, made| {
            assert!(made[0] != made[1], "not one winner: {made:?}");
            assert_eq!(made[2], First);
            let life = lifecycle.life();
            assert_eq!((life.phase(), life.is_removed(), life.is_active()), (DeviceLost, true, false), "{life:?}");
        },
    );
}

/// Who is told `Already` acts on a step that it sees.
#[test]
fn who_comes_second_sees_the_step() {
    race(
        Lifecycle::new,
        &[|lifecycle| (lifecycle.retire(), lifecycle.life().phase()), |lifecycle| (lifecycle.retire(), lifecycle.life().phase())],
        |_, made| {
            assert!(made[0].0 != made[1].0, "not one winner: {made:?}");
            assert_eq!((made[0].1, made[1].1), (Retired, Retired));
        },
    );
}
