//! liveslot itself.

use super::{DEVICE, DEVICES, Peer};
use liveslot::{BindingError, BindingRegistry, DeviceKey, HostAllocator, MemoryBinding, RegisteredMechanism};
use std::sync::Arc;

/// A registry and the tokens of the two mechanisms that `select` chooses from.
pub(crate) struct Liveslot {
    pub(crate) registry: BindingRegistry,
    pub(crate) mechanisms: [RegisteredMechanism; 2],
}

impl Peer for Liveslot {
    type Binding = Result<MemoryBinding, BindingError>;

    fn build() -> Self {
        let registry = BindingRegistry::new().expect("a registry");
        let register = |device| {
            let context = registry.register_provider_context(device, Arc::new(())).expect("a context");
            let authority = registry.register_authority(device, Arc::new(())).expect("an authority");
            // The given key counts, not the allocator's own: one allocator type serves all devices.
            registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), device).expect("a mechanism")
        };
        let [first, ..] = DEVICES.map(register);
        let mechanisms = [first, register(DEVICE)];
        Self { registry, mechanisms }
    }

    #[inline]
    fn bind(&self, device: DeviceKey) -> Self::Binding {
        self.registry.bind(device)
    }

    #[inline]
    fn is_bound(binding: &Self::Binding) -> bool {
        binding.is_ok()
    }

    #[inline]
    fn select(&self, choice: usize) {
        self.registry.select(self.mechanisms[choice]).expect("an active mechanism");
    }
}
