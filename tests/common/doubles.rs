//! An allocator and resources that do what a test tells them, and tell a log what was asked of them and when they were dropped.
//!
//! Each file here is small enough that whoever includes it uses all of it.

use liveslot::{
    AllocationCommitRange, AllocationReleaseOutcome, DeviceAllocator, DeviceKey, HostAllocator, MemoryError, ReleaseAccounting,
    SharedDevicePrefix, SharedMapping, SharedPrefixCommitInfo, VirtualBacking,
};
use std::{
    any::Any,
    collections::HashMap,
    fmt,
    num::NonZeroUsize,
    ops::Range,
    ptr::NonNull,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
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
    /// For `as_virtual_backing` and `as_shared_mapping`.
    pub discovery: Hook<()>,
    /// For each method of both capabilities. A number is for those that answer with one.
    pub capability: Hook<Result<u64, MemoryError>>,
    pub trim: Hook<()>,
    pub prefix: Hook<()>,
    pub prefix_drop: Hook<()>,
    pub drop: Hook<()>,
    pub authority_drop: Hook<()>,
    pub context_drop: Hook<()>,
    /// What the allocator offers. To be set before anybody asks.
    pub offers_virtual_backing: AtomicBool,
    pub offers_shared_mapping: AtomicBool,
}

impl Script {
    /// Whether everything that was armed has run.
    pub fn is_spent(&self) -> bool {
        let answers = locked(&self.allocate.0).is_none() && locked(&self.release.0).is_none() && locked(&self.capability.0).is_none();
        let Self { device, discovery, trim, prefix, prefix_drop, drop, authority_drop, context_drop, .. } = self;
        let others = [device, discovery, trim, prefix, prefix_drop, drop, authority_drop, context_drop];
        answers && others.into_iter().all(|hook| locked(&hook.0).is_none())
    }
}

/// An allocator of heap memory under a script.
pub struct Double {
    name: &'static str,
    supports: [&'static str; 2],
    device: DeviceKey,
    log: Log,
    script: Arc<Script>,
    /// Calls in progress that the script answers.
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

    /// A call of a capability, as the script answers it.
    fn capability(&self, call: fmt::Arguments<'_>) -> Result<u64, MemoryError> {
        self.called(call);
        let _inside = Inside::new(&self.inside);
        let answer = self.script.capability.run();
        self.check();
        answer.unwrap_or(Ok(0))
    }

    fn hand_out(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        let block = Block::new(bytes, align)?;
        let pointer = block.pointer;
        locked(&self.blocks).insert(pointer.addr(), block);
        Ok(pointer)
    }

    /// Whether a live allocation has this address and this size.
    fn has(&self, pointer: NonNull<u8>, bytes: usize) -> bool {
        locked(&self.blocks).get(&pointer.addr()).is_some_and(|block| block.bytes == bytes)
    }
}

impl DeviceAllocator for Double {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        self.called(format_args!("allocate {bytes} {align}"));
        let _inside = Inside::new(&self.inside);
        let answer = self.script.allocate.run();
        self.check();
        answer.unwrap_or(Ok(()))?;
        self.hand_out(bytes, align)
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

    /// Has nothing to give back.
    fn trim(&self, _: u64) -> u64 {
        let _inside = Inside::new(&self.inside);
        self.script.trim.run();
        self.check();
        0
    }

    fn commits_on_demand(&self) -> bool {
        self.called(format_args!("commits_on_demand"));
        false
    }

    fn as_virtual_backing(&self) -> Option<&dyn VirtualBacking> {
        self.called(format_args!("as_virtual_backing"));
        self.script.discovery.run();
        self.script.offers_virtual_backing.load(SeqCst).then_some(self)
    }

    fn as_shared_mapping(&self) -> Option<&dyn SharedMapping> {
        self.called(format_args!("as_shared_mapping"));
        self.script.discovery.run();
        self.script.offers_shared_mapping.load(SeqCst).then_some(self)
    }
}

impl VirtualBacking for Double {
    fn allocate_committed(&self, bytes: usize, align: usize, committed: &[Range<usize>]) -> Result<NonNull<u8>, MemoryError> {
        self.capability(format_args!("allocate_committed {bytes} {align} {committed:?}"))?;
        self.hand_out(bytes, align)
    }

    fn commit_allocation_range(&self, at: NonNull<u8>, size: usize, align: usize, offset: usize, bytes: usize) -> Result<(), MemoryError> {
        assert!(self.has(at, size));
        self.capability(format_args!("commit_allocation_range {size} {align} {offset} {bytes}")).map(drop)
    }

    fn commit_allocation_ranges(&self, ranges: &[AllocationCommitRange]) -> Result<(), MemoryError> {
        assert!(ranges.iter().all(|range| self.has(range.ptr, range.allocation_bytes)));
        let ranges: Vec<_> = ranges.iter().map(|range| (range.allocation_bytes, range.align, range.offset, range.bytes)).collect();
        self.capability(format_args!("commit_allocation_ranges {ranges:?}")).map(drop)
    }

    fn mapped_bytes_for_allocation_ranges(&self, _: &[AllocationCommitRange]) -> Result<u64, MemoryError> {
        self.capability(format_args!("mapped_bytes_for_allocation_ranges"))
    }

    fn mapped_bytes_for_allocation(&self, bytes: usize, align: usize) -> Result<u64, MemoryError> {
        self.capability(format_args!("mapped_bytes_for_allocation {bytes} {align}"))
    }

    fn decommit_allocation_range(
        &self,
        at: NonNull<u8>,
        size: usize,
        align: usize,
        offset: usize,
        bytes: usize,
    ) -> Result<u64, MemoryError> {
        assert!(self.has(at, size));
        self.capability(format_args!("decommit_allocation_range {size} {align} {offset} {bytes}"))
    }

    fn allocation_committed_bytes(&self, at: NonNull<u8>, size: usize, align: usize) -> usize {
        assert!(self.has(at, size));
        self.capability(format_args!("allocation_committed_bytes {size} {align}")).expect("it can't fail") as usize
    }
}

impl SharedMapping for Double {
    fn create_shared_prefix(&self, bytes: usize) -> Result<Box<dyn SharedDevicePrefix>, MemoryError> {
        self.capability(format_args!("create_shared_prefix {bytes}"))?;
        let (log, script) = (self.log.clone(), Arc::clone(&self.script));
        Ok(Box::new(Prefix { needs: self.supports, bytes, log, script }))
    }

    fn incremental_owned_bytes_for_shared_prefix(&self, prefix: &dyn SharedDevicePrefix) -> Result<u64, MemoryError> {
        let prefix = prefix.as_any().downcast_ref::<Prefix>().expect("a prefix of a double");
        self.capability(format_args!("incremental_owned_bytes_for_shared_prefix {}", prefix.bytes))
    }

    fn commit_shared_prefix(
        &self,
        prefix: &dyn SharedDevicePrefix,
        at: NonNull<u8>,
        size: usize,
        offset: usize,
    ) -> Result<SharedPrefixCommitInfo, MemoryError> {
        assert!(self.has(at, size));
        let prefix = prefix.as_any().downcast_ref::<Prefix>().expect("a prefix of a double");
        let granules = self.capability(format_args!("commit_shared_prefix {} {size} {offset}", prefix.bytes))? as usize;
        Ok(SharedPrefixCommitInfo { additional_owned_bytes: 1, newly_mapped_bytes: 2, granules })
    }
}

/// A shared prefix under the script of the allocator that made it. It is called P, and must not outlive what the allocator needs.
struct Prefix {
    needs: [&'static str; 2],
    bytes: usize,
    log: Log,
    script: Arc<Script>,
}

impl Prefix {
    fn check(&self) {
        assert!(!self.needs.iter().any(|needed| self.log.is_gone(needed)), "P is there although a resource is gone");
    }

    fn called(&self, call: &str) {
        self.log.add(format!("P {call}"));
        self.check();
        self.script.prefix.run();
        self.check();
    }
}

impl SharedDevicePrefix for Prefix {
    fn device_ptr(&self) -> u64 {
        self.called("device_ptr");
        1 << 40
    }

    fn committed_physical_bytes(&self) -> u64 {
        self.called("committed_physical_bytes");
        self.bytes as u64 + 1
    }

    fn mapped_bytes(&self) -> usize {
        self.called("mapped_bytes");
        self.bytes + 2
    }

    fn requested_bytes(&self) -> usize {
        self.called("requested_bytes");
        self.bytes
    }

    /// For its maker alone, who is not logged.
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.called("debug");
        formatter.write_str("P")
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        let ending = Ending { name: "P", log: &self.log };
        self.check();
        self.script.prefix_drop.run();
        self.check();
        drop(ending);
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
