//! A copy of one mechanism's state, for observers.

use super::{AuthorityIdentity, DeviceKey, MechanismCoherence, MechanismIdentity, ProviderContextIdentity};
use crate::primitives::MechanismLifecycle;

/// What one mechanism was at a moment: as registered, where in its life, and what it owns.
///
/// It is a copy and pins nothing. While the mechanism works, the sums of things that came and went during the call need
/// not belong to one instant; an allocation that was outstanding during the whole call is counted in exactly one of
/// `live_allocations`, `queued_releases` and `quarantined_allocations`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct MechanismSnapshot {
    /// The mechanism.
    pub identity: MechanismIdentity,
    /// Its device.
    pub device: DeviceKey,
    /// The provider context that it was registered with.
    pub provider_context: ProviderContextIdentity,
    /// The authority that it was registered with.
    pub authority: AuthorityIdentity,
    /// What its registration vouched for.
    pub coherence: MechanismCoherence,
    /// Where in its life it is.
    pub lifecycle: MechanismLifecycle,
    /// Allocations that are recorded, and neither prepared for release nor settled.
    pub live_allocations: usize,
    /// Calls in progress that use the mechanism, plus the releases in `queued_releases`.
    pub active_operations: usize,
    /// Releases that are prepared and not yet settled.
    pub queued_releases: usize,
    /// Allocations that were given up without a complete release.
    pub quarantined_allocations: usize,
    /// The bytes that those still hold, as reported; `u64::MAX` if the sum would be larger.
    pub quarantined_bytes: u64,
}

impl MechanismSnapshot {
    /// Whether the mechanism owns memory: live, queued or quarantined. Operations in progress do not count.
    pub const fn retains_ownership(&self) -> bool {
        self.live_allocations != 0 || self.queued_releases != 0 || self.quarantined_allocations != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R153: ownership is live, queued or quarantined allocations; operations and bytes alone are not.
    #[test]
    fn retained_ownership() {
        let idle = MechanismSnapshot {
            identity: MechanismIdentity::from_number(1),
            device: DeviceKey::HOST,
            provider_context: ProviderContextIdentity::from_number(2),
            authority: AuthorityIdentity::from_number(3),
            coherence: MechanismCoherence::SelfContained,
            lifecycle: MechanismLifecycle::Active,
            live_allocations: 0,
            active_operations: 0,
            queued_releases: 0,
            quarantined_allocations: 0,
            quarantined_bytes: 0,
        };
        let one = |change: fn(&mut MechanismSnapshot)| {
            let mut snapshot = idle;
            change(&mut snapshot);
            snapshot.retains_ownership()
        };
        assert!(!idle.retains_ownership());
        assert!(one(|s| s.live_allocations = 1));
        assert!(one(|s| s.queued_releases = 1));
        assert!(one(|s| s.quarantined_allocations = 1));
        assert!(!one(|s| s.active_operations = 1));
        assert!(!one(|s| s.quarantined_bytes = 1));
    }
}
