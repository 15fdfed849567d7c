//! Models of `src/primitives/use_count.rs`.

#[path = "support/resource.rs"]
mod resource;
mod support;

use liveslot_loom::internals::use_count::{
    Remove::{self, Already, InUse, Removed},
    Unused, UseCount,
};
use resource::Resource;
use support::race;

/// What is used, and removed.
struct Thing {
    uses: UseCount,
    resource: Resource,
    /// Since when a removal is refused for a use.
    noted: Option<Unused>,
}

/// What became of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    Used,
    Refused,
    Tried(Remove),
}

impl Thing {
    fn new() -> Self {
        Self { uses: UseCount::new(), resource: Resource::new(), noted: None }
    }

    fn used_once() -> Self {
        let thing = Self::new();
        thing.uses.enter().unwrap();
        thing
    }

    /// Has been used, and is not when somebody looks.
    fn looked_at() -> Self {
        let thing = Self::used_once();
        assert!(thing.uses.unused().is_none());
        thing.uses.leave();
        let noted = thing.uses.unused();
        assert!(noted.is_some());
        Self { noted, ..thing }
    }

    /// Uses it, and goes on using it.
    fn enter(&self) -> Did {
        if self.uses.enter().is_err() {
            return Did::Refused;
        }
        self.resource.read();
        Did::Used
    }

    fn pass_through(&self) -> Did {
        let did = self.enter();
        if did == Did::Used {
            self.uses.leave();
        }
        did
    }

    /// Ends a use that was counted in the setup.
    fn leave(&self) -> Did {
        self.resource.read();
        self.uses.leave();
        Did::Used
    }

    fn remove(&self) -> Did {
        let removal = self.uses.remove(self.noted);
        if removal == Removed {
            self.resource.tear_down();
        }
        Did::Tried(removal)
    }
}

/// R144: a use that stays and a removal: exactly one of them wins, and the other is told.
#[test]
fn a_use_or_a_removal_wins() {
    race(Thing::new, &[Thing::enter, Thing::remove], |thing, did| {
        let used = did == [Did::Used, Did::Tried(InUse)];
        let removed = did == [Did::Refused, Did::Tried(Removed)];
        assert!(used || removed, "used and removed, or neither: {did:?}");
        if used {
            thing.resource.read();
        }
    });
}

/// R144: a removal never takes the thing from a user, whether one leaves, passes through or comes too late.
#[test]
fn a_removal_comes_after_every_use() {
    race(Thing::used_once, &[Thing::leave, Thing::pass_through, Thing::remove], |thing, did| {
        assert_eq!(did[0], Did::Used);
        match did[2] {
            Did::Tried(Removed) => {}
            // Nothing is counted that was refused, so only a user can have been met.
            Did::Tried(InUse) => assert_eq!(did[1], Did::Used, "refused, and nothing was removed"),
            other => panic!("removed by nobody: {other:?}"),
        }
        // What was not removed can be removed now: nobody is counted any more.
        let then = thing.uses.remove(None);
        assert_eq!(then, if did[2] == Did::Tried(Removed) { Already } else { Removed }, "{did:?}");
    });
}

/// Of two removals of an unused thing one wins, whoever comes meanwhile; a user that is refused stands in nobody's way.
#[test]
fn removals_have_one_winner() {
    race(Thing::new, &[Thing::remove, Thing::remove, Thing::pass_through], |thing, did| {
        let won = did.iter().filter(|did| **did == Did::Tried(Removed)).count();
        match did[2] {
            Did::Refused => assert_eq!(won, 1, "refused, and not one winner: {did:?}"),
            Did::Used if won == 0 => {
                assert_eq!(did[..2], [Did::Tried(InUse); 2]);
                assert_eq!(thing.uses.remove(None), Removed, "a use has stayed");
            }
            _ => assert_eq!(won, 1, "not one winner: {did:?}"),
        }
        let told = did.iter().filter(|did| **did == Did::Tried(Already)).count();
        assert!(told <= won, "removed by nobody: {did:?}");
    });
}

/// A use that has begun since somebody looked stands in the way of that one's removal, also when it has ended, and of no other.
#[test]
fn a_use_since_refuses_a_removal() {
    race(Thing::looked_at, &[Thing::pass_through, Thing::remove], |thing, did| {
        let used = did == [Did::Used, Did::Tried(InUse)];
        let removed = did == [Did::Refused, Did::Tried(Removed)];
        assert!(used || removed, "used and removed, or neither: {did:?}");
        assert_eq!(thing.uses.remove(None), if used { Removed } else { Already });
    });
}
