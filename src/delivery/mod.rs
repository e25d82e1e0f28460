//! Delivery: committed events and ephemeral events to the listeners of all nodes.
//!
//! The [`hub`] knows the listeners of this node, the [`backplane`] tells the other nodes, and [`reconcile`] finds what
//! was lost on the way. Nothing here knows a WebSocket or a stream.

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
