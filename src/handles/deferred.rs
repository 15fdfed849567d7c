//! Releases that wait: what a queue of prepared releases has to do, and how handing one over ended.
//!
//! The library calls a queue with nothing held, and a queue may do anything, the request's execution included. Whatever it answers, the
//! request ends once: a refused one comes back inside the error, and is released, handed on, or retained.

use super::prepared::PreparedAllocationRelease;
use crate::contract::{AllocationIdentity, AllocationReleaseOutcome, AllocationReleaseState, DeferredEnqueueRejection, QuarantineReason};
use std::{error, fmt};

/// Where releases wait until the device has done with the memory.
///
/// Every method may be called from several threads at once, and from within callbacks.
///
/// ```
/// use liveslot::{DeferredEnqueueError, DeferredEnqueueRejection, DeferredReleaseQueue, PreparedAllocationRelease};
/// use std::sync::mpsc::SyncSender;
///
/// /// Hands requests to a thread that knows when the device has done with them.
/// #[derive(Debug)]
/// struct Channel(SyncSender<PreparedAllocationRelease>);
///
/// impl DeferredReleaseQueue for Channel {
///     fn enqueue(&self, request: PreparedAllocationRelease) -> Result<(), DeferredEnqueueError> {
///         use std::sync::mpsc::TrySendError;
///         self.0.try_send(request).map_err(|refused| match refused {
///             TrySendError::Full(request) => DeferredEnqueueError::new(DeferredEnqueueRejection::Full, request),
///             TrySendError::Disconnected(request) => DeferredEnqueueError::new(DeferredEnqueueRejection::Closed, request),
///         })
///     }
/// }
/// ```
pub trait DeferredReleaseQueue: Send + Sync + fmt::Debug {
    /// Takes a request over, or hands it back.
    ///
    /// # Errors
    ///
    /// [`DeferredEnqueueError`] with the very request and the reason.
    fn enqueue(&self, request: PreparedAllocationRelease) -> Result<(), DeferredEnqueueError>;

    /// How many requests wait. As provided, 0. Never called by the library.
    fn pending(&self) -> usize {
        0
    }
}

/// A request that a queue did not take.
///
/// Dropping it retains the ownership as abandoned, as dropping the request does. It keeps allocator, authority and provider context alive.
#[derive(Debug)]
pub struct DeferredEnqueueError {
    rejection: DeferredEnqueueRejection,
    request: PreparedAllocationRelease,
}

impl DeferredEnqueueError {
    /// Hands `request` back.
    pub fn new(rejection: DeferredEnqueueRejection, request: PreparedAllocationRelease) -> Self {
        Self { rejection, request }
    }

    /// Why it was not taken.
    #[must_use]
    pub const fn rejection(&self) -> DeferredEnqueueRejection {
        self.rejection
    }

    /// The request.
    pub const fn request(&self) -> &PreparedAllocationRelease {
        &self.request
    }

    /// The request, to be executed or handed on as if nothing had happened.
    pub fn into_request(self) -> PreparedAllocationRelease {
        self.request
    }

    /// Retains the ownership, for the reason [`EnqueueRejected`](QuarantineReason::EnqueueRejected).
    ///
    /// # Progress
    ///
    /// Lock-free.
    pub fn quarantine(self) -> AllocationReleaseOutcome {
        self.request.quarantine(QuarantineReason::EnqueueRejected(self.rejection))
    }
}

impl fmt::Display for DeferredEnqueueError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (identity, rejection) = (self.request.identity(), self.rejection.name());
        write!(formatter, "the queue did not take the release of {identity:?}: {rejection}; execute it, hand it on, or quarantine it")
    }
}

impl error::Error for DeferredEnqueueError {}

/// How handing a release to a queue ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeferredReleaseDisposition {
    /// The queue has taken it, and may have executed it already.
    Queued {
        /// The allocation.
        identity: AllocationIdentity,
    },
    /// The queue has refused it, and the ownership is retained.
    Quarantined {
        /// The allocation.
        identity: AllocationIdentity,
        /// Why the queue has refused it.
        rejection: DeferredEnqueueRejection,
        /// What is retained.
        outcome: AllocationReleaseOutcome,
    },
}

impl DeferredReleaseDisposition {
    /// The allocation.
    #[must_use]
    pub const fn identity(&self) -> AllocationIdentity {
        match self {
            Self::Queued { identity } | Self::Quarantined { identity, .. } => *identity,
        }
    }

    /// [`AllocationReleaseState::Queued`] or [`AllocationReleaseState::Quarantined`].
    #[must_use]
    pub const fn state(&self) -> AllocationReleaseState {
        match self {
            Self::Queued { .. } => AllocationReleaseState::Queued,
            Self::Quarantined { .. } => AllocationReleaseState::Quarantined,
        }
    }

    /// Whether the queue has taken it.
    #[must_use]
    pub const fn is_queued(&self) -> bool {
        matches!(self, Self::Queued { .. })
    }
}
