//! Registration: what it accepts, what it matches, what it selects.

mod common {
    pub mod another;
    pub mod doubles;
    pub mod refused;
    pub mod rig;
}

use common::{
    another::another,
    doubles::{Double, Resource},
    refused::refused,
    rig::{DEVICE, Rig},
};
use liveslot::*;
use std::sync::Arc;

const OTHER: DeviceKey = DeviceKey::device(1);

/// R7: contexts and authorities are registered for any device and any number of times, one resource too, and are kept until each
/// registration has been removed.
#[test]
fn supports_are_kept() {
    let rig = Rig::new();
    let context = Resource::context("shared context", &rig.log, &rig.script);
    let authority = Resource::authority("shared authority", &rig.log, &rig.script);
    let devices = [DEVICE, OTHER, DeviceKey::HOST, DeviceKey::device(u32::MAX), DeviceKey { tier: Tier::Disk, index: 63 }, DEVICE];
    let contexts = devices.map(|device| rig.registry.register_provider_context(device, context.clone()).unwrap());
    let authorities = devices.map(|device| rig.registry.register_authority(device, authority.clone()).unwrap());
    drop((context, authority));
    assert_eq!(rig.log.take(), [""; 0]);

    for (at, context) in contexts.into_iter().enumerate() {
        rig.registry.remove_provider_context(context).unwrap();
        assert_eq!(rig.log.take().len(), usize::from(at == devices.len() - 1));
    }
    for (at, authority) in authorities.into_iter().enumerate() {
        rig.registry.remove_authority(authority).unwrap();
        assert_eq!(rig.log.take().len(), usize::from(at == devices.len() - 1));
    }
    rig.finish();
}

/// R8, R14: tokens say what was registered; a trusted composite differs in what it says and in nothing else.
#[test]
fn tokens_say_what_was_registered() {
    let rig = Rig::new();
    assert_eq!((rig.context.device(), rig.authority.device(), rig.mechanism.device()), (DEVICE, DEVICE, DEVICE));
    assert_eq!(rig.mechanism.coherence(), MechanismCoherence::SelfContained);

    let with_device = another(&rig, "B");
    assert_eq!((with_device.device(), with_device.coherence()), (DEVICE, MechanismCoherence::SelfContained));

    let allocator = Double::new("T", ["Q", "C"], DEVICE, &rig.log, &Default::default());
    // SAFETY: the double is one object, so all its parts are coherent.
    let composite = unsafe { rig.registry.register_trusted_composite(rig.context, rig.authority, allocator) }.unwrap();
    assert_eq!((composite.device(), composite.coherence()), (DEVICE, MechanismCoherence::TrustedComposite));

    let snapshots = [rig.mechanism, with_device, composite].map(|mechanism| rig.registry.snapshot(mechanism).unwrap());
    for (snapshot, mechanism) in snapshots.iter().zip([rig.mechanism, with_device, composite]) {
        let expected = MechanismSnapshot { identity: mechanism.identity(), coherence: mechanism.coherence(), ..snapshots[0] };
        assert_eq!(*snapshot, expected);
    }
    let binding = rig.registry.bind_registered(composite).unwrap();
    let allocation = binding.allocate(8, 8).unwrap();
    binding.release(allocation).unwrap();
    drop(binding);
    for mechanism in [with_device, composite] {
        rig.registry.retire(mechanism).unwrap();
        rig.registry.remove(mechanism).unwrap();
    }
    rig.finish();
}

/// R9: an allocator is asked for its device once, before anything is checked; not at all if the caller says it.
#[test]
fn the_device_is_asked_for_once() {
    let (rig, elsewhere) = (Rig::new(), Rig::new());
    let allocator = || Double::new("B", ["Q", "C"], DEVICE, &rig.log, &Default::default());

    let foreign = |kind| BindingError::ForeignRegistry { kind };
    refused(rig.registry.register_allocator(elsewhere.context, rig.authority, allocator()), foreign("provider context"));
    assert_eq!(rig.log.take(), ["B device", "B dropped"]);
    // SAFETY: the double is one object, so all its parts are coherent.
    let composite = unsafe { rig.registry.register_trusted_composite(rig.context, elsewhere.authority, allocator()) };
    refused(composite, foreign("authority"));
    assert_eq!(rig.log.take(), ["B device", "B dropped"]);
    refused(
        rig.registry.register_allocator_with_device(elsewhere.context, rig.authority, allocator(), DEVICE),
        foreign("provider context"),
    );
    assert_eq!(rig.log.take(), ["B dropped"]);

    // The device that the caller says counts, not the allocator's.
    let said = rig.registry.register_allocator_with_device(rig.context, rig.authority, allocator(), OTHER);
    refused(said, BindingError::DeviceMismatch { subject: "allocator", expected: DEVICE, actual: OTHER });
    let elsewhere_made = Double::new("D", ["Q", "C"], OTHER, &rig.log, &Default::default());
    let said = rig.registry.register_allocator_with_device(rig.context, rig.authority, elsewhere_made, DEVICE).unwrap();
    assert_eq!(rig.log.take(), ["B dropped"]);
    assert_eq!(said.device(), DEVICE);

    rig.registry.retire(said).unwrap();
    rig.registry.remove(said).unwrap();
    elsewhere.finish();
    rig.finish();
}

/// R10, R11: context, authority and allocator must be for one device; a mismatch of the authority is reported first, and leaves nothing
/// behind.
#[test]
fn devices_must_match() {
    let devices = [DEVICE, OTHER, DeviceKey { tier: Tier::Host, index: 0 }];
    for context_device in devices {
        for authority_device in devices {
            for allocator_device in devices {
                let (registry, log, script) = (BindingRegistry::new().unwrap(), Default::default(), Default::default());
                let context = registry.register_provider_context(context_device, Resource::context("C", &log, &script)).unwrap();
                let authority = registry.register_authority(authority_device, Resource::authority("Q", &log, &script)).unwrap();
                let allocator = Double::new("A", ["Q", "C"], allocator_device, &log, &script);
                let result = registry.register_allocator(context, authority, allocator);
                assert_eq!(log.take()[0], "A device");

                let mismatch = |subject, actual| BindingError::DeviceMismatch { subject, expected: context_device, actual };
                if authority_device != context_device {
                    refused(result, mismatch("authority", authority_device));
                } else if allocator_device != context_device {
                    refused(result, mismatch("allocator", allocator_device));
                } else {
                    assert_eq!(result.unwrap().device(), context_device);
                    assert_eq!(registry.snapshots().unwrap().len(), 1);
                    continue;
                }
                assert_eq!(registry.snapshots().unwrap(), []);
                for device in devices {
                    refused(registry.bind(device), BindingError::NoSelectedMechanism(device));
                }
                // Neither is in use.
                registry.remove_provider_context(context).unwrap();
                registry.remove_authority(authority).unwrap();
            }
        }
    }
}

/// R11: the allocator of a refused registration is dropped before the call returns, unless somebody else has it.
#[test]
fn a_refused_allocator_is_let_go() {
    let rig = Rig::new();
    let kept = Double::new("kept", ["Q", "C"], OTHER, &rig.log, &Default::default());
    let mismatch = || BindingError::DeviceMismatch { subject: "allocator", expected: DEVICE, actual: OTHER };
    refused(rig.registry.register_allocator(rig.context, rig.authority, kept.clone()), mismatch());
    assert_eq!(rig.log.take(), ["kept device"]);
    assert_eq!(Arc::strong_count(&kept), 1);
    refused(rig.registry.register_allocator(rig.context, rig.authority, kept), mismatch());
    assert_eq!(rig.log.take(), ["kept device", "kept dropped"]);
    assert_eq!(rig.registry.snapshots().unwrap().len(), 1);
    rig.finish();
}

/// R12: each registration is a new mechanism, Active and owning nothing, whatever the one before it went through, and also for one object.
#[test]
fn each_registration_is_a_mechanism() {
    let rig = Rig::new();
    let allocator = Double::new("B", ["Q", "C"], DEVICE, &rig.log, &Default::default());
    let first = rig.registry.register_allocator(rig.context, rig.authority, allocator.clone()).unwrap();
    let binding = rig.registry.bind_registered(first).unwrap();
    let allocation = binding.allocate(16, 8).unwrap();

    let second = rig.registry.register_allocator(rig.context, rig.authority, allocator).unwrap();
    assert_ne!(first.identity(), second.identity());
    let expected = MechanismSnapshot {
        identity: second.identity(),
        device: DEVICE,
        provider_context: rig.context.identity(),
        authority: rig.authority.identity(),
        coherence: MechanismCoherence::SelfContained,
        lifecycle: MechanismLifecycle::Active,
        live_allocations: 0,
        active_operations: 0,
        queued_releases: 0,
        quarantined_allocations: 0,
        quarantined_bytes: 0,
    };
    assert_eq!(rig.registry.snapshot(second).unwrap(), expected);

    binding.release(allocation).unwrap();
    drop(binding);
    rig.log.take();
    rig.registry.retire(first).unwrap();
    rig.registry.remove(first).unwrap();
    assert_eq!(rig.log.take(), [""; 0], "the second registration has it");
    rig.registry.retire(second).unwrap();
    rig.registry.remove(second).unwrap();
    assert_eq!(rig.log.take(), ["B dropped"]);
    rig.finish();
}

/// R13: a registration is selected if nothing is, and displaces nothing.
#[test]
fn a_registration_heals_absence_only() {
    let rig = Rig::new();
    let selected = || rig.registry.bind(DEVICE).unwrap().identity().mechanism();
    let second = another(&rig, "B");
    assert_eq!(selected(), rig.mechanism.identity());
    rig.registry.retire(rig.mechanism).unwrap();
    refused(rig.registry.bind(DEVICE), BindingError::NoSelectedMechanism(DEVICE));
    let third = another(&rig, "D");
    assert_eq!(selected(), third.identity());
    let fourth = another(&rig, "E");
    assert_eq!(selected(), third.identity());
    for mechanism in [second, third, fourth] {
        rig.registry.retire(mechanism).unwrap();
        rig.registry.remove(mechanism).unwrap();
    }
    rig.finish();
}

/// R15: neither a lost device nor a terminated context refuses what is registered later.
#[test]
fn a_lost_device_takes_registrations() {
    let rig = Rig::new();
    rig.registry.invalidate_device(DEVICE, "unplugged").unwrap();
    let after_loss = another(&rig, "B");
    assert_eq!(rig.registry.bind(DEVICE).unwrap().identity().mechanism(), after_loss.identity());

    rig.registry.invalidate_device(DEVICE, "unplugged again").unwrap();
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    let after_termination = another(&rig, "D");
    assert_eq!(rig.registry.snapshot(after_termination).unwrap().lifecycle, MechanismLifecycle::Active);
    assert_eq!(rig.registry.bind(DEVICE).unwrap().identity().mechanism(), after_termination.identity());
    rig.registry.select(after_termination).unwrap();

    rig.registry.retire(after_termination).unwrap();
    for mechanism in [after_loss, after_termination] {
        rig.registry.remove(mechanism).unwrap();
    }
    rig.finish();
}
