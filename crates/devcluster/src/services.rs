//! Private Postgres and Redis for the dev cluster and for tests.
//!
//! ```no_run
//! use devcluster::services::{Durability, Services};
//!
//! // Blocks for a second or two; the first start ever may fetch programs.
//! // Everything lives under the folder `.dev`.
//! let mut services = Services::start(".dev".as_ref(), Durability::Test)?;
//! // Role blindpipe owns database blindpipe and may create databases.
//! let database = services.postgres.url();
//! let nodes = services.postgres.serving_url(); // the role of nodes, with the rights granted to it
//! let admin = services.postgres.admin_url(); // the superuser, for faults that a test causes
//! let cache = services.redis.url();
//!
//! let mut own = services.another_redis("faults")?; // a second Redis, for a test to break
//! own.kill(); // SIGKILL
//! own.restart()?; // on its old port, empty
//! services.postgres.kill(); // as a crash
//! services.postgres.restart()?;
//! # Ok::<(), devcluster::DevError>(())
//! ```
//!
//! Dropping a server stops it. Nothing drops a `static`, but the kernel ends the servers with the
//! process. Every start locks a folder of its own, so parallel test runs have separate instances.

use std::path::{Path, PathBuf};

use crate::{
    directories::Directories,
    error::{DevError, Result},
    files::make_folder,
    lock::Lock,
    pgbouncer::PgBouncer,
    toolset::Tools,
};
pub use crate::{
    postgres::{Durability, ERASING_ROLE, PostgresServer, SERVING_ROLE},
    process::send_signal,
    redis::{RedisCluster, RedisSentinels, RedisServer},
};

/// Most parallel test runs in a tree.
const TEST_SLOTS: usize = 16;

/// Running private services. Dropping them stops both.
#[derive(Debug)]
pub struct Services {
    /// The database server.
    pub postgres: PostgresServer,
    /// The Redis that all nodes share.
    pub redis: RedisServer,
    /// The programs that the servers run.
    pub tools: Tools,
    /// The folders of the cluster.
    pub directories: Directories,
    /// The folder of these instances.
    folder: PathBuf,
    /// The lock is the last field, so it ends after both servers.
    _lock: Lock,
}

impl Services {
    /// Finds or fetches the programs and starts both under the folder `root`.
    pub fn start(root: &Path, durability: Durability) -> Result<Self> {
        Services::start_in(Directories::prepare(root)?, durability)
    }

    /// Starts both in prepared directories.
    pub fn start_in(directories: Directories, durability: Durability) -> Result<Self> {
        let (lock, folder) = match durability {
            Durability::Durable => (Lock::take(&directories.root)?, directories.data.clone()),
            _ => take_test_folder(&directories)?,
        };
        let tools = Tools::obtain(&directories)?;
        let redis = RedisServer::start(&tools.redis, &directories.account, &folder.join("redis"))?;
        let postgres = PostgresServer::start(
            &tools.postgres,
            &directories.account,
            &folder.join("postgres"),
            durability,
        )?;
        Ok(Services {
            postgres,
            redis,
            tools,
            directories,
            folder,
            _lock: lock,
        })
    }

    /// Starts another Redis. Every running server needs its own `name`.
    pub fn another_redis(&self, name: &str) -> Result<RedisServer> {
        let folder = self.folder.join(format!("redis-{name}"));
        RedisServer::start_apart(&self.tools.redis, &self.directories.account, &folder)
    }

    /// Starts another Postgres. Every running server needs its own `name`.
    pub fn another_postgres(&self, name: &str, durability: Durability) -> Result<PostgresServer> {
        let folder = self.folder.join(format!("postgres-{name}"));
        PostgresServer::start(
            &self.tools.postgres,
            &self.directories.account,
            &folder,
            durability,
        )
    }

    /// Starts a PgBouncer before a Postgres. Every running pooler needs its own `name`.
    pub fn pgbouncer(&self, name: &str, postgres: &PostgresServer) -> Result<PgBouncer> {
        let folder = self.folder.join(format!("pgbouncer-{name}"));
        PgBouncer::start(&self.directories, &folder, postgres)
    }

    /// Starts a Redis Cluster. Every running server needs its own `name`.
    pub fn redis_cluster(&self, name: &str) -> Result<RedisCluster> {
        let folder = self.folder.join(format!("redis-cluster-{name}"));
        RedisCluster::start(&self.tools.redis, &self.directories.account, &folder)
    }

    /// Starts a Redis with a replica and three sentinels. Every running server needs its own `name`.
    pub fn redis_sentinels(&self, name: &str) -> Result<RedisSentinels> {
        let folder = self.folder.join(format!("redis-sentinels-{name}"));
        RedisSentinels::start(&self.tools.redis, &self.directories.account, &folder)
    }

    /// The locked folder of these instances.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Stops both, Redis first.
    pub fn stop(&mut self) {
        self.redis.stop();
        self.postgres.stop();
    }
}

/// The first free test folder, locked.
fn take_test_folder(directories: &Directories) -> Result<(Lock, PathBuf)> {
    for slot in 1..=TEST_SLOTS {
        let slot = Path::new("test").join(slot.to_string());
        make_folder(&directories.root.join("test"), 0o711)?;
        make_folder(&directories.root.join(&slot), 0o711)?;
        if let Some(lock) = Lock::try_take(&directories.root.join(&slot).join("lock"))? {
            make_folder(&directories.data.join("test"), 0o711)?;
            return Ok((lock, directories.data.join(slot)));
        }
    }
    Err(DevError::new(format!(
        "{TEST_SLOTS} test runs are going on in this tree already"
    )))
}
