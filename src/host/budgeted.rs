//! Any allocator, charged to a [`Budget`].
//!
//! A charge is made before the allocator is called, and belongs to a guard until it is known how the call ended:
//!
//! ```text
//!                charge            the call returned memory
//!   (refused) ◀────────▶ Charge ─────────────────────────────▶ used
//!                          │ error, panic                         │ release, deallocate, prefix dropped
//!                          ▼                                      ▼
//!                       refunded ◀──────────────────────── Settlement ─────────────▶ quarantined
//!                          ▲            complete                        incomplete,        │
//!                          │                                            failed, panic      │
//!                          └── a retried release completes, the allocator is destroyed ◀───┘ and whatever is used still
//! ```
//!
//! What never reaches the allocator (the device was lost, an owner was dropped, a queue refused) stays used, because the memory does.
//! It ends with the allocator, so each wrapper keeps its own [`Account`], and what that still holds is refunded when it is dropped:
//! after the allocator's destructor, also if that panicked. An account gives no more than it holds, so memory that was never charged
//! (adopted from elsewhere) can't take the budget below zero. Shared prefixes have an account beside the allocations', since a prefix
//! that is used without a registry can outlive the allocator.
//!
//! | operation | progress | cost, beside the allocator's |
//! | --- | --- | --- |
//! | `allocate`, `allocate_committed` | lock-free | a charge of the [`Budget`], two read-modify-writes of the account |
//! | `deallocate`, `deallocate_with_unmapped`, `release` | lock-free | two compare-and-swaps of the account, a refund of the [`Budget`] |
//! | `release_again` | lock-free | two compare-and-swaps of the account, two read-modify-writes of the [`Budget`]; nothing if it fails |
//! | `create_shared_prefix` | lock-free | as `allocate`, and the difference to what was committed; two heap blocks |
//! | [`BudgetedAllocator::charged`], [`BudgetedAllocator::quarantined`] | wait-free | four loads |
//! | the destructor | wait-free | four read-modify-writes |

use super::budget::{Budget, Exhausted};
use crate::{
    contract::{
        AllocationCommitRange, AllocationReleaseOutcome, DeviceAllocator, DeviceKey, MemoryRole, SharedDevicePrefix, SharedMapping,
        SharedPrefixCommitInfo, VirtualBacking,
    },
    error::MemoryError,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::*},
    },
};
use std::{any::Any, fmt, mem, ops::Range, ptr::NonNull};

/// How much one [`BudgetedAllocator`] has charged or in quarantine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct BudgetTally {
    /// In bytes.
    pub bytes: u64,
    /// In allocations, each shared prefix being one.
    pub count: u64,
}

/// A tally that many threads keep. The two words are not one instant; at rest they agree.
struct Tally {
    bytes: AtomicU64,
    count: AtomicU64,
}

impl Tally {
    fn new() -> Self {
        Self { bytes: AtomicU64::new(0), count: AtomicU64::new(0) }
    }

    #[inline]
    fn add(&self, bytes: u64, count: u64) {
        // Relaxed: sums, which order nothing; so in all of this type. Bytes are added after the budget was charged and taken off before
        // it is refunded, and the budget's word orders the two: no sum exceeds the limit.
        self.bytes.fetch_add(bytes, Relaxed);
        self.count.fetch_add(count, Relaxed);
    }

    /// Takes away as much as there is, and returns the bytes.
    #[inline]
    fn take(&self, bytes: u64, count: u64) -> u64 {
        let take = |word: &AtomicU64, wanted: u64| {
            // Relaxed: as in `add`.
            let before = word.fetch_update(Relaxed, Relaxed, |held| Some(held.saturating_sub(wanted)));
            before.unwrap_or_else(|held| held).min(wanted)
        };
        take(&self.count, count);
        take(&self.bytes, bytes)
    }

    fn read(&self) -> BudgetTally {
        // Relaxed: as in `add`.
        BudgetTally { bytes: self.bytes.load(Relaxed), count: self.count.load(Relaxed) }
    }
}

/// What one wrapper has of a budget.
struct Account {
    budget: Arc<Budget>,
    charged: Tally,
    quarantined: Tally,
}

impl Account {
    fn new(budget: Arc<Budget>) -> Self {
        Self { budget, charged: Tally::new(), quarantined: Tally::new() }
    }

    /// Charges for something that is about to be made.
    #[inline]
    fn charge(&self, bytes: u64) -> Result<Charge<'_>, Exhausted> {
        self.budget.charge(bytes)?;
        self.charged.add(bytes, 1);
        Ok(Charge { account: self, bytes })
    }

    /// Refunds the bytes of `count` things.
    #[inline]
    fn refund(&self, bytes: u64, count: u64) {
        self.budget.refund(self.charged.take(bytes, count));
    }

    /// One thing of `bytes` bytes is gone but for `retained`, as far as that can be.
    #[cold]
    fn quarantine(&self, bytes: u64, retained: u64) {
        let charged = self.charged.take(bytes, 1);
        let retained = retained.min(charged);
        self.quarantined.add(retained, 1);
        self.budget.quarantine(charged, retained);
    }

    /// Something of `bytes` bytes, which was quarantined whole, is gone but for `retained`; if for that, it still counts as one.
    #[cold]
    fn reclaim(&self, bytes: u64, retained: Option<u64>) {
        let count = u64::from(retained.is_none());
        let reclaimed = self.quarantined.take(bytes - retained.unwrap_or(0).min(bytes), count);
        self.budget.discharge(0, reclaimed);
    }

    /// Something of `bytes` bytes is about to be destroyed.
    #[inline]
    fn settle(&self, bytes: u64) -> Settlement<'_> {
        Settlement { account: self, bytes }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // Nobody else is left, and `&mut self` comes after what they did: these are the last words.
        let (charged, quarantined) = (self.charged.read(), self.quarantined.read());
        self.budget.discharge(charged.bytes, quarantined.bytes);
    }
}

/// A charge for something that is not made yet. Dropped, also by unwinding, it is refunded.
#[must_use]
struct Charge<'a> {
    account: &'a Account,
    bytes: u64,
}

impl Charge<'_> {
    /// The thing is there.
    #[inline]
    fn keep(self) {
        mem::forget(self);
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.account.refund(self.bytes, 1);
    }
}

/// Something that is being destroyed. Dropped, which is by unwinding, all of it is quarantined.
#[must_use]
struct Settlement<'a> {
    account: &'a Account,
    bytes: u64,
}

impl<'a> Settlement<'a> {
    #[inline]
    fn into_parts(self) -> (&'a Account, u64) {
        let parts = (self.account, self.bytes);
        mem::forget(self);
        parts
    }

    /// It is gone.
    #[inline]
    fn complete(self) {
        let (account, bytes) = self.into_parts();
        account.refund(bytes, 1);
    }

    /// Something is left of it.
    #[cold]
    fn incomplete(self, retained: u64) {
        let (account, bytes) = self.into_parts();
        account.quarantine(bytes, retained);
    }
}

impl Drop for Settlement<'_> {
    fn drop(&mut self) {
        self.account.quarantine(self.bytes, self.bytes);
    }
}

/// An allocator whose allocations are charged to a [`Budget`], each by the bytes that were asked for.
///
/// | what happens | what is charged |
/// | --- | --- |
/// | an allocation | its bytes, before the allocator is called; refunded if that fails or panics |
/// | a release that completes | its bytes are refunded, after the allocator has returned |
/// | a release that leaves something behind | what was retained goes into quarantine, at most all of it; the rest is refunded |
/// | a release that fails or panics | all bytes go into quarantine |
/// | a [retry](DeviceAllocator::release_again) of a failed release | what is gone then leaves the quarantine, and is refunded |
/// | an allocation that is never released | its bytes stay used |
/// | the allocator is destroyed | everything that it has used or in quarantine is refunded, after its destructor |
///
/// The library keeps allocations from the allocator whose device was lost, whose owner was dropped or whose deferred release was
/// abandoned. The wrapper is not told of these, and counts them as used until it is destroyed; what a mechanism's snapshot shows as
/// quarantined is therefore not what the budget does. A release of memory that was not made through this wrapper is passed on and
/// refunds at most what this wrapper has charged.
///
/// # Capabilities
///
/// They are those of the allocator:
///
/// - [`VirtualBacking`]: an allocation made by it is charged in whole, like any other. Backing and unbacking its ranges charges
///   and refunds nothing: the budget limits what *may* be backed.
/// - [`SharedMapping`]: a prefix is charged by its committed physical bytes, once, for as long as it exists: what was asked for before
///   it is made, and the difference afterwards. If the difference does not fit, the prefix is dropped again. Mapping it charges
///   nothing. A prefix of another wrapper, or of the allocator itself, is refused.
///
/// # Example
///
/// With a registry: see [`Budget`].
///
/// ```
/// use liveslot::{Budget, BudgetedAllocator, DeviceAllocator, HostAllocator, MemoryRole};
/// use std::sync::Arc;
///
/// let budget = Arc::new(Budget::new(4096));
/// let allocator = BudgetedAllocator::new(HostAllocator, budget.clone(), MemoryRole::Weights);
/// let ptr = allocator.allocate(4096, 64)?;
/// assert!(allocator.allocate(1, 1).is_err());
/// assert_eq!((allocator.charged().bytes, allocator.charged().count), (4096, 1));
/// // SAFETY: allocated above with these values, and released once.
/// unsafe { allocator.deallocate(ptr, 4096, 64) };
/// assert_eq!(budget.free(), 4096);
/// # Ok::<(), liveslot::MemoryError>(())
/// ```
pub struct BudgetedAllocator<A> {
    // In this order: an account gives back what it still holds after the destructor of the allocator.
    allocator: A,
    allocations: Account,
    prefixes: Arc<Account>,
    role: MemoryRole,
}

impl<A> BudgetedAllocator<A> {
    /// Charges what `allocator` makes to `budget`. Refusals say that it was for `role`.
    #[must_use]
    pub fn new(allocator: A, budget: Arc<Budget>, role: MemoryRole) -> Self {
        let prefixes = Arc::new(Account::new(Arc::clone(&budget)));
        Self { allocator, allocations: Account::new(budget), prefixes, role }
    }

    /// The allocator. Memory that is asked of it directly is charged to nobody.
    #[must_use]
    pub const fn allocator(&self) -> &A {
        &self.allocator
    }

    /// What is charged to it.
    #[must_use]
    pub const fn budget(&self) -> &Arc<Budget> {
        &self.allocations.budget
    }

    /// What refusals say that its memory is for.
    #[must_use]
    pub const fn role(&self) -> MemoryRole {
        self.role
    }

    /// What this wrapper has used of its budget: live allocations and prefixes, those that are being made or released, and those that
    /// were never released. Bytes and count are read one after the other.
    ///
    /// # Progress
    ///
    /// Wait-free: four loads.
    #[must_use]
    pub fn charged(&self) -> BudgetTally {
        self.sum(|account| &account.charged)
    }

    /// What releases through this wrapper have left behind. Bytes and count are read one after the other.
    ///
    /// # Progress
    ///
    /// Wait-free: four loads.
    #[must_use]
    pub fn quarantined(&self) -> BudgetTally {
        self.sum(|account| &account.quarantined)
    }

    fn sum(&self, tally: fn(&Account) -> &Tally) -> BudgetTally {
        let (allocations, prefixes) = (tally(&self.allocations).read(), tally(&self.prefixes).read());
        // They are no one instant, so the sum may be one that never was.
        BudgetTally { bytes: allocations.bytes.saturating_add(prefixes.bytes), count: allocations.count.saturating_add(prefixes.count) }
    }
}

impl<A: DeviceAllocator> BudgetedAllocator<A> {
    fn tier(&self) -> &'static str {
        self.allocator.device().tier.name()
    }

    #[cold]
    fn exhausted(&self, requested: u64, Exhausted { committed, limit }: Exhausted) -> MemoryError {
        MemoryError::TierExhausted { tier: self.tier(), requested, used: committed, limit, available: limit - committed, role: self.role }
    }

    #[cold]
    fn invalid(&self, requested: usize, reason: &'static str) -> MemoryError {
        MemoryError::InvalidRequest { tier: self.tier(), requested: requested as u64, reason }
    }

    /// Charges `bytes` bytes for what `make` makes.
    #[inline]
    fn charged_for<T>(&self, account: &Account, bytes: usize, make: impl FnOnce() -> Result<T, MemoryError>) -> Result<T, MemoryError> {
        let bytes = bytes as u64;
        let charge = account.charge(bytes).map_err(|exhausted| self.exhausted(bytes, exhausted))?;
        let made = make()?;
        charge.keep();
        Ok(made)
    }

    fn backing(&self, requested: usize) -> Result<&dyn VirtualBacking, MemoryError> {
        self.allocator.as_virtual_backing().ok_or_else(|| self.invalid(requested, "the allocator offers no virtual backing"))
    }

    fn mapping(&self, requested: usize) -> Result<&dyn SharedMapping, MemoryError> {
        self.allocator.as_shared_mapping().ok_or_else(|| self.invalid(requested, "the allocator offers no shared mapping"))
    }

    /// The allocator's own prefix.
    fn own<'a>(&self, prefix: &'a dyn SharedDevicePrefix) -> Result<&'a dyn SharedDevicePrefix, MemoryError> {
        match prefix.as_any().downcast_ref::<BudgetedPrefix>() {
            Some(own) if Arc::ptr_eq(&own.account, &self.prefixes) => Ok(own.inner()),
            _ => Err(self.invalid(prefix.requested_bytes(), "the shared prefix was not made through this budgeted allocator")),
        }
    }
}

impl<A: DeviceAllocator> DeviceAllocator for BudgetedAllocator<A> {
    /// # Errors
    ///
    /// [`MemoryError::TierExhausted`] if `bytes` bytes do not fit, with the figures that decided it, in bytes: `used` is everything that
    /// is taken, in quarantine too, and `available` the rest of `limit`. The allocator is not called then, save for its device. The
    /// allocator's own error otherwise.
    ///
    /// # Panics
    ///
    /// If the allocator does; nothing is charged then.
    ///
    /// # Progress
    ///
    /// Lock-free, the allocator excepted.
    #[inline]
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        self.charged_for(&self.allocations, bytes, || self.allocator.allocate(bytes, align))
    }

    #[inline]
    unsafe fn deallocate(&self, ptr: NonNull<u8>, bytes: usize, align: usize) {
        let settlement = self.allocations.settle(bytes as u64);
        // SAFETY: the caller's promise is passed on, with its arguments.
        unsafe { self.allocator.deallocate(ptr, bytes, align) };
        settlement.complete();
    }

    #[inline]
    unsafe fn deallocate_with_unmapped(&self, ptr: NonNull<u8>, bytes: usize, align: usize) -> u64 {
        let settlement = self.allocations.settle(bytes as u64);
        // SAFETY: the caller's promise is passed on, with its arguments.
        let unmapped = unsafe { self.allocator.deallocate_with_unmapped(ptr, bytes, align) };
        settlement.complete();
        unmapped
    }

    #[inline]
    unsafe fn release(&self, ptr: NonNull<u8>, bytes: usize, align: usize) -> AllocationReleaseOutcome {
        let settlement = self.allocations.settle(bytes as u64);
        // SAFETY: the caller's promise is passed on, with its arguments.
        let outcome = unsafe { self.allocator.release(ptr, bytes, align) };
        match &outcome {
            AllocationReleaseOutcome::Complete { .. } => settlement.complete(),
            AllocationReleaseOutcome::Quarantined { residual, .. } => settlement.incomplete(residual.retained_bytes),
            AllocationReleaseOutcome::Failed { .. } => settlement.incomplete(bytes as u64),
        }
        outcome
    }

    unsafe fn release_again(&self, ptr: NonNull<u8>, bytes: usize, align: usize) -> AllocationReleaseOutcome {
        // SAFETY: the caller's promise is passed on, with its arguments.
        let outcome = unsafe { self.allocator.release_again(ptr, bytes, align) };
        match &outcome {
            AllocationReleaseOutcome::Complete { .. } => self.allocations.reclaim(bytes as u64, None),
            AllocationReleaseOutcome::Quarantined { residual, .. } => {
                self.allocations.reclaim(bytes as u64, Some(residual.retained_bytes));
            }
            AllocationReleaseOutcome::Failed { .. } => {}
        }
        outcome
    }

    fn device(&self) -> DeviceKey {
        self.allocator.device()
    }

    /// The allocator's own. Charges and refunds nothing: what is kept without need was refunded when it was released.
    fn trim(&self, keep_bytes: u64) -> u64 {
        self.allocator.trim(keep_bytes)
    }

    fn commits_on_demand(&self) -> bool {
        self.allocator.commits_on_demand()
    }

    fn as_virtual_backing(&self) -> Option<&dyn VirtualBacking> {
        self.allocator.as_virtual_backing().map(|_| self as _)
    }

    fn as_shared_mapping(&self) -> Option<&dyn SharedMapping> {
        self.allocator.as_shared_mapping().map(|_| self as _)
    }
}

/// The allocator's own, if it offers one; otherwise every call is a [`MemoryError::InvalidRequest`]. Making an allocation is charged as
/// [`allocate`](DeviceAllocator::allocate) is, with the same errors. Everything else is passed on as it is.
impl<A: DeviceAllocator> VirtualBacking for BudgetedAllocator<A> {
    fn allocate_committed(&self, bytes: usize, align: usize, committed_ranges: &[Range<usize>]) -> Result<NonNull<u8>, MemoryError> {
        let backing = self.backing(bytes)?;
        self.charged_for(&self.allocations, bytes, || backing.allocate_committed(bytes, align, committed_ranges))
    }

    fn commit_allocation_range(
        &self,
        ptr: NonNull<u8>,
        allocation_bytes: usize,
        align: usize,
        offset: usize,
        bytes: usize,
    ) -> Result<(), MemoryError> {
        self.backing(bytes)?.commit_allocation_range(ptr, allocation_bytes, align, offset, bytes)
    }

    fn commit_allocation_ranges(&self, ranges: &[AllocationCommitRange]) -> Result<(), MemoryError> {
        self.backing(0)?.commit_allocation_ranges(ranges)
    }

    fn mapped_bytes_for_allocation_ranges(&self, ranges: &[AllocationCommitRange]) -> Result<u64, MemoryError> {
        self.backing(0)?.mapped_bytes_for_allocation_ranges(ranges)
    }

    fn mapped_bytes_for_allocation(&self, bytes: usize, align: usize) -> Result<u64, MemoryError> {
        self.backing(bytes)?.mapped_bytes_for_allocation(bytes, align)
    }

    fn decommit_allocation_range(
        &self,
        ptr: NonNull<u8>,
        allocation_bytes: usize,
        align: usize,
        offset: usize,
        bytes: usize,
    ) -> Result<u64, MemoryError> {
        self.backing(bytes)?.decommit_allocation_range(ptr, allocation_bytes, align, offset, bytes)
    }

    fn allocation_committed_bytes(&self, ptr: NonNull<u8>, allocation_bytes: usize, align: usize) -> usize {
        self.allocator.as_virtual_backing().map_or(0, |backing| backing.allocation_committed_bytes(ptr, allocation_bytes, align))
    }
}

/// The allocator's own, if it offers one; otherwise every call is a [`MemoryError::InvalidRequest`], as is one with a foreign prefix.
/// Making a prefix is charged, with [`MemoryError::TierExhausted`] if it does not fit. Everything else is passed on as it is.
impl<A: DeviceAllocator> SharedMapping for BudgetedAllocator<A> {
    fn create_shared_prefix(&self, bytes: usize) -> Result<Box<dyn SharedDevicePrefix>, MemoryError> {
        let mapping = self.mapping(bytes)?;
        let inner = self.charged_for(&self.prefixes, bytes, || mapping.create_shared_prefix(bytes))?;
        let mut prefix = Box::new(BudgetedPrefix { inner: Some(inner), account: Arc::clone(&self.prefixes), bytes: bytes as u64 });
        // An error, or a panic in there, drops the prefix: first what was made, then its charge.
        prefix.charge_what_is_committed().map_err(|(missing, exhausted)| self.exhausted(missing, exhausted))?;
        Ok(prefix)
    }

    fn incremental_owned_bytes_for_shared_prefix(&self, prefix: &dyn SharedDevicePrefix) -> Result<u64, MemoryError> {
        let own = self.own(prefix)?;
        self.mapping(0)?.incremental_owned_bytes_for_shared_prefix(own)
    }

    fn commit_shared_prefix(
        &self,
        prefix: &dyn SharedDevicePrefix,
        ptr: NonNull<u8>,
        allocation_bytes: usize,
        byte_offset: usize,
    ) -> Result<SharedPrefixCommitInfo, MemoryError> {
        let own = self.own(prefix)?;
        self.mapping(allocation_bytes)?.commit_shared_prefix(own, ptr, allocation_bytes, byte_offset)
    }
}

/// Role, charged and quarantined. The allocator is not printed.
impl<A> fmt::Debug for BudgetedAllocator<A> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("BudgetedAllocator")
            .field("role", &self.role)
            .field("charged", &self.charged())
            .field("quarantined", &self.quarantined())
            .field("budget", &self.budget())
            .finish_non_exhaustive()
    }
}

/// A shared prefix of the wrapped allocator's, and what is charged for it.
struct BudgetedPrefix {
    /// There until this is dropped.
    inner: Option<Box<dyn SharedDevicePrefix>>,
    account: Arc<Account>,
    bytes: u64,
}

impl BudgetedPrefix {
    fn inner(&self) -> &dyn SharedDevicePrefix {
        self.inner.as_deref().expect("there until this is dropped")
    }

    /// From what was asked for to what was committed. If the difference does not fit, it is returned with the figures.
    fn charge_what_is_committed(&mut self) -> Result<(), (u64, Exhausted)> {
        let committed = self.inner().committed_physical_bytes();
        if let Some(missing) = committed.checked_sub(self.bytes) {
            self.account.budget.charge(missing).map_err(|exhausted| (missing, exhausted))?;
            self.account.charged.add(missing, 0);
        } else {
            self.account.refund(self.bytes - committed, 0);
        }
        self.bytes = committed;
        Ok(())
    }
}

impl SharedDevicePrefix for BudgetedPrefix {
    fn device_ptr(&self) -> u64 {
        self.inner().device_ptr()
    }

    fn committed_physical_bytes(&self) -> u64 {
        self.inner().committed_physical_bytes()
    }

    fn mapped_bytes(&self) -> usize {
        self.inner().mapped_bytes()
    }

    fn requested_bytes(&self) -> usize {
        self.inner().requested_bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for BudgetedPrefix {
    fn drop(&mut self) {
        let settlement = self.account.settle(self.bytes);
        drop(self.inner.take());
        settlement.complete();
    }
}

/// The bytes charged. The allocator's prefix is not printed.
impl fmt::Debug for BudgetedPrefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("BudgetedPrefix").field("charged", &self.bytes).finish_non_exhaustive()
    }
}
