//! What a `tracing` subscriber and a `metrics` recorder are told: one event and one count for each step of the control plane.
//!
//! Both are the user's code: they may call anything, block, or panic. So a step is told after the work of its call, with nothing held;
//! a destruction, which several steps may share, tells at its end. A panic goes to the caller, and the step stands; the recorder's does not
//! keep the subscriber from being told.
//!
//! A count is labelled with the step and the device, not with identities: these are never used again, and recorders keep what they have
//! seen.
//!
//! Without the features `tracing` and `metrics` these do nothing.

use super::Names;
#[cfg(any(feature = "metrics", feature = "tracing"))]
use crate::panics::Panics;
use crate::{
    contract::{AuthorityIdentity, DeviceKey, MechanismIdentity, ProviderContextIdentity},
    primitives::MechanismLifecycle,
};

/// What [`describe_metrics`](crate::describe_metrics) says of the steps' counter.
#[cfg(feature = "metrics")]
pub(crate) const STEPS: [&str; 2] = ["liveslot_steps_total", "Successful calls of the control plane, and teardowns, by what they did"];

macro_rules! told {
    ($(
        $(#[$doc:meta])*
        $level:ident $message:literal $name:ident($($argument:ident: $type:ty),*) of $device:expr, { $($field:ident: $value:expr),* $(,)? }
    )*) => {$(
        $(#[$doc])*
        pub(crate) fn $name($($argument: $type),*) {
            #[cfg(any(feature = "metrics", feature = "tracing"))]
            {
                let mut panics = Panics::default();
                #[cfg(feature = "metrics")]
                panics.catch(|| count($device, $message));
                #[cfg(feature = "tracing")]
                panics.catch(|| {
                    let device = tracing::field::display($device);
                    tracing::event!(target: "liveslot", tracing::Level::$level, device, $($field = $value,)* $message);
                });
                panics.pass_on();
            }
            #[cfg(not(feature = "tracing"))]
            let _ = ($($argument,)*);
        }
    )*};
}

#[cfg(feature = "metrics")]
fn count(device: DeviceKey, step: &'static str) {
    metrics::counter!(target: "liveslot", STEPS[0], "step" => step, "device" => device.to_string()).increment(1);
}

told! {
    INFO "provider context registered" context_registered(device: DeviceKey, context: ProviderContextIdentity) of device, {
        provider_context: context.number(),
    }

    INFO "authority registered" authority_registered(device: DeviceKey, authority: AuthorityIdentity) of device, {
        authority: authority.number(),
    }

    INFO "mechanism registered" registered(names: Names) of names.device, {
        mechanism: names.mechanism.number(),
        provider_context: names.provider_context.number(),
        authority: names.authority.number(),
    }

    INFO "mechanism selected" selected(names: Names) of names.device, {
        mechanism: names.mechanism.number(),
    }

    INFO "mechanism deselected" deselected(device: DeviceKey, mechanism: MechanismIdentity) of device, {
        mechanism: mechanism.number(),
    }

    INFO "mechanism retired" retired(names: Names, lifecycle: MechanismLifecycle) of names.device, {
        mechanism: names.mechanism.number(),
        lifecycle: tracing::field::debug(lifecycle),
    }

    WARN "device lost" lost(device: DeviceKey, reason: &str) of device, {
        reason: reason,
    }

    INFO "provider context terminated" terminated(device: DeviceKey, context: ProviderContextIdentity) of device, {
        provider_context: context.number(),
    }

    INFO "mechanism removed" removed(names: Names) of names.device, {
        mechanism: names.mechanism.number(),
    }

    INFO "mechanism torn down" torn_down(names: Names) of names.device, {
        mechanism: names.mechanism.number(),
        provider_context: names.provider_context.number(),
        authority: names.authority.number(),
    }

    INFO "provider context removed" context_removed(device: DeviceKey, context: ProviderContextIdentity) of device, {
        provider_context: context.number(),
    }

    INFO "authority removed" authority_removed(device: DeviceKey, authority: AuthorityIdentity) of device, {
        authority: authority.number(),
    }
}
