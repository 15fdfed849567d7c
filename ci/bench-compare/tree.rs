//! The working tree.

use ::liveslot as api;

#[expect(clippy::duplicate_mod, reason = "one text, compiled against three libraries")]
#[path = "side.rs"]
mod side;

pub(crate) use self::side::Side;
