//! What a model's roles take from its state.

use std::sync::Mutex;

/// Something that one role takes away.
pub struct Held<T>(Mutex<Option<T>>);

impl<T> Held<T> {
    pub fn new(thing: T) -> Self {
        Self(Mutex::new(Some(thing)))
    }

    pub fn take(&self) -> T {
        self.0.lock().unwrap().take().expect("one role takes it")
    }
}
