//! Multipart uploads to S3: parts that the node keeps until the store has them, and therefore sends
//! again when a connection breaks.
//!
//! A part of S3 has 5 MiB at least. A node has a fixed number of buffers for parts; an upload that
//! finds none is streamed in a single PUT instead. The row of the object names the multipart upload
//! before its first part is sent, so the sweep can abort it, whichever node began it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use object_store::{
    PutPayload,
    multipart::{MultipartStore, PartId},
    path::Path,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{CHUNK_BYTES, ObjectKey, backend::within, registry};
use crate::{
    db::Db,
    error::{Error, Result},
    limits::quotas::MAX_PART_BUFFERS_PER_NODE,
};

/// Size of every part but the last: the least that S3 takes, in whole chunks.
pub(super) const PART_BYTES: usize = 5 << 20;
/// Chunks of a part.
const PART_CHUNKS: usize = PART_BYTES / CHUNK_BYTES;
/// Longest wait for the store to take a part, or to put the parts together.
const PART_TIMEOUT: Duration = Duration::from_secs(30);

/// A store that takes parts.
pub(super) struct PartStore {
    store: Arc<dyn MultipartStore>,
    buffers: Arc<Semaphore>,
}

/// A place for the bytes of a part.
pub(super) struct PartBuffer(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit);

impl PartStore {
    pub fn new(store: Arc<dyn MultipartStore>) -> Self {
        PartStore {
            store,
            buffers: Arc::new(Semaphore::new(MAX_PART_BUFFERS_PER_NODE)),
        }
    }

    /// A buffer for an object of `size` bytes; none if it has no more than a part, or if all
    /// buffers are taken. A slow client therefore keeps nobody waiting.
    pub fn buffer(&self, size: u64) -> Option<PartBuffer> {
        let is_large = size > PART_BYTES as u64;
        let place = is_large.then(|| self.buffers.clone().try_acquire_owned().ok());
        place.flatten().map(PartBuffer)
    }

    /// Begins a multipart upload, and records it in the row of the object.
    pub async fn begin(
        &self,
        db: &Db,
        key: &ObjectKey,
        path: Path,
        buffer: PartBuffer,
    ) -> Result<PartsWriter> {
        let id = within(self.store.create_multipart(&path)).await?;
        let id = id.ok_or_else(|| Error::unavailable("no such bucket"))?;
        let recorded = registry::record_multipart(db, key, &id).await;
        if !matches!(recorded, Ok(true)) {
            self.abort(&path, &id).await?;
            recorded?;
            return Err(Error::unavailable("the write has lost its lease"));
        }
        Ok(PartsWriter {
            store: self.store.clone(),
            path,
            id,
            sent: Vec::new(),
            chunks: Vec::with_capacity(PART_CHUNKS),
            _buffer: buffer,
        })
    }

    /// Lets the store drop the parts of an upload. An upload that is not there is aborted.
    pub async fn abort(&self, path: &Path, id: &str) -> Result<()> {
        within(self.store.abort_multipart(path, &id.to_owned())).await?;
        Ok(())
    }
}

/// An object that is written in parts. Dropped, it leaves its parts to the sweep.
pub(super) struct PartsWriter {
    store: Arc<dyn MultipartStore>,
    path: Path,
    id: String,
    sent: Vec<PartId>,
    chunks: Vec<Bytes>,
    _buffer: PartBuffer,
}

impl PartsWriter {
    /// Takes the next chunk; waits while the store takes a part.
    pub async fn write(&mut self, chunk: Bytes) -> Result<()> {
        self.chunks.push(chunk);
        if self.chunks.len() == PART_CHUNKS {
            self.send().await?;
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<()> {
        let part = PutPayload::from_iter(std::mem::take(&mut self.chunks));
        let number = self.sent.len();
        let sending = self.store.put_part(&self.path, &self.id, number, part);
        self.sent.push(in_time(sending).await?);
        Ok(())
    }

    /// Lets the store put the parts together.
    pub async fn finish(mut self) -> Result<()> {
        if !self.chunks.is_empty() {
            self.send().await?;
        }
        let parts = std::mem::take(&mut self.sent);
        in_time(self.store.complete_multipart(&self.path, &self.id, parts)).await?;
        Ok(())
    }
}

async fn in_time<T>(step: impl Future<Output = object_store::Result<T>>) -> Result<T> {
    let outcome = tokio::time::timeout(PART_TIMEOUT, step).await;
    outcome
        .map_err(Error::unavailable)?
        .map_err(Error::unavailable)
}
