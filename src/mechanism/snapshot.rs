//! Copies of a mechanism's state.
//!
//! The order of reading is the order of proof: the lifecycle first, whose refusals are then on every stripe, the head of the quarantine
//! next, the stripes last. Each allocation is counted by one word at every instant, so an allocation that stands during
//! the whole call is counted once; and every quarantined one that the head counts is still in the stripes' totals.

use super::entry::Mechanism;
use crate::{
    contract::{MechanismSnapshot, QuarantinedAllocation},
    primitives::MechanismLifecycle,
};

impl Mechanism {
    pub(crate) fn snapshot(&self) -> MechanismSnapshot {
        let lifecycle = self.settled_phase();
        let retained = self.quarantine.retained();
        let totals = self.pins.totals();
        let queued = totals.queued - retained.allocations;
        let snapshot = MechanismSnapshot {
            identity: self.names.mechanism,
            device: self.names.device,
            provider_context: self.names.provider_context,
            authority: self.names.authority,
            coherence: self.names.coherence,
            lifecycle,
            live_allocations: totals.live,
            active_operations: totals.operations + queued,
            queued_releases: queued,
            quarantined_allocations: retained.allocations,
            quarantined_bytes: retained.bytes,
        };
        match lifecycle {
            // What it owned has been written off, and nothing is in progress.
            MechanismLifecycle::Terminated => MechanismSnapshot {
                live_allocations: 0,
                active_operations: 0,
                queued_releases: 0,
                quarantined_allocations: 0,
                quarantined_bytes: 0,
                ..snapshot
            },
            _ => snapshot,
        }
    }

    pub(crate) fn quarantined(&self) -> Vec<QuarantinedAllocation> {
        match self.phase() {
            MechanismLifecycle::Terminated => Vec::new(),
            _ => self.quarantine.list(),
        }
    }
}
