//! Watches, and calls that are stopped before they tell.

use crate::support::{DEVICE, Site, Stopped, Woken, watched};
use liveslot_gated::{
    BindingRegistry, ChangeCause, RegistryGone, SelectionWatch,
    internals::gates::{Step, arm},
};
use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

/// Polls `watch` once and sleeps on, while `action` runs. Gives how often it was woken.
fn woken_by(watch: &mut SelectionWatch, action: impl FnOnce()) -> usize {
    let woken = Arc::<Woken>::default();
    let mut changed = pin!(watch.changed());
    let polled = changed.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&woken))));
    assert_eq!(polled, Poll::Pending);
    action();
    woken.times()
}

/// A retirement is stopped before it has come to the slot: whoever looks finds nothing selected, and a removal tells in its place.
#[test]
fn a_removal_tells_for_a_stopped_retirement() {
    watched(|| {
        let site = Site::new();
        let (m, _) = site.register_watched();
        let mut watch = site.registry.device(DEVICE).watch();
        let mut other = watch.clone();
        let retiring = site.clone();
        let mut retirement = None;
        let woken = woken_by(&mut watch, || {
            retirement = Some(Stopped::at(Step::Retired, move || retiring.retire(m)));
            site.registry.remove(m).unwrap();
        });
        assert_eq!(woken, 1);
        for watch in [&mut watch, &mut other] {
            let change = watch.changed_timeout(Duration::ZERO).unwrap().unwrap();
            assert_eq!((change.selected, change.cause), (None, ChangeCause::Removed));
        }
        retirement.unwrap().go_on();
        assert_eq!(watch.changed_timeout(Duration::ZERO), Ok(None), "there was one change");
    });
}

/// A retirement that is stopped there is seen by who looks: the watch replaces the dead selection itself, and tells why it ended.
#[test]
fn a_watch_finishes_what_a_stopped_retirement_left() {
    watched(|| {
        let site = Site::new();
        let (m, _) = site.register_watched();
        let mut watch = site.registry.device(DEVICE).watch();
        let retiring = site.clone();
        let retirement = Stopped::at(Step::Retired, move || retiring.retire(m));
        assert_eq!(watch.changed_timeout(Duration::ZERO).unwrap().unwrap().cause, ChangeCause::Retired);
        retirement.go_on();
        assert_eq!(watch.changed_timeout(Duration::ZERO), Ok(None), "there was one change");
    });
}

/// A selection is stopped before it is decided: who looks decides it, and the selection tells when it goes on.
#[test]
fn a_watch_finishes_a_stopped_selection() {
    watched(|| {
        let (site, p) = Site::selecting();
        let (c, _) = site.register_watched();
        assert_eq!(site.registry.device(DEVICE).selected(), Some(p.identity()));
        let mut watch = site.registry.device(DEVICE).watch();
        let mut other = watch.clone();
        let selecting = site.clone();
        let woken = woken_by(&mut watch, || {
            let selection = Stopped::at(Step::Published, move || selecting.select(c).unwrap());
            assert_eq!(other.changed_timeout(Duration::ZERO).unwrap().unwrap().selected, Some(c.identity()));
            selection.go_on();
        });
        assert_eq!(woken, 1);
        assert_eq!(watch.changed_timeout(Duration::ZERO).unwrap().unwrap().selected, Some(c.identity()));
    });
}

/// The registry ends within a look, and one of its destructors parks: that uses up what the end has woken the thread with. The look sees
/// the end, and the thread does not park again.
#[test]
fn a_registry_that_ends_within_a_look_is_gone_for_it() {
    #[derive(Debug)]
    struct Parks;

    impl Drop for Parks {
        fn drop(&mut self) {
            thread::park();
        }
    }

    watched(|| {
        let registry = BindingRegistry::new().unwrap();
        registry.register_provider_context(DEVICE, Arc::new(Parks)).unwrap();
        let mut watch = registry.device(DEVICE).watch();
        arm(Step::Looked, || ());
        // The second look, behind which it would park.
        arm(Step::Looked, move || drop(registry));
        arm(Step::Parking, || panic!("nobody wakes it any more"));
        assert_eq!(watch.changed_timeout(Duration::MAX), Err(RegistryGone { device: DEVICE }));
    });
}
