//! The public errors.
//!
//! A text names the thing that was refused and, where there is one, the way out, in lower case. It is never empty. A
//! reason that a user gave is part of it word for word.

use crate::contract::{
    AllocationIdentity, AllocationReleaseState, AuthorityIdentity, BindingId, DeviceKey, MechanismIdentity, MemoryRole,
    ProviderContextIdentity, QuarantineReason,
};
use crate::primitives::MechanismLifecycle;
use crate::sync::Arc;
use std::error::Error;
use thiserror::Error;

/// Why an allocator or a capability did not do what it was asked for. Allocators build it; sizes are in bytes.
///
/// `tier` is the name of a [`Tier`](crate::Tier), or whatever the allocator calls its kind of memory.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// The request does not fit under the tier's limit.
    #[error(
        "the {tier} tier is exhausted: {requested} bytes requested for {role:?}, {available} available ({used} of {limit} \
         used); release memory of that tier or raise its limit"
    )]
    TierExhausted {
        /// The tier's name.
        tier: &'static str,
        /// The bytes asked for.
        requested: u64,
        /// The bytes in use.
        used: u64,
        /// The most bytes that may be in use.
        limit: u64,
        /// The bytes that could still be had.
        available: u64,
        /// What they were asked for.
        role: MemoryRole,
    },
    /// The request is one that can never be met.
    #[error("invalid request for {requested} bytes of the {tier} tier: {reason}")]
    InvalidRequest {
        /// The tier's name.
        tier: &'static str,
        /// The bytes asked for.
        requested: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The request is valid, and the memory could not be made.
    #[error("allocation of {requested} bytes of the {tier} tier failed: {reason}")]
    AllocationFailed {
        /// The tier's name.
        tier: &'static str,
        /// The bytes asked for.
        requested: u64,
        /// What went wrong.
        reason: String,
    },
    /// The memory is not to be had now, for a reason that another error may explain.
    #[error("the {tier} tier cannot provide {requested} bytes for {role:?} now, {available} available: {detail}")]
    CapacityUnavailable {
        /// The tier's name.
        tier: &'static str,
        /// The bytes asked for.
        requested: u64,
        /// The bytes that could be had.
        available: u64,
        /// What they were asked for.
        role: MemoryRole,
        /// What is missing.
        detail: String,
        /// The cause, which [`Error::source`] gives as it is. The text does not repeat it.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
}

/// The registry of what is waited for is gone: nothing changes any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the registry of {device} is gone; keep a clone of it, or a handle of the device, as long as something is waited for")]
pub struct RegistryGone {
    /// The device that was watched, or the mechanism's.
    pub device: DeviceKey,
}

/// Why a registry, a binding or a handle refused a call.
///
/// A refused call has changed nothing. [`ReleaseQuarantined`](Self::ReleaseQuarantined) alone is no refusal: the release
/// was carried out and cannot be repeated by its caller.
#[derive(Debug, Error)]
pub enum BindingError {
    /// No identity is left that was never issued, or a counter of the mechanism is full. Nothing wraps.
    #[error(
        "identities are exhausted: no number is left that was never issued, or a counter of the mechanism is full; \
         release what it owns, or start the process anew"
    )]
    IdentityExhausted,
    /// A token was given to another registry than its own.
    #[error("this {kind} was registered with another registry; use the registry that it came from")]
    ForeignRegistry {
        /// What the token stands for: `provider context`, `authority` or `mechanism`.
        kind: &'static str,
    },
    /// The parts of a registration are not for one device.
    #[error("the {subject} is for {actual}, but the registration is for {expected}; use one for {expected}")]
    DeviceMismatch {
        /// The part that does not fit: `authority` or `allocator`.
        subject: &'static str,
        /// The provider context's device.
        expected: DeviceKey,
        /// The device of the part.
        actual: DeviceKey,
    },
    /// The provider context was removed.
    #[error("{0:?} is no longer registered; register the provider context anew")]
    UnregisteredProviderContext(ProviderContextIdentity),
    /// A mechanism is registered with the provider context.
    #[error("{0:?} is still used by a mechanism; remove the mechanisms registered with it first")]
    ProviderContextInUse(ProviderContextIdentity),
    /// The authority was removed.
    #[error("{0:?} is no longer registered; register the authority anew")]
    UnregisteredAuthority(AuthorityIdentity),
    /// A mechanism is registered with the authority.
    #[error("{0:?} is still used by a mechanism; remove the mechanisms registered with it first")]
    AuthorityInUse(AuthorityIdentity),
    /// The mechanism was removed.
    #[error("{0:?} is no longer registered; register the allocator anew")]
    UnregisteredMechanism(MechanismIdentity),
    /// The device has no selection.
    #[error("no mechanism is selected on {0}; register or select one")]
    NoSelectedMechanism(DeviceKey),
    /// The mechanism's place in its life does not allow the call.
    #[error("{operation} refused: {mechanism:?} is {lifecycle:?}; {}", way_out(*.lifecycle, .operation))]
    InactiveMechanism {
        /// The mechanism.
        mechanism: MechanismIdentity,
        /// Where in its life it is.
        lifecycle: MechanismLifecycle,
        /// The refused call, in a short phrase.
        operation: &'static str,
    },
    /// The device was declared lost, and with it the mechanism that the call is for.
    #[error(
        "{device} is lost: {reason}; register an allocator on it once it works again, and bind anew; what this one owns is \
         written off when the end of its provider context is confirmed"
    )]
    DeviceLost {
        /// The device.
        device: DeviceKey,
        /// The reason it was declared lost for.
        reason: Arc<str>,
    },
    /// An allocation, a view or a prefix was used through another binding than its own.
    #[error("this belongs to {actual:?}, not to {expected:?}; use the binding that it was made with")]
    BindingMismatch {
        /// The binding that the call was made on.
        expected: BindingId,
        /// The binding that the argument belongs to.
        actual: BindingId,
    },
    /// The allocation was released, prepared for release, or quarantined.
    #[error("{0:?} is no longer live: it was released, queued for release or quarantined; drop what names it")]
    StaleAllocation(AllocationIdentity),
    /// Views that keep the allocation from being released exist.
    #[error("{identity:?} has {views} owned views; drop them before the release")]
    OutstandingViews {
        /// The allocation.
        identity: AllocationIdentity,
        /// The number of views, at least 1.
        views: usize,
    },
    /// A release was carried out, and did not give everything back.
    #[error(
        "the release of {identity:?} retained {retained_bytes} bytes: {state}, {reason}; they stay in quarantine until they are \
         retried, abandoned, or written off with the provider context"
    )]
    ReleaseQuarantined {
        /// The allocation.
        identity: AllocationIdentity,
        /// The state in which it stays.
        state: AllocationReleaseState,
        /// Why it was not released.
        reason: QuarantineReason,
        /// The bytes that are still held.
        retained_bytes: u64,
    },
    /// The mechanism cannot be removed while it keeps allocations in quarantine.
    #[error(
        "{mechanism:?} keeps quarantined allocations: {quarantined}; retry or abandon them, or, if its device is lost, confirm \
         that its provider context has terminated"
    )]
    QuarantinedOwnership {
        /// The mechanism.
        mechanism: MechanismIdentity,
        /// The number of quarantined allocations.
        quarantined: usize,
    },
    /// A view would reach past its allocation.
    #[error("the range {offset}..{end} does not lie in an allocation of {allocation_bytes} bytes; view a part of it")]
    ViewOutOfBounds {
        /// Where the view would start, in bytes from the start of the allocation.
        offset: usize,
        /// Where it would end; `usize::MAX` if that is no number.
        end: usize,
        /// The size of the allocation.
        allocation_bytes: usize,
    },
    /// Termination cannot be confirmed while the context's mechanisms are in use.
    #[error(
        "{context:?} has active operations: {active_operations}; let the calls end, execute or quarantine prepared releases, and confirm again"
    )]
    ContextNotQuiescent {
        /// The provider context.
        context: ProviderContextIdentity,
        /// The operations of the mechanism that was found busy.
        active_operations: usize,
    },
    /// The registry was [shut down](crate::BindingRegistry::shutdown): it registers, selects and binds nothing any more.
    #[error("the registry was shut down; create another registry for new work")]
    ShutDown,
    /// The allocator or the capability refused. Text and [`source`](Error::source) are those of the inner error.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// The operation of a refused [`confirm_context_terminated`](crate::BindingRegistry::confirm_context_terminated).
pub(crate) const CONFIRMATION: &str = "confirming the end of its context";

/// What can be done about a mechanism whose lifecycle forbids a call.
fn way_out(lifecycle: MechanismLifecycle, operation: &str) -> &'static str {
    match lifecycle {
        MechanismLifecycle::Active | MechanismLifecycle::Retired if operation == CONFIRMATION => "declare its device lost first",
        MechanismLifecycle::Active => "retire it or declare its device lost first",
        MechanismLifecycle::Retired => "bind another mechanism for new work, and release what this one owns before its removal",
        MechanismLifecycle::DeviceLost => {
            "register another mechanism for new work, and confirm the termination of this one's provider context before \
             its removal"
        }
        MechanismLifecycle::Terminated => "register another mechanism",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{AllocationGeneration, BindingGeneration, BindingIdentity, DeferredEnqueueRejection};

    const DEVICE: DeviceKey = DeviceKey::device(31);
    const CONTEXT: ProviderContextIdentity = ProviderContextIdentity::from_number(41);
    const AUTHORITY: AuthorityIdentity = AuthorityIdentity::from_number(42);
    const MECHANISM: MechanismIdentity = MechanismIdentity::from_number(43);
    const IDENTITY: AllocationIdentity = AllocationIdentity::new(
        BindingIdentity::new(BindingId::from_number(51), BindingGeneration::from_number(52), DEVICE, MECHANISM, CONTEXT, AUTHORITY),
        AllocationGeneration::from_number(53),
    );

    /// R153: each text names what it is about, in so many words, and is the whole error: there is no source.
    #[test]
    fn texts_name_their_things() {
        let identity = format!("{IDENTITY:?}");
        let overflow = format!("64..{}", usize::MAX);
        let table: [(BindingError, &[&str]); 19] = [
            (BindingError::IdentityExhausted, &["identities are exhausted"]),
            (BindingError::ForeignRegistry { kind: "provider context" }, &["provider context"]),
            (
                BindingError::DeviceMismatch { subject: "authority", expected: DEVICE, actual: DeviceKey::HOST },
                &["the authority is for host 0", "for device 31;"],
            ),
            (BindingError::UnregisteredProviderContext(CONTEXT), &["ProviderContextIdentity(41) is no longer registered"]),
            (BindingError::ProviderContextInUse(CONTEXT), &["ProviderContextIdentity(41) is still used"]),
            (BindingError::UnregisteredAuthority(AUTHORITY), &["AuthorityIdentity(42) is no longer registered"]),
            (BindingError::AuthorityInUse(AUTHORITY), &["AuthorityIdentity(42) is still used"]),
            (BindingError::UnregisteredMechanism(MECHANISM), &["MechanismIdentity(43) is no longer registered"]),
            (BindingError::NoSelectedMechanism(DEVICE), &["no mechanism is selected on device 31; register or select one"]),
            (
                BindingError::InactiveMechanism { mechanism: MECHANISM, lifecycle: MechanismLifecycle::Retired, operation: "allocation" },
                &["allocation refused", "MechanismIdentity(43) is Retired"],
            ),
            (BindingError::DeviceLost { device: DEVICE, reason: "ECC error {0x1f}".into() }, &["device 31", "ECC error {0x1f}"]),
            (
                BindingError::BindingMismatch { expected: BindingId::from_number(44), actual: BindingId::from_number(45) },
                &["belongs to BindingId(45)", "not to BindingId(44)"],
            ),
            (BindingError::StaleAllocation(IDENTITY), &[&identity]),
            (BindingError::OutstandingViews { identity: IDENTITY, views: 61 }, &[&identity, "61 owned views"]),
            (
                BindingError::ReleaseQuarantined {
                    identity: IDENTITY,
                    state: AllocationReleaseState::PartiallyUnmapped,
                    reason: QuarantineReason::EnqueueRejected(DeferredEnqueueRejection::Full),
                    retained_bytes: 62,
                },
                &[&identity, "partially unmapped", "enqueue rejected: full", "62 bytes"],
            ),
            (
                BindingError::QuarantinedOwnership { mechanism: MECHANISM, quarantined: 63 },
                &["MechanismIdentity(43)", "quarantined allocations: 63"],
            ),
            (BindingError::ViewOutOfBounds { offset: 64, end: usize::MAX, allocation_bytes: 65 }, &[&overflow, "65 bytes"]),
            (
                BindingError::ContextNotQuiescent { context: CONTEXT, active_operations: 66 },
                &["ProviderContextIdentity(41)", "active operations: 66"],
            ),
            (BindingError::ShutDown, &["the registry was shut down; create another"]),
        ];
        for (error, names) in table {
            let text = error.to_string();
            for name in names {
                assert!(text.contains(name), "{text:?} does not name {name:?}");
            }
            assert!(error.source().is_none(), "{text:?} has a source");
        }
    }

    /// R153: the way out of a refusal fits the lifecycle that it names.
    #[test]
    fn a_refusal_by_lifecycle_tells_the_way_out() {
        for (operation, lifecycle, names) in [
            ("removal", MechanismLifecycle::Active, ["Active", "retire it"]),
            ("removal", MechanismLifecycle::Retired, ["Retired", "bind another"]),
            ("removal", MechanismLifecycle::DeviceLost, ["DeviceLost", "confirm the termination"]),
            ("removal", MechanismLifecycle::Terminated, ["Terminated", "register another"]),
            (CONFIRMATION, MechanismLifecycle::Active, ["Active", "; declare its device lost first"]),
            (CONFIRMATION, MechanismLifecycle::Retired, ["Retired", "; declare its device lost first"]),
        ] {
            let text = BindingError::InactiveMechanism { mechanism: MECHANISM, lifecycle, operation }.to_string();
            for name in names {
                assert!(text.contains(name), "{text:?} does not name {name:?}");
            }
        }
    }
}
