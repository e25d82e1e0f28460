//! Unauthenticated connections, counted by address. An address may hold a few, not all of a node's
//! sockets.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use super::{address::ClientIp, quotas::MAX_UNAUTHENTICATED_PER_IP};

/// The unauthenticated connections of a node; clones share the counts.
#[derive(Clone, Default)]
pub struct UnauthenticatedConnections(Arc<Mutex<HashMap<String, u32>>>);

/// An unauthenticated connection, counted until it is dropped.
pub struct UnauthenticatedConnection {
    all: UnauthenticatedConnections,
    ip: ClientIp,
}

impl UnauthenticatedConnection {
    /// The address of the client.
    pub fn ip(&self) -> ClientIp {
        self.ip
    }
}

impl UnauthenticatedConnections {
    /// Counts a connection of `ip`; none if there are too many.
    pub fn enter(&self, ip: ClientIp) -> Option<UnauthenticatedConnection> {
        let mut counts = self.0.lock();
        let count = counts.entry(ip.to_string()).or_default();
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
        let (mut counts, key) = (self.all.0.lock(), self.ip.to_string());
        if let Some(count) = counts.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&key);
            }
        }
    }
}
