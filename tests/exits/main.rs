//! How processes and threads end, on Linux. Each case runs a scenario on the main thread of a process of its own, again and again, and judges how
//! that ended and what it said; `LIVESLOT_EXITS` is how often, 10 times if it is not set.
//!
//! | file | what |
//! | --- | --- |
//! | `child` | what scenarios are made of |
//! | `statics` | the registry is a static, and nobody takes it apart |
//! | `thread_locals` | destructors of thread-locals, on a thread and on the main thread |
//! | `hooks` | exit hooks |
//! | `threads` | threads that come and go |
//! | `quiet` | a process that does one thing and nothing else |
//! | `library` | a mechanism whose code is unloaded |
//! | `signals` | signal handlers |

mod child;
mod hooks;
mod library;
mod quiet;
mod signals;
mod statics;
mod thread_locals;
mod threads;

use libtest_mimic::{Arguments, Failed, Trial};
use std::{
    env,
    process::{Command, Stdio},
};

/// Names the scenario that a process is to run: `CASE/WAY`.
const SCENARIO: &str = "LIVESLOT_SCENARIO";

/// What is shown, in each of several ways.
struct Case {
    name: &'static str,
    /// What the test does before its processes.
    prepare: fn(),
    ways: Vec<Way>,
}

/// One scenario.
struct Way {
    name: String,
    run: Box<dyn Fn() + Send>,
    /// All that the process says, line by line.
    says: Vec<&'static str>,
}

impl Case {
    fn new(name: &'static str, ways: impl Into<Vec<Way>>) -> Self {
        Self { name, prepare: || {}, ways: ways.into() }
    }
}

impl Way {
    fn new(name: impl Into<String>, says: impl Into<Vec<&'static str>>, run: impl Fn() + Send + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run), says: says.into() }
    }
}

fn cases() -> Vec<Case> {
    vec![
        statics::are_left_alone(),
        statics::are_reported_by_a_shutdown(),
        thread_locals::may_hold_the_last_of_everything(),
        thread_locals::may_use_the_registry(),
        thread_locals::may_shut_down(),
        hooks::may_take_the_registry_apart(),
        hooks::may_shut_down(),
        threads::leave_nothing_behind(),
        quiet::one_removal_needs_no_second(),
        quiet::nothing_is_left_to_a_collector(),
        library::is_closed_after_its_last_use(),
        signals::may_read_gauges(),
    ]
}

fn main() {
    match env::var(SCENARIO) {
        Ok(scenario) => {
            child::limit_time();
            let (case, way) = scenario.split_once('/').expect("CASE/WAY");
            let case = cases().into_iter().find(|found| found.name == case).expect("a case");
            let way = case.ways.into_iter().find(|found| found.name == way).expect("a way of it");
            (way.run)();
        }
        Err(_) => {
            let trials = cases().into_iter().map(|case| Trial::test(case.name, move || case.judge())).collect();
            libtest_mimic::run(&Arguments::from_args(), trials).exit();
        }
    }
}

/// How often each scenario is run.
fn runs() -> usize {
    env::var("LIVESLOT_EXITS").map_or(10, |runs| runs.parse().expect("LIVESLOT_EXITS is a number"))
}

impl Case {
    fn judge(&self) -> Result<(), Failed> {
        (self.prepare)();
        for way in &self.ways {
            (0..runs()).for_each(|_| way.judge(self.name));
        }
        Ok(())
    }
}

impl Way {
    fn judge(&self, case: &str) {
        let scenario = format!("{case}/{}", self.name);
        let mut command = Command::new(env::current_exe().unwrap());
        let output = command.env(SCENARIO, &scenario).stdin(Stdio::null()).output().unwrap();
        let [said, complained] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(output.status.success(), "{scenario} ended with {}\n{said}\n{complained}", output.status);
        assert_eq!(said.lines().collect::<Vec<_>>(), self.says, "{scenario}");
    }
}
