//! Bindings, allocations and their release.

mod common {
    pub mod another;
    pub mod arm;
    pub mod doubles;
    pub mod refused;
    pub mod rig;
}

use common::{
    another::another,
    arm::arm,
    refused::refused,
    rig::{DEVICE, Rig},
};
use liveslot::*;
use std::{
    ptr::NonNull,
    sync::{Arc, Mutex},
    thread,
};

fn mismatch(expected: &MemoryBinding, actual: &MemoryBinding) -> BindingError {
    BindingError::BindingMismatch { expected: expected.identity().id(), actual: actual.identity().id() }
}

/// What a refused release says and hands back.
fn handed_back(result: Result<(), ExplicitReleaseError>) -> (Result<(), BindingError>, BoundAllocation) {
    let error = result.unwrap_err();
    assert!(!error.is_quarantined());
    assert_eq!((error.outcome(), error.state()), (None, AllocationReleaseState::Live));
    let (error, allocation) = error.into_parts();
    (Err(error), allocation)
}

/// R54: metadata made through a binding is good for its clones, and for clones of clones.
#[test]
fn clones_are_interchangeable() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let clone = binding.clone();
    let allocation = binding.allocate(16, 8).unwrap();
    let view = allocation.view(0, 16).unwrap();
    drop(binding);
    clone.clone().with_view(&view, |view| assert_eq!(view.len(), 16)).unwrap();
    clone.release(allocation).unwrap();
    drop((clone, view));
    rig.finish();
}

/// R55, R62: another binding's metadata is refused by its own number, also between bindings of one mechanism and between registries;
/// what is handed back is what was handed in, and good for its own binding.
#[test]
fn other_bindings_are_refused() {
    let (rig, elsewhere) = (Rig::new(), Rig::new());
    let sibling = another(&rig, "B");
    let own = rig.registry.bind(DEVICE).unwrap();
    let others =
        [rig.registry.bind(DEVICE).unwrap(), rig.registry.bind_registered(sibling).unwrap(), elsewhere.registry.bind(DEVICE).unwrap()];
    let mut allocation = own.allocate(16, 8).unwrap();
    let view = allocation.view(0, 16).unwrap();
    let (identity, pointer) = (allocation.identity(), allocation.as_ptr());
    rig.log.take();
    for other in &others {
        refused(other.with_view(&view, |_| ()), mismatch(other, &own));
        let (refusal, back) = handed_back(other.release(allocation));
        refused(refusal, mismatch(other, &own));
        assert_eq!((back.identity(), back.as_ptr(), back.len(), back.alignment()), (identity, pointer, 16, 8));
        assert_eq!(back.binding().identity(), own.identity());
        allocation = back;
        own.with_view(&view, |_| ()).unwrap();
    }
    assert_eq!((rig.log.take(), elsewhere.log.take()), (vec![], vec![]), "no allocator was called");
    own.release(allocation).unwrap();
    drop((own, others, view));
    rig.registry.retire(sibling).unwrap();
    rig.registry.remove(sibling).unwrap();
    elsewhere.finish();
    rig.finish();
}

/// R56: a binding needs no registry.
#[test]
fn bindings_work_without_the_registry() {
    let Rig { registry, log, mechanism, .. } = Rig::new();
    let binding = registry.bind(DEVICE).unwrap();
    drop(registry);
    let clone = binding.clone();
    let worker = thread::spawn(move || {
        let allocation = clone.allocate(16, 8).unwrap();
        let view = allocation.view(4, 8).unwrap();
        assert_eq!(clone.with_view(&view, |view| view.len()).unwrap(), 8);
        allocation
    });
    let allocation = worker.join().unwrap();
    let snapshot = binding.mechanism_snapshot().unwrap();
    assert_eq!((snapshot.identity, snapshot.lifecycle), (mechanism.identity(), MechanismLifecycle::Active));
    assert_eq!((snapshot.live_allocations, snapshot.active_operations), (1, 0));
    assert_eq!(binding.quarantined().unwrap(), []);
    binding.release(allocation).unwrap();
    assert_eq!(log.take(), ["A allocate 16 8", "A release 16 8"]);
    drop(binding);
    assert_eq!(log.take(), ["A dropped", "Q dropped", "C dropped"]);
}

/// R58, R60: size and alignment reach the allocator as they are, and come back in the allocation; it is recorded when it is returned.
#[test]
fn requests_are_passed_on() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    for (bytes, align) in [(0, 1), (0, 4096), (1, 1), (64, 8), (100, 3), (7, 0), (4096, 64)] {
        let allocation = binding.allocate(bytes, align).unwrap();
        assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().live_allocations, 1);
        assert_eq!((allocation.len(), allocation.alignment(), allocation.is_empty()), (bytes, align, bytes == 0));
        assert_eq!(allocation.binding().identity(), binding.identity());
        assert_eq!(rig.log.take(), [format!("A allocate {bytes} {align}")]);
        binding.release(allocation).unwrap();
        assert_eq!(rig.log.take(), [format!("A release {bytes} {align}")]);
    }
    drop(binding);
    rig.finish();
}

/// R58, R70: the pointer is the allocator's, usable for as long as the allocation lives.
#[test]
fn memory_is_memory() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let allocation = binding.allocate(256, 64).unwrap();
    assert_eq!(allocation.as_ptr().addr().get() % 64, 0);
    let view = allocation.view(128, 64).unwrap();
    // SAFETY: 256 bytes, the test's alone.
    unsafe { allocation.as_ptr().write_bytes(1, 256) };
    // SAFETY: the view's part of them.
    binding.with_view(&view, |view| unsafe { view.as_ptr().write_bytes(2, view.len()) }).unwrap();
    // SAFETY: all of them have been written.
    let bytes = unsafe { std::slice::from_raw_parts(allocation.as_ptr().as_ptr(), 256) };
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == if (128..192).contains(&at) { 2 } else { 1 }));
    binding.release(allocation).unwrap();
    drop((binding, view));
    rig.finish();
}

/// R59: the allocator's own error arrives, and nothing is recorded.
#[test]
fn an_allocators_error_is_passed_on() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let error = || MemoryError::TierExhausted {
        tier: "device",
        requested: 64,
        used: 1,
        limit: 2,
        available: 1,
        role: MemoryRole::Workspace { step_scoped: true },
    };
    arm(&rig.script.allocate, move || Err(error()));
    let before = rig.registry.snapshot(rig.mechanism).unwrap();
    refused(binding.allocate(64, 8), BindingError::Memory(error()));
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), before);
    // A refusal of the real heap's.
    let error = binding.allocate(usize::MAX, 8).unwrap_err();
    assert!(matches!(error, BindingError::Memory(MemoryError::InvalidRequest { tier: "host", .. })), "{error:?}");
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), before);
    drop(binding);
    rig.finish();
}

/// R60: whoever is handed an allocation finds it counted.
#[test]
fn a_handed_on_allocation_is_counted() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let allocation = thread::scope(|scope| scope.spawn(|| binding.allocate(8, 8).unwrap()).join().unwrap());
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().live_allocations, 1);
    thread::scope(|scope| scope.spawn(|| binding.release(allocation).unwrap()).join().unwrap());
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().live_allocations, 0);
    drop(binding);
    rig.finish();
}

/// R63, R66, R90: a complete release is one call of `release` and of nothing else, whatever number of bytes was unmapped.
#[test]
fn a_complete_release_settles() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    for unmapped in [0, 1, 64, u64::MAX] {
        let allocation = binding.allocate(64, 8).unwrap();
        rig.log.take();
        arm(&rig.script.release, move || AllocationReleaseOutcome::complete(ReleaseAccounting::new(64, unmapped)));
        binding.release(allocation).unwrap();
        assert_eq!(rig.log.take(), ["A release 64 8"]);
        assert!(!rig.registry.snapshot(rig.mechanism).unwrap().retains_ownership());
    }
    drop(binding);
    rig.finish();
}

/// R63, R64, R90, R95: what a release left behind is in the error, in its outcome and in the list; the metadata is stale from then on.
#[test]
fn an_incomplete_release_is_quarantined() {
    use AllocationReleaseState as State;
    use QuarantineReason::*;
    let residual = |state, reason, retained_bytes| ResidualOwnership { state, reason, retained_bytes, address: 0xdead, align: 12345 };
    let partial = residual(State::PartiallyUnmapped, PartialRelease, 40);
    // Nonsense is the allocator's, and is reported as it is.
    let nonsense = residual(State::Released, MechanismTerminated, u64::MAX);
    let accounting = ReleaseAccounting::new(64, 24);
    let cases = [
        (AllocationReleaseOutcome::quarantined(accounting, partial), accounting, State::PartiallyUnmapped, PartialRelease, 40),
        (AllocationReleaseOutcome::quarantined(accounting, nonsense), accounting, State::Released, MechanismTerminated, u64::MAX),
        (AllocationReleaseOutcome::failed("stuck"), ReleaseAccounting::eager(64), State::Quarantined, AllocatorRefused, 64),
    ];
    for (answer, accounting, state, reason, retained_bytes) in cases {
        let rig = Rig::new();
        let binding = rig.registry.bind(DEVICE).unwrap();
        let allocation = binding.allocate(64, 8).unwrap();
        let view = allocation.view(0, 64).unwrap();
        let (identity, pointer) = (allocation.identity(), allocation.as_ptr());
        rig.log.take();
        arm(&rig.script.release, || answer);

        let error = binding.release(allocation).unwrap_err();
        let residual = ResidualOwnership { state, reason, retained_bytes, address: pointer.addr().get(), align: 8 };
        assert_eq!(error.outcome(), Some(&AllocationReleaseOutcome::quarantined(accounting, residual)));
        assert!(error.is_quarantined());
        assert_eq!(error.state(), state);
        assert_eq!(error.to_string(), error.error().to_string());
        let source = std::error::Error::source(&error).unwrap().downcast_ref::<BindingError>().unwrap();
        assert_eq!(source.to_string(), error.error().to_string());

        let (error, metadata) = error.into_parts();
        refused::<()>(Err(error), BindingError::ReleaseQuarantined { identity, state, reason, retained_bytes });
        assert_eq!((metadata.identity(), metadata.as_ptr(), metadata.len(), metadata.alignment()), (identity, pointer, 64, 8));
        let entry = QuarantinedAllocation { identity, address: pointer.addr().get(), bytes: 64, align: 8, state, reason, retained_bytes };
        assert_eq!(binding.quarantined().unwrap(), [entry]);
        assert_eq!(rig.registry.quarantined(rig.mechanism).unwrap(), [entry]);
        assert_eq!(rig.log.take(), ["A release 64 8"]);

        refused(metadata.view(0, 8), BindingError::StaleAllocation(identity));
        refused(binding.with_view(&view, |_| ()), BindingError::StaleAllocation(identity));
        let (refusal, metadata) = handed_back(binding.release(metadata));
        refused(refusal, BindingError::StaleAllocation(identity));
        assert_eq!(binding.quarantined().unwrap(), [entry]);
        assert_eq!(rig.log.take(), [""; 0]);

        drop((binding, view, metadata));
        rig.registry.invalidate_device(DEVICE, "reset").unwrap();
        rig.registry.confirm_context_terminated(rig.context).unwrap();
        rig.finish();
    }
}

/// R64, R65: what was released stays stale, though another allocation has its address, size and alignment.
#[test]
fn address_reuse_revives_nothing() {
    /// Has one block, and counts how often it was given back.
    #[derive(Debug, Default)]
    struct OneAddress(Mutex<(u64, usize)>);

    impl DeviceAllocator for OneAddress {
        fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
            Ok(NonNull::from(&mut self.0.lock().unwrap().0).cast())
        }

        unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {
            self.0.lock().unwrap().1 += 1;
        }

        fn device(&self) -> DeviceKey {
            DeviceKey::HOST
        }
    }

    let allocator = Arc::new(OneAddress::default());
    let registry = BindingRegistry::new().unwrap();
    let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(())).unwrap();
    let authority = registry.register_authority(DeviceKey::HOST, Arc::new(())).unwrap();
    registry.register_allocator(context, authority, allocator.clone()).unwrap();
    let binding = registry.bind(DeviceKey::HOST).unwrap();

    let old = binding.allocate(8, 8).unwrap();
    let old_view = old.view(0, 8).unwrap();
    let (stale, address) = (BindingError::StaleAllocation(old.identity()), old.as_ptr());
    binding.release(old).unwrap();
    let new = binding.allocate(8, 8).unwrap();
    let new_view = new.view(0, 8).unwrap();
    assert_eq!(new.as_ptr(), address);
    refused(binding.with_view(&old_view, |_| ()), stale);
    binding.with_view(&new_view, |_| ()).unwrap();

    // The same address twice at once: each has a record of its own.
    let twin = binding.allocate(8, 8).unwrap();
    assert_eq!(twin.as_ptr(), address);
    assert_eq!(binding.mechanism_snapshot().unwrap().live_allocations, 2);
    binding.release(new).unwrap();
    twin.view(0, 8).unwrap();
    binding.release(twin).unwrap();
    assert_eq!(binding.mechanism_snapshot().unwrap().live_allocations, 0);
    assert_eq!(allocator.0.lock().unwrap().1, 3);
}

/// R66: a release goes to the allocator that allocated, whatever is selected.
#[test]
fn a_release_goes_home() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let allocation = binding.allocate(16, 8).unwrap();
    let successor = another(&rig, "B");
    rig.registry.select(successor).unwrap();
    let second = rig.registry.bind(DEVICE).unwrap();
    let other = second.allocate(32, 8).unwrap();
    rig.registry.retire(rig.mechanism).unwrap();
    rig.log.take();
    second.release(other).unwrap();
    binding.release(allocation).unwrap();
    assert_eq!(rig.log.take(), ["B release 32 8", "A release 16 8"]);
    drop((binding, second));
    rig.registry.retire(successor).unwrap();
    rig.registry.remove(successor).unwrap();
    rig.finish();
}

/// R67: dropped metadata releases nothing and stays counted.
#[test]
fn metadata_is_no_owner() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    drop(binding.allocate(16, 8).unwrap());
    assert_eq!(rig.log.take(), ["A allocate 16 8"]);
    let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
    assert_eq!((snapshot.live_allocations, snapshot.quarantined_allocations, snapshot.active_operations), (1, 0, 0));
    rig.registry.retire(rig.mechanism).unwrap();
    refused(rig.registry.remove(rig.mechanism), (rig.mechanism, MechanismLifecycle::Retired));
    rig.registry.invalidate_device(DEVICE, "reset").unwrap();
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    drop(binding);
    rig.finish();
}

/// Records which method gives memory back; has no more methods than it must.
#[derive(Debug, Default)]
struct Plain(Mutex<Vec<(&'static str, usize, usize)>>);

impl DeviceAllocator for Plain {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        HostAllocator.allocate(bytes, align)
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, bytes: usize, align: usize) {
        self.0.lock().unwrap().push(("deallocate", bytes, align));
        // SAFETY: the caller's promise is passed on; all memory is the heap's.
        unsafe { HostAllocator.deallocate(pointer, bytes, align) };
    }

    fn device(&self) -> DeviceKey {
        DeviceKey::HOST
    }
}

/// Says how much it unmapped.
#[derive(Debug, Default)]
struct Unmapping(Plain);

impl DeviceAllocator for Unmapping {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        self.0.allocate(bytes, align)
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {
        unreachable!("deallocate_with_unmapped is there");
    }

    unsafe fn deallocate_with_unmapped(&self, pointer: NonNull<u8>, bytes: usize, align: usize) -> u64 {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.deallocate(pointer, bytes, align) };
        4096
    }

    fn device(&self) -> DeviceKey {
        DeviceKey::HOST
    }
}

/// R66, R152: an allocator without a release of its own is released through what it has, once, and completely.
#[test]
fn small_allocators_release_completely() {
    let (plain, unmapping) = (Arc::new(Plain::default()), Arc::new(Unmapping::default()));
    let allocators: [(Arc<dyn DeviceAllocator>, &Plain); 2] = [(plain.clone(), &plain), (unmapping.clone(), &unmapping.0)];
    for (allocator, record) in allocators {
        let registry = BindingRegistry::new().unwrap();
        let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(())).unwrap();
        let authority = registry.register_authority(DeviceKey::HOST, Arc::new(())).unwrap();
        let mechanism = registry.register_allocator(context, authority, allocator).unwrap();
        let binding = registry.bind(DeviceKey::HOST).unwrap();
        binding.release(binding.allocate(100, 16).unwrap()).unwrap();
        assert_eq!(*record.0.lock().unwrap(), [("deallocate", 100, 16)]);
        assert!(!binding.mechanism_snapshot().unwrap().retains_ownership());
        registry.retire(mechanism).unwrap();
        registry.remove(mechanism).unwrap();
    }
}
