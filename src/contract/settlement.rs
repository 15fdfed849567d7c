//! What came of quarantined ownership that somebody asked to be given back, or gave up.

use super::QuarantinedAllocation;

/// What one call of [`BindingRegistry::retry_quarantined`](crate::BindingRegistry::retry_quarantined) did.
///
/// `released + kept + skipped` is the number of entries that stood in the quarantine when the call began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct RetriedQuarantine {
    /// Entries that were released completely. They have left the quarantine.
    pub released: usize,
    /// The sizes of those allocations in bytes; saturates.
    pub released_bytes: u64,
    /// The physical memory that was unmapped by all tries, in bytes, as reported; saturates.
    pub unmapped_bytes: u64,
    /// Entries whose release was tried and not completed. They stay in the quarantine, with what the allocator reported now.
    pub kept: usize,
    /// Entries that were not tried: their reason forbids it, the limit was reached, the device was lost meanwhile, or another call was
    /// deciding about them.
    pub skipped: usize,
}

impl RetriedQuarantine {
    /// How often the allocator was asked: `released + kept`.
    #[must_use]
    pub const fn tried(&self) -> usize {
        self.released + self.kept
    }
}

/// What one call of [`BindingRegistry::abandon_quarantined`](crate::BindingRegistry::abandon_quarantined) gave up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct AbandonedQuarantine {
    /// What this call, and no other, took out of the quarantine, the oldest first. The library accounts for it no more.
    pub allocations: Vec<QuarantinedAllocation>,
    /// Entries that were chosen and stayed, because another call was deciding about them.
    pub missed: usize,
}

impl AbandonedQuarantine {
    /// The retained bytes of what was given up; saturates.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.allocations.iter().fold(0, |bytes, allocation| bytes.saturating_add(allocation.retained_bytes))
    }
}
