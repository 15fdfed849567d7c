//! Every public name, with its exact signature, fields, variants and traits: this file compiles, or somebody's code doesn't.
//!
//! The sections are those of the interface: the root, allocators, capabilities, context pins, bindings, releases, `Send` and `Sync`, texts,
//! and what users do that is easily broken.
//!
//! A signature is checked by a function pointer that spells it out; whether it is `const`, by a `const fn` that calls it.
// Spelled out, whatever their length.
#![allow(clippy::type_complexity)]

use liveslot::{
    AllocationCommitRange, AllocationGeneration, AllocationIdentity, AllocationReleaseOutcome, AllocationReleaseState, AuthorityIdentity,
    BindingError, BindingGeneration, BindingId, BindingIdentity, BindingRegistry, BindingResource, BoundAllocation, BoundMemoryView,
    BoundSharedMapping, BoundSharedPrefix, BoundVirtualBacking, DeferredEnqueueError, DeferredEnqueueRejection, DeferredReleaseDisposition,
    DeferredReleaseQueue, DeviceAllocator, DeviceKey, ExplicitReleaseError, HostAllocator, MappedAllocation, MechanismCoherence,
    MechanismIdentity, MechanismLifecycle, MechanismSnapshot, MemoryBinding, MemoryError, MemoryRole, OwnedView, OwningAllocation,
    OwningReleaseError, PreparedAllocationRelease, ProviderContextIdentity, ProviderContextPin, ProviderContextPinError,
    ProviderContextPinSource, QuarantineReason, QuarantinedAllocation, RegisteredAuthority, RegisteredMechanism, RegisteredProviderContext,
    ReleaseAccounting, ReleaseFailure, ResidualOwnership, SharedDevicePrefix, SharedMapping, SharedPrefixCommitInfo, Tier,
    ValidatedMemoryView, VirtualBacking,
};
use std::{
    any::Any,
    collections::{HashMap, HashSet},
    error::Error,
    fmt::{self, Debug, Display},
    hash::Hash,
    ops::{Deref, Range},
    ptr::NonNull,
    sync::{Arc, Mutex},
};

type AnyError = dyn Error + Send + Sync;
type AnyAllocator = dyn DeviceAllocator;
type AnyPrefix = dyn SharedDevicePrefix;
type AnyBacking = dyn VirtualBacking;
type AnyMapping = dyn SharedMapping;
type AnyQueue = dyn DeferredReleaseQueue;
type AnyPin = dyn ProviderContextPin;
type AnyPinSource = dyn ProviderContextPinSource;

/// Each function has this signature and is `const`.
macro_rules! const_fns {
    ($($path:path: fn($($name:ident: $argument:ty),*) -> $result:ty;)*) => {$(
        const _: () = {
            const _SIGNATURE: fn($($argument),*) -> $result = $path;
            const fn _constant($($name: $argument),*) -> $result { $path($($name),*) }
        };
    )*};
}

/// Each function has this signature.
macro_rules! fns {
    ($($path:path: $signature:ty;)*) => {$( const _: $signature = $path; )*};
}

/// Each type has these traits.
macro_rules! traits {
    ($($type:ty: $($bound:path),+;)*) => {$(
        const _: fn() = || {
            fn has<T: ?Sized $(+ $bound)+>() {}
            has::<$type>();
        };
    )*};
}

/// No type has this trait: a second implementation for those that have it would make the choice ambiguous.
macro_rules! lacks {
    ($($type:ty: $($bound:path),+;)*) => {$($(
        const _: fn() = || {
            trait Ambiguous<Choice> { fn choose() {} }
            struct ItHas;
            impl<T: ?Sized> Ambiguous<()> for T {}
            impl<T: ?Sized + $bound> Ambiguous<ItHas> for T {}
            <$type as Ambiguous<_>>::choose();
        };
    )+)*};
}

/// The crate root's own.
mod root {
    use super::*;

    traits! {
        Tier: Debug, Copy, Eq, Ord, Hash;
        MemoryRole: Debug, Copy, Eq, Hash;
        MemoryError: Debug, Display, Error, Send, Sync;
    }
    lacks! {
        MemoryError: Clone, PartialEq;
    }
    const_fns! {
        Tier::index: fn(tier: Tier) -> usize;
        Tier::name: fn(tier: Tier) -> &'static str;
    }
    const _: [Tier; 3] = Tier::ALL;

    /// R153: variants and fields, as literals and as patterns without a rest.
    #[test]
    fn values() {
        for (index, tier) in Tier::ALL.into_iter().enumerate() {
            let name = match tier {
                Tier::Device => "device",
                Tier::Host => "host",
                Tier::Disk => "disk",
            };
            assert_eq!((tier.index(), tier.name()), (index, name));
        }
        let role = |role| match role {
            MemoryRole::KvCache => 0,
            MemoryRole::Workspace { step_scoped } => 1 + u8::from(step_scoped),
            MemoryRole::Weights => 3,
            MemoryRole::Activation => 4,
        };
        assert_eq!(role(MemoryRole::Workspace { step_scoped: true }), 2);

        let nested = MemoryError::InvalidRequest { tier: "device", requested: 1, reason: "no" };
        let role = MemoryRole::Weights;
        let errors = [
            MemoryError::TierExhausted { tier: "device", requested: 1, used: 2, limit: 3, available: 4, role },
            MemoryError::AllocationFailed { tier: "device", requested: 1, reason: "no".into() },
            MemoryError::CapacityUnavailable {
                tier: "device",
                requested: 1,
                available: 2,
                role,
                detail: "no".into(),
                source: Some(Box::new(nested)),
            },
        ];
        for error in errors {
            match error {
                MemoryError::TierExhausted { tier, requested, used, limit, available, role } => {
                    let _: (&'static str, u64, u64, u64, u64, MemoryRole) = (tier, requested, used, limit, available, role);
                }
                MemoryError::InvalidRequest { tier, requested, reason } => {
                    let _: (&'static str, u64, &'static str) = (tier, requested, reason);
                }
                MemoryError::AllocationFailed { tier, requested, reason } => {
                    let _: (&'static str, u64, String) = (tier, requested, reason);
                }
                MemoryError::CapacityUnavailable { tier, requested, available, role, detail, source } => {
                    let _: (&'static str, u64, u64, MemoryRole, String, Option<Box<AnyError>>) =
                        (tier, requested, available, role, detail, source);
                }
            }
        }
    }
}

/// Allocators and the types of their capabilities.
mod allocator {
    use super::*;

    traits! {
        AllocationCommitRange: Debug, Copy;
        MappedAllocation<u8>: Debug;
        DeviceKey: Debug, Copy, Eq, Hash;
        SharedPrefixCommitInfo: Debug, Copy, Eq, Default;
        HostAllocator: Debug, Copy, Default, DeviceAllocator;
        AnyPrefix: Debug, Send, Sync;
        AnyAllocator: Debug, Send, Sync;
    }
    const_fns! {
        DeviceKey::device: fn(index: u32) -> DeviceKey;
    }
    const _: DeviceKey = DeviceKey::HOST;

    type Deallocate<R> = unsafe fn(&AnyAllocator, NonNull<u8>, usize, usize) -> R;
    fns! {
        AnyPrefix::device_ptr: fn(&AnyPrefix) -> u64;
        AnyPrefix::committed_physical_bytes: fn(&AnyPrefix) -> u64;
        AnyPrefix::mapped_bytes: fn(&AnyPrefix) -> usize;
        AnyPrefix::requested_bytes: fn(&AnyPrefix) -> usize;
        AnyPrefix::as_any: fn(&AnyPrefix) -> &dyn Any;
        AnyAllocator::allocate: fn(&AnyAllocator, usize, usize) -> Result<NonNull<u8>, MemoryError>;
        AnyAllocator::deallocate: Deallocate<()>;
        AnyAllocator::deallocate_with_unmapped: Deallocate<u64>;
        AnyAllocator::release: Deallocate<AllocationReleaseOutcome>;
        AnyAllocator::device: fn(&AnyAllocator) -> DeviceKey;
        AnyAllocator::commits_on_demand: fn(&AnyAllocator) -> bool;
        AnyAllocator::as_virtual_backing: fn(&AnyAllocator) -> Option<&dyn VirtualBacking>;
        AnyAllocator::as_shared_mapping: fn(&AnyAllocator) -> Option<&dyn SharedMapping>;
    }

    /// Generic code may rely on the supertraits.
    const _: fn() = || {
        fn printable<T: Debug + Send + Sync + ?Sized>() {}
        fn generic<A: DeviceAllocator + ?Sized, P: SharedDevicePrefix + ?Sized>() {
            printable::<A>();
            printable::<P>();
        }
        generic::<AnyAllocator, AnyPrefix>();
    };

    /// R153: fields, as literals and as patterns without a rest.
    #[test]
    fn values() {
        let range = AllocationCommitRange { ptr: NonNull::dangling(), allocation_bytes: 1, align: 2, offset: 3, bytes: 4 };
        let AllocationCommitRange { ptr, allocation_bytes, align, offset, bytes } = range;
        let _: (NonNull<u8>, [usize; 4]) = (ptr, [allocation_bytes, align, offset, bytes]);
        /// No bound, not even `Sized` parts of a trait.
        struct Plain;
        let MappedAllocation { allocation: Plain, additional_owned_bytes, newly_mapped_bytes } =
            MappedAllocation { allocation: Plain, additional_owned_bytes: 1_u64, newly_mapped_bytes: 2_u64 };
        let _: [u64; 2] = [additional_owned_bytes, newly_mapped_bytes];
        let DeviceKey { tier, index } = DeviceKey { tier: Tier::Device, index: 3 };
        assert_eq!(DeviceKey::device(index), DeviceKey { tier, index });
        assert_eq!(DeviceKey::HOST, DeviceKey { tier: Tier::Host, index: 0 });
        let none = SharedPrefixCommitInfo { additional_owned_bytes: 0, newly_mapped_bytes: 0, granules: 0 };
        assert_eq!(SharedPrefixCommitInfo::default(), none);
        let SharedPrefixCommitInfo { additional_owned_bytes, newly_mapped_bytes, granules } = none;
        let _: (u64, u64, usize) = (additional_owned_bytes, newly_mapped_bytes, granules);
        let _: Arc<dyn DeviceAllocator> = Arc::new(HostAllocator);
    }

    /// What has no more than it must have.
    #[derive(Debug, Default)]
    struct Minimal(Mutex<Vec<(usize, usize, usize)>>);

    impl DeviceAllocator for Minimal {
        fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
            unreachable!()
        }

        unsafe fn deallocate(&self, ptr: NonNull<u8>, bytes: usize, align: usize) {
            self.0.lock().unwrap().push((ptr.addr().get(), bytes, align));
        }

        fn device(&self) -> DeviceKey {
            DeviceKey::HOST
        }
    }

    /// R152: what the provided methods do.
    #[test]
    fn provided_methods() {
        let minimal = Minimal::default();
        assert!(!minimal.commits_on_demand());
        assert!(minimal.as_virtual_backing().is_none());
        assert!(minimal.as_shared_mapping().is_none());
        // SAFETY: nothing is done with the memory.
        assert_eq!(unsafe { minimal.deallocate_with_unmapped(NonNull::dangling(), 64, 8) }, 0);
        // SAFETY: as above.
        let outcome = unsafe { minimal.release(NonNull::dangling(), 32, 4) };
        assert_eq!(
            outcome,
            AllocationReleaseOutcome::Complete { accounting: ReleaseAccounting { allocation_bytes: 32, unmapped_bytes: 0 } }
        );
        assert_eq!(*minimal.0.lock().unwrap(), [(1, 64, 8), (1, 32, 4)]);
    }
}

/// What an allocator may offer besides.
mod capability {
    use super::*;

    traits! {
        AnyBacking: Debug, Send, Sync;
        AnyMapping: Debug, Send, Sync;
    }
    fns! {
        AnyBacking::allocate_committed: fn(&AnyBacking, usize, usize, &[Range<usize>]) -> Result<NonNull<u8>, MemoryError>;
        AnyBacking::commit_allocation_range: fn(&AnyBacking, NonNull<u8>, usize, usize, usize, usize) -> Result<(), MemoryError>;
        AnyBacking::commit_allocation_ranges: fn(&AnyBacking, &[AllocationCommitRange]) -> Result<(), MemoryError>;
        AnyBacking::mapped_bytes_for_allocation_ranges: fn(&AnyBacking, &[AllocationCommitRange]) -> Result<u64, MemoryError>;
        AnyBacking::mapped_bytes_for_allocation: fn(&AnyBacking, usize, usize) -> Result<u64, MemoryError>;
        AnyBacking::decommit_allocation_range: fn(&AnyBacking, NonNull<u8>, usize, usize, usize, usize) -> Result<u64, MemoryError>;
        AnyBacking::allocation_committed_bytes: fn(&AnyBacking, NonNull<u8>, usize, usize) -> usize;
        AnyMapping::create_shared_prefix: fn(&AnyMapping, usize) -> Result<Box<dyn SharedDevicePrefix>, MemoryError>;
        AnyMapping::incremental_owned_bytes_for_shared_prefix: fn(&AnyMapping, &AnyPrefix) -> Result<u64, MemoryError>;
        AnyMapping::commit_shared_prefix:
            fn(&AnyMapping, &AnyPrefix, NonNull<u8>, usize, usize) -> Result<SharedPrefixCommitInfo, MemoryError>;
    }
    const _: fn() = || {
        fn printable<T: Debug + Send + Sync + ?Sized>() {}
        fn generic<B: VirtualBacking + ?Sized, M: SharedMapping + ?Sized>() {
            printable::<B>();
            printable::<M>();
        }
        generic::<AnyBacking, AnyMapping>();
    };

    /// Commits until offset 2.
    #[derive(Debug, Default)]
    struct Minimal(Mutex<Vec<usize>>);

    impl VirtualBacking for Minimal {
        fn allocate_committed(&self, _: usize, _: usize, _: &[Range<usize>]) -> Result<NonNull<u8>, MemoryError> {
            unreachable!()
        }

        fn commit_allocation_range(&self, _: NonNull<u8>, _: usize, _: usize, offset: usize, _: usize) -> Result<(), MemoryError> {
            self.0.lock().unwrap().push(offset);
            if offset == 2 { Err(MemoryError::InvalidRequest { tier: "test", requested: 0, reason: "two" }) } else { Ok(()) }
        }

        fn mapped_bytes_for_allocation_ranges(&self, _: &[AllocationCommitRange]) -> Result<u64, MemoryError> {
            unreachable!()
        }

        fn mapped_bytes_for_allocation(&self, _: usize, _: usize) -> Result<u64, MemoryError> {
            unreachable!()
        }

        fn decommit_allocation_range(&self, _: NonNull<u8>, _: usize, _: usize, _: usize, _: usize) -> Result<u64, MemoryError> {
            unreachable!()
        }

        fn allocation_committed_bytes(&self, _: NonNull<u8>, _: usize, _: usize) -> usize {
            unreachable!()
        }
    }

    /// R153: the provided method goes on to the first error, and undoes nothing.
    #[test]
    fn provided_method() {
        let range = |offset| AllocationCommitRange { ptr: NonNull::dangling(), allocation_bytes: 8, align: 1, offset, bytes: 1 };
        let minimal = Minimal::default();
        minimal.commit_allocation_ranges(&[]).unwrap();
        minimal.commit_allocation_ranges(&[range(0), range(1), range(0)]).unwrap();
        minimal.commit_allocation_ranges(&[range(1), range(2), range(3)]).unwrap_err();
        assert_eq!(*minimal.0.lock().unwrap(), [0, 1, 0, 1, 2]);
    }
}

/// The vocabulary of pins on contexts.
mod context_pin {
    use super::*;

    traits! {
        ProviderContextPinError: Debug, Copy, Eq, Display, Error, Send, Sync;
        AnyPin: Debug, Send, Sync;
        AnyPinSource: Debug, Send, Sync;
    }
    fns! {
        AnyPin::context: fn(&AnyPin) -> ProviderContextIdentity;
        AnyPinSource::context: fn(&AnyPinSource) -> ProviderContextIdentity;
        AnyPinSource::pin: fn(&AnyPinSource) -> Result<Box<dyn ProviderContextPin>, ProviderContextPinError>;
    }

    #[derive(Debug)]
    struct Source(ProviderContextIdentity, bool);

    impl ProviderContextPin for Source {
        fn context(&self) -> ProviderContextIdentity {
            self.0
        }
    }

    impl ProviderContextPinSource for Source {
        fn context(&self) -> ProviderContextIdentity {
            self.0
        }

        fn pin(&self) -> Result<Box<dyn ProviderContextPin>, ProviderContextPinError> {
            if self.1 { Ok(Box::new(Self(self.0, false))) } else { Err(ProviderContextPinError::ContextUnavailable(self.0)) }
        }
    }

    /// R153: users implement both traits, and match their errors.
    #[test]
    fn use_of_pins() {
        let registry = BindingRegistry::new().unwrap();
        let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(())).unwrap().identity();
        let pin = |usable| -> Result<Box<dyn ProviderContextPin>, ProviderContextPinError> {
            let source: &dyn ProviderContextPinSource = &Source(context, usable);
            assert_eq!(source.context(), context);
            source.pin()
        };
        assert_eq!(pin(true).unwrap().context(), context);
        match pin(false).unwrap_err() {
            ProviderContextPinError::ContextUnavailable(identity) => assert_eq!(identity, context),
            ProviderContextPinError::PinCountOverflow(_) => unreachable!(),
        }
    }
}

/// Names, resources, errors, the registry, bindings and what is made with them.
mod binding {
    use super::*;

    traits! {
        AuthorityIdentity: Debug, Copy, Eq, Hash;
        ProviderContextIdentity: Debug, Copy, Eq, Hash;
        MechanismIdentity: Debug, Copy, Eq, Hash;
        BindingId: Debug, Copy, Eq, Hash;
        BindingGeneration: Debug, Copy, Eq, Hash;
        AllocationGeneration: Debug, Copy, Eq, Hash;
        BindingIdentity: Debug, Copy, Eq, Hash;
        AllocationIdentity: Debug, Copy, Eq, Hash;
        (): BindingResource;
        dyn BindingResource: Debug, Send, Sync;
        MechanismCoherence: Debug, Copy, Eq, Hash;
        MechanismLifecycle: Debug, Copy, Eq;
        MechanismSnapshot: Debug, Copy, Eq;
        BindingError: Debug, Display, Error, Send, Sync, From<MemoryError>;
        OwningReleaseError: Debug, Display, Error;
        ExplicitReleaseError: Debug, Display, Error;
        BindingRegistry: Clone, Debug;
        RegisteredProviderContext: Debug, Copy, Eq, Hash;
        RegisteredAuthority: Debug, Copy, Eq, Hash;
        RegisteredMechanism: Debug, Copy, Eq, Hash;
        MemoryBinding: Clone, Debug;
        BoundAllocation: Debug;
        BoundMemoryView: Clone, Debug;
        ValidatedMemoryView: Copy, Debug;
        OwningAllocation: Debug;
        OwnedView: Clone, Debug;
        BoundVirtualBacking: Clone, Debug;
        BoundSharedMapping: Clone, Debug;
        BoundSharedPrefix: Debug;
    }
    lacks! {
        AuthorityIdentity: PartialOrd, Into<u64>;
        ProviderContextIdentity: PartialOrd, Into<u64>;
        MechanismIdentity: PartialOrd, Into<u64>;
        BindingId: PartialOrd, Into<u64>;
        BindingGeneration: PartialOrd, Into<u64>;
        AllocationGeneration: PartialOrd, Into<u64>;
        BindingIdentity: PartialOrd;
        AllocationIdentity: PartialOrd;
        BindingError: Clone, PartialEq;
        BindingRegistry: Default;
        MemoryBinding: PartialEq, Copy;
        BoundAllocation: Clone;
        OwningAllocation: Clone;
        BoundSharedPrefix: Clone;
        OwnedView: Deref;
    }
    const_fns! {
        BindingIdentity::id: fn(identity: BindingIdentity) -> BindingId;
        BindingIdentity::generation: fn(identity: BindingIdentity) -> BindingGeneration;
        BindingIdentity::device: fn(identity: BindingIdentity) -> DeviceKey;
        BindingIdentity::mechanism: fn(identity: BindingIdentity) -> MechanismIdentity;
        BindingIdentity::provider_context: fn(identity: BindingIdentity) -> ProviderContextIdentity;
        BindingIdentity::authority: fn(identity: BindingIdentity) -> AuthorityIdentity;
        AllocationIdentity::binding: fn(identity: AllocationIdentity) -> BindingIdentity;
        AllocationIdentity::generation: fn(identity: AllocationIdentity) -> AllocationGeneration;
        MechanismSnapshot::retains_ownership: fn(snapshot: &MechanismSnapshot) -> bool;
        OwningReleaseError::error: fn(error: &OwningReleaseError) -> &BindingError;
        OwningReleaseError::allocation: fn(error: &OwningReleaseError) -> &OwningAllocation;
        OwningReleaseError::state: fn(error: &OwningReleaseError) -> AllocationReleaseState;
        ExplicitReleaseError::error: fn(error: &ExplicitReleaseError) -> &BindingError;
        ExplicitReleaseError::is_quarantined: fn(error: &ExplicitReleaseError) -> bool;
        RegisteredProviderContext::identity: fn(token: RegisteredProviderContext) -> ProviderContextIdentity;
        RegisteredProviderContext::device: fn(token: RegisteredProviderContext) -> DeviceKey;
        RegisteredAuthority::identity: fn(token: RegisteredAuthority) -> AuthorityIdentity;
        RegisteredAuthority::device: fn(token: RegisteredAuthority) -> DeviceKey;
        RegisteredMechanism::identity: fn(token: RegisteredMechanism) -> MechanismIdentity;
        RegisteredMechanism::device: fn(token: RegisteredMechanism) -> DeviceKey;
        RegisteredMechanism::coherence: fn(token: RegisteredMechanism) -> MechanismCoherence;
        MemoryBinding::identity: fn(binding: &MemoryBinding) -> BindingIdentity;
        BoundAllocation::identity: fn(allocation: &BoundAllocation) -> AllocationIdentity;
        BoundAllocation::binding: fn(allocation: &BoundAllocation) -> &MemoryBinding;
        BoundAllocation::as_ptr: fn(allocation: &BoundAllocation) -> NonNull<u8>;
        BoundAllocation::len: fn(allocation: &BoundAllocation) -> usize;
        BoundAllocation::is_empty: fn(allocation: &BoundAllocation) -> bool;
        BoundAllocation::alignment: fn(allocation: &BoundAllocation) -> usize;
        BoundMemoryView::binding: fn(view: &BoundMemoryView) -> &MemoryBinding;
        BoundMemoryView::allocation_identity: fn(view: &BoundMemoryView) -> AllocationIdentity;
        BoundMemoryView::len: fn(view: &BoundMemoryView) -> usize;
        BoundMemoryView::is_empty: fn(view: &BoundMemoryView) -> bool;
        ValidatedMemoryView::as_ptr: fn(view: ValidatedMemoryView) -> NonNull<u8>;
        ValidatedMemoryView::len: fn(view: ValidatedMemoryView) -> usize;
        ValidatedMemoryView::is_empty: fn(view: ValidatedMemoryView) -> bool;
        OwningAllocation::state: fn(owner: &OwningAllocation) -> AllocationReleaseState;
        OwnedView::view: fn(view: &OwnedView) -> &BoundMemoryView;
        OwnedView::binding: fn(view: &OwnedView) -> &MemoryBinding;
        OwnedView::allocation_identity: fn(view: &OwnedView) -> AllocationIdentity;
        OwnedView::len: fn(view: &OwnedView) -> usize;
        OwnedView::is_empty: fn(view: &OwnedView) -> bool;
        BoundVirtualBacking::binding_identity: fn(backing: &BoundVirtualBacking) -> BindingIdentity;
        BoundSharedMapping::binding_identity: fn(mapping: &BoundSharedMapping) -> BindingIdentity;
        BoundSharedPrefix::binding_identity: fn(prefix: &BoundSharedPrefix) -> BindingIdentity;
    }

    type Resource = Arc<dyn BindingResource>;
    type Allocator = Arc<dyn DeviceAllocator>;
    type Context = RegisteredProviderContext;
    type Authority = RegisteredAuthority;
    type Mechanism = RegisteredMechanism;
    type Answer<T> = Result<T, BindingError>;
    fns! {
        OwningReleaseError::into_parts: fn(OwningReleaseError) -> (BindingError, OwningAllocation);
        ExplicitReleaseError::outcome: fn(&ExplicitReleaseError) -> Option<&AllocationReleaseOutcome>;
        ExplicitReleaseError::state: fn(&ExplicitReleaseError) -> AllocationReleaseState;
        ExplicitReleaseError::into_parts: fn(ExplicitReleaseError) -> (BindingError, BoundAllocation);

        BindingRegistry::new: fn() -> Answer<BindingRegistry>;
        BindingRegistry::register_provider_context: fn(&BindingRegistry, DeviceKey, Resource) -> Answer<Context>;
        BindingRegistry::register_authority: fn(&BindingRegistry, DeviceKey, Resource) -> Answer<Authority>;
        BindingRegistry::register_allocator: fn(&BindingRegistry, Context, Authority, Allocator) -> Answer<Mechanism>;
        BindingRegistry::register_allocator_with_device: fn(&BindingRegistry, Context, Authority, Allocator, DeviceKey) -> Answer<Mechanism>;
        BindingRegistry::register_trusted_composite: unsafe fn(&BindingRegistry, Context, Authority, Allocator) -> Answer<Mechanism>;
        BindingRegistry::select: fn(&BindingRegistry, Mechanism) -> Answer<()>;
        BindingRegistry::bind: fn(&BindingRegistry, DeviceKey) -> Answer<MemoryBinding>;
        BindingRegistry::bind_registered: fn(&BindingRegistry, Mechanism) -> Answer<MemoryBinding>;
        BindingRegistry::retire: fn(&BindingRegistry, Mechanism) -> Answer<()>;
        BindingRegistry::confirm_context_terminated: fn(&BindingRegistry, Context) -> Answer<()>;
        BindingRegistry::remove: fn(&BindingRegistry, Mechanism) -> Answer<()>;
        BindingRegistry::remove_provider_context: fn(&BindingRegistry, Context) -> Answer<()>;
        BindingRegistry::remove_authority: fn(&BindingRegistry, Authority) -> Answer<()>;
        BindingRegistry::snapshot: fn(&BindingRegistry, Mechanism) -> Answer<MechanismSnapshot>;
        BindingRegistry::snapshots: fn(&BindingRegistry) -> Answer<Vec<MechanismSnapshot>>;
        BindingRegistry::quarantined: fn(&BindingRegistry, Mechanism) -> Answer<Vec<QuarantinedAllocation>>;

        MemoryBinding::allocate: fn(&MemoryBinding, usize, usize) -> Answer<BoundAllocation>;
        MemoryBinding::allocate_owning: fn(&MemoryBinding, usize, usize) -> Answer<OwningAllocation>;
        MemoryBinding::adopt_allocation: unsafe fn(&MemoryBinding, NonNull<u8>, usize, usize) -> Answer<OwningAllocation>;
        MemoryBinding::prepare_release: fn(&MemoryBinding, BoundAllocation) -> Result<PreparedAllocationRelease, ExplicitReleaseError>;
        MemoryBinding::release: fn(&MemoryBinding, BoundAllocation) -> Result<(), ExplicitReleaseError>;
        MemoryBinding::quarantined: fn(&MemoryBinding) -> Answer<Vec<QuarantinedAllocation>>;
        MemoryBinding::mechanism_snapshot: fn(&MemoryBinding) -> Answer<MechanismSnapshot>;
        MemoryBinding::virtual_backing: fn(&MemoryBinding) -> Answer<Option<BoundVirtualBacking>>;
        MemoryBinding::shared_mapping: fn(&MemoryBinding) -> Answer<Option<BoundSharedMapping>>;

        BoundAllocation::view: fn(&BoundAllocation, usize, usize) -> Answer<BoundMemoryView>;
        OwningAllocation::new: fn(BoundAllocation) -> OwningAllocation;
        OwningAllocation::identity: fn(&OwningAllocation) -> AllocationIdentity;
        OwningAllocation::binding: fn(&OwningAllocation) -> &MemoryBinding;
        OwningAllocation::bound: fn(&OwningAllocation) -> &BoundAllocation;
        OwningAllocation::as_ptr: fn(&OwningAllocation) -> NonNull<u8>;
        OwningAllocation::len: fn(&OwningAllocation) -> usize;
        OwningAllocation::is_empty: fn(&OwningAllocation) -> bool;
        OwningAllocation::alignment: fn(&OwningAllocation) -> usize;
        OwningAllocation::view: fn(&OwningAllocation, usize, usize) -> Answer<OwnedView>;
        OwningAllocation::outstanding_views: fn(&OwningAllocation) -> usize;
        OwningAllocation::into_bound: fn(OwningAllocation) -> Result<BoundAllocation, OwningReleaseError>;
        OwningAllocation::prepare_release: fn(OwningAllocation) -> Result<PreparedAllocationRelease, OwningReleaseError>;
        OwningAllocation::release_now: fn(OwningAllocation) -> Result<AllocationReleaseOutcome, OwningReleaseError>;
        OwningAllocation::release_deferred: fn(OwningAllocation, &AnyQueue) -> Result<DeferredReleaseDisposition, OwningReleaseError>;

        BoundVirtualBacking::allocate_committed: fn(&BoundVirtualBacking, usize, usize, &[Range<usize>]) -> Answer<BoundAllocation>;
        BoundVirtualBacking::commit_allocation_range: fn(&BoundVirtualBacking, &BoundAllocation, usize, usize) -> Answer<()>;
        BoundVirtualBacking::commit_allocation_ranges: fn(&BoundVirtualBacking, &[(&BoundAllocation, usize, usize)]) -> Answer<()>;
        BoundVirtualBacking::mapped_bytes_for_allocation: fn(&BoundVirtualBacking, usize, usize) -> Answer<u64>;
        BoundVirtualBacking::decommit_allocation_range: fn(&BoundVirtualBacking, &BoundAllocation, usize, usize) -> Answer<u64>;
        BoundVirtualBacking::allocation_committed_bytes: fn(&BoundVirtualBacking, &BoundAllocation) -> Answer<usize>;
        BoundSharedMapping::create_shared_prefix: fn(&BoundSharedMapping, usize) -> Answer<BoundSharedPrefix>;
        BoundSharedMapping::incremental_owned_bytes_for_shared_prefix: fn(&BoundSharedMapping, &BoundSharedPrefix) -> Answer<u64>;
        BoundSharedMapping::commit_shared_prefix:
            fn(&BoundSharedMapping, &BoundSharedPrefix, &BoundAllocation, usize) -> Answer<SharedPrefixCommitInfo>;
        BoundSharedPrefix::device_ptr: fn(&BoundSharedPrefix) -> u64;
        BoundSharedPrefix::committed_physical_bytes: fn(&BoundSharedPrefix) -> u64;
        BoundSharedPrefix::mapped_bytes: fn(&BoundSharedPrefix) -> usize;
        BoundSharedPrefix::requested_bytes: fn(&BoundSharedPrefix) -> usize;
    }

    const _: fn(MemoryError) -> BindingError = BindingError::from;

    /// Whoever owns something may move out of it, and knows that it has a destructor.
    const _: () = {
        assert!(std::mem::needs_drop::<OwningAllocation>());
        assert!(std::mem::needs_drop::<OwnedView>());
        assert!(std::mem::needs_drop::<PreparedAllocationRelease>());
    };

    /// The arguments that are generic take what users pass.
    #[test]
    fn generic_arguments() {
        let registry = BindingRegistry::new().unwrap();
        let device = DeviceKey::device(9);
        for reason in [0, 1, 2] {
            let lost: Result<(), BindingError> = match reason {
                0 => registry.invalidate_device(device, "text"),
                1 => registry.invalidate_device(device, String::from("text")),
                _ => registry.invalidate_device(device, Arc::<str>::from("text")),
            };
            lost.unwrap();
        }
        let context = registry.register_provider_context(device, Arc::new(())).unwrap();
        let authority = registry.register_authority(device, Arc::new("any value")).unwrap();
        registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), device).unwrap();
        let binding = registry.bind(device).unwrap();
        let allocation = binding.allocate(8, 8).unwrap();
        let view = allocation.view(0, 8).unwrap();
        let moved_in = String::from("once");
        let moved_out: Result<String, BindingError> = binding.with_view(&view, |_: ValidatedMemoryView| moved_in);
        assert_eq!(moved_out.unwrap(), "once");
        binding.release(allocation).unwrap();
    }

    /// R153: variants and fields, as literals and as patterns without a rest.
    #[test]
    fn values() {
        match MechanismCoherence::SelfContained {
            MechanismCoherence::SelfContained | MechanismCoherence::TrustedComposite => {}
        }
        match MechanismLifecycle::Active {
            MechanismLifecycle::Active | MechanismLifecycle::Retired | MechanismLifecycle::DeviceLost | MechanismLifecycle::Terminated => {}
        }
        let registry = BindingRegistry::new().unwrap();
        let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(())).unwrap();
        let authority = registry.register_authority(DeviceKey::HOST, Arc::new(())).unwrap();
        let mechanism = registry.register_allocator(context, authority, Arc::new(HostAllocator)).unwrap();
        let MechanismSnapshot {
            identity,
            device,
            provider_context,
            authority,
            coherence,
            lifecycle,
            live_allocations,
            active_operations,
            queued_releases,
            quarantined_allocations,
            quarantined_bytes,
        } = registry.snapshot(mechanism).unwrap();
        let again = MechanismSnapshot {
            identity,
            device,
            provider_context,
            authority,
            coherence,
            lifecycle,
            live_allocations: live_allocations + 1_usize,
            active_operations: active_operations + 1_usize,
            queued_releases: queued_releases + 1_usize,
            quarantined_allocations: quarantined_allocations + 1_usize,
            quarantined_bytes: quarantined_bytes + 1_u64,
        };
        assert!(again.retains_ownership());
        let _: (MechanismIdentity, DeviceKey, ProviderContextIdentity, AuthorityIdentity) = (identity, device, provider_context, authority);

        let owner = registry.bind(DeviceKey::HOST).unwrap().allocate_owning(8, 8).unwrap();
        let (binding, allocation) = (owner.identity().binding().id(), owner.identity());
        owner.release_now().unwrap();
        let errors = [
            BindingError::IdentityExhausted,
            BindingError::ForeignRegistry { kind: "mechanism" },
            BindingError::DeviceMismatch { subject: "authority", expected: device, actual: device },
            BindingError::UnregisteredProviderContext(provider_context),
            BindingError::ProviderContextInUse(provider_context),
            BindingError::UnregisteredAuthority(authority),
            BindingError::AuthorityInUse(authority),
            BindingError::UnregisteredMechanism(identity),
            BindingError::NoSelectedMechanism(device),
            BindingError::InactiveMechanism { mechanism: identity, lifecycle, operation: "a call" },
            BindingError::DeviceLost { device, reason: "lost".into() },
            BindingError::BindingMismatch { expected: binding, actual: binding },
            BindingError::StaleAllocation(allocation),
            BindingError::OutstandingViews { identity: allocation, views: 1 },
            BindingError::ReleaseQuarantined {
                identity: allocation,
                state: AllocationReleaseState::Quarantined,
                reason: QuarantineReason::OwnerDropped,
                retained_bytes: 8,
            },
            BindingError::QuarantinedOwnership { mechanism: identity, quarantined: 1 },
            BindingError::ViewOutOfBounds { offset: 1, end: 2, allocation_bytes: 3 },
            BindingError::ContextNotQuiescent { context: provider_context, active_operations: 1 },
            BindingError::Memory(MemoryError::InvalidRequest { tier: "host", requested: 1, reason: "no" }),
            BindingError::ShutDown,
        ];
        for (number, error) in errors.into_iter().enumerate() {
            assert!(!error.to_string().is_empty());
            let of_variant = match error {
                BindingError::IdentityExhausted => 0,
                BindingError::ForeignRegistry { kind } => usize::from(!kind.is_empty()),
                BindingError::DeviceMismatch { subject: _, expected: _, actual: _ } => 2,
                BindingError::UnregisteredProviderContext(_) => 3,
                BindingError::ProviderContextInUse(_) => 4,
                BindingError::UnregisteredAuthority(_) => 5,
                BindingError::AuthorityInUse(_) => 6,
                BindingError::UnregisteredMechanism(_) => 7,
                BindingError::NoSelectedMechanism(_) => 8,
                BindingError::InactiveMechanism { mechanism: _, lifecycle: _, operation: _ } => 9,
                BindingError::DeviceLost { device: _, reason } => [10][usize::from(Arc::<str>::from("lost") != reason)],
                BindingError::BindingMismatch { expected: _, actual: _ } => 11,
                BindingError::StaleAllocation(_) => 12,
                BindingError::OutstandingViews { identity: _, views } => 12 + views,
                BindingError::ReleaseQuarantined { identity: _, state: _, reason: _, retained_bytes } => 6 + retained_bytes as usize,
                BindingError::QuarantinedOwnership { mechanism: _, quarantined } => 14 + quarantined,
                BindingError::ViewOutOfBounds { offset, end, allocation_bytes } => 10 + offset + end + allocation_bytes,
                BindingError::ContextNotQuiescent { context: _, active_operations } => 16 + active_operations,
                BindingError::Memory(_) => 18,
                BindingError::ShutDown => 19,
            };
            assert_eq!(of_variant, number);
        }
    }
}

/// How releases end, and what may happen before.
mod deferred {
    use super::*;

    traits! {
        AllocationReleaseState: Debug, Copy, Eq, Hash, Display;
        ReleaseAccounting: Debug, Copy, Eq, Hash, Default;
        QuarantineReason: Debug, Copy, Eq, Hash, Display;
        ResidualOwnership: Debug, Copy, Eq, Hash;
        ReleaseFailure: Debug, Clone, Eq, Display;
        AllocationReleaseOutcome: Debug, Clone, Eq;
        DeferredEnqueueRejection: Debug, Copy, Eq, Hash;
        QuarantinedAllocation: Debug, Copy, Eq, Hash;
        DeferredEnqueueError: Debug, Display, Error;
        AnyQueue: Debug, Send, Sync;
        DeferredReleaseDisposition: Debug, Clone, Eq;
        PreparedAllocationRelease: Debug;
    }
    lacks! {
        ReleaseFailure: Error;
        PreparedAllocationRelease: Clone, Default;
    }
    const_fns! {
        AllocationReleaseState::retains_ownership: fn(state: AllocationReleaseState) -> bool;
        AllocationReleaseState::permits_allocator_call: fn(state: AllocationReleaseState) -> bool;
        AllocationReleaseState::is_terminal: fn(state: AllocationReleaseState) -> bool;
        AllocationReleaseState::name: fn(state: AllocationReleaseState) -> &'static str;
        ReleaseAccounting::new: fn(allocation_bytes: u64, unmapped_bytes: u64) -> ReleaseAccounting;
        ReleaseAccounting::eager: fn(allocation_bytes: u64) -> ReleaseAccounting;
        QuarantineReason::name: fn(reason: QuarantineReason) -> &'static str;
        AllocationReleaseOutcome::complete: fn(accounting: ReleaseAccounting) -> AllocationReleaseOutcome;
        AllocationReleaseOutcome::quarantined: fn(accounting: ReleaseAccounting, residual: ResidualOwnership) -> AllocationReleaseOutcome;
        AllocationReleaseOutcome::state: fn(outcome: &AllocationReleaseOutcome) -> AllocationReleaseState;
        AllocationReleaseOutcome::accounting: fn(outcome: &AllocationReleaseOutcome) -> Option<ReleaseAccounting>;
        AllocationReleaseOutcome::residual: fn(outcome: &AllocationReleaseOutcome) -> Option<ResidualOwnership>;
        AllocationReleaseOutcome::failure: fn(outcome: &AllocationReleaseOutcome) -> Option<&ReleaseFailure>;
        AllocationReleaseOutcome::is_complete: fn(outcome: &AllocationReleaseOutcome) -> bool;
        AllocationReleaseOutcome::is_quarantined: fn(outcome: &AllocationReleaseOutcome) -> bool;
        AllocationReleaseOutcome::unmapped_bytes: fn(outcome: &AllocationReleaseOutcome) -> u64;
        DeferredEnqueueRejection::name: fn(rejection: DeferredEnqueueRejection) -> &'static str;
        DeferredEnqueueError::rejection: fn(error: &DeferredEnqueueError) -> DeferredEnqueueRejection;
        DeferredEnqueueError::request: fn(error: &DeferredEnqueueError) -> &PreparedAllocationRelease;
        DeferredReleaseDisposition::identity: fn(disposition: &DeferredReleaseDisposition) -> AllocationIdentity;
        DeferredReleaseDisposition::state: fn(disposition: &DeferredReleaseDisposition) -> AllocationReleaseState;
        DeferredReleaseDisposition::is_queued: fn(disposition: &DeferredReleaseDisposition) -> bool;
        PreparedAllocationRelease::identity: fn(request: &PreparedAllocationRelease) -> AllocationIdentity;
        PreparedAllocationRelease::binding_identity: fn(request: &PreparedAllocationRelease) -> BindingIdentity;
        PreparedAllocationRelease::device: fn(request: &PreparedAllocationRelease) -> DeviceKey;
        PreparedAllocationRelease::authority: fn(request: &PreparedAllocationRelease) -> AuthorityIdentity;
        PreparedAllocationRelease::provider_context: fn(request: &PreparedAllocationRelease) -> ProviderContextIdentity;
        PreparedAllocationRelease::as_ptr: fn(request: &PreparedAllocationRelease) -> NonNull<u8>;
        PreparedAllocationRelease::len: fn(request: &PreparedAllocationRelease) -> usize;
        PreparedAllocationRelease::is_empty: fn(request: &PreparedAllocationRelease) -> bool;
        PreparedAllocationRelease::alignment: fn(request: &PreparedAllocationRelease) -> usize;
        PreparedAllocationRelease::state: fn(request: &PreparedAllocationRelease) -> AllocationReleaseState;
    }
    fns! {
        ReleaseFailure::new: fn(Arc<str>) -> ReleaseFailure;
        ReleaseFailure::reason: fn(&ReleaseFailure) -> &str;
        AllocationReleaseOutcome::failed: fn(String) -> AllocationReleaseOutcome;
        DeferredEnqueueError::new: fn(DeferredEnqueueRejection, PreparedAllocationRelease) -> DeferredEnqueueError;
        DeferredEnqueueError::into_request: fn(DeferredEnqueueError) -> PreparedAllocationRelease;
        DeferredEnqueueError::quarantine: fn(DeferredEnqueueError) -> AllocationReleaseOutcome;
        AnyQueue::enqueue: fn(&AnyQueue, PreparedAllocationRelease) -> Result<(), DeferredEnqueueError>;
        AnyQueue::pending: fn(&AnyQueue) -> usize;
        PreparedAllocationRelease::allocator: fn(&PreparedAllocationRelease) -> &Arc<dyn DeviceAllocator>;
        PreparedAllocationRelease::execute: fn(PreparedAllocationRelease) -> AllocationReleaseOutcome;
        PreparedAllocationRelease::quarantine_device_lost: fn(PreparedAllocationRelease) -> AllocationReleaseOutcome;
        PreparedAllocationRelease::quarantine: fn(PreparedAllocationRelease, QuarantineReason) -> AllocationReleaseOutcome;
    }

    /// R153: variants and fields, as literals and as patterns without a rest.
    #[test]
    fn values() {
        use AllocationReleaseState::*;
        for state in [Live, Queued, PartiallyUnmapped, Released, DeviceLost, Quarantined] {
            match state {
                Live | Queued | PartiallyUnmapped | Released | DeviceLost | Quarantined => {}
            }
        }
        let accounting = ReleaseAccounting { allocation_bytes: 8_u64, unmapped_bytes: 4_u64 };
        let ReleaseAccounting { allocation_bytes, unmapped_bytes } = accounting;
        assert_eq!(accounting, ReleaseAccounting::new(allocation_bytes, unmapped_bytes));
        match QuarantineReason::AbandonedRequest {
            QuarantineReason::AbandonedRequest
            | QuarantineReason::OwnerDropped
            | QuarantineReason::EnqueueRejected(
                DeferredEnqueueRejection::Closed
                | DeferredEnqueueRejection::Full
                | DeferredEnqueueRejection::DeviceLost
                | DeferredEnqueueRejection::Refused,
            )
            | QuarantineReason::DeviceLost
            | QuarantineReason::MechanismTerminated
            | QuarantineReason::PartialRelease
            | QuarantineReason::AllocatorRefused => {}
        }
        let residual = ResidualOwnership {
            state: Quarantined,
            reason: QuarantineReason::PartialRelease,
            retained_bytes: 4_u64,
            address: 16_usize,
            align: 8_usize,
        };
        let ResidualOwnership { state: _, reason: _, retained_bytes: _, address: _, align: _ } = residual;
        match AllocationReleaseOutcome::quarantined(accounting, residual) {
            AllocationReleaseOutcome::Complete { accounting: _ } => unreachable!(),
            AllocationReleaseOutcome::Quarantined { accounting: of, residual: left } => assert_eq!((of, left), (accounting, residual)),
            AllocationReleaseOutcome::Failed { failure: _ } => unreachable!(),
        }
        let failure = ReleaseFailure::new("why");
        assert_eq!(AllocationReleaseOutcome::failed("why"), AllocationReleaseOutcome::Failed { failure });
    }

    /// A queue that implements no more than it must.
    #[derive(Debug)]
    struct Refusing;

    impl DeferredReleaseQueue for Refusing {
        fn enqueue(&self, request: PreparedAllocationRelease) -> Result<(), DeferredEnqueueError> {
            Err(DeferredEnqueueError::new(DeferredEnqueueRejection::Refused, request))
        }
    }

    /// R96, R153: the provided method, and the fields of a disposition and of an entry.
    #[test]
    fn a_queue() {
        let registry = BindingRegistry::new().unwrap();
        let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(())).unwrap();
        let authority = registry.register_authority(DeviceKey::HOST, Arc::new(())).unwrap();
        registry.register_allocator(context, authority, Arc::new(HostAllocator)).unwrap();
        let owner = registry.bind(DeviceKey::HOST).unwrap().allocate_owning(8, 8).unwrap();
        let (binding, name) = (owner.binding().clone(), owner.identity());
        let queue: &dyn DeferredReleaseQueue = &Refusing;
        assert_eq!(queue.pending(), 0);
        let refused = owner.release_deferred(queue).unwrap();
        let DeferredReleaseDisposition::Quarantined { identity, rejection, outcome } = refused else { unreachable!() };
        assert_eq!((identity, rejection), (name, DeferredEnqueueRejection::Refused));
        let DeferredReleaseDisposition::Queued { identity: _ } = (DeferredReleaseDisposition::Queued { identity }) else { unreachable!() };
        let entries = binding.quarantined().unwrap();
        let [QuarantinedAllocation { identity, address, bytes, align, state, reason, retained_bytes }] = entries[..] else {
            unreachable!()
        };
        assert_eq!((identity, bytes), (name, 8));
        assert_eq!(outcome.residual(), Some(ResidualOwnership { state, reason, retained_bytes, address, align }));
        // SAFETY: allocated from the heap with these values, and kept from any other release.
        unsafe { HostAllocator.deallocate(NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap(), bytes, align) };
    }
}

/// Which types may leave and share their thread.
mod send_and_sync {
    use super::*;

    traits! {
        Tier: Send, Sync;
        MemoryRole: Send, Sync;
        MemoryError: Send, Sync;
        MappedAllocation<u8>: Send, Sync;
        DeviceKey: Send, Sync;
        SharedPrefixCommitInfo: Send, Sync;
        HostAllocator: Send, Sync;
        ProviderContextPinError: Send, Sync;
        AuthorityIdentity: Send, Sync;
        ProviderContextIdentity: Send, Sync;
        MechanismIdentity: Send, Sync;
        BindingId: Send, Sync;
        BindingGeneration: Send, Sync;
        AllocationGeneration: Send, Sync;
        BindingIdentity: Send, Sync;
        AllocationIdentity: Send, Sync;
        MechanismCoherence: Send, Sync;
        MechanismLifecycle: Send, Sync;
        MechanismSnapshot: Send, Sync;
        BindingError: Send, Sync;
        OwningReleaseError: Send, Sync;
        ExplicitReleaseError: Send, Sync;
        BindingRegistry: Send, Sync;
        RegisteredProviderContext: Send, Sync;
        RegisteredAuthority: Send, Sync;
        RegisteredMechanism: Send, Sync;
        MemoryBinding: Send, Sync;
        BoundAllocation: Send, Sync;
        BoundMemoryView: Send, Sync;
        ValidatedMemoryView: Send, Sync;
        OwningAllocation: Send, Sync;
        OwnedView: Send, Sync;
        BoundVirtualBacking: Send, Sync;
        BoundSharedMapping: Send, Sync;
        BoundSharedPrefix: Send, Sync;
        AllocationReleaseState: Send, Sync;
        ReleaseAccounting: Send, Sync;
        QuarantineReason: Send, Sync;
        ResidualOwnership: Send, Sync;
        ReleaseFailure: Send, Sync;
        AllocationReleaseOutcome: Send, Sync;
        DeferredEnqueueRejection: Send, Sync;
        QuarantinedAllocation: Send, Sync;
        DeferredEnqueueError: Send, Sync;
        DeferredReleaseDisposition: Send, Sync;
        PreparedAllocationRelease: Send, Sync;
    }
    lacks! {
        AllocationCommitRange: Send, Sync;
        MappedAllocation<*const u8>: Send, Sync;
    }
}

/// What texts name, and what is whose source.
mod texts {
    use super::*;

    /// R153: the errors that carry something of the caller's, and those of queues and pins. `values.rs` has the others.
    #[test]
    fn texts_and_sources() {
        let registry = BindingRegistry::new().unwrap();
        let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(())).unwrap();
        let authority = registry.register_authority(DeviceKey::HOST, Arc::new(())).unwrap();
        registry.register_allocator(context, authority, Arc::new(HostAllocator)).unwrap();
        let binding = registry.bind(DeviceKey::HOST).unwrap();

        let owner = binding.allocate_owning(8, 8).unwrap();
        let view = owner.view(0, 8).unwrap();
        let error = owner.release_now().unwrap_err();
        assert_eq!(error.to_string(), error.error().to_string());
        let source: &BindingError = error.source().unwrap().downcast_ref().unwrap();
        assert!(std::ptr::eq(source, error.error()));
        let (_, owner) = error.into_parts();
        drop(view);

        let request = owner.prepare_release().unwrap();
        let identity = request.identity();
        let error = DeferredEnqueueError::new(DeferredEnqueueRejection::Full, request);
        let text = error.to_string();
        assert!(text.contains(&format!("{identity:?}")) && text.contains("full"), "{text}");
        assert!(error.source().is_none());
        assert!(error.into_request().execute().is_complete());

        let foreign = BindingRegistry::new().unwrap();
        let context = foreign.register_provider_context(DeviceKey::HOST, Arc::new(())).unwrap();
        let authority = foreign.register_authority(DeviceKey::HOST, Arc::new(())).unwrap();
        foreign.register_allocator(context, authority, Arc::new(HostAllocator)).unwrap();
        let other = foreign.bind(DeviceKey::HOST).unwrap();
        let error = binding.release(other.allocate(8, 8).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), error.error().to_string());
        let source: &BindingError = error.source().unwrap().downcast_ref().unwrap();
        assert!(std::ptr::eq(source, error.error()));
        other.release(error.into_parts().1).unwrap();

        let context = context.identity();
        let errors = [ProviderContextPinError::ContextUnavailable(context), ProviderContextPinError::PinCountOverflow(context)];
        for error in errors {
            assert!(error.to_string().contains(&format!("{context:?}")), "{error}");
            assert!(error.source().is_none());
        }
        assert_ne!(errors[0].to_string(), errors[1].to_string());
    }
}

/// What users do with all of it that a small change would break.
mod uses {
    use super::*;

    /// A user's own errors, transparent.
    #[derive(Debug, thiserror::Error)]
    enum UserError {
        #[error(transparent)]
        Binding(#[from] BindingError),
        #[error(transparent)]
        Memory(#[from] MemoryError),
    }

    /// A user's wrappers.
    #[derive(Clone, Debug)]
    struct Scoped {
        binding: MemoryBinding,
        backing: Option<BoundVirtualBacking>,
    }

    #[derive(Debug)]
    struct Everything {
        registry: BindingRegistry,
        mechanism: RegisteredMechanism,
        owner: Mutex<Option<OwningAllocation>>,
        request: Mutex<Option<PreparedAllocationRelease>>,
    }

    #[derive(Clone, Copy, Debug)]
    struct Borrowed<'a> {
        prefix: &'a dyn SharedDevicePrefix,
    }

    /// `then_some(self)`.
    #[derive(Debug)]
    struct Exposing {
        expose: bool,
        heap: HostAllocator,
    }

    impl DeviceAllocator for Exposing {
        fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
            self.heap.allocate(bytes, align)
        }

        unsafe fn deallocate(&self, ptr: NonNull<u8>, bytes: usize, align: usize) {
            // SAFETY: the caller's promise is passed on; all memory is the heap's.
            unsafe { self.heap.deallocate(ptr, bytes, align) };
        }

        fn device(&self) -> DeviceKey {
            self.heap.device()
        }

        fn as_virtual_backing(&self) -> Option<&dyn VirtualBacking> {
            self.expose.then_some(self)
        }

        fn as_shared_mapping(&self) -> Option<&dyn SharedMapping> {
            self.expose.then_some(self)
        }
    }

    impl VirtualBacking for Exposing {
        fn allocate_committed(&self, bytes: usize, align: usize, _: &[Range<usize>]) -> Result<NonNull<u8>, MemoryError> {
            self.heap.allocate(bytes, align)
        }

        fn commit_allocation_range(&self, _: NonNull<u8>, _: usize, _: usize, _: usize, _: usize) -> Result<(), MemoryError> {
            Ok(())
        }

        fn mapped_bytes_for_allocation_ranges(&self, _: &[AllocationCommitRange]) -> Result<u64, MemoryError> {
            Ok(0)
        }

        fn mapped_bytes_for_allocation(&self, _: usize, _: usize) -> Result<u64, MemoryError> {
            Ok(0)
        }

        fn decommit_allocation_range(&self, _: NonNull<u8>, _: usize, _: usize, _: usize, _: usize) -> Result<u64, MemoryError> {
            Ok(0)
        }

        fn allocation_committed_bytes(&self, _: NonNull<u8>, _: usize, _: usize) -> usize {
            0
        }
    }

    #[derive(Debug)]
    struct Prefix;

    impl SharedDevicePrefix for Prefix {
        fn device_ptr(&self) -> u64 {
            0
        }

        fn committed_physical_bytes(&self) -> u64 {
            0
        }

        fn mapped_bytes(&self) -> usize {
            0
        }

        fn requested_bytes(&self) -> usize {
            0
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    impl SharedMapping for Exposing {
        fn create_shared_prefix(&self, _: usize) -> Result<Box<dyn SharedDevicePrefix>, MemoryError> {
            Ok(Box::new(Prefix))
        }

        fn incremental_owned_bytes_for_shared_prefix(&self, prefix: &dyn SharedDevicePrefix) -> Result<u64, MemoryError> {
            let borrowed = Borrowed { prefix };
            let copy = borrowed;
            assert!(format!("{borrowed:?}").contains("Prefix") && copy.prefix.as_any().is::<Prefix>());
            Ok(0)
        }

        fn commit_shared_prefix(
            &self,
            prefix: &dyn SharedDevicePrefix,
            _: NonNull<u8>,
            _: usize,
            _: usize,
        ) -> Result<SharedPrefixCommitInfo, MemoryError> {
            assert!(prefix.as_any().is::<Prefix>());
            Ok(SharedPrefixCommitInfo::default())
        }
    }

    fn owning(capability: &BoundVirtualBacking) -> Result<OwningAllocation, UserError> {
        capability.allocate_committed(64, 8, &[0..16, 32..64]).map(OwningAllocation::new).map_err(Into::into)
    }

    fn user_code(registry: &BindingRegistry) -> Result<usize, UserError> {
        let binding = registry.bind(DeviceKey::HOST)?;
        HostAllocator.allocate(8, 3)?;
        Ok(binding.quarantined()?.len())
    }

    /// R153: one use of each.
    #[test]
    fn shapes() {
        let registry = BindingRegistry::new().unwrap();
        let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(())).unwrap();
        let authority = registry.register_authority(DeviceKey::HOST, Arc::new(String::new())).unwrap();
        let allocator = Arc::new(Exposing { expose: true, heap: HostAllocator });
        let mechanism = registry.register_allocator(context, authority, allocator).unwrap();
        let binding = registry.bind(DeviceKey::HOST).unwrap();
        assert!(Exposing { expose: false, heap: HostAllocator }.as_shared_mapping().is_none());

        // Errors of a user's own.
        assert!(matches!(user_code(&registry), Err(UserError::Memory(MemoryError::InvalidRequest { .. }))));
        let none = registry.bind(DeviceKey::device(1)).map(drop).map_err(UserError::from).unwrap_err();
        assert_eq!(none.to_string(), BindingError::NoSelectedMechanism(DeviceKey::device(1)).to_string());

        // Wrappers, paths as functions, tokens by value again and again.
        let scoped = Scoped { backing: binding.virtual_backing().unwrap(), binding };
        let scoped = scoped.clone();
        let owner = owning(scoped.backing.as_ref().unwrap()).unwrap();
        let request = owning(scoped.backing.as_ref().unwrap()).unwrap().prepare_release().unwrap();
        assert_eq!(registry.snapshot(mechanism).unwrap(), registry.snapshot(mechanism).unwrap());
        let everything = Arc::new(Everything {
            registry: registry.clone(),
            mechanism,
            owner: Mutex::new(Some(owner)),
            request: Mutex::new(Some(request)),
        });
        assert!(format!("{everything:?} {scoped:?}").contains("request"));
        let elsewhere = Arc::clone(&everything);
        let ended = std::thread::spawn(move || {
            let outcome = elsewhere.request.lock().unwrap().take().map(PreparedAllocationRelease::execute);
            assert_eq!(elsewhere.registry.snapshot(elsewhere.mechanism).unwrap().queued_releases, 0);
            outcome
        });
        let outcome = ended.join().unwrap();
        assert_eq!(outcome.as_ref().and_then(AllocationReleaseOutcome::residual), None);
        let outcome = everything.owner.lock().unwrap().take().map(OwningAllocation::release_now).unwrap().unwrap();
        assert_eq!(outcome, AllocationReleaseOutcome::complete(ReleaseAccounting::eager(64)));
        let refusal = std::thread::spawn(move || registry.bind(DeviceKey::device(1)).map(drop)).join().unwrap();
        assert!(refusal.is_err());

        let mapping = scoped.binding.shared_mapping().unwrap().unwrap();
        let prefix = mapping.create_shared_prefix(8).unwrap();
        mapping.incremental_owned_bytes_for_shared_prefix(&prefix).unwrap();
        let allocation = scoped.binding.allocate(8, 8).unwrap();
        assert_eq!(mapping.commit_shared_prefix(&prefix, &allocation, 0).unwrap(), SharedPrefixCommitInfo::default());

        // Keys.
        let names: HashSet<AllocationIdentity> = [allocation.identity(), allocation.identity()].into();
        let by_device: HashMap<DeviceKey, HashMap<Tier, usize>> = [(DeviceKey::HOST, [(Tier::Host, names.len())].into())].into();
        assert_eq!(by_device[&DeviceKey::HOST][&Tier::Host], 1);
        let supports: (HashSet<AuthorityIdentity>, HashSet<ProviderContextIdentity>) =
            ([authority.identity()].into(), [context.identity()].into());
        let mut sorted: Vec<_> = supports.0.iter().collect();
        sorted.sort_by_key(|identity| format!("{identity:?}"));
        assert_eq!(sorted.len(), supports.1.len());
        scoped.binding.release(allocation).unwrap();
    }

    /// A `Box<dyn Error>` of anything.
    const _: fn(BindingError) -> Box<AnyError> = |error| Box::new(error);
    const _: fn(DeferredEnqueueError) -> Box<AnyError> = |error| Box::new(error);
    const _: fn(OwningReleaseError) -> Box<AnyError> = |error| error.into();
    const _: fn(&mut fmt::Formatter<'_>, &BindingError) -> fmt::Result = |formatter, error| Display::fmt(error, formatter);
}
