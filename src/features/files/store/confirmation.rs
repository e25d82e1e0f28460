//! The confirmation of an upload, and its refusal.

use blindpipe_protocol::files::{FileConfirmation, Sha256Hash, UploadState};

use super::{Membership, content_of, key_of, lock, membership};
use crate::{
    db::Db,
    error::{Code, Result},
    events::Event,
    features::conversations,
    ids::{ConversationId, FileId, Principal, UploadId},
    jobs::Upkeep,
    objects::{Content, ObjectKey, registry},
    work::Tx,
};

/// The object of an upload whose bytes are here and not confirmed.
pub async fn received_object(db: &Db, id: UploadId) -> Result<Option<(ObjectKey, Content)>> {
    let row = db
        .read()
        .await?
        .query_opt(
            "-- files.received_object
            select o.object_key, o.size, o.sha256 from upload u join live_object o using (object_key)
            where u.upload_id = $1 and u.state = 'uploaded' and o.sha256 is not null",
            &[&id],
        )
        .await?;
    row.map(|row| Ok((key_of(&row), content_of(&row)?)))
        .transpose()
}

/// The key and the content of an upload's object; none if the bytes are gone.
async fn object_of(tx: &Tx, id: UploadId) -> Result<Option<(ObjectKey, Content)>> {
    let row = tx
        .query_opt(
            "-- files.object_of
            select o.object_key, o.size, o.sha256 from upload u join live_object o using (object_key)
            where u.upload_id = $1 and o.sha256 is not null",
            &[&id],
        )
        .await?;
    row.map(|row| Ok((key_of(&row), content_of(&row)?)))
        .transpose()
}

/// Confirms an upload, once; a repetition has the same answer. A wrong hash destroys the bytes.
pub async fn confirm(
    tx: &Tx,
    id: UploadId,
    conversation: ConversationId,
    owner: Principal,
    announced: Sha256Hash,
) -> Result<(ObjectKey, Content)> {
    // The members cannot change between this lock and the event.
    tx.execute(
        "-- files.lock_conversation
        select 1 from conversation where conversation_id = $1 for update",
        &[&conversation],
    )
    .await?;
    let state = lock(tx, id, owner).await?.ok_or(Code::NotFound)?;
    match state {
        UploadState::Pending => return Err(Code::UploadIncomplete.into()),
        UploadState::Rejected => return Err(Code::Sha256Mismatch.into()),
        UploadState::Expired => return Err(Code::NotFound.into()),
        UploadState::Uploaded | UploadState::Confirmed => {}
    }
    let (key, content) = object_of(tx, id).await?.ok_or(Code::NotFound)?;
    let is_equal = content.sha256 == announced;
    if state == UploadState::Confirmed {
        return match is_equal {
            true => Ok((key, content)),
            false => Err(Code::Sha256Mismatch.into()),
        };
    }
    Membership::check(membership(tx, conversation, owner).await?)?;
    if !is_equal {
        reject(tx, id, &key, content, announced).await?;
        return tx.commit_with(Code::Sha256Mismatch);
    }
    if !registry::keep(tx, &key).await? {
        return Err(Code::NotFound.into());
    }
    tx.execute(
        "-- files.confirm
        update upload set state = 'confirmed', confirmed_at = app_now() where upload_id = $1",
        &[&id],
    )
    .await?;
    let recipients = conversations::recipients(tx, conversation).await?;
    let event = Event::FileConfirmed(FileConfirmation {
        file_id: FileId(id.0),
        object_key: key.as_str().to_owned(),
        size: content.size,
        sha256: content.sha256,
        conversation_id: conversation,
    });
    tx.emit(event, Some(conversation), recipients)?;
    Ok((key, content))
}

async fn reject(
    tx: &Tx,
    id: UploadId,
    key: &ObjectKey,
    content: Content,
    announced: Sha256Hash,
) -> Result<()> {
    tx.execute(
        "-- files.reject
        with rejected as (
            update upload set state = 'rejected', object_key = null where upload_id = $1
            returning upload_id, conversation_id, uploader_id
        )
        insert into upload_audit (upload_id, conversation_id, uploader_id, announced_sha256, received_sha256, size)
        select upload_id, conversation_id, uploader_id, $2, $3, $4 from rejected",
        &[
            &id,
            &announced.0.as_slice(),
            &content.sha256.0.as_slice(),
            &i64::try_from(content.size).unwrap_or(i64::MAX),
        ],
    )
    .await?;
    registry::end(tx, key).await?;
    tx.enqueue(Upkeep::SweepObjects.job());
    Ok(())
}
