//! Selection: one per device at most, moved by `select`, `select_if` and `deselect`, and healed by registration alone.

mod common {
    pub mod another;
    pub mod doubles;
    pub mod lifecycle;
    pub mod phases;
    pub mod refused;
    pub mod rig;
}

use common::{
    another::another,
    lifecycle::{REASON, bring},
    phases::PHASES,
    refused::refused,
    rig::{DEVICE, Rig},
};
use liveslot::{MechanismLifecycle::*, *};
use std::sync::Arc;

const OTHER: DeviceKey = DeviceKey::device(1);

/// Retires and removes what a test has registered beside the rig's own.
fn remove(rig: &Rig, mechanisms: impl IntoIterator<Item = RegisteredMechanism>) {
    for mechanism in mechanisms {
        rig.registry.retire(mechanism).unwrap();
        rig.registry.remove(mechanism).unwrap();
    }
}

/// A mechanism of the heap's on another device of the rig's registry.
fn host_on(rig: &Rig, device: DeviceKey) -> RegisteredMechanism {
    let context = rig.registry.register_provider_context(device, Arc::new(())).unwrap();
    let authority = rig.registry.register_authority(device, Arc::new(())).unwrap();
    rig.registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), device).unwrap()
}

/// R17: a selection is one registry's and one device's.
#[test]
fn selections_are_per_registry_and_device() {
    let rig = Rig::new();
    let elsewhere = BindingRegistry::new().unwrap();
    refused(elsewhere.bind(DEVICE), BindingError::NoSelectedMechanism(DEVICE));
    for device in [OTHER, DeviceKey::HOST, DeviceKey::device(u32::MAX), DeviceKey { tier: Tier::Host, index: 70 }] {
        refused(rig.registry.bind(device), BindingError::NoSelectedMechanism(device));
    }

    let there = host_on(&rig, OTHER);
    let selected = |device| rig.registry.bind(device).unwrap().identity().mechanism();
    assert_eq!((selected(DEVICE), selected(OTHER)), (rig.mechanism.identity(), there.identity()));
    rig.registry.retire(there).unwrap();
    refused(rig.registry.bind(OTHER), BindingError::NoSelectedMechanism(OTHER));
    assert_eq!(selected(DEVICE), rig.mechanism.identity());
    remove(&rig, [there]);
    rig.finish();
}

/// R17: devices of one number in different tiers are different devices, however large the number.
#[test]
fn tiers_are_apart() {
    let rig = Rig::new();
    for index in [7, 63, 64, 128, u32::MAX] {
        let devices = Tier::ALL.map(|tier| DeviceKey { tier, index });
        let mechanisms = devices.map(|device| {
            refused(rig.registry.bind(device), BindingError::NoSelectedMechanism(device));
            host_on(&rig, device)
        });
        for (device, mechanism) in devices.into_iter().zip(mechanisms) {
            assert_eq!(rig.registry.device(device).key(), device);
            assert_eq!(rig.registry.bind(device).unwrap().identity().mechanism(), mechanism.identity());
        }
        rig.registry.invalidate_device(devices[1], REASON).unwrap();
        let lifecycles = mechanisms.map(|mechanism| rig.registry.snapshot(mechanism).unwrap().lifecycle);
        assert_eq!(lifecycles, [Active, DeviceLost, Active]);
        remove(&rig, mechanisms);
    }
    rig.finish();
}

/// R18: selecting moves the device, at once and again and again; bindings stay with what they were issued from.
#[test]
fn selecting_moves_the_device_and_no_binding() {
    let rig = Rig::new();
    let other = another(&rig, "B");
    let before = rig.registry.bind(DEVICE).unwrap();
    for mechanism in [other, other, rig.mechanism, other] {
        rig.registry.select(mechanism).unwrap();
        assert_eq!(rig.registry.bind(DEVICE).unwrap().identity().mechanism(), mechanism.identity());
    }
    let after = rig.registry.bind(DEVICE).unwrap();
    rig.log.take();
    let (old, new) = (before.allocate(16, 8).unwrap(), after.allocate(32, 8).unwrap());
    before.release(old).unwrap();
    after.release(new).unwrap();
    assert_eq!(rig.log.take(), ["A allocate 16 8", "B allocate 32 8", "A release 16 8", "B release 32 8"]);
    drop((before, after));
    remove(&rig, [other]);
    rig.finish();
}

/// R19: what is not Active is not selected, and the selection stays as it was; a lost one is refused by its lifecycle, too.
#[test]
fn the_dead_are_not_selected() {
    for phase in &PHASES[1..] {
        let rig = Rig::new();
        bring(&rig, *phase);
        let refusal = (rig.mechanism, *phase);
        refused(rig.registry.select(rig.mechanism), refusal);
        refused(rig.registry.bind(DEVICE), BindingError::NoSelectedMechanism(DEVICE));

        let healthy = another(&rig, "B");
        let device = rig.registry.device(DEVICE);
        let version = device.version();
        refused(rig.registry.select(rig.mechanism), refusal);
        assert_eq!(rig.registry.bind(DEVICE).unwrap().identity().mechanism(), healthy.identity());
        assert_eq!(device.version(), version, "nothing was published");
        drop(device);
        remove(&rig, [healthy]);
        rig.finish();
    }
}

/// R22: nothing is promoted; absence lasts until a registration or an explicit choice.
#[test]
fn nothing_is_promoted() {
    let nobody = || BindingError::NoSelectedMechanism(DEVICE);
    for phase in &PHASES[1..3] {
        let rig = Rig::new();
        let idle = another(&rig, "B");
        bring(&rig, *phase);
        refused(rig.registry.bind(DEVICE), nobody());
        if *phase == Retired {
            assert_eq!(rig.registry.snapshot(idle).unwrap().lifecycle, Active);
            rig.registry.select(idle).unwrap();
            rig.registry.retire(idle).unwrap();
            refused(rig.registry.bind(DEVICE), nobody());
        }
        let fresh = another(&rig, "D");
        assert_eq!(rig.registry.bind(DEVICE).unwrap().identity().mechanism(), fresh.identity());
        remove(&rig, [idle, fresh]);
        rig.finish();
    }
}

/// R22: removing heals nothing either.
#[test]
fn removal_promotes_nothing() {
    let rig = Rig::new();
    let (idle, selected) = (another(&rig, "B"), another(&rig, "D"));
    rig.registry.select(selected).unwrap();
    remove(&rig, [selected]);
    refused(rig.registry.bind(DEVICE), BindingError::NoSelectedMechanism(DEVICE));
    remove(&rig, [idle]);
    rig.finish();
}

/// R23, R31, R40: a mechanism is bound by its token, selected or not, as long as it is Active.
#[test]
fn binding_by_token_needs_life_and_no_selection() {
    for phase in PHASES {
        let rig = Rig::new();
        let idle = another(&rig, "B");
        rig.registry.select(idle).unwrap();
        bring(&rig, phase);
        let binding = rig.registry.bind_registered(rig.mechanism);
        match phase {
            Active => assert_eq!(binding.unwrap().identity().mechanism(), rig.mechanism.identity()),
            DeviceLost => refused(binding, BindingError::DeviceLost { device: DEVICE, reason: REASON.into() }),
            Retired | Terminated => refused(binding, (rig.mechanism, phase)),
        }
        remove(&rig, [idle]);
        rig.finish();
    }
}

/// R17, R24: a device handle binds what the registry binds, also for devices that nobody has registered yet.
#[test]
fn a_device_handle_follows_its_device() {
    let rig = Rig::new();
    let device = rig.registry.device(DEVICE);
    assert_eq!(device.key(), DEVICE);
    assert_eq!(device.bind().unwrap().identity().mechanism(), rig.mechanism.identity());
    assert_eq!(device.selected(), Some(rig.mechanism.identity()));
    assert_eq!(device.registry().snapshots().unwrap(), rig.registry.snapshots().unwrap());

    let other = another(&rig, "B");
    rig.registry.select(other).unwrap();
    assert_eq!(device.clone().bind().unwrap().identity().mechanism(), other.identity());
    assert_eq!(device.selected(), Some(other.identity()));
    rig.registry.retire(other).unwrap();
    refused(device.bind(), BindingError::NoSelectedMechanism(DEVICE));
    assert_eq!(device.selected(), None);
    remove(&rig, [other]);

    for unknown in [OTHER, DeviceKey::device(1_000_000), DeviceKey { tier: Tier::Disk, index: 64 }] {
        let handle = rig.registry.device(unknown);
        assert_eq!((handle.key(), handle.selected(), handle.version()), (unknown, None, 0));
        refused(handle.bind(), BindingError::NoSelectedMechanism(unknown));
        refused(rig.registry.bind(unknown), BindingError::NoSelectedMechanism(unknown));
        let there = host_on(&rig, unknown);
        assert_eq!(handle.bind().unwrap().identity().mechanism(), there.identity());
        assert_eq!(handle.selected(), Some(there.identity()));
        remove(&rig, [there]);
    }
    drop(device);
    rig.finish();
}

/// The version moves whenever the selection does, and stays while it stays.
#[test]
fn versions_count_selections() {
    let rig = Rig::new();
    let device = rig.registry.device(DEVICE);
    let mut last = device.version();
    let mut moved = |moved: bool| {
        let now = device.version();
        assert!(if moved { now > last } else { now == last }, "{last} then {now}");
        last = now;
    };
    let other = another(&rig, "B");
    moved(false);
    rig.registry.select(other).unwrap();
    moved(true);
    // The same mechanism again is a new choice.
    rig.registry.select(other).unwrap();
    moved(true);
    rig.registry.retire(rig.mechanism).unwrap();
    moved(false);
    refused(rig.registry.select(rig.mechanism), (rig.mechanism, Retired));
    moved(false);
    rig.registry.bind(DEVICE).unwrap();
    moved(false);
    rig.registry.retire(other).unwrap();
    moved(true);
    rig.registry.retire(other).unwrap();
    rig.registry.remove(other).unwrap();
    moved(false);
    let third = another(&rig, "D");
    moved(true);
    rig.registry.invalidate_device(OTHER, REASON).unwrap();
    moved(false);
    rig.registry.invalidate_device(DEVICE, REASON).unwrap();
    moved(true);
    rig.registry.invalidate_device(DEVICE, REASON).unwrap();
    moved(false);
    remove(&rig, [third]);
    drop(device);
    rig.finish();
}

/// A conflict, field by field.
#[track_caller]
fn conflict(result: Result<u64, SelectIfError>) -> (DeviceKey, u64, Option<MechanismIdentity>) {
    match result {
        Err(SelectIfError::Conflict { device, version, selected }) => (device, version, selected),
        other => panic!("no conflict: {other:?}"),
    }
}

/// C006: a conditional selection replaces what stood at its version, and nothing that came later; it moves no binding, and ends nobody.
#[test]
fn a_conditional_selection_replaces_what_was_seen() {
    let rig = Rig::new();
    let [b, c] = ["B", "C"].map(|name| another(&rig, name));
    let device = rig.registry.device(DEVICE);
    let before = rig.registry.bind(DEVICE).unwrap();
    let version = device.version();
    let after = device.select_if(version, b).unwrap();
    assert_eq!((after, device.version(), device.selected()), (version + 1, after, Some(b.identity())));
    for expected in [version, 0, after + 1, u64::MAX] {
        assert_eq!(conflict(device.select_if(expected, c)), (DEVICE, after, Some(b.identity())));
    }
    assert_eq!((device.version(), device.selected()), (after, Some(b.identity())));
    // With what the conflict has told.
    assert_eq!(device.select_if(after, c).unwrap(), after + 1);
    // What is selected anew is another selection.
    assert_eq!(device.select_if(after + 1, c).unwrap(), after + 2);
    assert_eq!(conflict(device.clone().select_if(after + 1, b)), (DEVICE, after + 2, Some(c.identity())));

    assert_eq!(before.identity().mechanism(), rig.mechanism.identity());
    assert_eq!(device.bind().unwrap().identity().mechanism(), c.identity());
    for mechanism in [rig.mechanism, b, c] {
        assert_eq!(rig.registry.snapshot(mechanism).unwrap().lifecycle, Active);
    }
    drop((before, device));
    remove(&rig, [b, c]);
    rig.finish();
}

/// C006: the death of what was seen is a change, also where nobody else has been selected.
#[test]
fn a_conditional_selection_sees_a_retirement() {
    let rig = Rig::new();
    let b = another(&rig, "B");
    let device = rig.registry.device(DEVICE);
    let version = device.version();
    rig.registry.retire(rig.mechanism).unwrap();
    assert_eq!(conflict(device.select_if(version, b)), (DEVICE, version + 1, None));
    assert_eq!(device.select_if(version + 1, b).unwrap(), version + 2);
    assert_eq!(device.selected(), Some(b.identity()));
    drop(device);
    remove(&rig, [b]);
    rig.finish();
}

/// R19: what is wrong with the mechanism comes first, in this order: foreign, unregistered, another device's, not Active; the version comes
/// last. Nothing is changed.
#[test]
fn a_conditional_selection_is_refused_in_order() {
    let rig = Rig::new();
    let foreign = Rig::new();
    let [there, there_dead, gone_there] = [(); 3].map(|()| host_on(&rig, OTHER));
    let (dead, gone) = (another(&rig, "B"), another(&rig, "D"));
    for mechanism in [dead, there_dead] {
        rig.registry.retire(mechanism).unwrap();
    }
    remove(&rig, [gone, gone_there]);
    let device = rig.registry.device(DEVICE);
    let other = rig.registry.device(OTHER);
    let selections = || [&device, &other].map(|device| (device.version(), device.selected()));
    let before = selections();
    // Also versions at which the other device stands.
    for version in [device.version(), other.version(), 99] {
        let binding = |mechanism| match device.select_if(version, mechanism) {
            Err(SelectIfError::Binding(error)) => Err(error),
            other => Ok(other),
        };
        refused(binding(foreign.mechanism), BindingError::ForeignRegistry { kind: "mechanism" });
        for gone in [gone, gone_there] {
            refused(binding(gone), BindingError::UnregisteredMechanism(gone.identity()));
        }
        for there in [there, there_dead] {
            match device.select_if(version, there) {
                Err(SelectIfError::DeviceMismatch { mechanism, expected, actual }) => {
                    assert_eq!((mechanism, expected, actual), (there.identity(), DEVICE, OTHER));
                }
                other => panic!("no mismatch: {other:?}"),
            }
        }
        refused(binding(dead), (dead, Retired));
    }
    assert_eq!(selections(), before);
    for phase in &PHASES[2..] {
        bring(&foreign, *phase);
        let device = foreign.registry.device(DEVICE);
        match device.select_if(device.version(), foreign.mechanism) {
            Err(SelectIfError::Binding(error)) => refused(Err::<(), _>(error), (foreign.mechanism, *phase)),
            other => panic!("not refused: {other:?}"),
        }
        assert_eq!(device.selected(), None);
    }
    drop((device, other));
    foreign.finish();
    remove(&rig, [there, there_dead, dead]);
    rig.finish();
}

/// The texts name what was refused and the way out; those of a `BindingError` are its own.
#[test]
fn a_refused_conditional_selection_says_why() {
    let rig = Rig::new();
    let device = rig.registry.device(DEVICE);
    let there = host_on(&rig, OTHER);
    let text = |device: &DeviceHandle, mechanism| {
        let error = device.select_if(99, mechanism).unwrap_err();
        assert!(std::error::Error::source(&error).is_none());
        error.to_string()
    };
    let identity = rig.mechanism.identity();
    let expected = format!("the selection of device 0 has changed: it is at version 1, with {identity:?} selected; decide anew on that");
    assert_eq!(text(&device, rig.mechanism), expected);
    let expected = format!("{:?} is on device 1, and cannot be selected on device 0; use a mechanism of device 0", there.identity());
    assert_eq!(text(&device, there), expected);
    assert_eq!(device.deselect(), Some(identity));
    let expected = "the selection of device 0 has changed: it is at version 2, with nothing selected; decide anew on that";
    assert_eq!(text(&device, rig.mechanism), expected);
    rig.registry.retire(rig.mechanism).unwrap();
    assert_eq!(text(&device, rig.mechanism), rig.registry.select(rig.mechanism).unwrap_err().to_string());
    drop(device);
    remove(&rig, [there]);
    rig.finish();
}

/// C002, R13, R17, R22: deselecting leaves one device without selection, and the mechanism as it was; nothing is promoted, a registration
/// or an explicit choice takes the place.
#[test]
fn deselecting_leaves_the_mechanism_as_it_was() {
    let rig = Rig::new();
    let (idle, there) = (another(&rig, "B"), host_on(&rig, OTHER));
    let device = rig.registry.device(DEVICE);
    let held = rig.registry.bind(DEVICE).unwrap();
    let version = device.version();
    assert_eq!(rig.registry.deselect(DEVICE), Some(rig.mechanism.identity()));
    assert_eq!((device.selected(), device.version()), (None, version + 1));
    refused(rig.registry.bind(DEVICE), BindingError::NoSelectedMechanism(DEVICE));
    for nothing in [rig.registry.deselect(DEVICE), device.deselect(), rig.registry.deselect(DeviceKey::device(70))] {
        assert_eq!(nothing, None);
    }
    assert_eq!(device.version(), version + 1, "nothing was there to be changed");
    assert_eq!(rig.registry.bind(OTHER).unwrap().identity().mechanism(), there.identity());

    for mechanism in [rig.mechanism, idle] {
        assert_eq!(rig.registry.snapshot(mechanism).unwrap().lifecycle, Active);
    }
    let allocation = held.allocate(16, 8).unwrap();
    rig.registry.bind_registered(rig.mechanism).unwrap().clone().allocate_owning(8, 8).unwrap().release_now().unwrap();
    held.release(allocation).unwrap();

    let fresh = another(&rig, "D");
    assert_eq!(device.selected(), Some(fresh.identity()));
    assert_eq!(device.deselect(), Some(fresh.identity()));
    rig.registry.select(rig.mechanism).unwrap();
    assert_eq!(device.selected(), Some(rig.mechanism.identity()));
    assert_eq!(device.deselect(), Some(rig.mechanism.identity()));
    assert_eq!(device.select_if(device.version(), idle).unwrap(), device.version());
    rig.registry.retire(idle).unwrap();
    assert_eq!(device.deselect(), None, "what was retired is not there to be deselected");
    drop((device, held));
    remove(&rig, [idle, there, fresh]);
    rig.finish();
}
