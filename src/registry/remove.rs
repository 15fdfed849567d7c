//! Removing, and the end of the registry.
//!
//! That a mechanism which is not Active owns nothing and does nothing is for ever once it has been seen on stripes that are closed. The
//! removed mark decides who removes; the winner clears the slot, unlinks the entry, ends the uses of context and
//! authority, and lets go of the registry's pin last, with nothing held: whatever falls to it then is the user's code.

use super::{BindingRegistry, Inner, RegisteredAuthority, RegisteredMechanism, RegisteredProviderContext, device::Device};
use crate::{
    contract::BindingResource,
    error::BindingError,
    mechanism::{Mechanism, Support, teardown::Destruction, told},
    primitives::{
        MechanismLifecycle,
        liveness::Step,
        table::{Place, Table, Tagged},
        use_count::{Remove, Unused},
    },
    sync::{Arc, epoch, gate},
};
impl BindingRegistry {
    /// Removes a mechanism that is not Active and owns nothing. Its allocator, its share of the authority and of the context
    /// are destroyed as soon as no handle needs them: before this returns, if there is none.
    ///
    /// # Errors
    ///
    /// [`BindingError::ForeignRegistry`], [`BindingError::UnregisteredMechanism`]; [`BindingError::QuarantinedOwnership`] if
    /// ownership is retained; [`BindingError::InactiveMechanism`] with its lifecycle if it is Active, or has live or queued
    /// allocations or operations in progress. Nothing is changed then.
    ///
    /// # Panics
    ///
    /// If a destructor does, after everything else has been done.
    ///
    /// # Progress
    ///
    /// Lock-free, destructors excepted.
    pub fn remove(&self, mechanism: RegisteredMechanism) -> Result<(), BindingError> {
        let unregistered = || BindingError::UnregisteredMechanism(mechanism.identity);
        let guard = epoch::pin();
        let (device, found) = self.inner.mechanism(mechanism, &guard)?;
        let snapshot = found.snapshot();
        if snapshot.quarantined_allocations != 0 {
            return Err(BindingError::QuarantinedOwnership {
                mechanism: mechanism.identity,
                quarantined: snapshot.quarantined_allocations,
            });
        }
        let active = snapshot.lifecycle == MechanismLifecycle::Active;
        if active || snapshot.retains_ownership() || snapshot.active_operations != 0 {
            return Err(BindingError::InactiveMechanism {
                mechanism: mechanism.identity,
                lifecycle: snapshot.lifecycle,
                operation: "removal",
            });
        }
        gate!(Removing);
        let removed = self.inner.unlink(device, mechanism.place, found.own(), &guard).ok_or_else(unregistered)?;
        drop(guard);

        let mut destruction = Destruction::default();
        removed.end(&mut destruction);
        destruction.finish();
        Ok(())
    }

    /// Removes a provider context that no registered mechanism uses. Bindings don't count, and keep the resource.
    ///
    /// # Errors
    ///
    /// [`BindingError::ForeignRegistry`], [`BindingError::UnregisteredProviderContext`], [`BindingError::ProviderContextInUse`].
    ///
    /// # Panics
    ///
    /// If the resource's destructor does, after everything else has been done.
    ///
    /// # Progress
    ///
    /// Lock-free, the destructor excepted.
    pub fn remove_provider_context(&self, context: RegisteredProviderContext) -> Result<(), BindingError> {
        let guard = epoch::pin();
        let found = self.inner.context(context, &guard)?.own();
        let resource = remove_support(&self.inner.contexts, context.place, &found, None, guard).map_err(|refused| match refused {
            Remove::InUse => BindingError::ProviderContextInUse(context.identity),
            _ => BindingError::UnregisteredProviderContext(context.identity),
        })?;
        let mut destruction = Destruction::default();
        destruction.owe(|destruction| destruction.destroy(resource));
        destruction.tell(move || told::context_removed(context.device, context.identity));
        destruction.finish();
        Ok(())
    }

    /// Removes an authority that no registered mechanism uses, as [`remove_provider_context`](Self::remove_provider_context)
    /// does a context. Until its destructor has ended, a [`shutdown`](Self::shutdown) leaves the provider contexts of its device alone.
    ///
    /// # Errors
    ///
    /// [`BindingError::ForeignRegistry`], [`BindingError::UnregisteredAuthority`], [`BindingError::AuthorityInUse`].
    ///
    /// # Panics
    ///
    /// If the resource's destructor does, after everything else has been done.
    ///
    /// # Progress
    ///
    /// Lock-free, the destructor excepted.
    pub fn remove_authority(&self, authority: RegisteredAuthority) -> Result<(), BindingError> {
        let guard = epoch::pin();
        let found = self.inner.authority(authority, &guard)?.own();
        let releasing = self.inner.releasing(authority.device);
        match remove_support(&self.inner.authorities, authority.place, &found, None, guard) {
            Ok(resource) => {
                let mut destruction = Destruction::default();
                destruction.owe(|destruction| {
                    destruction.destroy(resource);
                    releasing.end();
                });
                destruction.tell(move || told::authority_removed(authority.device, authority.identity));
                destruction.finish();
                Ok(())
            }
            Err(refused) => {
                releasing.end();
                Err(match refused {
                    Remove::InUse => BindingError::AuthorityInUse(authority.identity),
                    _ => BindingError::UnregisteredAuthority(authority.identity),
                })
            }
        }
    }
}

/// A mechanism that is registered no more. The registry's pin stands until it is let go.
pub(super) struct Removed<'a> {
    registry: &'a Inner,
    device: &'a Device,
    mechanism: Arc<Mechanism>,
    /// Where it stands among those that a shutdown waits for.
    ending: Option<Place>,
}

impl Inner {
    /// Takes a mechanism that has drained, or was never offered, out of slot and table. `None` if somebody else does.
    pub(super) fn unlink<'a>(
        &'a self,
        device: &'a Device,
        place: Place,
        mechanism: Arc<Mechanism>,
        guard: &epoch::Guard,
    ) -> Option<Removed<'a>> {
        if mechanism.mark_removed() == Step::Already {
            return None;
        }
        gate!(RemovalMarked);
        // Whoever ended its life may not have come to the slot yet.
        device.slot.sweep();
        // While it is in the device's table: a shutdown that comes later finds it there or here. The table has as many places as memory
        // has mechanisms.
        let ending = self.is_closed().then(|| self.ending.insert(Arc::clone(&mechanism)).ok()).flatten();
        gate!(Unlinking);
        let unlinked = device.mechanisms.remove(place, mechanism.tag(), guard);
        debug_assert!(unlinked, "the mark has one winner");
        Some(Removed { registry: self, device, mechanism, ending })
    }
}

impl Removed<'_> {
    /// Lets go of the registry's pins, and tells of the removal. What is to be destroyed then is the caller's to carry out, with nothing
    /// held, and before it has another mechanism let go: the first destructor may stop there, and what has been let go is nobody
    /// else's to destroy.
    pub(super) fn end(&self, destruction: &mut Destruction) {
        self.let_go(destruction);
        let names = self.mechanism.names;
        destruction.tell(move || told::removed(names));
    }

    /// The same, telling nobody.
    pub(super) fn let_go(&self, destruction: &mut Destruction) {
        self.mechanism.close(destruction);
        self.device.owe_notice(destruction);
    }
}

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.ending.filter(|_| self.mechanism.is_torn_down()) {
            self.registry.ending.remove(place, self.mechanism.tag(), &epoch::pin());
        }
    }
}

/// Removes a registration that is not in use, nor was `since`. The winner unlinks it, and is to destroy its share of the resource.
pub(super) fn remove_support(
    table: &Table<Support>,
    place: Place,
    found: &Support,
    since: Option<Unused>,
    guard: epoch::Guard,
) -> Result<Arc<dyn BindingResource>, Remove> {
    let resource = found.remove(since)?;
    let unlinked = table.remove(place, found.tag(), &guard);
    debug_assert!(unlinked, "the use count has one winner");
    drop(guard);
    Ok(resource)
}

/// The end of the registry. Mechanisms that are held go on working; of the others allocator, authority and context go in
/// this order. Nothing is destroyed before the registry has let go of all mechanisms, and its own shares of authorities and contexts
/// go first: a destructor that stops delays none whose last hold goes elsewhere meanwhile.
impl Drop for Inner {
    fn drop(&mut self) {
        let guard = epoch::pin();
        let devices = self.devices.iter();
        let mechanisms: Vec<_> = devices.flat_map(|device| device.mechanisms.iter(&guard)).map(|found| found.own()).collect();
        let tables = [&self.authorities, &self.contexts].into_iter();
        let supports: Vec<_> = tables.flat_map(|table| table.iter(&guard)).map(|found| found.own()).collect();
        drop(guard);
        // SAFETY: `&mut self`. A mechanism that is not torn down has its own share of the resource.
        let mut resources: Vec<_> = supports.iter().filter_map(|support| unsafe { support.abandon() }).collect();
        // Shared ones first: letting go of them runs no destructor that could stop here with the rest.
        resources.sort_by_key(|resource| Arc::strong_count(resource) == 1);
        let mut destruction = Destruction::default();
        for resource in resources {
            destruction.owe(|destruction| destruction.destroy(resource));
        }
        for mechanism in &mechanisms {
            mechanism.close(&mut destruction);
        }
        for device in self.devices.iter() {
            device.owe_notice(&mut destruction);
        }
        for waiters in mechanisms.iter().filter_map(|mechanism| mechanism.pins.waiting()) {
            destruction.owe_notice(waiters, |waiters| waiters);
        }
        destruction.finish();
    }
}
