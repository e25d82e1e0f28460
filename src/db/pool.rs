//! Pools of connections.

use std::{
    str::FromStr,
    sync::atomic::{AtomicBool, AtomicUsize},
    time::{Duration, Instant},
};

use deadpool_postgres::{
    ClientWrapper, Hook, HookError, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime,
};
use rustls_platform_verifier::ConfigVerifierExt;
use secrecy::{ExposeSecret, SecretString};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{connection::Conn, transaction::Tx};
use crate::error::Result;

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

/// A pool; clones share it.
#[derive(Clone)]
pub struct Db {
    pool: Pool,
    tls: MakeRustlsConnect,
    deadline: Duration,
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
                Box::pin(check_server(client, wait))
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

    /// The connections in use, the most that there may be, and the callers that wait for one.
    pub fn usage(&self) -> (usize, usize, usize) {
        let status = self.pool.status();
        let used = status.size.saturating_sub(status.available);
        (used, status.max_size, status.waiting)
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

/// Refuses a server that would answer from the past or wait without our bounds: a demoted primary
/// behind the same name, or a pooler that drops the options of a connection. The role may have the
/// time-outs instead. It then has those of [`Plans::Free`] for every pool.
async fn check_server(client: &ClientWrapper, wait: Duration) -> Result<(), HookError> {
    let row = client
        .query_one(
            "-- db.check_server
            select pg_is_in_recovery() as in_recovery, current_setting('transaction_isolation') as isolation,
                   array(select setting::int8 from pg_settings
                         where name in ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout')
                         order by name desc) as timeouts",
            &[],
        )
        .await
        .map_err(HookError::Backend)?;
    if row.get("in_recovery") {
        return Err(HookError::message("this Postgres is a standby"));
    }
    if row.get::<_, &str>("isolation") != "read committed" {
        return Err(HookError::message(
            "the default isolation of this database or role is not `read committed`",
        ));
    }
    let timeouts: Vec<i64> = row.get("timeouts");
    let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let [lock, idle] = Plans::Free.timeouts(wait).map(ms);
    // Zero is no bound at all.
    let is_bounded = match timeouts[..] {
        [statement, lock_now, idle_now] => {
            statement == ms(2 * wait)
                && (1..=lock).contains(&lock_now)
                && (1..=idle).contains(&idle_now)
        }
        _ => false,
    };
    if !is_bounded {
        return Err(HookError::message(
            "the connection's time-outs were dropped on the way, for example by a pooler",
        ));
    }
    Ok(())
}

/// TLS to Postgres where the URL's `sslmode` asks for it, checked against the system's roots
/// (`SSL_CERT_FILE`).
pub(super) fn tls() -> MakeRustlsConnect {
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
