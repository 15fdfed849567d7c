//! Models of `src/primitives/lane.rs`.

mod support;

use liveslot_loom::internals::{atomic::AtomicU64, lane::Pool};
use support::race;

const WIDTH: usize = 64;

type Lanes = Pool<AtomicU64, 2>;

/// All of the first word are taken but the last `free`, and all of the second.
fn lanes<const FREE: usize>() -> Lanes {
    Pool::new([AtomicU64::new(u64::MAX >> FREE), AtomicU64::new(u64::MAX)])
}

/// Two takers get different lanes, and those that were free.
#[test]
fn takers_get_different_lanes() {
    race(lanes::<2>, &[Lanes::take, Lanes::take], |lanes, mut taken| {
        taken.sort_unstable();
        assert_eq!(taken, [Some(WIDTH - 2), Some(WIDTH - 1)], "a lane was given out twice, or one that was not free");
        assert_eq!(lanes.take(), None);
    });
}

/// Of more takers than lanes one gets none.
#[test]
fn who_comes_too_late_gets_none() {
    race(lanes::<1>, &[Lanes::take, Lanes::take], |_, mut taken| {
        taken.sort_unstable();
        assert_eq!(taken, [None, Some(WIDTH - 1)]);
    });
}

/// The second word is used once the first is full.
#[test]
fn the_second_word_follows_the_first() {
    fn empty_second() -> Lanes {
        Pool::new([AtomicU64::new(u64::MAX >> 1), AtomicU64::new(0)])
    }
    race(empty_second, &[Lanes::take, Lanes::take], |_, mut taken| {
        taken.sort_unstable();
        assert_eq!(taken, [Some(WIDTH - 1), Some(WIDTH)]);
    });
}

/// What is given back is taken again, and nothing else comes free with it.
#[test]
fn a_lane_given_back_is_taken_again() {
    const GIVEN_BACK: usize = 5;
    let give_back = |lanes: &Lanes| {
        lanes.give_back(GIVEN_BACK);
        None
    };
    race(lanes::<0>, &[give_back, Lanes::take, Lanes::take], |lanes, taken| {
        let taken = [taken[1], taken[2], lanes.take()];
        let taken: Vec<_> = taken.into_iter().flatten().collect();
        assert_eq!(taken, [GIVEN_BACK]);
    });
}
