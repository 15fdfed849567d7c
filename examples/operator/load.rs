//! The threads that use the registry, and its end in order.
//!
//! Workers hold some memory each, of whichever devices and mechanisms. Hardly ever one loses track of a block, which is then in quarantine;
//! the control thread has the allocator asked once more when the mechanism goes. What goes waits for its drain in a list, so that the
//! control thread never stands still:
//!
//! ```text
//! register ──▶ live ── retire ──▶ going ── drained ──▶ removed
//!                └──── lose ────▶ going ── confirm ──▶ removed
//! ```
//!
//! At the end the live ones are retired as well, while workers still give back what they hold.

use crate::{
    Failure,
    memory::{Books, Memory},
    rng::Rng,
};
use crossbeam_utils::CachePadded;
use liveslot::{
    BindingError, BindingRegistry, DeviceHandle, DeviceKey, MechanismLifecycle, OwningAllocation, RegisteredAuthority, RegisteredMechanism,
    RegisteredProviderContext, RemovalError, RemoveWhenDrained,
};
use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

pub(crate) const DEVICES: [DeviceKey; 3] = [DeviceKey::device(0), DeviceKey::device(1), DeviceKey::HOST];

/// Mechanisms of one device that are neither retired nor lost, at most.
const MOST: usize = 3;

/// Blocks that a worker holds, at most.
const HELD: usize = 32;

/// Between two steps of the control thread.
const PAUSE: Duration = Duration::from_millis(20);

/// What the threads share.
pub(crate) struct Shared {
    stop: AtomicBool,
    /// One line per worker, written by that one alone.
    tallies: Box<[CachePadded<Tally>]>,
}

#[derive(Default)]
struct Tally {
    operations: AtomicU64,
    refused: AtomicU64,
}

impl Shared {
    pub(crate) fn new(workers: usize) -> Self {
        Self { stop: AtomicBool::new(false), tallies: (0..workers).map(|_| CachePadded::default()).collect() }
    }

    pub(crate) fn stopping(&self) -> bool {
        // Relaxed: the flag carries no data.
        self.stop.load(Relaxed)
    }

    /// Whether that had been asked for before.
    pub(crate) fn stop(&self) -> bool {
        self.stop.swap(true, Relaxed)
    }

    /// Operations that succeeded and that were refused, so far.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let sum = |of: fn(&Tally) -> &AtomicU64| self.tallies.iter().map(|tally| of(tally).load(Relaxed)).sum();
        (sum(|tally| &tally.operations), sum(|tally| &tally.refused))
    }
}

struct Worker {
    devices: [DeviceHandle; DEVICES.len()],
    shared: Arc<Shared>,
    index: usize,
    rng: Rng,
}

impl Worker {
    fn run(mut self) {
        const LOSES_TRACK: usize = 1 << 17;
        let shared = Arc::clone(&self.shared);
        let tally = &shared.tallies[self.index];
        let count = |succeeded| {
            let count = if succeeded { &tally.operations } else { &tally.refused };
            count.store(count.load(Relaxed) + 1, Relaxed);
        };
        let mut held: Vec<OwningAllocation> = Vec::new();
        while !shared.stopping() {
            if held.len() < HELD && self.rng.one_in(2) {
                let memory = self.obtain();
                count(memory.is_ok());
                held.extend(memory);
            } else if !held.is_empty() {
                let memory = held.swap_remove(self.rng.below(held.len()));
                if self.rng.one_in(LOSES_TRACK) {
                    drop(memory);
                } else {
                    count(memory.release_now().is_ok());
                }
            }
        }
        for memory in held {
            // Refused on a lost device, where it is written off.
            let _ = memory.release_now();
        }
    }

    fn obtain(&mut self) -> Result<OwningAllocation, BindingError> {
        let device = self.rng.below(DEVICES.len());
        self.devices[device].bind()?.allocate_owning(64 << self.rng.below(7), 64)
    }
}

struct Mechanism {
    token: RegisteredMechanism,
    context: RegisteredProviderContext,
    authority: RegisteredAuthority,
    books: Arc<Books>,
}

/// How the load has ended.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    mechanisms: usize,
    /// Of these.
    lost: usize,
    blocks: [u64; 3],
    left: usize,
}

impl Ending {
    /// Nothing is left, and each block that was allocated was released, or given back by its allocator's destructor.
    pub(crate) fn is_in_order(&self) -> bool {
        let [allocated, released, reclaimed] = self.blocks;
        self.left == 0 && allocated == released + reclaimed
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mechanisms, lost, blocks: [allocated, released, reclaimed], left } = self;
        write!(
            formatter,
            "{mechanisms} mechanisms were registered, {lost} of them lost, {left} are left; of {allocated} blocks {released} were released \
             and {reclaimed} given back with their allocators"
        )
    }
}

struct Control {
    registry: BindingRegistry,
    shared: Arc<Shared>,
    rng: Rng,
    live: Vec<Mechanism>,
    going: Vec<(Mechanism, RemoveWhenDrained)>,
    removed: Vec<Arc<Books>>,
    lost: usize,
}

impl Control {
    fn run(mut self) -> Result<Self, Failure> {
        while !self.shared.stopping() {
            self.step()?;
            // Ends early when the run stops.
            thread::park_timeout(PAUSE);
        }
        Ok(self)
    }

    fn step(&mut self) -> Result<(), Failure> {
        let device = DEVICES[self.rng.below(DEVICES.len())];
        let live: Vec<usize> = (0..self.live.len()).filter(|index| self.live[*index].token.device() == device).collect();
        if live.is_empty() {
            // Lost a while ago.
            self.register(device)?;
            return self.settle();
        }
        let any = live[self.rng.below(live.len())];
        match self.rng.below(16) {
            0 => self.lose(device)?,
            1 => drop(self.registry.deselect(device)),
            2..=4 if live.len() > 1 => self.retire(any)?,
            5..=7 if live.len() < MOST => self.register(device)?,
            _ => self.registry.select(self.live[any].token)?,
        }
        self.settle()
    }

    /// The new mechanism is selected if nothing is.
    fn register(&mut self, device: DeviceKey) -> Result<(), Failure> {
        let (memory, books) = Memory::new(device);
        let context = self.registry.register_provider_context(device, Arc::new("a context"))?;
        let authority = self.registry.register_authority(device, Arc::new("an authority"))?;
        let token = self.registry.register_allocator(context, authority, memory)?;
        self.live.push(Mechanism { token, context, authority, books });
        Ok(())
    }

    fn retire(&mut self, index: usize) -> Result<(), Failure> {
        let mechanism = self.live.swap_remove(index);
        let removal = self.registry.remove_when_drained(mechanism.token)?;
        self.registry.retire(mechanism.token)?;
        self.going.push((mechanism, removal));
        Ok(())
    }

    /// With everything on it.
    fn lose(&mut self, device: DeviceKey) -> Result<(), Failure> {
        self.registry.invalidate_device(device, "it fell off the bus")?;
        for mechanism in self.live.extract_if(.., |mechanism| mechanism.token.device() == device) {
            self.lost += 1;
            let removal = self.registry.remove_when_drained(mechanism.token)?;
            self.going.push((mechanism, removal));
        }
        Ok(())
    }

    /// Removes what has drained, and helps along what doesn't drain by itself.
    fn settle(&mut self) -> Result<(), Failure> {
        let mut still = Vec::new();
        for (mechanism, mut removal) in self.going.drain(..) {
            let state = match removal.wait(Duration::ZERO) {
                Ok(()) => {
                    self.registry.remove_authority(mechanism.authority)?;
                    self.registry.remove_provider_context(mechanism.context)?;
                    self.removed.push(mechanism.books);
                    continue;
                }
                Err(RemovalError::TimedOut(report)) => report.snapshot,
                Err(refused) => return Err(refused.into()),
            };
            match state.lifecycle {
                MechanismLifecycle::DeviceLost => match self.registry.confirm_context_terminated(mechanism.context) {
                    // A call that had begun before the loss.
                    Ok(()) | Err(BindingError::ContextNotQuiescent { .. }) => {}
                    Err(refused) => return Err(refused.into()),
                },
                _ if state.quarantined_allocations != 0 => {
                    self.registry.retry_quarantined(mechanism.token, usize::MAX)?;
                }
                _ => {}
            }
            still.push((mechanism, removal));
        }
        self.going = still;
        Ok(())
    }

    /// Retires what is live, and waits until all has drained and is removed.
    fn finish(&mut self, deadline: Instant) -> Result<(), Failure> {
        while !self.live.is_empty() {
            self.retire(0)?;
        }
        loop {
            self.settle()?;
            let Some((_, removal)) = self.going.first() else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err(format!("{} mechanisms don't drain, the first: {}", self.going.len(), removal.report()).into());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Adds up. An allocator's books are final once nobody holds a block of it any more.
    fn account(&self) -> Result<Ending, Failure> {
        let (mechanisms, left) = (self.removed.len(), self.registry.snapshots()?.len());
        let mut blocks = [0; 3];
        for sums in self.removed.iter().map(|books| books.sums()) {
            blocks = std::array::from_fn(|index| blocks[index] + sums[index]);
        }
        Ok(Ending { mechanisms, lost: self.lost, blocks, left })
    }
}

/// The running threads.
pub(crate) struct Load {
    shared: Arc<Shared>,
    control: JoinHandle<Result<Control, Failure>>,
    workers: Vec<JoinHandle<()>>,
}

impl Load {
    /// One mechanism of each device is registered when this returns.
    pub(crate) fn start(registry: &BindingRegistry, shared: &Arc<Shared>, seed: u64) -> Result<Self, Failure> {
        let (live, going, removed) = Default::default();
        let (registry, shared) = (registry.clone(), Arc::clone(shared));
        let mut control = Control { registry, shared, rng: Rng::new(seed, 0), live, going, removed, lost: 0 };
        DEVICES.into_iter().try_for_each(|device| control.register(device))?;
        let (registry, shared) = (control.registry.clone(), Arc::clone(&control.shared));

        let spawn = |index| {
            let (devices, shared) = (DEVICES.map(|device| registry.device(device)), Arc::clone(&shared));
            let worker = Worker { devices, shared, index, rng: Rng::new(seed, 1 + index as u64) };
            thread::Builder::new().name(format!("worker {index}")).spawn(|| worker.run())
        };
        let workers = (0..shared.tallies.len()).map(spawn).collect::<io::Result<_>>()?;
        let control = thread::Builder::new().name("control".into()).spawn(|| control.run())?;
        Ok(Self { shared, control, workers })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Whether a thread has ended by itself, which is a failure.
    pub(crate) fn has_ended(&self) -> bool {
        self.control.is_finished() || self.workers.iter().any(JoinHandle::is_finished)
    }

    /// The end in order: no new work, retire, drain, remove. Then no thread of the load is left.
    pub(crate) fn end(self, patience: Duration) -> Result<Ending, Failure> {
        let deadline = Instant::now() + patience;
        self.shared.stop();
        self.control.thread().unpark();
        let mut control = join(self.control, deadline)??;
        control.finish(deadline)?;
        self.workers.into_iter().try_for_each(|worker| join(worker, deadline))?;
        let shutdown = control.registry.shutdown(deadline.saturating_duration_since(Instant::now()))?;
        if !shutdown.is_complete() {
            return Err(shutdown.to_string().into());
        }
        control.account()
    }
}

pub(crate) fn join<T>(thread: JoinHandle<T>, deadline: Instant) -> Result<T, Failure> {
    let name = thread.thread().name().unwrap_or_default().to_owned();
    while !thread.is_finished() {
        if Instant::now() >= deadline {
            return Err(format!("{name} does not stop").into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    thread.join().map_err(|_| format!("{name} panicked").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_order() {
        let in_order = |left, blocks| Ending { left, blocks, ..Ending::default() }.is_in_order();
        assert!(in_order(0, [7, 5, 2]));
        assert!(!in_order(1, [7, 5, 2]));
        assert!(!in_order(0, [7, 5, 1]));
        assert!(!in_order(0, [7, 6, 2]));
    }

    /// All kinds of steps, and no worker: each ends with nothing left.
    #[test]
    fn the_control_thread_alone() {
        for seed in 0..8 {
            let shared = Arc::new(Shared::new(0));
            let load = Load::start(&BindingRegistry::new().unwrap(), &shared, seed).unwrap();
            let mut control = {
                shared.stop();
                join(load.control, Instant::now() + Duration::from_secs(20)).unwrap().unwrap()
            };
            for _ in 0..200 {
                control.step().unwrap();
            }
            assert!(control.lost > 0 && control.removed.len() > control.lost);
            control.finish(Instant::now()).unwrap();
            let ending = control.account().unwrap();
            assert!(ending.is_in_order() && ending.mechanisms > 20, "{ending}");
        }
    }
}
