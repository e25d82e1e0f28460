use blindpipe_protocol::files::{FileConfirmation, RequestUpload, Sha256Hash, UploadState};
use chrono::{DateTime, Utc};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::{
    db::{Conn, Db},
    error::{Code, Error, Result},
    events::Event,
    features::conversations,
    ids::{AgentId, ConversationId, FileId, Principal, UploadId},
    jobs::Upkeep,
    limits::quotas::{MAX_UPLOADS_AT_ONCE, UPLOAD_TTL, UPLOAD_URL_TTL},
    objects::{Content, ObjectKey, hash_of, registry},
    work::{Tx, UnitOfWork},
};

/// Uploads that a turn of the expiry takes.
const MAX_BATCH_UPLOADS: i64 = 200;

/// A requested upload.
pub struct NewUpload<'a> {
    pub id: UploadId,
    pub owner: Principal,
    /// The session or token of the request.
    pub credential: Uuid,
    pub direct_key: Option<&'a ObjectKey>,
}

/// An upload, for the caller that brings its bytes or confirms it.
pub struct UploadRow {
    pub owner: Principal,
    pub credential: Uuid,
    pub conversation: ConversationId,
    pub state: UploadState,
    pub size: u64,
    pub direct_key: Option<ObjectKey>,
    /// Whether the address still counts: its time has not passed, and its credential is live.
    takes_bytes: bool,
    standing: Option<Standing>,
}

/// The standing of a principal in a conversation.
#[derive(Clone, Copy)]
enum Standing {
    Member,
    /// An agent whose relation has ended.
    Apart,
}

impl Standing {
    /// Refuses those who may not upload.
    fn check(of: Option<Self>) -> Result<()> {
        match of {
            Some(Standing::Member) => Ok(()),
            Some(Standing::Apart) => Err(Code::RelationRevoked.into()),
            None => Err(Code::NotConversationMemberUpload.into()),
        }
    }

    fn read(row: &Row) -> Option<Self> {
        match row.get::<_, Option<bool>>("is_apart") {
            Some(false) => Some(Standing::Member),
            Some(true) => Some(Standing::Apart),
            None => None,
        }
    }
}

impl UploadRow {
    /// Refuses bytes for an upload that has them, or whose address has ended.
    pub fn must_take_bytes(&self) -> Result<()> {
        match self.state {
            UploadState::Pending if !self.takes_bytes => Err(Code::Forbidden.into()),
            UploadState::Pending => Standing::check(self.standing),
            UploadState::Expired => Err(Code::Forbidden.into()),
            state => Err(taken(state)),
        }
    }
}

/// The refusal of bytes for an upload that has them.
fn taken(state: UploadState) -> Error {
    Error::from(Code::VersionMismatch).with("state", state.as_str())
}

async fn standing(client: &Conn, id: ConversationId, who: Principal) -> Result<Option<Standing>> {
    let row = client
        .query_opt(
            "-- files.standing
            select coalesce(r.state = 'revoked', false) as is_apart
            from member m left join relation r on r.relation_id = m.relation_id
            where m.conversation_id = $1 and m.principal_id = $2",
            &[&id, &who.id()],
        )
        .await?;
    Ok(row.as_ref().and_then(Standing::read))
}

/// Records a requested upload; returns the end of its address.
pub async fn insert(
    tx: &Tx,
    upload: &NewUpload<'_>,
    asked: &RequestUpload,
) -> Result<DateTime<Utc>> {
    Standing::check(standing(tx, asked.conversation_id, upload.owner).await?)?;
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
            select u.uploader_kind, u.uploader_id, u.credential_id, u.conversation_id, u.state, u.size, u.direct_key,
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
        credential: row.get("credential_id"),
        conversation: row.get("conversation_id"),
        state: row.get("state"),
        size: u64::try_from(row.get::<_, i64>("size")).unwrap_or_default(),
        direct_key: row
            .get::<_, Option<String>>("direct_key")
            .map(ObjectKey::from_stored),
        takes_bytes: row.get("takes_bytes"),
        standing: Standing::read(&row),
    }))
}

/// Records the key that an upload's bytes go to. Errors: `RATE_LIMITED` if the owner's other uploads
/// are as many as allowed.
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
            let wait = std::time::Duration::from_secs(1);
            let refusal = Error::from(Code::RateLimited)
                .with("retry_after_ms", 1000)
                .with("limit", format!("{MAX_UPLOADS_AT_ONCE} at once"))
                .with("scope", format!("{}_file_upload", owner.kind()));
            return Err(refusal.retry_after(wait));
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
    credential: Uuid,
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
                tx.execute(
                    "-- files.receive
                    update upload set state = 'uploaded', object_key = $2 where upload_id = $1",
                    &[&id, &key.as_str()],
                )
                .await?;
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

async fn is_live(tx: &Tx, credential: Uuid) -> Result<bool> {
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

fn key_of(row: &Row) -> ObjectKey {
    ObjectKey::from_stored(row.get("object_key"))
}

fn content_of(row: &Row) -> Result<Content> {
    Ok(Content {
        size: u64::try_from(row.get::<_, i64>("size")).unwrap_or_default(),
        sha256: hash_of(row.get("sha256"))?,
    })
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
    Standing::check(standing(tx, conversation, owner).await?)?;
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
    let to = recipients.into_iter().map(Principal::id).collect();
    tx.emit(event, Some(conversation), to)?;
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

/// The reader of an object.
pub enum Reader {
    /// A member of the file's conversation, or the agent of an event.
    Principal(Principal),
    /// The holder of an address out of a share: the hash of the share's id.
    Share(String),
    /// The holder of an address of an event's data.
    Event,
}

/// An object that its reader may read.
pub struct Found {
    pub content: Content,
    /// The name of the file; none for a share and for an event's data.
    pub filename: Option<String>,
    /// The agent of an event.
    pub agent: Option<AgentId>,
    /// The conversation of a member's file.
    pub conversation: Option<ConversationId>,
}

/// Finds an object, if the reader has a right to it now.
pub async fn readable(client: &Conn, key: &ObjectKey, reader: &Reader) -> Result<Option<Found>> {
    let row = match reader {
        Reader::Principal(who) => {
            let sql = "-- files.of_member
                select o.size, o.sha256, u.filename, null::uuid as agent_id, u.conversation_id
                from live_object o join upload u on u.object_key = o.object_key and u.state = 'confirmed'
                join active_member m on m.conversation_id = u.conversation_id and m.principal_id = $2
                where o.object_key = $1 and o.sha256 is not null
                union all
                select o.size, o.sha256, null, e.agent_id, null from live_object o join event_object e using (object_key)
                where o.object_key = $1 and e.agent_id = $2 and o.sha256 is not null";
            client.query_opt(sql, &[&key.as_str(), &who.id()]).await?
        }
        Reader::Share(hash) => {
            let sql = "-- files.of_share
                select o.size, o.sha256, null as filename, null::uuid as agent_id, null::uuid as conversation_id
                from live_object o join upload u on u.object_key = o.object_key and u.state = 'confirmed'
                join share s on s.upload_id = u.upload_id and encode(s.share_hash, 'hex') = $2 and s.expires_at > app_now()
                join active_member m on m.conversation_id = u.conversation_id and m.principal_id = s.owner_id
                where o.object_key = $1 and o.sha256 is not null";
            client.query_opt(sql, &[&key.as_str(), hash]).await?
        }
        Reader::Event => {
            let sql = "-- files.of_event
                select o.size, o.sha256, null as filename, e.agent_id, null::uuid as conversation_id
                from live_object o join event_object e using (object_key)
                where o.object_key = $1 and o.sha256 is not null";
            client.query_opt(sql, &[&key.as_str()]).await?
        }
    };
    let found = row.map(|row| {
        Ok(Found {
            content: content_of(&row)?,
            filename: row.get("filename"),
            agent: row.get("agent_id"),
            conversation: row.get("conversation_id"),
        })
    });
    found.transpose()
}

/// Ends uploads that nobody confirmed in time, and forgets old ones. True while there may be more.
pub async fn expire(db: &Db) -> Result<bool> {
    let expired = db
        .read()
        .await?
        .execute(
            "-- files.expire
            with late as materialized (
                select upload_id, object_key, direct_key from upload
                where state in ('pending', 'uploaded') and state <> 'confirmed'
                    and created_at <= app_now() - make_interval(secs => $2)
                order by created_at limit $1 for update skip locked
            ), ended as (
                update object set delete_at = app_now()
                where object_key in (select object_key from late union select direct_key from late) and not is_ending
            )
            update upload u set state = 'expired', object_key = null from late where u.upload_id = late.upload_id",
            &[&MAX_BATCH_UPLOADS, &UPLOAD_TTL.as_secs_f64()],
        )
        .await?;
    let forgotten = db
        .read()
        .await?
        .execute(
            "-- files.forget
            delete from upload where upload_id = any(array(
                select upload_id from upload
                where state in ('expired', 'rejected') and state <> 'confirmed'
                    and created_at <= app_now() - interval '7 days'
                order by created_at limit $1 for update skip locked))",
            &[&MAX_BATCH_UPLOADS],
        )
        .await?;
    Ok(expired + forgotten > 0)
}

/// Ends what an erased principal leaves in the store besides its files: uploads that are not
/// confirmed, and data of events.
pub async fn abandon(tx: &Tx, who: Principal) -> Result<()> {
    tx.execute(
        "-- files.abandon
        with mine as materialized (
            select upload_id, object_key, direct_key from upload
            where uploader_id = $1 and state in ('pending', 'uploaded') order by upload_id for update
        ), keys as (
            select object_key from mine union select direct_key from mine
            union select object_key from event_object where agent_id = $1
        ), ended as (
            update object set delete_at = app_now() where object_key in (select object_key from keys) and not is_ending
        )
        update upload u set state = 'expired', object_key = null from mine where u.upload_id = mine.upload_id",
        &[&who.id()],
    )
    .await?;
    tx.enqueue(Upkeep::SweepObjects.job());
    Ok(())
}
