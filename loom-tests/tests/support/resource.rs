//! What a model's roles use and tear down, watched by loom.

use liveslot_loom::internals::UnsafeCell;

/// Stands until it is torn down. Both look at a tracked cell, so what is found is not only a use after the teardown, but also one
/// that no ordering puts before it.
#[derive(Debug)]
pub struct Resource(UnsafeCell<bool>);

// SAFETY: loom checks each access against every other.
unsafe impl Sync for Resource {}

impl Resource {
    pub fn new() -> Self {
        Self(UnsafeCell::new(true))
    }

    pub fn read(&self) {
        // SAFETY: loom has just checked that nobody writes.
        self.0.with(|stands| assert!(unsafe { *stands }, "used after its teardown"));
    }

    pub fn tear_down(&self) {
        // SAFETY: loom has just checked that nobody else looks.
        self.0.with_mut(|stands| assert!(unsafe { stands.replace(false) }, "torn down twice"));
    }
}
