//! The control thread: it selects, registers, retires, removes, loses the device and recovers, and it checks every
//! answer. Being the only one who does these things, it knows exactly what each call must answer.
//!
//! ```text
//!            register            retire             remove
//!   (new) ─────────────▶ live ─────────────▶ retired ─────────────▶ settling ──▶ accounted for
//!                          │                    │                      ▲
//!                          └───── lose ─────────┴──▶ lost ─────────────┘
//!                                                     confirm, remove
//! ```
//!
//! A mechanism is *settling* from its removal until the last binding or allocation of some worker has let go of it
//! and its destructors have run.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use liveslot::{
    BindingError, BindingRegistry, MechanismIdentity, MechanismLifecycle, MemoryBinding, RegisteredAuthority, RegisteredMechanism,
    RegisteredProviderContext,
};

use crate::allocators::{Authority, Context, Fate, Kind, Life};
use crate::audit::{Audit, Findings};
use crate::report::{Latency, Tally};
use crate::rng::Rng;
use crate::shared::{Log, News, Shared};
use crate::worker::ledger_capacity;

/// Mechanisms registered and Active at once, at most.
const LIVE: usize = 4;

/// Selections in one step, at most.
const SELECTS: usize = 8;

/// Retired mechanisms that wait for their last release, at most.
const RETIRED: usize = 16;

/// What the control thread did and saw.
pub(crate) struct ControlStats {
    pub(crate) registrations: u64,
    pub(crate) selects: u64,
    pub(crate) retirements: u64,
    pub(crate) removals: u64,
    pub(crate) losses: u64,
    pub(crate) terminations: u64,
    pub(crate) bound_to_dead: u64,
    pub(crate) tally: Tally,
    pub(crate) select_ns: Latency,
    /// Blocks obtained from each kind of memory.
    pub(crate) obtained: [u64; Kind::ALL.len()],
    /// Blocks that nobody could release, given back by the allocators' destructors.
    pub(crate) reclaimed: u64,
    /// Blocks that were neither released nor reported to be given up.
    pub(crate) kept: u64,
    pub(crate) order_violations: u64,
    pub(crate) audit: Findings,
}

impl ControlStats {
    fn new() -> Self {
        Self {
            registrations: 0,
            selects: 0,
            retirements: 0,
            removals: 0,
            losses: 0,
            terminations: 0,
            bound_to_dead: 0,
            tally: Tally::default(),
            select_ns: Latency::new(),
            obtained: [0; Kind::ALL.len()],
            reclaimed: 0,
            kept: 0,
            order_violations: 0,
            audit: Findings::default(),
        }
    }

    /// Adds up what a mechanism reports at its end.
    fn account(&mut self, life: &Life) {
        let account = life.account();
        self.obtained[life.kind as usize] += account.obtained;
        self.reclaimed += account.reclaimed;
        self.kept += account.kept;
        self.order_violations += account.order_violations;
        for _ in 0..account.refused_releases {
            self.tally.unexpected("allocator", "release of what is not live", "a second one, or of another size");
        }
        for _ in 0..account.released_after_refusal {
            self.tally.unexpected("release", "refused, yet carried out", "on a lost device");
        }
    }
}

struct Mechanism {
    token: RegisteredMechanism,
    context: RegisteredProviderContext,
    authority: RegisteredAuthority,
    life: Arc<Life>,
}

pub(crate) struct Control {
    shared: Arc<Shared>,
    registry: BindingRegistry,
    log: Log,
    rng: Rng,
    swap_every: Duration,
    workers: usize,
    selected: Option<MechanismIdentity>,
    live: Vec<Mechanism>,
    retired: Vec<Mechanism>,
    lost: Vec<Mechanism>,
    settling: Vec<Arc<Life>>,
    audit: Audit,
    stats: ControlStats,
}

impl Control {
    pub(crate) fn new(shared: Arc<Shared>, registry: BindingRegistry, rng: Rng, swap_every: Duration) -> Self {
        shared.windows.vacancy.open();
        Self {
            workers: shared.operations.len(),
            audit: Audit::new(shared.budget.clone()),
            shared,
            registry,
            log: Log::new(),
            rng,
            swap_every,
            selected: None,
            live: Vec::new(),
            retired: Vec::new(),
            lost: Vec::new(),
            settling: Vec::new(),
            stats: ControlStats::new(),
        }
    }

    /// A reader of all births and deaths; to be asked for before [`start`](Self::start).
    pub(crate) fn news(&self) -> News {
        self.log.reader()
    }

    /// Registers one mechanism of each kind; the first one is selected by that.
    pub(crate) fn start(&mut self) {
        for kind in Kind::ALL {
            self.register(kind);
        }
    }

    /// Works until the run stops. Between two steps a selection stands.
    pub(crate) fn run(&mut self) {
        while !self.shared.stopping() {
            self.step();
            if self.swap_every.is_zero() {
                thread::yield_now();
            } else {
                // Ends early when the run stops.
                thread::park_timeout(self.swap_every);
            }
        }
    }

    fn step(&mut self) {
        match self.rng.below(32) {
            0 => self.lose_the_device(),
            1..=4 if self.retired.len() < RETIRED && !self.live.is_empty() => {
                let victim = self.rng.below(self.live.len());
                self.retire(victim);
                self.restore();
            }
            5..=8 if self.live.len() < LIVE => self.register(self.scarcer_kind()),
            _ => {}
        }
        thread::yield_now();
        for _ in 0..=self.rng.below(SELECTS) {
            self.select_another();
        }
        thread::yield_now();
        self.terminate_lost();
        self.remove_retired();
        self.settle();
        self.audit.look(0);
        self.publish();
    }

    fn scarcer_kind(&self) -> Kind {
        let count = |kind| self.live.iter().filter(|mechanism| mechanism.life.kind == kind).count();
        Kind::ALL.into_iter().min_by_key(|kind| count(*kind)).expect("there are kinds")
    }

    /// Registers a new mechanism with a context and an authority of its own. It becomes the selection if there is
    /// none.
    fn register(&mut self, kind: Kind) {
        let device = self.shared.device;
        let life = Life::new(kind, self.workers);
        let registered = (|| {
            let context = self.registry.register_provider_context(device, Arc::new(Context(life.clone())))?;
            let authority = Authority { life: life.clone(), budget: self.shared.budget.clone() };
            let allocator = kind.allocator(device, life.clone(), authority.budget.clone(), ledger_capacity(self.workers));
            let authority = self.registry.register_authority(device, Arc::new(authority))?;
            let token = self.registry.register_allocator(context, authority, allocator)?;
            Ok(Mechanism { token, context, authority, life: life.clone() })
        })();
        match registered {
            Ok(mechanism) => {
                self.stats.registrations += 1;
                let identity = mechanism.token.identity();
                self.log.born(identity, mechanism.life.clone());
                self.live.push(mechanism);
                if self.selected.is_none() {
                    self.occupied_by(identity);
                }
                self.expect_selection("register");
            }
            Err(error) => self.stats.tally.wrong("register", &error),
        }
    }

    /// Mostly another one; the selected one again at times.
    fn select_another(&mut self) {
        let again = self.rng.one_in(16);
        let others = |mechanism: &&Mechanism| again || Some(mechanism.token.identity()) != self.selected;
        let choices: Vec<_> = self.live.iter().filter(others).map(|mechanism| mechanism.token).collect();
        if !choices.is_empty() {
            let choice = choices[self.rng.below(choices.len())];
            self.select(choice);
        }
    }

    fn select(&mut self, token: RegisteredMechanism) {
        let windows = &self.shared.windows;
        windows.select.open();
        let start = Instant::now();
        let answer = self.registry.select(token);
        let elapsed = start.elapsed();
        windows.select.close();
        match answer {
            Ok(()) => {
                self.stats.select_ns.record(elapsed);
                self.stats.selects += 1;
                self.occupied_by(token.identity());
            }
            Err(error) => self.stats.tally.wrong("select", &error),
        }
        self.expect_selection("select");
    }

    /// To be called before the call that takes the selection away.
    fn vacate(&mut self) {
        if self.selected.take().is_some() {
            self.shared.windows.vacancy.open();
        }
    }

    /// To be called after the call that made `mechanism` the selection.
    fn occupied_by(&mut self, mechanism: MechanismIdentity) {
        if self.selected.replace(mechanism).is_none() {
            self.shared.windows.vacancy.close();
        }
    }

    /// Gives the device a selection again, if it has none.
    fn restore(&mut self) {
        if self.selected.is_some() {
            return;
        }
        if self.live.is_empty() {
            self.register(self.scarcer_kind());
        } else {
            let choice = self.rng.below(self.live.len());
            self.select(self.live[choice].token);
        }
    }

    fn retire(&mut self, victim: usize) {
        let mechanism = self.live.swap_remove(victim);
        let identity = mechanism.token.identity();
        mechanism.life.decide(Fate::Retired);
        if self.selected == Some(identity) {
            self.vacate();
        }
        match self.registry.retire(mechanism.token) {
            Ok(()) => self.stats.retirements += 1,
            Err(error) => self.stats.tally.wrong("retire", &error),
        }
        self.log.died(identity);
        self.expect_selection("retire");
        self.expect_refusal("bind_registered after retire", self.registry.bind_registered(mechanism.token), |error| {
            matches!(error, BindingError::InactiveMechanism { mechanism, lifecycle: MechanismLifecycle::Retired, .. }
                if *mechanism == identity)
        });
        self.retired.push(mechanism);
    }

    /// Loses the device with everything on it, and registers anew.
    fn lose_the_device(&mut self) {
        let device = self.shared.device;
        let reason: Arc<str> = format!("declared lost, number {}", self.stats.losses + 1).into();
        let first_lost = self.lost.len();
        self.lost.append(&mut self.live);
        let first_retired = self.lost.len();
        self.lost.append(&mut self.retired);
        for mechanism in &self.lost[first_lost..] {
            mechanism.life.decide(Fate::Lost);
        }

        self.vacate();
        self.shared.windows.loss.open();
        let answer = self.registry.invalidate_device(device, reason.clone());
        self.shared.windows.loss.close();
        match answer {
            Ok(()) => self.stats.losses += 1,
            Err(error) => self.stats.tally.wrong("invalidate_device", &error),
        }

        // The retired ones are reported dead already.
        for mechanism in &self.lost[first_lost..first_retired] {
            self.log.died(mechanism.token.identity());
        }
        self.expect_selection("invalidate_device");
        for index in first_lost..self.lost.len() {
            let answer = self.registry.bind_registered(self.lost[index].token);
            self.expect_refusal("bind_registered after a loss", answer, |error| {
                matches!(error, BindingError::DeviceLost { device: lost, reason: given }
                    if *lost == device && *given == reason)
            });
        }

        for kind in Kind::ALL {
            self.register(kind);
        }
    }

    /// Confirms termination where no operation is left, and removes what is terminated.
    fn terminate_lost(&mut self) {
        for mechanism in std::mem::take(&mut self.lost) {
            mechanism.life.decide(Fate::Terminated);
            match self.registry.confirm_context_terminated(mechanism.context) {
                Ok(()) => {
                    self.stats.terminations += 1;
                    self.expect_nothing_owned(&mechanism);
                    if let Some(refused) = self.remove(mechanism, MechanismLifecycle::Terminated) {
                        self.lost.push(refused);
                    }
                }
                Err(error) => {
                    match error {
                        BindingError::ContextNotQuiescent { context, active_operations }
                            if context == mechanism.context.identity() && active_operations > 0 =>
                        {
                            self.stats.tally.expected(&error);
                        }
                        _ => self.stats.tally.wrong("confirm_context_terminated", &error),
                    }
                    self.lost.push(mechanism);
                }
            }
        }
    }

    fn remove_retired(&mut self) {
        for mechanism in std::mem::take(&mut self.retired) {
            if let Some(refused) = self.remove(mechanism, MechanismLifecycle::Retired) {
                self.retired.push(refused);
            }
        }
    }

    /// Removes mechanism, authority and context. A mechanism that is still in use comes back.
    fn remove(&mut self, mechanism: Mechanism, lifecycle: MechanismLifecycle) -> Option<Mechanism> {
        let identity = mechanism.token.identity();
        if let Err(error) = self.registry.remove(mechanism.token) {
            match error {
                BindingError::InactiveMechanism { mechanism: named, lifecycle: found, .. } if named == identity && found == lifecycle => {
                    self.stats.tally.expected(&error);
                }
                // Only a loss ends that.
                BindingError::QuarantinedOwnership { mechanism: named, quarantined }
                    if named == identity && quarantined > 0 && lifecycle == MechanismLifecycle::Retired =>
                {
                    self.stats.tally.expected(&error);
                }
                _ => self.stats.tally.wrong("remove", &error),
            }
            return Some(mechanism);
        }
        self.stats.removals += 1;
        self.expect_refusal(
            "bind_registered after remove",
            self.registry.bind_registered(mechanism.token),
            |error| matches!(error, BindingError::UnregisteredMechanism(named) if *named == identity),
        );
        if let Err(error) = self.registry.remove_authority(mechanism.authority) {
            self.stats.tally.wrong("remove_authority", &error);
        }
        if let Err(error) = self.registry.remove_provider_context(mechanism.context) {
            self.stats.tally.wrong("remove_provider_context", &error);
        }
        self.settling.push(mechanism.life);
        None
    }

    /// Confirmed termination discharges every record.
    fn expect_nothing_owned(&mut self, mechanism: &Mechanism) {
        match self.registry.snapshot(mechanism.token) {
            Ok(snapshot) if snapshot.lifecycle == MechanismLifecycle::Terminated && !snapshot.retains_ownership() => {}
            Ok(snapshot) => self.stats.tally.unexpected("snapshot", "a terminated mechanism owns", format_args!("{snapshot:?}")),
            Err(error) => self.stats.tally.wrong("snapshot", &error),
        }
    }

    /// Nobody else selects, so `bind` must answer what this thread did last.
    fn expect_selection(&mut self, after: &'static str) {
        let bound = self.registry.bind(self.shared.device);
        let bound = bound.map(|binding| binding.identity().mechanism());
        match (bound, self.selected) {
            (Ok(bound), Some(selected)) if bound == selected => {}
            (Err(error @ BindingError::NoSelectedMechanism(_)), None) => self.stats.tally.expected(&error),
            (Ok(bound), selected) => {
                let is_dead = !self.live.iter().any(|mechanism| mechanism.token.identity() == bound);
                self.stats.bound_to_dead += u64::from(is_dead);
                let detail = format_args!("{bound:?} instead of {selected:?}");
                self.stats.tally.unexpected(after, "another selection", detail);
            }
            (Err(error), _) => self.stats.tally.wrong(after, &error),
        }
    }

    /// A dead mechanism is not bound by its token either, and the refusal says why.
    fn expect_refusal(
        &mut self,
        call: &'static str,
        answer: Result<MemoryBinding, BindingError>,
        is_right: impl FnOnce(&BindingError) -> bool,
    ) {
        match answer {
            Ok(_) => self.stats.bound_to_dead += 1,
            Err(error) if is_right(&error) => self.stats.tally.expected(&error),
            Err(error) => self.stats.tally.wrong(call, &error),
        }
    }

    /// Accounts for the mechanisms whose teardown is over.
    fn settle(&mut self) {
        let (over, settling): (Vec<_>, _) = std::mem::take(&mut self.settling).into_iter().partition(|life| life.is_over());
        self.settling = settling;
        for life in over {
            self.stats.account(&life);
        }
    }

    fn publish(&self) {
        // Relaxed: progress figures.
        let progress = &self.shared.progress;
        progress.selects.store(self.stats.selects, Ordering::Relaxed);
        progress.retirements.store(self.stats.retirements, Ordering::Relaxed);
        progress.losses.store(self.stats.losses, Ordering::Relaxed);
    }

    /// Takes everything down, when no worker holds anything any more: half of the live mechanisms by retiring and
    /// removing them, the rest by dropping the registry. Nothing is excused now, and everything that is charged is
    /// in some mechanism's quarantine.
    pub(crate) fn tear_down(mut self) -> ControlStats {
        for _ in 0..self.live.len() / 2 {
            self.retire(0);
        }
        self.remove_retired();
        self.terminate_lost();
        let mut retained = Vec::new();
        for mechanism in self.live.iter().chain(&self.retired).chain(&self.lost) {
            match self.registry.quarantined(mechanism.token) {
                Ok(quarantined) => retained.extend(quarantined),
                Err(error) => self.stats.tally.wrong("quarantined", &error),
            }
        }
        self.audit.look_at_rest(&retained);
        for mechanism in self.retired.iter().chain(&self.lost) {
            let identity = mechanism.token.identity();
            if !retained.iter().any(|allocation| allocation.identity.binding().mechanism() == identity) {
                self.stats.tally.unexpected("remove", "refused at rest", "no worker holds anything");
            }
        }
        let Self { registry, live, retired, lost, mut settling, mut audit, mut stats, .. } = self;
        drop(registry);
        settling.extend([live, retired, lost].into_iter().flatten().map(|mechanism| mechanism.life));
        for life in settling {
            stats.account(&life);
        }
        audit.look_at_rest([]);
        stats.audit = audit.found;
        stats
    }
}
