//! The peer and the loops of liveslot and of the crate that it replaces, written once and compiled against both: the module above says
//! which crate `api` is. So both are asked the same in the same way, each with its own `HostAllocator`, and only the crates differ.

use super::api::{
    BindingError, BindingRegistry, BoundAllocation, BoundMemoryView, DeviceKey, HostAllocator, MemoryBinding, RegisteredMechanism,
};
use crate::peers::Peer;
use crate::work::{ALIGN, BYTES, Work, repeat};
use std::hint::black_box;
use std::sync::Arc;

/// A registry and the tokens of the two mechanisms that `select` chooses from.
pub(crate) struct Registry {
    pub(crate) registry: BindingRegistry,
    pub(crate) mechanisms: [RegisteredMechanism; 2],
}

impl Peer for Registry {
    type Device = DeviceKey;
    type Binding = Result<MemoryBinding, BindingError>;

    const DEVICE: DeviceKey = DeviceKey::HOST;

    fn build() -> Self {
        let registry = BindingRegistry::new().expect("a registry");
        let register = |device| {
            let context = registry.register_provider_context(device, Arc::new(())).expect("a context");
            let authority = registry.register_authority(device, Arc::new(())).expect("an authority");
            // The given key counts, not the allocator's own: one allocator type serves all devices.
            registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), device).expect("a mechanism")
        };
        let [first, ..] = [Self::DEVICE, DeviceKey::device(0), DeviceKey::device(1), DeviceKey::device(2)].map(register);
        let mechanisms = [first, register(Self::DEVICE)];
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

impl Registry {
    /// A thread's own binding to a mechanism that all threads share.
    fn binding(&self) -> MemoryBinding {
        self.registry.bind_registered(self.mechanisms[0]).expect("a binding")
    }

    pub(crate) fn with_view(&self) -> Work<'_> {
        let viewed = Viewed::new(self.binding());
        repeat(move || {
            let seen = viewed.binding.with_view(&viewed.view, |view| {
                black_box(view.as_ptr());
            });
            assert!(black_box(&seen).is_ok(), "a live view was refused");
        })
    }

    pub(crate) fn allocate_and_release(&self) -> Work<'_> {
        let binding = self.binding();
        repeat(move || {
            let allocation = binding.allocate(BYTES, ALIGN).expect("memory");
            black_box(&allocation);
            let released = binding.release(allocation);
            assert!(black_box(&released).is_ok(), "a release was refused");
        })
    }
}

/// A live allocation with a view of it, given back at the end.
struct Viewed {
    binding: MemoryBinding,
    view: BoundMemoryView,
    allocation: Option<BoundAllocation>,
}

impl Viewed {
    fn new(binding: MemoryBinding) -> Self {
        let allocation = binding.allocate(BYTES, ALIGN).expect("memory");
        let view = allocation.view(0, BYTES).expect("a view");
        Self { binding, view, allocation: Some(allocation) }
    }
}

impl Drop for Viewed {
    fn drop(&mut self) {
        if let Some(allocation) = self.allocation.take() {
            self.binding.release(allocation).expect("a release");
        }
    }
}
