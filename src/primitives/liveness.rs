//! A lifecycle that only moves towards its end, in one word; and the reason of a loss, written before the word.
//!
//! ```text
//! Active ──▶ Retired ──▶ DeviceLost ──▶ Terminated         REMOVED: a mark beside the phase, set once
//!    └────────────────────▶┘
//! ```
//!
//! Each transition is one compare-and-swap on the word, so of racing transitions each has one winner. Nothing leads back
//! to Active: "names a dead candidate" can be acted upon whenever it is seen.
//!
//! The word is a promise; what proves that a promise about *operations* holds are the flags on the stripes of
//! [`pins`](super::pins). Who wins a transition may be stopped before it has set them. Therefore everybody who finds
//! the word past Active, and returns or decides on it, sets the flags itself.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`Liveness::is_live`], [`Lifecycle::life`] | wait-free | one load |
//! | [`Liveness::retire`], [`Lifecycle::lose`], [`Lifecycle::terminate`] | wait-free: at most three retries | one compare-and-swap |
//! | [`Lifecycle::mark_removed`] | wait-free | one read-modify-write |

use super::once::WriteOnce;
use crate::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::*},
};
use std::fmt;

const PHASE: u32 = 0b011;
const REMOVED: u32 = 0b100;

/// Where a mechanism is in its life.
///
/// The only steps are Active → Retired, Active → DeviceLost, Retired → DeviceLost and DeviceLost → Terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum MechanismLifecycle {
    /// Can be selected and bound, and allocates.
    Active,
    /// Takes back what it gave out, and nothing else.
    Retired,
    /// Its device is gone: nothing reaches its allocator any more.
    DeviceLost,
    /// The provider has confirmed that its context is gone: what it still owned is written off.
    Terminated,
}

impl MechanismLifecycle {
    const fn bits(self) -> u32 {
        match self {
            Self::Active => 0,
            Self::Retired => 1,
            Self::DeviceLost => 2,
            Self::Terminated => 3,
        }
    }

    const fn from_bits(bits: u32) -> Self {
        match bits & PHASE {
            0 => Self::Active,
            1 => Self::Retired,
            2 => Self::DeviceLost,
            _ => Self::Terminated,
        }
    }
}

/// A copy of the word, decoded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Life(u32);

impl Life {
    pub const fn phase(self) -> MechanismLifecycle {
        MechanismLifecycle::from_bits(self.0)
    }

    pub const fn is_active(self) -> bool {
        self.0 == 0
    }

    pub const fn is_removed(self) -> bool {
        self.0 & REMOVED != 0
    }

    const fn at(self, phase: MechanismLifecycle) -> Self {
        Self(self.0 & !PHASE | phase.bits())
    }
}

impl fmt::Debug for Life {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}{}", self.phase(), if self.is_removed() { " removed" } else { "" })
    }
}

/// Whether a call made the step, or found it made.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    First,
    Already,
}

/// The word that says whether a candidate may be selected. It only dies.
///
/// ```
/// let liveness = liveslot::Liveness::new();
/// assert!(liveness.is_live());
/// liveness.retire();
/// assert!(!liveness.is_live());
/// ```
pub struct Liveness(AtomicU32);

impl Liveness {
    /// A live one.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU32::new(MechanismLifecycle::Active.bits()))
    }

    /// Whether it is still live.
    ///
    /// # Progress
    ///
    /// Wait-free: one load.
    #[inline]
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.life().is_active()
    }

    /// Ends it, if it had not ended before. Call [`SelectionSlot::sweep`](super::SelectionSlot::sweep) afterwards on every slot that
    /// may name the candidate.
    ///
    /// # Progress
    ///
    /// Wait-free: one compare-and-swap.
    pub fn retire(&self) {
        let _ = self.step(MechanismLifecycle::Retired);
    }

    #[inline]
    fn life(&self) -> Life {
        // Acquire: pairs with the Release half of each transition: who sees a phase sees what was written before it, the
        // reason of a loss above all.
        Life(self.0.load(Acquire))
    }

    /// Moves to `phase` from whatever leads there in one step.
    fn step(&self, phase: MechanismLifecycle) -> Step {
        use MechanismLifecycle::*;
        let leads = |from: MechanismLifecycle| match phase {
            Active => false,
            Retired => from == Active,
            DeviceLost => matches!(from, Active | Retired),
            Terminated => from == DeviceLost,
        };
        // AcqRel: Release publishes what the winner did before (the reason); Acquire lets the next step build on the
        // one before it. Acquire on failure: who finds the step made acts on it. Pairs with `life` and with itself.
        let moved = self.0.fetch_update(AcqRel, Acquire, |word| {
            let life = Life(word);
            leads(life.phase()).then(|| life.at(phase).0)
        });
        if moved.is_ok() { Step::First } else { Step::Already }
    }
}

impl Default for Liveness {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Liveness {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Liveness").field(&self.life()).finish()
    }
}

/// A [`Liveness`] whose device can be lost, with the reason.
#[derive(Debug)]
pub struct Lifecycle {
    /// What a slot looks at.
    pub liveness: Liveness,
    reason: Reason,
}

/// Written once, before the word says DeviceLost.
struct Reason(WriteOnce<Arc<str>>);

impl fmt::Debug for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.get().fmt(formatter)
    }
}

impl Lifecycle {
    pub fn new() -> Self {
        Self { liveness: Liveness::new(), reason: Reason(WriteOnce::new()) }
    }

    #[inline]
    pub fn life(&self) -> Life {
        self.liveness.life()
    }

    /// Active → Retired.
    pub fn retire(&self) -> Step {
        self.liveness.step(MechanismLifecycle::Retired)
    }

    /// DeviceLost → Terminated.
    pub fn terminate(&self) -> Step {
        self.liveness.step(MechanismLifecycle::Terminated)
    }

    /// Sets the removed mark. The phase must be past Active. One caller is told `First`, and owes the removal.
    pub fn mark_removed(&self) -> Step {
        // AcqRel: the winner removes on behalf of everybody who acted before; losers see that it won.
        let before = Life(self.liveness.0.fetch_or(REMOVED, AcqRel));
        debug_assert_ne!(before.phase(), MechanismLifecycle::Active, "removed while active");
        if before.is_removed() { Step::Already } else { Step::First }
    }

    /// Active or Retired → DeviceLost. The first reason stays.
    pub fn lose(&self, reason: &Arc<str>) -> Step {
        if matches!(self.liveness.life().phase(), MechanismLifecycle::DeviceLost | MechanismLifecycle::Terminated) {
            return Step::Already;
        }
        self.reason.0.set(Arc::clone(reason));
        self.liveness.step(MechanismLifecycle::DeviceLost)
    }

    /// Why the device was lost. There once the word has been seen at DeviceLost.
    pub fn loss_reason(&self) -> Option<&Arc<str>> {
        self.reason.0.get()
    }
}
