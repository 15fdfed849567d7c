//! Memory of a device that is played: the heap's. What nobody could release is given back by the allocator's destructor, as by a driver's
//! reset.

use liveslot::{AllocationReleaseOutcome, DeviceAllocator, DeviceKey, HostAllocator, MemoryError, ReleaseAccounting};
use std::{
    collections::HashMap,
    ptr::NonNull,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// An allocator's own books, which outlive it.
#[derive(Debug, Default)]
pub(crate) struct Books {
    allocated: AtomicU64,
    released: AtomicU64,
    /// Given back by the allocator's destructor.
    reclaimed: AtomicU64,
}

impl Books {
    /// Blocks allocated, released, given back by the destructor. Final once the allocator is gone.
    pub(crate) fn sums(&self) -> [u64; 3] {
        [&self.allocated, &self.released, &self.reclaimed].map(|count| count.load(Relaxed))
    }
}

/// Memory of one device.
#[derive(Debug)]
pub(crate) struct Memory {
    device: DeviceKey,
    books: Arc<Books>,
    blocks: Mutex<HashMap<usize, Block>>,
}

#[derive(Debug)]
struct Block(NonNull<u8>, usize, usize);

// SAFETY: a block of the heap, which any thread may give back.
unsafe impl Send for Block {}

impl Block {
    fn free(self) {
        let Self(pointer, bytes, align) = self;
        // SAFETY: made by the heap with these values, and given back once, since `self` is consumed.
        unsafe { HostAllocator.deallocate(pointer, bytes, align) };
    }
}

impl Memory {
    pub(crate) fn new(device: DeviceKey) -> (Arc<Self>, Arc<Books>) {
        let books = Arc::<Books>::default();
        (Arc::new(Self { device, books: Arc::clone(&books), blocks: Mutex::default() }), books)
    }
}

impl DeviceAllocator for Memory {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        let pointer = HostAllocator.allocate(bytes, align)?;
        self.blocks.lock().unwrap().insert(pointer.addr().get(), Block(pointer, bytes, align));
        self.books.allocated.fetch_add(1, Relaxed);
        Ok(pointer)
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, _: usize, _: usize) {
        let block = self.blocks.lock().unwrap().remove(&pointer.addr().get());
        block.expect("a live block").free();
        self.books.released.fetch_add(1, Relaxed);
    }

    unsafe fn release(&self, pointer: NonNull<u8>, bytes: usize, align: usize) -> AllocationReleaseOutcome {
        // SAFETY: as the caller says.
        unsafe { self.deallocate(pointer, bytes, align) };
        AllocationReleaseOutcome::complete(ReleaseAccounting::eager(bytes as u64))
    }

    fn device(&self) -> DeviceKey {
        self.device
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for (_, block) in self.blocks.get_mut().unwrap().drain() {
            block.free();
            self.books.reclaimed.fetch_add(1, Relaxed);
        }
    }
}
