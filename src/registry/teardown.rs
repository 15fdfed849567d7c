//! Waiting until a mechanism's allocator, authority and context have been destroyed.
//!
//! The teardown is the last handle's, and so nobody's in particular; it sets a mark when it is through and then wakes, after whatever
//! else its call has to destroy. The mark is in the mechanism's memory, which who waits keeps.

use super::{BindingRegistry, RegisteredMechanism};
use crate::{
    contract::{Holder, MechanismIdentity},
    error::BindingError,
    mechanism::Mechanism,
    primitives::waiters::{Waiter, Waiters},
    sync::Arc,
    wait,
};
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use thiserror::Error;

/// Waits until a mechanism is torn down: its allocator destroyed, then its shares of authority and provider context released.
///
/// Made by [`BindingRegistry::teardown`], while the mechanism is registered. It has to be [removed](BindingRegistry::remove) for that, or
/// its registry dropped, and every binding, and everything made with one, has to go. Destructors that panic end it as well. An authority or
/// a context that is still registered, or used by another mechanism, lives on.
///
/// As a future it belongs to no runtime, may be dropped at any point, and may be polled again after it was ready. Any number may wait. It
/// keeps neither the registry nor any resource, and of the mechanism its memory.
///
/// ```
/// use liveslot::{BindingRegistry, DeviceKey, HostAllocator};
/// use std::{sync::Arc, time::Duration};
///
/// let registry = BindingRegistry::new()?;
/// let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
/// let authority = registry.register_authority(DeviceKey::HOST, Arc::new(()))?;
/// let mechanism = registry.register_allocator(context, authority, Arc::new(HostAllocator))?;
/// let binding = registry.bind(DeviceKey::HOST)?;
///
/// let mut teardown = registry.teardown(mechanism)?;
/// registry.retire(mechanism)?;
/// registry.remove(mechanism)?;
/// assert_eq!(teardown.wait(Duration::ZERO).unwrap_err().handles, 1);
/// drop(binding);
/// teardown.wait(Duration::from_secs(1))?; // or: teardown.await
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it waits when it is polled or `wait` is called"]
pub struct Teardown {
    mechanism: Arc<Mechanism>,
    waiter: Waiter<Arc<Waiters>>,
}

/// The time was over before a mechanism was torn down.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[error(
    "{mechanism:?} is not torn down, handles that hold it: {handles}; remove it unless it is removed, and drop its bindings and what was made with them"
)]
#[non_exhaustive]
pub struct StillHeld {
    /// The mechanism.
    pub mechanism: MechanismIdentity,
    /// How many bindings, allocations, views and the like hold it. Zero as well while only its registration does, and while it is being
    /// torn down. Exact only while none comes or goes.
    pub handles: usize,
    /// Its bindings, the oldest first; empty without the feature `holders`.
    pub holders: Vec<Holder>,
}

impl BindingRegistry {
    /// Waits for the end of a mechanism; see [`Teardown`].
    ///
    /// # Errors
    ///
    /// [`BindingError::ForeignRegistry`], [`BindingError::UnregisteredMechanism`].
    ///
    /// # Progress
    ///
    /// Lock-free.
    pub fn teardown(&self, mechanism: RegisteredMechanism) -> Result<Teardown, BindingError> {
        let (mechanism, waiter) = self.inner.waiter(mechanism)?;
        Ok(Teardown { mechanism, waiter })
    }
}

impl Teardown {
    /// The mechanism.
    #[must_use]
    pub fn mechanism(&self) -> MechanismIdentity {
        self.mechanism.names.mechanism
    }

    /// Waits on the calling thread, for so long at most. Zero looks once; what is too long for the clock is no limit.
    ///
    /// The thread parks, and may be left with an unpark token, as after `std::thread::park`. Where its locals have gone, in
    /// destructors of POSIX thread keys, the standard library aborts the process on parking: there zero is the only timeout that may be
    /// given. [`shutdown`](BindingRegistry::shutdown) waits there as well. Unless the time is zero, the thread takes the place of the
    /// last poll's waker. Within a destructor teardowns are left to the outermost call of the thread: waiting for one there takes the whole
    /// time.
    ///
    /// # Errors
    ///
    /// [`StillHeld`] when the time is over. It can be waited for again.
    ///
    /// # Progress
    ///
    /// Blocking.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), StillHeld> {
        let Self { mechanism, waiter } = self;
        wait::wait(waiter, timeout, || look(mechanism)).ok_or_else(|| mechanism.still_held())
    }
}

impl Mechanism {
    pub(super) fn still_held(&self) -> StillHeld {
        StillHeld { mechanism: self.names.mechanism, handles: self.pins.handles(), holders: self.holders() }
    }
}

fn look(mechanism: &Mechanism) -> Option<()> {
    mechanism.is_torn_down().then_some(())
}

impl Future for Teardown {
    type Output = ();

    /// Lock-free, the waker's clone and drop excepted.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { mechanism, waiter } = &mut *self;
        waiter.poll(context.waker(), || look(mechanism))
    }
}

impl fmt::Debug for Teardown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Teardown").field("mechanism", &self.mechanism).finish_non_exhaustive()
    }
}
