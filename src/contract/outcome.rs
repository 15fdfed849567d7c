//! How a release goes: the states of an allocation, the outcome of a release, what it gave back, and why something was
//! kept.

use super::AllocationIdentity;
use crate::sync::Arc;
use std::fmt;

/// Where an allocation is in its life, as far as its own handles go: what is kept may still be given back by
/// [`BindingRegistry::retry_quarantined`](crate::BindingRegistry::retry_quarantined).
///
/// | state | [owned](Self::retains_ownership) | [allocator may be called](Self::permits_allocator_call) | [final](Self::is_terminal) |
/// | --- | --- | --- | --- |
/// | `Live` | yes | yes | no |
/// | `Queued` | yes | yes | no |
/// | `PartiallyUnmapped` | yes | no | yes |
/// | `Released` | no | no | yes |
/// | `DeviceLost` | yes | no | yes |
/// | `Quarantined` | yes | no | yes |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum AllocationReleaseState {
    /// In use.
    Live,
    /// Prepared for release; the allocator was not called yet, or is being called.
    Queued,
    /// Part of its memory was given back, the rest is kept.
    PartiallyUnmapped,
    /// Given back.
    Released,
    /// Kept, because its device was lost.
    DeviceLost,
    /// Kept for another reason.
    Quarantined,
}

impl AllocationReleaseState {
    /// Whether memory of the allocation is still accounted for.
    pub const fn retains_ownership(self) -> bool {
        !matches!(self, Self::Released)
    }

    /// Whether a release may still call the allocator.
    pub const fn permits_allocator_call(self) -> bool {
        matches!(self, Self::Live | Self::Queued)
    }

    /// Whether no release leads to another state.
    pub const fn is_terminal(self) -> bool {
        !self.permits_allocator_call()
    }

    /// The name in lower-case words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Queued => "queued",
            Self::PartiallyUnmapped => "partially unmapped",
            Self::Released => "released",
            Self::DeviceLost => "device lost",
            Self::Quarantined => "quarantined",
        }
    }
}

impl fmt::Display for AllocationReleaseState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// What a release gave back, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ReleaseAccounting {
    /// The size of the allocation that was to be released.
    pub allocation_bytes: u64,
    /// The physical memory that was unmapped. Zero is a full success too: an allocator need not unmap anything.
    pub unmapped_bytes: u64,
}

impl ReleaseAccounting {
    /// The accounting of a release that unmapped `unmapped_bytes` bytes.
    pub const fn new(allocation_bytes: u64, unmapped_bytes: u64) -> Self {
        Self { allocation_bytes, unmapped_bytes }
    }

    /// The accounting of an allocator that maps eagerly, so that a release unmaps nothing.
    pub const fn eager(allocation_bytes: u64) -> Self {
        Self::new(allocation_bytes, 0)
    }
}

/// Why an allocation is kept instead of released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum QuarantineReason {
    /// A prepared release was dropped, or its release panicked.
    AbandonedRequest,
    /// An owner was dropped without a release.
    OwnerDropped,
    /// A queue did not take the prepared release.
    EnqueueRejected(DeferredEnqueueRejection),
    /// The device was lost before the allocator was called.
    DeviceLost,
    /// The provider context had terminated before the allocator was called.
    MechanismTerminated,
    /// The allocator gave part of the memory back and kept the rest.
    PartialRelease,
    /// The allocator gave nothing back.
    AllocatorRefused,
}

impl QuarantineReason {
    /// A short phrase, different for each variant.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AbandonedRequest => "request abandoned",
            Self::OwnerDropped => "owner dropped",
            Self::EnqueueRejected(_) => "enqueue rejected",
            Self::DeviceLost => "device lost",
            Self::MechanismTerminated => "mechanism terminated",
            Self::PartialRelease => "partial release",
            Self::AllocatorRefused => "allocator refused",
        }
    }
}

/// The name; for [`EnqueueRejected`](QuarantineReason::EnqueueRejected) followed by that of the rejection.
impl fmt::Display for QuarantineReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())?;
        match self {
            Self::EnqueueRejected(rejection) => write!(formatter, ": {}", rejection.name()),
            _ => Ok(()),
        }
    }
}

/// What an incomplete release left behind.
///
/// An allocator that reports one is believed: its state, reason and bytes are recorded as they are, even where they
/// contradict each other. Address and alignment are replaced by those of the allocation that was to be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ResidualOwnership {
    /// The state in which the allocation stays.
    pub state: AllocationReleaseState,
    /// Why it was not released.
    pub reason: QuarantineReason,
    /// The bytes that are still held.
    pub retained_bytes: u64,
    /// The address of the allocation. Its provenance is exposed: `std::ptr::with_exposed_provenance_mut` makes it a
    /// pointer again, for whoever reclaims the memory by hand, having [given the entry
    /// up](crate::BindingRegistry::abandon_quarantined).
    pub address: usize,
    /// The alignment of the allocation in bytes.
    pub align: usize,
}

/// Why an allocator released nothing. It displays as the reason given. The library keeps that there was a failure, and not its text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ReleaseFailure {
    reason: Arc<str>,
}

impl ReleaseFailure {
    /// A failure for the given reason.
    pub fn new(reason: impl Into<Arc<str>>) -> Self {
        Self { reason: reason.into() }
    }

    /// The reason.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for ReleaseFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.reason)
    }
}

/// How a release ended.
///
/// | outcome | [`state`](Self::state) | [`accounting`](Self::accounting) | [`residual`](Self::residual) | [`failure`](Self::failure) |
/// | --- | --- | --- | --- | --- |
/// | `Complete` | `Released` | yes | no | no |
/// | `Quarantined` | the residual's | yes | yes | no |
/// | `Failed` | `Live` | no | no | yes |
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum AllocationReleaseOutcome {
    /// Everything was given back.
    Complete {
        /// What was given back.
        accounting: ReleaseAccounting,
    },
    /// Something is kept, and can be released no more by the handles that led to it.
    Quarantined {
        /// What was given back.
        accounting: ReleaseAccounting,
        /// What is kept.
        residual: ResidualOwnership,
    },
    /// Nothing was given back. Only allocators report this; the library turns it into a quarantine of all bytes for
    /// the reason [`AllocatorRefused`](QuarantineReason::AllocatorRefused).
    Failed {
        /// Why not.
        failure: ReleaseFailure,
    },
}

impl AllocationReleaseOutcome {
    /// A complete release.
    pub const fn complete(accounting: ReleaseAccounting) -> Self {
        Self::Complete { accounting }
    }

    /// A release that left something behind.
    pub const fn quarantined(accounting: ReleaseAccounting, residual: ResidualOwnership) -> Self {
        Self::Quarantined { accounting, residual }
    }

    /// A release that gave nothing back, for the given reason.
    pub fn failed(reason: impl Into<Arc<str>>) -> Self {
        Self::Failed { failure: ReleaseFailure::new(reason) }
    }

    /// The state that the allocation is in afterwards.
    pub const fn state(&self) -> AllocationReleaseState {
        match self {
            Self::Complete { .. } => AllocationReleaseState::Released,
            Self::Quarantined { residual, .. } => residual.state,
            Self::Failed { .. } => AllocationReleaseState::Live,
        }
    }

    /// What was given back; `None` if the release failed.
    pub const fn accounting(&self) -> Option<ReleaseAccounting> {
        match self {
            Self::Complete { accounting } | Self::Quarantined { accounting, .. } => Some(*accounting),
            Self::Failed { .. } => None,
        }
    }

    /// What is kept in quarantine, if anything is.
    pub const fn residual(&self) -> Option<ResidualOwnership> {
        match self {
            Self::Quarantined { residual, .. } => Some(*residual),
            Self::Complete { .. } | Self::Failed { .. } => None,
        }
    }

    /// Why the release failed, if it did.
    pub const fn failure(&self) -> Option<&ReleaseFailure> {
        match self {
            Self::Failed { failure } => Some(failure),
            Self::Complete { .. } | Self::Quarantined { .. } => None,
        }
    }

    /// Whether everything was given back.
    pub const fn is_complete(&self) -> bool {
        matches!(self, Self::Complete { .. })
    }

    /// Whether something is kept in quarantine.
    pub const fn is_quarantined(&self) -> bool {
        matches!(self, Self::Quarantined { .. })
    }

    /// The bytes of physical memory that were unmapped; 0 if the release failed.
    pub const fn unmapped_bytes(&self) -> u64 {
        match self.accounting() {
            Some(accounting) => accounting.unmapped_bytes,
            None => 0,
        }
    }
}

/// Why a queue did not take a prepared release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum DeferredEnqueueRejection {
    /// The queue takes no more.
    Closed,
    /// The queue has no room now.
    Full,
    /// The queue's device is lost.
    DeviceLost,
    /// Another reason of the queue's.
    Refused,
}

impl DeferredEnqueueRejection {
    /// The name in lower-case words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Full => "full",
            Self::DeviceLost => "device lost",
            Self::Refused => "refused",
        }
    }
}

/// One allocation that a mechanism keeps in quarantine. A copy: it pins nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct QuarantinedAllocation {
    /// The allocation.
    pub identity: AllocationIdentity,
    /// Its address. Its provenance is exposed: `std::ptr::with_exposed_provenance_mut` makes it a pointer again, for
    /// whoever reclaims the memory by hand, having [given the entry up](crate::BindingRegistry::abandon_quarantined).
    pub address: usize,
    /// Its size in bytes.
    pub bytes: usize,
    /// Its alignment in bytes.
    pub align: usize,
    /// The state in which it stays.
    pub state: AllocationReleaseState,
    /// Why it was not released.
    pub reason: QuarantineReason,
    /// The bytes that are still held.
    pub retained_bytes: u64,
}
