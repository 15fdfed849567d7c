//! The calls that race, and what they answer.

use super::world::{DEVICE, World};
use liveslot_loom::{BindingError, MechanismIdentity, MechanismLifecycle, SelectIfError};
use std::sync::Arc;

/// `Ok` with the mechanism that the call was about, or that it gave.
pub type Answer = Result<MechanismIdentity, Refusal>;

/// A [`BindingError`] that can be compared. Identities of contexts and authorities are left out: a model has one of each.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    Inactive(MechanismIdentity, MechanismLifecycle),
    Lost(Arc<str>),
    Unselected,
    /// The version of the selection, and what is selected.
    Changed(u64, Option<MechanismIdentity>),
    Unregistered(MechanismIdentity),
    NoContext,
    NoAuthority,
    ContextInUse,
    AuthorityInUse,
    Busy(usize),
    ShutDown,
}

impl From<BindingError> for Refusal {
    fn from(error: BindingError) -> Self {
        match error {
            BindingError::InactiveMechanism { mechanism, lifecycle, .. } => Self::Inactive(mechanism, lifecycle),
            BindingError::DeviceLost { device: DEVICE, reason } => Self::Lost(reason),
            BindingError::NoSelectedMechanism(DEVICE) => Self::Unselected,
            BindingError::UnregisteredMechanism(mechanism) => Self::Unregistered(mechanism),
            BindingError::UnregisteredProviderContext(_) => Self::NoContext,
            BindingError::UnregisteredAuthority(_) => Self::NoAuthority,
            BindingError::ProviderContextInUse(_) => Self::ContextInUse,
            BindingError::AuthorityInUse(_) => Self::AuthorityInUse,
            BindingError::ContextNotQuiescent { active_operations, .. } => Self::Busy(active_operations),
            BindingError::ShutDown => Self::ShutDown,
            error => panic!("no model expects this: {error}"),
        }
    }
}

impl From<SelectIfError> for Refusal {
    fn from(error: SelectIfError) -> Self {
        match error {
            SelectIfError::Conflict { device: DEVICE, version, selected } => Self::Changed(version, selected),
            SelectIfError::Binding(error) => error.into(),
            error => panic!("no model expects this: {error}"),
        }
    }
}

impl<const N: usize> World<N> {
    /// The identity of mechanism `n`.
    pub fn at(&self, n: usize) -> MechanismIdentity {
        self.mechanisms[n].identity()
    }

    pub fn select(&self, n: usize) -> Answer {
        self.registry.select(self.mechanisms[n])?;
        Ok(self.at(n))
    }

    /// Instead of what the world starts with.
    pub fn select_if_unchanged(&self, n: usize) -> Answer {
        let version = self.registry.device(DEVICE).select_if(1, self.mechanisms[n])?;
        assert_eq!(version, 2);
        Ok(self.at(n))
    }

    pub fn deselect(&self) -> Answer {
        self.registry.deselect(DEVICE).ok_or(Refusal::Unselected)
    }

    pub fn retire(&self, n: usize) -> Answer {
        self.registry.retire(self.mechanisms[n])?;
        Ok(self.at(n))
    }

    pub fn remove(&self, n: usize) -> Answer {
        self.registry.remove(self.mechanisms[n])?;
        Ok(self.at(n))
    }

    pub fn bind(&self) -> Answer {
        Ok(self.registry.bind(DEVICE)?.identity().mechanism())
    }

    pub fn bind_registered(&self, n: usize) -> Answer {
        Ok(self.registry.bind_registered(self.mechanisms[n])?.identity().mechanism())
    }

    pub fn register(&self) -> Answer {
        Ok(self.another()?.identity())
    }

    /// Answers with mechanism 0.
    pub fn invalidate(&self, reason: &str) -> Answer {
        self.registry.invalidate_device(DEVICE, reason)?;
        Ok(self.at(0))
    }

    /// Answers with mechanism 0.
    pub fn confirm(&self) -> Answer {
        self.registry.confirm_context_terminated(self.context)?;
        Ok(self.at(0))
    }
}
