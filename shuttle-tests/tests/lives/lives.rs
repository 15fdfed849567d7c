//! The lives, but for those with a queue and those that wait.

pub use crate::{
    deferred::{deferred_releases, requests_without_a_registry},
    waiting::{settlements, shutdowns, waits},
};

use crate::world::{DEVICE, End, Home, World, at_once, role, until};
use liveslot_shuttle::{BindingError, MechanismLifecycle, RegisteredMechanism};
use shuttle::rand::{Rng, thread_rng};
use std::sync::{Arc, Mutex};

/// How many mechanisms a device has room for under shuttle.
const PLACES: usize = 126;

/// R18, R24: a healthy mechanism is selected all the while, so every binding is granted, and what it is used for is done.
pub fn swaps() {
    let world = World::new();
    let home = world.home();
    let mechanisms = [world.register(&home), world.register(&home)];
    let worker = || {
        role(&world, |world| {
            for _ in 0..2 {
                assert!(world.work(), "a healthy mechanism was selected all the while");
            }
        })
    };
    at_once([
        worker(),
        worker(),
        role(&world, move |world| {
            for _ in 0..3 {
                world.select(mechanisms[thread_rng().gen_range(0..2)]).unwrap();
            }
        }),
        role(&world, |world| world.watch(4)),
    ]);
    world.rests();
    for mechanism in mechanisms {
        world.retire(mechanism).unwrap();
        world.remove(mechanism).unwrap();
    }
    world.ends();
}

/// R18, R24: each mechanism is selected before the one before it is retired, and removed when its last caller has gone. So something is
/// selected all the while, and every binding is granted, though it may be to one that refuses by the time that it is used.
pub fn hand_overs() {
    let world = World::new();
    let home = world.home();
    let first = world.register(&home);
    let worker = || {
        role(&world, |world| {
            for _ in 0..3 {
                let binding = world.bind().expect("something was selected all the while");
                world.work_on(&binding);
            }
        })
    };
    at_once([
        worker(),
        worker(),
        role(&world, move |world| {
            let mut selected = first;
            for _ in 0..2 {
                let next = world.register(&home);
                world.select(next).unwrap();
                world.retire(selected).unwrap();
                world.remove_when_idle(selected);
                selected = next;
            }
        }),
    ]);
    world.ends();
}

/// R20, R22, R123: two selections whose candidates are retired meanwhile, and perhaps one that stays, and perhaps the end of the
/// predecessor. If both have failed it is as if nobody had tried: nobody was given a candidate, nobody found nothing, and what was chosen
/// besides, or the predecessor, is selected.
pub fn failing_selections() {
    let world = World::new();
    let home = world.home();
    let [predecessor, newer, one, two] = [(); 4].map(|()| world.register(&home));
    let candidates = [one, if thread_rng().r#gen() { one } else { two }];
    let (choose, retire) = [(false, false), (true, false), (false, true)][thread_rng().gen_range(0..3)];
    let decided = Arc::new(Mutex::new(Vec::new()));
    let met = Arc::new(Mutex::new(Vec::new()));
    let selecting = |candidate| {
        let decided = Arc::clone(&decided);
        role(&world, move |world| {
            let selected = world.select(candidate).is_ok();
            decided.lock().unwrap().push(selected);
        })
    };
    let ending = role(&world, move |world| {
        for candidate in candidates {
            world.retire(candidate).unwrap();
        }
    });
    let besides = {
        let met = Arc::clone(&met);
        role(&world, move |world| {
            if choose {
                world.select(newer).unwrap();
            }
            if retire {
                world.retire(predecessor).unwrap();
            }
            for _ in 0..2 {
                let bound = world.bind().map(|binding| binding.identity().mechanism());
                met.lock().unwrap().push(bound);
            }
        })
    };
    at_once([selecting(candidates[0]), selecting(candidates[1]), ending, besides]);
    if *decided.lock().unwrap() == [false, false] {
        let expected = match (choose, retire) {
            (true, _) => Some(newer.identity()),
            (false, true) => None,
            (false, false) => Some(predecessor.identity()),
        };
        assert_eq!(world.registry.device(DEVICE).selected(), expected, "a selection that failed has left a trace");
        assert!(met.lock().unwrap().iter().all(|bound| *bound == expected), "{met:?} instead of {expected:?}");
    }
    world.ends();
}

/// R13, R124 to R127: two registrations meet the end of what is selected, or a selection that may fail. Whatever is Active was registered
/// behind that end, and then something Active is selected.
pub fn registrations() {
    let world = World::new();
    let home = world.home();
    let [selected, candidate] = [(); 2].map(|()| world.register(&home));
    let end = thread_rng().gen_range(0..3);
    if end == 2 {
        world.retire(selected).unwrap();
    }
    let registered = Arc::new(Mutex::new(Vec::new()));
    let failed = Arc::new(Mutex::new(false));
    let registering = || {
        let (home, registered) = (home.clone(), Arc::clone(&registered));
        role(&world, move |world| {
            let mechanism = world.register(&home);
            registered.lock().unwrap().push(mechanism);
        })
    };
    let [selecting, ending] = {
        let failed = Arc::clone(&failed);
        [
            role(&world, move |world| {
                if end == 2 {
                    let refused = world.select(candidate).is_err();
                    *failed.lock().unwrap() = refused;
                }
            }),
            role(&world, move |world| match end {
                0 => world.lose(),
                1 => world.retire(selected).unwrap(),
                _ => world.retire(candidate).unwrap(),
            }),
        ]
    };
    at_once([registering(), registering(), selecting, ending]);
    world.rests();
    let registered = registered.lock().unwrap().clone();
    let active = |mechanism| world.snapshot(mechanism).unwrap().lifecycle == MechanismLifecycle::Active;
    let chosen = world.registry.device(DEVICE).selected();
    assert!(chosen.is_none_or(|chosen| registered.iter().any(|mechanism| mechanism.identity() == chosen)));
    match end {
        0 if registered.iter().any(|mechanism| active(*mechanism)) => assert!(chosen.is_some(), "Active behind a loss, and not selected"),
        2 if *failed.lock().unwrap() => assert!(chosen.is_some(), "a selection that failed has kept a registration out"),
        _ => {}
    }
    world.ends();
}

/// R111, R129, R130, R136, R138: one thread ends a mechanism's life and others act on that at once: removing it, or confirming the end of
/// its context. They are granted that only when nobody is inside, nor comes in any more.
pub fn ends_acted_upon_by_others() {
    let world = World::new();
    let home = world.home();
    let mechanism = world.register(&home);
    let lost = thread_rng().r#gen();
    let worker = || {
        let binding = world.bind().unwrap();
        role(&world, move |world| {
            world.work_on(&binding);
            world.work_on(&binding);
        })
    };
    let ending = || {
        role(&world, move |world| {
            if lost {
                world.lose();
            } else {
                // The other one's removal may have come between.
                let _ = world.retire(mechanism);
            }
        })
    };
    let acting = {
        let home = home.clone();
        role(&world, move |world| {
            if lost {
                until(|| world.confirm(&home).is_ok());
                world.remove(mechanism).unwrap();
            } else {
                world.remove_when_idle(mechanism);
            }
        })
    };
    at_once([worker(), worker(), ending(), ending(), acting]);
    world.registry.remove_authority(home.authority).unwrap();
    world.registry.remove_provider_context(home.context).unwrap();
    world.ends();
}

/// R13, R22, R120, R127, R129, R131, R138: mechanisms come, are selected, retired and removed, while others work on whatever is selected.
pub fn churn() {
    let world = World::new();
    let home = world.home();
    let churner = |home: Home| {
        role(&world, move |world| {
            for _ in 0..2 {
                let mechanism = world.register(&home);
                if thread_rng().r#gen() {
                    world.select(mechanism).unwrap();
                }
                world.retire(mechanism).unwrap();
                world.remove_when_idle(mechanism);
            }
        })
    };
    let worker = || {
        role(&world, |world| {
            for _ in 0..3 {
                world.work();
            }
        })
    };
    at_once([churner(home.clone()), churner(home.clone()), worker(), worker(), role(&world, |world| world.watch(3))]);
    world.registry.remove_provider_context(home.context).unwrap();
    world.registry.remove_authority(home.authority).unwrap();
    world.ends();
}

/// R28, R31, R36, R38, R42, R46, R130, R132, R134 to R136: the device is lost, its context ends when all calls have come back, what stood
/// on it is removed, and the next mechanism takes its place.
pub fn loss_and_recovery() {
    let world = World::new();
    let home = world.home();
    let mechanism = world.register(&home);
    let worker = || {
        role(&world, |world| {
            for _ in 0..3 {
                world.work();
            }
        })
    };
    at_once([
        worker(),
        worker(),
        role(&world, |world| world.watch(3)),
        role(&world, move |world| {
            let (mut home, mut mechanism) = (home, mechanism);
            for _ in 0..2 {
                world.lose();
                until(|| match world.confirm(&home) {
                    Ok(()) => true,
                    Err(BindingError::ContextNotQuiescent { active_operations: 1.., .. }) => false,
                    Err(other) => panic!("{other:?}"),
                });
                let snapshot = world.snapshot(mechanism).unwrap();
                assert_eq!(snapshot.lifecycle, MechanismLifecycle::Terminated);
                assert!(!snapshot.retains_ownership() && snapshot.active_operations == 0, "{snapshot:?}");
                world.remove(mechanism).unwrap();
                world.registry.remove_provider_context(home.context).unwrap();
                world.registry.remove_authority(home.authority).unwrap();
                home = world.home();
                mechanism = world.register(&home);
            }
        }),
    ]);
    world.rests();
    assert!(world.work(), "the last mechanism is selected");
    world.ends();
}

/// R48, R50, R149: the handles of one mechanism and the registry let go on threads of their own, each having made and dropped another: who
/// comes last destroys, once and in order.
pub fn last_handles() {
    let world = World::new();
    let home = world.home();
    let mechanism = world.register(&home);
    let ends = world.ends.clone();
    let binding = world.bind().unwrap();
    let allocation = binding.allocate(16, 8).unwrap();
    let view = allocation.view(0, 16).unwrap();
    let error = world.bind().unwrap().release(binding.allocate(16, 8).unwrap()).unwrap_err();
    let removed = thread_rng().r#gen();
    at_once([
        Box::new(move || {
            drop(view.clone());
            drop(view);
        }),
        Box::new(move || {
            drop(error);
            drop(allocation);
        }),
        Box::new(move || {
            let another = binding.clone();
            drop(binding);
            drop(another);
        }),
        Box::new(move || {
            if removed {
                world.lose();
                world.confirm(&home).unwrap();
                world.remove(mechanism).unwrap();
                // In this order: between separate calls it is the caller's.
                world.registry.remove_authority(home.authority).unwrap();
                world.registry.remove_provider_context(home.context).unwrap();
            }
            drop(world);
        }),
    ]);
    assert_eq!(ends.so_far(), [End::Allocator, End::Authority, End::Context]);
}

/// R52, R56, R57: the clones of the registry go while bindings work; they go on working, and destroy when they go.
pub fn bindings_without_a_registry() {
    let world = World::new();
    let home = world.home();
    world.register(&home);
    let ends = world.ends.clone();
    let worker = || {
        let (world, binding) = (Arc::clone(&world), world.bind().unwrap());
        Box::new(move || {
            let another = world.bind();
            assert!(world.work_on(&binding));
            drop(world);
            // The book went with the world, so the calls are bare from here on.
            for binding in another.into_iter().chain([binding]) {
                let allocation = binding.allocate(16, 8).unwrap();
                let view = allocation.view(0, 8).unwrap();
                binding.with_view(&view, |part| assert_eq!(part.len(), 8)).unwrap();
                binding.clone().release(allocation).unwrap();
                let snapshot = binding.mechanism_snapshot().unwrap();
                assert_eq!((snapshot.lifecycle, snapshot.quarantined_allocations), (MechanismLifecycle::Active, 0));
            }
        })
    };
    let device = world.registry.device(DEVICE);
    at_once([
        worker(),
        worker(),
        Box::new(move || {
            device.bind().unwrap();
            drop(device);
        }),
    ]);
    assert_eq!(ends.so_far(), []);
    drop(world);
    assert_eq!(ends.so_far(), [End::Allocator, End::Authority, End::Context]);
}

/// R137, R139, R140, R143, R144: rivals end one mechanism, its context and its authority: of each kind of removal one succeeds.
pub fn removals() {
    let world = World::new();
    let home = world.home();
    let mechanism = world.register(&home);
    let won = Arc::new(Mutex::new([0; 3]));
    let rival = |lose: bool| {
        let (home, won) = (home.clone(), Arc::clone(&won));
        role(&world, move |world| {
            if lose {
                world.lose();
                let _ = world.confirm(&home);
            }
            let _ = world.retire(mechanism);
            let removed = world.remove(mechanism);
            if let Err(refused) = &removed {
                assert!(matches!(refused, BindingError::UnregisteredMechanism(_) | BindingError::InactiveMechanism { .. }), "{refused:?}");
            }
            let context = world.registry.remove_provider_context(home.context);
            let authority = world.registry.remove_authority(home.authority);
            let mut won = won.lock().unwrap();
            for (won, result) in won.iter_mut().zip([removed, context, authority]) {
                *won += usize::from(result.is_ok());
            }
        })
    };
    let late = {
        let home = home.clone();
        role(&world, move |world| {
            let _ = world.bind_registered(mechanism);
            let _ = world.select(mechanism);
            match world.try_register(&home, 0.0) {
                Ok(registered) => {
                    let used = world.registry.remove_provider_context(home.context);
                    assert!(matches!(used, Err(BindingError::ProviderContextInUse(_))), "{used:?}");
                    world.retire(registered).unwrap();
                    world.remove(registered).unwrap();
                }
                Err(refused) => {
                    let expected = matches!(refused, BindingError::UnregisteredProviderContext(_) | BindingError::UnregisteredAuthority(_));
                    assert!(expected, "{refused:?}");
                }
            }
        })
    };
    at_once([rival(true), rival(false), rival(false), late]);
    let won = *won.lock().unwrap();
    assert_eq!(won[0], 1, "removals of one mechanism that succeeded");
    assert!(won[1] <= 1 && won[2] <= 1, "removals of one context or authority that succeeded: {won:?}");
    assert!(matches!(world.registry.remove(mechanism), Err(BindingError::UnregisteredMechanism(_))));
    world.ends();
}

/// R100, R102, R148: nothing is settled here, so every snapshot finds all of what is allocated, whether live, queued or retained.
pub fn quarantine() {
    const EACH: usize = 2;
    let world = World::new();
    let home = world.home();
    let mechanism = world.try_register(&home, 1.0).unwrap();
    let worker = || {
        let binding = world.bind().unwrap();
        let allocations = [(); EACH].map(|()| binding.allocate(16, 8).unwrap());
        Box::new(move || {
            for allocation in allocations {
                binding.release(allocation).unwrap_err();
            }
        })
    };
    let ending = role(&world, move |world| {
        if thread_rng().r#gen() {
            world.retire(mechanism).unwrap();
        } else {
            world.lose();
        }
    });
    let looking = role(&world, move |world| {
        for _ in 0..4 {
            let snapshot = world.snapshot(mechanism).unwrap();
            let owned = snapshot.live_allocations + snapshot.queued_releases + snapshot.quarantined_allocations;
            assert_eq!(owned, 2 * EACH, "{snapshot:?}");
            assert_eq!(snapshot.quarantined_bytes, 16 * snapshot.quarantined_allocations as u64, "{snapshot:?}");
        }
    });
    at_once([worker(), worker(), ending, looking]);
    world.ends();
}

/// R6, R11: the last place of a device's table goes to one of two registrations. The other is refused, its allocator is gone, and it uses
/// neither context nor authority.
pub fn full_table() {
    let world = World::new();
    let home = world.home();
    let crowd = world.home();
    let mut registered: Vec<_> = (0..PLACES - 1).map(|_| world.register(&crowd)).collect();
    let last = Arc::new(Mutex::new(Vec::new()));
    let registering = || {
        let (home, last) = (home.clone(), Arc::clone(&last));
        role(&world, move |world| {
            let result = world.try_register(&home, 0.0);
            last.lock().unwrap().push(result);
        })
    };
    at_once([registering(), registering()]);
    let (won, refused): (Vec<_>, Vec<_>) = last.lock().unwrap().drain(..).partition(Result::is_ok);
    assert!(matches!(refused[..], [Err(BindingError::IdentityExhausted)]), "{refused:?}");
    assert_eq!(world.ends.so_far(), [End::Allocator], "of the refused registration");
    registered.extend(won.into_iter().flatten());
    for mechanism in registered {
        world.retire(mechanism).unwrap();
        world.remove(mechanism).unwrap();
    }
    world.registry.remove_provider_context(home.context).unwrap();
    world.registry.remove_authority(home.authority).unwrap();
    world.ends();
}

/// Everything at once: each thread picks its calls and what they are made on. What the book says holds for each.
pub fn any_mix() {
    let world = World::new();
    let home = world.home();
    let first = world.register(&home);
    let known: Arc<Mutex<Vec<(Home, RegisteredMechanism)>>> = Arc::new(Mutex::new(vec![(home, first)]));
    let caller = || {
        let known = Arc::clone(&known);
        role(&world, move |world| {
            for _ in 0..4 {
                let mut random = thread_rng();
                let (home, mechanism) = {
                    let known = known.lock().unwrap();
                    known[random.gen_range(0..known.len())].clone()
                };
                match random.gen_range(0..12) {
                    0 | 1 => {
                        let home = if random.r#gen() { home } else { world.home() };
                        if let Ok(registered) = world.try_register(&home, 0.0) {
                            known.lock().unwrap().push((home, registered));
                        }
                    }
                    2 | 3 => drop(world.select(mechanism)),
                    4 => drop(world.retire(mechanism)),
                    5 => drop(world.remove(mechanism)),
                    6 => world.lose(),
                    7 => drop(world.confirm(&home)),
                    8 => drop(world.registry.remove_provider_context(home.context)),
                    9 => drop(world.snapshot(mechanism)),
                    10 => drop(world.bind_registered(mechanism).map(|binding| world.work_on(&binding))),
                    _ => drop(world.work()),
                }
            }
        })
    };
    at_once([caller(), caller(), caller(), role(&world, |world| world.watch(3))]);
    world.ends();
}
