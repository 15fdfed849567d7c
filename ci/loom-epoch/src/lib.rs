//! A loom model on the real crossbeam-epoch.
//!
//! The models in `loom-tests` use a stand-in for it: a pin that is in place before the unlinking keeps the deferred destruction back.
//! This one shows that the real crate keeps that promise, and that the model would notice if it did not.
//!
//! Built by `ci/loom-epoch.sh` with `--cfg crossbeam_loom` in a target folder of its own; without that cfg it is empty.
#![cfg(all(test, crossbeam_loom))]

use crossbeam_epoch::{Atomic, Collector, Guard, Shared};
use loom::{
    cell::UnsafeCell,
    sync::atomic::Ordering::{AcqRel, Acquire, Release},
    thread,
};
use std::{env, process::Command, sync::Arc};

const ALIVE: u32 = 7;

/// An entry whose destruction loom would see racing with a read. Its memory is freed only when the model ends, so that a mistake is
/// reported and not committed.
struct Entry(UnsafeCell<u32>);

// SAFETY: the protocol under test decides who may touch the cell when; loom tracks each access and fails on a race.
unsafe impl Sync for Entry {}

impl Entry {
    /// What a destructor does, as far as a reader is concerned.
    fn destroy(&self) {
        // SAFETY: the caller has unlinked the entry, and the epoch keeps this call back until no reader holds it. That is what is
        // modelled: loom fails where it does not hold.
        self.0.with_mut(|value| unsafe { *value = 0 });
    }
}

/// How the one who unlinks an entry has it destroyed.
type Destruction = fn(Arc<Entry>, &Guard);

fn deferred(entry: Arc<Entry>, guard: &Guard) {
    guard.defer(move || entry.destroy());
    // Hand the closure over and advance the epoch at once: the eagerest the collector gets.
    guard.flush();
}

fn at_once(entry: Arc<Entry>, _: &Guard) {
    entry.destroy();
}

/// A reader pins, finds the entry or nothing, and reads it; beside it the entry is unlinked and destroyed. Two preemptions: unbounded,
/// the model was not seen to end, nor to find the mistake.
fn reader_beside_an_unlink(destruction: Destruction) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        // One of its own: a panic with the global one aborts the process under loom.
        let collector = Collector::new();
        let entry = Arc::new(Entry(UnsafeCell::new(ALIVE)));
        let link = Arc::new(Atomic::null());
        // Release: publishes the entry. Pairs with the reader's Acquire.
        link.store(Shared::from(Arc::as_ptr(&entry)), Release);

        let reader = thread::spawn({
            let (collector, link, memory) = (collector.clone(), link.clone(), entry.clone());
            move || {
                let guard = collector.register().pin();
                // Acquire: sees the entry as it was published.
                let found: Shared<'_, Entry> = link.load(Acquire, &guard);
                // SAFETY: `memory` keeps the entry allocated.
                let read = unsafe { found.as_ref() }.map(|entry| {
                    // SAFETY: we were pinned before we found the entry, so it is not destroyed before we unpin.
                    entry.0.with(|value| unsafe { *value })
                });
                drop(guard);
                drop(memory);
                read
            }
        });

        let guard = collector.register().pin();
        // AcqRel: as the unlinking in the library's table does it.
        link.swap(Shared::null(), AcqRel, &guard);
        destruction(entry.clone(), &guard);
        drop(guard);
        collector.register().pin().flush();

        let read = reader.join().unwrap();
        assert!(matches!(read, None | Some(ALIVE)), "read a destroyed entry");
        drop(collector);
        // SAFETY: the reader has ended, and the collector has run what was deferred.
        let left = entry.0.with(|value| unsafe { *value });
        assert_eq!(left, 0, "the collector is gone and the entry is not destroyed");
    });
}

#[test]
fn a_pinned_reader_holds_the_destruction_back() {
    reader_beside_an_unlink(deferred);
}

/// The mistake that the test below runs in a process of its own.
#[test]
#[ignore = "must fail"]
fn destroying_at_once() {
    reader_beside_an_unlink(at_once);
}

#[test]
fn destroying_at_once_is_found() {
    let output =
        Command::new(env::current_exe().unwrap()).args(["--ignored", "--exact", "destroying_at_once", "--nocapture"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "the mistake was not found");
    assert!(text.contains("Causality violation"), "failed otherwise:\n{text}");
}
