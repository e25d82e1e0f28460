//! The proxies of a harmed cluster: one before each node for its clients, and two behind it, for its
//! Postgres and its Redis. They run on a thread of their own, so that a busy load generator delays
//! nothing.

use std::{collections::HashMap, net::SocketAddr};

use faultproxy::{Mode, Proxy};
use tokio::runtime::{Builder, Runtime};

use crate::{
    Result,
    cluster::Cluster,
    crowd::environment,
    plain::{Detour, free_port},
    redis::place,
};

/// What a proxy stands before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// The node, for its clients.
    Clients,
    Postgres,
    Redis,
}

/// The proxies of a node.
struct Proxies {
    clients: Proxy,
    postgres: Proxy,
    redis: Proxy,
}

/// The proxies of all nodes.
pub(super) struct Links {
    proxies: Vec<Proxies>,
    /// None only while this is dropped.
    runtime: Option<Runtime>,
    /// The ways that lead through them, by node.
    pub(super) detours: Vec<Detour>,
}

impl Links {
    /// Starts the proxies of nodes that are to be started with the settings of the cluster's.
    pub(super) async fn start(cluster: &Cluster, nodes: usize, seed: u64) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let mut links = Links {
            proxies: Vec::new(),
            runtime: Some(runtime),
            detours: Vec::new(),
        };
        let environment = environment(cluster.node(0).pid)?;
        for n in 0..nodes {
            let node = format!("127.0.0.1:{}", free_port()?);
            let seed = seed.wrapping_add(n as u64);
            let (postgres, to_postgres) = links.before(&environment, "DATABASE_URL", seed).await?;
            let (redis, to_redis) = links.before(&environment, "REDIS_URL", seed).await?;
            let clients = links.proxy(&node, seed).await?;
            let log = cluster.folder.join(format!("plain-{}.log", n + 1));
            // A log of an earlier run would mislead.
            std::fs::remove_file(&log).ok();
            links.detours.push(Detour {
                listen: node,
                address: clients.address().to_string(),
                settings: vec![to_postgres, to_redis],
                log: Some(log),
            });
            links.proxies.push(Proxies {
                clients,
                postgres,
                redis,
            });
        }
        Ok(links)
    }

    /// A proxy before the server of a setting, and the setting that leads there.
    async fn before(
        &self,
        environment: &HashMap<String, String>,
        name: &str,
        seed: u64,
    ) -> Result<(Proxy, (String, String))> {
        let url = environment.get(name).ok_or("a node without a store")?;
        let (server, with) = place(url);
        let proxy = self.proxy(server, seed).await?;
        let url = with(&proxy.address().to_string());
        Ok((proxy, (name.to_owned(), url)))
    }

    async fn proxy(&self, server: &str, seed: u64) -> Result<Proxy> {
        let runtime = self.runtime.as_ref().ok_or("no runtime")?;
        let listen = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let started = runtime.spawn(Proxy::start(listen, server.parse()?, seed));
        Ok(started.await??)
    }

    /// Changes the mode of a proxy.
    pub(super) fn set(&self, node: usize, link: Link, mode: Mode) {
        let proxies = &self.proxies[node];
        match link {
            Link::Clients => proxies.clients.set(mode),
            Link::Postgres => proxies.postgres.set(mode),
            Link::Redis => proxies.redis.set(mode),
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.proxies.clear();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
