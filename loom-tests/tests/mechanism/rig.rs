//! One registered mechanism with a binding, under the eyes of a witness; and what roles do with it.

use super::witness::*;
use liveslot_loom::{
    AllocationReleaseState, BindingError, BindingRegistry, BoundAllocation, ExplicitReleaseError, MechanismLifecycle, MechanismSnapshot,
    MemoryBinding, QuarantineReason, RegisteredAuthority, RegisteredMechanism, RegisteredProviderContext,
};
use std::sync::{Arc, Mutex};

pub const BYTES: usize = 8;

/// Something that one role takes away.
pub struct Held<T>(Mutex<Option<T>>);

impl<T> Held<T> {
    pub fn new(thing: T) -> Self {
        Self(Mutex::new(Some(thing)))
    }

    pub fn take(&self) -> T {
        self.0.lock().unwrap().take().expect("one role takes it")
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

    pub fn snapshot(&self) -> Counts {
        Counts::of(&self.binding.mechanism_snapshot().unwrap())
    }
}

/// What a role has to say.
pub enum Saw {
    Nothing,
    Allocated(Result<BoundAllocation, Refusal>),
    Released(Result<(), ExplicitReleaseError>),
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

impl Saw {
    pub fn allocated(self) -> Result<BoundAllocation, Refusal> {
        let Self::Allocated(answer) = self else { panic!("the role allocates") };
        answer
    }

    pub fn ended(&self) -> Result<(), Refusal> {
        let Self::Ended(answer) = self else { panic!("the role removes or confirms") };
        answer.clone()
    }

    pub fn counted(&self) -> &[Counts] {
        let Self::Counted(counts) = self else { panic!("the role takes snapshots") };
        counts
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
                assert!(format!("{allocation:?}").contains("state: Live"), "refused, and the metadata is stale");
                Release::Refused(error.into())
            }
        }
    }
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
