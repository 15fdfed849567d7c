//! Exit hooks.

use crate::{
    Case, Way,
    child::{DEVICE, World, say, take_the_driver_away_at_exit},
};
use liveslot::*;
use std::{cell::RefCell, process, sync::OnceLock, time::Duration};

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

extern "C" fn shut_down() {
    say("hook");
    let registry = &WORLD.get().unwrap().registry;
    let report = registry.shutdown(Duration::ZERO).unwrap();
    assert_eq!(report.left, []);
    match report.held[..] {
        [] => assert!(report.is_complete(), "{report}"),
        [ref held] => assert_eq!(held.handles, 1),
        _ => panic!("{report}"),
    }
    assert!(matches!(registry.bind(DEVICE), Err(BindingError::ShutDown)));
    say(if report.is_complete() { "all down" } else { "all but one" });
}

/// Works, and registers the hook after the driver's own, so that it runs before.
fn work(hook: extern "C" fn()) -> MemoryBinding {
    let world = WORLD.get_or_init(World::quiet);
    take_the_driver_away_at_exit();
    // SAFETY: the hook lives as long as the program.
    assert_eq!(unsafe { libc::atexit(hook) }, 0);
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
        Way::new("a static", held, || CACHED.set(work(take_apart)).unwrap()),
        Way::new("a stack", held, || {
            let _cached = work(take_apart);
            process::exit(0);
        }),
        // Thread-locals go before the hooks.
        Way::new("a thread-local", free, || CACHED_HERE.set(Some(work(take_apart)))),
    ];
    Case::new("hooks::may_take_the_registry_apart", ways)
}

/// C034: so it may shut the registry down, which says what is held still.
pub fn may_shut_down() -> Case {
    let held = ["hook", "all but one", "driver gone"];
    let free = ["hook", "A dropped", "Q dropped", "C dropped", "all down", "driver gone"];
    let ways = vec![
        Way::new("a static", held, || CACHED.set(work(shut_down)).unwrap()),
        Way::new("a stack", held, || {
            let _cached = work(shut_down);
            process::exit(0);
        }),
        Way::new("a thread-local", free, || CACHED_HERE.set(Some(work(shut_down)))),
    ];
    Case::new("hooks::may_shut_down", ways)
}
