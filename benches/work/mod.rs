//! What a thread does in a measured loop, and on what: one table of rows for both bench programs.
//!
//! Every result is inspected where it lies (`black_box(&result)`), never moved: a value that is written in two halves and then copied as a
//! whole costs a store-forwarding stall of about 6 ns, which would be the bench's and not the callee's. Each loop checks that its result is
//! what it asked for, so that no row can measure errors.

use crate::peers::{DashMapPeer, Liveslot, MutexRegistry, PapayaMap, Peer, RwLockMap, Seed};
use arc_swap::{ArcSwap, ArcSwapOption};
use crossbeam_utils::CachePadded;
use liveslot::{DeviceKey, HostAllocator};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel};

/// One of everything that is measured. Several of them lie at different addresses: where a word lies in its line and set is luck, and
/// luck should not decide a ratio.
pub(crate) struct Fixture {
    slot: ArcSwap<Target>,
    option: ArcSwapOption<Target>,
    targets: [Arc<Target>; 2],
    liveslot: Liveslot,
    rwlock: RwLockMap,
    dashmap: DashMapPeer,
    papaya: PapayaMap,
    mutex: MutexRegistry,
    seed: Seed,
    _gap: Vec<u8>,
}

/// What the bare slots point to: as much as a mechanism's first cache line.
type Target = CachePadded<u64>;

impl Fixture {
    /// `gap` bytes stay allocated beside it, so that the next one starts elsewhere.
    pub(crate) fn new(gap: usize) -> Self {
        let gap = vec![0; gap];
        let targets = [1, 2].map(|value| Arc::new(CachePadded::new(value)));
        Self {
            slot: ArcSwap::new(Arc::clone(&targets[0])),
            option: ArcSwapOption::new(Some(Arc::clone(&targets[0]))),
            targets,
            liveslot: Peer::build(),
            rwlock: Peer::build(),
            dashmap: Peer::build(),
            papaya: Peer::build(),
            mutex: Peer::build(),
            seed: Peer::build(),
            _gap: gap,
        }
    }
}

/// A loop that runs as often as it is told.
pub(crate) type Work<'f> = Box<dyn FnMut(u64) + 'f>;

/// Prepares a loop, on the thread that will run it: a thread's own bindings, allocations and counters are its own from the start.
/// The number is the thread's: 0 or 1.
type Prepare = for<'f> fn(&'f Fixture, usize) -> Work<'f>;

/// One line of the tables.
pub(crate) struct Row {
    pub(crate) question: &'static str,
    pub(crate) name: &'static str,
    prepare: Prepare,
    /// What the second thread does meanwhile, in a row that has no one-thread form. `None`: both threads do the same.
    beside: Option<Prepare>,
}

impl Row {
    /// The thread counts at which the row means something.
    pub(crate) fn thread_counts(&self) -> &'static [usize] {
        if self.beside.is_some() { &[2] } else { &[1, 2] }
    }

    /// Whether this thread only keeps the other one company: it runs until the measured one is done, and nobody times it.
    pub(crate) fn is_company(&self, thread: usize) -> bool {
        thread == 1 && self.beside.is_some()
    }

    pub(crate) fn prepare<'f>(&self, fixture: &'f Fixture, thread: usize) -> Work<'f> {
        match self.beside {
            Some(beside) if thread == 1 => beside(fixture, thread),
            _ => (self.prepare)(fixture, thread),
        }
    }
}

/// The names of the rows that the targets speak of.
pub(crate) mod name {
    pub(crate) const RMW_PAIR: &str = "read-modify-write pair, private line";
    pub(crate) const ARC_SWAP_LOAD: &str = "ArcSwapOption::load";
    pub(crate) const FLOOR: &str = "floor: ArcSwap::load and a pair";
    pub(crate) const BIND: &str = "liveslot: bind(device)";
    pub(crate) const HANDLE_BIND: &str = "liveslot: DeviceHandle::bind";
    pub(crate) const WITH_VIEW: &str = "liveslot: with_view";
    pub(crate) const ALLOCATION: &str = "liveslot: allocate and release";
    pub(crate) const MALLOC: &str = "malloc and free";
    pub(crate) const RECORD_MALLOC: &str = "malloc and free, 96 bytes";
    pub(crate) const MUTEX_BIND: &str = "mutex registry: bind";
    pub(crate) const MUTEX_ALLOCATION: &str = "mutex registry: allocate and release";
    pub(crate) const SEED_BIND: &str = "onnx-runtime-memory-api: bind";
    pub(crate) const SEED_ALLOCATION: &str = "onnx-runtime-memory-api: allocate and release";
}

/// The questions, in the order of the tables.
pub(crate) const BIND: &str = "bind";
pub(crate) const BIND_BESIDE_SELECT: &str = "bind while another thread selects";
pub(crate) const SELECT: &str = "select";
pub(crate) const OPERATION: &str = "begin and end an operation";
pub(crate) const ALLOCATION: &str = "allocate and release 64 bytes";
pub(crate) const LIFE_CYCLE: &str = "full life cycle";

const fn row(question: &'static str, name: &'static str, prepare: Prepare) -> Row {
    Row { question, name, prepare, beside: None }
}

const fn beside(question: &'static str, name: &'static str, prepare: Prepare, beside: Prepare) -> Row {
    Row { question, name, prepare, beside: Some(beside) }
}

/// All rows, grouped by question.
pub(crate) const ROWS: &[Row] = &[
    row(BIND, name::RMW_PAIR, |_, _| rmw_pair()),
    row(BIND, name::FLOOR, |f, _| floor(f)),
    row(BIND, name::ARC_SWAP_LOAD, |f, _| load(f)),
    row(BIND, "ArcSwapOption::load_full", |f, _| load_full(f)),
    row(BIND, "epoch pin", |_, _| epoch_pin()),
    row(BIND, name::BIND, |f, _| bind(&f.liveslot)),
    row(BIND, name::HANDLE_BIND, |f, _| handle_bind(&f.liveslot)),
    row(BIND, "liveslot: bind_registered", |f, _| bind_registered(&f.liveslot)),
    row(BIND, "RwLock<HashMap>: bind", |f, _| bind(&f.rwlock)),
    row(BIND, "DashMap: bind", |f, _| bind(&f.dashmap)),
    row(BIND, "papaya: bind", |f, _| bind(&f.papaya)),
    row(BIND, name::MUTEX_BIND, |f, _| bind(&f.mutex)),
    row(BIND, name::SEED_BIND, |f, _| bind(&f.seed)),
    beside(BIND_BESIDE_SELECT, "floor beside ArcSwap::swap", |f, _| floor(f), |f, _| swap(f)),
    beside(BIND_BESIDE_SELECT, "liveslot: bind(device) beside select", |f, _| bind(&f.liveslot), |f, _| select(&f.liveslot)),
    beside(BIND_BESIDE_SELECT, "liveslot: DeviceHandle::bind beside select", |f, _| handle_bind(&f.liveslot), |f, _| select(&f.liveslot)),
    beside(BIND_BESIDE_SELECT, "RwLock<HashMap>: bind beside select", |f, _| bind(&f.rwlock), |f, _| select(&f.rwlock)),
    beside(BIND_BESIDE_SELECT, "DashMap: bind beside select", |f, _| bind(&f.dashmap), |f, _| select(&f.dashmap)),
    beside(BIND_BESIDE_SELECT, "papaya: bind beside select", |f, _| bind(&f.papaya), |f, _| select(&f.papaya)),
    beside(BIND_BESIDE_SELECT, "mutex registry: bind beside select", |f, _| bind(&f.mutex), |f, _| select(&f.mutex)),
    beside(BIND_BESIDE_SELECT, "onnx-runtime-memory-api: bind beside select", |f, _| bind(&f.seed), |f, _| select(&f.seed)),
    row(SELECT, "ArcSwap::swap", |f, _| swap(f)),
    row(SELECT, "liveslot: select", |f, _| select(&f.liveslot)),
    row(SELECT, "RwLock<HashMap>: select", |f, _| select(&f.rwlock)),
    row(SELECT, "DashMap: select", |f, _| select(&f.dashmap)),
    row(SELECT, "papaya: select", |f, _| select(&f.papaya)),
    row(SELECT, "mutex registry: select", |f, _| select(&f.mutex)),
    row(SELECT, "onnx-runtime-memory-api: select", |f, _| select(&f.seed)),
    row(OPERATION, name::WITH_VIEW, |f, _| f.liveslot.with_view()),
    row(OPERATION, "mutex registry: with_allocation", |f, _| with_allocation(&f.mutex)),
    row(OPERATION, "onnx-runtime-memory-api: with_view", |f, _| f.seed.with_view()),
    row(ALLOCATION, name::MALLOC, |_, _| malloc_and_free(BYTES)),
    row(ALLOCATION, name::RECORD_MALLOC, |_, _| malloc_and_free(RECORD_BYTES)),
    row(ALLOCATION, name::ALLOCATION, |f, _| f.liveslot.allocate_and_release()),
    row(ALLOCATION, name::MUTEX_ALLOCATION, |f, _| mutex_allocate_and_release(&f.mutex)),
    row(ALLOCATION, name::SEED_ALLOCATION, |f, _| f.seed.allocate_and_release()),
    row(LIFE_CYCLE, "liveslot: register to remove", |f, thread| life_cycle(&f.liveslot, thread)),
];

/// `once`, in a loop of its own.
pub(crate) fn repeat<'f>(mut once: impl FnMut() + 'f) -> Work<'f> {
    Box::new(move |times| {
        for _ in 0..times {
            once();
        }
    })
}

// The floors. AcqRel as in the protocols; on x86 every read-modify-write is a full barrier and costs the same whatever is asked for.

fn rmw_pair<'f>() -> Work<'f> {
    let line = Box::new(CachePadded::new(AtomicU64::new(0)));
    repeat(move || {
        line.fetch_add(1, AcqRel);
        line.fetch_sub(1, AcqRel);
    })
}

/// The least that finding a candidate through a slot and counting oneself in and out can cost. One loop, not the sum of two: some of it
/// overlaps.
fn floor(fixture: &Fixture) -> Work<'_> {
    let line = Box::new(CachePadded::new(AtomicU64::new(0)));
    repeat(move || {
        let guard = fixture.slot.load();
        black_box(&guard);
        drop(guard);
        line.fetch_add(1, AcqRel);
        line.fetch_sub(1, AcqRel);
    })
}

fn load(fixture: &Fixture) -> Work<'_> {
    repeat(|| {
        let guard = fixture.option.load();
        black_box(&guard);
    })
}

fn load_full(fixture: &Fixture) -> Work<'_> {
    repeat(|| {
        let target = fixture.option.load_full();
        black_box(&target);
    })
}

fn swap(fixture: &Fixture) -> Work<'_> {
    let mut choice = 0;
    repeat(move || {
        choice ^= 1;
        let before = fixture.slot.swap(Arc::clone(&fixture.targets[choice]));
        black_box(&before);
    })
}

fn epoch_pin<'f>() -> Work<'f> {
    repeat(|| {
        let guard = crossbeam_epoch::pin();
        black_box(&guard);
    })
}

// Binding and selecting, the same loop for everybody.

fn bind<P: Peer>(peer: &P) -> Work<'_> {
    // Hidden once, outside the loop: the compiler knows neither the key nor that it stays the same device.
    let device = black_box(P::DEVICE);
    repeat(move || {
        let binding = peer.bind(device);
        assert!(P::is_bound(black_box(&binding)), "nothing selected");
    })
}

/// The choice alternates: selecting what is selected already might be cheaper.
fn select<P: Peer>(peer: &P) -> Work<'_> {
    let mut choice = 0;
    repeat(move || {
        choice ^= 1;
        peer.select(choice);
    })
}

/// Each thread has a handle of its own, as a worker would.
fn handle_bind(liveslot: &Liveslot) -> Work<'_> {
    let handle = liveslot.registry.device(Liveslot::DEVICE);
    repeat(move || {
        let binding = handle.bind();
        assert!(black_box(&binding).is_ok(), "nothing selected");
    })
}

fn bind_registered(liveslot: &Liveslot) -> Work<'_> {
    let mechanism = black_box(liveslot.mechanisms[0]);
    repeat(move || {
        let binding = liveslot.registry.bind_registered(mechanism);
        assert!(black_box(&binding).is_ok(), "not registered");
    })
}

// Work on memory. Each thread has its own binding and allocations; the mechanism is the same. The loops of liveslot and of the crate that
// it replaces are in `peers::drop_in`.

pub(crate) const BYTES: usize = 64;
pub(crate) const ALIGN: usize = 16;
/// What a library spends at least when it makes a record of an allocation on the heap.
const RECORD_BYTES: usize = 96;

fn with_allocation(registry: &MutexRegistry) -> Work<'_> {
    // Never released: it goes with its registry's table, and its 64 bytes with the process.
    let binding = registry.bind(MutexRegistry::DEVICE).expect("a binding");
    let allocation = binding.allocate(BYTES, ALIGN).expect("memory");
    repeat(move || {
        let seen = binding.with_allocation(&allocation, |address| {
            black_box(address);
        });
        assert!(black_box(&seen).is_some(), "a live allocation was refused");
    })
}

fn mutex_allocate_and_release(registry: &MutexRegistry) -> Work<'_> {
    let binding = registry.bind(MutexRegistry::DEVICE).expect("a binding");
    repeat(move || {
        let allocation = binding.allocate(BYTES, ALIGN).expect("memory");
        black_box(&allocation);
        assert!(binding.release(allocation), "a release was refused");
    })
}

fn malloc_and_free<'f>(bytes: usize) -> Work<'f> {
    let layout = Layout::from_size_align(bytes, ALIGN).expect("a layout");
    repeat(move || {
        // SAFETY: the layout has a size above zero.
        let address = unsafe { alloc(layout) };
        if black_box(address).is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: allocated above with this layout, and freed once.
        unsafe { dealloc(address, layout) };
    })
}

/// Everything that can happen to a mechanism, from nothing to nothing. Each thread has a device of its own: on a shared one, a thread would
/// bind the other's mechanism and find it retired.
fn life_cycle(liveslot: &Liveslot, thread: usize) -> Work<'_> {
    let registry = &liveslot.registry;
    let device = DeviceKey::device(4 + u32::from(thread == 1));
    repeat(move || {
        let context = registry.register_provider_context(device, Arc::new(())).expect("a context");
        let authority = registry.register_authority(device, Arc::new(())).expect("an authority");
        let mechanism = registry.register_allocator_with_device(context, authority, Arc::new(HostAllocator), device).expect("a mechanism");
        registry.select(mechanism).expect("a selection");
        let binding = registry.bind(device).expect("a binding");
        let allocation = binding.allocate(BYTES, ALIGN).expect("memory");
        black_box(&allocation);
        binding.release(allocation).expect("a release");
        drop(binding);
        registry.retire(mechanism).expect("a retirement");
        registry.remove(mechanism).expect("a removal");
        registry.remove_authority(authority).expect("the authority is unused");
        registry.remove_provider_context(context).expect("the context is unused");
    })
}
