//! What a `tracing` subscriber is told: one event for each step of the control plane, with the identities as fields.
//!
//! A subscriber is the user's code: it may call anything, block, or panic. So a step is told after the work of its call, with nothing held;
//! a destruction, which several steps may share, tells at its end. A panic goes to the caller, and the step stands.
//!
//! Without the feature `tracing` these do nothing.

use super::Names;
use crate::{
    contract::{AuthorityIdentity, DeviceKey, MechanismIdentity, ProviderContextIdentity},
    primitives::MechanismLifecycle,
};

macro_rules! told {
    ($($(#[$doc:meta])* $level:ident $message:literal $name:ident($($argument:ident: $type:ty),*) { $($field:ident: $value:expr),* $(,)? })*) => {$(
        $(#[$doc])*
        pub(crate) fn $name($($argument: $type),*) {
            #[cfg(feature = "tracing")]
            tracing::event!(target: "liveslot", tracing::Level::$level, $($field = $value,)* $message);
            #[cfg(not(feature = "tracing"))]
            let _ = ($($argument,)*);
        }
    )*};
}

told! {
    INFO "provider context registered" context_registered(device: DeviceKey, context: ProviderContextIdentity) {
        device: tracing::field::display(device),
        provider_context: context.number(),
    }

    INFO "authority registered" authority_registered(device: DeviceKey, authority: AuthorityIdentity) {
        device: tracing::field::display(device),
        authority: authority.number(),
    }

    INFO "mechanism registered" registered(names: Names) {
        device: tracing::field::display(names.device),
        mechanism: names.mechanism.number(),
        provider_context: names.provider_context.number(),
        authority: names.authority.number(),
    }

    INFO "mechanism selected" selected(names: Names) {
        device: tracing::field::display(names.device),
        mechanism: names.mechanism.number(),
    }

    INFO "mechanism deselected" deselected(device: DeviceKey, mechanism: MechanismIdentity) {
        device: tracing::field::display(device),
        mechanism: mechanism.number(),
    }

    INFO "mechanism retired" retired(names: Names, lifecycle: MechanismLifecycle) {
        device: tracing::field::display(names.device),
        mechanism: names.mechanism.number(),
        lifecycle: tracing::field::debug(lifecycle),
    }

    WARN "device lost" lost(device: DeviceKey, reason: &str) {
        device: tracing::field::display(device),
        reason: reason,
    }

    INFO "provider context terminated" terminated(device: DeviceKey, context: ProviderContextIdentity) {
        device: tracing::field::display(device),
        provider_context: context.number(),
    }

    INFO "mechanism removed" removed(names: Names) {
        device: tracing::field::display(names.device),
        mechanism: names.mechanism.number(),
    }

    INFO "mechanism torn down" torn_down(names: Names) {
        device: tracing::field::display(names.device),
        mechanism: names.mechanism.number(),
        provider_context: names.provider_context.number(),
        authority: names.authority.number(),
    }

    INFO "provider context removed" context_removed(device: DeviceKey, context: ProviderContextIdentity) {
        device: tracing::field::display(device),
        provider_context: context.number(),
    }

    INFO "authority removed" authority_removed(device: DeviceKey, authority: AuthorityIdentity) {
        device: tracing::field::display(device),
        authority: authority.number(),
    }
}
