//! `cargo bench --bench selection`: the same rows as in `ratios`, a criterion group per question, with HTML reports under
//! `target/criterion`. Linux only.
//!
//! Criterion measures one row after the other, each for seconds: good for distributions and for comparing a change with the run before it
//! (`--save-baseline`), less so for ratios between rows, which `ratios` takes from interleaved chunks. Here no sample is thrown away, and
//! each row has one fixture for all its samples.
//!
//! Each thread is pinned to a core of its own. With two threads both start at once, and a sample lasts until the slower one is done, so the
//! figures are per operation and thread; the throughput is that of both. In the rows "beside select" the second thread selects until the
//! measured one is done, and is not counted.

#[path = "harness/cpus.rs"]
mod cpus;
mod peers;
#[path = "harness/rendezvous.rs"]
mod rendezvous;
mod work;

use cpus::{pin_to, two_cores};
use criterion::{BenchmarkId, Criterion, Throughput};
use rendezvous::{Part, Rendezvous};
use std::thread;
use std::time::Duration;
use work::{Fixture, ROWS, Row};

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(50)
        .configure_from_args();
    let cpus = two_cores();
    for rows in ROWS.chunk_by(|row, next| row.question == next.question) {
        compare(&mut criterion, rows, &cpus);
    }
    criterion.final_summary();
}

/// One question: a line per row, a point per thread count.
fn compare(criterion: &mut Criterion, rows: &[Row], cpus: &[usize]) {
    let mut group = criterion.benchmark_group(rows[0].question);
    for row in rows {
        for &threads in row.thread_counts().iter().filter(|&&threads| threads <= cpus.len()) {
            let fixture = Fixture::new(0);
            let counted = (0..threads).filter(|&thread| !row.is_company(thread)).count();
            group.throughput(Throughput::Elements(counted as u64));
            group.bench_function(BenchmarkId::new(row.name, threads), |bencher| {
                bencher.iter_custom(|times| sample(row, &fixture, &cpus[..threads], times));
            });
        }
    }
    group.finish();
}

/// Runs a row `times` times on each thread. Starting and preparing the threads is outside the clock.
fn sample(row: &Row, fixture: &Fixture, cpus: &[usize], times: u64) -> Duration {
    let rendezvous = Rendezvous::new(cpus.len());
    let side = |thread: usize| {
        pin_to(cpus[thread]);
        let mut work = row.prepare(fixture, thread);
        if row.is_company(thread) {
            rendezvous.run(Part::Company, &mut work);
            return Duration::ZERO;
        }
        rendezvous.run(Part::Measured(times), &mut work)
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..cpus.len()).map(|thread| scope.spawn(move || side(thread))).collect();
        let own = side(0);
        others.into_iter().map(|other| other.join().expect("the loops do not fail")).fold(own, Duration::max)
    })
}
