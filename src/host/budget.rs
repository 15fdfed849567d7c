//! A limit in bytes that any number of allocators share.
//!
//! What is charged is *committed*: used, or quarantined because its release was not completed. One word, `committed`, decides every
//! charge: a compare-and-swap adds what fits under the limit and writes nothing otherwise. An addition that is undone when it was too
//! much would be one instruction, but until the undoing it would be seen above the limit and would refuse what fits.
//!
//! The other words move seldom, and each of them only grows: `limit`; `entered` and `left`, the bytes that ever went into the
//! quarantine and out of it; `peak`. Used is what is committed and not in quarantine, free is what the limit leaves: neither is
//! stored, so the figures of one snapshot add up by construction. That they belong to one instant takes an order of the steps and
//! a second look:
//!
//! - Bytes enter the quarantine before the rest of their allocation is refunded, and leave it before they are refunded themselves,
//!   so the quarantine never holds more than is committed.
//! - A snapshot reads quarantine, peak and limit, the committed bytes, and quarantine, peak and limit again. Words that only grow and
//!   are equal twice have not moved in between. (A wrap by 2⁶⁴ quarantined bytes within one look apart.)
//! - Who has seen committed bytes, by charging them or in a snapshot, has raised the peak to them before it says so.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | `charge` | lock-free; it tries again only after another charge or refund | one compare-and-swap, and one read-modify-write while the peak rises |
//! | `refund` | wait-free | one read-modify-write |
//! | `quarantine`, `discharge` | wait-free | two read-modify-writes |
//! | [`Budget::raise_limit`] | wait-free | one read-modify-write |
//! | [`Budget::snapshot`] | lock-free; it looks again only after a quarantine, a raise or a new peak | ten loads, and one read-modify-write if it finds a new peak |

use crate::sync::atomic::{AtomicU64, Ordering::*};
use std::fmt;

/// A limit in bytes, what of it is taken, and the most that ever was.
///
/// It is an authority: register it with [`BindingRegistry::register_authority`](crate::BindingRegistry::register_authority), and wrap
/// each allocator that it is to limit in a [`BudgetedAllocator`](crate::BudgetedAllocator), which is where bytes are charged and
/// refunded. Several allocators, of several mechanisms and registries, can share one.
///
/// At every instant [`used`](Self::used) + [`quarantined`](Self::quarantined) + [`free`](Self::free) = [`limit`](Self::limit). Two
/// calls are two instants; [`snapshot`](Self::snapshot) gives all figures of one. All figures are bytes.
///
/// The limit can be raised and not lowered: a limit below what is taken would leave the sum without a meaning. For a lower limit,
/// select a mechanism with another budget.
///
/// Threads that charge one budget contend for one word, however many cores there are.
///
/// ```
/// use liveslot::{BindingError, BindingRegistry, Budget, BudgetedAllocator, DeviceKey, HostAllocator, MemoryError, MemoryRole};
/// use std::sync::Arc;
///
/// let budget = Arc::new(Budget::new(1024));
/// let registry = BindingRegistry::new()?;
/// let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
/// let authority = registry.register_authority(DeviceKey::HOST, budget.clone())?;
/// let allocator = BudgetedAllocator::new(HostAllocator, budget.clone(), MemoryRole::KvCache);
/// registry.register_allocator(context, authority, Arc::new(allocator))?;
///
/// let binding = registry.bind(DeviceKey::HOST)?;
/// let allocation = binding.allocate(1000, 8)?;
/// assert_eq!((budget.used(), budget.free()), (1000, 24));
/// let refused = binding.allocate(25, 8).unwrap_err();
/// assert!(matches!(refused, BindingError::Memory(MemoryError::TierExhausted { requested: 25, used: 1000, available: 24, .. })));
/// binding.release(allocation)?;
/// assert_eq!((budget.used(), budget.free(), budget.peak()), (0, 1024, 1000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Budget {
    /// Used and quarantined bytes together; at most `limit`.
    committed: AtomicU64,
    limit: AtomicU64,
    /// What went into the quarantine, and out of it, modulo 2⁶⁴: their difference is what is in it.
    entered: AtomicU64,
    left: AtomicU64,
    peak: AtomicU64,
}

/// The figures of a [`Budget`] at one instant, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct BudgetSnapshot {
    /// The most that can be taken: `used + quarantined + free`.
    pub limit: u64,
    /// Taken by allocations that are live, are being made or are being released.
    pub used: u64,
    /// Taken by what is left of allocations whose release was not completed.
    pub quarantined: u64,
    /// What can still be had.
    pub free: u64,
    /// The most that was ever taken, used and quarantined together.
    pub peak: u64,
}

/// A charge did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exhausted {
    /// What was taken when it was refused; at most `limit`.
    pub(super) committed: u64,
    pub(super) limit: u64,
}

/// What moves seldom, and only grows.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Slow {
    left: u64,
    entered: u64,
    peak: u64,
    limit: u64,
}

impl Budget {
    /// A budget of `limit_bytes` bytes, nothing of which is taken. Both 0 and `u64::MAX` are limits like any other.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            committed: AtomicU64::new(0),
            limit: AtomicU64::new(limit_bytes),
            entered: AtomicU64::new(0),
            left: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        }
    }

    /// The most bytes that can be taken at once. The same for every thread.
    ///
    /// # Progress
    ///
    /// Wait-free: one load.
    #[must_use]
    pub fn limit(&self) -> u64 {
        // Relaxed: nothing is read on the strength of it. Who was told of a raise sees it, since a word is never seen older than that.
        self.limit.load(Relaxed)
    }

    /// Raises the limit to `limit_bytes` bytes, unless it is there or above. Charges that begin after this has returned have it.
    ///
    /// # Progress
    ///
    /// Wait-free: one read-modify-write.
    pub fn raise_limit(&self, limit_bytes: u64) {
        // Relaxed: see `limit`. That nobody sees more committed than the limit it sees allows is ordered by `committed`.
        self.limit.fetch_max(limit_bytes, Relaxed);
    }

    /// The bytes of allocations that are live, are being made or are being released.
    ///
    /// # Progress
    ///
    /// As [`snapshot`](Self::snapshot).
    #[must_use]
    pub fn used(&self) -> u64 {
        self.snapshot().used
    }

    /// The bytes that are left of allocations whose release was not completed, or panicked. They come back when a retried
    /// release completes or their allocator is destroyed.
    ///
    /// # Progress
    ///
    /// As [`snapshot`](Self::snapshot).
    #[must_use]
    pub fn quarantined(&self) -> u64 {
        self.snapshot().quarantined
    }

    /// The bytes that can still be had.
    ///
    /// # Progress
    ///
    /// As [`snapshot`](Self::snapshot).
    #[must_use]
    pub fn free(&self) -> u64 {
        self.snapshot().free
    }

    /// The most bytes that were ever taken, used and quarantined together, by allocations that the allocator then refused included. No
    /// sample of [`used`](Self::used) was above it.
    ///
    /// # Progress
    ///
    /// As [`snapshot`](Self::snapshot).
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.snapshot().peak
    }

    /// All figures at one instant during the call: `used + quarantined + free == limit`, and `used + quarantined <= peak <= limit`.
    /// Signal handlers may call it, as they may [`MemoryBinding::mechanism_snapshot`](crate::MemoryBinding::mechanism_snapshot).
    ///
    /// # Progress
    ///
    /// Lock-free: it looks again if bytes went into or out of the quarantine meanwhile, or the limit or the peak rose. Other charges and
    /// refunds do not delay it.
    #[must_use]
    pub fn snapshot(&self) -> BudgetSnapshot {
        let mut before = self.slow();
        loop {
            // Acquire: pairs with the Release of everything that writes the word, all of it read-modify-writes: what came before any of
            // them is seen by the second look. The first look's Acquire keeps this load after it.
            let committed = self.committed.load(Acquire);
            let slow = self.slow();
            if slow == before {
                let Slow { left, entered, peak, limit } = slow;
                let quarantined = entered.wrapping_sub(left);
                let (used, free) = (committed - quarantined, limit - committed);
                // The word may have gone on by now.
                self.raise_peak(committed);
                return BudgetSnapshot { limit, used, quarantined, free, peak: peak.max(committed) };
            }
            before = slow;
        }
    }

    fn slow(&self) -> Slow {
        // Acquire: pairs with the Release in `discharge`. Read before `entered`: what has left is seen to have entered.
        let left = self.left.load(Acquire);
        // Acquire: pairs with the Release in `quarantine`: who sees the bytes here sees them committed.
        let entered = self.entered.load(Acquire);
        // Acquire: pairs with the Release in `raise_peak`: who sees the peak sees it committed, and the limit that allowed it, which is
        // read next.
        let peak = self.peak.load(Acquire);
        Slow { left, entered, peak, limit: self.limit() }
    }

    /// Raises the peak to `committed` bytes that somebody saw.
    #[inline]
    fn raise_peak(&self, committed: u64) {
        // Relaxed: the word only grows. Who is told of a sample is told after it was raised.
        if self.peak.load(Relaxed) < committed {
            // Release: the bytes were committed before. Pairs with `slow`.
            self.peak.fetch_max(committed, Release);
        }
    }

    /// Takes `bytes` bytes if they fit, and leaves no trace otherwise.
    #[inline]
    pub(super) fn charge(&self, bytes: u64) -> Result<(), Exhausted> {
        // Acquire, here and on failure: pairs with the Release below; the limit that is read next is no older than the one that allowed
        // what is seen here.
        let mut committed = self.committed.load(Acquire);
        loop {
            let limit = self.limit();
            let Some(sum) = committed.checked_add(bytes).filter(|sum| *sum <= limit) else {
                self.raise_peak(committed);
                return Err(Exhausted { committed, limit });
            };
            // AcqRel: Release, the look at the limit and whatever the caller knows of come before; pairs with `snapshot` and the loads
            // here. Acquire, what a refund's caller did before it comes before what ours does next; pairs with `refund`.
            match self.committed.compare_exchange_weak(committed, sum, AcqRel, Acquire) {
                Ok(_) => {
                    self.raise_peak(sum);
                    return Ok(());
                }
                Err(newer) => committed = newer,
            }
        }
    }

    /// Gives back bytes that were charged and are in use.
    #[inline]
    pub(super) fn refund(&self, bytes: u64) {
        // Release: what went into or out of the quarantine before, or off the caller's own tally, comes before. Pairs with `snapshot`
        // and `charge`.
        self.committed.fetch_sub(bytes, Release);
    }

    /// The release of `charged` bytes left `retained` of them behind: these go from used to quarantined, the rest is refunded.
    #[cold]
    pub(super) fn quarantine(&self, charged: u64, retained: u64) {
        // Release: the charge comes before. Pairs with `slow`. First of the two: see the module's second list.
        self.entered.fetch_add(retained, Release);
        self.refund(charged - retained);
    }

    /// Gives back `used` bytes in use and `quarantined` bytes in quarantine.
    #[cold]
    pub(super) fn discharge(&self, used: u64, quarantined: u64) {
        // Release: their entering comes before. Pairs with `slow`. First of the two: see the module's second list.
        self.left.fetch_add(quarantined, Release);
        self.refund(used + quarantined);
    }
}

/// The figures of one instant.
impl fmt::Debug for Budget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BudgetSnapshot { limit, used, quarantined, free, peak } = self.snapshot();
        formatter
            .debug_struct("Budget")
            .field("limit", &limit)
            .field("used", &used)
            .field("quarantined", &quarantined)
            .field("free", &free)
            .field("peak", &peak)
            .finish()
    }
}
