//! A release reaches another allocator than the one that allocated.

use crate::{
    OTHER,
    common::{
        another::another,
        arm::arm,
        doubles::{Double, Log, Resource, Script},
        park::gate,
        refused::refused,
        rig::{DEVICE, Rig},
        watchdog::in_time,
    },
    nobody, register, take_away,
    work::{Waiting, Work},
};
use liveslot::*;
use std::{
    ops::Range,
    ptr::NonNull,
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

/// How often each method of an allocator of heap memory was called.
#[derive(Debug, Default)]
struct Calls {
    allocate: AtomicUsize,
    deallocate: AtomicUsize,
    deallocate_with_unmapped: AtomicUsize,
    release: AtomicUsize,
}

impl Calls {
    /// Allocations, then what came in through `deallocate`, `deallocate_with_unmapped` and `release`.
    fn counts(&self) -> [usize; 4] {
        [&self.allocate, &self.deallocate, &self.deallocate_with_unmapped, &self.release].map(|count| count.load(SeqCst))
    }

    fn make(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        self.allocate.fetch_add(1, SeqCst);
        HostAllocator.allocate(bytes, align)
    }

    /// # Safety
    ///
    /// As for [`DeviceAllocator::deallocate`].
    unsafe fn free(&self, through: &AtomicUsize, pointer: NonNull<u8>, bytes: usize, align: usize) {
        through.fetch_add(1, SeqCst);
        // SAFETY: the caller's promise is passed on; all memory is the heap's.
        unsafe { HostAllocator.deallocate(pointer, bytes, align) };
    }
}

impl VirtualBacking for Calls {
    fn allocate_committed(&self, bytes: usize, align: usize, _: &[Range<usize>]) -> Result<NonNull<u8>, MemoryError> {
        self.make(bytes, align)
    }

    fn commit_allocation_range(&self, _: NonNull<u8>, _: usize, _: usize, _: usize, _: usize) -> Result<(), MemoryError> {
        unreachable!("nothing is committed later")
    }

    fn mapped_bytes_for_allocation_ranges(&self, _: &[AllocationCommitRange]) -> Result<u64, MemoryError> {
        unreachable!("nobody asks")
    }

    fn mapped_bytes_for_allocation(&self, _: usize, _: usize) -> Result<u64, MemoryError> {
        unreachable!("nobody asks")
    }

    fn decommit_allocation_range(&self, _: NonNull<u8>, _: usize, _: usize, _: usize, _: usize) -> Result<u64, MemoryError> {
        unreachable!("nothing is decommitted")
    }

    fn allocation_committed_bytes(&self, _: NonNull<u8>, _: usize, _: usize) -> usize {
        unreachable!("nobody asks")
    }
}

/// Allocators that count, each of which gives memory back in methods of its own choice, `deallocate` among them.
macro_rules! allocators {
    ($($name:ident { $($given_back:item)* })*) => {
        $(
            #[derive(Debug)]
            struct $name(Arc<Calls>);

            impl DeviceAllocator for $name {
                fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
                    self.0.make(bytes, align)
                }

                unsafe fn deallocate(&self, pointer: NonNull<u8>, bytes: usize, align: usize) {
                    // SAFETY: the caller's promise is passed on.
                    unsafe { self.0.free(&self.0.deallocate, pointer, bytes, align) };
                }

                fn device(&self) -> DeviceKey {
                    DEVICE
                }

                fn as_virtual_backing(&self) -> Option<&dyn VirtualBacking> {
                    Some(&*self.0)
                }

                $($given_back)*
            }
        )*
    };
}

allocators! {
    Deallocates {}
    Unmaps {
        unsafe fn deallocate_with_unmapped(&self, pointer: NonNull<u8>, bytes: usize, align: usize) -> u64 {
            // SAFETY: the caller's promise is passed on.
            unsafe { self.0.free(&self.0.deallocate_with_unmapped, pointer, bytes, align) };
            0
        }
    }
    Releases {
        unsafe fn deallocate_with_unmapped(&self, pointer: NonNull<u8>, bytes: usize, align: usize) -> u64 {
            // SAFETY: the caller's promise is passed on.
            unsafe { self.0.free(&self.0.deallocate_with_unmapped, pointer, bytes, align) };
            0
        }

        unsafe fn release(&self, pointer: NonNull<u8>, bytes: usize, align: usize) -> AllocationReleaseOutcome {
            // SAFETY: the caller's promise is passed on.
            unsafe { self.0.free(&self.0.release, pointer, bytes, align) };
            AllocationReleaseOutcome::complete(ReleaseAccounting::eager(bytes as u64))
        }
    }
}

/// What is left to be done with a block so that it comes back.
pub type Rest = Box<dyn FnOnce() + Send>;

/// A way that a block can take back to its allocator. The block is made at once.
pub type Way = (&'static str, fn(MemoryBinding) -> Rest);

/// Every way that needs no capability.
pub const WAYS: [Way; 10] = [
    ("released", |binding| {
        let block = binding.allocate(16, 8).unwrap();
        Box::new(move || binding.release(block).unwrap())
    }),
    ("prepared before", |binding| {
        let request = binding.prepare_release(binding.allocate(16, 8).unwrap()).unwrap();
        Box::new(move || assert!(request.execute().is_complete()))
    }),
    ("prepared after", |binding| {
        let block = binding.allocate(16, 8).unwrap();
        Box::new(move || assert!(binding.prepare_release(block).unwrap().execute().is_complete()))
    }),
    ("by its owner", |binding| {
        let owner = binding.allocate_owning(16, 8).unwrap();
        Box::new(move || assert!(owner.release_now().unwrap().is_complete()))
    }),
    ("by its owner, prepared", |binding| {
        let owner = binding.allocate_owning(16, 8).unwrap();
        Box::new(move || assert!(owner.prepare_release().unwrap().execute().is_complete()))
    }),
    ("given up by its owner", |binding| {
        let owner = binding.allocate_owning(16, 8).unwrap();
        Box::new(move || binding.release(owner.into_bound().unwrap()).unwrap())
    }),
    ("by its owner, at the second try", |binding| {
        let owner = binding.allocate_owning(16, 8).unwrap();
        let view = owner.view(0, 16).unwrap();
        Box::new(move || {
            let (_, owner) = owner.release_now().unwrap_err().into_parts();
            drop(view);
            assert!(owner.release_now().unwrap().is_complete());
        })
    }),
    ("deferred", |binding| {
        let owner = binding.allocate_owning(16, 8).unwrap();
        let (waiting, work) = (Waiting::default(), Work::default());
        assert!(owner.release_deferred(&waiting.after(&[&work])).unwrap().is_queued());
        Box::new(move || {
            work.complete();
            assert_eq!(waiting.poll(), (1, 0));
        })
    }),
    ("refused by a queue", |binding| {
        let request = binding.prepare_release(binding.allocate(16, 8).unwrap()).unwrap();
        let refused = DeferredEnqueueError::new(DeferredEnqueueRejection::Full, request);
        Box::new(move || assert!(refused.into_request().execute().is_complete()))
    }),
    ("adopted", |binding| {
        let request = binding.prepare_release(binding.allocate(16, 8).unwrap()).unwrap();
        let pointer = request.allocator().allocate(16, 8).unwrap();
        // SAFETY: just made by the allocator of this binding, with these values, and nobody else knows of it.
        let owner = unsafe { binding.adopt_allocation(pointer, 16, 8) }.unwrap();
        Box::new(move || {
            assert!(request.execute().is_complete());
            assert!(owner.release_now().unwrap().is_complete());
        })
    }),
];

const COMMITTED: Way = ("committed at once", |binding| {
    let backing = binding.virtual_backing().unwrap().unwrap();
    let block = backing.allocate_committed(16, 8, &[0..8, 8..16]).unwrap();
    Box::new(move || binding.release(block).unwrap())
});

fn all_ways() -> impl Iterator<Item = Way> {
    WAYS.into_iter().chain([COMMITTED])
}

/// C012, R66: whatever is selected, retired or gone meanwhile, a block goes back to the allocator that it came from, on every way, and
/// nothing goes to another.
#[test]
fn every_way_leads_home() {
    type Meanwhile = fn(BindingRegistry, RegisteredMechanism, RegisteredMechanism) -> Option<BindingRegistry>;
    let meanwhile: [(&str, Meanwhile); 4] = [
        ("another is selected", |registry, _, other| {
            registry.select(other).unwrap();
            Some(registry)
        }),
        ("its own is retired", |registry, own, _| {
            registry.retire(own).unwrap();
            Some(registry)
        }),
        ("its own is retired and another selected", |registry, own, other| {
            registry.retire(own).unwrap();
            registry.select(other).unwrap();
            Some(registry)
        }),
        ("the registry is gone", |registry, _, other| {
            registry.select(other).unwrap();
            drop(registry);
            None
        }),
    ];
    for (way, start) in all_ways() {
        for (what, meanwhile) in meanwhile {
            let registry = BindingRegistry::new().unwrap();
            let [own_calls, other_calls] = [(); 2].map(|()| Arc::<Calls>::default());
            let (own, ..) = register(&registry, DEVICE, Arc::new(Releases(own_calls.clone())));
            let (other, ..) = register(&registry, DEVICE, Arc::new(Releases(other_calls.clone())));
            let binding = registry.bind(DEVICE).unwrap();
            let rest = start(binding.clone());
            let registry = meanwhile(registry, own, other);
            thread::spawn(rest).join().unwrap();

            let made = own_calls.counts()[0];
            assert_eq!(own_calls.counts(), [made, 0, 0, made], "{way}, while {what}");
            assert_eq!(other_calls.counts(), [0; 4], "{way}, while {what}");
            assert!(!binding.mechanism_snapshot().unwrap().retains_ownership(), "{way}, while {what}");
            drop((registry, binding));
            assert_eq!(Arc::strong_count(&own_calls), 1);
        }
    }
}

/// C012, R51, R66, R86, R91, R92, R94: what comes to a dead end reaches no allocator at all, neither its own nor the one that is selected
/// by then.
#[test]
fn dead_ends_lead_to_nobody() {
    type Ends = fn(BindingRegistry, OwningAllocation);
    let dead_ends: [(&str, Ends, usize); 8] = [
        ("metadata dropped", |_, owner| drop(owner.into_bound().unwrap()), 0),
        ("owner dropped", |_, owner| drop(owner), 1),
        ("request dropped", |_, owner| drop(owner.prepare_release().unwrap()), 1),
        ("request quarantined", |_, owner| drop(owner.prepare_release().unwrap().quarantine(QuarantineReason::PartialRelease)), 1),
        (
            "refused by a queue",
            |_, owner| {
                let request = owner.prepare_release().unwrap();
                assert!(DeferredEnqueueError::new(DeferredEnqueueRejection::Full, request).quarantine().is_quarantined());
            },
            1,
        ),
        (
            "owner dropped on a lost device",
            |registry, owner| {
                registry.invalidate_device(DEVICE, "fell off the bus").unwrap();
                drop(owner.release_now().unwrap_err());
            },
            0,
        ),
        (
            "request executed on a lost device",
            |registry, owner| {
                let request = owner.prepare_release().unwrap();
                registry.invalidate_device(DEVICE, "fell off the bus").unwrap();
                assert_eq!(request.execute().state(), AllocationReleaseState::DeviceLost);
            },
            1,
        ),
        (
            "left at the registry's end",
            |registry, owner| {
                drop(registry);
                drop(owner.into_bound().unwrap());
            },
            0,
        ),
    ];
    for (what, end, kept) in dead_ends {
        let released = [(); 2].map(|()| Arc::<AtomicUsize>::default());
        let registry = BindingRegistry::new().unwrap();
        let [own, other] = released.each_ref().map(|released| register(&registry, DEVICE, Arc::new(OneAddress(released.clone()))).0);
        let binding = registry.bind_registered(own).unwrap();
        let owner = binding.allocate_owning(8, 8).unwrap();
        registry.select(other).unwrap();
        end(registry, owner);
        let snapshot = binding.mechanism_snapshot().unwrap();
        assert_eq!((snapshot.live_allocations, snapshot.quarantined_allocations), (1 - kept, kept), "{what}");
        drop(binding);
        assert_eq!(released.map(|released| released.load(SeqCst)), [0, 0], "{what}");
    }
}

/// C016, R66, R152: whichever method an allocator gives memory back in, everything that it has made comes back through that one, on
/// every way.
#[test]
fn no_way_bypasses_the_method_that_is_overridden() {
    type Make = fn(Arc<Calls>) -> Arc<dyn DeviceAllocator>;
    type Expected = fn(usize) -> [usize; 4];
    let kinds: [(Make, Expected); 3] = [
        (|calls| Arc::new(Deallocates(calls)), |made| [made, made, 0, 0]),
        (|calls| Arc::new(Unmaps(calls)), |made| [made, 0, made, 0]),
        (|calls| Arc::new(Releases(calls)), |made| [made, 0, 0, made]),
    ];
    for (allocator, expected) in kinds {
        let calls = Arc::<Calls>::default();
        let registry = BindingRegistry::new().unwrap();
        let (mechanism, ..) = register(&registry, DEVICE, allocator(calls.clone()));
        for (way, start) in all_ways() {
            start(registry.bind(DEVICE).unwrap())();
            assert_eq!(calls.counts(), expected(calls.counts()[0]), "{way}");
        }
        assert_eq!(calls.counts()[0], all_ways().count() + 1, "the adopted one comes with another");
        take_away(&registry, mechanism);
        assert_eq!(calls.counts(), expected(all_ways().count() + 1));
    }
}

/// C014, R3, R66: who allocates "like" a block does so through a binding, and that names the allocator which was called: the block's own
/// binding the block's allocator, the device's current one what is selected now.
#[test]
fn an_allocation_like_another_is_recorded_where_it_was_made() {
    let rig = Rig::new();
    let block = rig.registry.bind(DEVICE).unwrap().allocate(16, 8).unwrap();
    let owner = rig.registry.bind(DEVICE).unwrap().allocate_owning(16, 8).unwrap();
    let (view, owned) = (block.view(0, 16).unwrap(), owner.view(0, 16).unwrap());
    let next = another(&rig, "B");
    rig.registry.select(next).unwrap();
    rig.log.take();

    let current = rig.registry.bind(DEVICE).unwrap();
    let origins = [block.binding(), view.binding(), owner.binding(), owned.binding()].map(|origin| (origin, rig.mechanism, "A"));
    for (origin, mechanism, name) in origins.into_iter().chain([(&current, next, "B")]) {
        let copy = origin.allocate(block.len(), block.alignment()).unwrap();
        assert_eq!(copy.identity().binding().mechanism(), mechanism.identity());
        assert_eq!(copy.binding().mechanism_snapshot().unwrap().identity, mechanism.identity());
        origin.release(copy).unwrap();
        assert_eq!(rig.log.take(), [format!("{name} allocate 16 8"), format!("{name} release 16 8")]);
    }
    drop((view, owned));
    block.binding().clone().release(block).unwrap();
    assert!(owner.release_now().unwrap().is_complete());
    drop(current);
    take_away(&rig.registry, next);
    rig.finish();
}

/// An allocator that hands out one address, again and again. Nobody looks behind it.
#[derive(Debug)]
struct OneAddress(Arc<AtomicUsize>);

impl DeviceAllocator for OneAddress {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        Ok(NonNull::<u64>::dangling().cast())
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {
        self.0.fetch_add(1, SeqCst);
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

/// C017, R4, R65, R95: blocks with one address at the same time are apart: whatever becomes of one, the other stays what it is, and the
/// counts end at zero.
#[test]
fn twins_are_records_of_their_own() {
    let released = Arc::<AtomicUsize>::default();
    let registry = BindingRegistry::new().unwrap();
    let (mechanism, context, _) = register(&registry, DEVICE, Arc::new(OneAddress(released.clone())));
    let binding = registry.bind(DEVICE).unwrap();
    type End = fn(OwningAllocation);
    let ends: [(End, [usize; 2]); 4] = [
        (|first| assert!(first.release_now().unwrap().is_complete()), [1, 0]),
        (|first| drop(first), [0, 1]),
        (|first| drop(first.prepare_release().unwrap()), [0, 1]),
        (|first| drop(first.prepare_release().unwrap().quarantine_device_lost()), [0, 1]),
    ];
    for (end, [freed, kept]) in ends {
        released.store(0, SeqCst);
        let quarantined = binding.quarantined().unwrap().len();
        let [first, second] = [(); 2].map(|()| binding.allocate_owning(8, 8).unwrap());
        assert_eq!(first.as_ptr(), second.as_ptr());
        assert_ne!(first.identity(), second.identity());
        let identity = first.identity();
        let views = [&first, &second].map(|owner| owner.bound().view(0, 8).unwrap());
        end(first);

        refused(binding.with_view(&views[0], |_| ()), BindingError::StaleAllocation(identity));
        binding.with_view(&views[1], |_| ()).unwrap();
        let snapshot = binding.mechanism_snapshot().unwrap();
        assert_eq!((snapshot.live_allocations, snapshot.queued_releases), (1, 0));
        assert_eq!(snapshot.quarantined_allocations, quarantined + kept);
        assert_eq!(released.load(SeqCst), freed);
        let entries = binding.quarantined().unwrap();
        assert_eq!(entries.iter().filter(|entry| entry.identity == identity).count(), kept);
        assert!(entries.iter().all(|entry| entry.identity != second.identity()));
        assert!(second.release_now().unwrap().is_complete());
        assert_eq!(released.load(SeqCst), freed + 1);
        assert_eq!(binding.mechanism_snapshot().unwrap().live_allocations, 0);
    }
    registry.invalidate_device(DEVICE, "reset").unwrap();
    registry.confirm_context_terminated(context).unwrap();
    assert!(!binding.mechanism_snapshot().unwrap().retains_ownership());
    registry.remove(mechanism).unwrap();
}

/// C019, R13, R17: until the first allocator is registered, there is none: no memory comes from anywhere else.
#[test]
fn nobody_stands_in_for_an_allocator_that_is_not_there_yet() {
    const THREADS: usize = 3;
    let (log, script) = (Log::default(), Arc::<Script>::default());
    let registry = BindingRegistry::new().unwrap();
    let context = registry.register_provider_context(DEVICE, Resource::context("C", &log, &script)).unwrap();
    let authority = registry.register_authority(DEVICE, Resource::authority("Q", &log, &script)).unwrap();
    // There is one elsewhere, which would do.
    register(&registry, OTHER, Double::new("elsewhere", ["", ""], OTHER, &log, &script));
    let (stop, asked) = gate();
    arm(&script.device, || stop.park());
    let allocator = Double::new("A", ["Q", "C"], DEVICE, &log, &script);
    let others = registry.clone();
    let mechanism = in_time(move || {
        let begin = Barrier::new(THREADS + 1);
        thread::scope(|scope| {
            let registering = scope.spawn(|| others.register_allocator(context, authority, allocator).unwrap());
            asked.reached();
            refused(others.bind(DEVICE), nobody(DEVICE));
            let early = || {
                begin.wait();
                loop {
                    match others.bind(DEVICE) {
                        Ok(binding) => break binding.allocate(8, 8).unwrap(),
                        not_ready => refused(not_ready, nobody(DEVICE)),
                    }
                }
            };
            let early = [(); THREADS].map(|()| scope.spawn(early));
            begin.wait();
            asked.open();
            let mechanism = registering.join().unwrap();
            for early in early {
                let block = early.join().unwrap();
                assert_eq!(block.identity().binding().mechanism(), mechanism.identity());
                block.binding().clone().release(block).unwrap();
            }
            mechanism
        })
    });
    let mut calls = log.take();
    calls.sort();
    assert_eq!(calls, [["A allocate 8 8"; THREADS].as_slice(), &["A device"], &["A release 8 8"; THREADS]].concat());
    take_away(&registry, mechanism);
    assert_eq!(log.take(), ["A dropped"]);
}
