//! Address space whose pages come and go.
//!
//! An allocation is one mapping without access. What is recorded about it (size, alignment, a byte per page, two counts)
//! lies in the same mapping, right before the allocation's first byte, and is found through the allocation's address
//! alone: no table exists, and calls on different allocations share nothing of ours.
//!
//! A page is free, owned (memory of its own) or shared (a prefix's memory). The kernel's side of a page and its byte
//! cannot change in one step. Therefore each call takes its pages first, then calls the kernel once, then records the
//! result and lets go: commits share a page, for they all want the same of it; a decommit and the mapping of a prefix take
//! theirs alone. Whoever meets the other kind is refused at once and changes nothing. How that works on one byte is
//! told in [`pages`].
//!
//! | operation | progress | cost besides the system calls |
//! | --- | --- | --- |
//! | allocate | wait-free | 2 system calls, one page of memory for the record |
//! | release | wait-free | 1 system call |
//! | commit | lock-free | 1 system call, 2 compare-and-swaps per page; a load per page if all are committed already |
//! | decommit | lock-free | 1 system call, a compare-and-swap and a store per page; a load per page if none is committed |
//! | mapping of a prefix | lock-free | as decommit |
//! | committed bytes | wait-free | two loads |
//! | bytes that ranges would take | wait-free, save for the heap | a sort of the ranges, a load per page |
//! | making of a prefix | wait-free, save that a signal can make one system call begin anew, for half as much | 4 system calls, 2 more per 64 MiB |
//!
//! The progress guarantees are ours. A system call waits in the kernel for the lock of the process's address space.

mod kernel;
mod pages;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod prefix;
mod reservation;

use self::pages::Busy;
use self::reservation::{Layout, Reservation};
use crate::contract::{AllocationCommitRange, AllocationReleaseOutcome, DeviceAllocator, DeviceKey, ReleaseAccounting, VirtualBacking};
use crate::error::MemoryError;
use crate::sync::Arc;
use rustix::io::Errno;
use std::ops::Range;
use std::ptr::NonNull;
#[cfg(any(target_os = "linux", target_os = "android"))]
use {
    self::prefix::Prefix,
    crate::contract::{SharedDevicePrefix, SharedMapping, SharedPrefixCommitInfo},
};

const BUSY: &str = "another call is committing, decommitting or mapping pages of this range; let it end and repeat the call";
const NOT_OURS: &str = "pointer, size and alignment name no allocation of this allocator";
const OUTSIDE: &str = "the range does not lie in the allocation";

/// Address space of the process with pages that are committed and decommitted range by range.
///
/// **An allocation is inaccessible until it is committed**: [`allocate`](DeviceAllocator::allocate) reserves addresses
/// alone, and touching them ends the process. Commit ranges through [`VirtualBacking`], or map a prefix that many
/// allocations share through its [shared mapping](crate::SharedMapping) (Linux and Android; not offered elsewhere).
///
/// ```
/// use liveslot::{DeviceAllocator, VirtualBacking, VirtualMemory, MemoryError};
///
/// let memory = VirtualMemory::default();
/// let page = memory.page_bytes();
/// let ptr = memory.allocate(1024 * page, 64)?; // addresses alone
/// memory.commit_allocation_range(ptr, 1024 * page, 64, 0, 2 * page)?;
/// assert_eq!(memory.allocation_committed_bytes(ptr, 1024 * page, 64), 2 * page);
/// // SAFETY: the first two pages are committed, and nobody else knows of them.
/// unsafe { ptr.write_bytes(1, 2 * page) };
/// assert_eq!(memory.decommit_allocation_range(ptr, 1024 * page, 64, page, page)?, page as u64);
/// // SAFETY: allocated above with these values, and released once.
/// let outcome = unsafe { memory.release(ptr, 1024 * page, 64) };
/// assert_eq!(outcome.unmapped_bytes(), page as u64);
/// # Ok::<(), MemoryError>(())
/// ```
///
/// # Units
///
/// Sizes and offsets are in bytes; memory comes and goes in pages of [`page_bytes`](Self::page_bytes) bytes, and every
/// number of bytes that is reported is whole pages. The last page of an allocation may reach past its size.
///
/// | call | a range that does not end at pages |
/// | --- | --- |
/// | commit | takes every page that it touches |
/// | decommit | takes the pages that lie in it wholly; a range that reaches the allocation's end takes the last page too |
/// | mapping of a prefix | the offset must be a page's start |
///
/// So a decommit never costs data outside of its range. A range of zero bytes touches no page, and must lie in the
/// allocation like any other. An allocation of zero bytes has an address of its own and no pages.
///
/// # What memory costs
///
/// An allocation costs a page of memory for the record before it, one more per `page_bytes` pages of the allocation of
/// which one was ever used, and addresses: its pages, the record's, and the alignment less a page. A committed page takes
/// memory when it is first touched, reads as zeros until written, and is counted as committed from the commit on. With
/// transparent huge pages the kernel may give memory to committed neighbours too. A decommit gives memory back at once;
/// what is committed anew reads as zeros.
///
/// It keeps nothing without need: what was released or decommitted is with the kernel already. So [`trim`](DeviceAllocator::trim) has
/// nothing to give back and is the provided one; pages that are committed and not used are their owner's to decommit.
///
/// # Concurrency
///
/// Every call may be made from any thread at any time. Calls on pages that no other call is changing do not notice each
/// other, even if the pages are neighbours. On one page:
///
/// | | commit | decommit | mapping of a prefix |
/// | --- | --- | --- | --- |
/// | **commit** | both succeed; the page is counted once | the later is refused | the later is refused |
/// | **decommit** | the later is refused | the later is refused | the later is refused |
/// | **mapping of a prefix** | the later is refused | the later is refused | the later is refused |
///
/// Refused is the whole call, with [`MemoryError::AllocationFailed`] and a reason that says so; nothing of it is done. Beyond 62 commits of
/// one page at the same time a commit is refused in the same way. A commit of pages that are committed, and a decommit of pages that are
/// not, succeed without taking any. A commit of several pages is no one step for others: a decommit that starts when a page is committed
/// may undo it before the commit returns. Who decommits what another still accesses ends the process, as with any memory that is given back
/// too early.
///
/// # Progress
///
/// No call waits for another one in this library: commits, decommits and mappings are lock-free, everything else is
/// wait-free. A thread that stops in the middle keeps others from changing its pages the other way and from nothing
/// else. Inside the kernel, changes of one process's address space wait for each other.
///
/// # What an address means
///
/// The capabilities' methods take addresses, and find what is recorded right before them. Size, alignment, and the
/// allocator that made the allocation are checked, and an address that is no page's start is refused. **An address that
/// names no live allocation of any `VirtualMemory` is the caller's mistake, and the behaviour is undefined**, as is
/// writing before an allocation's first byte. Through a [`MemoryBinding`](crate::MemoryBinding) neither can happen.
///
/// # Errors
///
/// [`MemoryError::InvalidRequest`] for what can never be done, with what is wrong in its reason; [`MemoryError::AllocationFailed`]
/// for what the kernel refused, with its error text, and for what another call is in the way of. `tier` is that of the
/// device, `requested` is the size that the call asked for. A refused call has changed nothing, save that a page may be
/// left accessible but uncommitted if the kernel refuses a commit and the undoing as well.
///
/// # Limits of the kernel
///
/// Linux counts ranges of pages with equal access: `vm.max_map_count`, 65530 by default, limits how many separate ranges
/// all allocations of the process may have committed, at about two for each. Beyond it commits, decommits,
/// allocations and prefixes fail with `AllocationFailed`, and a release may. `RLIMIT_AS` counts addresses, `RLIMIT_DATA`
/// committed ones, and a prefix, being a file, is no larger than `RLIMIT_FSIZE`. After `fork` parent and child share
/// prefixes, and nothing else.
#[derive(Debug)]
pub struct VirtualMemory {
    device: DeviceKey,
    page_bytes: usize,
    /// Its address tells this allocator from all others; a prefix keeps a clone, so that the address is not used again.
    instance: Arc<()>,
}

/// The allocator of [`DeviceKey::HOST`].
impl Default for VirtualMemory {
    fn default() -> Self {
        Self::new(DeviceKey::HOST)
    }
}

impl VirtualMemory {
    /// An allocator that calls its memory that of `device`. It takes no address space by itself.
    pub fn new(device: DeviceKey) -> Self {
        Self { device, page_bytes: rustix::param::page_size(), instance: Arc::new(()) }
    }

    /// The size of a page in bytes, a power of two: the unit in which memory comes and goes.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn owner(&self) -> usize {
        Arc::as_ptr(&self.instance).addr()
    }

    fn invalid(&self, requested: usize, reason: &'static str) -> MemoryError {
        MemoryError::InvalidRequest { tier: self.device.tier.name(), requested: requested as u64, reason }
    }

    fn failed(&self, requested: usize, reason: String) -> MemoryError {
        MemoryError::AllocationFailed { tier: self.device.tier.name(), requested: requested as u64, reason }
    }

    fn busy(&self, requested: usize) -> impl FnOnce(Busy) -> MemoryError {
        move |Busy| self.failed(requested, BUSY.into())
    }

    fn refused(&self, requested: usize, call: &str) -> impl FnOnce(Errno) -> MemoryError {
        move |error| self.failed(requested, refusal(call, error))
    }

    fn layout(&self, bytes: usize, align: usize) -> Result<Layout, MemoryError> {
        Layout::new(bytes, align, self.page_bytes).ok_or_else(|| {
            self.invalid(
                bytes,
                "the alignment must be a power of two, and the pages, their record and the alignment must not exceed isize::MAX",
            )
        })
    }

    /// The allocation of that name; `requested` is for the error alone.
    fn find(&self, ptr: NonNull<u8>, bytes: usize, align: Option<usize>, requested: usize) -> Result<Reservation<'_>, MemoryError> {
        // SAFETY: the callers of the capabilities' methods and of the release methods name live allocations; the type's
        // documentation demands it. The reservation is used within the call alone.
        unsafe { Reservation::find(ptr, bytes, align, self.owner(), self.page_bytes) }.ok_or_else(|| self.invalid(requested, NOT_OURS))
    }

    /// The pages that `bytes` bytes at `offset` touch.
    fn touched(&self, allocation_bytes: usize, offset: usize, bytes: usize) -> Result<Range<usize>, MemoryError> {
        let end = offset.checked_add(bytes).filter(|&end| end <= allocation_bytes).ok_or_else(|| self.invalid(bytes, OUTSIDE))?;
        let first = offset / self.page_bytes;
        Ok(first..if bytes == 0 { first } else { end.div_ceil(self.page_bytes) })
    }

    /// The pages that lie in `bytes` bytes at `offset`.
    fn contained(&self, allocation_bytes: usize, offset: usize, bytes: usize) -> Result<Range<usize>, MemoryError> {
        let end = self.touched(allocation_bytes, offset, bytes)?.end;
        let first = offset.div_ceil(self.page_bytes);
        let reaches_the_end = offset + bytes == allocation_bytes;
        let end = if reaches_the_end { end } else { (offset + bytes) / self.page_bytes };
        Ok(first..end.max(first))
    }

    fn commit(&self, reservation: Reservation<'_>, pages: Range<usize>, requested: usize) -> Result<(), MemoryError> {
        let missing = reservation.pages().range(&pages).uncommitted();
        let pages = pages.start + missing.start..pages.start + missing.end;
        if pages.is_empty() {
            return Ok(());
        }
        let close = |run: Range<usize>| {
            let (start, bytes) = reservation.bytes_of(&(pages.start + run.start..pages.start + run.end), self.page_bytes);
            // SAFETY: pages of the reservation, which this call has claimed and nobody committed.
            unsafe { kernel::close(start, bytes) };
        };
        let held = reservation.pages().range(&pages).hold(close).map_err(self.busy(requested))?;
        let (start, bytes) = reservation.bytes_of(&pages, self.page_bytes);
        // SAFETY: pages of the reservation. They are held: nobody takes their access away meanwhile.
        match unsafe { kernel::open(start, bytes) } {
            Ok(()) => {
                held.publish();
                Ok(())
            }
            Err(error) => {
                held.withdraw(close);
                Err(self.refused(requested, "mprotect")(error))
            }
        }
    }

    fn unmap(&self, ptr: NonNull<u8>, bytes: usize, align: usize) -> Result<ReleaseAccounting, String> {
        let reservation = self.find(ptr, bytes, Some(align), bytes).map_err(|_| NOT_OURS.to_owned())?;
        let unmapped_bytes = reservation.pages().owned_pages() * self.page_bytes;
        // SAFETY: the callers, all of them methods that release, have the promise that the allocation is used no more.
        unsafe { reservation.release() }.map_err(|error| refusal("munmap", error))?;
        Ok(ReleaseAccounting::new(bytes as u64, unmapped_bytes as u64))
    }
}

/// What the kernel said to which call.
fn refusal(call: &str, error: Errno) -> String {
    format!("{call}: {error}")
}

impl DeviceAllocator for VirtualMemory {
    /// Reserves the pages of `bytes` bytes at a multiple of `align` and of the page size. **None of it is accessible
    /// before it is committed.**
    ///
    /// # Errors
    ///
    /// [`MemoryError::InvalidRequest`] if `align` is no power of two, or if what must be reserved exceeds `isize::MAX`;
    /// [`MemoryError::AllocationFailed`] if the kernel has no such addresses.
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        self.layout(bytes, align)?.reserve(self.owner(), self.page_bytes).map_err(self.refused(bytes, "reserving addresses"))
    }

    /// As [`release`](DeviceAllocator::release); where that fails, the allocation stays as it is, out of reach.
    unsafe fn deallocate(&self, ptr: NonNull<u8>, bytes: usize, align: usize) {
        let _ = self.unmap(ptr, bytes, align);
    }

    /// As [`release`](DeviceAllocator::release); where that fails, the allocation stays as it is, out of reach, and the
    /// answer is 0.
    unsafe fn deallocate_with_unmapped(&self, ptr: NonNull<u8>, bytes: usize, align: usize) -> u64 {
        self.unmap(ptr, bytes, align).map_or(0, |accounting| accounting.unmapped_bytes)
    }

    /// Gives addresses and memory back in one step. `unmapped_bytes` are the pages that were committed; those of a prefix
    /// stay the prefix's and do not count.
    ///
    /// It fails, and the allocation is as it was, if the kernel refuses, or if the arguments name no allocation of this
    /// allocator.
    unsafe fn release(&self, ptr: NonNull<u8>, bytes: usize, align: usize) -> AllocationReleaseOutcome {
        match self.unmap(ptr, bytes, align) {
            Ok(accounting) => AllocationReleaseOutcome::complete(accounting),
            Err(reason) => AllocationReleaseOutcome::failed(reason),
        }
    }

    fn device(&self) -> DeviceKey {
        self.device
    }

    /// `true`: an allocation starts without memory.
    fn commits_on_demand(&self) -> bool {
        true
    }

    fn as_virtual_backing(&self) -> Option<&dyn VirtualBacking> {
        Some(self)
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn as_shared_mapping(&self) -> Option<&dyn SharedMapping> {
        Some(self)
    }
}

impl VirtualBacking for VirtualMemory {
    /// Reserves as [`allocate`](DeviceAllocator::allocate) and commits the ranges, all or nothing.
    ///
    /// # Errors
    ///
    /// As `allocate`; [`MemoryError::InvalidRequest`] if a range ends before it starts or outside of the allocation;
    /// [`MemoryError::AllocationFailed`] if the kernel refuses a commit. No address space is kept then.
    fn allocate_committed(&self, bytes: usize, align: usize, committed_ranges: &[Range<usize>]) -> Result<NonNull<u8>, MemoryError> {
        let layout = self.layout(bytes, align)?;
        if committed_ranges.iter().any(|range| range.start > range.end || range.end > bytes) {
            return Err(self.invalid(bytes, OUTSIDE));
        }
        let ptr = layout.reserve(self.owner(), self.page_bytes).map_err(self.refused(bytes, "reserving addresses"))?;
        let reservation = self.find(ptr, bytes, Some(align), bytes)?;
        for range in committed_ranges {
            let pages = self.touched(bytes, range.start, range.len())?;
            if let Err(error) = self.commit(reservation, pages, bytes) {
                // SAFETY: allocated above, known to nobody else, and not used below.
                let _ = unsafe { reservation.release() };
                return Err(error);
            }
        }
        Ok(ptr)
    }

    /// Commits every page that the range touches, all or none. Pages that are committed, or a prefix's, stay as they are.
    ///
    /// # Errors
    ///
    /// [`MemoryError::InvalidRequest`] if the arguments name no allocation of this allocator, or the range does not lie in
    /// it; [`MemoryError::AllocationFailed`] if the kernel refuses, or another call is decommitting one of the pages or
    /// mapping a prefix there.
    fn commit_allocation_range(
        &self,
        ptr: NonNull<u8>,
        allocation_bytes: usize,
        align: usize,
        offset: usize,
        bytes: usize,
    ) -> Result<(), MemoryError> {
        let reservation = self.find(ptr, allocation_bytes, Some(align), bytes)?;
        self.commit(reservation, self.touched(allocation_bytes, offset, bytes)?, bytes)
    }

    /// The bytes of the pages that the ranges touch and that are not committed now, each page once.
    ///
    /// # Errors
    ///
    /// [`MemoryError::InvalidRequest`] if a range names no allocation of this allocator, or does not lie in it.
    fn mapped_bytes_for_allocation_ranges(&self, ranges: &[AllocationCommitRange]) -> Result<u64, MemoryError> {
        let mut touched = Vec::with_capacity(ranges.len());
        for range in ranges {
            let reservation = self.find(range.ptr, range.allocation_bytes, Some(range.align), range.bytes)?;
            touched.push((range.ptr.addr(), self.touched(range.allocation_bytes, range.offset, range.bytes)?, reservation));
        }
        touched.sort_unstable_by_key(|(address, pages, _)| (*address, pages.start));
        let mut missing = 0;
        let mut counted = None;
        for (address, pages, reservation) in touched {
            // Pages before this one were counted, or lie in none of the ranges.
            let from = counted.filter(|&(at, _)| at == address).map_or(0, |(_, end)| end);
            let fresh = pages.start.max(from)..pages.end.max(from);
            if !fresh.is_empty() {
                missing += reservation.pages().range(&fresh).count_uncommitted();
            }
            counted = Some((address, fresh.end));
        }
        Ok((missing * self.page_bytes) as u64)
    }

    /// The size in whole pages.
    ///
    /// # Errors
    ///
    /// Those of [`allocate`](DeviceAllocator::allocate) that do not depend on the kernel.
    fn mapped_bytes_for_allocation(&self, bytes: usize, align: usize) -> Result<u64, MemoryError> {
        Ok(self.layout(bytes, align)?.backing_bytes(self.page_bytes) as u64)
    }

    /// Decommits every page that lies in the range wholly, all or none, gives their memory back, and returns how many
    /// bytes were committed there. Pages of a prefix are unmapped too and count 0, for their memory stays the prefix's.
    ///
    /// # Errors
    ///
    /// As [`commit_allocation_range`](VirtualBacking::commit_allocation_range); another commit in progress is in the way
    /// too. The contents are kept then.
    fn decommit_allocation_range(
        &self,
        ptr: NonNull<u8>,
        allocation_bytes: usize,
        align: usize,
        offset: usize,
        bytes: usize,
    ) -> Result<u64, MemoryError> {
        let reservation = self.find(ptr, allocation_bytes, Some(align), bytes)?;
        let pages = self.contained(allocation_bytes, offset, bytes)?;
        let committed = reservation.pages().range(&pages).committed();
        let pages = pages.start + committed.start..pages.start + committed.end;
        if pages.is_empty() {
            return Ok(0);
        }
        let claimed = reservation.pages().range(&pages).claim().map_err(self.busy(bytes))?;
        let (start, mapped_bytes) = reservation.bytes_of(&pages, self.page_bytes);
        // SAFETY: pages of the reservation, claimed. Their users know that the contents are lost: they, or somebody on
        // their behalf, asked for that.
        match unsafe { kernel::discard(start, mapped_bytes) } {
            Ok(()) => {
                let unmapped = claimed.count(pages::OWNED) * self.page_bytes;
                claimed.settle(pages::FREE);
                Ok(unmapped as u64)
            }
            Err(error) => {
                claimed.unclaim();
                Err(self.refused(bytes, "mmap")(error))
            }
        }
    }

    /// The bytes of all committed pages, those of prefixes included; up to a page more than the size. 0 if the arguments
    /// name no allocation of this allocator.
    ///
    /// Exact while no call changes the allocation. Otherwise pages that a call is committing may be included already, and
    /// none that is committed all the while is left out.
    fn allocation_committed_bytes(&self, ptr: NonNull<u8>, allocation_bytes: usize, align: usize) -> usize {
        let reservation = self.find(ptr, allocation_bytes, Some(align), allocation_bytes);
        reservation.map_or(0, |reservation| (reservation.pages().owned_pages() + reservation.pages().shared_pages()) * self.page_bytes)
    }
}

/// Linux and Android alone: a prefix is an anonymous file in memory (`memfd`), mapped into each allocation.
#[cfg(any(target_os = "linux", target_os = "android"))]
impl SharedMapping for VirtualMemory {
    /// Makes `bytes` bytes in whole pages. All of the memory is taken now, zeroed, and counted by the kernel as shared.
    ///
    /// The prefix has a mapping of its own, readable and writable, at
    /// [`device_ptr`](SharedDevicePrefix::device_ptr), through which it is filled. The address's provenance is exposed:
    /// [`std::ptr::with_exposed_provenance_mut`] makes it a pointer, which is valid until the prefix is dropped. What is
    /// written there, or through any allocation that it is mapped into, is seen through all of them; ordering that is the
    /// writers' duty, as for any shared memory.
    ///
    /// Dropping it while it is mapped into allocations is fine: they keep the memory, which the kernel takes back with the
    /// last mapping. A prefix keeps one file descriptor.
    ///
    /// # Errors
    ///
    /// [`MemoryError::InvalidRequest`] for zero bytes, and for a size that exceeds `isize::MAX` in whole pages;
    /// [`MemoryError::AllocationFailed`] if the machine has less memory and swap in all, if files may not be so large
    /// (`RLIMIT_FSIZE`), or if the kernel has no file descriptor or addresses. What the machine has but cannot spare now is
    /// the kernel's out-of-memory killer's business.
    fn create_shared_prefix(&self, bytes: usize) -> Result<Box<dyn SharedDevicePrefix>, MemoryError> {
        let mapped_bytes = bytes.checked_next_multiple_of(self.page_bytes).filter(|mapped| (1..=isize::MAX as usize).contains(mapped));
        let mapped_bytes =
            mapped_bytes.ok_or_else(|| self.invalid(bytes, "a prefix takes at least one byte, and at most isize::MAX in whole pages"))?;
        let prefix = Prefix::new(bytes, mapped_bytes, self.instance.clone()).map_err(self.refused(bytes, "memfd"))?;
        Ok(Box::new(prefix))
    }

    /// 0: the memory was taken when the prefix was made.
    ///
    /// # Errors
    ///
    /// [`MemoryError::InvalidRequest`] if this allocator did not make the prefix.
    fn incremental_owned_bytes_for_shared_prefix(&self, prefix: &dyn SharedDevicePrefix) -> Result<u64, MemoryError> {
        self.own(prefix).map(|_| 0)
    }

    /// Maps the prefix over uncommitted pages, all of it or nothing.
    ///
    /// The pages that it takes count as committed from then on, cost nothing (0 bytes owned and newly mapped; `granules`
    /// is their number) and are unmapped by a decommit like any others.
    ///
    /// # Errors
    ///
    /// [`MemoryError::InvalidRequest`] if this allocator did not make the prefix or the allocation, if the offset is no
    /// page's start, if the prefix in whole pages does not lie in the allocation in whole pages, or if one of the pages is
    /// committed (decommit it first, so that no data is lost unasked); [`MemoryError::AllocationFailed`] if the kernel
    /// refuses, or another call is changing one of the pages. The pages are uncommitted then as before.
    fn commit_shared_prefix(
        &self,
        prefix: &dyn SharedDevicePrefix,
        ptr: NonNull<u8>,
        allocation_bytes: usize,
        byte_offset: usize,
    ) -> Result<SharedPrefixCommitInfo, MemoryError> {
        let prefix = self.own(prefix)?;
        let bytes = prefix.requested_bytes();
        let reservation = self.find(ptr, allocation_bytes, None, bytes)?;
        if !byte_offset.is_multiple_of(self.page_bytes) {
            return Err(self.invalid(bytes, "a prefix can only be mapped at a multiple of the page size"));
        }
        let granules = prefix.mapped_bytes() / self.page_bytes;
        let first = byte_offset / self.page_bytes;
        let pages = first..first + granules;
        if pages.end > reservation.pages().states.len() {
            return Err(self.invalid(bytes, OUTSIDE));
        }
        let claimed = reservation.pages().range(&pages).claim().map_err(self.busy(bytes))?;
        if claimed.count(pages::FREE) < granules {
            claimed.unclaim();
            return Err(self.invalid(bytes, "pages of the range are committed; decommit them before a prefix is mapped there"));
        }
        let (start, _) = reservation.bytes_of(&pages, self.page_bytes);
        // SAFETY: pages of the reservation, as many as the prefix has; claimed and free, so without contents.
        match unsafe { prefix.map_over(start) } {
            Ok(()) => {
                claimed.settle(pages::SHARED);
                Ok(SharedPrefixCommitInfo { granules, ..SharedPrefixCommitInfo::default() })
            }
            Err(error) => {
                claimed.unclaim();
                Err(self.refused(bytes, "mmap")(error))
            }
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl VirtualMemory {
    /// The prefix as what it is, if this allocator made it.
    fn own<'a>(&self, prefix: &'a dyn SharedDevicePrefix) -> Result<&'a Prefix, MemoryError> {
        let own = prefix.as_any().downcast_ref::<Prefix>().filter(|own| own.is_made_by(&self.instance));
        own.ok_or_else(|| self.invalid(prefix.requested_bytes(), "another allocator made this prefix"))
    }
}
