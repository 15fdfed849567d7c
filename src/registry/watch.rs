//! Watching a device: who wants to know that its selection changed, or that it was lost.
//!
//! # Protocol
//!
//! A watch remembers the version that it reported last, and looks whether the slot's is another. It looks as
//! [`SelectionSlot::observe`](crate::SelectionSlot::observe) does: what it meets undecided it finishes, and what it meets dead it replaces,
//! so that it reports what stands. Nothing is queued for a watch: what happened between two looks has merged, and the last state is always
//! found.
//!
//! Who may have changed a device's slot [notifies](Device::notify) afterwards: a selection and a registration when their record is decided,
//! also against them; deselecting; a retirement, a loss and a removal when they have swept. Between the change and the look for watchers
//! stands a fence that is there anyway:
//!
//! - A publication stands in the slot before the fence of its completion, by whoever completes it. A watch that looks after that
//!   fence meets the record, or its successor, and finishes it.
//! - Deselecting changes the slot alone, and fences afterwards.
//! - A life has ended before the fence of the sweep. A watch that looks after it finds the candidate dead, and replaces it.
//! - A watch that looks before has announced itself before its own fence: the pointer to [`Watched`] is there, and its waker is in the
//!   list.
//!
//! So a change of a device that nobody has ever watched costs one load more than without watches. Whatever a finisher does to somebody
//! else's record (taking it out, putting its prior back, emptying what died) comes before its publisher has returned, or before whoever
//! ended the candidate's life has swept: that one notifies.
//!
//! A loss is written in [`Watched`], as a record with a number, once the slot is swept.
//!
//! A watch does not keep its registry. It reaches the slot through a `Weak` that it upgrades for each look; the registry's end notifies.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`DeviceHandle::watch`] | lock-free | a look; the first one of a device two allocations |
//! | one look | lock-free | two RMWs of the registry's count, one `ArcSwap` load |
//! | [`Device::notify`] | wait-free, the wakers excepted | one load; once the device has been watched a fence and a load more; see [`waiters`](crate::primitives::waiters) |

use super::{DeviceHandle, Inner, device::Device};
use crate::{
    contract::{DeviceKey, MechanismIdentity},
    error::RegistryGone,
    mechanism::{Mechanism, teardown::Destruction},
    primitives::{
        MechanismLifecycle,
        waiters::{Waiter, Waiters},
    },
    sync::{
        Arc, ArcCell, Weak,
        atomic::{Ordering::*, fence},
        gate,
    },
    wait,
};
use std::{fmt, future::poll_fn, mem, ptr::NonNull, time::Duration};

/// What a device's watches share.
pub(super) struct Watched {
    pub(super) waiters: Waiters,
    loss: ArcCell<Loss>,
}

/// The latest loss of the device since it was first watched.
struct Loss {
    /// Counts them.
    number: u64,
    reason: Arc<str>,
}

/// What a [`SelectionWatch`] reports: the selection as it is, and how it came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectionChange {
    /// What is selected now. It may die or be replaced at any moment, which is another change.
    pub selected: Option<MechanismIdentity>,
    /// The selection's version, see [`DeviceHandle::version`].
    pub version: u64,
    /// How it came about, as far as that can be told.
    pub cause: ChangeCause,
}

/// How a selection came about.
///
/// Why nothing is selected is known exactly if nothing happened between the selection that the watch reported last and its end. It is told
/// as far as the mechanism's life had come when the watch looked: one that was retired and then removed is
/// [`Removed`](Self::Removed), and one that was deselected and then retired is [`Retired`](Self::Retired).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeCause {
    /// A mechanism was selected, or took the empty place at its registration. It may be the same as before: selected again, or
    /// back after a selection that failed.
    Selected,
    /// Nothing is selected any more: the mechanism that was is still Active, and was [deselected](DeviceHandle::deselect); or several
    /// changes have merged, and why can't be told.
    Withdrawn,
    /// The mechanism that was selected was retired.
    Retired,
    /// The mechanism that was selected was lost with its device.
    DeviceLost {
        /// The reason of its first loss.
        reason: Arc<str>,
    },
    /// The mechanism that was selected was removed.
    Removed,
}

/// Tells about the changes of one device's selection, and about its losses, as they come.
///
/// Made by [`DeviceHandle::watch`]. It reports what happens after it was made, each change once; changes that come faster than
/// they are asked for merge, and the last state is never missed. A clone has seen what the watch has seen, and goes on for itself: any
/// number may watch a device, and each is told.
///
/// Futures made here belong to no runtime. Dropping one at any point loses nothing: a change is seen once it has been returned. To wait for
/// a change or a loss, whichever comes first, use two clones.
///
/// A watch keeps neither the registry nor any resource. It keeps the memory of one mechanism, without its resources. With a
/// registry that goes while a watch looks at it, what the registry lets go of may be destroyed within the watch's call.
///
/// A waiter takes at most 256 bytes, its watch and its future included. A device that has been watched keeps its list for as long as its
/// registry or a watch.
///
/// ```
/// # use liveslot::{BindingRegistry, ChangeCause, DeviceKey, HostAllocator};
/// # use std::{sync::Arc, time::Duration};
/// let registry = BindingRegistry::new()?;
/// let mut watch = registry.device(DeviceKey::HOST).watch(); // nobody has registered it yet: allowed
///
/// let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
/// let authority = registry.register_authority(DeviceKey::HOST, Arc::new(()))?;
/// let mechanism = registry.register_allocator(context, authority, Arc::new(HostAllocator))?;
/// let change = watch.changed_timeout(Duration::from_secs(1))?.expect("changed"); // or: watch.changed().await?
/// assert_eq!((change.selected, change.cause), (Some(mechanism.identity()), ChangeCause::Selected));
///
/// registry.retire(mechanism)?;
/// let change = watch.changed_timeout(Duration::from_secs(1))?.expect("changed");
/// assert_eq!((change.selected, change.cause), (None, ChangeCause::Retired));
///
/// drop(registry);
/// assert!(watch.changed_timeout(Duration::from_secs(1)).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SelectionWatch {
    watched: Arc<Watched>,
    view: View,
}

/// What a watch looks through, and what it has seen.
#[derive(Clone)]
struct View {
    key: DeviceKey,
    registry: Weak<Inner>,
    /// Inside `registry`: there while that is.
    device: NonNull<Device>,
    version: u64,
    mechanism: Option<Arc<Mechanism>>,
    losses: u64,
}

// SAFETY: a weak share of the registry and a pointer into it, shares of a mechanism's memory; all of them `Send` and `Sync`.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl Watched {
    fn new() -> Self {
        Self { waiters: Waiters::new(), loss: ArcCell::new(Arc::new(Loss { number: 0, reason: Arc::from("") })) }
    }
}

impl Device {
    /// Wakes whoever watches. To be called with nothing held by whoever may have changed the slot, after it: with a `fence(SeqCst)` in
    /// between, before which stands what lets a look find the change.
    #[inline]
    pub(super) fn notify(&self) {
        // The fence that decides whether we see the pointer is the slot's: see the module.
        if let Some(watched) = self.watched.get() {
            watched.waiters.notify();
        }
    }

    /// As [`notify`](Self::notify), the threads that are parked alone.
    pub(super) fn unpark(&self) {
        if let Some(watched) = self.watched.get() {
            watched.waiters.unpark();
        }
    }

    /// As [`notify`](Self::notify): threads at once, the others among what a call has to destroy, also if a destructor panics.
    pub(super) fn owe_notice(&self, destruction: &mut Destruction) {
        if let Some(watched) = self.watched.get() {
            destruction.owe_notice(watched, |watched| &watched.waiters);
        }
    }

    /// Notes a loss for whoever watches. The slot has been swept.
    pub(super) fn note_loss(&self, reason: &Arc<str>) {
        let Some(Watched { loss, .. }) = self.watched.get().map(|watched| &**watched) else { return };
        loop {
            // While it is owned its address stands for it alone.
            let seen = loss.load_full();
            let next = Loss { number: seen.number + 1, reason: Arc::clone(reason) };
            if loss.replace(Arc::as_ptr(&seen), Arc::new(next)) {
                break;
            }
        }
    }
}

impl DeviceHandle {
    /// Watches the device from now on. Nobody need have registered it yet.
    ///
    /// # Progress
    ///
    /// Lock-free. The first watch of a device allocates what its watches share, about 600 bytes, and its first
    /// waiter room for 64, 1.5 KiB.
    #[must_use]
    pub fn watch(&self) -> SelectionWatch {
        let device = self.device();
        let watched = match device.watched.get() {
            Some(watched) => watched,
            None => device.watched.set(Arc::new(Watched::new())),
        };
        // SeqCst: what we share with notifiers is there before we look for the first time. Pairs with the fences of the slot: who doesn't
        // find it has made a change that we find, and report as where the watch began.
        fence(SeqCst);
        // The losses first: one that comes in between is reported.
        let losses = watched.loss.load_full().number;
        let selected = device.slot.observe();
        SelectionWatch {
            watched: Arc::clone(watched),
            view: View {
                key: device.key,
                registry: Arc::downgrade(&self.registry),
                device: self.device,
                version: selected.version,
                mechanism: selected.candidate,
                losses,
            },
        }
    }
}

impl View {
    /// What has changed since the last look.
    fn change(&mut self) -> Option<Result<SelectionChange, RegistryGone>> {
        let Some(registry) = self.registry.upgrade() else { return Some(Err(RegistryGone { device: self.key })) };
        // SAFETY: devices live as long as the registry, which is there.
        let selected = unsafe { self.device.as_ref() }.slot.observe();
        gate!(Looked);
        // The last share, if all others went meanwhile: then the registry ends here, and notifies this watch as well.
        drop(registry);
        if selected.version == self.version {
            // After the destructors of a registry that has just ended: they may have parked, and so used up what woke this thread.
            return (self.registry.strong_count() == 0).then_some(Err(RegistryGone { device: self.key }));
        }
        let before = mem::replace(&mut self.version, selected.version);
        let last = mem::replace(&mut self.mechanism, selected.candidate);
        let cause = match (&self.mechanism, last) {
            (Some(_), _) => ChangeCause::Selected,
            // The very next record: nothing came between the mechanism's and the empty one.
            (None, Some(ended)) if selected.version == before + 1 => ChangeCause::of(&ended),
            (None, _) => ChangeCause::Withdrawn,
        };
        Some(Ok(SelectionChange { selected: self.selected(), version: selected.version, cause }))
    }

    /// The latest loss since the last look.
    fn loss(&mut self, watched: &Watched) -> Option<Result<Arc<str>, RegistryGone>> {
        // Before the loss: one that came before the registry's end is reported before it.
        let gone = self.registry.strong_count() == 0;
        // Acquire: pairs with the Release of the registry's clones when they go.
        fence(Acquire);
        let loss = watched.loss.load_full();
        if loss.number != self.losses {
            self.losses = loss.number;
            return Some(Ok(Arc::clone(&loss.reason)));
        }
        gone.then_some(Err(RegistryGone { device: self.key }))
    }

    fn selected(&self) -> Option<MechanismIdentity> {
        self.mechanism.as_ref().map(|mechanism| mechanism.names.mechanism)
    }
}

impl ChangeCause {
    /// Why `ended` is selected no more, by its life.
    fn of(ended: &Mechanism) -> Self {
        let life = ended.life();
        match (life.phase(), ended.lifecycle.loss_reason()) {
            _ if life.is_removed() => Self::Removed,
            (MechanismLifecycle::DeviceLost | MechanismLifecycle::Terminated, Some(reason)) => {
                Self::DeviceLost { reason: Arc::clone(reason) }
            }
            (MechanismLifecycle::Retired, _) => Self::Retired,
            _ => Self::Withdrawn,
        }
    }
}

impl SelectionWatch {
    /// The device.
    #[must_use]
    pub fn key(&self) -> DeviceKey {
        self.view.key
    }

    /// What was selected when the watch reported last, or when it was made.
    #[must_use]
    pub fn selected(&self) -> Option<MechanismIdentity> {
        self.view.selected()
    }

    /// The version of [`selected`](Self::selected).
    #[must_use]
    pub fn version(&self) -> u64 {
        self.view.version
    }

    /// Waits until the device's selection is another than this watch reported last.
    ///
    /// A waker may be called more often than there are changes.
    ///
    /// # Errors
    ///
    /// [`RegistryGone`] once the registry is.
    ///
    /// # Panics
    ///
    /// A poll panics if a destructor does that falls to it as the registry's last user.
    ///
    /// # Progress
    ///
    /// A poll is lock-free, the waker's clone and drop excepted. Whoever changes the selection wakes; one that is stopped in between delays
    /// the news until the next change or the next poll.
    pub fn changed(&mut self) -> impl Future<Output = Result<SelectionChange, RegistryGone>> + Send + Unpin {
        let (watched, view) = (&*self.watched, &mut self.view);
        let mut waiter = Waiter::new(&watched.waiters);
        poll_fn(move |context| waiter.poll(context.waker(), || view.change()))
    }

    /// As [`changed`](Self::changed), on the calling thread, for so long at most: `None` then. Zero looks once; what is too long for the
    /// clock is no limit.
    ///
    /// The thread parks, and may be left with an unpark token, as after `std::thread::park`. Where its locals have gone, in
    /// destructors of POSIX thread keys, the standard library aborts the process on parking: there zero is the only timeout that may be
    /// given. [`shutdown`](crate::BindingRegistry::shutdown) waits there as well.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Panics
    ///
    /// As there.
    ///
    /// # Progress
    ///
    /// Blocking. Beside the parking as there.
    pub fn changed_timeout(&mut self, timeout: Duration) -> Result<Option<SelectionChange>, RegistryGone> {
        let (watched, view) = (&*self.watched, &mut self.view);
        wait::wait(&mut Waiter::new(&watched.waiters), timeout, || view.change()).transpose()
    }

    /// Waits until the device is declared lost, and gives the reason; the latest, if there are several since this watch was made or
    /// reported one. Nothing that was registered before is selected then.
    ///
    /// A loss that does not end before the watch is made may be taken for one before it: then nothing that it has lost was selected where
    /// the watch began.
    ///
    /// # Errors
    ///
    /// [`RegistryGone`] once the registry is, and no loss is left to report.
    ///
    /// # Progress
    ///
    /// As [`changed`](Self::changed).
    pub fn lost(&mut self) -> impl Future<Output = Result<Arc<str>, RegistryGone>> + Send + Unpin {
        let (watched, view) = (&*self.watched, &mut self.view);
        let mut waiter = Waiter::new(&watched.waiters);
        poll_fn(move |context| waiter.poll(context.waker(), || view.loss(watched)))
    }

    /// As [`lost`](Self::lost), on the calling thread, as [`changed_timeout`](Self::changed_timeout) waits.
    ///
    /// # Errors
    ///
    /// As [`lost`](Self::lost).
    ///
    /// # Progress
    ///
    /// Blocking. Beside the parking as there.
    pub fn lost_timeout(&mut self, timeout: Duration) -> Result<Option<Arc<str>>, RegistryGone> {
        let (watched, view) = (&*self.watched, &mut self.view);
        wait::wait(&mut Waiter::new(&watched.waiters), timeout, || view.loss(watched)).transpose()
    }
}

impl fmt::Debug for SelectionWatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut watch = formatter.debug_struct("SelectionWatch");
        watch.field("key", &self.key()).field("selected", &self.selected()).field("version", &self.version()).finish_non_exhaustive()
    }
}
