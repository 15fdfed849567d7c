//! Troubles that people have had with allocators, registries and hot-swapped backends, tried on this one. README.md has the list.

mod common {
    pub mod another;
    pub mod api;
    pub mod arm;
    pub mod doubles;
    pub mod park;
    pub mod refused;
    pub mod rig;
    pub mod watchdog;
}

use common::{
    another::another,
    api::Reach,
    arm::arm,
    doubles::{Double, Log, Resource, Script},
    park::{Stop, gate},
    refused::refused,
    rig::{DEVICE, Rig},
    watchdog::in_time,
};
use liveslot::*;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    sync::{
        Arc, Barrier, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread::{self, JoinHandle, ThreadId},
};

const OTHER: DeviceKey = DeviceKey::device(1);

fn nobody(device: DeviceKey) -> BindingError {
    BindingError::NoSelectedMechanism(device)
}

/// Takes a mechanism away that owns nothing.
fn take_away(registry: &BindingRegistry, mechanism: RegisteredMechanism) {
    registry.retire(mechanism).unwrap();
    registry.remove(mechanism).unwrap();
}

// What is current.

/// C001: what was selected before works through whoever holds it, and goes when they do.
#[test]
fn a_replaced_selection_works_through_its_holders() {
    let rig = Rig::new();
    let previous = rig.registry.bind(DEVICE).unwrap();
    let next = another(&rig, "B");
    rig.registry.select(next).unwrap();
    let block = previous.allocate(16, 8).unwrap();
    previous.release(block).unwrap();
    rig.registry.retire(rig.mechanism).unwrap();
    rig.registry.remove(rig.mechanism).unwrap();
    assert_eq!(rig.log.take(), ["A allocate 16 8", "A release 16 8"]);
    drop(previous);
    assert_eq!(rig.log.take(), ["A dropped"]);
    assert_eq!(rig.registry.bind(DEVICE).unwrap().identity().mechanism(), next.identity());
}

/// C002: "nothing is selected" is an answer, and all who can be asked give the same.
#[test]
fn an_empty_selection_is_an_answer_everywhere() {
    let rig = Rig::new();
    let device = rig.registry.device(DEVICE);
    rig.registry.retire(rig.mechanism).unwrap();
    refused(rig.registry.bind(DEVICE), nobody(DEVICE));
    refused(rig.registry.clone().bind(DEVICE), nobody(DEVICE));
    refused(device.bind(), nobody(DEVICE));
    assert_eq!(device.selected(), None);

    let next = another(&rig, "B");
    rig.registry.select(next).unwrap();
    assert_eq!(device.selected(), Some(next.identity()));
    for binding in [rig.registry.bind(DEVICE), rig.registry.clone().bind(DEVICE), device.bind()] {
        assert_eq!(binding.unwrap().identity().mechanism(), next.identity());
    }
    take_away(&rig.registry, next);
    drop(device);
    rig.finish();
}

/// C004: what is read while the selection flips is of one mechanism, whichever way it is read.
#[test]
fn a_reader_gets_one_mechanism_whole() {
    const FLIPS: usize = 20_000;
    let registry = BindingRegistry::new().unwrap();
    let whole = || {
        let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
        let authority = registry.register_authority(DEVICE, Arc::new(())).unwrap();
        let mechanism = registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), DEVICE).unwrap();
        (mechanism, context, authority)
    };
    let both = [whole(), whole()];
    let done = AtomicBool::new(false);
    let start = Barrier::new(4);
    let seen: Vec<[usize; 2]> = thread::scope(|scope| {
        let read = || {
            let device = registry.device(DEVICE);
            let mut seen = [0; 2];
            start.wait();
            while !done.load(SeqCst) {
                for binding in [registry.bind(DEVICE), device.bind()] {
                    let (binding, snapshot) = binding.map(|binding| (binding.identity(), binding.mechanism_snapshot().unwrap())).unwrap();
                    let at = both.iter().position(|(mechanism, ..)| mechanism.identity() == binding.mechanism()).unwrap();
                    let (_, context, authority) = both[at];
                    assert_eq!((binding.provider_context(), binding.authority()), (context.identity(), authority.identity()));
                    assert_eq!(snapshot.identity, binding.mechanism());
                    assert_eq!((snapshot.provider_context, snapshot.authority), (context.identity(), authority.identity()));
                    seen[at] += 1;
                }
                let selected = device.selected();
                assert!(both.iter().any(|(mechanism, ..)| Some(mechanism.identity()) == selected));
            }
            seen
        };
        let readers: Vec<_> = (0..3).map(|_| scope.spawn(read)).collect();
        start.wait();
        for flip in 0..FLIPS {
            registry.select(both[flip % 2].0).unwrap();
        }
        done.store(true, SeqCst);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    println!("seen of each: {seen:?}");
}

/// C007: a clone of the registry is no copy: what one selects, all see, on whichever thread.
#[test]
fn a_clone_selects_for_all() {
    let rig = Rig::new();
    let next = another(&rig, "B");
    let (clone, device) = (rig.registry.clone(), rig.registry.device(DEVICE));
    thread::spawn(move || clone.select(next)).join().unwrap().unwrap();
    assert_eq!(rig.registry.bind(DEVICE).unwrap().identity().mechanism(), next.identity());
    let elsewhere = thread::spawn(move || device.bind().unwrap().identity().mechanism());
    assert_eq!(elsewhere.join().unwrap(), next.identity());
    take_away(&rig.registry, next);
    rig.finish();
}

/// C009: what looks itself up while it is being destroyed finds its successor or nothing, never itself.
#[test]
fn the_dying_do_not_find_themselves() {
    for with_successor in [false, true] {
        let rig = Rig::new();
        let successor = with_successor.then(|| another(&rig, "B"));
        let (registry, own) = (rig.registry.clone(), rig.mechanism);
        rig.registry.retire(rig.mechanism).unwrap();
        if let Some(successor) = successor {
            rig.registry.select(successor).unwrap();
        }
        arm(&rig.script.drop, move || {
            match (registry.bind(DEVICE), successor) {
                (Ok(binding), Some(successor)) => assert_eq!(binding.identity().mechanism(), successor.identity()),
                (result, _) => refused(result, nobody(DEVICE)),
            }
            let unknown = || BindingError::UnregisteredMechanism(own.identity());
            refused(registry.bind_registered(own), unknown());
            refused(registry.snapshot(own), unknown());
            refused(registry.select(own), unknown());
            assert!(registry.snapshots().unwrap().iter().all(|snapshot| snapshot.identity != own.identity()));
        });
        rig.registry.remove(rig.mechanism).unwrap();
        assert_eq!(rig.log.take(), ["A dropped"]);
        assert!(rig.script.is_spent());
    }
}

// What an allocator's destructor needs.

/// C021: an allocator that hands memory back upstream as it ends finds its upstream, its authority and its context.
#[test]
fn an_allocator_ends_before_what_it_wraps() {
    #[derive(Debug)]
    struct Wrapper {
        upstream: Arc<Double>,
        block: Mutex<Option<Block>>,
    }

    #[derive(Debug)]
    struct Block(NonNull<u8>);

    // SAFETY: the block is the upstream's, which any thread may give it back to.
    unsafe impl Send for Block {}

    impl DeviceAllocator for Wrapper {
        fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
            self.upstream.allocate(bytes, align)
        }

        unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {
            unreachable!("nothing is released");
        }

        fn device(&self) -> DeviceKey {
            DEVICE
        }
    }

    impl Drop for Wrapper {
        fn drop(&mut self) {
            let Block(pointer) = self.block.lock().unwrap().take().unwrap();
            // SAFETY: allocated below with these values, and given back once.
            assert!(unsafe { self.upstream.release(pointer, 4096, 64) }.is_complete());
        }
    }

    let (log, script) = (Log::default(), Arc::<Script>::default());
    let upstream = Double::new("upstream", ["Q", "C"], DEVICE, &log, &script);
    let block = Mutex::new(Some(Block(upstream.allocate(4096, 64).unwrap())));
    let registry = BindingRegistry::new().unwrap();
    let context = registry.register_provider_context(DEVICE, Resource::context("C", &log, &script)).unwrap();
    let authority = registry.register_authority(DEVICE, Resource::authority("Q", &log, &script)).unwrap();
    registry.register_allocator(context, authority, Arc::new(Wrapper { upstream, block })).unwrap();
    log.take();
    drop(registry);
    assert_eq!(log.take(), ["upstream release 4096 64", "upstream dropped", "Q dropped", "C dropped"]);
}

/// C022: a resource that the contexts of several devices share ends once, after the allocators of all of them.
#[test]
fn a_resource_shared_by_devices_ends_last() {
    let (log, script) = (Log::default(), Arc::<Script>::default());
    let registry = BindingRegistry::new().unwrap();
    let shared = Resource::context("shared", &log, &script);
    let lone = Resource::context("lone", &log, &script);
    for (name, device, resource) in [("A0", DEVICE, &shared), ("A1", OTHER, &shared), ("A2", DeviceKey::device(2), &lone)] {
        let context = registry.register_provider_context(device, resource.clone()).unwrap();
        let authority = registry.register_authority(device, Arc::new(())).unwrap();
        let supports = if name == "A2" { ["lone", "lone"] } else { ["shared", "shared"] };
        registry.register_allocator(context, authority, Double::new(name, supports, device, &log, &script)).unwrap();
    }
    drop((shared, lone));
    log.take();
    drop(registry);
    let ended = log.take();
    let at = |name: &str| ended.iter().position(|entry| *entry == format!("{name} dropped")).unwrap();
    assert_eq!(ended.len(), 5, "{ended:?}");
    assert!(at("shared") > at("A0") && at("shared") > at("A1") && at("lone") > at("A2"), "{ended:?}");
}

/// C024: blocks that are given back after their registry has gone go home, and the last one ends everything.
#[test]
fn blocks_outlive_the_registry() {
    let Rig { registry, log, .. } = Rig::new();
    let holders: Vec<JoinHandle<(MemoryBinding, Vec<BoundAllocation>)>> = (0..4)
        .map(|_| {
            let binding = registry.bind(DEVICE).unwrap();
            thread::spawn(move || {
                let blocks = (0..10).map(|_| binding.allocate(16, 8).unwrap()).collect();
                (binding, blocks)
            })
        })
        .collect();
    let held: Vec<_> = holders.into_iter().map(|holder| holder.join().unwrap()).collect();
    drop(registry);
    assert_eq!(log.take(), ["A allocate 16 8"].repeat(40));
    let releasing: Vec<_> = held
        .into_iter()
        .map(|(binding, blocks)| thread::spawn(move || blocks.into_iter().for_each(|block| binding.release(block).unwrap())))
        .collect();
    releasing.into_iter().for_each(|thread| thread.join().unwrap());
    let entries = log.take();
    assert_eq!(entries[..40], ["A release 16 8"].repeat(40));
    assert_eq!(entries[40..], ["A dropped", "Q dropped", "C dropped"]);
}

/// C026: a binding that is never given back keeps its mechanism alive, and nothing else waits for it.
#[test]
fn a_forgotten_binding_keeps_its_mechanism_and_nothing_else() {
    /// Never dropped, and in reach of leak checkers.
    static FORGOTTEN: OnceLock<MemoryBinding> = OnceLock::new();

    let rig = Rig::new();
    FORGOTTEN.set(rig.registry.bind(DEVICE).unwrap()).unwrap();
    rig.registry.retire(rig.mechanism).unwrap();
    rig.registry.remove(rig.mechanism).unwrap();
    rig.registry.remove_authority(rig.authority).unwrap();
    rig.registry.remove_provider_context(rig.context).unwrap();
    let context = rig.registry.register_provider_context(OTHER, Arc::new(())).unwrap();
    let authority = rig.registry.register_authority(OTHER, Arc::new(())).unwrap();
    rig.registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), OTHER).unwrap();
    let binding = rig.registry.bind(OTHER).unwrap();
    binding.release(binding.allocate(8, 8).unwrap()).unwrap();
    drop(rig.registry);
    assert_eq!(rig.log.take(), [""; 0], "alive, and in nobody's way");
}

/// C027: nothing that a thread has done with a mechanism keeps it: threads that go on don't hold it, and bind its successor.
#[test]
fn threads_keep_nothing_of_a_removed_mechanism() {
    let rig = Rig::new();
    let next = thread::scope(|scope| {
        let use_it = |stop: Stop| {
            let device = rig.registry.device(DEVICE);
            for _ in 0..1_000 {
                let binding = device.bind().unwrap();
                binding.release(binding.allocate(8, 8).unwrap()).unwrap();
            }
            stop.park();
            (0..1_000).map(|_| device.bind().unwrap().identity().mechanism()).collect::<Vec<_>>()
        };
        let threads = [gate(), gate()].map(|(stop, gate)| (scope.spawn(move || use_it(stop)), gate));
        threads.iter().for_each(|(_, gate)| gate.reached());
        rig.log.take();
        take_away(&rig.registry, rig.mechanism);
        assert_eq!(rig.log.take(), ["A dropped"], "though both threads live");
        let next = another(&rig, "B");
        for (thread, gate) in threads {
            gate.open();
            assert!(thread.join().unwrap().iter().all(|bound| *bound == next.identity()));
        }
        next
    });
    take_away(&rig.registry, next);
    assert_eq!(rig.log.take(), ["B dropped"]);
    rig.registry.remove_authority(rig.authority).unwrap();
    rig.registry.remove_provider_context(rig.context).unwrap();
    assert_eq!(rig.log.take(), ["Q dropped", "C dropped"]);
}

// Where things end.

/// C041: a release that fails on the wrong thread is reported and keeps its block, instead of passing for a success.
#[test]
fn a_release_on_the_wrong_thread_is_kept() {
    let rig = Rig::new();
    let home = thread::current().id();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let block = binding.allocate(16, 8).unwrap();
    arm(&rig.script.release, move || {
        if thread::current().id() == home {
            AllocationReleaseOutcome::complete(ReleaseAccounting::eager(16))
        } else {
            AllocationReleaseOutcome::failed("the context cannot be made current here")
        }
    });
    let error = thread::scope(|scope| scope.spawn(|| binding.release(block)).join().unwrap()).unwrap_err();
    assert!(matches!(
        error.error(),
        BindingError::ReleaseQuarantined { reason: QuarantineReason::AllocatorRefused, retained_bytes: 16, .. }
    ));
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().quarantined_allocations, 1);
    let owning = BindingError::QuarantinedOwnership { mechanism: rig.mechanism.identity(), quarantined: 1 };
    rig.registry.retire(rig.mechanism).unwrap();
    refused(rig.registry.remove(rig.mechanism), owning);
    drop((binding, error));
    rig.registry.invalidate_device(DEVICE, "reset").unwrap();
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    rig.finish();
}

/// C042: the last handle's thread is where an allocator ends, its own worker included; one that knows does not join itself.
#[test]
fn an_allocator_may_end_on_its_own_worker() {
    #[derive(Debug)]
    struct Working {
        worker: Mutex<Option<JoinHandle<()>>>,
        ended_on: mpsc::Sender<ThreadId>,
    }

    impl DeviceAllocator for Working {
        fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
            HostAllocator.allocate(bytes, align)
        }

        unsafe fn deallocate(&self, pointer: NonNull<u8>, bytes: usize, align: usize) {
            // SAFETY: the caller's promise is passed on; all memory is the heap's.
            unsafe { HostAllocator.deallocate(pointer, bytes, align) };
        }

        fn device(&self) -> DeviceKey {
            DEVICE
        }
    }

    impl Drop for Working {
        fn drop(&mut self) {
            let worker = self.worker.lock().unwrap().take().unwrap();
            // A thread cannot wait for itself.
            if worker.thread().id() != thread::current().id() {
                worker.join().unwrap();
            }
            self.ended_on.send(thread::current().id()).unwrap();
        }
    }

    let registry = BindingRegistry::new().unwrap();
    let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
    let authority = registry.register_authority(DEVICE, Arc::new(())).unwrap();
    let (ended_on, ending) = mpsc::channel();
    let (to_worker, handles) = mpsc::channel::<(MemoryBinding, BoundAllocation)>();
    let worker = thread::spawn(move || {
        let (binding, block) = handles.recv().unwrap();
        binding.release(block).unwrap();
        drop(binding);
    });
    let worker_id = worker.thread().id();
    let allocator = Arc::new(Working { worker: Mutex::new(Some(worker)), ended_on });
    registry.register_allocator(context, authority, allocator).unwrap();
    let binding = registry.bind(DEVICE).unwrap();
    let block = binding.allocate(8, 8).unwrap();
    drop(registry);
    to_worker.send((binding, block)).unwrap();
    assert_eq!(in_time(move || ending.recv().unwrap()), worker_id);
}

/// The count of suppressed panics is the process's: who adds to it has it alone.
fn counting() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// C044: a thread that panics with the last of everything in its hands takes it apart, also if the allocator's end panics as well.
#[test]
fn teardown_survives_unwinding() {
    let _alone = counting();
    for panics_too in [false, true] {
        let rig = Rig::new();
        let binding = rig.registry.bind(DEVICE).unwrap();
        let block = binding.allocate(8, 8).unwrap();
        let Rig { registry, log, script, .. } = rig;
        if panics_too {
            arm(&script.drop, || panic!("in the destructor"));
        }
        let before = suppressed_panics();
        let panicking = thread::spawn(move || {
            let _last = (binding, block, registry);
            panic!("the thread's own");
        });
        let panic = panicking.join().unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"the thread's own"));
        assert_eq!(suppressed_panics() - before, u64::from(panics_too));
        assert_eq!(log.take(), ["A allocate 8 8", "A dropped", "Q dropped", "C dropped"]);
    }
}

/// C046: a long destructor is paid for by who let go last; threads at work on another mechanism don't notice.
#[test]
fn nobody_pays_for_anothers_destructor() {
    let rig = Rig::new();
    let next = another(&rig, "B");
    rig.registry.select(next).unwrap();
    let (stop, ending) = gate();
    let (ended_on, thread_of_end) = mpsc::channel();
    arm(&rig.script.drop, move || {
        ended_on.send(thread::current().id()).unwrap();
        stop.park();
    });
    thread::scope(|scope| {
        let removing = scope.spawn(|| take_away(&rig.registry, rig.mechanism));
        ending.reached();
        // The destructor runs for as long as all of this takes.
        let registry = rig.registry.clone();
        in_time(move || {
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..500 {
                            let binding = registry.bind(DEVICE).unwrap();
                            assert_eq!(binding.identity().mechanism(), next.identity());
                            binding.release(binding.allocate(8, 8).unwrap()).unwrap();
                        }
                    });
                }
            });
        });
        assert_eq!(thread_of_end.recv().unwrap(), removing.thread().id());
        ending.open();
        removing.join().unwrap();
    });
    take_away(&rig.registry, next);
}

// Nothing goes too early.

/// C064: a thread may hold as many bindings as it likes, taken within calls too, and change the selection meanwhile: each stays what it is.
#[test]
fn bindings_beyond_any_fast_path() {
    // More than arc-swap has fast slots for one thread.
    const HELD: usize = 40;
    let rig = Rig::new();
    let next = another(&rig, "B");
    let (registry, taken) = (rig.registry.clone(), Arc::new(Mutex::new(None)));
    let within = taken.clone();
    arm(&rig.script.allocate, move || {
        *within.lock().unwrap() = Some(registry.bind(DEVICE).unwrap());
        registry.select(next).unwrap();
        Ok(())
    });
    let mut held: Vec<_> = (0..HELD).map(|_| rig.registry.bind(DEVICE).unwrap()).collect();
    let block = held[0].allocate(8, 8).unwrap();
    held.extend(taken.lock().unwrap().take());
    let device = rig.registry.device(DEVICE);
    held.extend((0..HELD).map(|_| device.bind().unwrap()));
    rig.registry.select(rig.mechanism).unwrap();
    rig.log.take();

    for (at, binding) in held.iter().enumerate() {
        let (mechanism, name) = if at <= HELD { (rig.mechanism, "A") } else { (next, "B") };
        assert_eq!(binding.identity().mechanism(), mechanism.identity());
        binding.release(binding.allocate(8, 8).unwrap()).unwrap();
        assert_eq!(rig.log.take(), [format!("{name} allocate 8 8"), format!("{name} release 8 8")]);
    }
    held[0].release(block).unwrap();
    drop(device);
    // Registry first: the bindings are the last pins.
    drop(rig.registry);
    rig.log.take();
    drop(held.split_off(HELD + 1));
    assert_eq!(rig.log.take(), ["B dropped"]);
    drop(held);
    assert_eq!(rig.log.take(), ["A dropped", "Q dropped", "C dropped"]);
}

/// C067: a registry that ends takes nothing from another, though both free their memory through one epoch.
#[test]
fn registries_end_apart() {
    let (rig, elsewhere) = (Rig::new(), Rig::new());
    let binding = rig.registry.bind(DEVICE).unwrap();
    rig.registry.retire(rig.mechanism).unwrap();
    rig.registry.remove(rig.mechanism).unwrap();
    for _ in 0..500 {
        take_away(&elsewhere.registry, another(&elsewhere, "B"));
    }
    let Rig { registry, log, .. } = elsewhere;
    drop(registry);
    assert_eq!(log.take()[500..], ["A dropped", "Q dropped", "C dropped"]);
    assert_eq!(rig.log.take(), [""; 0]);
    assert_eq!(binding.mechanism_snapshot().unwrap().identity, rig.mechanism.identity());
    drop(binding);
    assert_eq!(rig.log.take(), ["A dropped"]);
}

/// One of a row, which takes the next one away as it ends.
struct Domino {
    next: Mutex<Option<(Weak<BindingRegistry>, RegisteredMechanism)>>,
    fallen: Arc<AtomicUsize>,
}

impl std::fmt::Debug for Domino {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        unreachable!("nobody prints an allocator")
    }
}

impl DeviceAllocator for Domino {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        unreachable!("nobody allocates")
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {}

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

impl Drop for Domino {
    fn drop(&mut self) {
        self.fallen.fetch_add(1, SeqCst);
        if let Some((registry, next)) = self.next.lock().unwrap().take() {
            take_away(&registry.upgrade().unwrap(), next);
        }
    }
}

/// C069: a row of mechanisms, each of which takes the next one away as it ends, falls on a small stack.
#[test]
fn a_row_of_destructors_needs_no_deep_stack() {
    const ROW: usize = 100_000;
    let small = thread::Builder::new().stack_size(256 * 1024);
    let fallen = small.spawn(|| {
        let fallen = Arc::new(AtomicUsize::new(0));
        let registry = Arc::new(BindingRegistry::new().unwrap());
        let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
        let authority = registry.register_authority(DEVICE, Arc::new(())).unwrap();
        let mut next = None;
        for _ in 0..ROW {
            let link = next.map(|next| (Arc::downgrade(&registry), next));
            let domino = Arc::new(Domino { next: Mutex::new(link), fallen: fallen.clone() });
            next = Some(registry.register_allocator(context, authority, domino).unwrap());
        }
        take_away(&registry, next.unwrap());
        assert_eq!(registry.snapshots().unwrap(), []);
        fallen.load(SeqCst)
    });
    assert_eq!(small_join(fallen), ROW);
}

fn small_join<T>(thread: std::io::Result<JoinHandle<T>>) -> T {
    thread.unwrap().join().unwrap()
}

/// C069: the same with handles: each allocator holds the last binding of the next.
#[test]
fn a_row_of_last_handles_needs_no_deep_stack() {
    #[derive(Debug)]
    struct Holder(#[expect(dead_code, reason = "held for its drop")] Option<MemoryBinding>, Arc<AtomicUsize>);

    impl DeviceAllocator for Holder {
        fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
            unreachable!("nobody allocates")
        }

        unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {}

        fn device(&self) -> DeviceKey {
            DEVICE
        }
    }

    impl Drop for Holder {
        fn drop(&mut self) {
            self.1.fetch_add(1, SeqCst);
        }
    }

    const ROW: usize = 20_000;
    let small = thread::Builder::new().stack_size(256 * 1024);
    let fallen = small.spawn(|| {
        let fallen = Arc::new(AtomicUsize::new(0));
        let registry = BindingRegistry::new().unwrap();
        let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
        let authority = registry.register_authority(DEVICE, Arc::new(())).unwrap();
        let mut last = None;
        for _ in 0..ROW {
            let holder = Arc::new(Holder(last.take(), fallen.clone()));
            let mechanism = registry.register_allocator(context, authority, holder).unwrap();
            last = Some(registry.bind_registered(mechanism).unwrap());
            take_away(&registry, mechanism);
        }
        assert_eq!(fallen.load(SeqCst), 0);
        drop(last);
        fallen.load(SeqCst)
    });
    assert_eq!(small_join(fallen), ROW);
}

/// C071: what was removed and what the registry's end finds add up to what was registered.
#[test]
fn removed_and_abandoned_add_up() {
    let Rig { registry, log, context, authority, mechanism, .. } = Rig::new();
    let tokens: Vec<_> = (0..200)
        .map(|_| {
            let allocator = Double::new("B", ["Q", "C"], DEVICE, &log, &Default::default());
            registry.register_allocator_with_device(context, authority, allocator, DEVICE).unwrap()
        })
        .collect();
    tokens.iter().step_by(2).for_each(|token| take_away(&registry, *token));
    take_away(&registry, mechanism);
    let eager = log.take();
    assert_eq!(eager.len(), 101);
    drop(registry);
    let rest = log.take();
    assert_eq!(rest[..100], ["B dropped"].repeat(100));
    assert_eq!(rest[100..], ["Q dropped", "C dropped"]);
}

/// C072: what refers to a binding keeps it: an allocation's, a view's. (That a borrowed one cannot outlive its owner is in the library's docs.)
#[test]
fn what_refers_to_a_binding_keeps_it() {
    let Rig { registry, log, .. } = Rig::new();
    let binding = registry.bind(DEVICE).unwrap();
    let allocation = binding.allocate(16, 8).unwrap();
    let view = allocation.view(0, 16).unwrap();
    drop((registry, binding));
    let through_view = view.binding().clone();
    allocation.binding().with_view(&view, |view| assert_eq!(view.len(), 16)).unwrap();
    through_view.release(allocation).unwrap();
    drop(through_view);
    assert_eq!(log.take(), ["A allocate 16 8", "A release 16 8"]);
    assert_eq!(view.binding().mechanism_snapshot().unwrap().live_allocations, 0);
    drop(view);
    assert_eq!(log.take(), ["A dropped", "Q dropped", "C dropped"]);
}

// Locks that are not ours.

/// C134: an allocator that waits for a user's lock holds up nobody who has that lock and calls the library.
#[test]
fn a_users_lock_is_nobody_elses() {
    let rig = Rig::new();
    let lock = Arc::new(Mutex::new(()));
    let held = lock.lock().unwrap();
    let (stop, arrived) = gate();
    let wanted = lock.clone();
    arm(&rig.script.allocate, move || {
        let waits = wanted.try_lock().is_err();
        assert!(waits, "the test has the lock");
        stop.park();
        drop(wanted.lock().unwrap());
        Ok(())
    });
    let binding = rig.registry.bind(DEVICE).unwrap();
    let allocating = thread::spawn(move || {
        let block = binding.allocate(8, 8).unwrap();
        binding.release(block).unwrap();
    });
    arrived.reached();
    arrived.open();
    // From now on it is waiting for the lock, or about to.
    let reach = Reach::of(&rig);
    in_time(|| reach.whole_api());
    drop(held);
    allocating.join().unwrap();
    rig.finish();
}

/// C137: the allocator of a refused registration may call the registry as it ends.
#[test]
fn a_refused_allocator_may_call_the_registry() {
    let rig = Rig::new();
    let script = Arc::<Script>::default();
    let reach = Reach::of(&rig);
    arm(&script.drop, || reach.whole_api());
    let allocator = Double::new("B", ["Q", "C"], OTHER, &rig.log, &script);
    let (registry, context, authority) = (rig.registry.clone(), rig.context, rig.authority);
    let result = in_time(move || registry.register_allocator(context, authority, allocator));
    refused(result, BindingError::DeviceMismatch { subject: "allocator", expected: DEVICE, actual: OTHER });
    assert!(script.is_spent());
    rig.finish();
}

/// C139: an allocator that lets go of the last handle it can reach, in one of its own calls, ends once, afterwards.
#[test]
fn the_last_handle_may_go_within_a_call() {
    for in_release in [false, true] {
        let Rig { registry, log, script, mechanism, .. } = Rig::new();
        let binding = registry.bind(DEVICE).unwrap();
        let reachable = (registry.bind(DEVICE).unwrap(), binding.clone());
        let let_go = move || {
            registry.retire(mechanism).unwrap();
            drop(reachable);
            drop(registry);
        };
        let last = in_time(move || {
            if in_release {
                let block = binding.allocate(8, 8).unwrap();
                arm(&script.release, || {
                    let_go();
                    AllocationReleaseOutcome::complete(ReleaseAccounting::eager(8))
                });
                binding.release(block).unwrap();
                binding
            } else {
                arm(&script.allocate, || {
                    let_go();
                    Ok(())
                });
                binding.release(binding.allocate(8, 8).unwrap()).unwrap();
                binding
            }
        });
        assert_eq!(log.take(), ["A allocate 8 8", "A release 8 8"]);
        drop(last);
        assert_eq!(log.take(), ["A dropped", "Q dropped", "C dropped"]);
    }
}

// Registration and resurrection.

/// C141: a second registration replaces nothing, and one on another device changes nothing here.
#[test]
fn a_second_registration_replaces_nothing() {
    let rig = Rig::new();
    let device = rig.registry.device(DEVICE);
    let version = device.version();
    let second = another(&rig, "B");
    let context = rig.registry.register_provider_context(OTHER, Arc::new(())).unwrap();
    let authority = rig.registry.register_authority(OTHER, Arc::new(())).unwrap();
    let elsewhere = rig.registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), OTHER).unwrap();
    assert_eq!((device.selected(), device.version()), (Some(rig.mechanism.identity()), version));
    drop(device);
    take_away(&rig.registry, second);
    take_away(&rig.registry, elsewhere);
    rig.finish();
}

/// C142: who takes away what it has registered takes away nothing else.
#[test]
fn a_leaver_takes_its_own_alone() {
    let rig = Rig::new();
    let leaver = another(&rig, "B");
    take_away(&rig.registry, leaver);
    assert_eq!(rig.log.take(), ["B dropped"]);
    let binding = rig.registry.bind(DEVICE).unwrap();
    assert_eq!(binding.identity().mechanism(), rig.mechanism.identity());
    binding.release(binding.allocate(8, 8).unwrap()).unwrap();
    refused(rig.registry.remove(leaver), BindingError::UnregisteredMechanism(leaver.identity()));
    drop(binding);
    rig.finish();
}

/// C144: a registration that fails, at whichever step, leaves an empty device that takes the next one.
#[test]
fn a_failed_registration_leaves_nothing() {
    let (log, script) = (Log::default(), Arc::<Script>::default());
    let registry = BindingRegistry::new().unwrap();
    let context = registry.register_provider_context(DEVICE, Resource::context("C", &log, &script)).unwrap();
    let authority = registry.register_authority(DEVICE, Resource::authority("Q", &log, &script)).unwrap();
    let allocator = |device| Double::new("A", ["Q", "C"], device, &log, &script);

    arm(&script.device, || panic!("no such device"));
    catch_unwind(AssertUnwindSafe(|| registry.register_allocator(context, authority, allocator(DEVICE)))).unwrap_err();
    refused(registry.bind(DEVICE), nobody(DEVICE));
    let mismatch = BindingError::DeviceMismatch { subject: "allocator", expected: DEVICE, actual: OTHER };
    refused(registry.register_allocator(context, authority, allocator(OTHER)), mismatch);
    refused(registry.bind(DEVICE), nobody(DEVICE));
    refused(registry.bind(OTHER), nobody(OTHER));
    assert_eq!(registry.snapshots().unwrap(), []);
    assert_eq!(log.take(), ["A device", "A dropped", "A device", "A dropped"]);

    let mechanism = registry.register_allocator(context, authority, allocator(DEVICE)).unwrap();
    assert_eq!(registry.bind(DEVICE).unwrap().identity().mechanism(), mechanism.identity());
}

/// C146: until a registration has all it needs, others see none of it.
#[test]
fn a_registration_is_seen_whole_or_not_at_all() {
    let rig = Rig::new();
    rig.registry.retire(rig.mechanism).unwrap();
    let (stop, asked) = gate();
    arm(&rig.script.device, || stop.park());
    let allocator = Double::new("B", ["Q", "C"], DEVICE, &rig.log, &rig.script);
    let registered = thread::scope(|scope| {
        let registering = scope.spawn(|| rig.registry.register_allocator(rig.context, rig.authority, allocator));
        asked.reached();
        refused(rig.registry.bind(DEVICE), nobody(DEVICE));
        assert_eq!(rig.registry.snapshots().unwrap().len(), 1);
        asked.open();
        registering.join().unwrap().unwrap()
    });
    assert_eq!(rig.registry.bind(DEVICE).unwrap().identity().mechanism(), registered.identity());
    assert_eq!(rig.registry.snapshots().unwrap().len(), 2);
    take_away(&rig.registry, registered);
    rig.finish();
}

/// C146: one device whose end goes wrong keeps no other from its end.
#[test]
fn a_sweep_visits_every_device() {
    let _alone = counting();
    let (log, registry) = (Log::default(), BindingRegistry::new().unwrap());
    let names = ["A0", "A1", "A2", "A3", "A4", "A5", "A6", "A7"];
    for (index, name) in names.into_iter().enumerate() {
        let (device, script) = (DeviceKey::device(index as u32 * 40), Arc::<Script>::default());
        let context = registry.register_provider_context(device, Arc::new(())).unwrap();
        let authority = registry.register_authority(device, Arc::new(())).unwrap();
        registry.register_allocator(context, authority, Double::new(name, ["", ""], device, &log, &script)).unwrap();
        if name == "A3" {
            arm(&script.drop, || panic!("in the middle"));
        }
    }
    log.take();
    catch_unwind(AssertUnwindSafe(|| drop(registry))).unwrap_err();
    let mut ended = log.take();
    ended.sort();
    assert_eq!(ended, names.map(|name| format!("{name} dropped")));
}

/// C149: what is retired or lost is selected by nobody any more, while it gives back what it owes and afterwards.
#[test]
fn the_dead_stay_dead() {
    for lose in [false, true] {
        let rig = Rig::new();
        let binding = rig.registry.bind(DEVICE).unwrap();
        let blocks: Vec<_> = (0..200).map(|_| binding.allocate(8, 8).unwrap()).collect();
        let lifecycle = if lose {
            rig.registry.invalidate_device(DEVICE, "lost").unwrap();
            MechanismLifecycle::DeviceLost
        } else {
            rig.registry.retire(rig.mechanism).unwrap();
            MechanismLifecycle::Retired
        };
        let next = another(&rig, "B");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        refused(rig.registry.select(rig.mechanism), (rig.mechanism, lifecycle));
                        assert_eq!(rig.registry.bind(DEVICE).unwrap().identity().mechanism(), next.identity());
                    }
                });
            }
            for block in blocks {
                assert_eq!(binding.release(block).is_err(), lose);
            }
        });
        refused(rig.registry.select(rig.mechanism), (rig.mechanism, lifecycle));
        take_away(&rig.registry, next);
    }
}
