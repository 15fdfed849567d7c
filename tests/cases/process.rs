//! One thread's choice, or one user's value, is taken for everybody's, or for nobody's.

use crate::{
    common::{
        another::another,
        rig::{DEVICE, Rig},
    },
    register, take_away,
};
use liveslot::*;
use std::{
    fmt,
    ptr::NonNull,
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

/// C151: what a thread binds for itself is its own: the others have what is selected, all the time.
#[test]
fn a_threads_own_binding_is_nobody_elses() {
    const OTHERS: usize = 7;
    let rig = Rig::new();
    let own = another(&rig, "B");
    rig.log.take();
    let at_once = Barrier::new(OTHERS + 1);
    let bind_and_use = |bind: &dyn Fn() -> MemoryBinding, expected: RegisteredMechanism| {
        at_once.wait();
        for _ in 0..200 {
            let binding = bind();
            assert_eq!(binding.identity().mechanism(), expected.identity());
            binding.release(binding.allocate(8, 8).unwrap()).unwrap();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| bind_and_use(&|| rig.registry.bind_registered(own).unwrap(), own));
        for _ in 0..OTHERS {
            scope.spawn(|| bind_and_use(&|| rig.registry.bind(DEVICE).unwrap(), rig.mechanism));
        }
    });
    let calls = rig.log.take();
    let made_by = |name: &str| calls.iter().filter(|call| **call == format!("{name} allocate 8 8")).count();
    assert_eq!([made_by("A"), made_by("B")], [OTHERS * 200, 200]);
    take_away(&rig.registry, own);
    rig.finish();
}

/// C152: a thread inherits no binding: it has what is selected, unless it is given one.
#[test]
fn a_thread_inherits_what_it_is_given() {
    let rig = Rig::new();
    let own = another(&rig, "B");
    thread::scope(|scope| {
        let parent = scope.spawn(|| {
            let binding = rig.registry.bind_registered(own).unwrap();
            let [inherited, given] = thread::scope(|scope| {
                let inherits = scope.spawn(|| rig.registry.bind(DEVICE).unwrap().identity());
                let given = scope.spawn({
                    let binding = binding.clone();
                    move || binding.identity()
                });
                [inherits, given].map(|thread| thread.join().unwrap())
            });
            assert_eq!(given, binding.identity());
            inherited
        });
        assert_eq!(parent.join().unwrap().mechanism(), rig.mechanism.identity());
    });
    take_away(&rig.registry, own);
    rig.finish();
}

/// An allocator that calls the user for each allocation and each release.
struct Calling {
    on_allocate: Arc<dyn Fn() + Send + Sync>,
    on_release: Arc<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Calling {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        unreachable!("nobody prints an allocator")
    }
}

impl DeviceAllocator for Calling {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        (self.on_allocate)();
        HostAllocator.allocate(bytes, align)
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, bytes: usize, align: usize) {
        (self.on_release)();
        // SAFETY: the caller's promise is passed on; all memory is the heap's.
        unsafe { HostAllocator.deallocate(pointer, bytes, align) };
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

/// C157: an allocator's callbacks live as long as the mechanism, though the user has let go of all that refers to them.
#[test]
fn callbacks_live_as_long_as_their_mechanism() {
    let calls = Arc::new(AtomicUsize::new(0));
    let callback = |by: usize| -> Arc<dyn Fn() + Send + Sync> {
        let calls = Arc::clone(&calls);
        Arc::new(move || _ = calls.fetch_add(by, SeqCst))
    };
    let (on_allocate, on_release) = (callback(1), callback(1000));
    let callbacks = [Arc::downgrade(&on_allocate), Arc::downgrade(&on_release)];
    let registry = BindingRegistry::new().unwrap();
    let (mechanism, ..) = register(&registry, DEVICE, Arc::new(Calling { on_allocate, on_release }));
    let binding = registry.bind(DEVICE).unwrap();
    take_away(&registry, mechanism);
    let (next, ..) = register(&registry, DEVICE, Arc::new(HostAllocator));
    assert!(binding.allocate(8, 8).is_err(), "it is retired");
    assert_eq!(callbacks.each_ref().map(|callback| callback.strong_count()), [1, 1], "the binding keeps them");
    drop(binding);
    assert_eq!(callbacks.each_ref().map(|callback| callback.strong_count()), [0, 0]);
    take_away(&registry, next);

    let (on_allocate, on_release) = (callback(1), callback(1000));
    let callbacks = [Arc::downgrade(&on_allocate), Arc::downgrade(&on_release)];
    register(&registry, DEVICE, Arc::new(Calling { on_allocate, on_release }));
    let binding = registry.bind(DEVICE).unwrap();
    let blocks = [(); 10].map(|()| binding.allocate(8, 8).unwrap());
    drop(registry);
    blocks.into_iter().for_each(|block| binding.release(block).unwrap());
    assert_eq!(calls.load(SeqCst), 10 * 1001);
    drop(binding);
    assert_eq!(callbacks.map(|callback| callback.strong_count()), [0, 0]);
}
