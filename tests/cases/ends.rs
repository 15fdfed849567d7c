//! Where things end.

use crate::{
    common::{
        another::another,
        arm::arm,
        park::gate,
        refused::refused,
        rig::{DEVICE, Rig},
        watchdog::in_time,
    },
    counting, take_away,
};
use liveslot::*;
use std::{
    ptr::NonNull,
    sync::{Arc, Mutex, mpsc},
    thread::{self, JoinHandle, ThreadId},
};

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
