//! What is known of each rule, and what is missing.

use crate::{
    document::Entries,
    naming::{RULES, Rule, named},
};
use std::{collections::BTreeMap, fmt::Write};

/// At least this many planted mistakes name a rule.
const PLANTED: usize = 50;

/// What RULES.md says, tests, planted mistakes and excuses, by rule.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    pub(crate) entries: Entries,
    pub(crate) tests: BTreeMap<Rule, Vec<String>>,
    pub(crate) plants: BTreeMap<Rule, Vec<String>>,
    pub(crate) excuses: BTreeMap<Rule, String>,
    /// Planted mistakes that name a rule.
    pub(crate) planted: usize,
}

impl Coverage {
    /// The rules that no test names.
    pub(crate) fn open(&self) -> impl Iterator<Item = Rule> {
        Rule::all().filter(|rule| !self.tests.contains_key(rule))
    }

    /// What makes the run fail.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let entries = Rule::all().filter_map(|rule| match self.entries.get(&rule).map_or(0, Vec::len) {
            0 => Some(format!("{rule} has no entry in RULES.md")),
            1 => None,
            several => Some(format!("{rule} has {several} entries in RULES.md")),
        });
        let unexcused = self.open().filter(|rule| !self.excuses.contains_key(rule)).map(|rule| format!("{rule} is named by no test"));
        let stale = self.excuses.keys().filter(|rule| self.tests.contains_key(rule)).map(|rule| format!("{rule} is excused, and tested"));
        let few = (self.planted < PLANTED).then(|| format!("{} planted mistakes name a rule; at least {PLANTED} must", self.planted));
        entries.chain(unexcused).chain(stale).chain(few).collect()
    }

    /// The lines about `rule`.
    pub(crate) fn of(&self, rule: Rule) -> String {
        let list = |map: &BTreeMap<Rule, Vec<String>>| map.get(&rule).cloned().unwrap_or_default();
        let (tests, plants) = (list(&self.tests), list(&self.plants));
        let mut text = match self.excuses.get(&rule) {
            _ if !tests.is_empty() => format!("{rule}: tests {}, planted {}\n", tests.len(), plants.len()),
            Some(reason) => format!("{rule}: open: {reason}\n"),
            None => format!("{rule}: OPEN: no test names it\n"),
        };
        for entry in self.entries.get(&rule).into_iter().flatten() {
            writeln!(text, "    rule: {entry}").expect("a string takes everything");
        }
        for test in tests {
            writeln!(text, "    {test}").expect("a string takes everything");
        }
        for plant in plants {
            writeln!(text, "    planted: {plant}").expect("a string takes everything");
        }
        text
    }

    /// The last line.
    pub(crate) fn summary(&self) -> String {
        let open = self.open().count();
        format!("rules: {} covered, {open} open, {} planted", usize::from(RULES) - open, self.planted)
    }
}

/// The rules that a planted mistake's `why:` names.
pub(crate) fn of_plant(text: &str) -> Result<Vec<Rule>, String> {
    // The replacements hold text of other files.
    let mut inside = false;
    let mut why = "";
    for line in text.lines() {
        match line {
            "--- find" => inside = true,
            "--- end" => inside = false,
            _ if !inside => why = line.trim().strip_prefix("why:").unwrap_or(why),
            _ => {}
        }
    }
    Ok(named(why)?.into_iter().collect())
}

/// Reads the excuses: `RULE: REASON` lines, and comments that start with `#`.
pub(crate) fn excuses(text: &str) -> Result<BTreeMap<Rule, String>, String> {
    let mut excuses = BTreeMap::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#')) {
        let refuse = |reason: &str| format!("line {}: {reason}", number + 1);
        let (rule, reason) = line.split_once(':').ok_or_else(|| refuse("not `RULE: REASON`"))?;
        let rule = Rule::parse(rule).map_err(|error| refuse(&error))?;
        if reason.trim().is_empty() {
            return Err(refuse("no reason"));
        }
        if excuses.insert(rule, reason.trim().to_owned()).is_some() {
            return Err(refuse(&format!("a second one for {rule}")));
        }
    }
    Ok(excuses)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Rule {
        Rule::parse(text).unwrap()
    }

    /// All rules have their entry, all but `open` are tested, and enough is planted.
    fn all_but(open: &[&str]) -> Coverage {
        let tests = Rule::all().filter(|rule| !open.contains(&&*rule.to_string())).map(|rule| (rule, vec!["f t".into()])).collect();
        let entries = Rule::all().map(|rule| (rule, vec![format!("as {rule} says")])).collect();
        Coverage { entries, tests, planted: PLANTED, ..Coverage::default() }
    }

    #[test]
    fn a_whole_coverage_has_nothing_to_complain_about() {
        let coverage = all_but(&[]);
        assert_eq!(coverage.complaints(), [] as [&str; 0]);
        assert_eq!(coverage.summary(), "rules: 153 covered, 0 open, 50 planted");
    }

    #[test]
    fn what_is_open_needs_an_excuse() {
        let mut coverage = all_but(&["R7", "R52"]);
        coverage.excuses = excuses("# why\n\nR52: a leak is seen by the process alone\n").unwrap();
        assert_eq!(coverage.complaints(), ["R7 is named by no test"]);
        assert_eq!(coverage.summary(), "rules: 151 covered, 2 open, 50 planted");
        assert_eq!(coverage.of(rule("R7")), "R7: OPEN: no test names it\n    rule: as R7 says\n");
        assert_eq!(coverage.of(rule("R52")), "R52: open: a leak is seen by the process alone\n    rule: as R52 says\n");
    }

    #[test]
    fn each_rule_has_one_entry() {
        let mut coverage = all_but(&[]);
        coverage.entries.remove(&rule("R7"));
        coverage.entries.get_mut(&rule("R153")).unwrap().push("twice".into());
        assert_eq!(coverage.complaints(), ["R7 has no entry in RULES.md", "R153 has 2 entries in RULES.md"]);
    }

    #[test]
    fn an_excuse_for_a_tested_rule_is_stale() {
        let mut coverage = all_but(&[]);
        coverage.excuses = excuses("R52: none").unwrap();
        assert_eq!(coverage.complaints(), ["R52 is excused, and tested"]);
    }

    #[test]
    fn too_few_plants_are_a_complaint() {
        let coverage = Coverage { planted: PLANTED - 1, ..all_but(&[]) };
        assert_eq!(coverage.complaints(), ["49 planted mistakes name a rule; at least 50 must"]);
    }

    #[test]
    fn a_rule_is_listed_with_its_tests_and_plants() {
        let mut coverage = all_but(&[]);
        coverage.plants.insert(rule("R1"), vec!["p".into()]);
        assert_eq!(coverage.of(rule("R1")), "R1: tests 1, planted 1\n    rule: as R1 says\n    f t\n    planted: p\n");
    }

    #[test]
    fn a_plant_names_rules_in_its_why_alone() {
        let text =
            "# R1\ntest: a --lib R2\nedit: R3\n--- find\nwhy: R4\n--- replace\nwhy: R5\n--- end\nwhy: R6, R8 to R9: a step\nexpect: R10\n";
        assert_eq!(of_plant(text).unwrap(), ["R6", "R8", "R9"].map(rule));
        assert_eq!(of_plant("why: a step\n").unwrap(), []);
        assert!(of_plant("why: R154: a step\n").is_err());
    }

    #[test]
    fn malformed_excuses_are_refused_with_their_line() {
        assert_eq!(excuses("R1"), Err("line 1: not `RULE: REASON`".into()));
        assert_eq!(excuses("#\nR154: x"), Err("line 2: `R154` is none of R1 to R153".into()));
        assert_eq!(excuses("R1: "), Err("line 1: no reason".into()));
        assert_eq!(excuses("R1: a\nR1: b"), Err("line 2: a second one for R1".into()));
    }
}
