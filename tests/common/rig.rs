//! A registry with one mechanism: allocator A, authority Q, context C.

use super::doubles::{Double, Log, Resource, Script};
use liveslot::*;
use std::sync::Arc;

pub const DEVICE: DeviceKey = DeviceKey::device(0);

pub struct Rig {
    pub log: Log,
    pub script: Arc<Script>,
    pub registry: BindingRegistry,
    pub context: RegisteredProviderContext,
    pub authority: RegisteredAuthority,
    pub mechanism: RegisteredMechanism,
}

impl Rig {
    pub fn new() -> Self {
        let (log, script) = (Log::default(), Arc::<Script>::default());
        let registry = BindingRegistry::new().unwrap();
        let context = registry.register_provider_context(DEVICE, Resource::context("C", &log, &script)).unwrap();
        let authority = registry.register_authority(DEVICE, Resource::authority("Q", &log, &script)).unwrap();
        let allocator = Double::new("A", ["Q", "C"], DEVICE, &log, &script);
        let mechanism = registry.register_allocator(context, authority, allocator).unwrap();
        assert_eq!(log.take(), ["A device"]);
        Self { log, script, registry, context, authority, mechanism }
    }

    /// Takes the registry apart, whatever it went through: the mechanism must be registered, own nothing and be held by nobody.
    #[track_caller]
    pub fn finish(self) {
        self.log.take();
        self.registry.retire(self.mechanism).unwrap();
        self.registry.remove(self.mechanism).unwrap();
        assert_eq!(self.log.take(), ["A dropped"]);
        self.registry.remove_authority(self.authority).unwrap();
        assert_eq!(self.log.take(), ["Q dropped"]);
        self.registry.remove_provider_context(self.context).unwrap();
        assert_eq!(self.log.take(), ["C dropped"]);
        assert_eq!(self.registry.snapshots().unwrap(), []);
        assert!(self.script.is_spent(), "a call that was to come never came");
    }
}
