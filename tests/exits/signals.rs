//! Signal handlers.

use crate::{
    Case, Way,
    child::{DEVICE, Loud, World, calls_that_must_not_be, say, without_the_heap},
};
use liveslot::*;
use std::{
    mem, ptr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

/// In each process, twice.
const SIGNALS: usize = 1_000;

/// What the handler reads.
static BINDING: OnceLock<MemoryBinding> = OnceLock::new();
static BUDGET: OnceLock<Arc<Budget>> = OnceLock::new();
static HANDLED: AtomicUsize = AtomicUsize::new(0);
static IMPOSSIBLE: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handle(_: libc::c_int) {
    let possible = without_the_heap(|| {
        let (Some(binding), Some(budget)) = (BINDING.get(), BUDGET.get()) else { return false };
        let Ok(snapshot) = binding.mechanism_snapshot() else { return false };
        let figures = budget.snapshot();
        // The thread that was interrupted is the only one at work, with one block at a time.
        let counts = [snapshot.live_allocations, snapshot.active_operations, snapshot.queued_releases, snapshot.quarantined_allocations];
        counts.iter().all(|count| *count <= 1)
            && figures.used <= 16
            && figures.used + figures.quarantined + figures.free == figures.limit
            && suppressed_panics() == 0
    });
    if !possible {
        IMPOSSIBLE.fetch_add(1, SeqCst);
    }
    HANDLED.fetch_add(1, SeqCst);
}

/// From now on the only thread of this process is interrupted every 20 µs, or as soon as the handler has returned.
fn interrupt_all_the_time() {
    let often = libc::timespec { tv_sec: 0, tv_nsec: 20_000 };
    // SAFETY: the handler does what is documented to be safe in one, and touches atomics besides. The rest is as the calls ask for it.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handle as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, ptr::null_mut()), 0);
        let mut event: libc::sigevent = mem::zeroed();
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = libc::SIGUSR1;
        let mut timer = ptr::null_mut();
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
        let every = libc::itimerspec { it_interval: often, it_value: often };
        assert_eq!(libc::timer_settime(timer, 0, &every, ptr::null_mut()), 0);
    }
}

/// C156: a handler that interrupts a thread wherever it is in the library may read the gauges that are documented for it: they answer,
/// with figures that can be, and without the heap.
pub fn may_read_gauges() -> Case {
    // The handler's binding keeps the rest.
    let ways = vec![Way::new("gauges", ["A dropped", "done"], || {
        let world = World::quiet();
        let budget = Arc::new(Budget::new(1024));
        let budgeted = BudgetedAllocator::new(Loud { name: "B", quiet: true }, Arc::clone(&budget), MemoryRole::Activation);
        let mechanism = world.registry.register_allocator(world.context, world.authority, Arc::new(budgeted)).unwrap();
        let plain = world.mechanism;
        world.registry.select(mechanism).unwrap();
        BINDING.set(world.registry.bind(DEVICE).unwrap()).unwrap();
        assert!(BUDGET.set(budget).is_ok());
        interrupt_all_the_time();
        let device = world.registry.device(DEVICE);
        while HANDLED.load(SeqCst) < SIGNALS {
            let binding = device.bind().unwrap();
            binding.release(binding.allocate(16, 8).unwrap()).unwrap();
            let owner = world.registry.bind_registered(mechanism).unwrap().allocate_owning(16, 8).unwrap();
            assert!(owner.prepare_release().unwrap().execute().is_complete());
            world.registry.select(mechanism).unwrap();
            assert_eq!(world.registry.snapshot(plain).unwrap().live_allocations, 0);
        }
        // A look at what is retired has more to do.
        world.registry.select(plain).unwrap();
        let binding = BINDING.get().unwrap();
        let block = binding.allocate(16, 8).unwrap();
        world.registry.retire(mechanism).unwrap();
        while HANDLED.load(SeqCst) < 2 * SIGNALS {
            let binding = device.bind().unwrap();
            binding.release(binding.allocate(16, 8).unwrap()).unwrap();
        }
        binding.release(block).unwrap();
        assert_eq!((IMPOSSIBLE.load(SeqCst), calls_that_must_not_be()), (0, 0), "of {}", 2 * SIGNALS);
        world.registry.remove(mechanism).unwrap();
        world.end();
        say("done");
    })];
    Case::new("signals::may_read_gauges", ways)
}
