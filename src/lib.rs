//! A lock-free registry through which hot threads reach the device-memory allocator that is selected *right now*.

// Under the test cfgs the pieces below are public, for the tests alone.
#![cfg_attr(any(liveslot_loom, liveslot_shuttle, liveslot_gates), allow(missing_docs, private_interfaces))]

mod contract;
mod error;
mod handles;
mod host;
mod mechanism;
mod primitives;
mod registry;
mod sync;

pub use contract::{
    AllocationCommitRange, AllocationGeneration, AllocationIdentity, AllocationReleaseOutcome, AllocationReleaseState, AuthorityIdentity,
    BindingGeneration, BindingId, BindingIdentity, BindingResource, DeferredEnqueueRejection, DeviceAllocator, DeviceKey, MappedAllocation,
    MechanismCoherence, MechanismIdentity, MechanismSnapshot, MemoryRole, ProviderContextIdentity, QuarantineReason, QuarantinedAllocation,
    ReleaseAccounting, ReleaseFailure, ResidualOwnership, SharedDevicePrefix, SharedMapping, SharedPrefixCommitInfo, Tier, VirtualBacking,
};
pub use error::{BindingError, MemoryError};
pub use handles::{BoundAllocation, BoundMemoryView, ExplicitReleaseError, MemoryBinding, ValidatedMemoryView};
pub use host::HostAllocator;
pub use mechanism::teardown::suppressed_panics;
pub use primitives::{Candidate, Liveness, MechanismLifecycle, Offer, Selected, SelectionSlot};
pub use registry::{BindingRegistry, DeviceHandle, RegisteredAuthority, RegisteredMechanism, RegisteredProviderContext};

/// What the tests of `loom-tests`, `shuttle-tests` and `gate-tests` need from inside. Exists under their cfgs only.
#[cfg(any(liveslot_loom, liveslot_shuttle, liveslot_gates))]
#[doc(hidden)]
pub mod internals {
    pub use crate::primitives::{identity, lane, liveness, once, pins, slot, table, use_count};
    #[cfg(liveslot_gates)]
    pub use crate::sync::gates;
    #[cfg(liveslot_loom)]
    pub use crate::sync::lane::set as set_lane;
    pub use crate::sync::{UnsafeCell, Word, atomic, epoch};
}
