//! A hang as a failure.

use std::{
    panic,
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

/// Does `work` on another thread; it must be done within seconds.
#[track_caller]
pub fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = channel();
    let worker = thread::spawn(move || {
        let result = work();
        // Nobody listens any more after a time-out.
        let _ = done.send(());
        result
    });
    match is_done.recv_timeout(Duration::from_secs(10)) {
        Err(RecvTimeoutError::Timeout) => panic!("not done within 10 s"),
        // Done, or unwound.
        _ => worker.join().unwrap_or_else(|panic| panic::resume_unwind(panic)),
    }
}
