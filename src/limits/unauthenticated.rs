//! Sockets that have not said yet whose they are, by address: a stranger may hold a few, not all of a node's.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use super::quotas::MAX_UNAUTHENTICATED_PER_IP;

/// Those of one node; clones share them.
#[derive(Clone, Default)]
pub struct UnauthenticatedConnections(Arc<Mutex<HashMap<String, u32>>>);

/// One of them; counted until it is dropped.
pub struct UnauthenticatedConnection {
    all: UnauthenticatedConnections,
    ip: String,
}

impl UnauthenticatedConnections {
    /// Counts one more of `ip`, unless there are too many.
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
