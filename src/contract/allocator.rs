//! The contract that an allocator signs, and the types that its capabilities use.

use super::{AllocationReleaseOutcome, DeviceKey, ReleaseAccounting, SharedMapping, VirtualBacking};
use crate::{error::MemoryError, sync::Arc};
use std::any::Any;
use std::fmt::Debug;
use std::ptr::NonNull;

/// One range of one allocation, as [`VirtualBacking::commit_allocation_ranges`] takes it.
///
/// It carries a raw address and therefore stays on its thread: it is neither `Send` nor `Sync`.
#[derive(Clone, Copy, Debug)]
pub struct AllocationCommitRange {
    /// The start of the allocation.
    pub ptr: NonNull<u8>,
    /// The size of the allocation in bytes.
    pub allocation_bytes: usize,
    /// The alignment of the allocation in bytes.
    pub align: usize,
    /// Where the range starts, in bytes from `ptr`.
    pub offset: usize,
    /// The length of the range in bytes.
    pub bytes: usize,
}

/// An allocation together with what it cost. A carrier for providers; the library itself makes none.
#[derive(Debug)]
pub struct MappedAllocation<T> {
    /// The allocation, in whatever form the provider has it.
    pub allocation: T,
    /// The bytes that its budget was charged in addition.
    pub additional_owned_bytes: u64,
    /// The bytes of physical memory that were mapped for it.
    pub newly_mapped_bytes: u64,
}

/// What mapping a shared prefix once cost. The default is nothing at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedPrefixCommitInfo {
    /// The bytes that the budget was charged in addition.
    pub additional_owned_bytes: u64,
    /// The bytes of physical memory that were newly mapped.
    pub newly_mapped_bytes: u64,
    /// The number of mapping units that this took.
    pub granules: usize,
}

/// A shared physical range, made by a [`SharedMapping`]. Dropping it tears it down, on whichever thread that happens.
pub trait SharedDevicePrefix: Send + Sync + Debug {
    /// The range's address on its device.
    fn device_ptr(&self) -> u64;

    /// The bytes of physical memory that it holds.
    fn committed_physical_bytes(&self) -> u64;

    /// The bytes of address space that it maps.
    fn mapped_bytes(&self) -> usize;

    /// The bytes that were asked for.
    fn requested_bytes(&self) -> usize;

    /// The object itself, so that its maker can recognise it. Never called by the library.
    fn as_any(&self) -> &dyn Any;
}

/// Where memory comes from: what a user implements for each kind of memory.
///
/// Three methods are required. The others have a meaning that fits an allocator without them.
///
/// # Who calls what, and on which thread
///
/// Registration hands the allocator to the library as an `Arc<dyn DeviceAllocator>`; from then on any thread may be in
/// any method at any time, in several at once too.
///
/// | method | called by | thread |
/// | --- | --- | --- |
/// | `device` | registration, once | the one that registers |
/// | `allocate` | an allocation through a binding | the one that allocates |
/// | `release` | each way of releasing, once per allocation | its caller's: often another one than the allocation's |
/// | `release_again` | [`retry_quarantined`](crate::BindingRegistry::retry_quarantined), after a failure | its caller's |
/// | `deallocate_with_unmapped` | the provided `release` only | as `release` |
/// | `deallocate` | the provided `deallocate_with_unmapped`; an allocation for which no identity is left | as `release`; as `allocate` |
/// | `as_virtual_backing`, `as_shared_mapping` | discovery through a binding, and each call of a capability handle anew | its caller's |
/// | `trim` | [`BindingRegistry::trim`](crate::BindingRegistry::trim) | its caller's |
/// | `commits_on_demand` | nobody in the library | |
/// | the destructor | whoever lets go of the mechanism last | that one: a call, a drop of a handle, a drop of the registry |
///
/// While the mechanism is active all of these can happen. Once it is retired only releases start, and trims while something of it
/// is still out; once its device is declared lost nothing starts. Calls that were in progress at that moment run to their end.
///
/// # Re-entrancy, blocking, panics
///
/// A method or the destructor may call back into anything: the registry, bindings, allocations, also those of its own
/// mechanism. The library holds nothing while user code runs (no lock exists, no guard, no half-made decision), so a
/// method that blocks for ever delays its caller and keeps its own mechanism from being removed, and nothing else. A
/// panic reaches the caller; nothing is recorded for the call, save that an allocation whose `release` panics is
/// quarantined. `Debug` is demanded for the user's sake: the library prints no allocator.
///
/// # Contract on implementers
///
/// Unsafe code relies on this, in the library and in its users:
///
/// - Memory that was returned is valid until it is released, overlaps no other live allocation of anyone, and is aligned
///   as asked.
/// - `device` always gives the same answer.
/// - A capability that was offered once is offered always, and one that was not never is. It works on the same memory as
///   the allocator that offers it.
/// - A whole allocation goes back through the allocator and never through a capability.
///
/// In return, each allocation is given back at most once: one call of one of the three release methods, with the
/// pointer that was returned and the size and alignment that were asked for. Only what a `release` has *failed* to give back may come
/// again, in [`release_again`](Self::release_again), and only if somebody asks for it.
///
/// # Example
///
/// An allocator that counts what it has handed out:
///
/// ```
/// use liveslot::{DeviceAllocator, DeviceKey, HostAllocator, MemoryError};
/// use std::ptr::NonNull;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// #[derive(Debug, Default)]
/// struct Counting {
///     heap: HostAllocator,
///     outstanding: AtomicUsize,
/// }
///
/// impl DeviceAllocator for Counting {
///     fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
///         let ptr = self.heap.allocate(bytes, align)?;
///         self.outstanding.fetch_add(1, Ordering::Relaxed);
///         Ok(ptr)
///     }
///
///     unsafe fn deallocate(&self, ptr: NonNull<u8>, bytes: usize, align: usize) {
///         // SAFETY: the caller's promise is passed on; all memory of ours is the heap's.
///         unsafe { self.heap.deallocate(ptr, bytes, align) };
///         self.outstanding.fetch_sub(1, Ordering::Relaxed);
///     }
///
///     fn device(&self) -> DeviceKey {
///         self.heap.device()
///     }
/// }
///
/// let allocator = Counting::default();
/// let ptr = allocator.allocate(64, 8)?;
/// // SAFETY: allocated above with these values, and released once.
/// let outcome = unsafe { allocator.release(ptr, 64, 8) };
/// assert!(outcome.is_complete());
/// assert_eq!(allocator.outstanding.into_inner(), 0);
/// # Ok::<(), MemoryError>(())
/// ```
pub trait DeviceAllocator: Send + Sync + Debug {
    /// Makes an allocation of `bytes` bytes at a multiple of `align`.
    ///
    /// Both come unchecked from the caller: zero bytes, and alignments that are no power of two, are for the implementer
    /// to serve or to refuse.
    ///
    /// # Errors
    ///
    /// Whatever keeps the memory from being made. The error reaches the caller unchanged, inside
    /// [`BindingError::Memory`](crate::BindingError::Memory), and nothing is recorded.
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError>;

    /// Gives an allocation back. It cannot fail: an allocator whose release can overrides [`release`](Self::release).
    ///
    /// # Safety
    ///
    /// `ptr` is a live allocation of this allocator, made with precisely this `bytes` and `align`. It is live no more
    /// after the call, and nobody uses its memory during the call or later.
    unsafe fn deallocate(&self, ptr: NonNull<u8>, bytes: usize, align: usize);

    /// Gives an allocation back and returns how many bytes of physical memory were unmapped by that.
    ///
    /// As provided, it calls [`deallocate`](Self::deallocate) and returns 0.
    ///
    /// # Safety
    ///
    /// As for [`deallocate`](Self::deallocate).
    unsafe fn deallocate_with_unmapped(&self, ptr: NonNull<u8>, bytes: usize, align: usize) -> u64 {
        // SAFETY: the caller's promise is passed on, with its arguments.
        unsafe { self.deallocate(ptr, bytes, align) };
        0
    }

    /// Gives an allocation back and tells how that went. This is the method that the library releases through.
    ///
    /// As provided, it calls [`deallocate_with_unmapped`](Self::deallocate_with_unmapped) and reports a complete release
    /// of `bytes` bytes.
    ///
    /// Whatever is reported, the library does not repeat the call by itself: a residual and a failure are quarantined until the
    /// termination of the provider context is confirmed, or until somebody gives them back or up. A failure promises that nothing was
    /// released, so that it may be [retried](Self::release_again). The library keeps the fact and not the text of a
    /// failure: an allocator that wants its reason to be seen logs it before it returns.
    ///
    /// # Safety
    ///
    /// As for [`deallocate`](Self::deallocate), except that memory which the outcome reports as retained stays the
    /// allocator's to account for.
    unsafe fn release(&self, ptr: NonNull<u8>, bytes: usize, align: usize) -> AllocationReleaseOutcome {
        // SAFETY: the caller's promise is passed on, with its arguments.
        let unmapped_bytes = unsafe { self.deallocate_with_unmapped(ptr, bytes, align) };
        AllocationReleaseOutcome::complete(ReleaseAccounting::new(bytes as u64, unmapped_bytes))
    }

    /// Gives an allocation back whose last release has failed: see
    /// [`retry_quarantined`](crate::BindingRegistry::retry_quarantined), which alone calls it, and where a failure may be followed by
    /// the next. Otherwise as [`release`](Self::release), which it calls as provided.
    ///
    /// An allocator that keeps books about failed releases overrides it; one that passes calls on to another passes this one on, too.
    ///
    /// # Safety
    ///
    /// As for [`release`](Self::release). The last call of `release` or `release_again` for this allocation has returned
    /// [`AllocationReleaseOutcome::Failed`], as did all before it.
    unsafe fn release_again(&self, ptr: NonNull<u8>, bytes: usize, align: usize) -> AllocationReleaseOutcome {
        // SAFETY: the caller's promise is passed on, with its arguments; nothing was released before.
        unsafe { self.release(ptr, bytes, align) }
    }

    /// The device whose memory this is.
    fn device(&self) -> DeviceKey;

    /// Gives back memory that is kept without need (cached blocks, free pages of pools), until at most `keep_bytes` bytes of such
    /// memory are left, and returns how many bytes that were. Live allocations stay as they are. As provided, it gives nothing back.
    ///
    /// `keep_bytes` and the answer are in bytes of physical memory. It is a request: an allocator may keep more, and say so by what it
    /// returns. The library believes the number and does nothing with it but return the sum.
    fn trim(&self, keep_bytes: u64) -> u64 {
        let _ = keep_bytes;
        0
    }

    /// Whether allocations start without physical memory, which is added on first use. `false` as provided.
    fn commits_on_demand(&self) -> bool {
        false
    }

    /// The allocator's control over the backing of its allocations, if it offers that. `None` as provided.
    fn as_virtual_backing(&self) -> Option<&dyn VirtualBacking> {
        None
    }

    /// The allocator's shared physical ranges, if it offers them. `None` as provided.
    fn as_shared_mapping(&self) -> Option<&dyn SharedMapping> {
        None
    }
}

/// A shared allocator is an allocator: every method is the inner one's, the provided ones included. So a wrapper that takes an allocator by
/// value takes an `Arc<dyn DeviceAllocator>` too.
impl<A: DeviceAllocator + ?Sized> DeviceAllocator for Arc<A> {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        (**self).allocate(bytes, align)
    }

    unsafe fn deallocate(&self, ptr: NonNull<u8>, bytes: usize, align: usize) {
        // SAFETY: the caller's promise is passed on, with its arguments; here and below.
        unsafe { (**self).deallocate(ptr, bytes, align) }
    }

    unsafe fn deallocate_with_unmapped(&self, ptr: NonNull<u8>, bytes: usize, align: usize) -> u64 {
        // SAFETY: as above.
        unsafe { (**self).deallocate_with_unmapped(ptr, bytes, align) }
    }

    unsafe fn release(&self, ptr: NonNull<u8>, bytes: usize, align: usize) -> AllocationReleaseOutcome {
        // SAFETY: as above.
        unsafe { (**self).release(ptr, bytes, align) }
    }

    unsafe fn release_again(&self, ptr: NonNull<u8>, bytes: usize, align: usize) -> AllocationReleaseOutcome {
        // SAFETY: as above.
        unsafe { (**self).release_again(ptr, bytes, align) }
    }

    fn device(&self) -> DeviceKey {
        (**self).device()
    }

    fn trim(&self, keep_bytes: u64) -> u64 {
        (**self).trim(keep_bytes)
    }

    fn commits_on_demand(&self) -> bool {
        (**self).commits_on_demand()
    }

    fn as_virtual_backing(&self) -> Option<&dyn VirtualBacking> {
        (**self).as_virtual_backing()
    }

    fn as_shared_mapping(&self) -> Option<&dyn SharedMapping> {
        (**self).as_shared_mapping()
    }
}
