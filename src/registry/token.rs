//! What registration hands out: plain data that names a registration and holds nothing alive.

use crate::{
    contract::{AuthorityIdentity, DeviceKey, MechanismCoherence, MechanismIdentity, ProviderContextIdentity},
    primitives::table::Place,
};

macro_rules! token {
    ($(#[$doc:meta])* $name:ident, $identity:ty $(, $(#[$field_doc:meta])* $field:ident: $type:ty)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name {
            pub(super) registry: u64,
            pub(super) place: Place,
            pub(super) identity: $identity,
            pub(super) device: DeviceKey,
            $(pub(super) $field: $type,)?
        }

        impl $name {
            /// The identity that was issued at registration.
            #[must_use]
            pub const fn identity(self) -> $identity {
                self.identity
            }

            /// The device it was registered for.
            #[must_use]
            pub const fn device(self) -> DeviceKey {
                self.device
            }

            $(
                $(#[$field_doc])*
                #[must_use]
                pub const fn $field(self) -> $type {
                    self.$field
                }
            )?
        }
    };
}

token! {
    /// Names a registered provider context.
    RegisteredProviderContext, ProviderContextIdentity
}

token! {
    /// Names a registered authority.
    RegisteredAuthority, AuthorityIdentity
}

token! {
    /// Names a registered mechanism.
    RegisteredMechanism, MechanismIdentity,
    /// Whether it was registered as a trusted composite.
    coherence: MechanismCoherence
}
