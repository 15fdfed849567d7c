//! A worker: bind, allocate, fill, verify through `with_view`, release, and tell right answers from wrong ones.
//!
//! Rounds are short and vary: some begin with binds in a row, a binding serves one to four allocations, some allocations are put aside and
//! released after the selection has moved on, some are handed to the next worker and released there, some views are used once more after
//! the release, some bindings are kept until their mechanism is dead. Now and then a `with_view` closure yields, so that the control thread
//! finds operations in flight also where there are fewer cores than threads.
//!
//! Where the allocator has pages to commit, blocks are larger than what is filled, some are committed after they were
//! made, and some lose half of their pages while they are held. Every allocation has an owner, and ends in one of these ways:
//!
//! | end | how often | counted as |
//! | --- | --- | --- |
//! | released at once, by its metadata or by its owner | mostly | released |
//! | prepared, and executed by another thread | one in 16 | deferred, then released or quarantined |
//! | its owner is dropped | hardly ever | quarantined |
//! | the allocator keeps half of it | hardly ever | quarantined |
//! | the release begins, and the device is lost | at a loss | quarantined |
//! | the release is refused: the device is lost | after a loss | written off |
//!
//! Everything counted here is the worker's own; nothing in the loop writes memory that another worker uses, except
//! through the library and the allocators.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::thread;
use std::time::Instant;

use liveslot::{
    AllocationIdentity, AllocationReleaseOutcome, AllocationReleaseState, BindingError, BindingRegistry, BoundMemoryView,
    BoundVirtualBacking, DeferredEnqueueRejection, DeferredReleaseQueue, DeviceHandle, ExplicitReleaseError, MechanismIdentity,
    MechanismLifecycle, MemoryBinding, OwningAllocation, OwningReleaseError, PreparedAllocationRelease, QuarantineReason, VirtualMemory,
};

use crate::allocators::{self, Fate, Kind, SPARE, STUBBORN};
use crate::audit::{Audit, Findings};
use crate::releaser::QUEUE;
use crate::report::{Latency, Tally};
use crate::rng::{Rng, mix};
use crate::shared::{Mark, News, Shared};

/// Binds in a row, whose bindings are dropped unused, are fewer than this.
const BINDS: usize = 32;

/// Allocations put aside by one worker at most.
const HELD: usize = 8;

/// Allocations on their way to one worker at most.
pub(crate) const INBOX: usize = 16;

/// A bound on the blocks of one allocator that are live at once, for `workers` workers: those put aside, those in
/// the inbox, the one at hand, one given up, and those in the queue and given up by all; times two to keep the allocator's
/// ledger sparse, and again for short searches.
pub(crate) const fn ledger_capacity(workers: usize) -> usize {
    4 * (workers * (HELD + INBOX + 2) + QUEUE + SPARE)
}

/// What may be charged at once, in bytes, for `workers` workers. Little enough that allocations are refused now and then.
pub(crate) const fn budget(workers: usize) -> u64 {
    workers as u64 * (96 << 10)
}

const WORD: usize = size_of::<u64>();

/// Every fate ends new work; a retired mechanism still releases.
const ENDS_WORK: &[Fate] = &[Fate::Retired, Fate::Lost, Fate::Terminated];
const ENDS_RELEASES: &[Fate] = &[Fate::Lost, Fate::Terminated];

/// What one worker saw.
pub(crate) struct WorkerStats {
    /// Binds, allocations, views and releases that succeeded.
    pub(crate) operations: u64,
    pub(crate) binds: u64,
    pub(crate) allocations: u64,
    pub(crate) views: u64,
    pub(crate) releases: u64,
    /// Releases of an allocation that another worker made.
    pub(crate) foreign_releases: u64,
    /// Releases that were prepared and put into the queue.
    pub(crate) deferred: u64,
    /// Releases that this worker began, or owners that it dropped, with the block retained.
    pub(crate) quarantined: u64,
    /// Blocks that could not be released any more.
    pub(crate) written_off: u64,
    /// Allocations that the budget had no room for.
    pub(crate) exhausted: u64,
    pub(crate) commits: u64,
    pub(crate) decommits: u64,
    /// Releases that an owned view stood in the way of.
    pub(crate) held_by_a_view: u64,
    pub(crate) binds_overlapping_a_select: u64,
    pub(crate) operations_in_flight_at_a_loss: u64,
    pub(crate) bound_to_dead: u64,
    pub(crate) allocated_on_dead: u64,
    pub(crate) checksum_mismatches: u64,
    /// Set of [`Kind`]s allocated from.
    pub(crate) kinds: u8,
    pub(crate) tally: Tally,
    pub(crate) bind_ns: Latency,
    pub(crate) allocate_ns: Latency,
}

impl WorkerStats {
    pub(crate) fn new() -> Self {
        Self {
            operations: 0,
            binds: 0,
            allocations: 0,
            views: 0,
            releases: 0,
            foreign_releases: 0,
            deferred: 0,
            quarantined: 0,
            written_off: 0,
            exhausted: 0,
            commits: 0,
            decommits: 0,
            held_by_a_view: 0,
            binds_overlapping_a_select: 0,
            operations_in_flight_at_a_loss: 0,
            bound_to_dead: 0,
            allocated_on_dead: 0,
            checksum_mismatches: 0,
            kinds: 0,
            tally: Tally::default(),
            bind_ns: Latency::new(),
            allocate_ns: Latency::new(),
        }
    }
}

/// An allocation, with what is needed to verify and release it.
pub(crate) struct Held {
    binding: MemoryBinding,
    backing: Option<BoundVirtualBacking>,
    memory: OwningAllocation,
    /// How many bytes from the start on are there, filled.
    filled: usize,
    /// Decides the contents.
    seed: u64,
    maker: usize,
}

pub(crate) struct Worker {
    index: usize,
    shared: Arc<Shared>,
    registry: BindingRegistry,
    handle: DeviceHandle,
    news: News,
    rng: Rng,
    held: Vec<Held>,
    /// A binding from an earlier round.
    kept: Option<MemoryBinding>,
    outbox: SyncSender<Held>,
    inbox: Receiver<Held>,
    /// The slot's version when last looked at.
    version: u64,
    page_bytes: usize,
    audit: Audit,
    stats: WorkerStats,
}

impl Worker {
    /// The worker sends to another one through `outbox` and receives through `inbox`.
    pub(crate) fn new(
        index: usize,
        shared: Arc<Shared>,
        registry: BindingRegistry,
        news: News,
        rng: Rng,
        (outbox, inbox): (SyncSender<Held>, Receiver<Held>),
    ) -> Self {
        let handle = registry.device(shared.device);
        Self {
            index,
            page_bytes: VirtualMemory::default().page_bytes(),
            audit: Audit::new(shared.budget.clone()),
            shared,
            registry,
            handle,
            news,
            rng,
            held: Vec::with_capacity(HELD),
            kept: None,
            outbox,
            inbox,
            version: 0,
            stats: WorkerStats::new(),
        }
    }

    /// Works until the run stops. What is put aside or in the inbox then stays there: another worker may still be
    /// sending.
    pub(crate) fn run(&mut self) {
        allocators::count_as_worker(self.index);
        while !self.shared.stopping() {
            self.round();
            // Relaxed: a progress figure.
            self.shared.operations[self.index].store(self.stats.operations, Ordering::Relaxed);
        }
    }

    /// Releases everything. To be called when all workers have stopped.
    pub(crate) fn finish(mut self) -> (WorkerStats, Findings) {
        self.kept = None;
        while let Some(held) = self.held.pop().or_else(|| self.inbox.try_recv().ok()) {
            self.verify(&held);
            self.release(held);
        }
        (self.stats, self.audit.found)
    }

    fn round(&mut self) {
        if self.rng.one_in(64) {
            self.look_at_the_slot();
        }
        if self.rng.one_in(16) {
            self.audit.look(0);
        }
        if self.rng.one_in(2) {
            for _ in 0..self.rng.below(BINDS) {
                self.bind();
            }
        }
        if let Some(binding) = self.bind() {
            self.use_binding(&binding);
            if self.rng.one_in(16) {
                self.kept = Some(binding);
            }
        }
        if self.rng.one_in(16)
            && let Some(binding) = self.kept.clone()
        {
            self.use_binding(&binding);
        }
        if !self.held.is_empty() && self.rng.one_in(2) {
            let held = self.held.swap_remove(self.rng.below(self.held.len()));
            self.verify(&held);
            self.release(held);
        }
        if let Ok(held) = self.inbox.try_recv() {
            self.verify(&held);
            self.release(held);
        }
    }

    /// The answers of `selected` and `version` are held to the same rules as `bind`.
    fn look_at_the_slot(&mut self) {
        self.news.catch_up();
        let before = self.shared.windows.vacancy.mark();
        match self.handle.selected() {
            Some(mechanism) if self.news.is_dead(mechanism) => self.stats.bound_to_dead += 1,
            Some(_) => {}
            None if before.touched(self.shared.windows.vacancy.mark()) => {}
            None => self.stats.tally.unexpected("selected", "nothing", "while a selection stood"),
        }
        let version = self.handle.version();
        if version < self.version {
            self.stats.tally.unexpected("version", "fell", format_args!("from {} to {version}", self.version));
        }
        self.version = version;
    }

    fn bind(&mut self) -> Option<MemoryBinding> {
        // What is known to be dead by now must not be bound.
        self.news.catch_up();
        let by_handle = !self.rng.one_in(8);
        let windows = &self.shared.windows;
        let (select, loss, vacancy) = (windows.select.mark(), windows.loss.mark(), windows.vacancy.mark());
        let start = Instant::now();
        let answer = if by_handle { self.handle.bind() } else { self.registry.bind(self.shared.device) };
        let elapsed = start.elapsed();
        let overlapped_a_select = select.touched(windows.select.mark());
        let spanned_a_loss = loss.spanned(windows.loss.mark());
        let vacant = vacancy.touched(windows.vacancy.mark());

        self.stats.binds_overlapping_a_select += u64::from(overlapped_a_select);
        self.stats.operations_in_flight_at_a_loss += u64::from(spanned_a_loss);
        match answer {
            Ok(binding) => {
                self.stats.bind_ns.record(elapsed);
                self.stats.operations += 1;
                self.stats.binds += 1;
                if self.news.is_dead(binding.identity().mechanism()) {
                    self.stats.bound_to_dead += 1;
                }
                Some(binding)
            }
            Err(error) => {
                match error {
                    BindingError::NoSelectedMechanism(device) if vacant && device == self.shared.device => {
                        self.stats.tally.expected(&error);
                    }
                    _ => self.stats.tally.wrong("bind", &error),
                }
                // Leave the core to whoever is about to select again.
                thread::yield_now();
                None
            }
        }
    }

    fn use_binding(&mut self, binding: &MemoryBinding) {
        let mechanism = binding.identity().mechanism();
        match binding.virtual_backing() {
            Ok(backing) => {
                for _ in 0..=self.rng.below(4) {
                    self.use_memory(binding, backing.as_ref());
                }
            }
            Err(error) => {
                self.refused("virtual_backing", &error, mechanism, ENDS_WORK);
            }
        }
    }

    /// Allocate, fill, verify, and release, put aside or hand over.
    fn use_memory(&mut self, binding: &MemoryBinding, backing: Option<&BoundVirtualBacking>) {
        let Some(mut held) = self.allocate(binding, backing) else { return };
        self.verify(&held);
        if self.rng.one_in(4) {
            self.shrink(&mut held);
            self.verify(&held);
        }
        match self.rng.below(32) {
            0..=7 if self.held.len() < HELD => self.held.push(held),
            8 => {
                if let Err(TrySendError::Full(held) | TrySendError::Disconnected(held)) = self.outbox.try_send(held) {
                    self.release(held);
                }
            }
            _ => self.release(held),
        }
    }

    fn allocate(&mut self, binding: &MemoryBinding, backing: Option<&BoundVirtualBacking>) -> Option<Held> {
        let mechanism = binding.identity().mechanism();
        // Mostly small, at most 16 KiB, always whole words.
        let most = 8 << self.rng.below(9);
        let filled = WORD * (1 + self.rng.below(most));
        let mut align = WORD << self.rng.below(5);
        let mut bytes = filled;
        let mut commit_later = false;
        if backing.is_some() {
            bytes += self.page_bytes * self.rng.below(4);
            commit_later = self.rng.one_in(2);
        }
        self.news.catch_up();
        if self.rng.one_in(8192) && self.can_spare(mechanism, bytes) {
            align = STUBBORN;
        }
        let dead = self.news.is_dead(mechanism);
        let loss = self.shared.windows.loss.mark();
        let start = Instant::now();
        let answer = match backing {
            Some(backing) if !commit_later => {
                backing.allocate_committed(bytes, align, std::slice::from_ref(&(0..filled))).map(OwningAllocation::new)
            }
            _ => binding.allocate_owning(bytes, align),
        };
        let elapsed = start.elapsed();
        self.count_if_in_flight(loss);
        let memory = match answer {
            Ok(memory) => memory,
            Err(BindingError::Memory(refusal)) if self.audit.is_right_refusal(&refusal, bytes) => {
                self.stats.exhausted += 1;
                self.stats.tally.expected(&BindingError::Memory(refusal));
                return None;
            }
            Err(error) => {
                self.refused("allocate", &error, mechanism, ENDS_WORK);
                return None;
            }
        };
        self.stats.allocate_ns.record(elapsed);
        self.stats.operations += 1;
        self.stats.allocations += 1;
        self.stats.allocated_on_dead += u64::from(dead);
        if self.stats.kinds != Kind::every() {
            self.stats.kinds |= self.news.life(mechanism).map_or(0, |life| life.kind.bit());
        }
        if self.rng.one_in(16) {
            self.audit.look(bytes as u64);
        }
        let seed = self.rng.next();
        let mut held = Held { binding: binding.clone(), backing: backing.cloned(), memory, filled, seed, maker: self.index };
        if commit_later && !self.commit(&held) {
            held.filled = 0;
            self.release(held);
            return None;
        }
        fill(&held);
        Some(held)
    }

    /// Whether one more small block of this mechanism may be given up on purpose.
    fn can_spare(&self, mechanism: MechanismIdentity, bytes: usize) -> bool {
        const SMALL: usize = 1024;
        bytes <= SMALL && self.news.life(mechanism).is_some_and(|life| life.can_spare_a_block())
    }

    fn commit(&mut self, held: &Held) -> bool {
        let Some(backing) = &held.backing else { return false };
        let answer = backing.commit_allocation_range(held.memory.bound(), 0, held.filled);
        if let Err(error) = &answer {
            self.refused("commit", error, held.binding.identity().mechanism(), ENDS_WORK);
            return false;
        }
        self.stats.operations += 1;
        self.stats.commits += 1;
        true
    }

    /// Keeps the first half of what is filled, where the rest can be decommitted.
    fn shrink(&mut self, held: &mut Held) {
        let Some(backing) = &held.backing else { return };
        let mechanism = held.binding.identity().mechanism();
        let kept = (held.filled / WORD).div_ceil(2) * WORD;
        let pages = |bytes: usize| bytes.div_ceil(self.page_bytes) * self.page_bytes;
        let (freed, left) = (pages(held.filled) - pages(kept), pages(kept));
        match backing.decommit_allocation_range(held.memory.bound(), kept, held.memory.len() - kept) {
            Ok(unmapped) => {
                self.stats.operations += 1;
                self.stats.decommits += 1;
                held.filled = kept;
                if unmapped != freed as u64 {
                    self.stats.tally.unexpected("decommit", "another size", format_args!("{unmapped} bytes instead of {freed}"));
                }
            }
            Err(error) => {
                self.refused("decommit", &error, mechanism, ENDS_WORK);
                return;
            }
        }
        match backing.allocation_committed_bytes(held.memory.bound()) {
            Ok(committed) if committed == left => {}
            Ok(committed) => {
                self.stats.tally.unexpected("committed bytes", "another size", format_args!("{committed} bytes instead of {left}"));
            }
            Err(error) => {
                self.refused("committed bytes", &error, mechanism, ENDS_WORK);
            }
        }
    }

    /// Compares a random part of the contents with what was written there.
    fn verify(&mut self, held: &Held) {
        let words = held.filled / WORD;
        let from = self.rng.below(words);
        let count = 1 + self.rng.below(words - from);
        let pause = self.rng.one_in(128);

        let (offset, bytes) = (from * WORD, count * WORD);
        let (plain, owned);
        let view = if self.rng.one_in(4) {
            owned = self.viewed(held.memory.view(offset, bytes), held);
            owned.as_ref().map(|view| view.view())
        } else {
            plain = self.viewed(held.memory.bound().view(offset, bytes), held);
            plain.as_ref()
        };
        let Some(view) = view else { return };
        let loss = self.shared.windows.loss.mark();
        let answer = held.binding.with_view(view, |memory| {
            if pause {
                thread::yield_now();
            }
            // Nothing is read from a view of another length.
            (memory.len() == bytes).then(|| {
                // SAFETY: the allocation is held, filled that far, and nobody writes it; the library vouches for
                // address and length.
                unsafe { checksum_of(memory.as_ptr(), count) }
            })
        });
        self.count_if_in_flight(loss);
        let Some(sum) = self.viewed(answer, held) else { return };
        self.stats.operations += 1;
        self.stats.views += 1;
        if sum != Some(checksum(held.seed, from, count)) {
            self.stats.checksum_mismatches += 1;
        }
    }

    fn viewed<R>(&mut self, answer: Result<R, BindingError>, held: &Held) -> Option<R> {
        let mechanism = held.binding.identity().mechanism();
        answer
            .map_err(|error| {
                self.refused("view", &error, mechanism, ENDS_WORK);
            })
            .ok()
    }

    /// Ends an allocation, one way or another.
    fn release(&mut self, held: Held) {
        // The binding stays until all is counted: with the last one the mechanism may be accounted for.
        let Held { binding, memory, maker, .. } = held;
        let foreign = maker != self.index;
        let mechanism = binding.identity().mechanism();
        let Some(memory) = (if self.rng.one_in(32) { self.refuse_under_a_view(memory) } else { Some(memory) }) else { return };
        let stubborn = memory.alignment() == STUBBORN;
        match self.rng.below(16) {
            0 if !stubborn => self.release_later(memory),
            1 if !stubborn => self.release_by_owner(memory, foreign),
            2 if !stubborn && self.rng.one_in(512) && self.can_spare(mechanism, memory.len()) => self.drop_owner(&binding, memory),
            _ => self.release_by_metadata(&binding, memory, foreign),
        }
    }

    fn count_release(&mut self, foreign: bool) {
        self.stats.operations += 1;
        self.stats.releases += 1;
        self.stats.foreign_releases += u64::from(foreign);
    }

    /// As long as there is an owned view, the owner is handed back.
    fn refuse_under_a_view(&mut self, memory: OwningAllocation) -> Option<OwningAllocation> {
        let Ok(view) = memory.view(0, WORD) else { return Some(memory) };
        match memory.release_now() {
            Ok(_) => {
                self.stats.tally.unexpected("release_now", "Ok", "an owned view was there");
                None
            }
            Err(refusal) => {
                let (error, memory) = refusal.into_parts();
                match &error {
                    BindingError::OutstandingViews { identity, views: 1 } if *identity == view.allocation_identity() => {
                        self.stats.tally.expected(&error);
                    }
                    _ => self.stats.tally.wrong("release_now", &error),
                }
                self.stats.held_by_a_view += 1;
                Some(memory)
            }
        }
    }

    fn release_by_metadata(&mut self, binding: &MemoryBinding, memory: OwningAllocation, foreign: bool) {
        let allocation = match memory.into_bound() {
            Ok(allocation) => allocation,
            Err(refusal) => {
                self.stats.tally.wrong("into_bound", refusal.error());
                return;
            }
        };
        let (identity, bytes, stubborn) = (allocation.identity(), allocation.len(), allocation.alignment() == STUBBORN);
        let view_to_outlive_it = if self.rng.one_in(16) { allocation.view(0, WORD).ok() } else { None };
        let loss = self.shared.windows.loss.mark();
        let answer = binding.release(allocation);
        let during_a_loss = loss.touched(self.shared.windows.loss.mark());
        self.count_if_in_flight(loss);
        match answer {
            Ok(()) => {
                self.count_release(foreign);
                if stubborn {
                    self.stats.tally.unexpected("release", "Ok", "the allocator kept half of it");
                }
                if let Some(view) = view_to_outlive_it {
                    self.expect_stale(binding, &view);
                }
            }
            Err(refusal) if stubborn && is_quarantined_by_allocator(&refusal, identity, bytes) => {
                // The allocator has counted it.
                self.stats.tally.expected(refusal.error());
                self.stats.quarantined += 1;
            }
            Err(refusal) => self.give_up(refusal, identity, bytes, during_a_loss),
        }
    }

    /// A refused release is right on a lost device only. The block then stays with the allocator.
    fn give_up(&mut self, refusal: ExplicitReleaseError, identity: AllocationIdentity, bytes: usize, during_a_loss: bool) {
        let mechanism = identity.binding().mechanism();
        let state = refusal.state();
        let (error, allocation) = refusal.into_parts();
        let (excused, right_state) = if during_a_loss && is_quarantined_by_loss(&error, identity, bytes) {
            self.stats.tally.expected(&error);
            self.stats.quarantined += 1;
            (true, AllocationReleaseState::DeviceLost)
        } else {
            // A retired mechanism still releases, so retirement is no excuse here.
            let excused = self.refused("release", &error, mechanism, ENDS_RELEASES);
            self.stats.written_off += u64::from(excused);
            (excused, AllocationReleaseState::Live)
        };
        if allocation.identity() != identity || (excused && state != right_state) {
            self.stats.tally.unexpected("release", "another allocation or state handed back", &error);
        }
        if excused {
            // Before the drop: the handed-back allocation keeps the mechanism from being torn down.
            self.abandon(mechanism);
        }
        drop(allocation);
    }

    /// Tells the witness that a block stays with the allocator.
    fn abandon(&mut self, mechanism: MechanismIdentity) {
        self.news.catch_up();
        if let Some(life) = self.news.life(mechanism) {
            life.abandon();
        }
    }

    fn release_by_owner(&mut self, memory: OwningAllocation, foreign: bool) {
        let Some(request) = self.prepare(memory) else { return };
        self.execute(request, foreign);
    }

    fn release_later(&mut self, memory: OwningAllocation) {
        let Some(request) = self.prepare(memory) else { return };
        let Err(refused) = self.shared.releases.enqueue(request) else {
            self.stats.operations += 1;
            self.stats.deferred += 1;
            return;
        };
        let mechanism = refused.request().identity().binding().mechanism();
        match refused.rejection() {
            DeferredEnqueueRejection::Full => self.execute(refused.into_request(), false),
            DeferredEnqueueRejection::DeviceLost if self.is_decided(mechanism, Fate::Lost) => {
                let rejected = QuarantineReason::EnqueueRejected(DeferredEnqueueRejection::DeviceLost);
                let bytes = refused.request().len();
                let outcome = refused.quarantine();
                self.expect_retained(&outcome, mechanism, bytes, (AllocationReleaseState::Quarantined, rejected));
            }
            rejection => self.stats.tally.unexpected("enqueue", rejection.name(), "neither full nor lost"),
        }
    }

    /// A refusal is right on a lost device only. Dropping the owner changes nothing there.
    fn prepare(&mut self, memory: OwningAllocation) -> Option<PreparedAllocationRelease> {
        let mechanism = memory.identity().binding().mechanism();
        match memory.prepare_release() {
            Ok(request) => Some(request),
            Err(refusal) => {
                self.write_off(refusal, mechanism);
                None
            }
        }
    }

    fn write_off(&mut self, refusal: OwningReleaseError, mechanism: MechanismIdentity) {
        if self.refused("prepare_release", refusal.error(), mechanism, ENDS_RELEASES) {
            self.stats.written_off += 1;
            self.abandon(mechanism);
        }
    }

    fn execute(&mut self, request: PreparedAllocationRelease, foreign: bool) {
        let (mechanism, bytes) = (request.identity().binding().mechanism(), request.len());
        let loss = self.shared.windows.loss.mark();
        let outcome = request.execute();
        self.count_if_in_flight(loss);
        if outcome.is_complete() {
            self.count_release(foreign);
        } else if self.is_decided(mechanism, Fate::Lost) {
            self.expect_retained(&outcome, mechanism, bytes, (AllocationReleaseState::DeviceLost, QuarantineReason::DeviceLost));
        } else {
            self.stats.tally.unexpected("execute", "retained", format_args!("{outcome:?}"));
        }
    }

    fn is_decided(&mut self, mechanism: MechanismIdentity, fate: Fate) -> bool {
        // A decided fate is preceded by the birth's log entry.
        self.news.catch_up();
        self.news.life(mechanism).is_some_and(|life| life.is_decided(fate))
    }

    /// The block of a request stays with the allocator, wholly.
    fn expect_retained(
        &mut self,
        outcome: &AllocationReleaseOutcome,
        mechanism: MechanismIdentity,
        bytes: usize,
        right: (AllocationReleaseState, QuarantineReason),
    ) {
        let found = outcome.residual().map(|residual| ((residual.state, residual.reason), residual.retained_bytes));
        if found != Some((right, bytes as u64)) {
            self.stats.tally.unexpected("request", "retained otherwise", format_args!("{outcome:?}"));
        }
        self.stats.quarantined += 1;
        self.abandon(mechanism);
    }

    /// Loses an allocation on purpose; it must be found in the quarantine.
    fn drop_owner(&mut self, binding: &MemoryBinding, memory: OwningAllocation) {
        let (identity, bytes) = (memory.identity(), memory.len());
        let mechanism = identity.binding().mechanism();
        self.abandon(mechanism);
        drop(memory);
        self.stats.quarantined += 1;
        let retained = binding.quarantined().unwrap_or_default();
        let is_there = retained.iter().any(|allocation| {
            (allocation.identity, allocation.reason, allocation.retained_bytes) == (identity, QuarantineReason::OwnerDropped, bytes as u64)
        });
        // On a lost device it stays counted as live.
        if !is_there && !self.is_decided(mechanism, Fate::Lost) {
            self.stats.tally.unexpected("owner dropped", "not in quarantine", format_args!("{identity:?}"));
        }
    }

    /// A view of a released allocation must be refused without running the closure.
    fn expect_stale(&mut self, binding: &MemoryBinding, view: &BoundMemoryView) {
        match binding.with_view(view, |_| ()) {
            Ok(()) => self.stats.tally.unexpected("with_view", "Ok", "the allocation had been released"),
            Err(error @ BindingError::StaleAllocation(identity)) if identity == view.allocation_identity() => {
                self.stats.tally.expected(&error);
            }
            Err(error) => {
                let mechanism = binding.identity().mechanism();
                self.refused("with_view", &error, mechanism, ENDS_WORK);
            }
        }
    }

    fn count_if_in_flight(&mut self, before: Mark) {
        let spanned = before.spanned(self.shared.windows.loss.mark());
        self.stats.operations_in_flight_at_a_loss += u64::from(spanned);
    }

    /// Tallies a refusal. It is excused when it names this mechanism, one of the fates `allowed` for this call, and
    /// the control thread has decided that fate.
    fn refused(&mut self, call: &'static str, error: &BindingError, mechanism: MechanismIdentity, allowed: &[Fate]) -> bool {
        let fate = match error {
            BindingError::InactiveMechanism { mechanism: named, lifecycle, .. } if *named == mechanism => {
                match lifecycle {
                    MechanismLifecycle::Retired => Some(Fate::Retired),
                    MechanismLifecycle::Terminated => Some(Fate::Terminated),
                    // A lost mechanism answers `DeviceLost` here, and an active one does not refuse.
                    MechanismLifecycle::Active | MechanismLifecycle::DeviceLost => None,
                }
            }
            BindingError::DeviceLost { device, .. } if *device == self.shared.device => Some(Fate::Lost),
            _ => None,
        };
        // A decided fate is preceded by the birth's log entry.
        self.news.catch_up();
        let excused =
            fate.is_some_and(|fate| allowed.contains(&fate) && self.news.life(mechanism).is_some_and(|life| life.is_decided(fate)));
        if excused {
            self.stats.tally.expected(error);
        } else {
            self.stats.tally.wrong(call, error);
        }
        excused
    }
}

/// The allocator has kept half of the block.
fn is_quarantined_by_allocator(refusal: &ExplicitReleaseError, allocation: AllocationIdentity, bytes: usize) -> bool {
    let state = AllocationReleaseState::PartiallyUnmapped;
    refusal.state() == state
        && matches!(refusal.error(), BindingError::ReleaseQuarantined {
            identity,
            state: named,
            reason: QuarantineReason::PartialRelease,
            retained_bytes,
        } if *identity == allocation && *named == state && *retained_bytes == bytes as u64 / 2)
}

/// The release had begun when the device was lost, and the allocator was not called: the block stays with the mechanism.
fn is_quarantined_by_loss(error: &BindingError, allocation: AllocationIdentity, bytes: usize) -> bool {
    matches!(error, BindingError::ReleaseQuarantined {
        identity,
        state: AllocationReleaseState::DeviceLost,
        reason: QuarantineReason::DeviceLost,
        retained_bytes,
    } if *identity == allocation && *retained_bytes == bytes as u64)
}

/// The `index`-th word of the contents that belong to `seed`.
const fn word(seed: u64, index: usize) -> u64 {
    mix(seed ^ index as u64)
}

const fn fold(sum: u64, word: u64) -> u64 {
    sum.rotate_left(7) ^ word
}

/// What `count` words from word `from` on must add up to.
fn checksum(seed: u64, from: usize, count: usize) -> u64 {
    (from..from + count).fold(0, |sum, index| fold(sum, word(seed, index)))
}

/// # Safety
///
/// `count` initialized words begin at `memory`, aligned for `u64`, and nobody writes them meanwhile.
unsafe fn checksum_of(memory: NonNull<u8>, count: usize) -> u64 {
    // SAFETY: the caller's promise.
    let words = unsafe { std::slice::from_raw_parts(memory.cast::<u64>().as_ptr(), count) };
    words.iter().fold(0, |sum, word| fold(sum, *word))
}

/// Writes what is to be filled.
fn fill(held: &Held) {
    let memory = held.memory.as_ptr().cast::<u64>();
    for index in 0..held.filled / WORD {
        // SAFETY: within the allocation and committed, where that is needed; the memory is aligned for `u64` and not yet
        // known to anybody else.
        unsafe { memory.add(index).write(word(held.seed, index)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_adds_up_to_its_seed() {
        let words: Vec<u64> = (0..16).map(|index| word(5, index)).collect();
        let at = |index: usize| NonNull::from(&words[index]).cast::<u8>();
        // SAFETY: 16 words from the first one on, 3 from the fourth one on.
        let (all, some) = unsafe { (checksum_of(at(0), 16), checksum_of(at(4), 3)) };
        assert_eq!((all, some), (checksum(5, 0, 16), checksum(5, 4, 3)));
        assert_ne!(some, checksum(5, 3, 3), "another offset gives another sum");
        assert_ne!(all, checksum(6, 0, 16), "another seed gives another sum");
    }
}
