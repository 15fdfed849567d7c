//! Waiting with the calling thread: it parks in the same list, with a waker that unparks it.

use super::list::{Waiter, Waiters};
use crate::sync::{
    Arc,
    process::parking::{Thread, current, park, park_timeout},
};
use std::{
    task::{Poll, Wake, Waker},
    time::{Duration, Instant},
};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// What `look` finds before `timeout` is over; looks at least once. A time that is too long for the clock is no limit.
pub(crate) fn wait<R>(waiters: &Waiters, timeout: Duration, mut look: impl FnMut() -> Option<R>) -> Option<R> {
    if timeout.is_zero() {
        return look();
    }
    let end = Instant::now().checked_add(timeout);
    let waker = Waker::from(Arc::new(Unpark(current())));
    let mut waiter = Waiter::new(waiters);
    loop {
        if let Poll::Ready(found) = waiter.poll(&waker, &mut look) {
            return Some(found);
        }
        match end.map(|end| end.saturating_duration_since(Instant::now())) {
            None => park(),
            Some(Duration::ZERO) => return None,
            Some(left) => park_timeout(left),
        }
    }
}
