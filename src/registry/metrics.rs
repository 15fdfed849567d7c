//! Gauges of mechanisms, for a `metrics` recorder.
//!
//! The facade has no call that takes a series back, and recorders keep what they have seen. So whoever records remembers which mechanisms
//! it has recorded, in a value of the caller's: those that are not registered any more it sets to 0 once, and forgets. Nothing of this is
//! in the registry or in its mechanisms.
//!
//! A recorder is the user's code. Everything is copied first, under one epoch guard, and recorded after that guard has gone. What is
//! remembered is changed before the first gauge of a mechanism is set, and after the last is set to 0: a recorder that panics in between
//! leaves a value that knows of every series that may stand.

use super::{BindingRegistry, report::Entry};
use crate::{callback, contract::DeviceKey, mechanism::told::STEPS, primitives::MechanismLifecycle, sync::epoch};
use metrics::{Unit, describe_counter, describe_gauge, gauge};
use std::collections::BTreeMap;

/// A gauge of each mechanism.
struct Field {
    name: &'static str,
    unit: Unit,
    description: &'static str,
    value: fn(&Entry) -> f64,
}

macro_rules! field {
    ($name:literal, $unit:ident, $description:literal, $value:expr) => {
        Field { name: concat!("liveslot_mechanism_", $name), unit: Unit::$unit, description: $description, value: $value }
    };
}

const FIELDS: [Field; 8] = [
    field!("lifecycle", Count, "1 Active, 2 Retired, 3 DeviceLost, 4 Terminated; 0 once it is not registered", |entry| {
        match entry.snapshot.lifecycle {
            MechanismLifecycle::Active => 1.0,
            MechanismLifecycle::Retired => 2.0,
            MechanismLifecycle::DeviceLost => 3.0,
            MechanismLifecycle::Terminated => 4.0,
        }
    }),
    field!("selected", Count, "1 while it is its device's selection", |entry| u8::from(entry.selected).into()),
    field!("operations", Count, "Calls in progress and queued releases", |entry| entry.snapshot.active_operations as f64),
    field!("live", Count, "Live allocations", |entry| entry.snapshot.live_allocations as f64),
    field!("queued", Count, "Prepared releases", |entry| entry.snapshot.queued_releases as f64),
    field!("quarantined", Count, "Quarantined allocations", |entry| entry.snapshot.quarantined_allocations as f64),
    field!("quarantined_bytes", Bytes, "What quarantined allocations still hold", |entry| entry.snapshot.quarantined_bytes as f64),
    field!("handles", Count, "Bindings, allocations, views and whatever else keeps the allocator", |entry| entry.handles as f64),
];

/// Describes everything that this library counts and records to the recorder that is installed now: names, units, texts.
///
/// To be called once, after the recorder was installed; without it the metrics have names alone.
///
/// # Panics
///
/// If the recorder does.
pub fn describe_metrics() {
    callback::run(|| {
        describe_counter!(STEPS[0], Unit::Count, STEPS[1]);
        for Field { name, unit, description, .. } in FIELDS {
            describe_gauge!(name, unit, description);
        }
    });
}

/// Records the state of a registry's mechanisms as gauges, when it is asked to: once before each export, say.
///
/// | gauge | value |
/// | --- | --- |
/// | `liveslot_mechanism_lifecycle` | 1 Active, 2 Retired, 3 DeviceLost, 4 Terminated |
/// | `liveslot_mechanism_selected` | 1 if it is its device's selection, otherwise 0 |
/// | `liveslot_mechanism_operations` | [`active_operations`](crate::MechanismSnapshot::active_operations) |
/// | `liveslot_mechanism_live` | [`live_allocations`](crate::MechanismSnapshot::live_allocations) |
/// | `liveslot_mechanism_queued` | [`queued_releases`](crate::MechanismSnapshot::queued_releases) |
/// | `liveslot_mechanism_quarantined` | [`quarantined_allocations`](crate::MechanismSnapshot::quarantined_allocations) |
/// | `liveslot_mechanism_quarantined_bytes` | [`quarantined_bytes`](crate::MechanismSnapshot::quarantined_bytes) |
/// | `liveslot_mechanism_handles` | bindings, allocations, views, and whatever else keeps the allocator |
///
/// Labels are `device`, as the device displays, and `mechanism`, the number in the `Debug` text of the identity. Values are `f64`, exact
/// up to 2⁵³.
///
/// # Mechanisms that go
///
/// The facade cannot take a gauge back. This value remembers which mechanisms it has recorded; the next [`record`](Self::record) after one
/// was removed sets its gauges to 0, once, and never touches them again. What is 0 then stays with the recorder, as 8 series per mechanism,
/// and numbers are never used again: who registers mechanisms all the time needs an exporter that drops what has been idle for some time.
///
/// So keep one value for one registry: another registry's mechanisms would be taken for removed.
///
/// ```
/// use liveslot::{BindingRegistry, DeviceKey, HostAllocator, MechanismGauges, describe_metrics};
/// use std::sync::Arc;
///
/// describe_metrics(); // once, behind the installation of a recorder
/// let registry = BindingRegistry::new()?;
/// let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
/// let authority = registry.register_authority(DeviceKey::HOST, Arc::new(()))?;
/// let mechanism = registry.register_allocator(context, authority, Arc::new(HostAllocator))?;
///
/// let mut gauges = MechanismGauges::default();
/// gauges.record(&registry); // liveslot_mechanism_selected{device="host 0",mechanism="3"} 1, and so on
/// registry.retire(mechanism)?;
/// registry.remove(mechanism)?;
/// gauges.record(&registry); // all of its gauges are 0
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct MechanismGauges {
    /// By the mechanism's number.
    recorded: BTreeMap<u64, DeviceKey>,
}

impl MechanismGauges {
    /// Sets the gauges of all that is registered with `registry`, and to 0 those of what this value has recorded before and is
    /// registered no more. Values are those of [`snapshot`](BindingRegistry::snapshot) and of the registry's `Display`; mechanisms come by
    /// device and then in order of registration, and last what has gone, by number.
    ///
    /// Nothing is held while the recorder runs, which may call everything.
    ///
    /// # Panics
    ///
    /// If the recorder does. Some gauges are not set then; the next call sets them.
    ///
    /// # Progress
    ///
    /// Lock-free, the recorder excepted: a walk over all devices, two loads per stripe, and per mechanism 8 calls of the recorder.
    pub fn record(&mut self, registry: &BindingRegistry) {
        let guard = epoch::pin();
        let entries = registry.entries(&guard);
        drop(guard);
        let mut gone = self.recorded.clone();
        for entry in &entries {
            let (number, device) = (entry.snapshot.identity.number(), entry.snapshot.device);
            gone.remove(&number);
            self.recorded.insert(number, device);
            set(number, device, |field| (field.value)(entry));
        }
        self.forget(gone);
    }

    /// Sets all gauges that this value has recorded to 0, and forgets them: the registry is at its end.
    ///
    /// # Panics
    ///
    /// If the recorder does. Another call does what is left.
    ///
    /// # Progress
    ///
    /// As the recorder: 8 calls of it per mechanism that was recorded.
    pub fn clear(&mut self) {
        self.forget(self.recorded.clone());
    }

    fn forget(&mut self, gone: BTreeMap<u64, DeviceKey>) {
        for (number, device) in gone {
            set(number, device, |_| 0.0);
            self.recorded.remove(&number);
        }
    }
}

fn set(mechanism: u64, device: DeviceKey, value: impl Fn(&Field) -> f64) {
    let labels = [("device", device.to_string()), ("mechanism", mechanism.to_string())];
    for field in &FIELDS {
        callback::run(|| gauge!(target: "liveslot", field.name, &labels).set(value(field)));
    }
}
