//! What a life is made of, and what it has to keep to.
//!
//! The book-keeping uses std's mutex and atomics, which shuttle does not see: nothing is locked over one of its switch points, so
//! they add no step and hide none.

use liveslot_shuttle::{
    AllocationReleaseOutcome, AllocationReleaseState, BindingError, BindingRegistry, BoundAllocation, DeviceAllocator, DeviceKey,
    MechanismIdentity, MechanismLifecycle, MechanismSnapshot, MemoryBinding, MemoryError, QuarantinedAllocation, RegisteredAuthority,
    RegisteredMechanism, RegisteredProviderContext,
};
use shuttle::rand::{Rng, thread_rng};
use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    pin::pin,
    ptr,
    ptr::NonNull,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

pub const DEVICE: DeviceKey = DeviceKey::device(0);

/// What a callback of the user's does: it takes its time, so that others come far meanwhile.
pub fn linger() {
    let step = shuttle::sync::atomic::AtomicBool::new(false);
    for _ in 0..thread_rng().gen_range(0..12) {
        step.load(SeqCst);
    }
    if thread_rng().gen_range(0..4) == 0 {
        // Under PCT: until everybody else has to wait.
        shuttle::thread::yield_now();
    }
}

/// What was destroyed, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Allocator,
    Authority,
    Context,
}

#[derive(Clone, Debug, Default)]
pub struct Ends(Arc<Mutex<Vec<End>>>);

impl Ends {
    fn report(&self, end: End) {
        self.0.lock().unwrap().push(end);
    }

    pub fn so_far(&self) -> Vec<End> {
        self.0.lock().unwrap().clone()
    }
}

/// A resource of the user's.
struct Resource {
    end: End,
    ends: Ends,
    alive: Arc<AtomicBool>,
}

impl fmt::Debug for Resource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.end.fmt(formatter)
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        self.alive.store(false, SeqCst);
        self.ends.report(self.end);
    }
}

/// A context and an authority, for allocators to stand on.
#[derive(Clone)]
pub struct Home {
    pub context: RegisteredProviderContext,
    pub authority: RegisteredAuthority,
    alive: [Arc<AtomicBool>; 2],
}

/// What the book knows of one mechanism.
#[derive(Debug, Default)]
pub struct Fate {
    registered: AtomicBool,
    /// A call that ended its life has returned.
    over: AtomicBool,
    /// No call may be inside the allocator any more, whatever it is.
    shut: AtomicBool,
    /// Calls inside the allocator.
    inside: AtomicUsize,
    /// Memory that was given out and not given back, by number.
    given_out: Mutex<BTreeSet<usize>>,
    /// What of it the allocator is being asked to release.
    asked: Mutex<BTreeSet<usize>>,
    /// The latest lifecycle that a snapshot has shown, as a number that rises.
    latest: AtomicUsize,
}

/// An allocator without memory: it hands out the lowest address that is free, so that addresses come back soon.
struct Allocator {
    fate: Arc<Fate>,
    home: Home,
    ends: Ends,
    /// How likely it is that it releases nothing.
    refuses: f64,
}

const SPACING: usize = 64;

impl fmt::Debug for Allocator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fate.fmt(formatter)
    }
}

impl Allocator {
    fn inside<R>(&self, work: impl FnOnce(&mut BTreeSet<usize>) -> R) -> R {
        self.check();
        self.fate.inside.fetch_add(1, SeqCst);
        linger();
        let result = work(&mut self.fate.given_out.lock().unwrap());
        linger();
        self.check();
        self.fate.inside.fetch_sub(1, SeqCst);
        result
    }

    fn check(&self) {
        assert!(!self.fate.shut.load(SeqCst), "an allocator is in use that may not be called any more");
        assert!(self.home.alive.iter().all(|alive| alive.load(SeqCst)), "an allocator is in use without what it stands on");
    }
}

impl DeviceAllocator for Allocator {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        let number = self.inside(|given_out| {
            let free = (1..).find(|number| !given_out.contains(number)).unwrap();
            given_out.insert(free);
            free
        });
        Ok(NonNull::new(ptr::without_provenance_mut(number * SPACING)).unwrap())
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, _: usize, _: usize) {
        let known = self.inside(|given_out| given_out.remove(&(pointer.addr().get() / SPACING)));
        assert!(known, "released twice");
    }

    unsafe fn release(&self, pointer: NonNull<u8>, bytes: usize, align: usize) -> AllocationReleaseOutcome {
        let number = pointer.addr().get() / SPACING;
        assert!(self.fate.asked.lock().unwrap().insert(number), "released by two at once");
        linger();
        // Before it is given back, since it may be given out again at once.
        self.fate.asked.lock().unwrap().remove(&number);
        if thread_rng().gen_bool(self.refuses) {
            return AllocationReleaseOutcome::failed("told to");
        }
        // SAFETY: as the caller says.
        unsafe { self.deallocate(pointer, bytes, align) };
        AllocationReleaseOutcome::complete(Default::default())
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

impl Drop for Allocator {
    fn drop(&mut self) {
        assert_eq!(self.fate.inside.load(SeqCst), 0, "destroyed with a call inside");
        linger();
        let refused = !self.fate.registered.load(SeqCst);
        assert!(refused || self.home.alive.iter().all(|alive| alive.load(SeqCst)), "destroyed after what it stands on");
        self.ends.report(End::Allocator);
    }
}

/// A registry, and the book that says what may still happen to what.
pub struct World {
    pub registry: BindingRegistry,
    pub ends: Ends,
    made: AtomicUsize,
    fates: Mutex<HashMap<MechanismIdentity, (RegisteredProviderContext, Arc<Fate>)>>,
}

impl World {
    pub fn new() -> Arc<Self> {
        let registry = BindingRegistry::new().unwrap();
        Arc::new(Self { registry, ends: Ends::default(), made: AtomicUsize::new(0), fates: Mutex::default() })
    }

    pub fn home(&self) -> Home {
        let [authority, context] = [End::Authority, End::Context].map(|end| {
            self.made.fetch_add(1, SeqCst);
            let alive = Arc::new(AtomicBool::new(true));
            (Arc::new(Resource { end, ends: self.ends.clone(), alive: Arc::clone(&alive) }), alive)
        });
        Home {
            context: self.registry.register_provider_context(DEVICE, context.0).unwrap(),
            authority: self.registry.register_authority(DEVICE, authority.0).unwrap(),
            alive: [authority.1, context.1],
        }
    }

    pub fn register(&self, home: &Home) -> RegisteredMechanism {
        self.try_register(home, 0.0).unwrap()
    }

    /// Registers an allocator that refuses releases with this probability.
    pub fn try_register(&self, home: &Home, refuses: f64) -> Result<RegisteredMechanism, BindingError> {
        let fate = Arc::new(Fate::default());
        self.made.fetch_add(1, SeqCst);
        let allocator = Allocator { fate: Arc::clone(&fate), home: home.clone(), ends: self.ends.clone(), refuses };
        let mechanism = self.registry.register_allocator(home.context, home.authority, Arc::new(allocator))?;
        fate.registered.store(true, SeqCst);
        self.fates.lock().unwrap().insert(mechanism.identity(), (home.context, fate));
        Ok(mechanism)
    }

    /// `None` while its registration has not returned.
    pub fn fate(&self, mechanism: MechanismIdentity) -> Option<Arc<Fate>> {
        self.fates.lock().unwrap().get(&mechanism).map(|(_, fate)| Arc::clone(fate))
    }

    fn is_over(&self, mechanism: MechanismIdentity) -> bool {
        self.fate(mechanism).is_some_and(|fate| fate.over.load(SeqCst))
    }

    fn over(&self) -> Vec<MechanismIdentity> {
        let fates = self.fates.lock().unwrap();
        fates.iter().filter(|(_, (_, fate))| fate.over.load(SeqCst)).map(|(identity, _)| *identity).collect()
    }

    /// Who ends a mechanism's life comes back when no slot has selected it any more, nor will again; a record that is about to fail may
    /// still be there.
    fn names_nothing_that_is_over(&self) {
        let over = self.over();
        if let Some((true, Some((named, _)), ..)) = self.registry.raw_selection(DEVICE) {
            assert!(!over.contains(&named), "the slot names what is over");
        }
    }

    /// R20: what was over before the call is not selected by it.
    pub fn select(&self, mechanism: RegisteredMechanism) -> Result<(), BindingError> {
        let over = self.is_over(mechanism.identity());
        let selected = self.registry.select(mechanism);
        assert!(!over || selected.is_err(), "selected after its end");
        if let Err(refused) = &selected {
            assert!(matches!(refused, BindingError::InactiveMechanism { .. } | BindingError::UnregisteredMechanism(_)), "{refused:?}");
        }
        selected
    }

    /// R24, R128: a binding or nothing, and never what was over before the call.
    pub fn bind(&self) -> Option<MemoryBinding> {
        let over = self.over();
        match self.registry.bind(DEVICE) {
            Ok(binding) => {
                assert!(!over.contains(&binding.identity().mechanism()), "bound after its end");
                Some(binding)
            }
            Err(BindingError::NoSelectedMechanism(_) | BindingError::ShutDown) => None,
            Err(other) => panic!("{other:?}"),
        }
    }

    /// R23, R128: the same by token.
    pub fn bind_registered(&self, mechanism: RegisteredMechanism) -> Result<MemoryBinding, BindingError> {
        let over = self.is_over(mechanism.identity());
        let bound = self.registry.bind_registered(mechanism);
        assert!(!over || bound.is_err(), "bound by token after its end");
        bound
    }

    /// R129, R130: an allocation, or a refusal because of the lifecycle; a refusal if the mechanism was over before the call.
    pub fn allocate(&self, binding: &MemoryBinding) -> Option<BoundAllocation> {
        let over = self.is_over(binding.identity().mechanism());
        match binding.allocate(16, 8) {
            Ok(allocation) => {
                assert!(!over, "allocated after its end");
                Some(allocation)
            }
            Err(refused) => {
                refused_for_a_reason(binding, &refused);
                None
            }
        }
    }

    /// Binds, allocates, looks and releases, as far as the mechanism lives. Says whether all of it was done.
    pub fn work(&self) -> bool {
        self.bind().is_some_and(|binding| self.work_on(&binding))
    }

    pub fn work_on(&self, binding: &MemoryBinding) -> bool {
        let Some(allocation) = self.allocate(binding) else { return false };
        let view = allocation.view(8, 8).inspect_err(|refused| refused_for_a_reason(binding, refused)).ok();
        if let Some(view) = &view {
            let address = allocation.as_ptr().addr().get() + 8;
            let fate = self.fate(binding.identity().mechanism());
            let looked = binding.with_view(view, |part| {
                assert_eq!((part.as_ptr().addr().get(), part.len()), (address, 8));
                linger();
                assert!(fate.is_none_or(|fate| !fate.shut.load(SeqCst)), "looked at what was written off");
            });
            if let Err(refused) = looked {
                refused_for_a_reason(binding, &refused);
            }
        }
        let released = self.release(binding, allocation);
        if let Some(view) = &view {
            let looked = binding.with_view(view, |_| panic!("looked at what is no longer live"));
            match looked.unwrap_err() {
                BindingError::StaleAllocation(_) => assert!(released || !is_active(binding), "stale and not released"),
                refused => refused_for_a_reason(binding, &refused),
            }
        }
        released
    }

    /// R131 to R135: released; or, on a lost device, live as before or retained.
    pub fn release(&self, binding: &MemoryBinding, allocation: BoundAllocation) -> bool {
        let Err(refused) = binding.release(allocation) else { return true };
        assert!(is_lost(binding), "{refused:?}");
        let state = if refused.is_quarantined() { AllocationReleaseState::DeviceLost } else { AllocationReleaseState::Live };
        assert_eq!(refused.state(), state);
        false
    }

    pub fn retire(&self, mechanism: RegisteredMechanism) -> Result<(), BindingError> {
        self.registry.retire(mechanism)?;
        self.fate(mechanism.identity()).unwrap().over.store(true, SeqCst);
        self.names_nothing_that_is_over();
        Ok(())
    }

    /// Loses the device: everything that was registered before is over.
    pub fn lose(&self) {
        let before: Vec<_> = self.fates.lock().unwrap().values().map(|(_, fate)| Arc::clone(fate)).collect();
        self.registry.invalidate_device(DEVICE, "lost by the life").unwrap();
        for fate in before {
            fate.over.store(true, SeqCst);
        }
        self.names_nothing_that_is_over();
    }

    /// R36, R136: once it is confirmed, no call is inside an allocator of the context, nor ever will be.
    pub fn confirm(&self, home: &Home) -> Result<(), BindingError> {
        let before: Vec<_> = {
            let fates = self.fates.lock().unwrap();
            fates.values().filter(|(context, _)| *context == home.context).map(|(_, fate)| Arc::clone(fate)).collect()
        };
        self.registry.confirm_context_terminated(home.context)?;
        before.iter().for_each(|fate| fate.shut());
        Ok(())
    }

    /// R36, R38, R47, R102: a lost mechanism that is seen without an operation owns what it owns for ever, until that is written off: all
    /// that its allocator has given out and not got back, live or in the list. Waits for that, and returns the list.
    pub fn left_behind(&self, mechanism: RegisteredMechanism) -> Vec<QuarantinedAllocation> {
        let mut seen = None;
        until(|| {
            let snapshot = self.snapshot(mechanism).unwrap();
            assert_eq!(snapshot.lifecycle, MechanismLifecycle::DeviceLost);
            seen = Some(snapshot);
            snapshot.active_operations == 0
        });
        let (snapshot, list) = (seen.unwrap(), self.registry.quarantined(mechanism).unwrap());
        let given_out = self.fate(mechanism.identity()).unwrap().given_out();
        let owned = snapshot.live_allocations + snapshot.quarantined_allocations;
        assert_eq!(owned, given_out, "lost with nothing to show for it: {snapshot:?}");
        assert_eq!(
            (list.len(), list.iter().map(|entry| entry.retained_bytes).sum()),
            (snapshot.quarantined_allocations, snapshot.quarantined_bytes)
        );
        list
    }

    /// R42, R47, R139: one removal succeeds, with nobody inside the allocator, nor ever again, and with everything given back that was not
    /// written off.
    pub fn remove(&self, mechanism: RegisteredMechanism) -> Result<(), BindingError> {
        self.registry.remove(mechanism)?;
        let fate = self.fate(mechanism.identity()).unwrap();
        fate.over.store(true, SeqCst);
        fate.shut();
        self.names_nothing_that_is_over();
        Ok(())
    }

    /// Until nobody uses it any more.
    pub fn remove_when_idle(&self, mechanism: RegisteredMechanism) {
        until(|| match self.remove(mechanism) {
            Ok(()) => true,
            Err(BindingError::InactiveMechanism { .. }) => false,
            Err(other) => panic!("{other:?}"),
        });
    }

    /// R102: no lifecycle earlier than one seen before, and the parts fit each other.
    pub fn snapshot(&self, mechanism: RegisteredMechanism) -> Option<MechanismSnapshot> {
        let fate = self.fate(mechanism.identity()).unwrap();
        let before = fate.latest.load(SeqCst);
        let snapshot = self.registry.snapshot(mechanism).ok()?;
        let now = snapshot.lifecycle as usize;
        assert!(before <= now, "a lifecycle went back: {snapshot:?}");
        fate.latest.fetch_max(now, SeqCst);
        assert!(snapshot.queued_releases <= snapshot.active_operations, "{snapshot:?}");
        Some(snapshot)
    }

    /// Looks at the selection a few times: versions do not fall, and one version is one selection.
    pub fn watch(&self, times: usize) {
        let device = self.registry.device(DEVICE);
        let (mut version, mut selected) = (device.version(), None);
        for _ in 0..times {
            let (now, after) = (device.selected(), device.version());
            assert!(version <= after, "a version fell");
            if version == after {
                let known = *selected.get_or_insert(now);
                assert_eq!(known, now, "one version, two selections");
            } else {
                (version, selected) = (after, None);
            }
        }
    }

    /// R21, R36, R47: what holds when no call is running. `I1` is asserted on the slot as it stands, since a binding would repair it.
    pub fn rests(&self) {
        if let Some((committed, named, _, prior_cut)) = self.registry.raw_selection(DEVICE) {
            assert!(committed && prior_cut, "the slot rests on a record that is not committed, or has a prior");
            if let Some((identity, lifecycle)) = named {
                assert_eq!(lifecycle, MechanismLifecycle::Active, "the slot rests on a dead mechanism");
                assert!(self.registry.snapshots().unwrap().iter().any(|snapshot| snapshot.identity == identity), "and an unregistered one");
            }
        }
        for snapshot in self.registry.snapshots().unwrap() {
            let fate = self.fate(snapshot.identity).unwrap();
            assert_eq!((snapshot.active_operations, snapshot.queued_releases), (0, 0), "{snapshot:?}");
            let owned = match snapshot.lifecycle {
                MechanismLifecycle::Terminated => 0,
                _ => fate.given_out(),
            };
            assert_eq!(snapshot.live_allocations + snapshot.quarantined_allocations, owned, "{snapshot:?}");
        }
    }

    /// R48, R149: the end of the registry, with no other handle left: everything is destroyed, once.
    pub fn ends(self: Arc<Self>) {
        self.rests();
        let World { registry, ends, made, .. } = Arc::into_inner(self).expect("all threads have been joined");
        drop(registry);
        assert_eq!(ends.so_far().len(), made.into_inner(), "{:?}", ends.so_far());
    }
}

impl Fate {
    /// How many allocations were given out and not given back.
    pub fn given_out(&self) -> usize {
        self.given_out.lock().unwrap().len()
    }

    /// Whether the memory at this address is among them.
    pub fn has_given_out(&self, address: usize) -> bool {
        self.given_out.lock().unwrap().contains(&(address / SPACING))
    }

    /// Its owner has given up what is at this address.
    pub fn given_up(&self, address: usize) {
        let number = address / SPACING;
        assert!(!self.asked.lock().unwrap().contains(&number), "given up while the allocator was asked");
        assert!(self.given_out.lock().unwrap().remove(&number), "given up, and not owned");
    }

    fn shut(&self) {
        self.shut.store(true, SeqCst);
        assert_eq!(self.inside.load(SeqCst), 0, "somebody is inside an allocator whose end was granted");
    }
}

/// The lifecycle refuses releases.
pub fn is_lost(binding: &MemoryBinding) -> bool {
    matches!(binding.mechanism_snapshot().unwrap().lifecycle, MechanismLifecycle::DeviceLost | MechanismLifecycle::Terminated)
}

fn is_active(binding: &MemoryBinding) -> bool {
    binding.mechanism_snapshot().unwrap().lifecycle == MechanismLifecycle::Active
}

/// The lifecycle refused, and it is one that refuses.
pub fn refused_for_a_reason(binding: &MemoryBinding, refused: &BindingError) {
    assert!(matches!(refused, BindingError::InactiveMechanism { .. } | BindingError::DeviceLost { .. }), "{refused:?}");
    assert!(!is_active(binding), "an Active mechanism refused: {refused:?}");
}

/// Tries until it is done. Others have to do something meanwhile, so they are let run.
pub fn until(mut done: impl FnMut() -> bool) {
    while !done() {
        shuttle::thread::yield_now();
    }
}

/// What a future comes to, polled again only once it has been woken. If a wake is lost, the life goes on for ever, which shuttle reports.
pub fn awaited<F: Future>(future: F) -> F::Output {
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, SeqCst);
        }
    }

    let (mut future, woken) = (pin!(future), Arc::new(Woken(AtomicBool::new(false))));
    let waker = Waker::from(Arc::clone(&woken));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        until(|| woken.0.swap(false, SeqCst));
    }
}

/// Runs all roles at once, to their ends.
pub fn at_once<const N: usize>(roles: [Box<dyn FnOnce() + Send>; N]) {
    let threads = roles.map(shuttle::thread::spawn);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A role that works on a shared world.
pub fn role(world: &Arc<World>, work: impl FnOnce(&World) + Send + 'static) -> Box<dyn FnOnce() + Send> {
    let world = Arc::clone(world);
    Box::new(move || work(&world))
}
