//! The epoch, on crossbeam-epoch with a collector of our own.
//!
//! crossbeam's default collector hides behind a `OnceLock`, where the second thread would wait for the first; ours is
//! put in place by one compare-and-swap, and a loser drops its own. Only memory ever waits for it: see DESIGN.md.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`pin`] | lock-free | one store and one fence; every 128th collects, a thread's first registers |
//! | [`Guard::defer`] | lock-free | a push into a thread-local bag; every 64th is published |

use crossbeam_epoch::{Collector, LocalHandle};

/// Keeps whatever a table held at any time since alive. Never held while user code runs.
pub struct Guard(crossbeam_epoch::Guard);

#[cfg(not(liveslot_shuttle))]
fn collector() -> &'static Collector {
    use std::{
        ptr,
        sync::atomic::{AtomicPtr, Ordering::AcqRel, Ordering::Acquire},
    };
    static COLLECTOR: AtomicPtr<Collector> = AtomicPtr::new(ptr::null_mut());

    // Acquire: pairs with the Release half of the exchange below, which publishes the collector's contents.
    let mut found = COLLECTOR.load(Acquire);
    if found.is_null() {
        let ours = Box::into_raw(Box::new(Collector::new()));
        // AcqRel: publishes ours, or sees the winner's.
        found = match COLLECTOR.compare_exchange(ptr::null_mut(), ours, AcqRel, Acquire) {
            Ok(_) => ours,
            Err(winner) => {
                // SAFETY: the exchange failed, so `ours` was never published and is ours alone.
                drop(unsafe { Box::from_raw(ours) });
                winner
            }
        };
    }
    // SAFETY: once published, the collector is never freed: it lives as long as the process.
    unsafe { &*found }
}

#[cfg(not(liveslot_shuttle))]
thread_local! {
    static PARTICIPANT: LocalHandle = collector().register();
}

#[cfg(liveslot_shuttle)]
shuttle::lazy_static! {
    static ref COLLECTOR: Collector = Collector::new();
}

#[cfg(liveslot_shuttle)]
fn collector() -> &'static Collector {
    &COLLECTOR
}

#[cfg(liveslot_shuttle)]
shuttle::thread_local! {
    static PARTICIPANT: LocalHandle = collector().register();
}

/// Protects what the tables hold from now on. Works in thread-local destructors too, through a participant of its own.
#[inline]
pub fn pin() -> Guard {
    super::gate!(Pinning);
    Guard(PARTICIPANT.try_with(LocalHandle::pin).unwrap_or_else(|_| collector().register().pin()))
}

impl Guard {
    /// Runs `free` when nobody can be looking any more. It must free memory only: when it runs is nobody's promise.
    pub fn defer(&self, free: impl FnOnce() + Send + 'static) {
        self.0.defer(free);
    }
}
