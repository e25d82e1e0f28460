use blindpipe_protocol::conversations::ConversationKind;

use super::{lock, updated, whole};
use crate::{
    error::{Code, Result},
    features::conversations::Conversation,
    ids::{ConversationId, Principal, UserId},
    work::Tx,
};

/// The requested change of a conversation.
pub struct Change {
    /// It cannot be taken back.
    pub encryption_required: bool,
    /// Only a group has a title.
    pub title: Option<String>,
}

/// Applies the requested change. Publishes nothing if nothing changes.
pub async fn change(
    tx: &Tx,
    id: ConversationId,
    by: UserId,
    change: &Change,
) -> Result<Conversation> {
    let by = Principal::User(by);
    let place = lock(tx, id, by).await?;
    if !place.is_admin() || (change.title.is_some() && place.kind != ConversationKind::Group) {
        return Err(Code::Forbidden.into());
    }
    let changed = tx
        .execute(
            "-- conversations.change
            update conversation set encryption = case when $2 then 'required' else encryption end, title = coalesce($3, title),
                rules_version = rules_version + 1
            where conversation_id = $1 and ($2 and encryption <> 'required' or $3 is distinct from title and $3 is not null)",
            &[&id, &change.encryption_required, &change.title],
        )
        .await?
        > 0;
    if changed {
        updated(tx, id).await?;
    }
    whole(tx, by, id)
        .await?
        .ok_or_else(|| Code::NotFound.into())
}
