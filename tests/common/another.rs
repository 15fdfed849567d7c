//! More mechanisms beside the one of the rig.

use super::{
    doubles::Double,
    rig::{DEVICE, Rig},
};
use liveslot::RegisteredMechanism;

/// Registers another allocator with the rig's authority and context, without a call of it.
pub fn another(rig: &Rig, name: &'static str) -> RegisteredMechanism {
    let allocator = Double::new(name, ["Q", "C"], DEVICE, &rig.log, &Default::default());
    rig.registry.register_allocator_with_device(rig.context, rig.authority, allocator, DEVICE).unwrap()
}
