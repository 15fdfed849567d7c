//! Snapshots and lists.

use super::{BindingRegistry, RegisteredMechanism};
use crate::{
    contract::{Holder, MechanismSnapshot, QuarantinedAllocation},
    error::BindingError,
    sync::epoch,
};

impl BindingRegistry {
    /// A copy of a mechanism's state. Each allocation that is outstanding during the whole call is in exactly one of live,
    /// queued and quarantined. On a mechanism that is not Active, "nothing owned and nothing in progress" is for ever.
    ///
    /// # Errors
    ///
    /// [`BindingError::ForeignRegistry`], [`BindingError::UnregisteredMechanism`].
    ///
    /// # Progress
    ///
    /// Lock-free: it looks again only after quarantined ownership of the mechanism was given back or up meanwhile. One load per stripe;
    /// unless the mechanism is Active, at most one read-modify-write per stripe.
    pub fn snapshot(&self, mechanism: RegisteredMechanism) -> Result<MechanismSnapshot, BindingError> {
        let guard = epoch::pin();
        Ok(self.inner.mechanism(mechanism, &guard)?.1.snapshot())
    }

    /// A snapshot of every mechanism that is registered during the whole call, in no particular order. The list as a whole
    /// is not one moment.
    ///
    /// # Errors
    ///
    /// None: always `Ok`.
    ///
    /// # Progress
    ///
    /// As [`snapshot`](Self::snapshot), over all devices.
    pub fn snapshots(&self) -> Result<Vec<MechanismSnapshot>, BindingError> {
        let guard = epoch::pin();
        let mechanisms = self.inner.devices.iter().flat_map(|device| device.mechanisms.iter(&guard));
        Ok(mechanisms.map(|mechanism| mechanism.snapshot()).collect())
    }

    /// Who holds a mechanism: its bindings, the oldest first, each with its label, the place where it was made, its age and how much is
    /// left of it. Empty without the feature `holders`.
    ///
    /// A binding is listed from its issue until the last clone and the last metadata of what was allocated through it are dropped, and with
    /// exact counts if none of these comes or goes meanwhile. The list as a whole is not one moment. It keeps nothing alive, and it is no
    /// proof: calls in progress hold a mechanism too, and memory whose metadata was dropped without a release stays live in the
    /// [snapshot](Self::snapshot) although nobody is listed for it.
    ///
    /// The place is that of the call of [`bind`](Self::bind), [`DeviceHandle::bind`](crate::DeviceHandle::bind) or
    /// [`bind_registered`](Self::bind_registered); of one that is made through a function pointer it is inside the library or std.
    ///
    /// ```
    /// use liveslot::{BindingRegistry, DeviceKey, HostAllocator};
    /// use std::sync::Arc;
    ///
    /// let registry = BindingRegistry::new()?;
    /// let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
    /// let authority = registry.register_authority(DeviceKey::HOST, Arc::new(()))?;
    /// let mechanism = registry.register_allocator(context, authority, Arc::new(HostAllocator))?;
    ///
    /// let binding = registry.bind(DeviceKey::HOST)?.labelled("decoder");
    /// let allocation = binding.allocate(64, 8)?;
    /// # #[cfg(feature = "holders")] {
    /// let holder = registry.holders(mechanism)?[0];
    /// assert_eq!((holder.label, holder.handles, holder.allocations), (Some("decoder"), 1, 1));
    /// assert_eq!(holder.place.file(), file!());
    /// # }
    /// binding.release(allocation)?;
    /// drop(binding);
    /// assert!(registry.holders(mechanism)?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`BindingError::ForeignRegistry`], [`BindingError::UnregisteredMechanism`]: also for a mechanism that was removed and is held still.
    /// Its bindings list each other: [`MemoryBinding::holders`](crate::MemoryBinding::holders).
    ///
    /// # Progress
    ///
    /// Wait-free but for the epoch, whose pin is lock-free: a walk over the bindings.
    pub fn holders(&self, mechanism: RegisteredMechanism) -> Result<Vec<Holder>, BindingError> {
        let guard = epoch::pin();
        Ok(self.inner.mechanism(mechanism, &guard)?.1.holders())
    }

    /// What a mechanism retains, in no particular order.
    ///
    /// # Errors
    ///
    /// [`BindingError::ForeignRegistry`], [`BindingError::UnregisteredMechanism`].
    ///
    /// # Progress
    ///
    /// Wait-free but for the epoch, whose pin is lock-free: a walk over all that was ever retained, given back or given up.
    pub fn quarantined(&self, mechanism: RegisteredMechanism) -> Result<Vec<QuarantinedAllocation>, BindingError> {
        let guard = epoch::pin();
        Ok(self.inner.mechanism(mechanism, &guard)?.1.quarantined())
    }
}
