//! A lower bound of what mutexes cost: a registry with one mutex around the tables and one per mechanism around its lifecycle, its counts
//! and its records, and with as little inside and beside them as possible. Lock order: tables, then mechanism; no call holds both, and
//! none holds one while the allocator runs.
//!
//! It does less than liveslot and than the crate that liveslot replaces (`seed`): an allocation is an address and a number and keeps
//! nothing alive, a released record is gone at once and never queued or quarantined, a release doesn't ask whether the mechanism still
//! lives, and there are no views: an operation names its allocation itself. Its ratios are printed for information, without a target.
//!
//! Written to be fast for what it is: critical sections are a look-up or a few fields, nothing is formatted or copied inside, and the mutex
//! is std's, which spins before it sleeps. `ratios` throws its rows away when a bind costs more than 25 uncontended read-modify-write
//! pairs.

use super::{DEVICE, DEVICES, Peer, next_identity};
use liveslot::{DeviceAllocator, DeviceKey, HostAllocator};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Names a mechanism of one registry and of no other.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct MechanismId {
    registry: u64,
    number: u64,
}

#[derive(Default)]
struct Tables {
    selected: HashMap<DeviceKey, MechanismId>,
    mechanisms: HashMap<MechanismId, Arc<Mechanism>>,
}

struct Mechanism {
    allocator: Arc<dyn DeviceAllocator>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ended: bool,
    operations: usize,
    /// Size and alignment of each live allocation, by its identity.
    records: HashMap<u64, (usize, usize)>,
}

impl Mechanism {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Counts an operation, unless the mechanism has ended.
    fn begin(&self) -> Option<Operation<'_>> {
        let mut state = self.state();
        if state.ended {
            return None;
        }
        state.operations += 1;
        drop(state);
        Some(Operation(self))
    }
}

/// An operation in progress. It ends in a critical section of its own: the work in between runs without the lock.
struct Operation<'m>(&'m Mechanism);

impl Operation<'_> {
    /// Ends the operation and records what came of it, in one critical section.
    fn end_with(self, record: impl FnOnce(&mut State)) {
        let mut state = self.0.state();
        record(&mut state);
        state.operations -= 1;
        drop(state);
        // Ended already: its drop would do it again.
        std::mem::forget(self);
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.0.state().operations -= 1;
    }
}

/// A poisoned lock is taken all the same: nothing here leaves half a change behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The registry.
pub(crate) struct MutexRegistry {
    registry: u64,
    tables: Mutex<Tables>,
    /// The two mechanisms that `select` chooses from.
    mechanisms: [MechanismId; 2],
}

/// A hold on a mechanism.
pub(crate) struct Binding {
    mechanism: Arc<Mechanism>,
    /// The rest of its identity is the mechanism's.
    _identity: u64,
}

/// A live allocation. Like liveslot's it must be given back by hand.
pub(crate) struct Allocation {
    address: NonNull<u8>,
    identity: u64,
}

impl Binding {
    /// Runs `operation` as a counted operation on a live allocation, as liveslot's `with_view` does.
    #[inline]
    pub(crate) fn with_allocation<R>(&self, allocation: &Allocation, operation: impl FnOnce(NonNull<u8>) -> R) -> Option<R> {
        // The record is looked up where the operation is counted, so that one critical section does both.
        let mut state = self.mechanism.state();
        if state.ended || !state.records.contains_key(&allocation.identity) {
            return None;
        }
        state.operations += 1;
        drop(state);
        let _operation = Operation(&self.mechanism);
        Some(operation(allocation.address))
    }

    #[inline]
    pub(crate) fn allocate(&self, bytes: usize, align: usize) -> Option<Allocation> {
        let operation = self.mechanism.begin()?;
        let address = self.mechanism.allocator.allocate(bytes, align).ok()?;
        let identity = next_identity();
        operation.end_with(|state| {
            state.records.insert(identity, (bytes, align));
        });
        Some(Allocation { address, identity })
    }

    #[inline]
    pub(crate) fn release(&self, allocation: Allocation) -> bool {
        let mut state = self.mechanism.state();
        let Some((bytes, align)) = state.records.remove(&allocation.identity) else { return false };
        state.operations += 1;
        drop(state);
        let _operation = Operation(&self.mechanism);
        // SAFETY: the record was ours to take once, and it holds the size and alignment that this address was allocated with.
        unsafe { self.mechanism.allocator.deallocate(allocation.address, bytes, align) };
        true
    }
}

impl MutexRegistry {
    /// What is selected for `device`, in a critical section of its own.
    fn selected(&self, device: DeviceKey) -> Option<MechanismId> {
        lock(&self.tables).selected.get(&device).copied()
    }

    fn mechanism(&self, id: MechanismId) -> Option<Arc<Mechanism>> {
        if id.registry != self.registry {
            return None;
        }
        lock(&self.tables).mechanisms.get(&id).map(Arc::clone)
    }

    /// Counts an operation while it issues the identity, so that the mechanism cannot be removed meanwhile.
    #[inline]
    fn bind_registered(&self, id: MechanismId) -> Option<Binding> {
        let mechanism = self.mechanism(id)?;
        let operation = mechanism.begin()?;
        let identity = next_identity();
        drop(operation);
        Some(Binding { mechanism, _identity: identity })
    }
}

impl Peer for MutexRegistry {
    type Device = DeviceKey;
    type Binding = Option<Binding>;

    const DEVICE: DeviceKey = DEVICE;

    fn build() -> Self {
        let registry = next_identity();
        let mut tables = Tables::default();
        let mut register = |device: DeviceKey| {
            let id = MechanismId { registry, number: next_identity() };
            tables.mechanisms.insert(id, Arc::new(Mechanism { allocator: Arc::new(HostAllocator), state: Mutex::default() }));
            tables.selected.entry(device).or_insert(id);
            id
        };
        let [first, ..] = DEVICES.map(&mut register);
        let mechanisms = [first, register(DEVICE)];
        Self { registry, tables: Mutex::new(tables), mechanisms }
    }

    /// Finds the selection, then binds it by its token: two critical sections on the tables, two on the mechanism.
    #[inline]
    fn bind(&self, device: DeviceKey) -> Self::Binding {
        self.bind_registered(self.selected(device)?)
    }

    #[inline]
    fn is_bound(binding: &Self::Binding) -> bool {
        binding.is_some()
    }

    /// Publishes first and looks afterwards: critical sections of their own, and one more when the mechanism turns out to have ended.
    #[inline]
    fn select(&self, choice: usize) {
        let id = self.mechanisms[choice];
        let mechanism = self.mechanism(id).expect("a registered mechanism");
        let before = lock(&self.tables).selected.insert(DEVICE, id);
        let ended = mechanism.state().ended;
        if ended && let Some(before) = before {
            lock(&self.tables).selected.insert(DEVICE, before);
        }
    }
}
