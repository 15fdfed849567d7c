//! Lives of owners, views and prepared releases, with a queue in which releases wait for another thread.

use crate::world::{End, World, at_once, is_lost, linger, refused_for_a_reason, role, until};
use liveslot_shuttle::{
    AllocationIdentity, AllocationReleaseOutcome, AllocationReleaseState, BindingError, DeferredReleaseDisposition, MemoryBinding,
    OwnedView, OwningAllocation, OwningReleaseError, PreparedAllocationRelease, QuarantineReason, QuarantinedAllocation, ResidualOwnership,
    release::{BoundedQueue, Drained},
};
use shuttle::rand::{Rng, thread_rng};
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

const BYTES: usize = 16;

/// How many owners each worker makes.
const EACH: usize = 3;

/// R90, R91, R134: released, or retained because the device was lost. No other end is possible for an allocator that completes.
fn execute(request: PreparedAllocationRelease) -> AllocationReleaseOutcome {
    let outcome = request.execute();
    if let Some(ResidualOwnership { state, reason, .. }) = outcome.residual() {
        assert_eq!((state, reason), (AllocationReleaseState::DeviceLost, QuarantineReason::DeviceLost));
    }
    outcome
}

/// What those who ended allocations know of them. It uses std's mutex, as the book of the [world](World).
#[derive(Default)]
struct Ledger {
    made: Mutex<HashSet<AllocationIdentity>>,
    /// Where the one who ended it was told how.
    ended: Mutex<HashMap<AllocationIdentity, Option<QuarantineReason>>>,
}

impl Ledger {
    fn made(&self, identity: AllocationIdentity) {
        assert!(self.made.lock().unwrap().insert(identity), "an identity that was issued twice");
    }

    fn count(&self) -> usize {
        self.made.lock().unwrap().len()
    }

    fn ended(&self, identity: AllocationIdentity, outcome: &AllocationReleaseOutcome) {
        let reason = outcome.residual().map(|residual| residual.reason);
        assert_eq!(self.ended.lock().unwrap().insert(identity, reason), None, "ended twice");
    }

    /// R90, R92, R95: what was retained is in the list, once, with its reason; what was released is not.
    fn agrees(&self, list: &[QuarantinedAllocation]) {
        let listed: HashMap<_, _> = list.iter().map(|entry| (entry.identity, entry.reason)).collect();
        assert_eq!(listed.len(), list.len(), "listed twice");
        let made = self.made.lock().unwrap();
        assert!(listed.keys().all(|identity| made.contains(identity)));
        for (identity, reason) in self.ended.lock().unwrap().iter() {
            assert_eq!(listed.get(identity), reason.as_ref(), "{identity:?}");
        }
    }
}

/// What the roles of a life share.
struct Shared {
    queue: BoundedQueue,
    /// What it has taken in, and what has been taken out of it.
    queued: [AtomicUsize; 2],
    ledger: Ledger,
    /// Each with the address that it shows.
    views: Mutex<Vec<(OwnedView, usize)>>,
    requests: Mutex<Vec<PreparedAllocationRelease>>,
    /// Roles that may still make something for the one that settles.
    working: AtomicUsize,
}

impl Shared {
    /// An owner's life on whatever is selected: perhaps looked at by another thread, and ended in one of all ways there are.
    fn own(&self, world: &World) {
        let binding = bound(world);
        let owner = match binding.allocate_owning(BYTES, 8) {
            Ok(owner) => owner,
            Err(refused) => return refused_for_a_reason(&binding, &refused),
        };
        let identity = owner.identity();
        self.ledger.made(identity);
        if thread_rng().r#gen() {
            match owner.view(0, BYTES) {
                Ok(view) => {
                    let viewed = (view, owner.as_ptr().addr().get());
                    self.views.lock().unwrap().push(viewed);
                }
                Err(refused) => refused_for_a_reason(&binding, &refused),
            }
        }
        match thread_rng().gen_range(0..8) {
            0 => drop(owner),
            1 => {
                if let Some(outcome) = unviewed(owner, OwningAllocation::release_now) {
                    self.ledger.ended(identity, &outcome);
                }
            }
            2 => {
                if let Some(allocation) = unviewed(owner, OwningAllocation::into_bound) {
                    world.release(&binding, allocation);
                }
            }
            3 => {
                if let Some(request) = unviewed(owner, OwningAllocation::prepare_release) {
                    self.requests.lock().unwrap().push(request);
                }
            }
            _ => {
                match unviewed(owner, |owner| owner.release_deferred(&self.queue)) {
                    Some(DeferredReleaseDisposition::Queued { .. }) => {
                        self.queued[0].fetch_add(1, SeqCst);
                    }
                    Some(DeferredReleaseDisposition::Quarantined { rejection, outcome, .. }) => {
                        let reason = outcome.residual().map(|residual| residual.reason);
                        assert_eq!(reason, Some(QuarantineReason::EnqueueRejected(rejection)), "refused, and not retained for that");
                        self.ledger.ended(identity, &outcome);
                    }
                    None => {}
                }
                // The thread that settles looks at views, too: this one may release meanwhile.
                self.took_out(self.queue.drain(thread_rng().gen_range(0..2)));
            }
        }
    }

    fn took_out(&self, drained: Drained) {
        self.queued[1].fetch_add(drained.executed(), SeqCst);
    }

    /// Ends a request that another thread has prepared.
    fn settle(&self, request: PreparedAllocationRelease) {
        let identity = request.identity();
        match thread_rng().gen_range(0..4) {
            0 => self.ledger.ended(identity, &request.quarantine(QuarantineReason::PartialRelease)),
            1 => drop(request),
            _ => self.ledger.ended(identity, &execute(request)),
        }
    }

    /// R72, R82: while there is an owned view, no release gives its memory back.
    fn look(&self, world: &World, view: OwnedView, address: usize) {
        let binding = view.binding();
        let looked = binding.with_view(view.view(), |part| {
            linger();
            assert_eq!(part.as_ptr().addr().get(), address);
        });
        match looked {
            Ok(()) | Err(BindingError::StaleAllocation(_)) => {}
            Err(refused) => refused_for_a_reason(binding, &refused),
        }
        let fate = world.fate(binding.identity().mechanism());
        assert!(fate.is_none_or(|fate| fate.has_given_out(address)), "released under a view");
        drop(view);
    }

    /// Looks at all views, and ends all requests, until nobody makes any more.
    fn settle_all(&self, world: &World) {
        until(|| {
            let last = self.working.load(SeqCst) == 0;
            while let Some((view, address)) = { self.views.lock().unwrap().pop() } {
                self.look(world, view, address);
            }
            while let Some(request) = { self.requests.lock().unwrap().pop() } {
                self.settle(request);
            }
            if last && thread_rng().r#gen() {
                self.took_out(self.queue.close());
            } else {
                self.took_out(self.queue.drain(if last { usize::MAX } else { 1 }));
            }
            last
        });
    }
}

/// A binding of what is selected, or of what will be once the lost mechanism has been replaced.
fn bound(world: &World) -> MemoryBinding {
    let mut binding = None;
    until(|| {
        binding = world.bind();
        binding.is_some()
    });
    binding.unwrap()
}

/// R82, R83, R146: releases an owner once its views are gone, or drops it because the device is lost.
fn unviewed<T>(mut owner: OwningAllocation, release: impl Fn(OwningAllocation) -> Result<T, OwningReleaseError>) -> Option<T> {
    loop {
        let (error, back) = match release(owner) {
            Ok(done) => return Some(done),
            Err(refused) => refused.into_parts(),
        };
        if !matches!(error, BindingError::OutstandingViews { views: 1.., .. }) {
            assert!(is_lost(back.binding()), "{error:?}");
            return None;
        }
        owner = back;
        shuttle::thread::yield_now();
    }
}

/// R36, R38, R42, R47, R82, R83, R86, R88, R91, R92, R94, R96, R132, R134, R136, R138, R146, R147, R148: owners come and go in all ways
/// there are, their releases wait in a queue or with another thread, and the device is lost in the middle: all that was made is released,
/// in the list, or live when it is written off; then what stood on the device is removed, and another mechanism takes its place.
pub fn deferred_releases() {
    let world = World::new();
    let home = world.home();
    let mechanism = world.register(&home);
    let shared = Arc::new(Shared {
        queue: BoundedQueue::new(thread_rng().gen_range(0..3)),
        queued: Default::default(),
        ledger: Ledger::default(),
        views: Mutex::default(),
        requests: Mutex::default(),
        working: AtomicUsize::new(2),
    });
    let left = Arc::new(Mutex::new(Vec::new()));
    let worker = || {
        let shared = Arc::clone(&shared);
        role(&world, move |world| {
            for _ in 0..EACH {
                shared.own(world);
            }
            shared.working.fetch_sub(1, SeqCst);
        })
    };
    let settling = {
        let shared = Arc::clone(&shared);
        role(&world, move |world| shared.settle_all(world))
    };
    let losing = {
        let (shared, left) = (Arc::clone(&shared), Arc::clone(&left));
        role(&world, move |world| {
            let some = thread_rng().gen_range(0..2 * EACH);
            until(|| some <= shared.ledger.count() || shared.working.load(SeqCst) == 0);
            world.lose();
            let list = world.left_behind(mechanism);
            until(|| match world.confirm(&home) {
                Ok(()) => true,
                Err(BindingError::ContextNotQuiescent { .. }) => false,
                Err(other) => panic!("{other:?}"),
            });
            let snapshot = world.snapshot(mechanism).unwrap();
            assert!(!snapshot.retains_ownership() && snapshot.active_operations == 0, "{snapshot:?}");
            assert_eq!(world.registry.quarantined(mechanism).unwrap(), []);
            world.remove(mechanism).unwrap();
            world.registry.remove_authority(home.authority).unwrap();
            world.registry.remove_provider_context(home.context).unwrap();
            *left.lock().unwrap() = list;
            world.register(&world.home());
        })
    };
    at_once([worker(), worker(), settling, losing]);
    let mut left = std::mem::take(&mut *left.lock().unwrap());
    for snapshot in world.registry.snapshots().unwrap() {
        let binding = world.bind().unwrap();
        assert_eq!(binding.identity().mechanism(), snapshot.identity, "the only one is selected");
        left.extend(binding.quarantined().unwrap());
    }
    shared.ledger.agrees(&left);
    let [taken_in, taken_out] = shared.queued.each_ref().map(|count| count.load(SeqCst));
    assert_eq!((taken_in, shared.queue.pending()), (taken_out, 0));
    drop(shared);
    world.ends();
}

/// R48, R88, R92, R94, R149: the registry goes while releases wait: they are executed, retained, or abandoned without it, and whoever lets
/// the last pin go destroys, once and in order, with all given back that was not retained.
pub fn requests_without_a_registry() {
    let world = World::new();
    let mechanism = world.register(&world.home());
    let (ends, fate) = (world.ends.clone(), world.fate(mechanism.identity()).unwrap());
    let binding = world.bind().unwrap();
    let queue = Arc::new(BoundedQueue::new(3));
    for _ in 0..3 {
        assert!(binding.allocate_owning(BYTES, 8).unwrap().release_deferred(&*queue).unwrap().is_queued());
    }
    let owner = binding.allocate_owning(BYTES, 8).unwrap();
    let view = owner.view(0, BYTES).unwrap();
    let [executed, abandoned] = [(); 2].map(|()| binding.allocate_owning(BYTES, 8).unwrap().prepare_release().unwrap());
    drop(binding);
    let retained = Arc::new(AtomicUsize::new(2));
    at_once([
        Box::new(move || drop(world)),
        Box::new({
            let queue = Arc::clone(&queue);
            move || {
                assert_eq!((queue.drain(1).quarantined, queue.drain(1).quarantined), (0, 0));
            }
        }),
        Box::new({
            let retained = Arc::clone(&retained);
            move || {
                assert!(executed.execute().is_complete());
                retained.fetch_add(queue.close().quarantined, SeqCst);
                drop(queue);
            }
        }),
        Box::new(move || {
            drop(owner);
            drop(abandoned);
        }),
        Box::new(move || drop(view)),
    ]);
    assert_eq!(ends.so_far(), [End::Allocator, End::Authority, End::Context]);
    assert_eq!(fate.given_out(), retained.load(SeqCst), "given back or retained");
}
