//! An allocator and resources that do what a test tells them, and tell a log what was asked of them and when they were dropped.
//!
//! Each file here is small enough that whoever includes it uses all of it.

use liveslot::{
    AllocationReleaseOutcome, DeviceAllocator, DeviceKey, HostAllocator, MemoryError, ReleaseAccounting, SharedMapping, VirtualBacking,
};
use std::{
    collections::HashMap,
    fmt,
    num::NonZeroUsize,
    ptr::NonNull,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

/// Doubles panic when they are told to, so a lock that was held meanwhile is as good as before.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What happened to the doubles that share it, in order.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Entries>>);

#[derive(Default)]
struct Entries {
    since_last_look: Vec<String>,
    gone: Vec<&'static str>,
}

impl Log {
    /// What happened since the last look: `NAME METHOD ARGUMENTS` for a call, `NAME dropped` once a destructor has ended.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut locked(&self.0).since_last_look)
    }

    fn add(&self, entry: String) {
        locked(&self.0).since_last_look.push(entry);
    }

    /// Something is made: whatever had this `name` before is forgotten.
    fn made(&self, name: &'static str) {
        locked(&self.0).gone.retain(|gone| *gone != name);
    }

    /// A destructor begins: `name` must not be used from now on.
    fn gone(&self, name: &'static str) {
        locked(&self.0).gone.push(name);
    }

    fn is_gone(&self, name: &str) -> bool {
        locked(&self.0).gone.contains(&name)
    }
}

/// What to do in the middle of the next call, once, and how to answer.
pub struct Hook<T>(pub Mutex<Option<Box<dyn FnOnce() -> T + Send>>>);

impl<T> Default for Hook<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Hook<T> {
    fn run(&self) -> Option<T> {
        let armed = locked(&self.0).take();
        armed.map(|armed| armed())
    }
}

/// What an allocator, its authority and its context are told to do. The test keeps it, and keeps none of the three alive with it.
#[derive(Default)]
pub struct Script {
    pub device: Hook<()>,
    pub allocate: Hook<Result<(), MemoryError>>,
    pub release: Hook<AllocationReleaseOutcome>,
    pub drop: Hook<()>,
    pub authority_drop: Hook<()>,
    pub context_drop: Hook<()>,
}

impl Script {
    /// Whether everything that was armed has run.
    pub fn is_spent(&self) -> bool {
        let Self { device, allocate, release, drop, authority_drop, context_drop } = self;
        let answers = locked(&allocate.0).is_none() && locked(&release.0).is_none();
        answers && [device, drop, authority_drop, context_drop].into_iter().all(|hook| locked(&hook.0).is_none())
    }
}

/// An allocator of heap memory under a script.
pub struct Double {
    name: &'static str,
    supports: [&'static str; 2],
    device: DeviceKey,
    log: Log,
    script: Arc<Script>,
    /// Calls of `allocate` and `release` in progress.
    inside: AtomicUsize,
    /// What was handed out and not given back, by address.
    blocks: Mutex<HashMap<NonZeroUsize, Block>>,
}

/// A block, with what was asked for.
struct Block {
    pointer: NonNull<u8>,
    bytes: usize,
    align: usize,
}

// SAFETY: the pointer is the heap's, which any thread may give back.
unsafe impl Send for Block {}

impl Block {
    /// The heap refuses alignments that are no power of two; the double doesn't.
    fn new(bytes: usize, align: usize) -> Result<Self, MemoryError> {
        Ok(Self { pointer: HostAllocator.allocate(bytes, Self::on_heap(align))?, bytes, align })
    }

    fn on_heap(align: usize) -> usize {
        if align.is_power_of_two() { align } else { 1 }
    }

    fn free(self) {
        // SAFETY: made by `new` with these values, and given back once, since `self` is consumed.
        unsafe { HostAllocator.deallocate(self.pointer, self.bytes, Self::on_heap(self.align)) };
    }
}

impl Double {
    /// An allocator that must not outlive the resources named `supports`.
    pub fn new(name: &'static str, supports: [&'static str; 2], device: DeviceKey, log: &Log, script: &Arc<Script>) -> Arc<Self> {
        let (log, script) = (log.clone(), Arc::clone(script));
        Arc::new(Self { name, supports, device, log, script, inside: AtomicUsize::new(0), blocks: Mutex::default() })
    }

    /// Logs a call, and checks that everything the allocator needs is still there.
    fn called(&self, call: fmt::Arguments<'_>) {
        self.log.add(format!("{} {call}", self.name));
        self.check();
    }

    fn check(&self) {
        for needed in self.supports {
            assert!(!self.log.is_gone(needed), "{} is there although {needed} is gone", self.name);
        }
    }
}

impl DeviceAllocator for Double {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        self.called(format_args!("allocate {bytes} {align}"));
        let _inside = Inside::new(&self.inside);
        let answer = self.script.allocate.run();
        self.check();
        answer.unwrap_or(Ok(()))?;
        let block = Block::new(bytes, align)?;
        let pointer = block.pointer;
        locked(&self.blocks).insert(pointer.addr(), block);
        Ok(pointer)
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, bytes: usize, align: usize) {
        self.called(format_args!("deallocate {bytes} {align}"));
    }

    unsafe fn deallocate_with_unmapped(&self, _: NonNull<u8>, bytes: usize, align: usize) -> u64 {
        self.called(format_args!("deallocate_with_unmapped {bytes} {align}"));
        0
    }

    unsafe fn release(&self, pointer: NonNull<u8>, bytes: usize, align: usize) -> AllocationReleaseOutcome {
        self.called(format_args!("release {bytes} {align}"));
        let _inside = Inside::new(&self.inside);
        let outcome = self.script.release.run();
        self.check();
        let outcome = outcome.unwrap_or(AllocationReleaseOutcome::complete(ReleaseAccounting::eager(bytes as u64)));
        if outcome.is_complete() {
            let block = locked(&self.blocks).remove(&pointer.addr()).expect("released once, by its own address");
            assert_eq!((block.bytes, block.align), (bytes, align), "released with what was asked for");
            block.free();
        }
        outcome
    }

    fn device(&self) -> DeviceKey {
        self.called(format_args!("device"));
        self.script.device.run();
        self.device
    }

    fn commits_on_demand(&self) -> bool {
        self.called(format_args!("commits_on_demand"));
        false
    }

    fn as_virtual_backing(&self) -> Option<&dyn VirtualBacking> {
        self.called(format_args!("as_virtual_backing"));
        None
    }

    fn as_shared_mapping(&self) -> Option<&dyn SharedMapping> {
        self.called(format_args!("as_shared_mapping"));
        None
    }
}

impl fmt::Debug for Double {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.called(format_args!("debug"));
        formatter.write_str(self.name)
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        let ending = Ending { name: self.name, log: &self.log };
        assert_eq!(self.inside.load(SeqCst), 0, "{} is dropped within a call of it", self.name);
        locked(&self.blocks).drain().for_each(|(_, block)| block.free());
        self.script.drop.run();
        self.check();
        drop(ending);
    }
}

/// A call in progress.
struct Inside<'a>(&'a AtomicUsize);

impl<'a> Inside<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, SeqCst);
        Self(count)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Logs the end of a destructor, also when it panics.
struct Ending<'a> {
    name: &'static str,
    log: &'a Log,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.log.add(format!("{} dropped", self.name));
    }
}

/// An authority or a provider context under a script.
pub struct Resource {
    name: &'static str,
    log: Log,
    script: Arc<Script>,
    hook: fn(&Script) -> &Hook<()>,
}

impl Resource {
    pub fn authority(name: &'static str, log: &Log, script: &Arc<Script>) -> Arc<Self> {
        Self::new(name, log, script, |script| &script.authority_drop)
    }

    pub fn context(name: &'static str, log: &Log, script: &Arc<Script>) -> Arc<Self> {
        Self::new(name, log, script, |script| &script.context_drop)
    }

    fn new(name: &'static str, log: &Log, script: &Arc<Script>, hook: fn(&Script) -> &Hook<()>) -> Arc<Self> {
        log.made(name);
        Arc::new(Self { name, log: log.clone(), script: Arc::clone(script), hook })
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.log.add(format!("{} debug", self.name));
        formatter.write_str(self.name)
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        let ending = Ending { name: self.name, log: &self.log };
        self.log.gone(self.name);
        (self.hook)(&self.script).run();
        drop(ending);
    }
}
