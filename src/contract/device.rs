//! Where memory is, and what it is for.

use std::fmt;

/// A class of memory, fastest first; the order of the variants is their [`Ord`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum Tier {
    /// Memory of an accelerator.
    Device,
    /// Main memory.
    Host,
    /// Storage.
    Disk,
}

impl Tier {
    /// Every tier, fastest first.
    pub const ALL: [Tier; 3] = [Tier::Device, Tier::Host, Tier::Disk];

    /// The position in [`Tier::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name in lower case, as error texts use it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
        }
    }
}

/// One device: a tier and a number in it.
///
/// It displays as the two of them, for example `device 3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DeviceKey {
    /// The class of memory that the device holds.
    pub tier: Tier,
    /// Which device of that tier. The user numbers them; the numbers need not be dense.
    pub index: u32,
}

impl DeviceKey {
    /// The process's main memory.
    pub const HOST: Self = Self { tier: Tier::Host, index: 0 };

    /// Accelerator number `index`.
    ///
    /// ```
    /// use liveslot::{DeviceKey, Tier};
    ///
    /// assert_eq!(DeviceKey::device(3), DeviceKey { tier: Tier::Device, index: 3 });
    /// assert_eq!(DeviceKey::device(3).to_string(), "device 3");
    /// ```
    pub const fn device(index: u32) -> Self {
        Self { tier: Tier::Device, index }
    }
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.tier.name(), self.index)
    }
}

/// What a request for memory is for. The library only repeats it in errors; budgets are kept by whoever raises them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryRole {
    /// Keys and values of earlier tokens.
    KvCache,
    /// Scratch memory of computations.
    Workspace {
        /// Whether the memory is needed for one step only.
        step_scoped: bool,
    },
    /// Parameters of a model.
    Weights,
    /// Intermediate results.
    Activation,
}
