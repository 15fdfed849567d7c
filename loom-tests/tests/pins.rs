//! Models of `src/primitives/pins.rs`, alone and under the lifecycle word that they prove.

#[path = "support/resource.rs"]
mod resource;
mod support;

use liveslot_loom::{
    MechanismLifecycle::{self, Active, DeviceLost, Retired, Terminated},
    internals::{
        atomic::{AtomicBool, Ordering::Relaxed},
        liveness::{
            Lifecycle,
            Step::{self, Already},
        },
        pins::{Close, Closed, Home, Left, Operation, Pins, Refused, Totals},
    },
};
use resource::Resource;
use support::race;

const NOTHING: Totals = Totals { operations: 0, live: 0, queued: 0 };
const OPERATION: Totals = Totals { operations: 1, ..NOTHING };
const LIVE: Totals = Totals { live: 1, ..NOTHING };
const QUEUED: Totals = Totals { queued: 1, ..NOTHING };

mod admission {
    use super::*;

    /// Pins, what their operations use, and where a recorded thing is counted, if the model begins with one.
    struct State {
        pins: Pins,
        resource: Resource,
        recorded: Option<Home>,
    }

    /// What a role has seen.
    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Saw {
        Admitted,
        Refused,
        Counted(Vec<Totals>),
    }

    impl State {
        fn striped<const STRIPES: usize>() -> Self {
            Self { pins: Pins::new(STRIPES), resource: Resource::new(), recorded: None }
        }

        /// One thing recorded on stripe 0 of 2.
        fn recorded() -> Self {
            let mut state = Self::striped::<2>();
            let operation = state.pins.enter(0).unwrap();
            state.recorded = Some(operation.home());
            operation.record();
            state
        }

        fn operate(&self, lane: usize) -> Saw {
            let Ok(operation) = self.pins.enter(lane) else { return Saw::Refused };
            self.resource.read();
            drop(operation);
            Saw::Admitted
        }

        fn record(&self, lane: usize) -> Saw {
            let Ok(operation) = self.pins.enter(lane) else { return Saw::Refused };
            self.resource.read();
            operation.record();
            Saw::Admitted
        }

        fn operate_beside_records(&self) -> Saw {
            let Ok(operation) = self.pins.enter_beside_records() else { return Saw::Refused };
            self.resource.read();
            drop(operation);
            Saw::Admitted
        }

        fn queue(&self) -> Saw {
            match self.pins.queue(self.recorded.unwrap()) {
                Ok(()) => Saw::Admitted,
                Err(refused) => {
                    assert_eq!(refused, Refused::Closed);
                    Saw::Refused
                }
            }
        }

        fn queue_and_settle(&self) -> Saw {
            let saw = self.queue();
            if saw == Saw::Admitted {
                self.resource.read();
                self.pins.settle(self.recorded.unwrap());
            }
            saw
        }

        fn count(&self) -> Saw {
            Saw::Counted(vec![self.pins.totals(), self.pins.totals()])
        }

        /// Loses, and tears down what nobody uses any more, whatever is recorded.
        fn lose(&self) -> Saw {
            self.pins.close_admission(Close::Lost);
            let totals = self.pins.totals();
            if totals.operations == 0 {
                self.resource.tear_down();
            }
            Saw::Counted(vec![totals])
        }

        /// Closes, and tears down what nobody uses any more.
        fn close(&self, close: Close) -> Saw {
            self.pins.close_admission(close);
            let totals = self.pins.totals();
            if totals == NOTHING {
                self.resource.tear_down();
            }
            Saw::Counted(vec![totals])
        }
    }

    /// Two users and a closer that finds nothing in progress: it never tears down under a user.
    fn closed_and_idle_is_for_ever(stripes: fn() -> State) {
        race(stripes, &[|state| state.operate(0), |state| state.operate(1), |state| state.close(Close::Retired)], |state, saw| {
            assert_eq!(state.pins.totals(), NOTHING, "an operation was not uncounted");
            assert_eq!(state.operate(0), Saw::Refused, "admitted after closing");
            assert_eq!(state.operate(1), Saw::Refused, "admitted after closing");
            let Saw::Counted(totals) = &saw[2] else { unreachable!() };
            assert!(totals[0].operations <= 2 && (totals[0].live, totals[0].queued) == (0, 0), "{totals:?}");
        });
    }

    /// R42: an operation is refused, or counted until it ends. The users on one stripe.
    #[test]
    fn closed_and_idle_is_for_ever_on_one_stripe() {
        closed_and_idle_is_for_ever(State::striped::<1>);
    }

    /// R42: the same with a stripe for each user.
    #[test]
    fn closed_and_idle_is_for_ever_on_two_stripes() {
        closed_and_idle_is_for_ever(State::striped::<2>);
    }

    /// R42: what an admitted operation has made is counted from the operation's beginning on: a closed stripe that reads zero never
    /// rises again.
    #[test]
    fn recording_leaves_no_gap() {
        race(State::striped::<1>, &[|state| state.record(0), |state| state.close(Close::Retired)], |state, saw| {
            let Saw::Counted(met) = &saw[1] else { unreachable!() };
            if saw[0] == Saw::Admitted {
                assert!(met[0] == OPERATION || met[0] == LIVE, "met {met:?}, and then it rose");
                assert_eq!(state.pins.totals(), LIVE);
            } else {
                assert!(met[0] == NOTHING || met[0] == OPERATION, "{met:?}");
                assert_eq!(state.pins.totals(), NOTHING);
            }
        });
    }

    /// R42: the same with two stripes: an observer that adds up closed stripes may meet each at another moment.
    #[test]
    fn a_sum_of_closed_stripes_never_rises_from_zero() {
        race(State::striped::<2>, &[|state| state.record(0), |state| state.record(1), |state| state.close(Close::Lost)], |state, saw| {
            let recorded = saw.iter().filter(|saw| **saw == Saw::Admitted).count();
            assert_eq!(state.pins.totals(), Totals { live: recorded, ..NOTHING });
            let Saw::Counted(met) = &saw[2] else { unreachable!() };
            assert!((recorded..=2).contains(&(met[0].operations + met[0].live)), "met {met:?}, {recorded} recorded");
            assert!(met[0].live <= recorded, "a refused operation is counted as live: {met:?}");
        });
    }

    /// R36, R42: a recorded thing is in exactly one count at every instant, and leaves live for queued once.
    #[test]
    fn queueing_leaves_no_gap() {
        race(State::recorded, &[State::queue, State::count], |state, saw| {
            assert_eq!((&saw[0], state.pins.totals()), (&Saw::Admitted, QUEUED));
            let Saw::Counted(met) = &saw[1] else { unreachable!() };
            let whole = [[LIVE, LIVE], [LIVE, QUEUED], [QUEUED, QUEUED]];
            assert!(whole.iter().any(|whole| met == whole), "not in exactly one count: {met:?}");
        });
    }

    /// R42: what is queued is counted until it is settled, and what its release has done comes before whoever finds nothing.
    #[test]
    fn settling_comes_before_whoever_finds_nothing() {
        race(State::recorded, &[State::queue_and_settle, |state| state.close(Close::Retired)], |state, saw| {
            assert_eq!((&saw[0], state.pins.totals()), (&Saw::Admitted, NOTHING), "a retired stripe takes releases");
            let Saw::Counted(met) = &saw[1] else { unreachable!() };
            assert!([LIVE, QUEUED, NOTHING].contains(&met[0]), "{met:?}");
        });
    }

    /// R31: a release that meets a loss is queued and counted, or refused, and the thing is live as before.
    #[test]
    fn a_refused_release_leaves_the_thing_live() {
        race(State::recorded, &[State::queue, |state| state.close(Close::Lost)], |state, saw| {
            let Saw::Counted(met) = &saw[1] else { unreachable!() };
            if saw[0] == Saw::Admitted {
                assert_eq!((met[0], state.pins.totals()), (QUEUED, QUEUED), "queued after the loss");
            } else {
                assert!(met[0] == LIVE || met[0] == QUEUED, "{met:?}");
                assert_eq!(state.pins.totals(), LIVE, "the thing is not live as before");
            }
        });
    }

    /// R42: an operation that begins beside a record is refused, or counted until it ends, though the last record goes meanwhile.
    #[test]
    fn an_operation_beside_the_last_record_is_counted() {
        let roles: [fn(&State) -> Saw; 3] = [State::queue_and_settle, State::operate_beside_records, |state| state.close(Close::Retired)];
        race(State::recorded, &roles, |state, saw| {
            assert_eq!((&saw[0], state.pins.totals()), (&Saw::Admitted, NOTHING));
            assert_eq!(state.operate_beside_records(), Saw::Refused, "nothing is recorded");
        });
    }

    /// R42: an operation on its way to a refusal is no record: beside it nothing begins on a stripe that was read as zero.
    #[test]
    fn nothing_begins_beside_a_refused_operation() {
        let roles: [fn(&State) -> Saw; 3] = [|state| state.operate(0), State::operate_beside_records, |state| state.close(Close::Retired)];
        race(State::striped::<1>, &roles, |state, saw| {
            assert_eq!((&saw[1], state.pins.totals()), (&Saw::Refused, NOTHING));
        });
    }

    /// R31: after a loss nothing begins beside a record either, and what had begun is counted.
    #[test]
    fn nothing_begins_beside_a_lost_record() {
        race(State::recorded, &[State::operate_beside_records, State::lose], |state, _| {
            assert_eq!((state.operate_beside_records(), state.pins.totals()), (Saw::Refused, LIVE));
        });
    }

    /// R42: who finds a stripe closed by another, who may be stopped before the next one, closes the rest itself.
    #[test]
    fn each_closer_closes_every_stripe() {
        fn close(state: &State) -> Saw {
            state.pins.close_admission(Close::Retired);
            Saw::Counted(vec![])
        }
        race(State::striped::<2>, &[|state| state.record(1), close, |state| state.close(Close::Retired)], |state, saw| {
            let recorded = usize::from(saw[0] == Saw::Admitted);
            assert_eq!(state.pins.totals(), Totals { live: recorded, ..NOTHING });
            let Saw::Counted(met) = &saw[2] else { unreachable!() };
            assert!(recorded == 0 || met[0] == OPERATION || met[0] == LIVE, "met {met:?}, and then it rose");
        });
    }
}

mod handles {
    use super::*;

    struct State {
        pins: Pins,
        resource: Resource,
    }

    impl State {
        fn striped<const STRIPES: usize>() -> Self {
            Self { pins: Pins::new(STRIPES), resource: Resource::new() }
        }

        /// With handles that were acquired on stripe 0 of 2.
        fn held<const HANDLES: usize>() -> Self {
            let state = Self::striped::<2>();
            (0..HANDLES).for_each(|_| state.pins.acquire(0).unwrap());
            state
        }

        fn owe(&self, left: Left) -> Left {
            if left == Left::Last {
                self.resource.tear_down();
            }
            left
        }

        /// Uses the resource through a handle that is counted, and lets it go.
        fn release(&self, lane: usize) -> Left {
            self.resource.read();
            // SAFETY: the roles release what they or the setup have acquired.
            self.owe(unsafe { Pins::release(&raw const self.pins, lane) })
        }

        fn acquire_and_release(&self, lane: usize) -> Vec<Left> {
            self.pins.acquire(lane).map(|()| self.release(lane)).into_iter().collect()
        }

        /// Counts a second handle beside the first, and lets both go.
        fn derive_and_release(&self, derived: usize, first: usize) -> Vec<Left> {
            self.pins.derive(derived);
            vec![self.release(derived), self.release(first)]
        }

        fn close(&self) -> Vec<Left> {
            vec![self.owe(self.pins.close_handles())]
        }
    }

    /// One call was told `Last`, and nothing can be acquired any more.
    fn torn_down_once(state: &State, told: &[Vec<Left>]) {
        let last = told.iter().flatten().filter(|left| **left == Left::Last).count();
        assert_eq!(last, 1, "not one teardown: {told:?}");
        for lane in 0..2 {
            assert!(state.pins.acquire(lane).is_err(), "acquired after closing");
        }
    }

    /// R50: two users on one stripe and a closer: each is refused or keeps the resource, and the last one tears it down.
    #[test]
    fn an_acquired_handle_keeps_the_resource_on_one_stripe() {
        race(
            State::striped::<1>,
            &[|state| state.acquire_and_release(0), |state| state.acquire_and_release(0), State::close],
            |state, told| torn_down_once(state, &told),
        );
    }

    /// R50: the same with a stripe for each user.
    #[test]
    fn an_acquired_handle_keeps_the_resource_on_two_stripes() {
        race(
            State::striped::<2>,
            &[|state| state.acquire_and_release(0), |state| state.acquire_and_release(1), State::close],
            |state, told| torn_down_once(state, &told),
        );
    }

    /// R50: two handles of one stripe, one of them let go on the other, where the count falls below zero.
    #[test]
    fn a_handle_may_go_on_another_stripe() {
        race(State::held::<2>, &[|state| vec![state.release(0)], |state| vec![state.release(1)], State::close], |state, told| {
            torn_down_once(state, &told)
        });
    }

    /// R50, R56: a handle that is counted beside another keeps the resource, also after closing.
    #[test]
    fn a_derived_handle_keeps_the_resource() {
        race(State::held::<1>, &[|state| state.derive_and_release(1, 0), State::close], |state, told| torn_down_once(state, &told));
    }

    /// R50, R56: two holders, one of whom counts another handle.
    #[test]
    fn closing_moves_every_handle_once() {
        race(State::held::<2>, &[|state| state.derive_and_release(0, 1), |state| vec![state.release(1)], State::close], |state, told| {
            torn_down_once(state, &told)
        });
    }

    /// R50: one comes, one goes where it did not come, and a closer.
    #[test]
    fn one_comes_and_one_goes() {
        race(State::held::<1>, &[|state| state.acquire_and_release(1), |state| vec![state.release(1)], State::close], |state, told| {
            torn_down_once(state, &told)
        });
    }
}

/// The word is the promise, the stripes are its proof: the pins under a lifecycle, used as a mechanism uses them.
mod promise {
    use super::*;

    struct State {
        lifecycle: Lifecycle,
        pins: Pins,
        resource: Resource,
        /// One thing that the model begins with.
        recorded: Option<Home>,
        /// A role's call has returned.
        returned: AtomicBool,
    }

    /// What a role has seen.
    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Saw {
        Made(Step),
        Ended(bool),
        /// One entry per attempt: admitted, or refused at a phase.
        Tried(Vec<Result<(), MechanismLifecycle>>),
    }

    impl State {
        fn new() -> Self {
            Self {
                lifecycle: Lifecycle::new(),
                pins: Pins::new(2),
                resource: Resource::new(),
                recorded: None,
                returned: AtomicBool::new(false),
            }
        }

        fn recorded() -> Self {
            let mut state = Self::new();
            let operation = state.pins.enter(0).unwrap();
            state.recorded = Some(operation.home());
            operation.record();
            state
        }

        fn enter(&self, lane: usize) -> Result<Operation<'_>, MechanismLifecycle> {
            let life = self.lifecycle.life();
            if !life.is_active() {
                return Err(life.phase());
            }
            self.pins.enter(lane).map_err(|_| self.lifecycle.life().phase())
        }

        fn operate(&self, lane: usize) -> Result<(), MechanismLifecycle> {
            let operation = self.enter(lane)?;
            self.resource.read();
            drop(operation);
            Ok(())
        }

        fn record(&self, lane: usize) -> Saw {
            Saw::Tried(vec![self.enter(lane).map(|operation| {
                self.resource.read();
                operation.record();
            })])
        }

        fn settled_phase(&self) -> MechanismLifecycle {
            let phase = self.lifecycle.life().phase();
            match phase {
                Active => {}
                Retired => self.pins.close_admission(Close::Retired),
                DeviceLost | Terminated => self.pins.close_admission(Close::Lost),
            }
            phase
        }

        fn retire(&self) -> Saw {
            let step = self.lifecycle.retire();
            self.settled_phase();
            Saw::Made(step)
        }

        fn lose(&self) -> Saw {
            let step = self.lifecycle.lose(&"gone".into());
            self.settled_phase();
            Saw::Made(step)
        }

        /// Removes what is past Active and owns nothing.
        fn remove(&self) -> Saw {
            assert_ne!(self.settled_phase(), Active);
            let idle = self.pins.totals() == NOTHING;
            let removed = idle && self.lifecycle.mark_removed() != Already;
            if removed {
                self.resource.tear_down();
            }
            Saw::Ended(removed)
        }

        /// Confirms the end of what is lost and does nothing.
        fn confirm(&self) -> Saw {
            assert_eq!(self.settled_phase(), DeviceLost);
            let totals = self.pins.totals();
            let ended = totals.operations + totals.queued == 0 && self.lifecycle.terminate() != Already;
            if ended {
                self.resource.tear_down();
            }
            Saw::Ended(ended)
        }
    }

    /// R42: whoever decides on the word has closed every stripe itself: here one who changed the word is stopped for good before it has.
    #[test]
    fn a_removal_that_finds_the_step_made_proves_it() {
        let remove = |state: &State| {
            let _ = state.retire();
            state.remove()
        };
        race(State::new, &[|state| Saw::Made(state.lifecycle.retire()), remove, |state| state.record(1)], |state, saw| {
            let Saw::Tried(tried) = &saw[2] else { unreachable!() };
            match tried[0] {
                Ok(()) => assert_eq!((state.pins.totals(), &saw[1]), (LIVE, &Saw::Ended(false)), "removed while it owned something"),
                Err(phase) => assert_eq!((state.pins.totals(), phase), (NOTHING, Retired)),
            }
        });
    }

    /// R36, R38: the same for a loss and a confirmed end, which lets live things be but no operation.
    #[test]
    fn a_confirmation_that_finds_the_loss_made_proves_it() {
        let confirm = |state: &State| {
            let _ = state.lose();
            state.confirm()
        };
        race(
            State::new,
            &[|state| Saw::Made(state.lifecycle.lose(&"gone".into())), confirm, |state| Saw::Tried(vec![state.operate(1)])],
            |state, saw| {
                assert_eq!(state.pins.totals(), NOTHING);
                let Saw::Tried(tried) = &saw[2] else { unreachable!() };
                assert!(matches!(tried[0], Ok(()) | Err(DeviceLost | Terminated)), "{tried:?}");
            },
        );
    }

    /// R26, R31: who is refused on one stripe is not admitted on another afterwards, and what refused it is not Active. With a record on a
    /// stripe as well: who is refused there is not the last to leave, and so has no fence of the last one's.
    #[test]
    fn refused_stays_refused_on_every_stripe() {
        for start in [State::new, State::recorded] {
            race(start, &[State::retire, |state| Saw::Tried((0..2).map(|lane| state.operate(lane)).collect())], |_, saw| {
                let Saw::Tried(tried) = &saw[1] else { unreachable!() };
                assert!(!matches!(tried[..], [Err(_), Ok(())]), "refused, then admitted");
                assert!(tried.iter().all(|tried| matches!(tried, Ok(()) | Err(Retired))), "refused by what is Active: {tried:?}");
            });
        }
    }

    /// R31: whose release is refused by its stripe finds the mechanism lost.
    #[test]
    fn a_refused_release_sees_the_loss() {
        fn queue(state: &State) -> Saw {
            let queued = state.pins.queue(state.recorded.unwrap());
            Saw::Tried(vec![queued.map_err(|_| state.lifecycle.life().phase())])
        }
        race(State::recorded, &[State::lose, queue], |_, saw| {
            let Saw::Tried(tried) = &saw[1] else { unreachable!() };
            assert!(matches!(tried[0], Ok(()) | Err(DeviceLost)), "refused by what is not lost: {tried:?}");
        });
    }

    /// R24: who is refused a handle, and looks again, does not find the same thing Active.
    #[test]
    fn a_refused_handle_sees_the_end() {
        fn end(state: &State) -> Saw {
            let step = state.lifecycle.retire();
            let _ = state.pins.close_handles();
            Saw::Made(step)
        }
        fn acquire(state: &State) -> Saw {
            Saw::Tried(vec![state.pins.acquire(1).map_err(|Closed| state.lifecycle.life().phase())])
        }
        race(State::new, &[end, acquire], |_, saw| {
            let Saw::Tried(tried) = &saw[1] else { unreachable!() };
            assert!(matches!(tried[0], Ok(()) | Err(Retired)), "refused by what is Active: {tried:?}");
        });
    }

    /// R26: once a retirement has returned, though it found the step made, no call that starts later is admitted.
    #[test]
    fn a_returned_retirement_is_obeyed() {
        fn retire(state: &State) -> Saw {
            let saw = state.retire();
            // Relaxed: the promise is about time, and needs no ordering of the caller's.
            state.returned.store(true, Relaxed);
            saw
        }
        fn operate(state: &State) -> Saw {
            let later = state.returned.load(Relaxed);
            let tried = state.operate(1);
            assert!(!later || tried == Err(Retired), "admitted after the retirement had returned");
            Saw::Tried(vec![tried])
        }
        race(State::new, &[|state| Saw::Made(state.lifecycle.retire()), retire, operate], |state, _| {
            assert_eq!(state.pins.totals(), NOTHING);
        });
    }
}
