//! A mechanism: one registration of an allocator with its authority and its provider context.
//!
//! Two things are counted apart. `Arc<Mechanism>` keeps the *memory*: slot records hold one, the table holds one that goes through the
//! epoch, and the resources hold one until their teardown. [`Hold`]s keep the *resources*: allocator, authority and context die when
//! the last hold has gone and the registry has let go, never in the drop of an `Arc`. So binding one mechanism from every core
//! bounces no reference count, and a reader of the table may touch the words of an entry whose resources are gone.
//!
//! | word | who may change it |
//! | --- | --- |
//! | [`lifecycle`](Mechanism::lifecycle) | retire, invalidate, confirm, remove |
//! | admission words | operations and settlements; flags by whoever decides on the lifecycle |
//! | handle words | holds; closed once, by the winning `remove` or by the registry's end |
//! | `registration` | taken once, by the winning `remove`, or with the memory |
//! | `resources` | written before the entry is reachable, taken once, by the teardown |
//! | `torn_down` | set once, by the teardown, behind the destructors |
//! | `quarantine` | whoever settles a queued record as retained; whoever has claimed an entry of it |
//! | `holders` | bindings, while their hold is counted |

use super::{holders::Holders, quarantine::Quarantine, support::InUse, teardown::Destruction, told};
use crate::{
    callback::Called,
    contract::{
        AuthorityIdentity, BindingGeneration, BindingId, BindingIdentity, BindingResource, DeviceAllocator, DeviceKey, MechanismCoherence,
        MechanismIdentity, ProviderContextIdentity,
    },
    error::BindingError,
    primitives::{
        Candidate, Liveness, MechanismLifecycle,
        liveness::{Life, Lifecycle, Step},
        pins::{Close, Closed, Home, Left, Operation, Pins, Refused},
        table::Tagged,
    },
    sync::{
        Arc, UnsafeCell,
        atomic::{AtomicBool, Ordering::*},
        epoch, gate, lane,
    },
};
use std::{fmt, ptr::NonNull};

/// Who and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) device: DeviceKey,
    pub(crate) mechanism: MechanismIdentity,
    pub(crate) provider_context: ProviderContextIdentity,
    pub(crate) authority: AuthorityIdentity,
    pub(crate) coherence: MechanismCoherence,
}

impl Names {
    /// The identity of the binding with this number.
    pub(crate) const fn binding(&self, number: u64) -> BindingIdentity {
        BindingIdentity::new(
            BindingId::from_number(number),
            BindingGeneration::from_number(number),
            self.device,
            self.mechanism,
            self.provider_context,
            self.authority,
        )
    }
}

/// What the last hold destroys, in this order.
struct Resources {
    allocator: Arc<dyn DeviceAllocator>,
    authority: Arc<dyn BindingResource>,
    context: Arc<dyn BindingResource>,
    /// The holds' own share of the memory.
    memory: Arc<Mechanism>,
}

/// The uses of authority and context that a registered mechanism counts for. They end in this order: a context that no mechanism uses any
/// more has no mechanism that uses its authority.
struct Registration {
    _authority: InUse,
    _context: InUse,
}

pub(crate) struct Mechanism {
    pub(crate) names: Names,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) pins: Pins,
    pub(crate) quarantine: Quarantine,
    pub(super) holders: Holders,
    /// The order of registration.
    pub(crate) sequence: u64,
    registration: UnsafeCell<Option<Registration>>,
    resources: UnsafeCell<Option<Resources>>,
    torn_down: AtomicBool,
}

// SAFETY: the parts that are not `Sync` are the two cells, and the table above says who may touch them when.
unsafe impl Sync for Mechanism {}

impl Candidate for Mechanism {
    #[inline(always)]
    fn liveness(&self) -> &Liveness {
        &self.lifecycle.liveness
    }
}

impl Tagged for Mechanism {
    fn tag(&self) -> u64 {
        self.names.mechanism.number()
    }
}

impl Mechanism {
    pub(crate) fn new(
        names: Names,
        sequence: u64,
        stripes: usize,
        context: InUse,
        authority: InUse,
        allocator: Arc<dyn DeviceAllocator>,
    ) -> Arc<Self> {
        let (context_resource, authority_resource) = (context.resource(), authority.resource());
        let mechanism = Arc::new(Self {
            names,
            lifecycle: Lifecycle::new(),
            pins: Pins::new(stripes),
            quarantine: Quarantine::new(),
            holders: Holders::new(),
            sequence,
            registration: UnsafeCell::new(Some(Registration { _context: context, _authority: authority })),
            resources: UnsafeCell::new(None),
            torn_down: AtomicBool::new(false),
        });
        let memory = Arc::clone(&mechanism);
        let resources = Resources { allocator, authority: authority_resource, context: context_resource, memory };
        // SAFETY: nobody else can reach the mechanism yet.
        mechanism.resources.with_mut(|cell| unsafe { *cell = Some(resources) });
        mechanism
    }

    #[inline(always)]
    pub(crate) fn life(&self) -> Life {
        self.lifecycle.life()
    }

    #[inline(always)]
    pub(crate) fn phase(&self) -> MechanismLifecycle {
        self.life().phase()
    }

    /// The lifecycle, proved: whatever it refuses is refused by every stripe when this returns.
    pub(crate) fn settled_phase(&self) -> MechanismLifecycle {
        let phase = self.phase();
        match phase {
            MechanismLifecycle::Active => {}
            MechanismLifecycle::Retired => self.pins.close_admission(Close::Retired),
            MechanismLifecycle::DeviceLost | MechanismLifecycle::Terminated => self.pins.close_admission(Close::Lost),
        }
        phase
    }

    /// The error for a call that lifecycle `phase` refuses.
    #[cold]
    pub(crate) fn refusal(&self, phase: MechanismLifecycle, operation: &'static str) -> BindingError {
        match (phase, self.lifecycle.loss_reason()) {
            (MechanismLifecycle::DeviceLost, Some(reason)) => {
                BindingError::DeviceLost { device: self.names.device, reason: Arc::clone(reason) }
            }
            (lifecycle, _) => BindingError::InactiveMechanism { mechanism: self.names.mechanism, lifecycle, operation },
        }
    }

    /// Refuses unless Active.
    #[inline]
    pub(crate) fn active(&self, operation: &'static str) -> Result<(), BindingError> {
        let life = self.life();
        if life.is_active() { Ok(()) } else { Err(self.refusal(life.phase(), operation)) }
    }

    /// Begins an operation: counted, or refused because the mechanism is not Active.
    #[inline]
    pub(crate) fn enter(&self, operation: &'static str) -> Result<Operation<'_>, BindingError> {
        // The word before the stripe: see `Pins::enter`.
        self.active(operation)?;
        gate!(Admitting);
        self.pins.enter(lane::current()).map_err(|refused| self.refused(refused, operation))
    }

    /// The error for what a stripe has refused.
    #[cold]
    pub(crate) fn refused(&self, refused: Refused, operation: &'static str) -> BindingError {
        match refused {
            // The word was terminal before the stripe's flag was set, and we have seen the flag.
            Refused::Closed => self.refusal(self.phase(), operation),
            Refused::Full => BindingError::IdentityExhausted,
        }
    }

    /// Whether the resources have been destroyed.
    pub(crate) fn is_torn_down(&self) -> bool {
        // Acquire: pairs with the teardown's Release.
        self.torn_down.load(Acquire)
    }

    /// Sets the removed mark. Who is told `First` has ended the uses of context and authority as well.
    pub(crate) fn mark_removed(&self) -> Step {
        let step = self.lifecycle.mark_removed();
        if step == Step::First {
            // SAFETY: one call is told `First`, and an abandoned mechanism can't be reached.
            unsafe { self.end_registration() };
        }
        step
    }

    /// Ends the uses of context and authority.
    ///
    /// # Safety
    ///
    /// Nobody else does, nor has done.
    unsafe fn end_registration(&self) {
        // SAFETY: as the caller says, nobody else touches the cell.
        drop(self.registration.with_mut(|registration| unsafe { (*registration).take() }));
    }

    /// Ends a mechanism that has just been made, and that no table has taken.
    #[cold]
    pub(crate) fn abandon(self: Arc<Self>) {
        // SAFETY: nobody else can reach the mechanism.
        unsafe { self.end_registration() };
        let mut destruction = Destruction::default();
        self.close(&mut destruction);
        destruction.finish();
    }

    /// Lets go of the registry's pin: no hold can be acquired any more. Called once. The teardown is due if no hold is left.
    pub(crate) fn close(self: &Arc<Self>, destruction: &mut Destruction) {
        if self.pins.close_handles() == Left::Last {
            // SAFETY: told `Last`.
            unsafe { owe(NonNull::from(&**self), destruction) };
        }
    }
}

/// Notes the teardown of a mechanism.
///
/// # Safety
///
/// As for [`tear_down`].
unsafe fn owe(mechanism: NonNull<Mechanism>, destruction: &mut Destruction) {
    // SAFETY: the caller's promise is passed on. The memory stands until the teardown, which is run once.
    destruction.owe(move |destruction| unsafe { tear_down(mechanism, destruction) });
}

/// Destroys the resources, then hands the memory to the epoch.
///
/// # Safety
///
/// The caller has been told [`Left::Last`] by the pins of `mechanism`, and this is its last use of it.
#[cold]
unsafe fn tear_down(mechanism: NonNull<Mechanism>, destruction: &mut Destruction) {
    // SAFETY: `Last` is told once, when no hold exists nor ever will, so nobody else touches the cell; the resources' own share of the
    // memory stands until it is dropped below.
    let resources = unsafe { mechanism.as_ref() }.resources.with_mut(|resources| unsafe { (*resources).take() });
    let Some(Resources { allocator, authority, context, memory }) = resources else { return };
    let names = memory.names;
    debug_assert_eq!(memory.holders(), [], "a binding is listed that has no hold");
    destruction.tell(move || told::torn_down(names));
    destruction.destroy(allocator);
    destruction.destroy(authority);
    destruction.destroy(context);
    // Release: the destructors happen-before what follows the wait. Pairs with `is_torn_down`.
    memory.torn_down.store(true, Release);
    if let Some(waiters) = memory.pins.waiting() {
        destruction.owe_notice(waiters, |waiters| waiters);
    }
    epoch::pin().defer(move || drop(memory));
}

impl fmt::Debug for Mechanism {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Mechanism")
            .field("names", &self.names)
            .field("life", &self.life())
            .field("counts", &self.pins.totals())
            .finish_non_exhaustive()
    }
}

/// Keeps the resources of a mechanism: the proof that its allocator may be called.
pub(crate) struct Hold(NonNull<Mechanism>);

// SAFETY: a counted share of a mechanism, which is `Send` and `Sync`.
unsafe impl Send for Hold {}
// SAFETY: as above.
unsafe impl Sync for Hold {}

impl Hold {
    /// Counts a hold on a mechanism that the caller has found in a table or a slot. Refused once the registry has let go of it.
    #[inline]
    pub(crate) fn acquire(mechanism: &Mechanism) -> Result<Self, Closed> {
        mechanism.pins.acquire(lane::current())?;
        Ok(Self(NonNull::from(mechanism)))
    }

    /// As a clone, counted where the caller has begun an operation.
    #[inline]
    pub(crate) fn beside(&self, home: Home) -> Self {
        self.mechanism().pins.derive_at(home);
        Self(self.0)
    }

    #[inline(always)]
    pub(crate) const fn mechanism(&self) -> &Mechanism {
        // SAFETY: while a hold is counted, the resources' share of the memory stands.
        unsafe { self.0.as_ref() }
    }

    /// The allocator, to be called.
    #[inline]
    pub(crate) fn allocator(&self) -> Called<'_, dyn DeviceAllocator> {
        Called::new(&**self.shared_allocator())
    }

    /// The allocator, to be handed out.
    #[inline]
    pub(crate) fn shared_allocator(&self) -> &Arc<dyn DeviceAllocator> {
        // SAFETY: written before the mechanism was reachable, taken after the last hold has gone; this one is counted.
        let resources = self.mechanism().resources.with(|resources| unsafe { (*resources).as_ref() });
        &resources.expect("a hold keeps the resources").allocator
    }
}

impl Clone for Hold {
    #[inline]
    fn clone(&self) -> Self {
        self.mechanism().pins.derive(lane::current());
        Self(self.0)
    }
}

impl Drop for Hold {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this hold is counted, and nothing touches the mechanism afterwards unless it was the last.
        let left = unsafe { Pins::release(&raw const (*self.0.as_ptr()).pins, lane::current()) };
        if left == Left::Last {
            last(self.0);
        }
    }
}

#[cold]
fn last(mechanism: NonNull<Mechanism>) {
    let mut destruction = Destruction::default();
    // SAFETY: told `Last`.
    unsafe { owe(mechanism, &mut destruction) };
    destruction.finish();
}

impl fmt::Debug for Hold {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.mechanism().names.mechanism.fmt(formatter)
    }
}
