//! What a run adds up to: counts, latencies, invariants; as a table or as one JSON object.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use liveslot::release::Drained;
use liveslot::{BindingError, BudgetSnapshot, MemoryError};
use serde_json::{Value, json};

use crate::allocators::Kind;
use crate::audit::Findings;
use crate::control::ControlStats;
use crate::grouped::Grouped;
use crate::worker::WorkerStats;

/// Runs shorter than this need not have shown every worker every kind of memory, in seconds.
const LONG_ENOUGH: f64 = 5.0;

/// Durations of one kind of call, in nanoseconds with three significant digits.
pub(crate) struct Latency(Histogram<u64>);

impl Latency {
    pub(crate) fn new() -> Self {
        const MINUTE: u64 = 60_000_000_000;
        Self(Histogram::new_with_bounds(1, MINUTE, 3).expect("the bounds are valid"))
    }

    pub(crate) fn record(&mut self, duration: Duration) {
        self.0.saturating_record(duration.as_nanos() as u64);
    }

    fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    fn quantiles(&self) -> [u64; 4] {
        [self.0.value_at_quantile(0.5), self.0.value_at_quantile(0.99), self.0.value_at_quantile(0.999), self.0.max()]
    }

    fn json(&self) -> Value {
        let [p50, p99, p999, max] = self.quantiles();
        json!({ "p50": p50, "p99": p99, "p999": p999, "max": max })
    }
}

/// What two successive readings of the clock are apart: part of every latency reported.
fn clock_cost() -> Latency {
    let mut cost = Latency::new();
    for _ in 0..10_000 {
        cost.record(Instant::now().elapsed());
    }
    cost
}

/// The name of an error's variant.
fn kind_of(error: &BindingError) -> &'static str {
    match error {
        BindingError::IdentityExhausted => "IdentityExhausted",
        BindingError::ForeignRegistry { .. } => "ForeignRegistry",
        BindingError::DeviceMismatch { .. } => "DeviceMismatch",
        BindingError::UnregisteredProviderContext(_) => "UnregisteredProviderContext",
        BindingError::ProviderContextInUse(_) => "ProviderContextInUse",
        BindingError::UnregisteredAuthority(_) => "UnregisteredAuthority",
        BindingError::AuthorityInUse(_) => "AuthorityInUse",
        BindingError::UnregisteredMechanism(_) => "UnregisteredMechanism",
        BindingError::NoSelectedMechanism(_) => "NoSelectedMechanism",
        BindingError::InactiveMechanism { .. } => "InactiveMechanism",
        BindingError::DeviceLost { .. } => "DeviceLost",
        BindingError::BindingMismatch { .. } => "BindingMismatch",
        BindingError::StaleAllocation(_) => "StaleAllocation",
        BindingError::OutstandingViews { .. } => "OutstandingViews",
        BindingError::ReleaseQuarantined { .. } => "ReleaseQuarantined",
        BindingError::QuarantinedOwnership { .. } => "QuarantinedOwnership",
        BindingError::ViewOutOfBounds { .. } => "ViewOutOfBounds",
        BindingError::ContextNotQuiescent { .. } => "ContextNotQuiescent",
        BindingError::ShutDown => "ShutDown",
        BindingError::Memory(error) => match error {
            MemoryError::TierExhausted { .. } => "TierExhausted",
            MemoryError::InvalidRequest { .. } => "InvalidRequest",
            MemoryError::AllocationFailed { .. } => "AllocationFailed",
            MemoryError::CapacityUnavailable { .. } => "CapacityUnavailable",
        },
    }
}

/// Errors met, sorted into those that the rules allow at their place and those that they do not.
#[derive(Default)]
pub(crate) struct Tally {
    expected: BTreeMap<&'static str, u64>,
    /// By call and kind.
    unexpected: BTreeMap<(&'static str, &'static str), Unexpected>,
}

struct Unexpected {
    count: u64,
    /// The first one in full.
    example: String,
}

impl Tally {
    pub(crate) fn expected(&mut self, error: &BindingError) {
        *self.expected.entry(kind_of(error)).or_default() += 1;
    }

    /// `call` must not fail like this here.
    pub(crate) fn wrong(&mut self, call: &'static str, error: &BindingError) {
        self.unexpected(call, kind_of(error), error);
    }

    /// `call` must not end like this here.
    pub(crate) fn unexpected(&mut self, call: &'static str, end: &'static str, detail: impl Display) {
        self.unexpected.entry((call, end)).or_insert_with(|| Unexpected { count: 0, example: detail.to_string() }).count += 1;
    }

    fn merge(&mut self, other: Self) {
        for (kind, count) in other.expected {
            *self.expected.entry(kind).or_default() += count;
        }
        for (place, other) in other.unexpected {
            self.unexpected.entry(place).and_modify(|own| own.count += other.count).or_insert(other);
        }
    }

    fn unexpected_total(&self) -> u64 {
        self.unexpected.values().map(|unexpected| unexpected.count).sum()
    }
}

/// A whole run.
pub(crate) struct Report {
    seconds: f64,
    seed: u64,
    workers: WorkerStats,
    threads: usize,
    threads_on_every_kind: usize,
    control: ControlStats,
    deferred: Drained,
    /// At the end.
    budget: BudgetSnapshot,
    audit: Findings,
    tally: Tally,
    clock_ns: Latency,
}

impl Report {
    /// `panics` names the threads that ended by a panic, whose counts are lost.
    pub(crate) fn new(
        elapsed: Duration,
        seed: u64,
        workers: Vec<(WorkerStats, Findings)>,
        panics: &[String],
        mut control: ControlStats,
        deferred: Drained,
        budget: BudgetSnapshot,
    ) -> Self {
        let mut tally = std::mem::take(&mut control.tally);
        for thread in panics {
            tally.unexpected("thread", "panic", thread);
        }
        let threads = workers.len() + panics.len();
        let threads_on_every_kind = workers.iter().filter(|(worker, _)| worker.kinds == Kind::every()).count();
        let mut total = WorkerStats::new();
        let mut audit = control.audit;
        for (mut worker, findings) in workers {
            tally.merge(std::mem::take(&mut worker.tally));
            total.add(&worker);
            audit.merge(findings);
        }
        // A release that was deferred ends in quarantine because of a loss alone.
        if deferred.quarantined != 0 && control.losses == 0 {
            tally.unexpected("drain", "retained", format_args!("{} releases, and no device was lost", deferred.quarantined));
        }
        Self {
            seconds: elapsed.as_secs_f64(),
            seed,
            workers: total,
            threads,
            threads_on_every_kind,
            control,
            deferred,
            budget,
            audit,
            tally,
            clock_ns: clock_cost(),
        }
    }

    fn every_worker_on_every_kind(&self) -> bool {
        self.threads_on_every_kind == self.threads
    }

    fn released(&self) -> u64 {
        self.workers.releases + self.deferred.released as u64
    }

    fn quarantined(&self) -> u64 {
        self.workers.quarantined + self.deferred.quarantined as u64
    }

    /// The counts that must be 0.
    fn invariants(&self) -> [(&'static str, u64, &'static str); 8] {
        let bound_to_dead = self.workers.bound_to_dead + self.control.bound_to_dead;
        let accounted_for = self.released() + self.quarantined() + self.workers.written_off;
        [
            ("bound_to_dead", bound_to_dead, "binds of a mechanism after its retirement, loss or removal"),
            ("allocated_on_dead", self.workers.allocated_on_dead, "allocations on such a mechanism"),
            ("checksum_mismatches", self.workers.checksum_mismatches, "views that showed other contents"),
            (
                "unaccounted_allocations",
                self.workers.allocations.abs_diff(accounted_for),
                "the distance of allocated from released, quarantined and written off",
            ),
            (
                "leaked_allocations",
                self.control.kept.abs_diff(self.deferred.quarantined as u64),
                "blocks never given back, those of lost devices apart",
            ),
            ("budget_identity", self.audit.violations, "looks at a budget whose figures were wrong"),
            ("teardown_order_violations", self.control.order_violations, "allocator, authority, context, once each"),
            ("unexpected_errors", self.tally.unexpected_total(), "calls that ended as the rules forbid"),
        ]
    }

    /// No invariant is broken.
    pub(crate) fn is_clean(&self) -> bool {
        self.invariants().iter().all(|(_, count, _)| *count == 0) && (self.every_worker_on_every_kind() || self.seconds < LONG_ENOUGH)
    }

    /// One JSON object on one line.
    pub(crate) fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { workers, control, tally, .. } = self;
        let mut report = json!({
            "seconds": self.seconds,
            "threads": self.threads,
            "seed": self.seed,
            "operations": workers.operations,
            "operations_per_second": (workers.operations as f64 / self.seconds).round(),
            "binds": workers.binds,
            "allocations": workers.allocations,
            "views": workers.views,
            "commits": workers.commits,
            "decommits": workers.decommits,
            "releases": self.released(),
            "releases_on_another_worker": workers.foreign_releases,
            "releases_deferred": workers.deferred,
            "releases_held_by_a_view": workers.held_by_a_view,
            "quarantined": self.quarantined(),
            "written_off": workers.written_off,
            "selects": control.selects,
            "registrations": control.registrations,
            "retirements": control.retirements,
            "removals": control.removals,
            "device_losses": control.losses,
            "confirmed_terminations": control.terminations,
            "binds_overlapping_a_select": workers.binds_overlapping_a_select,
            "operations_in_flight_at_a_loss": workers.operations_in_flight_at_a_loss,
            "workers_on_every_allocator": self.every_worker_on_every_kind(),
            "blocks": Kind::ALL.iter().map(|kind| (kind.name(), control.obtained[*kind as usize])).collect::<BTreeMap<_, _>>(),
            "blocks_reclaimed_by_destructors": control.reclaimed,
            "budget": {
                "limit": self.budget.limit,
                "used": self.budget.used,
                "peak": self.budget.peak,
                "quarantined": self.budget.quarantined,
                "free": self.budget.free,
                "most_quarantined": self.audit.most_quarantined,
                "refusals": workers.exhausted,
                "looks": self.audit.looks,
            },
            "bind_ns": workers.bind_ns.json(),
            "allocate_ns": workers.allocate_ns.json(),
            "select_ns": control.select_ns.json(),
            "clock_ns": self.clock_ns.json(),
            "expected_errors": tally.expected,
            "unexpected": tally.unexpected.iter().map(|((call, end), unexpected)| json!({
                "call": call, "end": end, "count": unexpected.count, "example": unexpected.example,
            })).collect::<Vec<_>>(),
        });
        for (name, count, _) in self.invariants() {
            report[name] = count.into();
        }
        writeln!(out, "{report}")
    }

    /// Tables for people.
    pub(crate) fn write_table(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { workers, control, tally, .. } = self;
        let rate = (workers.operations as f64 / self.seconds).round() as u64;
        writeln!(
            out,
            "{} worker threads, {:.1} s, seed {}: {} operations, {} per second",
            self.threads,
            self.seconds,
            self.seed,
            Grouped(workers.operations),
            Grouped(rate)
        )?;

        writeln!(out, "\n{:<30}{:>12}{:>12}{:>12}{:>12}", "latency in ns", "p50", "p99", "p99.9", "max")?;
        for (name, latency) in [
            ("bind", &workers.bind_ns),
            ("allocate", &workers.allocate_ns),
            ("select", &control.select_ns),
            ("(two clock readings alone)", &self.clock_ns),
        ] {
            let [p50, p99, p999, max] = latency.quantiles().map(Grouped);
            writeln!(out, "{name:<30}{p50:>12}{p99:>12}{p999:>12}{max:>12}")?;
        }

        writeln!(out, "\nworkers")?;
        row(out, "binds", workers.binds, "")?;
        row(out, "allocations", workers.allocations, "")?;
        row(out, "views verified", workers.views, "")?;
        row(out, "commits", workers.commits, "after the allocation")?;
        row(out, "decommits", workers.decommits, "")?;
        row(out, "releases", self.released(), "")?;
        row(out, "on another worker", workers.foreign_releases, "of these")?;
        row(out, "on the releasing thread", self.deferred.released as u64, "of these")?;
        row(out, "refused under a view", workers.held_by_a_view, "and done later")?;
        row(out, "quarantined", self.quarantined(), "begun, and retained by mechanism or allocator")?;
        row(out, "written off", workers.written_off, "refused, the device being lost")?;
        for kind in Kind::ALL {
            row(out, kind.name(), control.obtained[kind as usize], "blocks obtained there")?;
        }
        row(out, "on every kind of memory", self.threads_on_every_kind as u64, "workers")?;

        writeln!(out, "\ncontrol")?;
        row(out, "selects", control.selects, "")?;
        row(out, "registrations", control.registrations, "")?;
        row(out, "retirements", control.retirements, "")?;
        row(out, "removals", control.removals, "")?;
        row(out, "device losses", control.losses, "")?;
        row(out, "confirmed terminations", control.terminations, "")?;
        row(out, "blocks never released", control.reclaimed, "given back by the allocators' destructors")?;

        let BudgetSnapshot { limit, used, quarantined, free, peak } = self.budget;
        writeln!(out, "\nbudget, in bytes")?;
        row(out, "limit", limit, "")?;
        row(out, "peak", peak, "used and quarantined")?;
        row(out, "most quarantined", self.audit.most_quarantined, "of all looks")?;
        row(out, "used at the end", used, "")?;
        row(out, "quarantined at the end", quarantined, "")?;
        row(out, "free at the end", free, "")?;
        row(out, "looks", self.audit.looks, "")?;
        row(out, "refusals", workers.exhausted, "with the figures that decided them")?;

        writeln!(out, "\noverlap")?;
        row(out, "binds during a select", workers.binds_overlapping_a_select, "")?;
        row(out, "operations in flight at a loss", workers.operations_in_flight_at_a_loss, "began before, ended after")?;

        writeln!(out, "\nerrors that the rules allow where they came")?;
        for (kind, count) in &tally.expected {
            row(out, kind, *count, "")?;
        }

        writeln!(out, "\ninvariants, each of which must be 0")?;
        for (name, count, meaning) in self.invariants() {
            row(out, name, count, meaning)?;
        }
        for ((call, end), unexpected) in &tally.unexpected {
            writeln!(out, "    {call}: {end}, {} times, first: {}", Grouped(unexpected.count), unexpected.example)?;
        }
        writeln!(out, "\n{}", if self.is_clean() { "clean" } else { "BROKEN" })
    }
}

fn row(out: &mut impl Write, name: &str, count: u64, remark: &str) -> io::Result<()> {
    let line = format!("  {name:<32}{:>16}  {remark}", Grouped(count));
    writeln!(out, "{}", line.trim_end())
}

impl WorkerStats {
    fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.binds += other.binds;
        self.allocations += other.allocations;
        self.views += other.views;
        self.releases += other.releases;
        self.foreign_releases += other.foreign_releases;
        self.deferred += other.deferred;
        self.quarantined += other.quarantined;
        self.written_off += other.written_off;
        self.exhausted += other.exhausted;
        self.commits += other.commits;
        self.decommits += other.decommits;
        self.held_by_a_view += other.held_by_a_view;
        self.binds_overlapping_a_select += other.binds_overlapping_a_select;
        self.operations_in_flight_at_a_loss += other.operations_in_flight_at_a_loss;
        self.bound_to_dead += other.bound_to_dead;
        self.allocated_on_dead += other.allocated_on_dead;
        self.checksum_mismatches += other.checksum_mismatches;
        self.bind_ns.merge(&other.bind_ns);
        self.allocate_ns.merge(&other.allocate_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up() {
        let (mut left, mut right) = (Tally::default(), Tally::default());
        left.wrong("bind", &BindingError::IdentityExhausted);
        right.wrong("bind", &BindingError::IdentityExhausted);
        right.expected(&BindingError::IdentityExhausted);
        left.merge(right);
        assert_eq!(left.unexpected_total(), 2);
        assert_eq!(left.expected["IdentityExhausted"], 1);
    }
}
