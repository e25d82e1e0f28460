//! Requested uploads, and the arrival of their bytes.

use std::time::Duration;

use blindpipe_protocol::files::{RequestUpload, UploadState};
use chrono::{DateTime, Utc};

use super::{Membership, lock, membership};
use crate::{
    db::Db,
    error::{Code, Error, Result},
    ids::{ConversationId, CredentialId, Principal, UploadId, UserId},
    jobs::Upkeep,
    limits::quotas::{MAX_UPLOADS_AT_ONCE, UPLOAD_TTL, UPLOAD_URL_TTL},
    objects::{Content, ObjectKey, registry},
    work::{Tx, UnitOfWork},
};

/// A requested upload.
pub struct NewUpload<'a> {
    pub id: UploadId,
    pub owner: Principal,
    /// The session or token of the request.
    pub credential: CredentialId,
    pub direct_key: Option<&'a ObjectKey>,
}

/// An upload, for the caller that brings its bytes or confirms it.
pub struct UploadRow {
    pub owner: Principal,
    /// The account of the owner: the owner itself, or the user of the agent.
    pub account: UserId,
    pub credential: CredentialId,
    pub conversation: ConversationId,
    pub state: UploadState,
    pub size: u64,
    pub direct_key: Option<ObjectKey>,
    /// Whether the address still counts: its time has not passed, and its credential is live.
    takes_bytes: bool,
    membership: Option<Membership>,
}

impl UploadRow {
    /// Refuses bytes for an upload that has them, or whose address has ended.
    pub fn must_take_bytes(&self) -> Result<()> {
        match self.state {
            UploadState::Pending if !self.takes_bytes => Err(Code::Forbidden.into()),
            UploadState::Pending => Membership::check(self.membership),
            UploadState::Expired => Err(Code::Forbidden.into()),
            state => Err(taken(state)),
        }
    }
}

/// The refusal of bytes for an upload that has them.
fn taken(state: UploadState) -> Error {
    Error::from(Code::VersionMismatch).with("state", state.as_str())
}

/// Records a requested upload; returns the end of its address.
pub async fn insert(
    tx: &Tx,
    upload: &NewUpload<'_>,
    asked: &RequestUpload,
) -> Result<DateTime<Utc>> {
    Membership::check(membership(tx, asked.conversation_id, upload.owner).await?)?;
    let size = i64::try_from(asked.size).unwrap_or(i64::MAX);
    let row = tx
        .query_one(
            "-- files.insert
            insert into upload (upload_id, conversation_id, uploader_id, uploader_kind, credential_id, filename,
                                content_type, size, direct_key, url_expires_at)
            values ($1, $2, $3, $4, $5, $6, $7, $8, $9, date_trunc('second', app_now()) + make_interval(secs => $10))
            returning url_expires_at",
            &[
                &upload.id,
                &asked.conversation_id,
                &upload.owner.id(),
                &upload.owner.kind(),
                &upload.credential,
                &asked.filename.0,
                &asked.content_type.0,
                &size,
                &upload.direct_key.map(ObjectKey::as_str),
                &UPLOAD_URL_TTL.as_secs_f64(),
            ],
        )
        .await?;
    Ok(row.get("url_expires_at"))
}

/// Finds an upload.
pub async fn find(db: &Db, id: UploadId) -> Result<Option<UploadRow>> {
    let row = db
        .read()
        .await?
        .query_opt(
            "-- files.find
            select u.uploader_kind, u.uploader_id,
                   coalesce((select owner_user_id from agent where agent_id = u.uploader_id), u.uploader_id) as account_id,
                   u.credential_id, u.conversation_id, u.state, u.size, u.direct_key,
                   u.url_expires_at > app_now() and (
                       exists (select from live_session where session_id = u.credential_id)
                       or exists (select from live_agent_token where token_id = u.credential_id)) as takes_bytes,
                   case when m.principal_id is not null then coalesce(r.state = 'revoked', false) end as is_apart
            from upload u
            left join member m on m.conversation_id = u.conversation_id and m.principal_id = u.uploader_id
            left join relation r on r.relation_id = m.relation_id
            where u.upload_id = $1",
            &[&id],
        )
        .await?;
    Ok(row.map(|row| UploadRow {
        owner: Principal::from_row(row.get("uploader_kind"), row.get("uploader_id")),
        account: row.get("account_id"),
        credential: row.get("credential_id"),
        conversation: row.get("conversation_id"),
        state: row.get("state"),
        size: u64::try_from(row.get::<_, i64>("size")).unwrap_or_default(),
        direct_key: row
            .get::<_, Option<String>>("direct_key")
            .map(ObjectKey::from_stored),
        takes_bytes: row.get("takes_bytes"),
        membership: Membership::read(&row),
    }))
}

/// Records the key that an upload's bytes go to. Errors: `RATE_LIMITED` if the owner's other
/// uploads are as many as allowed.
pub async fn begin(work: &UnitOfWork, key: &ObjectKey, owner: Principal) -> Result<()> {
    let beginning = work.run("files.begin", async |tx| {
        // Requests of one owner are counted one after the other.
        tx.execute(
            "-- files.count_in_turn
            select pg_advisory_xact_lock(hashtextextended($1::text, 0))",
            &[&owner.to_string()],
        )
        .await?;
        if registry::count_writes(tx, owner.id()).await? >= MAX_UPLOADS_AT_ONCE {
            return Err(Error::too_many(
                format!("{MAX_UPLOADS_AT_ONCE} at once"),
                format!("{}_file_upload", owner.kind()),
                Duration::from_secs(1),
            ));
        }
        registry::begin(tx, key, Some(owner.id()), registry::WRITE_LEASE).await
    });
    beginning.await
}

/// Gives up a key. If that fails, the sweep takes it after its lease.
pub async fn discard(work: &UnitOfWork, key: &ObjectKey) {
    let discarding = work.run("files.discard", async |tx| {
        registry::end(tx, key).await?;
        tx.enqueue(Upkeep::SweepObjects.job());
        Ok(())
    });
    if let Err(error) = discarding.await {
        error.log_in(
            "files.discard",
            "the sweep takes the object after its lease",
        );
    }
}

/// Gives an upload its bytes, if it has none and the credential is still live. The bytes go
/// otherwise.
pub async fn received(
    work: &UnitOfWork,
    id: UploadId,
    credential: CredentialId,
    owner: Principal,
    key: &ObjectKey,
    content: Content,
) -> Result<()> {
    let receiving = work.run("files.receive", async |tx| {
        let state = lock(tx, id, owner).await?;
        if !registry::complete(tx, key, content, Some(UPLOAD_TTL)).await? {
            return Err(Error::unavailable("the write has lost its lease"));
        }
        let refusal = match state {
            Some(UploadState::Pending) if is_live(tx, credential).await? => {
                let row = tx
                    .query_one(
                        "-- files.receive
                        update upload set state = 'uploaded', object_key = $2 where upload_id = $1
                        returning direct_key, url_expires_at + interval '1 hour' as written_until",
                        &[&id, &key.as_str()],
                    )
                    .await?;
                if let Some(direct) = row.get::<_, Option<&str>>("direct_key") {
                    registry::end_by(tx, direct, row.get("written_until")).await?;
                }
                return Ok(());
            }
            Some(UploadState::Pending) => match owner {
                Principal::User(_) => Code::Unauthorized.into(),
                Principal::Agent(_) => Code::AgentTokenInvalid.into(),
            },
            Some(state) => taken(state),
            None => Code::NotFound.into(),
        };
        registry::end(tx, key).await?;
        tx.enqueue(Upkeep::SweepObjects.job());
        tx.commit_with(refusal)
    });
    receiving.await
}

async fn is_live(tx: &Tx, credential: CredentialId) -> Result<bool> {
    let row = tx
        .query_one(
            "-- files.is_live
            select exists (select from live_session where session_id = $1)
                or exists (select from live_agent_token where token_id = $1) as is_live",
            &[&credential],
        )
        .await?;
    Ok(row.get("is_live"))
}

/// The caller that takes over the bytes of a client's own write to the store.
pub enum Adoption {
    /// The caller, for the time of its lease.
    Begun,
    /// Another confirmation.
    Elsewhere,
    /// Nobody any more: the upload is not pending.
    Over,
}

/// Leases the bytes of a pending upload, unless another confirmation has them.
pub async fn begin_adoption(db: &Db, id: UploadId, lease: Duration) -> Result<Adoption> {
    let row = db
        .write()
        .await?
        .query_one(
            "-- files.begin_adoption
            with begun as (
                update upload set adopted_until = app_now() + make_interval(secs => $2)
                where upload_id = $1 and state = 'pending' and (adopted_until is null or adopted_until <= app_now())
                returning upload_id
            )
            select exists (select from begun) as is_begun,
                exists (select from upload where upload_id = $1 and state = 'pending') as is_pending",
            &[&id, &lease.as_secs_f64()],
        )
        .await?;
    Ok(match (row.get("is_begun"), row.get("is_pending")) {
        (true, _) => Adoption::Begun,
        (false, true) => Adoption::Elsewhere,
        (false, false) => Adoption::Over,
    })
}

/// Prolongs the caller's lease.
pub async fn renew_adoption(db: &Db, id: UploadId, lease: Duration) -> Result<()> {
    db.write()
        .await?
        .execute(
            "-- files.renew_adoption
            update upload set adopted_until = app_now() + make_interval(secs => $2)
            where upload_id = $1 and state = 'pending'",
            &[&id, &lease.as_secs_f64()],
        )
        .await?;
    Ok(())
}

/// Ends the caller's lease, so that the next confirmation need not wait for its end.
pub async fn end_adoption(db: &Db, id: UploadId) -> Result<()> {
    db.write()
        .await?
        .execute(
            "-- files.end_adoption
            update upload set adopted_until = null where upload_id = $1 and state = 'pending'",
            &[&id],
        )
        .await?;
    Ok(())
}
