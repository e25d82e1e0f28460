//! Events to listeners: the hub of this node, the backplane between nodes, and reconciliation behind both.

pub mod backplane;
pub mod heartbeat;
pub mod hub;
pub mod reconcile;
