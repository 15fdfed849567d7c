//! Real memory behind the registry, and the witness that watches each mechanism from birth to teardown.
//!
//! Two kinds of memory, both the library's: the process heap, and address space with pages that are committed and
//! decommitted. [`Watched`] is around either, and reports to the [`Life`] of its mechanism, which outlives it:
//!
//! | Witnessed | How |
//! | --- | --- |
//! | blocks obtained and given back | counters per thread, summed when the mechanism is gone |
//! | a release of something that is not a live block | the address is looked up in the ledger first, and not freed |
//! | destruction order | every destructor must find the stage that its predecessor left |
//! | nobody inside the allocator while it is destroyed | a count per thread of calls in progress, summed by the destructor |
//!
//! Around that is a `BudgetedAllocator`: all mechanisms share one budget, which is their authorities' content.
//!
//! Blocks that nobody may release any more, because their device was lost or their owner was dropped, are given back by
//! the allocator's own destructor, as a driver would do on a device reset. So are blocks of the alignment [`STUBBORN`],
//! whose release it does not complete. That is intended; anything else still there is a leak.

use std::alloc::Layout;
use std::cell::Cell;
use std::fmt::{self, Debug};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use liveslot::{
    AllocationCommitRange, AllocationReleaseOutcome, AllocationReleaseState, Budget, BudgetedAllocator, DeviceAllocator, DeviceKey,
    HostAllocator, MemoryError, MemoryRole, QuarantineReason, ReleaseAccounting, ResidualOwnership, VirtualBacking, VirtualMemory,
};

use crate::rng::mix;

/// What the budget says that the memory is for.
pub(crate) const ROLE: MemoryRole = MemoryRole::KvCache;

/// How many blocks of one allocator may be given up on purpose, give or take one per worker.
pub(crate) const SPARE: usize = 8;

/// Blocks of this alignment, in bytes, are not given back when they are released: half of each stays behind.
pub(crate) const STUBBORN: usize = 512;

/// The kinds of memory that take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Heap,
    Virtual,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Heap, Self::Virtual];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Heap => "heap",
            Self::Virtual => "virtual",
        }
    }

    /// This kind's bit in a set of kinds.
    pub(crate) const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// The set of all kinds.
    pub(crate) const fn every() -> u8 {
        (1 << Self::ALL.len()) - 1
    }

    /// An allocator of this kind that is charged to `budget` and reports to `life`.
    pub(crate) fn allocator(self, device: DeviceKey, life: Arc<Life>, budget: Arc<Budget>, capacity: usize) -> Arc<dyn DeviceAllocator> {
        fn charged(watched: Watched<impl DeviceAllocator + 'static>, budget: Arc<Budget>) -> Arc<dyn DeviceAllocator> {
            Arc::new(BudgetedAllocator::new(watched, budget, ROLE))
        }
        match self {
            Self::Heap => charged(Watched::new(HostAllocator, device, life, capacity), budget),
            Self::Virtual => charged(Watched::new(VirtualMemory::new(device), device, life, capacity), budget),
        }
    }
}

/// The live blocks of one allocator: an open-addressed set of addresses without a lock.
///
/// A block's search starts at a slot given by its address. A slot is claimed and vacated by compare-and-swap of its
/// address; the layout beside it belongs to whoever holds the claim. The set is kept far from full (its capacity is
/// a bound on the blocks that the workers can hold), so both searches end after a step or two.
#[derive(Debug)]
struct Ledger {
    slots: Box<[Slot]>,
}

#[derive(Debug, Default)]
struct Slot {
    /// 0 when vacant.
    address: AtomicUsize,
    bytes: AtomicUsize,
    align: AtomicUsize,
}

impl Ledger {
    fn new(capacity: usize) -> Self {
        Self { slots: (0..capacity.next_power_of_two()).map(|_| Slot::default()).collect() }
    }

    fn search(&self, address: usize) -> impl Iterator<Item = &Slot> {
        let start = mix(address as u64) as usize;
        let mask = self.slots.len() - 1;
        (0..self.slots.len()).map(move |step| &self.slots[start.wrapping_add(step) & mask])
    }

    /// False when the ledger is full.
    fn insert(&self, block: NonNull<u8>, layout: Layout) -> bool {
        let address = block.addr().get();
        // Acquire: the layout is written after the previous owner of the slot has read its own. Pairs with the
        // Release in `remove`.
        let claim = |slot: &&Slot| slot.address.compare_exchange(0, address, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let Some(slot) = self.search(address).find(claim) else { return false };
        // Relaxed: the block, and with it the right to look it up, is handed on by its owner.
        slot.bytes.store(layout.size(), Ordering::Relaxed);
        slot.align.store(layout.align(), Ordering::Relaxed);
        true
    }

    /// True once per inserted block, and only with its own layout.
    fn remove(&self, block: NonNull<u8>, layout: Layout) -> bool {
        let address = block.addr().get();
        // Relaxed: whoever gives a block back was handed it by the thread that inserted it.
        let Some(slot) = self.search(address).find(|slot| slot.address.load(Ordering::Relaxed) == address) else {
            return false;
        };
        let recorded = (slot.bytes.load(Ordering::Relaxed), slot.align.load(Ordering::Relaxed));
        recorded == (layout.size(), layout.align())
            // Release: the reads above come before the next owner's writes. Pairs with the Acquire in `insert`.
            && slot.address.compare_exchange(address, 0, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Empties the ledger.
    fn drain(&mut self) -> impl Iterator<Item = (NonNull<u8>, Layout)> {
        self.slots.iter_mut().filter_map(|slot| {
            let address = std::mem::take(slot.address.get_mut());
            let block = NonNull::new(std::ptr::with_exposed_provenance_mut(address))?;
            let layout = Layout::from_size_align(*slot.bytes.get_mut(), *slot.align.get_mut());
            Some((block, layout.expect("stored from a valid layout")))
        })
    }
}

/// An allocator under observation.
#[derive(Debug)]
struct Watched<A: DeviceAllocator> {
    memory: A,
    device: DeviceKey,
    ledger: Ledger,
    life: Arc<Life>,
}

impl<A: DeviceAllocator> Watched<A> {
    fn new(memory: A, device: DeviceKey, life: Arc<Life>, capacity: usize) -> Self {
        Self { memory, device, ledger: Ledger::new(capacity), life }
    }

    fn obtain(
        &self,
        bytes: usize,
        align: usize,
        obtain: impl FnOnce() -> Result<NonNull<u8>, MemoryError>,
    ) -> Result<NonNull<u8>, MemoryError> {
        let inside = self.life.enter();
        let tier = self.device.tier.name();
        let requested = bytes as u64;
        let layout = Layout::from_size_align(bytes, align);
        let layout = layout.map_err(|_| MemoryError::InvalidRequest { tier, requested, reason: "no such layout" })?;
        let block = obtain()?;
        // The ledger keeps bare addresses; the destructor makes pointers of them again.
        block.as_ptr().expose_provenance();
        if !self.ledger.insert(block, layout) {
            // SAFETY: obtained above with these values, and given to nobody.
            unsafe { self.memory.deallocate(block, bytes, align) };
            let capacity = self.ledger.slots.len();
            return Err(MemoryError::AllocationFailed { tier, requested, reason: format!("all {capacity} places are taken") });
        }
        inside.0.obtained.fetch_add(1, Ordering::Relaxed);
        Ok(block)
    }

    fn backing(&self) -> &dyn VirtualBacking {
        self.memory.as_virtual_backing().expect("its own backing is offered only where the memory's is")
    }
}

impl<A: DeviceAllocator> DeviceAllocator for Watched<A> {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        self.obtain(bytes, align, || self.memory.allocate(bytes, align))
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, bytes: usize, align: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.release(block, bytes, align) };
    }

    unsafe fn release(&self, block: NonNull<u8>, bytes: usize, align: usize) -> AllocationReleaseOutcome {
        let inside = self.life.enter();
        let layout = Layout::from_size_align(bytes, align);
        if align == STUBBORN {
            self.life.abandon();
            let accounting = ReleaseAccounting::eager(bytes as u64);
            return AllocationReleaseOutcome::quarantined(accounting, left_of(block, bytes));
        }
        if !layout.is_ok_and(|layout| self.ledger.remove(block, layout)) {
            self.life.refuse();
            return AllocationReleaseOutcome::failed("this is no live block");
        }
        inside.0.released.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the ledger says that the block is live with these values, and has let go of it.
        unsafe { self.memory.release(block, bytes, align) }
    }

    fn device(&self) -> DeviceKey {
        self.device
    }

    fn commits_on_demand(&self) -> bool {
        self.memory.commits_on_demand()
    }

    fn as_virtual_backing(&self) -> Option<&dyn VirtualBacking> {
        self.memory.as_virtual_backing().map(|_| self as _)
    }
}

/// What a release leaves of a [`STUBBORN`] block.
pub(crate) fn left_of(block: NonNull<u8>, bytes: usize) -> ResidualOwnership {
    ResidualOwnership {
        state: AllocationReleaseState::PartiallyUnmapped,
        reason: QuarantineReason::PartialRelease,
        retained_bytes: bytes as u64 / 2,
        address: block.addr().get(),
        align: STUBBORN,
    }
}

/// Allocations enter the ledger; everything else is passed on.
impl<A: DeviceAllocator> VirtualBacking for Watched<A> {
    fn allocate_committed(&self, bytes: usize, align: usize, committed_ranges: &[Range<usize>]) -> Result<NonNull<u8>, MemoryError> {
        self.obtain(bytes, align, || self.backing().allocate_committed(bytes, align, committed_ranges))
    }

    fn commit_allocation_range(
        &self,
        ptr: NonNull<u8>,
        allocation_bytes: usize,
        align: usize,
        offset: usize,
        bytes: usize,
    ) -> Result<(), MemoryError> {
        let _inside = self.life.enter();
        self.backing().commit_allocation_range(ptr, allocation_bytes, align, offset, bytes)
    }

    fn mapped_bytes_for_allocation_ranges(&self, ranges: &[AllocationCommitRange]) -> Result<u64, MemoryError> {
        let _inside = self.life.enter();
        self.backing().mapped_bytes_for_allocation_ranges(ranges)
    }

    fn mapped_bytes_for_allocation(&self, bytes: usize, align: usize) -> Result<u64, MemoryError> {
        let _inside = self.life.enter();
        self.backing().mapped_bytes_for_allocation(bytes, align)
    }

    fn decommit_allocation_range(
        &self,
        ptr: NonNull<u8>,
        allocation_bytes: usize,
        align: usize,
        offset: usize,
        bytes: usize,
    ) -> Result<u64, MemoryError> {
        let _inside = self.life.enter();
        self.backing().decommit_allocation_range(ptr, allocation_bytes, align, offset, bytes)
    }

    fn allocation_committed_bytes(&self, ptr: NonNull<u8>, allocation_bytes: usize, align: usize) -> usize {
        let _inside = self.life.enter();
        self.backing().allocation_committed_bytes(ptr, allocation_bytes, align)
    }
}

impl<A: DeviceAllocator> Drop for Watched<A> {
    fn drop(&mut self) {
        self.life.pass(Stage::Alive, Stage::Destroying);
        self.life.expect_nobody_inside();
        let mut reclaimed = 0;
        for (block, layout) in self.ledger.drain() {
            // SAFETY: live with this layout according to the ledger, and nobody can release it any more.
            unsafe { self.memory.deallocate(block, layout.size(), layout.align()) };
            reclaimed += 1;
        }
        self.life.reclaimed.fetch_add(reclaimed, Ordering::Relaxed);
        self.life.expect_nobody_inside();
        self.life.pass(Stage::Destroying, Stage::AllocatorGone);
    }
}

/// The authority of one mechanism: the budget that it shares with all others.
#[derive(Debug)]
pub(crate) struct Authority {
    pub(crate) life: Arc<Life>,
    pub(crate) budget: Arc<Budget>,
}

impl Drop for Authority {
    fn drop(&mut self) {
        self.life.pass(Stage::AllocatorGone, Stage::AuthorityGone);
    }
}

/// The provider context of one mechanism.
#[derive(Debug)]
pub(crate) struct Context(pub(crate) Arc<Life>);

impl Drop for Context {
    fn drop(&mut self) {
        self.0.pass(Stage::AuthorityGone, Stage::Over);
    }
}

/// How far the teardown of a mechanism has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Alive,
    Destroying,
    AllocatorGone,
    AuthorityGone,
    Over,
}

/// What the control thread is about to do, or has done, to a mechanism; set before the call begins.
///
/// A refusal that names a fate nobody has decided is an error of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Retired = 1,
    Lost = 2,
    Terminated = 4,
}

thread_local! {
    /// Which stripe of each life this thread counts on. Threads that are not workers share stripe 0.
    static STRIPE: Cell<usize> = const { Cell::new(0) };
}

/// Makes the calling thread count on the stripe of worker `index`.
pub(crate) fn count_as_worker(index: usize) {
    STRIPE.set(index + 1);
}

/// The witness of one mechanism: it outlives allocator, authority and context, and adds up what they report.
pub(crate) struct Life {
    pub(crate) kind: Kind,
    /// Set of [`Fate`]s.
    fates: AtomicU8,
    /// A [`Stage`].
    stage: AtomicU8,
    order_violations: AtomicU64,
    refused_releases: AtomicU64,
    abandoned: AtomicU64,
    reclaimed: AtomicU64,
    stripes: Box<[CachePadded<Stripe>]>,
}

/// Counted by one worker alone.
#[derive(Default)]
pub(crate) struct Stripe {
    /// Calls in progress inside the allocator.
    inside: AtomicU64,
    obtained: AtomicU64,
    released: AtomicU64,
}

/// A thread is inside the allocator.
struct Inside<'life>(&'life Stripe);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // SeqCst: as in `Life::enter`.
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Life {
    pub(crate) fn new(kind: Kind, workers: usize) -> Arc<Self> {
        Arc::new(Self {
            kind,
            fates: AtomicU8::new(0),
            stage: AtomicU8::new(Stage::Alive as u8),
            order_violations: AtomicU64::new(0),
            refused_releases: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            reclaimed: AtomicU64::new(0),
            stripes: (0..=workers).map(|_| CachePadded::default()).collect(),
        })
    }

    pub(crate) fn decide(&self, fate: Fate) {
        // Release: whoever learns of the fate's effect through the library sees it decided.
        self.fates.fetch_or(fate as u8, Ordering::Release);
    }

    pub(crate) fn is_decided(&self, fate: Fate) -> bool {
        self.fates.load(Ordering::Acquire) & fate as u8 != 0
    }

    /// A block will not be released: a worker gave it up, or the allocator keeps a part of it.
    pub(crate) fn abandon(&self) {
        // Relaxed: read after the teardown, which the drop of the worker's handle precedes.
        self.abandoned.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether one more block may be given up without a need. What is given up stays in ledger and budget until a loss.
    pub(crate) fn can_spare_a_block(&self) -> bool {
        // Relaxed: a bound that some threads may exceed by one each does as well.
        self.abandoned.load(Ordering::Relaxed) < SPARE as u64
    }

    /// Allocator, authority and context are destroyed.
    pub(crate) fn is_over(&self) -> bool {
        // Acquire: the reports made on the way are visible. Pairs with the AcqRel in `pass`.
        self.stage.load(Ordering::Acquire) == Stage::Over as u8
    }

    fn enter(&self) -> Inside<'_> {
        let stripe: &Stripe = &self.stripes[STRIPE.get()];
        // SeqCst, here and in `pass` and `expect_nobody_inside`: either the destructor counts this thread, or this
        // thread sees that destruction has begun.
        stripe.inside.fetch_add(1, Ordering::SeqCst);
        if self.stage.load(Ordering::SeqCst) != Stage::Alive as u8 {
            self.violate();
        }
        Inside(stripe)
    }

    fn expect_nobody_inside(&self) {
        if self.stripes.iter().any(|stripe| stripe.inside.load(Ordering::SeqCst) != 0) {
            self.violate();
        }
    }

    /// A destructor moves the life on. Finding any other stage than the expected one, a second time included, is a
    /// violation; the life moves on nevertheless.
    fn pass(&self, expected: Stage, next: Stage) {
        if self.stage.swap(next as u8, Ordering::SeqCst) != expected as u8 {
            self.violate();
        }
    }

    fn violate(&self) {
        self.order_violations.fetch_add(1, Ordering::Relaxed);
    }

    fn refuse(&self) {
        self.refused_releases.fetch_add(1, Ordering::Relaxed);
    }

    /// The final account. Exact once the life is over, or once no thread can reach the mechanism any more.
    pub(crate) fn account(&self) -> Account {
        let sum =
            |count: fn(&Stripe) -> &AtomicU64| -> u64 { self.stripes.iter().map(|stripe| count(stripe).load(Ordering::Relaxed)).sum() };
        let obtained = sum(|stripe| &stripe.obtained);
        let released = sum(|stripe| &stripe.released);
        let abandoned = self.abandoned.load(Ordering::Relaxed);
        Account {
            obtained,
            reclaimed: self.reclaimed.load(Ordering::Relaxed),
            kept: obtained.saturating_sub(released + abandoned),
            // A block that was abandoned, because its release had been refused, was released all the same.
            released_after_refusal: (released + abandoned).saturating_sub(obtained),
            refused_releases: self.refused_releases.load(Ordering::Relaxed),
            order_violations: self.order_violations.load(Ordering::Relaxed) + u64::from(!self.is_over()),
        }
    }
}

impl Debug for Life {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Life").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// What one mechanism did with its blocks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) obtained: u64,
    /// Given back by the allocator's destructor.
    pub(crate) reclaimed: u64,
    /// Neither released nor given up. Prepared releases that ended in quarantine because of a loss leave such blocks, and
    /// nothing else may.
    pub(crate) kept: u64,
    pub(crate) released_after_refusal: u64,
    /// Releases of something that was not a live block of this allocator.
    pub(crate) refused_releases: u64,
    pub(crate) order_violations: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: Account =
        Account { obtained: 0, reclaimed: 0, kept: 0, released_after_refusal: 0, refused_releases: 0, order_violations: 0 };

    fn mechanism(kind: Kind) -> (Arc<Life>, Arc<dyn DeviceAllocator>, Authority, Context) {
        let life = Life::new(kind, 1);
        let budget = Arc::new(Budget::new(1000));
        let allocator = kind.allocator(DeviceKey::device(0), life.clone(), budget.clone(), 8);
        (life.clone(), allocator, Authority { life: life.clone(), budget }, Context(life))
    }

    #[test]
    fn a_clean_life_has_a_clean_account() {
        for kind in Kind::ALL {
            let (life, allocator, authority, context) = mechanism(kind);
            let block = match allocator.as_virtual_backing() {
                Some(backing) => backing.allocate_committed(100, 64, std::slice::from_ref(&(0..100))),
                None => allocator.allocate(100, 64),
            };
            let block = block.expect("memory");
            assert!(block.addr().get().is_multiple_of(64));
            assert_eq!(authority.budget.used(), 100);
            // SAFETY: 100 bytes were allocated at `block`, and committed where that is needed.
            unsafe { block.write_bytes(7, 100) };
            // SAFETY: allocated above, with these values.
            unsafe { allocator.deallocate(block, 100, 64) };
            drop(allocator);
            assert_eq!(authority.budget.used(), 0);
            drop(authority);
            drop(context);
            assert_eq!(life.account(), Account { obtained: 1, ..CLEAN });
        }
    }

    #[test]
    fn a_block_that_stays_is_kept_unless_it_was_abandoned() {
        for (abandon, kept) in [(false, 1), (true, 0)] {
            let (life, allocator, authority, context) = mechanism(Kind::Heap);
            allocator.allocate(1, 1).expect("memory");
            if abandon {
                life.abandon();
            }
            drop(allocator);
            drop(authority);
            drop(context);
            assert_eq!(life.account(), Account { obtained: 1, reclaimed: 1, kept, ..CLEAN });
        }
    }

    #[test]
    fn a_second_release_and_a_wrong_size_are_refused() {
        let (life, allocator, authority, context) = mechanism(Kind::Heap);
        let block = allocator.allocate(16, 8).expect("memory");
        // SAFETY: breaks the contract on purpose; the ledger keeps the block when the size differs.
        unsafe { allocator.deallocate(block, 17, 8) };
        // SAFETY: allocated above, with these values.
        unsafe { allocator.deallocate(block, 16, 8) };
        // SAFETY: breaks the contract on purpose; the ledger does not know the block any more.
        unsafe { allocator.deallocate(block, 16, 8) };
        drop(allocator);
        drop(authority);
        drop(context);
        assert_eq!(life.account(), Account { obtained: 1, refused_releases: 2, ..CLEAN });
    }

    #[test]
    fn a_wrong_order_and_a_missing_destructor_are_violations() {
        let (life, allocator, authority, context) = mechanism(Kind::Heap);
        drop(authority);
        drop(allocator);
        drop(context);
        assert_eq!(life.account().order_violations, 3, "each of the three found another stage than its own");

        let (life, allocator, authority, context) = mechanism(Kind::Heap);
        drop(allocator);
        drop(authority);
        assert_eq!(life.account().order_violations, 1, "the context is still there");
        drop(context);
        assert_eq!(life.account().order_violations, 0);
    }

    #[test]
    fn a_full_ledger_is_an_error() {
        let (_life, allocator, _authority, _context) = mechanism(Kind::Heap);
        for _ in 0..8 {
            allocator.allocate(8, 8).expect("the capacity is 8");
        }
        assert!(matches!(allocator.allocate(8, 8), Err(MemoryError::AllocationFailed { .. })));
    }

    #[test]
    fn half_of_a_stubborn_block_stays_until_the_end() {
        for kind in Kind::ALL {
            let (life, allocator, authority, context) = mechanism(kind);
            let block = allocator.allocate(101, STUBBORN).expect("memory");
            // SAFETY: allocated above, with these values.
            let outcome = unsafe { allocator.release(block, 101, STUBBORN) };
            assert_eq!(outcome.residual(), Some(left_of(block, 101)));
            assert_eq!((authority.budget.used(), authority.budget.quarantined()), (0, 50));
            drop(allocator);
            assert_eq!(authority.budget.free(), 1000);
            drop(authority);
            drop(context);
            assert_eq!(life.account(), Account { obtained: 1, reclaimed: 1, ..CLEAN });
        }
    }
}
