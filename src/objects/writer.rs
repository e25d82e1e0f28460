//! Bytes on their way into the store: counted and hashed while they pass.

use std::{future::Future, pin::Pin, time::Duration};

use blindpipe_protocol::files::Sha256Hash;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, join, stream};
use object_store::{MultipartUpload, ObjectStoreExt};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::{
    CHUNK_BYTES, Content, ObjectKey, STORE_TIMEOUT,
    backend::{Backend, Bucket, StoreKind, within},
    parts::PartsWriter,
};
use crate::{
    db::Db,
    error::{Error, Result},
};

/// Longest wait for a disk to make a whole file durable.
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);

/// An object that is being written. Dropped before [`ObjectWriter::finish`], it leaves nothing that
/// a reader could see.
pub struct ObjectWriter {
    target: Target,
    hash: Sha256,
    size: u64,
    chunk: BytesMut,
}

enum Target {
    /// A temporary file.
    File(Box<dyn MultipartUpload>),
    /// The body of a PUT to a bucket.
    Put(StreamedPut),
    /// Parts of an object of S3.
    Parts(PartsWriter),
}

impl ObjectWriter {
    /// Begins to write an object. A bucket is told `size`, and takes that many bytes only.
    pub(super) async fn begin(
        backend: &Backend,
        db: &Db,
        key: &ObjectKey,
        size: u64,
    ) -> Result<Self> {
        let path = backend.path(key);
        let target = match backend.kind() {
            StoreKind::Folder(folder) => {
                let staged = within(folder.put_multipart(&path)).await?;
                Target::File(staged.ok_or_else(|| Error::unavailable("no such folder"))?)
            }
            StoreKind::Bucket(bucket) => {
                let parts = bucket.parts.as_ref();
                match parts.and_then(|parts| Some((parts, parts.buffer(size)?))) {
                    Some((parts, buffer)) => {
                        Target::Parts(parts.begin(db, key, path, buffer).await?)
                    }
                    None => {
                        let url = bucket.own_write(&path).await?;
                        Target::Put(StreamedPut::begin(bucket, url.into(), size))
                    }
                }
            }
        };
        Ok(ObjectWriter {
            target,
            hash: Sha256::new(),
            size: 0,
            chunk: BytesMut::with_capacity(CHUNK_BYTES),
        })
    }

    /// The number of bytes so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Writes the next bytes; waits while the store is slow. Errors: 503 if it is away or takes
    /// nothing for ten seconds.
    pub async fn write(&mut self, mut bytes: Bytes) -> Result<()> {
        self.size += bytes.len() as u64;
        while !bytes.is_empty() {
            let room = CHUNK_BYTES - self.chunk.len();
            let some = bytes.split_to(bytes.len().min(room));
            self.chunk.extend_from_slice(&some);
            if self.chunk.len() == CHUNK_BYTES {
                self.flush().await?;
            }
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<()> {
        let full = std::mem::replace(&mut self.chunk, BytesMut::with_capacity(CHUNK_BYTES));
        let chunk = full.freeze();
        let hash = &mut self.hash;
        // A thread writes the chunk while this one hashes it.
        let hashing = async { hash.update(&chunk) };
        match &mut self.target {
            Target::File(file) => {
                let writing = within(file.put_part(chunk.clone().into()));
                join!(writing, hashing).0.map(drop)
            }
            Target::Put(put) => {
                let writing = put.write(chunk.clone());
                join!(writing, hashing).0
            }
            Target::Parts(parts) => {
                let writing = parts.write(chunk.clone());
                join!(writing, hashing).0
            }
        }
    }

    /// Makes the object durable and visible; returns its content. Errors: 503.
    pub async fn finish(mut self) -> Result<Content> {
        if !self.chunk.is_empty() {
            self.flush().await?;
        }
        match self.target {
            Target::File(mut file) => {
                let done = tokio::time::timeout(SYNC_TIMEOUT, file.complete());
                done.await
                    .map_err(Error::unavailable)?
                    .map_err(Error::unavailable)?;
            }
            Target::Put(put) => put.finish().await?,
            Target::Parts(parts) => parts.finish().await?,
        }
        Ok(Content {
            size: self.size,
            sha256: Sha256Hash(self.hash.finalize().into()),
        })
    }
}

/// A PUT to a bucket whose body is streamed. The crate's own `put` wants all bytes at once.
struct StreamedPut {
    chunks: mpsc::Sender<Bytes>,
    answer: Answer,
}

type Answer = Pin<Box<dyn Future<Output = reqwest::Result<reqwest::Response>> + Send>>;

impl StreamedPut {
    fn begin(bucket: &Bucket, url: String, size: u64) -> Self {
        let (chunks, waiting) = mpsc::channel(1);
        // A body that ends before the declared length breaks the connection, and the store drops
        // what it has.
        let body = stream::unfold(waiting, async |mut waiting: mpsc::Receiver<Bytes>| {
            let chunk = waiting.recv().await?;
            Some((Ok::<_, std::io::Error>(chunk), waiting))
        });
        let mut request = bucket
            .http
            .put(url)
            .header(reqwest::header::CONTENT_LENGTH, size);
        for (name, value) in bucket.put_headers {
            request = request.header(*name, *value);
        }
        let answer = Box::pin(
            request
                .body(reqwest::Body::wrap_stream(body.boxed()))
                .send(),
        );
        StreamedPut { chunks, answer }
    }

    async fn write(&mut self, chunk: Bytes) -> Result<()> {
        let StreamedPut { chunks, answer } = self;
        let writing = async {
            tokio::select! {
                biased;
                sent = chunks.send(chunk) => sent.map_err(Error::unavailable),
                early = answer => Err(refusal(early)),
            }
        };
        tokio::time::timeout(STORE_TIMEOUT, writing)
            .await
            .map_err(Error::unavailable)?
    }

    async fn finish(self) -> Result<()> {
        let StreamedPut { chunks, answer } = self;
        drop(chunks);
        let answer = tokio::time::timeout(STORE_TIMEOUT, answer)
            .await
            .map_err(Error::unavailable)?;
        match answer {
            Ok(answer) if answer.status().is_success() => Ok(()),
            other => Err(refusal(other)),
        }
    }
}

/// The store's answer as a failure. The address is signed, so it stays out of the log.
fn refusal(answer: reqwest::Result<reqwest::Response>) -> Error {
    match answer {
        Ok(answer) => Error::unavailable(format!("the object store answered {}", answer.status())),
        Err(error) => Error::unavailable(error.without_url()),
    }
}
