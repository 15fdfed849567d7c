//! Who may enter a queue: as many as there is room for, until it ends.
//!
//! `entered` counts those who ever entered, with the end in its low bits; `left` counts those who ever left. The difference is who is
//! inside. Entering is one compare-and-swap of `entered`: it fails if anybody entered, or the queue ended, since the word was read;
//! and it is tried only if, by a look at `left` that came later than the look at `entered`, there was room. So no more than the
//! capacity are ever inside, and whoever is refused was refused by a state that the queue was in during the call. The count is the
//! ticket of who enters: no two have the same, and the older is the smaller.
//!
//! Whoever enters becomes visible to others later, by another word. [`Door::shut`] and [`Door::shown`] have a fence on either side:
//! of one who shuts and looks around, and one who shows something and looks at the door, at least one sees the other.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`Door::enter`] | lock-free | one RMW, two loads |
//! | [`Door::shown`] | wait-free | one fence, one load |
//! | [`Door::leave`] | wait-free | one RMW |
//! | [`Door::shut`] | wait-free | one RMW, one fence |

use crate::{
    contract::DeferredEnqueueRejection,
    primitives::places::Ticket,
    sync::atomic::{AtomicU64, Ordering::*, fence},
};
use crossbeam_utils::CachePadded;

const CLOSED: u64 = 0b01;
const LOST: u64 = 0b10;
/// In `entered`, one who entered.
const ONE: u64 = 0b100;

pub(super) struct Door {
    capacity: usize,
    /// Changed by who enters and who shuts.
    entered: CachePadded<AtomicU64>,
    /// Changed by who leaves.
    left: CachePadded<AtomicU64>,
}

/// Why nobody enters any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Closed,
    /// Wins over the other.
    DeviceLost,
}

impl End {
    const fn of(entered: u64) -> Option<Self> {
        match entered & (CLOSED | LOST) {
            0 => None,
            CLOSED => Some(Self::Closed),
            _ => Some(Self::DeviceLost),
        }
    }

    const fn flag(self) -> u64 {
        match self {
            Self::Closed => CLOSED,
            Self::DeviceLost => LOST,
        }
    }

    pub(super) const fn rejection(self) -> DeferredEnqueueRejection {
        match self {
            Self::Closed => DeferredEnqueueRejection::Closed,
            Self::DeviceLost => DeferredEnqueueRejection::DeviceLost,
        }
    }
}

impl Door {
    pub(super) fn new(capacity: usize) -> Self {
        let [entered, left] = [0, 0].map(|count| CachePadded::new(AtomicU64::new(count)));
        Self { capacity, entered, left }
    }

    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Counts the caller as inside, who must [`leave`](Self::leave).
    pub(super) fn enter(&self) -> Result<Ticket, DeferredEnqueueRejection> {
        // Acquire, here and on failure: `left` is read later, and is not older than what those who entered had read. Pairs with the
        // Release half of the exchange.
        let mut entered = self.entered.load(Acquire);
        loop {
            if let Some(end) = End::of(entered) {
                return Err(end.rejection());
            }
            // Acquire: the room that somebody left is found. Pairs with `leave`.
            let inside = (entered / ONE).saturating_sub(self.left.load(Acquire));
            if inside >= self.capacity as u64 {
                return Err(DeferredEnqueueRejection::Full);
            }
            // AcqRel: see the load above.
            match self.entered.compare_exchange(entered, entered + ONE, AcqRel, Acquire) {
                Ok(_) => return Ok(Ticket::new(entered / ONE)),
                Err(newer) => entered = newer,
            }
        }
    }

    /// Makes room. The caller's place is free.
    pub(super) fn leave(&self) {
        // Release: the place is free before there is room. Pairs with `enter`.
        self.left.fetch_add(1, Release);
    }

    /// How many are inside. More than were there at any one moment if others come and go meanwhile, never less than the least.
    pub(super) fn inside(&self) -> usize {
        // Acquire: those who left had entered, and are counted as such below.
        let left = self.left.load(Acquire);
        // Relaxed: a count for observers.
        let inside = (self.entered.load(Relaxed) / ONE).saturating_sub(left);
        inside.min(self.capacity as u64) as usize
    }

    /// Nobody enters from now on. Whoever entered before, and is not visible to what the caller does next, will see it in
    /// [`shown`](Self::shown).
    pub(super) fn shut(&self, end: End) {
        // Relaxed: the fence orders it.
        self.entered.fetch_or(end.flag(), Relaxed);
        // SeqCst: between the end and the looking around. Pairs with `shown`.
        fence(SeqCst);
    }

    /// Whether the queue has ended, for who has just made something visible and may have been overlooked at the end.
    pub(super) fn shown(&self) -> Option<End> {
        // SeqCst: between the showing and this look. Pairs with `shut`.
        fence(SeqCst);
        self.end()
    }

    pub(super) fn end(&self) -> Option<End> {
        // Relaxed: nothing is read on the strength of it.
        End::of(self.entered.load(Relaxed))
    }
}
