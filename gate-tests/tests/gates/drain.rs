//! Drains, and threads that are stopped between what they do and what they tell.

use crate::support::{DEVICE, End as Destroyed, Site, Stopped, Woken, all_steps_were_reached, at, inactive, watched};
use liveslot_gated::{
    BoundAllocation, DeviceAllocator, DeviceKey, Drain, HostAllocator, MechanismLifecycle, MemoryBinding, MemoryError, RegisteredMechanism,
    internals::gates::{
        Step::{self, Admitting, Drained, Left, Lost, Parking, Refusing, Retired},
        arm,
    },
};
use std::{
    future::Future,
    pin::Pin,
    ptr::NonNull,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

const NOW: Duration = Duration::ZERO;

fn poll<F: Future + Unpin>(future: &mut F, woken: &Arc<Woken>) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(&Waker::from(Arc::clone(woken))))
}

/// Blocks its first caller until it is let go.
struct Blocks(Sender<()>, Mutex<Receiver<()>>);

impl Wake for Blocks {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
        let _ = self.1.lock().unwrap().recv();
    }
}

/// A waker that blocks, what tells that it does, and what lets it go.
fn blocks() -> (Waker, Receiver<()>, Sender<()>) {
    let (arrived, arrival) = channel();
    let (go_on, signal) = channel();
    (Waker::from(Arc::new(Blocks(arrived, Mutex::new(signal)))), arrival, go_on)
}

struct Held {
    binding: MemoryBinding,
    allocation: BoundAllocation,
}

impl Held {
    fn new(site: &Site, m: RegisteredMechanism) -> Self {
        let binding = site.registry.bind_registered(m).unwrap();
        Self { allocation: binding.allocate(64, 8).unwrap(), binding }
    }

    fn leave(self) {
        self.binding.release(self.allocation).unwrap();
    }
}

fn drain(site: &Site, m: RegisteredMechanism) -> Drain {
    site.registry.drain(m).unwrap()
}

/// An operation in progress on another thread, and nothing else. It is ended by calling what this gives.
fn operating(site: &Site, m: RegisteredMechanism) -> impl FnOnce() + Send + use<> {
    let held = Held::new(site, m);
    let (binding, view) = (held.binding.clone(), held.allocation.view(0, 8).unwrap());
    let (arrived, arrival) = channel();
    let (go_on, signal) = channel();
    let thread = thread::spawn(move || {
        let operation = |_| {
            arrived.send(()).unwrap();
            signal.recv().unwrap();
        };
        binding.with_view(&view, operation).unwrap();
    });
    arrival.recv().unwrap();
    held.leave();
    move || {
        go_on.send(()).unwrap();
        thread.join().unwrap();
    }
}

type End = fn(Site, RegisteredMechanism);

/// How a life ends, and where it stops between the word and the stripes.
const ENDS: [(Step, End); 2] = [(Retired, |site, m| site.retire(m)), (Lost, |site, _| site.lose())];

/// The last one leaves while the end of the life is stopped between the word and the stripes: it can't know. The end tells when it goes on.
#[test]
fn the_last_leaver_meets_a_stopped_end() {
    watched(|| {
        for (step, end) in ENDS {
            let (site, m) = Site::selecting();
            let leave = operating(&site, m);
            let woken = Arc::<Woken>::default();
            let mut sleeps = drain(&site, m);
            assert_eq!(poll(&mut sleeps, &woken), Poll::Pending);
            let ending = site.clone();
            let stopped = Stopped::at(step, move || end(ending, m));
            leave();
            assert_eq!(woken.times(), 0, "{step:?}");
            stopped.go_on();
            assert_eq!(woken.times(), 1, "{step:?}: nobody tells");
            assert_eq!(poll(&mut sleeps, &woken), Poll::Ready(Ok(())));
        }
    });
}

/// Who looks meanwhile finds it drained, and does not need the stopped one.
#[test]
fn a_drain_looks_beside_a_stopped_end() {
    watched(|| {
        for (step, end) in ENDS {
            let (site, m) = Site::selecting();
            let leave = operating(&site, m);
            let ending = site.clone();
            let stopped = Stopped::at(step, move || end(ending, m));
            leave();
            assert_eq!(drain(&site, m).wait(NOW), Ok(()), "{step:?}");
            site.registry.remove(m).unwrap();
            stopped.go_on();
        }
    });
}

/// Who looks before the last one has left closes the stripes, so that the last one tells, without the stopped one.
#[test]
fn a_drain_closes_beside_a_stopped_end() {
    watched(|| {
        for (step, end) in ENDS {
            let (site, m) = Site::selecting();
            let leave = operating(&site, m);
            let woken = [(); 2].map(|()| Arc::<Woken>::default());
            let mut sleeps = drain(&site, m);
            assert_eq!(poll(&mut sleeps, &woken[0]), Poll::Pending);
            let ending = site.clone();
            let stopped = Stopped::at(step, move || end(ending, m));
            let mut looks = drain(&site, m);
            assert_eq!(poll(&mut looks, &woken[1]), Poll::Pending, "{step:?}: it works still");
            leave();
            assert_eq!(woken.each_ref().map(|woken| woken.times()), [1, 1], "{step:?}");
            assert_eq!(poll(&mut sleeps, &woken[0]), Poll::Ready(Ok(())));
            assert_eq!(poll(&mut looks, &woken[1]), Poll::Ready(Ok(())));
            stopped.go_on();
            assert_eq!(woken.each_ref().map(|woken| woken.times()), [1, 1], "{step:?}");
        }
    });
}

/// The last one is stopped when it has left and has told nobody. Who looks sees that it has left; who sleeps is told by it, or by whoever
/// ends the life further.
#[test]
fn the_last_leaver_is_stopped() {
    type Meanwhile = fn(&Site, RegisteredMechanism);
    let meanwhile: [(&str, Meanwhile, usize); 4] = [
        ("nothing", |_, _| (), 0),
        ("retired again", |site, m| site.retire(m), 1),
        ("lost", |site, _| site.lose(), 1),
        ("removed", |site, m| site.registry.remove(m).unwrap(), 0),
    ];
    watched(move || {
        for (what, meanwhile, told) in meanwhile {
            let (site, m) = Site::selecting();
            let held = Held::new(&site, m);
            site.retire(m);
            let woken = Arc::<Woken>::default();
            let (mut sleeps, mut looks) = (drain(&site, m), drain(&site, m));
            let mut teardown = site.registry.teardown(m).unwrap();
            assert_eq!(poll(&mut sleeps, &woken), Poll::Pending);
            let stopped = Stopped::at(Left, move || held.leave());
            assert_eq!(woken.times(), 0, "{what}");
            assert_eq!(poll(&mut looks, &woken), Poll::Ready(Ok(())), "{what}");
            meanwhile(&site, m);
            assert_eq!(woken.times(), told, "{what}");
            assert_eq!(teardown.wait(NOW).unwrap_err().handles, 2, "{what}: the stopped one's binding and metadata");
            stopped.go_on();
            assert_eq!(woken.times(), 1, "{what}");
            assert_eq!(poll(&mut sleeps, &woken), Poll::Ready(Ok(())), "{what}");
            assert_eq!(teardown.wait(NOW).is_ok(), what == "removed");
        }
    });
}

/// Two leave two stripes, and each is stopped before it looks at the other's: the one that goes on tells, with or without the other.
#[test]
fn two_last_leavers_on_two_stripes() {
    watched(|| {
        for both_stop in [false, true] {
            let (site, m) = Site::selecting_striped();
            let one = Held::new(&site, m);
            // Made while this thread lives as well, so on another stripe.
            let also = site.clone();
            let other = thread::spawn(move || Held::new(&also, m)).join().unwrap();
            site.retire(m);
            let woken = Arc::<Woken>::default();
            let mut sleeps = drain(&site, m);
            assert_eq!(poll(&mut sleeps, &woken), Poll::Pending);
            let first = Stopped::at(Left, move || one.leave());
            assert_eq!(poll(&mut sleeps, &woken), Poll::Pending, "the other is there");
            if both_stop {
                let second = Stopped::at(Left, move || other.leave());
                assert_eq!(woken.times(), 0);
                first.go_on();
                assert_eq!(woken.times(), 1);
                second.go_on();
            } else {
                other.leave();
                assert_eq!(woken.times(), 1);
                first.go_on();
            }
            assert_eq!(woken.times(), 1, "nobody sleeps any more");
            assert_eq!(poll(&mut sleeps, &woken), Poll::Ready(Ok(())));
        }
    });
}

/// A call that is stopped on its way to a refusal: twice, when it has found the mechanism Active and when it is counted.
struct Refusal {
    thread: thread::JoinHandle<()>,
    signals: [Sender<()>; 2],
    counted: Receiver<()>,
}

impl Refusal {
    /// Begins to allocate. Returns when it has found the mechanism Active.
    fn begin(site: &Site, m: RegisteredMechanism) -> Self {
        let binding = site.registry.bind_registered(m).unwrap();
        let [stop, count] = [(); 2].map(|()| {
            let (arrived, arrival) = channel();
            let (signal, wait) = channel::<()>();
            let stop = move || {
                arrived.send(()).unwrap();
                wait.recv().unwrap();
            };
            (stop, arrival, signal)
        });
        let thread = thread::spawn(move || {
            arm(Admitting, stop.0);
            arm(Refusing, count.0);
            inactive(binding.allocate(8, 8), MechanismLifecycle::Retired);
        });
        stop.1.recv().unwrap();
        Self { thread, signals: [stop.2, count.2], counted: count.1 }
    }

    /// Lets it be counted. The mechanism has been retired.
    fn count(&self) {
        self.signals[0].send(()).unwrap();
        self.counted.recv().unwrap();
    }

    fn end(self) {
        self.signals[1].send(()).unwrap();
        self.thread.join().unwrap();
    }
}

/// A call on its way to a refusal is counted for a moment: who looks then waits, and the refusal tells.
#[test]
fn a_refusal_is_a_leave() {
    watched(|| {
        let (site, m) = Site::selecting();
        let refusal = Refusal::begin(&site, m);
        let woken = Arc::<Woken>::default();
        let mut sleeps = site.registry.retire_and_drain(m).unwrap();
        refusal.count();
        assert_eq!(poll(&mut sleeps, &woken), Poll::Pending);
        assert_eq!(sleeps.report().snapshot.active_operations, 1);
        inactive(site.registry.remove(m), MechanismLifecycle::Retired);
        refusal.end();
        assert_eq!(woken.times(), 1, "nobody tells");
        assert_eq!(poll(&mut sleeps, &woken), Poll::Ready(Ok(())));
        site.registry.remove(m).unwrap();
    });
}

/// One that falls between the look and the removal keeps that from removing for the moment, and no longer.
#[test]
fn a_removal_outlasts_a_refusal() {
    watched(|| {
        for ends_first in [true, false] {
            let (site, m) = Site::selecting();
            let refusal = Arc::new(Mutex::new(Some(Refusal::begin(&site, m))));
            let woken = Arc::<Woken>::default();
            let mut removal = site.registry.remove_when_drained(m).unwrap();
            site.retire(m);
            let begun = Arc::clone(&refusal);
            at(Drained, move || begun.lock().unwrap().as_ref().unwrap().count());
            if ends_first {
                // It is refused, and looks again when the other one has left.
                let begun = Arc::clone(&refusal);
                at(Step::RemovalRefused, move || begun.lock().unwrap().take().unwrap().end());
            } else {
                assert!(poll(&mut removal, &woken).is_pending());
                assert_eq!(site.lifecycle(m), MechanismLifecycle::Retired);
                refusal.lock().unwrap().take().unwrap().end();
                assert_eq!(woken.times(), 1);
            }
            let polled = poll(&mut removal, &woken);
            assert!(matches!(polled, Poll::Ready(Ok(()))), "{polled:?}");
            assert_eq!(site.registry.snapshots().unwrap(), []);
            all_steps_were_reached();
        }
    });
}

/// Something that waits with a waker, something that waits with a thread and says whether all is well, and what tells both.
type Waiting = (Pin<Box<dyn Future<Output = ()> + Send>>, Box<dyn FnOnce() -> bool + Send>, Box<dyn FnOnce() + Send>);

fn drained(mut drain: Drain) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move { _ = (&mut drain).await })
}

fn changed(site: &Site) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let mut watch = site.registry.device(DEVICE).watch();
    Box::pin(async move { _ = watch.changed().await })
}

/// A drain on this thread, which must end like that.
fn drains(mut drain: Drain, ok: bool) -> Box<dyn FnOnce() -> bool + Send> {
    Box::new(move || drain.wait(Duration::MAX).is_ok() == ok)
}

fn tears_down(site: &Site, m: RegisteredMechanism) -> Box<dyn FnOnce() -> bool + Send> {
    let mut teardown = site.registry.teardown(m).unwrap();
    Box::new(move || teardown.wait(Duration::MAX).is_ok())
}

/// With a selected mechanism and another one.
type Behind = fn(Site, [RegisteredMechanism; 2]) -> Waiting;

const BEHIND: [(&str, Behind); 10] = [
    ("a drain, when the last has left", |site, [m, _]| {
        let held = Held::new(&site, m);
        site.retire(m);
        let (sleeps, waits) = (drained(drain(&site, m)), drains(drain(&site, m), true));
        let leave = move || {
            held.leave();
            drop(site);
        };
        (sleeps, waits, Box::new(leave))
    }),
    ("a drain, of the same mechanism", |site, [m, _]| {
        (drained(drain(&site, m)), drains(drain(&site, m), true), Box::new(move || site.retire(m)))
    }),
    ("a watch, of the same device", |site, [_, n]| {
        let mut watch = site.registry.device(DEVICE).watch();
        let waits = Box::new(move || watch.changed_timeout(Duration::MAX).unwrap().is_some());
        (changed(&site), waits, Box::new(move || site.select(n).unwrap()))
    }),
    ("a drain, behind a watch", |site, [m, _]| (changed(&site), drains(drain(&site, m), true), Box::new(move || site.retire(m)))),
    ("a loss, of another mechanism", |site, [m, n]| {
        (drained(drain(&site, m)), drains(drain(&site, n), true), Box::new(move || site.lose()))
    }),
    ("a confirmation, of another mechanism", |site, [m, n]| {
        let _leaked = [m, n].map(|m| Held::new(&site, m));
        site.lose();
        let confirm = Box::new({
            let site = site.clone();
            move || site.registry.confirm_context_terminated(site.context).unwrap()
        });
        (drained(drain(&site, m)), drains(drain(&site, n), true), confirm)
    }),
    ("the registry's end, of another mechanism", |site, [m, n]| {
        (drained(drain(&site, m)), drains(drain(&site, n), false), Box::new(move || drop(site)))
    }),
    ("a teardown, at the registry's end", |site, [m, n]| (drained(drain(&site, m)), tears_down(&site, n), Box::new(move || drop(site)))),
    ("a shutdown, of another mechanism", |site, [_, n]| {
        (changed(&site), drains(drain(&site, n), true), Box::new(move || _ = site.registry.shutdown(NOW).unwrap()))
    }),
    ("a teardown, behind a watch", |site, [m, _]| {
        site.retire(m);
        (changed(&site), tears_down(&site, m), Box::new(move || site.registry.remove(m).unwrap()))
    }),
];

/// A waker blocks; threads that wait are woken all the same, whatever they wait for: they come first.
#[test]
fn threads_come_before_wakers() {
    for (what, waiting) in BEHIND {
        let (site, m) = Site::selecting();
        let n = site.register();
        let (mut future, wait, tell) = waiting(site, [m, n]);
        let (waker, blocked, let_go) = blocks();
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "{what}");
        let (parks, it_parks) = channel();
        let (ends, end) = channel();
        thread::spawn(move || {
            arm(Parking, move || parks.send(()).unwrap());
            let _ = ends.send(wait());
        });
        it_parks.recv().unwrap();
        let telling = thread::spawn(tell);
        blocked.recv().unwrap();
        assert!(end.recv_timeout(Duration::from_secs(5)).unwrap_or_else(|_| panic!("{what}: a thread waits for a waker")), "{what}");
        let_go.send(()).unwrap();
        telling.join().unwrap();
    }
}

/// Memory of the heap, from an allocator that stops when it is destroyed.
#[derive(Debug)]
struct StopsAtItsEnd(Sender<()>, Mutex<Receiver<()>>);

impl DeviceAllocator for StopsAtItsEnd {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        HostAllocator.allocate(bytes, align)
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, bytes: usize, align: usize) {
        // SAFETY: as the caller says.
        unsafe { HostAllocator.deallocate(pointer, bytes, align) };
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

impl Drop for StopsAtItsEnd {
    fn drop(&mut self) {
        self.0.send(()).unwrap();
        self.1.get_mut().unwrap().recv().unwrap();
    }
}

/// Whoever settles last wakes threads before it lets go of what it holds: that may be the last hold by then, and the destructor may stop.
#[test]
fn threads_come_before_the_settlers_destructors() {
    watched(|| {
        let (site, _) = Site::selecting();
        let ((destroys, destroying), (let_go, signal)) = (channel(), channel());
        let allocator = Arc::new(StopsAtItsEnd(destroys, Mutex::new(signal)));
        let m = site.registry.register_allocator(site.context, site.authority, allocator).unwrap();
        let Held { binding, allocation } = Held::new(&site, m);
        let request = binding.prepare_release(allocation).unwrap();
        drop(binding);
        site.retire(m);
        let (mut drain, (parks, it_parks), (ends, end)) = (drain(&site, m), channel(), channel());
        thread::spawn(move || {
            arm(Parking, move || parks.send(()).unwrap());
            ends.send(drain.wait(Duration::MAX)).unwrap();
        });
        it_parks.recv().unwrap();
        let executing = Stopped::at(Left, move || request.execute());
        site.registry.remove(m).unwrap();
        let executing = thread::spawn(move || executing.go_on());
        destroying.recv().unwrap();
        let woken = end.recv_timeout(Duration::from_secs(5));
        let_go.send(()).unwrap();
        assert!(executing.join().unwrap().is_complete());
        assert_eq!(woken, Ok(Ok(())), "a thread waits for a destructor");
    });
}

/// R107: a trim whose operation is refused may be the last to leave. Whom it wakes then may stop, and keeps no resource.
#[test]
fn a_refused_trim_that_wakes_keeps_no_resource() {
    watched(|| {
        let (site, m) = Site::selecting();
        let leave = operating(&site, m);
        let (waker, arrival, let_go) = blocks();
        let mut sleeps = drain(&site, m);
        assert_eq!(Pin::new(&mut sleeps).poll(&mut Context::from_waker(&waker)), Poll::Pending);
        let trimming = site.clone();
        let trimming = thread::spawn(move || {
            let retiring = trimming.clone();
            arm(Admitting, move || retiring.retire(m));
            arm(Refusing, leave);
            trimming.registry.trim(DEVICE, 0)
        });
        arrival.recv().unwrap();
        site.registry.remove(m).unwrap();
        let destroyed = site.ends.so_far();
        let_go.send(()).unwrap();
        assert_eq!(trimming.join().unwrap(), 0);
        assert_eq!(destroyed, [Destroyed::Allocator { pinned: true }], "kept by a trim that was refused");
    });
}
