//! A part of an allocation, to be looked at through its binding.

use super::{allocation::BoundAllocation, binding::MemoryBinding, record::Record};
use crate::{contract::AllocationIdentity, primitives::counted::Counted};
use std::{fmt, ptr::NonNull};

/// A part of an allocation. It doesn't reveal its address: [`MemoryBinding::with_view`] does, to a closure.
///
/// It keeps allocator, authority and provider context alive, but not the allocation: that may be released from elsewhere, even while a
/// closure is looking at it. An [`OwnedView`](crate::OwnedView) keeps it from its owner's release.
pub struct BoundMemoryView {
    pub(super) record: Counted<Record>,
    pub(super) part: ValidatedMemoryView,
}

impl Clone for BoundMemoryView {
    fn clone(&self) -> Self {
        Self { record: self.record.clone(), part: self.part }
    }
}

impl BoundMemoryView {
    /// The caller has checked that the part lies within the allocation.
    pub(super) fn new(allocation: &BoundAllocation, offset: usize, bytes: usize) -> Self {
        let start = allocation.as_ptr();
        // Wrapping, since a device's address need not be of an object that this process can reach. Null only if the allocator has claimed
        // memory up to the end of the address space; an empty view of its end is all that can be there.
        let pointer = NonNull::new(start.as_ptr().wrapping_add(offset)).unwrap_or(start);
        Self { record: allocation.0.clone(), part: ValidatedMemoryView { pointer, bytes } }
    }

    /// The binding its allocation was made with, or a clone of it.
    #[must_use]
    pub const fn binding(&self) -> &MemoryBinding {
        &self.record.get().binding
    }

    /// Names the allocation that it is a part of.
    #[must_use]
    pub const fn allocation_identity(&self) -> AllocationIdentity {
        self.record.get().identity()
    }

    /// Its size in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.part.bytes
    }

    /// Whether its size is zero.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.part.bytes == 0
    }
}

impl fmt::Debug for BoundMemoryView {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("BoundMemoryView")
            .field("allocation", &self.allocation_identity())
            .field("bytes", &self.part.bytes)
            .finish_non_exhaustive()
    }
}

/// What [`MemoryBinding::with_view`] hands to its closure: an address, checked a moment ago.
#[derive(Clone, Copy, Debug)]
pub struct ValidatedMemoryView {
    pointer: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address to hand on; nothing here reads or writes through it.
unsafe impl Send for ValidatedMemoryView {}
// SAFETY: as above.
unsafe impl Sync for ValidatedMemoryView {}

impl ValidatedMemoryView {
    /// Where the view begins: the allocator's pointer plus the view's offset.
    #[must_use]
    pub const fn as_ptr(self) -> NonNull<u8> {
        self.pointer
    }

    /// Its size in bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.bytes
    }

    /// Whether its size is zero.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.bytes == 0
    }
}
