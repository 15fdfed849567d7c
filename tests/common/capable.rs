//! An allocator that offers everything, and a handle of each kind.

use super::rig::{DEVICE, Rig};
use liveslot::{BoundSharedMapping, BoundVirtualBacking, MemoryBinding};
use std::sync::atomic::Ordering::SeqCst;

pub struct Capable {
    pub binding: MemoryBinding,
    pub backing: BoundVirtualBacking,
    pub mapping: BoundSharedMapping,
}

/// A rig whose allocator offers both capabilities.
pub fn capable() -> (Rig, Capable) {
    let rig = Rig::new();
    rig.script.offers_virtual_backing.store(true, SeqCst);
    rig.script.offers_shared_mapping.store(true, SeqCst);
    let capable = Capable::of(&rig);
    (rig, capable)
}

impl Capable {
    /// A new binding to what is selected, with its handles.
    pub fn of(rig: &Rig) -> Self {
        let binding = rig.registry.bind(DEVICE).unwrap();
        let (backing, mapping) = (binding.virtual_backing().unwrap().unwrap(), binding.shared_mapping().unwrap().unwrap());
        rig.log.take();
        Self { binding, backing, mapping }
    }
}
