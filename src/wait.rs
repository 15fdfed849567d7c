//! Waiting with the calling thread, which parks among the [waiters](crate::primitives::waiters).

use crate::{
    primitives::waiters::{Share, Waiter},
    sync::{
        gate,
        process::parking::{Thread, current, park, park_timeout},
    },
};
use std::{
    task::Poll,
    time::{Duration, Instant},
};

/// What `look` finds before `timeout` is over; looks at least once.
pub(crate) fn wait<R>(waiter: &mut Waiter<impl Share>, timeout: Duration, mut look: impl FnMut() -> Option<R>) -> Option<R> {
    if timeout.is_zero() {
        return look();
    }
    let found = until(timeout, |thread| waiter.poll_parked(thread, &mut look));
    waiter.leave();
    found
}

/// What `poll` gives before `timeout` is over; polls at least once. It has the thread among the waiters for whatever may change its
/// answer. A time that is too long for the clock is no limit.
pub(crate) fn until<R>(timeout: Duration, mut poll: impl FnMut(&Thread) -> Poll<R>) -> Option<R> {
    let end = Instant::now().checked_add(timeout);
    let thread = current();
    loop {
        if let Poll::Ready(found) = poll(&thread) {
            return Some(found);
        }
        gate!(Parking);
        match end.map(|end| end.saturating_duration_since(Instant::now())) {
            None => park(),
            Some(Duration::ZERO) => return None,
            Some(left) => park_timeout(left),
        }
    }
}
