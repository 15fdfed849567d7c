//! Models of `src/mechanism/entry.rs`, through a registry.

mod support;

use liveslot_loom::{
    BindingError, BindingRegistry, DeviceAllocator, DeviceKey, MechanismLifecycle, MemoryBinding, MemoryError, RegisteredMechanism,
    internals::set_lane,
};
use std::{ptr::NonNull, sync::Arc};
use support::race;

struct State {
    registry: BindingRegistry,
    mechanism: RegisteredMechanism,
    binding: MemoryBinding,
}

/// Hands out addresses and no memory.
#[derive(Debug)]
struct Nothing;

impl DeviceAllocator for Nothing {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        Ok(NonNull::dangling())
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {}

    fn device(&self) -> DeviceKey {
        DeviceKey::HOST
    }
}

impl State {
    fn new() -> Self {
        let registry = BindingRegistry::striped(2).unwrap();
        let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(())).unwrap();
        let authority = registry.register_authority(DeviceKey::HOST, Arc::new(())).unwrap();
        let mechanism = registry.register_allocator(context, authority, Arc::new(Nothing)).unwrap();
        let binding = registry.bind(DeviceKey::HOST).unwrap();
        Self { registry, mechanism, binding }
    }

    /// Allocates on either stripe, one after the other.
    fn allocate_on_each_stripe(&self) -> Vec<Result<(), BindingError>> {
        let allocate = |lane| {
            set_lane(lane);
            self.binding.allocate(8, 8).map(drop)
        };
        (0..2).map(allocate).collect()
    }
}

/// R26: who is refused by one stripe is not admitted by another afterwards.
#[test]
fn refused_stays_refused() {
    fn retire(state: &State) -> Vec<Result<(), BindingError>> {
        vec![state.registry.retire(state.mechanism)]
    }
    race(State::new, &[retire, State::allocate_on_each_stripe], |state, got| {
        let [retired, allocated] = &got[..] else { unreachable!() };
        assert!(retired[0].is_ok());
        let refused = |result: &Result<(), BindingError>| {
            matches!(result, Err(BindingError::InactiveMechanism { lifecycle: MechanismLifecycle::Retired, .. }))
        };
        assert!(allocated.iter().all(|result| result.is_ok() || refused(result)), "{allocated:?}");
        assert!(allocated[0].is_ok() || allocated[1].is_err(), "refused, then admitted");
        let live = state.registry.snapshot(state.mechanism).unwrap().live_allocations;
        assert_eq!(live, allocated.iter().flatten().count());
    });
}
