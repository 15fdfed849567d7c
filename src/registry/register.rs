//! Registering contexts, authorities and allocators.
//!
//! A registration counts itself as a user of its context and its authority, or is refused because one of them was removed:
//! the use count decides, in one word each. The mechanism goes into the device's table first and is offered to the slot
//! afterwards, with a `fence(SeqCst)` in between (in [`SelectionSlot::offer`](crate::SelectionSlot::offer)). A loss marks
//! what the table lists, fences, and lists again until nothing is new, before it clears the slot: so either it marks the new
//! mechanism, or the new mechanism's offer finds the old selection dead, and takes its place.

use super::{
    BindingRegistry, Inner, RegisteredAuthority, RegisteredMechanism, RegisteredProviderContext, device::Device, issue,
    remove::remove_support,
};
use crate::{
    callback::Called,
    contract::{
        AuthorityIdentity, BindingResource, DeviceAllocator, DeviceKey, MechanismCoherence, MechanismIdentity, ProviderContextIdentity,
    },
    error::BindingError,
    mechanism::{
        InUse, Mechanism, Names, Support,
        teardown::{Destruction, destroy},
        told,
    },
    primitives::table::{Place, Table, TableFull},
    sync::{Arc, atomic::Ordering::*, epoch, gate},
};

impl BindingRegistry {
    /// Registers a provider context: what an allocator's memory needs to be valid. The registry keeps `resource` until the
    /// context is removed and no mechanism needs it any more.
    ///
    /// # Errors
    ///
    /// [`BindingError::IdentityExhausted`]; [`BindingError::ShutDown`] once the registry is [shut down](Self::shutdown). `resource` is
    /// dropped then.
    ///
    /// # Panics
    ///
    /// If the destructor of a `resource` that is refused does.
    ///
    /// # Progress
    ///
    /// Lock-free.
    pub fn register_provider_context(
        &self,
        device: DeviceKey,
        resource: Arc<dyn BindingResource>,
    ) -> Result<RegisteredProviderContext, BindingError> {
        let (number, place) = register_support(&self.inner, &self.inner.contexts, device, resource)?;
        let identity = ProviderContextIdentity::from_number(number);
        told::context_registered(device, identity);
        Ok(RegisteredProviderContext { registry: self.inner.number, place, identity, device })
    }

    /// Registers an authority: who accounts for an allocator's memory. Kept as a provider context is.
    ///
    /// # Errors
    ///
    /// [`BindingError::IdentityExhausted`]; [`BindingError::ShutDown`] once the registry is [shut down](Self::shutdown). `resource` is
    /// dropped then.
    ///
    /// # Panics
    ///
    /// If the destructor of a `resource` that is refused does.
    ///
    /// # Progress
    ///
    /// Lock-free.
    pub fn register_authority(&self, device: DeviceKey, resource: Arc<dyn BindingResource>) -> Result<RegisteredAuthority, BindingError> {
        let (number, place) = register_support(&self.inner, &self.inner.authorities, device, resource)?;
        let identity = AuthorityIdentity::from_number(number);
        told::authority_registered(device, identity);
        Ok(RegisteredAuthority { registry: self.inner.number, place, identity, device })
    }

    /// Registers an allocator with its context and its authority: a new, Active mechanism. It becomes the selection of its device if
    /// there is none.
    ///
    /// Asks the allocator for its [`device`](DeviceAllocator::device) first, once, with nothing held.
    ///
    /// # Errors
    ///
    /// In this order: [`BindingError::ForeignRegistry`] for a token of another registry;
    /// [`BindingError::UnregisteredProviderContext`], [`BindingError::UnregisteredAuthority`] for one that was removed;
    /// [`BindingError::DeviceMismatch`] if authority or allocator are for another device than the context;
    /// [`BindingError::IdentityExhausted`]; [`BindingError::ShutDown`] once the registry is [shut down](Self::shutdown). Nothing is
    /// registered then, and `allocator` is dropped.
    ///
    /// # Panics
    ///
    /// If the allocator does, in `device()` or in its destructor when it was refused; nothing is registered then.
    ///
    /// # Progress
    ///
    /// Lock-free.
    pub fn register_allocator(
        &self,
        context: RegisteredProviderContext,
        authority: RegisteredAuthority,
        allocator: Arc<dyn DeviceAllocator>,
    ) -> Result<RegisteredMechanism, BindingError> {
        let (allocator, device) = ask_device(allocator);
        self.inner.register(context, authority, allocator, device, MechanismCoherence::SelfContained)
    }

    /// As [`register_allocator`](Self::register_allocator), with the allocator's device as the caller has learned it before.
    #[doc(hidden)]
    pub fn register_allocator_with_device(
        &self,
        context: RegisteredProviderContext,
        authority: RegisteredAuthority,
        allocator: Arc<dyn DeviceAllocator>,
        allocator_device: DeviceKey,
    ) -> Result<RegisteredMechanism, BindingError> {
        self.inner.register(context, authority, allocator, allocator_device, MechanismCoherence::SelfContained)
    }

    /// As [`register_allocator`](Self::register_allocator), for an allocator whose parts are separate objects.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Safety
    ///
    /// The allocator's plain interface, its capabilities and its release reach one coherent mechanism.
    pub unsafe fn register_trusted_composite(
        &self,
        context: RegisteredProviderContext,
        authority: RegisteredAuthority,
        allocator: Arc<dyn DeviceAllocator>,
    ) -> Result<RegisteredMechanism, BindingError> {
        let (allocator, device) = ask_device(allocator);
        self.inner.register(context, authority, allocator, device, MechanismCoherence::TrustedComposite)
    }
}

fn register_support(
    inner: &Inner,
    table: &Table<Support>,
    device: DeviceKey,
    resource: Arc<dyn BindingResource>,
) -> Result<(u64, Place), BindingError> {
    let number = match issue() {
        Ok(number) => number,
        Err(exhausted) => {
            destroy(resource);
            return Err(exhausted);
        }
    };
    let support = Arc::new(Support::new(number, device, resource));
    let place = table.insert(Arc::clone(&support)).map_err(full)?;
    gate!(Registered);
    if inner.is_too_late() {
        // If it is a shutdown that has removed it, the resource is that one's to destroy.
        if let Ok(resource) = remove_support(table, place, &support, None, epoch::pin()) {
            destroy(resource);
        }
        return Err(BindingError::ShutDown);
    }
    Ok((number, place))
}

/// Asks an allocator for its device. If it panics, it is destroyed like everything of the user's: its destructor may panic as well.
fn ask_device(allocator: Arc<dyn DeviceAllocator>) -> (Arc<dyn DeviceAllocator>, DeviceKey) {
    struct Asked(Option<Arc<dyn DeviceAllocator>>);

    impl Drop for Asked {
        fn drop(&mut self) {
            if let Some(allocator) = self.0.take() {
                destroy(allocator);
            }
        }
    }

    let mut asked = Asked(Some(allocator));
    let device = asked.0.as_ref().map(|allocator| Called::new(&**allocator).device());
    asked.0.take().zip(device).expect("there until here")
}

fn full(_: TableFull) -> BindingError {
    BindingError::IdentityExhausted
}

impl Inner {
    fn register(
        &self,
        context: RegisteredProviderContext,
        authority: RegisteredAuthority,
        allocator: Arc<dyn DeviceAllocator>,
        allocator_device: DeviceKey,
        coherence: MechanismCoherence,
    ) -> Result<RegisteredMechanism, BindingError> {
        let (names, context, authority) = match self.admit(context, authority, allocator_device, coherence) {
            Ok(admitted) => admitted,
            Err(error) => {
                destroy(allocator);
                return Err(error);
            }
        };
        // Relaxed: the order of this word alone is the order of registration.
        let sequence = self.sequence.fetch_add(1, Relaxed);
        let mechanism = Mechanism::new(names, sequence, self.stripes, context, authority, allocator);
        let home = self.devices.get_or_create(names.device);
        let place = match home.mechanisms.insert(Arc::clone(&mechanism)) {
            Ok(place) => place,
            Err(no_place) => {
                mechanism.abandon();
                return Err(full(no_place));
            }
        };
        gate!(Registered);
        if self.is_too_late() {
            self.take_back(home, place, mechanism);
            return Err(BindingError::ShutDown);
        }
        // Whatever becomes of the offer: a mechanism that died meanwhile was registered all the same.
        let _ = home.slot.offer(mechanism);
        home.notify();
        told::registered(names);
        Ok(RegisteredMechanism { registry: self.number, place, identity: names.mechanism, device: names.device, coherence })
    }

    /// Ends a mechanism that has come too late: that was not offered, and whose token nobody was given.
    fn take_back(&self, device: &Device, place: Place, mechanism: Arc<Mechanism>) {
        let _ = mechanism.lifecycle.retire();
        let _ = mechanism.settled_phase();
        let guard = epoch::pin();
        // If it is a shutdown that removes it, the rest is that one's.
        let removed = self.unlink(device, place, mechanism, &guard);
        drop(guard);
        if let Some(removed) = removed {
            let mut destruction = Destruction::default();
            removed.let_go(&mut destruction);
            destruction.finish();
        }
    }

    /// Checks what a registration has to pass; its uses of context and authority are counted from then on.
    fn admit(
        &self,
        context_token: RegisteredProviderContext,
        authority_token: RegisteredAuthority,
        allocator_device: DeviceKey,
        coherence: MechanismCoherence,
    ) -> Result<(Names, InUse, InUse), BindingError> {
        let (context, authority) = self.use_supports(context_token, authority_token)?;
        let device = context.device();
        check_device("authority", device, authority.device())?;
        check_device("allocator", device, allocator_device)?;
        let names = Names {
            device,
            mechanism: MechanismIdentity::from_number(issue()?),
            provider_context: context_token.identity,
            authority: authority_token.identity,
            coherence,
        };
        Ok((names, context, authority))
    }

    /// Counts a use of both, or of neither.
    fn use_supports(&self, context: RegisteredProviderContext, authority: RegisteredAuthority) -> Result<(InUse, InUse), BindingError> {
        self.own(context.registry, "provider context")?;
        self.own(authority.registry, "authority")?;
        let guard = epoch::pin();
        let used_context = self.context(context, &guard)?.own().enter();
        let used_context = used_context.map_err(|_| BindingError::UnregisteredProviderContext(context.identity))?;
        let used_authority = self.authority(authority, &guard)?.own().enter();
        let used_authority = used_authority.map_err(|_| BindingError::UnregisteredAuthority(authority.identity))?;
        Ok((used_context, used_authority))
    }
}

fn check_device(subject: &'static str, expected: DeviceKey, actual: DeviceKey) -> Result<(), BindingError> {
    if expected == actual { Ok(()) } else { Err(BindingError::DeviceMismatch { subject, expected, actual }) }
}
