//! What callers hold on the hot path.
//!
//! | file | what |
//! | --- | --- |
//! | [`binding`] | a hold on one mechanism: allocate, look, release |
//! | [`allocation`] | a live allocation and its record |
//! | [`view`] | a part of an allocation, to be looked at through its binding |
//! | [`release`] | an allocation on its way back: prepared, then executed or retained |
//!
//! # Records
//!
//! What a mechanism knows of an allocation is counted in its pins; whether *this* metadata may still be used is a word of its own,
//! which the metadata points to. "Stale" is a state of that word, so a check is one load, there is no table of allocations, and an
//! address that is handed out again revives nothing.
//!
//! ```text
//!            prepare (one CAS of the word,      settle
//!             then one RMW of the home stripe)
//!   live ───────────────────────────▶ queued ─────────▶ gone, or a node of the quarantine
//!     ▲                                 │
//!     └──────── LOST came back ─────────┘
//! ```

mod allocation;
mod binding;
mod release;
mod view;

pub use self::{
    allocation::BoundAllocation,
    binding::MemoryBinding,
    release::ExplicitReleaseError,
    view::{BoundMemoryView, ValidatedMemoryView},
};
