//! Memory that is released in the order in which a device gets done with it.
//!
//! A program launches work on streams and gives the memory up at once: the work is still to come. Each release waits in one bounded queue,
//! with a marker of how far its stream has to come; polling executes those whose moment has come. One stream gets stuck, one is destroyed
//! before its work is done, the queue fills up, and in the end the device is lost.
//!
//! ```text
//! cargo run --example deferred_release
//! ```
//!
//! The device is played: its "memory" is the heap's, its streams do their work when they are told to. Work looks at the memory that it was
//! launched on, and released memory is overwritten (and kept until the end, so that looking at it is no crime): what is released too early
//! is found.
//!
//! Exit code 0: all invariants held. 1: one is broken.

use liveslot::{
    AllocationReleaseOutcome, BindingRegistry, DeferredEnqueueError, DeferredEnqueueRejection, DeferredReleaseQueue, DeviceAllocator,
    DeviceKey, HostAllocator, MemoryBinding, MemoryError, OwningAllocation, PreparedAllocationRelease, ReleaseAccounting,
    release::{BoundedQueue, Drained},
};
use std::{
    collections::VecDeque,
    error::Error,
    fmt::{Debug, Write},
    process::ExitCode,
    ptr::NonNull,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::*},
    },
    thread,
};

const DEVICE: DeviceKey = DeviceKey::device(0);
/// Block `n` has `n` times as many bytes.
const UNIT: usize = 256;
const CAPACITY: usize = 6;
/// What released memory is overwritten with.
const RELEASED: u8 = 0xDD;

/// Memory of the device.
#[derive(Debug, Default)]
struct Memory {
    blocks: Mutex<Vec<(Address, usize)>>,
    /// The numbers of the blocks that were released, in order.
    released: Mutex<Vec<usize>>,
}

#[derive(Clone, Copy, Debug)]
struct Address(NonNull<u8>);

// SAFETY: an address of the heap, which any thread may use.
unsafe impl Send for Address {}

impl DeviceAllocator for Memory {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        assert_eq!(align, UNIT);
        let pointer = HostAllocator.allocate(bytes, align)?;
        self.blocks.lock().unwrap().push((Address(pointer), bytes));
        Ok(pointer)
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, bytes: usize, _: usize) {
        // SAFETY: a block of ours of this size, which stands until the end.
        unsafe { pointer.write_bytes(RELEASED, bytes) };
        self.released.lock().unwrap().push(bytes / UNIT);
    }

    unsafe fn release(&self, pointer: NonNull<u8>, bytes: usize, align: usize) -> AllocationReleaseOutcome {
        // SAFETY: as the caller says.
        unsafe { self.deallocate(pointer, bytes, align) };
        AllocationReleaseOutcome::complete(ReleaseAccounting::new(bytes as u64, bytes as u64))
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for (Address(pointer), bytes) in self.blocks.get_mut().unwrap().drain(..) {
            // SAFETY: made by the heap with these values, and freed nowhere else.
            unsafe { HostAllocator.deallocate(pointer, bytes, UNIT) };
        }
    }
}

/// What the device has to do for one stream. It goes on when the program has let go of the stream.
#[derive(Debug, Default)]
struct Lane {
    work: Mutex<VecDeque<Work>>,
    completed: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Work {
    block: usize,
    address: Address,
}

impl Lane {
    /// The device does the next `n` pieces of work. Says which have found their memory gone.
    fn run(&self, n: usize) -> Vec<usize> {
        let mut gone = Vec::new();
        for Work { block, address } in self.work.lock().unwrap().drain(..n) {
            // SAFETY: a block of this size, which stands until the end of the allocator; nobody writes it but its release.
            let memory = unsafe { std::slice::from_raw_parts(address.0.as_ptr(), block * UNIT) };
            if memory.iter().any(|byte| *byte != block as u8) {
                gone.push(block);
            }
            // Release: the work is done before anybody learns of it.
            self.completed.fetch_add(1, Release);
        }
        gone
    }
}

/// How far a stream has to come before a release.
#[derive(Debug)]
struct Marker {
    completed: Arc<AtomicU64>,
    upto: u64,
}

impl Marker {
    fn has_come(&self) -> bool {
        // Acquire: pairs with `Lane::run`.
        self.completed.load(Acquire) >= self.upto
    }
}

/// The program's hold on a stream: a queue for releases that have to wait for everything that was launched on it.
#[derive(Debug)]
struct Stream {
    lane: Arc<Lane>,
    launched: AtomicU64,
    releases: Arc<BoundedQueue<Marker>>,
}

impl Stream {
    fn new(lane: &Arc<Lane>, releases: &Arc<BoundedQueue<Marker>>) -> Self {
        Self { lane: Arc::clone(lane), launched: AtomicU64::new(0), releases: Arc::clone(releases) }
    }

    /// Launches work on a new block, which the work will find as it is now.
    fn launch(&self, binding: &MemoryBinding, block: usize) -> Result<OwningAllocation, Box<dyn Error>> {
        let memory = binding.allocate_owning(block * UNIT, UNIT)?;
        // SAFETY: a new block of this size, which nobody else has.
        unsafe { memory.as_ptr().write_bytes(block as u8, block * UNIT) };
        self.lane.work.lock().unwrap().push_back(Work { block, address: Address(memory.as_ptr()) });
        self.launched.fetch_add(1, Relaxed);
        Ok(memory)
    }
}

impl DeferredReleaseQueue for Stream {
    fn enqueue(&self, request: PreparedAllocationRelease) -> Result<(), DeferredEnqueueError> {
        let marker = Marker { completed: Arc::clone(&self.lane.completed), upto: self.launched.load(Relaxed) };
        self.releases.enqueue_marked(request, marker)
    }

    fn pending(&self) -> usize {
        self.releases.pending()
    }
}

/// Tells what happens, and whether it is what should.
#[derive(Default)]
struct Report {
    text: String,
    broken: usize,
}

impl Report {
    fn say(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    fn expect<T: Debug + PartialEq>(&mut self, what: &str, got: T, expected: T) {
        if got != expected {
            self.broken += 1;
            writeln!(self.text, "BROKEN: {what}: {got:?} instead of {expected:?}").expect("a string takes everything");
        }
    }
}

fn poll(releases: &BoundedQueue<Marker>) -> Drained {
    releases.drain_ready(usize::MAX, |_, marker| marker.has_come())
}

fn play(report: &mut Report) -> Result<(), Box<dyn Error>> {
    let memory = Arc::new(Memory::default());
    let registry = BindingRegistry::new()?;
    let context = registry.register_provider_context(DEVICE, Arc::new("a context"))?;
    let authority = registry.register_authority(DEVICE, Arc::new("an authority"))?;
    let mechanism = registry.register_allocator(context, authority, Arc::clone(&memory) as Arc<dyn DeviceAllocator>)?;
    let binding = registry.bind(DEVICE)?;

    let releases = Arc::new(BoundedQueue::with_markers(CAPACITY));
    let [copies, sums, hangs] = [(); 3].map(|()| Arc::<Lane>::default());
    let [copy, sum, hung] = [&copies, &sums, &hangs].map(|lane| Stream::new(lane, &releases));
    let mut new_releases = {
        let (memory, mut seen) = (Arc::clone(&memory), 0);
        move || {
            let released = memory.released.lock().unwrap();
            let new = released[seen..].to_vec();
            seen = released.len();
            new
        }
    };

    report.say("Five blocks are launched on and given up at once: 1 and 4 on `copy`, 2 and 5 on `sum`, 3 on `hung`.");
    for (stream, block) in [(&copy, 1), (&sum, 2), (&hung, 3), (&copy, 4), (&sum, 5)] {
        let disposition = stream.launch(&binding, block)?.release_deferred(stream)?;
        report.expect("taken", disposition.is_queued(), true);
    }
    let drained = poll(&releases);
    report.say(format!("Nothing has run: {} wait, {} are released.", releases.pending(), drained.released));
    report.expect("waiting", (releases.pending(), drained.not_ready), (5, 5));

    report.expect("memory that `sum` found gone", sums.run(2), vec![]);
    report.expect("released", poll(&releases).released, 2);
    let new = new_releases();
    report.say(format!("`sum` has done all its work: {new:?} are released, though 1 is older."));
    report.expect("released", new, vec![2, 5]);

    report.expect("memory that `copy` found gone", copies.run(1), vec![]);
    report.expect("released", poll(&releases).released, 1);
    let new = new_releases();
    report.say(format!("`copy` has done half: {new:?} is released, though `hung` never moves."));
    report.expect("released", new, vec![1]);

    drop(copy);
    report.say(format!("`copy` is destroyed with work to come: {} wait.", releases.pending()));
    report.expect("released by the end of a stream", poll(&releases).released, 0);
    report.expect("memory that `copy` found gone", copies.run(1), vec![]);
    report.expect("released", poll(&releases).released, 1);
    let new = new_releases();
    report.say(format!("The device gets it done all the same: {new:?} is released."));
    report.expect("released", new, vec![4]);

    let room = releases.capacity() - releases.pending();
    for block in 6..6 + room {
        let disposition = sum.launch(&binding, block)?.release_deferred(&sum)?;
        report.expect("taken", disposition.is_queued(), true);
    }
    let request = sum.launch(&binding, 11)?.prepare_release()?;
    let refused = sum.enqueue(request).err().ok_or("a full queue took another")?;
    report.say(format!("{} wait, and 11 is refused: {}.", releases.pending(), refused.rejection().name()));
    report.expect("rejection", refused.rejection(), DeferredEnqueueRejection::Full);
    report.expect("memory that `sum` found gone", sums.run(3), vec![]);
    report.expect("released", poll(&releases).released, 3);
    sum.enqueue(refused.into_request())?;
    let new = new_releases();
    report.say(format!("`sum` goes on: {new:?} are released, and there is room for 11."));
    report.expect("released", new, vec![6, 7, 8]);

    report.expect("memory that `sum` found gone", sums.run(3), vec![]);
    let polled = thread::scope(|scope| {
        let pollers = [(); 2].map(|()| scope.spawn(|| poll(&releases).released));
        pollers.map(|poller| poller.join().expect("no release panics")).into_iter().sum()
    });
    // Two who poll take turns as they come.
    let mut new = new_releases();
    new.sort_unstable();
    report.say(format!("`sum` is done, and two threads poll at once: {new:?} are released, each by one of them."));
    report.expect("released", (polled, new), (3, vec![9, 10, 11]));

    registry.invalidate_device(DEVICE, "it hangs")?;
    let drained = poll(&releases);
    report.say(format!(
        "The device is lost: {} waited for `hung`, and is kept in quarantine ({} bytes).",
        drained.quarantined, drained.retained_bytes
    ));
    report.expect("kept", (drained.executed(), drained.quarantined, drained.retained_bytes), (1, 1, 3 * UNIT as u64));
    report.expect("left to close", releases.close(), Drained::default());
    report.expect("released after the loss", new_releases(), vec![]);

    let now = registry.snapshot(mechanism)?;
    let counts = (now.live_allocations, now.queued_releases, now.quarantined_allocations, now.active_operations);
    report.expect("live, queued, quarantined, operations", counts, (0, 0, 1, 0));
    registry.confirm_context_terminated(context)?;
    drop(binding);
    registry.remove(mechanism)?;
    registry.remove_authority(authority)?;
    registry.remove_provider_context(context)?;
    let (allocated, released) = (memory.blocks.lock().unwrap().len(), memory.released.lock().unwrap().len());
    report.say(format!("Of {allocated} blocks {released} were released and 1 was quarantined; none was released while work was to come."));
    report.expect("allocated", allocated, released + 1);
    Ok(())
}

fn main() -> ExitCode {
    let mut report = Report::default();
    if let Err(error) = play(&mut report) {
        report.broken += 1;
        report.say(format!("BROKEN: {error}"));
    }
    print!("{}", report.text);
    println!("{} invariants broken", report.broken);
    ExitCode::from(u8::from(report.broken > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_invariants_hold() {
        let mut report = Report::default();
        play(&mut report).unwrap();
        assert_eq!(report.broken, 0, "{}", report.text);
    }
}
