//! Feature `holders`: which bindings are listed, as what, and how long.

mod common {
    pub mod another;
    pub mod arm;
    pub mod doubles;
    pub mod rig;
    pub mod watchdog;
}

use common::{
    another::another,
    arm::arm,
    rig::{DEVICE, Rig},
    watchdog::in_time,
};
use liveslot::*;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::RefCell,
    collections::HashSet,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicIsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

/// The global allocator, which knows how many bytes are out.
struct Net;

static BYTES: AtomicIsize = AtomicIsize::new(0);

#[global_allocator]
static NET: Net = Net;

// SAFETY: all work is the system allocator's.
unsafe impl GlobalAlloc for Net {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as isize, SeqCst);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as isize, SeqCst);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn listed(rig: &Rig) -> Vec<Holder> {
    rig.registry.holders(rig.mechanism).unwrap()
}

/// The only one, with its counts.
#[track_caller]
fn only(holders: &[Holder]) -> (Holder, [usize; 2]) {
    let [holder] = holders else { panic!("not one holder: {holders:?}") };
    (*holder, [holder.handles, holder.allocations])
}

/// R105: each door lists the very call, whatever it goes through, and listing calls nobody.
#[test]
fn the_place_is_the_call() {
    let rig = Rig::new();
    let device = rig.registry.device(DEVICE);
    let (first, a) = (line!(), rig.registry.bind(DEVICE).unwrap());
    let (second, b) = (line!(), device.bind().unwrap());
    let (third, c) = (line!(), rig.registry.bind_registered(rig.mechanism).unwrap());
    #[track_caller]
    fn tracking(device: &DeviceHandle) -> MemoryBinding {
        device.bind().unwrap()
    }
    let (fourth, d) = (line!(), tracking(&device));
    let places: Vec<_> = listed(&rig).iter().map(|holder| (holder.place.file(), holder.place.line())).collect();
    assert_eq!(places, [first, second, third, fourth].map(|line| (file!(), line)));
    assert_eq!(rig.log.take(), [""; 0], "nobody was called");
    let ids: Vec<_> = listed(&rig).iter().map(|holder| holder.binding).collect();
    assert_eq!(ids, [&a, &b, &c, &d].map(|binding| binding.identity().id()));
    assert_eq!(a.holders().iter().map(|holder| holder.binding).collect::<Vec<_>>(), ids);
    drop((a, b, c, d));
    assert_eq!(listed(&rig), []);
    rig.finish();
}

/// A label is the binding's, its clones' and its records', whenever they were made; the first one stays.
#[test]
fn a_label_is_shared_and_stays() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let early = binding.clone();
    assert_eq!(only(&listed(&rig)).0.label, None);
    let binding = binding.labelled("decoder");
    assert_eq!(only(&listed(&rig)).0.label, Some("decoder"));
    let late = binding.clone().labelled("another");
    assert_eq!(only(&listed(&rig)).0.label, Some("decoder"));
    drop(binding);
    let early = early.labelled("a third");
    assert_eq!(only(&late.holders()).0.label, Some("decoder"));
    let owner = late.allocate_owning(8, 8).unwrap();
    drop((early, late));
    assert_eq!(only(&listed(&rig)).0.label, Some("decoder"));
    owner.release_now().unwrap();
    assert_eq!(listed(&rig), []);
    rig.finish();
}

/// Handles and allocations, each counted while it is there, wherever it stands.
#[test]
fn the_counts_are_exact() {
    let rig = Rig::new();
    rig.script.offers_virtual_backing.store(true, SeqCst);
    rig.script.offers_shared_mapping.store(true, SeqCst);
    let counts = || only(&listed(&rig)).1;
    let binding = rig.registry.bind(DEVICE).unwrap();
    assert_eq!(counts(), [1, 0]);
    let clones = [binding.clone(), binding.clone()];
    assert_eq!(counts(), [3, 0]);
    drop(clones);
    assert_eq!(counts(), [1, 0]);

    let allocation = binding.allocate(64, 8).unwrap();
    assert_eq!(counts(), [1, 1]);
    let of_the_record = allocation.binding().clone();
    assert_eq!(counts(), [2, 1], "a clone of an allocation's binding is a handle");
    drop(of_the_record);
    let view = allocation.view(0, 64).unwrap();
    let again = view.clone();
    assert_eq!(counts(), [1, 1], "views share the record");
    binding.release(allocation).unwrap();
    assert_eq!(counts(), [1, 1], "a view keeps the record");
    drop((view, again));
    assert_eq!(counts(), [1, 0]);

    let owner = binding.allocate_owning(8, 8).unwrap();
    let view = owner.view(0, 8).unwrap();
    let prepared = binding.prepare_release(binding.allocate(8, 8).unwrap()).unwrap();
    assert_eq!(counts(), [1, 2]);
    prepared.execute();
    assert_eq!(counts(), [1, 1]);
    drop(view);
    owner.release_now().unwrap();
    assert_eq!(counts(), [1, 0]);

    let backing = binding.virtual_backing().unwrap().unwrap();
    let mapping = binding.shared_mapping().unwrap().unwrap();
    assert_eq!(counts(), [3, 0]);
    let prefix = mapping.create_shared_prefix(8).unwrap();
    let committed = backing.allocate_committed(8, 8, &[]).unwrap();
    assert_eq!(counts(), [4, 1]);
    binding.release(committed).unwrap();
    drop((backing, mapping, prefix));
    assert_eq!(counts(), [1, 0]);

    // A refused allocation, and a refused release that hands its allocation back.
    arm(&rig.script.allocate, || Err(MemoryError::InvalidRequest { tier: "device", requested: 8, reason: "refused" }));
    binding.allocate(8, 8).unwrap_err();
    assert_eq!(counts(), [1, 0]);
    let elsewhere = rig.registry.bind(DEVICE).unwrap();
    let refused = elsewhere.release(binding.allocate(8, 8).unwrap()).unwrap_err();
    drop(elsewhere);
    assert_eq!(counts(), [1, 1]);
    drop(binding);
    assert_eq!(counts(), [0, 1], "metadata alone is a holder, too");
    drop(refused);
    assert_eq!(listed(&rig), []);
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().live_allocations, 1, "metadata is no owner");
}

/// The oldest first, and no older than it can be.
#[test]
fn ages() {
    let rig = Rig::new();
    let begin = Instant::now();
    let bindings: Vec<_> = (0..5).map(|_| rig.registry.bind(DEVICE).unwrap()).collect();
    let holders = listed(&rig);
    let most = begin.elapsed();
    assert!(holders.is_sorted_by(|one, two| one.age >= two.age));
    assert!(holders[0].age <= most);
    assert_eq!(holders[0].binding, bindings[0].identity().id());
    assert!(listed(&rig)[4].age >= holders[4].age);
    drop(bindings);
    rig.finish();
}

/// R16, R44, R48, R56: listed by mechanism. A foreign token and one of a removed mechanism are refused, while what holds that mechanism
/// still answers, also without the registry; and a list keeps nothing.
#[test]
fn every_end_of_a_mechanism() {
    let rig = Rig::new();
    let beside = another(&rig, "B");
    let binding = rig.registry.bind_registered(beside).unwrap().labelled("kept");
    assert_eq!(listed(&rig), []);
    let stranger = BindingRegistry::new().unwrap();
    assert!(matches!(stranger.holders(beside), Err(BindingError::ForeignRegistry { kind: "mechanism" })));

    let holders = rig.registry.holders(beside).unwrap();
    rig.registry.retire(beside).unwrap();
    assert_eq!(only(&rig.registry.holders(beside).unwrap()).1, [1, 0]);
    rig.registry.remove(beside).unwrap();
    let refused = rig.registry.holders(beside);
    assert!(matches!(refused, Err(BindingError::UnregisteredMechanism(mechanism)) if mechanism == beside.identity()));
    let another = binding.clone();
    assert_eq!(only(&binding.holders()).1, [2, 0]);
    rig.log.take();
    drop((binding, another));
    assert_eq!(rig.log.take(), ["B dropped"]);
    assert_eq!((holders.len(), holders[0].label), (1, Some("kept")));

    let Rig { log, registry, .. } = rig;
    let binding = registry.bind(DEVICE).unwrap();
    drop(registry);
    assert_eq!(only(&binding.holders()).1, [1, 0]);
    log.take();
    drop(binding);
    assert_eq!(log.take(), ["A dropped", "Q dropped", "C dropped"]);
}

/// A lost and a terminated mechanism has holders as well.
#[test]
fn after_a_loss() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    rig.registry.invalidate_device(DEVICE, "gone").unwrap();
    assert_eq!(only(&listed(&rig)).1, [1, 0]);
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    assert_eq!(only(&listed(&rig)).1, [1, 0]);
    drop(binding);
    assert_eq!(listed(&rig), []);
    rig.finish();
}

/// A refused binding is not listed.
#[test]
fn a_refused_binding() {
    let rig = Rig::new();
    rig.registry.retire(rig.mechanism).unwrap();
    rig.registry.bind(DEVICE).unwrap_err();
    rig.registry.bind_registered(rig.mechanism).unwrap_err();
    assert_eq!(listed(&rig), []);
    rig.finish();
}

/// The entry goes with the last share, on whichever thread that is.
#[test]
fn the_last_share_goes_on_another_thread() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let owner = binding.allocate_owning(8, 8).unwrap();
    thread::spawn(move || drop(binding)).join().unwrap();
    assert_eq!(only(&listed(&rig)).1, [0, 1]);
    thread::spawn(move || drop(owner.release_now())).join().unwrap();
    assert_eq!(listed(&rig), []);
    rig.finish();
}

/// So it does while its thread unwinds, from a call or from a destructor, and when that is the mechanism's end.
#[test]
fn the_last_share_goes_while_unwinding() {
    let rig = Rig::new();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let binding = rig.registry.bind(DEVICE).unwrap();
        let (_clone, allocation) = (binding.clone(), binding.allocate(8, 8).unwrap());
        let view = allocation.view(0, 8).unwrap();
        binding.release(allocation).unwrap();
        binding.with_view(&view.clone(), |_| ()).unwrap_err();
        assert_eq!(only(&listed(&rig)).1, [2, 1]);
        resume_unwind(Box::new("unwound"));
    }));
    assert_eq!(unwound.unwrap_err().downcast_ref(), Some(&"unwound"));
    assert_eq!(listed(&rig), []);

    rig.log.take();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _binding = rig.registry.bind(DEVICE).unwrap();
        rig.registry.retire(rig.mechanism).unwrap();
        rig.registry.remove(rig.mechanism).unwrap();
        resume_unwind(Box::new("unwound"));
    }));
    assert_eq!(unwound.unwrap_err().downcast_ref(), Some(&"unwound"));
    assert_eq!(rig.log.take(), ["A dropped"]);
}

/// And at a thread's end, whether the library's thread-locals were made before the one that keeps it or after.
#[test]
fn the_last_share_goes_in_a_thread_local_destructor() {
    thread_local! {
        static KEPT: RefCell<Vec<MemoryBinding>> = const { RefCell::new(Vec::new()) };
    }

    for kept_first in [false, true] {
        let rig = Rig::new();
        let beside = another(&rig, "B");
        thread::scope(|scope| {
            let keep = || {
                if kept_first {
                    KEPT.set(Vec::new());
                }
                let bindings = [rig.mechanism, beside].map(|mechanism| rig.registry.bind_registered(mechanism).unwrap());
                // A last share, which makes the library's own thread-local if no binding has.
                drop(rig.registry.bind(DEVICE).unwrap());
                KEPT.set(bindings.into());
                rig.registry.retire(beside).unwrap();
                rig.registry.remove(beside).unwrap();
                assert_eq!(only(&listed(&rig)).1, [1, 0]);
            };
            let thread = scope.spawn(keep);
            // Joined as a thread: a scope's own wait ends before the thread-locals do.
            thread.join().unwrap();
        });
        assert_eq!(listed(&rig), []);
        assert!(rig.log.take().contains(&"B dropped".to_owned()));
        rig.finish();
    }
}

/// The destructor that a last binding runs finds nobody listed for its own mechanism, and may bind and list others.
#[test]
fn a_destructor_may_list() {
    in_time(|| {
        let rig = Rig::new();
        let beside = another(&rig, "B");
        let registry = rig.registry.clone();
        let binding = rig.registry.bind_registered(rig.mechanism).unwrap();
        arm(&rig.script.drop, move || {
            let inner = registry.bind_registered(beside).unwrap();
            assert_eq!(only(&registry.holders(beside).unwrap()).0.binding, inner.identity().id());
            drop(inner);
            assert_eq!(registry.holders(beside).unwrap(), []);
        });
        rig.registry.retire(rig.mechanism).unwrap();
        rig.registry.remove(rig.mechanism).unwrap();
        drop(binding);
        assert!(rig.script.is_spent());
    });
}

/// Who binds finds itself listed, with exactly what it has, and nobody twice, whoever comes and goes meanwhile; at the end nobody is.
#[test]
fn stress() {
    const LABELS: [&str; 3] = ["first", "second", "third"];
    let rig = Rig::new();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers = LABELS.map(|label| {
            let rig = &rig;
            scope.spawn(move || {
                let device = rig.registry.device(DEVICE);
                for round in 0..400 {
                    let binding = match round % 3 {
                        0 => device.bind(),
                        1 => rig.registry.bind(DEVICE),
                        _ => rig.registry.bind_registered(rig.mechanism),
                    };
                    let binding = binding.unwrap().labelled(label);
                    let (clone, allocation) = (binding.clone(), binding.allocate(8, 8).unwrap());
                    let id = binding.identity().id();
                    let of = |holders: Vec<Holder>| -> Vec<_> {
                        let own = holders.into_iter().filter(|holder| holder.binding == id);
                        own.map(|holder| (holder.label, holder.handles, holder.allocations)).collect()
                    };
                    assert_eq!(of(listed(rig)), [(Some(label), 2, 1)]);
                    clone.release(allocation).unwrap();
                    drop(binding);
                    assert_eq!(of(clone.holders()), [(Some(label), 1, 0)]);
                    drop(clone);
                    assert_eq!(of(listed(rig)), []);
                }
            })
        });
        scope.spawn(|| {
            while !done.load(SeqCst) {
                let holders = listed(&rig);
                let distinct: HashSet<_> = holders.iter().map(|holder| holder.binding).collect();
                assert_eq!(distinct.len(), holders.len());
                for holder in holders {
                    assert!((1..=2).contains(&holder.handles) && holder.allocations <= 1, "{holder}");
                    assert!(holder.label.is_none_or(|label| LABELS.contains(&label)));
                }
            }
        });
        let ended = workers.map(|worker| worker.join());
        done.store(true, SeqCst);
        assert!(ended.iter().all(Result::is_ok));
    });
    assert_eq!(listed(&rig), []);
    rig.finish();
}

/// What bindings leave behind when they have gone goes as soon as the epoch allows it, all but what doesn't grow with their number: an entry
/// and a label are more than 64 bytes.
#[test]
fn memory_is_flat() {
    const THREADS: usize = 4;
    const EACH: usize = 20_000;
    in_time(|| {
        let rig = Rig::new();
        let before = BYTES.load(SeqCst);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let device = rig.registry.device(DEVICE);
                    for _ in 0..EACH {
                        drop(device.bind().unwrap().labelled("one of many"));
                    }
                });
            }
        });
        // Each look is a step of the epoch, which a thread that was stopped while it looked has kept back.
        while BYTES.load(SeqCst) - before > (THREADS * EACH * 64 / 4) as isize {
            assert_eq!(listed(&rig), []);
        }
        rig.finish();
    });
}

/// Texts: a line for each, and a node and an edge in the registry's picture, whatever the label has in it.
#[test]
fn texts() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap().labelled(r#"a "b" \ c"#);
    let holder = Holder { age: Duration::from_secs(3), ..only(&listed(&rig)).0 };
    let place = holder.place;
    let (binding_number, mechanism) = (number(holder.binding), number(rig.mechanism.identity()));
    let text = format!(r#"binding {binding_number} "a \"b\" \\ c" of {place}, 3.0s old: handles 1, allocations 0"#);
    assert_eq!(holder.to_string(), text);

    let dot = rig.registry.to_dot();
    let node = format!("\n  \"binding {binding_number}\" [shape=plaintext, label=\"binding {binding_number} ");
    let begin = dot.find(&node).expect("a node") + node.len();
    assert!(dot[begin..].starts_with(r#"\"a \\\"b\\\" \\\\ c\" of "#), "{dot}");
    assert!(dot.contains(&format!("\n  \"binding {binding_number}\" -> \"mechanism {mechanism}\";\n")), "{dot}");
    drop(binding);
    assert!(!rig.registry.to_dot().contains("binding"));
    rig.finish();
}

/// C124: a drain whose time is over names who holds what it waits for, and for how long; and so does a teardown.
#[test]
fn a_wait_that_takes_too_long_names_the_holders() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap().labelled("the cache");
    let leaked = binding.allocate(64, 8).unwrap();
    let mut teardown = rig.registry.teardown(rig.mechanism).unwrap();

    let mut drain = rig.registry.retire_and_drain(rig.mechanism).unwrap();
    let Err(DrainError::TimedOut(report)) = drain.wait(Duration::ZERO) else { panic!("drained") };
    assert_eq!(report.snapshot.live_allocations, 1);
    let (holder, counts) = only(&report.holders);
    assert_eq!((holder.label, counts, report.oldest()), (Some("the cache"), [1, 1], Some(holder.age)));
    assert!(report.to_string().ends_with(&format!("; {holder}")), "{report}");

    binding.release(leaked).unwrap();
    drain.wait(Duration::ZERO).unwrap();
    let (holder, counts) = only(&teardown.wait(Duration::ZERO).unwrap_err().holders);
    assert_eq!((holder.label, counts), (Some("the cache"), [1, 0]));
    assert_eq!(drain.report().holders.len(), 1, "handles don't count");
    drop(binding);
    assert_eq!(drain.report().oldest(), None);
    rig.finish();
}

/// The number in the text of an identity.
fn number(identity: impl std::fmt::Debug) -> u64 {
    let text = format!("{identity:?}");
    text.split(['(', ')']).nth(1).expect("a number in brackets").parse().expect("a number")
}

/// A binding goes to other threads with the feature as well, and so does what is listed.
#[test]
fn threads_may_share_it() {
    fn sendable<T: Send + Sync + 'static>() {}
    sendable::<MemoryBinding>();
    sendable::<Arc<Holder>>();
}
