//! Lives of those who wait for a mechanism to go, of those who settle what it has retained, and of the registry that is shut down.

use crate::world::{DEVICE, End, Home, World, at_once, awaited, role, until};
use liveslot_shuttle::{BindingError, RegisteredMechanism};
use shuttle::rand::{Rng, thread_rng};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

const NOW: Duration = Duration::ZERO;

/// What is retained is released once, or given up once, or still there: never two of these, whoever asks the allocator again meanwhile.
pub fn settlements() {
    const EACH: usize = 2;
    let world = World::new();
    let mechanism = world.try_register(&world.home(), 0.5).unwrap();
    let binding = world.bind().unwrap();
    let allocations = [(); EACH].map(|()| binding.allocate(16, 8).unwrap());
    let settled = Arc::new(AtomicUsize::new(0));
    for allocation in allocations {
        settled.fetch_add(usize::from(binding.release(allocation).is_ok()), SeqCst);
    }
    let retries = || {
        let settled = Arc::clone(&settled);
        role(&world, move |world| {
            for _ in 0..2 {
                let Ok(done) = world.registry.retry_quarantined(mechanism, thread_rng().gen_range(1..=EACH)) else { break };
                settled.fetch_add(done.released, SeqCst);
            }
        })
    };
    let gives_up = {
        let settled = Arc::clone(&settled);
        role(&world, move |world| {
            let fate = world.fate(mechanism.identity()).unwrap();
            let done = world.registry.abandon_quarantined(mechanism, |_| thread_rng().r#gen()).unwrap();
            for given_up in done.allocations {
                fate.given_up(given_up.address);
                settled.fetch_add(1, SeqCst);
            }
        })
    };
    let looks = role(&world, move |world| {
        for _ in 0..3 {
            let snapshot = world.snapshot(mechanism).unwrap();
            assert!(snapshot.quarantined_allocations <= EACH, "{snapshot:?}");
            assert_eq!(snapshot.quarantined_bytes, 16 * snapshot.quarantined_allocations as u64, "{snapshot:?}");
        }
    });
    at_once([retries(), retries(), retries(), gives_up, looks]);
    let left = world.registry.quarantined(mechanism).unwrap().len();
    assert_eq!(settled.load(SeqCst) + left, EACH, "released, given up, or still there");
    drop(binding);
    world.ends();
}

/// Whoever waits is woken when it has come to pass, and not before: a watch when the selection has gone, a drain when nothing is owned or
/// done, a teardown when all has been destroyed.
pub fn waits() {
    let world = World::new();
    let mechanism = world.register(&world.home());
    let worker = || {
        let binding = world.bind().unwrap();
        role(&world, move |world| while world.work_on(&binding) && thread_rng().r#gen() {})
    };
    let removes = role(&world, move |world| {
        let drain = world.registry.drain(mechanism).unwrap();
        world.retire(mechanism).unwrap();
        awaited(drain).unwrap();
        let snapshot = world.snapshot(mechanism).unwrap();
        assert!(!snapshot.retains_ownership() && snapshot.active_operations == 0, "{snapshot:?}");
        world.remove(mechanism).unwrap();
    });
    let mut watch = world.registry.device(DEVICE).watch();
    let watches = role(&world, move |_| while awaited(watch.changed()).unwrap().selected.is_some() {});
    let teardown = world.registry.teardown(mechanism).unwrap();
    let waits = role(&world, move |world| {
        awaited(teardown);
        // The registry has its own share of the others.
        assert_eq!(world.ends.so_far(), [End::Allocator]);
    });
    at_once([worker(), worker(), removes, watches, waits]);
    world.ends();
}

/// R48: several shutdowns beside work, registrations and removals: each of them sees the end, nothing new begins after it, and
/// everything is destroyed once, each authority before its context.
pub fn shutdowns() {
    let world = World::new();
    let home = world.home();
    let mechanism = world.register(&home);
    let shuts_down = || {
        role(&world, |world| {
            until(|| world.registry.shutdown(NOW).unwrap().is_complete());
            assert!(matches!(world.registry.bind(DEVICE), Err(BindingError::ShutDown)));
            assert_eq!(world.registry.snapshots().unwrap(), []);
        })
    };
    let works = role(&world, |world| while world.work() && thread_rng().r#gen() {});
    let registers = role(&world, {
        let home = home.clone();
        move |world| late(world, &home)
    });
    let removes = role(&world, move |world| ends(world, mechanism, &home));
    at_once([shuts_down(), shuts_down(), works, registers, removes]);
    let ends = world.ends.so_far();
    assert!(ends.iter().position(|end| *end == End::Authority) < ends.iter().position(|end| *end == End::Context), "{ends:?}");
    world.ends();
}

/// Registers, perhaps too late, and works with it.
fn late(world: &World, home: &Home) {
    match world.try_register(home, 0.0) {
        Ok(registered) => {
            if let Ok(binding) = world.bind_registered(registered) {
                world.work_on(&binding);
            }
        }
        Err(BindingError::ShutDown | BindingError::UnregisteredProviderContext(_) | BindingError::UnregisteredAuthority(_)) => {}
        Err(other) => panic!("{other:?}"),
    }
}

/// Takes a mechanism out of use by hand, as far as no shutdown has done so.
fn ends(world: &World, mechanism: RegisteredMechanism, home: &Home) {
    let _ = world.registry.retire(mechanism);
    let _ = world.registry.remove(mechanism);
    let _ = world.registry.remove_authority(home.authority);
}
