//! Device key → device: a table that only grows.
//!
//! Small device numbers have a place of their own; the others share buckets, each an append-only list. A device is put in place by
//! one compare-and-swap and stays until the registry goes, so reading needs no guard. Asking creates nothing.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`Devices::get`] | wait-free | one load; for numbers from [`DIRECT`] on, one per device in the bucket |
//! | [`Devices::get_or_create`] | lock-free | the same; for a new device an allocation and a compare-and-swap |

use super::device::Device;
use crate::{
    contract::{DeviceKey, Tier},
    primitives::once::WriteOnce,
};
use std::iter;

/// Numbers below this are found by index.
const DIRECT: usize = if cfg!(any(liveslot_loom, liveslot_shuttle)) { 2 } else { 64 };
const BUCKETS: usize = if cfg!(any(liveslot_loom, liveslot_shuttle)) { 1 } else { 64 };
const TIERS: usize = Tier::ALL.len();

pub(super) struct Devices {
    direct: [WriteOnce<Device>; TIERS * DIRECT],
    buckets: [Link; BUCKETS],
}

/// The rest of a bucket.
type Link = WriteOnce<Listed>;

struct Listed {
    device: Device,
    next: Link,
}

/// The devices of a bucket.
fn listed(bucket: &Link) -> impl Iterator<Item = &Listed> {
    iter::successors(bucket.get(), |listed| listed.next.get())
}

impl Devices {
    pub(super) fn new() -> Self {
        Self { direct: std::array::from_fn(|_| WriteOnce::new()), buckets: std::array::from_fn(|_| WriteOnce::new()) }
    }

    #[inline(always)]
    fn direct(&self, key: DeviceKey) -> Option<&WriteOnce<Device>> {
        let index = key.index as usize;
        (index < DIRECT).then(|| &self.direct[key.tier.index() * DIRECT + index])
    }

    fn bucket(&self, key: DeviceKey) -> &Link {
        &self.buckets[key.index as usize % BUCKETS]
    }

    #[inline]
    pub(super) fn get(&self, key: DeviceKey) -> Option<&Device> {
        match self.direct(key) {
            Some(place) => place.get(),
            None => self.find(key),
        }
    }

    #[cold]
    fn find(&self, key: DeviceKey) -> Option<&Device> {
        listed(self.bucket(key)).map(|listed| &listed.device).find(|device| device.key == key)
    }

    pub(super) fn get_or_create(&self, key: DeviceKey) -> &Device {
        if let Some(device) = self.get(key) {
            return device;
        }
        if let Some(place) = self.direct(key) {
            return place.set(Device::new(key));
        }
        let mut link = self.bucket(key);
        loop {
            // The winner's device if ours came too late, which may be another key's: then on to the end again.
            let stands = link.get().unwrap_or_else(|| link.set(Listed { device: Device::new(key), next: WriteOnce::new() }));
            if stands.device.key == key {
                return &stands.device;
            }
            link = &stands.next;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Device> {
        let direct = self.direct.iter().filter_map(WriteOnce::get);
        direct.chain(self.buckets.iter().flat_map(listed).map(|listed| &listed.device))
    }
}
