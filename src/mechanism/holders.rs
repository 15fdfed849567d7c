//! Who holds a mechanism: its bindings, each with its label and the place where it was made.
//!
//! With the feature `holders` every binding that is issued stands in a [roll](crate::primitives::roll) of its mechanism, which the first
//! binding puts in place; its clones share the entry, and so does the record of each allocation that is made through it. Without the
//! feature a [`Holding`] is a [`Hold`] and nothing else.
//!
//! # Protocol
//!
//! The roll is part of the mechanism's memory, which the resources have a share of until the teardown, which comes after the last hold. So
//! whoever has a hold may touch the roll, and
//!
//! - a binding is listed after its hold was counted, and leaves the list *before* it lets go of the hold: the drop of a [`Holding`] ends its
//!   share, then its fields go. No share ever points into a roll that is gone, and the teardown finds an empty list;
//! - a reader has a hold or a share of the memory, or has found the mechanism under an epoch guard: each keeps the list, and a guard of the
//!   reader's own keeps the entries.
//!
//! In between, a hold is counted that nobody is listed for, as are the holds of calls in progress: the list names who keeps a mechanism,
//! and the counts of its pins decide. The list keeps nothing: an entry is a place, a time and a static text, freed through the epoch, and
//! no code of the user's runs while one is made, counted, read or unlinked.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`Holding::new`] | lock-free | with the feature one look at the clock and [`Roll::enter`] |
//! | [`Holding::beside`], clone, drop | wait-free; the last drop but for the epoch | with the feature one RMW of the entry, which the clones share |
//! | [`Mechanism::holders`] | wait-free but for the epoch | [`Roll::read`], sorted |
//!
//! [`Roll::enter`]: crate::primitives::roll::Roll::enter
//! [`Roll::read`]: crate::primitives::roll::Roll::read

use super::{Hold, Mechanism};
#[cfg(feature = "holders")]
use crate::{
    contract::BindingId,
    primitives::{
        once::WriteOnce,
        roll::{Kind, Roll, Share},
        table::TableFull,
    },
};
use crate::{contract::Holder, error::BindingError, primitives::pins::Home};
#[cfg(feature = "holders")]
use std::{cmp::Reverse, panic::Location, time::Instant};

/// What is known of a binding, beside its shares.
#[cfg(feature = "holders")]
struct Origin {
    place: &'static Location<'static>,
    made: Instant,
    /// The first one stays.
    label: WriteOnce<&'static str>,
}

/// The bindings of one mechanism.
pub(super) struct Holders {
    /// There once a binding was issued.
    #[cfg(feature = "holders")]
    roll: WriteOnce<Roll<Origin>>,
}

impl Holders {
    pub(super) fn new() -> Self {
        Self {
            #[cfg(feature = "holders")]
            roll: WriteOnce::new(),
        }
    }

    #[cfg(feature = "holders")]
    fn roll(&self) -> &Roll<Origin> {
        self.roll.get().unwrap_or_else(|| self.roll.set(Roll::new()))
    }

    #[cfg(feature = "holders")]
    fn list(&self) -> Vec<Holder> {
        let (mut holders, now) = (Vec::new(), Instant::now());
        if let Some(roll) = self.roll.get() {
            roll.read(|number, Origin { place, made, label }, shares| {
                holders.push(Holder {
                    binding: BindingId::from_number(number),
                    label: label.get().copied(),
                    place,
                    age: now.saturating_duration_since(*made),
                    handles: shares.handles,
                    allocations: shares.records,
                });
            });
        }
        holders.sort_by_key(|holder| Reverse(holder.age));
        holders
    }

    #[cfg(not(feature = "holders"))]
    fn list(&self) -> Vec<Holder> {
        Vec::new()
    }
}

impl Mechanism {
    /// Its bindings, the oldest first. None without the feature `holders`.
    pub(crate) fn holders(&self) -> Vec<Holder> {
        self.holders.list()
    }
}

/// The hold of a binding, which is listed for as long.
pub(crate) struct Holding {
    hold: Hold,
    #[cfg(feature = "holders")]
    share: Share<Origin>,
}

impl Holding {
    /// Lists the binding with this number as made by the nearest caller that does not track its own.
    #[cfg(feature = "holders")]
    #[track_caller]
    pub(crate) fn new(hold: Hold, number: u64) -> Result<Self, BindingError> {
        let origin = Origin { place: Location::caller(), made: Instant::now(), label: WriteOnce::new() };
        // SAFETY: the roll is in the memory that the hold keeps; every share is in a `Holding`, and leaves before its hold is let go.
        let share = unsafe { hold.mechanism().holders.roll().enter(number, origin) };
        let share = share.map_err(|TableFull| BindingError::IdentityExhausted)?;
        Ok(Self { hold, share })
    }

    #[cfg(not(feature = "holders"))]
    #[inline(always)]
    pub(crate) const fn new(hold: Hold, _number: u64) -> Result<Self, BindingError> {
        Ok(Self { hold })
    }

    /// As a clone, for the record of an allocation that is counted at `home`.
    #[inline]
    pub(crate) fn beside(&self, home: Home) -> Self {
        Self {
            hold: self.hold.beside(home),
            #[cfg(feature = "holders")]
            share: self.share.another(Kind::Record),
        }
    }

    #[inline(always)]
    pub(crate) const fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Labels the binding and its clones, unless they have a label.
    pub(crate) fn label(&self, label: &'static str) {
        #[cfg(feature = "holders")]
        self.share.thing().label.set(label);
        #[cfg(not(feature = "holders"))]
        let _ = label;
    }
}

impl Clone for Holding {
    #[inline]
    fn clone(&self) -> Self {
        Self {
            hold: self.hold.clone(),
            #[cfg(feature = "holders")]
            share: self.share.another(Kind::Handle),
        }
    }
}

#[cfg(feature = "holders")]
impl Drop for Holding {
    fn drop(&mut self) {
        // SAFETY: entered in this roll by `new`; nobody uses `self` after its drop.
        unsafe { self.share.leave(self.hold.mechanism().holders.roll()) }
        // The hold goes now, and with it perhaps the roll.
    }
}

#[cfg(all(test, not(feature = "holders")))]
mod tests {
    use super::*;

    /// Without the feature a binding is as large as its hold and its number, and a mechanism has no list.
    #[test]
    fn without_the_feature_nothing_is_there() {
        assert_eq!(size_of::<Holding>(), size_of::<Hold>());
        assert_eq!(size_of::<crate::MemoryBinding>(), size_of::<Hold>() + size_of::<u64>());
        assert_eq!(size_of::<Holders>(), 0);
    }
}
