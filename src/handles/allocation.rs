//! A live allocation: metadata, not an owner.

use super::{
    binding::MemoryBinding,
    record::{Record, State},
    view::BoundMemoryView,
};
use crate::{
    contract::AllocationIdentity,
    error::BindingError,
    primitives::{MechanismLifecycle, counted::Counted},
    sync::gate,
};
use std::{fmt, ptr::NonNull};

/// A piece of memory that was allocated through a binding.
///
/// Metadata, not an owner: dropping it releases nothing, and its mechanism goes on counting the allocation as live. Give it back with
/// [`MemoryBinding::release`], or make it an [`OwningAllocation`](crate::OwningAllocation).
///
/// It keeps allocator, authority and provider context alive.
///
/// There is one such value per allocation, so whoever has it is alone in deciding what becomes of it:
///
/// ```compile_fail,E0382
/// fn twice(binding: liveslot::MemoryBinding, allocation: liveslot::BoundAllocation) {
///     let first = binding.prepare_release(allocation);
///     let second = binding.prepare_release(allocation);
/// }
/// ```
pub struct BoundAllocation(pub(super) Counted<Record>);

impl BoundAllocation {
    #[inline(always)]
    pub(super) const fn record(&self) -> &Record {
        self.0.get()
    }

    /// Names this allocation, for ever.
    #[must_use]
    pub const fn identity(&self) -> AllocationIdentity {
        self.record().identity()
    }

    /// The binding it was allocated through, or a clone of it.
    ///
    /// What is borrowed from it does not outlive it; a clone does.
    ///
    /// ```compile_fail,E0505
    /// fn outlive(allocation: liveslot::BoundAllocation) {
    ///     let borrowed = allocation.binding();
    ///     drop(allocation);
    ///     borrowed.identity();
    /// }
    /// ```
    #[must_use]
    pub const fn binding(&self) -> &MemoryBinding {
        &self.record().binding
    }

    /// The very pointer that the allocator returned.
    #[must_use]
    pub const fn as_ptr(&self) -> NonNull<u8> {
        self.record().pointer
    }

    /// Its size in bytes, as asked for.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.record().bytes
    }

    /// Whether its size is zero.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its alignment in bytes, as asked for.
    #[must_use]
    pub const fn alignment(&self) -> usize {
        self.record().alignment
    }

    /// A part of it, to be looked at with [`MemoryBinding::with_view`]. Empty views are allowed, at the end too.
    ///
    /// # Errors
    ///
    /// [`BindingError::ViewOutOfBounds`] if `offset + bytes` overflows or passes the end, whatever else is wrong;
    /// [`BindingError::InactiveMechanism`] or [`BindingError::DeviceLost`] unless the mechanism is Active;
    /// [`BindingError::StaleAllocation`] if the allocation was released, or is being released.
    ///
    /// # Progress
    ///
    /// Wait-free: one read-modify-write. Not counted as an operation.
    pub fn view(&self, offset: usize, bytes: usize) -> Result<BoundMemoryView, BindingError> {
        let end = offset.saturating_add(bytes);
        if offset.checked_add(bytes).is_none_or(|end| end > self.len()) {
            return Err(BindingError::ViewOutOfBounds { offset, end, allocation_bytes: self.len() });
        }
        self.binding().mechanism().active("making a view")?;
        self.live()?;
        Ok(BoundMemoryView::new(self, offset, bytes))
    }

    /// Refuses metadata that is stale.
    #[inline]
    pub(super) fn live(&self) -> Result<(), BindingError> {
        if self.record().is_live() { Ok(()) } else { Err(self.stale()) }
    }

    #[cold]
    fn stale(&self) -> BindingError {
        BindingError::StaleAllocation(self.identity())
    }

    /// Live → queued.
    ///
    /// Stale metadata touches no stripe. Nobody else can take this step, since the caller owns the metadata; so the stripe decides, and a
    /// refusal leaves nothing to undo.
    #[inline]
    pub(super) fn queue(&mut self) -> Result<(), BindingError> {
        const OPERATION: &str = "release";
        let mechanism = self.binding().mechanism();
        let phase = mechanism.phase();
        if !matches!(phase, MechanismLifecycle::Active | MechanismLifecycle::Retired) {
            return Err(mechanism.refusal(phase, OPERATION));
        }
        self.live()?;
        gate!(Releasing);
        mechanism.pins.queue(self.record().home).map_err(|refused| mechanism.refused(refused, OPERATION))?;
        self.record().step_to(State::Queued);
        Ok(())
    }
}

impl fmt::Debug for BoundAllocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("BoundAllocation")
            .field("identity", &self.identity())
            .field("pointer", &self.as_ptr())
            .field("bytes", &self.len())
            .field("alignment", &self.alignment())
            .field("state", &self.record().state())
            .finish()
    }
}
