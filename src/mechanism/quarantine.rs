//! Ownership that was retained: a list that only grows until its mechanism's memory goes.
//!
//! A queued allocation that can't be released stays in its home stripe's total; what makes it *quarantined* is one
//! compare-and-swap that pushes a node. The node carries how many there are and how many bytes, itself included, so that both
//! belong to one moment. An observer reads the head first and the stripes afterwards: the stripes then count every node it saw,
//! and `queued = total − head.count` is never below zero. Nodes hold plain data and no handle.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`Quarantine::push`] | lock-free | one allocation, one compare-and-swap |
//! | [`Quarantine::retained`] | wait-free | one load |
//! | [`Quarantine::list`] | wait-free | one load per entry |

use crate::{
    contract::QuarantinedAllocation,
    sync::{
        UnsafeCell,
        atomic::{AtomicPtr, Ordering::*},
    },
};
use std::{iter, ptr};

pub(crate) struct Quarantine {
    head: AtomicPtr<Node>,
}

struct Node {
    entry: QuarantinedAllocation,
    /// Written before the node is published, and never again. A cell, so that models see whose reads that orders.
    upto_here: UnsafeCell<Retained>,
    /// From `Box::into_raw`, like the head: the end frees nodes through it.
    next: *mut Node,
}

/// How much is retained, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Retained {
    pub(crate) allocations: usize,
    /// As the allocators reported them; saturates.
    pub(crate) bytes: u64,
}

impl Node {
    fn upto_here(&self) -> Retained {
        // SAFETY: nobody writes to a published node.
        self.upto_here.with(|upto_here| unsafe { *upto_here })
    }
}

// SAFETY: owns its nodes, which are plain data; they are written before they are published and freed with `&mut self`.
unsafe impl Send for Quarantine {}
// SAFETY: as above.
unsafe impl Sync for Quarantine {}

impl Quarantine {
    pub(crate) fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()) }
    }

    fn head(&self) -> Option<&Node> {
        // Acquire: pairs with the Release half of the exchange in `push`.
        let head = self.head.load(Acquire);
        // SAFETY: null or a published node, which lives as long as `self`.
        unsafe { head.as_ref() }
    }

    /// Retains `entry`. It is counted as queued before, and stays so.
    pub(crate) fn push(&self, entry: QuarantinedAllocation) {
        let node = Box::into_raw(Box::new(Node { entry, upto_here: UnsafeCell::new(Retained::default()), next: ptr::null_mut() }));
        // Acquire, here and on failure: we read what the head points at. Pairs with the Release half of the exchange.
        let mut next = self.head.load(Acquire);
        loop {
            // SAFETY: null or a published node, which lives as long as `self`.
            let before = unsafe { next.as_ref() }.map_or(Retained::default(), Node::upto_here);
            let retained = Retained { allocations: before.allocations + 1, bytes: before.bytes.saturating_add(entry.retained_bytes) };
            // SAFETY: not published yet, so ours alone.
            unsafe {
                (*node).upto_here.with_mut(|upto_here| *upto_here = retained);
                (*node).next = next;
            }
            // AcqRel: Release publishes the node, and the queueing before it. Pairs with `head`. Nodes are never freed meanwhile: no ABA.
            match self.head.compare_exchange(next, node, AcqRel, Acquire) {
                Ok(_) => return,
                Err(newer) => next = newer,
            }
        }
    }

    pub(crate) fn retained(&self) -> Retained {
        self.head().map_or(Retained::default(), Node::upto_here)
    }

    /// Every entry, the newest first.
    pub(crate) fn list(&self) -> Vec<QuarantinedAllocation> {
        // SAFETY: a published node's successor was published before it, and lives as long as `self`.
        iter::successors(self.head(), |node| unsafe { node.next.as_ref() }).map(|node| node.entry).collect()
    }
}

impl Drop for Quarantine {
    fn drop(&mut self) {
        // Acquire: pairs with `push`.
        let mut node = self.head.load(Acquire);
        while !node.is_null() {
            // SAFETY: every node came out of a box in `push`, and `&mut self` says that nobody looks any more.
            node = unsafe { Box::from_raw(node) }.next;
        }
    }
}
