//! Selecting, deselecting and binding. The protocol is the slot's: see [`SelectionSlot`](crate::SelectionSlot).

use super::{BindingRegistry, Inner, RegisteredMechanism, device::Device};
use crate::{
    contract::{DeviceKey, MechanismIdentity},
    error::BindingError,
    handles::MemoryBinding,
    mechanism::{Hold, Mechanism, told},
    primitives::liveness::Life,
    sync::{Arc, epoch, gate},
};
use thiserror::Error;

/// Why [`DeviceHandle::select_if`](super::DeviceHandle::select_if) selected nothing.
#[derive(Debug, Error)]
pub enum SelectIfError {
    /// The device's selection is at another version than the expected one.
    #[error("the selection of {device} has changed: it is at version {version}, with {}; decide anew on that", named(*.selected))]
    Conflict {
        /// The device.
        device: DeviceKey,
        /// The version of its selection, at one instant during the call.
        version: u64,
        /// What is selected at that version.
        selected: Option<MechanismIdentity>,
    },
    /// The mechanism is another device's.
    #[error("{mechanism:?} is on {actual}, and cannot be selected on {expected}; use a mechanism of {expected}")]
    DeviceMismatch {
        /// The mechanism.
        mechanism: MechanismIdentity,
        /// The device of the handle.
        expected: DeviceKey,
        /// The device of the mechanism.
        actual: DeviceKey,
    },
    /// As [`BindingRegistry::select`] refuses the mechanism. Text and [`source`](std::error::Error::source) are those of the inner error.
    #[error(transparent)]
    Binding(#[from] BindingError),
}

fn named(selected: Option<MechanismIdentity>) -> String {
    selected.map_or_else(|| "nothing selected".into(), |mechanism| format!("{mechanism:?} selected"))
}

impl BindingRegistry {
    /// Makes `mechanism` the selection of its device, whatever it was before. Existing bindings do not move.
    ///
    /// # Errors
    ///
    /// [`BindingError::ForeignRegistry`], [`BindingError::UnregisteredMechanism`], or [`BindingError::InactiveMechanism`] if
    /// it is not Active, or died before it was decided upon; that is the error for a lost device, too;
    /// [`BindingError::ShutDown`] instead once the registry is [shut down](Self::shutdown). The selection is then as if the call had not
    /// been made, and nobody was given `mechanism` meanwhile.
    ///
    /// # Progress
    ///
    /// Lock-free.
    pub fn select(&self, mechanism: RegisteredMechanism) -> Result<(), BindingError> {
        let (device, candidate) = self.inner.candidate(mechanism)?;
        let names = candidate.names;
        let outcome = device.slot.select(candidate);
        device.notify();
        outcome.map_err(|dead| self.inner.died(&dead))?;
        told::selected(names);
        Ok(())
    }

    /// Leaves `device` without selection, and says what was selected. That mechanism's life is not touched: it keeps its bindings, and can
    /// be selected again. [`bind`](Self::bind) finds nothing until a selection, or the next registration on the device. `None` if
    /// nothing was selected at one instant during the call, also for a device nobody registered.
    ///
    /// Beside a [`select`](Self::select) whichever is later wins.
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
    /// assert_eq!(registry.deselect(DeviceKey::HOST), Some(mechanism.identity()));
    /// assert!(registry.bind(DeviceKey::HOST).is_err());
    /// assert!(registry.bind_registered(mechanism).is_ok()); // Active as before
    /// assert_eq!(registry.deselect(DeviceKey::HOST), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Progress
    ///
    /// Lock-free: each retry is paid for by a selection.
    pub fn deselect(&self, device: DeviceKey) -> Option<MechanismIdentity> {
        self.inner.devices.get(device)?.deselect()
    }

    /// Issues a binding to whatever is selected for `device`.
    ///
    /// # Errors
    ///
    /// [`BindingError::NoSelectedMechanism`], or [`BindingError::IdentityExhausted`] if no identity is left; nothing else, whatever is
    /// being selected, retired or lost meanwhile. [`BindingError::ShutDown`] instead of the first once the registry is
    /// [shut down](Self::shutdown).
    ///
    /// # Progress
    ///
    /// Lock-free: each retry is paid for by a selection.
    #[inline]
    #[cfg_attr(feature = "holders", track_caller)]
    pub fn bind(&self, device: DeviceKey) -> Result<MemoryBinding, BindingError> {
        match self.inner.devices.get(device) {
            Some(found) => found.bind(|| self.inner.unselected(found.key)),
            None => Err(self.inner.unselected(device)),
        }
    }

    /// Issues a binding to `mechanism`, selected or not.
    ///
    /// # Errors
    ///
    /// [`BindingError::ForeignRegistry`], [`BindingError::UnregisteredMechanism`]; [`BindingError::InactiveMechanism`] or
    /// [`BindingError::DeviceLost`] unless it is Active; [`BindingError::IdentityExhausted`]. [`BindingError::ShutDown`] instead of
    /// `InactiveMechanism` once the registry is [shut down](Self::shutdown).
    ///
    /// # Progress
    ///
    /// Wait-free but for the epoch, whose pin is lock-free.
    #[cfg_attr(feature = "holders", track_caller)]
    pub fn bind_registered(&self, mechanism: RegisteredMechanism) -> Result<MemoryBinding, BindingError> {
        let guard = epoch::pin();
        let (_, found) = self.inner.mechanism(mechanism, &guard)?;
        found.active("binding").map_err(|refused| self.inner.refused(refused))?;
        gate!(Found);
        // Refused only once it was removed.
        let hold = Hold::acquire(&found).map_err(|_| BindingError::UnregisteredMechanism(mechanism.identity))?;
        drop(guard);
        MemoryBinding::issue(hold)
    }
}

impl Inner {
    /// The error for a candidate that was dead, or died before it was decided upon.
    #[cold]
    pub(super) fn died(&self, dead: &Mechanism) -> BindingError {
        self.refused(refusal(dead))
    }

    /// The error for a device that has no selection.
    #[cold]
    #[inline(never)]
    pub(super) fn unselected(&self, device: DeviceKey) -> BindingError {
        self.refused(BindingError::NoSelectedMechanism(device))
    }

    /// What `mechanism` names, to be selected, and its device.
    pub(super) fn candidate(&self, mechanism: RegisteredMechanism) -> Result<(&Device, Arc<Mechanism>), BindingError> {
        let guard = epoch::pin();
        let (device, found) = self.mechanism(mechanism, &guard)?;
        Ok((device, found.own()))
    }
}

/// Why a dead candidate is not selected.
fn refusal(dead: &Mechanism) -> BindingError {
    let (mechanism, life): (_, Life) = (dead.names.mechanism, dead.life());
    if life.is_removed() {
        BindingError::UnregisteredMechanism(mechanism)
    } else {
        BindingError::InactiveMechanism { mechanism, lifecycle: life.phase(), operation: "selection" }
    }
}
