//! Destructors of thread-locals, on a thread and on the main thread.

use crate::{
    Case, Way,
    child::{DEVICE, ENDS, World, say},
};
use liveslot::*;
use std::{cell::RefCell, thread, time::Duration};

/// Runs a scenario, on the thread whose thread-locals end.
type On = fn(fn());

const PLACES: [(&str, On); 2] = [
    ("main", |run| run()),
    // Joined as a thread: that waits for its thread-locals.
    ("thread", |run| thread::spawn(run).join().unwrap()),
];

thread_local! {
    // The one is first used before anything of the library, the other one after everything.
    static EARLY: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
    static LATE: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
}

/// Something that is done as the thread ends.
struct AtEnd(Option<Box<dyn FnOnce()>>);

impl AtEnd {
    fn new(run: impl FnOnce() + 'static) -> Option<Self> {
        Some(Self(Some(Box::new(run))))
    }
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run();
        }
    }
}

/// Uses everything of the library that has thread-locals: the slot, the identities, the lanes, the epoch.
fn use_everything(registry: &BindingRegistry, mechanism: RegisteredMechanism) {
    for binding in [registry.bind(DEVICE), registry.bind_registered(mechanism)] {
        let binding = binding.unwrap();
        binding.release(binding.allocate(16, 8).unwrap()).unwrap();
    }
}

/// C031: a thread-local may hold the last binding and the last block, and give it back as it ends, whichever thread-local was made first:
/// the memory comes home, then everything ends.
pub fn may_hold_the_last_of_everything() -> Case {
    fn keep(at: &'static thread::LocalKey<RefCell<Option<AtEnd>>>, registry: &BindingRegistry) {
        let binding = registry.bind(DEVICE).unwrap();
        let block = binding.allocate(16, 8).unwrap();
        at.set(AtEnd::new(move || binding.release(block).unwrap()));
    }

    fn run(early: bool, late: bool) {
        EARLY.set(None);
        let World { registry, .. } = World::loud();
        if early {
            keep(&EARLY, &registry);
        }
        if late {
            keep(&LATE, &registry);
        }
    }

    let orders: [(&str, usize, fn()); 3] =
        [("early", 1, || run(true, false)), ("late", 1, || run(false, true)), ("both", 2, || run(true, true))];
    let ways = PLACES.into_iter().flat_map(|(place, on)| {
        orders.map(|(order, blocks, run)| {
            let says = [vec!["allocate"; blocks], vec!["release"; blocks], ENDS.into()].concat();
            Way::new(format!("{place} {order}"), says, move || on(run))
        })
    });
    Case::new("thread_locals::may_hold_the_last_of_everything", ways.collect::<Vec<_>>())
}

/// C036: a thread-local's destructor may bind, allocate, release, register, remove and wait, also if it is the first thing that its thread does
/// here, and if what the library keeps for the thread has gone. Nothing of it stays.
pub fn may_use_the_registry() -> Case {
    fn at_the_end(used_before: bool) {
        EARLY.set(None);
        LATE.set(None);
        let world = World::quiet();
        if used_before {
            use_everything(&world.registry, world.mechanism);
        }
        EARLY.set(AtEnd::new(move || {
            use_everything(&world.registry, world.mechanism);
            world.take_away(world.another("B"));
            // In vain, so that the thread parks.
            let mut watch = world.registry.device(DEVICE).watch();
            assert_eq!(watch.changed_timeout(Duration::from_millis(1)).unwrap(), None);
            drop(watch);
            assert!(world.registry.drain(world.mechanism).unwrap().wait(Duration::from_millis(1)).is_err());
            let snapshot = world.registry.snapshot(world.mechanism).unwrap();
            assert_eq!((snapshot.retains_ownership(), snapshot.active_operations), (false, 0));
            world.end();
            say("used");
        }));
    }

    let befores: [(&str, fn()); 2] = [("used before", || at_the_end(true)), ("not used before", || at_the_end(false))];
    let says = ["B dropped", "A dropped", "Q dropped", "C dropped", "used"];
    let ways = PLACES
        .into_iter()
        .flat_map(|(place, on)| befores.map(|(before, run)| Way::new(format!("{place} {before}"), says, move || on(run))));
    Case::new("thread_locals::may_use_the_registry", ways.collect::<Vec<_>>())
}

/// C036, C034: it may shut the registry down, whichever thread-local was made first.
pub fn may_shut_down() -> Case {
    fn at_the_end(used_before: bool) {
        EARLY.set(None);
        let world = World::quiet();
        if used_before {
            use_everything(&world.registry, world.mechanism);
        }
        EARLY.set(AtEnd::new(move || {
            let report = world.registry.shutdown(Duration::ZERO).unwrap();
            assert!(report.is_complete(), "{report}");
            say("shut down");
        }));
    }

    let befores: [(&str, fn()); 2] = [("used before", || at_the_end(true)), ("not used before", || at_the_end(false))];
    let says = [&ENDS[..], &["shut down"]].concat();
    let ways = PLACES
        .into_iter()
        .flat_map(|(place, on)| befores.map(|(before, run)| Way::new(format!("{place} {before}"), says.clone(), move || on(run))));
    Case::new("thread_locals::may_shut_down", ways.collect::<Vec<_>>())
}
