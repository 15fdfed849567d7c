//! A lost device is half lost.

use crate::{
    common::{
        arm::arm,
        park::{Gate, gate},
        queue::Queue,
        refused::refused,
        rig::{DEVICE, Rig},
    },
    register, take_away,
    work::{Waiting, Work},
};
use liveslot::*;
use std::{
    array,
    collections::HashSet,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

const REASON: &str = "fell off the bus";

fn lost() -> BindingError {
    BindingError::DeviceLost { device: DEVICE, reason: REASON.into() }
}

fn full() -> MemoryError {
    MemoryError::AllocationFailed { tier: "test", requested: 16, reason: "out of memory".to_owned() }
}

/// Live, queued and quarantined allocations, and operations.
fn counts(rig: &Rig) -> [usize; 4] {
    let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
    [snapshot.live_allocations, snapshot.queued_releases, snapshot.quarantined_allocations, snapshot.active_operations]
}

/// Loses the device while a call is inside the allocator, lets the call go on, and returns what it does.
fn lost_within<R: Send>(rig: &Rig, inside: Gate, call: impl FnOnce() -> R + Send) -> thread::Result<R> {
    thread::scope(|scope| {
        let calling = scope.spawn(|| catch_unwind(AssertUnwindSafe(call)));
        inside.reached();
        rig.registry.invalidate_device(DEVICE, REASON).unwrap();
        let busy = BindingError::ContextNotQuiescent { context: rig.context.identity(), active_operations: 1 };
        refused(rig.registry.confirm_context_terminated(rig.context), busy);
        inside.open();
        calling.join().unwrap()
    })
}

/// C082, R34, R101, R115, R136: an allocation that was inside at the loss ends as the allocator ends it, and leaves nothing set: neither an
/// operation nor, unless it was made, a record.
#[test]
fn an_allocation_that_was_inside_at_the_loss_ends_whole() {
    type Answer = fn() -> Result<(), MemoryError>;
    let answers: [(Answer, usize); 3] = [(|| Ok(()), 1), (|| Err(full()), 0), (|| panic!("after all"), 0)];
    for (answer, live) in answers {
        let rig = Rig::new();
        let binding = rig.registry.bind(DEVICE).unwrap();
        let (stop, inside) = gate();
        arm(&rig.script.allocate, move || {
            stop.park();
            answer()
        });
        let result = lost_within(&rig, inside, || binding.allocate(16, 8));
        assert_eq!(counts(&rig), [live, 0, 0, 0]);
        match result {
            Ok(Ok(block)) => {
                let (error, block) = binding.release(block).unwrap_err().into_parts();
                refused::<()>(Err(error), lost());
                drop(OwningAllocation::new(block));
            }
            Ok(error) => refused(error, BindingError::Memory(full())),
            Err(panic) => assert_eq!(panic.downcast_ref(), Some(&"after all")),
        }
        assert_eq!(counts(&rig), [live, 0, 0, 0]);
        drop(binding);
        assert_eq!(rig.log.take(), ["A allocate 16 8"]);
        rig.registry.confirm_context_terminated(rig.context).unwrap();
        rig.finish();
    }
}

/// C082, R90, R117, R136: the same of a release.
#[test]
fn a_release_that_was_inside_at_the_loss_ends_whole() {
    let complete = || AllocationReleaseOutcome::complete(ReleaseAccounting::eager(16));
    let answers: [(fn() -> AllocationReleaseOutcome, usize); 3] =
        [(complete, 0), (|| AllocationReleaseOutcome::failed("after all"), 1), (|| panic!("after all"), 1)];
    for (answer, kept) in answers {
        let rig = Rig::new();
        let owner = rig.registry.bind(DEVICE).unwrap().allocate_owning(16, 8).unwrap();
        let (stop, inside) = gate();
        arm(&rig.script.release, move || {
            stop.park();
            answer()
        });
        let result = lost_within(&rig, inside, || owner.release_now().unwrap());
        assert_eq!(counts(&rig), [0, 0, kept, 0]);
        match result {
            Ok(outcome) => assert_eq!(outcome.is_complete(), kept == 0),
            Err(panic) => assert_eq!(panic.downcast_ref(), Some(&"after all")),
        }
        assert_eq!(rig.log.take(), ["A allocate 16 8", "A release 16 8"]);
        rig.registry.confirm_context_terminated(rig.context).unwrap();
        assert_eq!(counts(&rig), [0; 4]);
        rig.finish();
    }
}

/// C082, R71, R91, R96, R136: the same of a look, and of handing a release to a queue: the look ends, the release waits, and neither is
/// forgotten.
#[test]
fn what_was_inside_user_code_at_the_loss_ends_whole() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let block = binding.allocate(16, 8).unwrap();
    let view = block.view(8, 8).unwrap();
    let (stop, inside) = gate();
    let looked = lost_within(&rig, inside, || {
        binding.with_view(&view, |view| {
            stop.park();
            view.len()
        })
    });
    assert_eq!(looked.unwrap().unwrap(), 8);
    refused(binding.with_view(&view, |_| ()), lost());
    assert_eq!(counts(&rig), [1, 0, 0, 0]);
    drop((binding, block, view));
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    rig.finish();

    let rig = Rig::new();
    let owner = rig.registry.bind(DEVICE).unwrap().allocate_owning(16, 8).unwrap();
    let (stop, inside) = gate();
    let (stop, taken) = (Mutex::new(Some(stop)), Mutex::new(None));
    let queue = Queue(|request| {
        stop.lock().unwrap().take().unwrap().park();
        *taken.lock().unwrap() = Some(request);
        Ok(())
    });
    let deferred = lost_within(&rig, inside, || owner.release_deferred(&queue).unwrap());
    assert!(deferred.unwrap().is_queued());
    assert_eq!(counts(&rig), [0, 1, 0, 1]);
    let request: PreparedAllocationRelease = taken.lock().unwrap().take().unwrap();
    assert_eq!(request.execute().state(), AllocationReleaseState::DeviceLost);
    assert_eq!(counts(&rig), [0, 0, 1, 0]);
    assert_eq!(rig.log.take(), ["A allocate 16 8"]);
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    rig.finish();
}

/// C084, R28, R30, R31, R38, R91: a loss finds blocks in every state, forgets none, and touches none; when all have been let go and the end
/// of the context is confirmed, every count is zero.
#[test]
fn a_loss_finds_blocks_in_every_state() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let owner = || binding.allocate_owning(16, 8).unwrap();
    let (waiting, never) = (Waiting::default(), Work::default());
    // Quarantined, for two reasons.
    arm(&rig.script.release, || AllocationReleaseOutcome::failed("stuck"));
    drop(binding.release(binding.allocate(16, 8).unwrap()).unwrap_err());
    drop(owner());
    // Live: plain, owned, viewed, adopted.
    let (bound, owned, viewed) = (binding.allocate(16, 8).unwrap(), owner(), owner());
    let view = viewed.view(0, 16).unwrap();
    let prepared = owner().prepare_release().unwrap();
    let pointer = prepared.allocator().allocate(16, 8).unwrap();
    // SAFETY: just made by the allocator of this binding, with these values, and nobody else knows of it.
    let adopted = unsafe { binding.adopt_allocation(pointer, 16, 8) }.unwrap();
    // Queued: `prepared`, and two that wait.
    for _ in 0..2 {
        assert!(owner().release_deferred(&waiting.after(&[&never])).unwrap().is_queued());
    }
    let leaving = owner();
    assert_eq!(counts(&rig), [5, 3, 2, 3]);

    let (stop_making, making) = gate();
    let (stop_taking, taking) = gate();
    arm(&rig.script.allocate, || {
        stop_making.park();
        Ok(())
    });
    arm(&rig.script.release, || {
        stop_taking.park();
        AllocationReleaseOutcome::complete(ReleaseAccounting::eager(16))
    });
    let made = thread::scope(|scope| {
        let allocating = scope.spawn(|| binding.allocate(16, 8).unwrap());
        making.reached();
        let releasing = scope.spawn(|| leaving.release_now().unwrap());
        taking.reached();
        rig.log.take();
        let before = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!(counts(&rig), [4, 4, 2, 5]);
        rig.registry.invalidate_device(DEVICE, REASON).unwrap();
        let after = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!(after, MechanismSnapshot { lifecycle: MechanismLifecycle::DeviceLost, ..before });
        making.open();
        taking.open();
        assert!(releasing.join().unwrap().is_complete());
        allocating.join().unwrap()
    });
    assert_eq!(counts(&rig), [5, 3, 2, 3]);

    for refusal in [bound, made].map(|block| binding.release(block).unwrap_err()) {
        refused::<()>(Err(refusal.into_parts().0), lost());
    }
    for refusal in [owned, adopted].map(|owner| owner.release_now().unwrap_err()) {
        refused::<()>(Err(refusal.into_parts().0), lost());
    }
    drop((view, viewed));
    assert_eq!(prepared.execute().state(), AllocationReleaseState::DeviceLost);
    never.complete();
    assert_eq!(waiting.poll(), (0, 2));
    assert_eq!(counts(&rig), [5, 0, 5, 0]);
    drop(binding);
    assert_eq!(rig.log.take(), [""; 0], "whatever was called was called before");
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    assert_eq!(counts(&rig), [0; 4]);
    assert_eq!(rig.registry.quarantined(rig.mechanism).unwrap(), []);
    rig.finish();
}

/// Memory that nobody looks at, and that breaks down after so many allocations.
#[derive(Debug)]
struct Mortal {
    left: AtomicUsize,
    allocations: AtomicUsize,
    releases: AtomicUsize,
}

impl Mortal {
    fn new(left: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(left), allocations: AtomicUsize::new(0), releases: AtomicUsize::new(0) })
    }
}

impl DeviceAllocator for Mortal {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        self.allocations.fetch_add(1, SeqCst);
        match self.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Ok(NonNull::<u64>::dangling().cast()),
            Err(_) => Err(full()),
        }
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {
        self.releases.fetch_add(1, SeqCst);
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

/// C087, R31, R130, R134: who sees the fatal error declares the loss; no call that begins after that succeeds, on any thread, nor reaches
/// the allocator.
#[test]
fn nothing_succeeds_after_a_loss() {
    const THREADS: usize = 4;
    const AFTERWARDS: usize = 200;
    for round in 0..50 {
        let allocator = Mortal::new(100 + round);
        let registry = BindingRegistry::new().unwrap();
        register(&registry, DEVICE, allocator.clone());
        let (start, is_lost) = (Barrier::new(THREADS), AtomicBool::new(false));
        let work = || {
            let binding = registry.bind(DEVICE).unwrap();
            let kept = binding.allocate(16, 8).unwrap();
            let view = kept.view(0, 16).unwrap();
            let (mut allocations, mut releases, mut afterwards) = (1, 0, 0);
            start.wait();
            while afterwards < AFTERWARDS {
                let was_lost = is_lost.load(SeqCst);
                afterwards += usize::from(was_lost);
                if was_lost {
                    refused(kept.view(0, 8), lost());
                    refused(binding.with_view(&view, |_| ()), lost());
                    refused(registry.bind(DEVICE), BindingError::NoSelectedMechanism(DEVICE));
                }
                match binding.allocate_owning(16, 8) {
                    result if was_lost => refused(result, lost()),
                    Ok(owner) => {
                        allocations += 1;
                        match owner.release_now() {
                            Ok(outcome) if outcome.is_complete() => releases += 1,
                            Ok(outcome) => assert_eq!(outcome.state(), AllocationReleaseState::DeviceLost),
                            Err(refusal) => refused::<()>(Err(refusal.into_parts().0), lost()),
                        }
                    }
                    Err(BindingError::Memory(_)) => {
                        allocations += 1;
                        registry.invalidate_device(DEVICE, REASON).unwrap();
                        is_lost.store(true, SeqCst);
                    }
                    refusal => refused(refusal, lost()),
                }
            }
            (allocations, releases)
        };
        let done = thread::scope(|scope| [(); THREADS].map(|()| scope.spawn(work)).map(|thread| thread.join().unwrap()));
        assert_eq!(allocator.allocations.load(SeqCst), done.iter().map(|(allocations, _)| allocations).sum());
        assert_eq!(allocator.releases.load(SeqCst), done.iter().map(|(_, releases)| releases).sum());
    }
}

/// C089, R29, R36, R88, R91: what replaces a lost mechanism works at once, whatever waits on the dead one; that is taken apart without its
/// device, whenever its work is given up.
#[test]
fn a_replacement_waits_for_nothing() {
    let rig = Rig::new();
    let (waiting, never) = (Waiting::default(), Work::default());
    let owner = rig.registry.bind(DEVICE).unwrap().allocate_owning(16, 8).unwrap();
    assert!(owner.release_deferred(&waiting.after(&[&never])).unwrap().is_queued());
    rig.registry.invalidate_device(DEVICE, REASON).unwrap();
    rig.log.take();

    let (next, ..) = register(&rig.registry, DEVICE, Arc::new(HostAllocator));
    let works = || {
        let binding = rig.registry.bind(DEVICE).unwrap();
        assert_eq!(binding.identity().mechanism(), next.identity());
        binding.release(binding.allocate(8, 8).unwrap()).unwrap();
    };
    works();
    let mut drain = rig.registry.drain(rig.mechanism).unwrap();
    let mut left = || match drain.wait(Duration::ZERO) {
        Err(DrainError::TimedOut(DrainReport { snapshot, .. })) => Some([snapshot.queued_releases, snapshot.quarantined_allocations]),
        Err(gone) => panic!("{gone}"),
        Ok(()) => None,
    };
    let busy = BindingError::ContextNotQuiescent { context: rig.context.identity(), active_operations: 1 };
    refused(rig.registry.confirm_context_terminated(rig.context), busy);
    works();
    assert_eq!(left(), Some([1, 0]));
    assert_eq!(waiting.poll(), (0, 1), "given up, though the work never ends");
    assert_eq!(left(), Some([0, 1]));
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    assert_eq!(left(), None, "written off");
    works();
    assert_eq!(rig.log.take(), [""; 0]);
    let (registry, lost) = (rig.registry.clone(), rig.mechanism);
    registry.remove(lost).unwrap();
    assert_eq!(rig.log.take(), ["A dropped"]);
    works();
    take_away(&registry, next);
}

/// C091, R91, R95, R134: a time-out declares the loss while the work completes: each block is released or retained, once, and none is
/// released that comes after the loss.
#[test]
fn a_time_out_and_a_completion_settle_each_block_once() {
    const RACING: usize = 16;
    const LATE: usize = 4;
    for _ in 0..300 {
        let allocator = Mortal::new(RACING + LATE);
        let registry = BindingRegistry::new().unwrap();
        let (mechanism, context, _) = register(&registry, DEVICE, allocator.clone());
        let binding = registry.bind(DEVICE).unwrap();
        let request = || binding.allocate_owning(16, 8).unwrap().prepare_release().unwrap();
        let racing: [PreparedAllocationRelease; RACING] = array::from_fn(|_| request());
        let late: [PreparedAllocationRelease; LATE] = array::from_fn(|_| request());
        let (start, is_lost) = (Barrier::new(2), AtomicBool::new(false));
        let complete = |request: PreparedAllocationRelease| {
            let (was_lost, identity) = (is_lost.load(SeqCst), request.identity());
            let outcome = request.execute();
            assert!(outcome.state() == AllocationReleaseState::DeviceLost || outcome.is_complete() && !was_lost);
            (identity, outcome)
        };
        let raced = thread::scope(|scope| {
            let completing = scope.spawn(|| {
                start.wait();
                racing.map(complete)
            });
            start.wait();
            registry.invalidate_device(DEVICE, REASON).unwrap();
            is_lost.store(true, SeqCst);
            completing.join().unwrap()
        });
        let outcomes = [raced.as_slice(), late.map(complete).as_slice()].concat();
        let released = outcomes.iter().take_while(|(_, outcome)| outcome.is_complete()).count();
        assert_eq!(allocator.releases.load(SeqCst), released);
        let entries = registry.quarantined(mechanism).unwrap();
        assert_eq!(entries.len(), outcomes.len() - released);
        let retained: HashSet<_> = outcomes[released..].iter().map(|(identity, _)| *identity).collect();
        assert_eq!(entries.iter().map(|entry| entry.identity).collect::<HashSet<_>>(), retained);
        registry.confirm_context_terminated(context).unwrap();
        registry.remove(mechanism).unwrap();
    }
}

/// C092, R32, R59, R63: no error of an allocator is taken for a loss, whatever it says; a loss is declared, and keeps the reason that it
/// was declared with.
#[test]
fn no_error_is_taken_for_a_loss() {
    let tier = "device";
    let errors: [fn(&'static str) -> MemoryError; 4] = [
        |tier| MemoryError::TierExhausted { tier, requested: 16, used: 1, limit: 2, available: 1, role: MemoryRole::KvCache },
        |tier| MemoryError::InvalidRequest { tier, requested: 16, reason: "busy" },
        |tier| MemoryError::AllocationFailed { tier, requested: 16, reason: "the device was removed".to_owned() },
        |tier| MemoryError::CapacityUnavailable {
            tier,
            requested: 16,
            available: 0,
            role: MemoryRole::Activation,
            detail: "the device hangs".to_owned(),
            source: Some(Box::new(full())),
        },
    ];
    let device_lost = ResidualOwnership {
        state: AllocationReleaseState::DeviceLost,
        reason: QuarantineReason::DeviceLost,
        retained_bytes: 16,
        address: 0,
        align: 0,
    };
    let rig = Rig::new();
    let device = rig.registry.device(DEVICE);
    let version = device.version();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let healthy = || {
        assert_eq!((device.selected(), device.version()), (Some(rig.mechanism.identity()), version));
        assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().lifecycle, MechanismLifecycle::Active);
        assert!(binding.allocate_owning(16, 8).unwrap().release_now().unwrap().is_complete());
    };
    for error in errors {
        arm(&rig.script.allocate, move || Err(error(tier)));
        refused(binding.allocate(16, 8), BindingError::Memory(error(tier)));
        healthy();
    }
    for outcome in [
        AllocationReleaseOutcome::failed("the device was removed"),
        AllocationReleaseOutcome::quarantined(ReleaseAccounting::eager(16), device_lost),
    ] {
        let block = binding.allocate(16, 8).unwrap();
        let told = outcome.residual().map_or(QuarantineReason::AllocatorRefused, |residual| residual.reason);
        arm(&rig.script.release, move || outcome);
        let (error, _) = binding.release(block).unwrap_err().into_parts();
        assert!(matches!(error, BindingError::ReleaseQuarantined { reason, .. } if reason == told));
        healthy();
    }
    for reason in [REASON, "another reason, later"] {
        rig.registry.invalidate_device(DEVICE, reason).unwrap();
        refused(binding.allocate(16, 8), lost());
    }
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    drop((device, binding));
    rig.finish();
}
