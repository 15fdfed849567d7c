//! Releases that were prepared: what they hold, how they end, and the queues that they may go through.

mod common {
    pub mod arm;
    pub mod doubles;
    pub mod held;
    pub mod lifecycle;
    pub mod queue;
    pub mod refused;
    pub mod rig;
}

use common::{
    arm::arm,
    doubles::{Double, Log, Resource},
    held::{Held, hold},
    lifecycle::bring,
    queue::Queue,
    refused::refused,
    rig::{DEVICE, Rig},
};
use liveslot::{MechanismLifecycle::*, *};
use std::{
    ptr::NonNull,
    sync::{Arc, Mutex},
    thread,
};

/// Live, queued, operations, quarantined.
fn counts(binding: &MemoryBinding) -> (usize, usize, usize, usize) {
    let snapshot = binding.mechanism_snapshot().unwrap();
    (snapshot.live_allocations, snapshot.queued_releases, snapshot.active_operations, snapshot.quarantined_allocations)
}

/// A request for 64 bytes at 8.
fn prepared(rig: &Rig) -> (MemoryBinding, PreparedAllocationRelease) {
    let Held { binding, allocation, view: _ } = hold(rig);
    let request = binding.prepare_release(allocation).unwrap();
    assert_eq!(rig.log.take(), [""; 0]);
    (binding, request)
}

/// The one entry of a request that has ended otherwise than by a complete release: all of it is the request's, save `state`, `reason` and
/// bytes.
#[track_caller]
fn retained(rig: &Rig, binding: &MemoryBinding, identity: AllocationIdentity, outcome: &AllocationReleaseOutcome, address: usize) {
    let residual = outcome.residual().unwrap();
    assert_eq!((residual.address, residual.align), (address, 8));
    let ResidualOwnership { state, reason, retained_bytes, .. } = residual;
    let entry = QuarantinedAllocation { identity, address, bytes: 64, align: 8, state, reason, retained_bytes };
    assert_eq!(binding.quarantined().unwrap(), [entry]);
    assert_eq!(rig.registry.quarantined(rig.mechanism).unwrap(), [entry]);
    let snapshot = binding.mechanism_snapshot().unwrap();
    assert_eq!(snapshot.quarantined_bytes, retained_bytes);
    assert_eq!(counts(binding), (0, 0, 0, 1));
}

/// The outcome of a release that gave nothing back.
fn kept(state: AllocationReleaseState, reason: QuarantineReason, address: usize) -> AllocationReleaseOutcome {
    let residual = ResidualOwnership { state, reason, retained_bytes: 64, address, align: 8 };
    AllocationReleaseOutcome::quarantined(ReleaseAccounting::eager(64), residual)
}

fn address(request: &PreparedAllocationRelease) -> usize {
    request.as_ptr().addr().get()
}

/// Takes apart what has an entry in its quarantine.
#[track_caller]
fn finish(rig: Rig, binding: MemoryBinding) {
    drop(binding);
    bring(&rig, Terminated);
    rig.finish();
}

/// R62, R64, R88: preparing calls nobody, moves the record from live to queued, and leaves nothing that is live behind.
#[test]
fn preparing() {
    let rig = Rig::new();
    let Held { binding, allocation, view } = hold(&rig);
    let identity = allocation.identity();
    assert_eq!(counts(&binding), (1, 0, 0, 0));
    let request = binding.clone().prepare_release(allocation).unwrap();
    assert_eq!(rig.log.take(), [""; 0]);
    assert_eq!(counts(&binding), (0, 1, 1, 0));
    assert_eq!(binding.mechanism_snapshot().unwrap().quarantined_bytes, 0);
    assert_eq!(request.state(), AllocationReleaseState::Queued);
    refused(binding.with_view(&view, |_| ()), BindingError::StaleAllocation(identity));
    assert_eq!(request.execute(), AllocationReleaseOutcome::complete(ReleaseAccounting::eager(64)));
    assert_eq!(rig.log.take(), ["A release 64 8"]);
    assert_eq!(counts(&binding), (0, 0, 0, 0));
    refused(binding.with_view(&view, |_| ()), BindingError::StaleAllocation(identity));
    drop((binding, view));
    rig.finish();
}

/// R55, R62: refused by another binding, the allocation comes back, and is good for its own.
#[test]
fn preparing_through_another_binding() {
    let rig = Rig::new();
    let Held { binding, allocation, view } = hold(&rig);
    let sibling = rig.registry.bind(DEVICE).unwrap();
    let (identity, pointer) = (allocation.identity(), allocation.as_ptr());
    let refusal = sibling.prepare_release(allocation).unwrap_err();
    assert_eq!((refusal.is_quarantined(), refusal.outcome(), refusal.state()), (false, None, AllocationReleaseState::Live));
    let (error, allocation) = refusal.into_parts();
    refused::<()>(Err(error), BindingError::BindingMismatch { expected: sibling.identity().id(), actual: binding.identity().id() });
    assert_eq!((allocation.identity(), allocation.as_ptr(), allocation.len(), allocation.alignment()), (identity, pointer, 64, 8));
    assert_eq!((counts(&binding), rig.log.take()), ((1, 0, 0, 0), vec![]));
    binding.with_view(&view, |_| ()).unwrap();
    assert!(binding.prepare_release(allocation).unwrap().execute().is_complete());
    drop((binding, sibling, view));
    rig.finish();
}

/// R89: a request tells what it is for.
#[test]
fn accessors() {
    let rig = Rig::new();
    let Held { binding, allocation, .. } = hold(&rig);
    let (identity, pointer) = (allocation.identity(), allocation.as_ptr());
    let request = binding.prepare_release(allocation).unwrap();
    assert_eq!((request.identity(), request.binding_identity()), (identity, binding.identity()));
    assert_eq!(
        (request.device(), request.authority(), request.provider_context()),
        (DEVICE, rig.authority.identity(), rig.context.identity())
    );
    assert_eq!((request.as_ptr(), request.len(), request.is_empty(), request.alignment()), (pointer, 64, false, 8));
    assert!(request.execute().is_complete());
    let empty = binding.prepare_release(binding.allocate(0, 1).unwrap()).unwrap();
    assert!(empty.is_empty() && empty.execute().is_complete());
    drop(binding);
    rig.finish();
}

/// R57, R89: the allocator of a request is that of its mechanism; whoever clones it keeps it, and nothing else.
#[test]
fn the_allocator_of_a_request() {
    let heap: Arc<dyn DeviceAllocator> = Arc::new(HostAllocator);
    let registry = BindingRegistry::new().unwrap();
    let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
    let authority = registry.register_authority(DEVICE, Arc::new(())).unwrap();
    registry.register_allocator_with_device(context, authority, heap.clone(), DEVICE).unwrap();
    let request = registry.bind(DEVICE).unwrap().allocate_owning(8, 8).unwrap().prepare_release().unwrap();
    assert!(Arc::ptr_eq(request.allocator(), &heap));
    drop(registry);
    let clone = request.allocator().clone();
    assert!(request.execute().is_complete());
    assert_eq!(Arc::strong_count(&heap), 2);
    drop(clone);

    // An allocator that needs neither authority nor context to be dropped.
    let (log, script) = (Log::default(), Arc::default());
    let registry = BindingRegistry::new().unwrap();
    let context = registry.register_provider_context(DEVICE, Resource::context("C", &log, &script)).unwrap();
    let authority = registry.register_authority(DEVICE, Resource::authority("Q", &log, &script)).unwrap();
    registry.register_allocator(context, authority, Double::new("A", ["none"; 2], DEVICE, &log, &script)).unwrap();
    let request = registry.bind(DEVICE).unwrap().allocate_owning(8, 8).unwrap().prepare_release().unwrap();
    let clone = request.allocator().clone();
    drop(registry);
    log.take();
    assert!(request.execute().is_complete());
    assert_eq!(log.take(), ["A release 8 8", "Q dropped", "C dropped"]);
    drop(clone);
    assert_eq!(log.take(), ["A dropped"]);
}

/// R88: a request holds an operation, against removal and termination.
#[test]
fn requests_are_operations() {
    let rig = Rig::new();
    let (binding, request) = prepared(&rig);
    bring(&rig, Retired);
    refused(rig.registry.remove(rig.mechanism), (rig.mechanism, Retired));
    bring(&rig, DeviceLost);
    refused(rig.registry.remove(rig.mechanism), (rig.mechanism, DeviceLost));
    let busy = || BindingError::ContextNotQuiescent { context: rig.context.identity(), active_operations: 1 };
    refused(rig.registry.confirm_context_terminated(rig.context), busy());
    assert_eq!(counts(&binding), (0, 1, 1, 0));
    drop(request);
    finish(rig, binding);
}

/// R66, R88: a request outlives selection, retirement, its binding and the registry, and is executed on whichever thread, on its own
/// allocator.
#[test]
fn requests_outlive_the_registry() {
    let rig = Rig::new();
    let (binding, request) = prepared(&rig);
    let Rig { registry, log, script, mechanism, .. } = rig;
    registry.retire(mechanism).unwrap();
    drop((registry, binding));
    assert_eq!(log.take(), [""; 0]);
    let caller = thread::spawn(move || {
        let here = thread::current().id();
        arm(&script.release, move || {
            assert_eq!(thread::current().id(), here);
            AllocationReleaseOutcome::complete(ReleaseAccounting::new(64, 4096))
        });
        request.execute()
    });
    assert_eq!(caller.join().unwrap(), AllocationReleaseOutcome::complete(ReleaseAccounting::new(64, 4096)));
    assert_eq!(log.take(), ["A release 64 8", "A dropped", "Q dropped", "C dropped"]);
}

/// R90: each answer of an allocator, and what comes of it.
#[test]
fn executing() {
    let nonsense = ResidualOwnership {
        state: AllocationReleaseState::PartiallyUnmapped,
        reason: QuarantineReason::PartialRelease,
        retained_bytes: 16,
        address: 0xbad,
        align: 3,
    };
    for phase in [Active, Retired] {
        for through_owner in [false, true] {
            // Complete, with bytes unmapped and without.
            for unmapped in [0, 48] {
                let rig = Rig::new();
                let (binding, request) = prepared(&rig);
                bring(&rig, phase);
                let answer = AllocationReleaseOutcome::complete(ReleaseAccounting::new(64, unmapped));
                arm(&rig.script.release, {
                    let answer = answer.clone();
                    || answer
                });
                assert_eq!(request.execute(), answer);
                assert_eq!(rig.log.take(), ["A release 64 8"]);
                assert_eq!(counts(&binding), (0, 0, 0, 0));
                assert_eq!(binding.quarantined().unwrap(), []);
                drop(binding);
                rig.finish();
            }
            // In part, and not at all.
            for answer in
                [AllocationReleaseOutcome::quarantined(ReleaseAccounting::new(64, 48), nonsense), AllocationReleaseOutcome::failed("stuck")]
            {
                let rig = Rig::new();
                let Held { binding, allocation, .. } = hold(&rig);
                let (identity, address) = (allocation.identity(), allocation.as_ptr().addr().get());
                bring(&rig, phase);
                let expected = match &answer {
                    AllocationReleaseOutcome::Quarantined { accounting, .. } => {
                        AllocationReleaseOutcome::quarantined(*accounting, ResidualOwnership { address, align: 8, ..nonsense })
                    }
                    _ => kept(AllocationReleaseState::Quarantined, QuarantineReason::AllocatorRefused, address),
                };
                arm(&rig.script.release, || answer);
                let outcome = if through_owner {
                    OwningAllocation::new(allocation).release_now().unwrap()
                } else {
                    binding.prepare_release(allocation).unwrap().execute()
                };
                assert_eq!(outcome, expected);
                assert_eq!(rig.log.take(), ["A release 64 8"]);
                retained(&rig, &binding, identity, &outcome, address);
                finish(rig, binding);
            }
        }
    }
}

/// R31, R91: after a loss the allocator is not called.
#[test]
fn executing_on_a_lost_device() {
    let rig = Rig::new();
    let (binding, request) = prepared(&rig);
    let (identity, address) = (request.identity(), address(&request));
    bring(&rig, DeviceLost);
    let outcome = request.execute();
    assert_eq!(outcome, kept(AllocationReleaseState::DeviceLost, QuarantineReason::DeviceLost, address));
    assert_eq!(rig.log.take(), [""; 0]);
    retained(&rig, &binding, identity, &outcome, address);
    let owning = BindingError::QuarantinedOwnership { mechanism: rig.mechanism.identity(), quarantined: 1 };
    refused(rig.registry.remove(rig.mechanism), owning);
    finish(rig, binding);
}

/// R92: each reason, in each lifecycle that a request can meet.
#[test]
fn quarantining() {
    let rejected = QuarantineReason::EnqueueRejected;
    let reasons = [
        QuarantineReason::AbandonedRequest,
        QuarantineReason::OwnerDropped,
        rejected(DeferredEnqueueRejection::Closed),
        rejected(DeferredEnqueueRejection::Full),
        QuarantineReason::DeviceLost,
        QuarantineReason::MechanismTerminated,
        QuarantineReason::PartialRelease,
        QuarantineReason::AllocatorRefused,
    ];
    for phase in [Active, Retired, DeviceLost] {
        for reason in reasons {
            let rig = Rig::new();
            let (binding, request) = prepared(&rig);
            let (identity, address) = (request.identity(), address(&request));
            bring(&rig, phase);
            let outcome = request.quarantine(reason);
            assert_eq!(outcome, kept(AllocationReleaseState::Quarantined, reason, address));
            assert_eq!(rig.log.take(), [""; 0]);
            retained(&rig, &binding, identity, &outcome, address);
            finish(rig, binding);
        }
    }
}

/// R93: a provider that learns of a loss first says so, and is believed.
#[test]
fn quarantining_as_lost() {
    for phase in [Active, Retired, DeviceLost] {
        let rig = Rig::new();
        let (binding, request) = prepared(&rig);
        let (identity, address) = (request.identity(), address(&request));
        bring(&rig, phase);
        let outcome = request.quarantine_device_lost();
        assert_eq!(outcome, kept(AllocationReleaseState::DeviceLost, QuarantineReason::DeviceLost, address));
        assert_eq!(rig.log.take(), [""; 0]);
        retained(&rig, &binding, identity, &outcome, address);
        assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().lifecycle, phase);
        finish(rig, binding);
    }
}

/// R94: a request that is dropped is abandoned, on whichever thread, in whichever lifecycle.
#[test]
fn dropping() {
    for phase in [Active, Retired, DeviceLost] {
        for elsewhere in [false, true] {
            let rig = Rig::new();
            let (binding, request) = prepared(&rig);
            let (identity, address) = (request.identity(), address(&request));
            bring(&rig, phase);
            if elsewhere {
                thread::spawn(|| drop(request)).join().unwrap();
            } else {
                drop(request);
            }
            assert_eq!(rig.log.take(), [""; 0]);
            let outcome = kept(AllocationReleaseState::Quarantined, QuarantineReason::AbandonedRequest, address);
            retained(&rig, &binding, identity, &outcome, address);
            finish(rig, binding);
        }
    }
}

/// R38, R95: each allocation has one entry, which stays until termination; whoever reclaims the memory by hand finds it through the entry.
#[test]
fn entries() {
    let registry = BindingRegistry::new().unwrap();
    let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
    let authority = registry.register_authority(DEVICE, Arc::new(())).unwrap();
    let mechanism = registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), DEVICE).unwrap();
    let binding = registry.bind(DEVICE).unwrap();
    let mut outcomes = Vec::new();
    for number in 0..5_u8 {
        let owner = binding.allocate_owning(8 + usize::from(number), 8).unwrap();
        // SAFETY: 8 bytes and more, which are the test's.
        unsafe { owner.as_ptr().write(number) };
        let request = owner.prepare_release().unwrap();
        outcomes.push((request.identity(), request.quarantine(QuarantineReason::OwnerDropped)));
    }
    let mut entries = registry.quarantined(mechanism).unwrap();
    entries.sort_by_key(|entry| entry.bytes);
    assert_eq!(entries.len(), 5);
    let mut of_binding = binding.quarantined().unwrap();
    of_binding.sort_by_key(|entry| entry.bytes);
    assert_eq!(entries, of_binding);
    registry.invalidate_device(DEVICE, "lost").unwrap();
    assert_eq!(registry.quarantined(mechanism).unwrap().len(), 5);
    for (number, (entry, (identity, outcome))) in entries.iter().zip(&outcomes).enumerate() {
        assert_eq!((entry.identity, entry.bytes), (*identity, 8 + number));
        let from_entry: *mut u8 = std::ptr::with_exposed_provenance_mut(entry.address);
        let from_outcome: *const u8 = std::ptr::with_exposed_provenance(outcome.residual().unwrap().address);
        // SAFETY: the memory is kept, and was exposed.
        assert_eq!(unsafe { (from_entry.read(), from_outcome.read()) }, (number as u8, number as u8));
        // SAFETY: allocated from the heap with these values; nobody else gives it back.
        unsafe { HostAllocator.deallocate(NonNull::new(from_entry).unwrap(), entry.bytes, entry.align) };
    }
    registry.confirm_context_terminated(context).unwrap();
    assert_eq!(registry.quarantined(mechanism).unwrap(), []);
    assert_eq!(binding.quarantined().unwrap(), []);
}

/// R96, R108: a queue is called once, with the request, whose record is queued; what it takes is its own.
#[test]
fn a_queue_that_takes() {
    let rig = Rig::new();
    let Held { binding, allocation, .. } = hold(&rig);
    let (identity, at) = (allocation.identity(), allocation.as_ptr().addr().get());
    let taken = Mutex::new(Vec::new());
    let queue = Queue(|request: PreparedAllocationRelease| {
        assert_eq!((request.identity(), address(&request)), (identity, at));
        assert_eq!(counts(&binding), (0, 1, 1, 0));
        taken.lock().unwrap().push(request);
        Ok(())
    });
    let disposition = OwningAllocation::new(allocation).release_deferred(&queue).unwrap();
    assert_eq!(disposition, DeferredReleaseDisposition::Queued { identity });
    assert_eq!((disposition.identity(), disposition.state(), disposition.is_queued()), (identity, AllocationReleaseState::Queued, true));
    assert_eq!((counts(&binding), rig.log.take()), ((0, 1, 1, 0), vec![]));
    let outcome = thread::spawn(move || taken.into_inner().unwrap().pop().unwrap().execute()).join().unwrap();
    assert!(outcome.is_complete());
    assert_eq!((counts(&binding), rig.log.take()), ((0, 0, 0, 0), vec!["A release 64 8".into()]));
    drop(binding);
    rig.finish();
}

/// R96: a queue may execute at once; the disposition is the same.
#[test]
fn a_queue_that_executes() {
    let rig = Rig::new();
    let Held { binding, allocation, .. } = hold(&rig);
    let identity = allocation.identity();
    let queue = Queue(|request: PreparedAllocationRelease| {
        assert!(request.execute().is_complete());
        Ok(())
    });
    assert_eq!(OwningAllocation::new(allocation).release_deferred(&queue).unwrap(), DeferredReleaseDisposition::Queued { identity });
    assert_eq!((counts(&binding), rig.log.take()), ((0, 0, 0, 0), vec!["A release 64 8".into()]));
    drop(binding);
    rig.finish();
}

/// R96: what a queue refuses is retained for that reason, in whatever lifecycle preparing allows.
#[test]
fn a_queue_that_refuses() {
    use DeferredEnqueueRejection::{Closed, DeviceLost as Lost, Full, Refused};
    for phase in [Active, Retired] {
        for rejection in [Closed, Full, Lost, Refused] {
            let rig = Rig::new();
            let Held { binding, allocation, .. } = hold(&rig);
            let (identity, address) = (allocation.identity(), allocation.as_ptr().addr().get());
            bring(&rig, phase);
            let queue = Queue(|request| Err(DeferredEnqueueError::new(rejection, request)));
            let disposition = OwningAllocation::new(allocation).release_deferred(&queue).unwrap();
            let outcome = kept(AllocationReleaseState::Quarantined, QuarantineReason::EnqueueRejected(rejection), address);
            assert_eq!(disposition, DeferredReleaseDisposition::Quarantined { identity, rejection, outcome: outcome.clone() });
            assert_eq!((disposition.identity(), disposition.is_queued()), (identity, false));
            assert_eq!(disposition.state(), AllocationReleaseState::Quarantined);
            assert_eq!(rig.log.take(), [""; 0]);
            retained(&rig, &binding, identity, &outcome, address);
            finish(rig, binding);
        }
    }
}

/// R96: a queue that hands another request back than the one it was given loses nothing: each has one end.
#[test]
fn a_queue_that_mixes_requests_up() {
    let rig = Rig::new();
    let (binding, other) = prepared(&rig);
    let owner = binding.allocate_owning(16, 8).unwrap();
    let (own_name, other_name) = (owner.identity(), other.identity());
    let kept = Mutex::new(Some(other));
    let queue = Queue(|request| {
        let other = kept.lock().unwrap().replace(request).unwrap();
        Err(DeferredEnqueueError::new(DeferredEnqueueRejection::Full, other))
    });
    assert_eq!(owner.release_deferred(&queue).unwrap().identity(), own_name);
    assert_eq!(counts(&binding), (0, 1, 1, 1));
    let own = kept.into_inner().unwrap().unwrap();
    assert_eq!(own.identity(), own_name);
    assert!(own.execute().is_complete());
    assert_eq!(binding.quarantined().unwrap().iter().map(|entry| entry.identity).collect::<Vec<_>>(), [other_name]);
    finish(rig, binding);
}

/// R94, R97: a refused request is the caller's: executed, quarantined or dropped.
#[test]
fn refused_requests_come_back() {
    let rejection = DeferredEnqueueRejection::Full;
    let refuse = |rig: &Rig| {
        let (binding, request) = prepared(rig);
        let (identity, address) = (request.identity(), address(&request));
        let error = DeferredEnqueueError::new(rejection, request);
        assert_eq!((error.rejection(), error.request().identity()), (rejection, identity));
        assert_eq!(counts(&binding), (0, 1, 1, 0));
        (binding, error, identity, address)
    };
    let rig = Rig::new();
    let (binding, error, ..) = refuse(&rig);
    assert!(error.into_request().execute().is_complete());
    assert_eq!((counts(&binding), rig.log.take()), ((0, 0, 0, 0), vec!["A release 64 8".into()]));
    drop(binding);
    rig.finish();

    let rig = Rig::new();
    let (binding, error, identity, address) = refuse(&rig);
    let outcome = error.quarantine();
    assert_eq!(outcome, kept(AllocationReleaseState::Quarantined, QuarantineReason::EnqueueRejected(rejection), address));
    retained(&rig, &binding, identity, &outcome, address);
    finish(rig, binding);

    let rig = Rig::new();
    let (binding, error, identity, address) = refuse(&rig);
    drop(error);
    let outcome = kept(AllocationReleaseState::Quarantined, QuarantineReason::AbandonedRequest, address);
    retained(&rig, &binding, identity, &outcome, address);
    finish(rig, binding);
}

/// R34, R134: the answer of an execution that was under way at the loss is taken as it is.
#[test]
fn a_loss_during_an_execution() {
    let rig = Rig::new();
    let (binding, request) = prepared(&rig);
    let registry = rig.registry.clone();
    arm(&rig.script.release, move || {
        registry.invalidate_device(DEVICE, "under way").unwrap();
        AllocationReleaseOutcome::complete(ReleaseAccounting::eager(64))
    });
    assert!(request.execute().is_complete());
    assert_eq!(counts(&binding), (0, 0, 0, 0));
    drop(binding);
    rig.finish();
}
