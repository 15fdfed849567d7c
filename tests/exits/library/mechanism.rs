//! The code of a mechanism, in a library that the test compiles by itself. Memory of the heap; it says what is asked of it.

use std::{
    alloc::{Layout, alloc, dealloc},
    cell::Cell,
};

unsafe extern "C" {
    fn write(file: i32, bytes: *const u8, length: usize) -> isize;
}

fn say(line: &str) {
    let line = format!("{line}\n");
    // SAFETY: the bytes are there, and so many.
    unsafe { write(1, line.as_ptr(), line.len()) };
}

thread_local! {
    static VISITED: Visited = const { Visited(Cell::new(false)) };
}

/// What the library keeps for a thread that asks for it.
struct Visited(Cell<bool>);

impl Drop for Visited {
    fn drop(&mut self) {
        say("the library's thread-local dropped");
    }
}

#[unsafe(no_mangle)]
extern "C" fn mechanism_visit() {
    VISITED.with(|visited| visited.0.set(true));
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mechanism_allocate(bytes: usize, align: usize) -> *mut u8 {
    say("allocate");
    // SAFETY: the caller asks for bytes, with an alignment that is a power of two.
    unsafe { alloc(Layout::from_size_align_unchecked(bytes, align)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mechanism_release(pointer: *mut u8, bytes: usize, align: usize) {
    say("release");
    // SAFETY: made above with these values, and given back once.
    unsafe { dealloc(pointer, Layout::from_size_align_unchecked(bytes, align)) };
}

#[unsafe(no_mangle)]
extern "C" fn mechanism_end_allocator() {
    say("allocator ends");
}

#[unsafe(no_mangle)]
extern "C" fn mechanism_end_authority() {
    say("authority ends");
}
