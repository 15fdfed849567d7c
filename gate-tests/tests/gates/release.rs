//! A release that has been decided upon and is not counted yet, and who meets it.

use crate::support::{Calls, DEVICE, Meanwhile, Site, all_steps_were_reached, at, inactive};
use liveslot_gated::{
    AllocationReleaseState, BindingError, BoundAllocation,
    MechanismLifecycle::{Retired, Terminated},
    MemoryBinding, RegisteredMechanism,
    internals::gates::Step::{Lost, Releasing},
};
use std::sync::{Arc, atomic::Ordering::SeqCst};

/// A site, its mechanism with what it is asked to do, and an allocation.
fn allocation() -> (Site, RegisteredMechanism, Arc<Calls>, MemoryBinding, BoundAllocation) {
    let site = Site::new();
    let (m, calls) = site.register_watched();
    let binding = site.registry.bind(DEVICE).unwrap();
    let allocation = binding.allocate(64, 8).unwrap();
    (site, m, calls, binding, allocation)
}

/// Live, queued, quarantined allocations, and operations.
fn counts(site: &Site, m: RegisteredMechanism) -> [usize; 4] {
    let snapshot = site.snapshot(m);
    [snapshot.live_allocations, snapshot.queued_releases, snapshot.quarantined_allocations, snapshot.active_operations]
}

/// R131, R133, R138: a retirement does not keep a release from being counted and carried out; a removal that meets it is refused.
#[test]
fn a_retirement_lets_a_release_go_on() {
    let (site, m, calls, binding, allocation) = allocation();
    let retiring = site.clone();
    at(Releasing, move || {
        retiring.retire(m);
        inactive(retiring.registry.remove(m), Retired);
    });
    binding.release(allocation).unwrap();
    assert_eq!(calls.release.load(SeqCst), 1);
    assert_eq!(counts(&site, m), [0, 0, 0, 0]);
    site.registry.remove(m).unwrap();
    all_steps_were_reached();
}

/// R132, R135: a loss keeps a release from being counted: the allocation is back, and live.
#[test]
fn a_loss_gives_an_uncounted_release_back() {
    let (site, m, calls, binding, allocation) = allocation();
    let identity = allocation.identity();
    let losing = site.clone();
    at(Releasing, move || losing.lose());
    let refused = binding.release(allocation).unwrap_err();
    assert!(matches!(refused.error(), BindingError::DeviceLost { .. }), "{refused:?}");
    assert_eq!((refused.is_quarantined(), refused.state()), (false, AllocationReleaseState::Live));
    assert_eq!(refused.into_parts().1.identity(), identity);
    assert_eq!(calls.release.load(SeqCst), 0);
    assert_eq!(counts(&site, m), [1, 0, 0, 0]);
    all_steps_were_reached();
}

/// R39, R136: what is about to be queued is live: the end of the context can be confirmed, and then nothing is recorded any more.
#[test]
fn the_end_of_a_context_writes_an_uncounted_release_off() {
    let (site, m, calls, binding, allocation) = allocation();
    let ending = site.clone();
    at(Releasing, move || {
        ending.lose();
        ending.registry.confirm_context_terminated(ending.context).unwrap();
        assert_eq!(counts(&ending, m), [0, 0, 0, 0]);
    });
    let (error, _) = binding.release(allocation).unwrap_err().into_parts();
    inactive(Err::<(), _>(error), Terminated);
    assert_eq!(calls.release.load(SeqCst), 0);
    assert_eq!(counts(&site, m), [0, 0, 0, 0]);
    assert_eq!(site.registry.quarantined(m).unwrap(), []);
    site.registry.remove(m).unwrap();
    all_steps_were_reached();
}

/// R91, R134: a loss is stopped when the word says so and no stripe does: the release is counted, finds the device lost, and retains the
/// ownership; the allocator is not called.
#[test]
fn a_release_counted_during_a_loss_is_retained() {
    crate::support::watched(|| {
        let (site, m, calls, binding, allocation) = allocation();
        let losing = site.clone();
        let loss = Meanwhile::at(Releasing, Lost, move || losing.lose(), || {});
        let retained = binding.release(allocation).unwrap_err();
        assert!(retained.is_quarantined());
        assert_eq!(retained.state(), AllocationReleaseState::DeviceLost);
        assert_eq!(calls.release.load(SeqCst), 0);
        assert_eq!(counts(&site, m), [0, 0, 1, 0]);
        loss.go_on();
        assert_eq!(counts(&site, m), [0, 0, 1, 0]);
        site.registry.confirm_context_terminated(site.context).unwrap();
        site.registry.remove(m).unwrap();
    });
}

/// R64: metadata is not stale before its release is counted: a loss may still give it back.
#[test]
fn metadata_is_live_until_its_release_is_counted() {
    let (_, _, _, binding, allocation) = allocation();
    let view = allocation.view(0, 8).unwrap();
    let (looking, seen) = (binding.clone(), view.clone());
    at(Releasing, move || assert_eq!(looking.with_view(&seen, |view| view.len()).unwrap(), 8));
    binding.release(allocation).unwrap();
    assert!(matches!(binding.with_view(&view, |_| panic!("looked at")), Err(BindingError::StaleAllocation(_))));
    all_steps_were_reached();
}
