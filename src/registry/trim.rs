//! Giving cached memory back.
//!
//! A trim takes the memory of the device's mechanisms along, no hold: so a mechanism whose turn has not come is removed and destroyed as
//! if there were no trim. Its turn begins with an operation, and then a hold, and ends with the hold first and the operation second: the
//! end of an operation may wake, and so may its refusal, and who is stopped by a waker is to keep nothing. On a retired mechanism the
//! operation begins beside a record or not at all ([`enter_beside_records`](crate::primitives::pins::Pins::enter_beside_records)): that
//! it owns nothing and does nothing stays true for ever once it has been seen.

use super::BindingRegistry;
use crate::{
    contract::DeviceKey,
    mechanism::{Hold, Mechanism},
    panics::Panics,
    primitives::MechanismLifecycle,
    sync::{Arc, epoch, gate, lane},
};

impl BindingRegistry {
    /// Asks the allocators of a device for memory that they keep without need, as
    /// [`DeviceAllocator::trim`](crate::DeviceAllocator::trim) says, and returns how many bytes they say they have given back;
    /// `u64::MAX` if the sum would be larger. Each of them may keep `keep_bytes` bytes: 0 asks for all of it.
    ///
    /// It asks the Active mechanisms of the device and the Retired ones that still own something, one after the other, in order of
    /// registration; one that is registered during the call may be asked or not. Not asked are mechanisms that are lost or Terminated,
    /// those whose counters are full, and Retired ones that own nothing: removing those gives everything back. A device that nobody
    /// registered has no mechanism.
    ///
    /// While an allocator is asked, that counts as an operation of its mechanism: meanwhile removing it and confirming the end of its
    /// context are refused. A loss does not stop an allocator that is being asked; those whose turn comes later are not. Nothing else is
    /// held while an allocator runs: it may call everything, and one that does not return delays the caller and its own
    /// mechanism's end.
    ///
    /// # Panics
    ///
    /// If an allocator does, after all of them have been asked: with the first panic. The others are counted in
    /// [`suppressed_panics`](crate::suppressed_panics), and so is the first if this thread is unwinding already. What the others have
    /// given back is given back.
    ///
    /// # Progress
    ///
    /// Lock-free, the allocators excepted: a walk over the device's mechanisms, and for each that is asked as much as for binding it and
    /// for an operation; for a Retired one a load per stripe besides.
    ///
    /// ```
    /// use liveslot::{BindingRegistry, DeviceAllocator, DeviceKey, HostAllocator, MemoryError};
    /// use std::{ptr::NonNull, sync::{Arc, atomic::{AtomicU64, Ordering::Relaxed}}};
    ///
    /// /// The heap, and a cache of which only the size is told here.
    /// #[derive(Debug)]
    /// struct Caching(AtomicU64);
    ///
    /// impl DeviceAllocator for Caching {
    ///     fn trim(&self, keep_bytes: u64) -> u64 {
    ///         self.0.fetch_min(keep_bytes, Relaxed).saturating_sub(keep_bytes)
    ///     }
    /// #   fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> { HostAllocator.allocate(bytes, align) }
    /// #   unsafe fn deallocate(&self, ptr: NonNull<u8>, bytes: usize, align: usize) {
    /// #       // SAFETY: the caller's promise is passed on.
    /// #       unsafe { HostAllocator.deallocate(ptr, bytes, align) }
    /// #   }
    /// #   fn device(&self) -> DeviceKey { DeviceKey::HOST }
    ///     // and the rest
    /// }
    ///
    /// let registry = BindingRegistry::new()?;
    /// let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
    /// let authority = registry.register_authority(DeviceKey::HOST, Arc::new(()))?;
    /// registry.register_allocator(context, authority, Arc::new(Caching(AtomicU64::new(1 << 20))))?;
    /// registry.register_allocator(context, authority, Arc::new(HostAllocator))?; // caches nothing
    /// assert_eq!(registry.trim(DeviceKey::HOST, 4096), (1 << 20) - 4096);
    /// assert_eq!(registry.trim(DeviceKey::HOST, 4096), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trim(&self, device: DeviceKey, keep_bytes: u64) -> u64 {
        let Some(device) = self.inner.devices.get(device) else { return 0 };
        let guard = epoch::pin();
        let mut mechanisms: Vec<Arc<Mechanism>> = device.mechanisms.iter(&guard).map(|mechanism| mechanism.own()).collect();
        drop(guard);
        mechanisms.sort_unstable_by_key(|mechanism| mechanism.sequence);

        let mut panics = Panics::default();
        let given_back = mechanisms.iter().filter_map(|mechanism| panics.catch(|| trim(mechanism, keep_bytes)));
        let sum = given_back.fold(0, u64::saturating_add);
        panics.pass_on();
        sum
    }
}

fn trim(mechanism: &Mechanism, keep_bytes: u64) -> u64 {
    gate!(Trimming);
    let entered = match mechanism.phase() {
        MechanismLifecycle::Active => {
            gate!(Admitting);
            mechanism.pins.enter(lane::current()).or_else(|_| mechanism.pins.enter_beside_records())
        }
        MechanismLifecycle::Retired => mechanism.pins.enter_beside_records(),
        MechanismLifecycle::DeviceLost | MechanismLifecycle::Terminated => return 0,
    };
    let Ok(_counted) = entered else { return 0 };
    // Granted: nobody removes while an operation is counted. It goes before that ends, also on unwinding.
    let Ok(hold) = Hold::acquire(mechanism) else { return 0 };
    hold.allocator().trim(keep_bytes)
}
