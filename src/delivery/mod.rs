//! Delivery of committed events and ephemeral events to the subscriptions of all nodes.
//!
//! The [`hub`] holds the subscriptions of this node. The [`backplane`] notifies the other nodes.
//! [`reconcile`] finds everything that was lost on the way. This module knows neither WebSockets
//! nor streams.

pub(crate) mod backplane;
pub(crate) mod ephemeral;
pub(crate) mod heartbeat;
pub(crate) mod hub;
pub(crate) mod invalidation;
pub(crate) mod reconcile;
mod start;
pub(crate) mod subscription;
pub(crate) mod unpublished_hints;

#[cfg(test)]
pub use self::{
    backplane::Incoming,
    reconcile::{FreshHeads, LogChanges, LogCursor},
};
pub use self::{
    backplane::{Backplane, PubSub, RedisPubSub, message_mac::MessageSigner},
    ephemeral::{EphemeralEvent, EphemeralHandler, EphemeralKey, NoEphemeralEvents},
    hub::{Hub, SubscriptionGuard},
    reconcile::DeliveryStore,
    start::{Parts, start},
    subscription::{End, Subscription},
};
