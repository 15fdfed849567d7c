//! Snapshots and lists.

use super::{BindingRegistry, RegisteredMechanism};
use crate::{
    contract::{MechanismSnapshot, QuarantinedAllocation},
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
