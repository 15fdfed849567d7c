//! RULES.md: what each rule says.
//!
//! An entry is a list item or a table row that begins with its rule in bold: `- **R42** TEXT`, continued on indented lines, or
//! `| **R42** | TEXT | TEXT |`. Bold anywhere else is a mistake for a rule, so that no entry is missed for the way it is written.

use crate::naming::{Rule, named};
use std::collections::BTreeMap;

/// The texts of each rule's entries, of which there should be one.
pub(crate) type Entries = BTreeMap<Rule, Vec<String>>;

/// Reads RULES.md. A rule that does not exist is a mistake wherever it is named.
pub(crate) fn entries(text: &str) -> Result<Entries, String> {
    named(text)?;
    let mut entries = Entries::new();
    let mut open = None;
    for (number, line) in text.lines().enumerate() {
        let begun = entry(line);
        if line.matches("**R").count() != usize::from(begun.is_some()) {
            return Err(format!("line {}: bold, and no entry begins there", number + 1));
        }
        match (begun, open) {
            (Some((rule, text)), _) => {
                entries.entry(rule).or_default().push(text);
                open = Some(rule);
            }
            (None, Some(rule)) if line.starts_with("  ") => {
                let text = entries.get_mut(&rule).and_then(|texts| texts.last_mut()).expect("it was begun");
                text.push(' ');
                text.push_str(line.trim());
            }
            _ => open = None,
        }
    }
    Ok(entries)
}

/// The rule whose entry begins with `line`, and what the line says of it.
fn entry(line: &str) -> Option<(Rule, String)> {
    let (separator, line) = match line.strip_prefix("| ") {
        Some(row) => ('|', row),
        None => ('\n', line.strip_prefix("- ")?),
    };
    let (rule, text) = line.strip_prefix("**")?.split_once("**")?;
    let cells: Vec<&str> = text.split(separator).map(str::trim).filter(|cell| !cell.is_empty()).collect();
    Some((Rule::parse(rule).ok()?, cells.join(": ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each rule with its texts.
    fn read(text: &str) -> Vec<(String, Vec<String>)> {
        entries(text).unwrap().into_iter().map(|(rule, texts)| (rule.to_string(), texts)).collect()
    }

    fn one(rule: &str, text: &str) -> (String, Vec<String>) {
        (rule.into(), vec![text.into()])
    }

    #[test]
    fn items_and_rows_are_entries() {
        let text = "\
# Rules
Of R3, and of R1 to R2.
- **R2** Two, as R1 | says.
- **R1** One,
  which goes on,
  and on.

  not part of it
| rule | calls | afterwards |
| --- | --- | --- |
| **R120** | `a` and `b` | Both. |
- **note** of no rule
";
        assert_eq!(
            read(text),
            [one("R1", "One, which goes on, and on."), one("R2", "Two, as R1 | says."), one("R120", "`a` and `b`: Both.")]
        );
    }

    #[test]
    fn a_second_entry_is_kept_apart() {
        assert_eq!(read("- **R1** One.\n- **R1** Uno.\n"), [("R1".to_owned(), vec!["One.".to_owned(), "Uno.".to_owned()])]);
    }

    #[test]
    fn what_is_no_rule_is_a_mistake() {
        assert_eq!(entries("- **R154** More."), Err("`R154` is none of R1 to R153".into()));
        assert_eq!(entries("- **R1** As R154 says."), Err("`R154` is none of R1 to R153".into()));
    }

    #[test]
    fn a_rule_in_bold_begins_an_entry() {
        for text in ["**R1** One.", "* **R1** One.", "- One: **R1**.", "- **R1**, **R2** Both.", "- **R1 One.**", "  - **R1** One."] {
            assert_eq!(entries(&format!("#\n{text}")), Err("line 2: bold, and no entry begins there".into()), "{text}");
        }
    }
}
