//! The epoch in a model: `pin` registers and fences; `defer` fences and notes who is pinned; what was deferred runs
//! once all of those have left, on the thread of the last. The book-keeping's mutex is std's, which loom does not see; so nothing
//! that loom switches at is done under it.
//!
//! What runs comes after the end of every pin before it, as behind the real collector, which has read the word of each
//! participant: here a word per thread, written at the end of its pins.
//!
//! *Eager* runs a deferred closure at the earliest moment the real crate could, *lazy* at the end of the model
//! ([`finish`]); between the two lies everything the real crate does. [`lazy`] chooses, eager unless said otherwise.

use loom::{
    sync::atomic::{AtomicBool, Ordering::*, fence},
    thread::{self, ThreadId},
};
use std::{
    array, mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// As many threads as loom runs.
const THREADS: usize = 5;

struct Collector {
    /// One per thread, written at the end of its pins. What it says means nothing. Read-modify-writes on either side: each
    /// follows the newest, where a load or a store might be ordered before it.
    ends: [AtomicBool; THREADS],
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    lazy: bool,
    /// Every thread that has ever pinned, at the index of its word.
    threads: Vec<ThreadId>,
    pins: usize,
    pinned: Vec<usize>,
    deferred: Vec<Deferred>,
}

struct Deferred {
    waits_for: Vec<usize>,
    free: Box<dyn FnOnce() + Send>,
}

loom::lazy_static! {
    static ref COLLECTOR: Collector =
        Collector { ends: array::from_fn(|_| AtomicBool::new(false)), book: Mutex::new(Book::default()) };
}

fn book() -> MutexGuard<'static, Book> {
    COLLECTOR.book.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Guard {
    pin: usize,
    thread: usize,
}

pub fn pin() -> Guard {
    let guard = book().pin(thread::current().id());
    // SeqCst: pairs with the fence in `defer`. Either `defer` notes this pin, or what it unlinked is not seen under it.
    fence(SeqCst);
    guard
}

/// Lets deferred closures wait for [`finish`].
pub fn lazy() {
    book().lazy = true;
}

/// Runs everything that is deferred. All pins must have left.
pub fn finish() {
    assert!(book().pinned.is_empty(), "a pin outlives the model");
    let all = mem::take(&mut book().deferred);
    run(all);
}

impl Book {
    fn pin(&mut self, thread: ThreadId) -> Guard {
        let known = self.threads.iter().position(|known| *known == thread);
        let thread = known.unwrap_or_else(|| {
            self.threads.push(thread);
            self.threads.len() - 1
        });
        self.pins += 1;
        self.pinned.push(self.pins);
        Guard { pin: self.pins, thread }
    }

    /// Notes the end of a pin. Gives what need not wait any more.
    fn unpin(&mut self, pin: usize) -> Vec<Deferred> {
        self.pinned.retain(|pinned| *pinned != pin);
        if self.lazy {
            return Vec::new();
        }
        let pinned = &self.pinned;
        self.deferred.extract_if(.., |deferred| !deferred.waits_for.iter().any(|pin| pinned.contains(pin))).collect()
    }
}

fn run(due: Vec<Deferred>) {
    if due.is_empty() {
        return;
    }
    let threads = book().threads.len();
    for end in &COLLECTOR.ends[..threads] {
        // Acquire: pairs with the Release in `Guard::drop`; the readers' last looks happen-before the free.
        end.fetch_or(false, Acquire);
    }
    due.into_iter().for_each(|deferred| (deferred.free)());
}

impl Guard {
    pub fn defer(&self, free: impl FnOnce() + Send + 'static) {
        // SeqCst: pairs with the fence in `pin`.
        fence(SeqCst);
        let mut book = book();
        let waits_for = book.pinned.clone();
        book.deferred.push(Deferred { waits_for, free: Box::new(free) });
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `run`.
        COLLECTOR.ends[self.thread].fetch_or(true, Release);
        let due = book().unpin(self.pin);
        run(due);
    }
}
