//! Errors compared whole. The phrase for the refused call is the only part that is free.

use liveslot::{BindingError, MechanismLifecycle, RegisteredMechanism};
use std::fmt::Debug;

#[derive(Clone)]
pub struct Expected(String);

impl From<BindingError> for Expected {
    fn from(error: BindingError) -> Self {
        Self(text(error))
    }
}

/// Refused because the mechanism is there in its life.
impl From<(RegisteredMechanism, MechanismLifecycle)> for Expected {
    fn from((mechanism, lifecycle): (RegisteredMechanism, MechanismLifecycle)) -> Self {
        Self(text(BindingError::InactiveMechanism { mechanism: mechanism.identity(), lifecycle, operation: "" }))
    }
}

fn text(error: BindingError) -> String {
    match error {
        BindingError::InactiveMechanism { mechanism, lifecycle, .. } => {
            format!("{:?}", BindingError::InactiveMechanism { mechanism, lifecycle, operation: "" })
        }
        other => format!("{other:?}"),
    }
}

#[track_caller]
pub fn refused<T: Debug>(result: Result<T, BindingError>, expected: impl Into<Expected>) {
    let Expected(expected) = expected.into();
    match result {
        Err(error) => assert_eq!(text(error), expected),
        Ok(value) => panic!("not refused with {expected}: {value:?}"),
    }
}
