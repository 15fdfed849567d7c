//! One registered allocator with what its destructor needs.
//!
//! | file | what |
//! | --- | --- |
//! | [`entry`] | a mechanism: lifecycle, pins, resources; the hold that keeps the resources |
//! | [`holders`] | who holds a mechanism: the bindings, with label and place |
//! | [`support`] | what a mechanism pins besides its allocator: an authority or a provider context as registered |
//! | [`teardown`] | allocator → authority → context, and what happens when one of them panics |
//! | [`quarantine`] | ownership that was retained |
//! | [`settle`] | retained ownership given back, or up, on request |
//! | [`snapshot`] | copies of state for observers |
//! | [`told`] | the events of the control plane |

pub(crate) mod entry;
mod holders;
pub(crate) mod quarantine;
mod settle;
mod snapshot;
pub(crate) mod support;
pub(crate) mod teardown;
pub(crate) mod told;

pub(crate) use self::{
    entry::{Hold, Mechanism, Names},
    holders::Holding,
    quarantine::{Entry, Retry},
    support::{InUse, Support},
};
