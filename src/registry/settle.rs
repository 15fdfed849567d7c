//! Giving quarantined ownership back, or up: never automatic.

use super::{BindingRegistry, RegisteredMechanism};
use crate::{
    callback::Theirs,
    contract::{AbandonedQuarantine, QuarantinedAllocation, RetriedQuarantine},
    error::BindingError,
    mechanism::Mechanism,
    sync::{Arc, epoch},
};

impl BindingRegistry {
    /// Asks the allocator once more to release what `mechanism` retains: at most `limit` entries, on this thread, one after the other,
    /// those that were tried least often first, and of these the oldest. The library never does this by itself.
    ///
    /// An entry is tried if nothing of it can have been released yet and nobody has said that its device is lost:
    ///
    /// | how it came to be retained | tried |
    /// | --- | --- |
    /// | its request or its owner was dropped, or a queue refused it | yes, by [`release`](crate::DeviceAllocator::release) |
    /// | its owner was dropped while there were [owned views](crate::OwnedView) of it, gone by now or not | no |
    /// | it was [quarantined](crate::PreparedAllocationRelease::quarantine) for a reason given | as that reason says in this table |
    /// | the allocator failed, which promises that nothing was released | yes, by [`release_again`](crate::DeviceAllocator::release_again) |
    /// | the allocator reported a residual, whatever reason it gave | no |
    /// | the allocator's release panicked | no |
    /// | the device was lost, also if a queue says so; or the provider context had terminated | no |
    ///
    /// What is released leaves the quarantine. What is not stays, as the allocator reports it now. While an entry is tried it is still in
    /// the quarantine, and counts as one operation, so that neither [`remove`](Self::remove) nor
    /// [`confirm_context_terminated`](Self::confirm_context_terminated) goes through; once released, and until it has been settled, it
    /// shows as a queued release. Racing calls try an entry once at a time.
    ///
    /// The caller answers for it that nothing uses the memory any more: what a queue that refused it was waiting for is not known here.
    /// Whoever reclaims the memory of an entry by hand [gives the entry up](Self::abandon_quarantined) first, and owns what that call
    /// reports; anything else may be released here.
    ///
    /// A loss that comes between two entries ends the call; one that comes while the allocator is inside changes nothing about its answer.
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
    /// drop(registry.bind(DeviceKey::HOST)?.allocate_owning(64, 8)?); // nobody released it
    /// registry.retire(mechanism)?;
    /// assert!(registry.remove(mechanism).is_err()); // so it is retained
    /// let done = registry.retry_quarantined(mechanism, usize::MAX)?;
    /// assert_eq!((done.released, done.released_bytes), (1, 64));
    /// registry.remove(mechanism)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`BindingError::ForeignRegistry`], [`BindingError::UnregisteredMechanism`]; [`BindingError::DeviceLost`] or
    /// [`BindingError::InactiveMechanism`] unless the mechanism is Active or Retired; [`BindingError::IdentityExhausted`] if a counter is
    /// full. Nothing was tried then.
    ///
    /// # Panics
    ///
    /// If the allocator does. An entry whose release panics is retained as abandoned and not tried again; those after it were not tried.
    ///
    /// # Progress
    ///
    /// Lock-free, the allocator excepted: a walk over all that was ever retained, given back or given up; and per entry that is tried a
    /// hold, as for a binding, two read-modify-writes of its home stripe, at most two of its own, and at most one node with a
    /// compare-and-swap.
    pub fn retry_quarantined(&self, mechanism: RegisteredMechanism, limit: usize) -> Result<RetriedQuarantine, BindingError> {
        self.memory(mechanism)?.retry_quarantined(limit)
    }

    /// Gives up the ownership of each entry that `mechanism` retains and `given_up` says yes to, in any lifecycle, and reports what that
    /// was. Calls no allocator: the memory is the caller's to reclaim, or lost. The library never does this by itself.
    ///
    /// Each entry is given up by one call at most, and the report lists what was given up by this one. An allocator's own books know
    /// nothing of it. On a terminated mechanism everything has been written off, so nothing is left to give up.
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
    /// let owner = registry.bind(DeviceKey::HOST)?.allocate_owning(64, 8)?;
    /// let identity = owner.identity();
    /// drop(owner);
    /// let given_up = registry.abandon_quarantined(mechanism, |entry| entry.identity == identity)?;
    /// assert_eq!((given_up.allocations.len(), given_up.bytes()), (1, 64)); // leaked, on purpose
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`BindingError::ForeignRegistry`], [`BindingError::UnregisteredMechanism`].
    ///
    /// # Panics
    ///
    /// If `given_up` does, or what it keeps when that is dropped: what it had said yes to before is given up, without a report.
    ///
    /// # Progress
    ///
    /// Lock-free, `given_up` excepted: a walk as that of [`retry_quarantined`](Self::retry_quarantined).
    pub fn abandon_quarantined(
        &self,
        mechanism: RegisteredMechanism,
        given_up: impl FnMut(&QuarantinedAllocation) -> bool,
    ) -> Result<AbandonedQuarantine, BindingError> {
        let mut given_up = Theirs::new(given_up);
        Ok(self.memory(mechanism)?.abandon_quarantined(&mut *given_up))
    }

    /// A registered mechanism's memory, in any lifecycle.
    fn memory(&self, mechanism: RegisteredMechanism) -> Result<Arc<Mechanism>, BindingError> {
        let guard = epoch::pin();
        Ok(self.inner.mechanism(mechanism, &guard)?.1.own())
    }
}
