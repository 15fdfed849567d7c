//! One device: its selection slot and its mechanisms; and the handle that has it resolved.

use super::{BindingRegistry, Inner, RegisteredMechanism, select::SelectIfError, watch::Watched};
use crate::{
    contract::{DeviceKey, MechanismIdentity},
    error::BindingError,
    handles::MemoryBinding,
    mechanism::{Hold, Mechanism, told},
    primitives::{NotReplaced, SelectionSlot, once::WriteOnce, table::Table},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::*, fence},
        gate,
    },
};
use std::{fmt, ptr::NonNull};

/// Created by the first call that needs it, and never removed.
///
/// A selection looks its mechanism up, writes the slot, and looks whether anybody watches. The slot comes last, behind chunks of the table
/// that are rarely there: so the cache line that selecting threads contend for has nothing on it that they look at besides.
#[repr(C)]
pub(super) struct Device {
    pub(super) key: DeviceKey,
    /// There once somebody has watched the device.
    pub(super) watched: WriteOnce<Arc<Watched>>,
    pub(super) mechanisms: Table<Mechanism>,
    /// How many calls are removing and destroying authorities of the device. Shared with them: one that is made within a destructor may
    /// outlive the registry.
    pub(super) releasing: Arc<AtomicUsize>,
    pub(super) slot: SelectionSlot<Mechanism>,
}

impl Device {
    pub(super) fn new(key: DeviceKey) -> Self {
        let (slot, mechanisms, watched) = (SelectionSlot::new(), Table::new(), WriteOnce::new());
        Self { key, slot, mechanisms, watched, releasing: Arc::new(AtomicUsize::new(0)) }
    }

    /// A binding to whatever is selected, or what there is instead.
    #[inline]
    #[cfg_attr(feature = "holders", track_caller)]
    pub(super) fn bind(&self, unselected: impl FnOnce() -> BindingError) -> Result<MemoryBinding, BindingError> {
        let hold = self.slot.read(|mechanism| {
            gate!(Found);
            // Refused only once the mechanism was removed, that is, died since it was found: look again.
            Hold::acquire(mechanism).ok()
        });
        match hold {
            Some(hold) => MemoryBinding::issue(hold),
            None => Err(unselected()),
        }
    }

    pub(super) fn deselect(&self) -> Option<MechanismIdentity> {
        let deselected = identity(self.slot.clear()?);
        // SeqCst: as `notify` demands it; clearing has no fence of its own after the change.
        fence(SeqCst);
        self.notify();
        told::deselected(self.key, deselected);
        Some(deselected)
    }
}

fn identity(mechanism: Arc<Mechanism>) -> MechanismIdentity {
    mechanism.names.mechanism
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
    pub(super) registry: Arc<Inner>,
    /// Inside `registry`, where devices stay where they are until it goes.
    pub(super) device: NonNull<Device>,
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
    pub(super) fn device(&self) -> &Device {
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
    /// [`BindingError::NoSelectedMechanism`], or [`BindingError::IdentityExhausted`]; [`BindingError::ShutDown`] instead of the first once
    /// the registry is [shut down](BindingRegistry::shutdown).
    ///
    /// # Progress
    ///
    /// Lock-free: each retry is paid for by a selection.
    #[inline]
    #[cfg_attr(feature = "holders", track_caller)]
    pub fn bind(&self) -> Result<MemoryBinding, BindingError> {
        self.device().bind(|| self.registry.unselected(self.key()))
    }

    /// What is selected.
    ///
    /// # Progress
    ///
    /// Lock-free.
    #[must_use]
    pub fn selected(&self) -> Option<MechanismIdentity> {
        self.device().slot.observe().candidate.map(identity)
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

    /// Selects `mechanism`, as [`BindingRegistry::select`] does, if the selection is at `expected_version`, and gives the version of
    /// the new one. A caller that decides by what is selected asks for the [`version`](Self::version) first and for
    /// [`selected`](Self::selected) after it, or takes both from the last conflict.
    ///
    /// Of calls that expect one version at most one is `Ok`, and the selection has not changed between the report of the version and
    /// that one. Exactly one is, unless their mechanisms die meanwhile or another call changes the selection first.
    ///
    /// ```
    /// use liveslot::{BindingRegistry, DeviceKey, HostAllocator, SelectIfError};
    /// use std::sync::Arc;
    ///
    /// let registry = BindingRegistry::new()?;
    /// let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
    /// let authority = registry.register_authority(DeviceKey::HOST, Arc::new(()))?;
    /// let register = || registry.register_allocator(context, authority, Arc::new(HostAllocator));
    /// let (first, second, third) = (register()?, register()?, register()?);
    ///
    /// let device = registry.device(DeviceKey::HOST);
    /// let version = device.version();
    /// assert_eq!(device.selected(), Some(first.identity()));
    /// let after = device.select_if(version, second)?;
    /// match device.select_if(version, third) {
    ///     Err(SelectIfError::Conflict { version, selected, .. }) => {
    ///         assert_eq!((version, selected), (after, Some(second.identity())));
    ///         device.select_if(version, third)?; // knowing what it replaces
    ///     }
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// In this order: [`SelectIfError::Binding`] with [`BindingError::ForeignRegistry`] or [`BindingError::UnregisteredMechanism`];
    /// [`SelectIfError::DeviceMismatch`] for a mechanism of another device; [`SelectIfError::Binding`] with
    /// [`BindingError::InactiveMechanism`] if it is not Active, or [`BindingError::ShutDown`] instead once the registry is
    /// [shut down](BindingRegistry::shutdown); [`SelectIfError::Conflict`] if the selection is at another version. A
    /// mechanism that dies before it was decided upon is refused as by [`BindingRegistry::select`]: the selection before it is back
    /// if it is alive, and nobody was given `mechanism`.
    ///
    /// A conflict may come of a selection that failed and was taken back, and of the death of what was selected: both change the
    /// version.
    ///
    /// # Progress
    ///
    /// Lock-free; it tries to publish once at most.
    pub fn select_if(&self, expected_version: u64, mechanism: RegisteredMechanism) -> Result<u64, SelectIfError> {
        let (home, candidate) = self.registry.candidate(mechanism)?;
        let device = self.device().key;
        if home.key != device {
            return Err(SelectIfError::DeviceMismatch { mechanism: mechanism.identity(), expected: device, actual: home.key });
        }
        let names = candidate.names;
        let outcome = home.slot.replace_if(expected_version, candidate);
        home.notify();
        let version = outcome.map_err(|refused| match refused {
            NotReplaced::Died(dead) => self.registry.died(&dead).into(),
            NotReplaced::Conflict { current, .. } => {
                SelectIfError::Conflict { device, version: current.version, selected: current.candidate.map(identity) }
            }
        })?;
        told::selected(names);
        Ok(version)
    }

    /// As [`BindingRegistry::deselect`] on this device.
    ///
    /// # Progress
    ///
    /// Lock-free: each retry is paid for by a selection.
    pub fn deselect(&self) -> Option<MechanismIdentity> {
        self.device().deselect()
    }
}

impl fmt::Debug for DeviceHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DeviceHandle").field("key", &self.key()).finish_non_exhaustive()
    }
}
