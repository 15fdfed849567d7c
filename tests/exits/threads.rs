//! Threads that come and go.

use crate::{
    Case, Way,
    child::{DEVICE, ENDS, World, bytes_in_use},
};
use std::thread;

/// How many threads come and go, a first part of which makes what stays.
const THREADS: usize = 1_000;
const FIRST: usize = 300;

/// C037: a block outlives the thread that made it, and keeps nobody from taking its mechanism away once it is back; and threads that have
/// gone leave no memory behind.
pub fn leave_nothing_behind() -> Case {
    let ways = vec![
        Way::new("a block", [&["allocate", "release"][..], &ENDS].concat(), || {
            let world = World::loud();
            let binding = world.registry.bind(DEVICE).unwrap();
            let block = thread::spawn(move || binding.allocate(16, 8).unwrap()).join().unwrap();
            world.registry.retire(world.mechanism).unwrap();
            let binding = block.binding().clone();
            binding.release(block).unwrap();
            drop(binding);
            world.end();
        }),
        Way::new("memory", ENDS, || {
            let world = World::quiet();
            let mut after_the_first = 0;
            for thread in 0..THREADS {
                if thread == FIRST {
                    after_the_first = bytes_in_use();
                }
                thread::scope(|scope| {
                    let work = || {
                        for binding in [world.registry.bind(DEVICE), world.registry.bind_registered(world.mechanism)] {
                            let binding = binding.unwrap();
                            binding.release(binding.allocate(16, 8).unwrap()).unwrap();
                        }
                    };
                    scope.spawn(work).join().unwrap();
                });
            }
            let more = bytes_in_use() - after_the_first;
            assert!(more < (THREADS - FIRST) as isize, "{more} bytes more");
            world.end();
        }),
    ];
    Case::new("threads::leave_nothing_behind", ways)
}
