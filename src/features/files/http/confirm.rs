//! `POST /files/confirm`.

use std::{convert::Infallible, time::Duration};

use axum::extract::State;
use blindpipe_protocol::files::{ConfirmUpload, ConfirmedUpload, UploadState};
use tokio::time::Instant;

use crate::{
    auth::caller::Caller,
    error::{Code, Error, Result},
    features::files::store::{self, Adoption, UploadRow},
    http::{Data, Json, client::ClientIp},
    ids::{FileId, UploadId},
    metrics,
    objects::{ObjectKey, Objects, registry},
    work::UnitOfWork,
};

/// Life of the row of a copy that is being made and hashed.
const COPY_LEASE: Duration = Duration::from_secs(900);
/// Time for which a confirmation alone takes over an upload's bytes without a renewal.
const ADOPTION_LEASE: Duration = Duration::from_secs(30);
/// Longest wait for another confirmation that takes the bytes over.
const MAX_ADOPTION_WAIT: Duration = Duration::from_secs(10);
/// Pause between two looks at what another confirmation has done.
const ADOPTION_POLL: Duration = Duration::from_millis(200);

/// `POST /files/confirm`: makes an upload a file of its conversation.
///
/// Caller: the user or agent that requested the upload. Body `{upload_id, sha256}`. Answers 200
/// with [`ConfirmedUpload`], also when it is repeated. Publishes `file.confirmed` to the members.
/// Errors: `NOT_FOUND`, `UPLOAD_INCOMPLETE`, `SHA256_MISMATCH` (the bytes are destroyed),
/// `NOT_CONVERSATION_MEMBER_UPLOAD`, `RELATION_REVOKED`, 503 while another confirmation takes the
/// bytes over.
pub async fn confirm(
    caller: Caller,
    State(work): State<UnitOfWork>,
    State(objects): State<Objects>,
    ip: ClientIp,
    Json(body): Json<ConfirmUpload>,
) -> Result<Data<ConfirmedUpload>> {
    let (owner, id) = (caller.principal(), body.upload_id);
    let row = store::find(work.db(), id).await?;
    let row = row.filter(|row| row.owner == owner).ok_or(Code::NotFound)?;
    if row.state == UploadState::Pending {
        adopt_once(&work, &objects, id, (&row, ip)).await?;
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

/// Takes over the bytes of an upload, unless another confirmation does so: then it waits for that
/// one. Errors: 503 if that takes too long.
async fn adopt_once(
    work: &UnitOfWork,
    objects: &Objects,
    id: UploadId,
    (row, ip): (&UploadRow, ClientIp),
) -> Result<()> {
    let direct = row.direct_key.as_ref().ok_or(Code::UploadIncomplete)?;
    let began = Instant::now();
    loop {
        match store::begin_adoption(work.db(), id, ADOPTION_LEASE).await? {
            Adoption::Begun => break,
            Adoption::Over => return Ok(()),
            Adoption::Elsewhere if began.elapsed() < MAX_ADOPTION_WAIT => {
                tokio::time::sleep(ADOPTION_POLL).await;
            }
            Adoption::Elsewhere => return Err(Error::full()),
        }
    }
    let adopted = tokio::select! {
        adopted = adopt(work, objects, id, (row, ip), direct) => adopted,
        never = keep_adoption(work, id) => match never {},
    };
    if adopted.is_err()
        && let Err(error) = store::end_adoption(work.db(), id).await
    {
        error.log_in("files.end_adoption", "others wait for the end of its lease");
    }
    adopted
}

async fn keep_adoption(work: &UnitOfWork, id: UploadId) -> Infallible {
    loop {
        tokio::time::sleep(ADOPTION_LEASE / 3).await;
        if let Err(error) = store::renew_adoption(work.db(), id, ADOPTION_LEASE).await {
            error.log_in(
                "files.renew_adoption",
                "it is tried again before the lease ends",
            );
        }
    }
}

/// Takes over bytes that the client wrote to the store itself. They are copied to a key that no
/// address of the client leads to, and hashed there. Errors: `UPLOAD_INCOMPLETE` if they are not
/// there, or not as many as declared.
async fn adopt(
    work: &UnitOfWork,
    objects: &Objects,
    id: UploadId,
    (row, ip): (&UploadRow, ClientIp),
    direct: &ObjectKey,
) -> Result<()> {
    let _place = objects.upload_permits.take(row.account, ip).await?;
    if objects.backend.size(direct).await? != Some(row.size) {
        return Err(Code::UploadIncomplete.into());
    }
    let key = objects.new_key();
    registry::begin(&work.db().write().await?, &key, None, COPY_LEASE).await?;
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
