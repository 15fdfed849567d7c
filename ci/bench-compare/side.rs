//! The measured loops, written once and compiled against each library: the module above says which one `api` is. Those that the bench
//! `ratios` has against the crate that liveslot replaces are the bench's own.

use super::api::{self, DeviceKey, HostAllocator};
use crate::peers::Peer;
use crate::work::{Work, repeat};
use std::hint::black_box;
use std::sync::Arc;

#[path = "../../benches/peers/drop_in.rs"]
mod drop_in;

use drop_in::Registry;

/// One library's registry.
pub(crate) struct Side(Registry);

impl Side {
    pub(crate) fn new() -> Self {
        Self(Peer::build())
    }

    pub(crate) fn bind(&self) -> Work<'_> {
        // Hidden once, outside the loop: the compiler knows neither the key nor that it stays the same device.
        let device = black_box(Registry::DEVICE);
        repeat(move || {
            let binding = self.0.bind(device);
            assert!(Registry::is_bound(black_box(&binding)), "nothing selected");
        })
    }

    pub(crate) fn handle_bind(&self) -> Work<'_> {
        let handle = self.0.registry.device(Registry::DEVICE);
        repeat(move || {
            let binding = handle.bind();
            assert!(black_box(&binding).is_ok(), "nothing selected");
        })
    }

    pub(crate) fn bind_registered(&self) -> Work<'_> {
        let mechanism = black_box(self.0.mechanisms[0]);
        repeat(move || {
            let binding = self.0.registry.bind_registered(mechanism);
            assert!(black_box(&binding).is_ok(), "not registered");
        })
    }

    pub(crate) fn clone_binding(&self) -> Work<'_> {
        let binding = self.0.registry.bind_registered(self.0.mechanisms[0]).expect("a binding");
        repeat(move || {
            black_box(&binding.clone());
        })
    }

    pub(crate) fn with_view(&self) -> Work<'_> {
        self.0.with_view()
    }

    pub(crate) fn allocate_and_release(&self) -> Work<'_> {
        self.0.allocate_and_release()
    }

    /// The choice alternates: selecting what is selected already might be cheaper.
    pub(crate) fn select(&self) -> Work<'_> {
        let mut choice = 0;
        repeat(move || {
            choice ^= 1;
            self.0.select(choice);
        })
    }

    /// Each thread has a device of its own: on a shared one, a thread would find the other's mechanism selected.
    pub(crate) fn cycle(&self, thread: usize) -> Work<'_> {
        let registry = &self.0.registry;
        let device = DeviceKey::device(4 + u32::from(thread == 1));
        let context = registry.register_provider_context(device, Arc::new(())).expect("a context");
        let authority = registry.register_authority(device, Arc::new(())).expect("an authority");
        repeat(move || {
            let allocator = Arc::new(HostAllocator);
            let mechanism = registry.register_allocator_with_device(context, authority, allocator, device).expect("a mechanism");
            registry.select(mechanism).expect("a selection");
            registry.retire(mechanism).expect("a retirement");
            registry.remove(mechanism).expect("a removal");
        })
    }
}
