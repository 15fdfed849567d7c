//! What an allocator may offer besides plain allocation.
//!
//! A capability is reached through its allocator and works on the same memory. The registry asks the allocator for it
//! again on every call, so a capability's state belongs into the allocator. Everything that [`DeviceAllocator`] says
//! about threads and re-entrancy holds for these traits too. Arguments are passed on as the caller gave them: offsets
//! and lengths beyond the allocation are for the implementer to refuse.
//!
//! [`DeviceAllocator`]: super::DeviceAllocator

use super::{AllocationCommitRange, SharedDevicePrefix, SharedPrefixCommitInfo};
use crate::error::MemoryError;
use std::fmt::Debug;
use std::ops::Range;
use std::ptr::NonNull;

/// Memory whose address range is reserved first and backed by physical memory range by range.
///
/// Allocations are released through the allocator, never through this trait. All sizes and offsets are in bytes.
/// `ptr`, `allocation_bytes` and `align` together name an allocation as it was made; `offset` and `bytes` a range in it.
///
/// # Errors
///
/// Every error reaches the caller unchanged, inside [`BindingError::Memory`](crate::BindingError::Memory), and changes
/// no count of the mechanism.
pub trait VirtualBacking: Send + Sync + Debug {
    /// Reserves `bytes` bytes at a multiple of `align` and backs `committed_ranges`, which are relative to the start.
    fn allocate_committed(&self, bytes: usize, align: usize, committed_ranges: &[Range<usize>]) -> Result<NonNull<u8>, MemoryError>;

    /// Backs one range of an allocation.
    fn commit_allocation_range(
        &self,
        ptr: NonNull<u8>,
        allocation_bytes: usize,
        align: usize,
        offset: usize,
        bytes: usize,
    ) -> Result<(), MemoryError>;

    /// Backs several ranges, which may belong to several allocations.
    ///
    /// As provided, it calls [`commit_allocation_range`](Self::commit_allocation_range) for each in order and stops at
    /// the first error; what was committed before stays committed. Implementers may do better.
    fn commit_allocation_ranges(&self, ranges: &[AllocationCommitRange]) -> Result<(), MemoryError> {
        for range in ranges {
            self.commit_allocation_range(range.ptr, range.allocation_bytes, range.align, range.offset, range.bytes)?;
        }
        Ok(())
    }

    /// How many bytes of physical memory would have to be mapped to back `ranges`. Never called by the library.
    fn mapped_bytes_for_allocation_ranges(&self, ranges: &[AllocationCommitRange]) -> Result<u64, MemoryError>;

    /// How many bytes of physical memory a fully backed allocation of this size and alignment would take.
    fn mapped_bytes_for_allocation(&self, bytes: usize, align: usize) -> Result<u64, MemoryError>;

    /// Takes the backing of one range away and returns the bytes that were unmapped.
    fn decommit_allocation_range(
        &self,
        ptr: NonNull<u8>,
        allocation_bytes: usize,
        align: usize,
        offset: usize,
        bytes: usize,
    ) -> Result<u64, MemoryError>;

    /// How many bytes of the allocation are backed now.
    fn allocation_committed_bytes(&self, ptr: NonNull<u8>, allocation_bytes: usize, align: usize) -> usize;
}

/// Physical memory that can be mapped into several allocations at once.
///
/// # Contract on implementers
///
/// [`commit_shared_prefix`](Self::commit_shared_prefix) either succeeds or leaves no mapping behind. A prefix that this
/// object did not make is refused by both methods that take one, even where it would cost nothing.
pub trait SharedMapping: Send + Sync + Debug {
    /// Makes a shared range of at least `bytes` bytes. Dropping the box tears it down.
    ///
    /// # Errors
    ///
    /// Whatever keeps the memory from being made; it reaches the caller unchanged.
    fn create_shared_prefix(&self, bytes: usize) -> Result<Box<dyn SharedDevicePrefix>, MemoryError>;

    /// How many bytes the budget would be charged if `prefix` were mapped once more.
    ///
    /// # Errors
    ///
    /// A foreign prefix; it reaches the caller unchanged.
    fn incremental_owned_bytes_for_shared_prefix(&self, prefix: &dyn SharedDevicePrefix) -> Result<u64, MemoryError>;

    /// Maps `prefix` into the allocation of `allocation_bytes` bytes at `ptr`, starting `byte_offset` bytes into it.
    ///
    /// # Errors
    ///
    /// A foreign prefix, a range that does not fit, or whatever keeps it from being mapped; it reaches the caller
    /// unchanged.
    fn commit_shared_prefix(
        &self,
        prefix: &dyn SharedDevicePrefix,
        ptr: NonNull<u8>,
        allocation_bytes: usize,
        byte_offset: usize,
    ) -> Result<SharedPrefixCommitInfo, MemoryError>;
}
