//! Watches, and the calls that change what is watched: no wake is lost, and the last state is found.

use super::{
    count::Count,
    roles::{Answer, Refusal::Unselected},
    support::{orders, race, race_at},
    world::*,
};
use liveslot_loom::{ChangeCause, DeviceHandle, MechanismIdentity, SelectionWatch};
use std::{
    future::Future,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

struct Watching {
    world: World<2>,
    device: DeviceHandle,
    waker: Arc<Count>,
    /// What watches at the end.
    watch: Mutex<Option<SelectionWatch>>,
}

impl Watching {
    /// Not watched by anybody.
    fn new() -> Self {
        let world = World::new();
        Self { device: world.registry.device(DEVICE), world, waker: Arc::default(), watch: Mutex::default() }
    }

    /// Watched already.
    fn watched() -> Self {
        let watching = Self::new();
        *watching.watch.lock().unwrap() = Some(watching.device.watch());
        watching
    }

    /// Nothing is selected, and both mechanisms are retired.
    fn unselected() -> Self {
        let watching = Self::new();
        watching.world.retire(0).unwrap();
        watching.world.retire(1).unwrap();
        watching
    }

    /// Polls once, with a new watch if there is none, and sleeps on if it must: the future ends, its waker stays.
    fn poll(&self) -> Answer {
        let taken = self.watch.lock().unwrap().take();
        let mut watch = taken.unwrap_or_else(|| self.device.watch());
        let waker = Waker::from(Arc::clone(&self.waker));
        let mut changed = Box::pin(watch.changed());
        if let Poll::Ready(change) = changed.as_mut().poll(&mut Context::from_waker(&waker)) {
            change.unwrap();
        }
        std::mem::forget(changed);
        *self.watch.lock().unwrap() = Some(watch);
        Ok(self.world.at(0))
    }

    /// What the watch has seen in the end, and why. It was woken if it had to be.
    #[track_caller]
    fn seen(&self) -> (Option<MechanismIdentity>, Option<ChangeCause>) {
        let mut watch = self.watch.lock().unwrap().take().unwrap();
        let woken = self.waker.times();
        let waker = Waker::from(Arc::clone(&self.waker));
        let change = match pin!(watch.changed()).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(change) => {
                assert!(woken > 0, "the wake is lost");
                Some(change.unwrap().cause)
            }
            Poll::Pending => None,
        };
        assert_eq!((watch.selected(), watch.version()), (self.device.selected(), self.device.version()));
        (watch.selected(), change)
    }
}

/// C104, C109: a selection, and a watch that begins: it starts with the new one, sees it, or is woken.
#[test]
fn a_first_watch_and_a_selection() {
    race(Watching::new, &[Watching::poll, |w| w.world.select(1)], |w, answers| {
        assert_eq!(answers[1], Ok(w.world.at(1)));
        assert_eq!(w.seen().0, Some(w.world.at(1)));
    });
}

/// A selection whose record somebody else completes. At one bound: with the other it takes five times as long.
#[test]
fn a_first_watch_and_a_selection_that_is_helped() {
    race_at(&[2], &orders(3), Watching::new, &[Watching::poll, |w| w.world.select(1), |w| w.world.bind()], |w, _| {
        assert_eq!(w.seen().0, Some(w.world.at(1)));
    });
}

/// Deselecting changes the slot and no word.
#[test]
fn a_first_watch_and_deselecting() {
    race(Watching::new, &[Watching::poll, |w| w.device.deselect().ok_or(Unselected)], |w, answers| {
        assert_eq!(answers[1], Ok(w.world.at(0)));
        let (selected, cause) = w.seen();
        assert_eq!(selected, None);
        assert!([None, Some(ChangeCause::Withdrawn)].contains(&cause), "{cause:?}");
    });
}

/// A retirement is told with its cause, whoever has swept it.
#[test]
fn a_first_watch_and_a_retirement() {
    race(Watching::new, &[Watching::poll, |w| w.world.retire(0)], |w, _| {
        let (selected, cause) = w.seen();
        assert_eq!(selected, None);
        assert!([None, Some(ChangeCause::Retired)].contains(&cause), "{cause:?}");
    });
}

/// A registration that takes the empty place.
#[test]
fn a_first_watch_and_a_registration() {
    race(Watching::unselected, &[Watching::poll, |w| w.world.register()], |w, answers| {
        let selected = w.seen().0;
        assert_eq!(selected, answers[1].clone().ok());
        assert!(selected.is_some());
    });
}

/// A loss, and a watch that waits for it: it has the reason, or is woken.
#[test]
fn a_watch_and_a_loss() {
    let lost = |w: &Watching| {
        let mut watch = w.watch.lock().unwrap().take().unwrap();
        let waker = Waker::from(Arc::clone(&w.waker));
        let mut lost = Box::pin(watch.lost());
        let polled = lost.as_mut().poll(&mut Context::from_waker(&waker));
        std::mem::forget(lost);
        if let Poll::Ready(reason) = polled {
            assert_eq!(&*reason.unwrap(), "gone");
            w.waker.wake_by_ref();
        }
        Ok(w.world.at(0))
    };
    race(Watching::watched, &[lost, |w| w.world.invalidate("gone")], |w, _| {
        assert_ne!(w.waker.times(), 0, "neither told nor woken");
        assert_eq!(w.device.selected(), None);
    });
}

/// A loss that a watch misses, because it began meanwhile, left nothing selected where the watch began.
#[test]
fn a_first_watch_and_a_loss() {
    let begin = |w: &Watching| {
        let watch = w.device.watch();
        let selected = watch.selected();
        *w.watch.lock().unwrap() = Some(watch);
        selected.ok_or(Unselected)
    };
    race(Watching::new, &[begin, |w| w.world.invalidate("gone")], |w, answers| {
        let mut watch = w.watch.lock().unwrap().take().unwrap();
        let told = watch.lost_timeout(Duration::ZERO).unwrap();
        assert!(told.is_some() || answers[0] == Err(Unselected), "lost, and neither told nor seen");
    });
}
