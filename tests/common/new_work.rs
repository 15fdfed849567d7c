//! The calls that only an Active mechanism serves.

use super::{
    held::Held,
    refused::{Expected, refused},
    rig::{DEVICE, Rig},
};
use liveslot::BindingError;

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
