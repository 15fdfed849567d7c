//! Hot swapping under load, on real memory, with every answer checked.
//!
//! Worker threads bind, allocate, fill, verify a checksum and release, as fast as they can; some releases they leave to a
//! thread of its own. Meanwhile one control thread selects another allocator a few thousand times a second, registers new
//! ones, retires and removes old ones, declares the device lost with everything on it, and recovers. The memory is the
//! process heap and address space with pages that come and go, in turns, all of it charged to one budget.
//!
//! ```text
//! cargo run --release --example hot_swap -- --seconds 10
//! ```
//!
//! | Module | What |
//! | --- | --- |
//! | `worker` | the loop of a worker, and which refusals it accepts |
//! | `releaser` | the thread that executes deferred releases |
//! | `control` | the life cycle of the mechanisms, and what each call must answer |
//! | `allocators` | the two kinds of memory, and the witness that counts blocks and checks the order of destruction |
//! | `audit` | whether the budget's figures are right |
//! | `shared` | how a thread knows that something happened before or during something else |
//! | `report` | the table and the JSON object |
//! | `grouped` | numbers for people |
//!
//! Exit code 0: all invariants held. 1: one is broken, or a thread did not stop. 2: unusable options.

mod allocators;
mod audit;
mod control;
mod grouped;
mod releaser;
mod report;
mod rng;
mod shared;
mod worker;

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use liveslot::{BindingError, BindingRegistry, DeviceKey};

use crate::control::Control;
use crate::grouped::Grouped;
use crate::releaser::{QUEUE, Releaser};
use crate::report::Report;
use crate::rng::Rng;
use crate::shared::Shared;
use crate::worker::{INBOX, Worker};

/// Swaps device-memory allocators under load, on real host memory, and checks every answer.
///
/// Ends by itself or on Ctrl-C, and prints what it has. A second Ctrl-C ends at once.
/// Exit code 0: all invariants held. 1: one is broken. 2: an option is out of its range. 130: ended by a second Ctrl-C.
#[derive(Debug, Parser)]
#[command(allow_negative_numbers = true)]
struct Options {
    /// Worker threads, 1 to 256; one control thread and one that releases come on top [default: the number of cores, at least 2]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// How long to run, in seconds, 1 to 86 400
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,

    /// Pause between two steps of the control thread, in microseconds, up to 60 000 000; 0 only yields. A step selects one to eight times
    /// in a row and may retire or register one mechanism, or lose the device
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 200, value_parser = clap::value_parser!(u32).range(0..=60_000_000))]
    swap_every: u32,

    /// Decides what the threads do, though not how they interleave
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Print one JSON object instead of progress and tables; durations in nanoseconds unless the name says seconds
    #[arg(long)]
    json: bool,
}

impl Options {
    fn threads(&self) -> usize {
        let default = || thread::available_parallelism().map_or(2, |cores| cores.get().max(2));
        self.threads.map_or_else(default, usize::from)
    }
}

/// A thread that takes longer than this to stop is stuck.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(report) => {
            let mut out = io::stdout().lock();
            let written = if options.json { report.write_json(&mut out) } else { report.write_table(&mut out) };
            // A reader that has gone away does not change the verdict.
            let _ = written.and_then(|()| out.flush());
            if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(failure) => {
            eprintln!("hot_swap: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<Report, Box<dyn Error>> {
    let threads = options.threads();
    let shared = Arc::new(Shared::new(DeviceKey::device(0), threads, worker::budget(threads), QUEUE));
    stop_on_ctrl_c(shared.clone())?;
    let (control, workers) = set_up(options, &shared)?;

    let begun = Instant::now();
    let mut running = Vec::new();
    for (index, worker) in workers.into_iter().enumerate() {
        running.push(spawn(format!("worker {index}"), worker, Worker::run)?);
    }
    let control = spawn("control".to_owned(), control, Control::run)?;
    let releaser = spawn("releaser".to_owned(), Releaser::new(shared.clone()), Releaser::run)?;
    let any_ended = || control.is_finished() || releaser.is_finished() || running.iter().any(JoinHandle::is_finished);
    watch(options, begun, &shared, any_ended);

    shared.stop.store(true, Ordering::Relaxed);
    control.thread().unpark();
    let stopping = Instant::now();
    while !(control.is_finished() && releaser.is_finished() && running.iter().all(JoinHandle::is_finished)) {
        if stopping.elapsed() > PATIENCE {
            return Err(format!("a thread is still inside a call, {PATIENCE:?} after it was told to stop").into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    let elapsed = begun.elapsed();

    let mut panicked = Vec::new();
    let mut stopped = Vec::new();
    for worker in running {
        let name = worker.thread().name().unwrap_or_default().to_owned();
        match worker.join() {
            Ok(worker) => stopped.push(worker),
            Err(_) => panicked.push(name),
        }
    }
    let control = control.join().map_err(|_| "the control thread panicked")?;
    let releaser = releaser.join().map_err(|_| "the releasing thread panicked")?;
    // All have stopped, so nobody sends to anybody's inbox any more.
    let workers = stopped.into_iter().map(Worker::finish).collect();
    let deferred = releaser.finish();
    let control = control.tear_down();
    Ok(Report::new(elapsed, options.seed, workers, &panicked, control, deferred, shared.budget.snapshot()))
}

/// The first Ctrl-C stops the run, the second one the process.
fn stop_on_ctrl_c(shared: Arc<Shared>) -> Result<(), ctrlc::Error> {
    const INTERRUPTED: i32 = 130;
    let main = thread::current();
    ctrlc::set_handler(move || {
        if shared.stop.swap(true, Ordering::Relaxed) {
            process::exit(INTERRUPTED);
        }
        main.unpark();
    })
}

/// The control thread with one mechanism of each kind registered, and the workers in a ring, each one sending to the
/// next.
fn set_up(options: &Options, shared: &Arc<Shared>) -> Result<(Control, Vec<Worker>), BindingError> {
    let registry = BindingRegistry::new()?;
    let swap_every = Duration::from_micros(options.swap_every.into());
    let mut control = Control::new(shared.clone(), registry.clone(), Rng::new(options.seed, 0), swap_every);

    let (outboxes, mut inboxes): (Vec<_>, Vec<_>) = (0..options.threads()).map(|_| mpsc::sync_channel(INBOX)).unzip();
    inboxes.rotate_right(1);
    let ends = outboxes.into_iter().zip(inboxes).enumerate();
    let workers = ends
        .map(|(index, ends)| {
            let rng = Rng::new(options.seed, 1 + index as u64);
            Worker::new(index, shared.clone(), registry.clone(), control.news(), rng, ends)
        })
        .collect();

    control.start();
    Ok((control, workers))
}

/// Runs `work` on a thread of its own, which hands the worked-on value back.
fn spawn<T: Send + 'static>(name: String, mut value: T, work: fn(&mut T)) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name(name).spawn(move || {
        work(&mut value);
        value
    })
}

/// Shows progress until the time is over, or the run is stopped, or `ended` says that a thread has ended by itself.
fn watch(options: &Options, begun: Instant, shared: &Shared, ended: impl Fn() -> bool) {
    const TICK: Duration = Duration::from_millis(100);
    let length = Duration::from_secs(options.seconds.into());
    let bar = progress_bar(options, length);
    loop {
        let elapsed = begun.elapsed();
        if elapsed >= length || shared.stopping() || ended() {
            break;
        }
        bar.set_position(elapsed.as_millis() as u64);
        bar.set_message(progress(shared, elapsed));
        // A Ctrl-C ends the pause.
        thread::park_timeout(TICK.min(length - elapsed));
    }
    bar.finish_and_clear();
}

fn progress_bar(options: &Options, length: Duration) -> ProgressBar {
    let hidden = options.json || !io::stderr().is_terminal();
    let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let style = ProgressStyle::with_template("{elapsed:>4} {wide_bar} {msg}").expect("the template is valid");
    ProgressBar::with_draw_target(Some(length.as_millis() as u64), target).with_style(style)
}

fn progress(shared: &Shared, elapsed: Duration) -> String {
    // Relaxed: progress figures.
    let operations: u64 = shared.operations.iter().map(|count| count.load(Ordering::Relaxed)).sum();
    let rate = operations as f64 / elapsed.as_secs_f64().max(0.001);
    let of = |count: &AtomicU64| Grouped(count.load(Ordering::Relaxed));
    let control = &shared.progress;
    format!(
        "{} operations/s, {} selects, {} retirements, {} losses",
        Grouped(rate as u64),
        of(&control.selects),
        of(&control.retirements),
        of(&control.losses)
    )
}
