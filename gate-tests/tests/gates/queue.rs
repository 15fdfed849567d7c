//! A thread that is stopped in the middle of the bounded queue, and those who get by without it.

use crate::support::{Calls, DEVICE, Site, Stopped, all_steps_were_reached, at, watched};
use liveslot_gated::{
    DeferredEnqueueError,
    DeferredEnqueueRejection::{Closed, DeviceLost, Full},
    DeferredReleaseQueue, MemoryBinding, PreparedAllocationRelease, QuarantineReason, RegisteredMechanism,
    internals::gates::Step::{Closing, Dequeueing, Enqueueing},
    release::{BoundedQueue, Drained},
};
use std::sync::{Arc, atomic::Ordering::SeqCst};

struct Rig {
    site: Site,
    mechanism: RegisteredMechanism,
    calls: Arc<Calls>,
    binding: MemoryBinding,
    queue: Arc<BoundedQueue>,
}

impl Rig {
    fn new(capacity: usize) -> Self {
        let site = Site::new();
        let (mechanism, calls) = site.register_watched();
        let binding = site.registry.bind(DEVICE).unwrap();
        Self { site, mechanism, calls, binding, queue: Arc::new(BoundedQueue::new(capacity)) }
    }

    fn request(&self, bytes: usize) -> PreparedAllocationRelease {
        self.binding.prepare_release(self.binding.allocate(bytes, 8).unwrap()).unwrap()
    }

    fn enqueue(&self, bytes: usize) {
        self.queue.enqueue(self.request(bytes)).unwrap();
    }

    /// Another thread brings a request, and is stopped before anybody can find it.
    fn stopped_enqueue(&self, bytes: usize) -> Stopped<Result<(), DeferredEnqueueError>> {
        let (queue, request) = (Arc::clone(&self.queue), self.request(bytes));
        Stopped::at(Enqueueing, move || queue.enqueue(request))
    }

    /// Another thread drains one, and is stopped while its place is not free.
    fn stopped_drain(&self) -> Stopped<Drained> {
        let queue = Arc::clone(&self.queue);
        Stopped::at(Dequeueing, move || queue.drain(1))
    }

    /// Waiting, released, retained.
    #[track_caller]
    fn rests_with(&self, expected: [usize; 3]) {
        let now = self.site.snapshot(self.mechanism);
        assert_eq!((now.live_allocations, now.queued_releases), (0, self.queue.pending()), "queued where nobody finds it");
        assert_eq!([now.queued_releases, self.calls.release.load(SeqCst), now.quarantined_allocations], expected);
    }
}

fn released(sizes: &[u64]) -> Drained {
    Drained { released: sizes.len(), released_bytes: sizes.iter().sum(), ..Drained::default() }
}

fn retained(sizes: &[u64]) -> Drained {
    Drained { quarantined: sizes.len(), retained_bytes: sizes.iter().sum(), ..Drained::default() }
}

/// R111, I7: a stopped pusher keeps its place in the queue, and nobody: others push behind it, and drain what they have pushed.
#[test]
fn a_stopped_pusher_stops_nobody() {
    watched(|| {
        let rig = Rig::new(3);
        let stopped = rig.stopped_enqueue(1);
        assert_eq!((rig.queue.pending(), rig.queue.drain(9)), (1, Drained::default()));
        for _ in 0..100 {
            rig.enqueue(2);
            rig.enqueue(3);
            assert_eq!(rig.queue.enqueue(rig.request(4)).unwrap_err().rejection(), Full);
            assert_eq!(rig.queue.drain(9), released(&[2, 3]));
        }
        rig.enqueue(5);
        stopped.go_on().unwrap();
        assert_eq!(rig.queue.drain(9), released(&[1, 5]), "the oldest is the one that came first");
    });
}

/// R111, I7: a stopped popper keeps its request and that request's place, and nobody.
#[test]
fn a_stopped_popper_stops_nobody() {
    watched(|| {
        let rig = Rig::new(3);
        (1..=3).for_each(|bytes| rig.enqueue(bytes));
        let stopped = rig.stopped_drain();
        assert_eq!(rig.queue.enqueue(rig.request(9)).unwrap_err().rejection(), Full);
        assert_eq!(rig.queue.drain(9), released(&[2, 3]));
        for _ in 0..100 {
            rig.enqueue(4);
            assert_eq!(rig.queue.drain(9), released(&[4]));
        }
        rig.enqueue(5);
        assert_eq!((rig.queue.close(), rig.queue.pending()), (retained(&[5]), 1));
        assert_eq!(stopped.go_on(), released(&[1]));
        // 9 was refused and dropped.
        rig.rests_with([0, 103, 2]);
    });
}

/// R97: who has entered, and was not to be found when the queue was closed, finds that out: the request comes back.
#[test]
fn a_close_meets_a_stopped_pusher() {
    watched(|| {
        let rig = Rig::new(3);
        let (first, second) = (rig.stopped_enqueue(1), rig.stopped_enqueue(2));
        assert_eq!((rig.queue.close(), rig.queue.pending()), (Drained::default(), 2));
        let refused = first.go_on().unwrap_err();
        assert_eq!((refused.rejection(), rig.queue.pending()), (Closed, 1));
        assert!(refused.into_request().execute().is_complete());
        assert_eq!(rig.queue.lose(), Drained::default());
        assert_eq!(second.go_on().unwrap_err().rejection(), DeviceLost);
        rig.rests_with([0, 1, 1]);
    });
}

/// The same in the middle of a single thread's call, with a drain besides: neither finds it.
#[test]
fn a_close_within_an_enqueue() {
    let rig = Rig::new(1);
    let queue = Arc::clone(&rig.queue);
    at(Enqueueing, move || {
        assert_eq!((queue.drain(1), queue.close(), queue.close()), Default::default());
    });
    let refused = rig.queue.enqueue(rig.request(8)).unwrap_err();
    all_steps_were_reached();
    assert_eq!((refused.rejection(), rig.queue.pending()), (Closed, 0));
    refused.quarantine();
    let entries = rig.site.registry.quarantined(rig.mechanism).unwrap();
    assert_eq!(entries.iter().map(|entry| entry.reason).collect::<Vec<_>>(), [QuarantineReason::EnqueueRejected(Closed)]);
}

/// R111: a stopped closer has shut the queue, and keeps nobody from doing the rest.
#[test]
fn a_stopped_close_is_carried_out_by_others() {
    watched(|| {
        let rig = Rig::new(4);
        (1..=3).for_each(|bytes| rig.enqueue(bytes));
        let queue = Arc::clone(&rig.queue);
        let stopped = Stopped::at(Closing, move || queue.close());
        assert!(rig.queue.is_closed());
        assert_eq!(rig.queue.enqueue(rig.request(8)).unwrap_err().rejection(), Closed);
        assert_eq!(rig.queue.drain(1), released(&[1]));
        assert_eq!((rig.queue.close(), rig.queue.pending()), (retained(&[2, 3]), 0));
        assert_eq!(stopped.go_on(), Drained::default());
        rig.rests_with([0, 1, 3]);
    });
}

/// Room is there once the place is free, and before the request is executed.
#[test]
fn a_place_is_free_before_its_request_is_executed() {
    watched(|| {
        let rig = Rig::new(1);
        rig.enqueue(1);
        let (queue, request, released_so_far) = (Arc::clone(&rig.queue), rig.request(2), Arc::clone(&rig.calls));
        at(Dequeueing, move || {
            assert_eq!(queue.enqueue(request).unwrap_err().rejection(), Full);
            assert_eq!((queue.pending(), released_so_far.release.load(SeqCst)), (1, 0));
        });
        assert_eq!(rig.queue.drain(9), released(&[1]));
        all_steps_were_reached();
        rig.enqueue(3);
        assert_eq!(rig.queue.drain(9), released(&[3]));
        rig.rests_with([0, 2, 1]);
    });
}
