//! The commit that is compared with.

use ::liveslot_base as api;

#[path = "side.rs"]
mod side;

pub(crate) use self::side::Side;
