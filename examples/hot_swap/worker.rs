//! A worker: bind, allocate, fill, verify through `with_view`, release, and tell right answers from wrong ones.
//!
//! Rounds are short and vary: some begin with binds in a row, a binding serves one to four allocations, some allocations are put aside and released
//! after the selection has moved on, some are handed to the next worker and released there, some views are used once
//! more after the release, some bindings are kept until their mechanism is dead. Now and then a `with_view` closure
//! yields, so that the control thread finds operations in flight also where there are fewer cores than threads.
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
    AllocationIdentity, AllocationReleaseState, BindingError, BindingRegistry, BoundAllocation, BoundMemoryView, DeviceHandle,
    ExplicitReleaseError, MechanismIdentity, MechanismLifecycle, MemoryBinding, QuarantineReason,
};

use crate::allocators::{self, Fate, Kind};
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
/// the inbox, and the one at hand; times two to keep the allocator's ledger sparse, and again for short searches.
pub(crate) const fn ledger_capacity(workers: usize) -> usize {
    4 * workers * (HELD + INBOX + 1)
}

const WORD: usize = size_of::<u64>();

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

/// A filled allocation, with what is needed to verify and release it.
pub(crate) struct Held {
    binding: MemoryBinding,
    allocation: BoundAllocation,
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
    pub(crate) fn finish(mut self) -> WorkerStats {
        self.kept = None;
        while let Some(held) = self.held.pop().or_else(|| self.inbox.try_recv().ok()) {
            self.verify(&held);
            self.release(held);
        }
        self.stats
    }

    fn round(&mut self) {
        if self.rng.one_in(64) {
            self.look_at_the_slot();
        }
        if self.rng.one_in(2) {
            for _ in 0..self.rng.below(BINDS) {
                self.bind();
            }
        }
        if let Some(binding) = self.bind() {
            for _ in 0..=self.rng.below(4) {
                self.use_memory(&binding);
            }
            if self.rng.one_in(16) {
                self.kept = Some(binding);
            }
        }
        if self.rng.one_in(16)
            && let Some(binding) = self.kept.clone()
        {
            self.use_memory(&binding);
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

    /// Allocate, fill, verify, and release, put aside or hand over.
    fn use_memory(&mut self, binding: &MemoryBinding) {
        let Some(held) = self.allocate(binding) else { return };
        self.verify(&held);
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

    fn allocate(&mut self, binding: &MemoryBinding) -> Option<Held> {
        let mechanism = binding.identity().mechanism();
        // Mostly small, at most 16 KiB, always whole words.
        let most = 8 << self.rng.below(9);
        let bytes = WORD * (1 + self.rng.below(most));
        let align = WORD << self.rng.below(5);
        self.news.catch_up();
        let dead = self.news.is_dead(mechanism);
        let loss = self.shared.windows.loss.mark();
        let start = Instant::now();
        let answer = binding.allocate(bytes, align);
        let elapsed = start.elapsed();
        self.count_if_in_flight(loss);
        match answer {
            Ok(allocation) => {
                self.stats.allocate_ns.record(elapsed);
                self.stats.operations += 1;
                self.stats.allocations += 1;
                self.stats.allocated_on_dead += u64::from(dead);
                if self.stats.kinds != Kind::every() {
                    self.stats.kinds |= self.news.life(mechanism).map_or(0, |life| life.kind.bit());
                }
                let seed = self.rng.next();
                fill(&allocation, seed);
                Some(Held { binding: binding.clone(), allocation, seed, maker: self.index })
            }
            Err(error) => {
                self.refused("allocate", &error, mechanism, &[Fate::Retired, Fate::Lost, Fate::Terminated]);
                None
            }
        }
    }

    /// Compares a random part of the contents with what was written there.
    fn verify(&mut self, held: &Held) {
        let words = held.allocation.len() / WORD;
        let from = self.rng.below(words);
        let count = 1 + self.rng.below(words - from);
        let pause = self.rng.one_in(128);

        let answer = held.allocation.view(from * WORD, count * WORD);
        let Some(view) = self.viewed(answer, held) else { return };
        let loss = self.shared.windows.loss.mark();
        let answer = held.binding.with_view(&view, |memory| {
            if pause {
                thread::yield_now();
            }
            // Nothing is read from a view of another length.
            (memory.len() == count * WORD).then(|| {
                // SAFETY: the allocation is held, filled to its end, and nobody writes it; the library vouches for
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
                self.refused("view", &error, mechanism, &[Fate::Retired, Fate::Lost, Fate::Terminated]);
            })
            .ok()
    }

    fn release(&mut self, held: Held) {
        let Held { binding, allocation, maker, .. } = held;
        let (identity, bytes) = (allocation.identity(), allocation.len());
        let view_to_outlive_it = if self.rng.one_in(16) { allocation.view(0, WORD).ok() } else { None };
        let loss = self.shared.windows.loss.mark();
        let answer = binding.release(allocation);
        let during_a_loss = loss.touched(self.shared.windows.loss.mark());
        self.count_if_in_flight(loss);
        match answer {
            Ok(()) => {
                self.stats.operations += 1;
                self.stats.releases += 1;
                self.stats.foreign_releases += u64::from(maker != self.index);
                if let Some(view) = view_to_outlive_it {
                    self.expect_stale(&binding, &view);
                }
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
            (true, AllocationReleaseState::DeviceLost)
        } else {
            // A retired mechanism still releases, so retirement is no excuse here.
            (self.refused("release", &error, mechanism, &[Fate::Lost, Fate::Terminated]), AllocationReleaseState::Live)
        };
        if allocation.identity() != identity || (excused && state != right_state) {
            self.stats.tally.unexpected("release", "another allocation or state handed back", &error);
        }
        if excused && let Some(life) = self.news.life(mechanism) {
            // Before the drop: the handed-back allocation keeps the mechanism from being torn down.
            life.abandon();
        }
        drop(allocation);
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
                self.refused("with_view", &error, mechanism, &[Fate::Retired, Fate::Lost, Fate::Terminated]);
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

/// The release had begun when the device was lost, and the allocator was not called: the block stays with the mechanism. The allocators
/// complete every release that they are asked for, so nothing else may end in quarantine.
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

/// Writes the whole allocation.
fn fill(allocation: &BoundAllocation, seed: u64) {
    let memory = allocation.as_ptr().cast::<u64>();
    for index in 0..allocation.len() / WORD {
        // SAFETY: within the allocation, which is aligned for `u64` and not yet known to anybody else.
        unsafe { memory.add(index).write(word(seed, index)) };
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
