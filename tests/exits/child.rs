//! What scenarios are made of: an allocator that says what is asked of it, and never must be asked again once its driver has gone.

use liveslot::*;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    process,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering::SeqCst},
    },
};

pub const DEVICE: DeviceKey = DeviceKey::device(0);

/// Ends this process by a signal if it hangs.
pub fn limit_time() {
    // SAFETY: a plain system call; SIGALRM is nobody else's here.
    unsafe { libc::alarm(60) };
}

/// Prints a line, from wherever: standard output takes part in the process's end itself.
pub fn say(line: &str) {
    let line = format!("{line}\n");
    // SAFETY: the bytes are there, and so many.
    let written = unsafe { libc::write(libc::STDOUT_FILENO, line.as_ptr().cast(), line.len()) };
    assert_eq!(written, line.len() as isize);
}

static DRIVER_IS_GONE: AtomicBool = AtomicBool::new(false);

/// The driver goes as the process exits, after the thread-locals of the thread that exits.
pub fn take_the_driver_away_at_exit() {
    extern "C" fn take_away() {
        DRIVER_IS_GONE.store(true, SeqCst);
        say("driver gone");
    }

    // SAFETY: the hook lives as long as the program.
    assert_eq!(unsafe { libc::atexit(take_away) }, 0);
}

/// A call into the driver.
fn call(line: &str) {
    if DRIVER_IS_GONE.load(SeqCst) {
        say(&format!("late: {line}"));
        process::abort();
    }
    say(line);
}

/// Memory of the heap. Says what is asked of it, unless it is `quiet`, and when it is dropped.
#[derive(Debug)]
pub struct Loud {
    pub name: &'static str,
    pub quiet: bool,
}

impl Loud {
    fn call(&self, line: &str) {
        if !self.quiet || DRIVER_IS_GONE.load(SeqCst) {
            call(line);
        }
    }
}

impl DeviceAllocator for Loud {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        self.call("allocate");
        HostAllocator.allocate(bytes, align)
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, bytes: usize, align: usize) {
        self.call("release");
        // SAFETY: the caller's promise is passed on; all memory is the heap's.
        unsafe { HostAllocator.deallocate(pointer, bytes, align) };
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

impl Drop for Loud {
    fn drop(&mut self) {
        call(&format!("{} dropped", self.name));
    }
}

/// A resource that says when it is dropped.
#[derive(Debug)]
pub struct Resource(pub &'static str);

impl Drop for Resource {
    fn drop(&mut self) {
        call(&format!("{} dropped", self.0));
    }
}

/// A registry with one mechanism: allocator A, authority Q, context C.
pub struct World {
    pub registry: BindingRegistry,
    pub context: RegisteredProviderContext,
    pub authority: RegisteredAuthority,
    pub mechanism: RegisteredMechanism,
}

impl World {
    pub fn loud() -> Self {
        Self::new(false)
    }

    pub fn quiet() -> Self {
        Self::new(true)
    }

    fn new(quiet: bool) -> Self {
        let registry = BindingRegistry::new().unwrap();
        let context = registry.register_provider_context(DEVICE, Arc::new(Resource("C"))).unwrap();
        let authority = registry.register_authority(DEVICE, Arc::new(Resource("Q"))).unwrap();
        let mechanism = registry.register_allocator(context, authority, Arc::new(Loud { name: "A", quiet })).unwrap();
        Self { registry, context, authority, mechanism }
    }

    /// Another mechanism beside the first.
    pub fn another(&self, name: &'static str) -> RegisteredMechanism {
        self.registry.register_allocator(self.context, self.authority, Arc::new(Loud { name, quiet: false })).unwrap()
    }

    pub fn take_away(&self, mechanism: RegisteredMechanism) {
        self.registry.retire(mechanism).unwrap();
        self.registry.remove(mechanism).unwrap();
    }

    /// Takes everything apart.
    pub fn end(&self) {
        self.take_away(self.mechanism);
        self.registry.remove_authority(self.authority).unwrap();
        self.registry.remove_provider_context(self.context).unwrap();
    }
}

/// What [`World`] says as it ends.
pub const ENDS: [&str; 3] = ["A dropped", "Q dropped", "C dropped"];

/// The heap, watched.
struct Watched;

#[global_allocator]
static HEAP: Watched = Watched;

static IN_USE: AtomicIsize = AtomicIsize::new(0);
static CALLS_THAT_MUST_NOT_BE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MUST_NOT_CALL: Cell<bool> = const { Cell::new(false) };
}

/// How many bytes of the heap are in use.
pub fn bytes_in_use() -> isize {
    IN_USE.load(SeqCst)
}

/// Runs something that must not call the heap.
pub fn without_the_heap<T>(run: impl FnOnce() -> T) -> T {
    let before = MUST_NOT_CALL.replace(true);
    let result = run();
    MUST_NOT_CALL.set(before);
    result
}

/// How often it did so all the same.
pub fn calls_that_must_not_be() -> usize {
    CALLS_THAT_MUST_NOT_BE.load(SeqCst)
}

fn count(bytes: isize) {
    if MUST_NOT_CALL.get() {
        CALLS_THAT_MUST_NOT_BE.fetch_add(1, SeqCst);
    }
    IN_USE.fetch_add(bytes, SeqCst);
}

// SAFETY: the system's heap is used as the caller says; what is counted meanwhile calls no heap.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) };
    }
}
