//! Feature `tracing`: one event for each step of the control plane, after the step; and a subscriber may do what it likes.

mod common {
    pub mod api;
    pub mod arm;
    pub mod doubles;
    pub mod park;
    pub mod rig;
    pub mod watchdog;
}

use common::{
    api::Reach,
    arm::arm,
    doubles::{Double, Resource},
    park::gate,
    rig::{DEVICE, Rig},
    watchdog::in_time,
};
use liveslot::*;
use std::{
    fmt::{Debug, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::with_default,
};

/// Writes events down as `LEVEL message field=value …`, then does something.
struct Recorder<F> {
    told: Arc<Mutex<Vec<String>>>,
    then: F,
}

impl<F: Fn(&str) + 'static> Recorder<F> {
    fn new(then: F) -> (Self, Arc<Mutex<Vec<String>>>) {
        let told = Arc::<Mutex<Vec<String>>>::default();
        (Self { told: Arc::clone(&told), then }, told)
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.0.insert_str(0, &format!("{value:?}")),
            name => write!(self.0, " {name}={value:?}").unwrap(),
        }
    }
}

impl<F: Fn(&str) + Send + Sync + 'static> Subscriber for Recorder<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "liveslot"
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.told.lock().unwrap().push(format!("{} {}", event.metadata().level(), text.0));
        (self.then)(&text.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        unreachable!("there are no spans")
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Runs the tests of this file one after the other: tracing remembers for the whole process who wants an event, and asks only the
/// subscriber of the thread that meets it first.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn since(told: &Mutex<Vec<String>>) -> Vec<String> {
    std::mem::take(&mut told.lock().unwrap())
}

/// The number in the text of an identity.
fn number(identity: impl Debug) -> u64 {
    let text = format!("{identity:?}");
    text.split(['(', ')']).nth(1).expect("a number in brackets").parse().expect("a number")
}

/// A shutdown tells each of its steps; a subscriber can't shut down, and one that panics keeps nothing from being done.
#[test]
fn a_shutdown_tells_its_steps() {
    let _alone = alone();
    let rig = Rig::new();
    let (registry, c, q, a) =
        (rig.registry.clone(), number(rig.context.identity()), number(rig.authority.identity()), number(rig.mechanism.identity()));
    let (recorder, told) = Recorder::new(move |text| {
        assert_eq!(registry.shutdown(Duration::MAX), Err(InsideCallback));
        assert!(!text.contains("torn down"), "a subscriber's own");
    });
    with_default(recorder, || {
        let report = rig.registry.shutdown(Duration::ZERO).unwrap();
        assert!(report.is_complete(), "{report}");
        assert_eq!((report.removed, report.panicked), (1, 1));
        let expected = [
            format!("INFO mechanism retired device=device 0 mechanism={a} lifecycle=Retired"),
            format!("INFO mechanism removed device=device 0 mechanism={a}"),
            format!("INFO mechanism torn down device=device 0 mechanism={a} provider_context={c} authority={q}"),
            format!("INFO authority removed device=device 0 authority={q}"),
            format!("INFO provider context removed device=device 0 provider_context={c}"),
        ];
        assert_eq!(since(&told), expected);
    });
}

/// A subscriber that does not return keeps its own shutdown, and no other from going on with what is left.
#[test]
fn a_subscriber_that_stops_a_shutdown_stops_no_other() {
    let _alone = alone();
    for (step, left) in [("mechanism retired", 3), ("mechanism removed", 2), ("authority removed", 0), ("provider context removed", 0)] {
        let rig = Rig::new();
        let (stop, parked) = gate();
        let stop = Mutex::new(Some(stop));
        let (recorder, _) = Recorder::new(move |text| {
            if text.starts_with(step)
                && let Some(stop) = stop.lock().unwrap().take()
            {
                stop.park();
            }
        });
        let registry = rig.registry.clone();
        let stopped = thread::spawn(move || with_default(recorder, || registry.shutdown(Duration::MAX).unwrap()));
        parked.reached();
        let order = ["A dropped", "Q dropped", "C dropped"];
        assert_eq!(rig.log.take(), order[..3 - left], "{step}");
        let report = rig.registry.shutdown(Duration::ZERO).unwrap();
        assert!(report.is_complete(), "{step}: {report}");
        assert_eq!(rig.log.take(), order[3 - left..], "{step}");
        parked.open();
        let report = in_time(|| stopped.join().unwrap());
        assert!(report.is_complete(), "{step}: {report}");
    }
}

/// Each step that succeeds, once, in order; what is refused is no step.
#[test]
fn one_event_for_each_step() {
    let _alone = alone();
    let (recorder, told) = Recorder::new(|_| ());
    with_default(recorder, || {
        let rig = Rig::new();
        let registry = &rig.registry;
        let (c, q, a) = (number(rig.context.identity()), number(rig.authority.identity()), number(rig.mechanism.identity()));
        let expected = [
            format!("INFO provider context registered device=device 0 provider_context={c}"),
            format!("INFO authority registered device=device 0 authority={q}"),
            format!("INFO mechanism registered device=device 0 mechanism={a} provider_context={c} authority={q}"),
        ];
        assert_eq!(since(&told), expected);
        registry.select(rig.mechanism).unwrap();
        registry.remove(rig.mechanism).unwrap_err();
        registry.remove_authority(rig.authority).unwrap_err();
        registry.remove_provider_context(rig.context).unwrap_err();
        registry.confirm_context_terminated(rig.context).unwrap_err();
        registry.invalidate_device(DeviceKey::HOST, "nobody registered it").unwrap();
        let device = registry.device(DEVICE);
        device.select_if(device.version() + 1, rig.mechanism).unwrap_err();
        device.select_if(device.version(), rig.mechanism).unwrap();
        assert_eq!(registry.deselect(DEVICE), Some(rig.mechanism.identity()));
        assert_eq!(device.deselect(), None);
        let selected = format!("INFO mechanism selected device=device 0 mechanism={a}");
        let deselected = format!("INFO mechanism deselected device=device 0 mechanism={a}");
        assert_eq!(since(&told), [selected.clone(), selected, deselected]);
        registry.retire(rig.mechanism).unwrap();
        registry.select(rig.mechanism).unwrap_err();
        assert_eq!(since(&told), [format!("INFO mechanism retired device=device 0 mechanism={a} lifecycle=Retired")]);
        registry.invalidate_device(DEVICE, "fell off \"the\" bus").unwrap();
        registry.retire(rig.mechanism).unwrap();
        registry.confirm_context_terminated(rig.context).unwrap();
        let expected = [
            "WARN device lost device=device 0 reason=\"fell off \\\"the\\\" bus\"".to_owned(),
            format!("INFO mechanism retired device=device 0 mechanism={a} lifecycle=DeviceLost"),
            format!("INFO provider context terminated device=device 0 provider_context={c}"),
        ];
        assert_eq!(since(&told), expected);
        rig.finish();
        let expected = [
            format!("INFO mechanism retired device=device 0 mechanism={a} lifecycle=Terminated"),
            format!("INFO mechanism removed device=device 0 mechanism={a}"),
            format!("INFO mechanism torn down device=device 0 mechanism={a} provider_context={c} authority={q}"),
            format!("INFO authority removed device=device 0 authority={q}"),
            format!("INFO provider context removed device=device 0 provider_context={c}"),
        ];
        assert_eq!(since(&told), expected);
    });
}

/// A context without a mechanism is confirmed like any other, also on a device that nobody else has named.
#[test]
fn a_context_alone_is_told_of() {
    let _alone = alone();
    let (recorder, told) = Recorder::new(|_| ());
    with_default(recorder, || {
        let registry = BindingRegistry::new().unwrap();
        for named in [false, true] {
            let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
            if named {
                let _ = registry.device(DEVICE);
            }
            since(&told);
            registry.confirm_context_terminated(context).unwrap();
            let c = number(context.identity());
            assert_eq!(since(&told), [format!("INFO provider context terminated device=device 0 provider_context={c}")]);
        }
    });
}

/// Work on the hot path tells nothing, also a hold's end; the last one's tells of the teardown, on whichever thread.
#[test]
fn the_hot_path_tells_nothing() {
    let _alone = alone();
    let (recorder, told) = Recorder::new(|_| ());
    let rig = Rig::new();
    with_default(recorder, || {
        let binding = rig.registry.bind(DEVICE).unwrap();
        binding.allocate_owning(8, 8).unwrap().release_now().unwrap();
        drop(binding.clone());
        rig.registry.trim(DEVICE, 0);
        assert_eq!(since(&told), [""; 0]);
        rig.registry.retire(rig.mechanism).unwrap();
        rig.registry.remove(rig.mechanism).unwrap();
        let a = number(rig.mechanism.identity());
        assert_eq!(since(&told)[1..], [format!("INFO mechanism removed device=device 0 mechanism={a}")]);
        drop(binding);
        assert!(since(&told)[0].starts_with("INFO mechanism torn down"));
    });
}

/// What is told has happened: nobody is bound to what was retired, and what was removed or torn down has been destroyed.
#[test]
fn a_step_is_told_when_it_has_been_made() {
    let _alone = alone();
    let rig = Rig::new();
    let (log, registry) = (rig.log.clone(), rig.registry.clone());
    let (recorder, told) = Recorder::new(move |text| {
        if text.starts_with("mechanism removed") {
            assert_eq!(log.take(), ["A dropped"], "told before the end of the allocator");
        } else if text.starts_with("mechanism torn down") {
            assert_eq!(log.take(), [""; 0]);
            assert_eq!(registry.snapshots().unwrap(), []);
        }
    });
    with_default(recorder, || {
        let binding = rig.registry.bind(DEVICE).unwrap();
        rig.registry.retire(rig.mechanism).unwrap();
        drop(binding);
        rig.registry.remove(rig.mechanism).unwrap();
    });
    assert_eq!(told.lock().unwrap().len(), 3);
}

/// R50: a teardown is told after the last of its destructors.
#[test]
fn a_teardown_is_told_at_its_end() {
    let _alone = alone();
    let rig = Rig::new();
    let (log, ended) = (rig.log.clone(), Arc::<Mutex<Vec<Vec<String>>>>::default());
    let so_far = Arc::clone(&ended);
    let (recorder, told) = Recorder::new(move |_| so_far.lock().unwrap().push(log.take()));
    with_default(recorder, || {
        let binding = rig.registry.bind(DEVICE).unwrap();
        drop(rig.registry);
        assert_eq!(since(&told), [""; 0]);
        drop(binding);
    });
    assert!(told.lock().unwrap()[0].starts_with("INFO mechanism torn down"));
    assert_eq!(*ended.lock().unwrap(), [["A dropped", "Q dropped", "C dropped"]], "told before the end of the allocator");
}

/// R106: a subscriber may call everything, whatever it has been told; and end the mechanism that it has just heard of.
#[test]
fn a_subscriber_may_call_everything() {
    let _alone = alone();
    in_time(|| {
        let rig = Rig::new();
        let (reach, registry, mechanism) = (Reach::of(&rig), rig.registry.clone(), rig.mechanism);
        // tracing keeps quiet from then on about what happens for the first time within a subscriber.
        with_default(Recorder::new(|_| ()).0, || reach.clone().whole_api());
        let (recorder, told) = Recorder::new(move |text| {
            match text.starts_with("mechanism retired") {
                true => registry.remove(mechanism).unwrap(),
                false => reach.clone().whole_api(),
            }
            assert!(registry.to_string().len() > 1);
        });
        with_default(recorder, || {
            let allocator = Double::new("B", ["Q", "C"], DEVICE, &rig.log, &rig.script);
            let beside = rig.registry.register_allocator(rig.context, rig.authority, allocator).unwrap();
            rig.registry.select(beside).unwrap();
            let spare = rig.registry.register_authority(DEVICE, Resource::authority("spare", &rig.log, &rig.script)).unwrap();
            rig.registry.remove_authority(spare).unwrap();
            rig.registry.retire(mechanism).unwrap();
            refused_because_it_has_gone(rig.registry.retire(mechanism));
            rig.registry.invalidate_device(DEVICE, "lost").unwrap();
            rig.registry.confirm_context_terminated(rig.context).unwrap();
            rig.registry.remove(beside).unwrap();
        });
        // What the subscriber itself does is not told to it: tracing sees to that.
        assert_eq!(told.lock().unwrap().len(), 9);
    });
}

fn refused_because_it_has_gone(result: Result<(), BindingError>) {
    assert!(matches!(result, Err(BindingError::UnregisteredMechanism(_))), "{result:?}");
}

/// R107, R111: a subscriber that does not return delays the call that tells it, and nobody else.
#[test]
fn a_subscriber_that_does_not_return_delays_nobody_else() {
    let _alone = alone();
    in_time(|| {
        let rig = Rig::new();
        let (registry, mechanism) = (rig.registry.clone(), rig.mechanism);
        let (stop, gate) = gate();
        let stop = Mutex::new(Some(stop));
        let (recorder, _) = Recorder::new(move |_| stop.lock().unwrap().take().unwrap().park());
        let retirement = thread::spawn(move || with_default(recorder, || registry.retire(mechanism)));
        gate.reached();
        let (script, log) = (Arc::clone(&rig.script), rig.log.clone());
        rig.finish();
        assert!(script.is_spent());
        assert_eq!(log.take(), [""; 0]);
        gate.open();
        retirement.join().unwrap().unwrap();
    });
}

/// R118: a subscriber's panic is the caller's, and the step stands; after a destructor's it is counted.
#[test]
fn a_subscriber_that_panics() {
    let _alone = alone();
    let rig = Rig::new();
    let registry = &rig.registry;
    let told = |step: &dyn Fn()| {
        let (recorder, told) = Recorder::new(|_| panic!("subscriber"));
        let panic = catch_unwind(AssertUnwindSafe(|| with_default(recorder, step))).unwrap_err();
        (*panic.downcast_ref::<&str>().unwrap(), since(&told).len())
    };
    assert_eq!(told(&|| registry.select(rig.mechanism).unwrap()), ("subscriber", 1));
    assert_eq!(registry.device(DEVICE).selected(), Some(rig.mechanism.identity()));
    assert_eq!(told(&|| registry.retire(rig.mechanism).unwrap()), ("subscriber", 1));
    assert_eq!(registry.snapshot(rig.mechanism).unwrap().lifecycle, MechanismLifecycle::Retired);
    arm(&rig.script.drop, || panic!("allocator"));
    let suppressed = suppressed_panics();
    assert_eq!(told(&|| registry.remove(rig.mechanism).unwrap()), ("allocator", 2));
    assert_eq!(suppressed_panics() - suppressed, 2);
    assert_eq!(registry.snapshots().unwrap(), []);
    assert_eq!(told(&|| registry.remove_authority(rig.authority).unwrap()), ("subscriber", 1));
    assert_eq!(rig.log.take(), ["A dropped", "Q dropped"]);
}

/// A `metrics` recorder that counts nothing but panics.
struct Broken;

impl metrics::Recorder for Broken {
    fn describe_counter(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_gauge(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_histogram(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}

    fn register_counter(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        panic!("recorder")
    }

    fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        unreachable!("nobody has asked for gauges")
    }

    fn register_histogram(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Histogram {
        unreachable!("there are no histograms")
    }
}

/// R118: a `metrics` recorder that panics does not keep the subscriber from being told; its panic comes first, and is the caller's.
#[test]
fn a_subscriber_beside_a_recorder_that_panics() {
    let _alone = alone();
    let rig = Rig::new();
    let (recorder, told) = Recorder::new(|_| panic!("subscriber"));
    let suppressed = suppressed_panics();
    let deselect = || with_default(recorder, || metrics::with_local_recorder(&Broken, || rig.registry.deselect(DEVICE)));
    let panic = catch_unwind(AssertUnwindSafe(deselect)).unwrap_err();
    assert_eq!(*panic.downcast_ref::<&str>().unwrap(), "recorder");
    let told = since(&told);
    assert!(matches!(&told[..], [deselected] if deselected.starts_with("INFO mechanism deselected")), "kept from being told: {told:?}");
    assert_eq!(suppressed_panics() - suppressed, 1);
}
