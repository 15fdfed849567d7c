//! The control plane: register, select, retire, lose, remove, shut down; and who waits for that.
//!
//! | file | what |
//! | --- | --- |
//! | [`token`] | what registration hands out |
//! | [`device`] | one device: its slot and its mechanisms; the handle that has it resolved |
//! | [`devices`] | device key → device |
//! | [`register`] | contexts, authorities, allocators |
//! | [`select`] | selecting, deselecting, binding |
//! | [`retire`] | retiring |
//! | [`lose`] | losing a device, confirming that a context is gone |
//! | [`remove`] | removing, and the end of the registry |
//! | [`shutdown`] | refusing what is new, and taking everything out of use |
//! | [`drain`] | waiting until a mechanism owns and does nothing, and then removing it |
//! | [`teardown`] | waiting until its resources are destroyed |
//! | [`observe`] | snapshots and lists |
//! | `metrics` | gauges of mechanisms, with the feature `metrics` |
//! | [`settle`] | quarantined ownership given back, or up |
//! | [`report`] | the registry as text |
//! | [`trim`] | giving cached memory back |
//! | [`watch`] | waiting for changes and losses |
//!
//! A token is looked up under an epoch guard, and what is found is used under it: words only, and holds that are acquired.
//! Every call ends its guard before it lets go of anything of the user's.

mod device;
mod devices;
mod drain;
mod lose;
#[cfg(feature = "metrics")]
mod metrics;
mod observe;
mod register;
mod remove;
mod report;
mod retire;
mod select;
mod settle;
mod shutdown;
mod teardown;
mod token;
mod trim;
mod watch;

#[cfg(feature = "metrics")]
pub use self::metrics::{MechanismGauges, describe_metrics};
pub use self::{
    device::DeviceHandle,
    drain::{Drain, DrainError, DrainReport, RemovalError, RemoveWhenDrained},
    select::SelectIfError,
    shutdown::{InsideCallback, ShutdownReport},
    teardown::{StillHeld, Teardown},
    token::{RegisteredAuthority, RegisteredMechanism, RegisteredProviderContext},
    watch::{ChangeCause, SelectionChange, SelectionWatch},
};

use self::{device::Device, devices::Devices};
use crate::{
    error::BindingError,
    mechanism::{Mechanism, Support},
    primitives::{
        identity,
        table::{Found, Table},
    },
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
        epoch,
    },
};
use std::fmt;

/// Mechanisms by device, and which of them is selected.
///
/// Clones are the same registry. It keeps what is registered alive until it is removed and nothing needs it any more; the last
/// clone's drop lets go of everything, and bindings go on working without it. A [`DeviceHandle`] counts as a clone.
///
/// No call but [`shutdown`](Self::shutdown) waits for another thread, and none holds anything while it runs an allocator's or a resource's code.
///
/// | operation | progress | cost |
/// | --- | --- | --- |
/// | [`bind`](Self::bind), [`DeviceHandle::bind`] | lock-free: retries are paid for by selections | one `ArcSwap` load, one RMW of a private line |
/// | [`bind_registered`](Self::bind_registered) | wait-free but for the epoch | an epoch pin, one RMW of a private line |
/// | [`select`](Self::select), [`DeviceHandle::select_if`] | lock-free | an epoch pin, one allocation, two compare-and-swaps |
/// | [`deselect`](Self::deselect), [`DeviceHandle::deselect`] | lock-free | one allocation, one compare-and-swap |
/// | [`retire`](Self::retire) | lock-free | one compare-and-swap, one RMW per stripe, the slot |
/// | [`invalidate_device`](Self::invalidate_device) | lock-free: each further pass is paid for by a registration | per mechanism of the device one compare-and-swap and one RMW per stripe |
/// | [`register_allocator`](Self::register_allocator) | lock-free | two allocations, stripes and entry; a record if it becomes the selection, at times a chunk of the table |
/// | [`remove`](Self::remove) | lock-free | one RMW per stripe, one deferral |
/// | [`snapshot`](Self::snapshot) | lock-free: it looks again only if quarantined ownership was given back or up | one load per stripe, two of the quarantine |
/// | [`shutdown`](Self::shutdown) | blocking | until all is gone per look and mechanism a load per stripe |
/// | [`trim`](Self::trim) | lock-free, the allocators excepted | per mechanism of the device an operation and a hold |
#[derive(Clone)]
pub struct BindingRegistry {
    inner: Arc<Inner>,
}

/// What all clones share.
struct Inner {
    /// Issued once in the life of the process.
    number: u64,
    stripes: usize,
    /// The order of registration.
    sequence: AtomicU64,
    devices: Devices,
    contexts: Table<Support>,
    authorities: Table<Support>,
    /// Set once, by the first shutdown.
    closed: AtomicBool,
    /// What was removed since, or found in the middle of that, and is not torn down.
    ending: Table<Mechanism>,
}

impl BindingRegistry {
    /// An empty registry.
    ///
    /// # Errors
    ///
    /// [`BindingError::IdentityExhausted`] if no identity is left.
    pub fn new() -> Result<Self, BindingError> {
        Self::with_stripes(stripes())
    }

    /// An empty registry whose mechanisms count on `stripes` stripes, a power of two.
    fn with_stripes(stripes: usize) -> Result<Self, BindingError> {
        let inner = Inner {
            number: issue()?,
            stripes,
            sequence: AtomicU64::new(0),
            devices: Devices::new(),
            contexts: Table::new(),
            authorities: Table::new(),
            closed: AtomicBool::new(false),
            ending: Table::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

impl Inner {
    /// Refuses tokens of another registry.
    fn own(&self, registry: u64, kind: &'static str) -> Result<(), BindingError> {
        if registry == self.number { Ok(()) } else { Err(BindingError::ForeignRegistry { kind }) }
    }

    /// The registered mechanism that `token` names, with its device.
    fn mechanism<'g>(&self, token: RegisteredMechanism, guard: &'g epoch::Guard) -> Result<(&Device, Found<'g, Mechanism>), BindingError> {
        self.own(token.registry, "mechanism")?;
        let device = self.devices.get(token.device);
        device
            .and_then(|device| Some((device, device.mechanisms.get(token.place, token.identity.number(), guard)?)))
            .ok_or(BindingError::UnregisteredMechanism(token.identity))
    }

    fn context<'g>(&self, token: RegisteredProviderContext, guard: &'g epoch::Guard) -> Result<Found<'g, Support>, BindingError> {
        self.own(token.registry, "provider context")?;
        let found = self.contexts.get(token.place, token.identity.number(), guard);
        found.ok_or(BindingError::UnregisteredProviderContext(token.identity))
    }

    fn authority<'g>(&self, token: RegisteredAuthority, guard: &'g epoch::Guard) -> Result<Found<'g, Support>, BindingError> {
        self.own(token.registry, "authority")?;
        let found = self.authorities.get(token.place, token.identity.number(), guard);
        found.ok_or(BindingError::UnregisteredAuthority(token.identity))
    }
}

fn issue() -> Result<u64, BindingError> {
    identity::issue().map_err(|identity::Exhausted| BindingError::IdentityExhausted)
}

/// Stripes per mechanism: twice the cores, so that idle threads in between don't push two busy ones onto one stripe.
#[cfg(not(any(liveslot_loom, liveslot_shuttle)))]
fn stripes() -> usize {
    use crate::{
        primitives::pins::MOST_STRIPES,
        sync::process::{AtomicU64, Ordering::Relaxed, available_parallelism},
    };
    // Asking costs a few system calls, so it is done once; racing first callers find the same.
    static STRIPES: AtomicU64 = AtomicU64::new(0);
    // Relaxed: the number publishes nothing.
    match STRIPES.load(Relaxed) {
        0 => {
            let cores = available_parallelism().map_or(1, usize::from);
            let stripes = (2 * cores).next_power_of_two().min(MOST_STRIPES);
            // Relaxed: as above.
            STRIPES.store(stripes as u64, Relaxed);
            stripes
        }
        known => known as usize,
    }
}

/// Two, so that models tell a thread's own stripe from another's.
#[cfg(any(liveslot_loom, liveslot_shuttle))]
fn stripes() -> usize {
    2
}

/// For models: what the slots hold, unrepaired.
#[cfg(any(liveslot_loom, liveslot_shuttle, liveslot_gates))]
impl BindingRegistry {
    /// As [`new`](Self::new), with so many stripes per mechanism.
    pub fn striped(stripes: usize) -> Result<Self, BindingError> {
        Self::with_stripes(stripes)
    }

    /// The raw record of a device's slot: whether it is Committed, the mechanism it names with its lifecycle, its version,
    /// and whether its prior is cut.
    pub fn raw_selection(
        &self,
        device: crate::DeviceKey,
    ) -> Option<(bool, Option<(crate::MechanismIdentity, crate::MechanismLifecycle)>, u64, bool)> {
        let (committed, candidate, version, cut) = self.inner.devices.get(device)?.slot.raw();
        Some((committed, candidate.map(|mechanism| (mechanism.names.mechanism, mechanism.phase())), version, cut))
    }
}

impl fmt::Debug for BindingRegistry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("BindingRegistry").field("number", &self.inner.number).finish_non_exhaustive()
    }
}
