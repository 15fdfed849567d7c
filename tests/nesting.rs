//! Destructors within destructors, and at the ends of threads: what falls due there is carried out by the outermost call, its panics
//! included, on a stack that does not grow.

use liveslot::*;
use std::{
    cell::RefCell,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
    pin::pin,
    ptr::NonNull,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc::{Sender, channel},
    },
    task::{Context, Wake, Waker},
    thread,
};

const DEVICE: DeviceKey = DeviceKey::device(0);

/// The count of suppressed panics is the process's: who looks at it, or adds to it, has it alone.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs a closure when it is dropped. An allocator, too, which nobody allocates from.
struct OnDrop(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl OnDrop {
    fn new(action: impl FnOnce() + Send + 'static) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(Box::new(action)))))
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(action) = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            action();
        }
    }
}

impl fmt::Debug for OnDrop {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("OnDrop")
    }
}

impl DeviceAllocator for OnDrop {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        unreachable!("nobody allocates")
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {}

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

fn supports(registry: &BindingRegistry) -> (RegisteredProviderContext, RegisteredAuthority) {
    let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
    (context, registry.register_authority(DEVICE, Arc::new(())).unwrap())
}

fn on_a_small_stack<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    thread::Builder::new().stack_size(256 * 1024).spawn(run).unwrap().join().unwrap()
}

/// R118: a context that an allocator's destructor removes panics in its own: the panic reaches the caller of the outermost removal.
#[test]
fn a_nested_resources_panic_reaches_the_outermost_caller() {
    let registry = BindingRegistry::new().unwrap();
    let (context, authority) = supports(&registry);
    let doomed = registry.register_provider_context(DEVICE, OnDrop::new(|| panic_any("the nested one"))).unwrap();
    let removes = registry.clone();
    let returned = Arc::new(AtomicUsize::new(0));
    let returns = Arc::clone(&returned);
    let allocator = OnDrop::new(move || {
        removes.remove_provider_context(doomed).unwrap();
        returns.fetch_add(1, SeqCst);
    });
    let mechanism = registry.register_allocator(context, authority, allocator).unwrap();
    registry.retire(mechanism).unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| registry.remove(mechanism))).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"the nested one"));
    assert_eq!(returned.load(SeqCst), 1, "the panic came to the nested call");
}

/// R50, R53: a row of contexts, each of which removes the next one as it ends, falls on a small stack.
#[test]
fn a_row_of_contexts_needs_no_deep_stack() {
    const ROW: usize = 50_000;
    let fallen = Arc::new(AtomicUsize::new(0));
    let falls = Arc::clone(&fallen);
    on_a_small_stack(move || {
        let registry = BindingRegistry::new().unwrap();
        let mut next = None;
        for _ in 0..ROW {
            let (registry_too, falls) = (registry.clone(), Arc::clone(&falls));
            let resource = OnDrop::new(move || {
                falls.fetch_add(1, SeqCst);
                if let Some(next) = next {
                    registry_too.remove_provider_context(next).unwrap();
                }
            });
            next = Some(registry.register_provider_context(DEVICE, resource).unwrap());
        }
        registry.remove_provider_context(next.unwrap()).unwrap();
    });
    assert_eq!(fallen.load(SeqCst), ROW);
}

/// R11, R118: a registration that is refused on a thread that is unwinding drops the allocator, whose panic is counted.
#[test]
fn a_refused_allocators_panic_does_not_abort_an_unwinding_thread() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (registry, other) = (BindingRegistry::new().unwrap(), BindingRegistry::new().unwrap());
    let (context, authority) = supports(&other);
    let before = suppressed_panics();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _while_unwinding = OnDrop::new(move || {
            let refused = registry.register_allocator(context, authority, OnDrop::new(|| panic_any("the allocator")));
            assert!(matches!(refused, Err(BindingError::ForeignRegistry { kind: "provider context" })));
        });
        panic_any("the first");
    }));
    assert_eq!(unwound.unwrap_err().downcast_ref(), Some(&"the first"));
    assert_eq!(suppressed_panics() - before, 1);
}

/// R50, R53: a row of last handles falls on a small stack in a thread-local destructor too, whichever thread-local was made first.
#[test]
fn a_row_of_last_handles_needs_no_deep_stack_at_a_threads_end() {
    const ROW: usize = 20_000;
    thread_local! {
        static HEAD: RefCell<Option<MemoryBinding>> = const { RefCell::new(None) };
    }
    let fallen = Arc::new(AtomicUsize::new(0));
    let falls = Arc::clone(&fallen);
    on_a_small_stack(move || {
        // Made before whatever the library makes: destroyed after it.
        HEAD.set(None);
        let registry = BindingRegistry::new().unwrap();
        let (context, authority) = supports(&registry);
        for _ in 0..ROW {
            let (next, falls) = (HEAD.take(), Arc::clone(&falls));
            let allocator = OnDrop::new(move || {
                falls.fetch_add(1, SeqCst);
                drop(next);
            });
            let mechanism = registry.register_allocator(context, authority, allocator).unwrap();
            HEAD.set(Some(registry.bind_registered(mechanism).unwrap()));
            registry.retire(mechanism).unwrap();
            registry.remove(mechanism).unwrap();
        }
    });
    assert_eq!(fallen.load(SeqCst), ROW);
}

struct Tell(Sender<&'static str>);

impl Wake for Tell {
    fn wake(self: Arc<Self>) {
        self.0.send("woken").unwrap();
    }
}

/// A waker may stop its thread for ever, so it is called behind all destructors, those that have fallen due within others included.
#[test]
fn wakers_come_behind_nested_destructors() {
    let registry = BindingRegistry::new().unwrap();
    let (context, authority) = supports(&registry);
    let (tell, told) = channel();
    let waker = Waker::from(Arc::new(Tell(tell.clone())));
    let nested = OnDrop::new(move || tell.send("nested").unwrap());
    let nested = registry.register_allocator(context, authority, nested).unwrap();
    let binding = registry.bind_registered(nested).unwrap();
    registry.retire(nested).unwrap();
    registry.remove(nested).unwrap();
    let outer = registry.register_allocator(context, authority, OnDrop::new(move || drop(binding))).unwrap();
    registry.retire(outer).unwrap();
    let mut teardown = registry.teardown(outer).unwrap();
    assert!(pin!(&mut teardown).poll(&mut Context::from_waker(&waker)).is_pending());
    registry.remove(outer).unwrap();
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ["nested", "woken"]);
}

/// What a destructor itself ends is told there, wakers included, before it goes on.
#[test]
fn a_waker_of_what_a_destructor_ends_is_called_there() {
    let registry = BindingRegistry::new().unwrap();
    let (context, authority) = supports(&registry);
    let (tell, told) = channel();
    let ended = registry.register_allocator(context, authority, OnDrop::new(|| ())).unwrap();
    let mut drain = registry.drain(ended).unwrap();
    assert!(pin!(&mut drain).poll(&mut Context::from_waker(&Waker::from(Arc::new(Tell(tell.clone()))))).is_pending());
    let retires = registry.clone();
    let outer = OnDrop::new(move || {
        retires.retire(ended).unwrap();
        tell.send("gone").unwrap();
    });
    let outer = registry.register_allocator(context, authority, outer).unwrap();
    registry.retire(outer).unwrap();
    registry.remove(outer).unwrap();
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ["woken", "gone"]);
}
