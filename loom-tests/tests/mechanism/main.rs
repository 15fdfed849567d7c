//! Models of `src/mechanism/` and `src/handles/`: operations, prepared releases and owners against the ends of a life and
//! against observers; teardown, and the last pins of each kind.
//!
//! Counts alone do not notice an ordering that is too weak: the allocators look at cells that loom tracks, and their destructors write
//! them.

mod last_pins;
mod operations;
#[path = "../support/outcomes.rs"]
mod outcomes;
mod owners;
mod requests;
mod rig;
mod settlement;
mod snapshots;
#[path = "../support/mod.rs"]
mod support;
mod teardown;
#[path = "../support/witness.rs"]
mod witness;
