//! Who is using something right now, counted without a shared cache line.
//!
//! A stripe is two words on cache lines of its own; a thread uses the stripe of its [lane](super::lane).
//!
//! **Admission word**: two flags above three counts.
//!
//! ```text
//!   63       62   61 .. 36     35 .. 14       13 .. 0
//! RETIRED   LOST    live     queued total   operations
//! ```
//!
//! An operation is admitted or refused by one addition whose returned flags decide; closing is one `fetch_or` per stripe. Both change the
//! same word, so one of them comes first: no fence, no handshake. An operation ends on the stripe on which it began; what it recorded is
//! counted there, at its *home*, until it is settled. So each recorded thing is in exactly one count of one word at every instant, and its
//! moves (operation → live → queued) are one read-modify-write each. LOST refuses what RETIRED refuses, and queueing as well; it comes with
//! RETIRED, so that the sign tells a closed stripe. Flags are never cleared. After LOST nothing is admitted, so the end of a life needs no
//! flag.
//!
//! **Idle**: the sum over all stripes is zero. A *leaver* lowers the sum: the end of an operation, a settlement, and the undo of an
//! operation that was refused. Its read-modify-write tells whether its stripe is closed; if that is empty as well, it fences, sums, and
//! wakes the [waiters](Pins::waiters) if the sum is zero. Who waits puts down what wakes it, fences, and sums. Of two last leavers on two
//! stripes and one who goes to sleep, the one whose fence comes last sees what the others have done. Whoever closes is one more of them:
//! what left before a stripe was closed is in its sum, so it wakes [whom it may have to](Pins::waiting_if_idle). A waker may stop its
//! thread, so who settles is given a [`Notice`], to let go of its hold first. Stripes that are not closed pay nothing, but for a branch.
//! Moves (operation → live → queued) leave the sum as it is, so retaining something wakes nobody.
//!
//! **Handle word**: CLOSED in the lowest bit, a signed count above. A handle may be let go on any stripe, so one stripe may fall
//! below zero, and borrows into no flag. Closing sets each stripe's CLOSED and moves the counts to one central word, which holds a
//! bias until the sum is in: so it meets zero only when the last handle has gone, and whoever brings it there owes the teardown.
//! A closed handle word is dead: what is added to it afterwards means nothing.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`Pins::enter`], [`Pins::enter_release`], [`Operation`]'s end, [`Operation::record`], [`Operation::settle`], [`Pins::queue`], [`Pins::settle`] | wait-free | one RMW on one stripe; a refusal two |
//! | [`Pins::enter_beside_records`] | lock-free: a retry is paid for by another's step on the stripe | one load per stripe, a compare-and-swap |
//! | [`Pins::acquire`], [`Pins::derive`], [`Pins::derive_at`], [`Pins::release`] | wait-free | one RMW on the caller's stripe; after closing a second one on the central word |
//! | the last leaver of a closed stripe | wait-free, the wakers excepted | besides, a fence and a load; if anybody has ever waited one load per stripe |
//! | [`Pins::close_admission`], [`Pins::close_handles`] | wait-free | one RMW per stripe |
//! | [`Pins::totals`], [`Pins::handles`] | wait-free | one load per stripe |
//!
//! Limits per stripe: 2¹³ operations at a time, 2²⁵ live, 2²¹ queued or quarantined. A call that would pass one is refused
//! ([`Refused::Full`]); the fields hold twice that and more, so that calls on their way to a refusal can't carry into a neighbour.
//! The handle count is 63 bits wide, signed; [`Pins::derive`] aborts at 2⁶¹, as std's `Arc` does at its half.

use super::{once::WriteOnce, waiters::Waiters};
use crate::sync::{
    Arc,
    atomic::{
        AtomicI64, AtomicU64,
        Ordering::{self, *},
        fence,
    },
    gate,
};
use crossbeam_utils::CachePadded;
use std::{fmt, mem::ManuallyDrop};

const RETIRED: u64 = 1 << 63;
const LOST: u64 = 1 << 62;
const LIVE: u64 = 1 << 36;
const QUEUED: u64 = 1 << 14;
// One, so that at an operation's end one locked subtraction tells whether its stripe is closed.
const OPERATION: u64 = 1;

/// What is live or queued.
const RECORDED: u64 = (LOST - 1) & !(QUEUED - 1);

const OPERATION_LIMIT: u64 = 1 << 13;
const LIVE_LIMIT: u64 = 1 << 25;
const QUEUED_LIMIT: u64 = 1 << 21;

const CLOSED: i64 = 1;
const HANDLE: i64 = 2;
const HANDLE_LIMIT: i64 = i64::MAX / 2;
const BIAS: i64 = 1 << 62;

/// The most stripes that one set of pins has.
pub const MOST_STRIPES: usize = 128;

/// The counts of one admission word, or the sum of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub operations: usize,
    pub live: usize,
    /// Queued and not settled, whoever owns it meanwhile.
    pub queued: usize,
}

impl Totals {
    const fn of(word: u64) -> Self {
        Self {
            operations: (word & (QUEUED - 1)) as usize,
            live: (word & (LOST - 1)) as usize >> 36,
            queued: (word & (LIVE - 1)) as usize >> 14,
        }
    }
}

/// Which calls are refused from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// New operations.
    Retired,
    /// New operations and new releases.
    Lost,
}

impl Close {
    const fn flag(self) -> u64 {
        match self {
            Self::Retired => RETIRED,
            Self::Lost => LOST | RETIRED,
        }
    }
}

/// Why something was not admitted. Nothing is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Closed; the lifecycle word says how.
    Closed,
    /// A counter has reached its limit.
    Full,
}

/// No handle can be acquired any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// What letting a handle go, or closing, has brought about.
#[must_use = "whoever is told `Last` owes the teardown"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    Held,
    /// No handle exists, nor ever will. Told once.
    Last,
}

#[derive(Debug)]
struct Stripe {
    admission: AtomicU64,
    handles: AtomicI64,
}

pub struct Pins {
    /// A power of two of them.
    stripes: Box<[CachePadded<Stripe>]>,
    /// One less than there are stripes.
    mask: usize,
    /// Handles counted since closing, and those that closing has moved here; above a bias until it has.
    central: CachePadded<AtomicI64>,
    /// There once somebody has waited.
    waiters: WriteOnce<Arc<Waiters>>,
}

/// Where a recorded thing is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home(usize);

/// Whom a settlement has to wake, if it was the last one to leave: the threads were woken, the others are when this is dropped. A waker may
/// stop its thread for ever; who holds nothing by then keeps nothing.
pub struct Notice(Option<Arc<Waiters>>);

/// An admitted operation. Dropping it ends it.
#[must_use]
pub struct Operation<'a> {
    pins: &'a Pins,
    /// That of `home`, not to be looked up again: an allocation is some 2 % cheaper.
    stripe: &'a Stripe,
    home: Home,
}

impl Pins {
    /// `stripes` must be a power of two.
    pub fn new(stripes: usize) -> Self {
        assert!(stripes.is_power_of_two() && stripes <= MOST_STRIPES);
        let stripe = |_| CachePadded::new(Stripe { admission: AtomicU64::new(0), handles: AtomicI64::new(0) });
        Self {
            stripes: (0..stripes).map(stripe).collect(),
            mask: stripes - 1,
            central: CachePadded::new(AtomicI64::new(BIAS)),
            waiters: WriteOnce::new(),
        }
    }

    #[inline(always)]
    fn home(&self, lane: usize) -> Home {
        Home(lane & self.mask)
    }

    #[inline(always)]
    fn stripe(&self, home: Home) -> &Stripe {
        // SAFETY: whichever pins the home is of, the masked number is below the number of stripes: `new` says so, and neither changes.
        unsafe { self.stripes.get_unchecked(home.0 & self.mask) }
    }

    /// Begins an operation, on the stripe of `lane`.
    ///
    /// The caller has looked at the lifecycle word before, so that nobody is refused by one stripe and then admitted by another.
    #[inline]
    pub fn enter(&self, lane: usize) -> Result<Operation<'_>, Refused> {
        let home = self.home(lane);
        let stripe = self.stripe(home);
        // Acquire: who is refused sees the lifecycle word that was written before the flag. Pairs with the Release half in
        // `close_admission`. Which of the two came first is decided by the word itself.
        let before = stripe.admission.fetch_add(OPERATION, Acquire);
        if before & RETIRED != 0 || is_full(before) {
            return Err(self.undo_enter(stripe, before & RETIRED != 0));
        }
        Ok(Operation { pins: self, stripe, home })
    }

    /// Begins an operation on a stripe that has something recorded, retired or not, for what may be done to a retired resource as well.
    /// On a stripe that has no record none begins: once retired, it is given none any more, so a total that was read as zero
    /// stays zero. Operations in progress are no records: one on its way to a refusal is counted for a moment, too.
    pub fn enter_beside_records(&self) -> Result<Operation<'_>, Refused> {
        for (index, stripe) in self.stripes.iter().enumerate() {
            // Relaxed: flags, records and operations meet on this one word, and nothing else is read on account of what it says. What the
            // operation does is published by its end.
            let entered = stripe.admission.fetch_update(Relaxed, Relaxed, |word| {
                (word & RECORDED != 0 && word & LOST == 0 && !is_full(word)).then_some(word + OPERATION)
            });
            if entered.is_ok() {
                return Ok(Operation { pins: self, stripe, home: Home(index) });
            }
        }
        Err(Refused::Closed)
    }

    #[cold]
    fn undo_enter(&self, stripe: &Stripe, closed: bool) -> Refused {
        gate!(Refusing);
        // Relaxed: nothing was done in between.
        self.leave(stripe, OPERATION, Relaxed);
        if closed { Refused::Closed } else { Refused::Full }
    }

    /// Begins an operation on what stands in a queued total at `home`: refused by LOST alone.
    pub fn enter_release(&self, home: Home) -> Result<Operation<'_>, Refused> {
        let stripe = self.stripe(home);
        // Acquire: as in `enter`.
        let before = stripe.admission.fetch_add(OPERATION, Acquire);
        if before & LOST != 0 || Totals::of(before).operations as u64 >= OPERATION_LIMIT {
            return Err(self.undo_enter(stripe, before & LOST != 0));
        }
        Ok(Operation { pins: self, stripe, home })
    }

    /// Live → queued, at home. The caller has won the record's right to be released.
    #[inline]
    pub fn queue(&self, home: Home) -> Result<(), Refused> {
        // AcqRel: Acquire as in `enter`; Release, so that what was done before happens-before whatever finds it counted. Pairs with
        // `totals`.
        let before = self.stripe(home).admission.fetch_add(QUEUED.wrapping_sub(LIVE), AcqRel);
        if before & LOST != 0 || Totals::of(before).queued as u64 >= QUEUED_LIMIT {
            return Err(self.undo_queue(home, before));
        }
        Ok(())
    }

    #[cold]
    fn undo_queue(&self, home: Home, before: u64) -> Refused {
        // Relaxed: nothing was done in between.
        self.stripe(home).admission.fetch_sub(QUEUED.wrapping_sub(LIVE), Relaxed);
        if before & LOST != 0 { Refused::Closed } else { Refused::Full }
    }

    /// Queued → gone.
    #[inline]
    pub fn settle(&self, home: Home) -> Notice {
        // Release: the release of the thing happens-before whatever finds the total at zero. Pairs with `totals`.
        Notice(if self.take_away(self.stripe(home), QUEUED, Release) { self.notice(home) } else { None })
    }

    /// Takes away what is counted on a stripe of `self`, and wakes. The caller keeps `self`, and holds nothing else.
    #[inline(always)]
    fn leave(&self, stripe: &Stripe, counted: u64, order: Ordering) {
        if self.take_away(stripe, counted, order) {
            self.left(stripe);
        }
    }

    /// Takes away what is counted on a stripe of `self`. Whether that is closed.
    #[inline(always)]
    fn take_away(&self, stripe: &Stripe, counted: u64, order: Ordering) -> bool {
        let before = stripe.admission.fetch_sub(counted, order);
        // An open stripe's word is not below what is counted in it, and a closed one's is below zero. At an operation's end the
        // subtraction's own flags tell; at a settlement rustc 1.95 compares the old word with a constant.
        (before as i64) < counted as i64
    }

    /// A closed stripe was left.
    #[cold]
    fn left(&self, stripe: &Stripe) {
        if let Some(waiters) = self.waiting_behind(stripe) {
            waiters.notify();
        }
    }

    /// The same, by who still holds something.
    #[cold]
    fn notice(&self, home: Home) -> Option<Arc<Waiters>> {
        let waiters = self.waiting_behind(self.stripe(home))?;
        waiters.unpark();
        Some(Arc::clone(waiters))
    }

    /// Whom to wake after a closed stripe was left: whoever leaves it last finds it empty.
    fn waiting_behind(&self, stripe: &Stripe) -> Option<&Arc<Waiters>> {
        gate!(Left);
        // Relaxed: this word alone is asked, in which our own step came before.
        let last = Totals::of(stripe.admission.load(Relaxed)) == Totals::default();
        if last { self.waiting_if_idle() } else { None }
    }

    /// Whom to wake if `self` is idle by now. For who has closed admission.
    pub fn waiting_if_idle(&self) -> Option<&Arc<Waiters>> {
        self.waiting().filter(|_| self.is_idle())
    }

    /// Whom to wake after a change that waiters look at.
    pub fn waiting(&self) -> Option<&Arc<Waiters>> {
        // SeqCst: our step comes before our look at the others'. Pairs with its likes and with the fence of who goes to sleep: the last
        // of them sees what the others have done.
        fence(SeqCst);
        self.waiters.get()
    }

    /// Those who wait for `self` to be idle, or for another change that its owner tells.
    pub fn waiters(&self) -> &Arc<Waiters> {
        match self.waiters.get() {
            Some(waiters) => waiters,
            None => self.waiters.set(Arc::new(Waiters::new())),
        }
    }

    /// Whether nothing is counted. Once admission is closed that is for ever, but for calls that are on their way to a refusal.
    pub fn is_idle(&self) -> bool {
        self.totals() == Totals::default()
    }

    /// Sets the flag on every stripe. Whoever decides on the lifecycle word calls this first, whoever changed the word.
    pub fn close_admission(&self, close: Close) {
        let flag = close.flag();
        for stripe in &self.stripes {
            // Acquire: pairs with the Release in `Operation`'s end: an idle stripe's operations happen-before us.
            if stripe.admission.load(Acquire) & flag != flag {
                // AcqRel: Release publishes the lifecycle word to who is refused; Acquire as above.
                stripe.admission.fetch_or(flag, AcqRel);
            }
        }
    }

    /// The sum over all stripes. Each recorded thing that stands during the whole call is counted exactly once. Once admission
    /// is closed, a sum of zero stays zero, but for calls that are on their way to a refusal.
    pub fn totals(&self) -> Totals {
        self.stripes.iter().fold(Totals::default(), |sum, stripe| {
            // Acquire: pairs with the Release of each step that lowers a count.
            let here = Totals::of(stripe.admission.load(Acquire));
            Totals { operations: sum.operations + here.operations, live: sum.live + here.live, queued: sum.queued + here.queued }
        })
    }

    /// Counts a handle, unless handles are closed.
    #[inline]
    pub fn acquire(&self, lane: usize) -> Result<(), Closed> {
        // Relaxed: `close_handles` changes this same word, so one of the two comes first. Either we are in the count that it
        // moves, or CLOSED comes back, and what we added to a dead word means nothing.
        let before = self.stripe(self.home(lane)).handles.fetch_add(HANDLE, Relaxed);
        if before & CLOSED == 0 { Ok(()) } else { Err(refused()) }
    }

    /// Counts a handle beside one that the caller holds.
    #[inline]
    pub fn derive(&self, lane: usize) {
        self.derive_at(self.home(lane));
    }

    /// The same on the stripe of an operation or a record.
    #[inline]
    pub fn derive_at(&self, home: Home) {
        // Relaxed: the caller's own handle keeps the resources, whatever order others see.
        let before = self.stripe(home).handles.fetch_add(HANDLE, Relaxed);
        if before & CLOSED != 0 {
            self.derive_closed();
        } else if before > HANDLE_LIMIT {
            overflow();
        }
    }

    #[cold]
    fn derive_closed(&self) {
        // Relaxed: as in `derive`; the caller's own handle is in this word, or about to be moved here.
        let before = self.central.fetch_add(1, Relaxed);
        // Below the bias the word counts up from zero, so it can't pass this window unseen; around the bias it stays near.
        if (BIAS / 4..BIAS / 2).contains(&before) || before > BIAS + BIAS / 2 {
            overflow();
        }
    }

    /// Lets a handle go. The caller does not touch `self` afterwards, unless it is told `Last`.
    ///
    /// # Safety
    ///
    /// `this` is valid, and the caller's handle is counted in it.
    #[inline]
    pub unsafe fn release(this: *const Self, lane: usize) -> Left {
        // SAFETY: the caller's handle keeps `*this` until the subtraction below, and, if CLOSED came back, until the
        // second one, since closing has counted it into the central word.
        let pins = unsafe { &*this };
        // Release: our use of the resources happens-before the teardown. Pairs with the Acquire half in `close_handles`.
        let before = pins.stripe(pins.home(lane)).handles.fetch_sub(HANDLE, Release);
        if before & CLOSED == 0 { Left::Held } else { release_closed(&pins.central) }
    }

    /// How many handles there are, for observers: stripe by stripe, so exact only while none comes or goes. Zero while they are being
    /// closed.
    pub fn handles(&self) -> usize {
        let counts = self.stripes.iter().map(|stripe| {
            // Relaxed: a sum that orders nothing.
            let word = stripe.handles.load(Relaxed);
            (word & CLOSED == 0).then_some(word >> 1)
        });
        // Relaxed: as above. Above the bias until the sum is in.
        let central = || Some(self.central.load(Relaxed)).filter(|count| *count < BIAS / 2);
        // Handles that moved from a stripe not read yet to one that was can bring the sum below zero.
        counts.sum::<Option<i64>>().or_else(central).and_then(|sum| usize::try_from(sum).ok()).unwrap_or(0)
    }

    /// Whether handles are being closed, or have been.
    pub fn is_closed(&self) -> bool {
        // Acquire: who sees it sees what came before the closing. Pairs with the Release half in `close_handles`, which begins here.
        self.stripes.first().is_some_and(|stripe| stripe.handles.load(Acquire) & CLOSED != 0)
    }

    /// Refuses new handles. Called once.
    pub fn close_handles(&self) -> Left {
        let held: i64 = self
            .stripes
            .iter()
            .map(|stripe| {
                // AcqRel: Acquire pairs with the Release in `release`; Release hands that on to who is told `Last`.
                let before = stripe.handles.fetch_or(CLOSED, AcqRel);
                debug_assert_eq!(before & CLOSED, 0, "closed twice");
                before >> 1
            })
            .sum();
        // AcqRel: as in `release_closed`.
        if self.central.fetch_add(held - BIAS, AcqRel) == BIAS - held { Left::Last } else { Left::Held }
    }
}

impl Drop for Notice {
    #[inline]
    fn drop(&mut self) {
        if let Some(waiters) = &self.0 {
            waiters.notify();
        }
    }
}

/// Whether the counts that an operation may raise have reached their limits.
#[inline(always)]
const fn is_full(word: u64) -> bool {
    let totals = Totals::of(word);
    totals.operations as u64 >= OPERATION_LIMIT || totals.live as u64 >= LIVE_LIMIT
}

/// Takes the central word alone: unless this was the last handle, the rest may go while it runs.
#[cold]
fn release_closed(central: &AtomicI64) -> Left {
    // AcqRel: Release as in `Pins::release`; Acquire so that who is told `Last` has every other use behind it.
    if central.fetch_sub(1, AcqRel) == 1 { Left::Last } else { Left::Held }
}

#[cold]
fn refused() -> Closed {
    // Acquire: who is refused sees what came before the closing, and on looking again does not find the same thing open. Pairs
    // with the Release half in `close_handles`.
    fence(Acquire);
    Closed
}

#[cold]
fn overflow() -> ! {
    std::process::abort()
}

impl Operation<'_> {
    /// Where it began, and where it ends.
    #[inline]
    pub fn home(&self) -> Home {
        self.home
    }

    /// Ends the operation by recording what it made, at its home: operation → live, in one step.
    #[inline]
    pub fn record(self) {
        // Release: what was made happens-before whatever finds it counted. Pairs with `totals`.
        self.stripe.admission.fetch_add(LIVE.wrapping_sub(OPERATION), Release);
        std::mem::forget(self);
    }

    /// Ends the operation with what stood in the queued total at its home: both are gone in one step.
    pub fn settle(self) {
        // Release: as in `Pins::settle`.
        let Self { pins, stripe, .. } = *ManuallyDrop::new(self);
        pins.leave(stripe, OPERATION + QUEUED, Release);
    }
}

impl Drop for Operation<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: the operation happens-before whatever finds the stripe idle. Pairs with `totals`.
        self.pins.leave(self.stripe, OPERATION, Release);
    }
}

impl fmt::Debug for Operation<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Operation").field(&self.home).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R6: a full counter refuses, and leaves nothing behind.
    #[test]
    fn a_full_stripe_refuses_and_counts_nothing() {
        let pins = Pins::new(1);
        let operations: Vec<_> = (0..OPERATION_LIMIT).map(|_| pins.enter(0).unwrap()).collect();
        assert_eq!(pins.enter(0).unwrap_err(), Refused::Full);
        assert_eq!(pins.totals().operations, OPERATION_LIMIT as usize);
        drop(operations);
        assert_eq!(pins.totals(), Totals::default());

        pins.stripes[0].admission.store(LIVE * LIVE_LIMIT, Relaxed);
        assert_eq!(pins.enter(0).unwrap_err(), Refused::Full);
        pins.stripes[0].admission.store(LIVE + QUEUED * QUEUED_LIMIT, Relaxed);
        assert_eq!(pins.queue(Home(0)), Err(Refused::Full));
        assert_eq!(pins.totals(), Totals { operations: 0, live: 1, queued: QUEUED_LIMIT as usize });
    }

    /// The fields neither overlap nor reach the flags at their limits.
    #[test]
    fn fields_are_apart() {
        let word = LOST | RETIRED | (LIVE * 0x3ff_ffff) | (QUEUED * 0x3f_ffff) | (OPERATION * 0x3fff);
        assert_eq!(word, u64::MAX);
        assert_eq!(Totals::of(word), Totals { operations: 0x3fff, live: 0x3ff_ffff, queued: 0x3f_ffff });
        assert_eq!(Totals::of(LOST | RETIRED), Totals::default());
    }

    /// C061, I8: lanes that are no more than the stripes write nothing in common: each has a stripe, and each stripe lines of its own.
    #[test]
    fn lanes_below_the_stripes_share_no_line() {
        const LANES: usize = 8;
        let pins = Pins::new(LANES);
        for lane in 0..LANES {
            pins.acquire(lane).unwrap();
            let operation = pins.enter(lane).unwrap();
            operation.record();
        }
        let written = pins.stripes.iter().map(|stripe| (stripe.admission.load(Relaxed), stripe.handles.load(Relaxed)));
        assert_eq!(written.collect::<Vec<_>>(), [(LIVE, HANDLE); LANES]);
        assert_eq!(pins.central.load(Relaxed), BIAS);
        let line = align_of::<CachePadded<()>>();
        assert!(pins.stripes.iter().all(|stripe| std::ptr::from_ref(stripe).addr() % line == 0 && size_of_val(stripe) >= line));
        assert!(line > size_of::<Stripe>(), "padded");
    }
}
