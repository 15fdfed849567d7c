//! What is measured: each operation on the working tree, on the commit it is compared with, and on that commit once more.

use crate::{base, control, tree};
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel};

pub(crate) const BYTES: usize = 64;
pub(crate) const ALIGN: usize = 16;

/// One registry of each library. Several of these lie at different addresses, so that luck with one place does not decide a ratio.
pub(crate) struct Fixture {
    tree: tree::Side,
    base: base::Side,
    control: control::Side,
    _gap: Vec<u8>,
}

impl Fixture {
    /// `gap` bytes stay allocated beside it, so that the next one starts elsewhere.
    pub(crate) fn new(gap: usize) -> Self {
        let gap = vec![0; gap];
        Self { tree: tree::Side::new(), base: base::Side::new(), control: control::Side::new(), _gap: gap }
    }
}

/// A loop that runs as often as it is told.
pub(crate) type Work<'f> = Box<dyn FnMut(u64) + 'f>;

/// Prepares a loop on the thread that will run it; the number is the thread's.
type Prepare = for<'f> fn(&'f Fixture, usize) -> Work<'f>;

/// An operation of one library.
pub(crate) struct Row(Prepare);

impl Row {
    pub(crate) fn thread_counts(&self) -> &'static [usize] {
        &[1, 2]
    }

    /// All threads are measured.
    pub(crate) fn is_company(&self, _thread: usize) -> bool {
        false
    }

    pub(crate) fn prepare<'f>(&self, fixture: &'f Fixture, thread: usize) -> Work<'f> {
        (self.0)(fixture, thread)
    }
}

/// `once`, in a loop of its own.
pub(crate) fn repeat<'f>(mut once: impl FnMut() + 'f) -> Work<'f> {
    Box::new(move |times| {
        for _ in 0..times {
            once();
        }
    })
}

/// Of the three rows of an operation, the place of each library.
pub(crate) const TREE: usize = 0;
pub(crate) const BASE: usize = 1;
pub(crate) const CONTROL: usize = 2;
pub(crate) const SIDES: usize = 3;

macro_rules! operations {
    (|$side:ident, $thread:ident| $($name:literal: $work:expr,)*) => {
        /// Each stands for three rows.
        pub(crate) const OPERATIONS: &[&str] = &[$($name,)* "read-modify-write pair"];

        /// Three rows for each operation, in the order `TREE`, `BASE`, `CONTROL`. The last three run the same code: what they show of a
        /// difference is the machine's.
        pub(crate) const ROWS: &[Row] = &[
            $(operations!(@ tree $side $thread $work), operations!(@ base $side $thread $work), operations!(@ control $side $thread $work),)*
            Row(|_, _| rmw_pair()),
            Row(|_, _| rmw_pair()),
            Row(|_, _| rmw_pair()),
        ];
    };
    (@ $library:ident $side:ident $thread:ident $work:expr) => {
        Row(|fixture, $thread| {
            let ($side, _) = (&fixture.$library, $thread);
            $work
        })
    };
}

operations! { |side, thread|
    "bind(device)": side.bind(),
    "DeviceHandle::bind": side.handle_bind(),
    "bind_registered": side.bind_registered(),
    "clone and drop a binding": side.clone_binding(),
    "with_view": side.with_view(),
    "allocate and release 64 bytes": side.allocate_and_release(),
    "select, no watcher": side.select(),
    "register, select, retire, remove": side.cycle(thread),
}

fn rmw_pair<'f>() -> Work<'f> {
    let line = Box::new(CachePadded::new(AtomicU64::new(0)));
    repeat(move || {
        line.fetch_add(1, AcqRel);
        line.fetch_sub(1, AcqRel);
    })
}
