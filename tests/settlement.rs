//! Quarantined ownership given back, or up, on request: which entries a retry asks for, what it makes of the answers, who gets an entry,
//! and what observers and the ends of a life see meanwhile.

mod common {
    pub mod arm;
    pub mod doubles;
    pub mod held;
    pub mod lifecycle;
    pub mod rig;
}

use common::{
    arm::arm,
    held::hold,
    lifecycle::{REASON, bring},
    rig::{DEVICE, Rig},
};
use liveslot::{
    MechanismLifecycle::{Active, Retired, Terminated},
    QuarantineReason::*,
    *,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    sync::{Arc, Mutex},
    thread::{self, ThreadId},
};

const RELEASE: &str = "A release 64 8";

fn refused() -> AllocationReleaseOutcome {
    AllocationReleaseOutcome::failed("not now")
}

/// A partial release, whose author is believed.
fn residual(reason: QuarantineReason, retained_bytes: u64) -> AllocationReleaseOutcome {
    let residual = ResidualOwnership { state: AllocationReleaseState::PartiallyUnmapped, reason, retained_bytes, address: 1, align: 1 };
    AllocationReleaseOutcome::quarantined(ReleaseAccounting::new(64, 3), residual)
}

/// 64 bytes at 8, retained without a call of the allocator.
fn unasked(rig: &Rig, reason: QuarantineReason) -> AllocationIdentity {
    let held = hold(rig);
    let request = held.binding.prepare_release(held.allocation).unwrap();
    let identity = request.identity();
    request.quarantine(reason);
    identity
}

/// The same, retained as the allocator answers.
fn asked(rig: &Rig, answer: impl FnOnce() -> AllocationReleaseOutcome + Send + 'static) -> AllocationIdentity {
    let held = hold(rig);
    let request = held.binding.prepare_release(held.allocation).unwrap();
    let identity = request.identity();
    arm(&rig.script.release, answer);
    let _ = catch_unwind(AssertUnwindSafe(|| request.execute()));
    assert_eq!(rig.log.take(), [RELEASE]);
    identity
}

fn retry(rig: &Rig, limit: usize) -> RetriedQuarantine {
    rig.registry.retry_quarantined(rig.mechanism, limit).unwrap()
}

/// Released, kept, skipped.
fn figures(done: RetriedQuarantine) -> [usize; 3] {
    assert_eq!(done.released_bytes, 64 * done.released as u64);
    [done.released, done.kept, done.skipped]
}

/// Operations, live, queued, quarantined; and quarantined bytes.
fn counts(rig: &Rig) -> ([usize; 4], u64) {
    let seen = rig.registry.snapshot(rig.mechanism).unwrap();
    let numbers = [seen.active_operations, seen.live_allocations, seen.queued_releases, seen.quarantined_allocations];
    (numbers, seen.quarantined_bytes)
}

fn entries(rig: &Rig) -> Vec<QuarantinedAllocation> {
    rig.registry.quarantined(rig.mechanism).unwrap()
}

fn abandon_all(rig: &Rig) -> AbandonedQuarantine {
    rig.registry.abandon_quarantined(rig.mechanism, |_| true).unwrap()
}

/// R42: what was retained without a call of the allocator is released on request, and then its mechanism can be removed.
#[test]
fn what_was_never_asked_for_is_released() {
    for phase in [Active, Retired] {
        let rig = Rig::new();
        drop(OwningAllocation::new(hold(&rig).allocation));
        let request = {
            let held = hold(&rig);
            held.binding.prepare_release(held.allocation).unwrap()
        };
        drop(request);
        unasked(&rig, EnqueueRejected(DeferredEnqueueRejection::Full));
        unasked(&rig, EnqueueRejected(DeferredEnqueueRejection::Closed));
        unasked(&rig, EnqueueRejected(DeferredEnqueueRejection::Refused));
        unasked(&rig, AllocatorRefused);
        bring(&rig, phase);
        assert_eq!(rig.log.take(), [""; 0], "nothing is released by itself");
        assert_eq!(counts(&rig), ([0, 0, 0, 6], 384));
        assert_eq!(figures(retry(&rig, usize::MAX)), [6, 0, 0]);
        assert_eq!(rig.log.take(), [RELEASE; 6]);
        assert_eq!((counts(&rig), entries(&rig)), (([0; 4], 0), vec![]));
        assert_eq!(figures(retry(&rig, usize::MAX)), [0, 0, 0]);
        rig.finish();
    }
}

/// What may be gone already, or is on a device that somebody says is lost, is never asked for. It can be given up.
#[test]
fn what_may_be_gone_is_not_asked_for() {
    let rig = Rig::new();
    for reason in [DeviceLost, MechanismTerminated, PartialRelease, EnqueueRejected(DeferredEnqueueRejection::DeviceLost)] {
        unasked(&rig, reason);
    }
    let held = hold(&rig);
    held.binding.prepare_release(held.allocation).unwrap().quarantine_device_lost();
    // A residual promises nothing, whatever its reason is.
    asked(&rig, || residual(AllocatorRefused, 64));
    asked(&rig, || residual(OwnerDropped, 7));
    let panicked = asked(&rig, || panic!("half-way"));
    let before = entries(&rig);
    assert_eq!(before.iter().find(|entry| entry.identity == panicked).unwrap().reason, AbandonedRequest);

    assert_eq!(figures(retry(&rig, usize::MAX)), [0, 0, 8]);
    assert_eq!(rig.log.take(), [""; 0]);
    assert_eq!((entries(&rig), counts(&rig)), (before.clone(), ([0, 0, 0, 8], 6 * 64 + 64 + 7)));

    let given_up = abandon_all(&rig);
    assert_eq!((given_up.bytes(), given_up.missed), (6 * 64 + 64 + 7, 0));
    assert_eq!(given_up.allocations, before.into_iter().rev().collect::<Vec<_>>());
    assert_eq!(counts(&rig), ([0; 4], 0));
    drop((held.binding, held.view));
    rig.finish();
}

/// An owner that is dropped under its views leaves them what they see: it is not asked for, even when they have gone. One that has outlived
/// its views is.
#[test]
fn an_owner_dropped_under_its_views_is_not_asked_for() {
    let rig = Rig::new();
    let owner = |rig: &Rig| OwningAllocation::new(hold(rig).allocation);
    let (under, after) = (owner(&rig), owner(&rig));
    let (view, earlier) = (under.view(0, 8).unwrap(), after.view(0, 8).unwrap());
    let identity = under.identity();
    drop(under);
    drop(earlier);
    drop(after);
    assert_eq!(figures(retry(&rig, usize::MAX)), [1, 0, 1]);
    drop(view);
    assert_eq!(figures(retry(&rig, usize::MAX)), [0, 0, 1]);
    assert_eq!(rig.log.take(), [RELEASE]);
    assert_eq!(abandon_all(&rig).allocations[0].identity, identity);
    rig.finish();
}

/// A failure may be tried as often as one likes, and changes nothing until it is none.
#[test]
fn a_failure_is_tried_again() {
    let rig = Rig::new();
    let first = unasked(&rig, OwnerDropped);
    for _ in 0..3 {
        arm(&rig.script.release, refused);
        assert_eq!(figures(retry(&rig, 1)), [0, 1, 0]);
        assert_eq!(rig.log.take(), [RELEASE]);
        let [entry] = entries(&rig)[..] else { panic!("one is retained") };
        assert_eq!((entry.identity, entry.reason, entry.retained_bytes), (first, AllocatorRefused, 64));
        assert_eq!((entry.state, counts(&rig)), (AllocationReleaseState::Quarantined, ([0, 0, 0, 1], 64)));
    }
    arm(&rig.script.release, || AllocationReleaseOutcome::complete(ReleaseAccounting::new(64, 4096)));
    let done = retry(&rig, 1);
    assert_eq!((figures(done), done.unmapped_bytes, done.tried()), ([1, 0, 0], 4096, 1));
    assert_eq!(rig.log.take(), [RELEASE]);
    rig.finish();
}

/// What a retry leaves is retained as the allocator says, for good.
#[test]
fn a_partial_release_is_the_last() {
    let rig = Rig::new();
    let identity = asked(&rig, refused);
    let before = entries(&rig)[0];
    arm(&rig.script.release, || residual(PartialRelease, 9));
    let done = retry(&rig, 5);
    assert_eq!((figures(done), done.unmapped_bytes), ([0, 1, 0], 3));
    let state = AllocationReleaseState::PartiallyUnmapped;
    let after = QuarantinedAllocation { state, reason: PartialRelease, retained_bytes: 9, ..before };
    assert_eq!((entries(&rig), counts(&rig)), (vec![after], ([0, 0, 0, 1], 9)));
    assert_eq!(after.identity, identity);
    rig.log.take();
    assert_eq!(figures(retry(&rig, 5)), [0, 0, 1]);
    assert_eq!(rig.log.take(), [""; 0]);
    assert_eq!(abandon_all(&rig).allocations, [after]);
    rig.finish();
}

/// A panic reaches the caller. Nobody knows what was released, so that entry is not tried again; the others are as they were.
#[test]
fn a_panic_ends_the_retry_and_the_entry() {
    let rig = Rig::new();
    let (first, second) = (asked(&rig, refused), unasked(&rig, OwnerDropped));
    arm(&rig.script.release, || panic!("half-way"));
    let thrown = catch_unwind(AssertUnwindSafe(|| retry(&rig, usize::MAX))).unwrap_err();
    assert_eq!(thrown.downcast_ref(), Some(&"half-way"));
    assert_eq!((rig.log.take(), counts(&rig)), (vec![RELEASE.to_owned()], ([0, 0, 0, 2], 128)));
    let reason = |identity| entries(&rig).iter().find(|entry| entry.identity == identity).map(|entry| entry.reason);
    assert_eq!((reason(first), reason(second)), (Some(AbandonedRequest), Some(OwnerDropped)));
    assert_eq!(figures(retry(&rig, usize::MAX)), [1, 0, 1]);
    assert_eq!(reason(second), None);
    assert_eq!(abandon_all(&rig).allocations.len(), 1);
    rig.log.take();
    rig.finish();
}

/// At most so many are tried, the oldest first; what has failed waits until the others have had their turn.
#[test]
fn a_failure_keeps_nobody_from_its_turn() {
    let rig = Rig::new();
    let all = [(); 3].map(|()| unasked(&rig, OwnerDropped));
    let standing = || entries(&rig).iter().map(|entry| entry.identity).collect::<Vec<_>>();
    assert_eq!(figures(retry(&rig, 0)), [0, 0, 3]);
    assert_eq!(rig.log.take(), [""; 0]);
    for limit in [1, 1] {
        arm(&rig.script.release, refused);
        assert_eq!(figures(retry(&rig, limit)), [0, 1, 2]);
    }
    assert_eq!(figures(retry(&rig, 1)), [1, 0, 2]);
    assert!(!standing().contains(&all[2]), "the one that had not been tried");
    arm(&rig.script.release, refused);
    assert_eq!(figures(retry(&rig, 1)), [0, 1, 1]);
    assert_eq!(figures(retry(&rig, 1)), [1, 0, 1]);
    assert_eq!(standing(), [all[0]], "tried once more often");
    assert_eq!(figures(retry(&rig, 1)), [1, 0, 0]);
    rig.log.take();
    rig.finish();
}

/// An entry that comes late is tried before one that a retry has left behind: also before one that had failed for the first time.
#[test]
fn the_first_failure_counts() {
    let rig = Rig::new();
    let failed = unasked(&rig, OwnerDropped);
    arm(&rig.script.release, refused);
    assert_eq!(figures(retry(&rig, 1)), [0, 1, 0]);
    unasked(&rig, OwnerDropped);
    assert_eq!(figures(retry(&rig, 1)), [1, 0, 1]);
    assert_eq!(entries(&rig)[0].identity, failed, "the one that had been tried");
    assert_eq!(figures(retry(&rig, 1)), [1, 0, 0]);
    rig.log.take();
    rig.finish();
}

/// R42, R102, R106: while the allocator is inside, the entry is in one place, counts as one operation, and is nobody else's; the mechanism
/// can neither be removed nor be written off. What is found after a loss stays.
#[test]
fn an_entry_that_is_tried_is_nobody_elses() {
    let rig = Rig::new();
    let (first, second) = (unasked(&rig, OwnerDropped), unasked(&rig, OwnerDropped));
    rig.registry.retire(rig.mechanism).unwrap();
    let (registry, mechanism, context) = (rig.registry.clone(), rig.mechanism, rig.context);
    arm(&rig.script.release, move || {
        let seen = registry.snapshot(mechanism).unwrap();
        assert_eq!((seen.active_operations, seen.queued_releases), (1, 0));
        assert_eq!((seen.quarantined_allocations, seen.quarantined_bytes), (2, 128));
        assert_eq!(registry.quarantined(mechanism).unwrap().len(), 2);
        let removed = registry.remove(mechanism);
        assert!(matches!(removed, Err(BindingError::QuarantinedOwnership { quarantined: 2, .. })), "{removed:?}");
        let missed = registry.abandon_quarantined(mechanism, |entry| entry.identity == first).unwrap();
        assert_eq!((missed.allocations.len(), missed.missed), (0, 1));
        assert_eq!(registry.retry_quarantined(mechanism, 0).unwrap().skipped, 2);
        registry.invalidate_device(DEVICE, REASON).unwrap();
        let confirmed = registry.confirm_context_terminated(context);
        assert!(matches!(confirmed, Err(BindingError::ContextNotQuiescent { active_operations: 1, .. })), "{confirmed:?}");
        drop(registry);
        AllocationReleaseOutcome::complete(ReleaseAccounting::eager(64))
    });
    assert_eq!(figures(retry(&rig, usize::MAX)), [1, 0, 1], "its answer stands, and nothing begins after the loss");
    assert_eq!(rig.log.take(), [RELEASE]);
    let [entry] = entries(&rig)[..] else { panic!("one is retained") };
    assert_eq!((entry.identity, entry.reason, counts(&rig)), (second, OwnerDropped, ([0, 0, 0, 1], 64)));
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    rig.finish();
}

/// R42, R106: whoever finds an entry taken leaves it to who has it. However many come, its allocator is asked once at a time, and what it
/// releases is released once.
#[test]
fn who_comes_too_late_gives_nothing_back() {
    let rig = Rig::new();
    unasked(&rig, OwnerDropped);
    let (registry, mechanism) = (rig.registry.clone(), rig.mechanism);
    arm(&rig.script.release, move || {
        for _ in 0..2 {
            assert_eq!(figures(registry.retry_quarantined(mechanism, usize::MAX).unwrap()), [0, 0, 1]);
            let missed = registry.abandon_quarantined(mechanism, |_| true).unwrap();
            assert_eq!((missed.allocations.len(), missed.missed), (0, 1), "it is being released");
        }
        AllocationReleaseOutcome::complete(ReleaseAccounting::eager(64))
    });
    assert_eq!(figures(retry(&rig, usize::MAX)), [1, 0, 0]);
    assert_eq!((counts(&rig), rig.log.take()), (([0; 4], 0), vec![RELEASE.to_owned()]));
    rig.finish();
}

/// A retry from within a retry tries what is left.
#[test]
fn a_retry_within_a_retry() {
    let rig = Rig::new();
    for _ in 0..3 {
        unasked(&rig, OwnerDropped);
    }
    let (registry, mechanism) = (rig.registry.clone(), rig.mechanism);
    arm(&rig.script.release, move || {
        assert_eq!(figures(registry.retry_quarantined(mechanism, usize::MAX).unwrap()), [2, 0, 1]);
        refused()
    });
    assert_eq!(figures(retry(&rig, usize::MAX)), [0, 1, 2]);
    assert_eq!(figures(retry(&rig, usize::MAX)), [1, 0, 0]);
    assert_eq!(rig.log.take().len(), 4);
    rig.finish();
}

/// R31, R40, R16: a lost or terminated mechanism is not asked, a foreign or a removed one is unknown. Giving up takes any lifecycle.
#[test]
fn refusals() {
    let rig = Rig::new();
    unasked(&rig, OwnerDropped);
    unasked(&rig, OwnerDropped);
    bring(&rig, MechanismLifecycle::DeviceLost);
    let lost = rig.registry.retry_quarantined(rig.mechanism, 1);
    assert!(matches!(lost, Err(BindingError::DeviceLost { device: DEVICE, .. })), "{lost:?}");
    let none = rig.registry.abandon_quarantined(rig.mechanism, |_| false).unwrap();
    assert_eq!((none, counts(&rig)), (AbandonedQuarantine::default(), ([0, 0, 0, 2], 128)));
    let mut first = true;
    let one = rig.registry.abandon_quarantined(rig.mechanism, |_| std::mem::take(&mut first)).unwrap();
    assert_eq!((one.allocations.len(), counts(&rig)), (1, ([0, 0, 0, 1], 64)));

    bring(&rig, Terminated);
    let terminated = rig.registry.retry_quarantined(rig.mechanism, 1);
    assert!(matches!(terminated, Err(BindingError::InactiveMechanism { lifecycle: Terminated, .. })), "{terminated:?}");
    assert_eq!(abandon_all(&rig), AbandonedQuarantine::default(), "it has been written off");
    assert_eq!(rig.log.take(), [""; 0]);

    let elsewhere = BindingRegistry::new().unwrap();
    assert!(matches!(elsewhere.retry_quarantined(rig.mechanism, 1), Err(BindingError::ForeignRegistry { kind: "mechanism" })));
    assert!(matches!(elsewhere.abandon_quarantined(rig.mechanism, |_| true), Err(BindingError::ForeignRegistry { kind: "mechanism" })));
    rig.registry.remove(rig.mechanism).unwrap();
    assert!(matches!(rig.registry.retry_quarantined(rig.mechanism, 1), Err(BindingError::UnregisteredMechanism(_))));
    assert!(matches!(rig.registry.abandon_quarantined(rig.mechanism, |_| true), Err(BindingError::UnregisteredMechanism(_))));
}

/// R100: sums that are shown as the most there is are exact again once what was too much has gone.
#[test]
fn bytes_that_saturate_come_back() {
    let rig = Rig::new();
    let huge = [(); 2].map(|()| asked(&rig, || residual(PartialRelease, u64::MAX)));
    unasked(&rig, OwnerDropped);
    assert_eq!(counts(&rig), ([0, 0, 0, 3], u64::MAX));
    let abandon = |identity| rig.registry.abandon_quarantined(rig.mechanism, |entry| entry.identity == identity).unwrap();
    assert_eq!((abandon(huge[0]).bytes(), counts(&rig)), (u64::MAX, ([0, 0, 0, 2], u64::MAX)));
    assert_eq!((abandon(huge[1]).bytes(), counts(&rig)), (u64::MAX, ([0, 0, 0, 1], 64)));
    assert_eq!(abandon(huge[1]), AbandonedQuarantine::default());
    assert_eq!(figures(retry(&rig, 1)), [1, 0, 0]);
    rig.log.take();
    rig.finish();
}

/// R106: who chooses may call anything, and may panic; what was chosen before is given up.
#[test]
fn choosing_may_call_and_panic() {
    let rig = Rig::new();
    let [first, second] = [(); 2].map(|()| unasked(&rig, OwnerDropped));
    let nothing = rig.registry.abandon_quarantined(rig.mechanism, |entry| {
        entry.identity == second && retry(&rig, 1).released == 1 && retry(&rig, 1).released == 1
    });
    assert_eq!(nothing.unwrap(), AbandonedQuarantine { allocations: vec![], missed: 1 });
    assert_eq!(counts(&rig), ([0; 4], 0));

    let [third, fourth] = [(); 2].map(|()| unasked(&rig, OwnerDropped));
    assert_ne!((first, second), (third, fourth));
    let choose = |entry: &QuarantinedAllocation| entry.identity == third || panic!("cannot choose");
    catch_unwind(AssertUnwindSafe(|| rig.registry.abandon_quarantined(rig.mechanism, choose))).unwrap_err();
    assert_eq!((entries(&rig)[0].identity, counts(&rig)), (fourth, ([0, 0, 0, 1], 64)));
    assert_eq!(figures(retry(&rig, 1)), [1, 0, 0]);
    rig.log.take();
    rig.finish();
}

/// Takes memory back on one thread only.
#[derive(Debug)]
struct AtHome(ThreadId);

impl DeviceAllocator for AtHome {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        Ok(NonNull::dangling())
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {
        unreachable!("every release comes as one");
    }

    unsafe fn release(&self, _: NonNull<u8>, bytes: usize, _: usize) -> AllocationReleaseOutcome {
        if thread::current().id() == self.0 {
            AllocationReleaseOutcome::complete(ReleaseAccounting::eager(bytes as u64))
        } else {
            AllocationReleaseOutcome::failed("not at home")
        }
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

/// A release on the wrong thread is kept, and tried again on the right one.
#[test]
fn a_release_on_the_wrong_thread_is_tried_on_the_right_one() {
    let registry = BindingRegistry::new().unwrap();
    let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
    let authority = registry.register_authority(DEVICE, Arc::new(())).unwrap();
    let mechanism = registry.register_allocator(context, authority, Arc::new(AtHome(thread::current().id()))).unwrap();
    let owner = registry.bind(DEVICE).unwrap().allocate_owning(64, 8).unwrap();
    registry.retire(mechanism).unwrap();
    let elsewhere = |work: &(dyn Fn() -> [usize; 3] + Sync)| thread::scope(|scope| scope.spawn(work).join().unwrap());
    assert!(thread::spawn(move || owner.release_now().unwrap()).join().unwrap().is_quarantined());
    let retry = || figures(registry.retry_quarantined(mechanism, usize::MAX).unwrap());
    assert_eq!(elsewhere(&retry), [0, 1, 0]);
    assert_eq!(retry(), [1, 0, 0]);
    registry.remove(mechanism).unwrap();
}

/// Answers releases as it is told, the last answer first, and says by which method it was asked.
#[derive(Debug, Default)]
struct Told {
    answers: Mutex<Vec<AllocationReleaseOutcome>>,
    calls: Mutex<Vec<&'static str>>,
}

impl Told {
    fn answer(&self, call: &'static str) -> AllocationReleaseOutcome {
        self.calls.lock().unwrap().push(call);
        self.answers.lock().unwrap().pop().expect("an answer")
    }
}

impl DeviceAllocator for Told {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        Ok(NonNull::dangling())
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {
        unreachable!("every release comes as one");
    }

    unsafe fn release(&self, _: NonNull<u8>, _: usize, _: usize) -> AllocationReleaseOutcome {
        self.answer("release")
    }

    unsafe fn release_again(&self, _: NonNull<u8>, _: usize, _: usize) -> AllocationReleaseOutcome {
        self.answer("release_again")
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

/// What has failed is asked for by a method of its own, also through a wrapper, so that books about failures stay right: a budget refunds
/// what a retry gives back once, out of its quarantine.
#[test]
fn a_budget_is_refunded_once() {
    let (told, budget) = (Arc::<Told>::default(), Arc::new(Budget::new(1000)));
    let registry = BindingRegistry::new().unwrap();
    let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
    let authority = registry.register_authority(DEVICE, Arc::new(())).unwrap();
    let allocator = BudgetedAllocator::new(Arc::clone(&told), Arc::clone(&budget), MemoryRole::Weights);
    let mechanism = registry.register_allocator(context, authority, Arc::new(allocator)).unwrap();
    let binding = registry.bind(DEVICE).unwrap();
    let used = || (budget.used(), budget.quarantined(), budget.free());
    let step = |answer: AllocationReleaseOutcome| {
        told.answers.lock().unwrap().push(answer);
        registry.retry_quarantined(mechanism, 1).unwrap();
        std::mem::take(&mut *told.calls.lock().unwrap())
    };
    let live = binding.allocate(500, 8).unwrap();

    drop(binding.allocate_owning(100, 8).unwrap());
    assert_eq!(used(), (600, 0, 400), "nobody has told the allocator");
    assert_eq!(step(refused()), ["release"]);
    assert_eq!(used(), (500, 100, 400));
    assert_eq!(step(refused()), ["release_again"]);
    assert_eq!(used(), (500, 100, 400));
    assert_eq!(step(AllocationReleaseOutcome::complete(ReleaseAccounting::eager(100))), ["release_again"]);
    assert_eq!(used(), (500, 0, 500));

    drop(binding.allocate_owning(100, 8).unwrap());
    assert_eq!(step(refused()), ["release"]);
    assert_eq!(step(residual(PartialRelease, 30)), ["release_again"]);
    assert_eq!(used(), (500, 30, 470));

    told.answers.lock().unwrap().push(AllocationReleaseOutcome::complete(ReleaseAccounting::eager(500)));
    binding.release(live).unwrap();
    assert_eq!(used(), (0, 30, 970));
    assert_eq!(registry.abandon_quarantined(mechanism, |_| true).unwrap().bytes(), 30);
    registry.retire(mechanism).unwrap();
    registry.remove(mechanism).unwrap();
    drop(binding);
    assert_eq!(used(), (0, 0, 1000));
}
