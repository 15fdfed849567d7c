//! liveslot under the name of the crate that it replaces.

pub use liveslot::*;
