//! The deletion of a file.

use blindpipe_protocol::conversations::ConversationKind;

use crate::{
    error::{Code, Result},
    features::conversations,
    ids::{ConversationId, Principal, UploadId},
    jobs::Upkeep,
    objects::{ObjectKey, registry},
    work::Tx,
};

/// Deletes a file for its uploader, or for an owner or admin of its group. Errors: `NOT_FOUND`,
/// `FORBIDDEN` for other members.
pub async fn delete(tx: &Tx, key: &ObjectKey, who: Principal) -> Result<()> {
    let row = tx
        .query_opt(
            "-- files.find_file
            select u.upload_id, u.conversation_id, u.uploader_id = $2 as is_own
            from upload u join live_object o using (object_key)
            where u.object_key = $1 and u.state = 'confirmed'",
            &[&key.as_str(), &who.id()],
        )
        .await?
        .ok_or(Code::NotFound)?;
    if !row.get::<_, bool>("is_own") {
        must_manage(tx, row.get("conversation_id"), who).await?;
    }
    let ended = tx
        .execute(
            "-- files.delete
            update upload set object_key = null, filename = '', content_type = ''
            where upload_id = $1 and object_key = $2 and state = 'confirmed'",
            &[&row.get::<_, UploadId>("upload_id"), &key.as_str()],
        )
        .await?;
    if ended == 0 {
        return Err(Code::NotFound.into());
    }
    registry::end(tx, key).await?;
    tx.enqueue(Upkeep::SweepObjects.job());
    Ok(())
}

/// The members of a pair are equal, so there the uploader alone deletes.
async fn must_manage(tx: &Tx, conversation: ConversationId, who: Principal) -> Result<()> {
    let place = conversations::lock(tx, conversation, who).await?;
    match place.kind == ConversationKind::Group && place.is_admin() {
        true => Ok(()),
        false => Err(Code::Forbidden.into()),
    }
}
