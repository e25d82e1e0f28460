//! `POST /files/confirm`.

use std::time::Duration;

use axum::extract::State;
use blindpipe_protocol::files::{ConfirmUpload, ConfirmedUpload, UploadState};

use crate::{
    auth::caller::Caller,
    error::{Code, Error, Result},
    features::files::store::{self, UploadRow},
    http::{Data, Json},
    ids::{FileId, UploadId},
    metrics,
    objects::{Objects, registry},
    work::UnitOfWork,
};

/// Time that a node has to copy and hash bytes that a client wrote to the store itself.
const ADOPTION_LEASE: Duration = Duration::from_secs(900);

/// `POST /files/confirm`: makes an upload a file of its conversation.
///
/// Caller: the user or agent that requested the upload. Body `{upload_id, sha256}`. Answers 200
/// with [`ConfirmedUpload`], also when it is repeated. Publishes `file.confirmed` to the members.
/// Errors: `NOT_FOUND`, `UPLOAD_INCOMPLETE`, `SHA256_MISMATCH` (the bytes are destroyed),
/// `NOT_CONVERSATION_MEMBER_UPLOAD`, `RELATION_REVOKED`.
pub async fn confirm(
    caller: Caller,
    State(work): State<UnitOfWork>,
    State(objects): State<Objects>,
    Json(body): Json<ConfirmUpload>,
) -> Result<Data<ConfirmedUpload>> {
    let (owner, id) = (caller.principal(), body.upload_id);
    let row = store::find(work.db(), id).await?;
    let row = row.filter(|row| row.owner == owner).ok_or(Code::NotFound)?;
    if row.state == UploadState::Pending {
        adopt(&work, &objects, id, &row).await?;
    }
    must_be_stored(&work, &objects, id).await?;
    let confirming = work.run("files.confirm", async |tx| {
        store::confirm(tx, id, row.conversation, owner, body.sha256).await
    });
    let (key, content) = confirming.await.inspect_err(|refusal| {
        if refusal.code() == Code::Sha256Mismatch {
            metrics::upload("sha256_mismatch");
        }
    })?;
    metrics::upload("confirmed");
    Ok(Data(ConfirmedUpload {
        file_id: FileId(id.0),
        object_key: key.as_str().to_owned(),
        size: content.size,
        sha256: content.sha256,
        state: UploadState::Confirmed,
    }))
}

/// Refuses bytes that the store has lost, or that were replaced by others of another size, between
/// the PUT and the confirmation.
async fn must_be_stored(work: &UnitOfWork, objects: &Objects, id: UploadId) -> Result<()> {
    let Some((key, content)) = store::received_object(work.db(), id).await? else {
        return Ok(());
    };
    match objects.is_stored(&key, &content).await? {
        true => Ok(()),
        false => Err(Code::UploadIncomplete.into()),
    }
}

/// Takes over bytes that the client wrote to the store itself. They are copied to a key that no
/// address of the client leads to, and hashed there. Errors: `UPLOAD_INCOMPLETE` if they are not
/// there, or not as many as declared.
async fn adopt(work: &UnitOfWork, objects: &Objects, id: UploadId, row: &UploadRow) -> Result<()> {
    let direct = row.direct_key.as_ref().ok_or(Code::UploadIncomplete)?;
    if objects.backend.size(direct).await? != Some(row.size) {
        return Err(Code::UploadIncomplete.into());
    }
    let key = objects.new_key();
    registry::begin(&work.db().write().await?, &key, None, ADOPTION_LEASE).await?;
    let copied = objects.backend.copy(direct, &key).await?;
    // A last write of the client may have come before the copy.
    if !copied || objects.backend.size(&key).await? != Some(row.size) {
        store::discard(work, &key).await;
        return Err(Code::UploadIncomplete.into());
    }
    let content = objects.content(&key).await?;
    let content = content.ok_or_else(|| Error::unavailable("the store has lost a copy"))?;
    let received = store::received(work, id, row.credential, row.owner, &key, content);
    match received.await {
        // Another confirm has taken the bytes over meanwhile.
        Err(error) if error.code() == Code::VersionMismatch => Ok(()),
        outcome => outcome,
    }
}
