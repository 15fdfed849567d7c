//! Every place in a mechanism's life.

use liveslot::MechanismLifecycle::{self, *};

/// In order.
pub const PHASES: [MechanismLifecycle; 4] = [Active, Retired, DeviceLost, Terminated];
