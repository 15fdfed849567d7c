//! The names of what was registered, bound and allocated.
//!
//! A name is plain data around a number that is issued once in the life of the process. It holds nothing alive, so it may
//! be kept, compared and used as a map key long after the thing it names is gone. Only the library makes names, and
//! nobody can read the number out or order by it: numbers are handed out in blocks, so their order tells nothing.
//!
//! The [`Debug`](fmt::Debug) text of a name contains every number it is made of. Two names of one type therefore have
//! the same text exactly when they are equal. With the feature `serde` a name serializes as its numbers, too, and nothing deserializes:
//! what comes back from outside is data about names, no name.

use super::DeviceKey;
use std::fmt;

macro_rules! numbered {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        pub struct $name(u64);

        impl $name {
            /// The caller vouches that `number` was issued for this alone.
            pub(crate) const fn from_number(number: u64) -> Self {
                Self(number)
            }
        }
    )*};
}

numbered! {
    /// Names one registered authority: the owner of the memory budget behind a mechanism.
    AuthorityIdentity;
    /// Names one registered provider context: what has to be alive for a mechanism's memory to be valid.
    ProviderContextIdentity;
    /// Names one mechanism: one registration of an allocator with one provider context and one authority.
    MechanismIdentity;
    /// Names one binding, shared by its clones.
    BindingId;
    /// Tells apart bindings whatever else they share. Each one that is issued has a fresh generation.
    BindingGeneration;
    /// Tells apart allocations whatever else they share, the address included. Each one has a fresh generation.
    AllocationGeneration;
}

macro_rules! looked_up {
    ($($name:ident)*) => {$(
        impl $name {
            /// What it was made from, to look the thing up by, and for texts.
            pub(crate) const fn number(self) -> u64 {
                self.0
            }
        }
    )*};
}

looked_up!(AuthorityIdentity ProviderContextIdentity MechanismIdentity BindingId);

/// Names one binding and the things it was issued from.
///
/// Every issued binding has a fresh id and a fresh generation; clones keep both.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct BindingIdentity {
    id: BindingId,
    generation: BindingGeneration,
    device: DeviceKey,
    mechanism: MechanismIdentity,
    provider_context: ProviderContextIdentity,
    authority: AuthorityIdentity,
}

impl BindingIdentity {
    pub(crate) const fn new(
        id: BindingId,
        generation: BindingGeneration,
        device: DeviceKey,
        mechanism: MechanismIdentity,
        provider_context: ProviderContextIdentity,
        authority: AuthorityIdentity,
    ) -> Self {
        Self { id, generation, device, mechanism, provider_context, authority }
    }

    /// The binding itself.
    pub const fn id(self) -> BindingId {
        self.id
    }

    /// The generation it was issued with.
    pub const fn generation(self) -> BindingGeneration {
        self.generation
    }

    /// The device of its mechanism.
    pub const fn device(self) -> DeviceKey {
        self.device
    }

    /// The mechanism it allocates from.
    pub const fn mechanism(self) -> MechanismIdentity {
        self.mechanism
    }

    /// The provider context that the mechanism was registered with.
    pub const fn provider_context(self) -> ProviderContextIdentity {
        self.provider_context
    }

    /// The authority that the mechanism was registered with.
    pub const fn authority(self) -> AuthorityIdentity {
        self.authority
    }
}

// By hand: derived, the text of an allocation's identity would take up three lines of every error that names it.
impl fmt::Debug for BindingIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "BindingIdentity({}, generation {}, {}, mechanism {}, provider context {}, authority {})",
            self.id.0, self.generation.0, self.device, self.mechanism.0, self.provider_context.0, self.authority.0,
        )
    }
}

/// Names one allocation: its binding, and a generation that has nothing to do with the address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct AllocationIdentity {
    binding: BindingIdentity,
    generation: AllocationGeneration,
}

impl AllocationIdentity {
    pub(crate) const fn new(binding: BindingIdentity, generation: AllocationGeneration) -> Self {
        Self { binding, generation }
    }

    /// The binding that the allocation was made with.
    pub const fn binding(self) -> BindingIdentity {
        self.binding
    }

    /// What tells it from every other allocation.
    pub const fn generation(self) -> AllocationGeneration {
        self.generation
    }
}

impl fmt::Debug for AllocationIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "AllocationIdentity({}, {:?})", self.generation.0, self.binding,)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Tier;
    use std::collections::{HashMap, HashSet};

    /// An allocation identity whose seven numbers are `first`, `first + 1`, …, in the order of the fields.
    const fn allocation(first: u64, tier: Tier) -> AllocationIdentity {
        AllocationIdentity::new(
            BindingIdentity::new(
                BindingId::from_number(first),
                BindingGeneration::from_number(first + 1),
                DeviceKey { tier, index: first as u32 + 2 },
                MechanismIdentity::from_number(first + 3),
                ProviderContextIdentity::from_number(first + 4),
                AuthorityIdentity::from_number(first + 5),
            ),
            AllocationGeneration::from_number(first + 6),
        )
    }

    /// R3, R4: an identity tells each of the things it was made of.
    #[test]
    fn an_identity_tells_its_parts() {
        let identity = allocation(10, Tier::Host);
        let binding = identity.binding();
        assert_eq!(binding.id(), BindingId(10));
        assert_eq!(binding.generation(), BindingGeneration(11));
        assert_eq!(binding.device(), DeviceKey { tier: Tier::Host, index: 12 });
        assert_eq!(binding.mechanism(), MechanismIdentity(13));
        assert_eq!(binding.provider_context(), ProviderContextIdentity(14));
        assert_eq!(binding.authority(), AuthorityIdentity(15));
        assert_eq!(identity.generation(), AllocationGeneration(16));
    }

    /// R5: a numbered identity's text is fixed by its number and differs from every other's.
    #[test]
    fn numbered_texts_are_equal_exactly_when_values_are() {
        let numbers = [0, 1, 10, 11, 101, 1_010, u64::MAX - 1, u64::MAX];
        for left in numbers.map(MechanismIdentity) {
            for right in numbers.map(MechanismIdentity) {
                assert_eq!(left == right, format!("{left:?}") == format!("{right:?}"));
            }
        }
        assert_eq!(format!("{:?}", AuthorityIdentity(7)), "AuthorityIdentity(7)");
    }

    /// R5: changing any one part of a composed identity changes the value and its text, and no two changes meet.
    #[test]
    fn composed_texts_tell_every_part() {
        let mut variants = Vec::new();
        // Numbers with a digit in common: digits that move from one part to the next must not give the same text.
        for first in [1, 11] {
            for bits in 0..1_u32 << 7 {
                let pick = |bit: u32| first + 10 * u64::from(bits >> bit & 1);
                for tier in Tier::ALL {
                    variants.push(AllocationIdentity::new(
                        BindingIdentity::new(
                            BindingId(pick(0)),
                            BindingGeneration(pick(1)),
                            DeviceKey { tier, index: pick(2) as u32 },
                            MechanismIdentity(pick(3)),
                            ProviderContextIdentity(pick(4)),
                            AuthorityIdentity(pick(5)),
                        ),
                        AllocationGeneration(pick(6)),
                    ));
                }
            }
        }
        let values: HashSet<_> = variants.iter().copied().collect();
        let texts: HashSet<_> = variants.iter().map(|v| format!("{v:?}")).collect();
        assert_eq!(values.len(), texts.len());
        // Two rounds of 2^7 choices, 1 or 11 and 11 or 21, that share the one in which all are 11.
        assert_eq!(values.len(), 3 * (2 * 128 - 1));

        let bindings: HashSet<_> = variants.iter().map(|v| v.binding()).collect();
        let texts: HashSet<_> = bindings.iter().map(|b| format!("{b:?}")).collect();
        assert_eq!(bindings.len(), texts.len());
        assert_eq!(bindings.len(), 3 * (2 * 64 - 1));
    }

    /// R5: the text is a function of the value alone, whatever form is asked for.
    #[test]
    fn composed_text() {
        let identity = allocation(1, Tier::Device);
        let text = "AllocationIdentity(7, BindingIdentity(1, generation 2, device 3, mechanism 4, \
                    provider context 5, authority 6))";
        assert_eq!(format!("{identity:?}"), text);
        assert_eq!(format!("{identity:#?}"), text);
    }

    /// R5: identities are map keys.
    #[test]
    fn identities_are_map_keys() {
        let first = allocation(1, Tier::Device);
        let second = allocation(2, Tier::Device);
        let mut by_allocation = HashMap::from([(first, "first"), (second, "second")]);
        assert_eq!(by_allocation.remove(&allocation(1, Tier::Device)), Some("first"));
        assert_eq!(by_allocation.get(&first), None);
        let by_authority = HashMap::from([(first.binding().authority(), 1)]);
        assert_eq!(by_authority.get(&AuthorityIdentity(6)), Some(&1));
    }
}
