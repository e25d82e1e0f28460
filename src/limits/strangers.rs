//! Sockets that have not said yet whose they are, by address: a stranger may hold a few, not all of a node's.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::quotas::STRANGERS_PER_IP;

/// Those of one node; clones share them.
#[derive(Clone, Default)]
pub struct Strangers(Arc<Mutex<HashMap<String, u32>>>);

/// One of them; counted until it is dropped.
pub struct Stranger {
    all: Strangers,
    ip: String,
}

impl Strangers {
    /// Counts one more of `ip`, unless there are too many.
    pub fn enter(&self, ip: impl std::fmt::Display) -> Option<Stranger> {
        let ip = ip.to_string();
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(ip.clone()).or_default();
        if *count >= STRANGERS_PER_IP {
            return None;
        }
        *count += 1;
        Some(Stranger { all: self.clone(), ip })
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut counts = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.ip) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.ip);
            }
        }
    }
}
