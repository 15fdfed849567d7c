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
};

static REGISTRY: OnceLock<BindingRegistry> = OnceLock::new();
static BLOCKS: Mutex<Vec<BoundAllocation>> = Mutex::new(Vec::new());
static OWNER: OnceLock<OwningAllocation> = OnceLock::new();
static HANDLE: OnceLock<DeviceHandle> = OnceLock::new();

/// A registry, blocks and an owner in statics, and a driver that goes at exit.
fn live_in_statics() {
    take_the_driver_away_at_exit();
    let registry = REGISTRY.get_or_init(|| World::loud().registry);
    let binding = registry.bind(DEVICE).unwrap();
    BLOCKS.lock().unwrap().extend((0..4).map(|_| binding.allocate(16, 8).unwrap()));
    OWNER.set(binding.allocate_owning(16, 8).unwrap()).unwrap();
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
                    thread::park_timeout(std::time::Duration::MAX);
                })
            });
            arrives.recv().unwrap();
            exit();
        }),
    ];
    Case::new("statics::are_left_alone", ways)
}
