//! Selecting and binding. The protocol is the slot's: see [`SelectionSlot`](crate::SelectionSlot).

use super::{BindingRegistry, RegisteredMechanism};
use crate::{
    contract::DeviceKey,
    error::BindingError,
    handles::MemoryBinding,
    mechanism::Hold,
    primitives::liveness::Life,
    sync::{epoch, gate},
};

impl BindingRegistry {
    /// Makes `mechanism` the selection of its device, whatever it was before. Existing bindings do not move.
    ///
    /// # Errors
    ///
    /// [`BindingError::ForeignRegistry`], [`BindingError::UnregisteredMechanism`], or [`BindingError::InactiveMechanism`] if
    /// it is not Active, or died before it was decided upon; that is the error for a lost device, too. The selection is then
    /// as if the call had not been made, and nobody was given `mechanism` meanwhile.
    ///
    /// # Progress
    ///
    /// Lock-free.
    pub fn select(&self, mechanism: RegisteredMechanism) -> Result<(), BindingError> {
        let guard = epoch::pin();
        let (device, found) = self.inner.mechanism(mechanism, &guard)?;
        let candidate = found.own();
        drop(guard);
        device.slot.select(candidate).map_err(|refused| {
            let life: Life = refused.life();
            if life.is_removed() {
                BindingError::UnregisteredMechanism(mechanism.identity)
            } else {
                BindingError::InactiveMechanism { mechanism: mechanism.identity, lifecycle: life.phase(), operation: "selection" }
            }
        })
    }

    /// Issues a binding to whatever is selected for `device`.
    ///
    /// # Errors
    ///
    /// [`BindingError::NoSelectedMechanism`], or [`BindingError::IdentityExhausted`] if no identity is left; nothing else, whatever is
    /// being selected, retired or lost meanwhile.
    ///
    /// # Progress
    ///
    /// Lock-free: each retry is paid for by a selection.
    #[inline]
    pub fn bind(&self, device: DeviceKey) -> Result<MemoryBinding, BindingError> {
        match self.inner.devices.get(device) {
            Some(device) => device.bind(),
            None => Err(BindingError::NoSelectedMechanism(device)),
        }
    }

    /// Issues a binding to `mechanism`, selected or not.
    ///
    /// # Errors
    ///
    /// [`BindingError::ForeignRegistry`], [`BindingError::UnregisteredMechanism`]; [`BindingError::InactiveMechanism`] or
    /// [`BindingError::DeviceLost`] unless it is Active; [`BindingError::IdentityExhausted`].
    ///
    /// # Progress
    ///
    /// Wait-free but for the epoch, whose pin is lock-free.
    pub fn bind_registered(&self, mechanism: RegisteredMechanism) -> Result<MemoryBinding, BindingError> {
        let guard = epoch::pin();
        let (_, found) = self.inner.mechanism(mechanism, &guard)?;
        found.active("binding")?;
        gate!(Found);
        // Refused only once it was removed.
        let hold = Hold::acquire(&found).map_err(|_| BindingError::UnregisteredMechanism(mechanism.identity))?;
        drop(guard);
        MemoryBinding::issue(hold)
    }
}
