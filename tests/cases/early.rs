//! Nothing goes too early.

use crate::{
    common::{
        another::another,
        arm::arm,
        doubles::Double,
        rig::{DEVICE, Rig},
    },
    take_away,
};
use liveslot::*;
use std::{
    ptr::NonNull,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
};

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

/// C072: what refers to a binding keeps it: an allocation's, a view's. (That a borrowed one cannot outlive its owner is in the library's
/// docs.)
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
