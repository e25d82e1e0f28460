//! Pools of connections.

use std::{
    str::FromStr,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use deadpool_postgres::{
    ClientWrapper, Hook, HookError, Manager, ManagerConfig, Pool, QueueMode, RecyclingMethod,
    Runtime,
};
use parking_lot::Mutex;
use rustls_platform_verifier::ConfigVerifierExt;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::Semaphore;
use tokio_postgres::{Config, config::TargetSessionAttrs};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{connection::Conn, transaction::Tx};
use crate::{
    error::{Error, Result},
    planted::PlantedBug,
};

/// The planning mode of a pool's connections.
#[derive(Clone, Copy)]
pub enum Plans {
    /// Postgres decides freely.
    Free,
    /// Always by index and in order, planned once. It serves the send path, whose tables may have
    /// been empty at planning time. Its waits for locks are short, because other sends wait behind
    /// each statement, and so is the life of its idle transactions: their locks hold up other
    /// nodes.
    Pinned,
    /// Pinned, and a commit does not wait for the disk. It serves state that may be lost with a
    /// crash of Postgres.
    PinnedDeferred,
}

/// The planner's settings of [`Plans::Pinned`].
const PINNED_PLANS: [(&str, &str); 7] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_material", "off"),
    ("enable_hashagg", "off"),
];

/// Gives the rest of a transaction the planner's settings of [`Plans::Pinned`]. It serves a send that
/// is a part of a larger change: the order of its locks depends on them.
pub async fn pin_plans(tx: &Tx) -> Result<()> {
    let settings = PINNED_PLANS.map(|(name, value)| format!("set local {name} = {value};"));
    tx.batch_execute(&settings.concat()).await
}

impl Plans {
    /// The value of the setting `blindpipe.plans`, by which a connection is known to have this
    /// pool's settings.
    fn name(self) -> &'static str {
        match self {
            Plans::Free => "free",
            Plans::Pinned => "pinned",
            Plans::PinnedDeferred => "pinned_deferred",
        }
    }

    /// The settings of the pool's connections.
    fn settings(self, wait: Duration) -> Vec<(&'static str, String)> {
        let [lock, idle] = self.timeouts(wait);
        let timeouts = [
            ("lock_timeout", lock),
            ("statement_timeout", statement_timeout(wait)),
            ("idle_in_transaction_session_timeout", idle),
        ];
        let timeouts = timeouts.map(|(name, timeout)| (name, timeout.as_millis().to_string()));
        let mut fixed = vec![("jit", "off")];
        if !matches!(self, Plans::Free) {
            fixed.extend(PINNED_PLANS);
        }
        let is_deferred = match self {
            Plans::Free => false,
            Plans::Pinned => PlantedBug::AsynchronousCommit.is_planted(),
            Plans::PinnedDeferred => true,
        };
        if is_deferred {
            fixed.push(("synchronous_commit", "off"));
        }
        let fixed = fixed
            .into_iter()
            .map(|(name, value)| (name, value.to_owned()));
        timeouts.into_iter().chain(fixed).collect()
    }

    /// The longest wait for a lock, and the longest life of an idle transaction.
    fn timeouts(self, wait: Duration) -> [Duration; 2] {
        // Every lock of a frozen node ends with its idle transaction. A process that waits a second
        // for a core is not frozen, but sends of other nodes cannot wait that long for a hot lock.
        match self {
            Plans::Free | Plans::PinnedDeferred => [wait, 2 * wait],
            Plans::Pinned => [wait / 10, wait / 4],
        }
    }
}

fn statement_timeout(wait: Duration) -> Duration {
    2 * wait
}

/// A pool; clones share it.
#[derive(Clone)]
pub struct Db {
    pool: Pool,
    tls: MakeRustlsConnect,
    deadline: Duration,
    plans: Plans,
    pooler: Arc<Pooler>,
    /// The places of commits that nobody waits for any more: as many as the pool's connections.
    abandoned: Arc<Semaphore>,
}

/// Longest use of a pool behind a pooler without a new look at the server. A primary that becomes a
/// standby cuts the pooler's connections, and not those of this pool.
const MAX_CHECK_AGE: Duration = Duration::from_secs(1);

/// A pooler between this pool and Postgres, if there is one. It drops the options of connections,
/// so each transaction sets them for itself.
struct Pooler {
    /// Whether a connection came without its options.
    found: AtomicBool,
    /// Begins a transaction with the settings of the pool.
    begin: Arc<str>,
    /// The last moment at which the server behind it was the primary.
    primary_seen_at: Mutex<Instant>,
}

impl Pooler {
    fn new(settings: &[(&'static str, String)]) -> Self {
        let begin = settings
            .iter()
            .fold("begin".to_owned(), |sql, (name, value)| {
                sql + &format!("; set local {name} = {value}")
            });
        Pooler {
            found: AtomicBool::new(false),
            begin: begin.into(),
            primary_seen_at: Mutex::new(Instant::now()),
        }
    }

    /// Whether the server behind it must be looked at again.
    fn is_check_due(&self) -> bool {
        self.found.load(Ordering::Relaxed) && self.primary_seen_at.lock().elapsed() > MAX_CHECK_AGE
    }

    /// The begin of a transaction with settings; none where the connection has them.
    fn begin(&self) -> Option<&Arc<str>> {
        self.found.load(Ordering::Relaxed).then_some(&self.begin)
    }
}

impl Db {
    /// A pool of up to `size` connections, which connect when first used. `wait` bounds the wait
    /// for a connection and for a lock. A statement may take twice `wait`, and its answer three
    /// times `wait`.
    pub fn new(
        url: &SecretString,
        name: &str,
        size: usize,
        plans: Plans,
        wait: Duration,
    ) -> Result<Self, tokio_postgres::Error> {
        let mut config = read_url(url.expose_secret())?;
        let settings = plans.settings(wait);
        let pooler = Arc::new(Pooler::new(&settings));
        let options = settings
            .iter()
            .map(|(name, value)| format!("-c {name}={value} "));
        let options: String = options.collect();
        config
            .application_name(name)
            .connect_timeout(wait)
            .keepalives_idle(Duration::from_secs(15))
            .tcp_user_timeout(Duration::from_secs(10))
            .options(format!("{options}-c blindpipe.plans={}", plans.name()));
        let deadline = 3 * wait;
        let tls = tls();
        let manager = Manager::from_config(
            config,
            tls.clone(),
            ManagerConfig {
                recycling_method: RecyclingMethod::Fast,
            },
        );
        let pool = Pool::builder(manager)
            .max_size(size)
            // The connection of the last call has its statements planned and its pages at hand.
            .queue_mode(QueueMode::Lifo)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(wait))
            // On a busy machine Postgres takes longer to accept a connection. Giving up would begin
            // anew, for ever.
            .create_timeout(Some(deadline))
            .recycle_timeout(Some(wait))
            .post_create(Hook::async_fn({
                let pooler = pooler.clone();
                move |client, _| {
                    let pooler = pooler.clone();
                    Box::pin(async move {
                        let has_options = check_server(client, plans, wait).await?;
                        pooler.found.fetch_or(!has_options, Ordering::Relaxed);
                        Ok(())
                    })
                }
            }))
            .build()
            .unwrap_or_else(|never| unreachable!("a runtime is set: {never}"));
        Ok(Db {
            pool,
            tls,
            deadline,
            plans,
            pooler,
            abandoned: Arc::new(Semaphore::new(size)),
        })
    }

    /// A connection for statements that stand alone and only read. They are cancelled when nobody
    /// waits for them any more. Behind a pooler those with pinned plans are transactions.
    pub async fn read(&self) -> Result<Conn> {
        let mut conn = self.connection().await?;
        conn.may_write = false;
        conn.begin = self.begin_of_one();
        Ok(conn)
    }

    /// A connection for statements that stand alone and write: each is a transaction, and its
    /// answer comes after its commit. None is ever cancelled.
    ///
    /// Errors: 503 at once while so many commits hang that Postgres must not get more of them.
    pub async fn write(&self) -> Result<Conn> {
        self.must_take_commits()?;
        let mut conn = self.connection().await?;
        conn.commits = AtomicBool::new(true);
        conn.begin = self.begin_of_one();
        Ok(conn)
    }

    fn must_take_commits(&self) -> Result<()> {
        match self.abandoned.available_permits() {
            0 => Err(Error::unavailable("commits hang, so no more are begun")),
            _ => Ok(()),
        }
    }

    /// The begin of the transaction of a single statement, where the pool's plans need one.
    fn begin_of_one(&self) -> Option<Arc<str>> {
        match self.plans {
            Plans::Free => None,
            _ => self.pooler.begin().cloned(),
        }
    }

    async fn connection(&self) -> Result<Conn> {
        let client = self.pool.get().await?;
        let conn = Conn {
            client: Some(client),
            begin: None,
            tls: self.tls.clone(),
            deadline: self.deadline,
            hung: AtomicBool::new(false),
            unanswered: AtomicUsize::new(0),
            commits: AtomicBool::new(false),
            may_write: true,
            abandoned: self.abandoned.clone(),
        };
        if self.pooler.is_check_due() {
            // Boxed, because every future that queries would carry this one along.
            return Box::pin(self.prove_primary(conn)).await;
        }
        Ok(conn)
    }

    /// The connection, if it still leads to the primary. Another one leaves the pool.
    async fn prove_primary(&self, conn: Conn) -> Result<Conn> {
        let since = Instant::now();
        let row = conn.query_one(CHECK_PRIMARY, &[]).await;
        if matches!(&row, Ok(row) if !row.get::<_, bool>("in_recovery")) {
            *self.pooler.primary_seen_at.lock() = since;
            return Ok(conn);
        }
        conn.discard();
        Err(row.err().unwrap_or_else(|| Error::unavailable(STANDBY)))
    }

    /// Begins a transaction; `name` is for the metrics.
    pub async fn begin(&self, name: &'static str) -> Result<Tx> {
        self.must_take_commits()?;
        let started = Instant::now();
        // `Tx` exists before BEGIN is sent: a caller that gives up in between must not return an
        // open transaction to the pool.
        let tx = Tx {
            conn: Some(self.connection().await?),
            name,
            started,
        };
        let begin = self.pooler.begin().map_or("begin", |begin| begin);
        tx.batch_execute(begin).await?;
        Ok(tx)
    }

    /// Runs `work` in one transaction and commits; an error rolls it back. For work that publishes
    /// nothing.
    pub async fn run<T>(
        &self,
        name: &'static str,
        work: impl AsyncFnOnce(&Tx) -> Result<T>,
    ) -> Result<T> {
        let tx = self.begin(name).await?;
        let outcome = work(&tx).await?;
        tx.commit().await?;
        Ok(outcome)
    }

    /// The connections in use, the most that there may be, and the callers that wait for one.
    pub fn usage(&self) -> (usize, usize, usize) {
        let status = self.pool.status();
        let used = status.size.saturating_sub(status.available);
        (used, status.max_size, status.waiting)
    }
}

/// Reads a URL. Of several hosts only the one that takes writes is of use, before a failover and
/// after it.
fn read_url(url: &str) -> Result<Config, tokio_postgres::Error> {
    let mut config = Config::from_str(url)?;
    if config.get_hosts().len() > 1 {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    Ok(config)
}

/// A connection outside of any pool, without a deadline for statements.
pub async fn connect(url: &str) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let config = read_url(url)?;
    let (client, link) = config.connect(tls()).await?;
    #[expect(clippy::disallowed_methods, reason = "ends with the client")]
    tokio::spawn(link);
    Ok(client)
}

/// The refusal of a server that would answer from the past.
const STANDBY: &str = "this Postgres is a standby";
const CHECK_PRIMARY: &str = "-- db.check_primary
    select pg_is_in_recovery() as in_recovery";

/// Refuses a server that would answer from the past or without any timeout: a demoted primary
/// behind the same name, or a pooler that drops the options of a connection, unless the role has a
/// timeout. Returns whether the connection has its options.
async fn check_server(
    client: &ClientWrapper,
    plans: Plans,
    wait: Duration,
) -> Result<bool, HookError> {
    let row = client
        .query_one(
            "-- db.check_server
            select pg_is_in_recovery() as in_recovery, current_setting('transaction_isolation') as isolation,
                   (1000 * extract(epoch from current_setting('statement_timeout')::interval))::int8 as statement_timeout,
                   current_setting('blindpipe.plans', true) as plans",
            &[],
        )
        .await
        .map_err(HookError::Backend)?;
    let timeout: i64 = row.get("statement_timeout");
    if row.get("in_recovery") {
        return Err(HookError::message(STANDBY));
    }
    if row.get::<_, &str>("isolation") != "read committed" {
        return Err(HookError::message(
            "the default isolation of this database or role is not `read committed`",
        ));
    }
    if u128::from(timeout.unsigned_abs()) != statement_timeout(wait).as_millis() {
        return Err(HookError::message(
            "the connection's options were dropped on the way, for example by a pooler, and its \
             role has another statement_timeout than twice DATABASE_TIMEOUT_MS",
        ));
    }
    Ok(row.get::<_, Option<&str>>("plans") == Some(plans.name()))
}

/// TLS to Postgres where the URL's `sslmode` asks for it, checked against the system's roots
/// (`SSL_CERT_FILE`), which are read once.
fn tls() -> MakeRustlsConnect {
    static TLS: LazyLock<MakeRustlsConnect> = LazyLock::new(read_roots);
    TLS.clone()
}

fn read_roots() -> MakeRustlsConnect {
    let config = rustls::ClientConfig::with_platform_verifier().unwrap_or_else(|error| {
        // Without roots no certificate can be trusted, but connections without TLS still work.
        tracing::warn!(
            operation = "db.start",
            cause = %error,
            remedy = "only connections without TLS work",
            "no certificate roots on this system"
        );
        rustls::ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth()
    });
    MakeRustlsConnect::new(config)
}
