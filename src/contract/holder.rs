//! Who keeps a mechanism, for observers.

use super::BindingId;
use std::{fmt, panic::Location, time::Duration};

/// A binding and what was made through it, as [`BindingRegistry::holders`](crate::BindingRegistry::holders) lists it: one for each binding
/// that was issued and of which anything is left.
///
/// It is a copy and keeps nothing. Its text is one line:
///
/// ```text
/// binding 44 "decoder" of src/decode.rs:12:30, 1.5s old: handles 2, allocations 1
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Holder {
    /// The binding.
    pub binding: BindingId,
    /// What [`MemoryBinding::labelled`](crate::MemoryBinding::labelled) has called it.
    pub label: Option<&'static str>,
    /// The call that has issued it. With the feature `serde` its `file`, `line` and `column`.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serialize"))]
    pub place: &'static Location<'static>,
    /// How long ago that was when it was listed.
    pub age: Duration,
    /// The binding and its clones, those inside capability handles and shared prefixes included.
    pub handles: usize,
    /// Allocations made through it of which metadata is left: the allocation itself, its owner, a view, or a request to release it.
    pub allocations: usize,
}

#[cfg(feature = "serde")]
fn serialize<S: serde::Serializer>(place: &Location<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeStruct;
    let mut fields = serializer.serialize_struct("Location", 3)?;
    fields.serialize_field("file", place.file())?;
    fields.serialize_field("line", &place.line())?;
    fields.serialize_field("column", &place.column())?;
    fields.end()
}

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { binding, label, place, age, handles, allocations } = self;
        write!(formatter, "binding {}", binding.number())?;
        if let Some(label) = label {
            write!(formatter, " {label:?}")?;
        }
        write!(formatter, " of {place}, {age:.1?} old: handles {handles}, allocations {allocations}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line that the documentation shows, and that a label can't break it.
    #[test]
    fn one_line() {
        let place = Location::caller();
        let (binding, age) = (BindingId::from_number(44), Duration::from_millis(1_480));
        let holder = Holder { binding, label: Some("decoder"), place, age, handles: 2, allocations: 1 };
        assert_eq!(holder.to_string(), format!("binding 44 \"decoder\" of {place}, 1.5s old: handles 2, allocations 1"));
        let holder = Holder { label: None, ..holder };
        assert_eq!(holder.to_string(), format!("binding 44 of {place}, 1.5s old: handles 2, allocations 1"));
        let holder = Holder { label: Some("two\nlines"), ..holder };
        assert_eq!(holder.to_string().lines().count(), 1);
    }
}
