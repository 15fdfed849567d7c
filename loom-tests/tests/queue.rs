//! Models of `src/release/`: entering, draining, asking and ending, against each other.
//!
//! What waits sits in cells that loom tracks, so that an ordering too weak to hand it over is found, not only a count that is wrong.

#[path = "support/resource.rs"]
mod resource;
mod support;

use liveslot_loom::{
    AllocationReleaseOutcome, BindingRegistry,
    DeferredEnqueueRejection::{self, Closed, Full},
    DeviceAllocator, DeviceKey, MemoryBinding, MemoryError, PreparedAllocationRelease, ReleaseAccounting,
    release::{BoundedQueue, Drained},
};
use resource::Resource;
use std::{
    ptr::NonNull,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use support::race;

/// Hands out one address, and no memory. Its own word is std's, so that counting orders nothing.
#[derive(Debug, Default)]
struct Allocator {
    released: AtomicUsize,
}

impl DeviceAllocator for Allocator {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        Ok(NonNull::dangling())
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {
        unreachable!("every release comes as one");
    }

    unsafe fn release(&self, _: NonNull<u8>, bytes: usize, _: usize) -> AllocationReleaseOutcome {
        self.released.fetch_add(1, Relaxed);
        AllocationReleaseOutcome::complete(ReleaseAccounting::eager(bytes as u64))
    }

    fn device(&self) -> DeviceKey {
        DeviceKey::HOST
    }
}

/// Is looked at when it is asked for, and ends once.
struct Marker(Resource);

impl Drop for Marker {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.tear_down();
        }
    }
}

struct State {
    queue: BoundedQueue<Marker>,
    /// Each is taken by one role. Request `n` has `n` + 1 bytes.
    requests: Vec<Mutex<Option<PreparedAllocationRelease>>>,
    binding: MemoryBinding,
    allocator: Arc<Allocator>,
}

/// What a role has got.
#[derive(Debug, PartialEq)]
enum Got {
    Entered,
    /// The request came back, and was as good as before.
    Refused(DeferredEnqueueRejection),
    /// Released, retained, not ready.
    Took(usize, usize, usize),
}
use Got::*;

impl From<Drained> for Got {
    fn from(drained: Drained) -> Self {
        Took(drained.released, drained.quarantined, drained.not_ready)
    }
}

impl State {
    /// Of `requests`, the first `inside` wait already.
    fn new(capacity: usize, requests: usize, inside: usize) -> Self {
        let registry = BindingRegistry::striped(1).unwrap();
        let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(())).unwrap();
        let authority = registry.register_authority(DeviceKey::HOST, Arc::new(())).unwrap();
        let allocator = Arc::<Allocator>::default();
        registry.register_allocator(context, authority, Arc::clone(&allocator) as Arc<dyn DeviceAllocator>).unwrap();
        let binding = registry.bind(DeviceKey::HOST).unwrap();
        let prepare = |n| binding.prepare_release(binding.allocate(n + 1, 1).unwrap()).unwrap();
        let requests = (0..requests).map(|n| Mutex::new(Some(prepare(n)))).collect();
        let state = Self { queue: BoundedQueue::with_markers(capacity), requests, binding, allocator };
        (0..inside).for_each(|n| assert_eq!(state.enqueue(n), Entered));
        state
    }

    /// With room for one request, whose place is there already.
    fn used() -> Self {
        let mut state = Self::new(1, 2, 1);
        assert_eq!(state.drain(), Took(1, 0, 0));
        state.requests.remove(0);
        state.allocator.released.store(0, Relaxed);
        state
    }

    fn enqueue(&self, n: usize) -> Got {
        let request = self.requests[n].lock().unwrap().take().expect("one role takes it");
        let identity = request.identity();
        match self.queue.enqueue_marked(request, Marker(Resource::new())) {
            Ok(()) => Entered,
            Err(error) => {
                assert_eq!(error.request().identity(), identity, "another request came back");
                let rejection = error.rejection();
                assert!(error.into_request().execute().is_complete());
                Refused(rejection)
            }
        }
    }

    fn drain(&self) -> Got {
        self.queue.drain(1).into()
    }

    fn ask(&self) -> Got {
        let not_ready = |_: &PreparedAllocationRelease, marker: &Marker| {
            marker.0.read();
            false
        };
        self.queue.drain_ready(1, not_ready).into()
    }

    fn close(&self) -> Got {
        self.queue.close().into()
    }

    /// Requests that wait, releases that reached the allocator, allocations retained.
    fn rest(&self) -> [usize; 3] {
        let now = self.binding.mechanism_snapshot().unwrap();
        assert_eq!((now.live_allocations, now.queued_releases), (0, self.queue.pending()), "queued where nobody finds it");
        [now.queued_releases, self.allocator.released.load(Relaxed), now.quarantined_allocations]
    }
}

/// A request that has entered is drained now or later.
fn enqueue_and_drain(setup: fn() -> State) {
    race(setup, &[|state: &State| state.enqueue(0), State::drain], |state, got| {
        assert_eq!(got[0], Entered);
        let rest = match got[1] {
            Took(1, 0, 0) => [0, 1, 0],
            Took(0, 0, 0) => [1, 0, 0],
            ref other => panic!("{other:?}"),
        };
        assert_eq!(state.rest(), rest);
        state.drain();
        assert_eq!(state.rest(), [0, 1, 0]);
    });
}

/// In a place that is there.
#[test]
fn enqueue_in_a_place_and_drain() {
    enqueue_and_drain(State::used);
}

/// In a place that is made for it.
#[test]
fn enqueue_in_a_new_place_and_drain() {
    enqueue_and_drain(|| State::new(1, 1, 0));
}

/// A place, and the room for it, is handed on to another thread.
#[test]
fn a_place_is_handed_on() {
    race(
        || State::new(1, 2, 1),
        &[State::drain, |state: &State| state.enqueue(1)],
        |state, got| {
            assert_eq!(got[0], Took(1, 0, 0));
            match got[1] {
                Entered => {
                    assert_eq!(state.rest(), [1, 1, 0]);
                    assert_eq!(state.queue.drain(1).released_bytes, 2, "another than the second");
                }
                Refused(Full) => assert_eq!(state.rest(), [0, 2, 0]),
                ref other => panic!("{other:?}"),
            }
        },
    );
}

/// A place is used again as soon as it is free, before there is room for another.
#[test]
fn a_free_place_is_taken() {
    fn with_room() -> State {
        let state = State::new(2, 3, 2);
        assert_eq!(state.drain(), Took(1, 0, 0));
        state
    }
    race(with_room, &[State::drain, |state: &State| state.enqueue(2)], |state, got| {
        assert_eq!((&got[0], &got[1]), (&Took(1, 0, 0), &Entered));
        assert_eq!(state.rest(), [1, 2, 0]);
        assert_eq!(state.queue.drain(2).released_bytes, 3, "another than the third");
    });
}

/// Two who would enter where there is room for one: one does.
#[test]
fn enqueue_and_enqueue() {
    race(
        || State::new(1, 2, 0),
        &[|state: &State| state.enqueue(0), |state: &State| state.enqueue(1)],
        |state, got| {
            assert!(got.contains(&Entered) && got.contains(&Refused(Full)), "{got:?}");
            assert_eq!(state.rest(), [1, 1, 0]);
        },
    );
}

/// Two who enter where there is room for both do, each in a place of its own.
#[test]
fn there_is_room_for_two() {
    race(
        || State::new(2, 2, 0),
        &[|state: &State| state.enqueue(0), |state: &State| state.enqueue(1)],
        |state, got| {
            assert_eq!(got, [Entered, Entered]);
            assert_eq!((state.queue.drain(2).released_bytes, state.rest()), (3, [0, 2, 0]));
        },
    );
}

/// Who is refused does not keep another out who comes while there is room.
#[test]
fn a_refusal_keeps_nobody_out() {
    fn drain_and_enqueue(state: &State) -> Got {
        assert_eq!(state.drain(), Took(1, 0, 0));
        state.enqueue(2)
    }
    race(
        || State::new(1, 3, 1),
        &[|state: &State| state.enqueue(1), drain_and_enqueue],
        |state, got| {
            assert!(got.contains(&Entered) && got.contains(&Refused(Full)), "{got:?}");
            assert_eq!(state.rest(), [1, 2, 0]);
        },
    );
}

/// R97: who enters as the queue closes is refused, with the request, or the request is retained.
fn enqueue_and_close(setup: fn() -> State) {
    race(setup, &[|state: &State| state.enqueue(0), State::close], |state, got| {
        let rest = match (&got[0], &got[1]) {
            (Entered, Took(0, 1, 0)) => [0, 0, 1],
            (Refused(Closed), Took(0, 0, 0)) => [0, 1, 0],
            other => panic!("{other:?}"),
        };
        assert_eq!(state.rest(), rest);
        assert_eq!(state.close(), Took(0, 0, 0));
    });
}

/// In a place that is there.
#[test]
fn enqueue_in_a_place_and_close() {
    enqueue_and_close(State::used);
}

/// In a place that is made for it.
#[test]
fn enqueue_in_a_new_place_and_close() {
    enqueue_and_close(|| State::new(1, 1, 0));
}

/// What waits at the end is executed or retained.
#[test]
fn drain_and_close() {
    race(
        || State::new(1, 1, 1),
        &[State::drain, State::close],
        |state, got| {
            let rest = match (&got[0], &got[1]) {
                (Took(1, 0, 0), Took(0, 0, 0)) => [0, 1, 0],
                (Took(0, 0, 0), Took(0, 1, 0)) => [0, 0, 1],
                other => panic!("{other:?}"),
            };
            assert_eq!(state.rest(), rest);
        },
    );
}

/// All three: refused, retained or executed.
#[test]
fn enqueue_and_drain_and_close() {
    race(State::used, &[|state: &State| state.enqueue(0), State::drain, State::close], |state, got| {
        let rest = match (&got[0], &got[1], &got[2]) {
            (Entered, Took(1, 0, 0), Took(0, 0, 0)) | (Refused(Closed), Took(0, 0, 0), Took(0, 0, 0)) => [0, 1, 0],
            (Entered, Took(0, 0, 0), Took(0, 1, 0)) => [0, 0, 1],
            other => panic!("{other:?}"),
        };
        assert_eq!(state.rest(), rest);
    });
}

/// All three: whoever has it in hand last ends it.
#[test]
fn ask_and_drain_and_close() {
    race(
        || State::new(1, 1, 1),
        &[State::ask, State::drain, State::close],
        |state, got| {
            let ended: Vec<_> = got.iter().filter(|got| matches!(got, Took(1, 0, 0) | Took(0, 1, 0))).collect();
            assert_eq!(ended.len(), 1, "{got:?}");
            assert!(!matches!(got[0], Took(1, ..)) && !matches!(got[2], Took(1, ..)), "{got:?}");
            let released = usize::from(matches!(ended[0], Took(1, ..)));
            assert_eq!(state.rest(), [0, released, 1 - released]);
        },
    );
}

/// Two who drain take out two different requests.
#[test]
fn drain_and_drain() {
    race(
        || State::new(2, 2, 2),
        &[State::drain, State::drain],
        |state, got| {
            assert_eq!(got, [Took(1, 0, 0), Took(1, 0, 0)]);
            assert_eq!(state.rest(), [0, 2, 0]);
        },
    );
}

/// One who asks keeps nothing from those who come afterwards.
#[test]
fn ask_and_drain() {
    race(
        || State::new(1, 1, 1),
        &[State::ask, State::drain],
        |state, got| {
            let rest = match (&got[0], &got[1]) {
                (Took(0, 0, 0 | 1), Took(1, 0, 0)) => [0, 1, 0],
                // It was in the other's hands.
                (Took(0, 0, 1), Took(0, 0, 0)) => [1, 0, 0],
                other => panic!("{other:?}"),
            };
            assert_eq!(state.rest(), rest);
            state.drain();
            assert_eq!(state.rest(), [0, 1, 0]);
        },
    );
}

/// What is being asked for at the end is retained by who asks, or by who closes.
#[test]
fn ask_and_close() {
    race(
        || State::new(1, 1, 1),
        &[State::ask, State::close],
        |state, got| {
            match (&got[0], &got[1]) {
                (Took(0, 0, 0 | 1), Took(0, 1, 0)) | (Took(0, 1, 0), Took(0, 0, 0)) => {}
                other => panic!("{other:?}"),
            }
            assert_eq!(state.rest(), [0, 0, 1]);
        },
    );
}
