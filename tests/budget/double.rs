//! An allocator without memory, so that any size will do, which does what a test tells it.

use liveslot::*;
use std::{
    any::Any,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    ptr::NonNull,
    sync::{Arc, Mutex},
};

/// What to do in the next call, once.
pub struct Next<T>(Mutex<Option<Box<dyn FnOnce() -> T + Send>>>);

impl<T> Default for Next<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Next<T> {
    pub fn is(&self, action: impl FnOnce() -> T + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(action));
    }

    fn run(&self) -> Option<T> {
        let action = self.0.lock().unwrap().take();
        action.map(|action| action())
    }
}

#[derive(Default)]
pub struct Script {
    pub allocate: Next<Result<(), MemoryError>>,
    pub deallocate: Next<()>,
    pub release: Next<AllocationReleaseOutcome>,
    pub drop: Next<()>,
    /// Answers with the bytes that a new prefix has committed.
    pub prefix: Next<Result<u64, MemoryError>>,
    pub committed: Next<()>,
    pub prefix_drop: Next<()>,
    calls: Mutex<Vec<String>>,
}

impl Script {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// What was called since the last look.
    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    fn called(&self, call: impl Into<String>) {
        self.calls.lock().unwrap().push(call.into());
    }
}

/// Throws without a word on the terminal.
pub fn throw() -> ! {
    resume_unwind(Box::new("thrown"))
}

/// Demands that `call` throws.
#[track_caller]
pub fn throws<T>(call: impl FnOnce() -> T) {
    let payload = catch_unwind(AssertUnwindSafe(call)).err().expect("the panic reaches the caller");
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"thrown"));
}

pub fn failure() -> MemoryError {
    MemoryError::InvalidRequest { tier: "host", requested: 0, reason: "told to" }
}

#[track_caller]
pub fn fails_as_told<T: std::fmt::Debug>(result: Result<T, MemoryError>) {
    assert!(matches!(&result, Err(MemoryError::InvalidRequest { reason: "told to", .. })), "{result:?}");
}

pub fn residual(retained_bytes: u64) -> AllocationReleaseOutcome {
    let (state, reason) = (AllocationReleaseState::PartiallyUnmapped, QuarantineReason::PartialRelease);
    let residual = ResidualOwnership { state, reason, retained_bytes, address: 8, align: 8 };
    AllocationReleaseOutcome::quarantined(ReleaseAccounting::new(1, 2), residual)
}

pub struct Double {
    pub script: Arc<Script>,
    /// Whether it offers capabilities.
    pub capable: bool,
}

impl std::fmt::Debug for Double {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("printed")
    }
}

/// The wrapper of a double, its script and its budget.
pub fn budgeted(limit: u64) -> (BudgetedAllocator<Double>, Arc<Script>, Arc<Budget>) {
    let budget = Arc::new(Budget::new(limit));
    let (allocator, script) = sharing(&budget);
    (allocator, script, budget)
}

pub fn sharing(budget: &Arc<Budget>) -> (BudgetedAllocator<Double>, Arc<Script>) {
    let script = Script::new();
    let double = Double { script: Arc::clone(&script), capable: true };
    (BudgetedAllocator::new(double, Arc::clone(budget), MemoryRole::Weights), script)
}

impl DeviceAllocator for Double {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        self.script.called(format!("allocate {bytes} {align}"));
        self.script.allocate.run().unwrap_or(Ok(()))?;
        Ok(NonNull::dangling())
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, bytes: usize, align: usize) {
        self.script.called(format!("deallocate {bytes} {align}"));
        self.script.deallocate.run();
    }

    unsafe fn deallocate_with_unmapped(&self, _: NonNull<u8>, bytes: usize, align: usize) -> u64 {
        self.script.called(format!("deallocate_with_unmapped {bytes} {align}"));
        self.script.deallocate.run();
        3
    }

    unsafe fn release(&self, _: NonNull<u8>, bytes: usize, align: usize) -> AllocationReleaseOutcome {
        self.script.called(format!("release {bytes} {align}"));
        self.script.release.run().unwrap_or(AllocationReleaseOutcome::complete(ReleaseAccounting::new(5, 6)))
    }

    fn device(&self) -> DeviceKey {
        DeviceKey::device(0)
    }

    fn commits_on_demand(&self) -> bool {
        self.capable
    }

    fn as_virtual_backing(&self) -> Option<&dyn VirtualBacking> {
        self.capable.then_some(self)
    }

    fn as_shared_mapping(&self) -> Option<&dyn SharedMapping> {
        self.capable.then_some(self)
    }
}

impl VirtualBacking for Double {
    fn allocate_committed(&self, bytes: usize, align: usize, ranges: &[Range<usize>]) -> Result<NonNull<u8>, MemoryError> {
        self.script.called(format!("allocate_committed {bytes} {align} {ranges:?}"));
        self.script.allocate.run().unwrap_or(Ok(()))?;
        Ok(NonNull::dangling())
    }

    fn commit_allocation_range(&self, _: NonNull<u8>, all: usize, align: usize, offset: usize, bytes: usize) -> Result<(), MemoryError> {
        self.script.called(format!("commit {all} {align} {offset} {bytes}"));
        self.script.allocate.run().unwrap_or(Ok(()))
    }

    fn commit_allocation_ranges(&self, ranges: &[AllocationCommitRange]) -> Result<(), MemoryError> {
        self.script.called(format!("commit ranges {}", ranges.len()));
        self.script.allocate.run().unwrap_or(Ok(()))
    }

    fn mapped_bytes_for_allocation_ranges(&self, ranges: &[AllocationCommitRange]) -> Result<u64, MemoryError> {
        self.script.called(format!("mapped ranges {}", ranges.len()));
        Ok(11)
    }

    fn mapped_bytes_for_allocation(&self, bytes: usize, align: usize) -> Result<u64, MemoryError> {
        self.script.called(format!("mapped {bytes} {align}"));
        Ok(12)
    }

    fn decommit_allocation_range(&self, _: NonNull<u8>, all: usize, align: usize, offset: usize, bytes: usize) -> Result<u64, MemoryError> {
        self.script.called(format!("decommit {all} {align} {offset} {bytes}"));
        Ok(13)
    }

    fn allocation_committed_bytes(&self, _: NonNull<u8>, all: usize, align: usize) -> usize {
        self.script.called(format!("committed {all} {align}"));
        14
    }
}

struct Prefix {
    script: Arc<Script>,
    committed: u64,
    requested: usize,
}

impl SharedMapping for Double {
    fn create_shared_prefix(&self, bytes: usize) -> Result<Box<dyn SharedDevicePrefix>, MemoryError> {
        self.script.called(format!("prefix {bytes}"));
        let committed = self.script.prefix.run().unwrap_or(Ok(bytes as u64))?;
        Ok(Box::new(Prefix { script: Arc::clone(&self.script), committed, requested: bytes }))
    }

    fn incremental_owned_bytes_for_shared_prefix(&self, prefix: &dyn SharedDevicePrefix) -> Result<u64, MemoryError> {
        assert!(prefix.as_any().is::<Prefix>(), "a prefix of its own");
        Ok(15)
    }

    fn commit_shared_prefix(
        &self,
        prefix: &dyn SharedDevicePrefix,
        _: NonNull<u8>,
        all: usize,
        offset: usize,
    ) -> Result<SharedPrefixCommitInfo, MemoryError> {
        assert!(prefix.as_any().is::<Prefix>(), "a prefix of its own");
        self.script.called(format!("map prefix {all} {offset}"));
        Ok(SharedPrefixCommitInfo { additional_owned_bytes: 16, newly_mapped_bytes: 17, granules: 18 })
    }
}

impl SharedDevicePrefix for Prefix {
    fn device_ptr(&self) -> u64 {
        19
    }

    fn committed_physical_bytes(&self) -> u64 {
        self.script.committed.run();
        self.committed
    }

    fn mapped_bytes(&self) -> usize {
        20
    }

    fn requested_bytes(&self) -> usize {
        self.requested
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        self.script.called("prefix dropped");
        self.script.prefix_drop.run();
    }
}

impl std::fmt::Debug for Prefix {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("printed")
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        self.script.called("dropped");
        self.script.drop.run();
    }
}
