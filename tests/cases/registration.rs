//! Registration and resurrection.

use crate::{
    OTHER,
    common::{
        another::another,
        arm::arm,
        doubles::{Double, Log, Resource, Script},
        park::gate,
        refused::refused,
        rig::{DEVICE, Rig},
    },
    counting, nobody, take_away,
};
use liveslot::*;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{self},
};

/// C141: a second registration replaces nothing, and one on another device changes nothing here.
#[test]
fn a_second_registration_replaces_nothing() {
    let rig = Rig::new();
    let device = rig.registry.device(DEVICE);
    let version = device.version();
    let second = another(&rig, "B");
    let context = rig.registry.register_provider_context(OTHER, Arc::new(())).unwrap();
    let authority = rig.registry.register_authority(OTHER, Arc::new(())).unwrap();
    let elsewhere = rig.registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), OTHER).unwrap();
    assert_eq!((device.selected(), device.version()), (Some(rig.mechanism.identity()), version));
    drop(device);
    take_away(&rig.registry, second);
    take_away(&rig.registry, elsewhere);
    rig.finish();
}

/// C142: who takes away what it has registered takes away nothing else.
#[test]
fn a_leaver_takes_its_own_alone() {
    let rig = Rig::new();
    let leaver = another(&rig, "B");
    take_away(&rig.registry, leaver);
    assert_eq!(rig.log.take(), ["B dropped"]);
    let binding = rig.registry.bind(DEVICE).unwrap();
    assert_eq!(binding.identity().mechanism(), rig.mechanism.identity());
    binding.release(binding.allocate(8, 8).unwrap()).unwrap();
    refused(rig.registry.remove(leaver), BindingError::UnregisteredMechanism(leaver.identity()));
    drop(binding);
    rig.finish();
}

/// C144: a registration that fails, at whichever step, leaves an empty device that takes the next one.
#[test]
fn a_failed_registration_leaves_nothing() {
    let (log, script) = (Log::default(), Arc::<Script>::default());
    let registry = BindingRegistry::new().unwrap();
    let context = registry.register_provider_context(DEVICE, Resource::context("C", &log, &script)).unwrap();
    let authority = registry.register_authority(DEVICE, Resource::authority("Q", &log, &script)).unwrap();
    let allocator = |device| Double::new("A", ["Q", "C"], device, &log, &script);

    arm(&script.device, || panic!("no such device"));
    catch_unwind(AssertUnwindSafe(|| registry.register_allocator(context, authority, allocator(DEVICE)))).unwrap_err();
    refused(registry.bind(DEVICE), nobody(DEVICE));
    let mismatch = BindingError::DeviceMismatch { subject: "allocator", expected: DEVICE, actual: OTHER };
    refused(registry.register_allocator(context, authority, allocator(OTHER)), mismatch);
    refused(registry.bind(DEVICE), nobody(DEVICE));
    refused(registry.bind(OTHER), nobody(OTHER));
    assert_eq!(registry.snapshots().unwrap(), []);
    assert_eq!(log.take(), ["A device", "A dropped", "A device", "A dropped"]);

    let mechanism = registry.register_allocator(context, authority, allocator(DEVICE)).unwrap();
    assert_eq!(registry.bind(DEVICE).unwrap().identity().mechanism(), mechanism.identity());
}

/// C146: until a registration has all it needs, others see none of it.
#[test]
fn a_registration_is_seen_whole_or_not_at_all() {
    let rig = Rig::new();
    rig.registry.retire(rig.mechanism).unwrap();
    let (stop, asked) = gate();
    arm(&rig.script.device, || stop.park());
    let allocator = Double::new("B", ["Q", "C"], DEVICE, &rig.log, &rig.script);
    let registered = thread::scope(|scope| {
        let registering = scope.spawn(|| rig.registry.register_allocator(rig.context, rig.authority, allocator));
        asked.reached();
        refused(rig.registry.bind(DEVICE), nobody(DEVICE));
        assert_eq!(rig.registry.snapshots().unwrap().len(), 1);
        asked.open();
        registering.join().unwrap().unwrap()
    });
    assert_eq!(rig.registry.bind(DEVICE).unwrap().identity().mechanism(), registered.identity());
    assert_eq!(rig.registry.snapshots().unwrap().len(), 2);
    take_away(&rig.registry, registered);
    rig.finish();
}

/// C146: one device whose end goes wrong keeps no other from its end.
#[test]
fn a_sweep_visits_every_device() {
    let _alone = counting();
    let (log, registry) = (Log::default(), BindingRegistry::new().unwrap());
    let names = ["A0", "A1", "A2", "A3", "A4", "A5", "A6", "A7"];
    for (index, name) in names.into_iter().enumerate() {
        let (device, script) = (DeviceKey::device(index as u32 * 40), Arc::<Script>::default());
        let context = registry.register_provider_context(device, Arc::new(())).unwrap();
        let authority = registry.register_authority(device, Arc::new(())).unwrap();
        registry.register_allocator(context, authority, Double::new(name, ["", ""], device, &log, &script)).unwrap();
        if name == "A3" {
            arm(&script.drop, || panic!("in the middle"));
        }
    }
    log.take();
    catch_unwind(AssertUnwindSafe(|| drop(registry))).unwrap_err();
    let mut ended = log.take();
    ended.sort();
    assert_eq!(ended, names.map(|name| format!("{name} dropped")));
}

/// C149: what is retired or lost is selected by nobody any more, while it gives back what it owes and afterwards.
#[test]
fn the_dead_stay_dead() {
    for lose in [false, true] {
        let rig = Rig::new();
        let binding = rig.registry.bind(DEVICE).unwrap();
        let blocks: Vec<_> = (0..200).map(|_| binding.allocate(8, 8).unwrap()).collect();
        let lifecycle = if lose {
            rig.registry.invalidate_device(DEVICE, "lost").unwrap();
            MechanismLifecycle::DeviceLost
        } else {
            rig.registry.retire(rig.mechanism).unwrap();
            MechanismLifecycle::Retired
        };
        let next = another(&rig, "B");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        refused(rig.registry.select(rig.mechanism), (rig.mechanism, lifecycle));
                        assert_eq!(rig.registry.bind(DEVICE).unwrap().identity().mechanism(), next.identity());
                    }
                });
            }
            for block in blocks {
                assert_eq!(binding.release(block).is_err(), lose);
            }
        });
        refused(rig.registry.select(rig.mechanism), (rig.mechanism, lifecycle));
        take_away(&rig.registry, next);
    }
}
