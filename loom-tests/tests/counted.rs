//! Models of `src/primitives/counted.rs`: of several holders one ends the value, behind everything that was done with it.

#[path = "support/held.rs"]
mod held;
#[path = "support/resource.rs"]
mod resource;
mod support;

use held::Held;
use liveslot_loom::internals::counted::Counted;
use resource::Resource;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use support::race;

/// Its destructor writes what its holders read. The count of destructions is std's, so that it orders nothing.
struct Value {
    resource: Resource,
    ended: Arc<AtomicUsize>,
}

impl Drop for Value {
    fn drop(&mut self) {
        self.resource.tear_down();
        self.ended.fetch_add(1, Relaxed);
    }
}

struct Shared {
    shares: Vec<Held<Counted<Value>>>,
    ended: Arc<AtomicUsize>,
}

impl Shared {
    fn new(shares: usize) -> Self {
        let ended = Arc::new(AtomicUsize::new(0));
        let first = Counted::new(Value { resource: Resource::new(), ended: Arc::clone(&ended) });
        Self { shares: vec![first; shares].into_iter().map(Held::new).collect(), ended }
    }

    fn let_go(&self, n: usize) {
        let share = self.shares[n].take();
        share.get().resource.read();
    }

    fn clone_and_let_go(&self, n: usize) {
        let share = self.shares[n].take();
        let another = share.clone();
        share.get().resource.read();
        drop(share);
        another.get().resource.read();
    }

    fn has_ended(&self) {
        assert_eq!(self.ended.load(Relaxed), 1, "ended by nobody, or by several");
    }
}

/// R149: of two holders that let go one ends the value, whether it found itself alone at once or only after counting itself out.
#[test]
fn of_two_holders_one_ends_it() {
    race(|| Shared::new(2), &[|shared: &Shared| shared.let_go(0), |shared| shared.let_go(1)], |shared, _| shared.has_ended());
}

/// R149: so it is when a holder counts another share meanwhile.
#[test]
fn clone_and_drop_and_drop() {
    race(
        || Shared::new(3),
        &[|shared: &Shared| shared.clone_and_let_go(0), |shared| shared.let_go(1), |shared| shared.let_go(2)],
        |shared, _| shared.has_ended(),
    );
}

/// R149: two holders that each make and drop another share don't take each other for gone.
#[test]
fn clones_and_drops() {
    race(
        || Shared::new(2),
        &[|shared: &Shared| shared.clone_and_let_go(0), |shared| shared.clone_and_let_go(1)],
        |shared, _| shared.has_ended(),
    );
}
