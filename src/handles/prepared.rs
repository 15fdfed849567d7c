//! An allocation on its way back: prepared, then executed or retained.
//!
//! Preparing moves the allocation from live to queued in its home stripe: one RMW, which a lost device refuses. The request
//! that comes of it is the only right to release the allocation; it ends in exactly one of *settled* and *quarantined*, also
//! by unwinding, and counts as an operation for as long, because it is counted as queued.
//!
//! | operation | progress | cost, beside the user's own code |
//! | --- | --- | --- |
//! | [`MemoryBinding::prepare_release`] | wait-free | one RMW of the home stripe |
//! | [`PreparedAllocationRelease::execute`] | wait-free; if retained lock-free | one RMW of the home stripe; if retained one node and one compare-and-swap instead |
//! | [`PreparedAllocationRelease::quarantine`], drop | lock-free | one node, one compare-and-swap |

use super::{allocation::BoundAllocation, binding::MemoryBinding, record::State};
use crate::{
    contract::{
        AllocationIdentity, AllocationReleaseOutcome, AllocationReleaseState, AuthorityIdentity, BindingIdentity, DeviceAllocator,
        DeviceKey, ProviderContextIdentity, QuarantineReason, QuarantinedAllocation, ReleaseAccounting, ResidualOwnership,
    },
    error::BindingError,
    mechanism::{Entry, Retry},
    primitives::{MechanismLifecycle, pins::Notice},
    sync::Arc,
};
use std::{error, fmt, mem, mem::ManuallyDrop, ptr, ptr::NonNull};

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

/// The only right to release one allocation.
///
/// Its mechanism counts it as queued, and as one operation, until it ends: by [`execute`](Self::execute), by being
/// [quarantined](Self::quarantine), or by being dropped, which retains the ownership as abandoned. It may be sent to another thread and
/// outlive registry, binding and retirement. It keeps allocator, authority and provider context alive.
///
/// ```
/// use liveslot::{BindingRegistry, DeviceKey, HostAllocator};
/// use std::sync::Arc;
///
/// let registry = BindingRegistry::new()?;
/// let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
/// let authority = registry.register_authority(DeviceKey::HOST, Arc::new(()))?;
/// registry.register_allocator(context, authority, Arc::new(HostAllocator))?;
///
/// let binding = registry.bind(DeviceKey::HOST)?;
/// let allocation = binding.allocate(64, 8)?;
/// let request = binding.prepare_release(allocation)?;
/// // Later, when the device has done with the memory, on whichever thread finds out:
/// let outcome = std::thread::spawn(move || request.execute()).join().unwrap();
/// assert!(outcome.is_complete());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping it keeps the memory in quarantine; `execute` releases it"]
pub struct PreparedAllocationRelease(BoundAllocation);

impl MemoryBinding {
    /// Moves an allocation from live to queued, and returns the right to release it. Calls no allocator.
    ///
    /// # Errors
    ///
    /// [`ExplicitReleaseError`] hands the allocation back as it was. Its [`error`](ExplicitReleaseError::error) is
    /// [`BindingError::DeviceLost`] or [`BindingError::InactiveMechanism`] unless the mechanism is Active or Retired;
    /// [`BindingError::BindingMismatch`] if the allocation is of another binding; [`BindingError::StaleAllocation`] if it was
    /// released before; [`BindingError::IdentityExhausted`] if too many releases are pending or retained.
    ///
    /// # Progress
    ///
    /// Wait-free: one read-modify-write.
    #[inline]
    pub fn prepare_release(&self, mut allocation: BoundAllocation) -> Result<PreparedAllocationRelease, ExplicitReleaseError> {
        let queued = if self.owns(allocation.binding()) { allocation.queue() } else { Err(self.refuse_release(allocation.binding())) };
        match queued {
            Ok(()) => Ok(PreparedAllocationRelease(allocation)),
            Err(error) => Err(ExplicitReleaseError::new(error, None, allocation)),
        }
    }

    /// The error for metadata of `other` binding: a lifecycle that refuses comes first, and it is that of this binding.
    #[cold]
    fn refuse_release(&self, other: &Self) -> BindingError {
        match self.mechanism().phase() {
            MechanismLifecycle::Active | MechanismLifecycle::Retired => self.mismatch(other),
            phase => self.mechanism().refusal(phase, "release"),
        }
    }

    /// Gives an allocation back to the allocator it came from, on this thread, whatever has been selected, retired or removed since.
    ///
    /// # Errors
    ///
    /// As [`prepare_release`](Self::prepare_release); nothing was done then. Besides [`BindingError::ReleaseQuarantined`] if the
    /// allocator did not complete the release: the ownership is retained in the quarantine, and the metadata handed back is stale.
    ///
    /// # Panics
    ///
    /// If the allocator does; the ownership is retained then.
    ///
    /// # Progress
    ///
    /// Wait-free, the allocator excepted; lock-free where ownership is retained.
    #[inline]
    pub fn release(&self, allocation: BoundAllocation) -> Result<(), ExplicitReleaseError> {
        let mut request = self.prepare_release(allocation)?;
        let concluded = request.conclude(|_| ());
        // Not dropped as a request, which would look once more whether it has ended.
        let metadata = request.into_metadata();
        match concluded {
            Ok(((), notice)) => {
                drop(metadata);
                drop(notice);
                Ok(())
            }
            Err(outcome) => Err(retained(outcome, metadata)),
        }
    }
}

#[cold]
fn retained(outcome: AllocationReleaseOutcome, allocation: BoundAllocation) -> ExplicitReleaseError {
    let ResidualOwnership { state, reason, retained_bytes, .. } = outcome.residual().expect("a release is complete or quarantined");
    let error = BindingError::ReleaseQuarantined { identity: allocation.identity(), state, reason, retained_bytes };
    ExplicitReleaseError::new(error, Some(outcome), allocation)
}

impl PreparedAllocationRelease {
    /// The request for an allocation that has just been [queued](BoundAllocation::queue).
    pub(super) const fn new(queued: BoundAllocation) -> Self {
        Self(queued)
    }

    /// The allocation.
    #[must_use]
    pub const fn identity(&self) -> AllocationIdentity {
        self.0.identity()
    }

    /// The binding that the allocation was made through.
    #[must_use]
    pub const fn binding_identity(&self) -> BindingIdentity {
        self.0.binding().identity()
    }

    /// The device of its mechanism.
    #[must_use]
    pub const fn device(&self) -> DeviceKey {
        self.binding_identity().device()
    }

    /// The authority of its mechanism.
    #[must_use]
    pub const fn authority(&self) -> AuthorityIdentity {
        self.binding_identity().authority()
    }

    /// The provider context of its mechanism.
    #[must_use]
    pub const fn provider_context(&self) -> ProviderContextIdentity {
        self.binding_identity().provider_context()
    }

    /// The allocator that it will be released through. A clone of the `Arc` may outlive everything else; the order in which a
    /// mechanism's parts are destroyed is not promised for an allocator that somebody holds on to.
    #[must_use]
    pub fn allocator(&self) -> &Arc<dyn DeviceAllocator> {
        self.0.binding().hold().shared_allocator()
    }

    /// The very pointer that the allocator returned.
    #[must_use]
    pub const fn as_ptr(&self) -> NonNull<u8> {
        self.0.as_ptr()
    }

    /// The size of the allocation in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the size is zero.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The alignment of the allocation in bytes.
    #[must_use]
    pub const fn alignment(&self) -> usize {
        self.0.alignment()
    }

    /// Always [`AllocationReleaseState::Queued`].
    #[must_use]
    pub const fn state(&self) -> AllocationReleaseState {
        AllocationReleaseState::Queued
    }

    /// Whether executing it would reach no allocator any more.
    pub(crate) fn device_is_lost(&self) -> bool {
        matches!(self.0.binding().mechanism().phase(), MechanismLifecycle::DeviceLost | MechanismLifecycle::Terminated)
    }

    /// Calls the allocator on this thread, once, unless the device is lost, and settles the allocation by its answer. Never answers
    /// [`Failed`](AllocationReleaseOutcome::Failed): what the allocator did not release is retained.
    ///
    /// Which of the two happens is decided by one load. A device that is lost between it and the allocator's code can't be
    /// told from one that is lost during that code: the call was counted before the loss, and its answer is taken as it is. A
    /// provider that learns of a loss first should [say so](Self::quarantine_device_lost).
    ///
    /// # Panics
    ///
    /// If the allocator does; the ownership is retained as abandoned.
    ///
    /// # Progress
    ///
    /// Wait-free, the allocator excepted; lock-free where ownership is retained.
    pub fn execute(mut self) -> AllocationReleaseOutcome {
        match self.conclude(|accounting| AllocationReleaseOutcome::complete(*accounting)) {
            Ok((outcome, notice)) => {
                drop(self);
                drop(notice);
                outcome
            }
            Err(retained) => retained,
        }
    }

    /// Retains the ownership because the device is lost, whether or not the registry has been told. Calls no allocator.
    ///
    /// # Progress
    ///
    /// Lock-free.
    pub fn quarantine_device_lost(mut self) -> AllocationReleaseOutcome {
        self.0.retain(AllocationReleaseState::DeviceLost, QuarantineReason::DeviceLost)
    }

    /// Retains the ownership for `reason`, in any lifecycle. Calls no allocator.
    ///
    /// # Progress
    ///
    /// Lock-free.
    pub fn quarantine(mut self, reason: QuarantineReason) -> AllocationReleaseOutcome {
        self.0.retain(AllocationReleaseState::Quarantined, reason)
    }

    /// Asks the allocator, if the lifecycle still allows it, and settles by the answer: what `complete` makes of it, or else the outcome.
    /// The notice is to be dropped behind the request, which holds.
    ///
    /// The allocator has just written its answer piece by piece; to load it as a whole would stall for several nanoseconds. So whoever
    /// doesn't need the accounting doesn't touch it.
    #[inline]
    fn conclude<R>(&mut self, complete: impl FnOnce(&ReleaseAccounting) -> R) -> Result<(R, Notice), AllocationReleaseOutcome> {
        let allocation = &mut self.0;
        let mechanism = allocation.binding().mechanism();
        match mechanism.phase() {
            MechanismLifecycle::Active | MechanismLifecycle::Retired => {
                let allocator = allocation.binding().hold().allocator();
                let asked = Asked(allocation);
                // SAFETY: made by this allocator with these values; this is the only right to release it, and unwinding retains it.
                match unsafe { allocator.release(allocation.as_ptr(), allocation.len(), allocation.alignment()) } {
                    AllocationReleaseOutcome::Complete { ref accounting } => {
                        asked.answered();
                        allocation.record().step_to(State::Gone);
                        let notice = mechanism.pins.settle(allocation.record().home);
                        Ok((complete(accounting), notice))
                    }
                    incomplete => {
                        asked.answered();
                        Err(allocation.retain_residual(incomplete))
                    }
                }
            }
            MechanismLifecycle::DeviceLost => Err(allocation.retain(AllocationReleaseState::DeviceLost, QuarantineReason::DeviceLost)),
            MechanismLifecycle::Terminated => {
                Err(allocation.retain(AllocationReleaseState::Quarantined, QuarantineReason::MechanismTerminated))
            }
        }
    }

    /// The metadata of a request that has ended.
    fn into_metadata(self) -> BoundAllocation {
        let request = ManuallyDrop::new(self);
        debug_assert_eq!(request.0.record().state(), State::Gone);
        // SAFETY: the request is not dropped, so its allocation is moved out once.
        unsafe { ptr::read(&request.0) }
    }
}

impl Drop for PreparedAllocationRelease {
    #[inline]
    fn drop(&mut self) {
        if self.0.record().state() == State::Queued {
            self.0.retain(AllocationReleaseState::Quarantined, QuarantineReason::AbandonedRequest);
        }
    }
}

impl fmt::Debug for PreparedAllocationRelease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PreparedAllocationRelease")
            .field("identity", &self.identity())
            .field("pointer", &self.as_ptr())
            .field("bytes", &self.len())
            .field("alignment", &self.alignment())
            .finish()
    }
}

impl BoundAllocation {
    /// Queued → quarantined, the allocator not having been asked.
    #[cold]
    pub(super) fn retain(&mut self, state: AllocationReleaseState, reason: QuarantineReason) -> AllocationReleaseOutcome {
        // Once there is none, none can be made. While there is one, somebody relies on memory that its owner does not release.
        let retry = if self.record().views() == 0 { Retry::unasked(reason) } else { Retry::Never };
        self.retain_whole(state, reason, retry)
    }

    fn retain_whole(&self, state: AllocationReleaseState, reason: QuarantineReason, retry: Retry) -> AllocationReleaseOutcome {
        let retained_bytes = self.len() as u64;
        let residual = ResidualOwnership { state, reason, retained_bytes, address: self.exposed_address(), align: self.alignment() };
        self.quarantine(residual, retry);
        AllocationReleaseOutcome::quarantined(ReleaseAccounting::eager(retained_bytes), residual)
    }

    /// Queued → quarantined, with what the allocator says that it has kept.
    #[cold]
    fn retain_residual(&mut self, outcome: AllocationReleaseOutcome) -> AllocationReleaseOutcome {
        let AllocationReleaseOutcome::Quarantined { accounting, residual } = outcome else {
            return self.retain_whole(AllocationReleaseState::Quarantined, QuarantineReason::AllocatorRefused, Retry::Again);
        };
        let residual = ResidualOwnership { address: self.exposed_address(), align: self.alignment(), ..residual };
        self.quarantine(residual, Retry::Never);
        AllocationReleaseOutcome::quarantined(accounting, residual)
    }

    /// The address, for those who turn it back into a pointer to reclaim the memory by hand.
    fn exposed_address(&self) -> usize {
        self.as_ptr().as_ptr().expose_provenance()
    }

    fn quarantine(&self, residual: ResidualOwnership, retry: Retry) {
        self.record().step_to(State::Gone);
        let allocation = QuarantinedAllocation {
            identity: self.identity(),
            address: residual.address,
            bytes: self.len(),
            align: residual.align,
            state: residual.state,
            reason: residual.reason,
            retained_bytes: residual.retained_bytes,
        };
        self.binding().mechanism().quarantine.push(Entry { allocation, pointer: self.as_ptr(), home: self.record().home, retry });
    }
}

/// The allocator is being asked. Dropped by unwinding, nobody knows what was released: the allocation is retained, and not released
/// again.
struct Asked<'a>(&'a BoundAllocation);

impl Asked<'_> {
    #[inline]
    fn answered(self) {
        mem::forget(self);
    }
}

impl Drop for Asked<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.retain_whole(AllocationReleaseState::Quarantined, QuarantineReason::AbandonedRequest, Retry::Never);
    }
}
