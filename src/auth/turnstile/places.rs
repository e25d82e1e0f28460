//! The places for concurrent verifications. An address holds a few of them, so that no three
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
/// Longest wait for a place. A verification takes a round trip to the service.
const PLACE_TIMEOUT: Duration = Duration::from_secs(1);

/// The places of a node; clones share them.
#[derive(Clone)]
pub struct Places {
    all: Arc<Semaphore>,
    of_ip: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
}

/// A place, held until it is dropped.
pub struct Place {
    _of_ip: OwnedSemaphorePermit,
    _of_node: OwnedSemaphorePermit,
    _client: Client,
}

impl Default for Places {
    fn default() -> Self {
        Places {
            all: Arc::new(Semaphore::new(MAX_CONCURRENT_CHECKS)),
            of_ip: Arc::default(),
        }
    }
}

impl Places {
    /// Waits for a place of the address and of the node.
    pub async fn enter(&self, ip: ClientIp) -> Result<Place> {
        let client = self.client(ip);
        let taken = async {
            let of_ip = client.places().acquire_owned().await?;
            Ok((of_ip, self.all.clone().acquire_owned().await?))
        };
        let (of_ip, of_node) = tokio::time::timeout(PLACE_TIMEOUT, taken)
            .await
            .map_err(|_| Error::unavailable("too many human verifications at once"))?
            .map_err(|closed: tokio::sync::AcquireError| Error::unavailable(closed))?;
        Ok(Place {
            _of_ip: of_ip,
            _of_node: of_node,
            _client: client,
        })
    }

    fn client(&self, ip: ClientIp) -> Client {
        let key = ip.to_string();
        let mut of_ip = self.of_ip.lock();
        let known = of_ip.get(&key).and_then(Weak::upgrade);
        let places = known.unwrap_or_else(|| {
            let places = Arc::new(Semaphore::new(MAX_CHECKS_PER_IP));
            of_ip.insert(key.clone(), Arc::downgrade(&places));
            places
        });
        Client {
            all: self.clone(),
            key,
            places: Some(places),
        }
    }
}

/// An address that holds a place or waits for one. The last one removes its entry.
struct Client {
    all: Places,
    key: String,
    /// Present until it is dropped.
    places: Option<Arc<Semaphore>>,
}

impl Client {
    fn places(&self) -> Arc<Semaphore> {
        self.places
            .clone()
            .unwrap_or_else(|| unreachable!("only a dropped one has none"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut of_ip = self.all.of_ip.lock();
        // Under the lock, so that one of two that end together is the last.
        self.places = None;
        if of_ip
            .get(&self.key)
            .is_some_and(|places| places.strong_count() == 0)
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
    async fn an_address_holds_four_places_and_leaves_the_others() {
        let places = Places::default();
        let mut held = Vec::new();
        for _ in 0..MAX_CHECKS_PER_IP {
            held.push(places.enter(ip(1)).await.expect("a place"));
        }
        assert!(places.enter(ip(1)).await.is_err());
        assert!(places.enter(ip(2)).await.is_ok());
        held.pop();
        assert!(places.enter(ip(1)).await.is_ok());
        held.clear();
        assert!(places.of_ip.lock().is_empty());
        assert_eq!(places.all.available_permits(), MAX_CONCURRENT_CHECKS);
    }

    #[tokio::test]
    async fn a_place_is_waited_for() {
        let places = Places::default();
        let held = futures_util::future::join_all((0..16).map(async |n| {
            futures_util::future::join_all((0..4).map(|_| places.enter(ip(n)))).await
        }));
        let held = held.await;
        let leave = async {
            tokio::time::sleep(PLACE_TIMEOUT / 2).await;
            drop(held);
        };
        let (place, ()) = tokio::join!(places.enter(ip(99)), leave);
        assert!(place.is_ok());
    }
}
