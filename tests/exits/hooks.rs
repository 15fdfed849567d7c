//! Exit hooks.

use crate::{
    Case, Way,
    child::{DEVICE, World, say, take_the_driver_away_at_exit},
};
use liveslot::*;
use std::{cell::RefCell, process, sync::OnceLock};

static WORLD: OnceLock<World> = OnceLock::new();
static CACHED: OnceLock<MemoryBinding> = OnceLock::new();

thread_local! {
    static CACHED_HERE: RefCell<Option<MemoryBinding>> = const { RefCell::new(None) };
}

extern "C" fn take_apart() {
    say("hook");
    WORLD.get().unwrap().end();
    say("taken apart");
}

/// Works, and registers the hook after the driver's own, so that it runs before.
fn work() -> MemoryBinding {
    let world = WORLD.get_or_init(World::quiet);
    take_the_driver_away_at_exit();
    // SAFETY: the hook lives as long as the program.
    assert_eq!(unsafe { libc::atexit(take_apart) }, 0);
    let binding = world.registry.bind(DEVICE).unwrap();
    for _ in 0..10_000 {
        binding.release(binding.allocate(16, 8).unwrap()).unwrap();
    }
    binding
}

/// C034: an exit hook may take the registry apart, whatever work was done before, while a static, the stack of the thread that exits or
/// nobody holds a binding. What such a binding keeps is kept for ever.
pub fn may_take_the_registry_apart() -> Case {
    let held = ["hook", "taken apart", "driver gone"];
    let free = ["hook", "A dropped", "Q dropped", "C dropped", "taken apart", "driver gone"];
    let ways = vec![
        Way::new("a static", held, || CACHED.set(work()).unwrap()),
        Way::new("a stack", held, || {
            let _cached = work();
            process::exit(0);
        }),
        // Thread-locals go before the hooks.
        Way::new("a thread-local", free, || CACHED_HERE.set(Some(work()))),
    ];
    Case::new("hooks::may_take_the_registry_apart", ways)
}
