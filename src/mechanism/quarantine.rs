//! Ownership that was retained: a list of what was done to it, which only grows until its mechanism's memory goes.
//!
//! A queued allocation that can't be released stays in its home stripe's total; what makes it *quarantined* is one
//! compare-and-swap that pushes a node. The node carries how many there are and how many bytes, itself included, so that both
//! belong to one moment. An observer reads the head first and the stripes afterwards: the stripes then count every node it saw,
//! and `queued = total − head.count` is never below zero. Nodes hold plain data and no handle.
//!
//! **What leaves** is a node as well, one that counts −1 and names the node that it ends. It is pushed before the allocation leaves its
//! home stripe, so the allocation is quarantined, then queued for a moment, then gone. Only this lowers a total that an observer has
//! seen counted as quarantined; therefore an observer looks at the head again after the stripes, and starts again if anything was
//! *withdrawn* meanwhile. Each such retry is paid for by a withdrawal; pushes of other kinds cost an observer nothing. A node that ends
//! another and retains what is left of it in its place changes the bytes and not the count.
//!
//! **Who may end an entry** is decided by its node's word: whoever turns CLAIMED on owns what becomes of it, alone, until it is turned off
//! again or the entry is ended. The entry is listed and counted as quarantined meanwhile. The word of an ended entry stays claimed.
//!
//! | operation | progress | cost |
//! | --- | --- | --- |
//! | [`Quarantine::push`], [`Claim::withdraw`], [`Claim::replace`] | lock-free | one allocation, one compare-and-swap |
//! | [`Quarantine::retained`] | wait-free | one load |
//! | [`Quarantine::standing`] | wait-free | one load per node; a set of those that have ended |
//! | [`Standing::claim`], [`Claim::tried`], [`Claim`]'s drop | wait-free | one read-modify-write |

use crate::{
    contract::{DeferredEnqueueRejection, QuarantineReason, QuarantinedAllocation},
    primitives::pins::Home,
    sync::{
        UnsafeCell,
        atomic::{AtomicPtr, AtomicU32, Ordering::*},
    },
};
use std::{collections::BTreeSet, iter, mem, ptr, ptr::NonNull};

/// Somebody is deciding what becomes of the entry. Above it, how often a retry has left its allocation retained.
const CLAIMED: u32 = 1;

pub(crate) struct Quarantine {
    head: AtomicPtr<Node>,
}

struct Node {
    /// What is retained from here on, if anything.
    entry: Option<Entry>,
    claim: AtomicU32,
    /// The node whose entry ends here, or null.
    ends: *const Node,
    /// Written before the node is published, and never again. A cell, so that models see whose reads that orders.
    upto_here: UnsafeCell<Retained>,
    /// From `Box::into_raw`, like the head: the end frees nodes through it.
    next: *mut Node,
}

/// One allocation, with what it takes to release it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) allocation: QuarantinedAllocation,
    /// The very pointer that the allocator returned.
    pub(crate) pointer: NonNull<u8>,
    /// Where it is counted.
    pub(crate) home: Home,
    pub(crate) retry: Retry,
}

/// Whether the allocator may be asked, on request, to release an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// It has not been asked yet.
    First,
    /// It has been asked, and promised that nothing was released.
    Again,
    /// Something may be gone already, somebody has said that the device is, or somebody may still look.
    Never,
}

impl Retry {
    /// Of an entry whose allocator was not asked, and that nobody looks at.
    pub(crate) const fn unasked(reason: QuarantineReason) -> Self {
        use QuarantineReason::*;
        match reason {
            AbandonedRequest | OwnerDropped | AllocatorRefused => Self::First,
            EnqueueRejected(DeferredEnqueueRejection::DeviceLost) | DeviceLost | MechanismTerminated | PartialRelease => Self::Never,
            EnqueueRejected(_) => Self::First,
        }
    }
}

/// How much is retained, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Retained {
    pub(crate) allocations: usize,
    /// How many have been withdrawn so far.
    pub(crate) withdrawn: usize,
    /// The exact sum of what the allocators reported. The stripes hold less than 2⁶⁴ entries, so it fits, and what is withdrawn can be
    /// subtracted; only what is shown saturates.
    bytes: u128,
}

impl Retained {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.try_into().unwrap_or(u64::MAX)
    }
}

impl Node {
    fn upto_here(&self) -> Retained {
        // SAFETY: nobody writes to a published node.
        self.upto_here.with(|upto_here| unsafe { *upto_here })
    }

    /// What is retained once this has been pushed after `before`.
    fn after(&self, Retained { allocations, withdrawn, bytes }: Retained) -> Retained {
        let held = |node: &Self| node.entry.map_or(0, |entry| u128::from(entry.allocation.retained_bytes));
        // SAFETY: null, or a node that was published before, which lives as long as the list.
        let ended = unsafe { self.ends.as_ref() };
        let (entered, left) = (usize::from(self.entry.is_some()), usize::from(ended.is_some()));
        Retained {
            allocations: allocations + entered - left,
            withdrawn: withdrawn + left - entered.min(left),
            bytes: bytes + held(self) - ended.map_or(0, held),
        }
    }
}

// SAFETY: owns its nodes, which are plain data but for the word that is an atomic; the rest is written before they are published, and they
// are freed with `&mut self`. The pointers in entries are addresses to hand on; nothing here reads or writes through them.
unsafe impl Send for Quarantine {}
// SAFETY: as above.
unsafe impl Sync for Quarantine {}

impl Quarantine {
    pub(crate) fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()) }
    }

    fn head(&self) -> Option<&Node> {
        // Acquire: pairs with the Release half of the exchange in `publish`.
        let head = self.head.load(Acquire);
        // SAFETY: null or a published node, which lives as long as `self`.
        unsafe { head.as_ref() }
    }

    /// Retains an allocation. It is counted as queued before, and stays so.
    pub(crate) fn push(&self, entry: Entry) {
        self.publish(Some(entry), 0, ptr::null());
    }

    fn publish(&self, entry: Option<Entry>, claim: u32, ends: *const Node) {
        let (claim, upto_here) = (AtomicU32::new(claim), UnsafeCell::new(Retained::default()));
        let node = Box::into_raw(Box::new(Node { entry, claim, ends, upto_here, next: ptr::null_mut() }));
        // Acquire, here and on failure: we read what the head points at. Pairs with the Release half of the exchange.
        let mut next = self.head.load(Acquire);
        loop {
            // SAFETY: null or a published node, which lives as long as `self`.
            let before = unsafe { next.as_ref() }.map_or(Retained::default(), Node::upto_here);
            // SAFETY: not published yet, so ours alone.
            unsafe {
                let retained = (*node).after(before);
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

    /// Every entry that had not ended at one moment, the newest first.
    pub(crate) fn standing(&self) -> Vec<Standing<'_>> {
        // SAFETY: a published node's successor was published before it, and lives as long as `self`.
        let nodes = iter::successors(self.head(), |node| unsafe { node.next.as_ref() });
        // What ends a node is newer than it, and so comes first.
        let mut ended = BTreeSet::new();
        nodes
            .filter_map(|node| {
                ended.insert(node.ends);
                let entry = node.entry.as_ref().filter(|_| !ended.remove(&ptr::from_ref(node)))?;
                Some(Standing { quarantine: self, node, entry })
            })
            .collect()
    }
}

/// An entry that had not ended when it was listed.
pub(crate) struct Standing<'a> {
    quarantine: &'a Quarantine,
    node: &'a Node,
    entry: &'a Entry,
}

impl<'a> Standing<'a> {
    pub(crate) const fn entry(&self) -> &'a Entry {
        self.entry
    }

    /// How often a retry has left it retained.
    pub(crate) fn tries(&self) -> u32 {
        // Relaxed: a matter of order among retries, on which nothing is read.
        self.node.claim.load(Relaxed) >> 1
    }

    /// The right to decide what becomes of it, unless somebody else has it, or it has ended.
    pub(crate) fn claim(self) -> Option<Claim<'a>> {
        // Acquire: what an allocator did to the allocation in an earlier try comes before what it does in this one. Pairs with the Release
        // of `tried`.
        let before = self.node.claim.fetch_or(CLAIMED, Acquire);
        // Made if it was won, and not otherwise: its drop lets go of the entry, which is somebody else's then.
        (before & CLAIMED == 0).then(|| Claim(self))
    }
}

/// The sole right to decide what becomes of an entry. Dropped, it leaves the entry as it was.
#[must_use]
pub(crate) struct Claim<'a>(Standing<'a>);

impl<'a> Claim<'a> {
    pub(crate) const fn entry(&self) -> &'a Entry {
        self.0.entry
    }

    /// Quarantined → queued. The caller settles it at its home next.
    pub(crate) fn withdraw(self) {
        self.0.quarantine.publish(None, 0, self.0.node);
        mem::forget(self);
    }

    /// Retains something else in its place, of the same allocation, after a try.
    pub(crate) fn replace(self, entry: Entry) {
        // Relaxed: nobody else changes a word that is claimed. As in `tried`.
        let tried = self.0.node.claim.load(Relaxed).wrapping_add(CLAIMED);
        self.0.quarantine.publish(Some(entry), tried, self.0.node);
        mem::forget(self);
    }

    /// Leaves the entry as it was, after a try.
    pub(crate) fn tried(self) {
        // Release: see `Standing::claim`. CLAIMED is on, so that adding it once more turns it off and counts one above it; a count that
        // wraps is a place in the order and nothing else.
        self.0.node.claim.fetch_add(CLAIMED, Release);
        mem::forget(self);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // Release: as in `tried`, though no allocator was asked: the order of those who were goes on through us.
        self.0.node.claim.fetch_sub(CLAIMED, Release);
    }
}

impl Drop for Quarantine {
    fn drop(&mut self) {
        // Acquire: pairs with `publish`.
        let mut node = self.head.load(Acquire);
        while !node.is_null() {
            // SAFETY: every node came out of a box in `publish`, and `&mut self` says that nobody looks any more.
            node = unsafe { Box::from_raw(node) }.next;
        }
    }
}
