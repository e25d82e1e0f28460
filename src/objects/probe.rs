//! Whether the store does what a node needs: it takes, gives back and deletes an object.

use bytes::Bytes;
use object_store::ObjectStoreExt;

use super::{
    Backend, KEY_CHARS, ObjectKey, ObjectWriter,
    backend::{Failure, within},
};
use crate::random::Random;

/// The bytes of the probe, which explain themselves to a finder.
const PROBE: &[u8] = b"written by `blindpipe doctor`, may be deleted";

impl Backend {
    /// Writes, reads and deletes an object. The error says which of them fails, and why.
    pub async fn probe(&self, random: &Random) -> Result<(), Failure> {
        let key = ObjectKey::from_stored(format!("doctor-{}", random.base62(KEY_CHARS - 7)));
        let written = async {
            let size = PROBE.len() as u64;
            let mut writer = ObjectWriter::begin(self, &key, size).await?;
            writer.write(Bytes::from_static(PROBE)).await?;
            writer.finish().await
        };
        written.await.map_err(|error| said("written", &error))?;
        let path = self.path(&key);
        let read = within(async { self.store().get(&path).await?.bytes().await }).await;
        // It must go, whatever was read.
        let deleted = self.delete(&key).await;
        let read = read.map_err(|error| said("read", &error))?;
        deleted.map_err(|error| said("deleted", &error))?;
        match read.as_deref() == Some(PROBE) {
            true => Ok(()),
            false => Err("an object is read back with other bytes than were written".into()),
        }
    }
}

fn said(verb: &str, error: &crate::error::Error) -> Failure {
    format!("an object cannot be {verb}: {error:?}").into()
}
