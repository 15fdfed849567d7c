//! liveslot
mod contract;
mod error;
mod host;
mod primitives;
mod sync;
