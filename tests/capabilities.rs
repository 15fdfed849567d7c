//! What an allocator may offer besides: discovery, calls, shared prefixes.

mod common {
    pub mod another;
    pub mod arm;
    pub mod capable;
    pub mod doubles;
    pub mod lifecycle;
    pub mod phases;
    pub mod refused;
    pub mod rig;
}

use common::{
    another::another,
    arm::arm,
    capable::Capable,
    doubles::{Resource, Script},
    lifecycle::{REASON, bring},
    phases::PHASES,
    refused::{Expected, refused},
    rig::{DEVICE, Rig},
};
use liveslot::{MechanismLifecycle::*, *};
use std::{
    fmt::Debug,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering::SeqCst},
    thread,
};

/// What ends with the last pin, after a prefix.
const ALL: [&str; 4] = ["P dropped", "A dropped", "Q dropped", "C dropped"];

fn operations(binding: &MemoryBinding) -> usize {
    binding.mechanism_snapshot().unwrap().active_operations
}

/// Each call that reaches a method of a capability, on a prefix and an allocation of the handles' binding, with what the double logs of it.
type Call = fn(&Capable, &BoundSharedPrefix, &BoundAllocation) -> Result<u64, BindingError>;
const CALLS: [(&str, &str, Call); 9] = [
    ("as_virtual_backing", "allocate_committed 16 8 [0..4, 8..16]", |capable, _, _| {
        let allocation = capable.backing.allocate_committed(16, 8, &[0..4, 8..16])?;
        capable.binding.release(allocation).unwrap();
        Ok(7)
    }),
    ("as_virtual_backing", "commit_allocation_range 64 8 8 16", |capable, _, allocation| {
        capable.backing.commit_allocation_range(allocation, 8, 16).map(|()| 7)
    }),
    ("as_virtual_backing", "commit_allocation_ranges [(64, 8, 0, 4), (64, 8, 60, 4)]", |capable, _, allocation| {
        capable.backing.commit_allocation_ranges(&[(allocation, 0, 4), (allocation, 60, 4)]).map(|()| 7)
    }),
    ("as_virtual_backing", "mapped_bytes_for_allocation 100 4", |capable, _, _| capable.backing.mapped_bytes_for_allocation(100, 4)),
    ("as_virtual_backing", "decommit_allocation_range 64 8 8 16", |capable, _, allocation| {
        capable.backing.decommit_allocation_range(allocation, 8, 16)
    }),
    ("as_virtual_backing", "allocation_committed_bytes 64 8", |capable, _, allocation| {
        capable.backing.allocation_committed_bytes(allocation).map(|bytes| bytes as u64)
    }),
    ("as_shared_mapping", "create_shared_prefix 10", |capable, _, _| capable.mapping.create_shared_prefix(10).map(|_| 7)),
    ("as_shared_mapping", "incremental_owned_bytes_for_shared_prefix 32", |capable, prefix, _| {
        capable.mapping.incremental_owned_bytes_for_shared_prefix(prefix)
    }),
    ("as_shared_mapping", "commit_shared_prefix 32 64 24", |capable, prefix, allocation| {
        capable.mapping.commit_shared_prefix(prefix, allocation, 24).map(|info| info.granules as u64)
    }),
];

/// A rig that offers everything, with an allocation of 64 bytes at 8 and a prefix of 32.
fn equipped() -> (Rig, Capable, BoundSharedPrefix, BoundAllocation) {
    let rig = Rig::new();
    let capable = Capable::of(&rig);
    let (prefix, allocation) = (capable.mapping.create_shared_prefix(32).unwrap(), capable.binding.allocate(64, 8).unwrap());
    rig.log.take();
    (rig, capable, prefix, allocation)
}

#[track_caller]
fn finish(rig: Rig, capable: Capable, prefix: BoundSharedPrefix, allocation: BoundAllocation) {
    capable.binding.release(allocation).unwrap();
    drop((capable, prefix));
    rig.finish();
}

/// R73, R101: a handle for each capability that is offered, and none for another; asking is one call, counted as an operation.
#[test]
fn what_is_offered_is_found() {
    for (backing, mapping) in [(false, false), (false, true), (true, false), (true, true)] {
        let rig = Rig::new();
        rig.script.offers_virtual_backing.store(backing, SeqCst);
        rig.script.offers_shared_mapping.store(mapping, SeqCst);
        let binding = rig.registry.bind(DEVICE).unwrap();
        for _ in 0..2 {
            let inside = binding.clone();
            arm(&rig.script.discovery, move || assert_eq!(operations(&inside), 1));
            let found = binding.virtual_backing().unwrap();
            assert_eq!(found.as_ref().map(BoundVirtualBacking::binding_identity), backing.then_some(binding.identity()));
            assert_eq!(rig.log.take(), ["A as_virtual_backing"]);

            let inside = binding.clone();
            arm(&rig.script.discovery, move || assert_eq!(operations(&inside), 1));
            let found = binding.shared_mapping().unwrap();
            assert_eq!(found.as_ref().map(BoundSharedMapping::binding_identity), mapping.then_some(binding.identity()));
            assert_eq!(rig.log.take(), ["A as_shared_mapping"]);
            assert_eq!(operations(&binding), 0);
        }
        drop(binding);
        rig.finish();
    }
}

/// R73, R75, R101: each call asks for the capability again, makes one call of it, and counts as one operation meanwhile; its answer
/// arrives.
#[test]
fn each_call_is_one_call() {
    let (rig, capable, prefix, allocation) = equipped();
    for (discovery, call, run) in CALLS {
        let inside = capable.binding.clone();
        arm(&rig.script.discovery, {
            let inside = inside.clone();
            move || assert_eq!(operations(&inside), 1)
        });
        arm(&rig.script.capability, move || {
            let snapshot = inside.mechanism_snapshot().unwrap();
            assert_eq!((snapshot.active_operations, snapshot.live_allocations, snapshot.queued_releases), (1, 1, 0));
            Ok(7)
        });
        assert_eq!(run(&capable, &prefix, &allocation).unwrap(), 7, "{call}");
        let log = rig.log.take();
        assert_eq!(log[..2], [format!("A {discovery}"), format!("A {call}")]);
        // What the call has made and the test has let go of.
        assert!(matches!(&log[2..], [] | [_]) && log[2..].iter().all(|entry| entry == "A release 16 8" || entry == "P dropped"), "{log:?}");
        assert_eq!(operations(&capable.binding), 0);
    }
    finish(rig, capable, prefix, allocation);
}

/// R54: clones of handles and of their binding are one.
#[test]
fn clones_are_interchangeable() {
    let (rig, capable, prefix, allocation) = equipped();
    let clones = Capable { binding: capable.binding.clone(), backing: capable.backing.clone(), mapping: capable.mapping.clone() };
    let again = Capable {
        binding: capable.binding.clone(),
        backing: clones.binding.virtual_backing().unwrap().unwrap(),
        mapping: clones.binding.shared_mapping().unwrap().unwrap(),
    };
    for handles in [&clones, &again] {
        for (_, _, run) in CALLS {
            run(handles, &prefix, &allocation).unwrap();
        }
    }
    drop((clones, again));
    finish(rig, capable, prefix, allocation);
}

/// R74: an allocator that no longer offers what it offered makes the call panic, and the operation is uncounted.
#[test]
fn a_broken_promise_panics() {
    let (rig, capable, prefix, allocation) = equipped();
    rig.script.offers_virtual_backing.store(false, SeqCst);
    rig.script.offers_shared_mapping.store(false, SeqCst);
    for (discovery, call, run) in CALLS {
        catch_unwind(AssertUnwindSafe(|| run(&capable, &prefix, &allocation))).expect_err(call);
        assert_eq!(rig.log.take(), [format!("A {discovery}")]);
        let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
        assert_eq!((snapshot.active_operations, snapshot.live_allocations), (0, 1));
    }
    assert!(capable.binding.virtual_backing().unwrap().is_none());
    finish(rig, capable, prefix, allocation);
}

/// R58, R75: sizes, alignments and ranges are passed on as they are, whatever they are.
#[test]
fn arguments_are_not_checked() {
    let (rig, capable, prefix, allocation) = equipped();
    let last = |log: Vec<String>| log.last().unwrap().clone();
    const MAX: usize = usize::MAX;
    capable.backing.commit_allocation_range(&allocation, MAX, MAX).unwrap();
    assert_eq!(last(rig.log.take()), format!("A commit_allocation_range 64 8 {MAX} {MAX}"));
    capable.backing.decommit_allocation_range(&allocation, 65, 0).unwrap();
    assert_eq!(last(rig.log.take()), "A decommit_allocation_range 64 8 65 0");
    capable.backing.commit_allocation_ranges(&[(&allocation, MAX, 2), (&allocation, 0, 0)]).unwrap();
    assert_eq!(last(rig.log.take()), format!("A commit_allocation_ranges [(64, 8, {MAX}, 2), (64, 8, 0, 0)]"));
    capable.backing.mapped_bytes_for_allocation(MAX, 3).unwrap();
    assert_eq!(last(rig.log.take()), format!("A mapped_bytes_for_allocation {MAX} 3"));
    capable.mapping.commit_shared_prefix(&prefix, &allocation, MAX).unwrap();
    assert_eq!(last(rig.log.take()), format!("A commit_shared_prefix 32 64 {MAX}"));
    let odd = capable.backing.allocate_committed(0, 3, &[0..MAX, 5..9]).unwrap();
    assert_eq!(last(rig.log.take()), format!("A allocate_committed 0 3 [0..{MAX}, 5..9]"));
    assert_eq!((odd.len(), odd.alignment()), (0, 3));
    capable.binding.release(odd).unwrap();
    finish(rig, capable, prefix, allocation);
}

/// R76: all ranges are checked before the one call; the first offender decides; an empty list is a call.
#[test]
fn ranges_are_checked_first() {
    let (rig, capable, prefix, allocation) = equipped();
    let sibling = rig.registry.bind(DEVICE).unwrap();
    let foreign = sibling.allocate(8, 8).unwrap();
    let stale = capable.binding.allocate(16, 8).unwrap();
    arm(&rig.script.release, || AllocationReleaseOutcome::failed("stuck"));
    let stale = capable.binding.release(stale).unwrap_err().into_parts().1;
    rig.log.take();
    let mismatch = || BindingError::BindingMismatch { expected: capable.binding.identity().id(), actual: sibling.identity().id() };
    let is_stale = || BindingError::StaleAllocation(stale.identity());

    let commit = |allocations: &[&BoundAllocation]| {
        let ranges: Vec<_> = allocations.iter().map(|allocation| (*allocation, 0, 1)).collect();
        capable.backing.commit_allocation_ranges(&ranges)
    };
    refused(commit(&[&allocation, &stale, &foreign]), is_stale());
    refused(commit(&[&allocation, &foreign, &stale]), mismatch());
    refused(commit(&[&foreign, &stale, &allocation]), mismatch());
    refused(commit(&[&stale, &foreign]), is_stale());
    assert_eq!(rig.log.take(), [""; 0]);
    assert_eq!(operations(&capable.binding), 0);
    commit(&[]).unwrap();
    commit(&[&allocation, &allocation]).unwrap();
    let calls = ["A as_virtual_backing", "A commit_allocation_ranges []"];
    let more = ["A as_virtual_backing", "A commit_allocation_ranges [(64, 8, 0, 1), (64, 8, 0, 1)]"];
    assert_eq!(rig.log.take(), [calls, more].concat());

    sibling.release(foreign).unwrap();
    capable.binding.release(allocation).unwrap();
    drop((capable, sibling, stale, prefix));
    bring(&rig, Terminated);
    rig.finish();
}

/// R77: a capability's error arrives as it is, and changes nothing.
#[test]
fn errors_arrive() {
    let no = || MemoryError::AllocationFailed { tier: "test", requested: 3, reason: "no".into() };
    let (rig, capable, prefix, allocation) = equipped();
    let before = rig.registry.snapshot(rig.mechanism).unwrap();
    for (_, call, run) in CALLS {
        if call.starts_with("allocation_committed_bytes") {
            continue; // It has no error.
        }
        arm(&rig.script.capability, move || Err(no()));
        refused(run(&capable, &prefix, &allocation), BindingError::Memory(no()));
        assert_eq!(rig.log.take().len(), 2, "{call}");
        assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), before);
    }
    finish(rig, capable, prefix, allocation);
}

/// R60, R78: what a capability has allocated is an allocation like any other, and goes back through the allocator.
#[test]
fn committed_allocations_are_allocations() {
    let rig = Rig::new();
    let capable = Capable::of(&rig);
    let allocation = capable.backing.allocate_committed(128, 16, &[0..64, 96..128]).unwrap();
    assert_eq!((allocation.len(), allocation.alignment()), (128, 16));
    assert_eq!(allocation.binding().identity(), capable.binding.identity());
    assert_eq!(capable.binding.mechanism_snapshot().unwrap().live_allocations, 1);
    let view = allocation.view(64, 64).unwrap();
    let address = capable.binding.with_view(&view, |view| view.as_ptr()).unwrap();
    // SAFETY: within the 128 bytes that are live.
    assert_eq!(address, unsafe { allocation.as_ptr().add(64) });
    assert_eq!(rig.log.take(), ["A as_virtual_backing", "A allocate_committed 128 16 [0..64, 96..128]"]);

    let owner = OwningAllocation::new(allocation);
    let identity = owner.identity();
    assert!(owner.release_now().unwrap().is_complete());
    assert_eq!(rig.log.take(), ["A release 128 16"]);
    let next = capable.backing.allocate_committed(128, 16, &[]).unwrap();
    assert_ne!(next.identity(), identity);
    capable.binding.release(next).unwrap();
    drop((capable, view));
    rig.finish();
}

/// R79: a prefix is its binding's: another binding of the mechanism refuses it, before it looks at the allocation, and asks nobody.
#[test]
fn prefixes_belong_to_their_binding() {
    let (rig, capable, prefix, allocation) = equipped();
    let sibling = Capable::of(&rig);
    let foreign = sibling.binding.allocate(8, 8).unwrap();
    let prefix_of_sibling = sibling.mapping.create_shared_prefix(8).unwrap();
    let stale = capable.binding.allocate(16, 8).unwrap();
    arm(&rig.script.release, || AllocationReleaseOutcome::failed("stuck"));
    let stale = capable.binding.release(stale).unwrap_err().into_parts().1;
    rig.log.take();
    assert_eq!(prefix_of_sibling.binding_identity(), sibling.binding.identity());

    let mismatch = || BindingError::BindingMismatch { expected: capable.binding.identity().id(), actual: sibling.binding.identity().id() };
    refused(capable.mapping.incremental_owned_bytes_for_shared_prefix(&prefix_of_sibling), mismatch());
    for allocation in [&allocation, &foreign, &stale] {
        refused(capable.mapping.commit_shared_prefix(&prefix_of_sibling, allocation, 0), mismatch());
    }
    refused(capable.mapping.commit_shared_prefix(&prefix, &foreign, 0), mismatch());
    refused(capable.mapping.commit_shared_prefix(&prefix, &stale, 0), BindingError::StaleAllocation(stale.identity()));
    assert_eq!(rig.log.take(), [""; 0]);
    assert_eq!(operations(&capable.binding), 0);

    sibling.binding.release(foreign).unwrap();
    capable.binding.release(allocation).unwrap();
    drop((capable, sibling, prefix, prefix_of_sibling, stale));
    bring(&rig, Terminated);
    rig.finish();
}

#[track_caller]
fn read(rig: &Rig, prefix: &BoundSharedPrefix) {
    rig.log.take();
    let read = (prefix.device_ptr(), prefix.committed_physical_bytes(), prefix.mapped_bytes(), prefix.requested_bytes());
    assert_eq!(read, (1 << 40, 33, 34, 32));
    assert_eq!(rig.log.take(), ["P device_ptr", "P committed_physical_bytes", "P mapped_bytes", "P requested_bytes"]);
}

/// R80, R101: what a prefix says of itself is to be had in every lifecycle, and after removal, and is no operation.
#[test]
fn prefixes_are_read_at_any_time() {
    for phase in PHASES {
        let rig = Rig::new();
        let capable = Capable::of(&rig);
        let prefix = capable.mapping.create_shared_prefix(32).unwrap();
        bring(&rig, phase);
        let inside = capable.binding.clone();
        arm(&rig.script.prefix, move || assert_eq!(operations(&inside), 0));
        read(&rig, &prefix);
        rig.registry.retire(rig.mechanism).unwrap();
        rig.registry.remove(rig.mechanism).unwrap();
        drop(capable);
        read(&rig, &prefix);
        let Rig { registry, log, .. } = rig;
        drop(registry);
        drop(prefix);
        assert_eq!(log.take(), ALL);
    }
}

/// R49, R81: a prefix blocks no part of a teardown, and ends when it is dropped: it first, then allocator, authority and context.
#[test]
fn prefixes_hold_up_nothing() {
    for lose in [false, true] {
        let rig = Rig::new();
        let capable = Capable::of(&rig);
        let prefix = capable.mapping.create_shared_prefix(32).unwrap();
        let snapshot = rig.registry.snapshot(rig.mechanism).unwrap();
        assert!(!snapshot.retains_ownership() && snapshot.active_operations == 0);
        drop(capable);
        bring(&rig, if lose { Terminated } else { Retired });
        rig.registry.remove(rig.mechanism).unwrap();
        rig.registry.remove_provider_context(rig.context).unwrap();
        rig.registry.remove_authority(rig.authority).unwrap();
        rig.log.take();
        read(&rig, &prefix);
        // The double checks by itself that what it needs is there, before its hook and after.
        let log = rig.log.clone();
        arm(&rig.script.prefix_drop, move || assert_eq!(log.take(), [""; 0]));
        drop(prefix);
        assert_eq!(rig.log.take(), ALL);
        assert!(rig.script.is_spent());
    }
}

/// R81: with others about, a prefix ends alone.
#[test]
fn prefixes_end_when_they_are_dropped() {
    let (rig, capable, prefix, allocation) = equipped();
    drop(prefix);
    assert_eq!(rig.log.take(), ["P dropped"]);
    let next = capable.mapping.create_shared_prefix(32).unwrap();
    finish(rig, capable, next, allocation);
}

/// R49, R50: a prefix that ends within another destructor ends before what it needs, too, before the outermost call returns.
#[test]
fn prefixes_end_first_within_destructors() {
    let rig = Rig::new();
    let capable = Capable::of(&rig);
    let prefix = capable.mapping.create_shared_prefix(32).unwrap();
    drop(capable);
    rig.registry.retire(rig.mechanism).unwrap();
    rig.registry.remove(rig.mechanism).unwrap();
    // The last pin of A, Q and C is what the destructor of a context of its own drops.
    let script = Arc::<Script>::default();
    let outer = Resource::context("outer", &rig.log, &script);
    let outer = rig.registry.register_provider_context(DEVICE, outer).unwrap();
    rig.registry.remove_provider_context(rig.context).unwrap();
    rig.registry.remove_authority(rig.authority).unwrap();
    rig.log.take();
    arm(&script.context_drop, move || drop(prefix));
    rig.registry.remove_provider_context(outer).unwrap();
    assert_eq!(rig.log.take(), [&["outer dropped"][..], &ALL].concat());
}

/// R53: an allocator whose capability drops everything that it can reach ends after the call, and so does a prefix.
#[test]
fn nothing_ends_within_its_own_call() {
    let rig = Rig::new();
    let Capable { binding, backing, mapping } = Capable::of(&rig);
    let (prefix, allocation) = (mapping.create_shared_prefix(32).unwrap(), binding.allocate(64, 8).unwrap());
    let Rig { registry, log, script, mechanism, .. } = rig;
    arm(&script.capability, move || {
        registry.retire(mechanism).unwrap();
        drop((registry, binding));
        Ok(0)
    });
    log.take();
    mapping.commit_shared_prefix(&prefix, &allocation, 0).unwrap();
    arm(&script.prefix, move || drop((allocation, backing, mapping)));
    assert_eq!(prefix.mapped_bytes(), 34);
    assert_eq!(log.take(), ["A as_shared_mapping", "A commit_shared_prefix 32 64 0", "P mapped_bytes"]);
    drop(prefix);
    assert_eq!(log.take(), ALL);
}

/// R49: while its end waits for an outer destructor, a prefix still pins what it needs, whoever else lets go.
#[test]
fn prefixes_pin_until_they_have_ended() {
    let rig = Rig::new();
    let capable = Capable::of(&rig);
    let prefix = capable.mapping.create_shared_prefix(32).unwrap();
    let script = Arc::<Script>::default();
    let outer = rig.registry.register_provider_context(DEVICE, Resource::context("outer", &rig.log, &script)).unwrap();
    rig.registry.retire(rig.mechanism).unwrap();
    rig.registry.remove(rig.mechanism).unwrap();
    let log = rig.log.clone();
    log.take();
    arm(&script.context_drop, move || {
        drop(prefix);
        thread::spawn(|| drop(capable)).join().unwrap();
        assert_eq!(log.take(), [""; 0]);
    });
    rig.registry.remove_provider_context(outer).unwrap();
    assert_eq!(rig.log.take(), ["outer dropped", "P dropped", "A dropped"]);
}

/// R48, R49: what the end of a prefix brings about comes after it, whatever shares authority and context.
#[test]
fn what_a_prefix_pinned_ends_after_it() {
    let rig = Rig::new();
    let capable = Capable::of(&rig);
    let prefix = capable.mapping.create_shared_prefix(32).unwrap();
    drop(capable);
    let sibling = another(&rig, "B");
    let binding = rig.registry.bind_registered(sibling).unwrap();
    rig.registry.retire(rig.mechanism).unwrap();
    rig.registry.remove(rig.mechanism).unwrap();
    // The end of the prefix is that of A, which is that of B. Q and C wait for both.
    arm(&rig.script.drop, move || drop(binding));
    let Rig { registry, log, .. } = rig;
    log.take();
    drop(registry);
    drop(prefix);
    assert_eq!(log.take(), ["P dropped", "A dropped", "B dropped", "Q dropped", "C dropped"]);
}

/// R26, R31, R40: a handle outlives its mechanism's active life, and is refused from then on.
#[test]
fn handles_are_refused_by_the_lifecycle() {
    for phase in &PHASES[1..] {
        let (rig, capable, prefix, allocation) = equipped();
        bring(&rig, *phase);
        let refusal = || match phase {
            DeviceLost => BindingError::DeviceLost { device: DEVICE, reason: REASON.into() }.into(),
            phase => Expected::from((rig.mechanism, *phase)),
        };
        for (_, _, run) in CALLS {
            refused(run(&capable, &prefix, &allocation), refusal());
        }
        refused(capable.binding.virtual_backing().map(debug), refusal());
        refused(capable.binding.shared_mapping().map(debug), refusal());
        assert_eq!(rig.log.take(), [""; 0]);
        assert_eq!(operations(&capable.binding), 0);
    }
}

fn debug(thing: impl Debug) -> String {
    format!("{thing:?}")
}
