//! An allocator that keeps what is released, for the next who asks.

use crate::common::{park::Stop, rig::DEVICE};
use liveslot::{DeviceAllocator, DeviceKey, HostAllocator, MemoryError};
use std::{
    fmt,
    ptr::NonNull,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

/// The size of every block.
pub const BLOCK: usize = 64;
const ALIGN: usize = 8;

/// Blocks of the heap. It has as many as `reserved` says, handed out or kept; what it keeps goes when it is trimmed, or with it.
#[derive(Default)]
pub struct Pool {
    reserved: Arc<AtomicUsize>,
    kept: Mutex<Vec<Block>>,
    /// Where the next trim stops.
    stop: Mutex<Option<Stop>>,
}

struct Block(NonNull<u8>);

// SAFETY: the block is the heap's, which any thread may give back.
unsafe impl Send for Block {}

impl fmt::Debug for Pool {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        unreachable!("nobody prints an allocator")
    }
}

impl Pool {
    /// A pool, and how many bytes it has taken from the heap and not given back.
    pub fn new() -> (Arc<Self>, Arc<AtomicUsize>) {
        let pool = Self::default();
        let reserved = Arc::clone(&pool.reserved);
        (Arc::new(pool), reserved)
    }

    /// A pool whose first trim stops there.
    pub fn stopping(stop: Stop) -> Arc<Self> {
        let pool = Self::default();
        *pool.stop.lock().unwrap() = Some(stop);
        Arc::new(pool)
    }

    fn give_back(&self, Block(pointer): Block) {
        self.reserved.fetch_sub(BLOCK, SeqCst);
        // SAFETY: the block was made in `allocate`, and is given back once, since it was kept alone.
        unsafe { HostAllocator.deallocate(pointer, BLOCK, ALIGN) };
    }
}

impl DeviceAllocator for Pool {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        assert_eq!((bytes, align), (BLOCK, ALIGN));
        if let Some(Block(pointer)) = self.kept.lock().unwrap().pop() {
            return Ok(pointer);
        }
        let pointer = HostAllocator.allocate(BLOCK, ALIGN)?;
        self.reserved.fetch_add(BLOCK, SeqCst);
        Ok(pointer)
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, _: usize, _: usize) {
        self.kept.lock().unwrap().push(Block(pointer));
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }

    fn trim(&self, keep_bytes: u64) -> u64 {
        let stop = self.stop.lock().unwrap().take();
        if let Some(stop) = stop {
            stop.park();
        }
        let mut kept = self.kept.lock().unwrap();
        let keep = (keep_bytes as usize / BLOCK).min(kept.len());
        let given_back = kept.drain(keep..).map(|block| self.give_back(block)).count();
        (given_back * BLOCK) as u64
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.trim(0);
    }
}
