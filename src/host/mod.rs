//! Allocators that the library provides, over the real memory of the process.

mod heap;

pub use self::heap::HostAllocator;
