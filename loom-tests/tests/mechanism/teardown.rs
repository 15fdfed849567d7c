//! R45, R48, R50, R56, R149: who tears down, when, and in which order.

use super::{rig::*, support::race, witness::*};
use liveslot_loom::{
    BindingError, BindingRegistry, BoundAllocation, MemoryBinding, RegisteredAuthority, RegisteredMechanism, RegisteredProviderContext,
    internals::epoch,
};
use std::sync::Arc;

const IN_ORDER: [&str; 3] = ["allocator", "authority", "context"];

/// A mechanism towards its end, and the bindings that still hold it.
struct Ending {
    registry: BindingRegistry,
    context: RegisteredProviderContext,
    authority: RegisteredAuthority,
    mechanism: RegisteredMechanism,
    holds: Vec<Held<MemoryBinding>>,
    allocation: Option<Held<BoundAllocation>>,
    witness: Arc<Witness>,
}

impl Ending {
    fn new(holds: usize) -> Self {
        let Rig { registry, context, authority, mechanism, binding, witness, .. } = Rig::new(1, 0, true);
        let holds = (0..holds).map(|_| Held::new(binding.clone())).collect();
        Self { registry, context, authority, mechanism, holds, allocation: None, witness }
    }

    fn retired(holds: usize) -> Self {
        let ending = Self::new(holds);
        ending.registry.retire(ending.mechanism).unwrap();
        ending
    }

    fn removed(holds: usize) -> Self {
        let ending = Self::retired(holds);
        ending.remove().unwrap();
        ending
    }

    /// One live allocation, which holds the mechanism as well; retired.
    fn allocated() -> Self {
        let mut ending = Self::new(1);
        let binding = ending.holds[0].take();
        ending.allocation = Some(Held::new(binding.allocate(BYTES, 1).unwrap()));
        ending.holds = vec![Held::new(binding)];
        ending.registry.retire(ending.mechanism).unwrap();
        ending
    }

    /// Whatever the mechanism needs is the mechanism's alone from then on.
    fn remove(&self) -> Result<(), BindingError> {
        self.registry.remove(self.mechanism)?;
        self.registry.remove_authority(self.authority)?;
        self.registry.remove_provider_context(self.context)
    }

    fn retire_and_remove(&self) -> Result<(), BindingError> {
        self.registry.retire(self.mechanism)?;
        self.remove()
    }

    fn let_go(&self, n: usize) -> Result<(), BindingError> {
        drop(self.holds[n].take());
        Ok(())
    }

    fn release_and_let_go(&self) -> Result<(), BindingError> {
        let binding = self.holds[0].take();
        let allocation = self.allocation.as_ref().expect("something is allocated").take();
        binding.release(allocation).map_err(|refused| refused.into_parts().0)
    }

    fn bind_registered(&self) -> Result<(), BindingError> {
        self.registry.bind_registered(self.mechanism).map(drop)
    }

    fn bind(&self) -> Result<(), BindingError> {
        self.registry.bind(DEVICE).map(drop)
    }

    /// The registry is alive, and nothing else happens.
    fn is_over(&self) {
        assert_eq!(self.witness.destroyed(), IN_ORDER, "destroyed too late, too often or out of order");
    }
}

/// R48, R50, R149: a hold that goes and a removal: one of the two destroys everything.
#[test]
fn the_last_hold_and_remove() {
    race(
        || Ending::retired(1),
        &[|ending: &Ending| ending.let_go(0), Ending::remove],
        |ending, answers| {
            assert!(answers.iter().all(Result::is_ok), "{answers:?}");
            ending.is_over();
        },
    );
}

/// R50: promptly, though the memory of the entry is not reclaimed before the end.
#[test]
fn the_last_hold_and_remove_without_reclamation() {
    let lazily = || {
        epoch::lazy();
        Ending::retired(1)
    };
    race(lazily, &[|ending: &Ending| ending.let_go(0), Ending::remove], |ending, _| {
        ending.is_over();
        epoch::finish();
        ending.is_over();
    });
}

/// R45, R149: of the last two holds on what was removed, one destroys.
#[test]
fn the_last_two_holds() {
    race(|| Ending::removed(2), &[|ending: &Ending| ending.let_go(0), |ending: &Ending| ending.let_go(1)], |ending, _| ending.is_over());
}

/// R48, R138: the release behind the last hold happens before the destruction, wherever that is.
#[test]
fn release_and_the_last_hold_and_remove() {
    race(Ending::allocated, &[Ending::release_and_let_go, Ending::remove], |ending, answers| {
        assert!(answers[0].is_ok(), "{answers:?}");
        if answers[1].is_err() {
            ending.remove().unwrap();
        }
        ending.is_over();
        assert_eq!(ending.witness.released(), 1);
    });
}

/// R44, R50: a look-up that has found the mechanism in the table holds it, or comes too late.
#[test]
fn bind_registered_and_remove() {
    race(
        || Ending::new(0),
        &[Ending::bind_registered, Ending::retire_and_remove],
        |ending, answers| {
            use BindingError::{InactiveMechanism, UnregisteredMechanism};
            let bound = matches!(answers[0], Ok(()) | Err(InactiveMechanism { .. } | UnregisteredMechanism(_)));
            assert!(bound && answers[1].is_ok(), "{answers:?}");
            ending.is_over();
        },
    );
}

/// The same without reclamation: memory that the look-up looks at is not what it may hold.
#[test]
fn bind_registered_and_remove_without_reclamation() {
    let lazily = || {
        epoch::lazy();
        Ending::new(0)
    };
    race(lazily, &[Ending::bind_registered, Ending::retire_and_remove], |ending, _| {
        ending.is_over();
        epoch::finish();
    });
}

/// R24, R50: the same through the slot.
#[test]
fn bind_and_remove() {
    race(
        || Ending::new(0),
        &[Ending::bind, Ending::retire_and_remove],
        |ending, answers| {
            assert!(answers[1].is_ok() && matches!(answers[0], Ok(()) | Err(BindingError::NoSelectedMechanism(_))), "{answers:?}");
            ending.is_over();
        },
    );
}

/// R56, R51, I4: the registry goes while a binding works: nobody is inside the allocator when it is destroyed, and every use of it is over.
#[test]
fn allocate_and_the_end_of_the_registry() {
    struct Left {
        registry: Held<BindingRegistry>,
        binding: Held<MemoryBinding>,
        witness: Arc<Witness>,
    }
    let left = || {
        let Rig { registry, binding, witness, .. } = Rig::new(1, 0, true);
        Left { registry: Held::new(registry), binding: Held::new(binding), witness }
    };
    let allocate = |left: &Left| {
        let binding = left.binding.take();
        drop(binding.allocate(BYTES, 1).unwrap());
    };
    race(left, &[allocate, |left| drop(left.registry.take())], |left, _| {
        assert_eq!((left.witness.allocated(), left.witness.released()), (1, 0));
        assert_eq!(left.witness.destroyed(), IN_ORDER, "destroyed too late, too often or out of order");
    });
}
