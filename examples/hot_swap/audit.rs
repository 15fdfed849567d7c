//! Whether the budget's figures are right, whenever somebody looks at them.

use std::sync::Arc;

use liveslot::{Budget, BudgetSnapshot, MemoryError, QuarantineReason, QuarantinedAllocation};

use crate::allocators::ROLE;

/// One thread's looks at the budget.
pub(crate) struct Audit {
    budget: Arc<Budget>,
    limit: u64,
    /// The highest peak that was seen; it can't fall.
    peak: u64,
    pub(crate) found: Findings,
}

/// What the looks came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    pub(crate) looks: u64,
    pub(crate) violations: u64,
    /// The most bytes that were seen in quarantine.
    pub(crate) most_quarantined: u64,
}

impl Findings {
    pub(crate) fn merge(&mut self, other: Self) {
        self.looks += other.looks;
        self.violations += other.violations;
        self.most_quarantined = self.most_quarantined.max(other.most_quarantined);
    }
}

impl Audit {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        let limit = budget.limit();
        Self { budget, limit, peak: 0, found: Findings::default() }
    }

    /// Looks once. The caller has `held` bytes that nobody can have refunded.
    pub(crate) fn look(&mut self, held: u64) {
        self.judge(self.budget.snapshot(), held);
    }

    fn judge(&mut self, snapshot: BudgetSnapshot, held: u64) {
        let BudgetSnapshot { limit, used, quarantined, free, peak } = snapshot;
        let adds_up = u128::from(used) + u128::from(quarantined) + u128::from(free) == u128::from(limit);
        let is_right = adds_up && limit == self.limit && used >= held && peak >= self.peak && peak - used >= quarantined;
        self.peak = self.peak.max(peak);
        self.found.looks += 1;
        self.found.violations += u64::from(!is_right);
        self.found.most_quarantined = self.found.most_quarantined.max(quarantined);
    }

    /// Whether a refusal of `bytes` bytes gives the figures that it must.
    pub(crate) fn is_right_refusal(&self, refusal: &MemoryError, bytes: usize) -> bool {
        let MemoryError::TierExhausted { requested, used, limit, available, role, .. } = *refusal else { return false };
        requested == bytes as u64
            && limit == self.limit
            && available < requested
            && used.checked_add(available) == Some(limit)
            && role == ROLE
    }

    /// Looks when nothing is used but what the mechanisms `retain`.
    pub(crate) fn look_at_rest<'a>(&mut self, retained: impl IntoIterator<Item = &'a QuarantinedAllocation>) {
        let (mut used, mut quarantined) = (0, 0);
        for allocation in retained {
            // What never reached the allocator is used until that ends.
            let sum = if allocation.reason == QuarantineReason::PartialRelease { &mut quarantined } else { &mut used };
            *sum += allocation.retained_bytes;
        }
        let snapshot = self.budget.snapshot();
        self.judge(snapshot, used);
        self.found.violations += u64::from((snapshot.used, snapshot.quarantined) != (used, quarantined));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_figures_are_violations() {
        let right = BudgetSnapshot { limit: 100, used: 40, quarantined: 20, free: 40, peak: 70 };
        let wrong = [
            (BudgetSnapshot { free: 41, ..right }, 40, "the sum"),
            (BudgetSnapshot { limit: 99, free: 39, ..right }, 40, "the limit"),
            (BudgetSnapshot { peak: 59, ..right }, 40, "more than the peak"),
            (BudgetSnapshot { peak: 69, ..right }, 40, "the peak fell"),
            (right, 41, "less used than held"),
        ];
        for (snapshot, held, what) in wrong {
            let mut audit = Audit::new(Arc::new(Budget::new(100)));
            audit.judge(right, 40);
            assert_eq!(audit.found, Findings { looks: 1, violations: 0, most_quarantined: 20 });
            audit.judge(snapshot, held);
            assert_eq!(audit.found.violations, 1, "{what}");
        }
    }

    #[test]
    fn a_refusal_needs_the_real_figures() {
        let audit = Audit::new(Arc::new(Budget::new(100)));
        let refusal =
            |requested, used, available, role| MemoryError::TierExhausted { tier: "tier", requested, used, limit: 100, available, role };
        assert!(audit.is_right_refusal(&refusal(41, 60, 40, ROLE), 41));
        assert!(!audit.is_right_refusal(&refusal(40, 60, 40, ROLE), 40), "it would have fitted");
        assert!(!audit.is_right_refusal(&refusal(41, 60, 39, ROLE), 41), "no sum");
        assert!(!audit.is_right_refusal(&refusal(41, 60, 40, ROLE), 42), "another request");
        assert!(!audit.is_right_refusal(&refusal(41, 60, 40, liveslot::MemoryRole::Weights), 41));
    }
}
