//! What a caller has of a mechanism that worked when it was made.

use super::{
    refused::{Expected, refused},
    rig::{DEVICE, Rig},
};
use liveslot::{BindingError, BoundAllocation, BoundMemoryView, MemoryBinding};

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

/// Each call that needs an Active mechanism is refused, and reaches nobody.
#[track_caller]
pub fn new_work_is_refused(rig: &Rig, held: &Held, refusal: impl Into<Expected>) {
    let refusal = refusal.into();
    let before = held.binding.mechanism_snapshot().unwrap();
    refused(rig.registry.bind(DEVICE), BindingError::NoSelectedMechanism(DEVICE));
    refused(rig.registry.bind_registered(rig.mechanism), refusal.clone());
    refused(held.binding.allocate(8, 8), refusal.clone());
    refused(held.allocation.view(0, 8), refusal.clone());
    refused(held.binding.with_view(&held.view, |_| panic!("the closure runs")), refusal);
    assert_eq!(rig.log.take(), [""; 0]);
    assert_eq!(held.binding.mechanism_snapshot().unwrap(), before);
}
