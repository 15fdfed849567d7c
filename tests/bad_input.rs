//! Each call with everything that can be wrong with it, in all combinations: the error that comes first wins, and nothing is changed.

mod common {
    pub mod arm;
    pub mod capable;
    pub mod doubles;
    pub mod lifecycle;
    pub mod phases;
    pub mod queue;
    pub mod refused;
    pub mod rig;
}

use common::{
    arm::arm,
    capable::Capable,
    doubles::Double,
    lifecycle::{REASON, bring},
    phases::PHASES,
    queue::Queue,
    refused::{Expected, refused},
    rig::{DEVICE, Rig},
};
use liveslot::{MechanismLifecycle::*, *};
use std::{fmt::Debug, sync::Arc};

const OTHER: DeviceKey = DeviceKey::device(1);

/// What a token is to the registry it is given to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token {
    Good,
    Removed,
    Foreign,
}

const TOKENS: [Token; 3] = [Token::Good, Token::Removed, Token::Foreign];

/// Everything that a refused call could have changed.
fn state(rig: &Rig) -> impl PartialEq + Debug + use<> {
    let device = rig.registry.device(DEVICE);
    let quarantined = rig.registry.snapshot(rig.mechanism).ok().map(|_| rig.registry.quarantined(rig.mechanism).unwrap());
    (rig.registry.snapshots().unwrap(), device.selected(), device.version(), quarantined)
}

/// Demands that `call` is refused, and leaves no trace.
#[track_caller]
fn refused_without_a_trace<T: Debug>(rig: &Rig, call: impl FnOnce() -> Result<T, BindingError>, expected: impl Into<Expected>) {
    rig.log.take();
    let before = state(rig);
    refused(call(), expected);
    assert_eq!(state(rig), before);
    assert_eq!(rig.log.take(), [""; 0], "nobody was called");
}

/// The refusal by a lifecycle, on the rig's device.
fn refusal(mechanism: RegisteredMechanism, lifecycle: MechanismLifecycle) -> Expected {
    match lifecycle {
        DeviceLost => BindingError::DeviceLost { device: DEVICE, reason: REASON.into() }.into(),
        lifecycle => (mechanism, lifecycle).into(),
    }
}

/// R10, R11, R16: registration: foreign before unregistered, context before authority, tokens before devices, authority before allocator.
#[test]
fn registering_an_allocator() {
    let (rig, elsewhere) = (Rig::new(), Rig::new());
    for context_kind in TOKENS {
        for authority_kind in TOKENS {
            for authority_device in [DEVICE, OTHER] {
                for allocator_device in [DEVICE, OTHER] {
                    let context_of = if context_kind == Token::Foreign { &elsewhere } else { &rig }.registry.clone();
                    let authority_of = if authority_kind == Token::Foreign { &elsewhere } else { &rig }.registry.clone();
                    let context = context_of.register_provider_context(DEVICE, Arc::new(())).unwrap();
                    let authority = authority_of.register_authority(authority_device, Arc::new(())).unwrap();
                    if context_kind == Token::Removed {
                        rig.registry.remove_provider_context(context).unwrap();
                    }
                    if authority_kind == Token::Removed {
                        rig.registry.remove_authority(authority).unwrap();
                    }
                    let register = || {
                        let allocator = Arc::new(HostAllocator);
                        rig.registry.register_allocator_with_device(context, authority, allocator, allocator_device)
                    };
                    let mismatch = |subject, actual| BindingError::DeviceMismatch { subject, expected: DEVICE, actual };
                    let expected = if context_kind == Token::Foreign {
                        BindingError::ForeignRegistry { kind: "provider context" }
                    } else if authority_kind == Token::Foreign {
                        BindingError::ForeignRegistry { kind: "authority" }
                    } else if context_kind == Token::Removed {
                        BindingError::UnregisteredProviderContext(context.identity())
                    } else if authority_kind == Token::Removed {
                        BindingError::UnregisteredAuthority(authority.identity())
                    } else if authority_device != DEVICE {
                        mismatch("authority", authority_device)
                    } else if allocator_device != DEVICE {
                        mismatch("allocator", allocator_device)
                    } else {
                        let registered = register().unwrap();
                        rig.registry.retire(registered).unwrap();
                        rig.registry.remove(registered).unwrap();
                        continue;
                    };
                    refused_without_a_trace(&rig, register, expected);
                    // No use was counted, on either side.
                    if context_kind != Token::Removed {
                        context_of.remove_provider_context(context).unwrap();
                    }
                    if authority_kind != Token::Removed {
                        authority_of.remove_authority(authority).unwrap();
                    }
                }
            }
        }
    }
    elsewhere.finish();
    rig.finish();
}

/// R9, R11, R16: the same order where the allocator is asked for its device; it is asked first and dropped last.
#[test]
fn registering_an_allocator_that_is_asked() {
    let (rig, elsewhere) = (Rig::new(), Rig::new());
    let allocator = || Double::new("B", ["Q", "C"], OTHER, &rig.log, &Default::default());
    let before = state(&rig);
    let foreign = |kind| BindingError::ForeignRegistry { kind };
    refused(rig.registry.register_allocator(elsewhere.context, elsewhere.authority, allocator()), foreign("provider context"));
    refused(rig.registry.register_allocator(rig.context, elsewhere.authority, allocator()), foreign("authority"));
    let mismatch = BindingError::DeviceMismatch { subject: "allocator", expected: DEVICE, actual: OTHER };
    refused(rig.registry.register_allocator(rig.context, rig.authority, allocator()), mismatch);
    assert_eq!(rig.log.take(), ["B device", "B dropped"].repeat(3));
    assert_eq!(state(&rig), before);
    elsewhere.finish();
    rig.finish();
}

type MechanismCall = fn(&BindingRegistry, RegisteredMechanism) -> Result<(), BindingError>;

/// Each call that takes a mechanism's token.
const MECHANISM_CALLS: [(&str, MechanismCall); 7] = [
    ("select", |registry, token| registry.select(token)),
    ("select_if", |registry, token| {
        let device = registry.device(DEVICE);
        match device.select_if(device.version(), token) {
            Err(SelectIfError::Binding(error)) => Err(error),
            other => panic!("not refused by the registry: {other:?}"),
        }
    }),
    ("bind_registered", |registry, token| registry.bind_registered(token).map(drop)),
    ("retire", |registry, token| registry.retire(token)),
    ("remove", |registry, token| registry.remove(token)),
    ("snapshot", |registry, token| registry.snapshot(token).map(drop)),
    ("quarantined", |registry, token| registry.quarantined(token).map(drop)),
];

/// R16: a foreign token is refused before it is looked up, whatever became of its mechanism at home; a removed one before its lifecycle is
/// looked at.
#[test]
fn tokens_of_mechanisms() {
    for (call, run) in MECHANISM_CALLS {
        println!("{call}");
        for phase in PHASES {
            let (rig, elsewhere) = (Rig::new(), Rig::new());
            bring(&elsewhere, phase);
            let foreign = || BindingError::ForeignRegistry { kind: "mechanism" };
            refused_without_a_trace(&rig, || run(&rig.registry, elsewhere.mechanism), foreign());
            assert_eq!(elsewhere.registry.snapshot(elsewhere.mechanism).unwrap().lifecycle, phase);
            elsewhere.registry.retire(elsewhere.mechanism).unwrap();
            elsewhere.registry.remove(elsewhere.mechanism).unwrap();
            refused_without_a_trace(&rig, || run(&rig.registry, elsewhere.mechanism), foreign());

            bring(&rig, phase);
            rig.registry.retire(rig.mechanism).unwrap();
            rig.registry.remove(rig.mechanism).unwrap();
            let removed = BindingError::UnregisteredMechanism(rig.mechanism.identity());
            refused_without_a_trace(&rig, || run(&rig.registry, rig.mechanism), removed);
        }
    }
}

type Confirm = fn(&Rig, &Rig) -> Result<(), BindingError>;

/// R16, R46: contexts and authorities: foreign, then unregistered, then in use.
#[test]
fn tokens_of_supports() {
    let context_calls: [Confirm; 2] =
        [|rig, of| rig.registry.confirm_context_terminated(of.context), |rig, of| rig.registry.remove_provider_context(of.context)];
    for run in context_calls {
        let (rig, elsewhere) = (Rig::new(), Rig::new());
        let foreign = || BindingError::ForeignRegistry { kind: "provider context" };
        refused_without_a_trace(&rig, || run(&rig, &elsewhere), foreign());
        elsewhere.registry.invalidate_device(DEVICE, REASON).unwrap();
        elsewhere.registry.remove(elsewhere.mechanism).unwrap();
        elsewhere.registry.remove_provider_context(elsewhere.context).unwrap();
        refused_without_a_trace(&rig, || run(&rig, &elsewhere), foreign());
        bring(&rig, Terminated);
        rig.registry.remove(rig.mechanism).unwrap();
        rig.registry.remove_provider_context(rig.context).unwrap();
        refused_without_a_trace(&rig, || run(&rig, &rig), BindingError::UnregisteredProviderContext(rig.context.identity()));
    }

    let (rig, elsewhere) = (Rig::new(), Rig::new());
    let remove = |of: &Rig| rig.registry.remove_authority(of.authority);
    refused_without_a_trace(&rig, || remove(&elsewhere), BindingError::ForeignRegistry { kind: "authority" });
    for phase in &PHASES[..3] {
        bring(&rig, *phase);
        refused_without_a_trace(&rig, || remove(&rig), BindingError::AuthorityInUse(rig.authority.identity()));
        let in_use = BindingError::ProviderContextInUse(rig.context.identity());
        refused_without_a_trace(&rig, || rig.registry.remove_provider_context(rig.context), in_use);
    }
    rig.registry.remove(rig.mechanism).unwrap();
    remove(&rig).unwrap();
    refused_without_a_trace(&rig, || remove(&rig), BindingError::UnregisteredAuthority(rig.authority.identity()));
    elsewhere.finish();
}

/// R19, R23, R26, R31, R40: lifecycles refuse selecting and binding; selecting by one kind of error throughout.
#[test]
fn lifecycles_at_the_registry() {
    for phase in &PHASES[1..] {
        let rig = Rig::new();
        bring(&rig, *phase);
        refused_without_a_trace(&rig, || rig.registry.select(rig.mechanism), (rig.mechanism, *phase));
        refused_without_a_trace(&rig, || rig.registry.bind_registered(rig.mechanism), refusal(rig.mechanism, *phase));
        refused_without_a_trace(&rig, || rig.registry.bind(DEVICE), BindingError::NoSelectedMechanism(DEVICE));
        refused_without_a_trace(&rig, || rig.registry.bind(OTHER), BindingError::NoSelectedMechanism(OTHER));
        rig.finish();
    }
}

/// R36, R42: termination and removal, with an operation and without, with ownership of each kind and without, in each lifecycle.
#[test]
fn confirming_and_removing() {
    for phase in [Active, Retired, DeviceLost] {
        for operation in [false, true] {
            for live in [false, true] {
                for quarantined in [0, 2] {
                    let rig = Rig::new();
                    let binding = rig.registry.bind(DEVICE).unwrap();
                    for _ in 0..quarantined {
                        let allocation = binding.allocate(8, 8).unwrap();
                        arm(&rig.script.release, || AllocationReleaseOutcome::failed("stuck"));
                        drop(binding.release(allocation).unwrap_err());
                    }
                    let allocation = binding.allocate(8, 8).unwrap();
                    let view = allocation.view(0, 8).unwrap();
                    let proceed = || {
                        let kept = if live { Some(allocation) } else { binding.release(allocation).map(|()| None).unwrap() };
                        bring(&rig, phase);
                        let confirm = || rig.registry.confirm_context_terminated(rig.context);
                        if phase != DeviceLost {
                            refused_without_a_trace(&rig, confirm, (rig.mechanism, phase));
                        } else if operation {
                            let busy = BindingError::ContextNotQuiescent { context: rig.context.identity(), active_operations: 1 };
                            refused_without_a_trace(&rig, confirm, busy);
                        }
                        let remove = || rig.registry.remove(rig.mechanism);
                        if quarantined != 0 {
                            let owning = BindingError::QuarantinedOwnership { mechanism: rig.mechanism.identity(), quarantined };
                            refused_without_a_trace(&rig, remove, owning);
                        } else if phase == Active || live || operation {
                            refused_without_a_trace(&rig, remove, (rig.mechanism, phase));
                        } else {
                            remove().unwrap();
                        }
                        drop(kept);
                    };
                    if operation {
                        binding.with_view(&view, |_| proceed()).unwrap();
                    } else {
                        proceed();
                    }
                }
            }
        }
    }
}

/// Calls that allocate. The allocator's own part is the last of what each logs.
type Allocate = fn(&Capable) -> Result<(), BindingError>;
const ALLOCATING: [(&str, Allocate); 3] = [
    ("A allocate 8 8", |own| own.binding.allocate(8, 8).map(drop)),
    ("A allocate 8 8", |own| own.binding.allocate_owning(8, 8).map(drop)),
    ("A allocate_committed 8 8 [0..2, 4..8]", |own| own.backing.allocate_committed(8, 8, &[0..2, 4..8]).map(drop)),
];

/// R26, R31, R40, R59, R77: an allocation is refused by the lifecycle, or else by the allocator.
#[test]
fn allocating() {
    let no = || MemoryError::InvalidRequest { tier: "test", requested: 0, reason: "no" };
    for (call, allocate) in ALLOCATING {
        for phase in PHASES {
            let rig = Rig::new();
            let own = Capable::of(&rig);
            bring(&rig, phase);
            if phase == Active {
                let before = state(&rig);
                let hooked = call.contains("committed");
                if hooked {
                    arm(&rig.script.capability, move || Err(no()));
                } else {
                    arm(&rig.script.allocate, move || Err(no()));
                }
                refused(allocate(&own), BindingError::Memory(no()));
                assert_eq!(rig.log.take().last().unwrap(), call);
                assert_eq!(state(&rig), before);
            } else {
                refused_without_a_trace(&rig, || allocate(&own), refusal(rig.mechanism, phase));
            }
            drop(own);
            rig.finish();
        }
    }
}

/// R26, R31, R40: discovery and adoption, and capability calls that take neither an allocation nor a prefix, are refused by the lifecycle
/// alone.
#[test]
fn asking_and_adopting() {
    type Ask = fn(&Capable) -> Result<(), BindingError>;
    let asking: [Ask; 5] = [
        |own| own.binding.virtual_backing().map(drop),
        |own| own.binding.shared_mapping().map(drop),
        |own| own.backing.mapped_bytes_for_allocation(0, 3).map(drop),
        |own| own.mapping.create_shared_prefix(0).map(drop),
        // SAFETY: where it is accepted, the owner of nothing is dropped, and nobody acts on its quarantine.
        |own| unsafe { own.binding.adopt_allocation(std::ptr::NonNull::dangling(), 0, 1) }.map(drop),
    ];
    for ask in asking {
        for phase in PHASES {
            let rig = Rig::new();
            let own = Capable::of(&rig);
            bring(&rig, phase);
            match phase {
                Active => ask(&own).unwrap(),
                phase => refused_without_a_trace(&rig, || ask(&own), refusal(rig.mechanism, phase)),
            }
        }
    }
}

/// What metadata is to the binding it is given to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Origin {
    Own,
    Sibling,
    Elsewhere,
}

/// A binding, and metadata that may be used with it or not.
struct Case<'a> {
    rig: &'a Rig,
    own: &'a Capable,
    allocation: BoundAllocation,
    view: BoundMemoryView,
    /// One of `own`, one of what made the allocation, and one of neither.
    prefixes: [BoundSharedPrefix; 3],
    phase: MechanismLifecycle,
    stale: bool,
}

impl Case<'_> {
    /// What refuses the allocation to a call that wants an Active mechanism.
    fn refusal(&self) -> Option<Expected> {
        match self.phase {
            Active if self.allocation.binding().identity() != self.own.binding.identity() => {
                Some(mismatch(&self.own.binding, self.allocation.identity().binding().id()).into())
            }
            Active if self.stale => Some(BindingError::StaleAllocation(self.allocation.identity()).into()),
            Active => None,
            phase => Some(refusal(self.rig.mechanism, phase)),
        }
    }
}

/// Calls `with` for everything that metadata can be: of whatever origin, whose mechanism elsewhere is in whatever lifecycle, live or stale.
fn metadata(with: impl Fn(Case<'_>)) {
    for phase in PHASES {
        for origin in [Origin::Own, Origin::Sibling, Origin::Elsewhere] {
            for phase_elsewhere in if origin == Origin::Elsewhere { &PHASES[..] } else { &[Active] } {
                for stale in [false, true] {
                    println!("{phase:?}, {origin:?} {phase_elsewhere:?}, stale: {stale}");
                    let (rig, elsewhere) = (Rig::new(), Rig::new());
                    let (own, far) = (Capable::of(&rig), Capable::of(&elsewhere));
                    let (sibling, third) = (Capable::of(&rig), Capable::of(&rig));
                    let (home, maker) = match origin {
                        Origin::Own => (&rig, &own),
                        Origin::Sibling => (&rig, &sibling),
                        Origin::Elsewhere => (&elsewhere, &far),
                    };
                    let prefixes = [&own, maker, &third].map(|of| of.mapping.create_shared_prefix(32).unwrap());
                    let mut allocation = maker.binding.allocate(64, 8).unwrap();
                    let view = allocation.view(0, 64).unwrap();
                    if stale {
                        arm(&home.script.release, || AllocationReleaseOutcome::failed("stuck"));
                        allocation = maker.binding.release(allocation).unwrap_err().into_parts().1;
                    }
                    bring(&elsewhere, *phase_elsewhere);
                    bring(&rig, phase);
                    elsewhere.log.take();
                    with(Case { rig: &rig, own: &own, allocation, view, prefixes, phase, stale });
                    let dropped = elsewhere.log.take();
                    assert!(dropped.is_empty() || dropped == ["P dropped"], "nobody was called: {dropped:?}");
                }
            }
        }
    }
}

fn mismatch(expected: &MemoryBinding, actual: BindingId) -> BindingError {
    BindingError::BindingMismatch { expected: expected.identity().id(), actual }
}

/// R55, R62, R64: a release is refused by the lifecycle of the binding it is asked of, then as another's, then as stale; the metadata comes
/// back. So is its preparation.
#[test]
fn releasing() {
    type Release = fn(&MemoryBinding, BoundAllocation) -> Result<(), ExplicitReleaseError>;
    let releasing: [Release; 2] = [
        |binding, allocation| binding.release(allocation),
        |binding, allocation| {
            assert!(binding.prepare_release(allocation)?.execute().is_complete());
            Ok(())
        },
    ];
    for release in releasing {
        metadata(|Case { rig, own: Capable { binding, .. }, allocation, phase, stale, .. }| {
            let is_own = allocation.binding().identity() == binding.identity();
            let expected: Expected = match phase {
                DeviceLost | Terminated => refusal(rig.mechanism, phase),
                Active | Retired if !is_own => mismatch(binding, allocation.binding().identity().id()).into(),
                Active | Retired if stale => BindingError::StaleAllocation(allocation.identity()).into(),
                Active | Retired => {
                    release(binding, allocation).unwrap();
                    return;
                }
            };
            let (identity, pointer) = (allocation.identity(), allocation.as_ptr());
            let mut back = None;
            let call = || {
                let error = release(binding, allocation).unwrap_err();
                assert_eq!((error.is_quarantined(), error.outcome(), error.state()), (false, None, AllocationReleaseState::Live));
                let (error, allocation) = error.into_parts();
                back = Some(allocation);
                Err::<(), _>(error)
            };
            refused_without_a_trace(rig, call, expected);
            let back = back.unwrap();
            assert_eq!((back.identity(), back.as_ptr(), back.len(), back.alignment()), (identity, pointer, 64, 8));
        });
    }
}

/// R55, R64: a look is refused by the lifecycle of the binding it is asked of, then as another's, then as stale; the closure does not run.
#[test]
fn looking() {
    metadata(|case| match case.refusal() {
        None => case.own.binding.with_view(&case.view, |_| ()).unwrap(),
        Some(expected) => {
            let look = || case.own.binding.with_view(&case.view, |_| panic!("the closure runs"));
            refused_without_a_trace(case.rig, look, expected);
        }
    });
}

/// R55, R64, R76: the calls of a virtual backing on allocations, in the same order; no range is looked at.
#[test]
fn backing() {
    type Call = fn(&BoundVirtualBacking, &BoundAllocation) -> Result<(), BindingError>;
    let calls: [Call; 4] = [
        |backing, allocation| backing.commit_allocation_range(allocation, 65, usize::MAX),
        |backing, allocation| backing.commit_allocation_ranges(&[(allocation, 65, usize::MAX)]),
        |backing, allocation| backing.decommit_allocation_range(allocation, 65, usize::MAX).map(drop),
        |backing, allocation| backing.allocation_committed_bytes(allocation).map(drop),
    ];
    metadata(|case| {
        for call in calls {
            match case.refusal() {
                None => call(&case.own.backing, &case.allocation).unwrap(),
                Some(expected) => refused_without_a_trace(case.rig, || call(&case.own.backing, &case.allocation), expected),
            }
        }
    });
}

/// R55, R64, R79: the calls of a shared mapping: the lifecycle, the prefix, then the allocation as another's, then as stale.
#[test]
fn mapping() {
    metadata(|case| {
        let Capable { binding, mapping, .. } = case.own;
        for prefix in &case.prefixes {
            let refusal_of_prefix = match case.phase {
                Active if prefix.binding_identity() != binding.identity() => Some(mismatch(binding, prefix.binding_identity().id()).into()),
                Active => None,
                phase => Some(refusal(case.rig.mechanism, phase)),
            };
            match refusal_of_prefix.clone() {
                None => drop(mapping.incremental_owned_bytes_for_shared_prefix(prefix).unwrap()),
                Some(expected) => {
                    refused_without_a_trace(case.rig, || mapping.incremental_owned_bytes_for_shared_prefix(prefix), expected);
                }
            }
            match refusal_of_prefix.or_else(|| case.refusal()) {
                None => drop(mapping.commit_shared_prefix(prefix, &case.allocation, 65).unwrap()),
                Some(expected) => {
                    refused_without_a_trace(case.rig, || mapping.commit_shared_prefix(prefix, &case.allocation, 65), expected);
                }
            }
        }
    });
}

/// R82, R83, R85: an owner is refused because of its views, then by its lifecycle, then as stale; its metadata because of its views alone.
#[test]
fn releasing_owners() {
    type End = fn(OwningAllocation) -> Result<(), OwningReleaseError>;
    let ends: [End; 4] = [
        |owner| owner.into_bound().map(drop),
        |owner| owner.prepare_release().map(drop),
        |owner| owner.release_now().map(drop),
        |owner| {
            owner
                .release_deferred(&Queue(|request: PreparedAllocationRelease| {
                    request.execute();
                    Ok(())
                }))
                .map(drop)
        },
    ];
    for (number, end) in ends.into_iter().enumerate() {
        for phase in PHASES {
            for views in [0, 1, 3] {
                for stale in [false, true] {
                    let rig = Rig::new();
                    let binding = rig.registry.bind(DEVICE).unwrap();
                    let mut owner = binding.allocate_owning(64, 8).unwrap();
                    let held: Vec<_> = (0..views).map(|_| owner.view(0, 8).unwrap()).collect();
                    if stale {
                        // Whoever has views of an owner keeps it from getting stale.
                        let Ok(bound) = owner.into_bound() else { continue };
                        arm(&rig.script.release, || AllocationReleaseOutcome::failed("stuck"));
                        owner = OwningAllocation::new(binding.release(bound).unwrap_err().into_parts().1);
                    }
                    bring(&rig, phase);
                    let identity = owner.identity();
                    let expected: Expected = if views != 0 {
                        BindingError::OutstandingViews { identity, views }.into()
                    } else if number == 0 {
                        assert_eq!(owner.into_bound().unwrap().identity(), identity);
                        continue;
                    } else if matches!(phase, DeviceLost | Terminated) {
                        refusal(rig.mechanism, phase)
                    } else if stale {
                        BindingError::StaleAllocation(identity).into()
                    } else {
                        end(owner).unwrap();
                        continue;
                    };
                    let mut back = None;
                    let call = || {
                        let (error, owner) = end(owner).unwrap_err().into_parts();
                        back = Some(owner);
                        Err::<(), _>(error)
                    };
                    refused_without_a_trace(&rig, call, expected);
                    assert_eq!(back.unwrap().outstanding_views(), views);
                    drop(held);
                }
            }
        }
    }
}

/// R68, R69: a view is refused by its range, then by the lifecycle of its own mechanism, then as stale.
#[test]
fn viewing() {
    for phase in PHASES {
        for stale in [false, true] {
            for (offset, bytes) in [(0_usize, 64), (64, 0), (1, 64), (65, 0), (2, usize::MAX)] {
                let rig = Rig::new();
                let binding = rig.registry.bind(DEVICE).unwrap();
                let mut allocation = binding.allocate(64, 8).unwrap();
                if stale {
                    arm(&rig.script.release, || AllocationReleaseOutcome::failed("stuck"));
                    allocation = binding.release(allocation).unwrap_err().into_parts().1;
                }
                bring(&rig, phase);
                let end = offset.checked_add(bytes);
                let expected: Expected = if end.is_none_or(|end| end > 64) {
                    BindingError::ViewOutOfBounds { offset, end: end.unwrap_or(usize::MAX), allocation_bytes: 64 }.into()
                } else if phase != Active {
                    refusal(rig.mechanism, phase)
                } else if stale {
                    BindingError::StaleAllocation(allocation.identity()).into()
                } else {
                    assert_eq!(allocation.view(offset, bytes).unwrap().len(), bytes);
                    continue;
                };
                refused_without_a_trace(&rig, || allocation.view(offset, bytes), expected);
            }
        }
    }
}

/// R28: there is nothing wrong with losing a device, known or not, lost or not.
#[test]
fn losing_is_never_refused() {
    let rig = Rig::new();
    for device in [OTHER, DEVICE, DEVICE, DeviceKey::HOST] {
        rig.registry.invalidate_device(device, "").unwrap();
    }
    refused(rig.registry.bind_registered(rig.mechanism), BindingError::DeviceLost { device: DEVICE, reason: "".into() });
    rig.finish();
}
