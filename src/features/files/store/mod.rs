mod confirmation;
mod deletion;
mod endings;
mod readers;
mod storage;
mod uploads;

use tokio_postgres::Row;

pub use self::{
    confirmation::{confirm, received_object},
    deletion::delete,
    endings::{abandon, end_unread, expire, forgetting, purge},
    readers::{FoundObject, Reader, readable},
    storage::{must_fit, total_bytes, used_bytes},
    uploads::{
        Adoption, NewUpload, UploadRow, begin, begin_adoption, discard, end_adoption, find, insert,
        received, renew_adoption,
    },
};
use crate::{
    db::Conn,
    error::{Code, Result},
    ids::{ConversationId, Principal, UploadId},
    objects::{Content, ObjectKey, hash_of},
    work::Tx,
};
use blindpipe_protocol::files::UploadState;

/// The membership of a principal in a conversation.
#[derive(Clone, Copy)]
enum Membership {
    Member,
    /// An agent whose relation has ended.
    Apart,
}

impl Membership {
    /// Refuses those who may not upload.
    fn check(of: Option<Self>) -> Result<()> {
        match of {
            Some(Membership::Member) => Ok(()),
            Some(Membership::Apart) => Err(Code::RelationRevoked.into()),
            None => Err(Code::NotConversationMemberUpload.into()),
        }
    }

    fn read(row: &Row) -> Option<Self> {
        match row.get::<_, Option<bool>>("is_apart") {
            Some(false) => Some(Membership::Member),
            Some(true) => Some(Membership::Apart),
            None => None,
        }
    }
}

async fn membership(
    client: &Conn,
    id: ConversationId,
    who: Principal,
) -> Result<Option<Membership>> {
    let row = client
        .query_opt(
            "-- files.standing
            select coalesce(r.state = 'revoked', false) as is_apart
            from member m left join relation r on r.relation_id = m.relation_id
            where m.conversation_id = $1 and m.principal_id = $2",
            &[&id, &who.id()],
        )
        .await?;
    Ok(row.as_ref().and_then(Membership::read))
}

/// Locks an upload of the owner's; returns its state.
async fn lock(tx: &Tx, id: UploadId, owner: Principal) -> Result<Option<UploadState>> {
    let row = tx
        .query_opt(
            "-- files.lock
            select state from upload where upload_id = $1 and uploader_id = $2 for update",
            &[&id, &owner.id()],
        )
        .await?;
    Ok(row.map(|row| row.get("state")))
}

fn key_of(row: &Row) -> ObjectKey {
    ObjectKey::from_stored(row.get("object_key"))
}

fn content_of(row: &Row) -> Result<Content> {
    Ok(Content {
        size: u64::try_from(row.get::<_, i64>("size")).unwrap_or_default(),
        sha256: hash_of(row.get("sha256"))?,
    })
}
