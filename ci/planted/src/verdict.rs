//! Judging a run: did exactly the named test fail, and as expected?

use crate::{
    plant::{Case, Plant, Run},
    process::{Ended, How},
};

const SIGABRT: i32 = 6;

/// `Ok`: with nothing planted the test passes, so that its failure means something.
pub(crate) fn passes(run: &Run, ended: &Ended) -> Result<(), String> {
    match (&run.case, ended.how) {
        (_, How::Timeout) => Err("hangs".into()),
        (Case::Test(_), How::Exit(0)) if ran(ended, "test result: ok. 1 passed; 0 failed") => Ok(()),
        (Case::Test(_), How::Exit(0)) => Err("is not there, or is ignored".into()),
        (Case::Example(_), How::Exit(0)) => Ok(()),
        _ => Err("fails".into()),
    }
}

/// `Ok`: the plant was caught. Else why not.
pub(crate) fn caught(plant: &Plant, ended: &Ended) -> Result<(), String> {
    match (&plant.run.case, ended.how) {
        (_, How::Timeout) => return Err(format!("hangs: killed after {} s", plant.timeout.as_secs())),
        (_, How::Exit(0)) => return Err("nothing failed".into()),
        (Case::Test(name), How::Exit(101)) if failed(ended, name) => {}
        (Case::Test(_), How::Signal(SIGABRT)) if plant.abort && ended.output.contains("running 1 test\n") => {}
        (Case::Test(_), How::Signal(SIGABRT)) => return Err("the process aborted, and the plant has no `abort: yes`".into()),
        (Case::Example(_), How::Exit(1)) => {}
        (_, how) => return Err(format!("neither passed nor failed: {how:?}")),
    }
    if let Some(text) = plant.expect.iter().find(|text| !ended.output.contains(*text)) {
        return Err(format!("failed without the expected text `{text}`"));
    }
    match &plant.counter {
        Some(name) => match counter(&ended.output, name) {
            None => Err(format!("the report has no counter `{name}`")),
            Some(0) => Err(format!("failed with the counter `{name}` at 0")),
            Some(_) => Ok(()),
        },
        None => Ok(()),
    }
}

fn ran(ended: &Ended, result: &str) -> bool {
    ended.output.contains("running 1 test\n") && ended.output.contains(result)
}

/// Whether the test harness ran `name` alone and lists it as failed.
fn failed(ended: &Ended, name: &str) -> bool {
    ran(ended, "test result: FAILED. 0 passed; 1 failed") && ended.output.contains(&format!("\nfailures:\n    {name}\n"))
}

/// The number behind `"name":` in a JSON report.
fn counter(report: &str, name: &str) -> Option<u64> {
    let (_, rest) = report.split_once(&format!("\"{name}\""))?;
    let digits = rest.trim_start().strip_prefix(':')?.trim_start();
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: &str = "\nrunning 1 test\ntest a::b ... boom\nFAILED\n\nfailures:\n\nfailures:\n    a::b\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n";
    const PASSED: &str = "\nrunning 1 test\ntest a::b ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";
    const ABSENT: &str = "\nrunning 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored\n";

    fn plant(head: &str) -> Plant {
        let text = format!("why: w\n{head}\nedit: f\n--- find\na\n--- replace\n--- end\n");
        Plant::parse("p", &text).unwrap()
    }

    fn test() -> Plant {
        plant("test: p --lib a::b\nexpect: boom")
    }

    fn ended(how: How, output: &str) -> Ended {
        Ended { how, output: output.into() }
    }

    #[test]
    fn the_named_test_failing_as_expected_is_caught() {
        assert_eq!(caught(&test(), &ended(How::Exit(101), FAILED)), Ok(()));
    }

    #[test]
    fn a_pass_a_hang_another_failure_and_another_text_are_not() {
        let reason = |how, output: &str| caught(&test(), &ended(how, output)).unwrap_err();
        assert_eq!(reason(How::Exit(0), PASSED), "nothing failed");
        assert_eq!(reason(How::Timeout, FAILED), "hangs: killed after 120 s");
        assert_eq!(reason(How::Exit(101), &FAILED.replace("a::b", "a::c")), "neither passed nor failed: Exit(101)");
        assert_eq!(reason(How::Exit(101), &FAILED.replace("boom", "bang")), "failed without the expected text `boom`");
        assert_eq!(reason(How::Signal(11), FAILED), "neither passed nor failed: Signal(11)");
    }

    #[test]
    fn an_abort_counts_only_where_the_plant_says_so() {
        let aborted = ended(How::Signal(SIGABRT), "\nrunning 1 test\nboom\n");
        assert!(caught(&test(), &aborted).unwrap_err().contains("`abort: yes`"));
        let plant = plant("test: p --lib a::b\nexpect: boom\nabort: yes");
        assert_eq!(caught(&plant, &aborted), Ok(()));
        assert_eq!(
            caught(&plant, &ended(How::Signal(SIGABRT), "boom")).unwrap_err(),
            "the process aborted, and the plant has no `abort: yes`"
        );
    }

    #[test]
    fn an_example_is_caught_by_code_one_and_its_counter() {
        let plant = plant("example: p e -- --json\ncounter: dead");
        let reason = |how, output: &str| caught(&plant, &ended(how, output));
        assert_eq!(reason(How::Exit(1), r#"{"dead": 3}"#), Ok(()));
        assert_eq!(reason(How::Exit(1), r#"{"dead":0,"x":1}"#).unwrap_err(), "failed with the counter `dead` at 0");
        assert_eq!(reason(How::Exit(1), "{}").unwrap_err(), "the report has no counter `dead`");
        assert_eq!(reason(How::Exit(101), r#"{"dead":3}"#).unwrap_err(), "neither passed nor failed: Exit(101)");
    }

    #[test]
    fn unplanted_the_test_must_be_there_and_pass() {
        let run = test().run;
        assert_eq!(passes(&run, &ended(How::Exit(0), PASSED)), Ok(()));
        assert_eq!(passes(&run, &ended(How::Exit(0), ABSENT)).unwrap_err(), "is not there, or is ignored");
        assert_eq!(passes(&run, &ended(How::Exit(101), FAILED)).unwrap_err(), "fails");
        assert_eq!(passes(&run, &ended(How::Timeout, "")).unwrap_err(), "hangs");
        let example = plant("example: p e\nexpect: x").run;
        assert_eq!(passes(&example, &ended(How::Exit(0), "")), Ok(()));
        assert_eq!(passes(&example, &ended(How::Exit(1), "")).unwrap_err(), "fails");
    }
}
