//! Ownership that was retained, given back or given up after all: always on somebody's request.
//!
//! A *retry* takes one entry at a time: it claims the entry, is admitted at the entry's home unless LOST is there, and then runs the
//! allocator with nothing held but a hold, which goes with the answer, the claim of this one entry, which nobody waits for, and the counted
//! operation. What comes of it ends the operation:
//!
//! ```text
//!                                 ┌─ complete ─▶ withdrawn ─▶ operation ended and allocation settled, in one step
//! standing ─▶ claimed ─▶ counted ─┼─ failed ───▶ replaced; as it was, if it had failed before ─▶ operation ended
//!                │                └─ partial, panic ─▶ replaced, never tried again ─▶ operation ended
//!                └─ LOST ─▶ as it was
//! ```
//!
//! The entry stays in the quarantine until the allocator has answered, so the allocation is counted in one place throughout. The claim
//! comes before the operation: it keeps the entry where it is, and so nothing begins on a mechanism that owns nothing, which "idle for
//! ever" relies on. Admission is the stripe's decision, as for every other call: a confirmation that has set LOST there either finds the
//! operation or has it refused.
//!
//! *Giving up* claims, withdraws and settles. It calls no allocator, so any lifecycle will do, and it holds nothing.
//!
//! Whoever calls keeps the memory alone. So the end of the last entry, whose wakers may stop there, keeps no resource.

use super::{
    entry::{Hold, Mechanism},
    quarantine::{Claim, Entry, Retry, Standing},
};
use crate::{
    callback,
    contract::{
        AbandonedQuarantine, AllocationReleaseOutcome, AllocationReleaseState, QuarantineReason, QuarantinedAllocation, RetriedQuarantine,
    },
    error::BindingError,
    primitives::{
        MechanismLifecycle,
        pins::{Closed, Operation, Refused},
    },
};

impl Mechanism {
    pub(crate) fn retry_quarantined(&self, limit: usize) -> Result<RetriedQuarantine, BindingError> {
        const OPERATION: &str = "a retry of quarantined releases";
        let phase = self.phase();
        if !matches!(phase, MechanismLifecycle::Active | MechanismLifecycle::Retired) {
            return Err(self.refusal(phase, OPERATION));
        }
        let mut entries = self.quarantine.standing();
        let mut done = RetriedQuarantine { skipped: entries.len(), ..Default::default() };
        entries.retain(|standing| standing.entry().retry != Retry::Never);
        // The least often tried first, and of those the oldest: what fails for ever keeps nothing else from its turn.
        entries.reverse();
        // Each count is read once: it may change meanwhile.
        entries.sort_by_cached_key(Standing::tries);
        for standing in entries {
            if done.tried() == limit {
                break;
            }
            let Some(claim) = standing.claim() else { continue };
            let entered = self.pins.enter_release(claim.entry().home);
            // The hold is granted: nobody removes while an operation is counted.
            match entered.and_then(|operation| Ok((Hold::acquire(self).map_err(|Closed| Refused::Closed)?, operation))) {
                Ok((hold, operation)) => {
                    done.skipped -= 1;
                    retry(hold, claim, operation, &mut done);
                }
                Err(refused) if done.tried() == 0 => return Err(self.refused(refused, OPERATION)),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    pub(crate) fn abandon_quarantined(&self, mut given_up: impl FnMut(&QuarantinedAllocation) -> bool) -> AbandonedQuarantine {
        let mut done = AbandonedQuarantine::default();
        if self.phase() == MechanismLifecycle::Terminated {
            return done;
        }
        for standing in self.quarantine.standing().into_iter().rev() {
            if !callback::run(|| given_up(&standing.entry().allocation)) {
                continue;
            }
            let Some(claim) = standing.claim() else {
                done.missed += 1;
                continue;
            };
            let &Entry { allocation, home, .. } = claim.entry();
            done.allocations.push(allocation);
            claim.withdraw();
            self.pins.settle(home);
        }
        done
    }
}

/// Asks the allocator, and ends the operation by what it answers. The hold goes before that: whoever is woken then may stop there, and
/// keeps nothing; and while the operation is counted the hold is not the last.
fn retry(hold: Hold, claim: Claim<'_>, operation: Operation<'_>, done: &mut RetriedQuarantine) {
    let entry = *claim.entry();
    let QuarantinedAllocation { bytes, align, .. } = entry.allocation;
    let asked = Asked(Some((claim, operation)));
    // SAFETY: made by this mechanism's allocator with these values; the claim is the only right to release it, and `retry` says that
    // nothing of it was released, and each earlier call failed; unwinding ends the entry as one that is not released again.
    let outcome = unsafe {
        // Also on unwinding.
        let hold = hold;
        let allocator = hold.allocator();
        match entry.retry {
            Retry::First => allocator.release(entry.pointer, bytes, align),
            _ => allocator.release_again(entry.pointer, bytes, align),
        }
    };
    let (claim, operation) = asked.answered();
    done.unmapped_bytes = done.unmapped_bytes.saturating_add(outcome.unmapped_bytes());
    match outcome {
        AllocationReleaseOutcome::Complete { .. } => {
            claim.withdraw();
            operation.settle();
            done.released += 1;
            done.released_bytes = done.released_bytes.saturating_add(bytes as u64);
            return;
        }
        AllocationReleaseOutcome::Quarantined { residual, .. } => {
            claim.replace(entry.kept(residual.state, residual.reason, residual.retained_bytes, Retry::Never));
        }
        // As it was: retrying what fails for ever costs no memory.
        AllocationReleaseOutcome::Failed { .. } if entry.retry == Retry::Again => claim.tried(),
        AllocationReleaseOutcome::Failed { .. } => {
            let (state, reason) = (AllocationReleaseState::Quarantined, QuarantineReason::AllocatorRefused);
            claim.replace(entry.kept(state, reason, bytes as u64, Retry::Again));
        }
    }
    done.kept += 1;
    drop(operation);
}

impl Entry {
    /// What is kept of it after the allocator was asked.
    fn kept(self, state: AllocationReleaseState, reason: QuarantineReason, retained_bytes: u64, retry: Retry) -> Self {
        Self { allocation: QuarantinedAllocation { state, reason, retained_bytes, ..self.allocation }, retry, ..self }
    }
}

/// The allocator is being asked. Dropped by unwinding, nobody knows what was released: nothing is released again.
struct Asked<'a>(Option<(Claim<'a>, Operation<'a>)>);

impl<'a> Asked<'a> {
    fn answered(mut self) -> (Claim<'a>, Operation<'a>) {
        self.0.take().expect("answered once")
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let Some((claim, operation)) = self.0.take() else { return };
        let entry = *claim.entry();
        let (state, reason) = (AllocationReleaseState::Quarantined, QuarantineReason::AbandonedRequest);
        claim.replace(entry.kept(state, reason, entry.allocation.bytes as u64, Retry::Never));
        drop(operation);
    }
}
