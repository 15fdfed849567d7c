//! The vocabulary that the library and its users share: what users implement, and the plain values that pass between
//! them and the registry.
//!
//! Nothing here has state of its own, starts a thread or calls user code, except that a provided trait method calls the
//! required one that it is defined by. Values are plain data: they hold nothing alive and can be kept for ever.
//!
//! | file | what |
//! | --- | --- |
//! | `device.rs` | where memory is: [`Tier`], [`DeviceKey`]; what for: [`MemoryRole`] |
//! | `identity.rs` | the names of what was registered, bound and allocated |
//! | `allocator.rs` | [`DeviceAllocator`], the contract to implement, and the types that its capabilities use |
//! | `capability.rs` | what an allocator may offer besides: [`VirtualBacking`], [`SharedMapping`] |
//! | `context_pin.rs` | how a provider keeps a context usable: [`ProviderContextPin`], [`ProviderContextPinSource`] |
//! | `resource.rs` | what a mechanism pins besides its allocator: [`BindingResource`] |
//! | `outcome.rs` | how a release ended: states, outcomes, accounting, reasons |
//! | `settlement.rs` | what came of quarantined ownership: [`RetriedQuarantine`], [`AbandonedQuarantine`] |
//! | `snapshot.rs` | a copy of one mechanism's state: [`MechanismSnapshot`] |
//! | `holder.rs` | a binding, as it is listed: [`Holder`] |

mod allocator;
mod capability;
mod context_pin;
mod device;
mod holder;
mod identity;
mod outcome;
mod resource;
mod settlement;
mod snapshot;

pub use self::allocator::{AllocationCommitRange, DeviceAllocator, MappedAllocation, SharedDevicePrefix, SharedPrefixCommitInfo};
pub use self::capability::{SharedMapping, VirtualBacking};
pub use self::context_pin::{ProviderContextPin, ProviderContextPinError, ProviderContextPinSource};
pub use self::device::{DeviceKey, MemoryRole, Tier};
pub use self::holder::Holder;
pub use self::identity::{
    AllocationGeneration, AllocationIdentity, AuthorityIdentity, BindingGeneration, BindingId, BindingIdentity, MechanismIdentity,
    ProviderContextIdentity,
};
pub use self::outcome::{
    AllocationReleaseOutcome, AllocationReleaseState, DeferredEnqueueRejection, QuarantineReason, QuarantinedAllocation, ReleaseAccounting,
    ReleaseFailure, ResidualOwnership,
};
pub use self::resource::{BindingResource, MechanismCoherence};
pub use self::settlement::{AbandonedQuarantine, RetriedQuarantine};
pub use self::snapshot::MechanismSnapshot;
