//! An address, a place or a handle is used again, and taken for the old one.

use crate::{
    common::{
        another::another,
        arm::arm,
        doubles::Hook,
        park::gate,
        refused::refused,
        rig::{DEVICE, Rig},
    },
    register, take_away,
    work::{Waiting, Work},
};
use liveslot::*;
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

/// An allocator with one place, which is free once a release has begun, and before it ends. Nobody looks behind its address.
#[derive(Default)]
struct OnePlace {
    taken: AtomicBool,
    /// Runs in the middle of the next release, and answers for it.
    release: Hook<AllocationReleaseOutcome>,
}

impl fmt::Debug for OnePlace {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        unreachable!("nobody prints an allocator")
    }
}

impl DeviceAllocator for OnePlace {
    fn allocate(&self, bytes: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        if self.taken.swap(true, SeqCst) { Err(full(bytes)) } else { Ok(NonNull::<u64>::dangling().cast()) }
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {
        unreachable!("what is made is released")
    }

    unsafe fn release(&self, _: NonNull<u8>, bytes: usize, _: usize) -> AllocationReleaseOutcome {
        assert!(self.taken.swap(false, SeqCst), "released once");
        let answer = self.release.0.lock().unwrap().take();
        answer.map_or(AllocationReleaseOutcome::complete(ReleaseAccounting::eager(bytes as u64)), |answer| answer())
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

fn full(bytes: usize) -> MemoryError {
    MemoryError::AllocationFailed { tier: "test", requested: bytes as u64, reason: "the place is taken".to_owned() }
}

/// C047, R64, R96: what waits for a stream's work waits for that work, though another stream has the same handle by now.
#[test]
fn a_release_waits_for_work_and_not_for_a_handle() {
    /// A stream, which its driver knows by a number.
    struct Stream {
        handle: u64,
        work: Work,
    }
    let registry = BindingRegistry::new().unwrap();
    register(&registry, DEVICE, Arc::<OnePlace>::default());
    let binding = registry.bind(DEVICE).unwrap();
    let waiting = Waiting::default();

    let old = Stream { handle: 7, work: Work::default() };
    let owner = binding.allocate_owning(8, 8).unwrap();
    let (identity, address) = (owner.identity(), owner.as_ptr());
    assert!(owner.release_deferred(&waiting.after(&[&old.work])).unwrap().is_queued());
    let Stream { handle, work: pending } = old;
    let new = Stream { handle, work: Work::default() };
    refused(binding.allocate_owning(8, 8), BindingError::Memory(full(8)));
    new.work.complete();
    assert_eq!(waiting.poll(), (0, 0));
    refused(binding.allocate_owning(8, 8), BindingError::Memory(full(8)));

    pending.complete();
    assert_eq!(waiting.poll(), (1, 0));
    let next = binding.allocate_owning(8, 8).unwrap();
    assert_eq!(next.as_ptr(), address);
    assert_ne!(next.identity(), identity);
    assert!(next.release_deferred(&waiting.after(&[&new.work])).unwrap().is_queued());
    assert_eq!(waiting.poll(), (1, 0));
}

/// C049, R65, R98, R117: an address is handed out again while the release that freed it has not ended: the new block's record is its own,
/// however the old one's release ends.
#[test]
fn a_block_that_gets_the_address_of_a_release_in_progress_keeps_its_record() {
    let complete = || AllocationReleaseOutcome::complete(ReleaseAccounting::eager(8));
    let answers: [(fn() -> AllocationReleaseOutcome, usize); 3] =
        [(complete, 0), (|| AllocationReleaseOutcome::failed("after all"), 1), (|| panic!("after all"), 1)];
    for (answer, kept) in answers {
        let allocator = Arc::<OnePlace>::default();
        let registry = BindingRegistry::new().unwrap();
        let (mechanism, context, _) = register(&registry, DEVICE, allocator.clone());
        let binding = registry.bind(DEVICE).unwrap();
        let old = binding.allocate(8, 8).unwrap();
        let (identity, address, view) = (old.identity(), old.as_ptr(), old.view(0, 8).unwrap());
        let (stop, freed) = gate();
        arm(&allocator.release, move || {
            stop.park();
            answer()
        });
        let counts = || {
            let snapshot = registry.snapshot(mechanism).unwrap();
            [snapshot.live_allocations, snapshot.queued_releases, snapshot.quarantined_allocations]
        };
        let new = thread::scope(|scope| {
            let releasing = scope.spawn(|| catch_unwind(AssertUnwindSafe(|| binding.release(old).is_ok())).ok());
            freed.reached();
            // The same binding, and another.
            let new = binding.allocate(8, 8).unwrap();
            refused(registry.bind(DEVICE).unwrap().allocate(8, 8), BindingError::Memory(full(8)));
            assert_eq!(new.as_ptr(), address);
            assert_eq!(counts(), [1, 1, 0]);
            freed.open();
            assert_eq!(releasing.join().unwrap() == Some(true), kept == 0);
            new
        });
        assert_eq!(counts(), [1, 0, kept]);
        let new_view = new.view(0, 8).unwrap();
        refused(binding.with_view(&view, |_| ()), BindingError::StaleAllocation(identity));
        binding.with_view(&new_view, |_| ()).unwrap();
        assert!(registry.quarantined(mechanism).unwrap().iter().all(|entry| entry.identity == identity));
        binding.release(new).unwrap();
        assert_eq!(counts(), [0, 0, kept]);
        registry.invalidate_device(DEVICE, "reset").unwrap();
        registry.confirm_context_terminated(context).unwrap();
        assert_eq!(counts(), [0; 3]);
    }
}

/// C051, R16, R44: a token reaches what it was issued for, and nothing else, though that has gone and another has its place.
#[test]
fn an_old_token_does_not_reach_what_came_after() {
    let registry = BindingRegistry::new().unwrap();
    let mut gone = Vec::new();
    for _ in 0..20 {
        let (mechanism, context, authority) = register(&registry, DEVICE, Arc::new(HostAllocator));
        for &(old, old_context, old_authority) in &gone {
            let unregistered = || BindingError::UnregisteredMechanism(RegisteredMechanism::identity(old));
            refused(registry.remove(old), unregistered());
            refused(registry.retire(old), unregistered());
            refused(registry.select(old), unregistered());
            refused(registry.bind_registered(old), unregistered());
            refused(registry.snapshot(old), unregistered());
            refused(registry.quarantined(old), unregistered());
            let unregistered = || BindingError::UnregisteredProviderContext(RegisteredProviderContext::identity(old_context));
            refused(registry.confirm_context_terminated(old_context), unregistered());
            refused(registry.remove_provider_context(old_context), unregistered());
            let unregistered = || BindingError::UnregisteredAuthority(RegisteredAuthority::identity(old_authority));
            refused(registry.remove_authority(old_authority), unregistered());
        }
        assert_eq!(registry.snapshot(mechanism).unwrap().lifecycle, MechanismLifecycle::Active);
        assert_eq!(registry.bind(DEVICE).unwrap().identity().mechanism(), mechanism.identity());
        take_away(&registry, mechanism);
        registry.remove_authority(authority).unwrap();
        registry.remove_provider_context(context).unwrap();
        gone.push((mechanism, context, authority));
    }
}

/// C051, R139: of two who remove one mechanism, the one who is late leaves alone what the other has put in its place.
#[test]
fn a_late_removal_leaves_the_successor_alone() {
    for _ in 0..1_000 {
        let registry = BindingRegistry::new().unwrap();
        let (mechanism, context, authority) = register(&registry, DEVICE, Arc::new(HostAllocator));
        registry.retire(mechanism).unwrap();
        let start = Barrier::new(2);
        let replace = || {
            start.wait();
            let removed = registry.remove(mechanism);
            removed.map(|()| registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), DEVICE).unwrap())
        };
        let [first, second] = thread::scope(|scope| [(); 2].map(|()| scope.spawn(replace)).map(|thread| thread.join().unwrap()));
        let (successor, late) = if first.is_ok() { (first, second) } else { (second, first) };
        refused(late, BindingError::UnregisteredMechanism(mechanism.identity()));
        let successor = successor.unwrap();
        assert_eq!(registry.bind(DEVICE).unwrap().identity().mechanism(), successor.identity());
        assert_eq!(registry.snapshots().unwrap().len(), 1);
    }
}

/// C052, R26, R42, R45: what is bound to a mechanism that is being taken away can give back, and is refused everything else, before the
/// removal and after it; memory that is out keeps it from being removed at all.
#[test]
fn a_binding_to_the_removed_is_refused_and_reaches_nothing() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let (block, owner) = (binding.allocate(16, 8).unwrap(), binding.allocate_owning(16, 8).unwrap());
    let view = block.view(0, 16).unwrap();
    rig.registry.retire(rig.mechanism).unwrap();
    let next = another(&rig, "B");
    let refusal = (rig.mechanism, MechanismLifecycle::Retired);
    refused(rig.registry.remove(rig.mechanism), refusal);
    rig.log.take();

    refused(binding.allocate(8, 8), refusal);
    binding.release(block).unwrap();
    refused(rig.registry.remove(rig.mechanism), refusal);
    assert!(owner.release_now().unwrap().is_complete());
    rig.registry.remove(rig.mechanism).unwrap();
    assert_eq!(rig.log.take(), ["A release 16 8"; 2]);

    refused(binding.allocate(8, 8), refusal);
    refused(binding.allocate_owning(8, 8), refusal);
    // SAFETY: refused, so nothing is said of the memory.
    refused(unsafe { binding.adopt_allocation(NonNull::dangling(), 8, 8) }, refusal);
    refused(binding.virtual_backing(), refusal);
    refused(binding.shared_mapping(), refusal);
    refused(binding.with_view(&view, |_| ()), refusal);
    assert_eq!(rig.log.take(), [""; 0]);
    assert!(!binding.mechanism_snapshot().unwrap().retains_ownership());
    assert_eq!(rig.registry.bind(DEVICE).unwrap().identity().mechanism(), next.identity());
    drop((binding, view));
    assert_eq!(rig.log.take(), ["A dropped"]);
}
