//! Giving cached memory back: who is asked for it and when, what that counts as, and what happens when it goes wrong.

mod common {
    pub mod api;
    pub mod doubles;
    pub mod park;
    pub mod refused;
    pub mod rig;
    pub mod watchdog;
}

use common::{
    api::Reach,
    park::gate,
    refused::refused,
    rig::{DEVICE, Rig},
    watchdog::in_time,
};
use liveslot::{MechanismLifecycle::*, *};
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    sync::{Arc, Mutex},
    thread,
};

/// What happened to allocators, in order.
type Log = Arc<Mutex<Vec<String>>>;

fn since(log: &Log) -> Vec<String> {
    std::mem::take(&mut log.lock().unwrap())
}

/// Memory of the heap, which goes with the allocator; a trim is answered by `trim`.
struct Caching<F> {
    name: &'static str,
    log: Log,
    trim: F,
    blocks: Mutex<Vec<Box<[u64]>>>,
}

impl<F> Caching<F> {
    fn new(name: &'static str, log: &Log, trim: F) -> Self {
        Self { name, log: Arc::clone(log), trim, blocks: Mutex::default() }
    }
}

impl<F> fmt::Debug for Caching<F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

impl<F: Fn() -> u64 + Send + Sync> DeviceAllocator for Caching<F> {
    fn allocate(&self, bytes: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        let mut block = vec![0; bytes.div_ceil(8)].into_boxed_slice();
        let pointer = NonNull::from(&mut *block).cast();
        self.blocks.lock().unwrap().push(block);
        Ok(pointer)
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {}

    unsafe fn release(&self, _: NonNull<u8>, bytes: usize, _: usize) -> AllocationReleaseOutcome {
        match bytes {
            STUCK => AllocationReleaseOutcome::failed("stuck"),
            _ => AllocationReleaseOutcome::complete(ReleaseAccounting::eager(bytes as u64)),
        }
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }

    fn trim(&self, keep_bytes: u64) -> u64 {
        self.log.lock().unwrap().push(format!("{} {keep_bytes}", self.name));
        (self.trim)()
    }
}

impl<F> Drop for Caching<F> {
    fn drop(&mut self) {
        self.log.lock().unwrap().push(format!("{} dropped", self.name));
    }
}

/// The size of an allocation whose release fails.
const STUCK: usize = 13;

/// A registry with a context and an authority of [`DEVICE`].
#[derive(Clone)]
struct Site {
    registry: BindingRegistry,
    context: RegisteredProviderContext,
    authority: RegisteredAuthority,
    log: Log,
}

impl Site {
    fn new() -> Self {
        let registry = BindingRegistry::new().unwrap();
        let context = registry.register_provider_context(DEVICE, Arc::new(())).unwrap();
        let authority = registry.register_authority(DEVICE, Arc::new(())).unwrap();
        Self { registry, context, authority, log: Log::default() }
    }

    fn register(&self, name: &'static str, trim: impl Fn() -> u64 + Send + Sync + 'static) -> RegisteredMechanism {
        let allocator = Arc::new(Caching::new(name, &self.log, trim));
        self.registry.register_allocator(self.context, self.authority, allocator).unwrap()
    }

    fn operations(&self, mechanism: RegisteredMechanism) -> usize {
        self.registry.snapshot(mechanism).unwrap().active_operations
    }
}

/// An allocator that keeps nothing need not say so.
#[test]
fn the_provided_method_gives_nothing_back() {
    assert_eq!(HostAllocator.trim(0), 0);
    let memory = VirtualMemory::default();
    let allocation = memory.allocate(1 << 20, 64).unwrap();
    memory.commit_allocation_range(allocation, 1 << 20, 64, 0, 1 << 20).unwrap();
    assert_eq!(memory.trim(0), 0);
    assert_eq!(memory.allocation_committed_bytes(allocation, 1 << 20, 64), 1 << 20, "what is committed is in use");
    // SAFETY: allocated above with these values, and released once.
    assert!(unsafe { memory.release(allocation, 1 << 20, 64) }.is_complete());
    assert_eq!(memory.trim(0), 0);
}

/// A shared allocator and a charged one pass the call on, as it is; nothing is charged or refunded for it.
#[test]
fn wrappers_pass_it_on() {
    let log = Log::default();
    let caching = |name| Caching::new(name, &log, || 5);
    let shared: Arc<dyn DeviceAllocator> = Arc::new(caching("A"));
    assert_eq!(DeviceAllocator::trim(&shared, 1), 5);
    assert_eq!(DeviceAllocator::trim(&Arc::new(shared), u64::MAX), 5);
    let budget = Arc::new(Budget::new(100));
    let charged = BudgetedAllocator::new(caching("B"), Arc::clone(&budget), MemoryRole::Weights);
    let allocation = charged.allocate(64, 8).unwrap();
    assert_eq!(charged.trim(2), 5);
    assert_eq!((budget.free(), charged.charged().bytes), (36, 64));
    // SAFETY: allocated above with these values, and released once.
    unsafe { charged.deallocate(allocation, 64, 8) };
    drop(charged);
    assert_eq!(since(&log), ["A 1", format!("A {}", u64::MAX).as_str(), "A dropped", "B 2", "B dropped"]);
}

/// Each Active mechanism, selected or not, and each Retired one that owns something: live, queued or quarantined. In order of
/// registration, with the number that the caller has given. One that owns nothing any more is left to its removal.
#[test]
fn who_is_asked() {
    let site = Site::new();
    let registry = &site.registry;
    let [idle, live, a, queued, stuck, b] = ["idle", "live", "A", "queued", "stuck", "B"].map(|name| site.register(name, || 10));
    let binding = |mechanism| registry.bind_registered(mechanism).unwrap();
    let owner = binding(live);
    let allocation = owner.allocate(8, 8).unwrap();
    let request = binding(queued).allocate_owning(8, 8).unwrap().prepare_release().unwrap();
    let keeper = binding(stuck);
    keeper.release(keeper.allocate(STUCK, 1).unwrap()).unwrap_err();
    registry.select(b).unwrap();
    for retired in [idle, live, queued, stuck] {
        registry.retire(retired).unwrap();
    }
    assert_eq!(registry.trim(DEVICE, 7), 50);
    assert_eq!(since(&site.log), ["live 7", "A 7", "queued 7", "stuck 7", "B 7"]);

    owner.release(allocation).unwrap();
    request.execute();
    registry.retire(a).unwrap();
    assert_eq!(registry.trim(DEVICE, u64::MAX), 20);
    assert_eq!(since(&site.log), [format!("stuck {}", u64::MAX), format!("B {}", u64::MAX)]);
}

/// A lost or Terminated mechanism is not asked, whatever it owns, nor one of another device.
#[test]
fn who_is_not_asked() {
    let site = Site::new();
    let registry = &site.registry;
    let (early, late) = (site.register("early", || 10), site.register("late", || 10));
    let [early, late] = [early, late].map(|mechanism| {
        let binding = registry.bind_registered(mechanism).unwrap();
        let allocation = binding.allocate(8, 8).unwrap();
        (mechanism, binding, allocation)
    });
    registry.retire(early.0).unwrap();
    assert_eq!(registry.trim(DeviceKey::device(1), 0), 0, "nobody registered it");
    assert_eq!(registry.trim(registry.device(DeviceKey::device(2)).key(), 0), 0, "it has no mechanism");
    registry.invalidate_device(DEVICE, "lost").unwrap();
    assert_eq!(registry.trim(DEVICE, 0), 0);
    registry.confirm_context_terminated(site.context).unwrap();
    assert_eq!(registry.trim(DEVICE, 0), 0);
    assert_eq!(since(&site.log), [""; 0]);
    let after = site.register("after", || 10);
    assert_eq!(registry.trim(DEVICE, 0), 10);
    assert_eq!(since(&site.log), ["after 0"]);
    let _ = (late, after);
}

/// The sum is saturated, not wrapped.
#[test]
fn the_sum_saturates() {
    let site = Site::new();
    site.register("A", || u64::MAX - 1);
    assert_eq!(site.registry.trim(DEVICE, 0), u64::MAX - 1);
    site.register("B", || 5);
    assert_eq!(site.registry.trim(DEVICE, 0), u64::MAX);
}

/// R36, R42: an allocator that is asked is in use: removal and confirmation are refused, and pass once it has answered.
#[test]
fn an_allocator_that_is_asked_is_in_use() {
    let site = Site::new();
    let this: Arc<Mutex<Option<RegisteredMechanism>>> = Arc::default();
    let (inside, known) = (site.clone(), Arc::clone(&this));
    let mechanism = site.register("A", move || {
        let mechanism = known.lock().unwrap().unwrap();
        assert_eq!(inside.operations(mechanism), 1);
        inside.registry.retire(mechanism).unwrap();
        refused(inside.registry.remove(mechanism), (mechanism, Retired));
        inside.registry.invalidate_device(DEVICE, "lost").unwrap();
        refused(
            inside.registry.confirm_context_terminated(inside.context),
            BindingError::ContextNotQuiescent { context: inside.context.identity(), active_operations: 1 },
        );
        3
    });
    *this.lock().unwrap() = Some(mechanism);
    assert_eq!(site.registry.trim(DEVICE, 0), 3, "a loss stops no trim that has begun");
    assert_eq!(site.operations(mechanism), 0);
    site.registry.confirm_context_terminated(site.context).unwrap();
    site.registry.remove(mechanism).unwrap();
    assert_eq!(since(&site.log), ["A 0", "A dropped"]);
}

/// R42: the same on a retired mechanism whose last allocation comes back meanwhile.
#[test]
fn a_retired_allocator_that_is_asked_is_in_use() {
    let site = Site::new();
    let out: Arc<Mutex<Option<(RegisteredMechanism, OwningAllocation)>>> = Arc::default();
    let (inside, known) = (site.clone(), Arc::clone(&out));
    let mechanism = site.register("A", move || {
        let (mechanism, owner) = known.lock().unwrap().take().unwrap();
        assert!(owner.release_now().unwrap().is_complete());
        assert_eq!(inside.operations(mechanism), 1);
        refused(inside.registry.remove(mechanism), (mechanism, Retired));
        4
    });
    let owner = site.registry.bind(DEVICE).unwrap().allocate_owning(8, 8).unwrap();
    *out.lock().unwrap() = Some((mechanism, owner));
    site.registry.retire(mechanism).unwrap();
    assert_eq!(site.registry.trim(DEVICE, 0), 4);
    assert_eq!(site.registry.trim(DEVICE, 0), 0);
    site.registry.remove(mechanism).unwrap();
    assert_eq!(since(&site.log), ["A 0", "A dropped"]);
}

/// R114, R118: everybody is asked; the first panic is the caller's, the others are counted; on a thread that unwinds all of them are.
#[test]
fn allocators_that_panic() {
    let site = Site::new();
    let first = site.register("A", || panic!("first"));
    site.register("B", || 10);
    site.register("C", || panic!("second"));
    site.register("D", || 10);
    let everybody = ["A 1", "B 1", "C 1", "D 1"];
    let suppressed = suppressed_panics();
    let panic = catch_unwind(AssertUnwindSafe(|| site.registry.trim(DEVICE, 1))).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"first"));
    assert_eq!(since(&site.log), everybody);
    assert_eq!((suppressed_panics() - suppressed, site.operations(first)), (1, 0));

    struct AtTheEnd<'a>(&'a BindingRegistry, &'a Mutex<u64>);
    impl Drop for AtTheEnd<'_> {
        fn drop(&mut self) {
            *self.1.lock().unwrap() = self.0.trim(DEVICE, 1);
        }
    }
    let given_back = Mutex::new(0);
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _trims = AtTheEnd(&site.registry, &given_back);
        panic!("outer");
    }));
    assert_eq!(unwound.unwrap_err().downcast_ref(), Some(&"outer"));
    assert_eq!(since(&site.log), everybody);
    assert_eq!((given_back.into_inner().unwrap(), suppressed_panics() - suppressed), (20, 3));
}

/// R106: an allocator that is asked may call everything, the trim of its own device included, which asks it again.
#[test]
fn an_allocator_that_is_asked_may_call_everything() {
    in_time(|| {
        let rig = Rig::new();
        let (reach, registry, nested) = (Reach::of(&rig), rig.registry.clone(), Mutex::new(Some(())));
        let log = Log::default();
        let trim = move || {
            let outermost = nested.lock().unwrap().take().is_some();
            if !outermost {
                return 100;
            }
            reach.clone().whole_api();
            registry.trim(DEVICE, 2)
        };
        let allocator = Arc::new(Caching::new("B", &log, trim));
        let asked = rig.registry.register_allocator(rig.context, rig.authority, allocator).unwrap();
        assert_eq!(rig.registry.trim(DEVICE, 1), 100);
        assert_eq!(since(&log), ["B 1", "B 2"]);
        rig.registry.retire(asked).unwrap();
        rig.registry.remove(asked).unwrap();
        rig.finish();
    });
}

/// R107: while one allocator does not answer, those whose turn has not come are removed and destroyed as ever, and not asked later.
#[test]
fn an_allocator_that_does_not_answer_delays_nobody_else() {
    in_time(|| {
        let site = Site::new();
        let (stop, gate) = gate();
        let stop = Mutex::new(Some(stop));
        let stuck = site.register("A", move || {
            if let Some(stop) = stop.lock().unwrap().take() {
                stop.park();
            }
            1
        });
        let next = site.register("B", || 2);
        let trimming = site.registry.clone();
        let trim = thread::spawn(move || trimming.trim(DEVICE, 0));
        gate.reached();
        site.registry.retire(next).unwrap();
        site.registry.remove(next).unwrap();
        assert_eq!(since(&site.log), ["A 0", "B dropped"]);
        site.registry.retire(stuck).unwrap();
        refused(site.registry.remove(stuck), (stuck, Retired));
        gate.open();
        assert_eq!(trim.join().unwrap(), 1);
        site.registry.remove(stuck).unwrap();
        assert_eq!(since(&site.log), ["A dropped"]);
    });
}
