//! Three maps from device to mechanism: the shortest code that does the job.

use super::{DEVICE, DEVICES, Peer, next_identity};
use dashmap::DashMap;
use liveslot::{DeviceAllocator, DeviceKey, HostAllocator};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a map holds per device.
struct Mechanism {
    active: AtomicBool,
    _allocator: Arc<dyn DeviceAllocator>,
}

impl Mechanism {
    fn new() -> Arc<Self> {
        Arc::new(Self { active: AtomicBool::new(true), _allocator: Arc::new(HostAllocator) })
    }
}

/// A hold on a mechanism, with an identity of its own.
pub(crate) struct Binding {
    _mechanism: Arc<Mechanism>,
    _identity: u64,
}

impl Binding {
    #[inline]
    fn new(mechanism: Arc<Mechanism>) -> Option<Self> {
        // Acquire: what a control thread wrote before it ended the mechanism. A plain load on x86.
        mechanism.active.load(Ordering::Acquire).then(|| Self { _mechanism: mechanism, _identity: next_identity() })
    }
}

/// The two mechanisms that `select` chooses from.
struct Choices([Arc<Mechanism>; 2]);

impl Choices {
    fn new() -> Self {
        Self([Mechanism::new(), Mechanism::new()])
    }

    /// One mechanism for each device, the first choice for [`DEVICE`].
    fn first(&self) -> impl Iterator<Item = (DeviceKey, Arc<Mechanism>)> {
        DEVICES.into_iter().map(|device| (device, if device == DEVICE { self.get(0) } else { Mechanism::new() }))
    }

    #[inline]
    fn get(&self, choice: usize) -> Arc<Mechanism> {
        Arc::clone(&self.0[choice])
    }
}

/// `parking_lot::RwLock` around a `HashMap`.
pub(crate) struct RwLockMap {
    selected: RwLock<HashMap<DeviceKey, Arc<Mechanism>>>,
    choices: Choices,
}

impl Peer for RwLockMap {
    type Device = DeviceKey;
    type Binding = Option<Binding>;

    const DEVICE: DeviceKey = DEVICE;

    fn build() -> Self {
        let choices = Choices::new();
        Self { selected: RwLock::new(choices.first().collect()), choices }
    }

    #[inline]
    fn bind(&self, device: DeviceKey) -> Self::Binding {
        // The lock is held for the look-up and the clone only.
        let mechanism = self.selected.read().get(&device).map(Arc::clone)?;
        Binding::new(mechanism)
    }

    #[inline]
    fn is_bound(binding: &Self::Binding) -> bool {
        binding.is_some()
    }

    #[inline]
    fn select(&self, choice: usize) {
        let mechanism = self.choices.get(choice);
        self.selected.write().insert(DEVICE, mechanism);
    }
}

/// `dashmap`: one lock per shard.
pub(crate) struct DashMapPeer {
    selected: DashMap<DeviceKey, Arc<Mechanism>>,
    choices: Choices,
}

impl Peer for DashMapPeer {
    type Device = DeviceKey;
    type Binding = Option<Binding>;

    const DEVICE: DeviceKey = DEVICE;

    fn build() -> Self {
        let choices = Choices::new();
        Self { selected: choices.first().collect(), choices }
    }

    #[inline]
    fn bind(&self, device: DeviceKey) -> Self::Binding {
        let mechanism = self.selected.get(&device).map(|entry| Arc::clone(&entry))?;
        Binding::new(mechanism)
    }

    #[inline]
    fn is_bound(binding: &Self::Binding) -> bool {
        binding.is_some()
    }

    #[inline]
    fn select(&self, choice: usize) {
        self.selected.insert(DEVICE, self.choices.get(choice));
    }
}

/// `papaya`: lock-free reads, with an `Arc` inside that every reader counts up and down.
pub(crate) struct PapayaMap {
    selected: papaya::HashMap<DeviceKey, Arc<Mechanism>>,
    choices: Choices,
}

impl Peer for PapayaMap {
    type Device = DeviceKey;
    type Binding = Option<Binding>;

    const DEVICE: DeviceKey = DEVICE;

    fn build() -> Self {
        let choices = Choices::new();
        Self { selected: choices.first().collect(), choices }
    }

    #[inline]
    fn bind(&self, device: DeviceKey) -> Self::Binding {
        let mechanism = self.selected.pin().get(&device).map(Arc::clone)?;
        Binding::new(mechanism)
    }

    #[inline]
    fn is_bound(binding: &Self::Binding) -> bool {
        binding.is_some()
    }

    #[inline]
    fn select(&self, choice: usize) {
        self.selected.pin().insert(DEVICE, self.choices.get(choice));
    }
}
