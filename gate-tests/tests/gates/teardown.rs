//! The last pin of a mechanism, of every kind that there is: allocator, authority and context are destroyed in this order, once each,
//! before the pin's drop returns, on the thread that drops it.

use crate::support::{Calls, DEVICE, End, IN_ORDER, Site, all_steps_were_reached, at};
use liveslot_gated::{BindingError, MemoryBinding, RegisteredMechanism, internals::gates::Step::Found};
use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    thread,
};

/// Something that keeps a mechanism.
type Pin = Box<dyn Send>;

/// Turns a binding into the only pin besides the registry.
type Kind = fn(&Site, &Calls, MemoryBinding) -> Pin;

/// Every kind of pin that a binding can become.
const KINDS: [(&str, Kind); 8] = [
    ("binding", |_, _, binding| Box::new(binding)),
    ("clone of a binding", |_, _, binding| Box::new(binding.clone())),
    ("bound allocation", |_, _, binding| Box::new(binding.allocate(64, 8).unwrap())),
    ("view", |_, _, binding| Box::new(binding.allocate(64, 8).unwrap().view(8, 8).unwrap())),
    ("view of a released allocation", |_, _, binding| {
        let allocation = binding.allocate(64, 8).unwrap();
        let view = allocation.view(8, 8).unwrap();
        binding.release(allocation).unwrap();
        Box::new(view)
    }),
    ("error of a refused release", |site, _, binding| {
        let other = site.registry.bind(DEVICE).unwrap();
        let refused = other.release(binding.allocate(64, 8).unwrap()).unwrap_err();
        assert!(matches!(refused.error(), BindingError::BindingMismatch { .. }), "{refused:?}");
        Box::new(refused)
    }),
    ("error of a retained release", |_, calls, binding| {
        calls.refuses.store(true, SeqCst);
        let retained = binding.release(binding.allocate(64, 8).unwrap()).unwrap_err();
        assert!(retained.is_quarantined());
        Box::new(retained)
    }),
    ("allocation out of an error", |_, calls, binding| {
        calls.refuses.store(true, SeqCst);
        Box::new(binding.release(binding.allocate(64, 8).unwrap()).unwrap_err().into_parts().1)
    }),
];

/// How the registry lets go of a mechanism that may still own something.
type LettingGo = fn(Site, RegisteredMechanism) -> Option<Site>;

const LETTING_GO: [(&str, LettingGo); 2] = [
    ("dropped", |_, _| None),
    ("removed", |site, m| {
        site.lose();
        site.registry.confirm_context_terminated(site.context).unwrap();
        site.registry.remove(m).unwrap();
        site.registry.remove_provider_context(site.context).unwrap();
        site.registry.remove_authority(site.authority).unwrap();
        Some(site)
    }),
];

/// R48, R50, R57: a pin of each kind keeps everything when the registry has let go, and is the last; the allocator finds authority and
/// context alive when it is destroyed.
#[test]
fn the_last_pin_destroys_in_order() {
    for (kind, make) in KINDS {
        for (letting_go, let_go) in LETTING_GO {
            for elsewhere in [false, true] {
                let case = format!("{kind}, registry {letting_go}, elsewhere: {elsewhere}");
                let site = Site::new();
                let (m, calls) = site.register_watched();
                let pin = make(&site, &calls, site.registry.bind(DEVICE).unwrap());
                let ends = site.ends.clone();
                let _registry = let_go(site, m);
                assert_eq!(ends.so_far(), [], "{case}");
                if elsewhere {
                    let dropping = thread::spawn(move || drop(pin));
                    let thread = dropping.thread().id();
                    dropping.join().unwrap();
                    assert!(ends.all_on(thread), "{case}");
                } else {
                    drop(pin);
                    assert!(ends.all_on(thread::current().id()), "{case}");
                }
                assert_eq!(ends.so_far(), IN_ORDER, "{case}");
            }
        }
    }
}

/// R48, R51, R57: the registry, a clone of it or a handle of one of its devices is the last pin. What is still allocated is not given back.
#[test]
fn the_registrys_end_destroys_in_order() {
    type Last = fn(&Site) -> Pin;
    let lasts: [(&str, Last); 3] = [
        ("registry", |site| Box::new(site.registry.clone())),
        ("device handle", |site| Box::new(site.registry.device(DEVICE))),
        ("registry of a device handle", |site| Box::new(site.registry.device(DEVICE).registry())),
    ];
    for (kind, last) in lasts {
        let site = Site::new();
        let (_, calls) = site.register_watched();
        drop(site.registry.bind(DEVICE).unwrap().allocate(64, 8).unwrap());
        let (ends, last) = (site.ends.clone(), last(&site));
        drop(site);
        assert_eq!(ends.so_far(), [], "{kind}");
        drop(last);
        assert_eq!(ends.so_far(), IN_ORDER, "{kind}");
        assert_eq!([&calls.release, &calls.deallocate].map(|count| count.load(SeqCst)), [0, 0], "{kind}");
    }
}

/// R44, R48, R50: without another pin, each removal destroys what it removes before it returns.
#[test]
fn a_removal_without_another_pin_destroys_at_once() {
    let (site, m) = Site::selecting();
    site.retire_and_remove(m);
    assert_eq!(site.ends.so_far(), IN_ORDER[..1]);
    site.registry.remove_authority(site.authority).unwrap();
    assert_eq!(site.ends.so_far(), IN_ORDER[..2]);
    site.registry.remove_provider_context(site.context).unwrap();
    assert_eq!(site.ends.so_far(), IN_ORDER);
}

/// R48, R56: two mechanisms share authority and context: these go after the last of the two, which a binding kept over the registry's end.
#[test]
fn shared_resources_go_after_the_last_mechanism() {
    let (site, _) = Site::selecting();
    site.register();
    let (ends, binding) = (site.ends.clone(), site.registry.bind(DEVICE).unwrap());
    drop(site);
    let allocator = End::Allocator { pinned: true };
    assert_eq!(ends.so_far(), [allocator]);
    let allocation = binding.allocate(64, 8).unwrap();
    binding.release(allocation).unwrap();
    drop(binding);
    assert_eq!(ends.so_far(), [allocator, allocator, End::Authority, End::Context]);
}

/// R50: who has found a mechanism and has no hold on it delays nothing: the removal that it meets destroys before it returns.
#[test]
fn who_has_found_a_mechanism_delays_nothing() {
    for by_token in [false, true] {
        let (site, m) = Site::selecting();
        let removing = site.clone();
        at(Found, move || {
            removing.retire_and_remove(m);
            assert_eq!(removing.ends.so_far(), IN_ORDER[..1]);
        });
        let refused = if by_token { site.registry.bind_registered(m) } else { site.registry.bind(DEVICE) };
        assert!(refused.is_err());
        all_steps_were_reached();
    }
}

/// R11: an allocator that the registry refuses is dropped before the call returns, and so is its use of context and authority.
#[test]
fn a_refused_allocator_is_destroyed_at_once() {
    let site = Site::new();
    site.registry.remove_authority(site.authority).unwrap();
    let (allocator, calls) = site.allocator();
    let refused = site.registry.register_allocator(site.context, site.authority, allocator);
    assert!(matches!(refused, Err(BindingError::UnregisteredAuthority(_))), "{refused:?}");
    assert_eq!(site.ends.so_far(), [End::Authority, End::Allocator { pinned: false }]);
    assert_eq!(Arc::strong_count(&calls), 1);
    site.registry.remove_provider_context(site.context).unwrap();
}
