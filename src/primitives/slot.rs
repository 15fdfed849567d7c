//! What is selected right now: a slot that candidates compare-and-swap into.
//!
//! # Protocol
//!
//! The slot's cell holds a *record*: a candidate or nothing, the record that it replaced (its *prior*), a verdict, and a
//! version. A publication is a fresh record, so the same candidate selected twice is two publications, and comparing records
//! by address while one is held admits no ABA.
//!
//! ```text
//!            publish                     complete                  take out
//! Committed ─────────▶ Undecided(c) ──┬─▶ Committed(c)   prior is cut
//!     p                 prior = p     │
//!                                     └─▶ Failed(c) ──────▶ Committed(p) if p lives, looked at twice
//!                                                           Committed(nothing) otherwise
//! ```
//!
//! - A verdict is decided once, by one compare-and-swap, from the candidate's [`Liveness`], by the publisher or by **whoever
//!   meets the record first**. Nobody goes on from a record that is not Committed: it is *finished* (completed, and taken out if
//!   it failed) before anything else. So a prior is always a Committed record, a publication that fails leaves no trace, and
//!   a stopped publisher stops nobody.
//! - Who ends a candidate's life makes its word terminal **first**, then [sweeps](SelectionSlot::sweep) the slot. Publishing writes
//!   the slot and reads the word; ending writes the word and reads the slot. Each has a `fence(SeqCst)` in between, so at least one
//!   of the two notices the other. The same holds for a prior that is put back, which is why it is looked at again.
//! - A Committed record whose candidate is dead counts as empty as long as it stands. It does for a moment only: whoever ended the
//!   candidate is on its way to the slot. A reader that finds the candidate dead therefore looks whether the record still stands: one that
//!   was replaced before its candidate died says nothing of its successor.
//! - Every record carries the version of the one it replaced plus one, the empty and the restored ones included. Who
//!   reports emptiness together with a version replaces a dead record first. So a version that was reported names one record, and a
//!   conditional publication is one that replaces the record of that version or none: its compare-and-swap of the cell decides.
//! - Clearing puts an empty record in place of one that was finished. It needs no fence: it decides nothing by a word.
//! - A prior is cut by the one whose exchange made the record Committed, and never in a Failed record: that one leaves the slot, and takes
//!   its prior with it. An uncut prior would chain everything ever selected together; one cut before its record is out would be lost
//!   to the next finisher.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`SelectionSlot::load`], [`SelectionSlot::observe`] | lock-free: retries are paid for by publications | one `ArcSwap` load, two more loads |
//! | [`SelectionSlot::select`], [`SelectionSlot::offer`] | lock-free | one allocation, one compare-and-swap of the cell, one of the verdict, one fence |
//! | [`SelectionSlot::replace_if`] | lock-free | as `select`, at most once |
//! | [`SelectionSlot::clear`] | lock-free | one allocation, one compare-and-swap of the cell; if nothing is selected one load |
//! | [`SelectionSlot::sweep`] | lock-free | one fence, one load; if the candidate is dead one allocation and one compare-and-swap |

use super::liveness::Liveness;
use crate::sync::{
    Arc, ArcCell, ArcGuard, UnsafeCell,
    atomic::{AtomicU8, Ordering::*, fence},
    gate,
};
use std::fmt;
use thiserror::Error;

/// What a [`SelectionSlot`] can select.
///
/// # Contract
///
/// [`liveness`](Self::liveness) is called in the middle of decisions: it must return a field, always the same, and not panic.
///
/// A candidate is dropped by whoever lets its last record go, with nothing held: that may be any thread that selects, offers, sweeps or
/// reads. So its drop should not panic: the panic would reach a caller that had nothing to do with it, and whose own call has taken
/// effect.
pub trait Candidate: Send + Sync + 'static {
    /// The word that says whether this candidate may be selected.
    fn liveness(&self) -> &Liveness;
}

const UNDECIDED: u8 = 0;
const COMMITTED: u8 = 1;
const FAILED: u8 = 2;

/// One publication.
struct Record<T> {
    /// UNDECIDED, then COMMITTED or FAILED, for ever.
    verdict: AtomicU8,
    version: u64,
    candidate: Option<Arc<T>>,
    /// Read while the record is FAILED, by any finisher; cut by the one who made it COMMITTED, which nobody reads in.
    prior: UnsafeCell<Option<Arc<Record<T>>>>,
}

// SAFETY: the only part that is not `Sync` is the cell, and its field says who may touch it when.
unsafe impl<T: Candidate> Sync for Record<T> {}

impl<T: Candidate> Record<T> {
    fn committed(candidate: Option<Arc<T>>, version: u64) -> Arc<Self> {
        Arc::new(Self { verdict: AtomicU8::new(COMMITTED), version, candidate, prior: UnsafeCell::new(None) })
    }

    /// To be put in place of `prior`.
    fn undecided(candidate: Arc<T>, Settled(prior): Settled<T>) -> Arc<Self> {
        let version = prior.version + 1;
        Arc::new(Self { verdict: AtomicU8::new(UNDECIDED), version, candidate: Some(candidate), prior: UnsafeCell::new(Some(prior)) })
    }

    #[inline(always)]
    fn is_committed(&self) -> bool {
        // Acquire: pairs with the Release half of the exchange in `complete`: who sees the verdict sees what it was made from.
        self.verdict.load(Acquire) == COMMITTED
    }

    /// The candidate, if it may be given out. The record must be Committed.
    #[inline(always)]
    fn live(&self) -> Option<&Arc<T>> {
        self.candidate.as_ref().filter(|candidate| candidate.liveness().is_live())
    }

    /// Decides the record, or finds it decided; says whether it is Committed.
    fn complete(&self) -> bool {
        // SeqCst: the slot was written, by us or by whoever published what we met, before the word is read. Pairs with the
        // fence in `sweep`: either that sees this record in the slot, or we see the word terminal. A helper needs it as much as
        // the publisher does: its verdict is as final.
        fence(SeqCst);
        let lives = self.live().is_some();
        gate!(Judged);
        let verdict = if lives { COMMITTED } else { FAILED };
        // AcqRel: Release publishes the verdict with what was seen; Acquire, also on failure, sees who was faster.
        match self.verdict.compare_exchange(UNDECIDED, verdict, AcqRel, Acquire) {
            Ok(_) if lives => {
                // SAFETY: one exchange makes the record Committed, and this was it; in a Committed record nobody else looks at the prior.
                drop(self.prior.with_mut(|prior| unsafe { (*prior).take() }));
                true
            }
            Ok(_) => false,
            Err(faster) => faster == COMMITTED,
        }
    }

    /// The candidate of a Failed record's prior, if it still lives.
    fn living_prior(&self) -> Option<Arc<T>> {
        // SAFETY: the caller has seen the record Failed, and nobody writes the prior of one that is.
        self.prior.with(|prior| unsafe { (*prior).as_ref()?.live().cloned() })
    }
}

/// What stood in the slot when a record was met: the proof that it is Committed.
struct Settled<T>(Arc<Record<T>>);

impl<T> Settled<T> {
    /// As it is reported. The candidate, if there is one, must have been found alive.
    fn report(&self) -> Selected<T> {
        Selected { candidate: self.0.candidate.clone(), version: self.0.version }
    }
}

/// What became of a publication.
enum Published<T> {
    Committed,
    /// The candidate died before it was decided upon, and is out again.
    Failed(Arc<T>),
    /// Something else stood in the slot by then.
    Raced(Arc<T>),
}

/// A slot that names nothing or one live candidate, at rest.
///
/// The pieces of a registry without the registry: anyone who hot-swaps backends can use it.
///
/// ```
/// use liveslot::{Candidate, Liveness, SelectionSlot};
/// use std::sync::Arc;
///
/// #[derive(Debug)]
/// struct Backend { liveness: Liveness, name: &'static str }
///
/// impl Candidate for Backend {
///     fn liveness(&self) -> &Liveness { &self.liveness }
/// }
///
/// let backend = |name| Arc::new(Backend { liveness: Liveness::new(), name });
/// let (old, new) = (backend("old"), backend("new"));
/// let slot = SelectionSlot::new();
/// slot.select(old.clone()).unwrap();
/// slot.select(new.clone()).unwrap();
/// assert_eq!(slot.load().unwrap().name, "new");
///
/// new.liveness.retire(); // terminal first,
/// slot.sweep();          // then out of the slot
/// assert!(slot.load().is_none());
/// assert!(slot.select(new).is_err(), "a dead candidate cannot come back");
/// ```
pub struct SelectionSlot<T: Candidate> {
    cell: ArcCell<Record<T>>,
}

/// What [`SelectionSlot::observe`] saw: a decided selection and its version.
#[derive(Debug)]
pub struct Selected<T> {
    /// The candidate, alive at one instant during the call, or none.
    pub candidate: Option<Arc<T>>,
    /// Counts the changes of the slot: never repeats, never falls.
    pub version: u64,
}

/// What became of an [`offer`](SelectionSlot::offer).
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The slot was empty and names the candidate now.
    Installed,
    /// A live candidate is selected; nothing was changed.
    Occupied,
    /// The offered candidate died meanwhile; it left no trace.
    Died,
}

/// Why [`SelectionSlot::replace_if`] selected nothing. The candidate is handed back.
#[derive(Debug, Error)]
pub enum NotReplaced<T> {
    /// The slot was at another version than the expected one.
    #[error("the selection has changed, and is at version {}; decide anew", .current.version)]
    Conflict {
        /// What was to be selected.
        candidate: Arc<T>,
        /// What is selected instead, and its version, at one instant during the call.
        current: Selected<T>,
    },
    /// The candidate is dead, or died before it was decided upon; it left no trace.
    #[error("the candidate is dead; select another")]
    Died(Arc<T>),
}

impl<T: Candidate> SelectionSlot<T> {
    /// An empty slot, at version 0.
    #[must_use]
    pub fn new() -> Self {
        Self { cell: ArcCell::new(Record::committed(None, 0)) }
    }

    /// Selects `candidate`, whatever was selected before.
    ///
    /// # Errors
    ///
    /// Hands `candidate` back if it is dead, or died before it was decided upon. Then the selection is as if the call had
    /// not been made: a newer one is untouched, the one before is back if it is still alive, and nobody was given
    /// `candidate` in between.
    ///
    /// # Progress
    ///
    /// Lock-free.
    pub fn select(&self, mut candidate: Arc<T>) -> Result<(), Arc<T>> {
        loop {
            if !candidate.liveness().is_live() {
                return Err(candidate);
            }
            match self.publish(candidate, self.settled()) {
                Published::Committed => return Ok(()),
                Published::Failed(candidate) => return Err(candidate),
                Published::Raced(again) => candidate = again,
            }
        }
    }

    /// Selects `candidate` if nothing live is selected.
    ///
    /// # Progress
    ///
    /// Lock-free.
    pub fn offer(&self, mut candidate: Arc<T>) -> Offer {
        // SeqCst: the caller has made the candidate reachable for whoever ends lives, and looks at the slot now. Pairs with the
        // fence between two such passes: either they reach the candidate, or we see what they did to the slot's.
        fence(SeqCst);
        loop {
            let seen = self.settled();
            if seen.0.live().is_some() {
                return Offer::Occupied;
            }
            match self.publish(candidate, seen) {
                Published::Committed => return Offer::Installed,
                Published::Failed(_) => return Offer::Died,
                Published::Raced(again) => candidate = again,
            }
        }
    }

    /// Selects `candidate` if the slot is at `version`, and gives the version of the new selection. To be called with a version that
    /// [`observe`](Self::observe) or a conflict reported, when that selection, and no other, is to be replaced.
    ///
    /// Of calls that expect one version at most one is `Ok`, and the slot has not changed between the report and that one.
    /// Selecting what is selected anew is a change.
    ///
    /// ```
    /// # use liveslot::{Candidate, Liveness, NotReplaced, SelectionSlot};
    /// # use std::sync::Arc;
    /// # #[derive(Debug)]
    /// # struct Backend { liveness: Liveness, name: &'static str }
    /// # impl Candidate for Backend {
    /// #     fn liveness(&self) -> &Liveness { &self.liveness }
    /// # }
    /// # let backend = |name| Arc::new(Backend { liveness: Liveness::new(), name });
    /// let slot = SelectionSlot::new();
    /// slot.select(backend("old")).unwrap();
    ///
    /// let seen = slot.observe().version;
    /// assert_eq!(slot.replace_if(seen, backend("new")).unwrap(), seen + 1);
    /// match slot.replace_if(seen, backend("late")) {
    ///     Err(NotReplaced::Conflict { candidate, current }) => {
    ///         assert_eq!((candidate.name, current.candidate.unwrap().name), ("late", "new"));
    ///         assert_eq!(current.version, seen + 1);
    ///     }
    ///     other => panic!("{other:?}"),
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`NotReplaced::Died`] where [`select`](Self::select) would refuse, whatever the version.
    /// [`NotReplaced::Conflict`] if the slot is at another version, also where nobody has selected anything else: the selection at
    /// `version` has died, or a publication that failed came and went. The conflict has what is needed to decide anew and try again.
    ///
    /// # Progress
    ///
    /// Lock-free; it tries to publish once at most.
    pub fn replace_if(&self, version: u64, mut candidate: Arc<T>) -> Result<u64, NotReplaced<T>> {
        loop {
            if !candidate.liveness().is_live() {
                return Err(NotReplaced::Died(candidate));
            }
            // A dead selection has no version to be expected at: whoever asked now would be told the next.
            let seen = self.alive_or_empty();
            if seen.0.version != version {
                return Err(NotReplaced::Conflict { candidate, current: seen.report() });
            }
            match self.publish(candidate, seen) {
                Published::Committed => return Ok(version + 1),
                Published::Failed(candidate) => return Err(NotReplaced::Died(candidate)),
                // What stands there now has another version: the next round reports it.
                Published::Raced(again) => candidate = again,
            }
        }
    }

    /// Takes the selected candidate out of the slot, whichever it is, and hands it back. It stays alive, and may be selected again.
    /// `None` if nothing was selected at one instant during the call; clearing an empty slot is no change.
    ///
    /// A selection that is being made is either decided and taken out, or comes after. What was taken out is nobody's prior: it does not
    /// come back when a later publication fails.
    ///
    /// # Progress
    ///
    /// Lock-free: each retry is paid for by a publication.
    pub fn clear(&self) -> Option<Arc<T>> {
        loop {
            let Settled(seen) = self.alive_or_empty();
            let candidate = seen.candidate.clone()?;
            if self.empty(&seen).is_some() {
                return Some(candidate);
            }
        }
    }

    /// Puts an undecided record in place of `seen` and finishes it. The candidate moves into the record, and `seen` becomes its
    /// prior: no reference count that rivals share is touched for either.
    fn publish(&self, candidate: Arc<T>, seen: Settled<T>) -> Published<T> {
        // Its record keeps what it is to replace, so that the address stands for that alone.
        let current = Arc::as_ptr(&seen.0);
        let record = Record::undecided(candidate, seen);
        let replaced = self.cell.replace(current, Arc::clone(&record));
        if replaced {
            gate!(Published);
            if self.finish(&record) {
                return Published::Committed;
            }
        }
        let candidate = record.candidate.clone().expect("an undecided record has a candidate");
        if replaced { Published::Failed(candidate) } else { Published::Raced(candidate) }
    }

    /// The record in the slot, once it is one to go on from.
    fn settled(&self) -> Settled<T> {
        loop {
            let met = self.cell.load_full();
            if self.finish(&met) {
                return Settled(met);
            }
        }
    }

    /// Completes `record`, and takes it out if it failed; says whether it is Committed.
    fn finish(&self, record: &Arc<Record<T>>) -> bool {
        let committed = record.is_committed() || record.complete();
        if !committed {
            self.take_out(record);
        }
        committed
    }

    /// Puts the prior of a Failed record back, or nothing, if the record is still in the slot.
    #[cold]
    fn take_out(&self, failed: &Arc<Record<T>>) {
        let prior = failed.living_prior();
        gate!(PriorRead);
        let restored = Record::committed(prior, failed.version + 1);
        if self.cell.replace(Arc::as_ptr(failed), Arc::clone(&restored)) && restored.candidate.is_some() {
            gate!(Restored);
            self.sweep_record(restored);
        }
    }

    /// Takes a dead candidate out of the slot. Call it after the candidate's word has been made terminal, on every slot that may
    /// name it: the call returns only when the slot names it no more. A live selection is left alone.
    ///
    /// # Progress
    ///
    /// Lock-free: each retry is paid for by a publication.
    pub fn sweep(&self) {
        // SeqCst: the word was written before the slot is read. Pairs with the fence in `complete` and in `sweep_record`.
        fence(SeqCst);
        self.alive_or_empty();
    }

    /// Replaces `restored` by an empty record if its candidate has died.
    fn sweep_record(&self, restored: Arc<Record<T>>) {
        // SeqCst: the slot was written before the word is read. Pairs with the fence in `sweep`: either that finds the restored
        // record, or we find its candidate dead.
        fence(SeqCst);
        if restored.live().is_none() {
            self.empty(&restored);
        }
    }

    /// Puts an empty record in place of `seen`, if that still stands. Gives the empty record if it does now.
    fn empty(&self, seen: &Arc<Record<T>>) -> Option<Arc<Record<T>>> {
        let empty = Record::committed(None, seen.version + 1);
        self.cell.replace(Arc::as_ptr(seen), Arc::clone(&empty)).then_some(empty)
    }

    /// The record in the slot once it is Committed and its candidate, if it has one, was alive.
    fn alive_or_empty(&self) -> Settled<T> {
        loop {
            let seen = self.settled();
            if seen.0.candidate.is_none() || seen.0.live().is_some() {
                return seen;
            }
            if let Some(empty) = self.empty(&seen.0) {
                return Settled(empty);
            }
        }
    }

    /// What is selected, with the version of that selection.
    ///
    /// # Progress
    ///
    /// Lock-free.
    #[must_use]
    pub fn observe(&self) -> Selected<T> {
        self.alive_or_empty().report()
    }

    /// The selected candidate. It may die at any moment, also before the call returns.
    ///
    /// # Progress
    ///
    /// Lock-free.
    #[must_use]
    pub fn load(&self) -> Option<Arc<T>> {
        self.read(|candidate| Some(Arc::clone(candidate)))
    }

    /// Lets `take` look at the selected candidate, protected meanwhile. `None` if there is none; `take` may answer `None` to look
    /// again, when it could not use a candidate that has died since.
    #[inline]
    pub(crate) fn read<R>(&self, mut take: impl FnMut(&Arc<T>) -> Option<R>) -> Option<R> {
        loop {
            let guard = self.cell.load();
            if !guard.is_committed() {
                self.help(guard);
                continue;
            }
            gate!(Loaded);
            let Some(candidate) = guard.live() else {
                if self.is_empty(guard) {
                    return None;
                }
                continue;
            };
            if let Some(taken) = take(candidate) {
                return Some(taken);
            }
        }
    }

    /// Whether `seen`, which names nothing live, says that nothing was selected at one instant. A dead candidate counts as empty, and is
    /// being swept; but if its record has been replaced by now, it may have died after that, and says nothing of its successor.
    #[cold]
    fn is_empty(&self, guard: ArcGuard<Record<T>>) -> bool {
        // Owned, not guarded: dropping a record may drop a candidate. While it is, its address stands for it alone.
        let seen = Arc::clone(&guard);
        drop(guard);
        seen.candidate.is_none() || Arc::ptr_eq(&self.cell.load_full(), &seen)
    }

    #[cold]
    #[inline(never)]
    fn help(&self, guard: ArcGuard<Record<T>>) {
        let record = Arc::clone(&guard);
        // Finishing may drop records, and with them a candidate: not under a guard.
        drop(guard);
        self.finish(&record);
    }
}

/// What a model asserts on after all threads have joined: the slot as it stands, without the repair that reading would do.
#[cfg(any(liveslot_loom, liveslot_shuttle, liveslot_gates))]
impl<T: Candidate> SelectionSlot<T> {
    /// The raw record: whether it is Committed, its candidate, its version, and whether its prior is cut.
    pub fn raw(&self) -> (bool, Option<Arc<T>>, u64, bool) {
        let record = self.cell.load_full();
        // SAFETY: all threads that touched the slot have been joined.
        let cut = record.prior.with(|prior| unsafe { (*prior).is_none() });
        (record.is_committed(), record.candidate.clone(), record.version, cut)
    }
}

impl<T: Candidate> Default for SelectionSlot<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Candidate> fmt::Debug for SelectionSlot<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = self.cell.load_full();
        let (version, occupied) = (record.version, record.is_committed() && record.live().is_some());
        // The writer is the user's: nothing is held while it runs.
        drop(record);
        formatter.debug_struct("SelectionSlot").field("version", &version).field("occupied", &occupied).finish_non_exhaustive()
    }
}
