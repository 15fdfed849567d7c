//! No identity is left: an error, nothing is changed, and nothing is issued twice (R6).

use crate::support::{DEVICE, End, Site, inactive};
use liveslot_gated::{
    BindingError, BindingRegistry, DeviceAllocator, DeviceKey, HostAllocator, MechanismLifecycle, MemoryError,
    internals::gates::limit_identities,
};
use std::{
    collections::HashSet,
    fmt::{self, Debug},
    ptr::NonNull,
    sync::{Arc, Mutex, atomic::Ordering::SeqCst},
};

/// Runs `call` while this thread may issue `left` identities and no more.
fn with_identities_left<R>(left: u64, call: impl FnOnce() -> R) -> R {
    limit_identities(Some(left));
    let result = call();
    limit_identities(None);
    result
}

#[track_caller]
fn exhausted<T: Debug>(call: impl FnOnce() -> Result<T, BindingError>) {
    let refused = with_identities_left(0, call);
    assert!(matches!(refused, Err(BindingError::IdentityExhausted)), "{refused:?} instead of exhaustion");
}

/// R6: the memory that an allocator has just made is given back through `deallocate`, and nothing is recorded.
#[test]
fn an_allocation_without_an_identity_is_given_back() {
    let site = Site::new();
    let (m, calls) = site.register_watched();
    let binding = site.registry.bind(DEVICE).unwrap();
    exhausted(|| binding.allocate(48, 16));
    let counts = [&calls.allocate, &calls.deallocate, &calls.release].map(|count| count.load(SeqCst));
    assert_eq!(counts, [1, 1, 0], "allocated, deallocated, released");
    assert_eq!(*calls.given_out.lock().unwrap(), [], "memory was not given back");
    let snapshot = site.snapshot(m);
    assert_eq!((snapshot.live_allocations, snapshot.active_operations), (0, 0));

    let allocation = binding.allocate(48, 16).unwrap();
    binding.release(allocation).unwrap();
}

/// Does something in the middle of the next `deallocate`.
#[derive(Default)]
struct GivesBack(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Debug for GivesBack {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        unreachable!("nobody prints an allocator")
    }
}

impl DeviceAllocator for GivesBack {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        HostAllocator.allocate(bytes, align)
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, bytes: usize, align: usize) {
        // SAFETY: as the caller says.
        unsafe { HostAllocator.deallocate(pointer, bytes, align) };
        self.0.lock().unwrap().take().expect("called once")();
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

/// R6, R36, R101, R109: an allocation is an operation until its memory has been given back, so its mechanism does not end in the meantime.
#[test]
fn an_allocation_without_an_identity_is_an_operation_to_its_end() {
    let (site, allocator) = (Site::new(), Arc::<GivesBack>::default());
    let m = site.registry.register_allocator(site.context, site.authority, Arc::clone(&allocator) as Arc<_>).unwrap();
    let binding = site.registry.bind(DEVICE).unwrap();
    let inside = site.clone();
    *allocator.0.lock().unwrap() = Some(Box::new(move || {
        assert_eq!(inside.snapshot(m).active_operations, 1, "operations while memory is given back");
        inside.lose();
        let busy = inside.registry.confirm_context_terminated(inside.context);
        assert!(matches!(busy, Err(BindingError::ContextNotQuiescent { active_operations: 1, .. })), "{busy:?}");
        inactive(inside.registry.remove(m), MechanismLifecycle::DeviceLost);
    }));
    exhausted(|| binding.allocate(48, 16));
    assert!(allocator.0.lock().unwrap().is_none());
    site.registry.confirm_context_terminated(site.context).unwrap();
    site.registry.remove(m).unwrap();
}

/// R6: a binding that gets no identity keeps nothing.
#[test]
fn a_binding_without_an_identity_holds_nothing() {
    let (site, m) = Site::selecting();
    exhausted(|| site.registry.bind(DEVICE));
    exhausted(|| site.registry.device(DEVICE).bind());
    exhausted(|| site.registry.bind_registered(m));
    site.rests_on(Some(m));
    site.retire_and_remove(m);
    assert_eq!(site.ends.so_far(), [End::Allocator { pinned: true }]);
}

/// R6, R7, R11: a registration that gets no identity leaves nothing registered and nothing in use; its allocator is gone.
#[test]
fn a_registration_without_an_identity_changes_nothing() {
    exhausted(BindingRegistry::new);
    let site = Site::new();
    exhausted(|| site.registry.register_provider_context(DEVICE, Arc::new(())));
    exhausted(|| site.registry.register_authority(DEVICE, Arc::new(())));
    let (allocator, _) = site.allocator();
    exhausted(|| site.registry.register_allocator(site.context, site.authority, allocator));
    assert_eq!(site.ends.so_far(), [End::Allocator { pinned: true }]);
    assert_eq!(site.registry.snapshots().unwrap(), []);
    site.binds(None);
    site.registry.remove_authority(site.authority).unwrap();
    site.registry.remove_provider_context(site.context).unwrap();
}

/// R6: what every other call says is as before: they issue nothing.
#[test]
fn calls_that_issue_nothing_go_on() {
    let (site, p) = Site::selecting();
    let c = site.register();
    let binding = site.registry.bind(DEVICE).unwrap();
    let allocation = binding.allocate(48, 16).unwrap();
    with_identities_left(0, || {
        site.select(c).unwrap();
        let view = allocation.view(0, 8).unwrap();
        assert_eq!(binding.with_view(&view, |view| view.len()).unwrap(), 8);
        drop(view);
        binding.clone().release(allocation).unwrap();
        site.retire_and_remove(p);
        site.lose();
        site.registry.confirm_context_terminated(site.context).unwrap();
        site.registry.remove(c).unwrap();
    });
}

/// R2, R6: what is issued before, at the very end and after a refusal differs.
#[test]
fn nothing_is_issued_twice() {
    let (site, _) = Site::selecting();
    let binding = site.registry.bind(DEVICE).unwrap();
    let mut issued = HashSet::new();
    let mut generations = 0;
    for left in 0..4 {
        let allocations: Vec<_> = with_identities_left(left, || (0..6).map_while(|_| binding.allocate(8, 8).ok()).collect());
        assert_eq!(allocations.len() as u64, left);
        for allocation in allocations {
            generations += 1;
            issued.insert(allocation.identity());
            binding.release(allocation).unwrap();
        }
    }
    assert_eq!(issued.len(), generations);
}
