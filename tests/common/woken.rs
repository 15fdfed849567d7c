//! Wakers that count, and that do what a test tells them.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker},
};

/// Counts how often it was woken, and does what it was told to.
#[derive(Default)]
pub struct Woken {
    times: AtomicUsize,
    action: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.times.fetch_add(1, SeqCst);
        let action = self.action.lock().unwrap().take();
        if let Some(action) = action {
            action();
        }
    }
}

impl Woken {
    pub fn with(action: impl FnOnce() + Send + 'static) -> Arc<Self> {
        Arc::new(Self { action: Mutex::new(Some(Box::new(action))), ..Self::default() })
    }

    pub fn times(&self) -> usize {
        self.times.load(SeqCst)
    }
}

pub fn poll<F: Future + Unpin>(future: &mut F, woken: &Arc<Woken>) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(&Waker::from(Arc::clone(woken))))
}

#[track_caller]
pub fn ready<T>(polled: Poll<T>) -> T {
    match polled {
        Poll::Ready(ready) => ready,
        Poll::Pending => panic!("it still waits"),
    }
}

/// Runs a closure when it is cloned: between a waiter's first look and its registration.
pub fn waker_that_does(action: impl FnOnce() + Send + 'static) -> Waker {
    type Action = Mutex<Option<Box<dyn FnOnce() + Send>>>;
    const TABLE: RawWakerVTable = RawWakerVTable::new(
        |data| {
            let data = data.cast::<Action>();
            // SAFETY: the waker that is cloned has a share of the action.
            let armed = unsafe { &*data }.lock().unwrap().take();
            if let Some(action) = armed {
                action();
            }
            // SAFETY: as above. Behind the action, which may panic.
            unsafe { Arc::increment_strong_count(data) };
            RawWaker::new(data.cast(), &TABLE)
        },
        // SAFETY: the waker's share ends with it.
        |data| drop(unsafe { Arc::from_raw(data.cast::<Action>()) }),
        |_| {},
        // SAFETY: as above.
        |data| drop(unsafe { Arc::from_raw(data.cast::<Action>()) }),
    );
    let action: Arc<Action> = Arc::new(Mutex::new(Some(Box::new(action))));
    // SAFETY: each waker has a share of its own, which may go on any thread; waking does nothing else.
    unsafe { Waker::from_raw(RawWaker::new(Arc::into_raw(action).cast(), &TABLE)) }
}
