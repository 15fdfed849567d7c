//! What callers hold on the hot path.
//!
//! | file | what |
//! | --- | --- |
//! | [`binding`] | a hold on one mechanism: allocate, look |
//! | [`record`] | what is known of one allocation, beside its counts |
//! | [`allocation`] | a live allocation: metadata, not an owner |
//! | [`view`] | a part of an allocation, to be looked at through its binding |
//! | [`owning`] | an allocation with an owner, and the views that keep it from being released |
//! | [`prepared`] | an allocation on its way back: prepared, then executed or retained |
//! | [`deferred`] | releases that wait: what a queue has to do |
//! | [`virtual_backing`], [`shared_mapping`] | what an allocator may offer besides, and its handles |
//!
//! # Records
//!
//! What a mechanism knows of an allocation is counted in its pins; whether *this* metadata may still be used is a word of its own,
//! which the metadata points to. "Stale" is a state of that word, so a check is one load, there is no table of allocations, and an
//! address that is handed out again revives nothing. The metadata is one value that is never cloned, so its owner decides alone:
//!
//! ```text
//!          prepare: one RMW of the home stripe,        settle, by the one request
//!          which LOST refuses
//!   live ───────────────────────────────────▶ queued ────────────────────────────▶ gone, or a node of the quarantine
//! ```

mod allocation;
mod binding;
mod deferred;
mod owning;
mod prepared;
mod record;
mod shared_mapping;
mod view;
mod virtual_backing;

pub use self::{
    allocation::BoundAllocation,
    binding::MemoryBinding,
    deferred::{DeferredEnqueueError, DeferredReleaseDisposition, DeferredReleaseQueue},
    owning::{OwnedView, OwningAllocation, OwningReleaseError},
    prepared::{ExplicitReleaseError, PreparedAllocationRelease},
    shared_mapping::{BoundSharedMapping, BoundSharedPrefix},
    view::{BoundMemoryView, ValidatedMemoryView},
    virtual_backing::BoundVirtualBacking,
};
