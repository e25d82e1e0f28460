//! Unauthenticated connections, counted by address. An address may hold a few, not all of a node's
//! sockets.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use super::quotas::MAX_UNAUTHENTICATED_PER_IP;

/// The unauthenticated connections of a node; clones share the counts.
#[derive(Clone, Default)]
pub struct UnauthenticatedConnections(Arc<Mutex<HashMap<String, u32>>>);

/// An unauthenticated connection, counted until it is dropped.
pub struct UnauthenticatedConnection {
    all: UnauthenticatedConnections,
    ip: String,
}

impl UnauthenticatedConnections {
    /// Counts a connection of `ip`; none if there are too many.
    pub fn enter(&self, ip: impl std::fmt::Display) -> Option<UnauthenticatedConnection> {
        let ip = ip.to_string();
        let mut counts = self.0.lock();
        let count = counts.entry(ip.clone()).or_default();
        if *count >= MAX_UNAUTHENTICATED_PER_IP {
            return None;
        }
        *count += 1;
        Some(UnauthenticatedConnection {
            all: self.clone(),
            ip,
        })
    }
}

impl Drop for UnauthenticatedConnection {
    fn drop(&mut self) {
        let mut counts = self.all.0.lock();
        if let Some(count) = counts.get_mut(&self.ip) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.ip);
            }
        }
    }
}
