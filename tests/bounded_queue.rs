//! The bounded queue: order, capacity, readiness, its ends, panics, re-entrancy, and that nothing is lost.

mod common {
    pub mod arm;
    pub mod doubles;
    pub mod park;
    pub mod rig;
    pub mod watchdog;
}

use common::{
    arm::arm,
    park::gate,
    rig::{DEVICE, Rig},
    watchdog::in_time,
};
use liveslot::{
    DeferredEnqueueRejection::{self, *},
    release::{BoundedQueue, Drained},
    *,
};
use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Barrier, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

/// Prepared releases of allocations of these sizes, in this order. The log is empty afterwards.
fn requests<const N: usize>(rig: &Rig, sizes: [usize; N]) -> [PreparedAllocationRelease; N] {
    let binding = rig.registry.bind_registered(rig.mechanism).unwrap();
    let requests = sizes.map(|bytes| binding.prepare_release(binding.allocate(bytes, 8).unwrap()).unwrap());
    rig.log.take();
    requests
}

/// A queue without markers that these wait in.
fn filled<const N: usize>(rig: &Rig, capacity: usize, sizes: [usize; N]) -> BoundedQueue {
    let queue = BoundedQueue::new(capacity);
    fill(&queue, rig, sizes);
    queue
}

fn fill<const N: usize>(queue: &BoundedQueue, rig: &Rig, sizes: [usize; N]) {
    requests(rig, sizes).into_iter().for_each(|request| queue.enqueue(request).unwrap());
}

/// The queue does not take `request`, for this reason, and hands it back.
#[track_caller]
fn refuses(
    queue: &impl DeferredReleaseQueue,
    request: PreparedAllocationRelease,
    rejection: DeferredEnqueueRejection,
) -> PreparedAllocationRelease {
    let identity = request.identity();
    let refused = queue.enqueue(request).unwrap_err();
    assert_eq!((refused.rejection(), refused.request().identity()), (rejection, identity));
    refused.into_request()
}

fn released(sizes: &[u64]) -> Drained {
    Drained { released: sizes.len(), released_bytes: sizes.iter().sum(), ..Drained::default() }
}

fn retained(sizes: &[u64]) -> Drained {
    Drained { quarantined: sizes.len(), retained_bytes: sizes.iter().sum(), ..Drained::default() }
}

/// Size, state and reason of what is retained, by size.
fn quarantined(rig: &Rig) -> Vec<(usize, AllocationReleaseState, QuarantineReason)> {
    let mut entries: Vec<_> =
        rig.registry.quarantined(rig.mechanism).unwrap().iter().map(|entry| (entry.bytes, entry.state, entry.reason)).collect();
    entries.sort_unstable_by_key(|(bytes, ..)| *bytes);
    entries
}

/// Live, queued, quarantined, operations.
fn counts(rig: &Rig) -> [usize; 4] {
    let now = rig.registry.snapshot(rig.mechanism).unwrap();
    [now.live_allocations, now.queued_releases, now.quarantined_allocations, now.active_operations]
}

const CLOSED: QuarantineReason = QuarantineReason::EnqueueRejected(Closed);

fn lose_device(rig: &Rig) {
    rig.registry.invalidate_device(DEVICE, "lost by the test").unwrap();
}

/// Takes apart a rig whose mechanism retains something.
fn finish_retaining(rig: Rig) {
    lose_device(&rig);
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    rig.finish();
}

fn panics(work: impl FnOnce() -> Drained) -> &'static str {
    let panic = catch_unwind(AssertUnwindSafe(work)).unwrap_err();
    panic.downcast_ref::<&'static str>().expect("the panic that was asked for")
}

/// R96, R88, R90: a limit takes the oldest, and each is released once, with what was asked for.
#[test]
fn the_oldest_are_released_first() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let queue = BoundedQueue::new(8);
    for bytes in 1..=5 {
        let owner = binding.allocate_owning(bytes, 8).unwrap();
        let identity = owner.identity();
        assert_eq!(owner.release_deferred(&queue).unwrap(), DeferredReleaseDisposition::Queued { identity });
    }
    assert_eq!((queue.pending(), counts(&rig)), (5, [0, 5, 0, 5]));
    rig.log.take();

    assert_eq!(queue.drain(0), Drained::default());
    assert_eq!(queue.drain(2), released(&[1, 2]));
    assert_eq!(rig.log.take(), ["A release 1 8", "A release 2 8"]);
    assert_eq!((queue.pending(), counts(&rig)), (3, [0, 3, 0, 3]));
    fill(&queue, &rig, [6]);
    assert_eq!(queue.drain(usize::MAX), released(&[3, 4, 5, 6]));
    assert_eq!(rig.log.take(), ["A release 3 8", "A release 4 8", "A release 5 8", "A release 6 8"]);
    assert_eq!((queue.pending(), queue.drain(1), counts(&rig)), (0, Drained::default(), [0, 0, 0, 0]));
    drop(binding);
    rig.finish();
}

/// R90: what allocators say is added up, and what they keep is not counted as released.
#[test]
fn outcomes_are_added_up() {
    let rig = Rig::new();
    let queue = filled(&rig, 4, [64, 32, 16]);
    arm(&rig.script.release, || AllocationReleaseOutcome::complete(ReleaseAccounting::new(64, 4096)));
    assert_eq!(queue.drain(1), Drained { unmapped_bytes: 4096, ..released(&[64]) });
    arm(&rig.script.release, || AllocationReleaseOutcome::failed("refused"));
    assert_eq!(queue.drain(1), retained(&[32]));
    assert_eq!(queue.drain(1), released(&[16]));
    let all = Drained { released: 2, quarantined: 3, not_ready: 7, ..Drained::default() };
    assert_eq!(all.executed(), 5);
    assert_eq!(quarantined(&rig), [(32, AllocationReleaseState::Quarantined, QuarantineReason::AllocatorRefused)]);
    finish_retaining(rig);
}

/// R97: exactly as many wait as there is room for; who is refused has the very request; room that is made can be used.
#[test]
fn a_full_queue_refuses() {
    let rig = Rig::new();
    for capacity in [1, 2, 3, 63, 64, 65, 200] {
        let queue = BoundedQueue::new(capacity);
        for _ in 0..3 {
            while queue.pending() < capacity {
                fill(&queue, &rig, [8]);
            }
            let [request] = requests(&rig, [9]);
            let request = refuses(&queue, request, Full);
            assert_eq!(queue.drain(1).released, 1);
            queue.enqueue(request).unwrap();
            assert_eq!(queue.pending(), capacity);
            assert_eq!(queue.drain(capacity / 2 + 1).released, capacity / 2 + 1);
        }
        assert_eq!(queue.drain(usize::MAX).released, capacity - capacity / 2 - 1);
    }
    rig.finish();
}

/// R96: an owner's refused release is retained with the queue's rejection.
#[test]
fn a_refused_owner_is_retained() {
    let rig = Rig::new();
    let queue = BoundedQueue::new(0);
    assert_eq!(queue.capacity(), 0);
    let owner = rig.registry.bind(DEVICE).unwrap().allocate_owning(64, 8).unwrap();
    let disposition = owner.release_deferred(&queue).unwrap();
    assert!(matches!(disposition, DeferredReleaseDisposition::Quarantined { rejection: Full, .. }), "{disposition:?}");
    assert_eq!(quarantined(&rig), [(64, AllocationReleaseState::Quarantined, QuarantineReason::EnqueueRejected(Full))]);
    assert_eq!((queue.pending(), queue.drain(1)), (0, Drained::default()));
    finish_retaining(rig);
}

/// Room is memory only once it is used: any capacity will do.
#[test]
fn the_largest_capacity_costs_nothing() {
    let rig = Rig::new();
    let queue = filled(&rig, usize::MAX, [1; 300]);
    assert_eq!((queue.capacity(), queue.pending()), (usize::MAX, 300));
    assert_eq!(queue.drain(usize::MAX), released(&[1; 300]));
    rig.finish();
}

/// R92: closing retains what waits, says how much, and takes nothing more; closing again changes nothing.
#[test]
fn closing_retains_what_waits() {
    let rig = Rig::new();
    let queue = filled(&rig, 2, [32, 64]);
    let [late] = requests(&rig, [16]);
    assert!(!queue.is_closed());
    assert_eq!(queue.close(), retained(&[32, 64]));
    assert_eq!((queue.is_closed(), queue.pending(), counts(&rig)), (true, 0, [0, 1, 2, 1]));
    let kept = AllocationReleaseState::Quarantined;
    assert_eq!(quarantined(&rig), [(32, kept, CLOSED), (64, kept, CLOSED)]);
    assert_eq!(rig.log.take(), [""; 0]);

    let late = refuses(&queue, late, Closed);
    assert_eq!((queue.close(), queue.drain(9)), (Drained::default(), Drained::default()));
    assert!(late.execute().is_complete());
    finish_retaining(rig);
}

/// R93: a provider that says so first has what waits retained as lost, on a mechanism that is Active; the rejection wins over the others.
#[test]
fn losing_retains_what_waits() {
    let rig = Rig::new();
    let queue = filled(&rig, 2, [32, 64]);
    let [late] = requests(&rig, [16]);
    let late = refuses(&queue, late, Full);
    assert_eq!(queue.lose(), retained(&[32, 64]));
    assert_eq!((queue.is_closed(), queue.pending()), (true, 0));
    let lost = (AllocationReleaseState::DeviceLost, QuarantineReason::DeviceLost);
    assert_eq!(quarantined(&rig), [(32, lost.0, lost.1), (64, lost.0, lost.1)]);
    let late = refuses(&queue, late, DeviceLost);
    assert_eq!(queue.close(), Drained::default());
    let late = refuses(&queue, late, DeviceLost);

    let closed = BoundedQueue::new(1);
    assert_eq!(closed.close(), Drained::default());
    let late = refuses(&closed, late, Closed);
    assert_eq!(closed.lose(), Drained::default());
    let late = refuses(&closed, late, DeviceLost);
    assert!(late.execute().is_complete());
    assert_eq!(rig.log.take(), ["A release 16 8"]);
    finish_retaining(rig);
}

/// R132: a request that was prepared before a loss, and arrives after it, is refused, whatever else is wrong with the queue. Requests of
/// another device are not.
#[test]
fn a_request_of_a_lost_device_is_refused() {
    let (rig, elsewhere) = (Rig::new(), Rig::new());
    let [request] = requests(&rig, [16]);
    let queue = filled(&elsewhere, 1, [64]);
    lose_device(&rig);
    let request = refuses(&queue, request, DeviceLost);
    assert_eq!(queue.drain(1), released(&[64]));
    let request = refuses(&queue, request, DeviceLost);
    fill(&queue, &elsewhere, [32]);
    assert_eq!(queue.drain(1), released(&[32]));
    drop(request);
    elsewhere.finish();
    finish_retaining(rig);
}

/// R91: of those that wait at a loss nobody is asked any more, no allocator is called, and the end of the context can be confirmed.
#[test]
fn a_loss_makes_everything_ready() {
    let rig = Rig::new();
    let queue = filled(&rig, 8, [1, 2, 3]);
    let never = |_: &PreparedAllocationRelease, (): &()| false;
    assert_eq!(queue.drain_ready(8, never), Drained { not_ready: 3, ..Drained::default() });
    lose_device(&rig);
    rig.registry.confirm_context_terminated(rig.context).unwrap_err();
    assert_eq!(queue.drain_ready(2, |_, ()| panic!("asked after the loss")), retained(&[1, 2]));
    assert_eq!(queue.drain_ready(2, never), retained(&[3]));
    let lost = (AllocationReleaseState::DeviceLost, QuarantineReason::DeviceLost);
    assert_eq!(quarantined(&rig), [1, 2, 3].map(|bytes| (bytes, lost.0, lost.1)));
    assert_eq!(rig.log.take(), [""; 0]);
    finish_retaining(rig);
}

/// Whether a stream has come so far.
type Event = Arc<AtomicBool>;

fn has_come(_: &PreparedAllocationRelease, event: &Event) -> bool {
    event.load(SeqCst)
}

/// C094: one stream that never ends keeps what waits for it, and nothing else, however often it is asked; what it keeps stays as old as it
/// was.
#[test]
fn a_stuck_stream_keeps_nobody_else() {
    let rig = Rig::new();
    let [stuck, done] = [false, true].map(|come| Arc::new(AtomicBool::new(come)));
    let queue = BoundedQueue::with_markers(8);
    let events = [&stuck, &done, &stuck, &done, &done];
    for (request, event) in requests(&rig, [1, 2, 3, 4, 5]).into_iter().zip(events) {
        queue.enqueue_marked(request, Event::clone(event)).unwrap();
    }
    assert_eq!(queue.drain_ready(1, has_come), Drained { not_ready: 1, ..released(&[2]) });
    assert_eq!(queue.drain_ready(8, has_come), Drained { not_ready: 2, ..released(&[4, 5]) });
    for bytes in 6..106 {
        let [request] = requests(&rig, [bytes]);
        queue.enqueue_marked(request, Event::clone(&done)).unwrap();
        assert_eq!(queue.drain_ready(8, has_come), Drained { not_ready: 2, ..released(&[bytes as u64]) });
    }
    assert_eq!(queue.pending(), 2);
    let [last] = requests(&rig, [200]);
    queue.enqueue_marked(last, done).unwrap();
    stuck.store(true, SeqCst);
    assert_eq!(queue.drain_ready(8, has_come), released(&[1, 3, 200]));
    assert_eq!(rig.log.take(), ["A release 1 8", "A release 3 8", "A release 200 8"]);
    rig.finish();
}

/// C099: what is kept of a stream is the marker that was captured. The stream may end first; the marker ends after its release.
#[test]
fn a_stream_may_end_before_its_releases() {
    struct Stream {
        event: Event,
    }
    let rig = Rig::new();
    let queue = BoundedQueue::with_markers(1);
    let stream = Arc::new(Stream { event: Event::default() });
    let handle = Arc::downgrade(&stream);
    let [request] = requests(&rig, [64]);
    queue.enqueue_marked(request, Event::clone(&stream.event)).unwrap();
    let event = Event::clone(&stream.event);
    drop(stream);
    assert_eq!(Weak::strong_count(&handle), 0);
    assert_eq!(queue.drain_ready(1, has_come), Drained { not_ready: 1, ..Drained::default() });
    event.store(true, SeqCst);
    arm(&rig.script.release, {
        let event = Event::clone(&event);
        move || {
            assert_eq!(Arc::strong_count(&event), 3, "the marker ended before the release");
            AllocationReleaseOutcome::complete(ReleaseAccounting::eager(64))
        }
    });
    assert_eq!(queue.drain_ready(1, has_come), released(&[64]));
    assert_eq!(Arc::strong_count(&event), 1);
    rig.finish();
}

/// C101: at the end what is done is released and what isn't is retained, before allocator, authority and context go, in this order.
#[test]
fn an_end_leaves_nothing_queued() {
    let rig = Rig::new();
    let log = rig.log.clone();
    let queue = BoundedQueue::with_markers(64);
    for (number, request) in requests(&rig, [8; 55]).into_iter().enumerate() {
        queue.enqueue_marked(request, number % 11 != 7).unwrap();
    }
    drop(rig);
    assert_eq!(log.take(), [""; 0]);
    assert_eq!(queue.drain_ready(64, |_, done| *done), Drained { not_ready: 5, ..released(&[8; 50]) });
    assert_eq!(log.take(), ["A release 8 8"; 50]);
    assert_eq!(queue.close(), retained(&[8; 5]));
    assert_eq!(log.take(), ["A dropped", "Q dropped", "C dropped"]);
}

/// R94: a queue that is dropped retains what waits, and drops the markers.
#[test]
fn dropping_abandons_what_waits() {
    let rig = Rig::new();
    let queue = BoundedQueue::with_markers(4);
    let marker = Event::default();
    for request in requests(&rig, [32, 64]) {
        queue.enqueue_marked(request, Event::clone(&marker)).unwrap();
    }
    drop(queue);
    assert_eq!(Arc::strong_count(&marker), 1);
    let (state, reason) = (AllocationReleaseState::Quarantined, QuarantineReason::AbandonedRequest);
    assert_eq!(quarantined(&rig), [(32, state, reason), (64, state, reason)]);
    assert_eq!((counts(&rig), rig.log.take()), ([0, 0, 2, 0], vec![]));
    finish_retaining(rig);
}

/// R117, R119: a release that panics reaches the drainer, and takes no other with it.
#[test]
fn a_panic_in_a_release_loses_no_other() {
    let rig = Rig::new();
    let queue = filled(&rig, 3, [1, 2, 3]);
    assert_eq!(queue.drain(1), released(&[1]));
    arm(&rig.script.release, || panic!("the allocator"));
    assert_eq!(panics(|| queue.drain(9)), "the allocator");
    assert_eq!((queue.pending(), counts(&rig)), (1, [0, 1, 1, 1]));
    assert_eq!(quarantined(&rig), [(2, AllocationReleaseState::Quarantined, QuarantineReason::AbandonedRequest)]);
    fill(&queue, &rig, [4, 5]);
    assert_eq!(queue.drain(9), released(&[3, 4, 5]));
    finish_retaining(rig);
}

/// R119: asking that panics leaves the request where it was, as old as it was.
#[test]
fn a_panic_in_asking_leaves_the_request() {
    let rig = Rig::new();
    let queue = filled(&rig, 3, [1, 2, 3]);
    let panics_at_two = |request: &PreparedAllocationRelease, (): &()| {
        assert!(request.len() != 2, "the question");
        true
    };
    assert_eq!(panics(|| queue.drain_ready(9, panics_at_two)), "the question");
    assert_eq!(queue.pending(), 2);
    assert_eq!(queue.drain(9), released(&[2, 3]));
    assert_eq!(rig.log.take(), ["A release 1 8", "A release 2 8", "A release 3 8"]);
    rig.finish();
}

/// A marker whose end does something.
struct Bomb(Cell<Option<&'static str>>);

impl Drop for Bomb {
    fn drop(&mut self) {
        if let Some(message) = self.0.take() {
            std::panic::panic_any(message);
        }
    }
}

/// R118, R119: a marker that panics reaches whoever drains or closes; its own request has ended, the others stay until the next call.
#[test]
fn a_panic_in_a_marker_loses_no_other() {
    let rig = Rig::new();
    let queue = BoundedQueue::with_markers(4);
    let markers = [None, Some("drained"), None, Some("closed"), None];
    for (request, marker) in requests(&rig, [1, 2, 3, 4]).into_iter().zip(markers) {
        queue.enqueue_marked(request, Bomb(Cell::new(marker))).unwrap();
    }
    assert_eq!(panics(|| queue.drain(4)), "drained");
    assert_eq!((queue.pending(), rig.log.take()), (2, vec!["A release 1 8".to_owned(), "A release 2 8".to_owned()]));
    let [fifth] = requests(&rig, [5]);
    queue.enqueue_marked(fifth, Bomb(Cell::new(None))).unwrap();
    assert_eq!(queue.drain(1), released(&[3]));
    assert_eq!(panics(|| queue.close()), "closed");
    assert_eq!((queue.pending(), queue.close(), queue.pending()), (1, retained(&[5]), 0));
    let kept = AllocationReleaseState::Quarantined;
    assert_eq!(quarantined(&rig), [(4, kept, CLOSED), (5, kept, CLOSED)]);
    finish_retaining(rig);
}

/// R116: so does a refused marker; its request is retained as abandoned.
#[test]
fn a_panic_in_a_refused_marker_loses_nothing() {
    let rig = Rig::new();
    let queue = BoundedQueue::with_markers(0);
    let [first, second] = requests(&rig, [32, 64]);
    let enqueue = |request| {
        let marker = Bomb(Cell::new(Some("refused")));
        let _ = queue.enqueue_marked(request, marker);
        Drained::default()
    };
    assert_eq!(panics(|| enqueue(first)), "refused");
    assert_eq!(queue.close(), Drained::default());
    assert_eq!(panics(|| enqueue(second)), "refused");
    let (state, reason) = (AllocationReleaseState::Quarantined, QuarantineReason::AbandonedRequest);
    assert_eq!(quarantined(&rig), [(32, state, reason), (64, state, reason)]);
    assert_eq!((queue.pending(), counts(&rig)), (0, [0, 0, 2, 0]));
    finish_retaining(rig);
}

/// R106, R108: a release may enqueue, though the queue was full, and drain; a drain does not execute what came during it.
#[test]
fn a_release_may_call_the_queue() {
    let rig = Rig::new();
    let queue = Arc::new(filled(&rig, 2, [1, 2]));
    let [third, fourth] = requests(&rig, [3, 4]);
    arm(&rig.script.release, {
        let queue = Arc::clone(&queue);
        move || {
            assert_eq!(queue.pending(), 1);
            queue.enqueue(third).unwrap();
            let fourth = refuses(&*queue, fourth, Full);
            assert_eq!(queue.drain(1), released(&[2]));
            queue.enqueue(fourth).unwrap();
            AllocationReleaseOutcome::complete(ReleaseAccounting::eager(1))
        }
    });
    assert_eq!(queue.drain(9), released(&[1]));
    assert_eq!(rig.log.take(), ["A release 1 8", "A release 2 8"]);
    assert_eq!(queue.drain(9), released(&[3, 4]));

    fill(&queue, &rig, [5, 6]);
    arm(&rig.script.release, {
        let queue = Arc::clone(&queue);
        move || {
            assert_eq!(queue.close(), retained(&[6]));
            AllocationReleaseOutcome::complete(ReleaseAccounting::eager(5))
        }
    });
    assert_eq!(queue.drain(9), released(&[5]));
    assert_eq!(counts(&rig), [0, 0, 1, 0]);
    finish_retaining(rig);
}

/// R106: asking may drain the others, and close: then what is being asked for is retained when it is put back, or executed if it is ready.
#[test]
fn asking_may_call_the_queue() {
    let rig = Rig::new();
    let queue = filled(&rig, 3, [1, 2, 3]);
    let drained = queue.drain_ready(9, |request, ()| {
        assert_eq!(request.len(), 1, "the others are gone");
        assert_eq!(queue.drain(1), released(&[2]));
        assert_eq!(queue.drain_ready(1, |_, ()| true), released(&[3]));
        assert_eq!((queue.drain(9), queue.pending()), (Drained::default(), 1));
        false
    });
    assert_eq!((drained, queue.pending()), (Drained { not_ready: 1, ..Drained::default() }, 1));

    fill(&queue, &rig, [4, 5]);
    let drained = queue.drain_ready(9, |request, ()| {
        if request.len() == 4 {
            assert_eq!(queue.close(), retained(&[1, 5]));
        }
        false
    });
    assert_eq!((drained, queue.pending()), (Drained { not_ready: 1, ..retained(&[4]) }, 0));
    let kept = AllocationReleaseState::Quarantined;
    assert_eq!(quarantined(&rig), [(1, kept, CLOSED), (4, kept, CLOSED), (5, kept, CLOSED)]);

    let queue = filled(&rig, 1, [6]);
    let drained = queue.drain_ready(9, |_, ()| queue.close() == Drained::default());
    assert_eq!((drained, queue.pending()), (released(&[6]), 0));
    finish_retaining(rig);
}

/// R107: a release that is stopped keeps nobody: others enqueue, drain and close meanwhile.
#[test]
fn a_stopped_release_stops_nobody() {
    let rig = Rig::new();
    let queue = Arc::new(filled(&rig, 2, [1, 2]));
    let (stop, gate) = gate();
    arm(&rig.script.release, || {
        stop.park();
        AllocationReleaseOutcome::complete(ReleaseAccounting::eager(1))
    });
    let drainer = thread::spawn({
        let queue = Arc::clone(&queue);
        move || queue.drain(1)
    });
    gate.reached();
    let [third, fourth] = requests(&rig, [3, 4]);
    in_time({
        let queue = Arc::clone(&queue);
        move || {
            queue.enqueue(third).unwrap();
            assert_eq!(queue.drain(9), released(&[2, 3]));
            queue.enqueue(fourth).unwrap();
            assert_eq!((queue.close(), queue.pending()), (retained(&[4]), 0));
        }
    });
    assert_eq!(counts(&rig), [0, 1, 1, 1]);
    gate.open();
    assert_eq!(drainer.join().unwrap(), released(&[1]));
    finish_retaining(rig);
}

/// R107: so does a drainer that is stopped while it asks: the request that it has in hand waits with it, the others do not; and a close
/// that can't find that request is carried out when it is put back.
#[test]
fn a_stopped_question_stops_nobody() {
    let rig = Rig::new();
    let queue = Arc::new(filled(&rig, 3, [1, 2, 3]));
    let (stop, gate) = gate();
    let drainer = thread::spawn({
        let queue = Arc::clone(&queue);
        let mut stop = Some(stop);
        move || {
            queue.drain_ready(9, |_, ()| {
                stop.take().expect("asked once, for the rest is gone").park();
                false
            })
        }
    });
    gate.reached();
    let [fourth] = requests(&rig, [4]);
    in_time({
        let queue = Arc::clone(&queue);
        move || {
            assert_eq!(queue.drain(9), released(&[2, 3]));
            queue.enqueue(fourth).unwrap();
            assert_eq!((queue.close(), queue.pending()), (retained(&[4]), 1));
        }
    });
    gate.open();
    assert_eq!(drainer.join().unwrap(), retained(&[1]));
    let kept = AllocationReleaseState::Quarantined;
    assert_eq!((queue.pending(), quarantined(&rig)), (0, vec![(1, kept, CLOSED), (4, kept, CLOSED)]));
    finish_retaining(rig);
}

/// I5: whatever enqueues, drains, asks and closes at once, every allocation is released, or retained, or handed back to who brought it.
#[test]
fn nothing_is_lost_at_the_end() {
    const ROUNDS: usize = 200;
    const PUSHERS: usize = 3;
    for round in 0..ROUNDS {
        let rig = Rig::new();
        let queue = BoundedQueue::with_markers(1 + round % 5);
        let batches: [_; PUSHERS] = std::array::from_fn(|_| requests(&rig, [8; 10]));
        let (refused, drained) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let retained = AtomicUsize::new(0);
        let start = Barrier::new(PUSHERS + 2);
        let note = |saw: Drained| {
            drained.fetch_add(saw.released, SeqCst);
            retained.fetch_add(saw.quarantined, SeqCst);
        };
        thread::scope(|scope| {
            for batch in batches {
                scope.spawn(|| {
                    start.wait();
                    for (number, request) in batch.into_iter().enumerate() {
                        if let Err(error) = queue.enqueue_marked(request, number) {
                            assert!(matches!(error.rejection(), Full | Closed), "{error:?}");
                            assert!(error.into_request().execute().is_complete());
                            refused.fetch_add(1, SeqCst);
                        }
                        if number % 3 == 0 {
                            note(queue.drain(1));
                        }
                    }
                });
            }
            scope.spawn(|| {
                start.wait();
                (0..10).for_each(|_| note(queue.drain_ready(2, |_, number| number % 2 == 0)));
            });
            start.wait();
            for _ in 0..round {
                thread::yield_now();
            }
            note(queue.close());
        });
        assert_eq!((queue.pending(), queue.close()), (0, Drained::default()));
        let [live, queued, quarantined, operations] = counts(&rig);
        assert_eq!([live, queued, operations], [0, 0, 0]);
        assert_eq!(refused.into_inner() + drained.into_inner() + quarantined, 10 * PUSHERS);
        assert_eq!(retained.into_inner(), quarantined);
        finish_retaining(rig);
    }
}

/// As many as there is room for are never refused, though they all come and go at once.
#[test]
fn room_is_found_by_all_who_have_it() {
    const THREADS: usize = 4;
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let queue = BoundedQueue::new(THREADS);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..2000 {
                    queue.enqueue(binding.prepare_release(binding.allocate(8, 8).unwrap()).unwrap()).unwrap();
                    assert!((1..=THREADS).contains(&queue.pending()));
                    // Each takes one out for the one that it has put in, whosesoever it is.
                    while queue.drain(1).released == 0 {
                        thread::yield_now();
                    }
                }
            });
        }
    });
    assert_eq!((queue.pending(), counts(&rig)), (0, [0, 0, 0, 0]));
    drop(binding);
    rig.finish();
}

/// R113: a queue shows itself, and neither requests nor markers, which may be anything.
#[test]
fn debug_shows_the_queue_alone() {
    fn shared<T: Send + Sync>(_: &T) {}
    let rig = Rig::new();
    let queue = BoundedQueue::with_markers(7);
    shared(&queue);
    // A marker without `Debug` and without `Sync`.
    let [request] = requests(&rig, [8]);
    queue.enqueue_marked(request, Cell::new(())).unwrap();
    assert_eq!(format!("{queue:?}"), "BoundedQueue { capacity: 7, pending: 1, end: None }");
    assert_eq!(queue.drain(1), released(&[8]));
    assert_eq!(queue.lose(), Drained::default());
    assert_eq!(format!("{queue:?}"), "BoundedQueue { capacity: 7, pending: 0, end: Some(DeviceLost) }");
    assert_eq!(rig.log.take(), ["A release 8 8"]);
    let as_trait: &dyn DeferredReleaseQueue = &BoundedQueue::new(3);
    assert_eq!(as_trait.pending(), 0);
    rig.finish();
}
