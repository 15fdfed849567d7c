//! How a provider keeps one of its contexts usable for as long as somebody needs it.
//!
//! The two traits are a vocabulary between providers and their users. The library implements neither and calls neither: what keeps a
//! registered context alive is the [`BindingResource`](super::BindingResource) that was registered with it.

use super::ProviderContextIdentity;
use std::{error, fmt};

/// Why a context could not be pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderContextPinError {
    /// The context takes no more work.
    ContextUnavailable(ProviderContextIdentity),
    /// The implementer's counter can't take another pin.
    PinCountOverflow(ProviderContextIdentity),
}

impl fmt::Display for ProviderContextPinError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ContextUnavailable(context) => write!(formatter, "{context:?} takes no more work; pin another provider context"),
            Self::PinCountOverflow(context) => write!(formatter, "{context:?} can't take another pin; drop one first"),
        }
    }
}

impl error::Error for ProviderContextPinError {}

/// A pin on a context, released by dropping it.
pub trait ProviderContextPin: Send + Sync + fmt::Debug {
    /// The pinned context.
    fn context(&self) -> ProviderContextIdentity;
}

/// Where pins on a context come from.
pub trait ProviderContextPinSource: Send + Sync + fmt::Debug {
    /// The context that the pins are on.
    fn context(&self) -> ProviderContextIdentity;

    /// Pins the context.
    ///
    /// # Errors
    ///
    /// [`ProviderContextPinError::ContextUnavailable`] if the context takes no more work,
    /// [`ProviderContextPinError::PinCountOverflow`] if it can't take another pin.
    fn pin(&self) -> Result<Box<dyn ProviderContextPin>, ProviderContextPinError>;
}
