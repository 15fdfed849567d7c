//! Measuring in short chunks: who runs where, how two threads run the same chunk at the same time, what is thrown away, what is made of the
//! rest.

pub(crate) mod chunks;
pub(crate) mod cpus;
pub(crate) mod rendezvous;
pub(crate) mod statistics;
