//! "Drained" is said too early, too late or never.

use crate::{
    OTHER,
    common::{
        arm::arm,
        doubles::{Double, Resource},
        park::gate,
        rig::{DEVICE, Rig},
        watchdog::in_time,
        woken::{Woken, poll},
    },
    hold,
    pool::{BLOCK, Pool},
    register, take_away,
};
use liveslot::*;
use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

const NOW: Duration = Duration::ZERO;

/// Demands that it still waits, and says for what.
#[track_caller]
fn waits_for(drain: &mut Drain) -> MechanismSnapshot {
    match drain.wait(NOW) {
        Err(DrainError::TimedOut(report)) => report.snapshot,
        other => panic!("{other:?}"),
    }
}

/// C114: from its retirement on a mechanism never reads as drained while one block is out, nor as owning more than it ever did, whatever
/// comes back on other threads meanwhile.
#[test]
fn nothing_reads_as_drained_while_a_block_is_out() {
    const THREADS: usize = 4;
    const EACH: usize = 500;
    for _ in 0..10 {
        let rig = Rig::new();
        let binding = rig.registry.bind(DEVICE).unwrap();
        // Allocated here, released there: on stripes that are not theirs. The last one is counted apart from the others.
        let block = thread::scope(|scope| scope.spawn(|| binding.allocate(64, 8).unwrap()).join().unwrap());
        let others = [(); THREADS].map(|()| [(); EACH].map(|()| binding.allocate(8, 8).unwrap()));
        let mut drain = rig.registry.retire_and_drain(rig.mechanism).unwrap();
        let woken = Arc::<Woken>::default();
        let left = AtomicUsize::new(THREADS);
        thread::scope(|scope| {
            for blocks in others {
                let (binding, left) = (binding.clone(), &left);
                scope.spawn(move || {
                    blocks.into_iter().for_each(|block| binding.release(block).unwrap());
                    left.fetch_sub(1, SeqCst);
                });
            }
            let mut most = THREADS * EACH + 1;
            while left.load(SeqCst) != 0 {
                let snapshot = drain.report().snapshot;
                let owned = snapshot.live_allocations + snapshot.queued_releases + snapshot.quarantined_allocations;
                assert!((1..=most).contains(&owned), "{owned}, after {most}");
                most = owned;
                assert!(poll(&mut drain, &woken).is_pending());
            }
        });
        assert_eq!(waits_for(&mut drain).live_allocations, 1);
        binding.release(block).unwrap();
        assert_eq!(drain.wait(NOW), Ok(()));
        drop(binding);
        rig.finish();
    }
}

/// C116: two threads end the last two releases at once, while a third takes everything apart as soon as it is told: the counts outlive
/// both, and it is told once.
#[test]
fn the_last_two_may_leave_at_once() {
    for _ in 0..300 {
        let rig = Rig::new();
        let binding = rig.registry.bind(DEVICE).unwrap();
        let request = || binding.allocate_owning(8, 8).unwrap().prepare_release().unwrap();
        // Counted on two stripes.
        let requests = [request(), thread::scope(|scope| scope.spawn(request).join().unwrap())];
        drop(binding);
        rig.registry.retire(rig.mechanism).unwrap();
        let Rig { registry, log, mechanism, .. } = rig;
        let at_once = Arc::new(Barrier::new(3));
        let removing = thread::spawn({
            let at_once = Arc::clone(&at_once);
            move || {
                let mut removal = registry.remove_when_drained(mechanism).unwrap();
                at_once.wait();
                removal.wait(Duration::MAX).unwrap();
                drop(registry);
            }
        });
        let releasing = requests.map(|request| {
            let at_once = Arc::clone(&at_once);
            thread::spawn(move || {
                at_once.wait();
                assert!(request.execute().is_complete());
            })
        });
        in_time(move || releasing.into_iter().chain([removing]).for_each(|thread| thread.join().unwrap()));
        let entries = log.take();
        assert_eq!(entries[..4], [["A allocate 8 8"; 2], ["A release 8 8"; 2]].concat());
        assert_eq!(entries.iter().filter(|entry| *entry == "A dropped").count(), 1);
        assert_eq!(entries.len(), 7, "{entries:?}");
    }
}

/// C117: of a removal by the last one to leave and a look-up by the token, the look-up has a binding that works on and pins, or it is
/// refused; the allocator ends once.
#[test]
fn a_look_up_meets_the_end_or_holds_it_up() {
    for _ in 0..300 {
        let rig = Rig::new();
        let (binding, block) = hold(&rig);
        let mechanism = rig.mechanism;
        let at_once = Barrier::new(2);
        let found = thread::scope(|scope| {
            let ending = scope.spawn(|| {
                at_once.wait();
                let mut removal = rig.registry.remove_when_drained(mechanism).unwrap();
                rig.registry.retire(mechanism).unwrap();
                binding.release(block).unwrap();
                drop(binding);
                removal.wait(Duration::MAX).unwrap();
            });
            at_once.wait();
            let found = rig.registry.bind_registered(mechanism);
            ending.join().unwrap();
            found
        });
        let ended = rig.log.take();
        match found {
            Ok(found) => {
                assert_eq!(ended, ["A release 64 8"]);
                assert_eq!(found.mechanism_snapshot().unwrap().lifecycle, MechanismLifecycle::Retired);
                drop(found);
                assert_eq!(rig.log.take(), ["A dropped"]);
            }
            Err(BindingError::InactiveMechanism { lifecycle: MechanismLifecycle::Retired, .. }) => {
                assert_eq!(ended, ["A release 64 8", "A dropped"]);
            }
            Err(BindingError::UnregisteredMechanism(unknown)) => {
                assert_eq!(unknown, mechanism.identity());
                assert_eq!(ended, ["A release 64 8", "A dropped"]);
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// C119: a walk over a device's mechanisms that is stopped at one of them holds up that one's removal and no other; that one is removed
/// once the walk goes on, without being asked for again.
#[test]
fn a_walk_in_progress_delays_a_removal_and_cancels_none() {
    let registry = BindingRegistry::new().unwrap();
    let (stop, walk) = gate();
    let (visited, ..) = register(&registry, DEVICE, Pool::stopping(stop));
    let (not_yet, ..) = register(&registry, DEVICE, Pool::new().0);
    thread::scope(|scope| {
        let walking = scope.spawn(|| registry.trim(DEVICE, 0));
        walk.reached();
        registry.retire(not_yet).unwrap();
        registry.remove_when_drained(not_yet).unwrap().wait(NOW).unwrap();

        registry.retire(visited).unwrap();
        let mut removal = registry.remove_when_drained(visited).unwrap();
        match removal.wait(NOW) {
            Err(RemovalError::TimedOut(report)) => assert_eq!(report.snapshot.active_operations, 1),
            other => panic!("{other:?}"),
        }
        let removing = thread::spawn(move || removal.wait(Duration::MAX).unwrap());
        walk.open();
        in_time(move || removing.join().unwrap());
        assert_eq!(walking.join().unwrap(), 0);
    });
    assert_eq!(registry.snapshots().unwrap(), []);
}

/// C121: a loss and a removal wait for whoever is inside the allocator, and for what that one makes of it.
#[test]
fn nothing_is_taken_from_a_thread_inside_the_allocator() {
    for fails in [true, false] {
        let rig = Rig::new();
        let binding = rig.registry.bind(DEVICE).unwrap();
        let (stop, inside) = gate();
        arm(&rig.script.allocate, move || {
            stop.park();
            let error = || MemoryError::InvalidRequest { tier: "device", requested: 16, reason: "the device is lost" };
            if fails { Err(error()) } else { Ok(()) }
        });
        let allocating = thread::spawn(move || binding.allocate(16, 8).map(drop));
        inside.reached();
        rig.registry.invalidate_device(DEVICE, "fell off the bus").unwrap();
        let mut drain = rig.registry.drain(rig.mechanism).unwrap();
        assert_eq!(waits_for(&mut drain).active_operations, 1);
        let mut removal = rig.registry.remove_when_drained(rig.mechanism).unwrap();
        let removing = thread::spawn(move || removal.wait(Duration::MAX).unwrap());
        assert_eq!(rig.log.take(), ["A allocate 16 8"]);
        inside.open();
        assert_eq!(allocating.join().unwrap().is_err(), fails);
        if !fails {
            // It is there, on a device that is not: only its context's end settles it.
            assert_eq!(waits_for(&mut drain).live_allocations, 1);
            rig.registry.confirm_context_terminated(rig.context).unwrap();
        }
        in_time(move || removing.join().unwrap());
        assert_eq!(drain.wait(NOW), Ok(()));
        assert_eq!(rig.log.take(), ["A dropped"]);
    }
}

/// C122: while one mechanism's destructor runs, another one may be registered for the same device, with a context of its own: the two
/// stand beside each other, and the end of the first is nothing to the second.
#[test]
fn a_successor_may_come_during_the_end() {
    let rig = Rig::new();
    let (stop, ending) = gate();
    arm(&rig.script.drop, || stop.park());
    let mut teardown = rig.registry.teardown(rig.mechanism).unwrap();
    thread::scope(|scope| {
        let taking_away = scope.spawn(|| take_away(&rig.registry, rig.mechanism));
        ending.reached();
        assert_eq!(teardown.wait(NOW).unwrap_err().handles, 0, "nobody holds it, and it has not ended");
        let context = rig.registry.register_provider_context(DEVICE, Resource::context("C2", &rig.log, &rig.script)).unwrap();
        let authority = rig.registry.register_authority(DEVICE, Resource::authority("Q2", &rig.log, &rig.script)).unwrap();
        let allocator = Double::new("B", ["Q2", "C2"], DEVICE, &rig.log, &Default::default());
        let next = rig.registry.register_allocator_with_device(context, authority, allocator, DEVICE).unwrap();
        let works = || {
            let binding = rig.registry.bind(DEVICE).unwrap();
            assert_eq!(binding.identity().mechanism(), next.identity());
            binding.release(binding.allocate(8, 8).unwrap()).unwrap();
            assert_eq!(rig.log.take(), ["B allocate 8 8", "B release 8 8"]);
        };
        works();
        ending.open();
        taking_away.join().unwrap();
        teardown.wait(NOW).unwrap();
        assert_eq!(rig.log.take(), ["A dropped"]);
        works();
        rig.registry.remove_authority(rig.authority).unwrap();
        rig.registry.remove_provider_context(rig.context).unwrap();
        assert_eq!(rig.log.take(), ["Q dropped", "C dropped"]);
        works();
        take_away(&rig.registry, next);
        rig.registry.remove_authority(authority).unwrap();
        rig.registry.remove_provider_context(context).unwrap();
        assert_eq!(rig.log.take(), ["B dropped", "Q2 dropped", "C2 dropped"]);
    });
}

/// C124: a retired mechanism with one block that never comes back: its idle memory goes at once, whoever waits is told in time what is
/// left, and its successor is not concerned.
#[test]
fn what_never_comes_back_is_named() {
    let registry = BindingRegistry::new().unwrap();
    let (pool, reserved) = Pool::new();
    let (mechanism, ..) = register(&registry, DEVICE, pool);
    let binding = registry.bind(DEVICE).unwrap().labelled("leaks");
    let blocks = [(); 10].map(|()| binding.allocate(BLOCK, 8).unwrap());
    let mut kept = None;
    for block in blocks {
        match kept {
            None => kept = Some(block),
            Some(_) => binding.release(block).unwrap(),
        }
    }
    let (next, ..) = register(&registry, DEVICE, Pool::new().0);
    registry.select(next).unwrap();
    let mut drain = registry.retire_and_drain(mechanism).unwrap();
    assert_eq!(registry.trim(DEVICE, 0), 9 * BLOCK as u64);
    assert_eq!(reserved.load(SeqCst), BLOCK);

    let left = waits_for(&mut drain);
    assert_eq!(left.identity, mechanism.identity());
    assert_eq!((left.live_allocations, left.active_operations, left.queued_releases, left.quarantined_allocations), (1, 0, 0, 0));
    let report = drain.report();
    assert_eq!(report.oldest().is_some(), cfg!(feature = "holders"));
    let named = report.holders.iter().map(|holder| (holder.label, holder.place.file(), holder.handles, holder.allocations));
    let expected = if cfg!(feature = "holders") { vec![(Some("leaks"), file!(), 1, 1)] } else { vec![] };
    assert_eq!(named.collect::<Vec<_>>(), expected);
    let successor = registry.bind(DEVICE).unwrap();
    assert_eq!(successor.identity().mechanism(), next.identity());
    successor.release(successor.allocate(BLOCK, 8).unwrap()).unwrap();
    assert_eq!(registry.drain(next).unwrap().report().snapshot.live_allocations, 0);

    binding.release(kept.unwrap()).unwrap();
    assert_eq!(drain.wait(NOW), Ok(()));
    drop((binding, successor));
    registry.remove(mechanism).unwrap();
    assert_eq!(reserved.load(SeqCst), 0);
    take_away(&registry, next);
}

/// C119: a drain of one device's mechanism waits for nothing on another device.
#[test]
fn another_devices_holder_is_in_nobodys_way() {
    let rig = Rig::new();
    let (elsewhere, ..) = register(&rig.registry, OTHER, Arc::new(HostAllocator));
    let binding = rig.registry.bind(OTHER).unwrap();
    let block = binding.allocate(8, 8).unwrap();
    assert_eq!(rig.registry.retire_and_drain(rig.mechanism).unwrap().wait(NOW), Ok(()));
    binding.release(block).unwrap();
    drop(binding);
    take_away(&rig.registry, elsewhere);
    rig.finish();
}
