//! A mechanism whose code is in a library, which its context closes.

use crate::{
    Case, Way,
    child::{DEVICE, say},
};
use liveslot::*;
use std::{
    env,
    ffi::{CStr, CString, c_void},
    fs, mem,
    path::{Path, PathBuf},
    process::{self, Command},
    ptr::NonNull,
    sync::{Arc, mpsc},
    thread,
};

fn path() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("mechanism.so")
}

/// Compiles the library.
fn compile() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exits/library/mechanism.rs");
    let ours = path().with_extension(process::id().to_string());
    let rustc = env::var_os("RUSTC").unwrap_or("rustc".into());
    let compiled = Command::new(rustc).args(["--edition=2024", "--crate-type=cdylib", "-o"]).arg(&ours).arg(source).status().unwrap();
    assert!(compiled.success(), "{compiled}");
    fs::rename(ours, path()).unwrap();
}

fn path_for_the_loader() -> CString {
    CString::new(path().into_os_string().into_encoded_bytes()).unwrap()
}

/// What the library's functions are called with.
type Allocate = unsafe extern "C" fn(usize, usize) -> *mut u8;
type Release = unsafe extern "C" fn(*mut u8, usize, usize);
type Plain = extern "C" fn();

/// The provider context: while it is there, the library is.
#[derive(Debug)]
struct Library(NonNull<c_void>);

// SAFETY: the handle is the loader's, which any thread may use.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    fn open() -> Self {
        // SAFETY: the library's initialisers are those of std, which has none.
        let handle = unsafe { libc::dlopen(path_for_the_loader().as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        Self(NonNull::new(handle).expect("the library is there"))
    }

    /// # Safety
    ///
    /// `F` is the type of the function of this name.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> F {
        // SAFETY: the handle is open.
        let function = unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) };
        assert!(!function.is_null(), "{name:?}");
        assert_eq!(mem::size_of::<F>(), mem::size_of_val(&function));
        // SAFETY: a function of this type, as the caller says.
        unsafe { mem::transmute_copy(&function) }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and nobody uses it afterwards.
        assert_eq!(unsafe { libc::dlclose(self.0.as_ptr()) }, 0);
        say("closed");
    }
}

/// Whether the library is loaded.
fn is_loaded() -> bool {
    // SAFETY: loads nothing.
    let handle = unsafe { libc::dlopen(path_for_the_loader().as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    !handle.is_null()
}

/// An allocator that is nothing without the library.
#[derive(Debug)]
struct Loaded {
    allocate: Allocate,
    release: Release,
    end: Plain,
}

impl DeviceAllocator for Loaded {
    fn allocate(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, MemoryError> {
        // SAFETY: the tests ask for some bytes, well aligned.
        Ok(NonNull::new(unsafe { (self.allocate)(bytes, align) }).expect("there is memory"))
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, bytes: usize, align: usize) {
        // SAFETY: as the caller promises.
        unsafe { (self.release)(pointer.as_ptr(), bytes, align) };
    }

    fn device(&self) -> DeviceKey {
        DEVICE
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        (self.end)();
    }
}

/// An authority that the library takes part in.
#[derive(Debug)]
struct Accounting(Plain);

impl Drop for Accounting {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A registry that alone keeps the library, and a function of the library.
fn load() -> (BindingRegistry, Plain) {
    let library = Library::open();
    // SAFETY: these are the types of these functions.
    let (allocator, accounting, visit) = unsafe {
        let loaded = Loaded {
            allocate: library.function(c"mechanism_allocate"),
            release: library.function(c"mechanism_release"),
            end: library.function(c"mechanism_end_allocator"),
        };
        (loaded, Accounting(library.function(c"mechanism_end_authority")), library.function(c"mechanism_visit"))
    };
    let registry = BindingRegistry::new().unwrap();
    let context = registry.register_provider_context(DEVICE, Arc::new(library)).unwrap();
    let authority = registry.register_authority(DEVICE, Arc::new(accounting)).unwrap();
    registry.register_allocator(context, authority, Arc::new(allocator)).unwrap();
    (registry, visit)
}

/// C154: a library that holds an allocator's code and that the context closes is there until allocator and authority have ended, whoever
/// lets go last, and is closed then. A thread that used it may end later.
pub fn is_closed_after_its_last_use() -> Case {
    const ENDS: [&str; 3] = ["allocator ends", "authority ends", "closed"];
    let ways = vec![
        Way::new("the registry", [&["allocate", "release"][..], &ENDS, &["unloaded"]].concat(), || {
            let (registry, _) = load();
            let (used, is_used) = mpsc::channel();
            let (go, may_go) = mpsc::channel::<()>();
            let binding = registry.bind(DEVICE).unwrap();
            let thread = thread::spawn(move || {
                binding.release(binding.allocate(16, 8).unwrap()).unwrap();
                drop(binding);
                used.send(()).unwrap();
                may_go.recv().unwrap();
            });
            is_used.recv().unwrap();
            drop(registry);
            assert!(!is_loaded());
            say("unloaded");
            go.send(()).unwrap();
            thread.join().unwrap();
        }),
        Way::new("a block", [&["allocate", "the registry went", "release"][..], &ENDS, &["unloaded"]].concat(), || {
            let (registry, _) = load();
            let binding = registry.bind(DEVICE).unwrap();
            let block = thread::spawn(move || binding.allocate_owning(16, 8).unwrap()).join().unwrap();
            drop(registry);
            say("the registry went");
            thread::spawn(|| block.release_now().unwrap()).join().unwrap();
            assert!(!is_loaded());
            say("unloaded");
        }),
        Way::new("a thread-local", [&["allocate", "release"][..], &ENDS, &["the library's thread-local dropped"]].concat(), || {
            let (registry, visit) = load();
            let (used, is_used) = mpsc::channel();
            let (go, may_go) = mpsc::channel::<()>();
            let binding = registry.bind(DEVICE).unwrap();
            let thread = thread::spawn(move || {
                visit();
                binding.release(binding.allocate(16, 8).unwrap()).unwrap();
                drop(binding);
                used.send(()).unwrap();
                may_go.recv().unwrap();
            });
            is_used.recv().unwrap();
            drop(registry);
            go.send(()).unwrap();
            thread.join().unwrap();
        }),
    ];
    Case { prepare: compile, ..Case::new("library::is_closed_after_its_last_use", ways) }
}
