//! What is known of one allocation, beside its counts.
//!
//! One record per allocation, shared by its metadata and its views. The metadata is one value ([`BoundAllocation`], whoever carries
//! it: the caller, an owner, a prepared release, an error), never cloned, so the steps of a life are taken by whoever owns that value, one
//! after the other: they need no read-modify-write here. Views only look.
//!
//! | field | who may change it |
//! | --- | --- |
//! | `state` | whoever owns the metadata; views read it |
//! | `views` | owned views, when they are made, cloned and dropped; the owner reads it |
//! | the rest | nobody |
//!
//! The record holds the binding, so its resources stand as long as any metadata or view does.
//!
//! [`BoundAllocation`]: super::BoundAllocation

use super::binding::MemoryBinding;
use crate::{
    contract::{AllocationGeneration, AllocationIdentity},
    primitives::pins::Home,
    sync::atomic::{AtomicU8, AtomicUsize, Ordering::*},
};
use std::ptr::NonNull;

pub(super) struct Record {
    pub(super) binding: MemoryBinding,
    pub(super) generation: AllocationGeneration,
    pub(super) pointer: NonNull<u8>,
    pub(super) bytes: usize,
    pub(super) alignment: usize,
    /// Where it is counted.
    pub(super) home: Home,
    state: AtomicU8,
    views: AtomicUsize,
}

/// Where an allocation is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    Live,
    /// A prepared release stands for it.
    Queued,
    /// Settled or retained. Nothing is left to be done with it.
    Gone,
}

// SAFETY: the pointer is an address to hand on; nothing here reads or writes through it.
unsafe impl Send for Record {}
// SAFETY: as above.
unsafe impl Sync for Record {}

impl Record {
    pub(super) fn new(
        binding: MemoryBinding,
        generation: AllocationGeneration,
        pointer: NonNull<u8>,
        bytes: usize,
        alignment: usize,
        home: Home,
    ) -> Self {
        let (state, views) = (AtomicU8::new(State::Live as u8), AtomicUsize::new(0));
        Self { binding, generation, pointer, bytes, alignment, home, state, views }
    }

    pub(super) const fn identity(&self) -> AllocationIdentity {
        AllocationIdentity::new(self.binding.identity(), self.generation)
    }

    #[inline]
    pub(super) fn state(&self) -> State {
        // Acquire: who is told that it is stale finds what was done before it became so. Pairs with `step_to`.
        match self.state.load(Acquire) {
            0 => State::Live,
            1 => State::Queued,
            _ => State::Gone,
        }
    }

    #[inline]
    pub(super) fn is_live(&self) -> bool {
        self.state() == State::Live
    }

    /// Takes a step. The caller owns the metadata.
    #[inline]
    pub(super) fn step_to(&self, state: State) {
        // Release: see `state`. The home stripe orders the rest.
        self.state.store(state as u8, Release);
    }

    /// How many owned views there are.
    #[inline]
    pub(super) fn views(&self) -> usize {
        // Acquire: the views' use of the allocation happens-before its release. Pairs with `uncount_view`. Once the owner, by value,
        // reads zero, nothing is left that a view could be made from.
        self.views.load(Acquire)
    }

    /// Counts an owned view. The caller has the owner or an owned view.
    #[inline]
    pub(super) fn count_view(&self) {
        // Relaxed: the caller's owner or view keeps the allocation, whatever order others see.
        if self.views.fetch_add(1, Relaxed) > isize::MAX as usize {
            // As std's `Arc` does.
            std::process::abort();
        }
    }

    #[inline]
    pub(super) fn uncount_view(&self) {
        // Release: see `views`.
        self.views.fetch_sub(1, Release);
    }
}
