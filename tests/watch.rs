//! Watching a device: every waiter is told, whatever becomes of the others.

mod common {
    pub mod another;
    pub mod doubles;
    pub mod park;
    pub mod rig;
    pub mod watchdog;
    pub mod woken;
}

use common::{
    another::another,
    park::gate,
    rig::{DEVICE, Rig},
    watchdog::in_time,
    woken::{Woken, poll, ready, waker_that_does},
};
use liveslot::{ChangeCause::*, *};
use std::{
    future::Future,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{Arc, mpsc::channel},
    task::{Context, Poll},
    thread,
    time::Duration,
};

const NOW: Duration = Duration::ZERO;

#[track_caller]
fn told(watch: &mut SelectionWatch) -> (Option<MechanismIdentity>, ChangeCause) {
    let change = watch.changed_timeout(NOW).unwrap().expect("a change");
    assert_eq!((change.selected, change.version), (watch.selected(), watch.version()));
    assert_eq!(watch.changed_timeout(NOW).unwrap(), None, "a change is told once");
    (change.selected, change.cause)
}

/// What is told when one thing happens after the other, and with which version.
#[test]
fn each_change_is_told_with_its_cause() {
    let rig = Rig::new();
    let [a, b] = [rig.mechanism, another(&rig, "B")];
    let device = rig.registry.device(DEVICE);
    let mut watch = device.watch();
    assert_eq!((watch.key(), watch.selected(), watch.version()), (DEVICE, Some(a.identity()), device.version()));
    assert_eq!(watch.changed_timeout(NOW).unwrap(), None, "nothing has happened since");

    rig.registry.select(b).unwrap();
    assert_eq!(told(&mut watch), (Some(b.identity()), Selected));
    rig.registry.select(b).unwrap();
    assert_eq!(told(&mut watch), (Some(b.identity()), Selected), "selected again");
    rig.registry.retire(b).unwrap();
    assert_eq!(told(&mut watch), (None, Retired));
    rig.registry.select(b).unwrap_err();
    assert_eq!(watch.changed_timeout(NOW).unwrap(), None, "refused");
    rig.registry.remove(b).unwrap();
    assert_eq!(watch.changed_timeout(NOW).unwrap(), None, "it was not selected any more");

    let c = another(&rig, "D");
    assert_eq!(told(&mut watch), (Some(c.identity()), Selected), "it took the empty place");
    rig.registry.retire(c).unwrap();
    rig.registry.remove(c).unwrap();
    assert_eq!(told(&mut watch), (None, Removed));

    device.select_if(watch.version(), a).unwrap();
    assert_eq!(told(&mut watch), (Some(a.identity()), Selected));
    assert_eq!(device.deselect(), Some(a.identity()));
    assert_eq!(told(&mut watch), (None, Withdrawn));
    rig.registry.select(a).unwrap();
    assert_eq!(told(&mut watch), (Some(a.identity()), Selected));
    rig.registry.invalidate_device(DEVICE, "fell off the bus").unwrap();
    assert_eq!(told(&mut watch), (None, DeviceLost { reason: "fell off the bus".into() }));
    assert_eq!(watch.version(), device.version());
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    assert_eq!(watch.changed_timeout(NOW).unwrap(), None);
    drop((watch, device));
    rig.finish();
}

/// Changes merge, and the last one stays. A cause that belongs to one of several is not made up.
#[test]
fn changes_merge_into_the_last() {
    let rig = Rig::new();
    let [a, b] = [rig.mechanism, another(&rig, "B")];
    let mut watch = rig.registry.device(DEVICE).watch();
    for _ in 0..10 {
        rig.registry.select(a).unwrap();
        rig.registry.select(b).unwrap();
    }
    let version = watch.version();
    assert_eq!(told(&mut watch), (Some(b.identity()), Selected));
    assert_eq!(watch.version(), version + 20);

    rig.registry.select(a).unwrap();
    rig.registry.retire(b).unwrap();
    rig.registry.invalidate_device(DEVICE, "later").unwrap();
    assert_eq!(told(&mut watch), (None, Withdrawn), "b was retired, and a lost");
    rig.registry.remove(b).unwrap();
    drop(watch);
    rig.finish();
}

/// A device that nobody has registered can be watched, and waited for.
#[test]
fn a_device_that_nobody_registered() {
    let registry = BindingRegistry::new().unwrap();
    let mut watch = registry.device(DEVICE).watch();
    let woken = Arc::<Woken>::default();
    let mut changed = watch.changed();
    assert!(poll(&mut changed, &woken).is_pending());
    registry.invalidate_device(DEVICE, "was never there").unwrap();
    assert!(poll(&mut changed, &woken).is_pending(), "no change of the selection");
    let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
    let authority = registry.register_authority(DEVICE, Arc::new(())).unwrap();
    let before = woken.times();
    let mechanism = registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), DEVICE).unwrap();
    assert_eq!(woken.times(), before + 1);
    assert_eq!(ready(poll(&mut changed, &woken)).unwrap().selected, Some(mechanism.identity()));
}

/// Each call that changes the selection wakes, once.
#[test]
fn every_change_wakes() {
    let rig = Rig::new();
    let b = another(&rig, "B");
    let device = rig.registry.device(DEVICE);
    let mut watch = device.watch();
    let mut change = |call: &dyn Fn()| {
        let woken = Arc::<Woken>::default();
        let mut changed = watch.changed();
        assert!(poll(&mut changed, &woken).is_pending());
        call();
        assert_eq!(woken.times(), 1);
        ready(poll(&mut changed, &woken)).unwrap().cause
    };
    assert_eq!(change(&|| rig.registry.select(b).unwrap()), Selected);
    assert_eq!(change(&|| _ = device.select_if(device.version(), b).unwrap()), Selected);
    assert_eq!(change(&|| _ = device.deselect()), Withdrawn);
    assert_eq!(change(&|| rig.registry.select(b).unwrap()), Selected);
    assert_eq!(change(&|| _ = rig.registry.deselect(DEVICE)), Withdrawn);
    assert_eq!(change(&|| rig.registry.select(b).unwrap()), Selected);
    assert_eq!(change(&|| rig.registry.retire(b).unwrap()), Retired);
    assert_eq!(change(&|| rig.registry.select(rig.mechanism).unwrap()), Selected);
    assert_eq!(change(&|| rig.registry.invalidate_device(DEVICE, "lost").unwrap()), DeviceLost { reason: "lost".into() });
    rig.registry.remove(b).unwrap();
    drop((watch, device));
    rig.finish();
}

/// A loss is told with its reason, one before the watch is not, and several merge into the latest.
#[test]
fn losses() {
    let registry = BindingRegistry::new().unwrap();
    let device = registry.device(DEVICE);
    let _first = device.watch();
    registry.invalidate_device(DEVICE, "before").unwrap();
    let mut watch = device.watch();
    assert_eq!(watch.lost_timeout(NOW), Ok(None));
    let woken = Arc::<Woken>::default();
    let mut lost = watch.lost();
    assert!(poll(&mut lost, &woken).is_pending());
    registry.invalidate_device(DEVICE, "one").unwrap();
    assert_eq!(woken.times(), 1);
    assert_eq!(ready(poll(&mut lost, &woken)).as_deref(), Ok("one"));
    drop(lost);
    assert_eq!(watch.lost_timeout(NOW), Ok(None), "told once");
    registry.invalidate_device(DEVICE, "two").unwrap();
    registry.invalidate_device(DEVICE, "three").unwrap();
    assert_eq!(watch.clone().lost_timeout(Duration::MAX).unwrap().as_deref(), Some("three"));
    drop((registry, device));
    assert_eq!(watch.lost_timeout(NOW).unwrap().as_deref(), Some("three"), "it came before the end");
    assert_eq!(watch.lost_timeout(Duration::MAX), Err(RegistryGone { device: DEVICE }));
}

/// C104: what happens between the look and the registration is not lost.
#[test]
fn a_change_before_the_registration_is_seen() {
    let rig = Rig::new();
    let mut watch = rig.registry.device(DEVICE).watch();
    let (registry, mechanism) = (rig.registry.clone(), rig.mechanism);
    let waker = waker_that_does(move || registry.retire(mechanism).unwrap());
    let change = ready(pin!(watch.changed()).poll(&mut Context::from_waker(&waker))).unwrap();
    assert_eq!((change.selected, change.cause), (None, Retired));
    drop(watch);
    rig.finish();
}

/// C106: two futures and two blocking waiters, on threads of their own: one change finishes all.
#[test]
fn every_waiter_is_told() {
    let rig = Rig::new();
    let another = another(&rig, "B");
    let watch = rig.registry.device(DEVICE).watch();
    let (ready_tx, all_wait) = channel();
    let waiters: Vec<_> = (0..4)
        .map(|n| {
            let (mut watch, ready_tx) = (watch.clone(), ready_tx.clone());
            thread::spawn(move || {
                if n % 2 == 0 {
                    ready_tx.send(()).unwrap();
                    return watch.changed_timeout(Duration::MAX).unwrap().unwrap();
                }
                let (tx, rx) = channel();
                let woken = Woken::with(move || tx.send(()).unwrap());
                let mut changed = watch.changed();
                let polled = poll(&mut changed, &woken);
                ready_tx.send(()).unwrap();
                match polled {
                    Poll::Ready(change) => change.unwrap(),
                    Poll::Pending => {
                        rx.recv().unwrap();
                        ready(poll(&mut changed, &woken)).unwrap()
                    }
                }
            })
        })
        .collect();
    (0..4).for_each(|_| all_wait.recv().unwrap());
    rig.registry.select(another).unwrap();
    let told = in_time(move || waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect::<Vec<_>>());
    assert!(told.iter().all(|change| change.selected == Some(another.identity()) && change.cause == Selected), "{told:?}");
    drop(watch);
    rig.registry.retire(another).unwrap();
    rig.registry.remove(another).unwrap();
    rig.finish();
}

/// C107: a waiter that is woken and dropped before it is polled takes no wake from another, and sees the change when it asks again.
#[test]
fn a_woken_waiter_may_be_dropped() {
    let rig = Rig::new();
    let mut watches = [(); 2].map(|()| rig.registry.device(DEVICE).watch());
    let woken = [(); 2].map(|()| Arc::<Woken>::default());
    {
        let [first, second] = &mut watches;
        let mut first = first.changed();
        let mut second = second.changed();
        assert!(poll(&mut first, &woken[0]).is_pending() && poll(&mut second, &woken[1]).is_pending());
        rig.registry.retire(rig.mechanism).unwrap();
        assert_eq!(woken.each_ref().map(|woken| woken.times()), [1, 1]);
        drop(first);
        assert_eq!(ready(poll(&mut second, &woken[1])).unwrap().cause, Retired);
    }
    assert_eq!(told(&mut watches[0]), (None, Retired));
    drop(watches);
    rig.finish();
}

/// C109: where all have left there is nobody to wake, and who comes then is woken.
#[test]
fn a_waiter_leaves_nothing_behind() {
    let rig = Rig::new();
    let mut watch = rig.registry.device(DEVICE).watch();
    let woken = Arc::<Woken>::default();
    for _ in 0..200 {
        let mut changed = watch.changed();
        assert!(poll(&mut changed, &woken).is_pending());
        assert!(poll(&mut changed, &woken).is_pending());
        assert_eq!(Arc::strong_count(&woken), 2, "one waker, however often it is polled");
        drop(changed);
        assert_eq!(Arc::strong_count(&woken), 1, "the waker stays behind");
    }
    let mut forgotten = watch.clone();
    let mut changed = forgotten.changed();
    assert!(poll(&mut changed, &woken).is_pending());
    mem::forget(changed);
    rig.registry.select(rig.mechanism).unwrap();
    assert_eq!((woken.times(), Arc::strong_count(&woken)), (1, 1), "a forgotten future's waker goes with the next change");
    assert_eq!(told(&mut watch).1, Selected);
    let mut changed = watch.changed();
    assert!(poll(&mut changed, &woken).is_pending());
    rig.registry.select(rig.mechanism).unwrap();
    assert_eq!(woken.times(), 2);
    assert_eq!(ready(poll(&mut changed, &woken)).unwrap().cause, Selected);
    drop(changed);
    drop((watch, forgotten));
    rig.finish();
}

/// A future that moves to another task is woken there.
#[test]
fn the_last_waker_counts() {
    let rig = Rig::new();
    let mut watch = rig.registry.device(DEVICE).watch();
    let woken = [(); 2].map(|()| Arc::<Woken>::default());
    let mut changed = watch.changed();
    assert!(poll(&mut changed, &woken[0]).is_pending());
    assert!(poll(&mut changed, &woken[1]).is_pending());
    assert_eq!(Arc::strong_count(&woken[0]), 1);
    rig.registry.retire(rig.mechanism).unwrap();
    assert_eq!(woken.each_ref().map(|woken| woken.times()), [0, 1]);
    drop(changed);
    drop(watch);
    rig.finish();
}

/// A waker that panics is counted; the others are woken, and the selection is `Ok`.
#[test]
fn a_waker_that_panics() {
    let rig = Rig::new();
    let mut watches = [(); 3].map(|()| rig.registry.device(DEVICE).watch());
    let woken = [Woken::with(|| panic!("a waker's own")), Woken::with(|| panic!("another's")), Arc::default()];
    let mut futures: Vec<_> = watches.iter_mut().map(|watch| watch.changed()).collect();
    for (future, woken) in futures.iter_mut().zip(&woken) {
        assert!(poll(future, woken).is_pending());
    }
    let before = suppressed_panics();
    rig.registry.select(rig.mechanism).unwrap();
    assert_eq!(suppressed_panics(), before + 2);
    assert_eq!(woken.each_ref().map(|woken| woken.times()), [1, 1, 1]);
    drop(futures);
    drop(watches);
    rig.finish();
}

/// A waker may call whatever it likes, and come back at once: it is woken once by each change.
#[test]
fn a_waker_that_comes_back() {
    let rig = Rig::new();
    let mut watch = rig.registry.device(DEVICE).watch();
    let (again_tx, again) = channel();
    let woken = {
        let (registry, mechanism, mut inner) = (rig.registry.clone(), rig.mechanism, watch.clone());
        Woken::with(move || {
            // Selecting wakes, and this waker's entry is not in the way.
            registry.select(mechanism).unwrap();
            assert_eq!(inner.changed_timeout(NOW).unwrap().unwrap().selected, Some(mechanism.identity()));
            let again = Arc::<Woken>::default();
            let mut waiting: Vec<_> = (0..200).map(|_| inner.clone()).collect();
            for watch in &mut waiting {
                let mut changed = watch.changed();
                assert!(poll(&mut changed, &again).is_pending());
                // Its place, behind the one that is being woken, stays.
                mem::forget(changed);
            }
            again_tx.send(again).unwrap();
        })
    };
    let mut changed = watch.changed();
    assert!(poll(&mut changed, &woken).is_pending());
    rig.registry.select(rig.mechanism).unwrap();
    assert_eq!(woken.times(), 1);
    let again = again.recv().unwrap();
    assert_eq!(again.times(), 0, "who came after the change was woken by it");
    rig.registry.retire(rig.mechanism).unwrap();
    assert_eq!((woken.times(), again.times()), (1, 200));
    assert_eq!(ready(poll(&mut changed, &woken)).unwrap().selected, None);
    drop(changed);
    drop(watch);
    drop(woken);
    rig.finish();
}

/// A waker that does not return delays nobody: others change the selection, wake, watch and work, and finish what it kept from being woken.
#[test]
fn a_waker_that_blocks() {
    let rig = Rig::new();
    let mut watches = [(); 2].map(|()| rig.registry.device(DEVICE).watch());
    let (stop, gate) = gate();
    let woken = [Woken::with(move || stop.park()), Arc::default()];
    let [mut first, mut second] = watches.each_mut().map(|watch| watch.changed());
    assert!(poll(&mut first, &woken[0]).is_pending() && poll(&mut second, &woken[1]).is_pending());

    let (registry, mechanism) = (rig.registry.clone(), rig.mechanism);
    let stopped = thread::spawn(move || registry.select(mechanism));
    gate.reached();
    assert_eq!(woken[1].times(), 0, "the stopped one had come to it");
    let (registry, mechanism, waits) = (rig.registry.clone(), rig.mechanism, rig.registry.device(DEVICE).watch());
    in_time(move || {
        registry.select(mechanism).unwrap();
        let mut waits = waits;
        assert!(waits.changed_timeout(NOW).unwrap().is_some());
        assert_eq!(waits.changed_timeout(Duration::from_millis(1)), Ok(None));
        registry.retire(mechanism).unwrap();
        assert_eq!(waits.changed_timeout(Duration::MAX).unwrap().unwrap().cause, Retired);
    });
    assert_eq!(woken[1].times(), 1);
    assert!(ready(poll(&mut second, &woken[1])).is_ok());
    // The owner of the waker is not kept either.
    assert!(ready(poll(&mut first, &woken[1])).is_ok());
    drop((first, second));
    gate.open();
    stopped.join().unwrap().unwrap();
    drop(watches);
    rig.finish();
}

/// Ten thousand wait for one change, and all of them finish; each takes at most 256 bytes, a place of 24 bytes in a list that doubles
/// included.
#[test]
fn ten_thousand_waiters() {
    const MANY: usize = 10_000;
    let rig = Rig::new();
    let another = another(&rig, "B");
    let mut watches: Vec<_> = (0..MANY).map(|_| rig.registry.device(DEVICE).watch()).collect();
    let woken = Arc::<Woken>::default();
    let mut futures: Vec<_> = watches.iter_mut().map(|watch| watch.changed()).collect();
    assert!(futures.iter_mut().all(|future| poll(future, &woken).is_pending()));
    let bytes = size_of::<SelectionWatch>() + size_of_val(&futures[0]) + 2 * 24;
    assert!(bytes <= 256, "{bytes} bytes");

    rig.registry.select(another).unwrap();
    assert_eq!(woken.times(), MANY);
    for future in &mut futures {
        assert_eq!(ready(poll(future, &woken)).unwrap().selected, Some(another.identity()));
    }
    assert_eq!(woken.times(), MANY);
    drop(futures);
    drop(watches);
    rig.registry.retire(another).unwrap();
    rig.registry.remove(another).unwrap();
    rig.finish();
}

/// The registry's end ends every wait with an error, for good.
#[test]
fn the_registry_goes() {
    let Rig { log, registry, .. } = Rig::new();
    const GONE: RegistryGone = RegistryGone { device: DEVICE };
    let watch = registry.device(DEVICE).watch();
    let (waits, is_waiting) = channel();
    let blocking = {
        let mut watch = watch.clone();
        thread::spawn(move || {
            waits.send(()).unwrap();
            watch.changed_timeout(Duration::MAX)
        })
    };
    is_waiting.recv().unwrap();
    let [mut changes, mut losses] = [watch.clone(), watch.clone()];
    let woken = [(); 2].map(|()| Arc::<Woken>::default());
    let (mut changed, mut lost) = (changes.changed(), losses.lost());
    assert!(poll(&mut changed, &woken[0]).is_pending() && poll(&mut lost, &woken[1]).is_pending());
    drop(registry);
    assert_eq!(in_time(move || blocking.join().unwrap()), Err(GONE));
    assert_eq!(woken.each_ref().map(|woken| woken.times()), [1, 1]);
    assert_eq!(ready(poll(&mut changed, &woken[0])), Err(GONE));
    assert_eq!(ready(poll(&mut lost, &woken[1])), Err(GONE));
    drop((changed, lost));
    assert_eq!(changes.changed_timeout(Duration::MAX), Err(GONE));
    assert!(GONE.to_string().contains(&DEVICE.to_string()));
    assert_eq!(log.take(), ["A dropped", "Q dropped", "C dropped"], "a watch keeps no resource");
    assert!(!format!("{watch:?}").is_empty());
}

/// A destructor that panics keeps nobody from hearing of the registry's end.
#[test]
fn the_registry_goes_with_a_panic() {
    let Rig { script, registry, .. } = Rig::new();
    let mut watch = registry.device(DEVICE).watch();
    let woken = Arc::<Woken>::default();
    let mut changed = watch.changed();
    assert!(poll(&mut changed, &woken).is_pending());
    *script.drop.0.lock().unwrap() = Some(Box::new(|| panic!("the allocator's own")));
    catch_unwind(AssertUnwindSafe(|| drop(registry))).unwrap_err();
    assert_eq!(woken.times(), 1);
    assert_eq!(ready(poll(&mut changed, &woken)), Err(RegistryGone { device: DEVICE }));
}

/// Times out: zero, short, and longer than the clock goes.
#[test]
fn timeouts() {
    let rig = Rig::new();
    let mut watch = rig.registry.device(DEVICE).watch();
    assert_eq!(watch.changed_timeout(NOW), Ok(None));
    assert_eq!(watch.changed_timeout(Duration::from_nanos(1)), Ok(None));
    assert_eq!(watch.lost_timeout(Duration::from_millis(5)), Ok(None));
    rig.registry.retire(rig.mechanism).unwrap();
    assert_eq!(watch.changed_timeout(Duration::MAX).unwrap().unwrap().cause, Retired);
    drop(watch);
    rig.finish();
}
