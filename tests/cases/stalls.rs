//! What was let go stays.

use crate::{
    common::{
        lifecycle::bring,
        rig::{DEVICE, Rig},
    },
    pool::{BLOCK, Pool},
    register,
};
use liveslot::{MechanismLifecycle::*, *};
use std::sync::atomic::Ordering::SeqCst;

/// C057, R48: a registry that goes while nobody else is about destroys what it has, wherever in its life that is and whatever it owns.
#[test]
fn a_registry_that_ends_alone_destroys_all() {
    for phase in [Active, Retired, DeviceLost, Terminated] {
        for owns in [false, true] {
            let rig = Rig::new();
            if owns {
                drop(rig.registry.bind(DEVICE).unwrap().allocate_owning(16, 8).unwrap());
                rig.log.take();
            }
            bring(&rig, phase);
            let Rig { registry, log, .. } = rig;
            assert_eq!(log.take(), [""; 0]);
            drop(registry);
            assert_eq!(log.take(), ["A dropped", "Q dropped", "C dropped"], "{phase:?}");
        }
    }
}

/// C059: an allocator that keeps what is released gives it back when it is trimmed, also while it is retired, and the rest when it is
/// taken away.
#[test]
fn a_pool_gives_back_what_it_keeps() {
    let registry = BindingRegistry::new().unwrap();
    let (pool, reserved) = Pool::new();
    let (mechanism, ..) = register(&registry, DEVICE, pool);
    let binding = registry.bind(DEVICE).unwrap();
    let block = || binding.allocate(BLOCK, 8).unwrap();
    let blocks: Vec<_> = (0..10).map(|_| block()).collect();
    blocks.into_iter().for_each(|block| binding.release(block).unwrap());
    assert_eq!(reserved.load(SeqCst), 10 * BLOCK);
    assert_eq!(registry.trim(DEVICE, 4 * BLOCK as u64), 6 * BLOCK as u64);
    assert_eq!(reserved.load(SeqCst), 4 * BLOCK);

    let [last, others @ ..] = [(); 3].map(|()| block());
    registry.retire(mechanism).unwrap();
    assert_eq!(registry.trim(DEVICE, 0), BLOCK as u64, "three are out");
    assert_eq!(reserved.load(SeqCst), 3 * BLOCK);
    binding.release(last).unwrap();
    assert_eq!(registry.trim(DEVICE, 0), BLOCK as u64);
    others.into_iter().for_each(|block: BoundAllocation| binding.release(block).unwrap());
    drop(binding);
    assert_eq!(reserved.load(SeqCst), 2 * BLOCK);
    registry.remove(mechanism).unwrap();
    assert_eq!(reserved.load(SeqCst), 0);
}
