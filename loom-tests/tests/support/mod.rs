//! How a model is run: every placement of its roles, at preemption bound 3.
//!
//! Which role runs on the model's main thread, and in which order the others are spawned, decides which schedules a bound leaves
//! out. So each model names its roles, and [`race`] tries all placements. A bound is not only cheaper than none: with it loom
//! backtracks conservatively and finds reversals that it misses unbounded. Every schedule of one bound is one of the next:
//! preemptions are all that a bound refuses, and what loom tries first in a new state does not depend on it. `LIVESLOT_LOOM_BOUND`
//! sets another; at a lower one, some outcomes that the tests demand are not reached.

use liveslot_loom::internals;
use loom::{model::Builder, thread};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// One thread of a model.
pub type Role<S, R> = fn(&S) -> R;

/// Runs `roles` against each other on a state that `setup` makes, then shows `check` the state and what each role returned, in the
/// order of `roles`, after all have been joined. Role `n` runs on lane `n`.
pub fn race<S, R>(setup: fn() -> S, roles: &[Role<S, R>], check: fn(&S, Vec<R>))
where
    S: Send + Sync + 'static,
    R: Send + 'static,
{
    race_at(&[bound()], &orders(roles.len()), setup, roles, check);
}

/// As [`race`], at chosen bounds and in chosen placements, for a model that is too large for all. The last role of a placement
/// runs on the main thread, which loom runs first; the others are spawned in its order.
pub fn race_at<S, R, P>(bounds: &[usize], placements: &[P], setup: fn() -> S, roles: &[Role<S, R>], check: fn(&S, Vec<R>))
where
    S: Send + Sync + 'static,
    R: Send + 'static,
    P: AsRef<[usize]>,
{
    for order in placements {
        let order: Arc<[usize]> = order.as_ref().into();
        for &bound in bounds {
            let roles: Arc<[_]> = roles.into();
            let (for_model, iterations) = (Arc::clone(&order), Arc::new(AtomicUsize::new(0)));
            let counted = Arc::clone(&iterations);
            let mut builder = Builder::new();
            builder.preemption_bound = Some(bound);
            builder.max_branches = 100_000;
            builder.check(move || {
                counted.fetch_add(1, Relaxed);
                place(setup, &roles, &for_model, check);
            });
            println!("order {order:?}, bound {bound}: {} iterations", iterations.load(Relaxed));
        }
    }
}

/// The last of `order` runs on the main thread; the others are spawned in this order.
fn place<S, R>(setup: fn() -> S, roles: &Arc<[Role<S, R>]>, order: &[usize], check: fn(&S, Vec<R>))
where
    S: Send + Sync + 'static,
    R: Send + 'static,
{
    let state = Arc::new(setup());
    let (&on_main, spawned) = order.split_last().expect("a model has roles");
    let threads: Vec<_> = spawned
        .iter()
        .map(|&role| {
            let (state, roles) = (Arc::clone(&state), Arc::clone(roles));
            let run = move || {
                internals::set_lane(role);
                roles[role](&state)
            };
            (role, thread::spawn(run))
        })
        .collect();
    internals::set_lane(on_main);
    let mut results = vec![(on_main, roles[on_main](&state))];
    results.extend(threads.into_iter().map(|(role, thread)| (role, thread.join().unwrap())));
    results.sort_by_key(|(role, _)| *role);
    check(&state, results.into_iter().map(|(_, result)| result).collect());
}

fn bound() -> usize {
    let chosen = std::env::var("LIVESLOT_LOOM_BOUND").ok();
    chosen.map_or(3, |bound| bound.parse().expect("LIVESLOT_LOOM_BOUND is a number of preemptions"))
}

/// All orders of `0..n`: the placements of `n` roles.
pub fn orders(n: usize) -> Vec<Vec<usize>> {
    let Some(last) = n.checked_sub(1) else { return vec![vec![]] };
    let insert = |order: Vec<usize>| {
        (0..=order.len()).map(move |at| {
            let mut longer = order.clone();
            longer.insert(at, last);
            longer
        })
    };
    orders(last).into_iter().flat_map(insert).collect()
}
