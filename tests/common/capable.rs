//! An allocator that offers everything, and a handle of each kind.

use super::rig::{DEVICE, Rig};
use liveslot::{BoundSharedMapping, BoundVirtualBacking, MemoryBinding};
use std::sync::atomic::Ordering::SeqCst;

pub struct Capable {
    pub binding: MemoryBinding,
    pub backing: BoundVirtualBacking,
    pub mapping: BoundSharedMapping,
}

impl Capable {
    /// A new binding to the rig's mechanism, which offers both capabilities from now on, with a handle of each.
    pub fn of(rig: &Rig) -> Self {
        rig.script.offers_virtual_backing.store(true, SeqCst);
        rig.script.offers_shared_mapping.store(true, SeqCst);
        let binding = rig.registry.bind(DEVICE).unwrap();
        let (backing, mapping) = (binding.virtual_backing().unwrap().unwrap(), binding.shared_mapping().unwrap().unwrap());
        rig.log.take();
        Self { binding, backing, mapping }
    }
}
