//! Feature `metrics`: one count for each step of the control plane, after the step; gauges of mechanisms when they are asked for, with what
//! has gone set to 0; and a recorder may do what it likes.

mod common {
    pub mod another;
    pub mod api;
    pub mod arm;
    pub mod doubles;
    pub mod park;
    pub mod rig;
    pub mod watchdog;
}

use common::{
    another::another,
    api::Reach,
    arm::arm,
    doubles::Resource,
    park::gate,
    rig::{DEVICE, Rig},
    watchdog::in_time,
};
use liveslot::*;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit, with_local_recorder as with,
};
use std::{
    cell::Cell,
    collections::BTreeSet,
    fmt::Debug,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

/// Writes down what it is told, as `NAME LABEL=VALUE… +N` for a count and `NAME LABEL=VALUE… = X` for a gauge, then does something. What
/// it does itself it neither writes down nor answers.
#[derive(Clone)]
struct Book {
    told: Arc<Mutex<Vec<String>>>,
    then: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Book {
    fn new(then: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { told: Arc::default(), then: Arc::new(then) }
    }

    fn silent() -> Self {
        Self::new(|_| ())
    }

    fn since(&self) -> Vec<String> {
        std::mem::take(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn page(&self, key: &Key, metadata: &Metadata<'_>) -> Arc<Page> {
        assert_eq!((metadata.target(), *metadata.level()), ("liveslot", metrics::Level::INFO));
        let labels = key.labels().map(|label| format!(" {}={:?}", label.key(), label.value()));
        Arc::new(Page { book: self.clone(), series: format!("{}{}", key.name(), labels.collect::<String>()) })
    }

    fn write(&self, text: String) {
        thread_local! {
            static WITHIN: Cell<bool> = const { Cell::new(false) };
        }
        struct Outside;
        impl Drop for Outside {
            fn drop(&mut self) {
                WITHIN.set(false);
            }
        }
        if !WITHIN.replace(true) {
            let _outside = Outside;
            self.told.lock().unwrap_or_else(PoisonError::into_inner).push(text.clone());
            (self.then)(&text);
        }
    }
}

struct Page {
    book: Book,
    series: String,
}

impl CounterFn for Page {
    fn increment(&self, value: u64) {
        self.book.write(format!("{} +{value}", self.series));
    }

    fn absolute(&self, _: u64) {
        unreachable!("counted one by one")
    }
}

impl GaugeFn for Page {
    fn increment(&self, _: f64) {
        unreachable!("gauges are set")
    }

    fn decrement(&self, _: f64) {
        unreachable!("gauges are set")
    }

    fn set(&self, value: f64) {
        self.book.write(format!("{} = {value}", self.series));
    }
}

impl Recorder for Book {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.write(format!("counter {} in {:?}", name.as_str(), unit.unwrap()));
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.write(format!("gauge {} in {:?}", name.as_str(), unit.unwrap()));
    }

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        unreachable!("there are no histograms")
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.page(key, metadata))
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.page(key, metadata))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        unreachable!("there are no histograms")
    }
}

/// The number in the text of an identity.
fn number(identity: impl Debug) -> u64 {
    let text = format!("{identity:?}");
    text.split(['(', ')']).nth(1).expect("a number in brackets").parse().expect("a number")
}

/// A count of one for each of these, on device 0.
fn steps<const N: usize>(steps: [&str; N]) -> [String; N] {
    steps.map(|step| format!("liveslot_steps_total step={step:?} device=\"device 0\" +1"))
}

/// The gauges of a mechanism of device 0: lifecycle, selected, operations, live, queued, quarantined, quarantined bytes, handles.
fn gauges(mechanism: RegisteredMechanism, values: [u64; 8]) -> Vec<String> {
    let names = ["lifecycle", "selected", "operations", "live", "queued", "quarantined", "quarantined_bytes", "handles"];
    let mechanism = number(mechanism.identity());
    let line = |(name, value)| format!("liveslot_mechanism_{name} device=\"device 0\" mechanism=\"{mechanism}\" = {value}");
    names.into_iter().zip(values).map(line).collect()
}

/// Each step that succeeds, once, in order; what is refused is no step.
#[test]
fn one_count_for_each_step() {
    let book = Book::silent();
    with(&book, || {
        let rig = Rig::new();
        let registry = &rig.registry;
        assert_eq!(book.since(), steps(["provider context registered", "authority registered", "mechanism registered"]));
        registry.select(rig.mechanism).unwrap();
        registry.remove(rig.mechanism).unwrap_err();
        registry.remove_authority(rig.authority).unwrap_err();
        registry.invalidate_device(DeviceKey::HOST, "nobody registered it").unwrap();
        let device = registry.device(DEVICE);
        device.select_if(device.version() + 1, rig.mechanism).unwrap_err();
        device.select_if(device.version(), rig.mechanism).unwrap();
        assert_eq!(registry.deselect(DEVICE), Some(rig.mechanism.identity()));
        assert_eq!(device.deselect(), None);
        assert_eq!(book.since(), steps(["mechanism selected", "mechanism selected", "mechanism deselected"]));
        registry.retire(rig.mechanism).unwrap();
        registry.select(rig.mechanism).unwrap_err();
        registry.invalidate_device(DEVICE, "lost").unwrap();
        registry.confirm_context_terminated(rig.context).unwrap();
        assert_eq!(book.since(), steps(["mechanism retired", "device lost", "provider context terminated"]));
        rig.finish();
        let expected = ["mechanism retired", "mechanism removed", "mechanism torn down", "authority removed", "provider context removed"];
        assert_eq!(book.since(), steps(expected));
    });
}

/// Work on the hot path counts nothing, also a hold's end; the last one's counts the teardown, on whichever thread.
#[test]
fn the_hot_path_counts_nothing() {
    let (rig, book) = (Rig::new(), Book::silent());
    with(&book, || {
        let binding = rig.registry.bind(DEVICE).unwrap();
        binding.allocate_owning(8, 8).unwrap().release_now().unwrap();
        drop(binding.clone());
        rig.registry.trim(DEVICE, 0);
        assert_eq!(book.since(), [""; 0]);
        rig.registry.retire(rig.mechanism).unwrap();
        rig.registry.remove(rig.mechanism).unwrap();
        assert_eq!(book.since(), steps(["mechanism retired", "mechanism removed"]));
        drop(binding);
        assert_eq!(book.since(), steps(["mechanism torn down"]));
    });
}

/// R50: what is counted has happened: a removal and a teardown are counted after the last of the destructors.
#[test]
fn a_step_is_counted_when_it_has_been_made() {
    let rig = Rig::new();
    let (log, registry) = (rig.log.clone(), rig.registry.clone());
    let book = Book::new(move |text| {
        if text.contains("removed") {
            assert_eq!(log.take(), ["A dropped"], "counted before the end of the allocator");
            assert_eq!(registry.snapshots().unwrap(), []);
        }
    });
    with(&book, || {
        rig.registry.retire(rig.mechanism).unwrap();
        rig.registry.remove(rig.mechanism).unwrap();
    });
    assert_eq!(book.since(), steps(["mechanism retired", "mechanism removed", "mechanism torn down"]));
}

/// R99, R102: the gauges are the snapshot's counts, the selection and the handles, by order of registration; asking for them counts nothing.
#[test]
fn gauges_are_the_snapshots() {
    let (rig, book) = (Rig::new(), Book::silent());
    let (a, b) = (rig.mechanism, another(&rig, "B"));
    let mut recorded = MechanismGauges::default();
    with(&book, || {
        recorded.record(&rig.registry);
        assert_eq!(book.since(), [gauges(a, [1, 1, 0, 0, 0, 0, 0, 0]), gauges(b, [1, 0, 0, 0, 0, 0, 0, 0])].concat());

        let binding = rig.registry.bind(DEVICE).unwrap();
        let (queued, dropped) = (binding.allocate_owning(16, 8).unwrap(), binding.allocate_owning(4096, 8).unwrap());
        let live = [binding.allocate(8, 8).unwrap(), binding.allocate(8, 8).unwrap(), binding.allocate(8, 8).unwrap()];
        let queued = queued.prepare_release().unwrap();
        drop(dropped);
        let state = rig.registry.snapshot(a).unwrap();
        assert_eq!((state.active_operations, state.live_allocations, state.queued_releases), (1, 3, 1));
        assert_eq!((state.quarantined_allocations, state.quarantined_bytes), (1, 4096));
        rig.registry.retire(a).unwrap();
        rig.registry.select(b).unwrap();
        book.since();
        recorded.record(&rig.registry);
        // The binding, three allocations, the request.
        assert_eq!(book.since(), [gauges(a, [2, 0, 1, 3, 1, 1, 4096, 5]), gauges(b, [1, 1, 0, 0, 0, 0, 0, 0])].concat());

        assert!(queued.execute().is_complete());
        rig.registry.invalidate_device(DEVICE, "lost").unwrap();
        book.since();
        recorded.record(&rig.registry);
        assert_eq!(book.since(), [gauges(a, [3, 0, 0, 3, 0, 1, 4096, 4]), gauges(b, [3, 0, 0, 0, 0, 0, 0, 0])].concat());

        rig.registry.confirm_context_terminated(rig.context).unwrap();
        book.since();
        drop((live, binding));
        recorded.record(&rig.registry);
        assert_eq!(book.since(), [gauges(a, [4, 0, 0, 0, 0, 0, 0, 0]), gauges(b, [4, 0, 0, 0, 0, 0, 0, 0])].concat());
    });
}

/// What was recorded and is registered no more is set to 0 once; what was never recorded is not touched; `clear` forgets the rest.
#[test]
fn what_has_gone_is_zero_once() {
    let (rig, book) = (Rig::new(), Book::silent());
    let (a, b) = (rig.mechanism, another(&rig, "B"));
    let mut recorded = MechanismGauges::default();
    let mut ask = || {
        book.since();
        with(&book, || recorded.record(&rig.registry));
        book.since()
    };
    assert_eq!(ask().len(), 16);
    rig.registry.retire(b).unwrap();
    rig.registry.remove(b).unwrap();
    let unseen = another(&rig, "U");
    rig.registry.retire(unseen).unwrap();
    rig.registry.remove(unseen).unwrap();
    let standing = gauges(a, [1, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(ask(), [standing.clone(), gauges(b, [0; 8])].concat());
    assert_eq!(ask(), standing);
    for expected in [gauges(a, [0; 8]), vec![]] {
        with(&book, || recorded.clear());
        assert_eq!(book.since(), expected);
    }
    with(&book, || recorded.record(&BindingRegistry::new().unwrap()));
    assert_eq!(book.since(), [""; 0]);
}

/// Each metric is described once, with its unit, under the name that it comes with.
#[test]
fn what_is_described_is_what_comes() {
    let book = Book::silent();
    let rig = with(&book, Rig::new);
    with(&book, || MechanismGauges::default().record(&rig.registry));
    let name = |text: &String| text.split(' ').next().unwrap().to_owned();
    let told: BTreeSet<String> = book.since().iter().map(name).collect();
    with(&book, describe_metrics);
    let described = book.since();
    assert_eq!((told.len(), described.len()), (9, 9));
    for text in described {
        let words: Vec<_> = text.split(' ').collect();
        assert!(told.contains(words[1]), "{text}");
        assert_eq!(words[3], if words[1].ends_with("bytes") { "Bytes" } else { "Count" });
        assert_eq!(words[0] == "counter", words[1].ends_with("_total"));
    }
}

/// R106: a recorder may call everything, whatever it is told, and record as well; and end the mechanism that it has just heard of.
#[test]
fn a_recorder_may_call_everything() {
    in_time(|| {
        let rig = Rig::new();
        let (reach, registry, mechanism) = (Reach::of(&rig), rig.registry.clone(), rig.mechanism);
        let book = Book::new(move |text| {
            match text.contains("mechanism retired") {
                true => registry.remove(mechanism).unwrap(),
                false => reach.clone().whole_api(),
            }
            MechanismGauges::default().record(&registry);
        });
        with(&book, || {
            MechanismGauges::default().record(&rig.registry);
            assert_eq!(book.since(), gauges(rig.mechanism, [1, 1, 0, 0, 0, 0, 0, 0]));
            let spare = rig.registry.register_authority(DEVICE, Resource::authority("spare", &rig.log, &rig.script)).unwrap();
            rig.registry.remove_authority(spare).unwrap();
            rig.registry.retire(rig.mechanism).unwrap();
        });
        assert_eq!(book.since(), steps(["authority registered", "authority removed", "mechanism retired"]));
        assert_eq!(rig.registry.snapshots().unwrap(), []);
    });
}

/// R107, R111: a recorder that does not return delays the call that tells it, and nobody else: neither a step nor `record`.
#[test]
fn a_recorder_that_does_not_return_delays_nobody_else() {
    fn stopped_in(call: impl FnOnce(&BindingRegistry, RegisteredMechanism) + Send + 'static) {
        in_time(|| {
            let rig = Rig::new();
            let (registry, mechanism) = (rig.registry.clone(), rig.mechanism);
            let (stop, gate) = gate();
            let stop = Mutex::new(Some(stop));
            let book = Book::new(move |_| {
                if let Some(stop) = stop.lock().unwrap().take() {
                    stop.park();
                }
            });
            let stopped = thread::spawn(move || with(&book, || call(&registry, mechanism)));
            gate.reached();
            let book = Book::silent();
            with(&book, || MechanismGauges::default().record(&rig.registry));
            assert_eq!(book.since().len(), 8);
            rig.finish();
            gate.open();
            stopped.join().unwrap();
        });
    }
    stopped_in(|registry, mechanism| registry.retire(mechanism).unwrap());
    stopped_in(|registry, _| MechanismGauges::default().record(registry));
}

/// R118: a recorder's panic is the caller's, and the step stands; after a destructor's it is counted.
#[test]
fn a_recorder_that_panics() {
    let rig = Rig::new();
    let registry = &rig.registry;
    let told = |step: &mut dyn FnMut()| {
        let book = Book::new(|_| panic!("recorder"));
        let panic = catch_unwind(AssertUnwindSafe(|| with(&book, step))).unwrap_err();
        (*panic.downcast_ref::<&str>().unwrap(), book.since().len())
    };
    assert_eq!(told(&mut || registry.select(rig.mechanism).unwrap()), ("recorder", 1));
    assert_eq!(registry.device(DEVICE).selected(), Some(rig.mechanism.identity()));
    assert_eq!(told(&mut || registry.retire(rig.mechanism).unwrap()), ("recorder", 1));
    assert_eq!(registry.snapshot(rig.mechanism).unwrap().lifecycle, MechanismLifecycle::Retired);

    let mut recorded = MechanismGauges::default();
    assert_eq!(told(&mut || recorded.record(registry)), ("recorder", 1));
    arm(&rig.script.drop, || panic!("allocator"));
    let suppressed = suppressed_panics();
    assert_eq!(told(&mut || registry.remove(rig.mechanism).unwrap()), ("allocator", 2));
    assert_eq!(suppressed_panics() - suppressed, 2);
    // It was recorded in part, and then in part set to 0: all of it is, in the end.
    assert_eq!(told(&mut || recorded.record(registry)), ("recorder", 1));
    let book = Book::silent();
    with(&book, || recorded.record(registry));
    assert_eq!(book.since(), gauges(rig.mechanism, [0; 8]));
}
