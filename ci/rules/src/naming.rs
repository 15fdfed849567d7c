//! How a text names rules: `R42`, lists of such, and ranges as in `R7 to R15`.

use std::{collections::BTreeSet, fmt};

/// How many rules there are, numbered from 1.
pub(crate) const RULES: u16 = 153;

/// What may stand between the ends of a range.
const TO: [&str; 8] = ["to", "through", "..=", "...", "..", "…", "–", "-"];

/// A rule, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rule(u16);

impl Rule {
    /// Every rule.
    pub(crate) fn all() -> impl Iterator<Item = Rule> {
        (1..=RULES).map(Rule)
    }

    /// The rule that `text` is, which holds nothing else.
    pub(crate) fn parse(text: &str) -> Result<Rule, String> {
        text.strip_prefix('R')
            .and_then(|digits| digits.parse().ok())
            .map(Rule)
            // Not `R042`, nor `R+42`.
            .filter(|rule| (1..=RULES).contains(&rule.0) && rule.to_string() == text)
            .ok_or_else(|| format!("`{text}` is none of R1 to R{RULES}"))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "R{}", self.0)
    }
}

/// The rules that `text` names. A number that is no rule's, and a range that runs backwards, are mistakes.
pub(crate) fn named(text: &str) -> Result<BTreeSet<Rule>, String> {
    let mut rules = BTreeSet::new();
    let mut rest = text;
    let mut before = None;
    while let Some(next) = rest.chars().next() {
        let Some(word) = rule_at(rest).filter(|_| !before.is_some_and(is_word)) else {
            before = Some(next);
            rest = &rest[next.len_utf8()..];
            continue;
        };
        let first = Rule::parse(word)?;
        // The end of a range is not skipped: the next range may begin with it.
        let last = match range_end(&rest[word.len()..]) {
            Some(end) => Rule::parse(end)?,
            None => first,
        };
        if last < first {
            return Err(format!("{first} to {last} runs backwards"));
        }
        rules.extend((first.0..=last.0).map(Rule));
        before = Some('R');
        rest = &rest[word.len()..];
    }
    Ok(rules)
}

/// `R` and digits that `text` begins with, as a whole word.
fn rule_at(text: &str) -> Option<&str> {
    let digits = text.strip_prefix('R')?;
    let after = digits.trim_start_matches(|c: char| c.is_ascii_digit());
    let whole = after.len() < digits.len() && !after.starts_with(is_word);
    whole.then(|| &text[..text.len() - after.len()])
}

/// The last rule of a range whose first one stands right before `text`.
fn range_end(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let end = TO.iter().find_map(|to| text.strip_prefix(to))?;
    rule_at(end.trim_start())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(text: &str) -> Vec<u16> {
        named(text).unwrap().into_iter().map(|rule| rule.0).collect()
    }

    #[test]
    fn a_list_in_prose_is_read() {
        assert_eq!(numbers("R42: a thing."), [42]);
        assert_eq!(numbers(" R54 R55, R60 and (R62), as `R63` says; R64"), [54, 55, 60, 62, 63, 64]);
        assert_eq!(numbers("no rule, G6, I4 or C001"), [] as [u16; 0]);
    }

    #[test]
    fn a_range_is_all_between_its_ends() {
        for text in [
            "R7 to R10",
            "R7\nto R10",
            "R7 to\n R10",
            "R7 to\nR10",
            "R7…R10",
            "R7–R10",
            "R7 – R10",
            "R7-R10",
            "R7..R10",
            "R7..=R10",
            "R7 through R10",
        ] {
            assert_eq!(numbers(text), [7, 8, 9, 10], "{text}");
        }
        assert_eq!(numbers("R1, R3 to R5, R9–R10."), [1, 3, 4, 5, 9, 10]);
        assert_eq!(numbers("R7 to R7"), [7]);
        assert_eq!(numbers("R7 R10"), [7, 10]);
        assert_eq!(numbers("R7 to see, R10"), [7, 10]);
    }

    #[test]
    fn a_rule_is_a_whole_word() {
        assert_eq!(numbers("R123"), [123]);
        assert_eq!(numbers("XR12 R12x R_12 _R12 R12_ R éR12 R1é"), [] as [u16; 0]);
        assert_eq!(numbers("RR12"), [] as [u16; 0]);
    }

    #[test]
    fn what_is_no_rule_is_a_mistake() {
        for (text, word) in [("R0", "R0"), ("R154", "R154"), ("R1 to R154", "R154"), ("R042", "R042"), ("R99999999", "R99999999")] {
            assert_eq!(named(text), Err(format!("`{word}` is none of R1 to R153")));
        }
        assert_eq!(named("R15 to R7"), Err("R15 to R7 runs backwards".into()));
        assert!(Rule::parse("42").is_err() && Rule::parse("R+4").is_err() && Rule::parse("R4 ").is_err());
    }
}
