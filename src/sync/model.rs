//! loom's stand-ins for what loom can't see into.

pub mod epoch;
pub mod lane;
pub(super) mod swap;
