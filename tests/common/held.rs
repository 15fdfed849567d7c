//! What a caller has of a mechanism that worked when it was made.

use super::rig::Rig;
use liveslot::{BoundAllocation, BoundMemoryView, MemoryBinding};

pub struct Held {
    pub binding: MemoryBinding,
    pub allocation: BoundAllocation,
    pub view: BoundMemoryView,
}

/// A binding to the rig's mechanism, and 64 bytes of it with a view of the upper half.
pub fn hold(rig: &Rig) -> Held {
    let binding = rig.registry.bind_registered(rig.mechanism).unwrap();
    let allocation = binding.allocate(64, 8).unwrap();
    let view = allocation.view(32, 32).unwrap();
    rig.log.take();
    Held { binding, allocation, view }
}
