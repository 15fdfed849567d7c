//! Troubles that people have had with allocators, registries and hot-swapped backends, tried on this one. README.md has the list.
//!
//! | file | the trouble |
//! | --- | --- |
//! | `current` | what is selected is ambiguous, or dangles |
//! | `origin` | a release reaches another allocator than the one that allocated |
//! | `pins` | what an allocator's destructor needs dies first, or never |
//! | `ends` | destruction on the wrong thread |
//! | `reuse` | an address, a place or a handle is used again, and taken for the old one |
//! | `early` | something is freed too early |
//! | `failures` | an error or a panic on the way out stops what has nothing to do with it |
//! | `losses` | a lost device is half lost |
//! | `deferral` | memory is freed under work that uses it |
//! | `locks` | user code runs under somebody's lock |
//! | `registration` | a registration displaces, a dead mechanism comes back |
//! | `stalls` | what was let go stays |
//! | `wakes` | a wake is lost, or goes to the wrong one, or never comes |
//! | `drains` | "drained" is said too early, too late or never |
//! | `shutdowns` | a shutdown waits for one class of users, and forgets another |
//! | `process` | one thread's choice, or one user's value, is taken for everybody's, or for nobody's |
//!
//! Ends of processes and threads are in `tests/exits`.

#[path = "../common"]
mod common {
    pub mod another;
    pub mod api;
    pub mod arm;
    pub mod doubles;
    pub mod lifecycle;
    pub mod park;
    pub mod queue;
    pub mod refused;
    pub mod rig;
    pub mod watchdog;
    pub mod woken;
}

mod current;
mod deferral;
mod drains;
mod early;
mod ends;
mod failures;
mod locks;
mod losses;
mod origin;
mod pins;
mod pool;
mod process;
mod registration;
mod reuse;
mod shutdowns;
mod stalls;
mod wakes;
mod work;

use common::rig::Rig;
use liveslot::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const OTHER: DeviceKey = DeviceKey::device(1);

fn nobody(device: DeviceKey) -> BindingError {
    BindingError::NoSelectedMechanism(device)
}

/// Registers an allocator with a context and an authority of its own.
fn register(
    registry: &BindingRegistry,
    device: DeviceKey,
    allocator: Arc<dyn DeviceAllocator>,
) -> (RegisteredMechanism, RegisteredProviderContext, RegisteredAuthority) {
    let context = registry.register_provider_context(device, Arc::new(())).unwrap();
    let authority = registry.register_authority(device, Arc::new(())).unwrap();
    let mechanism = registry.register_allocator_with_device(context, authority, allocator, device).unwrap();
    (mechanism, context, authority)
}

/// Takes a mechanism away that owns nothing.
fn take_away(registry: &BindingRegistry, mechanism: RegisteredMechanism) {
    registry.retire(mechanism).unwrap();
    registry.remove(mechanism).unwrap();
}

/// A binding to the rig's mechanism, and a block of it.
fn hold(rig: &Rig) -> (MemoryBinding, BoundAllocation) {
    let binding = rig.registry.bind_registered(rig.mechanism).unwrap();
    let block = binding.allocate(64, 8).unwrap();
    rig.log.take();
    (binding, block)
}

/// The count of suppressed panics is the process's: who looks at it, or adds to it, has it alone.
fn counting() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
