//! The process heap as an allocator.

use crate::contract::{DeviceAllocator, DeviceKey, Tier};
use crate::error::MemoryError;
use std::alloc::{self, Layout, LayoutError};
use std::ptr::NonNull;

/// The process heap: the global allocator behind the [`DeviceAllocator`] contract.
///
/// A zero-byte allocation takes one byte, so that every live allocation has an address of its own. It offers no
/// capability, and its progress guarantee is the global allocator's.
///
/// ```
/// use liveslot::{DeviceAllocator, DeviceKey, HostAllocator, MemoryError};
///
/// let ptr = HostAllocator.allocate(4096, 64)?;
/// assert_eq!(ptr.addr().get() % 64, 0);
/// assert_eq!(HostAllocator.device(), DeviceKey::HOST);
/// // SAFETY: allocated above with these values, and given back once.
/// unsafe { HostAllocator.deallocate(ptr, 4096, 64) };
/// # Ok::<(), MemoryError>(())
/// ```
#[derive(Debug, Default, Clone, Copy)]
pub struct HostAllocator;

/// The layout that stands for a request of this size, which is never empty.
#[inline(always)]
fn layout(bytes: usize, align: usize) -> Result<Layout, LayoutError> {
    Layout::from_size_align(bytes.max(1), align)
}

#[cold]
fn invalid(bytes: usize) -> MemoryError {
    MemoryError::InvalidRequest {
        tier: Tier::Host.name(),
        requested: bytes as u64,
        reason: "the alignment must be a power of two, and the size rounded up to it must not exceed isize::MAX",
    }
}

#[cold]
fn exhausted(bytes: usize) -> MemoryError {
    const REASON: &str = "the process heap has no such block; release memory or ask for less";
    // Without a reason where the heap has no room for the reason either: that must not abort.
    let mut reason = String::new();
    if reason.try_reserve_exact(REASON.len()).is_ok() {
        reason.push_str(REASON);
    }
    MemoryError::AllocationFailed { tier: Tier::Host.name(), requested: bytes as u64, reason }
}

impl DeviceAllocator for HostAllocator {
    /// Takes `max(bytes, 1)` bytes from the heap, uninitialised.
    ///
    /// # Errors
    ///
    /// [`MemoryError::InvalidRequest`] if `align` is no power of two, or if `bytes` rounded up to it exceeds
    /// `isize::MAX`; [`MemoryError::AllocationFailed`] if the heap has no such block.
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        let layout = layout(bytes, align).map_err(|_| invalid(bytes))?;
        // SAFETY: the layout has at least one byte.
        NonNull::new(unsafe { alloc::alloc(layout) }).ok_or_else(|| exhausted(bytes))
    }

    /// Gives the memory back to the heap. A size and alignment that `allocate` would have refused do nothing.
    unsafe fn deallocate(&self, ptr: NonNull<u8>, bytes: usize, align: usize) {
        if let Ok(layout) = layout(bytes, align) {
            // SAFETY: the caller promises that `ptr` came from `allocate` with these values, which gives this layout.
            unsafe { alloc::dealloc(ptr.as_ptr(), layout) };
        }
    }

    fn device(&self) -> DeviceKey {
        DeviceKey::HOST
    }
}
