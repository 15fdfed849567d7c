//! Models of `src/handles/record.rs`: what is known of an allocation is known of it alone, whatever has its address.

mod support;

use liveslot_loom::{
    BindingError, BindingRegistry, BoundAllocation, BoundMemoryView, DeviceAllocator, DeviceKey, MechanismSnapshot, MemoryBinding,
    MemoryError, PreparedAllocationRelease,
    internals::{
        UnsafeCell,
        atomic::{AtomicBool, Ordering::*},
    },
};
use std::{
    fmt,
    ptr::NonNull,
    sync::{Arc, Mutex, atomic as process},
};
use support::race;

/// Memory with one place, which is free once a release has begun, and before it ends.
struct OnePlace(AtomicBool);

impl fmt::Debug for OnePlace {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        unreachable!("nobody prints an allocator")
    }
}

impl DeviceAllocator for OnePlace {
    fn allocate(&self, bytes: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        // Acquire: who gets the place comes after the release that freed it, as with any allocator.
        match self.0.swap(true, Acquire) {
            true => Err(MemoryError::AllocationFailed { tier: "model", requested: bytes as u64, reason: "taken".to_owned() }),
            false => Ok(NonNull::dangling()),
        }
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {
        self.0.store(false, Release);
    }

    fn device(&self) -> DeviceKey {
        DeviceKey::HOST
    }
}

struct State {
    binding: MemoryBinding,
    old: Mutex<Option<BoundAllocation>>,
    view: BoundMemoryView,
}

impl State {
    /// The place is taken.
    fn new() -> Self {
        let registry = BindingRegistry::striped(2).unwrap();
        let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(())).unwrap();
        let authority = registry.register_authority(DeviceKey::HOST, Arc::new(())).unwrap();
        registry.register_allocator(context, authority, Arc::new(OnePlace(AtomicBool::new(false)))).unwrap();
        let binding = registry.bind(DeviceKey::HOST).unwrap();
        let old = binding.allocate(8, 8).unwrap();
        let view = old.view(0, 8).unwrap();
        Self { binding, old: Mutex::new(Some(old)), view }
    }

    fn release(&self) -> Option<BoundAllocation> {
        let old = self.old.lock().unwrap().take().unwrap();
        self.binding.release(old).unwrap();
        None
    }

    /// If it gets the place, then with a record that has nothing to do with the old one's.
    fn allocate(&self) -> Option<BoundAllocation> {
        let new = self.binding.allocate(8, 8).ok()?;
        let view = new.view(0, 8).unwrap();
        self.binding.with_view(&view, |_| ()).unwrap();
        let stale = self.binding.with_view(&self.view, |_| ());
        assert!(matches!(stale, Err(BindingError::StaleAllocation(old)) if old == self.view.allocation_identity()), "revived: {stale:?}");
        Some(new)
    }
}

/// C049, R65: an address is handed out again while the release that freed it has not ended. The new allocation's record outlives the old
/// one's, and both are counted by themselves.
#[test]
fn an_address_handed_out_again_has_a_record_of_its_own() {
    /// Whether the place was ever found taken, and ever free.
    static MET: [process::AtomicBool; 2] = [const { process::AtomicBool::new(false) }; 2];

    race(State::new, &[State::release, State::allocate], |state, mut got| {
        let counts = || {
            let MechanismSnapshot { live_allocations, queued_releases, active_operations, .. } =
                state.binding.mechanism_snapshot().unwrap();
            [live_allocations, queued_releases, active_operations]
        };
        let new = got.remove(1);
        MET[usize::from(new.is_some())].store(true, Relaxed);
        assert_eq!(counts(), [usize::from(new.is_some()), 0, 0]);
        if let Some(new) = new {
            assert_ne!(new.identity(), state.view.allocation_identity());
            state.binding.release(new).unwrap();
        }
        assert_eq!(counts(), [0; 3]);
    });
    assert!(MET.iter().all(|met| met.load(Relaxed)));
}

/// Stands for what its user does with an allocation.
struct Contents(UnsafeCell<bool>);

// SAFETY: loom checks each access against every other.
unsafe impl Sync for Contents {}

/// The place is taken, and used.
struct Used {
    state: State,
    contents: Contents,
    request: Mutex<Option<PreparedAllocationRelease>>,
}

impl Used {
    fn new() -> Self {
        Self { state: State::new(), contents: Contents(UnsafeCell::new(false)), request: Mutex::new(None) }
    }

    fn write_and_prepare(&self) {
        // SAFETY: loom has just checked that nobody else looks.
        self.contents.0.with_mut(|written| unsafe { *written = true });
        let old = self.state.old.lock().unwrap().take().unwrap();
        let request = self.state.binding.prepare_release(old).unwrap();
        let none = self.request.lock().unwrap().replace(request);
        assert!(none.is_none());
    }

    fn read(&self) {
        // SAFETY: loom has just checked that nobody writes.
        assert!(self.contents.0.with(|written| unsafe { *written }));
    }

    fn count_and_read(&self) {
        if self.state.binding.mechanism_snapshot().unwrap().queued_releases != 0 {
            self.read();
        }
    }

    fn look_and_read(&self) {
        if self.state.binding.with_view(&self.state.view, |_| ()).is_err() {
            self.read();
        }
    }
}

/// R112: whoever finds a release counted finds what was done before it was prepared.
#[test]
fn prepare_and_count() {
    race(Used::new, &[Used::write_and_prepare, Used::count_and_read], |_, _| ());
}

/// R112: whoever is told that an allocation is stale finds what was done before its release was prepared.
#[test]
fn prepare_and_look() {
    race(Used::new, &[Used::write_and_prepare, Used::look_and_read], |_, _| ());
}
