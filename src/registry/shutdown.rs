//! Shutting down: nothing new from now on, and what is there taken out of use, removed and torn down.
//!
//! # Protocol
//!
//! One word says that the registry is closed. It is set once, and never cleared.
//!
//! ```text
//! shutdown                              a registration
//!   closed                                into its table
//!   fence                                 fence
//!   list the tables, retire each          closed? ─ no ──▶ offer it to the slot, hand its token out
//!   sweep the slots                             └─ yes ─▶ retire it, take it out of the table: refused
//! ```
//!
//! Either the list has the newcomer, or the newcomer sees the word. So one pass is enough, unlike with a loss, which cannot stop
//! registrations: what the list misses takes itself back. That comes before the offer: what is offered is in the list, so it is dead before
//! the slots are swept, and after that they stay empty. A newcomer that is in the list and sees the word as well is retired by both, and
//! removed by one of them: the removed mark decides.
//!
//! Selecting and binding don't look at the word. They find every candidate dead and every slot empty, and only then look, to say why. So a
//! binding that succeeds costs nothing more; one that was counted before its mechanism was retired stands, as with any retirement.
//!
//! Whatever has been retired drains by itself. The shutdown looks at all mechanisms in turn, removes what has drained, and looks again
//! after a while: nobody waits for one mechanism before another. It stands in no list of waiters, and does not park: it sleeps for an
//! eighth of the time that it has waited, 10 ms at most. To park, a thread needs a handle of its own, which the standard library makes no
//! more once a thread's locals have gone (with rustc 1.95, in a destructor of a POSIX thread key, `park_timeout` aborts the process); and a
//! shutdown is what such places are there for.
//!
//! Removal closes the handles, and the last of them tears down, on whichever thread. What is removed on a closed registry stands in a list
//! of its own from before it leaves its device's table until it is torn down, so that a later call finds it in one of the two. A removal
//! that looked at the word before it was set does not list what it takes; a shutdown that meets that in the table does.
//!
//! Several calls at once do the same to the same mechanisms. Each step has one winner, and each call looks for itself what is left. An
//! authority's destructor may rely on the context, so no call removes a context before the authorities that its mechanisms used are
//! removed and the registry's share of them destroyed, whoever does that; the other shares are mechanisms', each of which has one of its
//! context as well. A mechanism's authority and context are of its device, so a call goes from device to device. It notes the contexts
//! of the device that no mechanism uses, counts itself there, removes the authorities of the device that none uses, and uncounts itself; if
//! it was alone there then, it removes those contexts that none has used since. A mechanism stops using its authority before its context.
//! So when the call came to the authorities of those contexts, they were unused, or removed, and who had removed one was counted or through
//! with it: [`remove_authority`](BindingRegistry::remove_authority) counts itself as well. What others begin to remove afterwards
//! belongs to other contexts: none waits for an authority that mechanisms of others still use.
//!
//! What has been let go is owed on the stack of whoever has done so, where nobody else could destroy it. So each mechanism, each authority
//! and each context is destroyed before the next one is removed: if its destructor does not return, another call removes and destroys the
//! rest; not the contexts of the device, though, if it is an authority's. Wakers and subscribers, which may stop as well, come behind.
//!
//! A registration that the list misses has its mechanism torn down by its own call. It is in use of a context until it is marked as
//! removed, and from then on in its device's table or the list of what ends. So once no context is left, one more look at these finds what
//! has to be waited for, and nothing can follow.

use super::{BindingRegistry, Inner, device::Device, drain::DrainReport, drain::notify, remove::remove_support, teardown::StillHeld};
use crate::{
    callback,
    contract::{AuthorityIdentity, DeviceKey, ProviderContextIdentity, Tier},
    error::BindingError,
    mechanism::{Mechanism, Support, teardown::Destruction, told},
    primitives::{
        MechanismLifecycle,
        liveness::Step,
        table::{Place, Table, Tagged},
        use_count::{Remove, Unused},
    },
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::*, fence},
        epoch, gate,
        process::parking::sleep,
    },
};
use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};
use thiserror::Error;

/// The times between two looks.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(10);

/// What a [`shutdown`](BindingRegistry::shutdown) has done, and what is left.
///
/// What is left is as safe as it was: a retired mechanism takes back what it gave out, whoever holds a handle keeps what it needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[must_use = "only this says whether anything is left"]
#[non_exhaustive]
pub struct ShutdownReport {
    /// How many mechanisms this call has removed.
    pub removed: usize,
    /// Mechanisms that have not drained, with what they own and do, in order of registration. They are Retired and registered, or lost:
    /// then confirm the end of their provider context.
    pub left: Vec<DrainReport>,
    /// Mechanisms that are removed and were not torn down when this call last looked, with how many handles hold them, in order of
    /// registration.
    pub held: Vec<StillHeld>,
    /// Authorities that are left, since a registered mechanism uses them.
    pub authorities: Vec<AuthorityIdentity>,
    /// Provider contexts that are left, since a registered mechanism uses them, or did while this call last looked, or another call
    /// is removing and destroying an authority of their device.
    pub provider_contexts: Vec<ProviderContextIdentity>,
    /// How many of the destructors that fell to this call, and of the steps that it has told, have panicked. These are counted in
    /// [`suppressed_panics`](crate::suppressed_panics) as well.
    pub panicked: usize,
}

impl ShutdownReport {
    /// Whether nothing is left: every mechanism is torn down, and every authority and provider context removed.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.left.is_empty() && self.held.is_empty() && self.authorities.is_empty() && self.provider_contexts.is_empty()
    }
}

/// A [`shutdown`](BindingRegistry::shutdown) was called from within code that the library had called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a shutdown within a callback would wait for the callback itself; call it once the callback has returned, or from another thread")]
pub struct InsideCallback;

/// A mechanism that this call waits for.
struct Ending<'a> {
    mechanism: Arc<Mechanism>,
    /// Where it is, or was, registered. `None` for one that was removed before the call.
    home: Option<(&'a Device, Place)>,
}

/// How long to wait.
struct Patience {
    /// `None`: not at all.
    since: Option<Instant>,
    /// `None`: for ever.
    until: Option<Instant>,
}

impl BindingRegistry {
    /// Ends the registry's work: refuses what is new, retires every mechanism, removes each as soon as it has [drained](crate::Drain),
    /// waits until all are [torn down](crate::Teardown), and removes the authorities and then the provider contexts that no mechanism uses
    /// any more. Waits for so long at most; zero looks once, and what is too long for the clock is no limit.
    ///
    /// From the first call on, for ever, registrations, selections and bindings are refused with [`BindingError::ShutDown`]. Everything
    /// else goes on (a token of what has been removed is unregistered, as ever), so that what is left can be finished: releases,
    /// [retries](Self::retry_quarantined), [confirmations]( Self::confirm_context_terminated), removals, snapshots. A watch sees what is
    /// selected no more, and then waits until the registry is gone. A mechanism that is stuck delays the removal of no other.
    ///
    /// It may be called again, also while another call waits, and goes on with what is left. A mechanism that was removed before the first
    /// call is its handles' own concern. What a lost device owns is written off once the end of its provider context is confirmed, which is
    /// the provider's to do: until then the mechanism is left.
    ///
    /// It may be called on any thread, also in exit hooks and in destructors of thread-locals; but not in a callback, see below. While it
    /// waits it looks again at intervals of an eighth of the time waited so far, from 50 µs to 10 ms. What the calling thread itself
    /// holds keeps a mechanism as well.
    ///
    /// ```
    /// use liveslot::{BindingError, BindingRegistry, DeviceKey, HostAllocator};
    /// use std::{sync::Arc, time::Duration};
    ///
    /// let registry = BindingRegistry::new()?;
    /// let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
    /// let authority = registry.register_authority(DeviceKey::HOST, Arc::new(()))?;
    /// registry.register_allocator(context, authority, Arc::new(HostAllocator))?;
    /// let binding = registry.bind(DeviceKey::HOST)?;
    /// let allocation = binding.allocate(64, 8)?;
    ///
    /// let report = registry.shutdown(Duration::ZERO)?;
    /// assert_eq!(report.left[0].snapshot.live_allocations, 1);
    /// assert!(matches!(registry.bind(DeviceKey::HOST), Err(BindingError::ShutDown)));
    ///
    /// binding.release(allocation)?; // what is out can come back
    /// drop(binding);
    /// let report = registry.shutdown(Duration::from_secs(1))?;
    /// assert!(report.is_complete(), "{report}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`InsideCallback`] within code that a call of the library, on this registry or another, runs on this thread: allocators and their
    /// capabilities, closures, queues, wakers, destructors, `tracing` subscribers, `metrics` recorders. Nothing is changed then.
    ///
    /// # Panics
    ///
    /// Never: a destructor that panics keeps nothing else from being done, and is [counted](ShutdownReport::panicked).
    ///
    /// # Progress
    ///
    /// Blocking; beside the sleep lock-free, destructors and wakers excepted, which run on this thread.
    pub fn shutdown(&self, timeout: Duration) -> Result<ShutdownReport, InsideCallback> {
        if callback::is_inside() {
            return Err(InsideCallback);
        }
        let patience = Patience::new(timeout);
        let mut report = ShutdownReport::default();
        let mut endings = self.inner.close(&mut report);
        loop {
            self.inner.remove_drained(&endings, &mut report);
            endings.retain(|ending| !ending.mechanism.is_torn_down());
            self.inner.remove_unused(&mut report);
            if endings.is_empty() && report.is_complete() {
                endings = self.inner.late();
            }
            let complete = endings.is_empty() && report.is_complete();
            if complete || !patience.sleep() {
                break;
            }
        }
        // Also what has gone in the meantime: what was to be looked for then was not.
        for Ending { mechanism, .. } in endings {
            if mechanism.life().is_removed() {
                report.held.push(mechanism.still_held());
            } else {
                report.left.push(mechanism.drain_report());
            }
        }
        Ok(report)
    }
}

impl Inner {
    pub(super) fn is_closed(&self) -> bool {
        // Acquire: as strong as those who have found what a shutdown has done need it; a newcomer has a fence.
        self.closed.load(Acquire)
    }

    /// Whether something that has just been put in a table has come too late, and has to take itself back.
    pub(super) fn is_too_late(&self) -> bool {
        // SeqCst: the newcomer is in its table before we look. Pairs with the fence in `close`: either the list has it, or we see the word.
        fence(SeqCst);
        self.is_closed()
    }

    /// What a call is refused with that would have found something but for a shutdown.
    #[cold]
    pub(super) fn refused(&self, refusal: BindingError) -> BindingError {
        match refusal {
            BindingError::NoSelectedMechanism(_) | BindingError::InactiveMechanism { .. } if self.is_closed() => BindingError::ShutDown,
            refusal => refusal,
        }
    }

    /// Refuses what is new, and retires what is there. Gives what is not torn down, in order of registration.
    fn close(&self, report: &mut ShutdownReport) -> Vec<Ending<'_>> {
        // Release: pairs with `is_closed`.
        self.closed.store(true, Release);
        // SeqCst: the word is set before we look at the tables. Pairs with the fence in `is_too_late`.
        fence(SeqCst);
        let (mut endings, mut drained, mut told) = (Vec::new(), Vec::new(), Destruction::default());
        let guard = epoch::pin();
        for device in self.devices.iter() {
            for (place, found) in device.mechanisms.places(&guard) {
                if found.lifecycle.retire() == Step::First {
                    let names = found.names;
                    told.tell(move || told::retired(names, MechanismLifecycle::Retired));
                }
                // Also if somebody else ended its life, who may have been stopped before the flags.
                let _ = found.settled_phase();
                drained.extend(found.waiting_if_drained());
                endings.push(Ending { mechanism: found.own(), home: Some((device, place)) });
            }
            device.slot.sweep();
        }
        let met = endings.len();
        // After the devices' tables: what has left them is here by then.
        for (place, found) in self.ending.places(&guard) {
            if found.is_torn_down() {
                self.ending.remove(place, found.tag(), &guard);
            } else {
                endings.push(Ending { mechanism: found.own(), home: None });
            }
        }
        // A removal that has not seen the word lists nothing there. What this call has met of it the next one is to find.
        let (met, ending) = endings.split_at(met);
        for Ending { mechanism, .. } in met {
            let listed = || ending.iter().any(|known| Arc::ptr_eq(&known.mechanism, mechanism));
            if mechanism.life().is_removed() && !mechanism.is_torn_down() && !listed() {
                let _ = self.ending.insert(Arc::clone(mechanism));
            }
        }
        drop(guard);
        // What was met in both, once. The sort is stable: that one keeps its home, which it does not need any more.
        endings.sort_by_key(|ending| ending.mechanism.sequence);
        endings.dedup_by_key(|ending| ending.mechanism.sequence);
        // Threads first, on every list.
        self.devices.iter().for_each(Device::unpark);
        notify(&drained, || self.devices.iter().for_each(Device::notify));
        report.carry_out(told);
        endings
    }

    /// What is removed and not torn down although every context was removed: registrations that came too late, which their own calls take
    /// back, and that were not in the list.
    fn late(&self) -> Vec<Ending<'_>> {
        // Acquire: somebody else may have removed a context. Whoever has ended its use is in one of the tables from before that.
        fence(Acquire);
        let guard = epoch::pin();
        let registered = self.devices.iter().flat_map(|device| device.mechanisms.iter(&guard)).map(|found| found.own());
        let mut late: Vec<_> = registered.collect();
        late.extend(self.ending.iter(&guard).map(|found| found.own()));
        late.retain(|mechanism| !mechanism.is_torn_down());
        late.sort_by_key(|mechanism| mechanism.sequence);
        late.dedup_by_key(|mechanism| mechanism.sequence);
        late.into_iter().map(|mechanism| Ending { mechanism, home: None }).collect()
    }

    /// Removes every mechanism that has drained. Each is destroyed before the next one is removed, and all before the first waker.
    fn remove_drained(&self, endings: &[Ending<'_>], report: &mut ShutdownReport) {
        let mut destruction = Destruction::default();
        for Ending { mechanism, home } in endings {
            let Some((device, place)) = *home else { continue };
            if mechanism.life().is_removed() || !mechanism.is_drained() {
                continue;
            }
            gate!(Removing);
            let guard = epoch::pin();
            let removed = self.unlink(device, place, Arc::clone(mechanism), &guard);
            drop(guard);
            if let Some(removed) = removed {
                report.removed += 1;
                removed.end(&mut destruction);
                destruction.destroy_due();
            }
        }
        report.carry_out(destruction);
    }

    /// Removes the authorities, then the provider contexts, that no mechanism uses, one device after the other.
    fn remove_unused(&self, report: &mut ShutdownReport) {
        let (mut left_authorities, mut left_contexts) = (Vec::new(), Vec::new());
        // Carried out behind all destructors: who is told and stops there is not to keep anything, nor this call counted.
        let mut destruction = Destruction::default();
        for ((tier, index), [contexts, authorities]) in self.supports() {
            let device = DeviceKey { tier, index };
            let mut idle = Vec::new();
            for (place, context) in contexts {
                // Acquire, within: their authorities are unused as well, see `Registration`.
                match context.unused() {
                    // A registration that comes too late may use it, and an authority that another call removes when that one has gone.
                    Some(since) => idle.push(((place, context), Some(since))),
                    None => left_contexts.push(context.tag()),
                }
            }
            let authorities = authorities.into_iter().map(|authority| (authority, None));
            let releasing = self.releasing(device);
            left_authorities.extend(remove_unused(&self.authorities, authorities, &mut destruction, |device, number| {
                told::authority_removed(device, AuthorityIdentity::from_number(number));
            }));
            let alone = releasing.end();
            gate!(AuthoritiesRemoved);
            let (idle, others) = if alone { (idle, Vec::new()) } else { (Vec::new(), idle) };
            left_contexts.extend(others.iter().map(|((_, context), _)| context.tag()));
            left_contexts.extend(remove_unused(&self.contexts, idle, &mut destruction, |device, number| {
                told::context_removed(device, ProviderContextIdentity::from_number(number));
            }));
        }
        report.carry_out(destruction);
        left_authorities.sort_unstable();
        left_contexts.sort_unstable();
        report.authorities = left_authorities.into_iter().map(AuthorityIdentity::from_number).collect();
        report.provider_contexts = left_contexts.into_iter().map(ProviderContextIdentity::from_number).collect();
    }

    /// The contexts and the authorities of each device that has any.
    fn supports(&self) -> BTreeMap<(Tier, u32), [Vec<Registered>; 2]> {
        let mut supports = BTreeMap::<_, [Vec<_>; 2]>::new();
        let guard = epoch::pin();
        for (kind, table) in [&self.contexts, &self.authorities].into_iter().enumerate() {
            for (place, found) in table.places(&guard) {
                let DeviceKey { tier, index } = found.device;
                supports.entry((tier, index)).or_default()[kind].push((place, found.own()));
            }
        }
        supports
    }
}

/// A context or an authority, and where it is, or was, registered.
type Registered = (Place, Arc<Support>);

/// A call that removes and destroys authorities of a device, counted there until it [ends](Self::end).
#[must_use = "it is counted until it ends"]
pub(super) struct Releasing(Arc<AtomicUsize>);

impl Inner {
    /// Counts a call that will remove authorities of `device`.
    pub(super) fn releasing(&self, device: DeviceKey) -> Releasing {
        let releasing = Arc::clone(&self.devices.get_or_create(device).releasing);
        // Relaxed: the fence.
        releasing.fetch_add(1, Relaxed);
        // Release: we are counted before we mark an authority as removed. Pairs with the fence in `end`.
        fence(Release);
        Releasing(releasing)
    }
}

impl Releasing {
    /// Whether nobody else was counted.
    pub(super) fn end(self) -> bool {
        // Acquire: whoever has removed an authority before we looked is counted. Pairs with the fence in `releasing`.
        fence(Acquire);
        // AcqRel: the destructors of those who have uncounted themselves happen-before those of the contexts.
        self.0.fetch_sub(1, AcqRel) == 1
    }
}

/// Removes those that are not in use, nor were since what is noted; each is destroyed before the next one is removed. Gives the numbers
/// of what stays.
fn remove_unused(
    table: &Table<Support>,
    supports: impl IntoIterator<Item = (Registered, Option<Unused>)>,
    destruction: &mut Destruction,
    told: fn(DeviceKey, u64),
) -> Vec<u64> {
    let mut stays = Vec::new();
    for ((place, support), since) in supports {
        match remove_support(table, place, &support, since, epoch::pin()) {
            Ok(resource) => {
                destruction.owe(|destruction| destruction.destroy(resource));
                destruction.destroy_due();
                let (device, number) = (support.device, support.tag());
                destruction.tell(move || told(device, number));
            }
            Err(Remove::InUse) => stays.push(support.tag()),
            Err(_) => {}
        }
    }
    stays
}

impl ShutdownReport {
    fn carry_out(&mut self, destruction: Destruction) {
        self.panicked += destruction.carried_out().suppress();
    }
}

impl Patience {
    fn new(timeout: Duration) -> Self {
        let since = (!timeout.is_zero()).then(Instant::now);
        Self { since, until: since.and_then(|since| since.checked_add(timeout)) }
    }

    /// Sleeps for a while. `false` if the time is over.
    fn sleep(&self) -> bool {
        let Some(since) = self.since else { return false };
        let now = Instant::now();
        let left = self.until.map_or(Duration::MAX, |until| until.saturating_duration_since(now));
        if left.is_zero() {
            return false;
        }
        sleep(left.min((now.saturating_duration_since(since) / 8).clamp(SHORTEST, LONGEST)));
        true
    }
}

/// One line, and one more for each mechanism that is left.
impl fmt::Display for ShutdownReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { removed, left, held, authorities, provider_contexts, panicked } = self;
        write!(formatter, "mechanisms removed by this shutdown: {removed}; ")?;
        if self.is_complete() {
            write!(formatter, "nothing is left")?;
        } else {
            let (authorities, contexts) = (authorities.len(), provider_contexts.len());
            write!(
                formatter,
                "left: mechanisms that have not drained {}, that are held {}, authorities {authorities}, provider contexts {contexts}",
                left.len(),
                held.len(),
            )?;
        }
        if *panicked != 0 {
            write!(formatter, "; destructors panicked: {panicked}")?;
        }
        left.iter().try_for_each(|left| write!(formatter, "\n{left}"))?;
        held.iter().try_for_each(|held| write!(formatter, "\n{held}"))
    }
}
