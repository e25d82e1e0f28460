//! The permits for concurrent verifications. An address holds a few of them, so that no three
//! addresses can take all.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    error::{Error, Result},
    limits::address::ClientIp,
};

/// Concurrent verifications of a node.
const MAX_CONCURRENT_CHECKS: usize = 64;
/// Concurrent verifications of an address.
const MAX_CHECKS_PER_IP: usize = 4;
/// Longest wait for a permit. A verification takes a round trip to the service.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(1);

/// The permits of a node; clones share them.
#[derive(Clone)]
pub struct Permits {
    all: Arc<Semaphore>,
    of_ip: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
}

/// A permit, held until it is dropped.
pub struct Permit {
    _of_ip: OwnedSemaphorePermit,
    _of_node: OwnedSemaphorePermit,
    _client: Client,
}

impl Default for Permits {
    fn default() -> Self {
        Permits {
            all: Arc::new(Semaphore::new(MAX_CONCURRENT_CHECKS)),
            of_ip: Arc::default(),
        }
    }
}

impl Permits {
    /// Waits for a permit of the address and of the node.
    pub async fn enter(&self, ip: ClientIp) -> Result<Permit> {
        let client = self.client(ip);
        let taken = async {
            let of_ip = client.permits().acquire_owned().await?;
            Ok((of_ip, self.all.clone().acquire_owned().await?))
        };
        let (of_ip, of_node) = tokio::time::timeout(PERMIT_TIMEOUT, taken)
            .await
            .map_err(|_| Error::unavailable("too many human verifications at once"))?
            .map_err(|closed: tokio::sync::AcquireError| Error::unavailable(closed))?;
        Ok(Permit {
            _of_ip: of_ip,
            _of_node: of_node,
            _client: client,
        })
    }

    fn client(&self, ip: ClientIp) -> Client {
        let key = ip.to_string();
        let mut of_ip = self.of_ip.lock();
        let known = of_ip.get(&key).and_then(Weak::upgrade);
        let permits = known.unwrap_or_else(|| {
            let permits = Arc::new(Semaphore::new(MAX_CHECKS_PER_IP));
            of_ip.insert(key.clone(), Arc::downgrade(&permits));
            permits
        });
        Client {
            all: self.clone(),
            key,
            permits: Some(permits),
        }
    }
}

/// An address that holds a permit or waits for one. The last one removes its entry.
struct Client {
    all: Permits,
    key: String,
    /// Present until it is dropped.
    permits: Option<Arc<Semaphore>>,
}

impl Client {
    fn permits(&self) -> Arc<Semaphore> {
        self.permits
            .clone()
            .unwrap_or_else(|| unreachable!("only a dropped one has none"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut of_ip = self.all.of_ip.lock();
        // Under the lock, so that one of two that end together is the last.
        self.permits = None;
        if of_ip
            .get(&self.key)
            .is_some_and(|permits| permits.strong_count() == 0)
        {
            of_ip.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> ClientIp {
        ClientIp([192, 0, 2, last].into())
    }

    #[tokio::test]
    async fn an_address_holds_four_permits_and_leaves_the_others() {
        let permits = Permits::default();
        let mut held = Vec::new();
        for _ in 0..MAX_CHECKS_PER_IP {
            held.push(permits.enter(ip(1)).await.expect("a permit"));
        }
        assert!(permits.enter(ip(1)).await.is_err());
        assert!(permits.enter(ip(2)).await.is_ok());
        held.pop();
        assert!(permits.enter(ip(1)).await.is_ok());
        held.clear();
        assert!(permits.of_ip.lock().is_empty());
        assert_eq!(permits.all.available_permits(), MAX_CONCURRENT_CHECKS);
    }

    #[tokio::test]
    async fn a_permit_is_waited_for() {
        let permits = Permits::default();
        let held = futures_util::future::join_all((0..16).map(async |n| {
            futures_util::future::join_all((0..4).map(|_| permits.enter(ip(n)))).await
        }));
        let held = held.await;
        let leave = async {
            tokio::time::sleep(PERMIT_TIMEOUT / 2).await;
            drop(held);
        };
        let (permit, ()) = tokio::join!(permits.enter(ip(99)), leave);
        assert!(permit.is_ok());
    }
}
