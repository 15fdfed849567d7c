//! Allocators that the library provides, over the real memory of the process; and an authority that limits any allocator.

mod budget;
mod budgeted;
mod heap;
// What meets in a byte can be modelled without the mapped memory that the byte lies in.
#[cfg(liveslot_loom)]
#[path = "virtual_memory/pages.rs"]
pub mod pages;
// The bytes lie in mapped memory, as std's atomics: the test packages, whose atomics are a checker's, leave the feature off.
#[cfg(all(unix, feature = "virtual-memory"))]
mod virtual_memory;

#[cfg(all(unix, feature = "virtual-memory"))]
pub use self::virtual_memory::VirtualMemory;
pub use self::{
    budget::{Budget, BudgetSnapshot},
    budgeted::{BudgetTally, BudgetedAllocator},
    heap::HostAllocator,
};
