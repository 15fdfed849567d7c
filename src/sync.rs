//! The one door to atomics, cells, threads, the swappable `Arc` and the epoch.
//!
//! Nothing else in the library names `std::sync`, `std::thread`, `loom`, `shuttle`, `arc_swap` or `crossbeam_epoch`, so
//! that one cfg turns the whole library over to a model checker:
//!
//! | cfg | atomics, cells | [`ArcCell`] | [`epoch`] | chosen by |
//! | --- | --- | --- | --- | --- |
//! | none | std | `arc_swap::ArcSwap` | `crossbeam_epoch` | – |
//! | `liveslot_gates` | std | the same | the same | `gate-tests/build.rs` |
//! | `liveslot_shuttle` | shuttle | the same, behind a switch point | the same, a collector per execution | `shuttle-tests/build.rs` |
//! | `liveslot_loom` | loom | an index into a table, in a loom atomic | a model of `defer` | `loom-tests/build.rs` |
//!
//! The stand-ins live in `sync/`; what they trust unseen is listed in DESIGN.md. The checkers' atomics have no constant
//! constructor, so statics use [`process`]: std in every mode. A protocol that runs over a static is therefore
//! generic over [`Word`] and is modelled over the checker's word.

#[cfg(all(liveslot_loom, liveslot_shuttle))]
compile_error!("choose one checker: liveslot_loom or liveslot_shuttle");

#[cfg(not(liveslot_loom))]
mod cell;
#[cfg(not(liveslot_loom))]
pub mod epoch_real;
#[cfg(liveslot_gates)]
pub mod gates;
#[cfg(liveslot_loom)]
mod model;
#[cfg(not(liveslot_loom))]
mod swap;

#[cfg(liveslot_loom)]
mod imp {
    pub(crate) use super::model::swap::{ArcCell, ArcGuard};
    pub use super::model::{epoch, lane};
    pub use loom::{cell::UnsafeCell, sync::atomic};

    /// loom's takes no `const` block.
    macro_rules! constant_thread_local {
        ($(#[$doc:meta])* static $name:ident: $type:ty = const { $value:expr };) => {
            loom::thread_local! { $(#[$doc])* static $name: $type = $value; }
        };
    }
    pub(crate) use constant_thread_local as thread_local;
}

#[cfg(liveslot_shuttle)]
mod imp {
    pub(crate) use super::swap::{ArcCell, ArcGuard};
    pub use super::{cell::UnsafeCell, epoch_real as epoch};
    pub use shuttle::sync::atomic;
    pub(crate) use shuttle::thread_local;

    /// A task's lane is its number: the smallest free one matters for speed alone.
    pub(crate) mod lane {
        pub(crate) fn current() -> usize {
            shuttle::current::me().into()
        }
    }
}

#[cfg(not(any(liveslot_loom, liveslot_shuttle)))]
mod imp {
    pub(crate) use super::swap::{ArcCell, ArcGuard};
    pub use super::{cell::UnsafeCell, epoch_real as epoch};
    pub(crate) use crate::primitives::lane;
    pub use std::sync::atomic;
    pub(crate) use std::thread_local;
}

pub use self::imp::*;
pub(crate) use std::sync::{Arc, Weak};

/// What statics are made of, in every mode.
pub(crate) mod process {
    pub(crate) use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
    #[cfg(not(any(liveslot_loom, liveslot_shuttle)))]
    pub(crate) use std::thread::available_parallelism;
    pub(crate) use std::thread::panicking;
    /// What a thread waits with that has asked to.
    pub(crate) mod parking {
        pub(crate) use std::thread::{Thread, current, park, park_timeout, sleep};
    }
}

/// Marks a named step of a protocol, where a test of `gate-tests` may run something. Nothing otherwise.
macro_rules! gate {
    ($step:ident) => {
        #[cfg(liveslot_gates)]
        $crate::sync::gates::reached($crate::sync::gates::Step::$step)
    };
}
pub(crate) use gate;

/// A 64-bit word of a static or of a model: see the module's last paragraph.
pub trait Word {
    fn load(&self, order: atomic::Ordering) -> u64;
    fn fetch_and(&self, value: u64, order: atomic::Ordering) -> u64;
    fn compare_exchange(&self, current: u64, new: u64, success: atomic::Ordering, failure: atomic::Ordering) -> Result<u64, u64>;
}

macro_rules! word {
    ($type:ty) => {
        impl Word for $type {
            #[inline]
            fn load(&self, order: atomic::Ordering) -> u64 {
                Self::load(self, order)
            }

            #[inline]
            fn fetch_and(&self, value: u64, order: atomic::Ordering) -> u64 {
                Self::fetch_and(self, value, order)
            }

            #[inline]
            fn compare_exchange(&self, current: u64, new: u64, success: atomic::Ordering, failure: atomic::Ordering) -> Result<u64, u64> {
                Self::compare_exchange(self, current, new, success, failure)
            }
        }
    };
}

word!(process::AtomicU64);
#[cfg(any(liveslot_loom, liveslot_shuttle))]
word!(atomic::AtomicU64);
