//! Copies of a mechanism's state.
//!
//! The order of reading is the order of proof: the lifecycle first, whose refusals are then on every stripe, the head of the quarantine
//! next, the stripes after it, and the head once more. Each allocation is counted by one word at every instant, so an allocation that
//! stands during the whole call is counted once; and every quarantined one that the head counts is still in the stripes' totals, unless
//! it was withdrawn before they were read, which the second look at the head shows.

use super::{entry::Mechanism, quarantine::Retained};
use crate::{
    contract::{MechanismSnapshot, QuarantinedAllocation},
    primitives::{MechanismLifecycle, pins::Totals, waiters::Waiters},
    sync::Arc,
};

impl Mechanism {
    /// Whether it owns nothing and does nothing any more, for ever but for calls on their way to a refusal.
    pub(crate) fn is_drained(&self) -> bool {
        match self.settled_phase() {
            MechanismLifecycle::Active => false,
            // Whatever is retained is counted in the stripes' totals as well.
            MechanismLifecycle::Retired | MechanismLifecycle::DeviceLost => self.pins.is_idle(),
            MechanismLifecycle::Terminated => true,
        }
    }

    /// Whom to wake if it has drained. For who has found its life ended, and would have to tell if nobody left after that.
    pub(crate) fn waiting_if_drained(&self) -> Option<Arc<Waiters>> {
        self.pins.waiting().filter(|_| self.is_drained()).cloned()
    }

    /// What is retained, and the stripes' totals, which count all of it.
    fn counts(&self) -> (Retained, Totals) {
        let mut retained = self.quarantine.retained();
        loop {
            let totals = self.pins.totals();
            // The stripes' Acquire keeps this look after them: who sees a settlement there sees the withdrawal that came before it.
            let now = self.quarantine.retained();
            if now.withdrawn == retained.withdrawn {
                return (retained, totals);
            }
            retained = now;
        }
    }

    pub(crate) fn snapshot(&self) -> MechanismSnapshot {
        let lifecycle = self.settled_phase();
        let (retained, totals) = self.counts();
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
            quarantined_bytes: retained.bytes(),
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
            _ => self.quarantine.standing().iter().map(|standing| standing.entry().allocation).collect(),
        }
    }
}
