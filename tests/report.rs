//! The registry as text: exactly what is written, in which order, and that writing calls nobody.

mod common {
    pub mod another;
    pub mod api;
    pub mod arm;
    pub mod doubles;
    pub mod lifecycle;
    pub mod rig;
    pub mod watchdog;
}

use common::{
    another::another,
    api::Reach,
    arm::arm,
    lifecycle::bring,
    rig::{DEVICE, Rig},
    watchdog::in_time,
};
use liveslot::*;
use std::{
    fmt::{self, Debug, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

/// The number in the text of an identity.
fn number(identity: impl Debug) -> u64 {
    let text = format!("{identity:?}");
    text.split(['(', ')']).nth(1).expect("a number in brackets").parse().expect("a number")
}

const HEAD: &str = "device  mechanism  selected  lifecycle  operations  live  queued  quarantined  bytes";

/// A registry in which nothing is registered: the names of the columns, and a graph without nodes.
#[test]
fn an_empty_registry() {
    let registry = BindingRegistry::new().unwrap();
    assert_eq!(registry.to_string(), HEAD);
    assert_eq!(format!("{registry:>200.3}"), HEAD);
    assert_eq!(registry.to_dot(), "digraph registry {\n  rankdir=LR;\n}\n");
}

/// A device that was asked for is in the picture, and no row of the table.
#[test]
fn a_device_without_mechanisms() {
    let registry = BindingRegistry::new().unwrap();
    let _ = (registry.device(DeviceKey::device(70)), registry.device(DeviceKey::HOST), registry.device(DeviceKey::device(7)));
    assert_eq!(registry.to_string(), HEAD);
    let nodes = ["device 7", "device 70", "host 0"].map(|device| format!("  \"{device}\" [shape=house];\n"));
    assert_eq!(registry.to_dot(), format!("digraph registry {{\n  rankdir=LR;\n{}}}\n", nodes.concat()));
}

/// Each count in its column: one operation in progress, two live, one queued, one quarantined.
#[test]
fn the_counts_of_a_row() {
    let rig = Rig::new();
    let retired = another(&rig, "B");
    rig.registry.retire(retired).unwrap();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let live = [binding.allocate(8, 8).unwrap(), binding.allocate(16, 8).unwrap()];
    let queued = binding.prepare_release(binding.allocate(8, 8).unwrap()).unwrap();
    let stuck = binding.allocate(123_456, 8).unwrap();
    arm(&rig.script.release, || AllocationReleaseOutcome::failed("stuck"));
    drop(binding.release(stuck).unwrap_err());
    rig.log.take();

    let view = live[0].view(0, 8).unwrap();
    let text = binding.with_view(&view, |_| rig.registry.to_string()).unwrap();
    let (a, b) = (number(rig.mechanism.identity()), number(retired.identity()));
    let expected = format!(
        "device    mechanism  selected  lifecycle  operations  live  queued  quarantined   bytes\n\
         device 0  {a:>9}  yes       Active              2     2       1            1  123456\n\
         device 0  {b:>9}  no        Retired             0     0       0            0       0"
    );
    assert_eq!(text, expected);
    assert_eq!(rig.log.take(), [""; 0], "R105: nobody was called");

    queued.execute();
    bring(&rig, MechanismLifecycle::DeviceLost);
    let expected = format!(
        "device    mechanism  selected  lifecycle   operations  live  queued  quarantined   bytes\n\
         device 0  {a:>9}  no        DeviceLost           0     2       0            1  123456\n\
         device 0  {b:>9}  no        DeviceLost           0     0       0            0       0"
    );
    assert_eq!(rig.registry.to_string(), expected);
    bring(&rig, MechanismLifecycle::Terminated);
    let expected = format!(
        "device    mechanism  selected  lifecycle   operations  live  queued  quarantined  bytes\n\
         device 0  {a:>9}  no        Terminated           0     0       0            0      0\n\
         device 0  {b:>9}  no        Terminated           0     0       0            0      0"
    );
    assert_eq!(rig.registry.to_string(), expected);
    rig.registry.remove(retired).unwrap();
    drop((live, view, binding));
    rig.finish();
}

/// Registers a heap on `device`.
fn register(registry: &BindingRegistry, device: DeviceKey) -> RegisteredMechanism {
    let context = registry.register_provider_context(device, Arc::new(())).unwrap();
    let authority = registry.register_authority(device, Arc::new(())).unwrap();
    registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), device).unwrap()
}

/// By tier, number and order of registration: whichever place of a table a mechanism has, and wherever its device is kept.
#[test]
fn the_order_of_rows() {
    let registry = BindingRegistry::new().unwrap();
    let disk = register(&registry, DeviceKey { tier: Tier::Disk, index: 0 });
    let host = register(&registry, DeviceKey::HOST);
    let far = register(&registry, DeviceKey::device(1_000));
    let third = register(&registry, DeviceKey::device(3));
    let second = register(&registry, DeviceKey::device(2));
    let passing = register(&registry, DeviceKey::device(2));
    let beside = register(&registry, DeviceKey::device(2));
    registry.retire(passing).unwrap();
    registry.remove(passing).unwrap();
    // In the place of the one that has gone, in front of the other.
    let last = register(&registry, DeviceKey::device(2));
    registry.select(beside).unwrap();

    let rows = [
        ("device 2   ", second, "no "),
        ("device 2   ", beside, "yes"),
        ("device 2   ", last, "no "),
        ("device 3   ", third, "yes"),
        ("device 1000", far, "yes"),
        ("host 0     ", host, "yes"),
        ("disk 0     ", disk, "yes"),
    ];
    let rows = rows.map(|(device, mechanism, selected)| {
        let number = number(mechanism.identity());
        format!("\n{device}  {number:>9}  {selected}       Active              0     0       0            0      0")
    });
    let head = "device       mechanism  selected  lifecycle  operations  live  queued  quarantined  bytes";
    assert_eq!(registry.to_string(), head.to_owned() + &rows.concat());
}

/// Every node and every edge: an authority for two mechanisms, a context that nobody uses, handles of each kind.
#[test]
fn the_picture() {
    let rig = Rig::new();
    let beside = another(&rig, "B");
    let spare = rig.registry.register_provider_context(DeviceKey::HOST, Arc::new(())).unwrap();
    rig.registry.retire(beside).unwrap();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let allocation = binding.allocate(8, 8).unwrap();
    let handles = [binding.clone(), binding.clone()];
    rig.log.take();
    let mut text = rig.registry.to_dot();
    assert_eq!(rig.log.take(), [""; 0], "R105: nobody was called");

    let (a, b) = (number(rig.mechanism.identity()), number(beside.identity()));
    let (c, spare_number, q) = (number(rig.context.identity()), number(spare.identity()), number(rig.authority.identity()));
    let expected = format!(
        r#"digraph registry {{
  rankdir=LR;
  "device 0" [shape=house];
  "context {c}" [shape=ellipse, label="context {c}\ndevice 0"];
  "context {spare_number}" [shape=ellipse, label="context {spare_number}\nhost 0"];
  "authority {q}" [shape=ellipse, label="authority {q}\ndevice 0"];
  "mechanism {a}" [shape=box, label="mechanism {a}\nActive\n0 operations, 1 live, 0 queued\n0 quarantined, 0 bytes"];
  "mechanism {a}" -> "context {c}";
  "mechanism {a}" -> "authority {q}";
  "device 0" -> "mechanism {a}" [label=selected];
  "handles {a}" [shape=plaintext, label="4 handles"];
  "handles {a}" -> "mechanism {a}";
  "mechanism {b}" [shape=box, label="mechanism {b}\nRetired\n0 operations, 0 live, 0 queued\n0 quarantined, 0 bytes"];
  "mechanism {b}" -> "context {c}";
  "mechanism {b}" -> "authority {q}";
}}
"#
    );
    if cfg!(feature = "holders") {
        // The bindings, which have a test of their own.
        text = text.lines().filter(|line| !line.contains("\"binding ")).map(|line| line.to_owned() + "\n").collect();
    }
    assert_eq!(text, expected);
    drop(handles);
    binding.release(allocation).unwrap();
    drop(binding);
    assert!(!rig.registry.to_dot().contains("handles"));
    rig.registry.remove(beside).unwrap();
    rig.registry.remove_provider_context(spare).unwrap();
    rig.finish();
}

/// What a user's writer does when it is written to.
struct Writer<F>(Vec<String>, F);

impl<F: FnMut() -> fmt::Result> Write for Writer<F> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.push(text.to_owned());
        (self.1)()
    }
}

/// R113: the writer is called once, and may call everything, also the end of what is being written.
#[test]
fn the_writer_may_call_everything() {
    in_time(|| {
        let rig = Rig::new();
        let reach = Reach::of(&rig);
        let registry = rig.registry.clone();
        let mut writer = Writer(Vec::new(), || {
            reach.clone().whole_api();
            registry.retire(rig.mechanism).unwrap();
            registry.remove(rig.mechanism).unwrap();
            Ok(())
        });
        write!(writer, "{}", rig.registry).unwrap();
        assert_eq!(writer.0.len(), 1);
        assert!(writer.0[0].ends_with("  yes       Active              0     0       0            0      0"));
        assert_eq!(rig.registry.to_string(), HEAD);
    });
}

/// R113: what the writer answers is what the caller gets, and its panic passes through.
#[test]
fn a_writer_that_fails() {
    let rig = Rig::new();
    assert_eq!(write!(Writer(Vec::new(), || Err(fmt::Error)), "{}", rig.registry), Err(fmt::Error));
    let panic = catch_unwind(AssertUnwindSafe(|| write!(Writer(Vec::new(), || panic!("full")), "{}", rig.registry)));
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"full"));
    rig.finish();
}
