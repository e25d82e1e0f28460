//! A connection and its statements.
//!
//! Why: ADR 64.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use deadpool_postgres::Client;
use tokio::sync::Semaphore;
use tokio_postgres::{Row, Statement, error::SqlState, types::ToSql};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{Error, Result};

/// The longest time for which a commit that nobody waits for any more takes a place. A Postgres that
/// is frozen never answers, and its successor must take writes again.
const ABANDONED_COMMIT_TIMEOUT: Duration = Duration::from_secs(60);

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
///
/// A statement that reads is cancelled then. A commit that was sent never is: Postgres would show it
/// although no standby has it, and its repeat would be acknowledged.
pub struct Conn {
    pub(super) client: Option<Client>,
    /// Begins the transaction that each statement needs for its settings, behind a pooler.
    pub(super) begin: Option<Arc<str>>,
    pub(super) tls: MakeRustlsConnect,
    pub(super) deadline: Duration,
    pub(super) hung: AtomicBool,
    /// The statements without an answer.
    pub(super) unanswered: AtomicUsize,
    /// Whether a commit may be among them. To cancel a commit that waits for a standby would show
    /// changes that a failover may lose. A statement that writes and stands alone is a commit.
    pub(super) commits: AtomicBool,
    /// Whether statements may write. Those of a connection for reading are cancelled.
    pub(super) may_write: bool,
    /// The places of commits that nobody waits for any more.
    pub(super) abandoned: Arc<Semaphore>,
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

    /// Runs a prepared statement. Behind a pooler its transaction and it take one round trip: the
    /// wire keeps their order, and a failed statement turns the commit into a rollback.
    fn run<T>(
        &self,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> impl Future<Output = Result<T>> {
        // Otherwise it would be a part of every future that queries, twice.
        let statement = Box::pin(statement);
        async move {
            let Some(begin) = &self.begin else {
                return self.within(statement).await;
            };
            let (begun, outcome, ended) = Box::pin(async {
                futures_util::join!(
                    self.batch_execute(begin),
                    self.within(statement),
                    self.batch_execute("commit")
                )
            })
            .await;
            begun?;
            let value = outcome?;
            ended.map_err(Error::into_unavailable)?;
            Ok(value)
        }
    }

    fn client(&self) -> &Client {
        self.client
            .as_ref()
            .unwrap_or_else(|| unreachable!("taken on drop only"))
    }

    /// Prepares a statement once per connection.
    pub async fn prepare_cached(&self, sql: &str) -> Result<Statement> {
        debug_assert!(
            self.may_write || !writes(sql),
            "a connection for reading must not write: {sql}"
        );
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
        self.run(self.client().query(&stmt, params)).await
    }

    /// Returns the only row; an error if there is none.
    pub async fn query_one<'a>(
        &self,
        sql: impl Into<Sql<'a>>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Row> {
        let stmt = self.prepare(sql.into()).await?;
        self.run(self.client().query_one(&stmt, params)).await
    }

    /// Returns the row, if there is one.
    pub async fn query_opt<'a>(
        &self,
        sql: impl Into<Sql<'a>>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>> {
        let stmt = self.prepare(sql.into()).await?;
        self.run(self.client().query_opt(&stmt, params)).await
    }

    /// Returns the number of affected rows.
    pub async fn execute<'a>(
        &self,
        sql: impl Into<Sql<'a>>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64> {
        let stmt = self.prepare(sql.into()).await?;
        self.run(self.client().execute(&stmt, params)).await
    }

    /// Runs statements without parameters.
    pub async fn batch_execute(&self, sql: &str) -> Result<()> {
        self.within(self.client().batch_execute(sql)).await
    }

    /// Cancels the statement that nobody waits for any more, unless it is a commit.
    pub(super) async fn stop(&self) {
        let waits = self.unanswered.swap(0, Ordering::Relaxed) > 0;
        if waits && !self.commits.load(Ordering::Relaxed) {
            let token = self.client().cancel_token();
            let cancelled = token.cancel_query(self.tls.clone());
            tokio::time::timeout(self.deadline, cancelled).await.ok();
        }
    }

    /// Takes the connection out of the pool for good. A commit that waits is abandoned.
    pub(super) fn discard(mut self) {
        if let Some(client) = self.client.take() {
            self.abandon(client);
        }
    }

    /// Takes a connection out of the pool. If a commit waits in it, Postgres keeps that waiting
    /// and so its locks, and a place is taken until Postgres answers.
    fn abandon(&self, client: Client) {
        let client = Client::take(client);
        let waits = self.unanswered.load(Ordering::Relaxed) > 0;
        if !waits || !self.commits.load(Ordering::Relaxed) {
            return;
        }
        let Ok(place) = self.abandoned.clone().try_acquire_owned() else {
            return;
        };
        later(async move {
            let answered = client.batch_execute("");
            tokio::time::timeout(ABANDONED_COMMIT_TIMEOUT, answered)
                .await
                .ok();
            drop(place);
        });
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
        let mut client = Some(client);
        if is_hung && let Some(client) = client.take() {
            self.abandon(client);
        }
        // The pool gets an idle connection or none. Otherwise the next caller would wait behind a
        // statement that nobody wants any more.
        later(async move {
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

/// Whether a statement changes or locks rows, by its words. A function that writes does not show.
fn writes(sql: &str) -> bool {
    sql.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|word| matches!(word, "insert" | "update" | "delete"))
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
pub(super) fn later(work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(work);
    }
}
