//! Bytes on their way out of the store, in small chunks.

use std::{io, ops::Range};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{GetOptions, GetRange, GetResultPayload};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use super::{
    ObjectKey, STORE_TIMEOUT,
    backend::{Backend, within},
};
use crate::error::{Error, Result};

/// Largest chunk. A client that does not read holds about one of them.
const MAX_READ_BYTES: usize = 64 * 1024;

/// The bytes of an object, read as its consumer asks for them.
pub struct Bytestream {
    chunks: BoxStream<'static, io::Result<Bytes>>,
    /// The rest of a chunk that was larger than [`MAX_READ_BYTES`].
    rest: Bytes,
}

impl Bytestream {
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
        Ok(Some(self.rest.split_to(some)))
    }
}

/// Opens a range of an object.
pub(super) async fn read(
    backend: &Backend,
    key: &ObjectKey,
    range: Range<u64>,
) -> Result<Option<Bytestream>> {
    let whole = |chunks| {
        let rest = Bytes::new();
        Ok(Some(Bytestream { chunks, rest }))
    };
    if range.is_empty() {
        return whole(futures_util::stream::empty().boxed());
    }
    let options = GetOptions {
        range: Some(GetRange::Bounded(range.clone())),
        ..GetOptions::default()
    };
    let path = backend.path(key);
    let Some(found) = within(backend.store().get_opts(&path, options)).await? else {
        return Ok(None);
    };
    match found.payload {
        // The crate reads a file in pieces of 8 KB, each on a thread of its own.
        GetResultPayload::File(file, _) => {
            let mut file = tokio::fs::File::from_std(file);
            file.seek(io::SeekFrom::Start(range.start))
                .await
                .map_err(Error::unavailable)?;
            let part = file.take(range.end - range.start);
            whole(ReaderStream::with_capacity(part, MAX_READ_BYTES).boxed())
        }
        GetResultPayload::Stream(chunks) => whole(chunks.map_err(io::Error::other).boxed()),
    }
}
