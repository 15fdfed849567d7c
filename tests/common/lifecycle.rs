//! Mechanisms brought to each place in their life.

use super::rig::{DEVICE, Rig};
use liveslot::MechanismLifecycle::{self, *};

pub const REASON: &str = "fell off the bus";

/// Brings the rig's mechanism from Active to `phase`.
pub fn bring(rig: &Rig, phase: MechanismLifecycle) {
    match phase {
        Active => {}
        Retired => rig.registry.retire(rig.mechanism).unwrap(),
        DeviceLost => rig.registry.invalidate_device(DEVICE, REASON).unwrap(),
        Terminated => {
            bring(rig, DeviceLost);
            rig.registry.confirm_context_terminated(rig.context).unwrap();
        }
    }
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().lifecycle, phase);
}
