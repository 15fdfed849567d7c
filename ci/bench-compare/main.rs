//! The working tree beside a commit of it, all features off on both: each operation in the same run, in chunks of about 150 µs that
//! alternate in random order on the same pinned CPUs. `ci/bench-compare.sh` builds it and says how to read what it prints.

mod base;
mod control;
#[path = "../../benches/harness/mod.rs"]
mod harness;
mod peers;
mod tree;
mod work;

use harness::chunks::{Measured, Phase, Random};
use harness::cpus::two_cores;
use harness::statistics::{median, quantile};
use std::time::Duration;
use work::{BASE, CONTROL, Fixture, OPERATIONS, SIDES, TREE};

/// A round has fixtures of its own, at other addresses, and gives one ratio for each operation.
const ROUNDS: usize = 40;
const FIXTURES: usize = 2;

fn main() {
    let seconds = match std::env::args().nth(1).map(|text| text.parse::<u64>()) {
        None => 80,
        Some(Ok(seconds)) if seconds > 0 => seconds,
        Some(_) => {
            eprintln!("usage: bench-compare [SECONDS]");
            std::process::exit(2);
        }
    };
    // A thread that panics leaves the other one spinning for it.
    let report_panic = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report_panic(panic);
        std::process::exit(101);
    }));

    let cpus = two_cores();
    eprintln!("measuring for about {seconds} s on CPUs {cpus:?}");
    for (threads, rounds) in (1..).zip(measure(&cpus, Duration::from_secs(seconds))) {
        print_table(threads, &rounds);
    }
    if cpus.len() < 2 {
        println!("fewer than two cores are available: nothing was measured with two threads");
    }
}

/// By thread count (one, two), then by round, then by row.
fn measure(cpus: &[usize], budget: Duration) -> Vec<Vec<Vec<Measured>>> {
    let mut random = Random(1);
    let budget = budget / (ROUNDS * cpus.len().max(1)) as u32;
    let fixtures = |random: &mut Random| -> Vec<Fixture> { (0..FIXTURES).map(|_| Fixture::new(64 + random.below(16 * 1024))).collect() };

    let pilot_fixtures = fixtures(&mut random);
    let times: Vec<Vec<u64>> = (1..=cpus.len())
        .map(|threads| {
            let pilot = Phase {
                cpus: &cpus[..threads],
                fixtures: &pilot_fixtures,
                times: &[],
                budget: budget.min(Duration::from_millis(100)),
                seed: 1,
            };
            // The three sides of an operation repeat it equally often.
            let times = pilot.pilot();
            times.chunks(SIDES).flat_map(|sides| [sides[BASE]; SIDES]).collect()
        })
        .collect();

    let mut by_threads: Vec<Vec<Vec<Measured>>> = cpus.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        let fixtures = fixtures(&mut random);
        for (at, rounds) in by_threads.iter_mut().enumerate() {
            let seed = random.next();
            rounds.push(Phase { cpus: &cpus[..=at], fixtures: &fixtures, times: &times[at], budget, seed }.run());
        }
    }
    by_threads
}

fn print_table(threads: usize, rounds: &[Vec<Measured>]) {
    let label = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    println!("\n{label:<34} {:>9}  {:<21}  {:<21}  {:>5}", "base, ns", "tree / base", "control / base", "lost");
    for (operation, name) in OPERATIONS.iter().enumerate() {
        let row = |side: usize| operation * SIDES + side;
        let ratios = |side: usize| -> Vec<f64> {
            rounds.iter().filter_map(|round| Some(round[row(side)].typical()? / round[row(BASE)].typical()?)).collect()
        };
        let nanos = median(rounds.iter().filter_map(|round| round[row(BASE)].typical()));
        let Some(nanos) = nanos.filter(|_| [TREE, CONTROL].iter().all(|&side| 2 * ratios(side).len() > rounds.len())) else {
            println!("{name:<34} void: in half of the rounds every chunk was disturbed");
            continue;
        };
        let (tree, control) = (Spread::of(&ratios(TREE)), Spread::of(&ratios(CONTROL)));
        let measured = || rounds.iter().flat_map(|round| &round[row(0)..row(SIDES)]);
        let disturbed: usize = measured().map(|measured| measured.disturbed).sum();
        let counted: usize = measured().map(|measured| measured.chunks().count()).sum();
        let lost = 100.0 * disturbed as f64 / (disturbed + counted).max(1) as f64;
        let apart = if tree.is_apart_from(&control) { "  apart" } else { "" };
        println!("{name:<34} {nanos:>9.2}  {tree:<21}  {control:<21}  {lost:>4.1}%{apart}");
    }
}

/// The median of the rounds' ratios, and their 10th and 90th percentile.
struct Spread {
    p10: f64,
    median: f64,
    p90: f64,
}

impl Spread {
    fn of(ratios: &[f64]) -> Self {
        let share = |share| quantile(ratios.iter().copied(), share).unwrap_or(f64::NAN);
        Self { p10: share(0.1), median: share(0.5), p90: share(0.9) }
    }

    fn is_apart_from(&self, other: &Self) -> bool {
        self.p90 < other.p10 || other.p90 < self.p10
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{:.3} ({:.3}..{:.3})", self.median, self.p10, self.p90))
    }
}
