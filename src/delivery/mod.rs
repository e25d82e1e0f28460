//! Delivery of committed events and ephemeral events to the subscriptions of all nodes.
//!
//! The [`hub`] holds the subscriptions of this node. The [`backplane`] notifies the other nodes.
//! [`reconcile`] finds everything that was lost on the way. This module knows neither WebSockets
//! nor streams.

pub mod backplane;
pub mod ephemeral;
pub mod heartbeat;
pub mod hub;
pub mod reconcile;
pub mod subscription;

pub use self::{
    backplane::Backplane,
    hub::{Hub, SubscriptionGuard},
    subscription::{End, Subscription},
};
