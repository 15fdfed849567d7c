//! A server on tokio whose device is lost in the middle: no request is lost that had not begun.
//!
//! Requests bind to whatever is selected, allocate, work, release. Half of them are served when the device is lost under those that are at
//! work: their memory is gone, and they fail. All others have not begun. Who finds nothing selected waits with
//! `SelectionWatch::changed`; a task that has waited with `SelectionWatch::lost` confirms the end of the old context and registers a
//! replacement, which is selected by that, and the server goes on. In the end both mechanisms drain and are removed.
//!
//! ```text
//! cargo run --release --example serve
//! ```
//!
//! The loss comes when it is known exactly who is at work, so every count is exact: of requests, and of blocks in each allocator's own books.
//! The device is played, see `memory`.
//!
//! Exit code 0: all invariants held. 1: one is broken, or a call failed, or something hung. 2: an option is out of its range.

mod memory;

use crate::memory::{Books, Memory};
use clap::Parser;
use liveslot::{
    BindingError, BindingRegistry, DeviceHandle, DeviceKey, MechanismIdentity, MemoryBinding, OwningAllocation, RegisteredAuthority,
    RegisteredMechanism, RegisteredProviderContext,
};
use serde_json::json;
use std::{
    error::Error,
    fmt::Debug,
    io::{self, Write},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::{Barrier, Semaphore},
    task::{JoinSet, yield_now},
    time::timeout,
};

type Failure = Box<dyn Error + Send + Sync>;

const DEVICE: DeviceKey = DeviceKey::device(0);
/// What a request allocates, in bytes.
const BYTES: usize = 4096;
/// Requests on the device at once.
const ROOM: usize = 8;
/// Whatever takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Serves requests on tokio, loses the device under those that are at work, and goes on with a replacement.
///
/// Exit code 0: every request was served, or failed because it had begun on the lost device. 1: not so. 2: an option is out of its range.
#[derive(Debug, Parser)]
struct Options {
    /// Requests, 32 to 1 000 000; half of them are served before the loss
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(4 * ROOM as i64..=1_000_000))]
    requests: u32,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// A registered allocator with what belongs to it.
struct Backend {
    context: RegisteredProviderContext,
    authority: RegisteredAuthority,
    mechanism: RegisteredMechanism,
    books: Arc<Books>,
}

impl Backend {
    fn register(registry: &BindingRegistry) -> Result<Self, BindingError> {
        let (memory, books) = Memory::new(DEVICE);
        let context = registry.register_provider_context(DEVICE, Arc::new("a context"))?;
        let authority = registry.register_authority(DEVICE, Arc::new("an authority"))?;
        let mechanism = registry.register_allocator(context, authority, memory)?;
        Ok(Self { context, authority, mechanism, books })
    }

    async fn remove(&self, registry: &BindingRegistry) -> Result<(), Failure> {
        registry.remove_when_drained(self.mechanism)?.await?;
        registry.remove_authority(self.authority)?;
        registry.remove_provider_context(self.context)?;
        Ok(())
    }
}

/// What the tasks share.
struct Server {
    device: DeviceHandle,
    room: Semaphore,
    /// How many requests have begun.
    begun: AtomicUsize,
    /// The `ROOM` requests that begin after so many are at work when the device is lost.
    before_the_loss: usize,
    all_at_work: Barrier,
    device_is_lost: Barrier,
    /// A permit for each request that has found nothing selected.
    waiting: Semaphore,
}

struct Answer {
    waited: bool,
    on: MechanismIdentity,
    /// Or why it failed.
    served: Result<(), Arc<str>>,
}

impl Server {
    fn new(device: DeviceHandle, requests: usize) -> Self {
        Self {
            device,
            room: Semaphore::new(ROOM),
            begun: AtomicUsize::new(0),
            before_the_loss: requests / 2,
            all_at_work: Barrier::new(ROOM + 1),
            device_is_lost: Barrier::new(ROOM + 1),
            waiting: Semaphore::new(0),
        }
    }

    async fn serve(&self, request: usize) -> Result<Answer, Failure> {
        let _room = self.room.acquire().await?;
        // Before the first look: whatever changes afterwards is seen.
        let mut watch = self.device.watch();
        let mut waited = false;
        let (binding, memory) = loop {
            if let Some(begun) = self.begin()? {
                break begun;
            }
            if !waited {
                waited = true;
                self.waiting.add_permits(1);
            }
            watch.changed().await?;
        };
        let on = binding.identity().mechanism();
        let served = match self.work(request, &binding, memory).await {
            Ok(()) => Ok(()),
            Err(BindingError::DeviceLost { reason, .. }) => Err(reason),
            Err(other) => return Err(other.into()),
        };
        Ok(Answer { waited, on, served })
    }

    /// `None`: nothing is selected, or what was has just died. The request has not begun then, and loses nothing.
    fn begin(&self) -> Result<Option<(MemoryBinding, OwningAllocation)>, BindingError> {
        let binding = match self.device.bind() {
            Err(BindingError::NoSelectedMechanism(_)) => return Ok(None),
            binding => binding?,
        };
        match binding.allocate_owning(BYTES, 64) {
            Err(BindingError::DeviceLost { .. } | BindingError::InactiveMechanism { .. }) => Ok(None),
            memory => Ok(Some((binding, memory?))),
        }
    }

    /// On a lost device dropping the memory changes nothing: it is written off with its context.
    async fn work(&self, request: usize, binding: &MemoryBinding, memory: OwningAllocation) -> Result<(), BindingError> {
        let view = memory.bound().view(0, BYTES)?;
        // SAFETY: the view is the request's own, and is read only below.
        binding.with_view(&view, |view| unsafe { view.as_ptr().as_ptr().write_bytes(request as u8, view.len()) })?;
        let before = self.begun.fetch_add(1, Relaxed);
        if (self.before_the_loss..self.before_the_loss + ROOM).contains(&before) {
            self.all_at_work.wait().await;
            self.device_is_lost.wait().await;
        } else {
            yield_now().await;
        }
        let intact = binding.with_view(&view, |view| {
            // SAFETY: written above.
            let bytes = unsafe { std::slice::from_raw_parts(view.as_ptr().as_ptr(), view.len()) };
            bytes.iter().all(|byte| *byte == request as u8)
        })?;
        assert!(intact, "somebody else has written request {request}'s memory");
        memory.release_now().map(drop).map_err(|refused| refused.into_parts().0)
    }
}

/// What has happened, and whether it is what should.
#[derive(Default)]
struct Report {
    before: usize,
    failed: usize,
    waited: usize,
    after: usize,
    reason: String,
    broken: Vec<String>,
}

impl Report {
    fn expect<T: Debug + PartialEq>(&mut self, what: &str, got: T, expected: T) {
        if got != expected {
            self.broken.push(format!("{what}: {got:?} instead of {expected:?}"));
        }
    }

    fn print(&self, json: bool, out: &mut impl Write) -> io::Result<()> {
        let Self { before, failed, waited, after, reason, broken } = self;
        if json {
            let served = json!({ "before_the_loss": before, "by_the_replacement": after });
            return writeln!(
                out,
                "{}",
                json!({ "served": served, "failed": failed, "waited": waited, "reason": reason, "broken": broken })
            );
        }
        writeln!(out, "{} requests, {ROOM} at once on the device.", before + failed + after)?;
        writeln!(out, "{before} were served; then the device was lost: {reason}.")?;
        writeln!(out, "{failed} failed: they had begun, and their memory went with the device.")?;
        writeln!(out, "{waited} found nothing selected, and waited. A replacement was registered, and {after} were served by it.")?;
        broken.iter().try_for_each(|broken| writeln!(out, "BROKEN: {broken}"))?;
        writeln!(out, "{} invariants broken", broken.len())
    }
}

async fn play(requests: usize) -> Result<Report, Failure> {
    let registry = BindingRegistry::new()?;
    let server = Arc::new(Server::new(registry.device(DEVICE), requests));
    let first = Backend::register(&registry)?;

    let replacement = tokio::spawn({
        let (registry, server, mut watch) = (registry.clone(), Arc::clone(&server), registry.device(DEVICE).watch());
        async move {
            let reason = watch.lost().await?;
            // Those who had begun have failed: others have their room, and wait.
            server.waiting.acquire_many(ROOM as u32).await?.forget();
            registry.confirm_context_terminated(first.context)?;
            Ok::<_, Failure>((reason, first, Backend::register(&registry)?))
        }
    });
    let mut serving = JoinSet::new();
    for request in 0..requests {
        let server = Arc::clone(&server);
        serving.spawn(async move { server.serve(request).await });
    }

    server.all_at_work.wait().await;
    registry.invalidate_device(DEVICE, "it fell off the bus")?;
    server.device_is_lost.wait().await;
    let (reason, first, second) = replacement.await??;

    let mut report = Report { reason: reason.to_string(), ..Report::default() };
    while let Some(answer) = serving.join_next().await {
        let Answer { waited, on, served } = answer??;
        report.waited += usize::from(waited);
        match served {
            Ok(()) if on == first.mechanism.identity() => report.before += 1,
            Ok(()) => report.after += 1,
            Err(why) => {
                report.failed += 1;
                report.expect("failed on", on, first.mechanism.identity());
                report.expect("failed because", &*why, &*reason);
            }
        }
    }
    registry.retire(second.mechanism)?;
    second.remove(&registry).await?;
    first.remove(&registry).await?;

    let (before, after) = (requests / 2, requests - requests / 2 - ROOM);
    report.expect("served before the loss", report.before, before);
    report.expect("failed", report.failed, ROOM);
    report.expect("waited", report.waited, ROOM);
    report.expect("served by the replacement", report.after, after);
    let sums = |sums: [usize; 3]| sums.map(|sum| sum as u64);
    report.expect("the first's blocks allocated, released, given back at its end", first.books.sums(), sums([before + ROOM, before, ROOM]));
    report.expect("the replacement's", second.books.sums(), sums([after, after, 0]));
    report.expect("mechanisms left", registry.snapshots()?.len(), 0);
    report.expect("shut down", registry.shutdown(Duration::ZERO)?.is_complete(), true);
    Ok(report)
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let report = match timeout(PATIENCE, play(options.requests as usize)).await {
        Ok(Ok(report)) => report,
        Ok(Err(failure)) => Report { broken: vec![failure.to_string()], ..Report::default() },
        Err(_) => Report { broken: vec![format!("something hung for {PATIENCE:?}")], ..Report::default() },
    };
    // A reader that has gone away changes nothing about the outcome.
    let _ = report.print(options.json, &mut io::stdout());
    ExitCode::from(u8::from(!report.broken.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn all_invariants_hold() {
        for requests in [4 * ROOM, 101] {
            let report = timeout(PATIENCE, play(requests)).await.expect("nothing hangs").unwrap();
            assert_eq!(report.broken, [""; 0]);
            assert_eq!(report.before + report.failed + report.after, requests);
        }
    }
}
