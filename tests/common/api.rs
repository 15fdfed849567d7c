//! Every call that there is, in one go.

use super::rig::{DEVICE, Rig};
use liveslot::*;
use std::{sync::Arc, time::Duration};

/// The registry of a rig and the mechanism that its callbacks belong to, which is kept alive by neither.
#[derive(Clone)]
pub struct Reach {
    registry: BindingRegistry,
    mechanism: RegisteredMechanism,
}

impl Reach {
    pub fn of(rig: &Rig) -> Self {
        Self { registry: rig.registry.clone(), mechanism: rig.mechanism }
    }

    /// Does a whole life beside `mechanism` on its device, works with `mechanism` as far as its lifecycle allows, loses another device.
    /// Each call must return; what it leaves behind is what it found, except that `mechanism` is selected, if it can be.
    pub fn whole_api(self) {
        let Self { registry, mechanism } = self;
        let (context, authority, beside) = life(&registry, DEVICE);
        // The rig's own mechanism: refused or not, by whatever it is going through.
        let known = registry.snapshot(mechanism).is_ok();
        assert_eq!(registry.quarantined(mechanism).is_ok(), known);
        assert_eq!(registry.holders(mechanism).is_ok(), known);
        if let Ok(binding) = registry.bind_registered(mechanism) {
            work(&binding);
        }
        registry.remove(mechanism).unwrap_err();
        let device = registry.device(DEVICE);
        let mut watch = device.watch();
        registry.select(beside).unwrap();
        assert_eq!(watch.changed_timeout(Duration::from_secs(9)).unwrap().unwrap().selected, Some(beside.identity()));
        assert_eq!(watch.lost_timeout(Duration::ZERO), Ok(None));
        let _ = registry.select(mechanism);
        let _ = (device.selected(), device.version(), device.bind());

        registry.retire(beside).unwrap();
        registry.remove(beside).unwrap();
        registry.remove_authority(authority).unwrap();
        registry.remove_provider_context(context).unwrap();

        let lost = DeviceKey::device(7);
        let (context, authority, elsewhere) = life(&registry, lost);
        registry.invalidate_device(lost, "lost").unwrap();
        registry.confirm_context_terminated(context).unwrap();
        registry.remove(elsewhere).unwrap();
        registry.remove_authority(authority).unwrap();
        registry.remove_provider_context(context).unwrap();
    }
}

/// Registers, selects, binds and works on `device`, beside whatever is there.
fn life(registry: &BindingRegistry, device: DeviceKey) -> (RegisteredProviderContext, RegisteredAuthority, RegisteredMechanism) {
    let context = registry.register_provider_context(device, Arc::new(())).unwrap();
    let authority = registry.register_authority(device, Arc::new(())).unwrap();
    let refused = registry.register_allocator(context, authority, Arc::new(HostAllocator));
    assert!(matches!(refused, Err(BindingError::DeviceMismatch { .. })));
    let mechanism = registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), device).unwrap();
    registry.select(mechanism).unwrap();
    let handle = registry.device(device);
    assert_eq!(handle.deselect(), Some(mechanism.identity()));
    handle.select_if(handle.version(), mechanism).unwrap();
    let binding = registry.bind(device).unwrap();
    assert_eq!(binding.identity().mechanism(), mechanism.identity());
    work(&binding);
    let listed = registry.snapshots().unwrap();
    assert!(listed.iter().any(|snapshot| snapshot.identity == mechanism.identity()));
    registry.remove_provider_context(context).unwrap_err();
    registry.remove_authority(authority).unwrap_err();
    (context, authority, mechanism)
}

/// A queue that executes at once.
#[derive(Debug)]
struct AtOnce;

impl DeferredReleaseQueue for AtOnce {
    fn enqueue(&self, request: PreparedAllocationRelease) -> Result<(), DeferredEnqueueError> {
        assert_eq!(request.state(), AllocationReleaseState::Queued);
        request.execute();
        Ok(())
    }
}

/// Allocates, looks and releases, in each way.
fn work(binding: &MemoryBinding) {
    let owner = binding.allocate_owning(32, 8).unwrap();
    let view = owner.view(8, 8).unwrap();
    let (_, owner) = owner.release_now().unwrap_err().into_parts();
    drop(view);
    assert!(owner.release_deferred(&AtOnce).unwrap().is_queued());
    let request = binding.prepare_release(binding.allocate(16, 8).unwrap()).unwrap();
    request.execute();
    let owner = binding.allocate_owning(8, 8).unwrap();
    if let Some(backing) = binding.virtual_backing().unwrap() {
        backing.commit_allocation_ranges(&[(owner.bound(), 0, 8)]).unwrap();
        assert_eq!(backing.allocation_committed_bytes(owner.bound()).unwrap(), 0);
        binding.release(backing.allocate_committed(8, 8, &[]).unwrap()).unwrap();
    }
    if let Some(mapping) = binding.shared_mapping().unwrap() {
        let prefix = mapping.create_shared_prefix(8).unwrap();
        mapping.commit_shared_prefix(&prefix, owner.bound(), 0).unwrap();
        assert_eq!(prefix.requested_bytes(), 8);
    }
    assert!(owner.release_now().unwrap().is_complete());

    let allocation = binding.allocate(64, 8).unwrap();
    let view = allocation.view(8, 8).unwrap();
    assert_eq!(binding.clone().labelled("work").holders().is_empty(), cfg!(not(feature = "holders")));
    assert_eq!(binding.clone().with_view(&view, |view| view.len()).unwrap(), 8);
    assert!(binding.mechanism_snapshot().unwrap().live_allocations >= 1);
    binding.quarantined().unwrap();
    assert!(!format!("{binding:?} {allocation:?} {view:?}").is_empty());
    binding.release(allocation).unwrap();
}
