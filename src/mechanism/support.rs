//! An authority or a provider context as registered: a resource of the user's that mechanisms pin.
//!
//! The entry holds one `Arc` of the resource until it is removed; each mechanism holds one more until its teardown. So removing the
//! registration never takes the resource from a mechanism, and a mechanism never keeps the registration. Whether it may be
//! removed is the [use count](UseCount)'s to say: registering a mechanism counts itself or is refused; removal wins only
//! over a count of zero, and then owns the resource cell alone.

use crate::{
    contract::{BindingResource, DeviceKey},
    primitives::{
        table::Tagged,
        use_count::{Gone, Remove, Unused, UseCount},
    },
    sync::{Arc, UnsafeCell},
};

pub(crate) struct Support {
    tag: u64,
    pub(crate) device: DeviceKey,
    uses: UseCount,
    /// Read by who counts as a user; taken by the winning removal, or when the registry goes.
    resource: UnsafeCell<Option<Arc<dyn BindingResource>>>,
}

// SAFETY: the only part that is not `Sync` is the cell, and its field says who may touch it when.
unsafe impl Sync for Support {}

impl Tagged for Support {
    fn tag(&self) -> u64 {
        self.tag
    }
}

impl Support {
    pub(crate) fn new(tag: u64, device: DeviceKey, resource: Arc<dyn BindingResource>) -> Self {
        Self { tag, device, uses: UseCount::new(), resource: UnsafeCell::new(Some(resource)) }
    }

    /// Counts a use, unless the registration has been removed.
    pub(crate) fn enter(self: Arc<Self>) -> Result<InUse, Gone> {
        self.uses.enter()?;
        Ok(InUse(self))
    }

    /// Notes that no registered mechanism uses it, if so.
    pub(crate) fn unused(&self) -> Option<Unused> {
        self.uses.unused()
    }

    /// Removes the registration unless it is in use, or was `since`. The winner is handed the resource, and drops it with nothing held.
    pub(crate) fn remove(&self, since: Option<Unused>) -> Result<Arc<dyn BindingResource>, Remove> {
        match self.uses.remove(since) {
            // SAFETY: one call is told `Removed`, over a count of zero that never rises again: no user reads the cell.
            Remove::Removed => self.resource.with_mut(|resource| unsafe { (*resource).take() }).ok_or(Remove::Already),
            refused => Err(refused),
        }
    }

    /// The resource, if it was not removed.
    ///
    /// # Safety
    ///
    /// The registry is at its end: nobody registers or removes any more.
    pub(crate) unsafe fn abandon(&self) -> Option<Arc<dyn BindingResource>> {
        // SAFETY: the cell is touched by registrations and removals only.
        self.resource.with_mut(|resource| unsafe { (*resource).take() })
    }
}

/// A counted use of a registration.
pub(crate) struct InUse(Arc<Support>);

impl InUse {
    pub(crate) fn device(&self) -> DeviceKey {
        self.0.device
    }

    pub(crate) fn resource(&self) -> Arc<dyn BindingResource> {
        // SAFETY: the cell is taken only over a count of zero, and this use is counted.
        let resource = self.0.resource.with(|resource| unsafe { (*resource).clone() });
        resource.expect("a registration in use has its resource")
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.uses.leave();
    }
}
