//! Postgres: the truth.
//!
//! Every query has a deadline (`statement_timeout`), every wait for a connection too. Statements that senders wait for
//! have a pool of their own, so that slow reads cannot starve them.

pub mod migrate;

use std::{
    ops::Deref,
    str::FromStr,
    time::{Duration, Instant},
};

use deadpool_postgres::{Client, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use rustls_platform_verifier::ConfigVerifierExt;
use secrecy::{ExposeSecret, SecretString};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{
    error::{Error, Result},
    metrics as series,
};

/// Longest wait for a free connection.
const ACQUIRE: Duration = Duration::from_secs(1);

/// A pool; clones share it.
#[derive(Clone)]
pub struct Db {
    pool: Pool,
}

/// A transaction under way. Dropped before [`commit`](Tx::commit), it is rolled back.
#[must_use = "a transaction that is not committed is rolled back"]
pub struct Tx {
    client: Option<Client>,
    name: &'static str,
    started: Instant,
}

impl Tx {
    /// Makes it durable. Whether a commit whose answer was lost took place is not known: 503, and the caller may ask
    /// again.
    pub async fn commit(mut self) -> Result<()> {
        let outcome = self.batch_execute("commit").await;
        if let (Some(client), Err(_)) = (self.client.take(), &outcome) {
            drop(Client::take(client));
        }
        series::transaction(self.name, self.started.elapsed(), outcome.is_ok());
        outcome.map_err(Error::unavailable)
    }
}

impl Deref for Tx {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client.as_ref().unwrap_or_else(|| unreachable!("taken at its end only"))
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else { return };
        series::transaction(self.name, self.started.elapsed(), false);
        #[expect(
            clippy::disallowed_methods,
            reason = "bounded by the statement deadline; the pool gets its connection back"
        )]
        tokio::spawn(async move {
            if client.batch_execute("rollback").await.is_err() {
                drop(Client::take(client));
            }
        });
    }
}

/// How a pool's connections plan.
#[derive(Clone, Copy)]
pub enum Plans {
    /// As Postgres sees fit.
    Free,
    /// Always by index, planned once: for the send path, whose tables may have been empty when it was planned.
    Pinned,
}

impl Db {
    /// A pool of up to `size` connections; connects when first used.
    pub fn new(
        url: &SecretString,
        name: &str,
        size: usize,
        plans: Plans,
    ) -> Result<Self, tokio_postgres::Error> {
        let mut config = tokio_postgres::Config::from_str(url.expose_secret())?;
        let pinned = match plans {
            Plans::Free => "",
            Plans::Pinned => {
                " -c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
            }
        };
        config
            .application_name(name)
            .connect_timeout(ACQUIRE)
            .keepalives_idle(Duration::from_secs(15))
            .tcp_user_timeout(Duration::from_secs(10))
            .options(format!(
                "-c statement_timeout=2000 -c lock_timeout=2000 -c idle_in_transaction_session_timeout=5000 -c jit=off{pinned}"
            ));
        let manager =
            Manager::from_config(config, tls(), ManagerConfig { recycling_method: RecyclingMethod::Fast });
        let pool = Pool::builder(manager)
            .max_size(size)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(ACQUIRE))
            .create_timeout(Some(ACQUIRE))
            .recycle_timeout(Some(ACQUIRE))
            .build()
            .unwrap_or_else(|never| unreachable!("a runtime is set: {never}"));
        Ok(Db { pool })
    }

    /// A connection for reads.
    pub async fn read(&self) -> Result<Client> {
        Ok(self.pool.get().await?)
    }

    /// Begins a transaction; `name` is for the metrics.
    pub async fn begin(&self, name: &'static str) -> Result<Tx> {
        let started = Instant::now();
        let client = self.pool.get().await?;
        client.batch_execute("begin").await?;
        Ok(Tx { client: Some(client), name, started })
    }

    /// Connections in use and the most there may be.
    pub fn usage(&self) -> (usize, usize) {
        let status = self.pool.status();
        (status.size - status.available, status.max_size)
    }
}

/// TLS to Postgres where the URL's `sslmode` asks for it, checked against the system's roots (`SSL_CERT_FILE`).
fn tls() -> MakeRustlsConnect {
    let config = rustls::ClientConfig::with_platform_verifier().unwrap_or_else(|error| {
        // Without roots no certificate can be trusted; connections without TLS still work.
        tracing::warn!(%error, "no certificate roots on this system");
        rustls::ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth()
    });
    MakeRustlsConnect::new(config)
}
