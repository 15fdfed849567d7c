//! A lock-free registry through which hot threads reach the device-memory allocator that is selected *right now*, while other
//! threads select another one, retire one, lose the device, or tear one down.
//!
//! ```
//! use liveslot::{BindingRegistry, DeviceKey, HostAllocator};
//! use std::sync::Arc;
//!
//! let registry = BindingRegistry::new()?;
//! let context = registry.register_provider_context(DeviceKey::HOST, Arc::new("what the memory needs"))?;
//! let authority = registry.register_authority(DeviceKey::HOST, Arc::new("who accounts for it"))?;
//! let mechanism = registry.register_allocator(context, authority, Arc::new(HostAllocator))?; // selected: the first one
//!
//! let device = registry.device(DeviceKey::HOST); // what a hot thread keeps
//! let binding = device.bind()?;
//! let allocation = binding.allocate(4096, 64)?;
//! registry.retire(mechanism)?; // nothing new from now on; what is out can come back
//! binding.release(allocation)?;
//! drop(binding);
//! registry.remove(mechanism)?; // the allocator is destroyed here; authority and context stay registered
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Trade-offs
//!
//! - A mechanism costs 256 to 512 bytes per core and about 1 KiB besides: its counts are striped, so that threads which work
//!   for themselves share no cache line. A snapshot reads every stripe.
//! - Selecting allocates a record. It costs about as much as 18 uncontended read-modify-write pairs, and threads that select
//!   at once contend for one cell.
//! - A call that had begun when the device was lost ends as it ends; nothing can be promised about the moment in between but
//!   that it is counted.
//! - Dropping the last handle runs the user's destructors, on whichever thread that is.
//! - Memory of removed entries (never resources) waits for the epoch.
//!
//! # Where things are
//!
//! [`BindingRegistry`] is the control plane, [`DeviceHandle`] and [`MemoryBinding`] are the hot path, [`DeviceAllocator`] is what to
//! implement. [`OwningAllocation`] owns, and an [`OwnedView`] keeps it from being released; [`release::BoundedQueue`] holds releases that
//! wait; [`SelectionWatch`] tells of changes and losses as they come, [`Drain`] and [`Teardown`] of a mechanism's end, and
//! [`BindingRegistry::shutdown`] brings all of them to theirs; [`Budget`] limits bytes; `VirtualMemory` (feature
//! `virtual-memory`) is address space with pages that come and go.
//! [`SelectionSlot`] is the selection protocol by itself, for any backend that is hot-swapped.
//!
//! What is going on: [`BindingRegistry::snapshot`] for one mechanism, the registry's `Display` for a table of all,
//! [`BindingRegistry::to_dot`] for a picture, [`BindingRegistry::holders`] for the bindings of one mechanism and where they were made,
//! `MechanismGauges` (feature `metrics`) for an exporter.
//!
//! # Waiting
//!
//! [`SelectionWatch`], [`Drain`], [`RemoveWhenDrained`] and [`Teardown`] wait as futures of any runtime, or with the calling thread. A
//! waker is called by the thread that causes the event, with nothing held, after every parked thread was woken and every destructor that
//! its call owes has run; its panic is counted, and goes no further. Wakers are expected to return. One that does not keeps that thread,
//! and the futures behind it at the same event until the next event or their next poll, and nothing else. A destructor is a call of the
//! user's like any other: what it ends, a retirement say, is told within it, and a waker that does not return there keeps what is due
//! behind that destructor as well. A waker that lets go of what another one's future waits for calls that one, on its own stack. Where a
//! waker may block, or where the thread that lets the last allocation go has no time for other people's wakers, have them called
//! elsewhere:
//!
//! ```
//! # use liveslot::{BindingRegistry, DeviceKey, HostAllocator};
//! use std::{future::poll_fn, pin::pin, sync::{Arc, mpsc}, task::{Context, Wake, Waker}};
//!
//! /// Hands a waker to whoever calls it.
//! struct Elsewhere(mpsc::Sender<Waker>, Waker);
//!
//! impl Wake for Elsewhere {
//!     fn wake(self: Arc<Self>) {
//!         let _ = self.0.send(self.1.clone());
//!     }
//! }
//!
//! async fn woken_elsewhere<T>(future: impl Future<Output = T>, wakers: mpsc::Sender<Waker>) -> T {
//!     let mut future = pin!(future);
//!     poll_fn(|context| {
//!         let elsewhere = Waker::from(Arc::new(Elsewhere(wakers.clone(), context.waker().clone())));
//!         future.as_mut().poll(&mut Context::from_waker(&elsewhere))
//!     })
//!     .await
//! }
//!
//! # let registry = BindingRegistry::new()?;
//! # let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
//! # let authority = registry.register_authority(DeviceKey::HOST, Arc::new(()))?;
//! # let mechanism = registry.register_allocator(context, authority, Arc::new(HostAllocator))?;
//! let (wakers, to_call) = mpsc::channel();
//! let binding = registry.bind(DeviceKey::HOST)?;
//! let allocation = binding.allocate(64, 8)?;
//! let mut drained = pin!(woken_elsewhere(registry.retire_and_drain(mechanism)?, wakers));
//! let mut context = Context::from_waker(Waker::noop()); // a runtime's
//! assert!(drained.as_mut().poll(&mut context).is_pending());
//!
//! binding.release(allocation)?; // sends the waker, and calls none
//! to_call.recv()?.wake(); // on a thread that is there for it
//! assert!(drained.as_mut().poll(&mut context).is_ready());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//!
//! All are off by default.
//!
//! | feature | what | cost |
//! | --- | --- | --- |
//! | `virtual-memory` | `VirtualMemory` (Unix) | the dependency rustix |
//! | `serde` | `Serialize` for snapshots, reports, holders, release outcomes and the values in them; identities are the numbers of their `Debug` text, and nothing deserializes | the dependency serde |
//! | `holders` | bindings and their records are listed with label, place, age and counts: [`BindingRegistry::holders`] | 32 bytes a binding instead of 16, and 16 more a record; per binding one allocation of 64 bytes (16 more with a label), a look at the clock, a load per 64 bindings that stand, four read-modify-writes, three of them on lines that the mechanism's bindings share, and an epoch pin; per clone and per allocation two on a line that the binding's clones share |
//! | `metrics` | the counter `liveslot_steps_total` of what `tracing` tells, by step and device; `MechanismGauges`, which records each mechanism's state as gauges on request | the dependency metrics, which brings rapidhash; per step what the recorder costs and the labels' allocations; nothing on the hot path |
//! | `tracing` | an event for each successful call that registers, selects, deselects, retires, declares lost, confirms or removes something, also if it was so before, and for each teardown | the dependency tracing; per event what the subscriber costs; nothing on the hot path |
//!
//! Events have the target `liveslot` and the level INFO, a lost device WARN; device and identities are fields, the latter as numbers. A
//! call tells what it has done (one that a shutdown has refused in the middle of a registration, the teardown alone) after its work, with
//! nothing held, so a subscriber may call everything and delays only the call. Its panic goes to the caller, and what is told stays done;
//! after a destructor's panic, and on a thread that is unwinding, it counts in [`suppressed_panics`]. The first event of a kind registers
//! with tracing, which may wait for a lock of its own: with the feature on, calls that tell something are lock-free but for that.
//!
//! The same calls count one in `liveslot_steps_total`, before the event, with the event's text as the label `step` and `device` as it
//! displays. Identities are no labels: they are never used again, and a recorder keeps every series that it has seen. A recorder is called
//! as a subscriber is, may do the same, and its panic goes the same way; it does not keep the subscriber from being told. What a recorder
//! itself does with the registry is counted as well: unlike tracing, the facade does not keep quiet about it. The facade takes no lock: it
//! finds the recorder by a look at a thread-local and one load. Most recorders look the series up under a lock, at each count.
#![cfg_attr(doc, doc = "The [`design`] page has the invariants, the protocols and the results.")]
// Under the test cfgs the pieces below are public, for the tests alone.
#![cfg_attr(
    any(liveslot_loom, liveslot_shuttle, liveslot_gates),
    allow(missing_docs, private_interfaces, clippy::new_without_default, clippy::type_complexity, clippy::modulo_one)
)]

mod callback;
mod contract;
mod error;
mod handles;
mod host;
mod mechanism;
mod panics;
mod primitives;
mod registry;
pub mod release;
mod sync;
mod wait;

pub use contract::{
    AbandonedQuarantine, AllocationCommitRange, AllocationGeneration, AllocationIdentity, AllocationReleaseOutcome, AllocationReleaseState,
    AuthorityIdentity, BindingGeneration, BindingId, BindingIdentity, BindingResource, DeferredEnqueueRejection, DeviceAllocator,
    DeviceKey, Holder, MappedAllocation, MechanismCoherence, MechanismIdentity, MechanismSnapshot, MemoryRole, ProviderContextIdentity,
    ProviderContextPin, ProviderContextPinError, ProviderContextPinSource, QuarantineReason, QuarantinedAllocation, ReleaseAccounting,
    ReleaseFailure, ResidualOwnership, RetriedQuarantine, SharedDevicePrefix, SharedMapping, SharedPrefixCommitInfo, Tier, VirtualBacking,
};
pub use error::{BindingError, MemoryError, RegistryGone};
pub use handles::{
    BoundAllocation, BoundMemoryView, BoundSharedMapping, BoundSharedPrefix, BoundVirtualBacking, DeferredEnqueueError,
    DeferredReleaseDisposition, DeferredReleaseQueue, ExplicitReleaseError, MemoryBinding, OwnedView, OwningAllocation, OwningReleaseError,
    PreparedAllocationRelease, ValidatedMemoryView,
};
#[cfg(all(unix, feature = "virtual-memory"))]
pub use host::VirtualMemory;
pub use host::{Budget, BudgetSnapshot, BudgetTally, BudgetedAllocator, HostAllocator};
pub use panics::suppressed_panics;
pub use primitives::{Candidate, Liveness, MechanismLifecycle, NotReplaced, Offer, Selected, SelectionSlot};
pub use registry::{
    BindingRegistry, ChangeCause, DeviceHandle, Drain, DrainError, DrainReport, InsideCallback, RegisteredAuthority, RegisteredMechanism,
    RegisteredProviderContext, RemovalError, RemoveWhenDrained, SelectIfError, SelectionChange, SelectionWatch, ShutdownReport, StillHeld,
    Teardown,
};
#[cfg(feature = "metrics")]
pub use registry::{MechanismGauges, describe_metrics};

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}

/// The README's example compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// What the tests of `loom-tests`, `shuttle-tests` and `gate-tests` need from inside. Exists under their cfgs only.
#[cfg(any(liveslot_loom, liveslot_shuttle, liveslot_gates))]
#[doc(hidden)]
pub mod internals {
    #[cfg(liveslot_loom)]
    pub use crate::host::pages;
    #[cfg(liveslot_loom)]
    pub use crate::primitives::roll;
    pub use crate::primitives::{counted, identity, lane, liveness, once, pins, slot, table, use_count, waiters};
    #[cfg(liveslot_gates)]
    pub use crate::sync::gates;
    #[cfg(liveslot_loom)]
    pub use crate::sync::lane::set as set_lane;
    pub use crate::sync::{UnsafeCell, Word, atomic, epoch};
}
