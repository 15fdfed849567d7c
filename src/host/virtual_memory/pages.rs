//! The state of each page of an allocation: one byte, through which the calls on that page meet.
//!
//! The low six bits say who works on the page, the high two what is behind it:
//!
//! | holders | meaning | what is behind it can change |
//! | --- | --- | --- |
//! | 0 | nobody | no |
//! | 1 to 62 | so many commits | from [`FREE`] to [`OWNED`], by a commit that holds it |
//! | 63 | one claim: a decommit, the mapping of a prefix, the undoing of a commit | by the claimant alone |
//!
//! Every change is a read-modify-write of that byte, or a store by the claimant, on whom no other call's
//! read-modify-write succeeds. A call takes all its pages before the kernel is called and lets go of them afterwards.
//! So no access is taken away while a commit works on the page, and no page is recorded as committed by a call whose
//! `mprotect` was undone in between: a committed page is accessible. A call that meets the other kind of call, or a
//! 63rd commit, is refused and never waits.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`Pages::uncommitted`], [`Pages::committed`] | wait-free | a load per page |
//! | [`Pages::hold`], [`Held::publish`], [`Held::withdraw`] | lock-free: a retry means that another call changed the page | a compare-and-swap per page |
//! | [`Pages::claim`] | lock-free, as above | a compare-and-swap per page |
//! | [`Claimed::settle`] | wait-free | a store per page |

use crate::sync::atomic::{AtomicU8, AtomicUsize, Ordering::*};
use std::ops::Range;

const HOLDERS: u8 = 0b0011_1111;
/// The number of holders that stands for a claim.
const CLAIM: u8 = HOLDERS;
const KIND: u8 = 0b1100_0000;

/// Nothing is behind the page. Zero, as the kernel hands pages out.
pub const FREE: u8 = 0;
/// Memory of the allocation's own.
pub const OWNED: u8 = 0b0100_0000;
/// Memory of a shared prefix.
pub const SHARED: u8 = 0b1000_0000;

/// Another call works on one of the pages.
#[derive(Debug)]
pub struct Busy;

/// The pages of an allocation, and how many of each kind there are.
///
/// `owned` and `shared` are raised before a page becomes one, and lowered while the page is still claimed: each is at
/// no time below the number of such pages, and equal to it when no call is in progress.
#[derive(Clone, Copy)]
pub struct Pages<'a> {
    pub states: &'a [AtomicU8],
    pub owned: &'a AtomicUsize,
    pub shared: &'a AtomicUsize,
}

/// Pages that a commit holds. Must be published or withdrawn.
#[must_use]
pub struct Held<'a>(Pages<'a>);

/// Pages that nobody else can change. Must be settled.
#[must_use]
pub struct Claimed<'a>(Pages<'a>);

impl<'a> Pages<'a> {
    /// The pages of `range` alone.
    pub fn range(self, range: &Range<usize>) -> Self {
        Self { states: &self.states[range.clone()], ..self }
    }

    /// How many pages of the allocation, not of the range, are owned.
    pub fn owned_pages(&self) -> usize {
        // Relaxed: a statistic while calls are in progress; otherwise whatever tells the caller so orders it.
        self.owned.load(Relaxed)
    }

    /// How many pages of the allocation, not of the range, are shared.
    pub fn shared_pages(&self) -> usize {
        // Relaxed: as above.
        self.shared.load(Relaxed)
    }

    fn load(&self, page: usize) -> u8 {
        // Acquire: the `mprotect` behind a committed page was before; partner of the Release in `publish` and `settle`.
        self.states[page].load(Acquire)
    }

    /// The smallest range with all pages that a commit has something to do for: those that are not committed, and those
    /// that are claimed, for their claimant may have taken the access away already.
    pub fn uncommitted(&self) -> Range<usize> {
        self.hull(|state| state & KIND == FREE || state & HOLDERS == CLAIM)
    }

    /// The smallest range with all pages that are committed.
    pub fn committed(&self) -> Range<usize> {
        self.hull(|state| state & KIND != FREE)
    }

    fn hull(&self, belongs: impl Fn(u8) -> bool) -> Range<usize> {
        let mut pages = 0..self.states.len();
        let Some(first) = pages.find(|&page| belongs(self.load(page))) else { return 0..0 };
        first..pages.rfind(|&page| belongs(self.load(page))).unwrap_or(first) + 1
    }

    /// How many of the pages are not committed.
    pub fn count_uncommitted(&self) -> usize {
        (0..self.states.len()).filter(|&page| self.load(page) & KIND == FREE).count()
    }

    /// Takes the pages for a commit, all or none. `close` takes the access to pages away, as in [`Held::withdraw`].
    pub fn hold(self, close: impl FnMut(Range<usize>)) -> Result<Held<'a>, Busy> {
        for (page, state) in self.states.iter().enumerate() {
            // Acquire: what was done to the page before is done; partner of the Release in `settle` and `leave`.
            // Relaxed: a failed attempt is looked at again.
            let held = state.fetch_update(Acquire, Relaxed, |state| (state & HOLDERS < CLAIM - 1).then(|| state + 1));
            if held.is_err() {
                Held(self.range(&(0..page))).withdraw(close);
                return Err(Busy);
            }
        }
        Ok(Held(self))
    }

    /// Takes the pages for oneself, all or none.
    pub fn claim(self) -> Result<Claimed<'a>, Busy> {
        for (page, state) in self.states.iter().enumerate() {
            // Acquire, Relaxed: as in `hold`.
            let claimed = state.fetch_update(Acquire, Relaxed, |state| (state & HOLDERS == 0).then_some(state | CLAIM));
            if claimed.is_err() {
                Claimed(self.range(&(0..page))).unclaim();
                return Err(Busy);
            }
        }
        Ok(Claimed(self))
    }
}

impl Held<'_> {
    /// Records that the pages are accessible, and lets go of them.
    pub fn publish(self) {
        let Pages { states, owned, .. } = self.0;
        let candidates = self.0.count_uncommitted();
        // Relaxed: a statistic; the page's own byte orders it before the decommit that lowers it, for that one finds the
        // page unheld. The same holds for each change of the two counts.
        owned.fetch_add(candidates, Relaxed);
        let mut converted = 0;
        for state in states {
            // Release: hands the `mprotect` on to whoever finds the page committed, or holds or claims it next.
            // Relaxed: a failed attempt is looked at again.
            let before =
                state.fetch_update(Release, Relaxed, |state| Some(if state & KIND == FREE { (state | OWNED) - 1 } else { state - 1 }));
            converted += usize::from(before.is_ok_and(|before| before & KIND == FREE));
        }
        // Another commit that held the same pages converted, and counted, the rest.
        // Relaxed: as above.
        owned.fetch_sub(candidates - converted, Relaxed);
    }

    /// Lets go of the pages without a claim that they are accessible.
    ///
    /// What nobody committed is inaccessible again afterwards: whoever lets go of such a page last calls `close` for it.
    pub fn withdraw(self, mut close: impl FnMut(Range<usize>)) {
        let mut run = 0..0;
        let mut end_run = |run: Range<usize>, states: &[AtomicU8]| {
            if !run.is_empty() {
                close(run.clone());
                // Release: hands the `mprotect` on to whoever takes the page next.
                states[run].iter().for_each(|state| state.store(FREE, Release));
            }
        };
        for (page, state) in self.0.states.iter().enumerate() {
            // AcqRel: as in `hold`, for the page may become ours alone; and hands what was done on, as in `publish`.
            // Relaxed: a failed attempt is looked at again.
            let before = state.fetch_update(AcqRel, Relaxed, |state| Some(if state == FREE | 1 { FREE | CLAIM } else { state - 1 }));
            if before == Ok(FREE | 1) {
                run = if run.end == page { run.start..page + 1 } else { page..page + 1 };
            } else {
                end_run(std::mem::replace(&mut run, 0..0), self.0.states);
            }
        }
        end_run(run, self.0.states);
    }
}

impl Claimed<'_> {
    /// How many of the pages are of this kind.
    pub fn count(&self, kind: u8) -> usize {
        // Relaxed: nobody else changes a claimed page.
        self.0.states.iter().filter(|state| state.load(Relaxed) & KIND == kind).count()
    }

    /// Records that all of the pages are of this kind now, and lets go of them. Never [`OWNED`].
    pub fn settle(self, kind: u8) {
        let Pages { states, owned, shared } = self.0;
        // Relaxed: statistics, as in `publish`; a page is still claimed when a count is lowered, and counted when it is
        // published.
        owned.fetch_sub(self.count(OWNED), Relaxed);
        match kind {
            SHARED => shared.fetch_add(states.len() - self.count(SHARED), Relaxed),
            _ => shared.fetch_sub(self.count(SHARED), Relaxed),
        };
        // Release: hands what the kernel did on to whoever takes the page next, or finds it committed.
        states.iter().for_each(|state| state.store(kind, Release));
    }

    /// Lets go of the pages as they were found.
    pub fn unclaim(self) {
        for state in self.0.states {
            // Release: as in `settle`; nothing was done, but what was acquired is passed on. A claimed page has one writer.
            state.fetch_and(KIND, Release);
        }
    }
}
