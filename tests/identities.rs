//! Identities: issued once, plain values, texts that tell them apart. That they run out with an error is tested with a limit, beside
//! the gates.

mod common {
    pub mod doubles;
    pub mod rig;
}

use common::rig::{DEVICE, Rig};
use liveslot::*;
use std::{
    collections::HashSet,
    fmt::Debug,
    hash::Hash,
    ptr::NonNull,
    sync::{Arc, Mutex},
    thread,
};

/// Every identity that one round through the API issues.
#[derive(PartialEq, Eq, Hash, Debug, Clone, Copy)]
enum Issued {
    Context(ProviderContextIdentity),
    Authority(AuthorityIdentity),
    Mechanism(MechanismIdentity),
    ContextToken(RegisteredProviderContext),
    AuthorityToken(RegisteredAuthority),
    MechanismToken(RegisteredMechanism),
    Id(BindingId),
    Generation(BindingGeneration),
    Binding(BindingIdentity),
    Allocation(AllocationIdentity),
    AllocationGeneration(AllocationGeneration),
}

/// Registers, binds twice, allocates twice through the second binding, and takes everything apart again.
fn round(registry: &BindingRegistry) -> Vec<Issued> {
    let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(())).unwrap();
    let authority = registry.register_authority(DeviceKey::HOST, Arc::new(())).unwrap();
    let mechanism = registry.register_allocator(context, authority, Arc::new(HostAllocator)).unwrap();
    let mut issued = vec![
        Issued::Context(context.identity()),
        Issued::Authority(authority.identity()),
        Issued::Mechanism(mechanism.identity()),
        Issued::ContextToken(context),
        Issued::AuthorityToken(authority),
        Issued::MechanismToken(mechanism),
    ];
    for _ in 0..2 {
        let binding = registry.bind_registered(mechanism).unwrap();
        let identity = binding.identity();
        issued.extend([Issued::Id(identity.id()), Issued::Generation(identity.generation()), Issued::Binding(identity)]);
        for _ in 0..2 {
            let allocation = binding.allocate(8, 8).unwrap();
            issued.extend([Issued::Allocation(allocation.identity()), Issued::AllocationGeneration(allocation.identity().generation())]);
            binding.release(allocation).unwrap();
        }
    }
    registry.retire(mechanism).unwrap();
    registry.remove(mechanism).unwrap();
    registry.remove_authority(authority).unwrap();
    registry.remove_provider_context(context).unwrap();
    issued
}

/// R1: what one registry issues is nothing that another one issued.
#[test]
fn registries_are_apart() {
    let (one, other) = (BindingRegistry::new().unwrap(), BindingRegistry::new().unwrap());
    let issued: Vec<_> = [&one, &other].into_iter().flat_map(round).collect();
    assert_eq!(issued.len(), 2 * (6 + 2 * (3 + 2 * 2)));
    assert_eq!(issued.iter().collect::<HashSet<_>>().len(), issued.len());
}

/// R1: a clone of a registry is that registry.
#[test]
fn clones_share_everything() {
    let rig = Rig::new();
    let clone = rig.registry.clone();
    assert_eq!(clone.bind(DEVICE).unwrap().identity().mechanism(), rig.mechanism.identity());
    clone.retire(rig.mechanism).unwrap();
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().lifecycle, MechanismLifecycle::Retired);
    assert_eq!(clone.snapshots().unwrap(), rig.registry.snapshots().unwrap());
    drop(clone);
    rig.finish();
}

/// R2: nothing is issued twice, from whichever thread, removed things included.
#[test]
fn nothing_is_issued_twice() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 250;
    let registry = BindingRegistry::new().unwrap();
    let issued = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mine: Vec<_> = (0..ROUNDS).flat_map(|_| round(&registry)).collect();
                issued.lock().unwrap().extend(mine);
            });
        }
    });
    let issued = issued.into_inner().unwrap();
    assert_eq!(issued.len(), THREADS * ROUNDS * (6 + 2 * (3 + 2 * 2)));
    assert_eq!(issued.iter().collect::<HashSet<_>>().len(), issued.len());
}

/// R3: a binding names what it was issued from; each one has an id and a generation of its own, which clones keep.
#[test]
fn a_binding_names_its_origin() {
    let rig = Rig::new();
    let bindings =
        [rig.registry.bind(DEVICE).unwrap(), rig.registry.bind(DEVICE).unwrap(), rig.registry.bind_registered(rig.mechanism).unwrap()];
    for binding in &bindings {
        let identity = binding.identity();
        assert_eq!(identity.device(), DEVICE);
        assert_eq!(identity.mechanism(), rig.mechanism.identity());
        assert_eq!(identity.provider_context(), rig.context.identity());
        assert_eq!(identity.authority(), rig.authority.identity());
        assert_eq!(binding.clone().identity(), identity);
    }
    assert_eq!(bindings.iter().map(|binding| binding.identity().id()).collect::<HashSet<_>>().len(), 3);
    assert_eq!(bindings.iter().map(|binding| binding.identity().generation()).collect::<HashSet<_>>().len(), 3);
    drop(bindings);
    rig.finish();
}

/// Has one block, which it hands out whoever has it already.
#[derive(Debug)]
struct OneAddress(Mutex<u64>);

impl DeviceAllocator for OneAddress {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        Ok(NonNull::from(&mut *self.0.lock().unwrap()).cast())
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {}

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

/// R4: allocations are told apart even at one address, and name their binding.
#[test]
fn an_address_is_no_identity() {
    let registry = BindingRegistry::new().unwrap();
    let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
    let authority = registry.register_authority(DEVICE, Arc::new(())).unwrap();
    registry.register_allocator(context, authority, Arc::new(OneAddress(Mutex::new(0)))).unwrap();
    let binding = registry.bind(DEVICE).unwrap();

    let allocations = [binding.allocate(8, 8).unwrap(), binding.allocate(8, 8).unwrap(), binding.allocate(8, 8).unwrap()];
    assert_eq!(allocations.iter().map(BoundAllocation::as_ptr).collect::<HashSet<_>>().len(), 1);
    assert_eq!(allocations.iter().map(BoundAllocation::identity).collect::<HashSet<_>>().len(), 3);
    assert_eq!(allocations.iter().map(|allocation| allocation.identity().generation()).collect::<HashSet<_>>().len(), 3);
    assert!(allocations.iter().all(|allocation| allocation.identity().binding() == binding.identity()));
    // Releasing one leaves the others what they are.
    let [first, second, third] = allocations;
    binding.release(second).unwrap();
    first.view(0, 8).unwrap();
    third.view(0, 8).unwrap();
    assert_eq!(binding.mechanism_snapshot().unwrap().live_allocations, 2);
}

/// As many texts as values, and the same for the same.
fn texts_tell_apart<T: Copy + Debug + Eq + Hash>(values: &[T]) {
    let distinct: HashSet<T> = values.iter().copied().collect();
    let texts: HashSet<String> = values.iter().map(|value| format!("{value:?}")).collect();
    assert_eq!(texts.len(), distinct.len());
    for value in values {
        let copy = *value;
        assert_eq!(format!("{value:?}"), format!("{copy:?}"));
    }
}

/// R5: identities and tokens outlive what they name, and their texts are equal exactly when they are.
#[test]
fn identities_are_plain_values() {
    let issued: Vec<Issued> = {
        let registry = BindingRegistry::new().unwrap();
        (0..200).flat_map(|_| round(&registry)).collect()
    };
    texts_tell_apart(&issued);

    macro_rules! each {
        ($($kind:ident)*) => {$(
            let values: Vec<_> = issued.iter().filter_map(|issued| if let Issued::$kind(value) = issued { Some(*value) } else { None }).collect();
            assert!(values.len() >= 200);
            texts_tell_apart(&values);
        )*};
    }
    each!(Context Authority Mechanism ContextToken AuthorityToken MechanismToken Id Generation Binding Allocation AllocationGeneration);
}

/// R5: a text depends on the value alone, not on what became of the thing.
#[test]
fn texts_are_pure() {
    let rig = Rig::new();
    let identity = rig.registry.bind(DEVICE).unwrap().identity();
    let before = format!("{identity:?} {:?} {:?} {:?}", rig.mechanism, rig.context, rig.authority);
    rig.registry.invalidate_device(DEVICE, "gone").unwrap();
    assert_eq!(format!("{identity:?} {:?} {:?} {:?}", rig.mechanism, rig.context, rig.authority), before);
    rig.finish();
}
