//! One piece of physical memory in many allocations, through the binding they were made with.
//!
//! Prefixes are in no count and block nothing: one may outlive the removal of its mechanism, and its destructor may reach the device after
//! the end of its context has been confirmed. It is destroyed before the pins that it holds are let go.
//!
//! | operation | progress, the user's own code excepted | cost beside it |
//! | --- | --- | --- |
//! | every call of [`BoundSharedMapping`] | wait-free | two RMWs on the caller's stripe |
//! | [`BoundSharedPrefix`]'s accessors | wait-free | none |

use super::{allocation::BoundAllocation, binding::MemoryBinding};
use crate::{
    callback::{self, Called},
    contract::{BindingIdentity, SharedDevicePrefix, SharedMapping, SharedPrefixCommitInfo},
    error::BindingError,
    mechanism::teardown::Destruction,
};
use std::fmt;

/// The [`SharedMapping`] of a binding's allocator.
///
/// It keeps allocator, authority and provider context alive.
///
/// # Errors
///
/// Every call is refused with [`BindingError::InactiveMechanism`] or [`BindingError::DeviceLost`] unless the mechanism is Active, and with
/// [`BindingError::IdentityExhausted`] if a counter is full; then with [`BindingError::BindingMismatch`] if the prefix, and then the
/// allocation, is of another binding, and with [`BindingError::StaleAllocation`] if that was released. What the capability answers becomes
/// [`BindingError::Memory`].
///
/// # Panics
///
/// If the capability does, and if the allocator no longer offers it, which its contract forbids; the operation is uncounted.
#[derive(Clone)]
pub struct BoundSharedMapping {
    binding: MemoryBinding,
}

impl MemoryBinding {
    /// The allocator's shared mapping, if it offers one. The question counts as one operation.
    ///
    /// # Errors
    ///
    /// [`BindingError::InactiveMechanism`] or [`BindingError::DeviceLost`] unless the mechanism is Active;
    /// [`BindingError::IdentityExhausted`] if a counter is full.
    ///
    /// # Panics
    ///
    /// If the allocator does; the operation is uncounted.
    ///
    /// # Progress
    ///
    /// Wait-free, the allocator excepted.
    pub fn shared_mapping(&self) -> Result<Option<BoundSharedMapping>, BindingError> {
        let _counted = self.mechanism().enter("discovery of shared mapping")?;
        let offered = self.hold().allocator().as_shared_mapping().is_some();
        Ok(offered.then(|| BoundSharedMapping { binding: self.clone() }))
    }
}

impl BoundSharedMapping {
    /// The binding that it was discovered through.
    #[must_use]
    pub const fn binding_identity(&self) -> BindingIdentity {
        self.binding.identity()
    }

    /// Makes a piece of at least `bytes` bytes that can be mapped into this binding's allocations.
    ///
    /// # Errors
    ///
    /// As the type says.
    pub fn create_shared_prefix(&self, bytes: usize) -> Result<BoundSharedPrefix, BindingError> {
        let _counted = self.binding.mechanism().enter("creation of a shared prefix")?;
        let prefix = self.capability().create_shared_prefix(bytes)?;
        Ok(BoundSharedPrefix { prefix: Some(prefix), binding: self.binding.clone() })
    }

    /// How many bytes would be owned besides if `prefix` were mapped once more.
    ///
    /// # Errors
    ///
    /// As the type says.
    pub fn incremental_owned_bytes_for_shared_prefix(&self, prefix: &BoundSharedPrefix) -> Result<u64, BindingError> {
        let _counted = self.binding.mechanism().enter("a question about a shared prefix")?;
        self.binding.own(&prefix.binding)?;
        Ok(self.capability().incremental_owned_bytes_for_shared_prefix(prefix.prefix())?)
    }

    /// Maps `prefix` into `allocation`, from `byte_offset` on.
    ///
    /// # Errors
    ///
    /// As the type says.
    pub fn commit_shared_prefix(
        &self,
        prefix: &BoundSharedPrefix,
        allocation: &BoundAllocation,
        byte_offset: usize,
    ) -> Result<SharedPrefixCommitInfo, BindingError> {
        let _counted = self.binding.mechanism().enter("commit of a shared prefix")?;
        self.binding.own(&prefix.binding)?;
        self.binding.own(allocation.binding())?;
        allocation.live()?;
        Ok(self.capability().commit_shared_prefix(prefix.prefix(), allocation.as_ptr(), allocation.len(), byte_offset)?)
    }

    fn capability(&self) -> Called<'_, dyn SharedMapping + '_> {
        let allocator = self.binding.hold().allocator();
        allocator.map(|allocator| allocator.as_shared_mapping().expect("the allocator no longer offers its shared mapping"))
    }
}

impl fmt::Debug for BoundSharedMapping {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("BoundSharedMapping").field("binding", &self.binding).finish()
    }
}

/// A piece of physical memory that can be mapped into the allocations of one binding.
///
/// Counted nowhere: it keeps neither its context's end from being confirmed nor its mechanism from being removed. It keeps allocator,
/// authority and provider context alive, and is destroyed before they are.
pub struct BoundSharedPrefix {
    /// There until the drop.
    prefix: Option<Box<dyn SharedDevicePrefix>>,
    binding: MemoryBinding,
}

impl BoundSharedPrefix {
    /// The binding that it was made through.
    #[must_use]
    pub const fn binding_identity(&self) -> BindingIdentity {
        self.binding.identity()
    }

    /// As the prefix says, in every lifecycle. With `VirtualMemory` it is an address of the process, through which the prefix is filled:
    /// [`std::ptr::with_exposed_provenance_mut`] makes it a pointer.
    #[must_use]
    pub fn device_ptr(&self) -> u64 {
        callback::run(|| self.prefix().device_ptr())
    }

    /// As the prefix says, in every lifecycle: bytes of physical memory.
    #[must_use]
    pub fn committed_physical_bytes(&self) -> u64 {
        callback::run(|| self.prefix().committed_physical_bytes())
    }

    /// As the prefix says, in every lifecycle: bytes that one mapping covers.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        callback::run(|| self.prefix().mapped_bytes())
    }

    /// As the prefix says, in every lifecycle: bytes as asked for.
    #[must_use]
    pub fn requested_bytes(&self) -> usize {
        callback::run(|| self.prefix().requested_bytes())
    }

    fn prefix(&self) -> &dyn SharedDevicePrefix {
        self.prefix.as_deref().expect("there until the drop")
    }
}

impl Drop for BoundSharedPrefix {
    fn drop(&mut self) {
        // The pins stay until the destructor has ended, also where an outer call carries it out later.
        let (prefix, pins) = (self.prefix.take(), self.binding.clone());
        let mut destruction = Destruction::default();
        destruction.owe(move |destruction| {
            destruction.destroy(prefix);
            drop(pins);
        });
        destruction.finish();
    }
}

impl fmt::Debug for BoundSharedPrefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("BoundSharedPrefix").field("binding", &self.binding).finish_non_exhaustive()
    }
}
