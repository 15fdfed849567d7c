//! A budget as the authority of mechanisms.

use super::{double::*, figures, tally};
use liveslot::*;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, Weak},
};

const DEVICE: DeviceKey = DeviceKey::device(0);

struct Rig {
    registry: BindingRegistry,
    context: RegisteredProviderContext,
    authority: RegisteredAuthority,
    budget: Arc<Budget>,
}

impl Rig {
    fn new(limit: u64) -> Self {
        let (registry, budget) = (BindingRegistry::new().unwrap(), Arc::new(Budget::new(limit)));
        let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
        let authority = registry.register_authority(DEVICE, budget.clone()).unwrap();
        Self { registry, context, authority, budget }
    }

    /// One more mechanism that is charged to the budget, with a binding to it. Its wrapper can be looked at for as long as it is there.
    fn mechanism(&self) -> (Mechanism, MemoryBinding) {
        let (allocator, script) = sharing(&self.budget);
        let allocator = Arc::new(allocator);
        let watch = Arc::downgrade(&allocator);
        let token = self.registry.register_allocator(self.context, self.authority, allocator).unwrap();
        let binding = self.registry.bind_registered(token).unwrap();
        (Mechanism { token, script, watch }, binding)
    }
}

struct Mechanism {
    token: RegisteredMechanism,
    script: Arc<Script>,
    watch: Weak<BudgetedAllocator<Double>>,
}

impl Mechanism {
    /// What the wrapper has charged and in quarantine.
    #[track_caller]
    fn report(&self) -> [BudgetTally; 2] {
        let allocator = self.watch.upgrade().expect("the allocator is there");
        [allocator.charged(), allocator.quarantined()]
    }
}

/// R59, R63: a refusal reaches the caller of a binding as it is, a release refunds, and what is retained stays with the mechanism.
#[test]
fn through_a_binding() {
    let rig = Rig::new(100);
    let (mechanism, binding) = rig.mechanism();
    let allocation = binding.allocate(64, 8).unwrap();
    let refused = binding.allocate(37, 8).unwrap_err();
    assert!(matches!(refused, BindingError::Memory(MemoryError::TierExhausted { requested: 37, used: 64, available: 36, .. })));
    assert_eq!(rig.registry.snapshot(mechanism.token).unwrap().live_allocations, 1);
    binding.release(allocation).unwrap();
    figures(&rig.budget, [0, 0, 100, 64]);

    let allocation = binding.allocate(64, 8).unwrap();
    mechanism.script.release.is(|| residual(16));
    assert!(binding.release(allocation).unwrap_err().is_quarantined());
    let allocation = binding.allocate(8, 8).unwrap();
    mechanism.script.release.is(|| throw());
    throws(|| binding.release(allocation));
    let snapshot = rig.registry.snapshot(mechanism.token).unwrap();
    assert_eq!((snapshot.quarantined_allocations, snapshot.quarantined_bytes), (2, 24));
    assert_eq!(mechanism.report(), [tally(0, 0), tally(24, 2)]);
    figures(&rig.budget, [0, 24, 76, 64]);
}

/// R51, R91: what a lost device never gave back stays used until the allocator goes, and comes back then, exactly.
#[test]
fn loss_with_live_allocations() {
    let rig = Rig::new(1000);
    let (mechanism, binding) = rig.mechanism();
    let mut live: Vec<_> = [100, 200, 300].map(|bytes| binding.allocate(bytes, 8).unwrap()).into();
    binding.release(binding.allocate(50, 8).unwrap()).unwrap();
    mechanism.script.release.is(|| residual(7));
    binding.release(binding.allocate(20, 8).unwrap()).unwrap_err();
    mechanism.script.calls();

    rig.registry.invalidate_device(DEVICE, "lost").unwrap();
    binding.release(live.pop().unwrap()).unwrap_err();
    assert!(matches!(binding.allocate(1, 1), Err(BindingError::DeviceLost { .. })));
    drop(live.pop());
    assert!(mechanism.script.calls().is_empty(), "nothing reaches the allocator");
    figures(&rig.budget, [600, 7, 393, 650]);
    assert_eq!(mechanism.report(), [tally(600, 3), tally(7, 1)]);

    drop((binding, live));
    figures(&rig.budget, [600, 7, 393, 650]);
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    rig.registry.remove(mechanism.token).unwrap();
    assert_eq!(mechanism.script.calls(), ["dropped"]);
    figures(&rig.budget, [0, 0, 1000, 650]);
}

/// R48, R51: everything is dropped with live allocations: the allocator goes, the budget has everything back, then the authority goes.
#[test]
fn everything_is_dropped() {
    let rig = Rig::new(1000);
    let (mechanism, binding) = rig.mechanism();
    let kept = binding.allocate(100, 8).unwrap();
    drop(binding.allocate(30, 8).unwrap());
    let Rig { registry, budget, .. } = rig;
    drop((registry, binding));
    assert_eq!(mechanism.report(), [tally(130, 2), tally(0, 0)]);
    let seen = Arc::clone(&budget);
    mechanism.script.drop.is(move || figures(&seen, [130, 0, 870, 130]));
    drop(kept);
    figures(&budget, [0, 0, 1000, 130]);
    assert_eq!(Arc::strong_count(&budget), 1);
}

/// C082, R115: a device that is lost while an allocation is being made: whether that then comes to be, fails or panics, nothing stays
/// charged once everything is gone.
#[test]
fn loss_within_an_allocation() {
    for ending in [|| Ok(()), || Err(failure()), || throw()] {
        let rig = Rig::new(100);
        let (mechanism, binding) = rig.mechanism();
        let (registry, budget) = (rig.registry.clone(), Arc::clone(&rig.budget));
        mechanism.script.allocate.is(move || {
            registry.invalidate_device(DEVICE, "lost").unwrap();
            figures(&budget, [60, 0, 40, 60]);
            ending()
        });
        let made = catch_unwind(AssertUnwindSafe(|| binding.allocate(60, 8)));
        let charged = if matches!(made, Ok(Ok(_))) { 60 } else { 0 };
        figures(&rig.budget, [charged, 0, 100 - charged, 60]);
        let Rig { registry, budget, .. } = rig;
        drop((registry, binding, made));
        figures(&budget, [0, 0, 100, 60]);
    }
}

/// Keeps what it is given, or refuses it.
#[derive(Debug, Default)]
struct Queue {
    refuses: Option<DeferredEnqueueRejection>,
    kept: Mutex<Vec<PreparedAllocationRelease>>,
}

impl DeferredReleaseQueue for Queue {
    fn enqueue(&self, request: PreparedAllocationRelease) -> Result<(), DeferredEnqueueError> {
        if let Some(rejection) = self.refuses {
            return Err(DeferredEnqueueError::new(rejection, request));
        }
        self.kept.lock().unwrap().push(request);
        Ok(())
    }
}

/// R90, R96: a deferred release is used until the allocator has been called.
#[test]
fn a_deferred_release_is_used_until_it_is_executed() {
    let rig = Rig::new(100);
    let (mechanism, binding) = rig.mechanism();
    let queue = Queue::default();
    for bytes in [10, 20, 30] {
        assert!(binding.allocate_owning(bytes, 8).unwrap().release_deferred(&queue).unwrap().is_queued());
    }
    figures(&rig.budget, [60, 0, 40, 60]);
    mechanism.script.release.is(|| residual(4));
    let mut kept = queue.kept.into_inner().unwrap();
    assert!(kept.remove(0).execute().is_quarantined());
    figures(&rig.budget, [50, 4, 46, 60]);
    assert!(kept.remove(1).execute().is_complete());
    figures(&rig.budget, [20, 4, 76, 60]);
    mechanism.script.release.is(|| throw());
    throws(|| kept.remove(0).execute());
    figures(&rig.budget, [0, 24, 76, 60]);
    assert_eq!(mechanism.report(), [tally(0, 0), tally(24, 2)]);
}

/// R86, R91, R92, R93, R94: what is withheld from the allocator stays used, since it is there, and comes back with the allocator's end.
#[test]
fn what_never_reaches_the_allocator_stays_used() {
    let withholdings: [fn(OwningAllocation); 7] = [
        |owner| drop(owner),
        |owner| drop(owner.into_bound().unwrap()),
        |owner| drop(owner.prepare_release().unwrap()),
        |owner| drop(owner.prepare_release().unwrap().quarantine(QuarantineReason::PartialRelease)),
        |owner| drop(owner.prepare_release().unwrap().quarantine_device_lost()),
        |owner| {
            let queue = Queue { refuses: Some(DeferredEnqueueRejection::Full), ..Queue::default() };
            assert!(!owner.release_deferred(&queue).unwrap().is_queued());
        },
        |owner| drop(DeferredEnqueueError::new(DeferredEnqueueRejection::Closed, owner.prepare_release().unwrap())),
    ];
    for withhold in withholdings {
        let rig = Rig::new(100);
        let (mechanism, binding) = rig.mechanism();
        withhold(binding.allocate_owning(60, 8).unwrap());
        assert_eq!(mechanism.script.calls(), ["allocate 60 8"]);
        figures(&rig.budget, [60, 0, 40, 60]);
        assert_eq!(mechanism.report(), [tally(60, 1), tally(0, 0)]);
        let Rig { registry, budget, .. } = rig;
        drop((registry, binding));
        assert_eq!(mechanism.script.calls(), ["dropped"]);
        figures(&budget, [0, 0, 100, 60]);
    }
}

/// R61: memory that was made through the wrapper can be adopted, and is refunded when it is released.
#[test]
fn adopted_memory_was_charged_when_it_was_made() {
    let rig = Rig::new(100);
    let (mechanism, binding) = rig.mechanism();
    let ptr = mechanism.watch.upgrade().unwrap().allocate(60, 8).unwrap();
    // SAFETY: the double has no memory; made by the mechanism's allocator with these values, and owned by nobody else.
    let owner = unsafe { binding.adopt_allocation(ptr, 60, 8) }.unwrap();
    figures(&rig.budget, [60, 0, 40, 60]);
    assert!(owner.release_now().unwrap().is_complete());
    figures(&rig.budget, [0, 0, 100, 60]);
}

/// R49, R77, R78, R81: through a binding's handles an allocation with backing and a prefix are charged, and a prefix that is the last to go
/// is refunded before the allocator.
#[test]
fn capabilities_of_a_binding() {
    let rig = Rig::new(100);
    let (mechanism, binding) = rig.mechanism();
    let (backing, mapping) = (binding.virtual_backing().unwrap().unwrap(), binding.shared_mapping().unwrap().unwrap());
    let allocation = backing.allocate_committed(40, 8, &[]).unwrap();
    assert!(matches!(backing.allocate_committed(61, 8, &[]), Err(BindingError::Memory(MemoryError::TierExhausted { available: 60, .. }))));
    backing.commit_allocation_range(&allocation, 0, 40).unwrap();
    mechanism.script.prefix.is(|| Ok(30));
    let prefix = mapping.create_shared_prefix(20).unwrap();
    assert!(matches!(mapping.create_shared_prefix(31), Err(BindingError::Memory(MemoryError::TierExhausted { available: 30, .. }))));
    assert_eq!(mapping.commit_shared_prefix(&prefix, &allocation, 0).unwrap().granules, 18);
    figures(&rig.budget, [70, 0, 30, 70]);
    binding.release(allocation).unwrap();
    mechanism.script.calls();

    let Rig { registry, budget, .. } = rig;
    drop((registry, binding, backing, mapping));
    figures(&budget, [30, 0, 70, 70]);
    drop(prefix);
    assert_eq!(mechanism.script.calls(), ["prefix dropped", "dropped"]);
    figures(&budget, [0, 0, 100, 70]);
}

/// C132: two mechanisms share a budget; each accounts for its own, and its end takes its own away.
#[test]
fn two_mechanisms_share_a_budget() {
    let rig = Rig::new(100);
    let (first, through_first) = rig.mechanism();
    let (second, through_second) = rig.mechanism();
    through_first.release(through_first.allocate(40, 8).unwrap()).unwrap();
    let leaked = [10, 20, 30].map(|bytes| through_second.allocate(bytes, 8).unwrap());
    assert!(through_first.allocate(41, 8).is_err(), "the limit is for both");
    let unfinished = through_first.allocate(5, 8).unwrap();
    first.script.release.is(|| AllocationReleaseOutcome::failed("no"));
    through_first.release(unfinished).unwrap_err();
    assert_eq!(first.report(), [tally(0, 0), tally(5, 1)]);
    assert_eq!(second.report(), [tally(60, 3), tally(0, 0)]);
    figures(&rig.budget, [60, 5, 35, 65]);

    rig.registry.retire(second.token).unwrap();
    for allocation in leaked {
        through_second.release(allocation).unwrap();
    }
    drop(through_second);
    rig.registry.remove(second.token).unwrap();
    assert!(second.watch.upgrade().is_none());
    figures(&rig.budget, [0, 5, 95, 65]);
    assert_eq!(first.report(), [tally(0, 0), tally(5, 1)]);

    rig.registry.invalidate_device(DEVICE, "lost").unwrap();
    drop(through_first);
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    rig.registry.remove(first.token).unwrap();
    figures(&rig.budget, [0, 0, 100, 65]);
}
