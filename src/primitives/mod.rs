//! Lock-free pieces that know nothing of devices or allocators.
//!
//! | file | owns | rivals meet on |
//! | --- | --- | --- |
//! | [`slot`] | what is selected | the slot's cell; a record's verdict |
//! | [`liveness`] | a lifecycle that only moves towards its end | one word |
//! | [`pins`] | who is using something, striped | a stripe's two words, then one central word |
//! | [`places`] | things that wait to be taken | a word per place |
//! | [`waiters`] | who waits for the next event | a place's word; fences |
//! | [`table`] | token → entry | an entry's pointer; an occupancy word |
//! | [`use_count`] | uses of something removable | one word |
//! | [`roll`] | a list of what is shared, with the shares counted | one word per thing |
//! | [`counted`] | a shared value with one count | one word |
//! | [`once`] | a value written at most once | one pointer |
//! | [`identity`] | numbers issued once | one counter, in blocks |
//! | [`lane`] | a small number per living thread | an occupancy word |

pub mod counted;
pub mod identity;
pub mod lane;
pub mod liveness;
pub mod once;
pub mod pins;
pub(crate) mod places;
#[cfg(any(feature = "holders", liveslot_loom))]
pub mod roll;
pub mod slot;
pub mod table;
pub mod use_count;
pub mod waiters;

pub use self::{
    liveness::{Liveness, MechanismLifecycle},
    slot::{Candidate, NotReplaced, Offer, Selected, SelectionSlot},
};
