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

/// The connections that the settings ask for.
fn wanted(config: &Config) -> usize {
    let sockets = config.max_sockets.0 as usize;
    config
        .max_connections
        .map_or(sockets + sockets / 2, |max| max.0 as usize)
}

/// The open files that must stay free, of so many.
fn spare(files: u64) -> u64 {
    (files / SPARE_FILES_SHARE).max(MIN_SPARE_FILES)
}

/// The open files that a node with these settings needs.
pub fn files_for(config: &Config) -> u64 {
    let connections = wanted(config) as u64;
    // The share is one of all files.
    let with_share = connections * SPARE_FILES_SHARE / (SPARE_FILES_SHARE - 1) + 1;
    with_share.max(connections + MIN_SPARE_FILES)
}

impl Connections {
    /// The connections of the public listener. The open files bound them too.
    pub fn of(config: &Config) -> Self {
        let wanted = wanted(config);
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let spare = spare(files);
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
            proxies: [&*config.trusted_proxies.0, &*config.proxy_protocol.0]
                .concat()
                .into(),
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
        self.count(&mut counts, peer, address)?;
        counts.all += 1;
        Ok(Connection {
            connections: self.clone(),
            address,
        })
    }

    /// Counts a connection of `address`, where `peer` is.
    fn count(
        &self,
        counts: &mut Counts,
        peer: IpAddr,
        address: IpAddr,
    ) -> Result<(), &'static str> {
        let own = counts.addresses.entry(address).or_default();
        let peer = peer.to_canonical();
        let proxied = || self.0.proxies.iter().any(|net| net.contains(&peer));
        if self.0.max_per_address.is_some_and(|max| *own >= max) && !proxied() {
            return Err("address_limit");
        }
        *own += 1;
        Ok(())
    }
}

impl Counts {
    fn discount(&mut self, address: IpAddr) {
        if let Some(own) = self.addresses.get_mut(&address) {
            *own -= 1;
            if *own == 0 {
                self.addresses.remove(&address);
            }
        }
    }
}

/// A counted connection.
pub struct Connection {
    connections: Connections,
    address: IpAddr,
}

impl Connection {
    /// Counts the connection as one of `client` from now on. The error is why it may not be:
    /// `address_limit`.
    pub fn move_to(&mut self, client: IpAddr) -> Result<(), &'static str> {
        let address = network(client);
        if address != self.address {
            let mut counts = self.connections.0.counts.lock();
            self.connections.count(&mut counts, client, address)?;
            counts.discount(self.address);
            self.address = address;
        }
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut counts = self.connections.0.counts.lock();
        counts.all -= 1;
        counts.discount(self.address);
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
        drop(proxied);
        // A balancer's connections count as those of their clients.
        let client = "192.0.2.7".parse().expect("an address");
        let mut entries: Vec<_> = (0..3).filter_map(|_| enter("10.0.0.1").ok()).collect();
        let moved: Vec<_> = entries.iter_mut().map(|one| one.move_to(client)).collect();
        assert_eq!(moved, [Ok(()), Ok(()), Err("address_limit")]);
        assert_eq!(enter("192.0.2.7").err(), Some("address_limit"));
        drop(entries);
        assert!(connections.0.counts.lock().addresses.is_empty());
    }
}
