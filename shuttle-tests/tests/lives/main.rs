//! Whole lives under random schedules: three to five threads on the real arc-swap and the real crossbeam-epoch.
//!
//! Each life is a function; [`world`] holds what every life has to keep to at every step, and what has to be true when its threads have
//! been joined. A life runs under shuttle's random scheduler and under the uniform random walk, and more rarely under PCT at
//! depths 3 and 5, always from a fixed seed. Shuttle takes every ordering for SeqCst: orderings are loom's to check.
//!
//! `LIVESLOT_SHUTTLE_ITERATIONS` sets how often each life runs per scheduler (PCT: a fifth of it), `LIVESLOT_SHUTTLE_SEED` where the
//! random choices start. A schedule that fails is printed, and becomes a test in [`replays`].

mod deferred;
mod lives;
mod replays;
mod waiting;
mod world;

use shuttle::{
    Config, Runner,
    scheduler::{PctScheduler, RandomScheduler, Scheduler, UrwRandomScheduler},
};

/// What random choices start from unless the environment says otherwise.
const SEED: u64 = 0x5107_1eaf;

/// How often a life runs per scheduler unless the environment says otherwise.
const ITERATIONS: usize = 1000;

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is a number")),
        Err(_) => default,
    }
}

fn iterations() -> usize {
    setting("LIVESLOT_SHUTTLE_ITERATIONS", ITERATIONS)
}

fn seed() -> u64 {
    setting("LIVESLOT_SHUTTLE_SEED", SEED)
}

fn run(scheduler: impl Scheduler + 'static, life: fn()) {
    let mut config = Config::new();
    // Frames of a test build are large, and so are a checker's atomics.
    config.stack_size = 1 << 18;
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(life);
}

macro_rules! under_every_scheduler {
    ($($life:ident)*) => {$(
        mod $life {
            use super::*;

            #[test]
            fn random() {
                run(RandomScheduler::new_from_seed(seed(), iterations()), lives::$life);
            }

            #[test]
            fn uniform_random_walk() {
                run(UrwRandomScheduler::new_from_seed(seed(), iterations()), lives::$life);
            }

            #[test]
            fn pct_3() {
                run(PctScheduler::new_from_seed(seed(), 3, iterations().div_ceil(5)), lives::$life);
            }

            #[test]
            fn pct_5() {
                run(PctScheduler::new_from_seed(seed(), 5, iterations().div_ceil(5)), lives::$life);
            }
        }
    )*};
}

under_every_scheduler! { swaps hand_overs failing_selections registrations ends_acted_upon_by_others churn loss_and_recovery last_handles bindings_without_a_registry removals quarantine any_mix deferred_releases requests_without_a_registry settlements waits shutdowns }

/// Under one scheduler and a few times only: it registers by the hundred, and races once.
#[test]
fn full_table() {
    run(RandomScheduler::new_from_seed(seed(), 20), lives::full_table);
}
