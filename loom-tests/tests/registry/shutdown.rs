//! A shutdown against whatever it refuses: what succeeded is taken out of use by it, what did not leaves nothing.

use super::{
    outcomes::*,
    roles::{Refusal::*, *},
    support::{race, race_at},
    world::*,
};
use liveslot_loom::{
    BindingError, BindingRegistry, DeviceAllocator, DeviceKey, MemoryError, RegisteredAuthority, RegisteredProviderContext, ShutdownReport,
    internals::atomic::{AtomicBool, Ordering::Relaxed},
};
use std::{ptr::NonNull, sync::Arc, time::Duration};

/// A world, and what everything that is registered in the race has a share of until it is destroyed.
struct Site<const N: usize> {
    world: World<N>,
    life: Arc<()>,
}

#[derive(Debug)]
struct Alive(#[expect(dead_code)] Arc<()>);

impl DeviceAllocator for Alive {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        unreachable!("nobody allocates")
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {}

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

/// What a role has come to.
#[derive(Debug)]
enum Came {
    Answer(Answer),
    Context(Result<RegisteredProviderContext, Refusal>),
    Report(ShutdownReport),
}

impl<const N: usize> Site<N> {
    fn new() -> Self {
        Self { world: World::new(), life: Arc::new(()) }
    }

    fn shutdown(&self) -> Came {
        Came::Report(self.world.registry.shutdown(Duration::ZERO).unwrap())
    }

    fn answer(&self, role: fn(&World<N>) -> Answer) -> Came {
        Came::Answer(role(&self.world))
    }

    fn register(&self) -> Came {
        let World { registry, context, authority, .. } = &self.world;
        let registered = registry.register_allocator(*context, *authority, Arc::new(Alive(Arc::clone(&self.life))));
        Came::Answer(registered.map(|mechanism| mechanism.identity()).map_err(Refusal::from))
    }

    /// Whether everything that was registered in the race has been destroyed. The registry is empty and names nothing, without repair; and
    /// a shutdown has nothing left to do.
    fn ends(&self) -> bool {
        assert_eq!(self.world.named(), None, "a slot names something after a shutdown");
        assert_eq!(self.world.registry.bind(DEVICE).map(|_| ()).map_err(Refusal::from), Err(ShutDown));
        let Came::Report(last) = self.shutdown() else { unreachable!() };
        assert!(last.is_complete(), "{last}");
        assert_eq!(self.world.registry.snapshots().unwrap(), []);
        Arc::strong_count(&self.life) == 1
    }
}

/// What a shutdown and its rival have come to.
fn both(mut came: Vec<Came>) -> (ShutdownReport, Answer) {
    match (came.remove(0), came.remove(0)) {
        (Came::Report(report), Came::Answer(answer)) => (report, answer),
        other => panic!("{other:?}"),
    }
}

/// I3: a mechanism is in the shutdown's list, or it takes itself back.
#[test]
fn shutdown_and_register() {
    const ALLOWED: &[&str] = &[
        "registered, and removed",
        "too late, and taken back",
        "too late, and removed by the shutdown",
        "too late for its context",
        "too late for its authority",
    ];
    outcomes(ALLOWED, || {
        race(Site::<0>::new, &[|s| s.shutdown(), |s| s.register()], |s, came| {
            let (report, answer) = both(came);
            came_to(match (&answer, report.removed) {
                (Ok(_), removed) => {
                    assert_eq!(removed, 1, "registered, and missed");
                    assert!(report.is_complete(), "{report}");
                    ALLOWED[0]
                }
                (Err(ShutDown), 0) => ALLOWED[1],
                (Err(ShutDown), _) => ALLOWED[2],
                (Err(NoContext), 0) => ALLOWED[3],
                (Err(NoAuthority), 0) => ALLOWED[4],
                other => panic!("{other:?}"),
            });
            assert!(s.ends(), "what was registered is there");
        });
    });
}

/// I3: the same for a provider context.
#[test]
fn shutdown_and_register_a_context() {
    const ALLOWED: &[&str] = &["registered, and removed", "too late"];
    let register = |s: &Site<0>| {
        let registered = s.world.registry.register_provider_context(DEVICE, Arc::new(Arc::clone(&s.life)));
        Came::Context(registered.map_err(Refusal::from))
    };
    outcomes(ALLOWED, || {
        race(Site::<0>::new, &[|s| s.shutdown(), register], |s, came| {
            let [Came::Report(report), Came::Context(registered)] = &came[..] else { panic!("{came:?}") };
            assert!(report.is_complete(), "{report}");
            came_to(match registered {
                Ok(context) => {
                    let removed = s.world.registry.remove_provider_context(*context).map_err(Refusal::from);
                    assert_eq!(removed, Err(NoContext), "registered, and missed");
                    ALLOWED[0]
                }
                Err(ShutDown) => ALLOWED[1],
                other => panic!("{other:?}"),
            });
            assert!(s.ends(), "the context is there");
        });
    });
}

/// I3: a binding is counted before its mechanism is retired, and reported, or refused.
#[test]
fn shutdown_and_bind() {
    const ALLOWED: &[&str] = &["bound, and gone", "bound, and held", "refused"];
    outcomes(ALLOWED, || {
        race(Site::<1>::new, &[|s| s.shutdown(), |s| s.answer(|w| w.bind())], |s, came| {
            let (report, answer) = both(came);
            assert_eq!((report.removed, report.left.len()), (1, 0));
            came_to(match (answer, report.held.len()) {
                (Ok(bound), 0) if bound == s.world.at(0) => ALLOWED[0],
                (Ok(bound), 1) if bound == s.world.at(0) => ALLOWED[1],
                (Err(ShutDown), 0) => ALLOWED[2],
                other => panic!("{other:?}"),
            });
            assert!(s.ends());
        });
    });
}

/// I2, I3: a selection stood before the shutdown, or is refused.
#[test]
fn shutdown_and_select() {
    const ALLOWED: &[&str] = &["selected before", "refused", "removed before"];
    outcomes(ALLOWED, || {
        race(Site::<2>::new, &[|s| s.shutdown(), |s| s.answer(|w| w.select(1))], |s, came| {
            let (report, answer) = both(came);
            assert!(report.is_complete(), "{report}");
            assert_eq!(report.removed, 2);
            came_to(match answer {
                Ok(_) => ALLOWED[0],
                Err(ShutDown) => ALLOWED[1],
                Err(Unregistered(mechanism)) if mechanism == s.world.at(1) => ALLOWED[2],
                other => panic!("{other:?}"),
            });
            assert!(s.ends());
        });
    });
}

/// Of two shutdowns one removes; a later one finds whatever they have left.
#[test]
fn shutdown_and_shutdown() {
    // The two are alike. At bound 3 it takes 58 000 iterations.
    race_at(&[2], &[[0, 1]], Site::<1>::new, &[|s| s.shutdown(), |s| s.shutdown()], |s, came| {
        let [Came::Report(first), Came::Report(second)] = &came[..] else { panic!("{came:?}") };
        assert_eq!(first.removed + second.removed, 1);
        assert_eq!((first.left.len(), second.left.len()), (0, 0));
        assert!(s.ends());
    });
}

/// An authority whose destructor is seen to run.
#[derive(Debug)]
struct Authority(Arc<AtomicBool>);

impl Drop for Authority {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        self.0.store(false, Relaxed);
    }
}

/// A context that authorities may rely on.
#[derive(Debug)]
struct Context(Arc<AtomicBool>);

impl Drop for Context {
    fn drop(&mut self) {
        assert!(!self.0.load(Relaxed), "a context goes while an authority is being destroyed");
    }
}

/// R48: whichever of two shutdowns destroys an authority, no context goes meanwhile.
#[test]
fn two_shutdowns_and_the_order_of_supports() {
    let setup = || {
        let (registry, destroying) = (BindingRegistry::striped(1).unwrap(), Arc::new(AtomicBool::new(false)));
        registry.register_authority(DEVICE, Arc::new(Authority(Arc::clone(&destroying)))).unwrap();
        registry.register_provider_context(DEVICE, Arc::new(Context(destroying))).unwrap();
        registry
    };
    let shutdown = |registry: &BindingRegistry| registry.shutdown(Duration::ZERO).unwrap();
    race_at(&[2, 3], &[[0, 1]], setup, &[shutdown, shutdown], |registry, reports| {
        assert!(reports.iter().all(|report| report.panicked == 0), "{reports:?}");
        assert!(registry.shutdown(Duration::ZERO).unwrap().is_complete());
    });
}

/// R48: nor does one go while somebody else destroys an authority that he has removed.
#[test]
fn a_removal_and_the_order_of_supports() {
    type Setup = (BindingRegistry, RegisteredAuthority);
    let setup = || {
        let (registry, destroying) = (BindingRegistry::striped(1).unwrap(), Arc::new(AtomicBool::new(false)));
        let authority = registry.register_authority(DEVICE, Arc::new(Authority(Arc::clone(&destroying)))).unwrap();
        registry.register_provider_context(DEVICE, Arc::new(Context(destroying))).unwrap();
        (registry, authority)
    };
    let shutdown = |(registry, _): &Setup| registry.shutdown(Duration::ZERO).unwrap().panicked;
    let remove = |(registry, authority): &Setup| match registry.remove_authority(*authority) {
        Ok(()) | Err(BindingError::UnregisteredAuthority(_)) => 0,
        Err(other) => panic!("{other:?}"),
    };
    race_at(&[2, 3], &[[0, 1], [1, 0]], setup, &[shutdown, remove], |(registry, _), panicked| {
        assert_eq!(panicked, [0, 0]);
        assert!(registry.shutdown(Duration::ZERO).unwrap().is_complete());
    });
}

/// What is complete is over: also a registration that came too late has no share of the context any more.
#[test]
fn complete_beside_a_registration() {
    struct Setup {
        registry: BindingRegistry,
        context: RegisteredProviderContext,
        authority: RegisteredAuthority,
        life: Arc<()>,
    }

    let setup = || {
        let (registry, life) = (BindingRegistry::striped(1).unwrap(), Arc::new(()));
        let context = registry.register_provider_context(DEVICE, Arc::new(Arc::clone(&life))).unwrap();
        let authority = registry.register_authority(DEVICE, Arc::new(())).unwrap();
        Setup { registry, context, authority, life }
    };
    let shutdown = |Setup { registry, life, .. }: &Setup| {
        let complete = registry.shutdown(Duration::ZERO).unwrap().is_complete();
        assert!(!complete || Arc::strong_count(life) == 1, "complete, and the context is there");
    };
    let register = |Setup { registry, context, authority, .. }: &Setup| {
        let _ = registry.register_allocator(*context, *authority, Arc::new(Alive(Arc::new(()))));
    };
    race_at(&[2, 3], &[[0, 1], [1, 0]], setup, &[shutdown, register], |Setup { registry, .. }, _| {
        assert!(registry.shutdown(Duration::ZERO).unwrap().is_complete());
    });
}
