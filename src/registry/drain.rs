//! Draining: who waits until a mechanism that is going out of use owns nothing and does nothing.
//!
//! A mechanism has *drained* when it is not Active and none of its stripes counts an operation, a live, a queued or a quarantined
//! allocation; or when it is Terminated, since then what it owned has been written off. Either is for ever.
//! [`Pins`](crate::primitives::pins) has the protocol by which the last leaver, on whichever stripe and thread, finds those who wait.
//! Whoever ends a life is the last one if nothing was counted any more: retiring, losing and confirming wake as well, once the flags are on
//! every stripe. So a drain fires exactly when the last one has gone; while a thread is stopped between ending a life and waking, it fires
//! at the next look.
//!
//! The end of the registry is a change too: of a mechanism that was not removed, nobody could end the life any more. Each mechanism's
//! handles are closed then, which is what a drain looks at. Removal closes them as well, and sets its mark before.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`BindingRegistry::drain`] | lock-free | an epoch pin; the first one of a mechanism two allocations, 600 bytes |
//! | one look | wait-free | unless the mechanism is Active one load per stripe, at first one RMW |
//! | waking | wait-free, the wakers excepted | see [`waiters`](crate::primitives::waiters) |

use super::{BindingRegistry, Inner, RegisteredMechanism};
use crate::{
    contract::{Holder, MechanismIdentity, MechanismSnapshot},
    error::{BindingError, RegistryGone},
    mechanism::Mechanism,
    primitives::{
        MechanismLifecycle,
        waiters::{Waiter, Waiters},
    },
    sync::{Arc, Weak, epoch, gate},
    wait,
};
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use thiserror::Error;

/// Waits until a mechanism has drained: until it is Retired or DeviceLost and has no operation in progress, and no live, queued or
/// quarantined allocation; or Terminated.
///
/// Made by [`BindingRegistry::drain`] and [`BindingRegistry::retire_and_drain`]. It fires once the last of these has gone, from whichever
/// thread, also when that thread unwinds or exits. Handles don't count: a binding of a drained mechanism can do nothing with it, and
/// [`Teardown`](crate::Teardown) waits for them. What does not go by itself is in the [report](Self::report): a leaked allocation is live
/// for ever, quarantined ownership stays until it is [retried](BindingRegistry::retry_quarantined), [given
/// up](BindingRegistry::abandon_quarantined) or written off, and so does what a lost device had when it was lost.
///
/// As a future it belongs to no runtime, may be dropped at any point, and may be polled again after it was ready. Any number may wait. It
/// keeps neither the registry nor any resource, and of the mechanism its memory. Its waker is called within the call of whoever was the
/// last to go, which has taken effect by then: a release, say, or a retirement. A request that such a call has executed is let go before.
///
/// ```
/// use liveslot::{BindingRegistry, DeviceKey, DrainError, HostAllocator};
/// use std::{sync::Arc, time::Duration};
///
/// let registry = BindingRegistry::new()?;
/// let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
/// let authority = registry.register_authority(DeviceKey::HOST, Arc::new(()))?;
/// let mechanism = registry.register_allocator(context, authority, Arc::new(HostAllocator))?;
/// let binding = registry.bind(DeviceKey::HOST)?;
/// let allocation = binding.allocate(64, 8)?;
///
/// let mut drain = registry.retire_and_drain(mechanism)?;
/// match drain.wait(Duration::ZERO) {
///     Err(DrainError::TimedOut(report)) => assert_eq!(report.snapshot.live_allocations, 1),
///     other => panic!("{other:?}"),
/// }
/// binding.release(allocation)?;
/// drain.wait(Duration::from_secs(1))?; // or: drain.await?
/// registry.remove(mechanism)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it waits when it is polled or `wait` is called"]
pub struct Drain {
    mechanism: Arc<Mechanism>,
    waiter: Waiter<Arc<Waiters>>,
}

/// What keeps a mechanism from having drained, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DrainReport {
    /// The lifecycle and the counts by kind. `active_operations` includes the queued releases.
    pub snapshot: MechanismSnapshot,
    /// Its bindings, the oldest first; empty without the feature `holders`. Those with `allocations` above 0 are what a drain waits for.
    pub holders: Vec<Holder>,
}

impl DrainReport {
    /// The age of the oldest binding, where that is known.
    #[must_use]
    pub fn oldest(&self) -> Option<Duration> {
        self.holders.first().map(|holder| holder.age)
    }
}

/// Why a [`Drain::wait`] did not end with a drained mechanism.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DrainError {
    /// The time is over. The drain can be waited for again.
    #[error("not drained in time: {0}")]
    TimedOut(DrainReport),
    /// The registry is gone, and the mechanism had not drained.
    #[error(transparent)]
    RegistryGone(#[from] RegistryGone),
}

/// Waits until a mechanism has [drained](Drain), and removes it.
///
/// Made by [`BindingRegistry::remove_when_drained`]. The removal happens within a poll or within [`wait`](Self::wait), on that thread, as
/// [`BindingRegistry::remove`] does it: with no handle left, allocator, authority and context are destroyed there (within a destructor, by
/// the outermost call of the thread). Dropped before, it removes nothing. Once it has removed, another poll or wait
/// answers [`RemovalError::Refused`], or [`RemovalError::RegistryGone`]. It keeps the registry only while it removes.
#[must_use = "it waits and removes when it is polled or `wait` is called"]
pub struct RemoveWhenDrained {
    drain: Drain,
    registry: Weak<Inner>,
    token: RegisteredMechanism,
}

/// Why a [`RemoveWhenDrained`] has not removed the mechanism.
#[derive(Debug, Error)]
pub enum RemovalError {
    /// The time is over. It can be waited for again. Never by polling.
    #[error("not drained in time: {0}")]
    TimedOut(DrainReport),
    /// The registry is gone, and the mechanism with it.
    #[error(transparent)]
    RegistryGone(#[from] RegistryGone),
    /// The removal was refused: somebody else, or this one before, has removed the mechanism.
    #[error(transparent)]
    Refused(BindingError),
}

impl BindingRegistry {
    /// Waits for a mechanism to drain; see [`Drain`]. It need not have been retired yet: the wait includes that.
    ///
    /// # Errors
    ///
    /// [`BindingError::ForeignRegistry`], [`BindingError::UnregisteredMechanism`].
    ///
    /// # Progress
    ///
    /// Lock-free.
    pub fn drain(&self, mechanism: RegisteredMechanism) -> Result<Drain, BindingError> {
        let (mechanism, waiter) = self.inner.waiter(mechanism)?;
        Ok(Drain { mechanism, waiter })
    }

    /// [Retires](Self::retire) a mechanism and waits for it to [drain](Self::drain).
    ///
    /// # Errors
    ///
    /// As these.
    ///
    /// # Progress
    ///
    /// Lock-free.
    pub fn retire_and_drain(&self, mechanism: RegisteredMechanism) -> Result<Drain, BindingError> {
        let drain = self.drain(mechanism)?;
        self.retire(mechanism)?;
        Ok(drain)
    }

    /// Waits for a mechanism to [drain](Self::drain), then [removes](Self::remove) it; see [`RemoveWhenDrained`].
    ///
    /// ```
    /// # use liveslot::{BindingRegistry, DeviceKey, HostAllocator};
    /// # use std::{sync::Arc, time::Duration};
    /// # let registry = BindingRegistry::new()?;
    /// # let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
    /// # let authority = registry.register_authority(DeviceKey::HOST, Arc::new(()))?;
    /// # let mechanism = registry.register_allocator(context, authority, Arc::new(HostAllocator))?;
    /// let mut removal = registry.remove_when_drained(mechanism)?;
    /// registry.retire(mechanism)?;
    /// removal.wait(Duration::from_secs(1))?; // or: removal.await?
    /// assert!(registry.snapshot(mechanism).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`BindingError::ForeignRegistry`], [`BindingError::UnregisteredMechanism`].
    ///
    /// # Progress
    ///
    /// Lock-free.
    pub fn remove_when_drained(&self, mechanism: RegisteredMechanism) -> Result<RemoveWhenDrained, BindingError> {
        Ok(RemoveWhenDrained { drain: self.drain(mechanism)?, registry: Arc::downgrade(&self.inner), token: mechanism })
    }
}

impl Inner {
    /// A registered mechanism's memory, and one more who waits for what becomes of it.
    pub(super) fn waiter(&self, token: RegisteredMechanism) -> Result<(Arc<Mechanism>, Waiter<Arc<Waiters>>), BindingError> {
        let guard = epoch::pin();
        let (_, found) = self.mechanism(token, &guard)?;
        let mechanism = found.own();
        drop(guard);
        let waiter = Waiter::new(Arc::clone(mechanism.pins.waiters()));
        Ok((mechanism, waiter))
    }
}

impl Mechanism {
    pub(super) fn drain_report(&self) -> DrainReport {
        DrainReport { snapshot: self.snapshot(), holders: self.holders() }
    }

    fn gone(&self) -> RegistryGone {
        RegistryGone { device: self.names.device }
    }

    /// Whether it has drained, or never will.
    fn look(&self) -> Option<Result<(), RegistryGone>> {
        // First: what closes the handles of a mechanism that was removed has seen it drained, and marked it.
        let closed = self.pins.is_closed();
        if self.is_drained() || self.life().is_removed() {
            return Some(Ok(()));
        }
        closed.then(|| Err(self.gone()))
    }
}

/// Wakes those who wait for mechanisms that have drained, with nothing held. What `others` notifies comes before their wakers, which it is
/// not to wait for, and after their threads, which are not to wait for it.
pub(super) fn notify(drained: &[Arc<Waiters>], others: impl FnOnce()) {
    drained.iter().for_each(|waiters| waiters.unpark());
    others();
    drained.iter().for_each(|waiters| waiters.notify());
}

impl Drain {
    /// The mechanism.
    #[must_use]
    pub fn mechanism(&self) -> MechanismIdentity {
        self.mechanism.names.mechanism
    }

    /// What keeps the mechanism from having drained, now. Answers also when it has, and after its removal.
    ///
    /// # Progress
    ///
    /// Lock-free, as [`BindingRegistry::snapshot`].
    #[must_use]
    pub fn report(&self) -> DrainReport {
        self.mechanism.drain_report()
    }

    /// Waits on the calling thread, for so long at most. Zero looks once; what is too long for the clock is no limit.
    ///
    /// The thread parks, and may be left with an unpark token, as after `std::thread::park`. Where its locals have gone, in
    /// destructors of POSIX thread keys, the standard library aborts the process on parking: there zero is the only timeout that may be
    /// given. [`shutdown`](BindingRegistry::shutdown) waits there as well. Unless the time is zero, the thread takes the place of the last
    /// poll's waker, which is not woken any more. Waiting within a callback for something that this very call keeps takes the whole time.
    ///
    /// # Errors
    ///
    /// [`DrainError::TimedOut`] with what is left; [`DrainError::RegistryGone`] if the registry went before the mechanism had drained.
    ///
    /// # Progress
    ///
    /// Blocking.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), DrainError> {
        let Self { mechanism, waiter } = self;
        match wait::wait(waiter, timeout, || mechanism.look()) {
            Some(drained) => Ok(drained?),
            None => Err(DrainError::TimedOut(self.report())),
        }
    }
}

impl Future for Drain {
    type Output = Result<(), RegistryGone>;

    /// Lock-free, the waker's clone and drop excepted.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { mechanism, waiter } = &mut *self;
        waiter.poll(context.waker(), || mechanism.look())
    }
}

impl RemoveWhenDrained {
    /// What keeps the mechanism from having drained, as [`Drain::report`].
    #[must_use]
    pub fn report(&self) -> DrainReport {
        self.drain.report()
    }

    /// Waits on the calling thread as [`Drain::wait`], then removes.
    ///
    /// # Errors
    ///
    /// [`RemovalError`] says which.
    ///
    /// # Panics
    ///
    /// If a destructor does, after everything else has been done.
    ///
    /// # Progress
    ///
    /// Blocking.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), RemovalError> {
        let Self { drain: Drain { mechanism, waiter }, registry, token } = self;
        match wait::wait(waiter, timeout, || remove(mechanism, registry, *token)) {
            Some(removed) => removed,
            None => Err(RemovalError::TimedOut(self.report())),
        }
    }
}

impl Future for RemoveWhenDrained {
    type Output = Result<(), RemovalError>;

    /// Lock-free, wakers and destructors excepted: another try is paid for by a call that was on its way to a refusal.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { drain: Drain { mechanism, waiter }, registry, token } = &mut *self;
        waiter.poll(context.waker(), || remove(mechanism, registry, *token))
    }
}

/// Removes a mechanism if it has drained.
fn remove(mechanism: &Mechanism, registry: &Weak<Inner>, token: RegisteredMechanism) -> Option<Result<(), RemovalError>> {
    loop {
        if let Err(gone) = mechanism.look()? {
            return Some(Err(gone.into()));
        }
        gate!(Drained);
        let Some(inner) = registry.upgrade() else { return Some(Err(mechanism.gone().into())) };
        match (BindingRegistry { inner }).remove(token) {
            Ok(()) => return Some(Ok(())),
            // A call on its way to a refusal was counted.
            Err(BindingError::InactiveMechanism { .. }) => {
                gate!(RemovalRefused);
            }
            Err(refused) => return Some(Err(RemovalError::Refused(refused))),
        }
    }
}

/// What brings a mechanism nearer to its removal.
const fn way_out(snapshot: &MechanismSnapshot) -> &'static str {
    match snapshot.lifecycle {
        MechanismLifecycle::Active => "retire it",
        MechanismLifecycle::Retired if snapshot.quarantined_allocations != 0 => {
            "release what it owns, retry or abandon what is quarantined"
        }
        MechanismLifecycle::Retired if snapshot.retains_ownership() => "release what it owns",
        MechanismLifecycle::Retired if snapshot.active_operations != 0 => "let its calls end",
        MechanismLifecycle::DeviceLost if snapshot.active_operations != 0 => {
            "let its calls end, execute or quarantine prepared releases, then confirm the end of its provider context"
        }
        MechanismLifecycle::DeviceLost if snapshot.retains_ownership() => "confirm the end of its provider context",
        MechanismLifecycle::Retired | MechanismLifecycle::DeviceLost | MechanismLifecycle::Terminated => "remove it",
    }
}

/// One line, without a line feed: the counts, then each holder.
impl fmt::Display for DrainReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MechanismSnapshot { identity, device, lifecycle, live_allocations, queued_releases, .. } = &self.snapshot;
        let MechanismSnapshot { active_operations, quarantined_allocations, quarantined_bytes, .. } = &self.snapshot;
        let (operations, way_out) = (active_operations - queued_releases, way_out(&self.snapshot));
        write!(
            formatter,
            "{identity:?} of {device} is {lifecycle:?}, {way_out}: operations in progress {operations}, live {live_allocations}, queued \
             {queued_releases}, quarantined {quarantined_allocations} of {quarantined_bytes} bytes",
        )?;
        self.holders.iter().try_for_each(|holder| write!(formatter, "; {holder}"))
    }
}

impl fmt::Debug for Drain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Drain").field("mechanism", &self.mechanism).finish_non_exhaustive()
    }
}

impl fmt::Debug for RemoveWhenDrained {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RemoveWhenDrained").field("mechanism", &self.drain.mechanism).finish_non_exhaustive()
    }
}
