//! Events to listeners: the hub of this node, the backplane between nodes, and reconciliation behind both.

pub(crate) mod backplane;
pub(crate) mod heartbeat;
pub(crate) mod hub;
pub(crate) mod reconcile;
