//! The purge of what the two of an ended relation wrote to each other.

use super::{approvals, files, grants, messages, relations, tool_calls};
use crate::{db::Db, error::Result};

/// Does a batch of the purge of one ended relation, whose turn it then is no more. True while there
/// may be more. A relation whose batch fails waits for an hour, so that others go on.
///
/// Rows stay, so that numbers have no gaps and references stay valid. A message of the last 24
/// hours waits for the next round, because its sender may still repeat it. While the relation stays
/// ended, a round comes every week: the user can still write there.
pub async fn purge_relations(db: &Db) -> Result<bool> {
    let Some(due) = relations::next_due(db).await? else {
        return Ok(false);
    };
    let purging = db.run("retention.purge", async |tx| {
        let conversation = relations::lock_pair(tx, &due).await?;
        // The purge may have been cancelled during the wait for the lock.
        if !relations::is_due(tx, &due).await? {
            return Ok(());
        }
        let mut any = false;
        if let Some(conversation) = conversation {
            match messages::purge(tx, due.id, conversation).await? {
                Some(span) => {
                    // The people and the decisions of an approval go with its message.
                    approvals::purge(tx, conversation, span).await?;
                    any = true;
                }
                None => any = files::purge(tx, conversation).await?,
            }
        }
        if any || tool_calls::purge(tx, due.id).await? || grants::purge(tx, due.id).await? {
            relations::end_turn(tx, due.id).await
        } else {
            relations::end_purge(tx, due.id).await
        }
    });
    if let Err(error) = purging.await {
        relations::step_back(db, due.id).await?;
        error.log_in("retention.purge", "the relation is tried again in an hour");
    }
    Ok(true)
}
