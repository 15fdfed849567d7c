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
const BUCKETS: usize = if cfg!(any(liveslot_loom, liveslot_shuttle)) { 1 } else { 256 };
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
        // Multiplied by 2³² over the golden ratio (Knuth, "The Art of Computer Programming", 6.4), whose upper bits mix all bits of the
        // number: device numbers often share their lower ones.
        let mixed = (key.index ^ (key.tier.index() as u32) << 30).wrapping_mul(0x9e37_79b9);
        &self.buckets[(mixed >> 16) as usize % BUCKETS]
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

impl Drop for Devices {
    fn drop(&mut self) {
        // One after the other: a bucket that drops its list by recursion needs a stack as long as the list.
        for bucket in &mut self.buckets {
            let mut rest = bucket.take();
            while let Some(mut listed) = rest {
                rest = listed.next.take();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that share their lower bits, as numbers made of a node and a slot do, are spread over the buckets.
    #[test]
    fn numbers_with_equal_lower_bits_are_spread() {
        let devices = Devices::new();
        for node in 1..=4_096 {
            devices.get_or_create(DeviceKey::device(node << 10));
        }
        let longest = devices.buckets.iter().map(|bucket| listed(bucket).count()).max();
        assert!(longest < Some(64), "4096 devices in {BUCKETS} buckets, {longest:?} of them in one");
    }

    /// A bucket's list is dropped on a stack that does not grow with it.
    #[test]
    fn a_long_bucket_needs_no_deep_stack() {
        let devices = Devices::new();
        let mut end = &devices.buckets[0];
        for index in 0..100_000 {
            end = &end.set(Listed { device: Device::new(DeviceKey::device(index)), next: WriteOnce::new() }).next;
        }
        drop(devices);
    }
}
