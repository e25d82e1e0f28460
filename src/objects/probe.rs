//! Whether the store does what a node needs: it takes, gives back and deletes an object.

use object_store::{ObjectStoreExt, PutPayload};

use super::{
    Backend, KEY_CHARS, ObjectKey,
    backend::{Failure, within},
};
use crate::{error::Error, random::Random};

/// The bytes of the probe, which explain themselves to a finder.
const PROBE: &[u8] = b"written by `blindpipe doctor`, may be deleted";

impl Backend {
    /// Writes, reads and deletes an object. The error says which of them fails, and why.
    pub async fn probe(&self, random: &Random) -> Result<(), Failure> {
        let key = ObjectKey::from_stored(format!("doctor-{}", random.base62(KEY_CHARS - 7)));
        let path = self.path(&key);
        let written = within(self.store().put(&path, PutPayload::from_static(PROBE))).await;
        let written = written.and_then(|done| done.ok_or_else(|| Error::unavailable("no bucket")));
        written.map_err(|error| said("written", &error))?;
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

fn said(verb: &str, error: &Error) -> Failure {
    format!("an object cannot be {verb}: {error:?}").into()
}
