//! An allocation on its way back: prepared, then executed or retained.
//!
//! Preparing first wins the record (one swap of its word), then moves the allocation from live to queued in its home stripe
//! (one RMW). The record goes first, so that stale metadata touches no stripe. If LOST comes back from the stripe, both are
//! undone by the winner. A [`Queued`] is the only right to release an allocation; it ends in exactly one of *settled* and
//! *quarantined*, also by unwinding. It counts as an operation for as long, because it is counted as queued.

use super::{allocation::BoundAllocation, binding::MemoryBinding};
use crate::{
    contract::{
        AllocationReleaseOutcome, AllocationReleaseState, QuarantineReason, QuarantinedAllocation, ReleaseAccounting, ResidualOwnership,
    },
    error::BindingError,
    primitives::MechanismLifecycle,
    sync::gate,
};
use std::{error, fmt};

/// A release that did not happen, or not wholly, with the allocation it was asked for.
///
/// It keeps allocator, authority and provider context alive, as the allocation does.
pub struct ExplicitReleaseError(Box<Refused>);

struct Refused {
    error: BindingError,
    outcome: Option<AllocationReleaseOutcome>,
    allocation: BoundAllocation,
}

impl ExplicitReleaseError {
    #[cold]
    fn new(error: BindingError, outcome: Option<AllocationReleaseOutcome>, allocation: BoundAllocation) -> Self {
        Self(Box::new(Refused { error, outcome, allocation }))
    }

    /// What went wrong.
    #[must_use]
    pub const fn error(&self) -> &BindingError {
        &self.0.error
    }

    /// How the release ended, if it was begun.
    #[must_use]
    pub fn outcome(&self) -> Option<&AllocationReleaseOutcome> {
        self.0.outcome.as_ref()
    }

    /// Whether the ownership is retained in the quarantine; the metadata is stale then. Otherwise nothing was done.
    #[must_use]
    pub const fn is_quarantined(&self) -> bool {
        self.0.outcome.is_some()
    }

    /// What the release left the allocation in: [`AllocationReleaseState::Live`] if nothing was done.
    #[must_use]
    pub fn state(&self) -> AllocationReleaseState {
        self.0.outcome.as_ref().map_or(AllocationReleaseState::Live, AllocationReleaseOutcome::state)
    }

    /// The error and the allocation.
    #[must_use]
    pub fn into_parts(self) -> (BindingError, BoundAllocation) {
        (self.0.error, self.0.allocation)
    }
}

impl fmt::Debug for ExplicitReleaseError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ExplicitReleaseError")
            .field("error", &self.0.error)
            .field("outcome", &self.0.outcome)
            .field("allocation", &self.0.allocation)
            .finish()
    }
}

impl fmt::Display for ExplicitReleaseError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.error.fmt(formatter)
    }
}

impl error::Error for ExplicitReleaseError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.0.error)
    }
}

/// The right to release one allocation, which is counted as queued until this ends: by [`execute`](Self::execute), or by being
/// dropped, which retains the ownership as abandoned.
#[must_use]
pub(super) struct Queued<'a>(&'a BoundAllocation);

impl MemoryBinding {
    /// Live → queued, exactly once.
    #[inline]
    pub(super) fn queue<'a>(&self, allocation: &'a BoundAllocation) -> Result<Queued<'a>, BindingError> {
        const OPERATION: &str = "release";
        let mechanism = self.mechanism();
        let phase = mechanism.phase();
        if !matches!(phase, MechanismLifecycle::Active | MechanismLifecycle::Retired) {
            return Err(mechanism.refusal(phase, OPERATION));
        }
        self.own(&allocation.binding)?;
        if !allocation.record.win() {
            return Err(BindingError::StaleAllocation(allocation.identity()));
        }
        gate!(RecordWon);
        mechanism.pins.queue(allocation.record.home).map_err(|refused| {
            allocation.record.give_back();
            mechanism.refused(refused, OPERATION)
        })?;
        Ok(Queued(allocation))
    }

    /// As [`release`](Self::release): the allocation stays with the caller until it is known how it ended.
    #[inline]
    pub(super) fn release_now(&self, allocation: BoundAllocation) -> Result<(), ExplicitReleaseError> {
        let outcome = self.queue(&allocation).map(Queued::execute);
        match outcome {
            Ok(AllocationReleaseOutcome::Quarantined { residual, .. }) => Err(retained(residual, outcome.ok(), allocation)),
            Ok(_) => Ok(()),
            Err(error) => Err(ExplicitReleaseError::new(error, None, allocation)),
        }
    }
}

#[cold]
fn retained(residual: ResidualOwnership, outcome: Option<AllocationReleaseOutcome>, allocation: BoundAllocation) -> ExplicitReleaseError {
    let error = BindingError::ReleaseQuarantined {
        identity: allocation.identity(),
        state: residual.state,
        reason: residual.reason,
        retained_bytes: residual.retained_bytes,
    };
    ExplicitReleaseError::new(error, outcome, allocation)
}

impl Queued<'_> {
    /// Calls the allocator, unless the device is lost, and settles the record by its answer. Never answers `Failed`.
    ///
    /// Which of the two happens is decided by one load. A device that is lost between it and the allocator's code can't be
    /// told from one that is lost during that code: the call was counted before the loss, and its answer is taken as it is.
    #[inline]
    fn execute(self) -> AllocationReleaseOutcome {
        let allocation = self.0;
        let outcome = match allocation.binding.mechanism().phase() {
            MechanismLifecycle::Active | MechanismLifecycle::Retired => {
                let allocator = allocation.binding.hold().allocator();
                // SAFETY: made by this allocator with these values; this is the only right to release it, and unwinding retains it.
                match unsafe { allocator.release(allocation.pointer, allocation.bytes, allocation.alignment) } {
                    AllocationReleaseOutcome::Failed { .. } => {
                        allocation.retained(AllocationReleaseState::Quarantined, QuarantineReason::AllocatorRefused)
                    }
                    AllocationReleaseOutcome::Quarantined { accounting, residual } => {
                        let (address, align) = (allocation.exposed_address(), allocation.alignment);
                        AllocationReleaseOutcome::quarantined(accounting, ResidualOwnership { address, align, ..residual })
                    }
                    complete @ AllocationReleaseOutcome::Complete { .. } => complete,
                }
            }
            MechanismLifecycle::DeviceLost => allocation.retained(AllocationReleaseState::DeviceLost, QuarantineReason::DeviceLost),
            MechanismLifecycle::Terminated => {
                allocation.retained(AllocationReleaseState::Quarantined, QuarantineReason::MechanismTerminated)
            }
        };
        self.settle(&outcome);
        outcome
    }

    /// Queued → gone, or quarantined.
    #[inline]
    fn settle(self, outcome: &AllocationReleaseOutcome) {
        match outcome.residual() {
            None => self.0.binding.mechanism().pins.settle(self.0.record.home),
            Some(residual) => self.0.quarantine(residual),
        }
        std::mem::forget(self);
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let outcome = self.0.retained(AllocationReleaseState::Quarantined, QuarantineReason::AbandonedRequest);
        Queued(self.0).settle(&outcome);
    }
}

impl BoundAllocation {
    /// Nothing was released.
    #[cold]
    fn retained(&self, state: AllocationReleaseState, reason: QuarantineReason) -> AllocationReleaseOutcome {
        let retained_bytes = self.bytes as u64;
        let residual = ResidualOwnership { state, reason, retained_bytes, address: self.exposed_address(), align: self.alignment };
        AllocationReleaseOutcome::quarantined(ReleaseAccounting::eager(retained_bytes), residual)
    }

    /// The address, for those who turn it back into a pointer to reclaim the memory by hand.
    fn exposed_address(&self) -> usize {
        self.pointer.as_ptr().expose_provenance()
    }

    #[cold]
    fn quarantine(&self, residual: ResidualOwnership) {
        self.binding.mechanism().quarantine.push(QuarantinedAllocation {
            identity: self.identity(),
            address: residual.address,
            bytes: self.bytes,
            align: residual.align,
            state: residual.state,
            reason: residual.reason,
            retained_bytes: residual.retained_bytes,
        });
    }
}
