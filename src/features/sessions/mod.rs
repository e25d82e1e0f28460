//! Sessions as their user sees them: what each has added, its undo, and another proof of identity.
//!
//! Promises: what a session of the last 180 days has added is seen and undone from any other
//! session, also after the session's end. Of racing undos only one undoes a thing. An undo is what
//! the owner's own call does: the credentials that it ends are dead with the answer.

pub(crate) mod http;
pub(crate) mod refresh;
mod store;
mod undo;

use std::collections::HashSet;

use blindpipe_protocol::sessions::SessionChange;

use crate::{auth::user::User, error::Result, ids::SessionId, work::UnitOfWork};

/// Undoes what a session has added: the named things, or all. Returns what this call has undone.
/// More than a unit of work holds takes several.
async fn undo(
    work: &UnitOfWork,
    user: &User,
    session: SessionId,
    ids: Option<&HashSet<String>>,
) -> Result<Vec<SessionChange>> {
    let mut undone = Vec::new();
    loop {
        let batch = work.run("sessions.undo", async |tx| {
            undo::undo_some(tx, user, session, ids).await
        });
        let batch = batch.await?;
        let is_last = batch.len() < undo::MAX_BATCH_CHANGES;
        undone.extend(batch);
        if is_last {
            return Ok(undone);
        }
    }
}
