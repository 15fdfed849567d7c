//! A live allocation and its record.

use super::{binding::MemoryBinding, view::BoundMemoryView};
use crate::{
    contract::{AllocationGeneration, AllocationIdentity},
    error::BindingError,
    primitives::pins::Home,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::*},
    },
};
use std::{fmt, ptr::NonNull};

/// Whether metadata may still be used, and where its allocation is counted.
pub(super) struct Record {
    /// Cleared by whoever wins the right to release; set again only if the device turns out to be lost, by the winner.
    live: AtomicBool,
    pub(super) home: Home,
}

impl Record {
    pub(super) fn new(home: Home) -> Self {
        Self { live: AtomicBool::new(true), home }
    }

    #[inline]
    pub(super) fn is_live(&self) -> bool {
        // Relaxed: metadata reaches a thread by means of the caller's that order it after whatever made it stale; the address is
        // not protected by this look, and nothing is read on the strength of it.
        self.live.load(Relaxed)
    }

    /// Live → queued. One caller wins, and nobody uses the metadata from then on.
    #[inline]
    pub(super) fn win(&self) -> bool {
        // Relaxed: rivals meet on this word alone; the home stripe orders the rest.
        self.live.swap(false, Relaxed)
    }

    /// Queued → live, by the winner, whose request the home stripe has refused.
    pub(super) fn give_back(&self) {
        // Relaxed: as in `win`.
        self.live.store(true, Relaxed);
    }
}

/// A piece of memory that was allocated through a binding.
///
/// Metadata, not an owner: dropping it releases nothing, and its mechanism goes on counting the allocation as live. Give it back with
/// [`MemoryBinding::release`].
///
/// It keeps allocator, authority and provider context alive.
pub struct BoundAllocation {
    pub(super) binding: MemoryBinding,
    pub(super) record: Arc<Record>,
    pub(super) generation: AllocationGeneration,
    pub(super) pointer: NonNull<u8>,
    pub(super) bytes: usize,
    pub(super) alignment: usize,
}

// SAFETY: the pointer is an address to hand on; nothing here reads or writes through it.
unsafe impl Send for BoundAllocation {}
// SAFETY: as above.
unsafe impl Sync for BoundAllocation {}

impl BoundAllocation {
    /// Names this allocation, for ever.
    #[must_use]
    pub const fn identity(&self) -> AllocationIdentity {
        AllocationIdentity::new(self.binding.identity(), self.generation)
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
        &self.binding
    }

    /// The very pointer that the allocator returned.
    #[must_use]
    pub const fn as_ptr(&self) -> NonNull<u8> {
        self.pointer
    }

    /// Its size in bytes, as asked for.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Whether its size is zero.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Its alignment in bytes, as asked for.
    #[must_use]
    pub const fn alignment(&self) -> usize {
        self.alignment
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
    /// Wait-free: two read-modify-writes. Not counted as an operation.
    pub fn view(&self, offset: usize, bytes: usize) -> Result<BoundMemoryView, BindingError> {
        let end = offset.saturating_add(bytes);
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(BindingError::ViewOutOfBounds { offset, end, allocation_bytes: self.bytes });
        }
        self.binding.mechanism().active("making a view")?;
        if !self.record.is_live() {
            return Err(BindingError::StaleAllocation(self.identity()));
        }
        Ok(BoundMemoryView::new(self, offset, bytes))
    }
}

impl fmt::Debug for BoundAllocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("BoundAllocation")
            .field("identity", &self.identity())
            .field("pointer", &self.pointer)
            .field("bytes", &self.bytes)
            .field("alignment", &self.alignment)
            .field("live", &self.record.is_live())
            .finish_non_exhaustive()
    }
}
