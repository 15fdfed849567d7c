//! A mechanism that is watched: what was called, what was destroyed, in which order; and, by loom, whether anything was used after
//! its end.

#[path = "resource.rs"]
pub mod resource;

use self::resource::Resource;
use liveslot_loom::{
    AllocationReleaseOutcome, DeviceAllocator, DeviceKey, MemoryError, ReleaseAccounting, SharedDevicePrefix, SharedMapping,
    SharedPrefixCommitInfo,
};
use std::{
    any::Any,
    fmt, ptr,
    ptr::NonNull,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

pub const DEVICE: DeviceKey = DeviceKey::HOST;

/// Sees what becomes of one mechanism. Its own words are std's, so that watching orders nothing.
#[derive(Default)]
pub struct Witness {
    destroyed: Mutex<Vec<&'static str>>,
    allocated: AtomicUsize,
    released: AtomicUsize,
}

/// Authority or context.
pub struct Support {
    name: &'static str,
    witness: Arc<Witness>,
}

/// Hands out addresses, and no memory.
pub struct Allocator {
    witness: Arc<Witness>,
    /// Ends with this allocator, which must not be in use then.
    own: Arc<Resource>,
    /// Ends when the provider says so, see [`Device`].
    device: Arc<Device>,
    completes: bool,
}

/// Reaches its allocator when it is destroyed.
struct Prefix {
    witness: Arc<Witness>,
    allocator: Arc<Resource>,
}

/// What an allocator reaches: gone once its context's end has been confirmed.
pub struct Device(Resource);

impl Witness {
    /// The names of what was destroyed, in order.
    pub fn destroyed(&self) -> Vec<&'static str> {
        self.destroyed.lock().unwrap().clone()
    }

    /// How often the allocator has been asked for memory.
    pub fn allocated(&self) -> usize {
        self.allocated.load(Relaxed)
    }

    /// How often it has been given memory back.
    pub fn released(&self) -> usize {
        self.released.load(Relaxed)
    }

    fn note(&self, name: &'static str) {
        self.destroyed.lock().unwrap().push(name);
    }
}

impl Support {
    pub fn new(name: &'static str, witness: &Arc<Witness>) -> Arc<Self> {
        Arc::new(Self { name, witness: Arc::clone(witness) })
    }
}

impl Allocator {
    /// One whose releases complete, or are all refused.
    pub fn new(completes: bool, witness: &Arc<Witness>, device: &Arc<Device>) -> Arc<Self> {
        Arc::new(Self { witness: Arc::clone(witness), own: Arc::new(Resource::new()), device: Arc::clone(device), completes })
    }

    fn reach(&self) {
        self.own.read();
        self.device.read();
    }
}

impl Device {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Resource::new()))
    }

    pub fn read(&self) {
        self.0.read();
    }

    /// Nobody may reach it from now on.
    pub fn end(&self) {
        self.0.tear_down();
    }
}

impl DeviceAllocator for Allocator {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        self.reach();
        let address = 1 + self.witness.allocated.fetch_add(1, Relaxed);
        Ok(NonNull::new(ptr::without_provenance_mut(address)).expect("not null"))
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {
        unreachable!("every release comes as one");
    }

    unsafe fn release(&self, _: NonNull<u8>, bytes: usize, _: usize) -> AllocationReleaseOutcome {
        self.reach();
        self.witness.released.fetch_add(1, Relaxed);
        if self.completes {
            AllocationReleaseOutcome::complete(ReleaseAccounting::eager(bytes as u64))
        } else {
            AllocationReleaseOutcome::failed("refused")
        }
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }

    fn as_shared_mapping(&self) -> Option<&dyn SharedMapping> {
        Some(self)
    }
}

/// Makes prefixes, and maps none.
impl SharedMapping for Allocator {
    fn create_shared_prefix(&self, _: usize) -> Result<Box<dyn SharedDevicePrefix>, MemoryError> {
        self.reach();
        Ok(Box::new(Prefix { witness: Arc::clone(&self.witness), allocator: Arc::clone(&self.own) }))
    }

    fn incremental_owned_bytes_for_shared_prefix(&self, _: &dyn SharedDevicePrefix) -> Result<u64, MemoryError> {
        unreachable!("no model asks");
    }

    fn commit_shared_prefix(
        &self,
        _: &dyn SharedDevicePrefix,
        _: NonNull<u8>,
        _: usize,
        _: usize,
    ) -> Result<SharedPrefixCommitInfo, MemoryError> {
        unreachable!("no model maps");
    }
}

impl SharedDevicePrefix for Prefix {
    fn device_ptr(&self) -> u64 {
        0
    }

    fn committed_physical_bytes(&self) -> u64 {
        0
    }

    fn mapped_bytes(&self) -> usize {
        0
    }

    fn requested_bytes(&self) -> usize {
        0
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        self.allocator.read();
        self.witness.note("prefix");
    }
}

impl Drop for Allocator {
    fn drop(&mut self) {
        self.own.tear_down();
        self.witness.note("allocator");
    }
}

impl Drop for Support {
    fn drop(&mut self) {
        self.witness.note(self.name);
    }
}

impl fmt::Debug for Allocator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("allocator")
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("prefix")
    }
}

impl fmt::Debug for Support {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}
