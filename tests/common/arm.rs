//! Telling a double what to do in the middle of its next call.

use super::doubles::Hook;

/// `action` runs in the next call that `hook` is for, and answers for it. Later calls do as usual.
pub fn arm<T>(hook: &Hook<T>, action: impl FnOnce() -> T + Send + 'static) {
    *hook.0.lock().unwrap() = Some(Box::new(action));
}
