//! Feature `serde`: snapshots and reports as JSON, field by field. A rename here breaks whoever reads what was exported.

mod common {
    pub mod arm;
    pub mod doubles;
    pub mod rig;
}

use common::{
    arm::arm,
    rig::{DEVICE, Rig},
};
use liveslot::{release::BoundedQueue, *};
use serde_json::{Value, json, to_value};
use std::{fmt::Debug, panic::Location, sync::Arc, time::Duration};

/// The only number in the text of an identity.
fn number(identity: impl Debug) -> u64 {
    let text = format!("{identity:?}");
    text.split(['(', ')']).nth(1).expect("a number in brackets").parse().expect("a number")
}

/// A number each, the one in its text.
#[test]
fn identities() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let allocation = binding.allocate(8, 8).unwrap();
    let identity = allocation.identity();
    let expected = json!({
        "binding": {
            "id": number(identity.binding().id()),
            "generation": number(identity.binding().generation()),
            "device": { "tier": "Device", "index": 0 },
            "mechanism": number(rig.mechanism.identity()),
            "provider_context": number(rig.context.identity()),
            "authority": number(rig.authority.identity()),
        },
        "generation": number(identity.generation()),
    });
    assert_eq!(to_value(identity).unwrap(), expected);
    assert_eq!(to_value(binding.identity()).unwrap(), expected["binding"]);
    binding.release(allocation).unwrap();
    drop(binding);
    rig.finish();
}

/// Every field under its own name, and the quarantine beside it.
#[test]
fn a_mechanism() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let live = binding.allocate(8, 8).unwrap();
    let queued = binding.prepare_release(binding.allocate(8, 8).unwrap()).unwrap();
    let stuck = binding.allocate(24, 16).unwrap();
    let (identity, address) = (stuck.identity(), stuck.as_ptr().addr());
    arm(&rig.script.release, || AllocationReleaseOutcome::failed("stuck"));
    drop(binding.release(stuck).unwrap_err());

    let expected = json!({
        "identity": number(rig.mechanism.identity()),
        "device": { "tier": "Device", "index": 0 },
        "provider_context": number(rig.context.identity()),
        "authority": number(rig.authority.identity()),
        "coherence": "SelfContained",
        "lifecycle": "Active",
        "live_allocations": 1,
        "active_operations": 1,
        "queued_releases": 1,
        "quarantined_allocations": 1,
        "quarantined_bytes": 24,
    });
    assert_eq!(to_value(rig.registry.snapshots().unwrap()).unwrap(), json!([expected]));
    let expected = json!({
        "identity": to_value(identity).unwrap(),
        "address": address,
        "bytes": 24,
        "align": 16,
        "state": "Quarantined",
        "reason": "AllocatorRefused",
        "retained_bytes": 24,
    });
    assert_eq!(to_value(rig.registry.quarantined(rig.mechanism).unwrap()).unwrap(), json!([expected]));

    queued.execute();
    binding.release(live).unwrap();
    drop(binding);
    rig.registry.invalidate_device(DEVICE, "lost").unwrap();
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    rig.finish();
}

/// What keeps a mechanism from having drained.
#[test]
fn a_drain() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let allocation = binding.allocate(8, 8).unwrap();
    let report = rig.registry.retire_and_drain(rig.mechanism).unwrap().report();
    let [snapshot, holders] = [to_value(report.snapshot), to_value(&report.holders)].map(Result::unwrap);
    assert_eq!(to_value(&report).unwrap(), json!({ "snapshot": snapshot, "holders": holders }));
    assert_eq!(to_value(&report).unwrap()["snapshot"]["live_allocations"], 1);
    binding.release(allocation).unwrap();
    drop(binding);
    rig.finish();
}

/// A budget and what a wrapper has of it.
#[test]
fn a_budget() {
    let budget = Arc::new(Budget::new(100));
    let allocator = BudgetedAllocator::new(HostAllocator, Arc::clone(&budget), MemoryRole::Weights);
    let allocation = allocator.allocate(64, 8).unwrap();
    let expected = json!({ "limit": 100, "used": 64, "quarantined": 0, "free": 36, "peak": 64 });
    assert_eq!(to_value(budget.snapshot()).unwrap(), expected);
    assert_eq!(to_value(allocator.charged()).unwrap(), json!({ "bytes": 64, "count": 1 }));
    // SAFETY: allocated above with these values, and released once.
    unsafe { allocator.deallocate(allocation, 64, 8) };
}

/// What became of the releases of a queue.
#[test]
fn a_drained_queue() {
    let rig = Rig::new();
    let queue = BoundedQueue::new(8);
    rig.registry.bind(DEVICE).unwrap().allocate_owning(48, 8).unwrap().release_deferred(&queue).unwrap();
    let expected = json!({
        "released": 1,
        "released_bytes": 48,
        "unmapped_bytes": 0,
        "quarantined": 0,
        "retained_bytes": 0,
        "not_ready": 0,
    });
    assert_eq!(to_value(queue.drain(8)).unwrap(), expected);
    rig.finish();
}

/// What became of a quarantine that was settled.
#[test]
fn a_settled_quarantine() {
    let retried = RetriedQuarantine { released: 1, released_bytes: 8, unmapped_bytes: 4, kept: 2, skipped: 3 };
    let expected = json!({ "released": 1, "released_bytes": 8, "unmapped_bytes": 4, "kept": 2, "skipped": 3 });
    assert_eq!(to_value(retried).unwrap(), expected);
    let abandoned = AbandonedQuarantine { allocations: Vec::new(), missed: 2 };
    assert_eq!(to_value(abandoned).unwrap(), json!({ "allocations": [], "missed": 2 }));
}

/// Each outcome, and each value that stands by itself.
#[test]
fn outcomes_and_values() {
    let accounting = ReleaseAccounting::new(10, 4);
    let residual = ResidualOwnership {
        state: AllocationReleaseState::PartiallyUnmapped,
        reason: QuarantineReason::EnqueueRejected(DeferredEnqueueRejection::Full),
        retained_bytes: 6,
        address: 4096,
        align: 8,
    };
    let accounted = json!({ "allocation_bytes": 10, "unmapped_bytes": 4 });
    let kept = json!({
        "state": "PartiallyUnmapped",
        "reason": { "EnqueueRejected": "Full" },
        "retained_bytes": 6,
        "address": 4096,
        "align": 8,
    });
    let outcomes: [(AllocationReleaseOutcome, Value); 3] = [
        (AllocationReleaseOutcome::complete(accounting), json!({ "Complete": { "accounting": accounted } })),
        (
            AllocationReleaseOutcome::quarantined(accounting, residual),
            json!({ "Quarantined": { "accounting": accounted, "residual": kept } }),
        ),
        (AllocationReleaseOutcome::failed("stuck"), json!({ "Failed": { "failure": { "reason": "stuck" } } })),
    ];
    for (outcome, expected) in outcomes {
        assert_eq!(to_value(outcome).unwrap(), expected);
    }
    let text = |lifecycle: MechanismLifecycle| to_value(lifecycle).unwrap();
    use MechanismLifecycle::*;
    assert_eq!([Active, Retired, DeviceLost, Terminated].map(text), ["Active", "Retired", "DeviceLost", "Terminated"]);
    assert_eq!(to_value(Tier::ALL).unwrap(), json!(["Device", "Host", "Disk"]));
    assert_eq!(to_value(MechanismCoherence::TrustedComposite).unwrap(), "TrustedComposite");
}

/// A binding as it is listed: where it was made as file, line and column.
#[test]
fn a_holder() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap().identity().id();
    let (place, line) = (Location::caller(), line!());
    let holder = Holder { binding, label: Some("decoder"), place, age: Duration::from_millis(1_500), handles: 2, allocations: 1 };
    let expected = json!({
        "binding": number(binding),
        "label": "decoder",
        "place": { "file": file!(), "line": line, "column": place.column() },
        "age": { "secs": 1, "nanos": 500_000_000 },
        "handles": 2,
        "allocations": 1,
    });
    assert_eq!(to_value(holder).unwrap(), expected);
    let expected = Value::Null;
    assert_eq!(to_value(Holder { label: None, ..holder }).unwrap()["label"], expected);
    rig.finish();
}

/// What a shutdown has left.
#[test]
fn a_shutdown() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let live = binding.allocate(8, 8).unwrap();
    let report = rig.registry.shutdown(Duration::ZERO).unwrap();
    let expected = json!({
        "removed": 0,
        "left": [to_value(&report.left[0]).unwrap()],
        "held": [],
        "authorities": [number(rig.authority.identity())],
        "provider_contexts": [number(rig.context.identity())],
        "panicked": 0,
    });
    assert_eq!(to_value(&report).unwrap(), expected);
    assert_eq!(expected["left"][0]["snapshot"], to_value(rig.registry.snapshot(rig.mechanism).unwrap()).unwrap());
    binding.release(live).unwrap();
    let report = rig.registry.shutdown(Duration::ZERO).unwrap();
    let expected = json!({
        "removed": 1,
        "left": [],
        "held": [to_value(&report.held[0]).unwrap()],
        "authorities": [],
        "provider_contexts": [],
        "panicked": 0,
    });
    assert_eq!(to_value(&report).unwrap(), expected);
    assert_eq!((&expected["held"][0]["mechanism"], &expected["held"][0]["handles"]), (&json!(number(rig.mechanism.identity())), &json!(1)));
}
