//! Lists for each rule of the library's behaviour what RULES.md says of it, the tests whose doc comment names it and the planted mistakes
//! whose `why:` does.
//!
//! Naming is a claim that a reviewer has to believe; what this adds is that no rule goes unclaimed. A rule that cannot be tested from
//! outside has its reason in `ci/rules/excuses`. The last line is `rules: C covered, O open, P planted`, with P the planted mistakes
//! that name a rule. The run fails when an open rule has no excuse, when a tested one has, when few planted mistakes name any,
//! and when RULES.md has not exactly one entry for each rule.

use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

mod coverage;
mod document;
mod naming;
mod source;

use coverage::Coverage;
use naming::Rule;

const USAGE: &str = "usage: rules [--open | --rule R42] [--root DIR]";

/// The folders with the tests of each package.
const PACKAGES: [&[&str]; 4] = [&["src", "tests"], &["gate-tests/tests"], &["loom-tests/tests"], &["shuttle-tests/tests"]];

/// What the command line asks for.
struct Options {
    /// List this one alone.
    rule: Option<Rule>,
    /// List what no test names alone.
    open: bool,
    /// The tree.
    root: PathBuf,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options { rule: None, open: false, root: ".".into() };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value\n{USAGE}"));
            match argument.as_str() {
                "--rule" => options.rule = Some(Rule::parse(&value()?)?),
                "--open" => options.open = true,
                "--root" => options.root = value()?.into(),
                _ => return Err(USAGE.into()),
            }
        }
        if options.open && options.rule.is_some() {
            return Err(USAGE.into());
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    match Options::parse(env::args().skip(1)).and_then(|options| list(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rules: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints what is asked for, and returns whether all is well with it.
fn list(options: &Options) -> Result<bool, String> {
    let coverage = read(&options.root)?;
    if let Some(rule) = options.rule {
        print!("{}", coverage.of(rule));
        return Ok(coverage.tests.contains_key(&rule) != coverage.excuses.contains_key(&rule));
    }
    if options.open {
        coverage.open().for_each(|rule| print!("{}", coverage.of(rule)));
    } else {
        Rule::all().for_each(|rule| print!("{}", coverage.of(rule)));
    }
    let complaints = coverage.complaints();
    complaints.iter().for_each(|complaint| eprintln!("rules: {complaint}"));
    println!("{}", coverage.summary());
    Ok(complaints.is_empty())
}

/// Reads tests, planted mistakes and excuses of the tree at `root`.
fn read(root: &Path) -> Result<Coverage, String> {
    let mut coverage = Coverage::default();
    for package in PACKAGES {
        let mut sources = Vec::new();
        for folder in package {
            sources.extend(files(root, folder, "rs")?);
        }
        for test in source::tests(&sources)? {
            add(&mut coverage.tests, test.rules, &test.name);
        }
    }
    for (path, text) in files(root, "ci/planted/plants", "plant")? {
        let rules = coverage::of_plant(&text).map_err(|error| format!("{path}: {error}"))?;
        coverage.planted += usize::from(!rules.is_empty());
        let name = Path::new(&path).file_stem().unwrap_or_default().to_string_lossy();
        add(&mut coverage.plants, rules, &name);
    }
    coverage.excuses = file(root, "ci/rules/excuses", coverage::excuses)?;
    coverage.entries = file(root, "RULES.md", document::entries)?;
    Ok(coverage)
}

/// What `read` makes of the text of a file.
fn file<T>(root: &Path, path: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Result<T, String> {
    let text = fs::read_to_string(root.join(path)).map_err(|error| error.to_string());
    text.and_then(|text| read(&text)).map_err(|error| format!("{path}: {error}"))
}

fn add(map: &mut BTreeMap<Rule, Vec<String>>, rules: impl IntoIterator<Item = Rule>, name: &str) {
    for rule in rules {
        map.entry(rule).or_default().push(name.to_owned());
    }
}

/// The files below `root`/`folder` with this extension: path from `root`, and text.
fn files(root: &Path, folder: &str, extension: &str) -> Result<Vec<(String, String)>, String> {
    let mut paths = Vec::new();
    walk(&root.join(folder), &mut paths).map_err(|error| format!("{folder}: {error}"))?;
    paths.retain(|path| path.extension().is_some_and(|end| end == extension));
    paths.sort();
    let read = |path: &PathBuf| {
        let name = path.strip_prefix(root).expect("it was found below").display().to_string();
        let text = fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        Ok((name, text))
    };
    paths.iter().map(read).collect()
}

fn walk(folder: &Path, into: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, into)?;
        } else {
            into.push(path);
        }
    }
    Ok(())
}
