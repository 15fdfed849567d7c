//! One registered mechanism with a binding, under the eyes of a witness; and what roles do with it.

#[path = "../support/held.rs"]
mod held;

pub use self::held::Held;

use super::witness::*;
use liveslot_loom::{
    AllocationReleaseOutcome, AllocationReleaseState, BindingError, BindingRegistry, BoundAllocation, ExplicitReleaseError,
    MechanismLifecycle, MechanismSnapshot, MemoryBinding, OwningAllocation, OwningReleaseError, PreparedAllocationRelease,
    QuarantineReason, QuarantinedAllocation, RegisteredAuthority, RegisteredMechanism, RegisteredProviderContext,
};
use std::sync::Arc;

pub const BYTES: usize = 8;

/// What [`Counts::numbers`] says of one allocation in each place, of none, and of an operation alone.
pub const IDLE: [usize; 4] = [0, 0, 0, 0];
pub const BUSY: [usize; 4] = [1, 0, 0, 0];
pub const LIVE: [usize; 4] = [0, 1, 0, 0];
pub const QUEUED: [usize; 4] = [1, 0, 1, 0];
pub const RETAINED: [usize; 4] = [0, 0, 0, 1];

/// The place of the only allocation.
pub fn place(numbers: [usize; 4]) -> &'static str {
    match numbers {
        IDLE => "gone",
        LIVE => "live",
        QUEUED => "queued",
        RETAINED => "retained",
        _ => "in no place or in two",
    }
}

pub struct Rig {
    pub registry: BindingRegistry,
    pub context: RegisteredProviderContext,
    pub authority: RegisteredAuthority,
    pub mechanism: RegisteredMechanism,
    pub witness: Arc<Witness>,
    pub device: Arc<Device>,
    pub binding: MemoryBinding,
    /// Made on lane 0.
    pub allocations: Vec<Held<BoundAllocation>>,
}

impl Rig {
    /// With `allocations` live, on `stripes` stripes; releases complete or are refused.
    pub fn new(stripes: usize, allocations: usize, completes: bool) -> Self {
        let (witness, device) = (Arc::new(Witness::default()), Device::new());
        let registry = BindingRegistry::striped(stripes).unwrap();
        let context = registry.register_provider_context(DEVICE, Support::new("context", &witness)).unwrap();
        let authority = registry.register_authority(DEVICE, Support::new("authority", &witness)).unwrap();
        let mechanism = registry.register_allocator(context, authority, Allocator::new(completes, &witness, &device)).unwrap();
        let binding = registry.bind(DEVICE).unwrap();
        let allocations = (0..allocations).map(|_| Held::new(binding.allocate(BYTES, 1).unwrap())).collect();
        Self { registry, context, authority, mechanism, witness, device, binding, allocations }
    }

    pub fn retire(&self) -> Saw {
        self.registry.retire(self.mechanism).unwrap();
        Saw::Nothing
    }

    pub fn invalidate(&self) -> Saw {
        self.registry.invalidate_device(DEVICE, "gone").unwrap();
        Saw::Nothing
    }

    /// After a confirmed end the device is gone: whoever reaches it from then on is found.
    pub fn confirm(&self) -> Saw {
        let answer = self.registry.confirm_context_terminated(self.context);
        if answer.is_ok() {
            self.device.end();
        }
        Saw::Ended(answer.map_err(Refusal::from))
    }

    pub fn remove(&self) -> Saw {
        Saw::Ended(self.registry.remove(self.mechanism).map_err(Refusal::from))
    }

    pub fn allocate(&self) -> Saw {
        Saw::Allocated(self.binding.allocate(BYTES, 1).map_err(Refusal::from))
    }

    pub fn release(&self, n: usize) -> Saw {
        Saw::Released(self.binding.release(self.allocations[n].take()))
    }

    pub fn prepare(&self, n: usize) -> Saw {
        Saw::Prepared(self.binding.prepare_release(self.allocations[n].take()))
    }

    pub fn lose_and_confirm(&self) -> Saw {
        self.invalidate();
        self.confirm()
    }

    pub fn snapshot(&self) -> Counts {
        Counts::of(&self.binding.mechanism_snapshot().unwrap())
    }

    /// One snapshot, as a role.
    pub fn look(&self) -> Saw {
        Saw::Counted(vec![self.snapshot()])
    }

    /// How what is retained was retained, whatever else is.
    pub fn retained(&self) -> Vec<Release> {
        self.binding.quarantined().unwrap().iter().map(|entry| Release::Retained(entry.state, entry.reason)).collect()
    }
}

/// What a role has to say.
pub enum Saw {
    Nothing,
    Allocated(Result<BoundAllocation, Refusal>),
    Released(Result<(), ExplicitReleaseError>),
    Prepared(Result<PreparedAllocationRelease, ExplicitReleaseError>),
    PreparedByOwner(Result<PreparedAllocationRelease, OwningReleaseError>),
    Settled(AllocationReleaseOutcome),
    Listed(Vec<QuarantinedAllocation>),
    Ended(Result<(), Refusal>),
    Counted(Vec<Counts>),
}

/// How a release went.
#[derive(Debug, PartialEq)]
pub enum Release {
    Done,
    /// The allocation came back.
    Refused(Refusal),
    Retained(AllocationReleaseState, QuarantineReason),
}

impl From<AllocationReleaseOutcome> for Release {
    fn from(outcome: AllocationReleaseOutcome) -> Self {
        match outcome.residual() {
            None => Self::Done,
            Some(residual) => Self::Retained(residual.state, residual.reason),
        }
    }
}

impl Saw {
    pub fn allocated(self) -> Result<BoundAllocation, Refusal> {
        let Self::Allocated(answer) = self else { panic!("the role allocates") };
        answer
    }

    /// Granted, or why not.
    pub fn end(&self) -> String {
        self.ended().map_or_else(|refusal| format!("{refusal:?}"), |()| "granted".into())
    }

    pub fn ended(&self) -> Result<(), Refusal> {
        let Self::Ended(answer) = self else { panic!("the role removes or confirms") };
        answer.clone()
    }

    pub fn counted(&self) -> &[Counts] {
        let Self::Counted(counts) = self else { panic!("the role takes snapshots") };
        counts
    }

    /// What the only snapshot of a role says.
    pub fn numbers(&self) -> [usize; 4] {
        self.counted()[0].numbers()
    }

    /// Where that has found the only allocation.
    pub fn place(&self) -> &'static str {
        place(self.numbers())
    }

    /// A refusal has handed the allocation back, live.
    pub fn prepared(self) -> Result<PreparedAllocationRelease, Refusal> {
        let Self::Prepared(answer) = self else { panic!("the role prepares a release") };
        answer.map_err(|refused| {
            let (error, allocation) = refused.into_parts();
            assert_live(&allocation);
            error.into()
        })
    }

    /// A refusal has handed the owner back, live.
    pub fn prepared_by_owner(self) -> Result<PreparedAllocationRelease, (Refusal, OwningAllocation)> {
        let Self::PreparedByOwner(answer) = self else { panic!("the role prepares an owner's release") };
        answer.map_err(|refused| {
            let (error, owner) = refused.into_parts();
            assert_live(owner.bound());
            (error.into(), owner)
        })
    }

    pub fn settled(self) -> Release {
        let Self::Settled(outcome) = self else { panic!("the role settles a request") };
        outcome.into()
    }

    pub fn listed(&self) -> &[QuarantinedAllocation] {
        let Self::Listed(list) = self else { panic!("the role lists what is retained") };
        list
    }

    pub fn released(self) -> Release {
        let Self::Released(answer) = self else { panic!("the role releases") };
        let Err(refused) = answer else { return Release::Done };
        let quarantined = refused.is_quarantined();
        match refused.into_parts() {
            (BindingError::ReleaseQuarantined { state, reason, .. }, _) => {
                assert!(quarantined);
                Release::Retained(state, reason)
            }
            (error, allocation) => {
                assert!(!quarantined);
                assert_live(&allocation);
                Release::Refused(error.into())
            }
        }
    }
}

fn assert_live(allocation: &BoundAllocation) {
    assert!(format!("{allocation:?}").contains("state: Live"), "refused, and the metadata is stale");
}

/// A [`BindingError`] that can be compared.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    Inactive(MechanismLifecycle),
    Lost,
    Unregistered,
    Unselected,
    Busy(usize),
    Retains(usize),
    Stale,
    Viewed(usize),
}

impl From<BindingError> for Refusal {
    fn from(error: BindingError) -> Self {
        match error {
            BindingError::InactiveMechanism { lifecycle, .. } => Self::Inactive(lifecycle),
            BindingError::DeviceLost { .. } => Self::Lost,
            BindingError::UnregisteredMechanism(_) => Self::Unregistered,
            BindingError::NoSelectedMechanism(_) => Self::Unselected,
            BindingError::ContextNotQuiescent { active_operations, .. } => Self::Busy(active_operations),
            BindingError::QuarantinedOwnership { quarantined, .. } => Self::Retains(quarantined),
            BindingError::StaleAllocation(_) => Self::Stale,
            BindingError::OutstandingViews { views, .. } => Self::Viewed(views),
            error => panic!("no model expects this: {error}"),
        }
    }
}

/// What a snapshot counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counts {
    pub lifecycle: MechanismLifecycle,
    pub operations: usize,
    pub live: usize,
    pub queued: usize,
    pub quarantined: usize,
    pub bytes: u64,
}

impl Counts {
    pub fn of(snapshot: &MechanismSnapshot) -> Self {
        Self {
            lifecycle: snapshot.lifecycle,
            operations: snapshot.active_operations,
            live: snapshot.live_allocations,
            queued: snapshot.queued_releases,
            quarantined: snapshot.quarantined_allocations,
            bytes: snapshot.quarantined_bytes,
        }
    }

    /// Operations (those of queued releases included), live, queued, quarantined.
    pub fn numbers(&self) -> [usize; 4] {
        assert_eq!(self.bytes, (self.quarantined * BYTES) as u64, "count and bytes of two moments");
        [self.operations, self.live, self.queued, self.quarantined]
    }
}
