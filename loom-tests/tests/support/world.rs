//! A registry with one device, for models: allocators that hand out addresses and no memory, resources that are nothing.

use liveslot_loom::{
    BindingError, BindingRegistry, DeviceAllocator, DeviceKey, MechanismIdentity, MechanismLifecycle, MemoryError, RegisteredAuthority,
    RegisteredMechanism, RegisteredProviderContext,
};
use std::{ptr::NonNull, sync::Arc};

pub const DEVICE: DeviceKey = DeviceKey::HOST;

/// A registry whose mechanisms share a device, a context and an authority.
pub struct World<const N: usize> {
    pub registry: BindingRegistry,
    pub context: RegisteredProviderContext,
    pub authority: RegisteredAuthority,
    /// Registered in this order: the first is selected.
    pub mechanisms: [RegisteredMechanism; N],
}

#[derive(Debug)]
struct Nothing;

impl DeviceAllocator for Nothing {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        Ok(NonNull::dangling())
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {}

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

impl<const N: usize> World<N> {
    /// On one stripe, so that a model spends its steps on the words and the slot.
    pub fn new() -> Self {
        let registry = BindingRegistry::striped(1).unwrap();
        let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
        let authority = registry.register_authority(DEVICE, Arc::new(())).unwrap();
        let register = |_| registry.register_allocator(context, authority, Arc::new(Nothing)).unwrap();
        let mechanisms = std::array::from_fn(register);
        Self { registry, context, authority, mechanisms }
    }

    pub fn another(&self) -> Result<RegisteredMechanism, BindingError> {
        self.registry.register_allocator(self.context, self.authority, Arc::new(Nothing))
    }

    /// What the slot names as it stands, without the repair that reading it would do.
    pub fn named(&self) -> Option<MechanismIdentity> {
        let (_, named, ..) = self.registry.raw_selection(DEVICE)?;
        named.map(|(mechanism, _)| mechanism)
    }

    /// I1, R21: what is selected at rest. Looks at the raw slot first.
    pub fn selected(&self) -> Option<MechanismIdentity> {
        let (committed, named, _, cut) = self.registry.raw_selection(DEVICE)?;
        assert!(committed, "an undecided selection at rest");
        assert!(cut, "a prior is kept at rest");
        let selected = named.map(|(mechanism, lifecycle)| {
            assert_eq!(lifecycle, MechanismLifecycle::Active, "a dead mechanism is selected at rest");
            assert!(self.lifecycle(mechanism).is_some(), "a removed mechanism is selected at rest");
            mechanism
        });
        let bound = self.registry.bind(DEVICE).map(|binding| binding.identity().mechanism());
        match bound {
            Err(BindingError::NoSelectedMechanism(DEVICE)) => assert_eq!(selected, None, "bind finds nothing"),
            bound => assert_eq!(bound.ok(), selected, "bind finds another"),
        }
        selected
    }

    /// `None`: not registered.
    pub fn lifecycle(&self, mechanism: MechanismIdentity) -> Option<MechanismLifecycle> {
        let registered = self.registry.snapshots().unwrap();
        registered.iter().find(|snapshot| snapshot.identity == mechanism).map(|snapshot| snapshot.lifecycle)
    }
}
