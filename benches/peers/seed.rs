//! The crate that liveslot replaces, onnx-runtime-memory-api, as it is published: compiled unmodified, driven through its public API.
//!
//! It does the whole job, and is what the targets about a mutex registry speak of. Seen from outside it promises what liveslot does: a
//! lifecycle per mechanism that every call respects, pins that keep resources alive (an allocation's too), live, queued and quarantined
//! records, checks in a documented order. `mutex_registry` beside it does less, with the same locks.

use onnx_runtime_memory_api as api;

#[expect(clippy::duplicate_mod, reason = "one text, compiled against two crates")]
#[path = "drop_in.rs"]
mod drop_in;

pub(crate) use self::drop_in::Registry as Seed;
