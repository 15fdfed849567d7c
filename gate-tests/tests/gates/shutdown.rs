//! Shutdowns at once.

use crate::support::{DEVICE, Site, Stopped, at, watched};
use liveslot_gated::{
    BindingError, BindingRegistry, HostAllocator, RegisteredAuthority, RegisteredProviderContext,
    internals::gates::Step::{AuthoritiesRemoved, Pinning, Registered, RemovalMarked, Unlinking},
};
use std::{
    fmt,
    sync::{Arc, Mutex, mpsc::channel},
    thread,
    time::Duration,
};

type Ends = Arc<Mutex<Vec<&'static str>>>;
type First = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A resource whose destructor does something first.
struct Resource {
    name: &'static str,
    first: First,
    ends: Ends,
}

impl fmt::Debug for Resource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        let first = self.first.lock().unwrap().take();
        if let Some(first) = first {
            first();
        }
        self.ends.lock().unwrap().push(self.name);
    }
}

/// A registry with a context and an authority, and no mechanism.
struct Supports {
    registry: BindingRegistry,
    context: RegisteredProviderContext,
    authority: RegisteredAuthority,
    ends: Ends,
    /// What the authority's destructor does first.
    first: First,
}

impl Supports {
    fn new() -> Self {
        let (ends, first) = (Ends::default(), First::default());
        let resource = |name, first: &First| Arc::new(Resource { name, first: Arc::clone(first), ends: Arc::clone(&ends) });
        let registry = BindingRegistry::new().unwrap();
        let context = registry.register_provider_context(DEVICE, resource("context", &Arc::default())).unwrap();
        let authority = registry.register_authority(DEVICE, resource("authority", &first)).unwrap();
        Self { registry, context, authority, ends, first }
    }
}

/// R50: a shutdown that found the authority in use goes on to the contexts while another one is destroying it: it leaves them alone.
#[test]
fn a_context_waits_for_an_authority_that_another_shutdown_destroys() {
    watched(|| {
        let Supports { registry, context, authority, ends, first } = Supports::new();
        let mechanism = registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), DEVICE).unwrap();
        let binding = registry.bind_registered(mechanism).unwrap();
        let allocation = binding.allocate(8, 8).unwrap();

        let other = registry.clone();
        let shutdown = Stopped::at(AuthoritiesRemoved, move || other.shutdown(Duration::ZERO).unwrap());
        *first.lock().unwrap() = Some(Box::new(move || assert!(!shutdown.go_on().is_complete())));

        binding.release(allocation).unwrap();
        drop(binding);
        assert!(registry.shutdown(Duration::ZERO).unwrap().is_complete());
        assert_eq!(*ends.lock().unwrap(), ["authority", "context"]);
    });
}

/// R50: the context that a shutdown found unused stays if a registration that came too late has used it since: that one has kept the
/// authority from this shutdown, and another is destroying it now.
#[test]
fn a_context_waits_for_an_authority_that_a_late_registration_has_used() {
    watched(|| {
        let Supports { registry, context, authority, ends, first } = Supports::new();

        let (begun, late) = channel();
        let other = registry.clone();
        let register = move || other.register_allocator_with_device(context, authority, Arc::new(HostAllocator), DEVICE);
        // The shutdown closes the registry, lists contexts and authorities, and comes to the authority.
        (0..2).for_each(|_| at(Pinning, || ()));
        at(Pinning, move || begun.send(Stopped::at(Registered, register)).unwrap());
        let ((destroying, reached), (end, ended)) = (channel(), channel());
        *first.lock().unwrap() = Some(Box::new(move || {
            destroying.send(()).unwrap();
            ended.recv().unwrap();
        }));
        let (other, (started, another)) = (registry.clone(), channel());
        at(AuthoritiesRemoved, move || {
            assert!(matches!(late.recv().unwrap().go_on(), Err(BindingError::ShutDown)));
            started.send(thread::spawn(move || other.shutdown(Duration::ZERO).unwrap())).unwrap();
            reached.recv().unwrap();
        });
        let report = registry.shutdown(Duration::ZERO).unwrap();
        assert_eq!((&report.authorities[..], &report.provider_contexts[..]), (&[authority.identity()][..], &[context.identity()][..]));
        end.send(()).unwrap();
        assert!(another.recv().unwrap().join().unwrap().is_complete());
        assert_eq!(*ends.lock().unwrap(), ["authority", "context"]);
    });
}

/// What is torn down behind a shutdown's last look doesn't make it complete: it has not looked for registrations that came too late.
#[test]
fn what_goes_behind_the_last_look_is_reported() {
    watched(|| {
        let (site, mechanism) = Site::selecting();
        let binding = site.registry.bind(DEVICE).unwrap();
        let (registry, context, authority) = (site.registry.clone(), site.context, site.authority);
        let (begun, late) = channel();
        // The shutdown has its list, and is removing what is there.
        at(RemovalMarked, move || {
            let register = move || registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), DEVICE);
            begun.send(Stopped::at(RemovalMarked, register)).unwrap();
        });
        // It has found that handles hold what it has removed.
        at(AuthoritiesRemoved, move || drop(binding));
        let report = site.registry.shutdown(Duration::ZERO).unwrap();
        assert_eq!(report.held.iter().map(|held| held.mechanism).collect::<Vec<_>>(), [mechanism.identity()]);
        let late = late.recv().unwrap();
        let report = site.registry.shutdown(Duration::ZERO).unwrap();
        assert_eq!(report.held.len(), 1, "the one that came too late: {report}");
        assert!(matches!(late.go_on(), Err(BindingError::ShutDown)));
        assert!(site.registry.shutdown(Duration::ZERO).unwrap().is_complete());
    });
}

/// A shutdown that has met a removal which had not seen it names what is held, and so does the next one.
#[test]
fn what_one_shutdown_has_met_is_found_by_the_next() {
    watched(|| {
        let (site, mechanism) = Site::selecting();
        let binding = site.registry.bind(DEVICE).unwrap();
        site.retire(mechanism);
        let registry = site.registry.clone();
        let removal = Stopped::at(Unlinking, move || registry.remove(mechanism));
        let shutdown = || site.registry.shutdown(Duration::ZERO).unwrap();
        let held = shutdown().held;
        assert_eq!(held.len(), 1);
        assert_eq!(shutdown().held, held);
        removal.go_on().unwrap();
        assert_eq!(shutdown().held.len(), 1, "held still, and forgotten");
        drop(binding);
        assert!(shutdown().is_complete());
    });
}
