//! R48, R49, R50, R149: a mechanism's last pins, of each kind, let go at once: whoever comes last destroys, once and in order.

use super::{rig::*, support::race, witness::*};
use liveslot_loom::{BindingRegistry, MemoryBinding, PreparedAllocationRelease, QuarantineReason};
use std::sync::Arc;

/// Uses a pin, and lets go of it.
type Pin = Box<dyn FnOnce() + Send>;

/// A mechanism that only `pins` hold, and the registry if that is still there.
struct Pinned {
    registry: Option<Held<BindingRegistry>>,
    pins: Vec<Held<Pin>>,
    witness: Arc<Witness>,
}

impl Pinned {
    /// The registry goes in the race.
    fn registered(pins: fn(&MemoryBinding) -> Vec<Pin>) -> Self {
        let Rig { registry, binding, witness, .. } = Rig::new(1, 0, true);
        let pins = pins(&binding).into_iter().map(Held::new).collect();
        Self { registry: Some(Held::new(registry)), pins, witness }
    }

    /// The device was lost, its end was confirmed, and everything was removed: only the pins are left.
    fn removed(pins: fn(&MemoryBinding) -> Vec<Pin>) -> Self {
        let rig = Rig::new(1, 0, true);
        let pins = pins(&rig.binding).into_iter().map(Held::new).collect();
        rig.registry.invalidate_device(DEVICE, "gone").unwrap();
        rig.registry.confirm_context_terminated(rig.context).unwrap();
        rig.registry.remove(rig.mechanism).unwrap();
        rig.registry.remove_authority(rig.authority).unwrap();
        rig.registry.remove_provider_context(rig.context).unwrap();
        Self { registry: None, pins, witness: rig.witness }
    }

    fn let_go(&self, n: usize) {
        self.pins[n].take()();
    }

    fn end_registry(&self) {
        drop(self.registry.as_ref().expect("the registry goes in the race").take());
    }

    fn has_destroyed(&self, in_order: &[&str]) {
        assert_eq!(self.witness.destroyed(), in_order, "destroyed too late, too often or out of order");
    }

    /// Behind so many releases.
    fn is_over(&self, released: usize) {
        self.has_destroyed(&["allocator", "authority", "context"]);
        assert_eq!(self.witness.released(), released);
    }
}

fn request(binding: &MemoryBinding) -> PreparedAllocationRelease {
    binding.prepare_release(binding.allocate(BYTES, 1).unwrap()).unwrap()
}

fn execute(request: PreparedAllocationRelease) -> Pin {
    Box::new(|| assert!(request.execute().is_complete()))
}

/// R88: a request outlives its registry: it reaches the allocator, and then destroys it.
#[test]
fn execute_and_the_end_of_the_registry() {
    race(
        || Pinned::registered(|binding| vec![execute(request(binding))]),
        &[|pinned: &Pinned| pinned.let_go(0), Pinned::end_registry],
        |pinned, _| pinned.is_over(1),
    );
}

/// R92, R94: so does one that is quarantined, and one that is abandoned: the quarantine pins nothing.
#[test]
fn two_retained_requests_and_the_end_of_the_registry() {
    fn retained(binding: &MemoryBinding) -> Vec<Pin> {
        let [one, two] = [(); 2].map(|()| request(binding));
        vec![Box::new(|| assert!(!one.quarantine(QuarantineReason::DeviceLost).is_complete())), Box::new(|| drop(two))]
    }
    race(
        || Pinned::registered(retained),
        &[|pinned: &Pinned| pinned.let_go(0), |pinned| pinned.let_go(1), Pinned::end_registry],
        |pinned, _| pinned.is_over(0),
    );
}

/// R88: two requests settled at once, with nobody else left.
#[test]
fn execute_and_execute() {
    fn alone() -> Pinned {
        let pinned = Pinned::registered(|binding| vec![execute(request(binding)), execute(request(binding))]);
        pinned.end_registry();
        pinned
    }
    race(alone, &[|pinned: &Pinned| pinned.let_go(0), |pinned| pinned.let_go(1)], |pinned, _| pinned.is_over(2));
}

/// An owner, and a view of it: they share one record, and by it one hold.
fn owner_and_view(binding: &MemoryBinding) -> Vec<Pin> {
    let owner = binding.allocate_owning(BYTES, 1).unwrap();
    let view = owner.view(0, BYTES).unwrap();
    vec![Box::new(|| drop(owner)), Box::new(|| drop(view))]
}

/// R86: of an owner and its view the last one lets the record go, and by it the mechanism.
#[test]
fn owner_drop_and_view_drop() {
    race(
        || Pinned::removed(owner_and_view),
        &[|pinned: &Pinned| pinned.let_go(0), |pinned| pinned.let_go(1)],
        |pinned, _| pinned.is_over(0),
    );
}

/// R86: the same while the registry goes, with the owner's allocation retained first.
#[test]
fn owner_drop_and_view_drop_and_the_end_of_the_registry() {
    race(
        || Pinned::registered(owner_and_view),
        &[|pinned: &Pinned| pinned.let_go(0), |pinned| pinned.let_go(1), Pinned::end_registry],
        |pinned, _| pinned.is_over(0),
    );
}

/// An owner on what has ended, beside a binding.
#[test]
fn owner_drop_and_binding_drop() {
    fn owner_and_binding(binding: &MemoryBinding) -> Vec<Pin> {
        let (owner, binding) = (binding.allocate_owning(BYTES, 1).unwrap(), binding.clone());
        vec![Box::new(|| drop(owner)), Box::new(|| drop(binding))]
    }
    race(
        || Pinned::removed(owner_and_binding),
        &[|pinned: &Pinned| pinned.let_go(0), |pinned| pinned.let_go(1)],
        |pinned, _| pinned.is_over(0),
    );
}

/// R57: a view, cloned and dropped, beside the allocation that it was made of; both are metadata, and nothing is released.
#[test]
fn view_clone_and_drop_and_allocation_drop() {
    fn allocation_and_view(binding: &MemoryBinding) -> Vec<Pin> {
        let allocation = binding.allocate(BYTES, 1).unwrap();
        let view = allocation.view(0, BYTES).unwrap();
        vec![
            Box::new(|| drop(allocation)),
            Box::new(move || {
                let another = view.clone();
                drop(view);
                drop(another);
            }),
        ]
    }
    race(
        || Pinned::removed(allocation_and_view),
        &[|pinned: &Pinned| pinned.let_go(0), |pinned| pinned.let_go(1)],
        |pinned, _| pinned.is_over(0),
    );
}

/// R49, R81: a prefix outlives its registry, and is destroyed before the allocator that it reaches then.
#[test]
fn prefix_drop_and_the_end_of_the_registry() {
    fn prefix(binding: &MemoryBinding) -> Vec<Pin> {
        let prefix = binding.shared_mapping().unwrap().expect("offered").create_shared_prefix(BYTES).unwrap();
        vec![Box::new(|| drop(prefix))]
    }
    race(
        || Pinned::registered(prefix),
        &[|pinned: &Pinned| pinned.let_go(0), Pinned::end_registry],
        |pinned, _| pinned.has_destroyed(&["prefix", "allocator", "authority", "context"]),
    );
}
