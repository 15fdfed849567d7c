//! A process that does one thing, and nothing else.

use crate::{
    Case, Way,
    child::{DEVICE, World, say},
};

/// C054: one mechanism that is replaced and taken away, in a process where nothing else happens, ends within the call that lets it go.
pub fn one_removal_needs_no_second() -> Case {
    let ways = vec![
        Way::new("removed", ["A dropped", "removed", "B dropped", "Q dropped", "C dropped", "the registry went"], || {
            let world = World::loud();
            let next = world.another("B");
            world.registry.select(next).unwrap();
            world.take_away(world.mechanism);
            say("removed");
            drop(world.registry);
            say("the registry went");
        }),
        Way::new("the last binding", ["removed", "A dropped", "the binding went", "Q dropped", "C dropped", "the registry went"], || {
            let world = World::loud();
            let binding = world.registry.bind(DEVICE).unwrap();
            world.take_away(world.mechanism);
            say("removed");
            drop(binding);
            say("the binding went");
            drop(world.registry);
            say("the registry went");
        }),
    ];
    Case::new("quiet::one_removal_needs_no_second", ways)
}

/// C056: nothing waits for a collector that never comes by again: what was registered has ended before `main` does, removed or not, and
/// whoever let it go.
pub fn nothing_is_left_to_a_collector() -> Case {
    let says = ["B dropped", "registry dropped", "A dropped", "Q dropped", "C dropped", "main ends"];
    let ways = vec![Way::new("main", says, || {
        let world = World::loud();
        let retired = world.registry.bind_registered(world.mechanism).unwrap();
        let next = world.another("B");
        let removed = world.registry.bind_registered(next).unwrap();
        world.take_away(next);
        world.registry.retire(world.mechanism).unwrap();
        drop(removed);
        drop(world.registry);
        say("registry dropped");
        drop(retired);
        say("main ends");
    })];
    Case::new("quiet::nothing_is_left_to_a_collector", ways)
}
