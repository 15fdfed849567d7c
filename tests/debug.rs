//! `Debug` of everything: it ends, and prints nothing of the user's.

mod common {
    pub mod arm;
    pub mod capable;
    pub mod doubles;
    pub mod held;
    pub mod rig;
}

use common::{
    arm::arm,
    capable::Capable,
    held::{Held, hold},
    rig::{DEVICE, Rig},
};
use liveslot::*;
use std::{
    fmt::Debug,
    ptr::NonNull,
    sync::{Arc, RwLock},
};

/// Holds its registry, a handle of it, and a binding and allocations of itself, and prints them. Reading locks can be had again and again,
/// so they end no recursion.
#[derive(Debug, Default)]
struct Knotted(RwLock<Option<Knot>>);

type Knot = (BindingRegistry, DeviceHandle, MemoryBinding, BoundAllocation, OwningAllocation);

impl DeviceAllocator for Knotted {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        HostAllocator.allocate(bytes, align)
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, bytes: usize, align: usize) {
        // SAFETY: the caller's promise is passed on; all memory is the heap's.
        unsafe { HostAllocator.deallocate(pointer, bytes, align) };
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

/// R113: an allocator that holds and prints what leads back to it is printed in finite time, from wherever one begins.
#[test]
fn knots_are_finite() {
    // Kept here as well, so that the knot can be undone.
    let knotted = Arc::new(Knotted::default());
    let registry = BindingRegistry::new().unwrap();
    let context = registry.register_provider_context(DEVICE, knotted.clone()).unwrap();
    let authority = registry.register_authority(DEVICE, knotted.clone()).unwrap();
    registry.register_allocator(context, authority, knotted.clone()).unwrap();
    let binding = registry.bind(DEVICE).unwrap();
    let allocation = binding.allocate(8, 8).unwrap();
    let owner = binding.allocate_owning(8, 8).unwrap();
    let device = registry.device(DEVICE);
    *knotted.0.write().unwrap() = Some((registry, device, binding, allocation, owner));

    for printed in [format!("{knotted:?}"), format!("{knotted:#?}")] {
        for name in ["BindingRegistry", "DeviceHandle", "MemoryBinding", "BoundAllocation", "OwningAllocation"] {
            assert!(printed.contains(name), "{printed}");
        }
        assert_eq!(printed.matches("Knotted").count(), 1, "{printed}");
    }

    let (registry, device, binding, allocation, owner) = knotted.0.write().unwrap().take().unwrap();
    binding.release(allocation).unwrap();
    owner.release_now().unwrap();
    drop((registry, device, binding));
    assert_eq!(Arc::strong_count(&knotted), 1);
}

/// R113: no public type's `Debug` calls an allocator, a resource, or their `Debug`.
#[test]
fn nothing_of_the_users_is_printed() {
    let rig = Rig::new();
    let Held { binding, allocation, view } = hold(&rig);
    let validated = binding.with_view(&view, |view| view).unwrap();
    let slot = SelectionSlot::<Backend>::new();
    assert!(slot.select(Arc::new(Backend(Liveness::new()))).is_ok());

    let things: [&dyn Debug; 16] = [
        &rig.registry,
        &rig.registry.device(DEVICE),
        &rig.mechanism,
        &rig.context,
        &rig.authority,
        &binding,
        &binding.identity(),
        &allocation,
        &allocation.identity(),
        &view,
        &validated,
        &rig.registry.snapshot(rig.mechanism).unwrap(),
        &rig.registry.quarantined(rig.mechanism).unwrap(),
        &rig.registry.select(rig.mechanism),
        &slot,
        &Liveness::new(),
    ];
    for thing in things {
        assert!(!format!("{thing:?}").is_empty());
        assert!(!format!("{thing:#?}").is_empty());
    }
    rig.registry.retire(rig.mechanism).unwrap();
    let refused = binding.allocate(8, 8);
    assert!(format!("{refused:?}").contains("Retired"));
    assert!(format!("{allocation:?}").contains("state: Live"));
    assert_eq!(rig.log.take(), [""; 0]);

    rig.registry.invalidate_device(DEVICE, "lost").unwrap();
    let error = binding.release(allocation).unwrap_err();
    assert!(format!("{error:?}").contains("lost"));
    assert_eq!(rig.log.take(), [""; 0]);
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    drop((binding, error, view));
    rig.finish();
}

/// R113: the same for what owns, waits, hands back, or reaches a capability.
#[test]
fn nothing_of_the_users_is_printed_by_owners_and_handles() {
    let rig = Rig::new();
    let own = Capable::of(&rig);
    let owner = own.binding.allocate_owning(64, 8).unwrap();
    let view = owner.view(0, 8).unwrap();
    let refused_owner = own.binding.allocate_owning(32, 8).unwrap();
    let held = refused_owner.view(0, 8).unwrap();
    let refused_owner = refused_owner.release_now().unwrap_err();
    arm(&rig.script.release, || AllocationReleaseOutcome::failed("stuck"));
    let retained = own.binding.release(own.binding.allocate(16, 8).unwrap()).unwrap_err();
    let prefix = own.mapping.create_shared_prefix(32).unwrap();
    let prepare = || own.binding.prepare_release(own.binding.allocate(8, 8).unwrap()).unwrap();
    let request = prepare();
    let refused = DeferredEnqueueError::new(DeferredEnqueueRejection::Full, prepare());
    let disposition = DeferredReleaseDisposition::Queued { identity: request.identity() };
    rig.log.take();

    let things: [(&dyn Debug, &str); 12] = [
        (&own.backing, "BoundVirtualBacking"),
        (&own.mapping, "BoundSharedMapping"),
        (&prefix, "BoundSharedPrefix"),
        (&owner, "views: 1"),
        (&view, "OwnedView"),
        (&refused_owner, "OutstandingViews"),
        (&retained, "AllocatorRefused"),
        (&request, "PreparedAllocationRelease"),
        (&refused, "Full"),
        (&disposition, "Queued"),
        (&retained.outcome(), "Quarantined"),
        (&own.binding.quarantined().unwrap(), "retained_bytes: 16"),
    ];
    for (thing, name) in things {
        assert!(format!("{thing:?}").contains(name), "{thing:?} does not name {name}");
        assert!(!format!("{thing:#?}").is_empty());
    }
    assert_eq!(rig.log.take(), [""; 0]);
    drop((held, view));
}

/// A candidate that nobody may print.
struct Backend(Liveness);

impl Candidate for Backend {
    fn liveness(&self) -> &Liveness {
        &self.0
    }
}
