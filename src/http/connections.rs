//! The number of connections: of the node, and of an address where the node terminates TLS itself.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};

use super::client::network;
use crate::{config::Config, metrics};

/// Open files that stay free for Postgres, Redis, mail and the listeners.
const MIN_SPARE_FILES: u64 = 64;
/// The share of the open files that stays free, if it is more.
const SPARE_FILES_SHARE: u64 = 50;

/// The connections of a listener. Clones share the counts.
#[derive(Clone)]
pub struct Connections(Arc<Inner>);

struct Inner {
    max: usize,
    /// None if another program terminates TLS, whose address all connections have.
    max_per_address: Option<usize>,
    proxies: Arc<[IpNet]>,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    all: usize,
    addresses: HashMap<IpAddr, usize>,
}

impl Connections {
    /// The connections of the public listener. The open files bound them too.
    pub fn of(config: &Config) -> Self {
        let sockets = config.max_sockets.0 as usize;
        let wanted = config
            .max_connections
            .map_or(sockets + sockets / 2, |max| max.0 as usize);
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let spare = (files / SPARE_FILES_SHARE).max(MIN_SPARE_FILES);
        let possible = usize::try_from(files.saturating_sub(spare)).unwrap_or(usize::MAX);
        if possible < wanted {
            tracing::info!(
                wanted,
                possible,
                "the limit of open files bounds the connections"
            );
        }
        let max_per_address = config.max_connections_per_address.0 as usize;
        Connections(Arc::new(Inner {
            max: wanted.min(possible),
            max_per_address: config.tls_cert.is_some().then_some(max_per_address),
            proxies: config.trusted_proxies.0.clone().into(),
            counts: Mutex::default(),
        }))
    }

    /// Connections up to `max`, of any address.
    pub fn up_to(max: usize) -> Self {
        Connections(Arc::new(Inner {
            max,
            max_per_address: None,
            proxies: Arc::default(),
            counts: Mutex::default(),
        }))
    }

    /// Counts a connection until the entry is dropped. The error is why there is none:
    /// `limit`, or `address_limit`.
    pub fn enter(&self, peer: IpAddr) -> Result<Connection, &'static str> {
        let address = network(peer);
        let mut counts = self.0.counts.lock();
        if counts.all >= self.0.max {
            return Err("limit");
        }
        let own = counts.addresses.get(&address).copied().unwrap_or_default();
        let proxied = || self.0.proxies.iter().any(|net| net.contains(&peer));
        if self.0.max_per_address.is_some_and(|max| own >= max) && !proxied() {
            return Err("address_limit");
        }
        counts.all += 1;
        counts.addresses.insert(address, own + 1);
        Ok(Connection {
            connections: self.clone(),
            address,
        })
    }
}

/// A counted connection.
pub struct Connection {
    connections: Connections,
    address: IpAddr,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut counts = self.connections.0.counts.lock();
        counts.all -= 1;
        if let Some(own) = counts.addresses.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                counts.addresses.remove(&self.address);
            }
        }
    }
}

/// Counts the end of a connection, and says at `debug` why it came.
pub fn log_end(reason: &'static str, error: Option<&dyn std::error::Error>) {
    metrics::connection_closed(reason);
    match error {
        Some(error) => tracing::debug!(reason, %error, "a connection is closed"),
        None => tracing::debug!(reason, "a connection is closed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_and_the_node_hold_so_many_and_no_more() {
        let connections = Connections(Arc::new(Inner {
            max: 5,
            max_per_address: Some(2),
            proxies: Arc::new(["10.0.0.0/8".parse().expect("a network")]),
            counts: Mutex::default(),
        }));
        let enter = |ip: &str| connections.enter(ip.parse().expect("an address"));
        let held = [enter("2001:db8::1"), enter("2001:db8::2")];
        assert_eq!(enter("2001:db8::3").err(), Some("address_limit"));
        let proxied = [enter("10.0.0.1"), enter("10.0.0.1"), enter("10.0.0.1")];
        assert!(held.iter().chain(&proxied).all(Result::is_ok));
        assert_eq!(enter("192.0.2.1").err(), Some("limit"));
        drop(held);
        assert!(enter("2001:db8::3").is_ok());
    }
}
