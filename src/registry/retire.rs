//! Retiring: the word first, then every stripe, then the slot.

use super::{BindingRegistry, RegisteredMechanism, drain::notify};
use crate::{
    error::BindingError,
    mechanism::told,
    sync::{epoch, gate},
};

impl BindingRegistry {
    /// Takes `mechanism` out of use: it is bound and allocates no more, and takes back what it gave out. If it is selected,
    /// its device is left without selection. `Ok` as well if it was not Active.
    ///
    /// No call that starts after this one has returned binds the mechanism or allocates from it.
    ///
    /// # Errors
    ///
    /// [`BindingError::ForeignRegistry`], [`BindingError::UnregisteredMechanism`].
    ///
    /// # Progress
    ///
    /// Lock-free.
    pub fn retire(&self, mechanism: RegisteredMechanism) -> Result<(), BindingError> {
        let guard = epoch::pin();
        let (device, found) = self.inner.mechanism(mechanism, &guard)?;
        let _ = found.lifecycle.retire();
        gate!(Retired);
        // Also if somebody else retired it: that one may have been stopped before it had set every flag.
        let _ = found.settled_phase();
        device.slot.sweep();
        let (names, lifecycle) = (found.names, found.phase());
        let drained = found.waiting_if_drained();
        drop(guard);
        notify(drained.as_slice(), || device.notify());
        told::retired(names, lifecycle);
        Ok(())
    }
}
