//! The same commit, compiled once more.

use ::liveslot_control as api;

#[expect(clippy::duplicate_mod, reason = "one text, compiled against three libraries")]
#[path = "side.rs"]
mod side;

pub(crate) use self::side::Side;
