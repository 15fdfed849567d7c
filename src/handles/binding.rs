//! A hold on one mechanism: allocate, look, release.
//!
//! | operation | progress | cost, beside the user's own code |
//! | --- | --- | --- |
//! | [`MemoryBinding::clone`], drop | wait-free | one RMW on the caller's stripe |
//! | [`MemoryBinding::allocate`], [`MemoryBinding::adopt_allocation`] | wait-free | three RMWs on the caller's stripe, one record |
//! | [`MemoryBinding::with_view`] | wait-free | two RMWs on the caller's stripe |
//! | [`MemoryBinding::release`] | wait-free; if retained lock-free | two RMWs on the home stripe, one on the caller's |

use super::{
    allocation::BoundAllocation,
    owning::OwningAllocation,
    record::Record,
    view::{BoundMemoryView, ValidatedMemoryView},
};
use crate::{
    callback::{self, Theirs},
    contract::{AllocationGeneration, BindingIdentity, Holder, MechanismSnapshot, QuarantinedAllocation},
    error::BindingError,
    mechanism::{Hold, Holding, Mechanism},
    primitives::{counted::Counted, identity, pins::Operation},
};
use std::{fmt, ptr::NonNull};

/// A hold on the mechanism that was selected when it was issued.
///
/// It keeps allocator, authority and provider context alive, whatever is selected, retired or removed meanwhile, and works without
/// the registry. Clones are interchangeable; another binding of the same mechanism is not.
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
/// let binding = registry.bind(DeviceKey::HOST)?;
/// let allocation = binding.allocate(64, 8)?;
/// let view = allocation.view(0, 64)?;
/// binding.with_view(&view, |view| assert_eq!(view.len(), 64))?;
/// binding.release(allocation)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MemoryBinding {
    hold: Holding,
    number: u64,
}

impl MemoryBinding {
    /// Issues a binding: a fresh number for a hold.
    #[inline]
    #[cfg_attr(feature = "holders", track_caller)]
    pub(crate) fn issue(hold: Hold) -> Result<Self, BindingError> {
        match identity::issue() {
            Ok(number) => Ok(Self { hold: Holding::new(hold, number)?, number }),
            Err(identity::Exhausted) => Err(BindingError::IdentityExhausted),
        }
    }

    #[inline(always)]
    pub(super) const fn mechanism(&self) -> &Mechanism {
        self.hold().mechanism()
    }

    #[inline(always)]
    pub(super) const fn hold(&self) -> &Hold {
        self.hold.hold()
    }

    /// Names this binding and what it was issued from. Clones have the same.
    #[must_use]
    pub const fn identity(&self) -> BindingIdentity {
        self.mechanism().names.binding(self.number)
    }

    /// Labels the binding and its clones, also those that exist already, for [`holders`](Self::holders). The first label stays. Does nothing
    /// without the feature `holders`.
    ///
    /// ```
    /// # use liveslot::{BindingRegistry, DeviceKey, HostAllocator};
    /// # use std::sync::Arc;
    /// # let registry = BindingRegistry::new()?;
    /// # let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
    /// # let authority = registry.register_authority(DeviceKey::HOST, Arc::new(()))?;
    /// # let mechanism = registry.register_allocator(context, authority, Arc::new(HostAllocator))?;
    /// let binding = registry.bind(DeviceKey::HOST)?.labelled("decoder");
    /// for holder in registry.holders(mechanism)? {
    ///     println!("{holder}"); // binding 44 "decoder" of src/decode.rs:12:30, 1.5s old: handles 1, allocations 0
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Progress
    ///
    /// Wait-free: one allocation of 16 bytes, one compare-and-swap.
    #[must_use = "it gives the binding back"]
    pub fn labelled(self, label: &'static str) -> Self {
        self.hold.label(label);
        self
    }

    /// Whether `other` is this binding, or a clone of it.
    #[inline(always)]
    pub(super) const fn owns(&self, other: &Self) -> bool {
        self.number == other.number
    }

    /// Refuses metadata of another binding.
    #[inline]
    pub(super) fn own(&self, other: &Self) -> Result<(), BindingError> {
        if self.owns(other) { Ok(()) } else { Err(self.mismatch(other)) }
    }

    #[cold]
    pub(super) fn mismatch(&self, other: &Self) -> BindingError {
        BindingError::BindingMismatch { expected: self.identity().id(), actual: other.identity().id() }
    }

    /// Allocates `bytes` bytes at alignment `align` (in bytes), passing both to the allocator as they are.
    ///
    /// # Errors
    ///
    /// [`BindingError::InactiveMechanism`] or [`BindingError::DeviceLost`] unless the mechanism is Active, and
    /// [`BindingError::IdentityExhausted`] if a counter is full; the allocator is not called. [`BindingError::Memory`] with
    /// the allocator's own error. [`BindingError::IdentityExhausted`] if no identity is left; the memory has been given
    /// back.
    ///
    /// # Panics
    ///
    /// If the allocator does; nothing is recorded then.
    ///
    /// # Progress
    ///
    /// Wait-free, the allocator and the process heap excepted.
    #[inline]
    pub fn allocate(&self, bytes: usize, align: usize) -> Result<BoundAllocation, BindingError> {
        let operation = self.mechanism().enter("allocation")?;
        let pointer = self.hold().allocator().allocate(bytes, align)?;
        // SAFETY: just made by this binding's allocator, with these values, and nobody else knows of it.
        unsafe { self.issued(operation, pointer, bytes, align) }
    }

    /// Ends `operation` by recording what it has made; gives that back if no identity is left.
    ///
    /// # Safety
    ///
    /// This binding's allocator has made the memory with these values, it is live, and nobody else knows of it.
    #[inline]
    pub(super) unsafe fn issued(
        &self,
        operation: Operation<'_>,
        pointer: NonNull<u8>,
        bytes: usize,
        align: usize,
    ) -> Result<BoundAllocation, BindingError> {
        let Ok(generation) = identity::issue() else {
            // An operation still: it ends when the memory is back.
            // SAFETY: as the caller says.
            unsafe { self.hold().allocator().deallocate(pointer, bytes, align) }
            return Err(BindingError::IdentityExhausted);
        };
        Ok(self.record(operation, generation, pointer, bytes, align))
    }

    /// Takes over memory that this binding's mechanism has made: from now on it is as if made with
    /// [`allocate_owning`](Self::allocate_owning). Calls no allocator.
    ///
    /// # Safety
    ///
    /// The allocator of this binding's own mechanism made the memory at `ptr`, with precisely this size and alignment, and it
    /// is live; nobody else owns or has recorded it; the allocator's `release` accepts these three values.
    ///
    /// # Errors
    ///
    /// [`BindingError::InactiveMechanism`] or [`BindingError::DeviceLost`] unless the mechanism is Active;
    /// [`BindingError::IdentityExhausted`] if a counter is full or no identity is left. The memory stays the caller's.
    ///
    /// # Progress
    ///
    /// Wait-free, the process heap excepted.
    pub unsafe fn adopt_allocation(&self, ptr: NonNull<u8>, bytes: usize, align: usize) -> Result<OwningAllocation, BindingError> {
        let operation = self.mechanism().enter("adopting an allocation")?;
        let generation = identity::issue().map_err(|identity::Exhausted| BindingError::IdentityExhausted)?;
        Ok(OwningAllocation::new(self.record(operation, generation, ptr, bytes, align)))
    }

    /// Ends `operation` by recording an allocation under a fresh number.
    #[inline]
    fn record(&self, operation: Operation<'_>, generation: u64, pointer: NonNull<u8>, bytes: usize, align: usize) -> BoundAllocation {
        let home = operation.home();
        let binding = Self { hold: self.hold.beside(home), number: self.number };
        let record = Counted::new(Record::new(binding, AllocationGeneration::from_number(generation), pointer, bytes, align, home));
        operation.record();
        BoundAllocation(record)
    }

    /// What the mechanism retains, in no particular order. Answers in every lifecycle, also after removal.
    ///
    /// # Errors
    ///
    /// None: always `Ok`.
    ///
    /// # Progress
    ///
    /// Wait-free: a walk over all that was ever retained, given back or given up.
    pub fn quarantined(&self) -> Result<Vec<QuarantinedAllocation>, BindingError> {
        Ok(self.mechanism().quarantined())
    }

    /// A copy of the mechanism's state. Answers in every lifecycle, also after removal.
    ///
    /// # Errors
    ///
    /// None: always `Ok`.
    ///
    /// # Progress
    ///
    /// Lock-free: it looks again only after quarantined ownership of the mechanism was given back or up meanwhile. One load per stripe;
    /// unless the mechanism is Active, at most one read-modify-write per stripe.
    ///
    /// # Signal handlers
    ///
    /// A handler may call this, [`Budget::snapshot`](crate::Budget::snapshot) and [`suppressed_panics`](crate::suppressed_panics), whatever
    /// it has interrupted: they call no heap, use no thread-local and wait for nobody. Nothing else here is async-signal-safe, no other call
    /// and no handle's clone or drop.
    pub fn mechanism_snapshot(&self) -> Result<MechanismSnapshot, BindingError> {
        Ok(self.mechanism().snapshot())
    }

    /// The bindings of the mechanism, as [`BindingRegistry::holders`](crate::BindingRegistry::holders) lists them: this one is there. Answers
    /// in every lifecycle, also after removal. Empty without the feature `holders`.
    ///
    /// # Progress
    ///
    /// Wait-free but for the epoch, whose pin is lock-free: a walk over the bindings.
    #[must_use]
    pub fn holders(&self) -> Vec<Holder> {
        self.mechanism().holders()
    }

    /// Runs `operation` on the address of a view, and returns what it returns. The call counts as one operation meanwhile.
    ///
    /// The view does not protect its allocation: that is the caller's to do.
    ///
    /// # Errors
    ///
    /// [`BindingError::InactiveMechanism`] or [`BindingError::DeviceLost`] unless the mechanism is Active;
    /// [`BindingError::IdentityExhausted`] if a counter is full; [`BindingError::BindingMismatch`] if the view is of another
    /// binding; [`BindingError::StaleAllocation`] if its allocation was released. The closure is not run then.
    ///
    /// # Panics
    ///
    /// If the closure does; the operation is uncounted.
    ///
    /// # Progress
    ///
    /// Wait-free, the closure excepted.
    #[inline]
    pub fn with_view<R>(&self, view: &BoundMemoryView, operation: impl FnOnce(ValidatedMemoryView) -> R) -> Result<R, BindingError> {
        // Outlives the operation, if that is refused.
        let operation = Theirs::new(operation);
        let _counted = self.mechanism().enter("looking at a view")?;
        self.own(view.binding())?;
        if !view.record.get().is_live() {
            return Err(BindingError::StaleAllocation(view.allocation_identity()));
        }
        Ok(callback::run(|| operation.into_inner()(view.part)))
    }
}

impl fmt::Debug for MemoryBinding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MemoryBinding").field("identity", &self.identity()).field("mechanism", self.mechanism()).finish()
    }
}
