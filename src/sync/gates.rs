//! Hooks at the named steps of the protocols, for deterministic tests. Exists under `liveslot_gates` only.
//!
//! A test arms a step on the thread that will reach it; the closure then runs there, once, in the middle of the
//! protocol. It may do the racing calls itself, or wait for another thread that does.

use std::cell::{Cell, RefCell};

/// The steps at which a test may interleave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// `select` and registration: the undecided record stands in the slot.
    Published,
    /// Completion: the candidate's word has been read, the verdict is not written.
    Judged,
    /// Taking out a failed record: the prior has been read, the slot is unchanged.
    PriorRead,
    /// Taking out a failed record: the prior stands in the slot again, and has not been looked at again.
    Restored,
    /// Registration: the entry is in the table, the slot has not been looked at.
    Registered,
    /// Retirement: the word is terminal, stripes and slot are unchanged.
    Retired,
    /// Invalidation: a mechanism is listed, its word is unchanged.
    Listed,
    /// Invalidation: the word says DeviceLost, the stripes are unchanged.
    Lost,
    /// Invalidation: a pass over the device's mechanisms has ended.
    Marked,
    /// Removal: the mechanism was found to own nothing, the mark is not set.
    Removing,
    /// Removal: the mark is set, the table and the slot are unchanged.
    RemovalMarked,
    /// Removal: the registry was found open or closed, the table is unchanged.
    Unlinking,
    /// Binding: a committed record has been read, its candidate has not been looked at.
    Loaded,
    /// Binding: a live candidate has been found, its handle is not counted.
    Found,
    /// Beginning an operation: the word said Active, the stripe is unchanged.
    Admitting,
    /// Preparing a release: the record was found live, the home stripe is unchanged.
    Releasing,
    /// Enqueueing: the request has a place, where nobody can find it yet.
    Enqueueing,
    /// Taking a request out of a queue: nobody finds it any more, its place is not free.
    Dequeueing,
    /// Trimming: it is a mechanism's turn, which has not been looked at.
    Trimming,
    /// Reporting: a device's mechanisms are copied, its selection is not read.
    Reporting,
    /// Closing a queue: nobody enters any more, nothing has been taken out.
    Closing,
    /// Shutting down: the authorities that nobody uses are destroyed, the contexts have not been removed.
    AuthoritiesRemoved,
    /// The epoch: about to be pinned.
    Pinning,
    /// A refusal: the operation that was refused is still counted.
    Refusing,
    /// The last leaver of a closed stripe: its count is down, it has not looked at the others, nor who waits.
    Left,
    /// Removal of what has drained: it was found so, the removal has not looked.
    Drained,
    /// Removal of what has drained: it was refused, and looks next whether that is over.
    RemovalRefused,
    /// A watch's look: the selection is read, the share of the registry that kept it is not let go.
    Looked,
    /// Waiting with a thread: it stands among the waiters, and parks next.
    Parking,
}

type Armed = (Step, Box<dyn FnOnce()>);

thread_local! {
    static ARMED: RefCell<Vec<Armed>> = const { RefCell::new(Vec::new()) };
    static IDENTITIES: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs `action` when this thread next reaches `step`. Several actions at one step run in the order of arming, one each time.
pub fn arm(step: Step, action: impl FnOnce() + 'static) {
    ARMED.with_borrow_mut(|armed| armed.push((step, Box::new(action))));
}

/// How many armed actions of this thread have not run.
pub fn pending() -> usize {
    ARMED.with_borrow(Vec::len)
}

/// Lets this thread issue `left` more identities, then none; `None` lifts the limit.
pub fn limit_identities(left: Option<u64>) {
    IDENTITIES.set(left);
}

pub fn reached(step: Step) {
    let action = ARMED.with_borrow_mut(|armed| {
        let at = armed.iter().position(|(armed, _)| *armed == step)?;
        Some(armed.remove(at).1)
    });
    if let Some(action) = action {
        action();
    }
}

/// Whether this thread may issue another identity.
pub fn identity_allowed() -> bool {
    match IDENTITIES.get() {
        None => true,
        Some(0) => false,
        Some(left) => {
            IDENTITIES.set(Some(left - 1));
            true
        }
    }
}
