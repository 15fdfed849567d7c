//! Numbers for people.

use std::fmt::{self, Display};

/// A number with its digits in groups of three.
pub(crate) struct Grouped(pub(crate) u64);

impl Display for Grouped {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut grouped = String::new();
        for (index, digit) in digits.chars().enumerate() {
            if index != 0 && (digits.len() - index).is_multiple_of(3) {
                grouped.push(' ');
            }
            grouped.push(digit);
        }
        formatter.pad(&grouped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        let grouped = |number| Grouped(number).to_string();
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(1_234), "1 234");
        assert_eq!(grouped(123_456_789), "123 456 789");
        assert_eq!(format!("{:>6}", Grouped(1_234)), " 1 234");
    }
}
