//! `cargo bench --bench ratios`: what a bind, an operation, an allocation and a select cost, as ratios to floors and to other ways of doing
//! the same, all measured interleaved in one process. Linux only.
//!
//! Absolute nanoseconds differ from machine to machine and from minute to minute; ratios of loops that alternate every 150 µs differ far
//! less. So the table's last block, the targets, speaks of ratios only. It says met or missed and never fails: the exit code is 0.
//!
//! The run has nine rounds. Each makes new fixtures at new addresses, measures every row on one thread, then starts a second
//! thread, pinned to another core, measures every row on both at once, and ends that thread. A figure is the median over the
//! rounds of the median over the fixtures of the median over the chunks. Percentiles and ratios are taken within each round,
//! and the median over the rounds is reported: rounds differ in how many chunks fit. Of `bind(device)` the worst round
//! counts as well: striped counters spread threads by an index, and a later thread's stripe must not coincide with the first
//! one's.
//!
//! What might flatter somebody:
//!
//! - Everything is hot. Each loop runs thousands of times on data in the first-level cache; a bind after a cache miss costs that miss,
//!   here and with every peer. The floors hide it as much as the rest.
//! - The floor is the cheapest correct core of a bind: one `ArcSwap::load` and one pair of read-modify-writes on a line
//!   nobody else touches, in one loop. It gives no identity, checks no lifecycle, and its pair is not tied to what was
//!   loaded.
//! - The maps and the mutex registry among the peers do less than liveslot (see `peers`); the last is a lower bound of what mutexes cost.
//!   onnx-runtime-memory-api, the crate that liveslot replaces, does the same, and the targets that speak of mutexes speak of it.
//! - Two threads, not many: contended rows of the peers get worse with more, private lines do not. With an unfair lock one
//!   thread can run its whole chunk first; a chunk therefore costs what its slower thread took.
//! - Contended rows depend on where the two cores are: a line travels faster between cores that share a cache, and a
//!   hypervisor may move them. Between runs they differ by a factor of up to 2.3; rows on private lines do not, unless something slows
//!   the two cores together, as a hypervisor would that runs both on one. Then even a bare `ArcSwapOption::load` costs up to
//!   1.7 times as much with two threads. Rounds in which it does are left out of the growth targets, and counted in a note;
//!   the other figures include them.
//! - Throwing away preempted chunks favours short ones. A row that has lost most of its chunks, as locks do on a busy
//!   machine, looks better than it is.
//! - A second thread that only selects does so without pause, far more often than a program would. These rows show a bad case.
//! - `liveslot: allocate and release` includes the process heap; `malloc and free` beside it says how much that is. Its target is a sum of
//!   three loops: `malloc and free` for the memory, the same of 96 bytes for a record of it (which has 80, or 96 with `holders`), and four
//!   read-modify-write pairs. Each loop has the cores to itself, so nothing of the sum overlaps, which favours whoever is compared with it.

mod harness;
mod peers;
mod work;

use clap::Parser;
use harness::chunks::{Measured, Phase, Random};
use harness::cpus::two_cores;
use harness::statistics::{median, quantile};
use std::time::Duration;
use work::{Fixture, ROWS, name};

/// Rounds, each with a second thread of its own.
const ROUNDS: usize = 9;
/// Fixtures per round.
const FIXTURES: usize = 3;
/// What shares nothing may grow by this much from one thread to two, beside what a read-modify-write pair grows by.
const GROWTH: f64 = 1.15;
/// Above this many read-modify-write pairs for a bind on one thread, the mutex registry is no honest peer.
const MUTEX_BIND_PAIRS: f64 = 25.0;

/// Interleaved comparison of liveslot with its floors and peers.
#[derive(Parser)]
struct Options {
    /// A run of four seconds: enough to see that everything works, too short for figures.
    #[arg(long)]
    quick: bool,
    /// How long to measure.
    #[arg(long, default_value_t = 45, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Seed of the order of chunks and of the gaps between fixtures.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Passed by cargo, without a meaning here.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let options = Options::parse();
    // A thread that panics leaves the other one spinning for it.
    let report_panic = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report_panic(panic);
        std::process::exit(101);
    }));

    let seconds = if options.quick { 4 } else { options.seconds };
    let cpus = two_cores();
    eprintln!("measuring for about {seconds} s on CPUs {cpus:?}");
    let results = measure(&cpus, Duration::from_secs(seconds), options.seed);
    let notes = notes(&results, &cpus, options.quick);
    let targets = targets(&results);
    if options.json {
        println!("{:#}", json(&results, &targets, &notes, &cpus, seconds));
    } else {
        print_tables(&results);
        print_targets(&targets);
        for note in notes {
            println!("note: {note}");
        }
    }
}

/// What each round gave.
struct Results {
    rounds: Vec<Round>,
}

/// By thread count (one, two), then by row. Nothing for two threads on a machine with one core.
struct Round {
    by_threads: Vec<Vec<Measured>>,
}

impl Round {
    /// Nanoseconds per operation and thread, where there are any.
    fn typical(&self, row: usize, threads: usize) -> Option<f64> {
        self.by_threads.get(threads - 1)?[row].typical()
    }
}

fn measure(cpus: &[usize], budget: Duration, seed: u64) -> Results {
    let mut random = Random(seed);
    let phase_budget = budget / (ROUNDS * cpus.len().max(1)) as u32;
    let phases = 1..=cpus.len();
    let fixtures = |random: &mut Random| -> Vec<Fixture> { (0..FIXTURES).map(|_| Fixture::new(64 + random.below(16 * 1024))).collect() };

    let pilot_fixtures = fixtures(&mut random);
    let times: Vec<Vec<u64>> = phases
        .clone()
        .map(|threads| {
            let budget = phase_budget.min(Duration::from_millis(100));
            Phase { cpus: &cpus[..threads], fixtures: &pilot_fixtures, times: &[], budget, seed }.pilot()
        })
        .collect();

    let round = |random: &mut Random| {
        let fixtures = fixtures(random);
        let phase = |threads: usize| {
            let seed = random.next();
            Phase { cpus: &cpus[..threads], fixtures: &fixtures, times: &times[threads - 1], budget: phase_budget, seed }.run()
        };
        Round { by_threads: phases.clone().map(phase).collect() }
    };
    Results { rounds: (0..ROUNDS).map(|_| round(&mut random)).collect() }
}

/// The index of the row with this name.
fn row(name: &str) -> usize {
    ROWS.iter().position(|row| row.name == name).expect("a row of that name")
}

/// One row at one thread count, over the whole run.
struct Figures {
    nanos: f64,
    p10: f64,
    p90: f64,
    to_floor: Option<f64>,
    to_pair: Option<f64>,
    chunks: usize,
    disturbed: usize,
}

impl Results {
    /// Nanoseconds per operation and thread in each round, where there are any.
    fn by_round(&self, row: usize, threads: usize) -> impl Iterator<Item = Option<f64>> {
        self.rounds.iter().map(move |round| round.typical(row, threads))
    }

    /// The ratio of two rows at the same thread count, in each round.
    fn ratios(&self, row: usize, to: usize, threads: usize) -> impl Iterator<Item = f64> {
        self.by_round(row, threads).zip(self.by_round(to, threads)).filter_map(|(row, to)| Some(row? / to?))
    }

    fn ratio(&self, row: usize, to: usize, threads: usize) -> Option<f64> {
        median(self.ratios(row, to, threads))
    }

    /// The ratio of a row to a sum of others, each taken so many times, at the same thread count.
    fn ratio_to_sum(&self, row: usize, parts: &[(f64, usize)], threads: usize) -> Option<f64> {
        let in_round = |round: &Round| {
            let part = |&(times, part): &(f64, usize)| Some(times * round.typical(part, threads)?);
            Some(round.typical(row, threads)? / parts.iter().map(part).sum::<Option<f64>>()?)
        };
        median(self.rounds.iter().filter_map(in_round))
    }

    /// What a row costs with two threads over what it costs with one, in each round.
    fn growth(&self, row: usize) -> impl Iterator<Item = Option<f64>> {
        self.by_round(row, 2).zip(self.by_round(row, 1)).map(|(two, one)| Some(two? / one?))
    }

    /// The same over that of a read-modify-write pair.
    fn growth_to_pair(&self, row_index: usize) -> impl Iterator<Item = Option<f64>> {
        self.growth(row_index).zip(self.growth(row(name::RMW_PAIR))).map(|(row, pair)| Some(row? / pair?))
    }

    /// The same, in the rounds in which a bare `ArcSwapOption::load` stays flat. It shares nothing either: where it grows, as it would if
    /// the two cores were two threads of one, every loop with more than one instruction in flight does.
    fn growth_on_two_cores(&self, row_index: usize) -> impl Iterator<Item = f64> {
        let control = self.growth_to_pair(row(name::ARC_SWAP_LOAD));
        let apart = self.growth_to_pair(row_index).zip(control).filter(|(_, control)| control.is_some_and(|growth| growth <= GROWTH));
        apart.filter_map(|(growth, _)| growth)
    }

    fn figures(&self, index: usize, threads: usize) -> Option<Figures> {
        let rounds = || self.rounds.iter().filter_map(|round| round.by_threads.get(threads - 1)).map(|rows| &rows[index]);
        let share = |share| median(rounds().filter_map(|measured| quantile(measured.chunks(), share)));
        Some(Figures {
            nanos: median(self.by_round(index, threads).flatten())?,
            p10: share(0.1)?,
            p90: share(0.9)?,
            to_floor: self.ratio(index, row(name::FLOOR), threads),
            to_pair: self.ratio(index, row(name::RMW_PAIR), threads),
            chunks: rounds().map(|measured| measured.chunks().count()).sum(),
            disturbed: rounds().map(|measured| measured.disturbed).sum(),
        })
    }

    fn mutex_is_honest(&self) -> bool {
        self.ratio(row(name::MUTEX_BIND), row(name::RMW_PAIR), 1).is_some_and(|pairs| pairs <= MUTEX_BIND_PAIRS)
    }
}

/// One thing that the design promises of these figures, or, without a limit, one that it doesn't.
struct Target {
    what: String,
    /// `None`: void, not measured or not comparable.
    value: Option<f64>,
    limit: Limit,
}

#[derive(Clone, Copy)]
enum Limit {
    AtMost(f64),
    AtLeast(f64),
    /// Nothing is promised: printed for information.
    Nothing,
}

impl Limit {
    fn parts(self) -> (&'static str, Option<f64>) {
        match self {
            Limit::AtMost(limit) => ("at most", Some(limit)),
            Limit::AtLeast(limit) => ("at least", Some(limit)),
            Limit::Nothing => ("", None),
        }
    }
}

impl Target {
    fn verdict(&self) -> &'static str {
        let met = |value| match self.limit {
            Limit::AtMost(limit) => Some(value <= limit),
            Limit::AtLeast(limit) => Some(value >= limit),
            Limit::Nothing => None,
        };
        match self.value.map(met) {
            None => "void",
            Some(None) => "information",
            Some(Some(true)) => "met",
            Some(Some(false)) => "missed",
        }
    }
}

fn targets(results: &Results) -> Vec<Target> {
    let (pair, floor) = (row(name::RMW_PAIR), row(name::FLOOR));
    let (bind, handle, with_view, allocation) = (row(name::BIND), row(name::HANDLE_BIND), row(name::WITH_VIEW), row(name::ALLOCATION));
    let allocation_parts = [(1.0, row(name::MALLOC)), (1.0, row(name::RECORD_MALLOC)), (4.0, pair)];
    let mut targets = Vec::new();
    let mut target = |what: String, value, limit| targets.push(Target { what, value, limit });

    for (threads, label) in [(1, "1 thread"), (2, "2 threads")] {
        let mut to = |what: &str, row, to, limit| target(format!("{what}, {label}"), results.ratio(row, to, threads), Limit::AtMost(limit));
        to("bind(device) to the floor", bind, floor, 2.1);
        to("DeviceHandle::bind to the floor", handle, floor, 1.8);
        to("with_view to a read-modify-write pair", with_view, pair, 1.5);
        let to_parts = results.ratio_to_sum(allocation, &allocation_parts, threads);
        target(format!("allocate and release to 2 x malloc and free and 4 pairs, {label}"), to_parts, Limit::AtMost(1.0));
    }
    let worst = results.ratios(bind, floor, 2).max_by(f64::total_cmp);
    target(format!("bind(device) to the floor, worst of {ROUNDS} second threads"), worst, Limit::AtMost(2.1));
    for (what, row) in
        [("bind(device)", bind), ("DeviceHandle::bind", handle), ("with_view", with_view), ("allocate and release", allocation)]
    {
        let growth = median(results.growth_on_two_cores(row));
        target(format!("{what}, growth from 1 to 2 threads over that of a pair"), growth, Limit::AtMost(GROWTH));
    }
    let comparisons = [
        ("bind(device)", bind, row(name::SEED_BIND), row(name::MUTEX_BIND), [4.0, 10.0]),
        ("allocate and release", allocation, row(name::SEED_ALLOCATION), row(name::MUTEX_ALLOCATION), [4.0, 15.0]),
    ];
    for (what, ours, seed, mutex, limits) in comparisons {
        for (threads, label, limit) in [(1, "1 thread", limits[0]), (2, "2 threads", limits[1])] {
            let faster = results.ratio(seed, ours, threads);
            target(format!("onnx-runtime-memory-api to {what}, {label}"), faster, Limit::AtLeast(limit));
            let faster = results.ratio(mutex, ours, threads).filter(|_| results.mutex_is_honest());
            target(format!("mutex registry to {what}, {label}"), faster, Limit::Nothing);
        }
    }
    targets
}

/// What a reader of the figures has to know about this run.
fn notes(results: &Results, cpus: &[usize], quick: bool) -> Vec<String> {
    let mut notes = vec![format!("{}, threads pinned to CPUs {cpus:?}", cpu_model())];
    if cpus.len() < 2 {
        notes.push("fewer than two cores are available: every row and target for two threads is void".into());
    }
    if !results.mutex_is_honest() {
        notes.push(format!(
            "the mutex registry's bind costs more than {MUTEX_BIND_PAIRS} read-modify-write pairs on one thread: its rows and ratios are void"
        ));
    }
    let apart = results.growth_on_two_cores(row(name::ARC_SWAP_LOAD)).count();
    if cpus.len() >= 2 && apart < ROUNDS {
        notes.push(format!(
            "in {} of {ROUNDS} rounds a bare ArcSwapOption::load grew by more than {GROWTH} times what a read-modify-write pair did, as it would if \
             the two cores were two threads of one: those rounds don't count for growth"
            , ROUNDS - apart
        ));
    }
    if quick {
        notes.push("a quick run: too short for figures to be quoted".into());
    }
    if cfg!(debug_assertions) {
        notes.push("built without optimisation: the figures mean nothing".into());
    }
    notes
}

fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or("unknown CPU", |(_, model)| model).to_owned()
}

fn print_tables(results: &Results) {
    println!("Nanoseconds per operation and thread, with the 10th to 90th percentile of a round's chunks, and ratios to the floor and to");
    println!("a read-modify-write pair. `lost`: chunks thrown away because a thread was preempted.");
    let mut question = "";
    for (index, description) in ROWS.iter().enumerate() {
        if description.question != question {
            question = description.question;
            let columns = format!("{:>9} {:>19} {:>6} {:>6} {:>5}", "ns", "p10..p90", "floor", "pair", "lost");
            println!("\n{question:<44} 1 thread: {} | 2 threads: {columns}", &columns[10..]);
        }
        let columns = [1, 2].map(|threads| match results.figures(index, threads) {
            None => format!("{:>9} {:>19} {:>6} {:>6} {:>5}", "-", "", "", "", ""),
            Some(figures) => {
                let range = format!("{:.2}..{:.2}", figures.p10, figures.p90);
                let lost = 100.0 * figures.disturbed as f64 / (figures.chunks + figures.disturbed) as f64;
                format!("{:>9.2} {range:>19} {} {} {lost:>4.1}%", figures.nanos, ratio(figures.to_floor), ratio(figures.to_pair))
            }
        });
        println!("{:<46} {} | {:>9} {}", description.name, columns[0], "", columns[1]);
    }
}

fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| format!("{:>6}", "void"), |value| format!("{value:>6.2}"))
}

fn print_targets(targets: &[Target]) {
    println!("\n{:<70} {:>6}  {:<14}  verdict", "targets", "value", "limit");
    for target in targets {
        let (relation, limit) = target.limit.parts();
        let limit = limit.map_or_else(String::new, |limit| format!("{limit:.2}"));
        println!("{:<70} {}  {relation:<8} {limit:>5}  {}", target.what, ratio(target.value), target.verdict());
    }
}

fn json(results: &Results, targets: &[Target], notes: &[String], cpus: &[usize], seconds: u64) -> serde_json::Value {
    let cell = |index: usize, threads: usize| {
        results.figures(index, threads).map(|figures| {
            serde_json::json!({
                "question": ROWS[index].question, "name": ROWS[index].name, "threads": threads,
                "ns": figures.nanos, "p10": figures.p10, "p90": figures.p90,
                "to_floor": figures.to_floor, "to_pair": figures.to_pair,
                "chunks": figures.chunks, "disturbed": figures.disturbed,
            })
        })
    };
    let rows: Vec<_> = (0..ROWS.len()).flat_map(|index| [1, 2].map(|threads| cell(index, threads))).flatten().collect();
    let target = |target: &Target| {
        let (relation, limit) = target.limit.parts();
        serde_json::json!({
            "what": target.what, "value": target.value, "relation": relation, "limit": limit, "verdict": target.verdict(),
        })
    };
    let targets: Vec<_> = targets.iter().map(target).collect();
    serde_json::json!({
        "seconds": seconds, "rounds": ROUNDS, "fixtures": FIXTURES, "cpus": cpus,
        "rows": rows, "targets": targets, "notes": notes,
    })
}
