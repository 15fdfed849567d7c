//! Views: parts of an allocation, looked at through its binding.

mod common {
    pub mod arm;
    pub mod doubles;
    pub mod held;
    pub mod lifecycle;
    pub mod phases;
    pub mod refused;
    pub mod rig;
}

use common::{
    arm::arm,
    held::hold,
    lifecycle::{REASON, bring},
    phases::PHASES,
    refused::refused,
    rig::{DEVICE, Rig},
};
use liveslot::{MechanismLifecycle::*, *};
use std::{num::NonZeroUsize, ptr::NonNull, sync::Arc};

/// R68: a view lies within its allocation; an empty one may lie at its end.
#[test]
fn views_are_bounded() {
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    for len in [0, 1, 64] {
        let allocation = binding.allocate(len, 8).unwrap();
        let out_of_bounds = |offset: usize, end| BindingError::ViewOutOfBounds { offset, end, allocation_bytes: len };
        let within = |offset, bytes| {
            let view = allocation.view(offset, bytes).unwrap();
            assert_eq!((view.len(), view.is_empty()), (bytes, bytes == 0));
            assert_eq!((view.allocation_identity(), view.binding().identity()), (allocation.identity(), binding.identity()));
            let address = binding.with_view(&view, |view| view.as_ptr().addr().get()).unwrap();
            assert_eq!(address, allocation.as_ptr().addr().get() + offset);
        };
        within(0, 0);
        within(0, len);
        within(len, 0);
        within(len / 2, len - len / 2);
        for (offset, bytes) in [(0, len + 1), (len, 1), (len + 1, 0), (1, len), (usize::MAX, 0), (0, usize::MAX), (1, usize::MAX - 1)] {
            refused(allocation.view(offset, bytes), out_of_bounds(offset, offset + bytes));
        }
        for (offset, bytes) in [(1, usize::MAX), (usize::MAX, 1), (usize::MAX, usize::MAX), (2, usize::MAX - 1)] {
            refused(allocation.view(offset, bytes), out_of_bounds(offset, usize::MAX));
        }
        binding.release(allocation).unwrap();
    }
    drop(binding);
    rig.finish();
}

/// R68, R69: a bad range is reported before the lifecycle, and the lifecycle before stale metadata.
#[test]
fn ranges_come_first() {
    for phase in PHASES {
        for stale in [false, true] {
            let rig = Rig::new();
            let held = hold(&rig);
            let mut allocation = held.allocation;
            if stale {
                arm(&rig.script.release, || AllocationReleaseOutcome::failed("stuck"));
                allocation = held.binding.release(allocation).unwrap_err().into_parts().1;
            }
            bring(&rig, phase);
            let before = rig.registry.snapshot(rig.mechanism).unwrap();
            refused(allocation.view(60, 5), BindingError::ViewOutOfBounds { offset: 60, end: 65, allocation_bytes: 64 });
            match (phase, stale) {
                (Active, false) => drop(allocation.view(60, 4).unwrap()),
                (Active, true) => refused(allocation.view(60, 4), BindingError::StaleAllocation(allocation.identity())),
                (DeviceLost, _) => refused(allocation.view(60, 4), BindingError::DeviceLost { device: DEVICE, reason: REASON.into() }),
                _ => refused(allocation.view(60, 4), (rig.mechanism, phase)),
            }
            assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap(), before);
        }
    }
}

/// R70: the closure runs once, on the calling thread, on the view's part, and its value comes back; on an error it does not run.
#[test]
fn a_look_is_one_call() {
    let rig = Rig::new();
    let held = hold(&rig);
    let thread = std::thread::current().id();
    let mut calls = 0;
    let value = held.binding.with_view(&held.view, |view| {
        calls += 1;
        assert_eq!(std::thread::current().id(), thread);
        assert_eq!(view.as_ptr().addr().get(), held.allocation.as_ptr().addr().get() + 32);
        assert_eq!((view.len(), view.is_empty()), (32, false));
        // Not `Copy`, so moved out whole.
        String::from("value")
    });
    assert_eq!((value.unwrap().as_str(), calls), ("value", 1));
    // A copy of a view is as good.
    assert_eq!(held.binding.with_view(&held.view.clone(), |view| view.len()).unwrap(), 32);

    let stale = BindingError::StaleAllocation(held.allocation.identity());
    held.binding.release(held.allocation).unwrap();
    refused(held.binding.with_view(&held.view, |_| calls += 1), stale);
    assert_eq!(calls, 1);
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().active_operations, 0);
    drop((held.binding, held.view));
    rig.finish();
}

/// R71: a look is one operation, for as long as its closure runs; looks may be nested.
#[test]
fn a_look_is_an_operation() {
    let rig = Rig::new();
    let held = hold(&rig);
    let operations = || rig.registry.snapshot(rig.mechanism).unwrap().active_operations;
    let busy = |active_operations| BindingError::ContextNotQuiescent { context: rig.context.identity(), active_operations };
    let look = held.binding.with_view(&held.view, |_| {
        assert_eq!(operations(), 1);
        held.binding.with_view(&held.view, |_| assert_eq!(operations(), 2)).unwrap();
        assert_eq!(operations(), 1);
        rig.registry.invalidate_device(DEVICE, REASON).unwrap();
        refused(rig.registry.confirm_context_terminated(rig.context), busy(1));
    });
    look.unwrap();
    assert_eq!(operations(), 0);
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    drop(held);
    rig.finish();
}

/// R72: a view holds no release up, not even while it is being looked at.
#[test]
fn a_view_does_not_keep_its_allocation() {
    let rig = Rig::new();
    let held = hold(&rig);
    let stale = BindingError::StaleAllocation(held.allocation.identity());
    let look = held.binding.with_view(&held.view, |_| {
        held.binding.release(held.allocation).unwrap();
        assert_eq!(rig.log.take(), ["A release 64 8"]);
    });
    look.unwrap();
    refused(held.binding.with_view(&held.view, |_| ()), stale);
    drop((held.binding, held.view));
    rig.finish();
}

/// R58, R68: the crate checks no size, so an allocator may claim memory up to the end of the address space.
#[test]
fn a_view_of_the_end_of_the_address_space_is_not_null() {
    #[derive(Debug)]
    struct Vast;

    impl DeviceAllocator for Vast {
        fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
            Ok(NonNull::without_provenance(NonZeroUsize::new(0x1000).unwrap()))
        }

        unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {}

        fn device(&self) -> DeviceKey {
            DEVICE
        }
    }

    let registry = BindingRegistry::new().unwrap();
    let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
    let authority = registry.register_authority(DEVICE, Arc::new(())).unwrap();
    registry.register_allocator(context, authority, Arc::new(Vast)).unwrap();
    let binding = registry.bind(DEVICE).unwrap();
    let allocation = binding.allocate(usize::MAX, 1).unwrap();
    let end = allocation.view(usize::MAX - 0xfff, 0).unwrap();
    binding.with_view(&end, |view| assert_ne!(view.as_ptr().as_ptr().addr(), 0)).unwrap();
}
