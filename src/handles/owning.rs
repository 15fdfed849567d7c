//! An allocation with an owner, and the views that keep it from being released.
//!
//! An owner is the one value that an allocation's metadata is, with a destructor: what it drops without a release is retained in the
//! quarantine, where somebody can find it. Its views are counted in the allocation's record. While there is one, the owner's release
//! is refused and hands the owner back.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`OwningAllocation::view`], [`OwnedView`]'s clone and drop | wait-free | two RMWs of the record |
//! | [`OwningAllocation::release_now`] | as [`MemoryBinding::release`] | the same and one load |
//! | [`OwningAllocation`]'s drop | lock-free | one RMW of the home stripe, one node, one compare-and-swap |

use super::{
    allocation::BoundAllocation,
    binding::MemoryBinding,
    deferred::{DeferredReleaseDisposition, DeferredReleaseQueue},
    prepared::PreparedAllocationRelease,
    view::BoundMemoryView,
};
use crate::{
    callback,
    contract::{AllocationIdentity, AllocationReleaseOutcome, AllocationReleaseState, QuarantineReason},
    error::BindingError,
};
use std::{error, fmt, mem::ManuallyDrop, ptr, ptr::NonNull};

/// An allocation that is owned: dropped without a release, its ownership is retained in the quarantine, for the reason
/// [`OwnerDropped`](QuarantineReason::OwnerDropped), whatever views exist. Nothing is released by dropping it: that may be possible only on
/// another thread, or later, and on request: see [`retry_quarantined`](crate::BindingRegistry::retry_quarantined).
///
/// On a device that is lost, dropping it leaves it counted as live, until the end of the provider context is confirmed. So it does where
/// as many releases are pending or retained as the mechanism can count (2²¹ per stripe).
///
/// It keeps allocator, authority and provider context alive.
///
/// ```
/// use liveslot::{BindingRegistry, DeviceKey, HostAllocator};
/// use std::sync::Arc;
///
/// let registry = BindingRegistry::new()?;
/// let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
/// let authority = registry.register_authority(DeviceKey::HOST, Arc::new(()))?;
/// registry.register_allocator(context, authority, Arc::new(HostAllocator))?;
///
/// let owner = registry.bind(DeviceKey::HOST)?.allocate_owning(64, 8)?;
/// let view = owner.view(0, 32)?;
/// let refused = owner.release_now().unwrap_err(); // the view is still there
/// let (_, owner) = refused.into_parts();
/// drop(view);
/// assert!(owner.release_now()?.is_complete());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OwningAllocation(BoundAllocation);

impl MemoryBinding {
    /// As [`allocate`](Self::allocate), with an owner.
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate).
    ///
    /// # Panics
    ///
    /// As [`allocate`](Self::allocate).
    ///
    /// # Progress
    ///
    /// As [`allocate`](Self::allocate).
    pub fn allocate_owning(&self, bytes: usize, align: usize) -> Result<OwningAllocation, BindingError> {
        self.allocate(bytes, align).map(OwningAllocation::new)
    }
}

impl OwningAllocation {
    /// The owner of an allocation. If that is stale, so is the owner.
    #[must_use]
    pub fn new(allocation: BoundAllocation) -> Self {
        Self(allocation)
    }

    /// Names the allocation, for ever.
    #[must_use]
    pub fn identity(&self) -> AllocationIdentity {
        self.0.identity()
    }

    /// The binding that it was allocated through, or a clone of it.
    #[must_use]
    pub fn binding(&self) -> &MemoryBinding {
        self.0.binding()
    }

    /// The metadata, which stays owned. Views that are made of it directly are not counted.
    #[must_use]
    pub fn bound(&self) -> &BoundAllocation {
        &self.0
    }

    /// The very pointer that the allocator returned.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.0.as_ptr()
    }

    /// Its size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether its size is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its alignment in bytes.
    #[must_use]
    pub fn alignment(&self) -> usize {
        self.0.alignment()
    }

    /// Always [`AllocationReleaseState::Live`].
    #[must_use]
    pub const fn state(&self) -> AllocationReleaseState {
        AllocationReleaseState::Live
    }

    /// A part of it that keeps it from being released by its owner.
    ///
    /// # Errors
    ///
    /// As [`BoundAllocation::view`]; a refused view is not counted.
    ///
    /// # Progress
    ///
    /// Wait-free: two read-modify-writes.
    pub fn view(&self, offset: usize, bytes: usize) -> Result<OwnedView, BindingError> {
        self.0.view(offset, bytes).map(OwnedView::new)
    }

    /// How many owned views of it there are, clones included.
    ///
    /// # Progress
    ///
    /// Wait-free: one load.
    #[must_use]
    pub fn outstanding_views(&self) -> usize {
        self.0.record().views()
    }

    /// Gives the ownership up and returns the metadata, in any lifecycle.
    ///
    /// # Errors
    ///
    /// [`BindingError::OutstandingViews`] while there are owned views, with the owner as it was.
    ///
    /// # Progress
    ///
    /// Wait-free: one load.
    pub fn into_bound(self) -> Result<BoundAllocation, OwningReleaseError> {
        match self.outstanding_views() {
            0 => Ok(self.into_inner()),
            views => {
                let identity = self.identity();
                Err(OwningReleaseError::new(BindingError::OutstandingViews { identity, views }, self))
            }
        }
    }

    /// As [`MemoryBinding::prepare_release`], through its own binding.
    ///
    /// # Errors
    ///
    /// [`OwningReleaseError`] hands the owner back as it was: [`BindingError::OutstandingViews`] while there are owned views, whatever else
    /// is wrong; then as [`MemoryBinding::prepare_release`].
    ///
    /// # Progress
    ///
    /// Wait-free: one read-modify-write.
    pub fn prepare_release(self) -> Result<PreparedAllocationRelease, OwningReleaseError> {
        let mut allocation = self.into_bound()?;
        match allocation.queue() {
            Ok(()) => Ok(PreparedAllocationRelease::new(allocation)),
            Err(error) => Err(OwningReleaseError::new(error, Self(allocation))),
        }
    }

    /// Gives the allocation back to its allocator, on this thread. What the allocator did not release is an outcome, not an error.
    ///
    /// # Errors
    ///
    /// As [`prepare_release`](Self::prepare_release).
    ///
    /// # Panics
    ///
    /// If the allocator does; the ownership is retained as abandoned.
    ///
    /// # Progress
    ///
    /// Wait-free, the allocator excepted; lock-free where ownership is retained.
    pub fn release_now(self) -> Result<AllocationReleaseOutcome, OwningReleaseError> {
        self.prepare_release().map(PreparedAllocationRelease::execute)
    }

    /// Prepares the release and hands it to `queue`. What the queue refuses is retained in the quarantine, for the reason
    /// [`EnqueueRejected`](QuarantineReason::EnqueueRejected); the disposition says so. A queue in an `Arc` is passed as `&*queue`.
    ///
    /// # Errors
    ///
    /// As [`prepare_release`](Self::prepare_release); the queue is not called then.
    ///
    /// # Panics
    ///
    /// If the queue does; a request that it had not taken is retained as abandoned.
    ///
    /// # Progress
    ///
    /// Wait-free, the queue excepted; lock-free where ownership is retained.
    pub fn release_deferred(self, queue: &dyn DeferredReleaseQueue) -> Result<DeferredReleaseDisposition, OwningReleaseError> {
        let request = self.prepare_release()?;
        let identity = request.identity();
        Ok(match callback::run(|| queue.enqueue(request)) {
            Ok(()) => DeferredReleaseDisposition::Queued { identity },
            Err(refused) => {
                let rejection = refused.rejection();
                DeferredReleaseDisposition::Quarantined { identity, rejection, outcome: refused.quarantine() }
            }
        })
    }

    fn into_inner(self) -> BoundAllocation {
        let owner = ManuallyDrop::new(self);
        // SAFETY: the owner is not dropped, so its allocation is moved out once.
        unsafe { ptr::read(&owner.0) }
    }
}

impl Drop for OwningAllocation {
    fn drop(&mut self) {
        // The metadata is about to go: nobody else can have prepared its release, and nobody will.
        if self.0.queue().is_ok() {
            self.0.retain(AllocationReleaseState::Quarantined, QuarantineReason::OwnerDropped);
        }
    }
}

impl fmt::Debug for OwningAllocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("OwningAllocation").field("allocation", &self.0).field("views", &self.outstanding_views()).finish()
    }
}

/// A part of an owned allocation, which its owner can't release meanwhile. Dropping the owner is not prevented; the view is stale then.
///
/// It keeps allocator, authority and provider context alive.
pub struct OwnedView(BoundMemoryView);

impl OwnedView {
    fn new(view: BoundMemoryView) -> Self {
        view.record.get().count_view();
        Self(view)
    }

    /// The view, to be looked at with [`MemoryBinding::with_view`]. A clone of it is not counted.
    #[must_use]
    pub const fn view(&self) -> &BoundMemoryView {
        &self.0
    }

    /// The binding that its allocation was made with, or a clone of it.
    #[must_use]
    pub const fn binding(&self) -> &MemoryBinding {
        self.0.binding()
    }

    /// Names the allocation that it is a part of.
    #[must_use]
    pub const fn allocation_identity(&self) -> AllocationIdentity {
        self.0.allocation_identity()
    }

    /// Its size in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether its size is zero.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Clone for OwnedView {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl Drop for OwnedView {
    fn drop(&mut self) {
        self.0.record.get().uncount_view();
    }
}

impl fmt::Debug for OwnedView {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("OwnedView").field(&self.0).finish()
    }
}

/// A release that an owner was refused, with the owner.
///
/// It keeps allocator, authority and provider context alive, as the owner does.
pub struct OwningReleaseError(Box<Refused>);

struct Refused {
    error: BindingError,
    owner: OwningAllocation,
}

impl OwningReleaseError {
    #[cold]
    fn new(error: BindingError, owner: OwningAllocation) -> Self {
        Self(Box::new(Refused { error, owner }))
    }

    /// Why.
    #[must_use]
    pub const fn error(&self) -> &BindingError {
        &self.0.error
    }

    /// The owner, as it was.
    #[must_use]
    pub const fn allocation(&self) -> &OwningAllocation {
        &self.0.owner
    }

    /// Always [`AllocationReleaseState::Live`].
    #[must_use]
    pub const fn state(&self) -> AllocationReleaseState {
        self.0.owner.state()
    }

    /// The error and the owner.
    #[must_use]
    pub fn into_parts(self) -> (BindingError, OwningAllocation) {
        (self.0.error, self.0.owner)
    }
}

impl fmt::Debug for OwningReleaseError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("OwningReleaseError").field("error", &self.0.error).field("owner", &self.0.owner).finish()
    }
}

impl fmt::Display for OwningReleaseError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.error.fmt(formatter)
    }
}

impl error::Error for OwningReleaseError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.0.error)
    }
}
