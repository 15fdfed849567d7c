//! A wake is lost, or goes to the wrong one, or never comes.

use crate::{
    common::{
        queue::Queue,
        rig::{DEVICE, Rig},
        watchdog::in_time,
        woken::{Woken, poll, ready, waker_that_does},
    },
    hold,
    pool::{BLOCK, Pool},
    register, take_away,
};
use liveslot::*;
use std::{
    future::Future,
    pin::pin,
    sync::{Arc, atomic::Ordering::SeqCst, mpsc::channel},
    task::{Context, Poll},
    thread,
    time::Duration,
};

/// Polls a future whose waker runs `action` between the first look and the registration.
fn poll_beside<F: Future + Unpin>(future: &mut F, action: impl FnOnce() + Send + 'static) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(&waker_that_does(action)))
}

/// C104: the last release, or the last handle's end, between a waiter's look and its registration is not lost.
#[test]
fn what_ends_before_the_registration_is_seen() {
    let rig = Rig::new();
    let (binding, block) = hold(&rig);
    let mut drain = rig.registry.retire_and_drain(rig.mechanism).unwrap();
    assert_eq!(ready(poll_beside(&mut drain, move || binding.release(block).unwrap())), Ok(()));
    let last = rig.registry.teardown(rig.mechanism).unwrap();
    let (registry, mechanism) = (rig.registry.clone(), rig.mechanism);
    let mut teardown = last;
    ready(poll_beside(&mut teardown, move || registry.remove(mechanism).unwrap()));
    assert_eq!(rig.log.take(), ["A release 64 8", "A dropped"]);
}

/// C104: so are the ends of a life: a retirement and the registry's own end.
#[test]
fn what_happens_before_the_registration_is_seen() {
    let rig = Rig::new();
    let (registry, mechanism) = (rig.registry.clone(), rig.mechanism);
    let mut drain = rig.registry.drain(mechanism).unwrap();
    assert_eq!(ready(poll_beside(&mut drain, move || registry.retire(mechanism).unwrap())), Ok(()));
    rig.finish();

    let Rig { registry, mechanism, .. } = Rig::new();
    let mut drain = registry.drain(mechanism).unwrap();
    assert_eq!(ready(poll_beside(&mut drain, move || drop(registry))), Err(RegistryGone { device: DEVICE }));
}

/// C106: two futures and two blocking waiters, on threads of their own: the last release finishes all.
#[test]
fn every_waiter_of_a_drain_is_told() {
    let rig = Rig::new();
    let (binding, block) = hold(&rig);
    rig.registry.retire(rig.mechanism).unwrap();
    let (waits, all_wait) = channel();
    let waiters: Vec<_> = (0..4)
        .map(|n| {
            let (mut drain, waits) = (rig.registry.drain(rig.mechanism).unwrap(), waits.clone());
            thread::spawn(move || {
                if n % 2 == 0 {
                    waits.send(()).unwrap();
                    return drain.wait(Duration::MAX).unwrap();
                }
                let (wake, is_woken) = channel();
                let woken = Woken::with(move || wake.send(()).unwrap());
                assert!(poll(&mut drain, &woken).is_pending());
                waits.send(()).unwrap();
                is_woken.recv().unwrap();
                assert_eq!(ready(poll(&mut drain, &woken)), Ok(()));
            })
        })
        .collect();
    (0..4).for_each(|_| all_wait.recv().unwrap());
    binding.release(block).unwrap();
    in_time(move || waiters.into_iter().for_each(|waiter| waiter.join().unwrap()));
    drop(binding);
    rig.finish();
}

/// C107: a waiter that is woken and dropped before it is polled takes no wake from another.
#[test]
fn a_woken_waiter_of_a_drain_may_be_dropped() {
    let rig = Rig::new();
    let (binding, block) = hold(&rig);
    rig.registry.retire(rig.mechanism).unwrap();
    let [mut first, mut second] = [(); 2].map(|()| rig.registry.drain(rig.mechanism).unwrap());
    let woken = [(); 2].map(|()| Arc::<Woken>::default());
    assert!(poll(&mut first, &woken[0]).is_pending() && poll(&mut second, &woken[1]).is_pending());
    binding.release(block).unwrap();
    assert_eq!(woken.each_ref().map(|woken| woken.times()), [1, 1]);
    drop(first);
    assert_eq!(ready(poll(&mut second, &woken[1])), Ok(()));
    drop((second, binding));
    rig.finish();
}

/// C111: what came back serves again at once: an idle pool keeps neither its budget nor its queue's places.
#[test]
fn what_came_back_serves_again() {
    const BLOCKS: usize = 8;
    let registry = BindingRegistry::new().unwrap();
    let (pool, reserved) = Pool::new();
    let budget = Arc::new(Budget::new((BLOCKS * BLOCK) as u64));
    let charged = BudgetedAllocator::new(pool as Arc<dyn DeviceAllocator>, Arc::clone(&budget), MemoryRole::Activation);
    let (mechanism, ..) = register(&registry, DEVICE, Arc::new(charged));
    let binding = registry.bind(DEVICE).unwrap();
    let queue = release::BoundedQueue::new(BLOCKS);
    for deferred in [false, true, false, true] {
        let owners = [(); BLOCKS].map(|()| binding.allocate_owning(BLOCK, 8).unwrap());
        assert_eq!(budget.free(), 0);
        for owner in owners {
            if deferred {
                assert!(owner.release_deferred(&queue).unwrap().is_queued());
            } else {
                assert!(owner.release_now().unwrap().is_complete());
            }
        }
        assert_eq!(queue.drain(BLOCKS).released, if deferred { BLOCKS } else { 0 });
        assert_eq!((budget.free(), reserved.load(SeqCst)), (budget.limit(), BLOCKS * BLOCK), "idle, and kept");
    }
    drop(binding);
    take_away(&registry, mechanism);
}

/// C112: a stream that takes no completion says so at once, and keeps nothing: what was to be released is retained, and who waits for
/// the drain ends with whatever becomes of that.
#[test]
fn a_completion_that_cannot_be_registered_keeps_nobody_waiting() {
    type Way = fn(Rig) -> Option<Rig>;
    let ways: [(Way, Result<(), DrainError>); 4] = [
        (
            |rig| {
                assert_eq!(rig.registry.retry_quarantined(rig.mechanism, usize::MAX).unwrap().released, 1);
                Some(rig)
            },
            Ok(()),
        ),
        (
            |rig| {
                assert_eq!(rig.registry.abandon_quarantined(rig.mechanism, |_| true).unwrap().allocations.len(), 1);
                Some(rig)
            },
            Ok(()),
        ),
        (
            |rig| {
                rig.registry.invalidate_device(DEVICE, "a fatal error").unwrap();
                rig.registry.confirm_context_terminated(rig.context).unwrap();
                Some(rig)
            },
            Ok(()),
        ),
        (
            |rig| {
                drop(rig);
                None
            },
            Err(RegistryGone { device: DEVICE }.into()),
        ),
    ];
    for (way, answer) in ways {
        let rig = Rig::new();
        let refuses = Queue(|request| Err(DeferredEnqueueError::new(DeferredEnqueueRejection::Refused, request)));
        let owner = rig.registry.bind(DEVICE).unwrap().allocate_owning(16, 8).unwrap();
        let disposition = owner.release_deferred(&refuses).unwrap();
        assert!(matches!(disposition, DeferredReleaseDisposition::Quarantined { .. }), "{disposition:?}");

        let mut drain = rig.registry.retire_and_drain(rig.mechanism).unwrap();
        match drain.wait(Duration::ZERO) {
            Err(DrainError::TimedOut(report)) => assert_eq!(report.snapshot.quarantined_allocations, 1),
            other => panic!("{other:?}"),
        }
        let waiting = thread::spawn(move || drain.wait(Duration::MAX));
        let rig = way(rig);
        assert_eq!(in_time(move || waiting.join().unwrap()), answer);
        if let Some(rig) = rig {
            rig.finish();
        }
    }
}
