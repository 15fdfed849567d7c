//! Racing calls on the real `ArcSwap` and the real epoch: all start at once, a thousand times and more, and what comes out is looked at.
//!
//! The models are the proof; this is what they take on trust, seen working.

use liveslot::{
    BindingError::*,
    MechanismLifecycle::{Active, Retired, Terminated},
    *,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::{
    array, hint,
    ptr::NonNull,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

const DEVICE: DeviceKey = DeviceKey::device(0);

/// A row goes on until its calls have overlapped so often,
const OVERLAPS: usize = 1_000;
/// or until it has been tried so often: on one CPU there is no overlap to wait for.
const ROUNDS: usize = 3_000;

/// The races of this file take turns, so that each has the CPUs to itself.
static TURN: Mutex<()> = Mutex::new(());

/// Lets `N` threads go at once, and notices whether they overlap.
#[derive(Default)]
struct Round<const N: usize> {
    ready: AtomicUsize,
    begun: AtomicUsize,
    ended: AtomicUsize,
    overlapped: AtomicBool,
}

impl<const N: usize> Round<N> {
    fn run<R>(&self, lateness: usize, role: impl FnOnce() -> R) -> R {
        self.ready.fetch_add(1, SeqCst);
        for tries in 0_u32.. {
            if self.ready.load(SeqCst) == N {
                break;
            }
            // Yielding at once would let one CPU do one role after the other; never yielding would starve roles that share one.
            if tries > 2_000 { thread::yield_now() } else { hint::spin_loop() }
        }
        dawdle(lateness);
        self.begun.fetch_add(1, SeqCst);
        let result = role();
        // Whoever ends first tells whether anybody else was on the way.
        if self.ended.fetch_add(1, SeqCst) == 0 && self.begun.load(SeqCst) > 1 {
            self.overlapped.store(true, SeqCst);
        }
        result
    }
}

/// Keeps the calling thread on the CPU of its role. Left to itself, the kernel wakes both on the CPU of who woke them, and they run one
/// after the other.
fn pin(role: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let mut own = CpuSet::new();
    own.set(cpus[role % cpus.len()]);
    // A machine that forbids it has less overlap, and is right all the same.
    let _ = sched_setaffinity(None, &own);
}

/// Runs `roles` at once on what `make` makes, each on a thread of its own, and gives `check` what came out. Who is a bit late, and how
/// much, varies from round to round.
fn race<S, R, const N: usize>(make: impl Fn() -> S, roles: [&(dyn Fn(&S) -> R + Sync); N], check: impl Fn(S, [R; N]))
where
    S: Send + Sync,
    R: Send,
{
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        let threads = array::from_fn::<_, N, _>(|role| {
            let (to_thread, states) = mpsc::channel::<(usize, Arc<Round<N>>, Arc<S>)>();
            let (to_main, results) = mpsc::channel();
            let run = roles[role];
            scope.spawn(move || {
                pin(role);
                for (number, round, state) in states {
                    let result = round.run(number >> (2 * role) & 3, || run(&state));
                    drop((round, state));
                    to_main.send(result).unwrap();
                }
            });
            (to_thread, results)
        });
        let (mut rounds, mut overlaps) = (0, 0);
        while rounds < ROUNDS && overlaps < OVERLAPS {
            let (round, state) = (Arc::<Round<N>>::default(), Arc::new(make()));
            for (to_thread, _) in &threads {
                to_thread.send((rounds, Arc::clone(&round), Arc::clone(&state))).unwrap();
            }
            let results = array::from_fn(|role| threads[role].1.recv().expect("the call returns"));
            rounds += 1;
            overlaps += usize::from(round.overlapped.load(SeqCst));
            check(Arc::into_inner(state).expect("all have let go"), results);
        }
        println!("{overlaps} of {rounds} rounds overlapped");
    });
}

/// For loops that wait for another role: what does not come is a failure, not a hang.
struct Patience(Instant);

impl Patience {
    fn new() -> Self {
        Self(Instant::now() + Duration::from_secs(20))
    }

    fn check(&self) {
        assert!(Instant::now() < self.0, "what the loop waits for does not come");
    }
}

/// From nothing to about the length of a call.
fn dawdle(steps: usize) {
    for _ in 0..steps * 40 {
        hint::spin_loop();
    }
}

/// Hands out one address again and again, and counts.
#[derive(Debug, Default)]
struct Counting {
    allocated: AtomicUsize,
    released: AtomicUsize,
    /// Calls of `allocate` and `release` in progress.
    inside: AtomicUsize,
    /// Its releases fail.
    stuck: bool,
}

static MEMORY: [AtomicU8; 64] = [const { AtomicU8::new(0) }; 64];

impl DeviceAllocator for Counting {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        self.inside.fetch_add(1, SeqCst);
        self.allocated.fetch_add(1, SeqCst);
        dawdle(1);
        self.inside.fetch_sub(1, SeqCst);
        Ok(NonNull::from(&MEMORY).cast())
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {
        unreachable!("release is there");
    }

    unsafe fn release(&self, _: NonNull<u8>, bytes: usize, _: usize) -> AllocationReleaseOutcome {
        self.inside.fetch_add(1, SeqCst);
        self.released.fetch_add(1, SeqCst);
        dawdle(1);
        self.inside.fetch_sub(1, SeqCst);
        match self.stuck {
            false => AllocationReleaseOutcome::complete(ReleaseAccounting::eager(bytes as u64)),
            true => AllocationReleaseOutcome::failed("stuck"),
        }
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

type Outcome = Result<(), BindingError>;

/// A registry with a context and an authority for one device.
struct World {
    registry: BindingRegistry,
    context: RegisteredProviderContext,
    authority: RegisteredAuthority,
}

impl World {
    fn new() -> Self {
        Self::with(Arc::new(()), Arc::new(()))
    }

    fn with(context: Arc<dyn BindingResource>, authority: Arc<dyn BindingResource>) -> Self {
        let registry = BindingRegistry::new().unwrap();
        let context = registry.register_provider_context(DEVICE, context).unwrap();
        let authority = registry.register_authority(DEVICE, authority).unwrap();
        Self { registry, context, authority }
    }

    fn try_register(&self) -> Result<RegisteredMechanism, BindingError> {
        self.registry.register_allocator(self.context, self.authority, Arc::new(Counting::default()))
    }

    fn register(&self) -> RegisteredMechanism {
        self.try_register().unwrap()
    }

    /// What is selected. At rest nothing else can be the matter with a device.
    #[track_caller]
    fn selected(&self) -> Option<MechanismIdentity> {
        let bound = match self.registry.bind(DEVICE) {
            Ok(binding) => Some(binding.identity().mechanism()),
            Err(NoSelectedMechanism(DEVICE)) => None,
            Err(other) => panic!("{other:?}"),
        };
        assert_eq!(self.registry.device(DEVICE).selected(), bound);
        let registered = self.registry.snapshots().unwrap();
        let active = |name| registered.iter().any(|snapshot| snapshot.identity == name && snapshot.lifecycle == Active);
        assert!(bound.is_none_or(active), "a selection names what is registered and Active");
        bound
    }

    fn snapshot(&self, mechanism: RegisteredMechanism) -> MechanismSnapshot {
        self.registry.snapshot(mechanism).unwrap()
    }

    fn lifecycle(&self, mechanism: RegisteredMechanism) -> MechanismLifecycle {
        self.snapshot(mechanism).lifecycle
    }

    fn retire(&self, mechanism: RegisteredMechanism) -> Outcome {
        self.registry.retire(mechanism)
    }

    fn lose(&self) -> Outcome {
        self.registry.invalidate_device(DEVICE, "lost")
    }
}

/// Whether a call was refused because `mechanism` is there in its life.
fn is_inactive(outcome: &Outcome, mechanism: RegisteredMechanism, at: MechanismLifecycle) -> bool {
    matches!(outcome, Err(InactiveMechanism { mechanism: name, lifecycle, .. }) if *name == mechanism.identity() && *lifecycle == at)
}

/// Demands that a call went well, or was refused because `mechanism` is there in its life.
#[track_caller]
fn ok_or_inactive(outcome: &Outcome, mechanism: RegisteredMechanism, at: MechanismLifecycle) {
    assert!(outcome.is_ok() || is_inactive(outcome, mechanism, at), "{outcome:?}");
}

#[track_caller]
fn all_ok<R: std::fmt::Debug, const N: usize>(outcomes: [Result<R, BindingError>; N]) {
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

/// A healthy selection, and a candidate beside it.
struct Rivals {
    world: World,
    healthy: RegisteredMechanism,
    candidate: RegisteredMechanism,
    other: RegisteredMechanism,
}

fn rivals() -> Rivals {
    let world = World::new();
    let (healthy, candidate, other) = (world.register(), world.register(), world.register());
    assert_eq!(world.selected(), Some(healthy.identity()));
    Rivals { world, healthy, candidate, other }
}

impl Rivals {
    fn select(&self, mechanism: RegisteredMechanism) -> Outcome {
        self.world.registry.select(mechanism)
    }
}

/// R20, R120: a select either came before the retirement, which then cleared it, or failed, and the healthy selection is back.
#[test]
fn select_and_retire() {
    race(rivals, [&|s| s.select(s.candidate), &|s| s.world.retire(s.candidate)], |s, [selected, retired]| {
        retired.unwrap();
        assert_eq!(s.world.lifecycle(s.candidate), Retired);
        ok_or_inactive(&selected, s.candidate, Retired);
        assert_eq!(s.world.selected(), selected.is_err().then_some(s.healthy.identity()));
    });
}

/// R20, R120: the same over nothing, and over a prior that dies as well.
#[test]
fn select_and_retire_without_a_healthy_prior() {
    let make = || {
        let s = rivals();
        s.world.retire(s.healthy).unwrap();
        s
    };
    race(make, [&|s| s.select(s.candidate), &|s| s.world.retire(s.candidate)], |s, _| assert_eq!(s.world.selected(), None));

    let both = |s: &Rivals| s.world.retire(s.candidate).and(s.world.retire(s.healthy));
    race(rivals, [&|s| s.select(s.candidate), &both], |s, [selected, _]| {
        ok_or_inactive(&selected, s.candidate, Retired);
        assert_eq!(s.world.selected(), None);
    });
    let each = |s: &Rivals| s.world.retire(s.healthy);
    race(rivals, [&|s| s.select(s.candidate), &|s| s.world.retire(s.candidate), &each], |s, _| assert_eq!(s.world.selected(), None));
}

/// R121: after a loss nothing of the device is selected.
#[test]
fn select_and_lose() {
    race(rivals, [&|s| s.select(s.candidate), &|s| s.world.lose()], |s, [selected, lost]| {
        lost.unwrap();
        assert_eq!(s.world.lifecycle(s.candidate), MechanismLifecycle::DeviceLost);
        ok_or_inactive(&selected, s.candidate, MechanismLifecycle::DeviceLost);
        assert_eq!(s.world.selected(), None);
    });
}

/// R122: of two selections that succeed one stands.
#[test]
fn select_and_select() {
    race(rivals, [&|s| s.select(s.candidate), &|s| s.select(s.other)], |s, outcomes| {
        all_ok(outcomes);
        assert!([s.candidate, s.other].map(|mechanism| Some(mechanism.identity())).contains(&s.world.selected()));
    });
}

/// R20, R123: if two selects fail, of two candidates or of one, the healthy selection survives both; none of the dead stays.
#[test]
fn failing_selects() {
    let both = |s: &Rivals| s.world.retire(s.candidate).and(s.world.retire(s.other));
    race(rivals, [&|s| s.select(s.candidate), &|s| s.select(s.other), &both], |s, [one, two, _]| {
        ok_or_inactive(&one, s.candidate, Retired);
        ok_or_inactive(&two, s.other, Retired);
        assert_eq!(s.world.selected(), (one.is_err() && two.is_err()).then_some(s.healthy.identity()));
    });
    let same = |s: &Rivals| s.select(s.candidate);
    race(rivals, [&same, &same, &|s| s.world.retire(s.candidate)], |s, [one, two, _]| {
        assert_eq!(s.world.selected(), (one.is_err() && two.is_err()).then_some(s.healthy.identity()));
    });
}

/// R123: a choice that a third call publishes meanwhile is undone by no failing select.
#[test]
fn failing_selects_and_a_newer_choice() {
    let make = || {
        let s = rivals();
        let newer = s.world.register();
        (s, newer)
    };
    type Chosen = (Rivals, RegisteredMechanism);
    let retire = |(s, _): &Chosen| s.world.retire(s.candidate);
    let choose = |(s, newer): &Chosen| s.select(*newer);
    race(make, [&|(s, _)| s.select(s.candidate), &retire, &choose], |(s, newer), [selected, _, chosen]| {
        chosen.unwrap();
        let stands = s.world.selected();
        // Unless the candidate was selected over it, for as long as it lived.
        assert!(stands == Some(newer.identity()) || selected.is_ok() && stands.is_none(), "{stands:?} after {selected:?}");
    });
}

/// R13, R124: of two registrations on a device without selection one is selected.
#[test]
fn register_and_register() {
    race(World::new, [&World::try_register, &World::try_register], |world, registered| {
        let registered = registered.map(Result::unwrap);
        assert!(registered.map(|mechanism| Some(mechanism.identity())).contains(&world.selected()));
        assert_eq!(registered.map(|mechanism| world.lifecycle(mechanism)), [Active, Active]);
    });
}

/// What roles that register and others that don't have in common.
type Registered = Result<Option<RegisteredMechanism>, BindingError>;

fn register(s: &Rivals) -> Registered {
    s.world.try_register().map(Some)
}

/// R125: a registration displaces no choice.
#[test]
fn register_and_select() {
    let make = || {
        let s = rivals();
        s.world.retire(s.healthy).unwrap();
        s
    };
    race(make, [&register, &|s| s.select(s.candidate).map(|()| None)], |s, outcomes| {
        all_ok(outcomes);
        assert_eq!(s.world.selected(), Some(s.candidate.identity()));
    });
}

/// R20, R123: a registration that meets a select on its way to failure is selected where nothing else is.
#[test]
fn register_and_a_failing_select() {
    let make = || {
        let s = rivals();
        s.world.retire(s.healthy).unwrap();
        s
    };
    let select = |s: &Rivals| s.select(s.candidate).map(|()| None);
    race(make, [&register, &select, &|s| s.world.retire(s.candidate).map(|()| None)], |s, [registered, selected, _]| {
        let stands = s.world.selected();
        let registered = registered.unwrap().unwrap().identity();
        // A select that succeeded may have displaced it, or kept it out.
        assert!(stands == Some(registered) || selected.is_ok() && stands.is_none());
    });
}

/// R126: a registration is part of the loss, or is selected after it.
#[test]
fn register_and_lose() {
    for empty in [false, true] {
        let make = || {
            let s = rivals();
            if empty {
                s.world.retire(s.healthy).unwrap();
            }
            s
        };
        race(make, [&register, &|s| s.world.lose().map(|()| None)], |s, [registered, _]| {
            let registered = registered.unwrap().unwrap();
            let expected = match s.world.lifecycle(registered) {
                MechanismLifecycle::DeviceLost => None,
                lifecycle => {
                    assert_eq!(lifecycle, Active);
                    Some(registered.identity())
                }
            };
            assert_eq!(s.world.selected(), expected);
        });
    }
}

/// R127: a registration heals the absence that it meets.
#[test]
fn register_and_retire() {
    race(rivals, [&register, &|s| s.world.retire(s.healthy).map(|()| None)], |s, [registered, _]| {
        let registered = registered.unwrap().unwrap();
        let stands = s.world.selected();
        assert!(stands.is_none() || stands == Some(registered.identity()));
    });
}

/// R24, R128: a bind gets the mechanism or nothing, and no bind that starts after the end of the other call gets it.
#[test]
fn bind_and_the_end_of_the_selected() {
    struct Ending {
        s: Rivals,
        over: AtomicBool,
    }
    let make = || Ending { s: rivals(), over: AtomicBool::new(false) };
    let bind_till_the_end = |Ending { s, over }: &Ending| {
        let (device, patience) = (s.world.registry.device(DEVICE), Patience::new());
        for by_handle in [false, true].into_iter().cycle() {
            patience.check();
            let was_over = over.load(SeqCst);
            match if by_handle { device.bind() } else { s.world.registry.bind(DEVICE) } {
                Ok(binding) => {
                    assert_eq!(binding.identity().mechanism(), s.healthy.identity());
                    assert!(!was_over, "bound after the end");
                }
                Err(NoSelectedMechanism(DEVICE)) => break,
                Err(other) => panic!("{other:?}"),
            }
        }
    };
    let then = |ending: &Ending, end: fn(&Rivals) -> Outcome| {
        end(&ending.s).unwrap();
        ending.over.store(true, SeqCst);
    };
    race(make, [&bind_till_the_end, &|ending| then(ending, |s| s.world.retire(s.healthy))], |_, _| ());
    race(make, [&bind_till_the_end, &|ending| then(ending, |s| s.world.lose())], |_, _| ());
}

/// A mechanism at work: bound, with one allocation.
struct Work {
    world: World,
    mechanism: RegisteredMechanism,
    allocator: Arc<Counting>,
    binding: MemoryBinding,
    /// What a role uses up, or leaves behind.
    allocation: Mutex<Option<BoundAllocation>>,
    /// What came of a release that was not completed.
    refused: Mutex<Option<ExplicitReleaseError>>,
}

fn work(stuck: bool) -> Work {
    let world = World::new();
    let allocator = Arc::new(Counting { stuck, ..Counting::default() });
    let mechanism = world.registry.register_allocator(world.context, world.authority, allocator.clone()).unwrap();
    let binding = world.registry.bind(DEVICE).unwrap();
    let allocation = Mutex::new(Some(binding.allocate(64, 1).unwrap()));
    Work { world, mechanism, allocator, binding, allocation, refused: Mutex::new(None) }
}

impl Work {
    fn retired() -> Self {
        let work = work(false);
        work.world.retire(work.mechanism).unwrap();
        work
    }

    /// Allocates once more, and keeps it.
    fn allocate(&self) -> Outcome {
        let allocation = self.binding.allocate(64, 1)?;
        let first = self.allocation.lock().unwrap().replace(allocation);
        drop(first);
        Ok(())
    }

    /// Releases the allocation, and keeps what is refused.
    fn release(&self) -> Outcome {
        let allocation = self.allocation.lock().unwrap().take().unwrap();
        if let Err(error) = self.binding.release(allocation) {
            *self.refused.lock().unwrap() = Some(error);
        }
        Ok(())
    }

    fn remove(&self) -> Outcome {
        self.world.registry.remove(self.mechanism)
    }

    /// How often the allocator was asked to allocate and to release.
    fn calls(&self) -> (usize, usize) {
        (self.allocator.allocated.load(SeqCst), self.allocator.released.load(SeqCst))
    }

    /// Live, queued, operations, quarantined.
    fn counts(&self) -> (usize, usize, usize, usize) {
        let snapshot = self.binding.mechanism_snapshot().unwrap();
        (snapshot.live_allocations, snapshot.queued_releases, snapshot.active_operations, snapshot.quarantined_allocations)
    }
}

/// R129: an allocation is made and can be released, or the allocator was not called.
#[test]
fn allocate_and_retire() {
    race(
        || work(false),
        [&Work::allocate, &|s| s.world.retire(s.mechanism)],
        |s, [allocated, _]| {
            ok_or_inactive(&allocated, s.mechanism, Retired);
            let made = 1 + usize::from(allocated.is_ok());
            assert_eq!(s.calls(), (made, 0));
            assert_eq!(s.counts(), (made, 0, 0, 0));
            s.release().unwrap();
            assert!(s.refused.lock().unwrap().is_none());
            assert_eq!(s.counts(), (made - 1, 0, 0, 0));
        },
    );
}

/// R34, R130: an allocation is made and stays live until termination, or the allocator was not called.
#[test]
fn allocate_and_lose() {
    race(
        || work(false),
        [&Work::allocate, &|s| s.world.lose()],
        |s, [allocated, _]| {
            assert!(matches!(allocated, Ok(()) | Err(DeviceLost { device: DEVICE, .. })), "{allocated:?}");
            let made = 1 + usize::from(allocated.is_ok());
            assert_eq!(s.calls(), (made, 0));
            assert_eq!(s.counts(), (made, 0, 0, 0));
            s.world.registry.confirm_context_terminated(s.world.context).unwrap();
            assert_eq!(s.counts(), (0, 0, 0, 0));
        },
    );
}

/// R26, R131, R133: a retirement changes nothing for a release.
#[test]
fn release_and_retire() {
    for stuck in [false, true] {
        race(
            || work(stuck),
            [&Work::release, &|s| s.world.retire(s.mechanism)],
            |s, _| {
                assert_eq!(s.refused.lock().unwrap().is_some(), stuck);
                assert_eq!(s.calls(), (1, 1));
                assert_eq!(s.counts(), (0, 0, 0, usize::from(stuck)));
            },
        );
    }
}

/// R132, R134, R135: a release is refused whole, or not begun because of the loss, or done with the allocator's answer: one of them, as the
/// counts say.
#[test]
fn release_and_lose() {
    for stuck in [false, true] {
        race(
            || work(stuck),
            [&Work::release, &|s| s.world.lose()],
            |s, _| {
                let refused = s.refused.lock().unwrap().take().map(|error| {
                    let outcome = error.outcome().cloned();
                    (outcome, error.into_parts())
                });
                match refused {
                    None => {
                        assert!(!stuck);
                        assert_eq!((s.calls(), s.counts()), ((1, 1), (0, 0, 0, 0)));
                    }
                    Some((None, (error, allocation))) => {
                        assert!(matches!(error, DeviceLost { device: DEVICE, .. }), "{error:?}");
                        assert_eq!((s.calls(), s.counts()), ((1, 0), (1, 0, 0, 0)));
                        assert!(matches!(s.binding.release(allocation).unwrap_err().error(), DeviceLost { .. }));
                    }
                    Some((Some(outcome), (error, _))) => {
                        assert!(matches!(error, ReleaseQuarantined { .. }), "{error:?}");
                        assert_eq!(s.counts(), (0, 0, 0, 1));
                        match outcome.residual().unwrap().reason {
                            QuarantineReason::DeviceLost => assert_eq!(s.calls(), (1, 0)),
                            reason => {
                                assert!(stuck && reason == QuarantineReason::AllocatorRefused, "{reason:?}");
                                assert_eq!(s.calls(), (1, 1));
                            }
                        }
                    }
                }
            },
        );
    }
}

/// A mechanism with an owner of one allocation and, if asked for, a view of it or a prepared request.
struct Owned {
    work: Work,
    owner: Mutex<Option<OwningAllocation>>,
    view: Mutex<Option<OwnedView>>,
    request: Mutex<Option<PreparedAllocationRelease>>,
}

impl Owned {
    fn new(stuck: bool) -> Self {
        let work = work(stuck);
        let owner = OwningAllocation::new(work.allocation.lock().unwrap().take().unwrap());
        Self { work, owner: Mutex::new(Some(owner)), view: Mutex::new(None), request: Mutex::new(None) }
    }

    fn viewed() -> Self {
        let owned = Self::new(false);
        *owned.view.lock().unwrap() = Some(owned.owner.lock().unwrap().as_ref().unwrap().view(0, 8).unwrap());
        owned
    }

    fn prepared(stuck: bool) -> Self {
        let owned = Self::new(stuck);
        *owned.request.lock().unwrap() = Some(owned.take_owner().prepare_release().unwrap());
        owned
    }

    fn take_owner(&self) -> OwningAllocation {
        self.owner.lock().unwrap().take().unwrap()
    }

    /// Prepares the owner's release, or puts the owner back.
    fn prepare(&self) -> Outcome {
        match self.take_owner().prepare_release() {
            Ok(request) => *self.request.lock().unwrap() = Some(request),
            Err(refused) => {
                let (error, owner) = refused.into_parts();
                *self.owner.lock().unwrap() = Some(owner);
                return Err(error);
            }
        }
        Ok(())
    }

    fn drop_owner(&self) -> Outcome {
        drop(self.take_owner());
        Ok(())
    }

    fn drop_view(&self) -> Outcome {
        let view = self.view.lock().unwrap().take();
        drop(view);
        Ok(())
    }

    fn drop_request(&self) -> Outcome {
        let request = self.request.lock().unwrap().take();
        drop(request);
        Ok(())
    }

    fn execute(&self) -> Outcome {
        let request = self.request.lock().unwrap().take();
        request.unwrap().execute();
        Ok(())
    }

    fn lose(&self) -> Outcome {
        self.work.world.lose()
    }

    fn confirm(&self) -> Outcome {
        self.work.world.registry.confirm_context_terminated(self.work.world.context)
    }
}

/// R82, R146: the last view goes before the release, or the release hands the owner back.
#[test]
fn drop_the_last_view_and_release() {
    race(Owned::viewed, [&Owned::drop_view, &Owned::prepare], |s, [_, prepared]| match prepared {
        Ok(()) => {
            assert_eq!(s.work.counts(), (0, 1, 1, 0));
            s.execute().unwrap();
            assert_eq!((s.work.calls(), s.work.counts()), ((1, 1), (0, 0, 0, 0)));
        }
        Err(OutstandingViews { views: 1, .. }) => {
            assert_eq!((s.work.calls(), s.work.counts()), ((1, 0), (1, 0, 0, 0)));
            assert_eq!(s.owner.lock().unwrap().as_ref().unwrap().outstanding_views(), 0);
            s.prepare().unwrap();
            s.execute().unwrap();
        }
        Err(other) => panic!("{other:?}"),
    });
}

/// R35, R86, R147: an owner that is dropped during a loss is quarantined or still live, and never both or neither.
#[test]
fn drop_an_owner_and_lose() {
    race(
        || Owned::new(false),
        [&Owned::drop_owner, &Owned::lose],
        |s, _| {
            let entries = s.work.binding.quarantined().unwrap();
            match s.work.counts() {
                (1, 0, 0, 0) => assert_eq!(entries, []),
                (0, 0, 0, 1) => assert_eq!((entries.len(), entries[0].reason), (1, QuarantineReason::OwnerDropped)),
                other => panic!("{other:?}"),
            }
            assert_eq!(s.work.calls(), (1, 0));
        },
    );
}

/// R86, R136: nothing is recorded on a Terminated mechanism by an owner that is dropped, or by a request.
#[test]
fn drop_and_confirm() {
    let end = |s: &Owned| {
        s.lose()?;
        s.confirm()
    };
    let check = |s: Owned, [_, confirmed]: [Outcome; 2]| {
        match confirmed {
            Ok(()) => {}
            Err(ContextNotQuiescent { active_operations: 1, .. }) => {
                let (live, queued, operations, quarantined) = s.work.counts();
                assert_eq!((live + quarantined, queued, operations), (1, 0, 0));
                s.confirm().unwrap();
            }
            Err(other) => panic!("{other:?}"),
        }
        assert_eq!(s.work.world.lifecycle(s.work.mechanism), Terminated);
        assert_eq!((s.work.counts(), s.work.binding.quarantined().unwrap()), ((0, 0, 0, 0), vec![]));
        s.work.remove().unwrap();
    };
    race(|| Owned::new(false), [&Owned::drop_owner, &end], check);
    race(|| Owned::prepared(false), [&Owned::drop_request, &end], check);
    race(|| Owned::prepared(true), [&Owned::execute, &end], check);
}

/// R131, R132: preparing is unmoved by a retirement; a loss lets it through or hands the owner back.
#[test]
fn prepare_and_the_end() {
    race(
        || Owned::new(false),
        [&Owned::prepare, &|s| s.work.world.retire(s.work.mechanism)],
        |s, outcomes| {
            all_ok(outcomes);
            assert_eq!(s.work.counts(), (0, 1, 1, 0));
            s.execute().unwrap();
            assert_eq!((s.work.calls(), s.work.counts()), ((1, 1), (0, 0, 0, 0)));
        },
    );
    race(
        || Owned::new(false),
        [&Owned::prepare, &Owned::lose],
        |s, [prepared, _]| match prepared {
            Ok(()) => {
                assert_eq!(s.work.counts(), (0, 1, 1, 0));
                s.execute().unwrap();
                assert_eq!((s.work.calls(), s.work.counts()), ((1, 0), (0, 0, 0, 1)));
            }
            Err(DeviceLost { device: DEVICE, .. }) => {
                assert_eq!((s.work.calls(), s.work.counts()), ((1, 0), (1, 0, 0, 0)));
                assert!(matches!(s.prepare(), Err(DeviceLost { .. })));
            }
            Err(other) => panic!("{other:?}"),
        },
    );
}

/// R90, R91, R134: an execution calls the allocator once, and its answer stands, or does not call it because of the loss.
#[test]
fn execute_and_lose() {
    for stuck in [false, true] {
        race(
            || Owned::prepared(stuck),
            [&Owned::execute, &Owned::lose],
            |s, _| {
                let reasons: Vec<_> = s.work.binding.quarantined().unwrap().iter().map(|entry| entry.reason).collect();
                match s.work.calls() {
                    (1, 0) => assert_eq!(reasons, [QuarantineReason::DeviceLost]),
                    (1, 1) if stuck => assert_eq!(reasons, [QuarantineReason::AllocatorRefused]),
                    (1, 1) => assert_eq!(reasons, []),
                    other => panic!("{other:?}"),
                }
                assert_eq!(s.work.counts(), (0, 0, 0, reasons.len()));
            },
        );
    }
}

/// R88, R138: nothing is removed while a request waits; what was abandoned is not removed.
#[test]
fn remove_and_a_request() {
    let retired = || {
        let s = Owned::prepared(false);
        s.work.world.retire(s.work.mechanism).unwrap();
        s
    };
    let remove = |s: &Owned| s.work.remove();
    race(retired, [&Owned::execute, &remove], |s, [_, removed]| {
        assert_eq!(s.work.calls(), (1, 1));
        ok_or_inactive(&removed, s.work.mechanism, Retired);
        if removed.is_err() {
            s.work.remove().unwrap();
        }
    });
    race(retired, [&Owned::drop_request, &remove], |s, [_, removed]| {
        assert!(
            matches!(removed, Err(InactiveMechanism { lifecycle: Retired, .. } | QuarantinedOwnership { quarantined: 1, .. })),
            "{removed:?}"
        );
        assert!(matches!(s.work.remove(), Err(QuarantinedOwnership { quarantined: 1, .. })));
    });
}

/// R36, R136: termination is confirmed when nobody is at work, and nobody comes to work afterwards.
#[test]
fn confirm_and_operations() {
    let end = |s: &Work| {
        s.world.lose()?;
        s.world.registry.confirm_context_terminated(s.world.context)?;
        assert_eq!(s.allocator.inside.load(SeqCst), 0, "confirmed while the allocator is at work");
        Ok(())
    };
    let check = |s: Work, [_, confirmed]: [Outcome; 2]| {
        match confirmed {
            Ok(()) => assert_eq!(s.world.lifecycle(s.mechanism), Terminated),
            Err(ContextNotQuiescent { active_operations: 1, .. }) => {
                assert_eq!(s.world.lifecycle(s.mechanism), MechanismLifecycle::DeviceLost);
                s.world.registry.confirm_context_terminated(s.world.context).unwrap();
            }
            Err(other) => panic!("{other:?}"),
        }
        assert_eq!(s.counts(), (0, 0, 0, 0));
        s.remove().unwrap();
    };
    race(|| work(false), [&Work::allocate, &end], check);
    race(|| work(false), [&Work::release, &end], check);
    race(|| work(true), [&Work::release, &end], check);
}

/// R137: two confirmations agree.
#[test]
fn confirm_and_confirm() {
    let confirm = |s: &Rivals| s.world.registry.confirm_context_terminated(s.world.context);
    let lost = || {
        let s = rivals();
        s.world.lose().unwrap();
        s
    };
    race(lost, [&confirm, &confirm], |s, outcomes| {
        all_ok(outcomes);
        assert_eq!([s.healthy, s.candidate, s.other].map(|mechanism| s.world.lifecycle(mechanism)), [Terminated; 3]);
    });
    race(rivals, [&confirm, &confirm], |s, outcomes| assert!(outcomes.iter().all(|outcome| is_inactive(outcome, s.healthy, Active))));
}

/// R47, R138: nothing is removed before its last settlement, and what is quarantined is not removed.
#[test]
fn remove_and_the_last_settlement() {
    race(Work::retired, [&Work::release, &Work::remove], |s, [_, removed]| {
        assert_eq!(s.calls(), (1, 1));
        ok_or_inactive(&removed, s.mechanism, Retired);
        if removed.is_err() {
            s.remove().unwrap();
        }
    });
    let settle_first = |s: &Work| {
        let removed = s.remove();
        assert!(removed.is_err() || s.allocator.released.load(SeqCst) == 1, "removed before the release");
        removed
    };
    race(Work::retired, [&Work::release, &settle_first], |_, _| ());

    let stuck = || {
        let s = work(true);
        s.world.retire(s.mechanism).unwrap();
        s
    };
    race(stuck, [&Work::release, &Work::remove], |s, [_, removed]| {
        assert!(
            matches!(removed, Err(InactiveMechanism { lifecycle: Retired, .. } | QuarantinedOwnership { quarantined: 1, .. })),
            "{removed:?}"
        );
        assert!(matches!(s.remove(), Err(QuarantinedOwnership { quarantined: 1, .. })));
    });
}

/// R47, R138: a mechanism that is removed makes nothing any more.
#[test]
fn remove_and_allocate() {
    let idle = || {
        let s = work(false);
        s.release().unwrap();
        s
    };
    race(idle, [&Work::allocate, &|s| s.world.retire(s.mechanism).and(s.remove())], |s, [allocated, removed]| {
        ok_or_inactive(&allocated, s.mechanism, Retired);
        ok_or_inactive(&removed, s.mechanism, Retired);
        assert_eq!(s.calls().0, 1 + usize::from(allocated.is_ok()));
        if allocated.is_ok() {
            assert!(removed.is_err() || s.counts().0 == 0, "removed with what it owns");
            s.release().unwrap();
            assert!(s.refused.lock().unwrap().is_none());
        }
        assert_eq!(s.counts(), (0, 0, 0, 0));
        if removed.is_err() {
            s.remove().unwrap();
        }
    });
}

/// R139: one removal wins, and the others are told that nothing is registered.
#[test]
fn remove_and_remove() {
    let idle = || {
        let s = Work::retired();
        s.release().unwrap();
        s
    };
    race(idle, [&Work::remove, &Work::remove, &Work::remove], |s, outcomes| {
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
        let is_unknown = |error: &BindingError| matches!(error, UnregisteredMechanism(name) if *name == s.mechanism.identity());
        assert!(outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).all(is_unknown), "{outcomes:?}");
    });
    let remove_context = |world: &World| world.registry.remove_provider_context(world.context);
    race(World::new, [&remove_context, &remove_context], |_, outcomes| {
        assert!(matches!(outcomes, [Ok(()), Err(UnregisteredProviderContext(_))] | [Err(UnregisteredProviderContext(_)), Ok(())]));
    });
    let remove_authority = |world: &World| world.registry.remove_authority(world.authority);
    race(World::new, [&remove_authority, &remove_authority], |_, outcomes| {
        assert!(matches!(outcomes, [Ok(()), Err(UnregisteredAuthority(_))] | [Err(UnregisteredAuthority(_)), Ok(())]));
    });
}

/// R140: what is removed is not selected, and its select fails.
#[test]
fn remove_and_select() {
    let dead = || {
        let s = rivals();
        s.world.retire(s.candidate).unwrap();
        s
    };
    race(dead, [&|s| s.select(s.candidate), &|s| s.world.registry.remove(s.candidate)], |s, [selected, removed]| {
        removed.unwrap();
        let unknown = matches!(selected, Err(UnregisteredMechanism(name)) if name == s.candidate.identity());
        assert!(unknown || is_inactive(&selected, s.candidate, Retired), "{selected:?}");
        assert_eq!(s.world.selected(), Some(s.healthy.identity()));
    });
    let end = |s: &Rivals| s.world.retire(s.candidate).and_then(|()| s.world.registry.remove(s.candidate));
    race(rivals, [&|s| s.select(s.candidate), &end], |s, [selected, removed]| {
        removed.unwrap();
        let unknown = matches!(selected, Err(UnregisteredMechanism(name)) if name == s.candidate.identity());
        assert!(selected.is_ok() || unknown || is_inactive(&selected, s.candidate, Retired), "{selected:?}");
        assert_eq!(s.world.selected(), selected.is_err().then_some(s.healthy.identity()));
    });
}

/// R141: loss is the later step.
#[test]
fn retire_and_lose() {
    race(rivals, [&|s| s.world.retire(s.healthy), &|s| s.world.lose()], |s, outcomes| {
        all_ok(outcomes);
        assert_eq!(s.world.lifecycle(s.healthy), MechanismLifecycle::DeviceLost);
        assert_eq!(s.world.selected(), None);
    });
}

/// R32, R142: each mechanism has the reason of one of the losses, for ever.
#[test]
fn lose_and_lose() {
    let lose = |s: &Rivals, reason: &str| s.world.registry.invalidate_device(DEVICE, reason);
    race(rivals, [&|s| lose(s, "one"), &|s| lose(s, "two")], |s, outcomes| {
        all_ok(outcomes);
        for mechanism in [s.healthy, s.candidate] {
            let reason = || match s.world.registry.bind_registered(mechanism) {
                Err(DeviceLost { device: DEVICE, reason }) => reason,
                other => panic!("{other:?}"),
            };
            let first = reason();
            assert!(["one", "two"].contains(&&*first), "{first}");
            lose(&s, "three").unwrap();
            assert_eq!(reason(), first);
        }
    });
}

/// R143: context and authority go with or after their last mechanism.
#[test]
fn remove_supports_and_their_last_mechanism() {
    let idle = || {
        let s = Work::retired();
        s.release().unwrap();
        s
    };
    race(idle, [&Work::remove, &|s| s.world.registry.remove_provider_context(s.world.context)], |s, [removed, context]| {
        removed.unwrap();
        match context {
            Ok(()) => {}
            Err(ProviderContextInUse(_)) => s.world.registry.remove_provider_context(s.world.context).unwrap(),
            Err(other) => panic!("{other:?}"),
        }
    });
    race(idle, [&Work::remove, &|s| s.world.registry.remove_authority(s.world.authority)], |s, [removed, authority]| {
        removed.unwrap();
        match authority {
            Ok(()) => {}
            Err(AuthorityInUse(_)) => s.world.registry.remove_authority(s.world.authority).unwrap(),
            Err(other) => panic!("{other:?}"),
        }
    });
}

/// R144: a registration has its context and authority, or they have gone; never both, never neither.
#[test]
fn register_and_remove_supports() {
    let register = |world: &World| world.try_register().map(drop);
    let remove_context = |world: &World| world.registry.remove_provider_context(world.context);
    let remove_authority = |world: &World| world.registry.remove_authority(world.authority);
    race(World::new, [&register, &remove_context], |_, outcomes| {
        assert!(matches!(outcomes, [Ok(()), Err(ProviderContextInUse(_))] | [Err(UnregisteredProviderContext(_)), Ok(())]), "{outcomes:?}");
    });
    race(World::new, [&register, &remove_authority], |_, outcomes| {
        assert!(matches!(outcomes, [Ok(()), Err(AuthorityInUse(_))] | [Err(UnregisteredAuthority(_)), Ok(())]), "{outcomes:?}");
    });
    race(World::new, [&register, &remove_context, &remove_authority], |world, [registered, context, authority]| {
        if registered.is_ok() {
            assert!(matches!((context, authority), (Err(ProviderContextInUse(_)), Err(AuthorityInUse(_)))));
        } else {
            // Held for a moment by the registration that was about to fail, or gone.
            assert!(context.is_ok() || authority.is_ok());
            assert!(context.is_ok() || remove_context(&world).is_ok());
            assert!(authority.is_ok() || remove_authority(&world).is_ok());
        }
        assert_eq!(world.selected().is_some(), registered.is_ok());
    });
}

/// R145: a registration is part of what is confirmed, and refuses it, or comes after.
#[test]
fn register_and_confirm() {
    let lost = || {
        let s = rivals();
        s.world.lose().unwrap();
        s
    };
    let confirm = |s: &Rivals| s.world.registry.confirm_context_terminated(s.world.context).map(|()| None);
    race(lost, [&register, &confirm], |s, [registered, confirmed]| {
        let registered = registered.unwrap().unwrap();
        assert_eq!(s.world.lifecycle(registered), Active);
        assert_eq!(s.world.selected(), Some(registered.identity()));
        let confirmed = confirmed.map(drop);
        ok_or_inactive(&confirmed, registered, Active);
        let expected = if confirmed.is_ok() { Terminated } else { MechanismLifecycle::DeviceLost };
        assert_eq!([s.healthy, s.candidate, s.other].map(|mechanism| s.world.lifecycle(mechanism)), [expected; 3]);
    });
}

/// R98, R102, R148: while allocations move from live to queued to quarantined, each snapshot has each of them once, and its bytes with it.
#[test]
fn snapshots_of_moving_allocations() {
    const MOVED: usize = 8_000;
    const THREADS: usize = 2;
    let world = World::new();
    let allocator = Arc::new(Counting { stuck: true, ..Counting::default() });
    let mechanism = world.registry.register_allocator(world.context, world.authority, allocator).unwrap();
    let allocations: Vec<Vec<_>> = (0..THREADS)
        .map(|_| {
            let binding = world.registry.bind(DEVICE).unwrap();
            (0..MOVED / THREADS).map(|_| binding.allocate(64, 1).unwrap()).collect()
        })
        .collect();
    let moving = AtomicUsize::new(THREADS);
    thread::scope(|scope| {
        for mine in allocations {
            let moving = &moving;
            scope.spawn(move || {
                // In each way that ends in the quarantine.
                for (number, allocation) in mine.into_iter().enumerate() {
                    let binding = allocation.binding().clone();
                    match number % 4 {
                        0 => drop(binding.release(allocation).unwrap_err()),
                        1 => drop(binding.prepare_release(allocation).unwrap().quarantine(QuarantineReason::OwnerDropped)),
                        2 => drop(binding.prepare_release(allocation).unwrap()),
                        _ => drop(OwningAllocation::new(allocation)),
                    }
                }
                moving.fetch_sub(1, SeqCst);
            });
        }
        let (mut looks, mut quarantined) = (0, 0);
        while moving.load(SeqCst) != 0 {
            let snapshot = world.snapshot(mechanism);
            let sum = snapshot.live_allocations + snapshot.queued_releases + snapshot.quarantined_allocations;
            assert_eq!(sum, MOVED, "{snapshot:?}");
            assert!(snapshot.queued_releases <= snapshot.active_operations, "{snapshot:?}");
            assert_eq!(snapshot.quarantined_bytes, 64 * snapshot.quarantined_allocations as u64);
            assert!(snapshot.quarantined_allocations >= quarantined);
            quarantined = snapshot.quarantined_allocations;
            looks += 1;
            // Halfway, the sums must not care for the lifecycle.
            if looks == 50 {
                world.retire(mechanism).unwrap();
            }
            assert!(world.registry.quarantined(mechanism).unwrap().len() >= quarantined);
        }
    });
    let snapshot = world.snapshot(mechanism);
    assert_eq!((snapshot.quarantined_allocations, snapshot.live_allocations, snapshot.active_operations), (MOVED, 0, 0));
    assert_eq!(world.registry.quarantined(mechanism).unwrap().len(), MOVED);
}

/// R102: a lifecycle that was seen is not unseen; idleness of what is not Active is for ever.
#[test]
fn snapshots_of_an_ending_life() {
    let look = |s: &Work| {
        let mut last = Active;
        let mut idle = false;
        let order = [Active, Retired, MechanismLifecycle::DeviceLost, Terminated];
        let at = |lifecycle| order.iter().position(|phase| *phase == lifecycle).unwrap();
        let patience = Patience::new();
        while last != Terminated {
            patience.check();
            let snapshot = s.binding.mechanism_snapshot().unwrap();
            assert!(at(snapshot.lifecycle) >= at(last), "{last:?} then {:?}", snapshot.lifecycle);
            last = snapshot.lifecycle;
            let is_idle = last != Active && !snapshot.retains_ownership() && snapshot.active_operations == 0;
            assert!(is_idle || !idle, "{snapshot:?} after idleness");
            idle = is_idle;
        }
        Ok(())
    };
    let end = |s: &Work| {
        s.world.retire(s.mechanism)?;
        s.world.lose()?;
        let patience = Patience::new();
        while s.world.registry.confirm_context_terminated(s.world.context).is_err() {
            patience.check();
            thread::yield_now();
        }
        Ok(())
    };
    race(
        || work(false),
        [&look, &end, &Work::release],
        |_, outcomes| {
            all_ok(outcomes);
        },
    );
}

/// Writes down when it ends.
#[derive(Debug)]
struct Ending(&'static str, Arc<Mutex<Vec<&'static str>>>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.1.lock().unwrap().push(self.0);
    }
}

impl DeviceAllocator for Ending {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        Ok(NonNull::from(&MEMORY).cast())
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {}

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

/// Handles of one mechanism, for threads to let go of.
struct Pinned {
    world: Mutex<Option<World>>,
    mechanism: RegisteredMechanism,
    pins: Mutex<Vec<Box<dyn Send>>>,
    ended: Arc<Mutex<Vec<&'static str>>>,
}

fn pinned() -> Pinned {
    let ended = Arc::<Mutex<Vec<&str>>>::default();
    let ending = |name| Arc::new(Ending(name, ended.clone()));
    let world = World::with(ending("context"), ending("authority"));
    let mechanism = world.registry.register_allocator(world.context, world.authority, ending("allocator")).unwrap();
    let binding = world.registry.bind(DEVICE).unwrap();
    let allocation = binding.allocate(64, 1).unwrap();
    let view = allocation.view(0, 1).unwrap();
    binding.release(allocation).unwrap();
    world.retire(mechanism).unwrap();
    let pins: Vec<Box<dyn Send>> = vec![Box::new(view), Box::new(binding.clone()), Box::new(binding)];
    Pinned { world: Mutex::new(Some(world)), mechanism, pins: Mutex::new(pins), ended }
}

impl Pinned {
    fn let_go(&self) {
        let pin = self.pins.lock().unwrap().pop();
        drop(pin);
    }

    fn end_the_registry(&self) {
        let world = self.world.lock().unwrap().take();
        drop(world);
    }
}

/// R48, R149: whoever is last, each destructor runs once, in order, before the last has returned.
#[test]
fn last_pins_on_several_threads() {
    let all_ended = |s: Pinned, _| assert_eq!(*s.ended.lock().unwrap(), ["allocator", "authority", "context"]);
    let without_registry = || {
        let s = pinned();
        s.end_the_registry();
        s
    };
    race(without_registry, [&Pinned::let_go; 3], |s, outcomes: [(); 3]| all_ended(s, outcomes));
    race(pinned, [&Pinned::let_go, &Pinned::let_go, &|s| (s.let_go(), s.end_the_registry()).0], |s, outcomes: [(); 3]| {
        all_ended(s, outcomes)
    });

    let remove = |s: &Pinned| s.world.lock().unwrap().as_ref().unwrap().registry.remove(s.mechanism).unwrap();
    race(pinned, [&Pinned::let_go, &|s| (s.let_go(), s.let_go()).0, &remove], |s, _: [(); 3]| {
        assert_eq!(*s.ended.lock().unwrap(), ["allocator"]);
        s.end_the_registry();
        let mut ended = s.ended.lock().unwrap().split_off(1);
        ended.sort_unstable();
        assert_eq!(ended, ["authority", "context"]);
    });
}

/// R21, R24, R47, R52: a long mix of everything on one device leaves books that balance.
#[test]
fn everything_at_once() {
    const THREADS: usize = 4;
    const STEPS: u64 = 2_500;
    let world = World::new();
    let allocator = Arc::new(Counting::default());
    let known = Mutex::new(vec![world.registry.register_allocator(world.context, world.authority, allocator.clone()).unwrap()]);
    let lost = AtomicUsize::new(0);
    thread::scope(|scope| {
        for seed in 1..=THREADS as u64 {
            let (world, allocator, known, lost) = (&world, &allocator, &known, &lost);
            scope.spawn(move || {
                let mut random = seed;
                for _ in 0..STEPS {
                    // xorshift: the same steps in each run, in whatever interleaving.
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let any = {
                        let known = known.lock().unwrap();
                        known[random as usize / 32 % known.len()]
                    };
                    match random % 16 {
                        0..8 => match world.registry.bind(DEVICE) {
                            Ok(binding) => one_allocation(&binding, lost),
                            Err(NoSelectedMechanism(DEVICE)) => {}
                            Err(other) => panic!("{other:?}"),
                        },
                        8..10 => drop(world.registry.select(any)),
                        10 => drop(world.retire(any)),
                        11 => world.lose().unwrap(),
                        12 => drop(world.registry.remove(any)),
                        13 => drop(world.registry.confirm_context_terminated(world.context)),
                        _ => {
                            let new = world.registry.register_allocator(world.context, world.authority, allocator.clone()).unwrap();
                            known.lock().unwrap().push(new);
                        }
                    }
                }
            });
        }
    });
    world.selected();
    let (allocated, released) = (allocator.allocated.load(SeqCst), allocator.released.load(SeqCst));
    assert_eq!(allocated - released, lost.load(SeqCst), "each allocation was released or is known to be lost");

    world.lose().unwrap();
    world.registry.confirm_context_terminated(world.context).unwrap();
    assert_eq!(world.selected(), None);
    let left = world.registry.snapshots().unwrap().len();
    let removed = known.into_inner().unwrap().into_iter().filter(|mechanism| world.registry.remove(*mechanism).is_ok()).count();
    assert_eq!((removed, world.registry.snapshots().unwrap().len()), (left, 0));
    assert_eq!(Arc::strong_count(&allocator), 1, "every mechanism has let go of it");
    world.registry.remove_provider_context(world.context).unwrap();
    world.registry.remove_authority(world.authority).unwrap();
}

/// Allocates, looks and releases; a loss on the way is counted.
fn one_allocation(binding: &MemoryBinding, lost: &AtomicUsize) {
    let Ok(allocation) = binding.allocate(64, 1) else { return };
    if let Ok(view) = allocation.view(0, 64) {
        let _ = binding.with_view(&view, |view| assert_eq!(view.len(), 64));
    }
    if let Err(error) = binding.release(allocation) {
        let by_loss = matches!(
            error.error(),
            DeviceLost { .. }
                | InactiveMechanism { lifecycle: Terminated, .. }
                | ReleaseQuarantined { reason: QuarantineReason::DeviceLost, .. }
        );
        assert!(by_loss, "{error:?}");
        lost.fetch_add(1, SeqCst);
    }
}
