//! Names to addresses, with a deadline and a cache that follows the records' lifetime.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts},
    net::{NetError, runtime::TokioRuntimeProvider},
};

use super::EgressError;

/// Deadline of one question to one name server. The resolver repeats it once.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest use of an answer, whatever its lifetime says.
const MAX_POSITIVE_TTL: Duration = Duration::from_secs(60);
/// Longest use of the answer that a name does not exist. Its owner may be about to create it.
const MAX_NEGATIVE_TTL: Duration = Duration::from_secs(5);
/// Cached answers.
const CACHE_CAPACITY: u64 = 10_000;
/// Questions under way at one name server.
const MAX_ACTIVE_QUERIES: usize = 1024;

/// Asks name servers.
pub(super) struct Resolver(Option<TokioResolver>);

impl Resolver {
    /// A resolver that asks `servers`, or those of `/etc/resolv.conf` if there are none.
    pub(super) fn new(servers: &[SocketAddr]) -> Self {
        match build(servers) {
            Ok(resolver) => Resolver(Some(resolver)),
            Err(error) => {
                tracing::warn!(
                    operation = "egress.start",
                    cause = %error,
                    remedy = "no named address can be called",
                    "no name servers on this system"
                );
                Resolver(None)
            }
        }
    }

    /// Every address of `name`, IPv4 first. Search domains of the system do not apply.
    pub(super) async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, EgressError> {
        let resolver = self.0.as_ref().ok_or(EgressError::Dns)?;
        let lookup = Box::pin(resolver.lookup_ip(format!("{name}.")));
        let found = lookup.await.map_err(|_| EgressError::Dns)?;
        let addresses: Vec<IpAddr> = found.iter().collect();
        if addresses.is_empty() {
            return Err(EgressError::Dns);
        }
        Ok(addresses)
    }
}

fn build(servers: &[SocketAddr]) -> Result<TokioResolver, NetError> {
    let mut builder = if servers.is_empty() {
        TokioResolver::builder_tokio()?
    } else {
        let servers = servers.iter().map(name_server).collect();
        let config = ResolverConfig::from_name_servers(servers);
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
    };
    set(builder.options_mut());
    builder.build()
}

fn set(options: &mut ResolverOpts) {
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.timeout = QUERY_TIMEOUT;
    options.attempts = 1;
    options.cache_size = CACHE_CAPACITY;
    options.positive_max_ttl = Some(MAX_POSITIVE_TTL);
    options.negative_max_ttl = Some(MAX_NEGATIVE_TTL);
    options.max_active_requests = MAX_ACTIVE_QUERIES;
    options.case_randomization = true;
}

fn name_server(address: &SocketAddr) -> NameServerConfig {
    let mut connections = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
    for connection in &mut connections {
        connection.port = address.port();
    }
    NameServerConfig::new(address.ip(), true, connections)
}
