//! The vocabulary over the crate root: values, texts, the provided trait methods, the process heap.
//!
//! Values that only the library makes (identities, and the errors that name them) are tested beside their source.

use liveslot::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::error::Error;
use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// The global allocator, which tells each thread the layouts it last asked for and gave back, and refuses on demand.
struct Witness;

thread_local! {
    static ALLOCATED: Cell<Option<Layout>> = const { Cell::new(None) };
    static FREED: Cell<Option<Layout>> = const { Cell::new(None) };
    /// Blocks of this size and more are refused to this thread.
    static REFUSED: Cell<usize> = const { Cell::new(usize::MAX) };
}

#[global_allocator]
static WITNESS: Witness = Witness;

// SAFETY: all work is the system allocator's; the cells are constants that need no memory of their own.
unsafe impl GlobalAlloc for Witness {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(Some(layout));
        if layout.size() >= REFUSED.get() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        FREED.set(Some(layout));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

fn layout(bytes: usize, align: usize) -> Layout {
    Layout::from_size_align(bytes, align).unwrap()
}

/// R150, R151: sizes and alignments of all kinds arrive at the heap, zero bytes as one, and are given back as they came.
#[test]
fn heap_takes_and_gives_back_the_same_layouts() {
    for bytes in [0, 1, 2, 63, 64, 4_096, 100_000] {
        for align in [1, 2, 8, 64, 4_096, 65_536] {
            let ptr = HostAllocator.allocate(bytes, align).unwrap();
            assert_eq!(ALLOCATED.get(), Some(layout(bytes.max(1), align)));
            assert_eq!(ptr.addr().get() % align, 0, "{bytes} bytes at {align}");
            // SAFETY: the block has `max(bytes, 1)` bytes.
            unsafe { ptr.write_bytes(0xa5, bytes.max(1)) };
            // SAFETY: as above, and the last byte was just written.
            assert_eq!(unsafe { ptr.add(bytes.max(1) - 1).read() }, 0xa5);

            FREED.set(None);
            // SAFETY: allocated above with these values, and given back once.
            unsafe { HostAllocator.deallocate(ptr, bytes, align) };
            assert_eq!(FREED.get(), Some(layout(bytes.max(1), align)));
        }
    }
}

/// R150: live allocations have addresses of their own, empty ones too.
#[test]
fn heap_addresses_are_distinct() {
    let live: Vec<_> = (0..64).map(|n| HostAllocator.allocate(n % 2, 1).unwrap()).collect();
    assert_eq!(live.iter().collect::<HashSet<_>>().len(), 64);
    for (n, ptr) in live.into_iter().enumerate() {
        // SAFETY: allocated above with these values, and given back once.
        unsafe { HostAllocator.deallocate(ptr, n % 2, 1) };
    }
}

/// R150: values that make no layout are refused before the heap is asked, and the reason says what would do.
#[test]
fn heap_refuses_invalid_layouts() {
    let too_large = isize::MAX as usize + 1;
    for (bytes, align) in [(16, 0), (16, 3), (0, 12), (usize::MAX, 1), (too_large, 1), (too_large - 1, 2), (1, 1 << (usize::BITS - 1))] {
        ALLOCATED.set(None);
        let result = HostAllocator.allocate(bytes, align);
        assert_eq!(ALLOCATED.get(), None, "{bytes} bytes at {align}");
        match result {
            Err(MemoryError::InvalidRequest { tier: "host", requested, reason }) => {
                assert_eq!(requested, bytes as u64);
                assert!(reason.contains("power of two"), "{reason:?}");
            }
            other => panic!("{bytes} bytes at {align}: {other:?}"),
        }
    }
}

/// R150: a heap without such a block is an error that names tier and size.
#[test]
fn heap_exhaustion_is_an_error() {
    REFUSED.set(1 << 20);
    let result = HostAllocator.allocate(1 << 20, 8);
    REFUSED.set(usize::MAX);
    match result {
        Err(MemoryError::AllocationFailed { tier: "host", requested: 0x10_0000, reason }) => {
            assert!(reason.contains("the process heap has no such block"), "{reason:?}");
        }
        other => panic!("{other:?}"),
    }
}

/// R150: the error does not need the heap that has just failed.
#[test]
fn heap_exhaustion_to_the_last_byte_is_an_error() {
    REFUSED.set(0);
    let result = HostAllocator.allocate(0, 8);
    REFUSED.set(usize::MAX);
    let error = result.unwrap_err();
    assert!(matches!(error, MemoryError::AllocationFailed { tier: "host", requested: 0, .. }));
    assert!(error.to_string().contains("allocation of 0 bytes of the host tier failed"));
}

/// R151: giving back with values that make no layout does nothing.
#[test]
fn heap_ignores_invalid_layouts_on_the_way_back() {
    let ptr = HostAllocator.allocate(16, 8).unwrap();
    FREED.set(None);
    for (bytes, align) in [(16, 0), (16, 3), (usize::MAX, 8)] {
        // SAFETY: these values make no layout, for which the call is documented to do nothing.
        unsafe { HostAllocator.deallocate(ptr, bytes, align) };
    }
    assert_eq!(FREED.get(), None);
    // SAFETY: allocated above with these values, and given back once.
    unsafe { HostAllocator.deallocate(ptr, 16, 8) };
    assert_eq!(FREED.get(), Some(layout(16, 8)));
}

/// R151, R152: the heap is the host, has no capability, and releases completely without unmapping.
#[test]
#[allow(clippy::default_constructed_unit_structs)]
fn heap_is_a_plain_allocator() {
    let heap = HostAllocator::default();
    assert_eq!(heap.device(), DeviceKey::HOST);
    assert!(!heap.commits_on_demand());
    assert!(heap.as_virtual_backing().is_none());
    assert!(heap.as_shared_mapping().is_none());

    let ptr = heap.allocate(0, 8).unwrap();
    FREED.set(None);
    // SAFETY: allocated above with these values, and given back once.
    let outcome = unsafe { heap.release(ptr, 0, 8) };
    assert_eq!(FREED.get(), Some(layout(1, 8)));
    assert_eq!(outcome, AllocationReleaseOutcome::complete(ReleaseAccounting::new(0, 0)));
    let _shared: Arc<dyn DeviceAllocator> = Arc::new(HostAllocator);
}

/// What a recording allocator saw: which method, and its arguments.
type Call = (&'static str, NonNull<u8>, usize, usize);

/// Implements the required methods only.
#[derive(Debug, Default)]
struct Plain(Mutex<Vec<Call>>);

// SAFETY: the addresses are recorded, never used.
unsafe impl Send for Plain {}
// SAFETY: as above.
unsafe impl Sync for Plain {}

impl DeviceAllocator for Plain {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        Ok(NonNull::dangling())
    }

    unsafe fn deallocate(&self, ptr: NonNull<u8>, bytes: usize, align: usize) {
        self.0.lock().unwrap().push(("deallocate", ptr, bytes, align));
    }

    fn device(&self) -> DeviceKey {
        DeviceKey::device(1)
    }
}

/// Overrides the unmapping release too.
#[derive(Debug, Default)]
struct Unmapping(Plain);

impl DeviceAllocator for Unmapping {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        self.0.allocate(bytes, align)
    }

    unsafe fn deallocate(&self, ptr: NonNull<u8>, bytes: usize, align: usize) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.deallocate(ptr, bytes, align) }
    }

    unsafe fn deallocate_with_unmapped(&self, ptr: NonNull<u8>, bytes: usize, align: usize) -> u64 {
        self.0.0.lock().unwrap().push(("deallocate_with_unmapped", ptr, bytes, align));
        4_096
    }

    fn device(&self) -> DeviceKey {
        self.0.device()
    }
}

/// R152: with the required methods alone, a release is one `deallocate` with the same arguments, and complete.
#[test]
fn provided_release_deallocates_once() {
    let allocator = Plain::default();
    let ptr = allocator.allocate(100, 16).unwrap();
    // SAFETY: this allocator's memory is not used by anybody, and released once per call it records.
    let outcome = unsafe { allocator.release(ptr, 100, 16) };
    assert_eq!(outcome, AllocationReleaseOutcome::Complete { accounting: ReleaseAccounting { allocation_bytes: 100, unmapped_bytes: 0 } });
    assert_eq!(*allocator.0.lock().unwrap(), [("deallocate", ptr, 100, 16)]);

    // SAFETY: as above.
    assert_eq!(unsafe { allocator.deallocate_with_unmapped(ptr, 7, 2) }, 0);
    assert_eq!(*allocator.0.lock().unwrap(), [("deallocate", ptr, 100, 16), ("deallocate", ptr, 7, 2)]);
    assert!(!allocator.commits_on_demand());
    assert!(allocator.as_virtual_backing().is_none());
    assert!(allocator.as_shared_mapping().is_none());
}

/// R152: the number of an overridden `deallocate_with_unmapped` is what the provided release reports.
#[test]
fn provided_release_reports_unmapped_bytes() {
    let allocator = Unmapping::default();
    let ptr = allocator.allocate(100, 16).unwrap();
    // SAFETY: this allocator's memory is not used by anybody, and released once.
    let outcome = unsafe { allocator.release(ptr, 100, 16) };
    assert_eq!(outcome, AllocationReleaseOutcome::complete(ReleaseAccounting::new(100, 4_096)));
    assert_eq!(*allocator.0.0.lock().unwrap(), [("deallocate_with_unmapped", ptr, 100, 16)]);
}

/// Refuses the range at offset 2; records what it committed.
#[derive(Debug, Default)]
struct Backing(Mutex<Vec<(usize, usize, usize, usize)>>);

impl VirtualBacking for Backing {
    fn allocate_committed(&self, _: usize, _: usize, _: &[Range<usize>]) -> Result<NonNull<u8>, MemoryError> {
        unreachable!("nobody calls it")
    }

    fn commit_allocation_range(
        &self,
        _: NonNull<u8>,
        allocation_bytes: usize,
        align: usize,
        offset: usize,
        bytes: usize,
    ) -> Result<(), MemoryError> {
        if offset == 2 {
            return Err(MemoryError::InvalidRequest { tier: "test", requested: bytes as u64, reason: "offset 2" });
        }
        self.0.lock().unwrap().push((allocation_bytes, align, offset, bytes));
        Ok(())
    }

    fn mapped_bytes_for_allocation_ranges(&self, _: &[AllocationCommitRange]) -> Result<u64, MemoryError> {
        unreachable!("nobody calls it")
    }

    fn mapped_bytes_for_allocation(&self, _: usize, _: usize) -> Result<u64, MemoryError> {
        unreachable!("nobody calls it")
    }

    fn decommit_allocation_range(&self, _: NonNull<u8>, _: usize, _: usize, _: usize, _: usize) -> Result<u64, MemoryError> {
        unreachable!("nobody calls it")
    }

    fn allocation_committed_bytes(&self, _: NonNull<u8>, _: usize, _: usize) -> usize {
        unreachable!("nobody calls it")
    }
}

/// The provided `commit_allocation_ranges` goes in order, stops at the first error, and keeps what was committed.
#[test]
fn provided_commit_of_ranges_stops_at_the_first_error() {
    let range = |offset| AllocationCommitRange { ptr: NonNull::dangling(), allocation_bytes: 100, align: 8, offset, bytes: offset + 10 };
    let backing = Backing::default();
    backing.commit_allocation_ranges(&[]).unwrap();
    backing.commit_allocation_ranges(&[range(1), range(0)]).unwrap();
    assert_eq!(*backing.0.lock().unwrap(), [(100, 8, 1, 11), (100, 8, 0, 10)]);

    let backing = Backing::default();
    let error = backing.commit_allocation_ranges(&[range(1), range(2), range(3), range(2)]).unwrap_err();
    assert!(matches!(error, MemoryError::InvalidRequest { requested: 12, reason: "offset 2", .. }));
    assert_eq!(*backing.0.lock().unwrap(), [(100, 8, 1, 11)]);
}

/// R153: tiers, fastest first.
#[test]
fn tiers() {
    let table = [(Tier::Device, 0, "device"), (Tier::Host, 1, "host"), (Tier::Disk, 2, "disk")];
    assert_eq!(Tier::ALL, table.map(|(tier, ..)| tier));
    for (tier, index, name) in table {
        assert_eq!((tier.index(), tier.name()), (index, name));
        assert_eq!(Tier::ALL[index], tier);
    }
    assert!(Tier::ALL.is_sorted_by(|left, right| left < right));
}

/// R153: device keys are a tier and a number, and display as that.
#[test]
fn device_keys() {
    assert_eq!(DeviceKey::device(7), DeviceKey { tier: Tier::Device, index: 7 });
    assert_eq!(DeviceKey::HOST, DeviceKey { tier: Tier::Host, index: 0 });
    assert_eq!(DeviceKey::device(7).to_string(), "device 7");
    assert_eq!(DeviceKey { tier: Tier::Disk, index: 2 }.to_string(), "disk 2");
}

/// R153: the table of states.
#[test]
fn release_states() {
    use AllocationReleaseState::*;
    for (state, retains, permits, terminal, name) in [
        (Live, true, true, false, "live"),
        (Queued, true, true, false, "queued"),
        (PartiallyUnmapped, true, false, true, "partially unmapped"),
        (Released, false, false, true, "released"),
        (DeviceLost, true, false, true, "device lost"),
        (Quarantined, true, false, true, "quarantined"),
    ] {
        assert_eq!(state.retains_ownership(), retains, "{state:?}");
        assert_eq!(state.permits_allocator_call(), permits, "{state:?}");
        assert_eq!(state.is_terminal(), terminal, "{state:?}");
        assert_eq!(state.name(), name);
        assert_eq!(state.to_string(), name);
    }
}

/// R153: the table of outcomes, built by the constructors and by hand.
#[test]
fn release_outcomes() {
    let accounting = ReleaseAccounting::new(100, 60);
    let residual = ResidualOwnership {
        state: AllocationReleaseState::PartiallyUnmapped,
        reason: QuarantineReason::PartialRelease,
        retained_bytes: 40,
        address: 0x1000,
        align: 16,
    };
    let failure = ReleaseFailure::new("no");

    let complete = AllocationReleaseOutcome::complete(accounting);
    assert_eq!(complete, AllocationReleaseOutcome::Complete { accounting });
    let quarantined = AllocationReleaseOutcome::quarantined(accounting, residual);
    assert_eq!(quarantined, AllocationReleaseOutcome::Quarantined { accounting, residual });
    let failed = AllocationReleaseOutcome::failed(String::from("no"));
    assert_eq!(failed, AllocationReleaseOutcome::Failed { failure: failure.clone() });

    use AllocationReleaseState::{Live, PartiallyUnmapped, Released};
    for (outcome, state, accounts, residue, fails, unmapped) in [
        (complete, Released, Some(accounting), None, None, 60),
        (quarantined, PartiallyUnmapped, Some(accounting), Some(residual), None, 60),
        (failed, Live, None, None, Some(&failure), 0),
    ] {
        assert_eq!(outcome.state(), state);
        assert_eq!(outcome.accounting(), accounts);
        assert_eq!(Some(&outcome).and_then(AllocationReleaseOutcome::residual), residue);
        assert_eq!(outcome.failure(), fails);
        assert_eq!(outcome.unmapped_bytes(), unmapped);
        // No wildcard: there are three outcomes and no more.
        let (is_complete, is_quarantined) = match outcome {
            AllocationReleaseOutcome::Complete { .. } => (true, false),
            AllocationReleaseOutcome::Quarantined { .. } => (false, true),
            AllocationReleaseOutcome::Failed { .. } => (false, false),
        };
        assert_eq!(outcome.is_complete(), is_complete);
        assert_eq!(outcome.is_quarantined(), is_quarantined);
    }
}

/// R153: what a release gave back.
#[test]
fn release_accounting() {
    let accounting = ReleaseAccounting::new(5, 3);
    assert_eq!(accounting, ReleaseAccounting { allocation_bytes: 5, unmapped_bytes: 3 });
    assert_eq!(ReleaseAccounting::eager(5), ReleaseAccounting::new(5, 0));
    assert_eq!(ReleaseAccounting::default(), ReleaseAccounting::new(0, 0));
    assert_eq!(SharedPrefixCommitInfo::default(), SharedPrefixCommitInfo { additional_owned_bytes: 0, newly_mapped_bytes: 0, granules: 0 });
}

/// R153: a failure is its reason, from whatever makes an `Arc<str>`.
#[test]
fn release_failures() {
    let shared: Arc<str> = "the driver said no".into();
    let failure = ReleaseFailure::new(Arc::clone(&shared));
    assert_eq!(failure.reason(), &*shared);
    assert_eq!(failure.to_string(), &*shared);
    assert_eq!(failure, ReleaseFailure::new("the driver said no"));
    assert_ne!(failure, ReleaseFailure::new("no"));
}

const REJECTIONS: [(DeferredEnqueueRejection, &str); 4] = [
    (DeferredEnqueueRejection::Closed, "closed"),
    (DeferredEnqueueRejection::Full, "full"),
    (DeferredEnqueueRejection::DeviceLost, "device lost"),
    (DeferredEnqueueRejection::Refused, "refused"),
];

/// R153: rejections are named by their variants.
#[test]
fn rejections() {
    for (rejection, name) in REJECTIONS {
        assert_eq!(rejection.name(), name);
    }
}

/// R153: each reason has a phrase of its own; a rejected enqueue adds the rejection's name.
#[test]
fn quarantine_reasons() {
    use QuarantineReason::*;
    let plain = [AbandonedRequest, OwnerDropped, DeviceLost, MechanismTerminated, PartialRelease, AllocatorRefused];
    for reason in plain {
        assert_eq!(reason.to_string(), reason.name());
        assert!(!reason.name().is_empty());
    }
    for (rejection, name) in REJECTIONS {
        let reason = EnqueueRejected(rejection);
        assert_eq!(reason.name(), EnqueueRejected(DeferredEnqueueRejection::Full).name());
        assert_eq!(reason.to_string(), format!("{}: {name}", reason.name()));
    }
    let rejected = EnqueueRejected(DeferredEnqueueRejection::Full);
    let names: HashSet<_> = plain.iter().chain([&rejected]).map(|reason| reason.name()).collect();
    assert_eq!(names.len(), 7);
}

fn exhausted() -> MemoryError {
    MemoryError::TierExhausted {
        tier: "tier-a",
        requested: 101,
        used: 102,
        limit: 103,
        available: 104,
        role: MemoryRole::Workspace { step_scoped: true },
    }
}

fn unavailable(source: Option<Box<dyn Error + Send + Sync>>) -> MemoryError {
    MemoryError::CapacityUnavailable {
        tier: "tier-d",
        requested: 131,
        available: 132,
        role: MemoryRole::KvCache,
        detail: "the Driver {said} so".into(),
        source,
    }
}

/// R153: each text of `MemoryError` names its fields, reasons word for word; only a boxed cause is a source.
#[test]
fn memory_error_texts() {
    let table: [(MemoryError, &[&str]); 4] = [
        (exhausted(), &["tier-a", "101", "102", "103", "104", "Workspace"]),
        (
            MemoryError::InvalidRequest { tier: "tier-b", requested: 111, reason: "Odd, {0}; \"really\"" },
            &["tier-b", "111", "Odd, {0}; \"really\""],
        ),
        (
            MemoryError::AllocationFailed { tier: "tier-c", requested: 121, reason: "Error 0x2: {}".into() },
            &["tier-c", "121", "Error 0x2: {}"],
        ),
        (unavailable(None), &["tier-d", "131", "132", "KvCache", "the Driver {said} so"]),
    ];
    for (error, names) in table {
        let text = error.to_string();
        for name in names {
            assert!(text.contains(name), "{text:?} does not name {name:?}");
        }
        assert!(error.source().is_none(), "{text:?} has a source");
    }
}

/// R153: the four roles have four names in a text.
#[test]
fn memory_error_texts_tell_roles_apart() {
    let roles = [MemoryRole::KvCache, MemoryRole::Workspace { step_scoped: false }, MemoryRole::Weights, MemoryRole::Activation];
    let texts: HashSet<_> = roles
        .map(|role| {
            // No wildcard: there are four roles and no more.
            let name = match role {
                MemoryRole::KvCache => "KvCache",
                MemoryRole::Workspace { .. } => "Workspace",
                MemoryRole::Weights => "Weights",
                MemoryRole::Activation => "Activation",
            };
            let text = MemoryError::TierExhausted { tier: "host", requested: 1, used: 2, limit: 3, available: 4, role }.to_string();
            assert!(text.contains(name), "{text:?} does not name {name:?}");
            text
        })
        .into();
    assert_eq!(texts.len(), 4);
}

/// R153: the source of a missing capacity is the boxed error itself, and its text stays out of the outer one.
#[test]
fn the_source_of_a_memory_error_is_the_boxed_one() {
    let error = unavailable(Some(Box::new(exhausted())));
    let source = error.source().expect("a cause was given");
    assert!(matches!(source.downcast_ref::<MemoryError>(), Some(MemoryError::TierExhausted { tier: "tier-a", .. })));
    assert_eq!(error.to_string(), unavailable(None).to_string());
    assert!(!error.to_string().contains("tier-a"));
}

/// R153: a binding's memory error is transparent: text and source are the inner error's own.
#[test]
fn the_memory_error_of_a_binding_is_transparent() {
    let error = BindingError::from(exhausted());
    assert!(matches!(error, BindingError::Memory(MemoryError::TierExhausted { .. })));
    assert_eq!(error.to_string(), exhausted().to_string());
    assert!(error.source().is_none());

    let error = BindingError::from(unavailable(Some(Box::new(exhausted()))));
    assert_eq!(error.to_string(), unavailable(None).to_string());
    let source = error.source().expect("the inner error has a cause");
    assert!(matches!(source.downcast_ref::<MemoryError>(), Some(MemoryError::TierExhausted { .. })));
}

/// R153: the errors of a binding that name no identity, as far as anybody can build them.
#[test]
fn binding_error_texts() {
    let table: [(BindingError, &[&str]); 6] = [
        (BindingError::IdentityExhausted, &["identities", "exhausted"]),
        (BindingError::ForeignRegistry { kind: "authority" }, &["authority"]),
        (
            BindingError::DeviceMismatch {
                subject: "allocator",
                expected: DeviceKey::device(3),
                actual: DeviceKey { tier: Tier::Disk, index: 4 },
            },
            &["allocator", "device 3", "disk 4"],
        ),
        (BindingError::NoSelectedMechanism(DeviceKey::device(3)), &["device 3", "register or select"]),
        (BindingError::DeviceLost { device: DeviceKey::device(3), reason: "Xid {79}".into() }, &["device 3", "Xid {79}"]),
        (BindingError::ViewOutOfBounds { offset: 21, end: 22, allocation_bytes: 19 }, &["21", "22", "19"]),
    ];
    for (error, names) in table {
        let text = error.to_string();
        for name in names {
            assert!(text.contains(name), "{text:?} does not name {name:?}");
        }
        assert!(error.source().is_none(), "{text:?} has a source");
    }
}

/// The errors go into a caller's own by `?`, transparently, as they do at every user of the crate.
#[test]
fn errors_convert_into_a_callers_own() {
    #[derive(Debug, thiserror::Error)]
    enum Caller {
        #[error(transparent)]
        Binding(#[from] BindingError),
        #[error(transparent)]
        Memory(#[from] MemoryError),
    }
    fn memory() -> Result<(), Caller> {
        Err(exhausted())?
    }
    fn binding() -> Result<(), Caller> {
        Err(BindingError::IdentityExhausted)?
    }
    assert_eq!(memory().unwrap_err().to_string(), exhausted().to_string());
    assert_eq!(binding().unwrap_err().to_string(), BindingError::IdentityExhausted.to_string());
}

/// Tells whether a type is `Send` and `Sync`: the inherent constant wins over the trait's where the bound holds.
struct Probe<T>(PhantomData<T>);

trait Neither {
    const SEND: bool = false;
    const SYNC: bool = false;
}

impl<T> Neither for Probe<T> {}

impl<T: Send> Probe<T> {
    const SEND: bool = true;
}

impl<T: Sync> Probe<T> {
    const SYNC: bool = true;
}

macro_rules! send_sync {
    ($type:ty) => {
        (stringify!($type), Probe::<$type>::SEND, Probe::<$type>::SYNC)
    };
}

/// Section 7 of the surface: everything crosses threads, except what carries a raw address in a public field.
#[test]
fn send_and_sync() {
    for (name, send, sync) in [
        send_sync!(AllocationGeneration),
        send_sync!(AllocationIdentity),
        send_sync!(AllocationReleaseOutcome),
        send_sync!(AllocationReleaseState),
        send_sync!(AuthorityIdentity),
        send_sync!(BindingError),
        send_sync!(BindingGeneration),
        send_sync!(BindingId),
        send_sync!(BindingIdentity),
        send_sync!(DeferredEnqueueRejection),
        send_sync!(DeviceKey),
        send_sync!(HostAllocator),
        send_sync!(MappedAllocation<u8>),
        send_sync!(MechanismCoherence),
        send_sync!(MechanismIdentity),
        send_sync!(MechanismLifecycle),
        send_sync!(MechanismSnapshot),
        send_sync!(MemoryError),
        send_sync!(MemoryRole),
        send_sync!(ProviderContextIdentity),
        send_sync!(QuarantineReason),
        send_sync!(QuarantinedAllocation),
        send_sync!(ReleaseAccounting),
        send_sync!(ReleaseFailure),
        send_sync!(ResidualOwnership),
        send_sync!(SharedPrefixCommitInfo),
        send_sync!(Tier),
        send_sync!(Box<dyn BindingResource>),
        send_sync!(Box<dyn DeviceAllocator>),
        send_sync!(Box<dyn SharedDevicePrefix>),
        send_sync!(Box<dyn SharedMapping>),
        send_sync!(Box<dyn VirtualBacking>),
    ] {
        assert_eq!((send, sync), (true, true), "{name}");
    }
    for (name, send, sync) in [send_sync!(AllocationCommitRange), send_sync!(MappedAllocation<NonNull<u8>>)] {
        assert_eq!((send, sync), (false, false), "{name}");
    }
    // As its content, one without the other included.
    let (_, send, sync) = send_sync!(MappedAllocation<Cell<u8>>);
    assert_eq!((send, sync), (true, false));
}

/// The traits of the values, as the surface lists them.
#[test]
fn derived_traits() {
    fn value<T: Copy + Debug + Eq + 'static>() {}
    fn key<T: Copy + Debug + Eq + Hash + 'static>() {}
    fn error<T: Error + Send + Sync + 'static>() {}

    value::<MechanismLifecycle>();
    value::<MechanismSnapshot>();
    value::<SharedPrefixCommitInfo>();
    key::<AllocationGeneration>();
    key::<AllocationIdentity>();
    key::<AllocationReleaseState>();
    key::<AuthorityIdentity>();
    key::<BindingGeneration>();
    key::<BindingId>();
    key::<BindingIdentity>();
    key::<DeferredEnqueueRejection>();
    key::<DeviceKey>();
    key::<MechanismCoherence>();
    key::<MechanismIdentity>();
    key::<MemoryRole>();
    key::<ProviderContextIdentity>();
    key::<QuarantineReason>();
    key::<QuarantinedAllocation>();
    key::<ReleaseAccounting>();
    key::<ResidualOwnership>();
    key::<Tier>();
    error::<BindingError>();
    error::<MemoryError>();
}

/// A shared prefix can be a field of a plain `Copy` struct, and be recognised by its maker.
#[test]
fn shared_prefixes_are_objects() {
    #[derive(Debug)]
    struct Prefix;
    impl SharedDevicePrefix for Prefix {
        fn device_ptr(&self) -> u64 {
            1
        }
        fn committed_physical_bytes(&self) -> u64 {
            2
        }
        fn mapped_bytes(&self) -> usize {
            3
        }
        fn requested_bytes(&self) -> usize {
            4
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
    }
    #[derive(Clone, Copy, Debug)]
    struct Use<'a> {
        prefix: &'a dyn SharedDevicePrefix,
    }
    let first = Use { prefix: &Prefix };
    let second = first;
    assert!(second.prefix.as_any().is::<Prefix>());
    assert_eq!(format!("{first:?}"), "Use { prefix: Prefix }");
}

/// R113: user objects in public fields are printed, whatever they are.
#[test]
fn mapped_allocations_print_their_content() {
    let mapped = MappedAllocation { allocation: RefCell::new("content"), additional_owned_bytes: 1, newly_mapped_bytes: 2 };
    assert!(format!("{mapped:?}").contains("content"));
}

/// What users may want in constants is constant.
#[test]
fn constant_functions() {
    const DEVICE: DeviceKey = DeviceKey::device(1);
    const INDEX: usize = Tier::Disk.index();
    const NAME: &str = Tier::Disk.name();
    const STATE: &str = AllocationReleaseState::Live.name();
    const OUTCOME: &AllocationReleaseOutcome = &AllocationReleaseOutcome::complete(ReleaseAccounting::eager(8));
    const UNMAPPED: u64 = OUTCOME.unmapped_bytes();
    assert_eq!((DEVICE.index, INDEX, NAME, STATE, UNMAPPED), (1, 2, "disk", "live", 0));
    const _: () = assert!(QuarantineReason::OwnerDropped.name().len() > DeferredEnqueueRejection::Full.name().len());
    const _: () = assert!(OUTCOME.is_complete() && !OUTCOME.is_quarantined() && OUTCOME.state().is_terminal());
}
