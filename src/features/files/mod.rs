//! Files: uploads in three steps, and the reading of objects.
//!
//! Promises: a confirmed file has its bytes, durably, with the length and the hash that its
//! uploader announced; they never change. Only members read it. Of requests that race for an upload
//! a single one wins. Bytes that nobody confirms within 24 hours go. A signed address dies with the
//! credential that asked for it. No account has more bytes in use than its quota.

pub(crate) mod http;
mod rules;
mod store;

pub use self::store::{abandon, end_unread, expire, forgetting, purge, used_bytes};
use futures_util::future::BoxFuture;

use crate::{
    db::{Conn, Db},
    error::Result,
    metrics,
};

/// The bytes that an account may have in use, with those of its agents.
#[derive(Clone, Copy, Debug)]
pub struct StorageQuota(pub u64);

/// Counts downloads of a share's file. Shares stand behind files on the map, so the node gives files
/// their function. False if the share has none left.
#[derive(Clone, Copy)]
pub struct CountDownloads(pub for<'a> fn(&'a Conn, &'a str, i32) -> BoxFuture<'a, Result<bool>>);

/// Measures the bytes that all accounts have in use.
pub async fn measure(db: &Db, alert_bytes: u64) -> Result<()> {
    metrics::storage(store::total_bytes(db).await?, alert_bytes);
    Ok(())
}
