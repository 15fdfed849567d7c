//! The kernel's side: address space and what lies behind it. Every call is one system call and changes whole pages.
//!
//! The kernel serialises changes of one process's address space with a lock of its own.

use rustix::io::Result;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ptr::{self, NonNull};

/// What a reservation is: pages of our own, without a claim to memory as long as nothing is written.
fn reserved() -> MapFlags {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return MapFlags::PRIVATE | MapFlags::NORESERVE;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    MapFlags::PRIVATE
}

/// Reserves `bytes` bytes of address space somewhere, without access.
pub(super) fn reserve(bytes: usize) -> Result<NonNull<u8>> {
    // SAFETY: a mapping at an address of the kernel's choice touches no other.
    let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), reserved()) }?;
    Ok(NonNull::new(base.cast()).expect("the kernel maps nothing at address 0 unasked"))
}

/// Replaces whatever the pages hold by reserved ones without access. On an error they are as they were.
///
/// That holds as far as the kernel finds its error before it takes the old pages away. Linux does so for every limit
/// (mappings, address space, locked memory), and needs no more than a small block of its own afterwards.
///
/// # Safety
///
/// The pages belong to a mapping of the caller's, and nobody uses their contents from now on.
pub(super) unsafe fn discard(start: NonNull<u8>, bytes: usize) -> Result<()> {
    // SAFETY: the caller owns what is replaced.
    unsafe { mmap_anonymous(start.as_ptr().cast(), bytes, ProtFlags::empty(), reserved() | MapFlags::FIXED) }.map(drop)
}

/// Makes pages accessible; what is there already stays. On an error the pages up to some place are accessible.
///
/// # Safety
///
/// The pages belong to a mapping of the caller's.
pub(super) unsafe fn open(start: NonNull<u8>, bytes: usize) -> Result<()> {
    // SAFETY: the caller owns the pages.
    unsafe { mprotect(start.as_ptr().cast(), bytes, MprotectFlags::READ | MprotectFlags::WRITE) }
}

/// Takes the access to pages back, as far as a failed [`open`] of the same pages got at the least.
///
/// # Safety
///
/// The pages belong to a mapping of the caller's, and nobody accesses them.
pub(super) unsafe fn close(start: NonNull<u8>, bytes: usize) {
    // An error ends this walk no earlier than it ended that of `open`: both go upwards, and what refused then is still
    // without access. Neither asks for more mappings than there were in between.
    // SAFETY: the caller owns the pages.
    let _ = unsafe { mprotect(start.as_ptr().cast(), bytes, MprotectFlags::empty()) };
}

/// Gives address space back with all that lies behind it. On an error all of it is as it was.
///
/// # Safety
///
/// The pages belong to a mapping of the caller's, and nobody uses them any more.
pub(super) unsafe fn release(base: NonNull<u8>, bytes: usize) -> Result<()> {
    // SAFETY: the caller owns the pages.
    unsafe { munmap(base.as_ptr().cast(), bytes) }
}
