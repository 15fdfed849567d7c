//! liveslot itself.

use ::liveslot as api;

#[path = "drop_in.rs"]
mod drop_in;

pub(crate) use self::drop_in::Registry as Liveslot;
