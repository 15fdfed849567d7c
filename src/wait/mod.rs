//! Waiting for something to happen: lock-free to ask for, and no thread waits for another but by asking for it.
//!
//! | file | what |
//! | --- | --- |
//! | [`list`] | who waits for the next event |
//! | [`block`] | waiting with the calling thread |

pub(crate) mod block;
pub mod list;
