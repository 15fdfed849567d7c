//! One planted mistake, and the text format that it is written in (`ci/planted/README.md`).

use std::{collections::BTreeSet, fmt, path::Path, time::Duration};

/// A mistake to plant, and what must come of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plant {
    /// The file's stem.
    pub(crate) name: String,
    /// The step of a protocol that the mistake breaks.
    pub(crate) why: String,
    /// Applied in order; each sees the text that the one before it left.
    pub(crate) edits: Vec<Edit>,
    /// What has to fail.
    pub(crate) run: Run,
    /// Each of these occurs in the output of the failure.
    pub(crate) expect: Vec<String>,
    /// A field of the example's JSON report that must be above zero.
    pub(crate) counter: Option<String>,
    /// Whether the failure may abort the process instead of being reported, as a deadlock under loom does.
    pub(crate) abort: bool,
    /// The run is a hang after this long.
    pub(crate) timeout: Duration,
    /// Whether it is left to the longer sweep.
    pub(crate) nightly: bool,
}

/// A literal replacement in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    /// Relative to the root of the tree.
    pub(crate) file: String,
    /// Occurs exactly once.
    pub(crate) find: String,
    /// Stands there afterwards.
    pub(crate) replace: String,
}

/// What is run: one test, or an example.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    /// What cargo builds for it.
    pub(crate) build: Build,
    /// What of it is run.
    pub(crate) case: Case,
}

/// One executable, as cargo names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Build {
    /// The package.
    pub(crate) package: String,
    /// The target within the package.
    pub(crate) target: Target,
    /// Whether it is built in the release profile.
    pub(crate) release: bool,
    /// The feature of the package that it is built with, beside the default ones.
    pub(crate) feature: Option<String>,
}

/// A target of a package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// The unit tests of the library.
    Lib,
    /// An integration test.
    Test(String),
    /// An example.
    Example(String),
}

/// What of an executable is run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Case {
    /// The test of this full name, alone.
    Test(String),
    /// The example, with these arguments.
    Example(Vec<String>),
}

const TIMEOUT: Duration = Duration::from_secs(120);

/// Why a plant's text is refused: the line, counted from one, and the reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed(usize, String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.0, self.1)
    }
}

impl Plant {
    /// Reads the plant called `name` from its text.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Plant, Malformed> {
        let mut lines = Lines { rest: text.lines(), number: 0 };
        let mut once = BTreeSet::new();
        let (mut why, mut run, mut counter, mut timeout) = (None, None, None, TIMEOUT);
        let (mut expect, mut edits, mut abort, mut nightly) = (Vec::new(), Vec::new(), false, false);

        while let Some(line) = lines.next() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let number = lines.number;
            let refuse = |reason: String| Malformed(number, reason);
            let (key, value) = line
                .split_once(':')
                .map(|(key, value)| (key, value.trim()))
                .ok_or_else(|| refuse("neither a field nor a comment".into()))?;
            let slot = if key == "example" { "test" } else { key };
            if !matches!(key, "expect" | "edit") && !once.insert(slot.to_owned()) {
                return Err(refuse(format!("a second `{slot}`")));
            }
            if value.is_empty() {
                return Err(refuse(format!("`{key}` is empty")));
            }
            match key {
                "why" => why = Some(value.to_owned()),
                "test" => run = Some(parse_test(value).map_err(refuse)?),
                "example" => run = Some(parse_example(value).map_err(refuse)?),
                "expect" => expect.push(value.to_owned()),
                "counter" => counter = Some(value.to_owned()),
                "abort" if value == "yes" => abort = true,
                "nightly" if value == "yes" => nightly = true,
                "timeout" => {
                    let seconds = value.parse().map_err(|_| refuse("`timeout` is in whole seconds".into()))?;
                    timeout = Duration::from_secs(seconds);
                }
                "edit" => edits.push(lines.edit(value)?),
                _ => return Err(refuse(format!("no such field or value: `{line}`"))),
            }
        }

        let number = lines.number;
        let missing = |field: &str| Malformed(number, format!("no `{field}`"));
        let run = run.ok_or_else(|| missing("test"))?;
        if edits.is_empty() {
            return Err(missing("edit"));
        }
        if expect.is_empty() && counter.is_none() {
            return Err(missing("expect"));
        }
        if counter.is_some() && matches!(run.case, Case::Test(_)) {
            return Err(Malformed(number, "`counter` reads the report of an example, not of a test".into()));
        }
        Ok(Plant { name: name.to_owned(), why: why.ok_or_else(|| missing("why"))?, edits, run, expect, counter, abort, timeout, nightly })
    }
}

/// The lines of a plant's text, counted.
struct Lines<'a> {
    rest: std::str::Lines<'a>,
    number: usize,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Option<&'a str> {
        self.number += 1;
        self.rest.next()
    }

    /// The blocks `--- find`, `--- replace`, `--- end` that follow `edit: FILE`.
    fn edit(&mut self, file: &str) -> Result<Edit, Malformed> {
        let refuse = |number, reason: &str| Err(Malformed(number, reason.into()));
        let path = Path::new(file);
        if path.is_absolute() || path.components().any(|part| part.as_os_str() == "..") {
            return refuse(self.number, "`edit` names a file inside the tree");
        }
        if self.next() != Some("--- find") {
            return refuse(self.number, "`--- find` must follow `edit`");
        }
        let find = self.block("--- replace")?;
        let replace = self.block("--- end")?;
        if find.trim().is_empty() {
            return refuse(self.number, "nothing to find");
        }
        if find == replace {
            return refuse(self.number, "the replacement changes nothing");
        }
        Ok(Edit { file: file.to_owned(), find, replace })
    }

    /// The literal text up to the line `end`, without its last newline.
    fn block(&mut self, end: &str) -> Result<String, Malformed> {
        let mut text = Vec::new();
        loop {
            match self.next() {
                Some(line) if line == end => return Ok(text.join("\n")),
                Some(line) => text.push(line),
                None => return Err(Malformed(self.number, format!("no `{end}`"))),
            }
        }
    }
}

/// `PACKAGE [--features FEATURE] --test TARGET NAME` or `PACKAGE [--features FEATURE] --lib NAME`.
fn parse_test(value: &str) -> Result<Run, String> {
    let mut words: Vec<&str> = value.split_whitespace().collect();
    let feature = match words[..] {
        [_, "--features", feature, ..] => Some(feature.to_owned()),
        _ => None,
    };
    if feature.is_some() {
        words.drain(1..3);
    }
    let (package, target, name) = match words[..] {
        [package, "--lib", name] => (package, Target::Lib, name),
        [package, "--test", target, name] => (package, Target::Test(target.to_owned()), name),
        _ => return Err("`test` is `PACKAGE [--features FEATURE] --test TARGET NAME`, or with `--lib NAME`".into()),
    };
    Ok(Run { build: Build { package: package.to_owned(), target, release: false, feature }, case: Case::Test(name.to_owned()) })
}

/// `PACKAGE NAME [--release] [-- ARGUMENT…]`.
fn parse_example(value: &str) -> Result<Run, String> {
    let mut words = value.split_whitespace();
    let before: Vec<&str> = words.by_ref().take_while(|word| *word != "--").collect();
    let (package, example, release) = match before[..] {
        [package, example] => (package, example, false),
        [package, example, "--release"] => (package, example, true),
        _ => return Err("`example` is `PACKAGE NAME [--release] [-- ARGUMENT…]`".into()),
    };
    Ok(Run {
        build: Build { package: package.to_owned(), target: Target::Example(example.to_owned()), release, feature: None },
        case: Case::Example(words.map(str::to_owned).collect()),
    })
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let package = &self.build.package;
        match (&self.build.target, &self.case) {
            (Target::Test(target), Case::Test(name)) => write!(f, "{package}/{target} {name}"),
            (_, Case::Test(name)) => write!(f, "{package} {name}"),
            (Target::Example(example), _) => write!(f, "{package} example {example}"),
            (_, Case::Example(_)) => write!(f, "{package} example"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "why: a step\ntest: loom-tests --test slot name\nexpect: text\n";
    const EDIT: &str = "edit: src/a.rs\n--- find\n    one\n\n    two\n--- replace\n    three\n--- end\n";

    fn refused(text: &str) -> String {
        Plant::parse("p", text).unwrap_err().to_string()
    }

    #[test]
    fn a_whole_plant_is_read() {
        let text = format!(
            "# comment\n\n{HEAD}expect: more: text\nabort: yes\nnightly: yes\ntimeout: 7\n{EDIT}edit: src/b.rs\n--- find\nx\n--- replace\n--- end\n"
        );
        let plant = Plant::parse("p", &text).unwrap();
        assert_eq!(plant.name, "p");
        assert_eq!(plant.why, "a step");
        assert_eq!(plant.run.to_string(), "loom-tests/slot name");
        assert_eq!(plant.expect, ["text", "more: text"]);
        assert!(plant.abort && plant.nightly);
        assert_eq!(plant.timeout, Duration::from_secs(7));
        assert_eq!(
            plant.edits,
            [
                Edit { file: "src/a.rs".into(), find: "    one\n\n    two".into(), replace: "    three".into() },
                Edit { file: "src/b.rs".into(), find: "x".into(), replace: String::new() },
            ]
        );
    }

    #[test]
    fn the_defaults_are_no_abort_and_two_minutes() {
        let plant = Plant::parse("p", &format!("{HEAD}{EDIT}")).unwrap();
        assert!(!plant.abort && !plant.nightly);
        assert_eq!(plant.timeout, TIMEOUT);
    }

    #[test]
    fn an_example_has_a_profile_and_arguments() {
        let text = format!("why: w\nexample: liveslot hot_swap --release -- --seconds 2 --json\ncounter: bound_to_dead\n{EDIT}");
        let plant = Plant::parse("p", &text).unwrap();
        assert!(plant.run.build.release);
        assert_eq!(plant.run.build.target, Target::Example("hot_swap".into()));
        assert_eq!(plant.run.case, Case::Example(vec!["--seconds".into(), "2".into(), "--json".into()]));
        assert_eq!(plant.counter.as_deref(), Some("bound_to_dead"));
    }

    #[test]
    fn a_unit_test_is_named_with_lib() {
        let run = parse_test("liveslot --lib primitives::slot::tests::x").unwrap();
        assert_eq!(run.build.target, Target::Lib);
        assert_eq!(run.case, Case::Test("primitives::slot::tests::x".into()));
    }

    #[test]
    fn a_test_may_need_a_feature() {
        let run = parse_test("liveslot --features holders --test holders x").unwrap();
        assert_eq!(run.build.feature.as_deref(), Some("holders"));
        assert_eq!(run.to_string(), "liveslot/holders x");
        assert_eq!(parse_test("liveslot --test holders x").unwrap().build.feature, None);
    }

    #[test]
    fn every_malformed_text_is_refused_with_its_line() {
        assert_eq!(refused(&format!("{HEAD}nonsense\n")), "line 4: neither a field nor a comment");
        assert_eq!(refused(&format!("{HEAD}color: red\n")), "line 4: no such field or value: `color: red`");
        assert_eq!(refused(&format!("{HEAD}abort: no\n")), "line 4: no such field or value: `abort: no`");
        assert_eq!(refused(&format!("{HEAD}why: again\n")), "line 4: a second `why`");
        assert_eq!(refused(&format!("{HEAD}example: a b\n")), "line 4: a second `test`");
        assert_eq!(refused("why:\n"), "line 1: `why` is empty");
        let form = "line 1: `test` is `PACKAGE [--features FEATURE] --test TARGET NAME`, or with `--lib NAME`";
        assert_eq!(refused("test: loom-tests slot name\n"), form);
        assert_eq!(refused("test: liveslot --features\n"), form);
        assert_eq!(refused("timeout: soon\n"), "line 1: `timeout` is in whole seconds");
        assert_eq!(refused("edit: ../x\n"), "line 1: `edit` names a file inside the tree");
        assert_eq!(refused("edit: x\nfind\n"), "line 2: `--- find` must follow `edit`");
        assert_eq!(refused("edit: x\n--- find\na\n"), "line 4: no `--- replace`");
        assert_eq!(refused("edit: x\n--- find\na\n--- replace\nb\n"), "line 6: no `--- end`");
        assert_eq!(refused("edit: x\n--- find\n\n--- replace\nb\n--- end\n"), "line 6: nothing to find");
        assert_eq!(refused("edit: x\n--- find\na\n--- replace\na\n--- end\n"), "line 6: the replacement changes nothing");
    }

    #[test]
    fn what_must_be_there_is_demanded() {
        assert_eq!(refused(HEAD), "line 4: no `edit`");
        assert_eq!(refused(EDIT), "line 9: no `test`");
        assert_eq!(refused(&format!("test: a --lib b\nexpect: c\n{EDIT}")), "line 11: no `why`");
        assert_eq!(refused(&format!("why: w\ntest: a --lib b\n{EDIT}")), "line 11: no `expect`");
        assert_eq!(refused(&format!("{HEAD}counter: c\n{EDIT}")), "line 13: `counter` reads the report of an example, not of a test");
    }
}
