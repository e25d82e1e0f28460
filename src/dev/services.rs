//! Private Postgres and Redis for the dev cluster and for tests.
//!
//! ```no_run
//! use blindpipe::dev::services::{Profile, Services};
//!
//! // Blocks for a second or two (the first time ever perhaps for ten: programs are fetched). `.dev` is the folder
//! // under which everything lives; programs found or fetched there are shared by all.
//! let mut services = Services::start(".dev".as_ref(), Profile::Test)?;
//! let database = services.postgres.url(); // role blindpipe: owns database blindpipe, may create databases
//! let admin = services.postgres.admin_url(); // the superuser, for faults a test wants to cause
//! let cache = services.redis.url();
//!
//! let mut own = services.another_redis("faults")?; // a second Redis, to be hurt
//! own.kill(); // SIGKILL
//! own.restart()?; // on the same port, empty
//! services.postgres.kill(); // as a crash
//! services.postgres.restart()?;
//! # Ok::<(), blindpipe::dev::Trouble>(())
//! ```
//!
//! Dropping a server stops it; a value in a `static` is never dropped, but the kernel ends the servers with the
//! process. Test runs at the same time each get their own instances: every start locks a folder of its own.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::Write,
    path::{Path, PathBuf},
};

use super::{
    place::{Place, make_folder},
    tools::Tools,
    trouble::{Context, DevError, Result},
};
pub use super::{
    postgres::{PostgresServer, Profile},
    process::send as send_signal,
    redis::RedisServer,
    redis_cluster::RedisCluster,
};

/// How many test runs may go on at once.
const TEST_SLOTS: usize = 16;

/// Running private services. Dropping them stops both.
#[derive(Debug)]
pub struct Services {
    /// The database server.
    pub postgres: PostgresServer,
    /// The Redis that all nodes share.
    pub redis: RedisServer,
    /// What they were started from.
    pub tools: Tools,
    /// Where `.dev` and the rest are.
    pub place: Place,
    /// The folder of these instances.
    folder: PathBuf,
    /// Declared last: the folder is free only when both servers have ended.
    _lock: Lock,
}

impl Services {
    /// Finds or fetches the programs and starts both under the folder `dev`.
    pub fn start(dev: &Path, profile: Profile) -> Result<Self> {
        Services::start_at(Place::at(dev)?, profile)
    }

    /// The same in a place that is prepared.
    pub(super) fn start_at(place: Place, profile: Profile) -> Result<Self> {
        let (lock, folder) = match profile {
            Profile::Durable => (Lock::take(&place.dev)?, place.store.clone()),
            Profile::Test | Profile::Followed => Lock::take_test_slot(&place)?,
        };
        let tools = Tools::obtain(&place)?;
        let redis = RedisServer::start(&tools.redis, &place.account, &folder.join("redis"))?;
        let postgres = PostgresServer::start(
            &tools.postgres,
            &place.account,
            &folder.join("postgres"),
            profile,
        )?;
        Ok(Services {
            postgres,
            redis,
            tools,
            place,
            folder,
            _lock: lock,
        })
    }

    /// Starts a further Redis; `name` must differ from that of any other that runs.
    pub fn another_redis(&self, name: &str) -> Result<RedisServer> {
        let folder = self.folder.join(format!("redis-{name}"));
        RedisServer::start_apart(&self.tools.redis, &self.place.account, &folder)
    }

    /// Starts a further Postgres, which others can follow; `name` must differ from that of any other that runs.
    pub fn another_postgres(&self, name: &str) -> Result<PostgresServer> {
        let folder = self.folder.join(format!("postgres-{name}"));
        PostgresServer::start(
            &self.tools.postgres,
            &self.place.account,
            &folder,
            Profile::Followed,
        )
    }

    /// Starts a Redis Cluster; `name` must differ from that of any other that runs.
    pub fn redis_cluster(&self, name: &str) -> Result<RedisCluster> {
        let folder = self.folder.join(format!("redis-cluster-{name}"));
        RedisCluster::start(&self.tools.redis, &self.place.account, &folder)
    }

    /// The folder of these instances; nobody else uses it meanwhile.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Stops both, Redis first.
    pub fn stop(&mut self) {
        self.redis.stop();
        self.postgres.stop();
    }
}

/// The exclusive use of a folder; the kernel gives it up when the process ends, however it ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// The lock of the cluster in the folder `dev`.
    pub fn take(dev: &Path) -> Result<Self> {
        let path = dev.join("lock");
        Lock::try_take(&path)?.ok_or_else(|| {
            let pid = fs::read_to_string(&path).unwrap_or_default();
            DevError::new(format!(
                "a dev cluster of this tree is running already (process {}): use it, or stop it with Ctrl-C or `kill {0}`",
                pid.trim()
            ))
        })
    }

    /// All locks in `dev` and two levels below it (tests, downloads, clusters in a folder of `dev`), so that nothing
    /// in it is in use.
    pub fn take_all(dev: &Path) -> Result<Vec<Self>> {
        let mut locks = vec![Lock::take(dev)?];
        let below = |folder: &Path| {
            fs::read_dir(folder)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
        };
        for folder in
            below(dev).flat_map(|folder| below(&folder).chain([folder.clone()]).collect::<Vec<_>>())
        {
            let path = folder.join("lock");
            if path.is_file() {
                let in_use = || {
                    DevError::new(format!(
                        "{} is in use (by tests?); wait for the end",
                        folder.display()
                    ))
                };
                locks.push(Lock::try_take(&path)?.ok_or_else(in_use)?);
            }
        }
        Ok(locks)
    }

    /// A folder for one test run.
    fn take_test_slot(place: &Place) -> Result<(Self, PathBuf)> {
        for slot in 1..=TEST_SLOTS {
            let slot = Path::new("test").join(slot.to_string());
            make_folder(&place.dev.join("test"), 0o711)?;
            make_folder(&place.dev.join(&slot), 0o711)?;
            if let Some(lock) = Lock::try_take(&place.dev.join(&slot).join("lock"))? {
                make_folder(&place.store.join("test"), 0o711)?;
                return Ok((lock, place.store.join(slot)));
            }
        }
        Err(DevError::new(format!(
            "{TEST_SLOTS} test runs are going on in this tree already"
        )))
    }

    fn try_take(path: &Path) -> Result<Option<Self>> {
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).open(path);
        let mut file = file.doing(|| format!("open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => {
                return Err(error).doing(|| format!("lock {}", path.display()));
            }
        }
        let written = file
            .set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        written.doing(|| format!("write {}", path.display()))?;
        Ok(Some(Lock { _file: file }))
    }
}
