//! One device: its selection slot and its mechanisms; and the handle that has it resolved.

use super::{BindingRegistry, Inner};
use crate::{
    contract::{DeviceKey, MechanismIdentity},
    error::BindingError,
    handles::MemoryBinding,
    mechanism::{Hold, Mechanism},
    primitives::{SelectionSlot, table::Table},
    sync::{Arc, gate},
};
use std::{fmt, ptr::NonNull};

/// Created by the first registration that needs it, and never removed.
pub(super) struct Device {
    pub(super) key: DeviceKey,
    pub(super) slot: SelectionSlot<Mechanism>,
    pub(super) mechanisms: Table<Mechanism>,
}

impl Device {
    pub(super) fn new(key: DeviceKey) -> Self {
        Self { key, slot: SelectionSlot::new(), mechanisms: Table::new() }
    }

    /// A binding to whatever is selected.
    #[inline]
    pub(super) fn bind(&self) -> Result<MemoryBinding, BindingError> {
        let hold = self.slot.read(|mechanism| {
            gate!(Found);
            // Refused only once the mechanism was removed, that is, died since it was found: look again.
            Hold::acquire(mechanism).ok()
        });
        match hold {
            Some(hold) => MemoryBinding::issue(hold),
            None => Err(BindingError::NoSelectedMechanism(self.key)),
        }
    }
}

/// A device of a registry, resolved: what a hot thread keeps.
///
/// It counts as a clone of the registry. Cloning bounces the registry's reference count, so clone once per thread and keep it.
///
/// ```
/// # use liveslot::{BindingRegistry, DeviceKey, HostAllocator};
/// # use std::sync::Arc;
/// let registry = BindingRegistry::new()?;
/// let device = registry.device(DeviceKey::HOST);
/// assert!(device.selected().is_none());
///
/// let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
/// let authority = registry.register_authority(DeviceKey::HOST, Arc::new(()))?;
/// let mechanism = registry.register_allocator(context, authority, Arc::new(HostAllocator))?;
/// assert_eq!(device.selected(), Some(mechanism.identity()));
/// assert_eq!(device.bind()?.identity().mechanism(), mechanism.identity());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct DeviceHandle {
    registry: Arc<Inner>,
    /// Inside `registry`, where devices stay where they are until it goes.
    device: NonNull<Device>,
}

// SAFETY: an `Arc` of the registry and a pointer into it; `Device` is `Send` and `Sync`.
unsafe impl Send for DeviceHandle {}
// SAFETY: as above.
unsafe impl Sync for DeviceHandle {}

impl BindingRegistry {
    /// Resolves a device, which need not have been registered yet.
    ///
    /// # Progress
    ///
    /// Lock-free. The first call for a device allocates its slot, about 300 bytes, which stays as long as the registry.
    #[must_use]
    pub fn device(&self, device: DeviceKey) -> DeviceHandle {
        DeviceHandle { registry: Arc::clone(&self.inner), device: NonNull::from(self.inner.devices.get_or_create(device)) }
    }
}

impl DeviceHandle {
    #[inline(always)]
    fn device(&self) -> &Device {
        // SAFETY: devices live as long as the registry, which `self.registry` keeps.
        unsafe { self.device.as_ref() }
    }

    /// The device.
    #[must_use]
    pub fn key(&self) -> DeviceKey {
        self.device().key
    }

    /// The registry.
    #[must_use]
    pub fn registry(&self) -> BindingRegistry {
        BindingRegistry { inner: Arc::clone(&self.registry) }
    }

    /// As [`BindingRegistry::bind`] on this device.
    ///
    /// # Errors
    ///
    /// [`BindingError::NoSelectedMechanism`], or [`BindingError::IdentityExhausted`].
    ///
    /// # Progress
    ///
    /// Lock-free: each retry is paid for by a selection.
    pub fn bind(&self) -> Result<MemoryBinding, BindingError> {
        self.device().bind()
    }

    /// What is selected.
    ///
    /// # Progress
    ///
    /// Lock-free.
    #[must_use]
    pub fn selected(&self) -> Option<MechanismIdentity> {
        self.device().slot.observe().candidate.map(|mechanism| mechanism.names.mechanism)
    }

    /// Counts the changes of the selection: it never falls, and while it stays the same so does the selection.
    ///
    /// # Progress
    ///
    /// Lock-free.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.device().slot.observe().version
    }
}

impl fmt::Debug for DeviceHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DeviceHandle").field("key", &self.key()).finish_non_exhaustive()
    }
}
