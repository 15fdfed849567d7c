//! The registry is a static, and nobody takes it apart.

use crate::{
    Case, Way,
    child::{DEVICE, World, say, take_the_driver_away_at_exit},
};
use liveslot::*;
use std::{
    process,
    sync::{Mutex, OnceLock, mpsc},
    thread,
    time::Duration,
};

static REGISTRY: OnceLock<BindingRegistry> = OnceLock::new();
static BLOCKS: Mutex<Vec<BoundAllocation>> = Mutex::new(Vec::new());
static OWNER: Mutex<Option<OwningAllocation>> = Mutex::new(None);
static HANDLE: OnceLock<DeviceHandle> = OnceLock::new();

/// A registry, blocks and an owner in statics, and a driver that goes at exit.
fn live_in_statics() {
    take_the_driver_away_at_exit();
    let registry = REGISTRY.get_or_init(|| World::loud().registry);
    let binding = registry.bind(DEVICE).unwrap();
    BLOCKS.lock().unwrap().extend((0..4).map(|_| binding.allocate(16, 8).unwrap()));
    *OWNER.lock().unwrap() = Some(binding.allocate_owning(16, 8).unwrap());
    HANDLE.set(registry.device(DEVICE)).unwrap();
}

/// C029: a registry that a static keeps, with blocks out, is left alone at exit, whoever exits and whatever others do meanwhile: no
/// destructor of it runs, and nobody calls into a driver that is not there any more.
pub fn are_left_alone() -> Case {
    const SAYS: [&str; 7] = ["allocate", "allocate", "allocate", "allocate", "allocate", "exiting", "driver gone"];

    fn exit() {
        say("exiting");
        process::exit(0);
    }

    let ways = vec![
        Way::new("main returns", SAYS, || {
            live_in_statics();
            say("exiting");
        }),
        Way::new("main exits", SAYS, || {
            live_in_statics();
            exit();
        }),
        Way::new("a thread exits", SAYS, || {
            live_in_statics();
            thread::spawn(exit).join().unwrap();
        }),
        Way::new("a thread is within a closure", SAYS, || {
            live_in_statics();
            let (arrived, arrives) = mpsc::channel();
            thread::spawn(move || {
                let view = BLOCKS.lock().unwrap()[0].view(0, 16).unwrap();
                let binding = BLOCKS.lock().unwrap()[0].binding().clone();
                binding.with_view(&view, |_| {
                    arrived.send(()).unwrap();
                    thread::park_timeout(Duration::MAX);
                })
            });
            arrives.recv().unwrap();
            exit();
        }),
    ];
    Case::new("statics::are_left_alone", ways)
}

/// C032: what statics hold is left alone by a shutdown too: a block that nobody can give back is reported, and its allocator is not asked
/// for it, neither then nor at exit. An owner that goes after the shutdown is counted as abandoned.
pub fn are_reported_by_a_shutdown() -> Case {
    fn shut_down() -> [usize; 2] {
        let report = REGISTRY.get().unwrap().shutdown(Duration::ZERO).unwrap();
        let left = report.left.iter().map(|left| [left.snapshot.live_allocations, left.snapshot.quarantined_allocations]);
        let left: Vec<_> = left.collect();
        assert_eq!(left.len(), 1, "{report}");
        assert!(!report.is_complete());
        left[0]
    }

    const ALLOCATES: [&str; 5] = ["allocate"; 5];
    let ways = vec![
        Way::new("kept", [&ALLOCATES[..], &["shut down", "driver gone"]].concat(), || {
            live_in_statics();
            assert_eq!(shut_down(), [5, 0]);
            say("shut down");
        }),
        Way::new("dropped afterwards", [&ALLOCATES[..], &["shut down", "dropped", "driver gone"]].concat(), || {
            live_in_statics();
            assert_eq!(shut_down(), [5, 0]);
            say("shut down");
            drop(OWNER.lock().unwrap().take());
            assert_eq!(shut_down(), [4, 1]);
            say("dropped");
        }),
    ];
    Case::new("statics::are_reported_by_a_shutdown", ways)
}
