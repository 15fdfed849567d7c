//! An error or a panic on the way out stops what has nothing to do with it.

use crate::{
    OTHER,
    common::{
        another::another,
        api::Reach,
        arm::arm,
        doubles::{Double, Log, Resource, Script},
        park::gate,
        refused::refused,
        rig::{DEVICE, Rig},
        watchdog::in_time,
    },
    counting, register, take_away,
    work::{Waiting, Work},
};
use liveslot::*;
use std::{
    array,
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
    ptr::NonNull,
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

const NAMES: [&str; 3] = ["A0", "A1", "A2"];

/// Mechanisms with one authority and one context. One of them panics in its destructor.
struct Batch {
    log: Log,
    registry: BindingRegistry,
    context: RegisteredProviderContext,
    authority: RegisteredAuthority,
    mechanisms: [RegisteredMechanism; NAMES.len()],
}

impl Batch {
    fn new(panicking: usize) -> Self {
        let (log, scripts) = (Log::default(), NAMES.map(|_| Arc::<Script>::default()));
        let registry = BindingRegistry::new().unwrap();
        let context = registry.register_provider_context(DEVICE, Resource::context("C", &log, &scripts[0])).unwrap();
        let authority = registry.register_authority(DEVICE, Resource::authority("Q", &log, &scripts[0])).unwrap();
        let mechanisms = array::from_fn(|at| {
            let allocator = Double::new(NAMES[at], ["Q", "C"], DEVICE, &log, &scripts[at]);
            registry.register_allocator_with_device(context, authority, allocator, DEVICE).unwrap()
        });
        arm(&scripts[panicking].drop, || panic!("in the destructor"));
        Self { log, registry, context, authority, mechanisms }
    }
}

/// Ends all of a batch, in one go: everything ends, and one panic comes of it.
fn ends_whole(log: &Log, end: impl FnOnce()) {
    let before = suppressed_panics();
    let panic = catch_unwind(AssertUnwindSafe(end)).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"in the destructor"));
    assert_eq!(suppressed_panics(), before);
    let mut ended = log.take();
    let last = ended.split_off(NAMES.len().min(ended.len()));
    ended.sort();
    assert_eq!(ended, NAMES.map(|name| format!("{name} dropped")));
    assert_eq!(last, ["Q dropped", "C dropped"]);
}

/// C074, R118: a registry ends with mechanisms of which one panics in its destructor: the others end all the same, and so do authority and
/// context.
#[test]
fn a_destructors_panic_stops_no_other_end() {
    let _alone = counting();
    for panicking in 0..NAMES.len() {
        let Batch { log, registry, .. } = Batch::new(panicking);
        ends_whole(&log, || drop(registry));
    }
}

/// C074, R50, R118: the same of mechanisms that end with their last handles. Who works with another one meanwhile, in the same registry,
/// runs nobody's destructor and gets nobody's panic.
#[test]
fn a_destructors_panic_is_its_callers_alone() {
    let _alone = counting();
    for panicking in 0..NAMES.len() {
        let Batch { log, registry, context, authority, mechanisms } = Batch::new(panicking);
        register(&registry, OTHER, Arc::new(HostAllocator));
        let last = mechanisms.map(|mechanism| registry.bind_registered(mechanism).unwrap());
        mechanisms.into_iter().for_each(|mechanism| take_away(&registry, mechanism));
        registry.remove_authority(authority).unwrap();
        registry.remove_provider_context(context).unwrap();
        assert_eq!(log.take(), [""; 0]);

        let begin = Barrier::new(2);
        thread::scope(|scope| {
            let working = scope.spawn(|| {
                begin.wait();
                for _ in 0..1_000 {
                    let binding = registry.bind(OTHER).unwrap();
                    binding.release(binding.allocate(8, 8).unwrap()).unwrap();
                }
            });
            begin.wait();
            ends_whole(&log, || drop(last));
            working.join().unwrap();
        });
    }
}

/// An allocator that refuses some of the releases, by their number. Nobody looks behind its addresses.
#[derive(Debug)]
struct Refuses {
    refused: fn(usize) -> bool,
    releases: AtomicUsize,
}

impl Refuses {
    fn new(refused: fn(usize) -> bool) -> Arc<Self> {
        Arc::new(Self { refused, releases: AtomicUsize::new(0) })
    }
}

impl DeviceAllocator for Refuses {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        Ok(NonNull::<u64>::dangling().cast())
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {
        unreachable!("what is made is released")
    }

    unsafe fn release(&self, _: NonNull<u8>, bytes: usize, _: usize) -> AllocationReleaseOutcome {
        let number = self.releases.fetch_add(1, SeqCst);
        if (self.refused)(number) {
            AllocationReleaseOutcome::failed("the driver says no")
        } else {
            AllocationReleaseOutcome::complete(ReleaseAccounting::eager(bytes as u64))
        }
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

/// Executes a release as it is dropped.
struct AtItsEnd(Option<PreparedAllocationRelease>);

impl AtItsEnd {
    fn new(owner: OwningAllocation) -> Self {
        Self(Some(owner.prepare_release().unwrap()))
    }
}

impl Drop for AtItsEnd {
    fn drop(&mut self) {
        assert!(self.0.take().unwrap().execute().is_quarantined());
    }
}

/// C076, R31, R35, R86, R90, R91, R94: a device that takes nothing back panics nobody who lets go of his blocks, not even a thread that
/// unwinds; each block stays counted. The same on a device that is lost, which is not even asked.
#[test]
fn nothing_panics_that_cannot_be_given_back() {
    const EACH: usize = 100;
    for (lost, unwinding) in [(false, false), (false, true), (true, false), (true, true)] {
        let allocator = Refuses::new(|_| true);
        let registry = BindingRegistry::new().unwrap();
        let (mechanism, context, _) = register(&registry, DEVICE, allocator.clone());
        let binding = registry.bind(DEVICE).unwrap();
        let owner = || binding.allocate_owning(16, 8).unwrap();
        let bound: [BoundAllocation; EACH] = array::from_fn(|_| binding.allocate(16, 8).unwrap());
        let owned: [OwningAllocation; EACH] = array::from_fn(|_| owner());
        let viewed: [(OwningAllocation, OwnedView); EACH] = array::from_fn(|_| owner()).map(|owner| {
            let view = owner.view(0, 16).unwrap();
            (owner, view)
        });
        let prepared: [PreparedAllocationRelease; EACH] = array::from_fn(|_| owner().prepare_release().unwrap());
        let executed: [AtItsEnd; EACH] = array::from_fn(|_| AtItsEnd::new(owner()));
        if lost {
            registry.invalidate_device(DEVICE, "fell off the bus").unwrap();
        }
        let letting_go = thread::spawn(move || {
            let _held = (bound, owned, viewed, prepared, executed);
            if unwinding {
                panic!("the thread's own");
            }
        });
        match letting_go.join() {
            Ok(()) => assert!(!unwinding),
            Err(panic) => assert!(unwinding && panic.downcast_ref() == Some(&"the thread's own")),
        }
        let snapshot = binding.mechanism_snapshot().unwrap();
        // Owners that are dropped after a loss leave their blocks as they were, and plain metadata always does.
        let live = if lost { 3 * EACH } else { EACH };
        assert_eq!((snapshot.live_allocations, snapshot.queued_releases, snapshot.active_operations), (live, 0, 0));
        assert_eq!(snapshot.quarantined_allocations, 5 * EACH - live);
        assert_eq!(snapshot.quarantined_bytes, 16 * (5 * EACH - live) as u64);
        assert_eq!(allocator.releases.load(SeqCst), if lost { 0 } else { EACH });
        registry.invalidate_device(DEVICE, "reset").unwrap();
        registry.confirm_context_terminated(context).unwrap();
        registry.remove(mechanism).unwrap();
    }
}

/// C077, R59, R90, R95: a release that fails is its own mechanism's to report, and no later call's, be it on the same mechanism, beside it
/// or on another device.
#[test]
fn a_failure_is_told_once_and_by_its_own_mechanism() {
    let rig = Rig::new();
    let beside = another(&rig, "B");
    let (elsewhere, ..) = register(&rig.registry, OTHER, Arc::new(HostAllocator));
    let bindings = [rig.mechanism, beside, elsewhere].map(|mechanism| rig.registry.bind_registered(mechanism).unwrap());
    let owner = bindings[0].allocate_owning(16, 8).unwrap();
    let identity = owner.identity();
    arm(&rig.script.release, || AllocationReleaseOutcome::failed("the driver says no"));
    assert!(owner.release_now().unwrap().is_quarantined());

    for binding in &bindings {
        binding.release(binding.allocate(8, 8).unwrap()).unwrap();
        assert!(binding.allocate_owning(8, 8).unwrap().release_now().unwrap().is_complete());
    }
    let of = |mechanism| rig.registry.quarantined(mechanism).unwrap();
    let [entry] = of(rig.mechanism)[..] else { panic!("one failure") };
    assert_eq!((entry.identity, entry.reason, entry.retained_bytes), (identity, QuarantineReason::AllocatorRefused, 16));
    assert_eq!((of(beside), of(elsewhere)), (vec![], vec![]));
    drop(bindings);
    take_away(&rig.registry, beside);
    take_away(&rig.registry, elsewhere);
    rig.registry.retire(rig.mechanism).unwrap();
    refused(rig.registry.remove(rig.mechanism), BindingError::QuarantinedOwnership { mechanism: rig.mechanism.identity(), quarantined: 1 });
}

/// C079, R42, R48, R90, R95: one of five releases fails: the other four are made, the failure is listed, and the end of the context is
/// reached all the same, whether the five go back one by one or out of a queue.
#[test]
fn a_failed_release_stops_no_other() {
    for queued in [false, true] {
        let (log, script) = (Log::default(), Arc::<Script>::default());
        let allocator = Refuses::new(|number| number == 1);
        let registry = BindingRegistry::new().unwrap();
        let context = registry.register_provider_context(DEVICE, Resource::context("C", &log, &script)).unwrap();
        let authority = registry.register_authority(DEVICE, Resource::authority("Q", &log, &script)).unwrap();
        let mechanism = registry.register_allocator(context, authority, allocator.clone()).unwrap();
        let binding = registry.bind(DEVICE).unwrap();
        let blocks: [OwningAllocation; 5] = array::from_fn(|_| binding.allocate_owning(16, 8).unwrap());
        let second = blocks[1].identity();
        registry.retire(mechanism).unwrap();
        if queued {
            let (waiting, work) = (Waiting::default(), Work::default());
            for block in blocks {
                assert!(block.release_deferred(&waiting.after(&[&work])).unwrap().is_queued());
            }
            work.complete();
            assert_eq!(waiting.poll(), (4, 1));
        } else {
            let complete = blocks.map(|block| block.release_now().unwrap().is_complete());
            assert_eq!(complete, [true, false, true, true, true]);
        }
        assert_eq!(allocator.releases.load(SeqCst), 5);
        let [entry] = registry.quarantined(mechanism).unwrap()[..] else { panic!("one failure") };
        assert_eq!((entry.identity, entry.reason), (second, QuarantineReason::AllocatorRefused));
        let owning = BindingError::QuarantinedOwnership { mechanism: mechanism.identity(), quarantined: 1 };
        refused(registry.remove(mechanism), owning);

        registry.invalidate_device(DEVICE, "reset").unwrap();
        registry.confirm_context_terminated(context).unwrap();
        registry.remove(mechanism).unwrap();
        registry.remove_authority(authority).unwrap();
        registry.remove_provider_context(context).unwrap();
        assert_eq!(log.take(), [""; 0]);
        drop(binding);
        assert_eq!(log.take(), ["Q dropped", "C dropped"]);
    }
}

/// C081, R115, R119: a panic within the allocator reaches the worker that called it, with its own text; the mechanism is as healthy and as
/// selected as before, for others meanwhile, and afterwards.
#[test]
fn a_panic_in_the_allocator_keeps_its_text_and_poisons_nothing() {
    let rig = Rig::new();
    let device = rig.registry.device(DEVICE);
    let version = device.version();
    let calls: [fn(&MemoryBinding); 2] = [|binding| drop(binding.allocate(8, 8)), |binding| drop(binding.allocate_owning(8, 8))];
    for allocate in calls {
        let (stop, inside) = gate();
        arm(&rig.script.allocate, move || {
            stop.park();
            panic_any("the device answers 719".to_owned())
        });
        let binding = rig.registry.bind(DEVICE).unwrap();
        let worker = thread::spawn(move || allocate(&binding));
        inside.reached();
        let other = rig.registry.bind(DEVICE).unwrap();
        assert!(other.allocate_owning(8, 8).unwrap().release_now().unwrap().is_complete());
        inside.open();
        let panic = worker.join().unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().unwrap(), "the device answers 719");

        assert!(other.allocate_owning(8, 8).unwrap().release_now().unwrap().is_complete());
        let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!(snapshot.lifecycle, MechanismLifecycle::Active);
        assert_eq!((snapshot.live_allocations, snapshot.active_operations), (0, 0));
        assert_eq!((device.selected(), device.version()), (Some(rig.mechanism.identity()), version));
    }
    let reach = Reach::of(&rig);
    in_time(|| reach.whole_api());
    drop(device);
    rig.finish();
}
