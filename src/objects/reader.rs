//! Bytes on their way out of the store, in small chunks.

use std::{io, ops::Range};

use blindpipe_protocol::files::Sha256Hash;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{GetOptions, GetRange, GetResultPayload};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use super::{
    Content, ObjectKey, STORE_TIMEOUT,
    backend::{Backend, within},
};
use crate::{
    error::{Error, Result},
    metrics,
};

/// Largest chunk. A client that does not read holds about one of them.
const MAX_READ_BYTES: usize = 64 * 1024;

/// The bytes of an object, read as its consumer asks for them.
pub struct Bytestream {
    chunks: BoxStream<'static, io::Result<Bytes>>,
    /// The rest of a chunk that was larger than [`MAX_READ_BYTES`].
    rest: Bytes,
    proof: Option<Proof>,
}

/// The comparison of a whole object with its row, while it passes.
struct Proof {
    hash: Sha256,
    /// The number of bytes that are still to come.
    missing: u64,
    expected: Sha256Hash,
}

impl Proof {
    /// Takes the next chunk; an error if the object turns out to be another one.
    fn update(&mut self, chunk: &[u8]) -> io::Result<()> {
        self.hash.update(chunk);
        let left = self.missing.checked_sub(chunk.len() as u64);
        self.missing = left.ok_or_else(damaged)?;
        if self.missing > 0 {
            return Ok(());
        }
        let hash: [u8; 32] = std::mem::take(&mut self.hash).finalize().into();
        match hash == self.expected.0 {
            true => Ok(()),
            false => Err(damaged()),
        }
    }
}

/// The error for an object that is not the one of its row.
fn damaged() -> io::Error {
    metrics::object_damaged();
    tracing::error!(
        operation = "objects.read",
        remedy = "the download breaks off or is not found",
        "an object of the store has other bytes than its row says"
    );
    io::Error::from(io::ErrorKind::InvalidData)
}

impl Bytestream {
    fn new(chunks: BoxStream<'static, io::Result<Bytes>>) -> Self {
        Bytestream {
            chunks,
            rest: Bytes::new(),
            proof: None,
        }
    }

    /// These bytes with a proof: the last chunk only comes if all of them are `content`.
    pub(super) fn proven(mut self, content: &Content) -> Self {
        self.proof = Some(Proof {
            hash: Sha256::new(),
            missing: content.size,
            expected: content.sha256,
        });
        self
    }

    /// The next chunk; none at the end. An error ends the stream.
    pub async fn next(&mut self) -> io::Result<Option<Bytes>> {
        while self.rest.is_empty() {
            let next = tokio::time::timeout(STORE_TIMEOUT, self.chunks.next()).await;
            match next.map_err(io::Error::from)? {
                Some(chunk) => self.rest = chunk?,
                None => return Ok(None),
            }
        }
        let some = self.rest.len().min(MAX_READ_BYTES);
        let chunk = self.rest.split_to(some);
        if let Some(proof) = &mut self.proof {
            proof.update(&chunk)?;
        }
        Ok(Some(chunk))
    }
}

/// An object that the store has.
pub(super) struct OpenedObject {
    pub bytes: Bytestream,
    /// The size of the whole object in the store; none if the store was not asked.
    pub size: Option<u64>,
}

/// Opens a range of an object.
pub(super) async fn open(
    backend: &Backend,
    key: &ObjectKey,
    range: Range<u64>,
) -> Result<Option<OpenedObject>> {
    if range.is_empty() {
        let bytes = Bytestream::new(futures_util::stream::empty().boxed());
        return Ok(Some(OpenedObject { bytes, size: None }));
    }
    let options = GetOptions {
        range: Some(GetRange::Bounded(range.clone())),
        ..GetOptions::default()
    };
    let path = backend.path(key);
    let Some(found) = within(backend.store().get_opts(&path, options)).await? else {
        return Ok(None);
    };
    let size = Some(found.meta.size);
    let chunks = match found.payload {
        // The crate reads a file in pieces of 8 KB, each on a thread of its own.
        GetResultPayload::File(file, _) => {
            let mut file = tokio::fs::File::from_std(file);
            file.seek(io::SeekFrom::Start(range.start))
                .await
                .map_err(Error::unavailable)?;
            let part = file.take(range.end - range.start);
            ReaderStream::with_capacity(part, MAX_READ_BYTES).boxed()
        }
        GetResultPayload::Stream(chunks) => chunks.map_err(io::Error::other).boxed(),
    };
    let bytes = Bytestream::new(chunks);
    Ok(Some(OpenedObject { bytes, size }))
}
