//! Delivery: committed events and ephemeral events to the listeners of all nodes.
//!
//! The [`hub`] knows the listeners of this node, the [`backplane`] tells the other nodes, and [`reconcile`] finds what
//! was lost on the way. Nothing here knows a WebSocket or a stream.

pub(crate) mod backplane;
pub(crate) mod ephemeral;
pub(crate) mod heartbeat;
pub(crate) mod hub;
pub(crate) mod reconcile;
pub(crate) mod subscription;

pub use self::{
    backplane::Backplane,
    hub::{Hub, SubscriptionGuard},
    subscription::{End, Subscription},
};
