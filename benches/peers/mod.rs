//! The registries that the benches put beside liveslot, behind one trait.
//!
//! The job is the same for all: find what is selected for a device, take a hold on it that outlives the look-up, see that it is still
//! active, give the result an identity, and let go of it again.
//!
//! What might flatter somebody:
//!
//! - The three maps do less than liveslot. They have no lifecycle besides one word per mechanism, nothing is counted, and an entry that
//!   leaves the map while somebody holds it is simply kept by its `Arc`. They are what one writes first, not an equal.
//! - The mutex registry does less too: it says what the locks alone cost. `seed`, the published crate that liveslot replaces, does the
//!   whole job, and whatever it spends beside its locks counts against it.
//! - All peers of our own number their bindings from blocks per thread, as liveslot does. One shared counter would be shorter and add a
//!   contended line.
//! - All maps use their default hasher (SipHash), as liveslot's users would meet it. A faster one saves a few nanoseconds
//!   with one thread; it leaves the contended cost, a cache line that travels between cores, where it is.

mod liveslot;
mod maps;
mod mutex_registry;
mod seed;

pub(crate) use self::liveslot::Liveslot;
pub(crate) use self::maps::{DashMapPeer, PapayaMap, RwLockMap};
pub(crate) use self::mutex_registry::MutexRegistry;
pub(crate) use self::seed::Seed;

use ::liveslot::DeviceKey;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The device that the measured loops use. Each peer holds the others as well, so that no map has a single entry.
const DEVICE: DeviceKey = DeviceKey::HOST;

/// Every device that is registered in every peer.
const DEVICES: [DeviceKey; 4] = [DEVICE, DeviceKey::device(0), DeviceKey::device(1), DeviceKey::device(2)];

/// A table of what is selected per device, as a hot thread and a control thread use it.
pub(crate) trait Peer {
    /// How the peer names a device.
    type Device: Copy;
    /// What a bind hands out. It lets go of the mechanism when it is dropped.
    type Binding;

    /// The device that the measured loops use, in the peer's own type: nothing is converted inside them.
    const DEVICE: Self::Device;

    /// One mechanism for each of [`DEVICES`], and a second one for [`DEVICE`].
    fn build() -> Self;

    /// Takes a hold on what is selected for `device`.
    fn bind(&self, device: Self::Device) -> Self::Binding;

    /// Whether the bind succeeded, asked without moving its result.
    fn is_bound(binding: &Self::Binding) -> bool;

    /// Makes one of the two mechanisms of [`DEVICE`] the selected one.
    fn select(&self, choice: usize);
}

/// An identity for a peer's binding or allocation, unique among threads.
#[inline]
fn next_identity() -> u64 {
    /// Numbers that a thread takes from the shared counter at once.
    const BLOCK: u64 = 1 << 16;
    static BLOCKS: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }
    NEXT.with(|next| {
        let mut identity = next.get();
        if identity.is_multiple_of(BLOCK) {
            // Relaxed: numbers need to differ, nothing is published by them.
            identity = BLOCKS.fetch_add(1, Ordering::Relaxed) * BLOCK + 1;
        }
        next.set(identity + 1);
        identity
    })
}
