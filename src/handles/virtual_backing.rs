//! Physical memory for parts of an allocation, through the binding it was made with.
//!
//! The handle pins the binding, not the capability: the allocator is asked for it again on each call, inside the operation that the
//! call is counted as. Offsets and sizes are passed on as they are.
//!
//! | operation | progress, the capability excepted | cost, beside the user's own code |
//! | --- | --- | --- |
//! | every call on an allocation | wait-free | two RMWs on the caller's stripe |
//! | [`BoundVirtualBacking::allocate_committed`] | wait-free | as [`MemoryBinding::allocate`] |

use super::{allocation::BoundAllocation, binding::MemoryBinding};
use crate::{
    callback::Called,
    contract::{AllocationCommitRange, BindingIdentity, VirtualBacking},
    error::BindingError,
};
use std::{fmt, ops::Range};

/// The [`VirtualBacking`] of a binding's allocator.
///
/// It keeps allocator, authority and provider context alive.
///
/// # Errors
///
/// Every call that reaches the capability is refused with [`BindingError::InactiveMechanism`] or [`BindingError::DeviceLost`] unless the
/// mechanism is Active, and with [`BindingError::IdentityExhausted`] if a counter is full; then, for each allocation in order, with
/// [`BindingError::BindingMismatch`] if it is of another binding and with [`BindingError::StaleAllocation`] if it was released. What the
/// capability answers becomes [`BindingError::Memory`].
///
/// # Panics
///
/// If the capability does, and if the allocator no longer offers it, which its contract forbids; the operation is uncounted.
#[derive(Clone)]
pub struct BoundVirtualBacking {
    binding: MemoryBinding,
}

impl MemoryBinding {
    /// The allocator's virtual backing, if it offers one. The question counts as one operation.
    ///
    /// # Errors
    ///
    /// [`BindingError::InactiveMechanism`] or [`BindingError::DeviceLost`] unless the mechanism is Active;
    /// [`BindingError::IdentityExhausted`] if a counter is full.
    ///
    /// # Panics
    ///
    /// If the allocator does; the operation is uncounted.
    ///
    /// # Progress
    ///
    /// Wait-free, the allocator excepted.
    pub fn virtual_backing(&self) -> Result<Option<BoundVirtualBacking>, BindingError> {
        let _counted = self.mechanism().enter("discovery of virtual backing")?;
        let offered = self.hold().allocator().as_virtual_backing().is_some();
        Ok(offered.then(|| BoundVirtualBacking { binding: self.clone() }))
    }
}

impl BoundVirtualBacking {
    /// The binding that it was discovered through.
    #[must_use]
    pub const fn binding_identity(&self) -> BindingIdentity {
        self.binding.identity()
    }

    /// As [`MemoryBinding::allocate`], with `committed_ranges` (in bytes, from the start) backed at once.
    ///
    /// # Errors
    ///
    /// As the type says, and [`BindingError::IdentityExhausted`] if no identity is left; the memory has been given back then.
    pub fn allocate_committed(
        &self,
        bytes: usize,
        align: usize,
        committed_ranges: &[Range<usize>],
    ) -> Result<BoundAllocation, BindingError> {
        let operation = self.binding.mechanism().enter("committed allocation")?;
        let pointer = self.capability().allocate_committed(bytes, align, committed_ranges)?;
        // SAFETY: just made by this binding's allocator through its capability, with these values, and nobody else knows of it.
        unsafe { self.binding.issued(operation, pointer, bytes, align) }
    }

    /// Backs `bytes` bytes of an allocation from `offset` on.
    ///
    /// # Errors
    ///
    /// As the type says.
    pub fn commit_allocation_range(&self, allocation: &BoundAllocation, offset: usize, bytes: usize) -> Result<(), BindingError> {
        let _counted = self.binding.mechanism().enter("commit")?;
        let AllocationCommitRange { ptr, allocation_bytes, align, .. } = self.range(allocation, offset, bytes)?;
        Ok(self.capability().commit_allocation_range(ptr, allocation_bytes, align, offset, bytes)?)
    }

    /// Backs several ranges, each given as allocation, offset and size in bytes, by one call of the capability. All allocations
    /// are checked first. An empty list makes the call as well.
    ///
    /// # Errors
    ///
    /// As the type says; the first offender decides.
    pub fn commit_allocation_ranges(&self, ranges: &[(&BoundAllocation, usize, usize)]) -> Result<(), BindingError> {
        let _counted = self.binding.mechanism().enter("commit")?;
        let ranges =
            ranges.iter().map(|&(allocation, offset, bytes)| self.range(allocation, offset, bytes)).collect::<Result<Vec<_>, _>>()?;
        Ok(self.capability().commit_allocation_ranges(&ranges)?)
    }

    /// How many bytes of physical memory a wholly backed allocation of this size and alignment would take.
    ///
    /// # Errors
    ///
    /// As the type says.
    pub fn mapped_bytes_for_allocation(&self, bytes: usize, align: usize) -> Result<u64, BindingError> {
        let _counted = self.binding.mechanism().enter("a question about virtual backing")?;
        Ok(self.capability().mapped_bytes_for_allocation(bytes, align)?)
    }

    /// Takes the backing of `bytes` bytes from `offset` on away, and returns the bytes that were unmapped.
    ///
    /// # Errors
    ///
    /// As the type says.
    pub fn decommit_allocation_range(&self, allocation: &BoundAllocation, offset: usize, bytes: usize) -> Result<u64, BindingError> {
        let _counted = self.binding.mechanism().enter("decommit")?;
        let AllocationCommitRange { ptr, allocation_bytes, align, .. } = self.range(allocation, offset, bytes)?;
        Ok(self.capability().decommit_allocation_range(ptr, allocation_bytes, align, offset, bytes)?)
    }

    /// How many bytes of an allocation are backed now.
    ///
    /// # Errors
    ///
    /// As the type says.
    pub fn allocation_committed_bytes(&self, allocation: &BoundAllocation) -> Result<usize, BindingError> {
        let _counted = self.binding.mechanism().enter("a question about virtual backing")?;
        let AllocationCommitRange { ptr, allocation_bytes, align, .. } = self.range(allocation, 0, 0)?;
        Ok(self.capability().allocation_committed_bytes(ptr, allocation_bytes, align))
    }

    /// What the capability is told of a range, if the allocation is this binding's and live.
    fn range(&self, allocation: &BoundAllocation, offset: usize, bytes: usize) -> Result<AllocationCommitRange, BindingError> {
        self.binding.own(allocation.binding())?;
        allocation.live()?;
        Ok(AllocationCommitRange {
            ptr: allocation.as_ptr(),
            allocation_bytes: allocation.len(),
            align: allocation.alignment(),
            offset,
            bytes,
        })
    }

    fn capability(&self) -> Called<'_, dyn VirtualBacking + '_> {
        let allocator = self.binding.hold().allocator();
        allocator.map(|allocator| allocator.as_virtual_backing().expect("the allocator no longer offers its virtual backing"))
    }
}

impl fmt::Debug for BoundVirtualBacking {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("BoundVirtualBacking").field("binding", &self.binding).finish()
    }
}
