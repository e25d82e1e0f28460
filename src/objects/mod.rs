//! Objects: the bytes of files and of large events, outside Postgres.
//!
//! Promises: a key is in the table `object` before its first byte is written and until its last
//! byte is deleted, so no crash leaves bytes that nobody knows. An object that a reader can see is
//! whole, durable and never changes. An upload holds a chunk in memory, whatever its size, and
//! waits for a slow store.
//!
//! - [`backend`]: the store behind the `object_store` crate, and its settings.
//! - [`writer`] and [`reader`]: streams in and out.
//! - [`registry`]: the rows, their leases and the sweep.
//! - [`links`]: signed addresses.
//! - [`events`]: data of events that is too large for a webhook.

pub mod backend;
mod events;
pub mod links;
mod reader;
pub mod registry;
mod writer;

use std::{sync::Arc, time::Duration};

use blindpipe_protocol::files::Sha256Hash;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use self::{
    backend::{Backend, DirectUpload},
    events::{EventData, hash_of},
    links::{Links, SignedQuery},
    reader::Bytestream,
    writer::ObjectWriter,
};
use crate::{
    db::Db,
    error::{Error, Result},
    limits::quotas::MAX_UPLOADS_PER_NODE,
    metrics,
    random::Random,
};

/// Longest wait for a step of the store: a connection, a chunk, the first byte of an answer.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that are written or read at once.
pub(crate) const CHUNK_BYTES: usize = 128 * 1024;

/// Random characters of a key: 190 bits.
const KEY_CHARS: usize = 32;

/// The key of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectKey(String);

impl ObjectKey {
    /// A new random key.
    pub fn generate(random: &Random) -> Self {
        ObjectKey(random.base62(KEY_CHARS))
    }

    /// The text of a path, if it has the form of a key.
    pub fn read(text: &str) -> Option<Self> {
        let is_key = text.len() == KEY_CHARS && text.bytes().all(|b| b.is_ascii_alphanumeric());
        is_key.then(|| ObjectKey(text.to_owned()))
    }

    /// The key of a row.
    pub fn from_stored(text: String) -> Self {
        ObjectKey(text)
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The number and the hash of written or read bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// The number of bytes.
    pub size: u64,
    /// Their hash.
    pub sha256: Sha256Hash,
}

/// The objects of a node; clones share the store.
#[derive(Clone)]
pub struct Objects {
    pub(crate) backend: Arc<Backend>,
    db: Db,
    random: Random,
    /// Signs and verifies addresses.
    pub links: Links,
    places: Arc<Semaphore>,
}

/// A place among the uploads that a node receives at once.
pub struct UploadPlace(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit);

impl Drop for UploadPlace {
    fn drop(&mut self) {
        metrics::upload_closed();
    }
}

impl Objects {
    /// The objects of `backend`.
    pub fn new(backend: Backend, db: Db, random: Random, links: Links) -> Self {
        Objects {
            backend: Arc::new(backend),
            db,
            random,
            links,
            places: Arc::new(Semaphore::new(MAX_UPLOADS_PER_NODE)),
        }
    }

    /// A place among the node's uploads. Errors: 503 if all are taken.
    pub fn place(&self) -> Result<UploadPlace> {
        let place = self.places.clone().try_acquire_owned();
        let place = place.map_err(|_| Error::unavailable("too many uploads at once"))?;
        metrics::upload_opened();
        Ok(UploadPlace(place))
    }

    /// A new random key.
    pub fn new_key(&self) -> ObjectKey {
        ObjectKey::generate(&self.random)
    }

    /// Begins to write an object of at most `size` bytes. Its row must exist.
    pub async fn write(&self, key: &ObjectKey, size: u64) -> Result<ObjectWriter> {
        ObjectWriter::begin(&self.backend, key, size).await
    }

    /// Streams bytes `from` to `to` of an object, `to` excluded. None if the store lacks it.
    pub async fn read(&self, key: &ObjectKey, from: u64, to: u64) -> Result<Option<Bytestream>> {
        reader::read(&self.backend, key, from..to).await
    }

    /// Reads a whole object and returns its content; none if the store lacks it.
    pub async fn content(&self, key: &ObjectKey) -> Result<Option<Content>> {
        let Some(size) = self.backend.size(key).await? else {
            return Ok(None);
        };
        let Some(mut bytes) = self.read(key, 0, size).await? else {
            return Ok(None);
        };
        let mut hash = Sha256::new();
        while let Some(chunk) = bytes.next().await.map_err(Error::unavailable)? {
            hash.update(&chunk);
        }
        let sha256 = Sha256Hash(hash.finalize().into());
        Ok(Some(Content { size, sha256 }))
    }

    /// Deletes the bytes of objects whose end has come, then their rows. True while there may be
    /// more.
    pub async fn sweep(&self, db: &Db) -> Result<bool> {
        registry::sweep(db, &self.backend).await
    }
}
