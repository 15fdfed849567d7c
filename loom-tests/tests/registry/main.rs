//! Models of `src/registry/`: every pair of racing calls on one device that has an outcome to promise, and triples where a pair
//! is not enough.
//!
//! A model asserts the exact outcome, and that the raw slot is sound at rest, which is what
//! [`World::selected`](world::World::selected) looks at. What races with nothing is done in `setup`; roles make one or two calls.

#[path = "../support/count.rs"]
mod count;
mod drain;
mod lose;
#[path = "../support/outcomes.rs"]
mod outcomes;
mod register;
mod remove;
mod roles;
mod select;
mod shutdown;
#[path = "../support/mod.rs"]
mod support;
mod watch;
#[path = "../support/world.rs"]
mod world;
