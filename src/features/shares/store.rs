use blindpipe_protocol::{
    shares::{CreateShare, ShareKind},
    text::Filename,
};
use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;

use super::rules::Subject;
use crate::{
    auth::user::User,
    db::{Conn, Db},
    error::Result,
    ids::{AgentId, Principal, UserId},
    objects::{Content, ObjectKey, hash_of},
    work::Tx,
};

/// Shares that a round of the upkeep forgets.
const MAX_BATCH_SHARES: i64 = 1000;

/// Records a share; false if the owner may not share this.
pub async fn insert(
    tx: &Tx,
    hash: &[u8; 32],
    owner: &User,
    subject: Subject,
    asked: &CreateShare,
) -> Result<bool> {
    let (kind, upload, agent) = match subject {
        Subject::File(file) => (ShareKind::File, Some(file), None),
        Subject::Agent(agent) => (ShareKind::Agent, None, Some(agent)),
        Subject::Contact => (ShareKind::Contact, None, None),
    };
    let made = tx
        .execute(
            "-- shares.insert
            insert into share (share_hash, owner_id, kind, upload_id, agent_id, expires_at, max_access_count, session_id)
            select $1, $2, $3, $4, $5, $6, $7, $8
            where $3 = 'contact'
                or exists (
                    select from upload u join live_object o using (object_key)
                    join active_member m on m.conversation_id = u.conversation_id and m.principal_id = $2
                    where u.upload_id = $4 and u.state = 'confirmed')
                or exists (
                    select from agent a where a.agent_id = $5 and a.state <> 'deleted' and (
                        a.owner_user_id = $2 or exists (
                            select from relation r where r.user_id = $2 and r.agent_id = $5 and r.state = 'active')))",
            &[
                &hash.as_slice(),
                &owner.id,
                &kind,
                &upload,
                &agent,
                &asked.expires_at,
                &asked.max_access_count,
                &owner.session,
            ],
        )
        .await?;
    Ok(made > 0)
}

/// Counts `downloads` of a share's file, by the hexadecimal hash of the share; false if the share
/// has none left. The row's lock makes the count exact.
pub fn count_downloads<'a>(
    client: &'a Conn,
    share: &'a str,
    downloads: i32,
) -> BoxFuture<'a, Result<bool>> {
    Box::pin(async move {
        let counted = client
            .execute(
                "-- shares.count_downloads
                update share set access_count = access_count + $2
                where share_hash = decode($1, 'hex') and expires_at > app_now()
                    and (max_access_count is null or access_count < max_access_count)",
                &[&share, &downloads],
            )
            .await?;
        Ok(counted > 0)
    })
}

/// A share that opens.
pub struct OpenedShare {
    pub target: ShareTarget,
    /// The end of the share.
    pub expires_at: DateTime<Utc>,
}

/// The target of an open share.
pub enum ShareTarget {
    File(ObjectKey, Content, Filename),
    /// Id, display name and purpose.
    Agent(AgentId, String, Option<String>),
    /// Id and display name.
    Contact(UserId, String),
}

/// Opens a share; none if it does not open. A card counts as `accesses`. A file counts when it is
/// downloaded. The row's lock makes the count exact.
pub async fn open(db: &Db, hash: &[u8; 32], accesses: i32) -> Result<Option<OpenedShare>> {
    let row = db
        .write()
        .await?
        .query_opt(
            "-- shares.open
            update share s set access_count = s.access_count + case when s.kind = 'file' then 0 else $2 end
            from share t
            join user_account owner on owner.user_id = t.owner_id and owner.deleted_at is null
            left join upload u on u.upload_id = t.upload_id and u.state = 'confirmed'
                and exists (select from active_member m where m.conversation_id = u.conversation_id and m.principal_id = t.owner_id)
            left join live_object o on o.object_key = u.object_key
            left join agent a on a.agent_id = t.agent_id and a.state <> 'deleted'
            where s.share_hash = $1 and t.share_hash = $1 and s.expires_at > app_now()
                and (s.max_access_count is null or s.access_count < s.max_access_count)
                and (s.kind = 'contact' or a.agent_id is not null or o.sha256 is not null)
            returning s.kind, s.expires_at, s.owner_id, owner.display_name as owner_name, a.agent_id, a.display_name, a.description,
                o.object_key, o.size, o.sha256, u.filename",
            &[&hash.as_slice(), &accesses],
        )
        .await?;
    let Some(row) = row else { return Ok(None) };
    let target = match row.get("kind") {
        ShareKind::File => ShareTarget::File(
            ObjectKey::from_stored(row.get("object_key")),
            Content {
                size: u64::try_from(row.get::<_, i64>("size")).unwrap_or_default(),
                sha256: hash_of(row.get("sha256"))?,
            },
            Filename(row.get("filename")),
        ),
        ShareKind::Agent => ShareTarget::Agent(
            row.get("agent_id"),
            row.get("display_name"),
            row.get("description"),
        ),
        ShareKind::Contact => ShareTarget::Contact(row.get("owner_id"), row.get("owner_name")),
    };
    let expires_at = row.get("expires_at");
    Ok(Some(OpenedShare { target, expires_at }))
}

/// Deletes a share of the owner's; false if there is none.
pub async fn delete(client: &Conn, hash: &[u8], owner: UserId) -> Result<bool> {
    let deleted = client
        .execute(
            "-- shares.delete
            delete from share where share_hash = $1 and owner_id = $2",
            &[&hash, &owner],
        )
        .await?;
    Ok(deleted > 0)
}

/// Deletes some shares of an erased user, or of an erased agent's card. False if none was left.
pub async fn end_some(tx: &Tx, who: Principal) -> Result<bool> {
    let deleted = tx
        .execute(
            "-- shares.end_some
            delete from share where share_hash = any(array(
                select share_hash from share where owner_id = $1 or agent_id = $1 limit $2))",
            &[&who.id(), &MAX_BATCH_SHARES],
        )
        .await?;
    Ok(deleted > 0)
}

/// Deletes some expired shares. True while there may be more.
pub async fn forget(db: &Db) -> Result<bool> {
    let deleted = db
        .write()
        .await?
        .execute(
            "-- shares.forget
            delete from share where share_hash = any(array(
                select share_hash from share where expires_at <= app_now() limit $1 for update skip locked))",
            &[&MAX_BATCH_SHARES],
        )
        .await?;
    Ok(deleted > 0)
}
