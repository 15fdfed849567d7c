//! A device with mechanisms whose allocators and resources report what becomes of them, and threads that stop at a step.

use liveslot_gated::{
    AllocationReleaseOutcome, BindingError, BindingRegistry, DeviceAllocator, DeviceKey, HostAllocator, MechanismLifecycle,
    MechanismSnapshot, MemoryError, RegisteredAuthority, RegisteredMechanism, RegisteredProviderContext,
    internals::{
        gates::{Step, arm, pending},
        pins::MOST_STRIPES,
    },
};
use std::{
    cell::OnceCell,
    fmt::Debug,
    ptr::NonNull,
    rc::Rc,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::Wake,
    thread::{self, ThreadId},
    time::Duration,
};

pub const DEVICE: DeviceKey = DeviceKey::device(0);

/// How long a test waits for another thread before it gives up. Nothing is timed: what is waited for happens, or is broken.
const WATCHDOG: Duration = Duration::from_secs(60);

/// What was destroyed, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With whether its authority and its context were alive.
    Allocator {
        pinned: bool,
    },
    Authority,
    Context,
}

/// How a mechanism ends when all goes well.
pub const IN_ORDER: [End; 3] = [End::Allocator { pinned: true }, End::Authority, End::Context];

/// The ends of a site, in order, and on which threads they came.
#[derive(Clone, Debug, Default)]
pub struct Ends(Arc<Mutex<Vec<(End, ThreadId)>>>);

impl Ends {
    fn report(&self, end: End) {
        self.0.lock().unwrap().push((end, thread::current().id()));
    }

    pub fn so_far(&self) -> Vec<End> {
        self.0.lock().unwrap().iter().map(|(end, _)| *end).collect()
    }

    pub fn all_on(&self, thread: ThreadId) -> bool {
        self.0.lock().unwrap().iter().all(|(_, on)| *on == thread)
    }
}

/// A resource of the user's.
#[derive(Debug)]
pub struct Resource {
    end: End,
    ends: Ends,
}

impl Drop for Resource {
    fn drop(&mut self) {
        self.ends.report(self.end);
    }
}

/// What an allocator was asked to do.
#[derive(Debug, Default)]
pub struct Calls {
    pub allocate: AtomicUsize,
    pub release: AtomicUsize,
    pub deallocate: AtomicUsize,
    pub trim: AtomicUsize,
    /// Address, size and alignment of everything that it has given out and not got back.
    pub given_out: Mutex<Vec<(usize, usize, usize)>>,
    /// Lets `release` fail.
    pub refuses: AtomicBool,
}

/// Memory of the heap, with a witness.
#[derive(Debug)]
struct Allocator {
    calls: Arc<Calls>,
    pins: [Weak<Resource>; 2],
    ends: Ends,
}

impl DeviceAllocator for Allocator {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        self.calls.allocate.fetch_add(1, SeqCst);
        let pointer = HostAllocator.allocate(bytes, align)?;
        self.calls.given_out.lock().unwrap().push((pointer.as_ptr().expose_provenance(), bytes, align));
        Ok(pointer)
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, bytes: usize, align: usize) {
        self.calls.deallocate.fetch_add(1, SeqCst);
        let mut given_out = self.calls.given_out.lock().unwrap();
        let at = given_out.iter().position(|known| *known == (pointer.addr().get(), bytes, align));
        given_out.swap_remove(at.expect("given back with other values than it was made with, or twice"));
        // SAFETY: made by the heap with these values, and found in the list once.
        unsafe { HostAllocator.deallocate(pointer, bytes, align) };
    }

    unsafe fn release(&self, pointer: NonNull<u8>, bytes: usize, align: usize) -> AllocationReleaseOutcome {
        self.calls.release.fetch_add(1, SeqCst);
        if self.calls.refuses.load(SeqCst) {
            return AllocationReleaseOutcome::failed("told to");
        }
        // SAFETY: as the caller says.
        unsafe { self.deallocate(pointer, bytes, align) };
        AllocationReleaseOutcome::complete(Default::default())
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }

    fn trim(&self, _: u64) -> u64 {
        self.calls.trim.fetch_add(1, SeqCst);
        1
    }
}

impl Drop for Allocator {
    fn drop(&mut self) {
        self.ends.report(End::Allocator { pinned: self.pins.iter().all(|pin| pin.strong_count() > 0) });
        // What was never given back is the provider's to reclaim: here, so that no run leaks.
        for (address, bytes, align) in self.calls.given_out.lock().unwrap().drain(..) {
            let pointer = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: in the list, so made by the heap with these values and not given back.
            unsafe { HostAllocator.deallocate(NonNull::new(pointer).unwrap(), bytes, align) };
        }
    }
}

/// A registry with one device, one context and one authority.
#[derive(Clone)]
pub struct Site {
    pub registry: BindingRegistry,
    pub context: RegisteredProviderContext,
    pub authority: RegisteredAuthority,
    pub ends: Ends,
    pins: [Weak<Resource>; 2],
}

impl Site {
    pub fn new() -> Self {
        Self::of(BindingRegistry::new().unwrap())
    }

    fn of(registry: BindingRegistry) -> Self {
        let ends = Ends::default();
        let [authority, context] = [End::Authority, End::Context].map(|end| Arc::new(Resource { end, ends: ends.clone() }));
        let pins = [Arc::downgrade(&authority), Arc::downgrade(&context)];
        let context = registry.register_provider_context(DEVICE, context).unwrap();
        let authority = registry.register_authority(DEVICE, authority).unwrap();
        Self { registry, context, authority, ends, pins }
    }

    /// A site whose device has selected the mechanism that it comes with.
    pub fn selecting() -> (Self, RegisteredMechanism) {
        let site = Self::new();
        let selected = site.register();
        (site, selected)
    }

    /// The same with as many stripes as there can be: threads that live at once use different ones.
    pub fn selecting_striped() -> (Self, RegisteredMechanism) {
        let site = Self::of(BindingRegistry::striped(MOST_STRIPES).unwrap());
        let selected = site.register();
        (site, selected)
    }

    /// An allocator for this site, and what it will be asked to do.
    pub fn allocator(&self) -> (Arc<dyn DeviceAllocator>, Arc<Calls>) {
        let calls = Arc::new(Calls::default());
        (Arc::new(Allocator { calls: Arc::clone(&calls), pins: self.pins.clone(), ends: self.ends.clone() }), calls)
    }

    pub fn register(&self) -> RegisteredMechanism {
        self.register_watched().0
    }

    pub fn register_watched(&self) -> (RegisteredMechanism, Arc<Calls>) {
        let (allocator, calls) = self.allocator();
        (self.registry.register_allocator(self.context, self.authority, allocator).unwrap(), calls)
    }

    pub fn select(&self, mechanism: RegisteredMechanism) -> Result<(), BindingError> {
        self.registry.select(mechanism)
    }

    pub fn retire(&self, mechanism: RegisteredMechanism) {
        self.registry.retire(mechanism).unwrap();
    }

    pub fn retire_and_remove(&self, mechanism: RegisteredMechanism) {
        self.retire(mechanism);
        self.registry.remove(mechanism).unwrap();
    }

    pub fn lose(&self) {
        self.registry.invalidate_device(DEVICE, "lost by the test").unwrap();
    }

    pub fn snapshot(&self, mechanism: RegisteredMechanism) -> MechanismSnapshot {
        self.registry.snapshot(mechanism).unwrap()
    }

    pub fn lifecycle(&self, mechanism: RegisteredMechanism) -> MechanismLifecycle {
        self.snapshot(mechanism).lifecycle
    }

    /// The slot as it stands, unrepaired, is decided and names `expected` or nothing; and so says a binding.
    #[track_caller]
    pub fn rests_on(&self, expected: Option<RegisteredMechanism>) {
        let (committed, named, _, prior_cut) = self.registry.raw_selection(DEVICE).unwrap();
        assert!(committed, "the slot holds a record that is not committed");
        assert!(prior_cut, "a committed record has a prior");
        assert_eq!(named, expected.map(|expected| (expected.identity(), MechanismLifecycle::Active)), "the slot names another");
        self.binds(expected);
    }

    /// A binding gets `expected`, or there is nothing to get.
    #[track_caller]
    pub fn binds(&self, expected: Option<RegisteredMechanism>) {
        match (self.registry.bind(DEVICE), expected) {
            (Ok(binding), Some(expected)) => assert_eq!(binding.identity().mechanism(), expected.identity(), "bound another"),
            (Err(BindingError::NoSelectedMechanism(device)), None) => assert_eq!(device, DEVICE),
            (bound, expected) => panic!("bind gave {bound:?} instead of {expected:?}"),
        }
    }

    pub fn version(&self) -> u64 {
        self.registry.raw_selection(DEVICE).unwrap().2
    }
}

/// Refused because of the mechanism's lifecycle.
#[track_caller]
pub fn inactive<T: Debug>(result: Result<T, BindingError>, expected: MechanismLifecycle) {
    match result {
        Err(BindingError::InactiveMechanism { lifecycle, .. }) => assert_eq!(lifecycle, expected),
        other => panic!("{other:?} instead of a refusal by {expected:?}"),
    }
}

/// Refused because the token's registration is gone.
#[track_caller]
pub fn unregistered<T: Debug>(result: Result<T, BindingError>) {
    assert!(matches!(result, Err(BindingError::UnregisteredMechanism(_))), "{result:?} instead of a refusal: unregistered");
}

/// Runs `action` when this thread next comes to `step`. A step that is reached again runs the next that was armed.
pub fn at(step: Step, action: impl FnOnce() + 'static) {
    arm(step, action);
}

/// Everything that this thread has armed has run.
#[track_caller]
pub fn all_steps_were_reached() {
    assert_eq!(pending(), 0, "armed and not reached");
}

/// Another thread in the middle of a call.
#[must_use = "it stands there until it goes on"]
pub struct Stopped<R> {
    signal: mpsc::Sender<()>,
    result: mpsc::Receiver<R>,
}

impl<R: Send + 'static> Stopped<R> {
    /// Begins `call` on another thread. Returns when that stands at `step`.
    pub fn at(step: Step, call: impl FnOnce() -> R + Send + 'static) -> Self {
        let (arrived, arrival) = mpsc::channel();
        let (signal, wait) = mpsc::channel();
        let (answer, result) = mpsc::channel();
        thread::spawn(move || {
            arm(step, move || {
                // Errors mean that the test has failed and left: then this thread ends as well.
                let _ = arrived.send(());
                let _ = wait.recv();
            });
            let _ = answer.send(call());
        });
        arrival.recv_timeout(WATCHDOG).expect("the other thread does not come to its step");
        Self { signal, result }
    }

    /// Lets the call go on, to its end.
    pub fn go_on(self) -> R {
        self.signal.send(()).expect("the other thread has left its step");
        self.result.recv_timeout(WATCHDOG).expect("the other thread does not come to its end")
    }
}

/// Counts how often it was woken.
#[derive(Default)]
pub struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Woken {
    pub fn times(&self) -> usize {
        self.0.load(SeqCst)
    }
}

/// A call that another thread will begin when this one comes to a step.
pub struct Meanwhile<R>(Rc<OnceCell<Stopped<R>>>);

impl<R: Send + 'static> Meanwhile<R> {
    /// When this thread comes to `step`, another begins `call` and stops at `stop`; then this one does `then`.
    pub fn at(step: Step, stop: Step, call: impl FnOnce() -> R + Send + 'static, then: impl FnOnce() + 'static) -> Self {
        let stopped = Rc::new(OnceCell::new());
        let begun = Rc::clone(&stopped);
        at(step, move || {
            assert!(begun.set(Stopped::at(stop, call)).is_ok());
            then();
        });
        Self(stopped)
    }

    /// Lets the call go on, to its end.
    #[track_caller]
    pub fn go_on(self) -> R {
        Rc::into_inner(self.0).and_then(OnceCell::into_inner).expect("the step was not reached").go_on()
    }
}

/// Fails if `test` does not come to its end: a call of its waits for a stopped one.
pub fn watched(test: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(test);
    let (ended, end) = mpsc::channel();
    thread::spawn(move || ended.send(thread.join()));
    match end.recv_timeout(WATCHDOG).expect("a call waits for a stopped thread") {
        Ok(()) => {}
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
