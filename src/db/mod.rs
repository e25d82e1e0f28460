//! Postgres, the truth.
//!
//! Every query has a deadline (`statement_timeout`), and so has every wait for a connection.
//! Statements that senders wait for have a pool of their own, so slow reads cannot starve them.

pub mod migrate;

use std::{
    ops::Deref,
    str::FromStr,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use deadpool_postgres::{
    Client, ClientWrapper, Hook, HookError, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime,
};
use rustls_platform_verifier::ConfigVerifierExt;
use secrecy::{ExposeSecret, SecretString};
use tokio_postgres::{Row, Statement, error::SqlState, types::ToSql};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{
    error::{Error, Result},
    metrics,
};

/// A pool; clones share it.
#[derive(Clone)]
pub struct Db {
    pool: Pool,
    tls: MakeRustlsConnect,
    deadline: Duration,
}

/// A statement: a text, or one that is prepared already.
pub enum Sql<'a> {
    /// Each connection prepares the text when it first runs it.
    Text(&'a str),
    /// A prepared statement, for callers that must not wait between two statements.
    Prepared(&'a Statement),
}

impl<'a> From<&'a str> for Sql<'a> {
    fn from(text: &'a str) -> Self {
        Sql::Text(text)
    }
}

impl<'a> From<&'a Statement> for Sql<'a> {
    fn from(stmt: &'a Statement) -> Self {
        Sql::Prepared(stmt)
    }
}

/// A connection whose every statement has a deadline on this side too. Postgres's own does not help
/// when its process or the network hangs, or a commit waits for a lost standby. A connection that
/// hung is not used again. A connection whose caller has given up is used again once it is idle.
pub struct Conn {
    client: Option<Client>,
    tls: MakeRustlsConnect,
    deadline: Duration,
    hung: AtomicBool,
    /// The statements without an answer.
    unanswered: AtomicUsize,
    /// Whether a commit is among them. To cancel a commit that waits for a standby would show
    /// changes that a failover may lose.
    commits: AtomicBool,
}

impl Conn {
    async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T> {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        match tokio::time::timeout(self.deadline, work).await {
            Ok(outcome) => {
                self.unanswered.fetch_sub(1, Ordering::Relaxed);
                Ok(outcome?)
            }
            Err(late) => {
                self.hung.store(true, Ordering::Relaxed);
                Err(Error::unavailable(late))
            }
        }
    }

    fn client(&self) -> &Client {
        self.client
            .as_ref()
            .unwrap_or_else(|| unreachable!("taken on drop only"))
    }

    /// Prepares a statement once per connection.
    pub async fn prepare_cached(&self, sql: &str) -> Result<Statement> {
        self.within(self.client().prepare_cached(sql)).await
    }

    async fn prepare(&self, sql: Sql<'_>) -> Result<Statement> {
        match sql {
            // Boxed, because every future that queries would carry this one along.
            Sql::Text(text) => Box::pin(self.prepare_cached(text)).await,
            Sql::Prepared(stmt) => Ok(stmt.clone()),
        }
    }

    /// Returns all rows.
    pub async fn query<'a>(
        &self,
        sql: impl Into<Sql<'a>>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        let stmt = self.prepare(sql.into()).await?;
        self.within(self.client().query(&stmt, params)).await
    }

    /// Returns the only row; an error if there is none.
    pub async fn query_one<'a>(
        &self,
        sql: impl Into<Sql<'a>>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Row> {
        let stmt = self.prepare(sql.into()).await?;
        self.within(self.client().query_one(&stmt, params)).await
    }

    /// Returns the row, if there is one.
    pub async fn query_opt<'a>(
        &self,
        sql: impl Into<Sql<'a>>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>> {
        let stmt = self.prepare(sql.into()).await?;
        self.within(self.client().query_opt(&stmt, params)).await
    }

    /// Returns the number of affected rows.
    pub async fn execute<'a>(
        &self,
        sql: impl Into<Sql<'a>>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64> {
        let stmt = self.prepare(sql.into()).await?;
        self.within(self.client().execute(&stmt, params)).await
    }

    /// Runs statements without parameters.
    pub async fn batch_execute(&self, sql: &str) -> Result<()> {
        self.within(self.client().batch_execute(sql)).await
    }

    /// Cancels the statement that nobody waits for any more, unless it is a commit.
    async fn stop(&self) {
        let waits = self.unanswered.swap(0, Ordering::Relaxed) > 0;
        if waits && !self.commits.load(Ordering::Relaxed) {
            let token = self.client().cancel_token();
            let cancelled = token.cancel_query(self.tls.clone());
            tokio::time::timeout(self.deadline, cancelled).await.ok();
        }
    }

    /// Takes the connection out of the pool for good.
    fn discard(mut self) {
        if let Some(client) = self.client.take() {
            drop(Client::take(client));
        }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else {
            return;
        };
        let is_hung = self.hung.load(Ordering::Relaxed);
        if !is_hung && self.unanswered.load(Ordering::Relaxed) == 0 {
            return;
        }
        let cancel = !self.commits.load(Ordering::Relaxed);
        let (token, tls) = (client.cancel_token(), self.tls.clone());
        let deadline = self.deadline;
        // The pool gets an idle connection or none. Otherwise the next caller would wait behind a
        // statement that nobody wants any more.
        later(async move {
            let mut client = Some(client);
            if is_hung {
                drop(client.take().map(Client::take));
            }
            let settled = async {
                if cancel {
                    token.cancel_query(tls).await.ok();
                }
                match &client {
                    Some(client) => is_idle(client).await,
                    None => false,
                }
            };
            if !tokio::time::timeout(deadline, settled)
                .await
                .unwrap_or(false)
            {
                drop(client.map(Client::take));
            }
        });
    }
}

/// Waits until a connection has answered everything. False if it is broken.
async fn is_idle(client: &Client) -> bool {
    match client.batch_execute("").await {
        Ok(()) => true,
        // The cancellation has met this statement instead.
        Err(error) => error.code() == Some(&SqlState::QUERY_CANCELED),
    }
}

/// Runs bounded work that a drop leaves behind. Without a runtime the connection ends anyway.
fn later(work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(work);
    }
}

/// An open transaction. Dropped before [`commit`](Tx::commit), it rolls back.
#[must_use = "a transaction that is not committed is rolled back"]
pub struct Tx {
    conn: Option<Conn>,
    name: &'static str,
    started: Instant,
}

impl Tx {
    /// Makes the transaction durable. Errors: 503 if the answer was lost, since the outcome is
    /// unknown then and the caller may try again.
    pub async fn commit(self) -> Result<()> {
        self.commits.store(true, Ordering::Relaxed);
        let outcome = self.batch_execute("commit").await;
        self.end(outcome)
    }

    /// Runs a last query and commits, in one round trip. A failed query commits nothing.
    pub async fn query_and_commit(
        self,
        stmt: &Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        self.commits.store(true, Ordering::Relaxed);
        // The wire keeps this order, and a failed query turns the commit into a rollback.
        let (rows, outcome) =
            futures_util::join!(self.query(stmt, params), self.batch_execute("commit"));
        let ended = self.end(outcome);
        rows.and_then(|rows| ended.map(|()| rows))
    }

    fn end(mut self, outcome: Result<()>) -> Result<()> {
        if let (Some(conn), Err(_)) = (self.conn.take(), &outcome) {
            conn.discard();
        }
        metrics::transaction(self.name, self.started.elapsed(), outcome.is_ok());
        outcome.map_err(Error::into_unavailable)
    }
}

impl Deref for Tx {
    type Target = Conn;

    fn deref(&self) -> &Conn {
        self.conn
            .as_ref()
            .unwrap_or_else(|| unreachable!("taken at its end only"))
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        let Some(conn) = self.conn.take() else { return };
        metrics::transaction(self.name, self.started.elapsed(), false);
        // A hung connection would not roll back either.
        if conn.hung.load(Ordering::Relaxed) {
            return conn.discard();
        }
        later(async move {
            conn.stop().await;
            if conn.batch_execute("rollback").await.is_err() {
                conn.discard();
            }
        });
    }
}

/// The planning mode of a pool's connections.
#[derive(Clone, Copy)]
pub enum Plans {
    /// Postgres decides freely.
    Free,
    /// Always by index and in order, planned once. It serves the send path, whose tables may have
    /// been empty at planning time. Its waits for locks are short, because other sends wait behind
    /// each statement, and so is the life of its idle transactions: their locks hold up other nodes.
    Pinned,
    /// Pinned, and a commit does not wait for the disk. It serves state that may be lost with a
    /// crash of Postgres.
    PinnedDeferred,
}

impl Plans {
    /// The planner's settings.
    fn options(self) -> &'static str {
        match self {
            Plans::Free => "",
            Plans::Pinned => {
                " -c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off \
                 -c enable_mergejoin=off -c enable_material=off -c enable_hashagg=off"
            }
            Plans::PinnedDeferred => {
                " -c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off \
                 -c enable_mergejoin=off -c enable_material=off -c enable_hashagg=off -c synchronous_commit=off"
            }
        }
    }

    /// The longest wait for a lock, and the longest life of an idle transaction.
    fn timeouts(self, wait: Duration) -> [Duration; 2] {
        match self {
            Plans::Free | Plans::PinnedDeferred => [wait, 5 * wait],
            Plans::Pinned => [wait / 10, wait / 4],
        }
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
        let mut config = tokio_postgres::Config::from_str(url.expose_secret())?;
        let [lock, idle] = plans.timeouts(wait);
        let statement = 2 * wait;
        config
            .application_name(name)
            .connect_timeout(wait)
            .keepalives_idle(Duration::from_secs(15))
            .tcp_user_timeout(Duration::from_secs(10))
            .options(format!(
                "-c lock_timeout={} -c statement_timeout={} -c idle_in_transaction_session_timeout={} -c jit=off{}",
                lock.as_millis(),
                statement.as_millis(),
                idle.as_millis(),
                plans.options(),
            ));
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
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(wait))
            // On a busy machine Postgres takes longer to accept a connection. Giving up would begin
            // anew, for ever.
            .create_timeout(Some(deadline))
            .recycle_timeout(Some(wait))
            .post_create(Hook::async_fn(move |client, _| {
                Box::pin(check_server(client, statement))
            }))
            .build()
            .unwrap_or_else(|never| unreachable!("a runtime is set: {never}"));
        Ok(Db {
            pool,
            tls,
            deadline,
        })
    }

    /// A connection for statements that stand alone.
    pub async fn read(&self) -> Result<Conn> {
        Ok(Conn {
            client: Some(self.pool.get().await?),
            tls: self.tls.clone(),
            deadline: self.deadline,
            hung: AtomicBool::new(false),
            unanswered: AtomicUsize::new(0),
            commits: AtomicBool::new(false),
        })
    }

    /// Begins a transaction; `name` is for the metrics.
    pub async fn begin(&self, name: &'static str) -> Result<Tx> {
        let started = Instant::now();
        // `Tx` exists before BEGIN is sent: a caller that gives up in between must not return an
        // open transaction to the pool.
        let tx = Tx {
            conn: Some(self.read().await?),
            name,
            started,
        };
        tx.batch_execute("begin").await?;
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

    /// The connections in use, and the most that there may be.
    pub fn usage(&self) -> (usize, usize) {
        let status = self.pool.status();
        (status.size - status.available, status.max_size)
    }
}

/// A connection outside of any pool, without a deadline for statements.
pub async fn connect(url: &str) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let config = tokio_postgres::Config::from_str(url)?;
    let (client, link) = config.connect(tls()).await?;
    #[expect(clippy::disallowed_methods, reason = "ends with the client")]
    tokio::spawn(link);
    Ok(client)
}

/// Refuses a server that would answer from the past or without our timeouts: a demoted primary
/// behind the same name, or a pooler that drops the options of a connection.
async fn check_server(client: &ClientWrapper, statement: Duration) -> Result<(), HookError> {
    let row = client
        .query_one(
            "-- db.check_server
            select pg_is_in_recovery() as in_recovery, current_setting('transaction_isolation') as isolation,
                   (select setting::int8 from pg_settings where name = 'statement_timeout') as statement_timeout",
            &[],
        )
        .await
        .map_err(HookError::Backend)?;
    let timeout: i64 = row.get("statement_timeout");
    if row.get("in_recovery") {
        return Err(HookError::message("this Postgres is a standby"));
    }
    if row.get::<_, &str>("isolation") != "read committed" {
        return Err(HookError::message(
            "the default isolation of this database or role is not `read committed`",
        ));
    }
    if u128::from(timeout.unsigned_abs()) != statement.as_millis() {
        return Err(HookError::message(
            "the connection's options were dropped on the way, for example by a pooler",
        ));
    }
    Ok(())
}

/// TLS to Postgres where the URL's `sslmode` asks for it, checked against the system's roots
/// (`SSL_CERT_FILE`).
fn tls() -> MakeRustlsConnect {
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
