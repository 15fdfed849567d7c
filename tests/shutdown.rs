//! Shutting a registry down: what is refused from then on, what becomes of what is there, and what is left when the time is over.

mod common {
    pub mod another;
    pub mod arm;
    pub mod doubles;
    pub mod held;
    pub mod park;
    pub mod refused;
    pub mod rig;
    pub mod watchdog;
}

use common::{
    another::another,
    arm::arm,
    doubles::{Double, Log, Resource, Script},
    held::{Held, hold},
    park::gate,
    refused::refused,
    rig::{DEVICE, Rig},
    watchdog::in_time,
};
use liveslot::{MechanismLifecycle::*, release::BoundedQueue, *};
use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc::channel,
    },
    task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker},
    thread,
    time::Duration,
};

const NOW: Duration = Duration::ZERO;
const EVER: Duration = Duration::MAX;

/// For an allocator that needs nobody's authority and context.
const ALONE: [&str; 2] = ["nothing"; 2];

/// Allocator, authority and context in the order in which they have to go.
const IN_ORDER: [&str; 3] = ["A dropped", "Q dropped", "C dropped"];

#[track_caller]
fn shutdown(rig: &Rig, timeout: Duration) -> ShutdownReport {
    rig.registry.shutdown(timeout).expect("not in a callback")
}

#[track_caller]
fn complete(rig: &Rig, removed: usize) {
    let report = shutdown(rig, EVER);
    assert!(report.is_complete(), "{report}");
    assert_eq!((report.removed, report.panicked), (removed, 0));
}

/// Waits until a shutdown on another thread has refused what is new.
fn until_refused(registry: &BindingRegistry) {
    while !matches!(registry.bind(DEVICE), Err(BindingError::ShutDown)) {
        thread::yield_now();
    }
}

/// R48: with nothing in the way, all of it goes within the call, in order.
#[test]
fn an_idle_registry_goes_at_once() {
    let rig = Rig::new();
    let report = shutdown(&rig, NOW);
    assert!(report.is_complete());
    assert_eq!(report.to_string(), "mechanisms removed by this shutdown: 1; nothing is left");
    assert_eq!(rig.log.take(), IN_ORDER);
    assert_eq!(rig.registry.snapshots().unwrap(), []);
    // Again, and again.
    assert_eq!(shutdown(&rig, NOW), ShutdownReport::default());
    complete(&rig, 0);

    let empty = BindingRegistry::new().unwrap();
    assert_eq!(empty.shutdown(EVER), Ok(ShutdownReport::default()));
}

/// C039: every registration, selection and binding is refused by name, whatever has been removed so far, and what it brought is destroyed.
#[test]
fn what_is_new_is_refused() {
    let rig = Rig::new();
    let device = rig.registry.device(DEVICE);
    let Held { binding, allocation, view } = hold(&rig);
    let report = shutdown(&rig, NOW);
    assert_eq!((report.removed, report.left.len(), report.held.len()), (0, 1, 0));

    let (foreign, script) = (Rig::new(), Arc::<Script>::default());
    let allocator = |name| Double::new(name, ALONE, DEVICE, &rig.log, &script);
    let register = |context, authority| rig.registry.register_allocator(context, authority, allocator("B"));
    let version = device.version();
    refused(register(foreign.context, rig.authority), BindingError::ForeignRegistry { kind: "provider context" });
    assert_eq!(rig.log.take(), ["B device", "B dropped"]);
    refused(register(rig.context, rig.authority), BindingError::ShutDown);
    assert_eq!(rig.log.take(), ["B device", "B dropped"]);
    let known = rig.registry.register_allocator_with_device(rig.context, rig.authority, allocator("B"), DEVICE);
    refused(known, BindingError::ShutDown);
    // SAFETY: a double is one object.
    let composite = unsafe { rig.registry.register_trusted_composite(rig.context, rig.authority, allocator("B")) };
    refused(composite, BindingError::ShutDown);
    assert_eq!(rig.log.take(), ["B dropped", "B device", "B dropped"]);
    for elsewhere in [DEVICE, DeviceKey::device(77), DeviceKey::device(1 << 20)] {
        let context = Resource::context("D", &rig.log, &script);
        refused(rig.registry.register_provider_context(elsewhere, context), BindingError::ShutDown);
        let authority = Resource::authority("E", &rig.log, &script);
        refused(rig.registry.register_authority(elsewhere, authority), BindingError::ShutDown);
        assert_eq!(rig.log.take(), ["D dropped", "E dropped"]);
        refused(rig.registry.bind(elsewhere), BindingError::ShutDown);
        refused(rig.registry.device(elsewhere).bind(), BindingError::ShutDown);
    }
    refused(rig.registry.select(rig.mechanism), BindingError::ShutDown);
    refused(rig.registry.select(foreign.mechanism), BindingError::ForeignRegistry { kind: "mechanism" });
    let conditional = device.select_if(device.version(), rig.mechanism);
    assert!(matches!(conditional, Err(SelectIfError::Binding(BindingError::ShutDown))), "{conditional:?}");
    refused(rig.registry.bind_registered(rig.mechanism), BindingError::ShutDown);
    assert_eq!(rig.registry.snapshots().unwrap().len(), 1, "nothing came in");
    assert_eq!(device.version(), version, "nothing was offered");

    // The rest goes on.
    assert_eq!(rig.registry.deselect(DEVICE), None);
    assert_eq!(rig.registry.trim(DEVICE, 0), 0);
    rig.registry.retire(rig.mechanism).unwrap();
    refused(rig.registry.remove(rig.mechanism), (rig.mechanism, Retired));
    refused(rig.registry.remove_authority(rig.authority), BindingError::AuthorityInUse(rig.authority.identity()));
    refused(binding.allocate(8, 8), (rig.mechanism, Retired));
    refused(binding.with_view(&view, |_| ()), (rig.mechanism, Retired));
    binding.release(allocation).unwrap();
    rig.registry.remove(rig.mechanism).unwrap();
    refused(rig.registry.bind_registered(rig.mechanism), BindingError::UnregisteredMechanism(rig.mechanism.identity()));
    refused(rig.registry.select(rig.mechanism), BindingError::UnregisteredMechanism(rig.mechanism.identity()));
    rig.log.take();

    // Also what somebody else removes is waited for.
    let report = shutdown(&rig, NOW);
    assert_eq!((report.removed, &report.left[..], report.held.len()), (0, &[][..], 1));
    assert_eq!((report.held[0].mechanism, report.held[0].handles), (rig.mechanism.identity(), 2));
    drop((binding, view, device));
    assert_eq!(rig.log.take(), IN_ORDER);
    refused(register(rig.context, rig.authority), BindingError::UnregisteredProviderContext(rig.context.identity()));
    complete(&rig, 0);
    foreign.finish();
}

/// What is left is reported by kind, stays safe, and is gone on with: live, queued and quarantined ownership.
#[test]
fn what_is_left_can_be_finished() {
    let rig = Rig::new();
    let Held { binding, allocation, view } = hold(&rig);
    let queue = BoundedQueue::new(1);
    assert!(binding.allocate_owning(16, 8).unwrap().release_deferred(&queue).unwrap().is_queued());
    drop(binding.allocate_owning(32, 8).unwrap());

    let report = shutdown(&rig, NOW);
    assert!(!report.is_complete());
    let [left] = &report.left[..] else { panic!("{report}") };
    assert_eq!(left.snapshot, rig.registry.snapshot(rig.mechanism).unwrap());
    assert_eq!((left.snapshot.lifecycle, left.snapshot.live_allocations), (Retired, 1));
    assert_eq!((left.snapshot.queued_releases, left.snapshot.quarantined_allocations), (1, 1));
    assert_eq!((&report.authorities[..], &report.provider_contexts[..]), (&[rig.authority.identity()][..], &[rig.context.identity()][..]));
    let text = report.to_string();
    let first = "mechanisms removed by this shutdown: 0; left: mechanisms that have not drained 1, that are held 0, authorities 1, provider \
                 contexts 1";
    assert_eq!(text, format!("{first}\n{left}"));

    rig.log.take();
    binding.release(allocation).unwrap();
    assert_eq!(queue.drain(1).released, 1);
    assert_eq!(shutdown(&rig, NOW).left[0].snapshot.quarantined_allocations, 1);
    assert_eq!(rig.registry.retry_quarantined(rig.mechanism, 1).unwrap().released, 1);
    assert_eq!(rig.log.take(), ["A release 64 8", "A release 16 8", "A release 32 8"]);
    drop((binding, view));
    complete(&rig, 1);
    assert_eq!(rig.log.take(), IN_ORDER);
}

/// R36: a lost mechanism that owns something is left until the end of its context is confirmed; one that owns nothing is not.
#[test]
fn what_is_lost_is_left_to_its_provider() {
    let rig = Rig::new();
    let Held { binding, allocation, view } = hold(&rig);
    another(&rig, "B");
    rig.registry.invalidate_device(DEVICE, "fell off the bus").unwrap();
    let report = shutdown(&rig, NOW);
    assert_eq!((report.removed, report.left.len()), (1, 1));
    assert_eq!(report.left[0].snapshot.lifecycle, DeviceLost);
    assert_eq!(rig.log.take(), ["B dropped"]);
    let lost = BindingError::DeviceLost { device: DEVICE, reason: "fell off the bus".into() };
    refused(rig.registry.bind_registered(rig.mechanism), lost);
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    let report = shutdown(&rig, NOW);
    assert_eq!((report.removed, report.left.len(), report.held.len()), (1, 0, 1));
    drop((binding, allocation, view));
    assert_eq!(rig.log.take(), IN_ORDER);
    complete(&rig, 0);
}

/// A handle keeps what it needs; it is reported by each call until it has gone, and by none after that.
#[test]
fn what_is_held_is_reported_until_it_goes() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let clone = binding.clone();
    let held = StillHeldBy(&rig);
    let report = shutdown(&rig, NOW);
    assert_eq!((report.removed, report.authorities.len(), report.provider_contexts.len()), (1, 0, 0));
    held.says(&report, 2);
    drop(clone);
    held.says(&shutdown(&rig, Duration::from_nanos(1)), 1);
    held.says(&shutdown(&rig, Duration::from_millis(3)), 1);
    assert_eq!(rig.log.take(), <[&str; 0]>::default());
    let waiting = rig.registry.clone();
    let waiting = thread::spawn(move || waiting.shutdown(Duration::from_secs(u64::MAX)));
    drop(binding);
    assert_eq!(rig.log.take(), IN_ORDER);
    assert_eq!(waiting.join().unwrap(), Ok(ShutdownReport::default()));
    complete(&rig, 0);
}

struct StillHeldBy<'a>(&'a Rig);

impl StillHeldBy<'_> {
    #[track_caller]
    fn says(&self, report: &ShutdownReport, handles: usize) {
        assert!(!report.is_complete());
        let [held] = &report.held[..] else { panic!("{report}") };
        assert_eq!((held.mechanism, held.handles), (self.0.mechanism.identity(), handles));
        assert!(report.to_string().ends_with(&held.to_string()));
    }
}

/// A mechanism that is stuck keeps no other from being removed and destroyed meanwhile.
#[test]
fn a_stuck_mechanism_delays_no_other() {
    let (rig, scripts) = (Rig::new(), [(); 3].map(|()| Arc::<Script>::default()));
    let Held { binding, allocation, view } = hold(&rig);
    let (gone, going) = channel();
    for (name, script) in ["B", "D", "E"].into_iter().zip(&scripts) {
        let gone = gone.clone();
        arm(&script.drop, move || gone.send(name).unwrap());
        let allocator = Double::new(name, ["Q", "C"], DEVICE, &rig.log, script);
        rig.registry.register_allocator_with_device(rig.context, rig.authority, allocator, DEVICE).unwrap();
    }
    let registry = rig.registry.clone();
    let waiting = thread::spawn(move || registry.shutdown(EVER).unwrap());
    let patience = Duration::from_secs(20);
    assert_eq!([(); 3].map(|()| going.recv_timeout(patience).unwrap()), ["B", "D", "E"]);
    assert_eq!(shutdown(&rig, NOW).left.len(), 1);
    binding.release(allocation).unwrap();
    drop((binding, view));
    let report = in_time(|| waiting.join().unwrap());
    assert!(report.is_complete(), "{report}");
    let ends: Vec<_> = rig.log.take().into_iter().filter(|entry| entry.ends_with("dropped")).collect();
    assert_eq!(ends, ["B dropped", "D dropped", "E dropped", "A dropped", "Q dropped", "C dropped"]);
}

/// A waker that does not return keeps no mechanism from being destroyed that this very call has removed: nobody else could.
#[test]
fn a_waker_that_blocks_delays_no_destruction() {
    struct Once(Mutex<Option<Box<dyn FnOnce() + Send>>>);

    impl Wake for Once {
        fn wake(self: Arc<Self>) {
            let action = self.0.lock().unwrap().take().unwrap();
            action();
        }
    }

    fn poll(teardown: &Mutex<Teardown>, woken: impl FnOnce() + Send + 'static) {
        let waker = Waker::from(Arc::new(Once(Mutex::new(Some(Box::new(woken))))));
        assert!(std::pin::pin!(&mut *teardown.lock().unwrap()).poll(&mut Context::from_waker(&waker)).is_pending());
    }

    let rig = Rig::new();
    another(&rig, "B");
    let (stop, parked) = gate();
    let teardown = Arc::new(Mutex::new(rig.registry.teardown(rig.mechanism).unwrap()));
    let again = Arc::clone(&teardown);
    // Woken as it drains, and then as it is torn down.
    poll(&teardown, move || poll(&again, || stop.park()));
    let registry = rig.registry.clone();
    let waiting = thread::spawn(move || registry.shutdown(EVER).unwrap());
    parked.reached();
    assert_eq!(rig.log.take(), ["A dropped", "B dropped"]);
    complete(&rig, 0);
    assert_eq!(rig.log.take(), ["Q dropped", "C dropped"]);
    parked.open();
    let report = in_time(|| waiting.join().unwrap());
    assert!(report.is_complete(), "{report}");
}

/// Several calls at once do it once, and all of them see the end.
#[test]
fn several_shutdowns_at_once() {
    let rig = Rig::new();
    another(&rig, "B");
    let Held { binding, allocation, view } = hold(&rig);
    let waiting = [(); 3].map(|()| {
        let registry = rig.registry.clone();
        thread::spawn(move || registry.shutdown(EVER).unwrap())
    });
    until_refused(&rig.registry);
    binding.release(allocation).unwrap();
    drop((binding, view));
    let reports = in_time(|| waiting.map(|waiting| waiting.join().unwrap()));
    assert!(reports.iter().all(ShutdownReport::is_complete), "{reports:?}");
    assert_eq!(reports.iter().map(|report| report.removed).sum::<usize>(), 2);
    let mut log = rig.log.take();
    assert_eq!(log.split_off(3), ["Q dropped", "C dropped"]);
    log.sort_unstable();
    assert_eq!(log, ["A dropped", "A release 64 8", "B dropped"]);
    complete(&rig, 0);
}

/// R48: a shutdown leaves the contexts alone while somebody else is destroying an authority that he has removed.
#[test]
fn a_context_waits_for_an_authority_that_somebody_removes() {
    let rig = Rig::new();
    rig.registry.retire(rig.mechanism).unwrap();
    rig.registry.remove(rig.mechanism).unwrap();
    rig.log.take();
    let (registry, log) = (rig.registry.clone(), rig.log.clone());
    let context = rig.context.identity();
    arm(&rig.script.authority_drop, move || {
        let report = thread::spawn(move || registry.shutdown(NOW)).join().unwrap().unwrap();
        // Q's destructor has not ended.
        assert_eq!(log.take(), <[&str; 0]>::default());
        assert_eq!(report.provider_contexts, [context]);
    });
    rig.registry.remove_authority(rig.authority).unwrap();
    assert!(rig.script.is_spent());
    assert_eq!(rig.log.take(), ["Q dropped"]);
    complete(&rig, 0);
    assert_eq!(rig.log.take(), ["C dropped"]);
}

/// Registers allocator B, authority R and context D of a device that comes after the rig's.
fn elsewhere(rig: &Rig) {
    let (device, script) = (DeviceKey::device(1), Arc::<Script>::default());
    let context = rig.registry.register_provider_context(device, Resource::context("D", &rig.log, &script)).unwrap();
    let authority = rig.registry.register_authority(device, Resource::authority("R", &rig.log, &script)).unwrap();
    let allocator = Double::new("B", ["R", "D"], device, &rig.log, &script);
    rig.registry.register_allocator_with_device(context, authority, allocator, device).unwrap();
}

/// R48: an authority whose destructor does not return keeps a shutdown from the contexts of its own device, and of no other.
#[test]
fn a_removal_that_blocks_keeps_the_contexts_of_its_device() {
    let rig = Rig::new();
    elsewhere(&rig);
    rig.registry.retire(rig.mechanism).unwrap();
    rig.registry.remove(rig.mechanism).unwrap();
    rig.log.take();
    let (stop, parked) = gate();
    arm(&rig.script.authority_drop, move || stop.park());
    let (registry, authority) = (rig.registry.clone(), rig.authority);
    let removing = thread::spawn(move || registry.remove_authority(authority));
    parked.reached();
    for removed in [&["B dropped", "R dropped", "D dropped"][..], &[]] {
        let report = shutdown(&rig, NOW);
        assert_eq!(rig.log.take(), removed);
        assert_eq!((report.authorities.len(), &report.provider_contexts[..]), (0, &[rig.context.identity()][..]));
    }
    parked.open();
    removing.join().unwrap().unwrap();
    complete(&rig, 0);
    assert_eq!(rig.log.take(), ["Q dropped", "C dropped"]);
}

/// R48: the same within a shutdown. What that one has not come to, of this device and others, is another one's to remove.
#[test]
fn a_shutdown_that_blocks_keeps_the_contexts_of_one_device() {
    let rig = Rig::new();
    elsewhere(&rig);
    rig.registry.register_authority(DEVICE, Resource::authority("S", &rig.log, &Arc::default())).unwrap();
    let (stop, parked) = gate();
    arm(&rig.script.authority_drop, move || stop.park());
    let registry = rig.registry.clone();
    let stopped = thread::spawn(move || registry.shutdown(NOW).unwrap());
    parked.reached();
    assert_eq!(rig.log.take(), ["A dropped", "B dropped"]);
    let report = shutdown(&rig, NOW);
    assert_eq!(rig.log.take(), ["S dropped", "R dropped", "D dropped"]);
    assert_eq!((report.authorities.len(), &report.provider_contexts[..]), (0, &[rig.context.identity()][..]));
    parked.open();
    let report = stopped.join().unwrap();
    assert!(report.is_complete(), "{report}");
    assert_eq!(report.removed, 2);
    assert_eq!(rig.log.take(), ["Q dropped", "C dropped"]);
    complete(&rig, 0);
}

/// A shutdown that is stopped in an allocator's destructor keeps that mechanism alone: it has let go of no other.
#[test]
fn an_allocator_that_blocks_keeps_its_mechanism_alone() {
    let rig = Rig::new();
    elsewhere(&rig);
    let (stop, parked) = gate();
    arm(&rig.script.drop, move || stop.park());
    let registry = rig.registry.clone();
    let stopped = thread::spawn(move || registry.shutdown(NOW).unwrap());
    parked.reached();
    let report = shutdown(&rig, NOW);
    assert_eq!(rig.log.take(), ["B dropped", "R dropped", "D dropped"]);
    assert_eq!((report.removed, report.left.len()), (1, 0));
    assert_eq!(report.held.iter().map(|held| held.mechanism).collect::<Vec<_>>(), [rig.mechanism.identity()]);
    parked.open();
    let report = stopped.join().unwrap();
    assert!(report.is_complete(), "{report}");
    assert_eq!(report.removed, 1);
    assert_eq!(rig.log.take(), IN_ORDER);
    complete(&rig, 0);
}

/// Nothing is complete while a registration that came too late is being destroyed elsewhere, with its share of authority and context.
#[test]
fn a_registration_that_is_taken_back_is_waited_for() {
    let (rig, script) = (Rig::new(), Arc::<Script>::default());
    let (stop, parked) = gate();
    arm(&script.drop, move || stop.park());
    let allocator = Double::new("B", ["Q", "C"], DEVICE, &rig.log, &script);
    let (registry, context, authority) = (rig.registry.clone(), rig.context, rig.authority);
    let (begun, late) = channel();
    // The shutdown has its list, and is destroying what it has removed.
    arm(&rig.script.drop, move || {
        let late = thread::spawn(move || registry.register_allocator_with_device(context, authority, allocator, DEVICE));
        parked.reached();
        begun.send((late, parked)).unwrap();
    });
    let report = shutdown(&rig, NOW);
    let (late, parked) = late.recv().unwrap();
    assert_eq!(rig.log.take(), ["A dropped"]);
    assert!(!report.is_complete(), "{report}");
    assert_eq!((report.removed, report.held.len()), (1, 1));
    assert_eq!(shutdown(&rig, NOW).held, report.held);
    parked.open();
    refused(late.join().unwrap(), BindingError::ShutDown);
    assert_eq!(rig.log.take(), ["B dropped", "Q dropped", "C dropped"]);
    complete(&rig, 0);
}

/// C039: a shutdown waits for an allocator that is in the middle of a call, of somebody who owns nothing yet.
#[test]
fn an_allocator_in_the_middle_of_a_call_is_waited_for() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let (stop, parked) = gate();
    let opened = Arc::new(AtomicBool::new(false));
    arm(&rig.script.allocate, || {
        stop.park();
        Ok(())
    });
    let allocating = thread::spawn(move || {
        let allocation = binding.allocate(16, 8).unwrap();
        binding.release(allocation).unwrap();
    });
    parked.reached();
    let (registry, seen) = (rig.registry.clone(), Arc::clone(&opened));
    let waiting = thread::spawn(move || (registry.shutdown(EVER).unwrap(), seen.load(SeqCst)));
    until_refused(&rig.registry);
    let report = shutdown(&rig, NOW);
    assert_eq!(report.left[0].snapshot.active_operations, 1);
    refused(rig.registry.bind(DEVICE), BindingError::ShutDown);
    opened.store(true, SeqCst);
    parked.open();
    allocating.join().unwrap();
    let (report, after) = in_time(|| waiting.join().unwrap());
    assert!(report.is_complete() && after, "{report}");
    assert_eq!(rig.log.take(), ["A allocate 16 8", "A release 16 8", "A dropped", "Q dropped", "C dropped"]);
}

/// A registration that a shutdown overtakes is refused, and its allocator destroyed, once.
#[test]
fn a_registration_that_comes_too_late() {
    let rig = Rig::new();
    // Keeps the context.
    let Held { binding, allocation, view } = hold(&rig);
    let script = Arc::<Script>::default();
    let registry = rig.registry.clone();
    arm(&script.device, move || {
        // On another thread, as within the callback it would be refused.
        let report = thread::spawn(move || registry.shutdown(NOW)).join().unwrap().unwrap();
        assert_eq!((report.removed, report.left.len()), (0, 1));
    });
    let allocator = Double::new("B", ["Q", "C"], DEVICE, &rig.log, &script);
    refused(rig.registry.register_allocator(rig.context, rig.authority, allocator), BindingError::ShutDown);
    assert!(script.is_spent());
    assert_eq!(rig.log.take(), ["B device", "B dropped"]);
    assert_eq!(rig.registry.snapshots().unwrap().len(), 1);
    binding.release(allocation).unwrap();
    drop((binding, view));
    complete(&rig, 1);
}

/// What was removed before is its handles' own concern.
#[test]
fn what_was_removed_before_is_not_waited_for() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    rig.registry.retire(rig.mechanism).unwrap();
    rig.registry.remove(rig.mechanism).unwrap();
    complete(&rig, 0);
    assert_eq!(rig.log.take(), <[&str; 0]>::default());
    drop(binding);
    assert_eq!(rig.log.take(), IN_ORDER);
}

/// Whoever watches the device, or waits for a mechanism's drain or teardown, is told.
#[test]
fn waiters_are_told() {
    let rig = Rig::new();
    let mut watch = rig.registry.device(DEVICE).watch();
    let (mut drain, mut teardown) = (rig.registry.drain(rig.mechanism).unwrap(), rig.registry.teardown(rig.mechanism).unwrap());
    let woken: [Arc<Woken>; 2] = Default::default();
    assert!(poll(&mut drain, &woken[0]).is_pending());
    assert!(poll(&mut teardown, &woken[1]).is_pending());
    complete(&rig, 1);
    assert!(woken.iter().all(|woken| woken.times.load(SeqCst) >= 1));
    drain.wait(NOW).unwrap();
    teardown.wait(NOW).unwrap();
    let change = watch.changed_timeout(NOW).unwrap().unwrap();
    assert_eq!((change.selected, change.cause), (None, ChangeCause::Removed));
    assert_eq!(watch.changed_timeout(NOW), Ok(None), "the registry is there");
}

/// Destructors that panic keep nothing from being done, nor the report from being given.
#[test]
fn destructors_that_panic_are_counted() {
    let rig = Rig::new();
    another(&rig, "B");
    let before = suppressed_panics();
    arm(&rig.script.drop, || panic_any("A's"));
    arm(&rig.script.context_drop, || panic_any("C's"));
    let report = shutdown(&rig, EVER);
    assert!(report.is_complete());
    // One teardown, and one resource.
    assert_eq!((report.removed, report.panicked), (2, 2));
    assert_eq!(report.to_string(), "mechanisms removed by this shutdown: 2; nothing is left; destructors panicked: 2");
    assert_eq!(suppressed_panics() - before, 2);
    assert_eq!(rig.log.take(), ["A dropped", "B dropped", "Q dropped", "C dropped"]);
}

/// Wakes a count.
#[derive(Default)]
struct Woken {
    times: AtomicUsize,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.times.fetch_add(1, SeqCst);
    }
}

fn poll<F: Future + Unpin>(future: &mut F, woken: &Arc<Woken>) -> Poll<F::Output> {
    std::pin::pin!(future).poll(&mut Context::from_waker(&Waker::from(Arc::clone(woken))))
}

/// Callbacks of what `reentrancy.rs` does not have: each says that it has run.
type Callback = fn(&Rig, Action);
type Action = Arc<dyn Fn() + Send + Sync>;

const CALLBACKS: [(&str, Callback); 12] = [
    ("trim", |rig, action| {
        let allocator = Arc::new(Trimmed(action));
        rig.registry.register_allocator_with_device(rig.context, rig.authority, allocator, DEVICE).unwrap();
        rig.registry.trim(DEVICE, 0);
        let trimmed = rig.registry.device(DEVICE);
        assert!(trimmed.selected().is_some());
    }),
    ("the closure of abandon_quarantined", |rig, action| {
        drop(rig.registry.bind(DEVICE).unwrap().allocate_owning(8, 8).unwrap());
        let all = |_: &QuarantinedAllocation| {
            action();
            true
        };
        assert_eq!(rig.registry.abandon_quarantined(rig.mechanism, all).unwrap().allocations.len(), 1);
    }),
    ("the closure of a queue", |rig, action| {
        let queue = BoundedQueue::new(1);
        assert!(rig.registry.bind(DEVICE).unwrap().allocate_owning(8, 8).unwrap().release_deferred(&queue).unwrap().is_queued());
        let ready = |_: &PreparedAllocationRelease, (): &()| {
            action();
            true
        };
        assert_eq!(queue.drain_ready(1, ready).released, 1);
    }),
    ("what the closure of abandon_quarantined keeps", |rig, action| {
        let kept = OnDrop(action);
        let none = move |_: &QuarantinedAllocation| {
            let _ = &kept;
            false
        };
        assert_eq!(rig.registry.abandon_quarantined(rig.mechanism, none).unwrap().allocations.len(), 0);
    }),
    ("what the closure of a refused abandon_quarantined keeps", |rig, action| {
        let kept = OnDrop(action);
        let none = move |_: &QuarantinedAllocation| {
            let _ = &kept;
            false
        };
        assert!(BindingRegistry::new().unwrap().abandon_quarantined(rig.mechanism, none).is_err());
    }),
    ("what the closure of a queue keeps", |_, action| {
        let kept = OnDrop(action);
        let none = move |_: &PreparedAllocationRelease, (): &()| {
            let _ = &kept;
            false
        };
        assert_eq!(BoundedQueue::new(1).drain_ready(1, none), Default::default());
    }),
    ("what the closure of a refused look keeps", |rig, action| {
        let Held { binding, allocation, view } = hold(rig);
        let kept = OnDrop(action);
        let other = rig.registry.bind(DEVICE).unwrap();
        assert!(other.with_view(&view, move |_| drop(kept)).is_err());
        binding.release(allocation).unwrap();
    }),
    ("the destructor of a marker", |rig, action| {
        let queue = BoundedQueue::with_markers(1);
        let binding = rig.registry.bind(DEVICE).unwrap();
        let request = || binding.prepare_release(binding.allocate(8, 8).unwrap()).unwrap();
        queue.enqueue_marked(request(), OnDrop(Arc::clone(&action))).unwrap();
        let refused = queue.enqueue_marked(request(), OnDrop(Arc::clone(&action))).unwrap_err();
        assert_eq!(queue.drain(1).released, 1);
        queue.enqueue_marked(refused.into_request(), OnDrop(action)).unwrap();
        assert_eq!(queue.close().quarantined, 1);
        assert_eq!(rig.registry.retry_quarantined(rig.mechanism, 1).unwrap().released, 1);
    }),
    ("a waker", |rig, action| with_waker(rig, action, Part::Wake)),
    ("the clone of a waker", |rig, action| with_waker(rig, action, Part::Clone)),
    ("the destructor of a waker", |rig, action| with_waker(rig, action, Part::Drop)),
    ("the release of a retry", |rig, action| {
        drop(rig.registry.bind(DEVICE).unwrap().allocate_owning(8, 8).unwrap());
        arm(&rig.script.release, move || {
            action();
            AllocationReleaseOutcome::complete(ReleaseAccounting::eager(8))
        });
        assert_eq!(rig.registry.retry_quarantined(rig.mechanism, 1).unwrap().released, 1);
    }),
];

struct OnDrop(Action);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0();
    }
}

/// The heap, which is asked for a trim.
struct Trimmed(Action);

impl std::fmt::Debug for Trimmed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Trimmed")
    }
}

impl DeviceAllocator for Trimmed {
    fn allocate(&self, bytes: usize, align: usize) -> Result<std::ptr::NonNull<u8>, MemoryError> {
        HostAllocator.allocate(bytes, align)
    }

    unsafe fn deallocate(&self, pointer: std::ptr::NonNull<u8>, bytes: usize, align: usize) {
        // SAFETY: the caller's promise is passed on.
        unsafe { HostAllocator.deallocate(pointer, bytes, align) }
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }

    fn trim(&self, _: u64) -> u64 {
        self.0();
        0
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Clone,
    Wake,
    Drop,
}

/// Polls a drain with a waker that acts in one of its parts, and has it woken.
fn with_waker(rig: &Rig, action: Action, part: Part) {
    let acting = Arc::new(Acting { action, part });
    // SAFETY: the table below keeps to the contract: the data is a counted `Acting`.
    let waker = std::mem::ManuallyDrop::new(unsafe { Waker::from_raw(RawWaker::new(Arc::into_raw(acting).cast(), &ACTING)) });
    let mechanism = another(rig, "W");
    let mut drain = rig.registry.drain(mechanism).unwrap();
    assert!(std::pin::pin!(&mut drain).poll(&mut Context::from_waker(&waker)).is_pending());
    match part {
        // Taken back, unwoken.
        Part::Drop => drop(drain),
        _ => rig.registry.retire(mechanism).unwrap(),
    }
    // SAFETY: the share that `into_raw` gave out; the waker itself is not dropped.
    drop(unsafe { Arc::from_raw(waker.data().cast::<Acting>()) });
}

struct Acting {
    action: Action,
    part: Part,
}

impl Acting {
    fn act(&self, part: Part) {
        if self.part == part {
            (self.action)();
        }
    }
}

const ACTING: RawWakerVTable = RawWakerVTable::new(
    |data| {
        // SAFETY: a counted `Acting`, of which this is one share more.
        unsafe { Arc::increment_strong_count(data.cast::<Acting>()) };
        // SAFETY: as above.
        unsafe { &*data.cast::<Acting>() }.act(Part::Clone);
        RawWaker::new(data, &ACTING)
    },
    |data| {
        // SAFETY: this share is consumed.
        unsafe { Arc::from_raw(data.cast::<Acting>()) }.act(Part::Wake);
    },
    |data| {
        // SAFETY: a counted `Acting`.
        unsafe { &*data.cast::<Acting>() }.act(Part::Wake);
    },
    |data| {
        // SAFETY: this share is consumed.
        unsafe { Arc::from_raw(data.cast::<Acting>()) }.act(Part::Drop);
    },
);

/// A shutdown is refused in each of them, and has no effect.
#[test]
fn no_callback_shuts_down() {
    for (callback, run) in CALLBACKS {
        println!("in {callback}");
        in_time(move || {
            let rig = Rig::new();
            let (registry, answers) = (rig.registry.clone(), Arc::<Mutex<Vec<_>>>::default());
            let answered = Arc::clone(&answers);
            // Asserts nothing: what panics in some of the callbacks is caught. For ever only if it was refused before.
            let action = move || {
                let answer = registry.shutdown(NOW).err().and_then(|_| registry.shutdown(EVER).err());
                answered.lock().unwrap().push(answer);
            };
            run(&rig, Arc::new(action));
            let answers = std::mem::take(&mut *answers.lock().unwrap());
            assert!(!answers.is_empty(), "it ran");
            assert!(answers.iter().all(|answer| *answer == Some(InsideCallback)), "not refused: {answers:?}");
            assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().lifecycle, Active);
            another(&rig, "B");
            // And it is over.
            assert!(shutdown(&rig, EVER).is_complete());
        });
    }
}

/// A callback that unwinds is over, however deep it was.
#[test]
fn a_callback_that_unwound_is_over() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let (inner, registry) = (binding.clone(), rig.registry.clone());
    arm(&rig.script.allocate, move || {
        let allocation = inner.allocate(8, 8).unwrap();
        let view = allocation.view(0, 8).unwrap();
        let within = catch_unwind(AssertUnwindSafe(|| inner.with_view(&view, |_| panic_any("the closure's"))));
        assert!(within.is_err());
        assert_eq!(registry.shutdown(EVER), Err(InsideCallback), "still in the outer one");
        inner.release(allocation).unwrap();
        drop((inner, view));
        panic_any("the allocator's")
    });
    assert!(catch_unwind(AssertUnwindSafe(|| binding.allocate(16, 8))).is_err());
    drop(binding);
    complete(&rig, 1);
}

/// A thread's locals may shut down when they go, and wait.
#[test]
fn a_thread_local_shuts_down() {
    struct AtTheEnd {
        registry: BindingRegistry,
        report: Arc<Mutex<Option<ShutdownReport>>>,
    }

    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            *self.report.lock().unwrap() = Some(self.registry.shutdown(EVER).unwrap());
        }
    }

    thread_local! {
        static LAST: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
    }

    let (rig, report) = (Rig::new(), Arc::default());
    let Held { binding, allocation, view } = hold(&rig);
    let at_the_end = AtTheEnd { registry: rig.registry.clone(), report: Arc::clone(&report) };
    let ending = thread::spawn(|| LAST.set(Some(at_the_end)));
    until_refused(&rig.registry);
    binding.release(allocation).unwrap();
    drop((binding, view));
    in_time(|| ending.join().unwrap());
    let report = report.lock().unwrap().take().unwrap();
    assert!(report.is_complete(), "{report}");
    assert_eq!(report.removed, 1);
}

/// A shutdown on a thread that unwinds reports as well, whatever the destructors do.
#[test]
fn a_thread_that_unwinds_shuts_down() {
    struct Unwinding<'a>(&'a Rig);

    impl Drop for Unwinding<'_> {
        fn drop(&mut self) {
            complete(self.0, 1);
        }
    }

    let rig = Rig::new();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _unwinding = Unwinding(&rig);
        panic_any("the thread's own")
    }));
    assert_eq!(unwound.unwrap_err().downcast_ref(), Some(&"the thread's own"));
    assert_eq!(rig.log.take(), IN_ORDER);
}

/// Registrations, bindings and selections race with several shutdowns: whatever succeeded is taken out of use, and all is destroyed, once.
#[test]
fn everything_races() {
    for _ in 0..40 {
        let rig = Rig::new();
        let log = rig.log.clone();
        in_time(move || race(rig));
        let mut ends = log.take();
        ends.retain(|entry| entry.ends_with("dropped"));
        assert_eq!(ends.iter().filter(|entry| *entry == "R dropped").count(), 16, "{ends:?}");
        let others: Vec<_> = ends.iter().filter(|entry| *entry != "R dropped").collect();
        assert_eq!(others.len(), 3, "{ends:?}");
    }
}

fn race(rig: Rig) {
    let worked = |log: &Log| {
        for _ in 0..8 {
            let allocator = Double::new("R", ALONE, DEVICE, log, &Arc::default());
            let registered = rig.registry.register_allocator_with_device(rig.context, rig.authority, allocator, DEVICE);
            match registered {
                Ok(mechanism) => {
                    let _ = rig.registry.select(mechanism);
                }
                Err(refused) => assert!(
                    matches!(
                        refused,
                        BindingError::ShutDown | BindingError::UnregisteredProviderContext(_) | BindingError::UnregisteredAuthority(_)
                    ),
                    "{refused:?}"
                ),
            }
            match rig.registry.bind(DEVICE) {
                Ok(binding) => {
                    if let Ok(allocation) = binding.allocate(8, 8) {
                        binding.release(allocation).unwrap();
                    }
                }
                Err(refused) => assert!(matches!(refused, BindingError::ShutDown), "{refused:?}"),
            }
        }
    };
    thread::scope(|scope| {
        let work = [(); 2].map(|()| scope.spawn(|| worked(&rig.log)));
        let shut = [(); 2].map(|()| scope.spawn(|| shutdown(&rig, EVER)));
        for shut in shut {
            let report = shut.join().unwrap();
            assert!(report.is_complete(), "{report}");
        }
        work.into_iter().for_each(|work| work.join().unwrap());
    });
    let report = shutdown(&rig, EVER);
    assert!(report.is_complete(), "{report}");
    assert_eq!(rig.registry.snapshots().unwrap(), []);
    refused(rig.registry.bind(DEVICE), BindingError::ShutDown);
    assert_eq!(rig.registry.device(DEVICE).selected(), None);
}
