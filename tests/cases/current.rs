//! What is current.

use crate::{
    common::{
        another::another,
        arm::arm,
        refused::refused,
        rig::{DEVICE, Rig},
    },
    nobody, take_away,
};
use liveslot::*;
use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::{self},
};

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
    let next = another(&rig, "B");
    let own = Some(rig.mechanism.identity());
    let clears: [(&dyn Fn(), _); 3] = [
        (&|| assert_eq!(rig.registry.deselect(DEVICE), own), rig.mechanism),
        (&|| assert_eq!(device.clone().deselect(), own), rig.mechanism),
        (&|| rig.registry.retire(rig.mechanism).unwrap(), next),
    ];
    for (clear, then) in clears {
        clear();
        refused(rig.registry.bind(DEVICE), nobody(DEVICE));
        refused(rig.registry.clone().bind(DEVICE), nobody(DEVICE));
        refused(device.bind(), nobody(DEVICE));
        assert_eq!((device.selected(), device.deselect()), (None, None));

        rig.registry.select(then).unwrap();
        assert_eq!(device.selected(), Some(then.identity()));
        for binding in [rig.registry.bind(DEVICE), rig.registry.clone().bind(DEVICE), device.bind()] {
            assert_eq!(binding.unwrap().identity().mechanism(), then.identity());
        }
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

/// C006: of two that decide by the same selection one wins, and the other is told what stands now: no change is lost. Nobody ends on
/// account of having lost.
#[test]
fn one_of_two_that_saw_the_same_wins() {
    const ROUNDS: usize = 1_000;
    let rig = Rig::new();
    let mechanisms = [another(&rig, "B"), another(&rig, "D")];
    let device = rig.registry.device(DEVICE);
    let (first, together) = (device.version(), Barrier::new(2));
    let outcomes = thread::scope(|scope| {
        let change = |own| {
            let round = |_| {
                together.wait();
                let seen = device.version();
                together.wait();
                device.select_if(seen, own)
            };
            (0..ROUNDS).map(round).collect::<Vec<_>>()
        };
        mechanisms.map(|own| scope.spawn(move || change(own))).map(|thread| thread.join().unwrap())
    });
    let mut wins = [0; 2];
    let [of_b, of_d] = outcomes;
    for (round, outcomes) in of_b.into_iter().zip(of_d).enumerate() {
        let version = first + 1 + round as u64;
        let (winner, loser) = match outcomes {
            (Ok(won), Err(lost)) => ((0, won), lost),
            (Err(lost), Ok(won)) => ((1, won), lost),
            both => panic!("one wins, and the other does not: {both:?}"),
        };
        wins[winner.0] += 1;
        assert_eq!(winner.1, version);
        let winner = Some(mechanisms[winner.0].identity());
        match loser {
            SelectIfError::Conflict { device: DEVICE, version: now, selected } if now == version && selected == winner => {}
            told => panic!("the loser is not told of {winner:?}: {told:?}"),
        }
    }
    println!("wins: {wins:?}");
    assert_eq!(device.version(), first + ROUNDS as u64);
    drop(device);
    rig.log.take();
    for (mechanism, dropped) in mechanisms.into_iter().zip(["B dropped", "D dropped"]) {
        assert_eq!(rig.registry.snapshot(mechanism).unwrap().lifecycle, MechanismLifecycle::Active);
        take_away(&rig.registry, mechanism);
        assert_eq!(rig.log.take(), [dropped]);
    }
    rig.finish();
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
