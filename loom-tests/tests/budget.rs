//! Models of `src/host/budget.rs`, through the wrapper that charges it.

mod support;

use liveslot_loom::{
    AllocationReleaseOutcome, AllocationReleaseState, Budget, BudgetSnapshot, BudgetedAllocator, DeviceAllocator, DeviceKey, MemoryError,
    MemoryRole, QuarantineReason, ReleaseAccounting, ResidualOwnership,
};
use std::{
    ptr::NonNull,
    sync::{Arc, Mutex},
};
use support::{orders, race, race_at};

const LIMIT: u64 = 10;

/// An allocator without memory, whose releases leave behind as many bytes as the alignment says.
#[derive(Debug)]
struct Fake;

impl DeviceAllocator for Fake {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        Ok(NonNull::dangling())
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {}

    unsafe fn release(&self, _: NonNull<u8>, bytes: usize, align: usize) -> AllocationReleaseOutcome {
        let (state, reason) = (AllocationReleaseState::PartiallyUnmapped, QuarantineReason::PartialRelease);
        let residual = ResidualOwnership { state, reason, retained_bytes: align as u64, address: 0, align };
        let accounting = ReleaseAccounting::eager(bytes as u64);
        match align {
            0 => AllocationReleaseOutcome::complete(accounting),
            _ => AllocationReleaseOutcome::quarantined(accounting, residual),
        }
    }

    fn device(&self) -> DeviceKey {
        DeviceKey::HOST
    }
}

struct World {
    budget: Arc<Budget>,
    allocator: BudgetedAllocator<Fake>,
    /// One that is destroyed meanwhile.
    mortal: Mutex<Option<BudgetedAllocator<Fake>>>,
}

/// What became of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    Done,
    /// With so many bytes taken, and this limit.
    Refused(u64, u64),
    Saw(BudgetSnapshot),
}

impl Did {
    /// Used and quarantined bytes of what was seen, which adds up.
    #[track_caller]
    fn seen(self) -> (u64, u64) {
        let Did::Saw(BudgetSnapshot { limit, used, quarantined, free, peak }) = self else { panic!("not an observer: {self:?}") };
        assert_eq!(used + quarantined + free, limit);
        assert!(used + quarantined <= peak, "more was seen taken than the peak: {self:?}");
        assert!(peak <= limit, "a peak above the limit: {self:?}");
        (used, quarantined)
    }
}

impl World {
    fn new() -> Self {
        Self::limited(LIMIT)
    }

    fn limited(limit: u64) -> Self {
        let budget = Arc::new(Budget::new(limit));
        let allocator = || BudgetedAllocator::new(Fake, Arc::clone(&budget), MemoryRole::KvCache);
        Self { allocator: allocator(), mortal: Mutex::new(Some(allocator())), budget }
    }

    /// With `N` bytes in use.
    fn holding<const N: usize>() -> Self {
        let world = Self::new();
        assert_eq!(world.charge::<N>(), Did::Done);
        world
    }

    fn charge<const N: usize>(&self) -> Did {
        charge(&self.allocator, N)
    }

    /// Gives back `N` bytes, of which `LEFT` stay in quarantine.
    fn release<const N: usize, const LEFT: usize>(&self) -> Did {
        release(&self.allocator, N, LEFT)
    }

    fn snapshot(&self) -> Did {
        Did::Saw(self.budget.snapshot())
    }

    fn raise(&self) -> Did {
        self.budget.raise_limit(LIMIT);
        Did::Done
    }

    #[track_caller]
    fn rests_at(&self, used: u64, quarantined: u64) -> u64 {
        let at_rest = self.snapshot();
        assert_eq!(at_rest.seen(), (used, quarantined));
        self.budget.peak()
    }
}

fn charge(allocator: &BudgetedAllocator<Fake>, bytes: usize) -> Did {
    match allocator.allocate(bytes, 1) {
        Ok(_) => Did::Done,
        Err(MemoryError::TierExhausted { used, limit, available, .. }) => {
            assert_eq!(used + available, limit);
            Did::Refused(used, limit)
        }
        Err(other) => panic!("{other}"),
    }
}

fn release(allocator: &BudgetedAllocator<Fake>, bytes: usize, left: usize) -> Did {
    // SAFETY: there is no memory; each role gives back what the setup or itself has charged.
    unsafe { allocator.release(NonNull::dangling(), bytes, left) };
    Did::Done
}

/// Of two charges of which one fits, exactly one is made, and the other is told what it met.
#[test]
fn one_of_two_charges_wins() {
    race(World::new, &[World::charge::<6>, World::charge::<5>], |world, did| {
        match did[..] {
            [Did::Done, Did::Refused(6, LIMIT)] => assert_eq!(world.rests_at(6, 0), 6),
            [Did::Refused(5, LIMIT), Did::Done] => assert_eq!(world.rests_at(5, 0), 5),
            _ => panic!("both, or neither: {did:?}"),
        };
    });
}

/// A charge that can't fit is refused, and neither another charge nor an observer ever meets it.
#[test]
fn a_refusal_leaves_no_trace() {
    race(World::new, &[World::charge::<11>, World::charge::<10>, World::snapshot], |world, did| {
        assert!(matches!(did[0], Did::Refused(0 | 10, LIMIT)), "{did:?}");
        assert_eq!(did[1], Did::Done, "refused because of a charge that was refused");
        assert!(matches!(did[2].seen(), (0 | 10, 0)), "{did:?}");
        assert_eq!(world.rests_at(10, 0), 10);
    });
}

/// A charge beside a refund fits or not, depending on which comes first; nothing else is seen.
#[test]
fn a_charge_beside_a_refund() {
    race(World::holding::<6>, &[World::charge::<7>, World::release::<6, 0>, World::snapshot], |world, did| {
        assert!(matches!(did[2].seen(), (0 | 6 | 7, 0)), "{did:?}");
        match did[0] {
            Did::Done => assert_eq!(world.rests_at(7, 0), 7),
            Did::Refused(6, LIMIT) => assert_eq!(world.rests_at(0, 0), 6),
            _ => panic!("refused by nothing that was there: {did:?}"),
        };
    });
}

/// A release that leaves something behind, beside a charge: used, quarantined and free add up in each snapshot, and nothing is seen
/// that never was.
#[test]
fn a_quarantine_beside_a_charge() {
    // Bound 3, which took up to 20 s, is left out.
    race_at(&[2], &orders(3), World::holding::<4>, &[World::charge::<6>, World::release::<4, 3>, World::snapshot], |world, did| {
        assert_eq!(did[..2], [Did::Done; 2]);
        let seen = did[2].seen();
        assert!(matches!(seen, (4 | 10, 0) | (1 | 7 | 0 | 6, 3)), "{seen:?} never was");
        assert_eq!(world.rests_at(6, 3), if world.budget.peak() == 10 { 10 } else { 9 });
    });
}

/// A snapshot is one instant: what went into quarantine before a charge is seen there by whoever sees the charge.
#[test]
fn a_charge_after_a_quarantine() {
    fn release_and_charge(world: &World) -> Did {
        world.release::<4, 4>();
        world.charge::<6>()
    }
    race(World::holding::<4>, &[release_and_charge, World::snapshot], |world, did| {
        let seen = did[1].seen();
        assert!(matches!(seen, (4, 0) | (0 | 6, 4)), "{seen:?} never was");
        assert_eq!(world.rests_at(6, 4), 10);
    });
}

/// Charges, leaves something behind, and destroys the allocator.
fn life(world: &World) -> Did {
    let allocator = world.mortal.lock().unwrap().take().expect("one role takes it");
    let did = charge(&allocator, 4);
    if did == Did::Done {
        release(&allocator, 4, 3);
    }
    drop(allocator);
    did
}

/// A whole life, from the charge to the end of the allocator, under the eyes of an observer: it sees each step or does not see it.
#[test]
fn the_end_of_an_allocator() {
    race(World::new, &[life, World::snapshot], |world, did| {
        let seen = did[1].seen();
        assert!(matches!(seen, (0 | 4 | 3, 0) | (0 | 1, 3)), "{seen:?} never was");
        assert_eq!(world.rests_at(0, 0), 4);
    });
}

/// A whole life beside a charge that fits only before or after it, and that nothing of it is left to disturb.
#[test]
fn a_charge_beside_a_life() {
    race(World::new, &[life, World::charge::<8>], |world, did| {
        match did[..] {
            [Did::Done, Did::Done] => assert_eq!(world.rests_at(8, 0), 8),
            [Did::Done, Did::Refused(3 | 4, LIMIT)] => assert_eq!(world.rests_at(0, 0), 4),
            [Did::Refused(8, LIMIT), Did::Done] => assert_eq!(world.rests_at(8, 0), 8),
            _ => panic!("refused by nothing that was there: {did:?}"),
        };
    });
}

/// C131: who sees a charge sees the limit that allowed it; a charge that is refused meets the old limit.
#[test]
fn a_raised_limit() {
    race(
        || World::limited(4),
        &[World::raise, World::charge::<10>, World::snapshot],
        |world, did| {
            did[2].seen();
            match did[1] {
                Did::Done => assert_eq!(world.rests_at(10, 0), 10),
                Did::Refused(0, 4) => assert_eq!(world.rests_at(0, 0), 0),
                _ => panic!("refused by a limit that never was: {did:?}"),
            };
            assert_eq!(world.budget.limit(), LIMIT);
        },
    );
}

/// The peak is at least what anybody has seen, also if who charged it has not got to raising it, and no more than there was.
#[test]
fn the_peak_is_what_was_seen() {
    fn pass(world: &World) -> Did {
        world.charge::<6>();
        world.release::<6, 0>()
    }
    race(World::holding::<3>, &[pass, World::snapshot, World::snapshot], |world, did| {
        let seen = did[1].seen().0.max(did[2].seen().0);
        let peak = world.rests_at(3, 0);
        assert!(peak >= seen && peak == 9, "{seen} seen, and a peak of {peak}");
    });
}

/// The peak of a snapshot is that of its instant: what was taken before is in it, what is taken afterwards is not.
#[test]
fn a_peak_is_of_its_instant() {
    fn release_and_charge(world: &World) -> Did {
        world.release::<4, 0>();
        world.charge::<6>()
    }
    race(World::holding::<4>, &[release_and_charge, World::snapshot], |world, did| {
        let Did::Saw(BudgetSnapshot { used, peak, .. }) = did[1] else { panic!("not an observer: {did:?}") };
        assert!(matches!((used, peak), (4 | 0, 4) | (6, 6)), "{used} used and a peak of {peak} never were");
        assert_eq!(world.rests_at(6, 0), 6);
    });
}

/// The peak never falls, also if who charged it has not got to raising it, and somebody else gives back meanwhile.
#[test]
fn the_peak_never_falls() {
    fn look_twice(world: &World) -> Did {
        let first = world.budget.peak();
        assert!(first <= world.budget.peak(), "the peak has fallen");
        Did::Done
    }
    // Bound 3, which took up to 20 s, is left out.
    race_at(&[2], &orders(3), World::holding::<3>, &[World::charge::<6>, World::release::<3, 0>, look_twice], |world, _| {
        assert!(matches!(world.rests_at(6, 0), 6 | 9));
    });
}
