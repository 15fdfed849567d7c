//! Real memory behind the registry, and the witness that watches each mechanism from birth to teardown.
//!
//! Two kinds of memory: the process heap, and anonymous mappings taken straight from the kernel, one `mmap` and one
//! `munmap` per block. [`Watched`] turns either into a `DeviceAllocator` that knows which blocks are live, and
//! reports to the [`Life`] of its mechanism, which outlives it:
//!
//! | Witnessed | How |
//! | --- | --- |
//! | blocks obtained and given back | counters per thread, summed when the mechanism is gone |
//! | a release of something that is not a live block | the address is looked up in the ledger first, and not freed |
//! | destruction order | every destructor must find the stage that its predecessor left |
//! | nobody inside the allocator while it is destroyed | a count per thread of calls in progress, summed by the destructor |
//!
//! Blocks that nobody may release any more, because their device was lost, are given back by the allocator's own
//! destructor, as a driver would do on a device reset. That is intended; anything else still there is a leak.

use std::alloc::Layout;
use std::cell::Cell;
use std::fmt::{self, Debug};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use liveslot::{DeviceAllocator, DeviceKey, MemoryError, MemoryRole};
use rustix::mm::{MapFlags, ProtFlags};

use crate::rng::mix;

/// The kinds of memory that take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Heap,
    Mmap,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Heap, Self::Mmap];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Heap => "heap",
            Self::Mmap => "mmap",
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

    /// An allocator of this kind that reports to `life`.
    pub(crate) fn allocator(self, device: DeviceKey, life: Arc<Life>, capacity: usize) -> Arc<dyn DeviceAllocator> {
        match self {
            Self::Heap => Arc::new(Watched::new(Heap, device, life, capacity)),
            Self::Mmap => Arc::new(Watched::new(Mmap, device, life, capacity)),
        }
    }
}

/// A source of memory. Blocks of zero bytes are never asked for.
trait Source: Send + Sync + Debug + 'static {
    fn obtain(&self, layout: Layout) -> Option<NonNull<u8>>;

    /// # Safety
    ///
    /// `block` came from `obtain` of this source with the same `layout`, and is given back once.
    unsafe fn give_back(&self, block: NonNull<u8>, layout: Layout);
}

#[derive(Debug)]
struct Heap;

impl Source for Heap {
    fn obtain(&self, layout: Layout) -> Option<NonNull<u8>> {
        // SAFETY: the layout has at least one byte (`Source`).
        NonNull::new(unsafe { std::alloc::alloc(layout) })
    }

    unsafe fn give_back(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller vouches for block and layout.
        unsafe { std::alloc::dealloc(block.as_ptr(), layout) }
    }
}

#[derive(Debug)]
struct Mmap;

impl Mmap {
    /// The smallest page of any system this runs on; mappings start at a page.
    const ALIGN: usize = 4096;
}

impl Source for Mmap {
    fn obtain(&self, layout: Layout) -> Option<NonNull<u8>> {
        if layout.align() > Self::ALIGN {
            return None;
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no existing memory.
        let block = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), layout.size(), access, MapFlags::PRIVATE) };
        NonNull::new(block.ok()?.cast())
    }

    unsafe fn give_back(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller vouches that this whole mapping is its own. The kernel rounds the length up to pages, as
        // it did when mapping.
        let unmapped = unsafe { rustix::mm::munmap(block.as_ptr().cast(), layout.size()) };
        unmapped.expect("a mapping of ours can be unmapped");
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

/// A [`Source`] as a `DeviceAllocator`, under observation.
#[derive(Debug)]
struct Watched<S: Source> {
    source: S,
    device: DeviceKey,
    ledger: Ledger,
    life: Arc<Life>,
}

impl<S: Source> Watched<S> {
    fn new(source: S, device: DeviceKey, life: Arc<Life>, capacity: usize) -> Self {
        Self { source, device, ledger: Ledger::new(capacity), life }
    }

    fn layout(bytes: usize, align: usize) -> Option<Layout> {
        Layout::from_size_align(bytes.max(1), align).ok()
    }
}

impl<S: Source> DeviceAllocator for Watched<S> {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        let inside = self.life.enter();
        let tier = self.device.tier.name();
        let requested = bytes as u64;
        let Some(layout) = Self::layout(bytes, align) else {
            return Err(MemoryError::InvalidRequest { tier, requested, reason: "no such alignment" });
        };
        let Some(block) = self.source.obtain(layout) else {
            return Err(MemoryError::AllocationFailed { tier, requested, reason: format!("{:?} has none", self.source) });
        };
        // The ledger keeps bare addresses; the destructor makes pointers of them again.
        block.as_ptr().expose_provenance();
        if !self.ledger.insert(block, layout) {
            // SAFETY: obtained above with this layout, and given to nobody.
            unsafe { self.source.give_back(block, layout) };
            return Err(MemoryError::TierExhausted {
                tier,
                requested,
                used: self.ledger.slots.len() as u64,
                limit: self.ledger.slots.len() as u64,
                available: 0,
                role: MemoryRole::Activation,
            });
        }
        inside.0.obtained.fetch_add(1, Ordering::Relaxed);
        Ok(block)
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, bytes: usize, align: usize) {
        let inside = self.life.enter();
        match Self::layout(bytes, align) {
            Some(layout) if self.ledger.remove(block, layout) => {
                // SAFETY: the ledger says that the block is live with this layout, and has let go of it.
                unsafe { self.source.give_back(block, layout) };
                inside.0.released.fetch_add(1, Ordering::Relaxed);
            }
            _ => self.life.refuse(),
        }
    }

    fn device(&self) -> DeviceKey {
        self.device
    }
}

impl<S: Source> Drop for Watched<S> {
    fn drop(&mut self) {
        self.life.pass(Stage::Alive, Stage::Destroying);
        self.life.expect_nobody_inside();
        let mut reclaimed = 0;
        for (block, layout) in self.ledger.drain() {
            // SAFETY: live with this layout according to the ledger, and nobody can release it any more.
            unsafe { self.source.give_back(block, layout) };
            reclaimed += 1;
        }
        self.life.reclaimed.fetch_add(reclaimed, Ordering::Relaxed);
        self.life.expect_nobody_inside();
        self.life.pass(Stage::Destroying, Stage::AllocatorGone);
    }
}

/// The authority of one mechanism.
#[derive(Debug)]
pub(crate) struct Authority(pub(crate) Arc<Life>);

impl Drop for Authority {
    fn drop(&mut self) {
        self.0.pass(Stage::AllocatorGone, Stage::AuthorityGone);
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

    /// A worker gave up a block that it was not allowed to release.
    pub(crate) fn abandon(&self) {
        // Relaxed: read after the teardown, which the drop of the worker's handle precedes.
        self.abandoned.fetch_add(1, Ordering::Relaxed);
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
            leaked: obtained.saturating_sub(released + abandoned),
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
    /// Neither released nor given up because of a loss.
    pub(crate) leaked: u64,
    pub(crate) released_after_refusal: u64,
    /// Releases of something that was not a live block of this allocator.
    pub(crate) refused_releases: u64,
    pub(crate) order_violations: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: Account =
        Account { obtained: 0, reclaimed: 0, leaked: 0, released_after_refusal: 0, refused_releases: 0, order_violations: 0 };

    fn mechanism(kind: Kind) -> (Arc<Life>, Arc<dyn DeviceAllocator>, Authority, Context) {
        let life = Life::new(kind, 1);
        let allocator = kind.allocator(DeviceKey::device(0), life.clone(), 8);
        (life.clone(), allocator, Authority(life.clone()), Context(life))
    }

    #[test]
    fn a_clean_life_has_a_clean_account() {
        for kind in Kind::ALL {
            let (life, allocator, authority, context) = mechanism(kind);
            let block = allocator.allocate(100, 64).expect("memory");
            assert!(block.addr().get().is_multiple_of(64));
            // SAFETY: 100 bytes were allocated at `block`.
            unsafe { block.write_bytes(7, 100) };
            // SAFETY: allocated above, with these values.
            unsafe { allocator.deallocate(block, 100, 64) };
            drop(allocator);
            drop(authority);
            drop(context);
            assert_eq!(life.account(), Account { obtained: 1, ..CLEAN });
        }
    }

    #[test]
    fn a_block_that_stays_is_a_leak_unless_it_was_abandoned() {
        for (abandon, leaked) in [(false, 1), (true, 0)] {
            let (life, allocator, authority, context) = mechanism(Kind::Heap);
            allocator.allocate(1, 1).expect("memory");
            if abandon {
                life.abandon();
            }
            drop(allocator);
            drop(authority);
            drop(context);
            assert_eq!(life.account(), Account { obtained: 1, reclaimed: 1, leaked, ..CLEAN });
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
        assert!(matches!(allocator.allocate(8, 8), Err(MemoryError::TierExhausted { .. })));
    }
}
