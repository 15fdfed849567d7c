//! A phase: every row on every fixture, in short chunks and in random order, until its time is up.
//!
//! A machine is not the same from one second to the next: clock speed, a neighbour in the shared cache, the hypervisor. Chunks of about
//! 150 µs in random order spread each such moment over all rows, so that it moves a ratio little where it would move the figures
//! of two loops that run one after the other. Shorter chunks would measure cold predictors, longer ones would be preempted more often.

use super::cpus::pin_to;
use super::rendezvous::{Part, Rendezvous};
use super::statistics::median;
use crate::work::{Fixture, ROWS, Work};
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// How long a chunk should take.
pub(crate) const CHUNK: Duration = Duration::from_micros(150);

/// Of a chunk's repetitions, one in so many is run before the clock starts, to load caches and predictors that other rows have used since.
const WARM_UP: u64 = 16;

/// The repetitions of a chunk when nothing is known yet.
const PILOT_TIMES: u64 = 256;

/// A source of random order; SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The bounds are small, so that the bias of the remainder does not matter.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// What is measured in a phase, and for how long.
pub(crate) struct Phase<'f> {
    pub(crate) cpus: &'f [usize],
    pub(crate) fixtures: &'f [Fixture],
    /// Repetitions in a chunk, by row.
    pub(crate) times: &'f [u64],
    pub(crate) budget: Duration,
    pub(crate) seed: u64,
}

/// What a phase gave for one row.
#[derive(Default)]
pub(crate) struct Measured {
    /// Nanoseconds per operation and thread, of the chunks that count, by fixture.
    by_fixture: Vec<Vec<f64>>,
    /// Chunks in which a thread was preempted.
    pub(crate) disturbed: usize,
}

impl Measured {
    /// Every chunk that counts.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = f64> {
        self.by_fixture.iter().flatten().copied()
    }

    /// The typical fixture's typical chunk.
    pub(crate) fn typical(&self) -> Option<f64> {
        median(self.by_fixture.iter().filter_map(|chunks| median(chunks.iter().copied())))
    }
}

/// One thread's view of one chunk.
struct Sample {
    row: usize,
    fixture: usize,
    elapsed: Duration,
    preempted: bool,
}

impl Phase<'_> {
    /// How many repetitions fill a chunk, found by running all rows with few.
    pub(crate) fn pilot(&self) -> Vec<u64> {
        let pilot = Phase { times: &vec![PILOT_TIMES; ROWS.len()], ..*self };
        let fill = |measured: Measured| measured.typical().map_or(PILOT_TIMES, |nanos| (CHUNK.as_nanos() as f64 / nanos.max(0.1)) as u64);
        pilot.run().into_iter().map(|measured| fill(measured).max(1)).collect()
    }

    /// Runs the phase on as many threads as it has CPUs. The calling thread is the first; a second one lives for this phase only.
    pub(crate) fn run(&self) -> Vec<Measured> {
        let rendezvous = Rendezvous::new(self.cpus.len());
        let over = AtomicBool::new(false);
        let sides: Vec<Vec<Sample>> = thread::scope(|scope| {
            let others: Vec<_> = (1..self.cpus.len())
                .map(|thread| {
                    let (rendezvous, over) = (&rendezvous, &over);
                    scope.spawn(move || self.side(thread, rendezvous, over))
                })
                .collect();
            let own = self.side(0, &rendezvous, &over);
            [own].into_iter().chain(others.into_iter().map(|other| other.join().expect("panics end the process"))).collect()
        });
        self.merge(&sides)
    }

    /// One thread's side: the same chunks in the same order on all threads, because all shuffle with the same seed.
    fn side(&self, thread: usize, rendezvous: &Rendezvous, over: &AtomicBool) -> Vec<Sample> {
        pin_to(self.cpus[thread]);
        let mut loops: Vec<(usize, usize, Work<'_>)> = Vec::new();
        for (row, description) in ROWS.iter().enumerate().filter(|(_, row)| row.thread_counts().contains(&self.cpus.len())) {
            for (fixture, measured) in self.fixtures.iter().enumerate() {
                loops.push((row, fixture, description.prepare(measured, thread)));
            }
        }
        let preemptions = Preemptions::of_this_thread();
        let mut random = Random(self.seed);
        let mut samples = Vec::new();
        let start = Instant::now();
        loop {
            random.shuffle(&mut loops);
            for (row, fixture, work) in &mut loops {
                let times = self.times[*row];
                let before = preemptions.count();
                work(times / WARM_UP);
                let part = if ROWS[*row].is_company(thread) { Part::Company } else { Part::Measured(times) };
                let elapsed = deeper(random.below(DEPTHS), || rendezvous.run(part, work));
                let preempted = preemptions.count() != before;
                samples.push(Sample { row: *row, fixture: *fixture, elapsed, preempted });
            }
            if thread == 0 {
                // Relaxed: the meeting publishes it, and the next store comes after everybody's next meeting.
                over.store(start.elapsed() >= self.budget, Relaxed);
            }
            rendezvous.meet();
            if over.load(Relaxed) {
                return samples;
            }
        }
    }

    /// Puts the threads' views of each chunk together. A chunk costs what its slowest measured thread took: when a lock lets one thread run
    /// first and the other afterwards, each looks fast for half of the time and the pair is not.
    fn merge(&self, sides: &[Vec<Sample>]) -> Vec<Measured> {
        let empty = || Measured { by_fixture: vec![Vec::new(); self.fixtures.len()], disturbed: 0 };
        let mut all: Vec<Measured> = ROWS.iter().map(|_| empty()).collect();
        for (chunk, first) in sides[0].iter().enumerate() {
            let into = &mut all[first.row];
            let views = || sides.iter().map(|side| &side[chunk]);
            if views().any(|view| view.preempted) {
                into.disturbed += 1;
                continue;
            }
            let measured = views().enumerate().filter(|&(thread, _)| !ROWS[first.row].is_company(thread));
            let slowest = measured.map(|(_, view)| view.elapsed).max().expect("the first thread is always measured");
            into.by_fixture[first.fixture].push(slowest.as_nanos() as f64 / self.times[first.row] as f64);
        }
        all
    }
}

/// Depths of stack that chunks are run at.
const DEPTHS: usize = 16;

/// Calls `run` with the stack pointer moved down by so many frames. Where the kernel puts a process's stack is luck as well: a result may
/// lie across two cache lines, or agree in its lower twelve address bits with another word of the loop, which then wait for each other, and
/// stay there for the whole process. Sixteen depths spread over about a page let the median see an ordinary place.
#[inline(never)]
fn deeper<R>(frames: usize, run: impl FnOnce() -> R) -> R {
    if frames == 0 {
        return run();
    }
    let frame = [0_u8; 240];
    black_box(&frame);
    let result = deeper(frames - 1, run);
    black_box(&frame);
    result
}

/// How often the kernel took the CPU from this thread while it wanted to run.
struct Preemptions {
    /// Opened on the thread itself, and its own from then on.
    status: File,
}

impl Preemptions {
    fn of_this_thread() -> Self {
        Self { status: File::open("/proc/thread-self/status").expect("procfs") }
    }

    fn count(&self) -> u64 {
        let mut text = [0; 4096];
        let length = self.status.read_at(&mut text, 0).expect("procfs");
        let text = std::str::from_utf8(&text[..length]).expect("procfs writes ASCII");
        let value = text.split("nonvoluntary_ctxt_switches:").nth(1).expect("a line that Linux has had since 2.6.23");
        value.trim().parse().expect("a number")
    }
}
