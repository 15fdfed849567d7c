//! What an allocator's destructor needs.

use crate::{
    OTHER,
    common::{
        another::another,
        doubles::{Double, Log, Resource, Script},
        park::{Stop, gate},
        refused::refused,
        rig::{DEVICE, Rig},
    },
    origin::WAYS,
    register, take_away,
};
use liveslot::*;
use std::{
    ptr::NonNull,
    sync::{Arc, Mutex, OnceLock},
    thread::{self, JoinHandle},
    time::Duration,
};

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

/// C024, R56, R57: the same for blocks in whichever hands, and on whichever way back.
#[test]
fn blocks_in_any_hands_outlive_the_registry() {
    const THREADS: usize = 4;
    let Rig { registry, log, .. } = Rig::new();
    let begin = || {
        let bindings = WAYS.map(|(_, start)| (registry.bind(DEVICE).unwrap(), start));
        thread::spawn(|| bindings.map(|(binding, start)| start(binding)))
    };
    let rests = [(); THREADS].map(|()| begin()).map(|thread| thread.join().unwrap());
    drop(registry);
    let made = log.take();
    assert_eq!(made, ["A allocate 16 8"].repeat(THREADS * (WAYS.len() + 1)), "the adopted come with another");
    let ending = rests.map(|rests| thread::spawn(|| rests.into_iter().for_each(|rest| rest())));
    ending.into_iter().for_each(|thread| thread.join().unwrap());
    let entries = log.take();
    let (released, ended) = entries.split_at(made.len());
    assert_eq!(released, ["A release 16 8"].repeat(made.len()));
    assert_eq!(ended, ["A dropped", "Q dropped", "C dropped"]);
}

/// C026: a binding that is never given back keeps its mechanism alive, who waits for the end is told so, and nothing else waits for it.
#[test]
fn a_forgotten_binding_keeps_its_mechanism_and_nothing_else() {
    /// Never dropped, and in reach of leak checkers.
    static FORGOTTEN: OnceLock<MemoryBinding> = OnceLock::new();

    let rig = Rig::new();
    FORGOTTEN.set(rig.registry.bind(DEVICE).unwrap()).unwrap();
    let mut teardown = rig.registry.teardown(rig.mechanism).unwrap();
    assert_eq!(rig.registry.retire_and_drain(rig.mechanism).unwrap().wait(Duration::ZERO), Ok(()), "a binding owns nothing");
    rig.registry.remove(rig.mechanism).unwrap();
    let held = teardown.wait(Duration::ZERO).unwrap_err();
    assert_eq!((held.mechanism, held.handles), (rig.mechanism.identity(), 1));
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

/// C026, R36, R42, R88: a block or a request that is never given back is a number that whoever wants to take its mechanism away is told,
/// and nothing else waits for it.
#[test]
fn a_forgotten_block_is_counted() {
    /// Never dropped, and in reach of leak checkers.
    static OWNER: OnceLock<OwningAllocation> = OnceLock::new();
    static REQUEST: OnceLock<PreparedAllocationRelease> = OnceLock::new();

    type Forget = fn(MemoryBinding);
    let holders: [(Forget, [usize; 3]); 2] = [
        (|binding| OWNER.set(binding.allocate_owning(16, 8).unwrap()).unwrap(), [1, 0, 0]),
        (|binding| REQUEST.set(binding.allocate_owning(16, 8).unwrap().prepare_release().unwrap()).unwrap(), [0, 1, 1]),
    ];
    for (forget, counts) in holders {
        let rig = Rig::new();
        forget(rig.registry.bind(DEVICE).unwrap());
        rig.registry.retire(rig.mechanism).unwrap();
        refused(rig.registry.remove(rig.mechanism), (rig.mechanism, MechanismLifecycle::Retired));
        let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!([snapshot.live_allocations, snapshot.queued_releases, snapshot.active_operations], counts);
        match rig.registry.drain(rig.mechanism).unwrap().wait(Duration::ZERO) {
            Err(DrainError::TimedOut(report)) => assert_eq!(report.snapshot, snapshot),
            other => panic!("{other:?}"),
        }
        let (identity, [.., active_operations]) = (rig.context.identity(), counts);
        refused(rig.registry.remove_provider_context(rig.context), BindingError::ProviderContextInUse(identity));
        rig.registry.invalidate_device(DEVICE, "reset").unwrap();
        match active_operations {
            0 => rig.registry.confirm_context_terminated(rig.context).unwrap(),
            _ => refused(
                rig.registry.confirm_context_terminated(rig.context),
                BindingError::ContextNotQuiescent { context: identity, active_operations },
            ),
        }

        let (elsewhere, ..) = register(&rig.registry, OTHER, Arc::new(HostAllocator));
        let binding = rig.registry.bind(OTHER).unwrap();
        binding.release(binding.allocate(8, 8).unwrap()).unwrap();
        drop(binding);
        take_away(&rig.registry, elsewhere);
        drop(rig.registry);
        assert_eq!(rig.log.take(), ["A allocate 16 8"], "alive, and in nobody's way");
    }
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
