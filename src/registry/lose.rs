//! Losing a device, and confirming that a context is gone.
//!
//! A loss lists the device's mechanisms and marks each, fences, and lists again until a pass marks nothing new; only then does it clear the
//! slot. With one pass, a registration that falls between list and slot would end Active and unselected: it would find the
//! slot still occupied, and be missed by the list. Each further pass is paid for by a registration.

use super::{BindingRegistry, RegisteredProviderContext, drain::notify};
use crate::{
    callback,
    contract::DeviceKey,
    error::{BindingError, CONFIRMATION},
    mechanism::{Mechanism, told},
    primitives::{MechanismLifecycle, liveness::Step, table::Found},
    sync::{
        Arc,
        atomic::{Ordering::*, fence},
        epoch, gate,
    },
};

impl BindingRegistry {
    /// Declares a device lost: every mechanism registered on it that is not Terminated becomes DeviceLost, and nothing
    /// reaches its allocator any more. Runs no code of the user's but the conversion of `reason`, before any effect, and the wakers of those
    /// who wait, after it; frees and settles nothing.
    ///
    /// An operation that was counted before ends as it ends, and its result is taken as it is. That includes an allocator's
    /// `release` that had been decided upon and not entered yet. The reason of a mechanism's first loss stays. Mechanisms
    /// are marked one after the other: for the length of the call, one may be lost and another still allocate.
    ///
    /// The way down from here makes no call of the allocator: prepared releases are executed, dropped or quarantined, which retains
    /// them; the provider context's end is confirmed, which writes off what is left; the mechanism is removed.
    ///
    /// ```
    /// use liveslot::{BindingRegistry, DeviceKey, HostAllocator, release::BoundedQueue};
    /// use std::sync::Arc;
    ///
    /// let registry = BindingRegistry::new()?;
    /// let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
    /// let authority = registry.register_authority(DeviceKey::HOST, Arc::new(()))?;
    /// let mechanism = registry.register_allocator(context, authority, Arc::new(HostAllocator))?;
    /// let binding = registry.bind(DeviceKey::HOST)?;
    /// let queue = BoundedQueue::new(8);
    /// binding.allocate_owning(64, 8)?.release_deferred(&queue)?;
    /// let live = binding.allocate(64, 8)?;
    ///
    /// registry.invalidate_device(DeviceKey::HOST, "the driver was reset")?;
    /// assert!(registry.confirm_context_terminated(context).is_err()); // a release is still queued
    /// assert_eq!(queue.lose().quarantined, 1);
    /// registry.confirm_context_terminated(context)?; // what is live doesn't stand in its way
    /// registry.remove(mechanism)?;
    /// drop((live, binding)); // the last hold: the allocator is destroyed here
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// None: always `Ok`, also for a device nobody registered.
    ///
    /// # Progress
    ///
    /// Lock-free: each further pass over the device's mechanisms is paid for by a registration.
    pub fn invalidate_device(&self, device: DeviceKey, reason: impl Into<Arc<str>>) -> Result<(), BindingError> {
        let reason = callback::run(|| reason.into());
        let Some(device) = self.inner.devices.get(device) else { return Ok(()) };
        let mut drained = Vec::new();
        loop {
            let mut marked = false;
            let guard = epoch::pin();
            for mechanism in device.mechanisms.iter(&guard) {
                gate!(Listed);
                marked |= mechanism.lifecycle.lose(&reason) == Step::First;
                gate!(Lost);
                let _ = mechanism.settled_phase();
                drained.extend(mechanism.waiting_if_drained());
            }
            drop(guard);
            gate!(Marked);
            // SeqCst: pairs with the fence in `SelectionSlot::offer`: either the next list has the new mechanism, or its offer finds
            // everything that this one has marked dead.
            fence(SeqCst);
            if !marked {
                break;
            }
        }
        device.slot.sweep();
        device.note_loss(&reason);
        notify(&drained, || device.notify());
        told::lost(device.key, &reason);
        Ok(())
    }

    /// Confirms that a lost provider context is gone: its mechanisms become Terminated, and what they still own is written off without
    /// calling an allocator. `Ok` as well if that had happened before, or if the context has no mechanism.
    ///
    /// # Errors
    ///
    /// [`BindingError::ForeignRegistry`], [`BindingError::UnregisteredProviderContext`]. The first mechanism of the context, in order of
    /// registration, that is neither Terminated nor lost and idle decides: [`BindingError::InactiveMechanism`] with its lifecycle, or
    /// [`BindingError::ContextNotQuiescent`] with the count of its operations, prepared releases included. Nothing is changed then.
    ///
    /// # Progress
    ///
    /// Lock-free, as [`snapshot`](Self::snapshot): a walk over the device's mechanisms, with one read-modify-write per stripe.
    pub fn confirm_context_terminated(&self, context: RegisteredProviderContext) -> Result<(), BindingError> {
        let guard = epoch::pin();
        self.inner.context(context, &guard)?;
        // No device yet, no mechanism.
        let mechanisms = self.inner.devices.get(context.device).into_iter().flat_map(|device| device.mechanisms.iter(&guard));
        let mut mechanisms: Vec<Found<'_, Mechanism>> =
            mechanisms.filter(|mechanism| mechanism.names.provider_context == context.identity).collect();
        mechanisms.sort_unstable_by_key(|mechanism| mechanism.sequence);

        for mechanism in &mechanisms {
            // Lost and idle is for ever: nothing is admitted once every stripe says LOST, and the snapshot has seen to that.
            let snapshot = mechanism.snapshot();
            match snapshot.lifecycle {
                MechanismLifecycle::Terminated => {}
                MechanismLifecycle::DeviceLost if snapshot.active_operations == 0 => {}
                MechanismLifecycle::DeviceLost => {
                    return Err(BindingError::ContextNotQuiescent {
                        context: context.identity,
                        active_operations: snapshot.active_operations,
                    });
                }
                lifecycle @ (MechanismLifecycle::Active | MechanismLifecycle::Retired) => {
                    return Err(BindingError::InactiveMechanism { mechanism: snapshot.identity, lifecycle, operation: CONFIRMATION });
                }
            }
        }
        for mechanism in &mechanisms {
            let _ = mechanism.lifecycle.terminate();
        }
        let drained: Vec<_> = mechanisms.iter().filter_map(|mechanism| mechanism.waiting_if_drained()).collect();
        drop(mechanisms);
        drop(guard);
        notify(&drained, || {});
        told::terminated(context.device, context.identity);
        Ok(())
    }
}
