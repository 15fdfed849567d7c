//! What a mechanism pins besides its allocator, and what is known about the three together.

use std::fmt::Debug;

/// Anything that has to outlive the allocators that depend on it: a driver context, a stream, a budget.
///
/// Every sized `Send + Sync + Debug` type is one, `()` included, so there is nothing to implement. Registration takes it
/// as an `Arc<dyn BindingResource>` and only ever holds it: the registry calls nothing on it and prints nothing of it. It
/// is dropped after the last allocator that was registered with it, authorities before provider contexts, on whichever
/// thread lets go last. That drop may call into anything, this library included.
///
/// ```
/// use liveslot::BindingResource;
/// use std::sync::Arc;
///
/// #[derive(Debug)]
/// struct DriverContext;
///
/// let _context: Arc<dyn BindingResource> = Arc::new(DriverContext);
/// let _nothing_to_pin: Arc<dyn BindingResource> = Arc::new(());
/// ```
pub trait BindingResource: Send + Sync + Debug {}

impl<T> BindingResource for T where T: Send + Sync + Debug {}

/// What a registration vouched for about its allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum MechanismCoherence {
    /// One object is allocator, capabilities and release at once; safe registration records this.
    SelfContained,
    /// The allocator forwards to others, and the caller vouched, in an unsafe call, that its plain calls, its
    /// capabilities and its release all reach one coherent mechanism.
    TrustedComposite,
}
