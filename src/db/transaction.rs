//! A transaction and its end.

use std::{ops::Deref, sync::atomic::Ordering, time::Instant};

use tokio_postgres::{Row, Statement, types::ToSql};

use super::connection::{Conn, later};
use crate::{
    error::{Error, Result},
    metrics,
};

/// An open transaction. Dropped before [`commit`](Tx::commit), it rolls back.
#[must_use = "a transaction that is not committed is rolled back"]
pub struct Tx {
    pub(super) conn: Option<Conn>,
    pub(super) name: &'static str,
    pub(super) started: Instant,
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
