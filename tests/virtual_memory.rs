//! Address space whose pages come and go, as the kernel's own accounting of this process sees it.
//!
//! The allocator is used directly, without a registry. Tests of limits run in a child process, for limits are the
//! process's. Where the kernel must refuse a call on chosen pages, they are sealed (`mseal`, Linux 6.10).
#![cfg(target_os = "linux")]

mod common {
    pub mod smaps;
    pub mod watchdog;
}

use common::{
    smaps::{is_accessible, mapping_of, mappings},
    watchdog::in_time,
};
use liveslot::{
    AllocationCommitRange, AllocationReleaseOutcome, DeviceAllocator, DeviceKey, MemoryError, SharedDevicePrefix, SharedMapping,
    VirtualBacking, VirtualMemory,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    any::Any,
    mem::offset_of,
    ops::Range,
    os::unix::fs::MetadataExt,
    process::Command,
    ptr::NonNull,
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

const BUSY: &str = "another call is committing, decommitting or mapping pages of this range; let it end and repeat the call";
const NOT_OURS: &str = "pointer, size and alignment name no allocation of this allocator";
const OUTSIDE: &str = "the range does not lie in the allocation";
const BAD_LAYOUT: &str = "the alignment must be a power of two, and the pages, their record and the alignment must not exceed isize::MAX";

/// An allocation with its name, released at the end.
struct Allocation<'a> {
    memory: &'a VirtualMemory,
    ptr: NonNull<u8>,
    bytes: usize,
    align: usize,
}

// SAFETY: an address and three numbers; what it points to is accessed under the rules of each test.
unsafe impl Sync for Allocation<'_> {}

impl<'a> Allocation<'a> {
    fn new(memory: &'a VirtualMemory, bytes: usize, align: usize) -> Self {
        Self { memory, ptr: memory.allocate(bytes, align).unwrap(), bytes, align }
    }

    fn commit(&self, offset: usize, bytes: usize) -> Result<(), MemoryError> {
        self.memory.commit_allocation_range(self.ptr, self.bytes, self.align, offset, bytes)
    }

    fn decommit(&self, offset: usize, bytes: usize) -> Result<u64, MemoryError> {
        self.memory.decommit_allocation_range(self.ptr, self.bytes, self.align, offset, bytes)
    }

    fn share(&self, prefix: &dyn SharedDevicePrefix, offset: usize) -> Result<usize, MemoryError> {
        let info = self.memory.commit_shared_prefix(prefix, self.ptr, self.bytes, offset)?;
        assert_eq!((info.additional_owned_bytes, info.newly_mapped_bytes), (0, 0), "the memory was paid when the prefix was made");
        Ok(info.granules)
    }

    fn committed(&self) -> usize {
        self.memory.allocation_committed_bytes(self.ptr, self.bytes, self.align)
    }

    fn range(&self, offset: usize, bytes: usize) -> AllocationCommitRange {
        AllocationCommitRange { ptr: self.ptr, allocation_bytes: self.bytes, align: self.align, offset, bytes }
    }

    fn is_recorded(&self, page: usize) -> bool {
        let page_bytes = self.memory.page_bytes();
        self.memory.mapped_bytes_for_allocation_ranges(&[self.range(page * page_bytes, 1)]).unwrap() == 0
    }

    fn address(&self, offset: usize) -> usize {
        self.ptr.addr().get() + offset
    }

    /// Which pages the kernel lets us access.
    fn accessible(&self) -> Vec<bool> {
        let page = self.memory.page_bytes();
        is_accessible(self.address(0), self.bytes.div_ceil(page), page)
    }

    /// Writes one byte; its page is committed, and nobody else uses the byte.
    fn write(&self, offset: usize, value: u8) {
        // SAFETY: the tests write to committed pages, each byte from one thread.
        unsafe { self.ptr.add(offset).write_volatile(value) };
    }

    /// Reads one byte; its page is committed, and nobody writes the byte.
    fn read(&self, offset: usize) -> u8 {
        // SAFETY: as for `write`.
        unsafe { self.ptr.add(offset).read_volatile() }
    }

    fn release(self) -> AllocationReleaseOutcome {
        let (memory, ptr, bytes, align) = (self.memory, self.ptr, self.bytes, self.align);
        std::mem::forget(self);
        // SAFETY: allocated with these values, and released once, for `self` is forgotten.
        unsafe { memory.release(ptr, bytes, align) }
    }
}

impl Drop for Allocation<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated with these values, and released once.
        let outcome = unsafe { self.memory.release(self.ptr, self.bytes, self.align) };
        assert!(outcome.is_complete() || thread::panicking(), "{outcome:?}");
    }
}

/// The reason of an invalid request on the host tier, with the size that it repeats.
#[track_caller]
fn invalid<T>(result: Result<T, MemoryError>) -> (u64, &'static str) {
    match result {
        Err(MemoryError::InvalidRequest { tier: "host", requested, reason }) => (requested, reason),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("not refused"),
    }
}

/// The reason of a failed allocation on the host tier, with the size that it repeats.
#[track_caller]
fn failed<T>(result: Result<T, MemoryError>) -> (u64, String) {
    match result {
        Err(MemoryError::AllocationFailed { tier: "host", requested, reason }) => (requested, reason),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("not refused"),
    }
}

/// Makes the kernel refuse every change of these pages for the rest of the process.
fn seal(allocation: &Allocation<'_>, pages: Range<usize>) {
    let page = allocation.memory.page_bytes();
    // mseal, whose number is the same on every architecture.
    // SAFETY: the call changes no contents.
    let result = unsafe { libc::syscall(462, allocation.address(pages.start * page), pages.len() * page, 0_usize) };
    assert_eq!(result, 0, "mseal: {}; these tests need Linux 6.10", std::io::Error::last_os_error());
}

/// Runs `body` in a process of its own: the test starts itself anew, and alone.
fn in_child(name: &str, body: impl FnOnce()) {
    const MARK: &str = "LIVESLOT_TEST_CHILD";
    if std::env::var_os(MARK).is_some_and(|child| child == name) {
        return body();
    }
    let output = Command::new(std::env::current_exe().unwrap()).args(["--exact", name, "--nocapture"]).env(MARK, name).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// The process's own figure in `/proc/self/status`, in bytes.
fn status(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

/// A limit of the process, until it is dropped.
struct Limit(Resource, Rlimit);

impl Limit {
    fn new(resource: Resource, most: u64) -> Self {
        let before = getrlimit(resource);
        setrlimit(resource, Rlimit { current: Some(most), maximum: before.maximum }).unwrap();
        Self(resource, before)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        setrlimit(self.0, Rlimit { current: self.1.current, maximum: self.1.maximum }).unwrap();
    }
}

/// What a user expects at the first look: values, capabilities, thread safety.
#[test]
fn it_is_an_allocator_with_both_capabilities() {
    fn shared<T: Send + Sync + std::fmt::Debug>(_: &T) {}
    let memory = VirtualMemory::default();
    shared(&memory);
    assert_eq!(memory.device(), DeviceKey::HOST);
    assert_eq!(VirtualMemory::new(DeviceKey::device(3)).device(), DeviceKey::device(3));
    assert!(memory.commits_on_demand());
    assert!(memory.page_bytes().is_power_of_two());
    let allocation = Allocation::new(&memory, 1, 1);
    let backing = memory.as_virtual_backing().unwrap();
    backing.commit_allocation_range(allocation.ptr, 1, 1, 0, 1).unwrap();
    assert_eq!(allocation.committed(), memory.page_bytes(), "the capability works on the same memory");
    assert_eq!(memory.as_shared_mapping().unwrap().create_shared_prefix(1).unwrap().requested_bytes(), 1);
}

/// A commit takes every page that it touches; a decommit none that reaches out of its range.
#[test]
fn ranges_are_rounded_so_that_no_data_is_lost() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let allocation = Allocation::new(&memory, 4 * page + 1, 1);
    assert_eq!(allocation.accessible(), [false; 5]);

    allocation.commit(page - 1, 2).unwrap();
    assert_eq!(allocation.accessible(), [true, true, false, false, false]);
    assert_eq!(allocation.committed(), 2 * page);
    allocation.write(0, 7);
    allocation.write(2 * page - 1, 8);

    assert_eq!(allocation.decommit(1, 2 * page - 2).unwrap(), 0, "neither page lies in the range");
    assert_eq!((allocation.read(0), allocation.read(2 * page - 1)), (7, 8));
    assert_eq!(allocation.decommit(1, 2 * page - 1).unwrap(), page as u64, "the second page does");
    assert_eq!(allocation.accessible(), [true, false, false, false, false]);
    assert_eq!(allocation.read(0), 7);

    allocation.commit(4 * page, 1).unwrap();
    assert_eq!(allocation.accessible(), [true, false, false, false, true]);
    assert_eq!(allocation.decommit(4 * page, 1).unwrap(), page as u64, "the last page ends with the allocation");
    assert_eq!(allocation.accessible(), [true, false, false, false, false]);
    assert_eq!(allocation.release().unmapped_bytes(), page as u64);
}

/// Overlapping and repeated commits, decommits of what is not committed: each page counts once, and contents stay.
#[test]
fn each_page_counts_once() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let allocation = Allocation::new(&memory, 8 * page, page);
    allocation.commit(page, 3 * page).unwrap();
    allocation.write(2 * page, 9);
    allocation.commit(page, 3 * page).unwrap();
    allocation.commit(2 * page, 4 * page).unwrap();
    allocation.commit(0, 2 * page).unwrap();
    assert_eq!(allocation.committed(), 6 * page);
    assert_eq!(allocation.read(2 * page), 9);
    assert_eq!(allocation.decommit(6 * page, 2 * page).unwrap(), 0);
    assert_eq!(allocation.decommit(3 * page, page).unwrap(), page as u64);
    allocation.commit(0, 8 * page).unwrap(); // what is missing lies around what is there
    assert_eq!(allocation.committed(), 8 * page);
    assert_eq!(allocation.decommit(6 * page, 2 * page).unwrap(), 2 * page as u64);
    assert_eq!(allocation.decommit(5 * page, 3 * page).unwrap(), page as u64);
    assert_eq!(allocation.decommit(5 * page, 3 * page).unwrap(), 0);
    assert_eq!(allocation.decommit(page, page).unwrap(), page as u64);
    assert_eq!(allocation.decommit(0, 8 * page).unwrap(), 4 * page as u64);
    assert_eq!(allocation.committed(), 0);
    assert_eq!(allocation.accessible(), [false; 8]);
    assert_eq!(allocation.release().unmapped_bytes(), 0);
}

/// What is committed anew reads as zeros.
#[test]
fn memory_that_comes_back_is_zero() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let allocation = Allocation::new(&memory, 3 * page, page);
    allocation.commit(0, 3 * page).unwrap();
    (0..3).for_each(|number| allocation.write(number * page, 5));
    assert_eq!(allocation.decommit(page, page).unwrap(), page as u64);
    allocation.commit(0, 3 * page).unwrap();
    assert_eq!([0, 1, 2].map(|number| allocation.read(number * page)), [5, 0, 5]);
}

/// Ranges out of bounds, and such whose end is no number.
#[test]
fn ranges_outside_of_the_allocation_are_refused() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let bytes = 2 * page + 10; // the last page has room after it, which is nobody's
    let allocation = Allocation::new(&memory, bytes, page);
    for (offset, length) in [
        (0, bytes + 1),
        (bytes, 1),
        (bytes + 1, 0),
        (page, usize::MAX),
        (usize::MAX, 0),
        (usize::MAX, usize::MAX),
        (page, usize::MAX - page + 1),
        (usize::MAX - page + 1, 2 * page),
    ] {
        let expected = (length as u64, OUTSIDE);
        assert_eq!(invalid(allocation.commit(offset, length)), expected, "{offset}, {length}");
        assert_eq!(invalid(allocation.decommit(offset, length)), expected, "{offset}, {length}");
        assert_eq!(invalid(memory.mapped_bytes_for_allocation_ranges(&[allocation.range(offset, length)])), expected);
    }
    assert_eq!(allocation.committed(), 0);
    allocation.commit(0, bytes).unwrap();
    assert_eq!(allocation.committed(), 3 * page);
}

/// Nothing is a valid size; it takes no memory, and an address of its own.
#[test]
fn zero_bytes() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let (one, other) = (Allocation::new(&memory, 0, 1), Allocation::new(&memory, 0, 1));
    assert_ne!(one.ptr, other.ptr);
    assert!(mapping_of(one.address(0)).is_some_and(|mapping| !mapping.accessible), "the address is no other mapping's");
    one.commit(0, 0).unwrap();
    assert_eq!(one.decommit(0, 0).unwrap(), 0);
    assert_eq!(invalid(one.commit(0, 1)), (1, OUTSIDE));
    assert_eq!(one.committed(), 0);
    assert_eq!(memory.mapped_bytes_for_allocation(0, 1).unwrap(), 0);
    assert_eq!(one.release().unmapped_bytes(), 0);

    let some = Allocation::new(&memory, 2 * page, 1);
    some.commit(page + 1, 0).unwrap();
    some.commit(2 * page, 0).unwrap();
    assert_eq!(some.committed(), 0);
    some.commit(0, 2 * page).unwrap();
    assert_eq!(some.decommit(page + 1, 0).unwrap(), 0);
    assert_eq!(some.decommit(page, 0).unwrap(), 0);
    assert_eq!(some.committed(), 2 * page);
    assert_eq!(invalid(memory.create_shared_prefix(0)), (0, "a prefix takes at least one byte, and at most isize::MAX in whole pages"));
}

/// Sizes near the end of the numbers and alignments that are none are invalid; what is merely too much fails in the kernel.
#[test]
fn sizes_and_alignments_that_cannot_be() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let most = isize::MAX as usize;
    for (bytes, align) in [
        (page, 0),
        (page, 3),
        (page, page + 1),
        (page, usize::MAX),
        (usize::MAX, 1),
        (usize::MAX - page + 1, 1),
        (usize::MAX - page, page),
        (most, 1),
        (most - page + 1, 1),
        (most - 2 * page, 4 * page),
        (1, 1 << (usize::BITS - 1)),
    ] {
        let expected = (bytes as u64, BAD_LAYOUT);
        assert_eq!(invalid(memory.allocate(bytes, align)), expected, "{bytes}, {align}");
        assert_eq!(invalid(memory.allocate_committed(bytes, align, &[])), expected, "{bytes}, {align}");
        assert_eq!(invalid(memory.mapped_bytes_for_allocation(bytes, align)), expected, "{bytes}, {align}");
    }
    let (requested, reason) = failed(memory.allocate(most / 2, 1));
    assert_eq!(requested, most as u64 / 2);
    assert_eq!(reason, "reserving addresses: Cannot allocate memory (os error 12)");
    for bytes in [usize::MAX, most, most + 1] {
        assert_eq!(invalid(memory.create_shared_prefix(bytes)).0, bytes as u64);
    }
    assert_eq!(memory.mapped_bytes_for_allocation(page + 1, 2).unwrap(), 2 * page as u64);
}

/// Errors carry the tier of the allocator's device.
#[test]
fn errors_name_the_tier() {
    let memory = VirtualMemory::new(DeviceKey::device(0));
    let text = memory.allocate(1, 3).unwrap_err().to_string();
    assert!(text.contains("device tier") && text.contains(BAD_LAYOUT), "{text}");
}

/// Alignments from a byte to a gibibyte; the pages behind them work.
#[test]
fn alignments() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    for align in (0..=30).map(|exponent| 1_usize << exponent) {
        let allocation = Allocation::new(&memory, 3 * page, align);
        assert!(allocation.address(0).is_multiple_of(align.max(page)), "{align}");
        allocation.commit(2 * page, page).unwrap();
        allocation.write(3 * page - 1, 1);
        assert_eq!(allocation.accessible(), [false, false, true]);
        assert_eq!(allocation.release().unmapped_bytes(), page as u64);
    }
}

/// A tebibyte of addresses costs what is used of it.
#[test]
fn reserving_costs_addresses_alone() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let allocation = Allocation::new(&memory, 1 << 40, 1 << 21);
    let last = (1 << 40) - page;
    allocation.commit(last, page).unwrap();
    allocation.write(last, 3);
    let record = mapping_of(allocation.address(0) - 1).unwrap();
    assert_eq!(record.range.end, allocation.address(0));
    assert!(record.rss <= 4 * page as u64, "{record:?}");
    assert_eq!(allocation.committed(), page);
    assert_eq!(allocation.release().unmapped_bytes(), page as u64);
}

/// Another size, alignment or allocator, and addresses within an allocation, name nothing.
#[test]
fn names_are_checked() {
    let (memory, other) = (VirtualMemory::default(), VirtualMemory::default());
    let page = memory.page_bytes();
    let allocation = Allocation::new(&memory, 2 * page, 64);
    allocation.commit(0, page).unwrap();
    let within = NonNull::new(allocation.ptr.as_ptr().wrapping_add(8)).unwrap();
    let prefix = memory.create_shared_prefix(1).unwrap();
    for (allocator, ptr, bytes, align) in [
        (&memory, allocation.ptr, 2 * page - 1, 64),
        (&memory, allocation.ptr, 2 * page, 32),
        (&memory, within, 2 * page, 64),
        (&other, allocation.ptr, 2 * page, 64),
    ] {
        let expected = (1, NOT_OURS);
        assert_eq!(invalid(allocator.commit_allocation_range(ptr, bytes, align, page, 1)), expected);
        assert_eq!(invalid(allocator.decommit_allocation_range(ptr, bytes, align, page, 1)), expected);
        let range = AllocationCommitRange { ptr, allocation_bytes: bytes, align, offset: 0, bytes: 1 };
        assert_eq!(invalid(allocator.mapped_bytes_for_allocation_ranges(&[range])), expected);
        assert_eq!(allocator.allocation_committed_bytes(ptr, bytes, align), 0);
        if align == 64 {
            let prefix = if std::ptr::eq(allocator, &other) { &*other.create_shared_prefix(1).unwrap() } else { &*prefix };
            assert_eq!(invalid(allocator.commit_shared_prefix(prefix, ptr, bytes, page)), expected);
        }
        // SAFETY: refused by its name, so nothing is released; that is what is shown.
        let outcome = unsafe { allocator.release(ptr, bytes, align) };
        assert_eq!(outcome.failure().unwrap().reason(), NOT_OURS);
        // SAFETY: as above.
        assert_eq!(unsafe { allocator.deallocate_with_unmapped(ptr, bytes, align) }, 0);
        // SAFETY: as above.
        unsafe { allocator.deallocate(ptr, bytes, align) };
    }
    assert_eq!(allocation.accessible(), [true, false]);
    assert_eq!(allocation.committed(), page);
}

/// The kernel's count of resident memory follows touch and decommit, to the page.
#[test]
fn physical_memory_follows_commit_and_decommit() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    // Uncommitted pages around keep the kernel from joining what is measured with a neighbour.
    let allocation = Allocation::new(&memory, 102 * page, page);
    let resident = || mappings(allocation.address(page)..allocation.address(101 * page)).iter().map(|mapping| mapping.rss).sum::<u64>();
    let proportional = || mappings(allocation.address(page)..allocation.address(101 * page)).iter().map(|mapping| mapping.pss).sum::<u64>();
    assert_eq!(resident(), 0);
    allocation.commit(page, 100 * page).unwrap();
    assert_eq!(resident(), 0, "a commit takes no memory by itself");
    (1..101).for_each(|number| allocation.write(number * page, 1));
    assert_eq!(resident(), 100 * page as u64);
    assert_eq!(proportional(), 100 * page as u64);
    assert_eq!(allocation.decommit(31 * page, 40 * page).unwrap(), 40 * page as u64);
    assert_eq!(resident(), 60 * page as u64);
    allocation.commit(31 * page, 10 * page).unwrap();
    assert_eq!(resident(), 60 * page as u64);
    (31..41).for_each(|number| allocation.write(number * page, 1));
    assert_eq!(resident(), 70 * page as u64);
    assert_eq!(allocation.decommit(0, 102 * page).unwrap(), 70 * page as u64);
    assert_eq!(resident(), 0);
}

/// Each of the three releases gives all addresses back; two of them say how much memory that was.
#[test]
fn releases_give_everything_back() {
    in_child("releases_give_everything_back", || {
        let memory = VirtualMemory::default();
        let page = memory.page_bytes();
        let bytes = 1 << 30;
        let before = status("VmSize");
        for method in 0..3 {
            let ptr = memory.allocate_committed(bytes, 1 << 30, &[0..page + 1, 5 * page..6 * page]).unwrap();
            assert!(status("VmSize") >= before + bytes as u64);
            // SAFETY: allocated above, and released once.
            unsafe {
                match method {
                    0 => memory.deallocate(ptr, bytes, 1 << 30),
                    1 => assert_eq!(memory.deallocate_with_unmapped(ptr, bytes, 1 << 30), 3 * page as u64),
                    _ => {
                        let accounting = memory.release(ptr, bytes, 1 << 30).accounting().unwrap();
                        assert_eq!((accounting.allocation_bytes, accounting.unmapped_bytes), (bytes as u64, 3 * page as u64));
                    }
                }
            }
        }
        for _ in 0..10_000 {
            let ptr = memory.allocate_committed(1 << 20, 1, &[0..page, 2 * page..3 * page]).unwrap();
            // SAFETY: allocated above, and released once.
            assert_eq!(unsafe { memory.release(ptr, 1 << 20, 1) }.unmapped_bytes(), 2 * page as u64);
            drop(memory.create_shared_prefix(page).unwrap());
        }
        // The heap may have grown a little meanwhile.
        assert!(status("VmSize") < before + (1 << 24), "address space is lost");
    });
}

/// An allocation with committed ranges is made with all of them, or not at all.
#[test]
fn allocation_with_committed_ranges() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let ptr = memory.allocate_committed(4 * page, 16, &[0..1, page..page, 2 * page + 1..4 * page, 0..page]).unwrap();
    let allocation = Allocation { memory: &memory, ptr, bytes: 4 * page, align: 16 };
    assert_eq!(allocation.accessible(), [true, false, true, true]);
    assert_eq!(allocation.committed(), 3 * page);
    #[expect(clippy::reversed_empty_ranges, reason = "that is the mistake")]
    for range in [0..4 * page + 1, page..0, usize::MAX..usize::MAX, 2..1] {
        assert_eq!(invalid(memory.allocate_committed(4 * page, 16, &[0..page, range])), (4 * page as u64, OUTSIDE));
    }
}

/// Several ranges, of several allocations: an error stops the row, and what was committed before it stays.
#[test]
fn ranges_in_a_row_stop_at_the_first_error() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let (one, two) = (Allocation::new(&memory, 2 * page, 1), Allocation::new(&memory, 2 * page, 1));
    memory.commit_allocation_ranges(&[one.range(0, 1), two.range(page, 1)]).unwrap();
    assert_eq!((one.accessible(), two.accessible()), (vec![true, false], vec![false, true]));
    let row = [one.range(page, 1), two.range(0, 2 * page + 1), two.range(0, 1)];
    assert_eq!(invalid(memory.commit_allocation_ranges(&row)), (2 * page as u64 + 1, OUTSIDE));
    assert_eq!((one.accessible(), two.accessible()), (vec![true, true], vec![false, true]));
}

/// What ranges would take: pages that are not committed, each once, whatever the order and the overlaps.
#[test]
fn what_ranges_would_take() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let (one, two) = (Allocation::new(&memory, 8 * page, 1), Allocation::new(&memory, 8 * page, 1));
    one.commit(3 * page, page).unwrap();
    let pages = |ranges: &[AllocationCommitRange]| memory.mapped_bytes_for_allocation_ranges(ranges).unwrap() / page as u64;
    assert_eq!(pages(&[]), 0);
    assert_eq!(pages(&[one.range(0, 8 * page)]), 7);
    assert_eq!(pages(&[one.range(3 * page, page)]), 0);
    assert_eq!(pages(&[one.range(page - 1, 2), one.range(0, 1), one.range(page, 0)]), 2);
    let all = [one.range(5 * page, 3 * page), two.range(0, page), one.range(0, 6 * page), two.range(0, 2), one.range(page, page)];
    assert_eq!(pages(&all), 8);
    memory.commit_allocation_ranges(&all).unwrap();
    assert_eq!(pages(&all), 0);
    assert_eq!(one.committed() + two.committed(), 9 * page, "one page was there, eight were said to be missing");
}

/// A prefix of 50 allocations takes its memory once, also by the kernel's proportional shares.
#[test]
fn a_prefix_is_paid_once() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let size = 256 * page;
    let prefix = memory.create_shared_prefix(size - 5).unwrap();
    assert_eq!((prefix.requested_bytes(), prefix.mapped_bytes(), prefix.committed_physical_bytes()), (size - 5, size, size as u64));
    assert_eq!(memory.incremental_owned_bytes_for_shared_prefix(&*prefix).unwrap(), 0);
    let own = prefix.device_ptr() as usize;
    let fill = std::ptr::with_exposed_provenance_mut::<u8>(own);
    for number in 0..256 {
        // SAFETY: the prefix's mapping has this page, and nobody else writes.
        unsafe { fill.add(number * page).write_volatile(number as u8) };
    }
    assert_eq!(mapping_of(own).unwrap().rss, size as u64);
    let users: Vec<_> = (0..50).map(|_| Allocation::new(&memory, size + 2 * page, 1)).collect();
    for user in &users {
        assert_eq!(user.share(&*prefix, page).unwrap(), 256);
        assert_eq!(user.committed(), size);
        assert!((0..256).all(|number| user.read((number + 1) * page) == number as u8));
    }
    users[7].write(9 * page + 1, 77);
    assert_eq!(users[31].read(9 * page + 1), 77, "one memory");

    let shares: Vec<_> = users.iter().map(|user| mapping_of(user.address(page)).unwrap()).chain(mapping_of(own)).collect();
    assert_eq!(shares.len(), 51);
    assert!(shares.iter().all(|share| share.rss == size as u64), "each mapping sees all of it");
    let paid: u64 = shares.iter().map(|share| share.pss).sum();
    // Each share is rounded down to whole KiB.
    assert!(paid <= size as u64 && paid + 51 * 1024 + page as u64 >= size as u64, "paid {paid} of {size}");

    // Own memory beside the prefix; the release counts that alone.
    users[0].commit(0, page).unwrap();
    assert_eq!(users[0].committed(), size + page);
    let mut users = users;
    assert_eq!(users.remove(0).release().unmapped_bytes(), page as u64);
    drop(prefix);
    assert_eq!(users[20].read(9 * page + 1), 77, "the allocations keep the memory");
}

/// The memory of a prefix is there before anybody touches it.
#[test]
fn a_prefix_is_backed_when_it_is_made() {
    in_child("a_prefix_is_backed_when_it_is_made", || {
        let memory = VirtualMemory::default();
        let size = 128 * memory.page_bytes();
        let prefix = memory.create_shared_prefix(size).unwrap();
        let files = || {
            std::fs::read_dir("/proc/self/fd")
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .filter(|path| std::fs::read_link(path).is_ok_and(|target| target.starts_with("/memfd:liveslot-prefix (deleted)")))
                .collect::<Vec<_>>()
        };
        let path = files().pop().unwrap();
        let file = std::fs::metadata(path).unwrap();
        assert_eq!((file.len() as usize, file.blocks() as usize * 512), (size, size));
        let own = prefix.device_ptr() as usize;
        drop(prefix);
        assert!(files().is_empty());
        assert!(mapping_of(own).is_none());
    });
}

/// More memory than the machine has is refused before any of it is taken.
#[test]
fn a_prefix_larger_than_the_machine_is_refused() {
    in_child("a_prefix_larger_than_the_machine_is_refused", || {
        // A larger file would end the process, and not the machine.
        let _limit = Limit::new(Resource::Fsize, 1 << 20);
        let memory = VirtualMemory::default();
        let most = isize::MAX as usize & !(memory.page_bytes() - 1);
        for bytes in [most, most / 2, 1 << 50] {
            assert_eq!(
                failed(memory.create_shared_prefix(bytes)),
                (bytes as u64, "memfd: Cannot allocate memory (os error 12)".to_owned())
            );
        }
        assert_eq!(memory.create_shared_prefix(1 << 20).unwrap().mapped_bytes(), 1 << 20);
    });
}

/// A prefix that somebody else made.
#[derive(Debug)]
struct Foreign;

impl SharedDevicePrefix for Foreign {
    fn device_ptr(&self) -> u64 {
        0
    }
    fn committed_physical_bytes(&self) -> u64 {
        0
    }
    fn mapped_bytes(&self) -> usize {
        0
    }
    fn requested_bytes(&self) -> usize {
        0
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A prefix of another type, or of another allocator, is refused by both methods, even where it costs nothing.
#[test]
fn foreign_prefixes_are_refused() {
    let (memory, other) = (VirtualMemory::default(), VirtualMemory::default());
    let page = memory.page_bytes();
    let allocation = Allocation::new(&memory, 4 * page, 1);
    let theirs = other.create_shared_prefix(page).unwrap();
    for (prefix, requested) in [(&Foreign as &dyn SharedDevicePrefix, 0), (&*theirs, page as u64)] {
        let expected = (requested, "another allocator made this prefix");
        assert_eq!(invalid(memory.incremental_owned_bytes_for_shared_prefix(prefix)), expected);
        assert_eq!(invalid(allocation.share(prefix, 0)), expected);
    }
    assert_eq!(allocation.accessible(), [false; 4]);
    assert_eq!(allocation.committed(), 0);
    assert_eq!(other.incremental_owned_bytes_for_shared_prefix(&*theirs).unwrap(), 0);
}

/// A prefix goes to whole, uncommitted pages of the allocation, and a refusal leaves nothing behind.
#[test]
fn prefixes_must_fit() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let bytes = 3 * page + 1;
    let allocation = Allocation::new(&memory, bytes, 1);
    let prefix = memory.create_shared_prefix(page + 1).unwrap();
    let requested = page as u64 + 1;
    for offset in [1, page - 1, page + 1, usize::MAX] {
        let refusal = invalid(allocation.share(&*prefix, offset));
        assert_eq!(refusal, (requested, "a prefix can only be mapped at a multiple of the page size"));
    }
    for offset in [3 * page, 4 * page, usize::MAX - page + 1] {
        assert_eq!(invalid(allocation.share(&*prefix, offset)), (requested, OUTSIDE));
    }
    allocation.commit(page, 1).unwrap();
    allocation.write(page, 4);
    let taken = "pages of the range are committed; decommit them before a prefix is mapped there";
    assert_eq!(invalid(allocation.share(&*prefix, 0)), (requested, taken));
    assert_eq!(invalid(allocation.share(&*prefix, page)), (requested, taken));
    assert_eq!(allocation.accessible(), [false, true, false, false]);
    assert_eq!((allocation.read(page), allocation.committed()), (4, page));
    assert_eq!(allocation.share(&*prefix, 2 * page).unwrap(), 2, "the last page is whole");
    assert_eq!(invalid(allocation.share(&*prefix, 2 * page)), (requested, taken), "a prefix is not mapped over itself");
    assert_eq!(allocation.accessible(), [false, true, true, true]);
    assert_eq!(allocation.committed(), 3 * page);
}

/// Pages of a prefix are decommitted like others, but their memory is not the allocation's: it does not count, and stays.
#[test]
fn pages_of_a_prefix_can_be_decommitted() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let prefix = memory.create_shared_prefix(3 * page).unwrap();
    let (one, two) = (Allocation::new(&memory, 6 * page, 1), Allocation::new(&memory, 6 * page, 1));
    one.share(&*prefix, page).unwrap();
    two.share(&*prefix, page).unwrap();
    (1..4).for_each(|number| one.write(number * page, 6));
    one.commit(0, 6 * page).unwrap(); // own pages around; the prefix's stay the prefix's
    assert_eq!(one.committed(), 6 * page);
    assert_eq!(one.read(page), 6);
    assert_eq!(one.decommit(page, page).unwrap(), 0);
    assert_eq!(one.accessible(), [true, false, true, true, true, true]);
    assert_eq!(one.decommit(2 * page, 3 * page).unwrap(), page as u64, "two of the prefix, one own");
    assert_eq!(one.committed(), 2 * page);
    one.commit(page, page).unwrap();
    assert_eq!(one.read(page), 0, "own memory now");
    one.write(page, 1);
    assert_eq!([1, 2, 3].map(|number| two.read(number * page)), [6; 3]);
    assert_eq!(one.release().unmapped_bytes(), 3 * page as u64);
    assert_eq!(two.release().unmapped_bytes(), 0);
}

/// A commit that the kernel stops half-way is undone: nothing is accessible, counted, or lost that was not so before.
#[test]
fn a_commit_that_the_kernel_refuses_is_undone() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let allocation = std::mem::ManuallyDrop::new(Allocation::new(&memory, 8 * page, 1));
    allocation.commit(2 * page, page).unwrap();
    allocation.write(2 * page, 9);
    seal(&allocation, 6..7); // the kernel gets as far as page 5
    let (requested, reason) = failed(allocation.commit(0, 8 * page));
    assert_eq!((requested, reason.as_str()), (8 * page as u64, "mprotect: Operation not permitted (os error 1)"));
    assert_eq!(allocation.accessible(), [false, false, true, false, false, false, false, false]);
    assert_eq!((allocation.committed(), allocation.read(2 * page)), (page, 9));
    allocation.commit(0, 6 * page).unwrap(); // nothing is held any more
    allocation.commit(7 * page, page).unwrap();
    assert_eq!(allocation.committed(), 7 * page);
}

/// A decommit that the kernel refuses keeps the contents and the count.
#[test]
fn a_decommit_that_the_kernel_refuses_changes_nothing() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let allocation = std::mem::ManuallyDrop::new(Allocation::new(&memory, 4 * page, 1));
    allocation.commit(0, 4 * page).unwrap();
    (0..4).for_each(|number| allocation.write(number * page, 3));
    seal(&allocation, 2..3);
    let (requested, reason) = failed(allocation.decommit(0, 4 * page));
    assert_eq!((requested, reason.as_str()), (4 * page as u64, "mmap: Operation not permitted (os error 1)"));
    assert_eq!((allocation.committed(), allocation.accessible()), (4 * page, vec![true; 4]));
    assert_eq!([0, 1, 2, 3].map(|number| allocation.read(number * page)), [3; 4]);
    assert_eq!(allocation.decommit(0, 2 * page).unwrap(), 2 * page as u64);
    assert_eq!(allocation.decommit(3 * page, page).unwrap(), page as u64);
}

/// A mapping of a prefix that the kernel refuses leaves none behind, and the pages usable.
#[test]
fn a_prefix_that_the_kernel_refuses_leaves_no_mapping() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let allocation = std::mem::ManuallyDrop::new(Allocation::new(&memory, 6 * page, 1));
    let prefix = memory.create_shared_prefix(4 * page).unwrap();
    seal(&allocation, 4..5);
    let (requested, reason) = failed(allocation.share(&*prefix, page));
    assert_eq!((requested, reason.as_str()), (4 * page as u64, "mmap: Operation not permitted (os error 1)"));
    assert_eq!((allocation.accessible(), allocation.committed()), (vec![false; 6], 0));
    assert_eq!(allocation.share(&*prefix, 0).unwrap(), 4);
    assert_eq!(allocation.committed(), 4 * page);
}

/// A release that the kernel refuses says so, and leaves the allocation as it was: nothing is lost unsaid.
#[test]
fn a_release_that_the_kernel_refuses_keeps_the_ownership() {
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let allocation = std::mem::ManuallyDrop::new(Allocation::new(&memory, 4 * page, 1));
    allocation.commit(0, 2 * page).unwrap();
    allocation.write(page, 5);
    seal(&allocation, 3..4);
    // SAFETY: the kernel refuses, which leaves it live; that is what is shown.
    let outcome = unsafe { memory.release(allocation.ptr, 4 * page, 1) };
    assert_eq!(outcome, AllocationReleaseOutcome::failed("munmap: Operation not permitted (os error 1)"));
    // SAFETY: as above.
    assert_eq!(unsafe { memory.deallocate_with_unmapped(allocation.ptr, 4 * page, 1) }, 0);
    assert_eq!((allocation.committed(), allocation.read(page)), (2 * page, 5));
    assert_eq!(allocation.decommit(0, 2 * page).unwrap(), 2 * page as u64);
}

/// No memory for a commit: an error with the kernel's text, everything undone, and the allocation usable. An allocation
/// that is to be made with it is not made.
#[test]
fn a_limit_on_committed_memory() {
    in_child("a_limit_on_committed_memory", || {
        let memory = VirtualMemory::default();
        let page = memory.page_bytes();
        let pages = (1 << 30) / page;
        let allocation = Allocation::new(&memory, pages * page, 1);
        allocation.commit(100 * page, page).unwrap();
        let _limit = Limit::new(Resource::Data, status("VmData") + (64 << 20));
        let refusal = "mprotect: Cannot allocate memory (os error 12)";
        // The pages before the committed one are opened first, and closed again.
        assert_eq!(failed(allocation.commit(0, pages * page)), ((pages * page) as u64, refusal.to_owned()));
        assert_eq!(allocation.committed(), page);
        assert!(allocation.accessible().iter().enumerate().all(|(number, &open)| open == (number == 100)));
        let addresses = status("VmSize");
        let result = memory.allocate_committed(1 << 30, 1, &[0..page, page..1 << 30]);
        assert_eq!(failed(result), (1 << 30, refusal.to_owned()));
        assert!(status("VmSize") < addresses + (1 << 24), "address space is lost");
        allocation.commit(0, 1 << 20).unwrap();
        assert_eq!(allocation.release().unmapped_bytes(), 1 << 20);
    });
}

/// No addresses, no file descriptor: errors with the kernel's text.
#[test]
fn limits_on_addresses_and_files() {
    in_child("limits_on_addresses_and_files", || {
        let memory = VirtualMemory::default();
        let _limit = Limit::new(Resource::As, status("VmSize") + (1 << 30));
        let refusal = "reserving addresses: Cannot allocate memory (os error 12)".to_owned();
        assert_eq!(failed(memory.allocate(1 << 36, 1)), (1 << 36, refusal.clone()));
        assert_eq!(failed(memory.allocate(1, 1 << 36)), (1, refusal.clone()), "an alignment takes addresses");
        assert_eq!(failed(memory.allocate_committed(1 << 36, 1, &[0..1, 2..3])), (1 << 36, refusal));
        let _limit = Limit::new(Resource::Nofile, 0);
        assert_eq!(failed(memory.create_shared_prefix(5)), (5, "memfd: Too many open files (os error 24)".to_owned()));
    });
}

/// Interrupts, from now on, every `fallocate` of this thread for more than `most` bytes, as signals would that come while it runs.
fn interrupt_large_steps(most: u32) {
    let code = |code: u32| code as u16;
    let (nr, length) = (offset_of!(libc::seccomp_data, nr) as u32, offset_of!(libc::seccomp_data, args) as u32 + 3 * 8);
    let length = if cfg!(target_endian = "big") { length + 4 } else { length };
    // SAFETY: makes values.
    let mut filter = unsafe {
        [
            libc::BPF_STMT(code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), nr),
            libc::BPF_JUMP(code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K), libc::SYS_fallocate as u32, 0, 3),
            libc::BPF_STMT(code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), length),
            libc::BPF_JUMP(code(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K), most, 0, 1),
            libc::BPF_STMT(code(libc::BPF_RET | libc::BPF_K), libc::SECCOMP_RET_ERRNO | libc::EINTR as u32),
            libc::BPF_STMT(code(libc::BPF_RET | libc::BPF_K), libc::SECCOMP_RET_ALLOW),
        ]
    };
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: both change what this thread may ask of the kernel, and read the program alone.
    let results = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1_usize, 0_usize, 0_usize, 0_usize),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
        ]
    };
    assert_eq!(results, [0, 0], "seccomp: {}", std::io::Error::last_os_error());
}

/// Signals that keep coming, each before the kernel is done with what it is asked for, delay the making of a prefix and don't prevent it.
#[test]
fn a_prefix_is_made_beside_signals() {
    in_child("a_prefix_is_made_beside_signals", || {
        let resident = in_time(|| {
            interrupt_large_steps(1 << 20);
            let prefix = VirtualMemory::default().create_shared_prefix(5 << 20).unwrap();
            mapping_of(prefix.device_ptr() as usize).unwrap().rss
        });
        assert_eq!(resident, 5 << 20);
    });
}

/// A prefix is a file, and the kernel ends a process whose file would be too large: the limit is found before, to the page.
#[test]
fn a_limit_on_the_size_of_files() {
    in_child("a_limit_on_the_size_of_files", || {
        let memory = VirtualMemory::default();
        let page = memory.page_bytes();
        let _limit = Limit::new(Resource::Fsize, 8 * page as u64);
        assert_eq!(
            failed(memory.create_shared_prefix(8 * page + 1)),
            (8 * page as u64 + 1, "memfd: File too large (os error 27)".to_owned())
        );
        assert_eq!(memory.create_shared_prefix(8 * page).unwrap().mapped_bytes(), 8 * page);
    });
}

/// The kernel keeps a limited number of separate ranges: beyond it commits fail, typed and undone, and what was committed
/// can still be given back.
#[test]
fn a_limit_on_separate_ranges() {
    in_child("a_limit_on_separate_ranges", || {
        let memory = VirtualMemory::default();
        let page = memory.page_bytes();
        let most: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
        let pages = most + 10;
        let allocation = Allocation::new(&memory, pages * page, 1);
        let every_other = (1..pages).step_by(2);
        let refused = every_other.clone().find_map(|number| Some((number, allocation.commit(number * page, 1).err()?)));
        let (number, error) = refused.expect("the kernel keeps fewer ranges than that");
        assert_eq!(failed::<()>(Err(error)), (1, "mprotect: Cannot allocate memory (os error 12)".to_owned()));
        assert!(number > most / 2, "{number} of {most}");
        assert_eq!(allocation.committed(), number / 2 * page);
        assert!(!allocation.is_recorded(number));
        // Give half of it back, which needs no further range, and commit what was refused.
        assert_eq!(allocation.decommit(0, number / 2 * page).unwrap(), (number / 4 * page) as u64);
        allocation.commit(number * page, 1).unwrap();
        assert_eq!(allocation.release().unmapped_bytes(), ((number / 2 - number / 4 + 1) * page) as u64);
    });
}

/// A small generator of random numbers (SplitMix64), the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}

/// What a page is in the model.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Page {
    Free,
    Owned(u8),
    Shared(u8),
}

/// Random calls against a vector of pages: results, counts, contents and the kernel's view agree after each.
#[test]
fn random_calls_agree_with_a_model() {
    const PAGES: usize = 24;
    const PREFIX: usize = 5;
    let memory = VirtualMemory::default();
    let page = memory.page_bytes();
    let mut random = Random(42);
    let prefix = memory.create_shared_prefix(PREFIX * page).unwrap();
    let fill = std::ptr::with_exposed_provenance_mut::<u8>(prefix.device_ptr() as usize);
    for number in 0..PREFIX {
        // SAFETY: the prefix has this page, and nobody else writes to it.
        unsafe { fill.add(number * page).write_volatile(200 + number as u8) };
    }
    let bytes = PAGES * page - page / 2;
    let allocation = Allocation::new(&memory, bytes, 1);
    let mut model = [Page::Free; PAGES];
    for step in 0..3000 {
        let (one, two) = (random.below(bytes + 1), random.below(bytes + 1));
        let (start, end) = (one.min(two), one.max(two));
        match random.below(5) {
            0 | 1 => {
                let touched = if start == end { 0..0 } else { start / page..end.div_ceil(page) };
                let missing = model[touched.clone()].iter().filter(|&&state| state == Page::Free).count();
                let taken = memory.mapped_bytes_for_allocation_ranges(&[allocation.range(start, end - start)]).unwrap();
                assert_eq!(taken, (missing * page) as u64);
                allocation.commit(start, end - start).unwrap();
                model[touched].iter_mut().filter(|state| **state == Page::Free).for_each(|state| *state = Page::Owned(0));
            }
            2 => {
                let end_page = if end == bytes && start != end { PAGES } else { end / page };
                let contained = start.div_ceil(page)..end_page.max(start.div_ceil(page));
                let owned = model[contained.clone()].iter().filter(|state| matches!(state, Page::Owned(_))).count();
                assert_eq!(allocation.decommit(start, end - start).unwrap(), (owned * page) as u64);
                model[contained].fill(Page::Free);
            }
            3 => {
                let first = start / page;
                let fits = first + PREFIX <= PAGES && model[first..first + PREFIX].iter().all(|&state| state == Page::Free);
                assert_eq!(allocation.share(&*prefix, first * page).is_ok(), fits, "step {step}");
                if fits {
                    (0..PREFIX).for_each(|number| model[first + number] = Page::Shared(200 + number as u8));
                }
            }
            _ => {
                for (number, state) in model.iter_mut().enumerate() {
                    if let Page::Owned(value) = state {
                        *value = random.below(256) as u8;
                        allocation.write(number * page, *value);
                    }
                }
            }
        }
        let committed = model.iter().filter(|&&state| state != Page::Free).count();
        assert_eq!(allocation.committed(), committed * page, "step {step}");
        assert_eq!(allocation.accessible(), model.map(|state| state != Page::Free), "step {step}");
        for (number, state) in model.iter().enumerate() {
            match state {
                Page::Free => {}
                Page::Owned(value) | Page::Shared(value) => assert_eq!(allocation.read(number * page), *value, "step {step}"),
            }
        }
    }
    let owned = model.iter().filter(|state| matches!(state, Page::Owned(_))).count();
    assert_eq!(allocation.release().unmapped_bytes(), (owned * page) as u64);
}

/// Threads that keep to pages of their own do not notice each other, though the pages alternate.
#[test]
fn neighbouring_pages_are_independent() {
    const THREADS: usize = 4;
    const PAGES: usize = 64;
    in_time(|| {
        let memory = VirtualMemory::default();
        let page = memory.page_bytes();
        let allocation = Allocation::new(&memory, PAGES * page, 1);
        thread::scope(|scope| {
            for me in 0..THREADS {
                let allocation = &allocation;
                scope.spawn(move || {
                    let mut random = Random(me as u64);
                    let mut mine = [None; PAGES];
                    for round in 0..2000 {
                        let number = random.below(PAGES / THREADS) * THREADS + me;
                        match mine[number].take() {
                            None => {
                                allocation.commit(number * page, page).unwrap();
                                assert_eq!(allocation.read(number * page), 0);
                                allocation.write(number * page, round as u8);
                                mine[number] = Some(round as u8);
                            }
                            Some(value) => {
                                assert_eq!(allocation.read(number * page), value);
                                assert_eq!(allocation.decommit(number * page, page).unwrap(), page as u64);
                            }
                        }
                    }
                    for number in (0..PAGES).filter(|&number| mine[number].is_some()) {
                        assert_eq!(allocation.decommit(number * page, page).unwrap(), page as u64);
                    }
                });
            }
        });
        assert_eq!(allocation.committed(), 0);
        assert_eq!(allocation.accessible(), [false; PAGES]);
    });
}

/// Commits of the same pages at the same time all succeed; each page is counted once, and accessible to whoever returns.
#[test]
fn commits_at_the_same_time_share_their_pages() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 500;
    in_time(|| {
        let memory = VirtualMemory::default();
        let page = memory.page_bytes();
        let allocation = Allocation::new(&memory, 8 * page, 1);
        let barrier = Barrier::new(THREADS);
        thread::scope(|scope| {
            for me in 0..THREADS {
                let (allocation, barrier) = (&allocation, &barrier);
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        barrier.wait();
                        // Pages me to me + 4: all meet in some, none in all.
                        allocation.commit(me * page, 5 * page).unwrap();
                        (me..me + 5).for_each(|number| allocation.write(number * page + me, 1));
                        if barrier.wait().is_leader() {
                            assert_eq!(allocation.committed(), 8 * page);
                            assert_eq!(allocation.decommit(0, 8 * page).unwrap(), 8 * page as u64);
                            assert_eq!(allocation.committed(), 0);
                        }
                        barrier.wait();
                    }
                });
            }
        });
    });
}

/// Commits, decommits and mappings of a prefix on the same pages at the same time: each succeeds or is refused as busy or
/// as taken, what the decommits give back is what was committed, and at rest the records are what the kernel says.
#[test]
fn contradicting_calls_do_not_corrupt() {
    const THREADS: usize = 4;
    const PAGES: usize = 6;
    let (done, refused) = in_time(|| {
        let memory = VirtualMemory::default();
        let page = memory.page_bytes();
        let prefix = memory.create_shared_prefix(2 * page).unwrap();
        let allocation = Allocation::new(&memory, PAGES * page, 1);
        let (done, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        for seed in 0..40 {
            let barrier = Barrier::new(THREADS);
            thread::scope(|scope| {
                for me in 0..THREADS {
                    let (allocation, barrier, prefix, done, refused) = (&allocation, &barrier, &*prefix, &done, &refused);
                    scope.spawn(move || {
                        let mut random = Random(seed * THREADS as u64 + me as u64);
                        barrier.wait();
                        for _ in 0..100 {
                            let first = random.below(PAGES);
                            let length = 1 + random.below(PAGES - first);
                            let result = match random.below(5) {
                                0 => match allocation.share(prefix, first.min(PAGES - 2) * page) {
                                    Err(MemoryError::InvalidRequest { .. }) => continue,
                                    result => result.map(drop),
                                },
                                1 | 2 => allocation.commit(first * page, length * page),
                                _ => allocation.decommit(first * page, length * page).map(drop),
                            };
                            match result {
                                Ok(()) => done.fetch_add(1, Relaxed),
                                Err(error) => {
                                    assert_eq!(failed::<()>(Err(error)).1, BUSY);
                                    refused.fetch_add(1, Relaxed)
                                }
                            };
                        }
                    });
                }
            });
            let accessible = allocation.accessible();
            for (number, &open) in accessible.iter().enumerate() {
                assert_eq!(open, allocation.is_recorded(number), "page {number}, seed {seed}");
                if open {
                    allocation.write(number * page, 1);
                }
            }
            assert_eq!(allocation.committed(), accessible.iter().filter(|&&open| open).count() * page);
        }
        let committed = allocation.committed();
        let given_back = allocation.decommit(0, PAGES * page).unwrap() as usize;
        assert!(given_back <= committed && (committed - given_back).is_multiple_of(page));
        assert_eq!(allocation.committed(), 0);
        (done.into_inner(), refused.into_inner())
    });
    println!("{done} calls done, {refused} refused");
    assert!(done > 0);
}
