//! A queue for releases that wait, ready to use: [`BoundedQueue`], and what its calls report.
//!
//! What a queue has to do is [`DeferredReleaseQueue`](crate::DeferredReleaseQueue); this one keeps requests until somebody who knows that
//! the device has done with their memory asks for them. It calls nobody by itself and has no thread of its own.
//!
//! ```
//! use liveslot::{BindingRegistry, DeferredReleaseQueue, DeviceKey, HostAllocator, release::BoundedQueue};
//! use std::sync::Arc;
//!
//! let registry = BindingRegistry::new()?;
//! let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
//! let authority = registry.register_authority(DeviceKey::HOST, Arc::new(()))?;
//! registry.register_allocator(context, authority, Arc::new(HostAllocator))?;
//!
//! let queue = BoundedQueue::new(64);
//! let owner = registry.bind(DeviceKey::HOST)?.allocate_owning(4096, 64)?;
//! assert!(owner.release_deferred(&queue)?.is_queued());
//! assert_eq!(queue.pending(), 1);
//! // Later, on whichever thread finds out that the device has done with it:
//! assert_eq!(queue.drain(64).released, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Stream order
//!
//! Work on a device ends in its own order. So a request can carry a *marker* of the moment from which on its memory is free (an event that
//! was recorded, a fence's value), and [`BoundedQueue::drain_ready`] executes those whose moment has come. One that never comes keeps
//! nobody else:
//!
//! ```
//! use liveslot::{DeferredEnqueueError, DeferredReleaseQueue, PreparedAllocationRelease, release::{BoundedQueue, Drained}};
//! use std::sync::atomic::{AtomicU64, Ordering::{Acquire, Relaxed}};
//!
//! /// A stream that numbers its work, and is told by the device how far it has come.
//! #[derive(Debug)]
//! struct Stream {
//!     issued: AtomicU64,
//!     completed: AtomicU64,
//!     releases: BoundedQueue<u64>,
//! }
//!
//! impl DeferredReleaseQueue for Stream {
//!     /// Everything that has been issued so far may use the memory.
//!     fn enqueue(&self, request: PreparedAllocationRelease) -> Result<(), DeferredEnqueueError> {
//!         self.releases.enqueue_marked(request, self.issued.load(Relaxed))
//!     }
//!
//!     fn pending(&self) -> usize {
//!         self.releases.pending()
//!     }
//! }
//!
//! impl Stream {
//!     fn poll(&self) -> Drained {
//!         let completed = self.completed.load(Acquire);
//!         self.releases.drain_ready(usize::MAX, |_, upto| *upto <= completed)
//!     }
//! }
//! ```

mod door;
mod queue;

pub use self::queue::{BoundedQueue, Drained};
