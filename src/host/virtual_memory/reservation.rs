//! One allocation: its address space, and what is recorded about it right before its first byte.

use super::kernel;
use super::pages::Pages;
use crate::sync::atomic::{AtomicU8, AtomicUsize};
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

/// Marks a header that is in use.
const MARK: u64 = u64::from_ne_bytes(*b"liveslot");

/// Ends where the allocation begins. Before it lie the pages' states, one byte each.
///
/// All of it is written once, before the allocation is returned, save for the two counts.
#[repr(C)]
struct Header {
    mark: u64,
    /// Which allocator made it.
    owner: usize,
    base: NonNull<u8>,
    reserved_bytes: usize,
    bytes: usize,
    align: usize,
    pages: usize,
    owned: AtomicUsize,
    shared: AtomicUsize,
}

/// Where things lie in the address space of an allocation. All but the last two in bytes.
///
/// ```text
/// base         the alignment's padding    states  Header │ allocation            padding
/// ├─ no access ──────────────────────────┼─ accessible ──┼─ no access at first ──────────┤
/// ```
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    reserved_bytes: usize,
    /// Of states and header together, in whole pages.
    record_bytes: usize,
    bytes: usize,
    align: usize,
    pages: usize,
}

impl Layout {
    /// `None` if `align` is no power of two, or the address space needed exceeds `isize::MAX`.
    pub(super) fn new(bytes: usize, align: usize, page_bytes: usize) -> Option<Self> {
        if !align.is_power_of_two() {
            return None;
        }
        let pages = bytes.div_ceil(page_bytes);
        let record_bytes = pages.checked_add(size_of::<Header>())?.checked_next_multiple_of(page_bytes)?;
        let reserved_bytes = pages
            .max(1) // so that no other mapping begins at an allocation's address
            .checked_mul(page_bytes)?
            .checked_add(record_bytes)?
            .checked_add(align.saturating_sub(page_bytes))?;
        (reserved_bytes <= isize::MAX as usize).then_some(Self { reserved_bytes, record_bytes, bytes, align, pages })
    }

    /// The bytes of the allocation in whole pages.
    pub(super) fn backing_bytes(&self, page_bytes: usize) -> usize {
        self.pages * page_bytes
    }

    /// Reserves the address space and writes the record.
    pub(super) fn reserve(self, owner: usize, page_bytes: usize) -> rustix::io::Result<NonNull<u8>> {
        let Self { reserved_bytes, record_bytes, bytes, align, pages } = self;
        let base = kernel::reserve(reserved_bytes)?;
        // The record fits before every address from `base + record_bytes` on, and the allocation after it.
        let offset = (base.addr().get() + record_bytes).next_multiple_of(align.max(page_bytes)) - base.addr().get();
        // SAFETY: `offset` exceeds `record_bytes` by less than the padding that `new` added, so both lie in the mapping.
        let (start, record) = unsafe { (base.add(offset), base.add(offset - record_bytes)) };
        // SAFETY: the record's pages were mapped above, and nobody else knows of them.
        if let Err(error) = unsafe { kernel::open(record, record_bytes) } {
            // SAFETY: as above. Nothing was counted yet; should this fail too, address space is lost and no memory.
            let _ = unsafe { kernel::release(base, reserved_bytes) };
            return Err(error);
        }
        let (owned, shared) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let header = Header { mark: MARK, owner, base, reserved_bytes, bytes, align, pages, owned, shared };
        // SAFETY: the header's place is accessible, unknown to anybody else, and aligned: `start` is a page's start, and
        // the header's size is a multiple of its alignment. The states before it are zero, which is `FREE`.
        unsafe { start.cast::<Header>().sub(1).write(header) };
        Ok(start)
    }
}

/// A live allocation, found through its address.
#[derive(Clone, Copy)]
pub(super) struct Reservation<'a> {
    header: &'a Header,
    start: NonNull<u8>,
}

impl<'a> Reservation<'a> {
    /// The allocation at `start`; `None` if another allocator made it, or with another size or, where one is given,
    /// alignment.
    ///
    /// # Safety
    ///
    /// If `start` is a page's start, then it is that of a [`Reservation`] that lives for `'a`.
    pub(super) unsafe fn find(start: NonNull<u8>, bytes: usize, align: Option<usize>, owner: usize, page_bytes: usize) -> Option<Self> {
        if !start.addr().get().is_multiple_of(page_bytes) {
            return None;
        }
        // SAFETY: the caller promises a reservation here, whose header ends at `start` and is only read, or changed
        // through atomics, until it is released.
        let header = unsafe { start.cast::<Header>().sub(1).as_ref() };
        let found =
            header.mark == MARK && header.owner == owner && header.bytes == bytes && align.is_none_or(|align| header.align == align);
        found.then_some(Self { header, start })
    }

    /// All of its pages.
    pub(super) fn pages(&self) -> Pages<'a> {
        let Header { pages, owned, shared, .. } = self.header;
        // SAFETY: the states lie right before the header, in the same mapping, zeroed by the kernel; they are accessed as
        // atomics alone until the allocation is released, which its users promise not to do while they use it.
        let states = unsafe {
            let header = self.start.cast::<Header>().sub(1).cast::<AtomicU8>();
            slice::from_raw_parts(header.sub(*pages).as_ptr(), *pages)
        };
        Pages { states, owned, shared }
    }

    /// Where a range of its pages begins, and how many bytes it has.
    pub(super) fn bytes_of(&self, pages: &Range<usize>, page_bytes: usize) -> (NonNull<u8>, usize) {
        // SAFETY: page numbers come from slices of `pages`, which has one state for each page that lies in the mapping.
        (unsafe { self.start.add(pages.start * page_bytes) }, pages.len() * page_bytes)
    }

    /// Gives the address space back. On an error everything is as it was.
    ///
    /// # Safety
    ///
    /// Nobody uses the allocation any more, and this copy of the reservation is the last.
    pub(super) unsafe fn release(self) -> rustix::io::Result<()> {
        let Header { base, reserved_bytes, .. } = *self.header;
        // SAFETY: `reserve` mapped precisely this; the caller promises the rest.
        unsafe { kernel::release(base, reserved_bytes) }
    }
}
