//! Objects: the bytes of files and of large events, outside Postgres.
//!
//! Promises: a key is in the table `object` before its first byte is written and until its last
//! byte is deleted, so no crash leaves bytes that nobody knows. An object that a reader can see is
//! whole, durable and never changes. An upload holds a chunk in memory, or one of the node's few
//! buffers for parts, and waits for a slow store.
//!
//! - [`backend`]: the store behind the `object_store` crate.
//! - [`location`]: its place, and the faults of its settings.
//! - [`writer`] and [`reader`]: streams in and out; [`parts`]: multipart uploads.
//! - [`registry`]: the rows, their leases and the sweep.
//! - [`signed_urls`]: signed addresses.
//! - [`upload_permits`]: the uploads to the node at once.
//! - [`events`]: data of events that is too large for a webhook.
//!
//! Why: ADR 36.

pub mod backend;
mod events;
pub mod location;
mod parts;
mod probe;
mod reader;
pub mod registry;
pub mod signed_urls;
mod upload_permits;
mod writer;

use std::{ops::Range, sync::Arc, time::Duration};

use blindpipe_protocol::files::Sha256Hash;
use sha2::{Digest, Sha256};

pub use self::{
    backend::{Backend, DirectUpload},
    events::{EventData, hash_of},
    reader::Bytestream,
    signed_urls::{SignedQuery, SignedUrls},
    upload_permits::{UploadPermit, UploadPermits},
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
    pub signed_urls: SignedUrls,
    /// The permits of uploads.
    pub upload_permits: UploadPermits,
}

impl Objects {
    /// The objects of `backend`.
    pub fn new(backend: Backend, db: Db, random: Random, signed_urls: SignedUrls) -> Self {
        Objects {
            backend: Arc::new(backend),
            db,
            random,
            signed_urls,
            upload_permits: UploadPermits::new(MAX_UPLOADS_PER_NODE),
        }
    }

    /// A new random key.
    pub fn new_key(&self) -> ObjectKey {
        ObjectKey::generate(&self.random)
    }

    /// Begins to write an object of at most `size` bytes. Its row must exist.
    pub async fn write(&self, key: &ObjectKey, size: u64) -> Result<ObjectWriter> {
        ObjectWriter::begin(&self.backend, &self.db, key, size).await
    }

    /// Streams a range of the object `content`. None, and counted, if the store lacks it or has one
    /// of another size. If the range is the whole object and its bytes turn out to be others, an
    /// error comes in place of the last chunk.
    pub async fn read(
        &self,
        key: &ObjectKey,
        content: &Content,
        range: Range<u64>,
    ) -> Result<Option<Bytestream>> {
        let is_whole = range == (0..content.size);
        let opened = reader::open(&self.backend, key, range).await;
        let size = match &opened {
            Ok(Some(opened)) => opened.size.unwrap_or(content.size),
            // A store refuses a range that an object of another size does not have.
            Ok(None) | Err(_) => match self.backend.size(key).await? {
                Some(size) => size,
                None => {
                    metrics::object_missing();
                    return Ok(None);
                }
            },
        };
        if size != content.size {
            metrics::object_damaged();
            return Ok(None);
        }
        let bytes = opened?.map(|opened| opened.bytes);
        Ok(bytes.map(|bytes| {
            if is_whole {
                bytes.proven(content)
            } else {
                bytes
            }
        }))
    }

    /// Whether the store has an object of the size of `content`. Otherwise that is counted.
    pub async fn is_stored(&self, key: &ObjectKey, content: &Content) -> Result<bool> {
        match self.backend.size(key).await? {
            Some(size) if size == content.size => return Ok(true),
            Some(_) => metrics::object_damaged(),
            None => metrics::object_missing(),
        }
        Ok(false)
    }

    /// Reads a whole object and returns its content; none if the store lacks it.
    pub async fn content(&self, key: &ObjectKey) -> Result<Option<Content>> {
        let Some(size) = self.backend.size(key).await? else {
            return Ok(None);
        };
        let Some(mut opened) = reader::open(&self.backend, key, 0..size).await? else {
            return Ok(None);
        };
        let mut hash = Sha256::new();
        while let Some(chunk) = opened.bytes.next().await.map_err(Error::unavailable)? {
            hash.update(&chunk);
        }
        let sha256 = Sha256Hash(hash.finalize().into());
        Ok(Some(Content { size, sha256 }))
    }

    /// Writes a small text for people into a folder of the store. No key leads to it.
    pub async fn put_text(&self, folder: &str, name: &str, text: String) -> Result<()> {
        self.backend.put_text(folder, name, text).await
    }

    /// Deletes the bytes of objects whose end has come, then their rows. True while there may be
    /// more.
    pub async fn sweep(&self, db: &Db, forgetting: registry::Forgetting) -> Result<bool> {
        registry::sweep(db, &self.backend, forgetting).await
    }
}
