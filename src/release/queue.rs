//! The bounded queue.
//!
//! A request that enters gets a [ticket](Ticket) at the [door](Door), which knows the capacity and the end; then one of as many
//! [places](Places). Whoever wants it takes it out of its place by that ticket, which has one winner; then the place is freed, then there
//! is room at the door, and only then does anything of the user's run: nothing is held while a request is executed or retained.
//!
//! Draining looks at all places once, sorts what it has seen by ticket, and takes the oldest first. A request that isn't ready is put
//! back where it was, with the ticket that it had; while it is being asked for it is in one drainer's hands, and the others pass it by.
//!
//! Closing shuts the door and then takes out whatever it finds. A request that it can't find, because it is not in its place yet or is in a
//! drainer's hands, is on its way to be put there by somebody who then looks at the door, and takes it out again: he hands it back to
//! whoever brought it, or retains it. So a queue that was closed, and that nobody is in the middle of, is empty.
//!
//! # Why not a linked queue
//!
//! - Requests stay that aren't ready, in the middle of others. In a queue of Michael and Scott each would be taken out at the head and put
//!   in again at the tail, at every drain; and its age would be lost. Taking out of the middle of a list is what places do with
//!   one word.
//! - Nodes that others may be looking at need an epoch, and an allocation for each request. A place is memory for as long as the queue,
//!   its ticket says what is in it, and nothing is ever looked at but the word.
//! - Nobody waits. In crossbeam's queues a popper that meets a stopped pusher spins until that goes on.
//!
//! The price is that a drain, whatever its limit, looks at every place that was ever in use at once, and sorts.
//!
//! | operation | progress | cost, beside the user's own code |
//! | --- | --- | --- |
//! | [`BoundedQueue::enqueue_marked`] | lock-free | two RMWs and one fence; no allocation but a chunk when more wait than ever before |
//! | [`BoundedQueue::drain_ready`] | lock-free | a load per place, a sorted list of what waits; two RMWs per request that is taken out, one and a fence per request that is put back |
//! | [`BoundedQueue::close`] | lock-free | one RMW, one fence, then as draining |
//! | [`BoundedQueue::pending`] | wait-free | two loads |

use super::door::{Door, End};
use crate::{
    callback::{self, Theirs},
    contract::{AllocationReleaseOutcome, DeferredEnqueueRejection, QuarantineReason},
    handles::{DeferredEnqueueError, DeferredReleaseQueue, PreparedAllocationRelease},
    primitives::places::{Claimed, Place, Places, Ticket},
    sync::gate,
};
use std::fmt;

/// A bounded queue of releases, each with a marker of the moment from which on it is *ready*, oldest first.
///
/// It is lock-free: a thread that is stopped in the middle of any call keeps the request it has in hand, at most a place in the queue with
/// it, and nobody else. One that executes a release for ever keeps no place. Every method may be called from several threads at once, and
/// from whatever runs within another call of the same queue.
///
/// Dropping it retains what is inside as abandoned: close it first to have that done for a reason.
///
/// It takes 16 bytes, and what a marker takes, for each request of about the most that ever waited at once, rounded up to 64 · (2ⁿ − 1) or
/// down to the capacity.
///
/// See [the module](crate::release) for examples.
pub struct BoundedQueue<M = ()> {
    door: Door,
    places: Places<Waiting<M>>,
}

struct Waiting<M> {
    request: PreparedAllocationRelease,
    marker: Theirs<M>,
}

/// What became of the requests that a call took out of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[must_use = "a release that was not completed is retained, and only this says so"]
pub struct Drained {
    /// Requests whose release was completed.
    pub released: usize,
    /// The sizes of their allocations, in bytes. Saturates.
    pub released_bytes: u64,
    /// Physical memory that their allocators unmapped, in bytes, as they reported it. Saturates.
    pub unmapped_bytes: u64,
    /// Requests whose ownership was retained.
    pub quarantined: usize,
    /// How much of their allocations is retained, in bytes, as the allocators reported it. Saturates.
    pub retained_bytes: u64,
    /// Requests that were asked for, were not ready, and stay.
    pub not_ready: usize,
}

impl Drained {
    /// How many requests were taken out.
    #[must_use]
    pub const fn executed(&self) -> usize {
        self.released + self.quarantined
    }

    /// A request for `bytes` has ended.
    fn count(&mut self, bytes: usize, outcome: &AllocationReleaseOutcome) {
        match outcome {
            AllocationReleaseOutcome::Complete { accounting } => {
                self.released += 1;
                self.released_bytes = self.released_bytes.saturating_add(bytes as u64);
                self.unmapped_bytes = self.unmapped_bytes.saturating_add(accounting.unmapped_bytes);
            }
            incomplete => {
                self.quarantined += 1;
                let retained = incomplete.residual().map_or(0, |residual| residual.retained_bytes);
                self.retained_bytes = self.retained_bytes.saturating_add(retained);
            }
        }
    }
}

impl BoundedQueue {
    /// A queue for at most `capacity` requests at once, without markers. With a capacity of 0 it is always full.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self::with_markers(capacity)
    }
}

impl<M> BoundedQueue<M> {
    /// A queue for at most `capacity` requests at once, each of which comes with a marker.
    ///
    /// A marker is moved, handed to [`drain_ready`](Self::drain_ready)'s closure, and dropped after its request has ended, or when that is
    /// refused.
    #[must_use]
    pub fn with_markers(capacity: usize) -> Self {
        Self { door: Door::new(capacity), places: Places::new(capacity) }
    }

    /// How many requests it takes at once.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.door.capacity()
    }

    /// How many requests wait. One that is being executed doesn't; one that is on its way in, or is being asked for, does. Beside calls of
    /// other threads not less than there were at the least, and not more than the capacity.
    ///
    /// # Progress
    ///
    /// Wait-free: two loads.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.door.inside()
    }

    /// Whether it takes no more, because it was [closed](Self::close) or its device is [lost](Self::lose).
    ///
    /// # Progress
    ///
    /// Wait-free: one load.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.door.end().is_some()
    }

    /// Takes a request over, with its marker.
    ///
    /// # Errors
    ///
    /// [`DeferredEnqueueError`] with the very request; the marker is dropped. The rejection is
    /// [`DeviceLost`](DeferredEnqueueRejection::DeviceLost) if the device of the request, or [of the queue](Self::lose), is lost;
    /// [`Closed`](DeferredEnqueueRejection::Closed) if the queue was closed;
    /// [`Full`](DeferredEnqueueRejection::Full) if `capacity` requests wait.
    ///
    /// # Panics
    ///
    /// If the destructor of a refused marker does; the ownership is retained as abandoned then.
    ///
    /// # Progress
    ///
    /// Lock-free: two read-modify-writes and a fence.
    pub fn enqueue_marked(&self, request: PreparedAllocationRelease, marker: M) -> Result<(), DeferredEnqueueError> {
        let Err((rejection, Waiting { request, marker })) = self.try_enqueue(Waiting { request, marker: Theirs::new(marker) }) else {
            return Ok(());
        };
        // While nothing else is on its way out: if its destructor panics, the request is dropped by unwinding.
        drop(marker);
        Err(DeferredEnqueueError::new(rejection, request))
    }

    fn try_enqueue(&self, waiting: Waiting<M>) -> Result<(), (DeferredEnqueueRejection, Waiting<M>)> {
        if waiting.request.device_is_lost() {
            return Err((DeferredEnqueueRejection::DeviceLost, waiting));
        }
        let ticket = match self.door.enter() {
            Ok(ticket) => ticket,
            Err(rejection) => return Err((rejection, waiting)),
        };
        let claimed = self.places.claim(ticket);
        gate!(Enqueueing);
        match self.show(claimed, ticket, waiting) {
            None => Ok(()),
            Some((end, waiting)) => Err((end.rejection(), waiting)),
        }
    }

    /// Executes the `limit` oldest requests, or all that there are. As [`drain_ready`](Self::drain_ready) with all of them ready.
    ///
    /// # Panics
    ///
    /// If an allocator does: see [`drain_ready`](Self::drain_ready).
    ///
    /// # Progress
    ///
    /// Lock-free, the allocators excepted.
    pub fn drain(&self, limit: usize) -> Drained {
        self.drain_ready(limit, |_, _| true)
    }

    /// Executes, on this thread, the oldest requests that are ready, at most `limit`. The others stay, as old as they were.
    ///
    /// Every request that was there before the call is asked for at most once, the oldest first, unless it is in the hands of another call.
    /// One whose device is lost is ready without being asked for: its release reaches no allocator, and nothing can be said of its work any
    /// more.
    ///
    /// While `ready` runs, the request that it is asked about is in this call's hands, with its place; nothing else is held, and nothing at
    /// all while an allocator or a marker's destructor runs. They may enqueue, drain and close.
    ///
    /// # Panics
    ///
    /// If `ready`, an allocator or a marker's destructor does. A request that was being asked for stays, one that was being executed is
    /// retained as abandoned, all the others stay: drain again. A marker's destructor that panics while an allocator's panic unwinds aborts
    /// the process, as any destructor does.
    ///
    /// # Progress
    ///
    /// Lock-free, the user's code excepted.
    pub fn drain_ready(&self, limit: usize, ready: impl FnMut(&PreparedAllocationRelease, &M) -> bool) -> Drained {
        let mut ready = Theirs::new(ready);
        let mut drained = Drained::default();
        for (ticket, place) in self.oldest_first() {
            if drained.executed() == limit {
                break;
            }
            let Some(mut in_hand) = InHand::take(self, ticket, place) else { continue };
            if !in_hand.is_ready(&mut *ready) {
                match in_hand.put_back() {
                    None => drained.not_ready += 1,
                    Some((bytes, retained)) => drained.count(bytes, &retained),
                }
                continue;
            }
            let Waiting { request, marker } = in_hand.take_out();
            drained.count(request.len(), &request.execute());
            drop(marker);
        }
        drained
    }

    /// Takes no more requests, and retains those that wait, for the reason
    /// [`EnqueueRejected`](QuarantineReason::EnqueueRejected)`(Closed)`. Calls no allocator. Closing again is closing once.
    ///
    /// When it returns, nothing waits but what is in the middle of another call; that call retains it in the same way, hands it back, or
    /// executes it.
    ///
    /// # Panics
    ///
    /// If a destructor does that falls due (a marker's, or an allocator's whose last pin was a request). What is left inside then stays
    /// until it is drained, the queue is closed again, or dropped.
    ///
    /// # Progress
    ///
    /// Lock-free.
    pub fn close(&self) -> Drained {
        self.end(End::Closed)
    }

    /// As [`close`](Self::close), because the device is lost, whether or not the registry has been told: what waits, of whichever device,
    /// is retained [as lost](PreparedAllocationRelease::quarantine_device_lost), and the rejection is
    /// [`DeviceLost`](DeferredEnqueueRejection::DeviceLost) from now on, also if the queue had been closed.
    ///
    /// # Panics
    ///
    /// As [`close`](Self::close).
    ///
    /// # Progress
    ///
    /// Lock-free.
    pub fn lose(&self) -> Drained {
        self.end(End::DeviceLost)
    }

    fn end(&self, end: End) -> Drained {
        self.door.shut(end);
        gate!(Closing);
        let mut drained = Drained::default();
        for (ticket, place) in self.oldest_first() {
            let Some((claimed, waiting)) = place.take(ticket) else { continue };
            self.leave(claimed);
            drained.count(waiting.request.len(), &waiting.retain(end));
        }
        drained
    }

    /// What waits now.
    fn oldest_first(&self) -> Vec<(Ticket, &Place<Waiting<M>>)> {
        let mut waiting: Vec<_> = self.places.waiting().collect();
        waiting.sort_unstable_by_key(|(ticket, _)| *ticket);
        waiting
    }

    /// Lets everybody find `waiting`. If the queue has ended meanwhile, and nobody has found it yet, it is the caller's again.
    #[must_use]
    fn show(&self, claimed: Claimed<'_, Waiting<M>>, ticket: Ticket, waiting: Waiting<M>) -> Option<(End, Waiting<M>)> {
        let place = claimed.put(ticket, waiting);
        let end = self.door.shown()?;
        let (claimed, waiting) = place.take(ticket)?;
        self.leave(claimed);
        Some((end, waiting))
    }

    /// Ends the stay of what was in this place.
    fn leave(&self, claimed: Claimed<'_, Waiting<M>>) {
        gate!(Dequeueing);
        drop(claimed);
        self.door.leave();
    }
}

impl<M> Waiting<M> {
    fn retain(self, end: End) -> AllocationReleaseOutcome {
        match end {
            End::Closed => self.request.quarantine(QuarantineReason::EnqueueRejected(end.rejection())),
            End::DeviceLost => self.request.quarantine_device_lost(),
        }
    }
}

/// A request that one drainer has taken, and puts back unless it takes it out.
struct InHand<'a, M> {
    queue: &'a BoundedQueue<M>,
    ticket: Ticket,
    /// Until it is taken out or put back.
    taken: Option<(Claimed<'a, Waiting<M>>, Waiting<M>)>,
}

impl<'a, M> InHand<'a, M> {
    fn take(queue: &'a BoundedQueue<M>, ticket: Ticket, place: &'a Place<Waiting<M>>) -> Option<Self> {
        place.take(ticket).map(|taken| Self { queue, ticket, taken: Some(taken) })
    }

    fn is_ready(&self, ready: impl FnOnce(&PreparedAllocationRelease, &M) -> bool) -> bool {
        self.taken
            .as_ref()
            .is_some_and(|(_, Waiting { request, marker })| request.device_is_lost() || callback::run(|| ready(request, marker)))
    }

    /// Lets everybody find it again. If the queue has ended meanwhile, retains it, unless somebody has found it already.
    fn put_back(&mut self) -> Option<(usize, AllocationReleaseOutcome)> {
        let (claimed, waiting) = self.taken.take()?;
        let (end, waiting) = self.queue.show(claimed, self.ticket, waiting)?;
        Some((waiting.request.len(), waiting.retain(end)))
    }

    fn take_out(mut self) -> Waiting<M> {
        let (claimed, waiting) = self.taken.take().expect("in hand until now");
        self.queue.leave(claimed);
        waiting
    }
}

impl<M> Drop for InHand<'_, M> {
    fn drop(&mut self) {
        self.put_back();
    }
}

impl DeferredReleaseQueue for BoundedQueue {
    fn enqueue(&self, request: PreparedAllocationRelease) -> Result<(), DeferredEnqueueError> {
        self.enqueue_marked(request, ())
    }

    fn pending(&self) -> usize {
        self.pending()
    }
}

impl<M> fmt::Debug for BoundedQueue<M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("BoundedQueue")
            .field("capacity", &self.capacity())
            .field("pending", &self.pending())
            .field("end", &self.door.end())
            .finish()
    }
}
