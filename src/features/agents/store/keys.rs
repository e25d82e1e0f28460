use blindpipe_protocol::{agents::AgentKeyEnding, keys::Introduction, time::Timestamp};
use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use super::seconds;
use crate::{
    db::{Conn, Db},
    error::Result,
    events::Event,
    features::{agents::proof::Keys, keys::introduction},
    ids::{AgentId, UserId},
    limits::quotas::{AGENT_GRACE, MAX_AGENT_KEYS},
    work::Tx,
};

/// Most keys that a transaction tells of.
const MAX_BATCH_NOTICES: i64 = 100;

/// A valid key of an agent.
pub struct Key {
    pub id: String,
    pub public: Vec<u8>,
    pub signing: Vec<u8>,
    pub schemes: Vec<String>,
    pub introduction: Option<Introduction>,
    pub created_at: DateTime<Utc>,
    /// The end of its grace, or none for the current key.
    pub valid_until: Option<DateTime<Utc>>,
}

/// The valid keys: the current one first, then by remaining grace.
pub async fn keys(client: &Conn, agent: AgentId) -> Result<Vec<Key>> {
    let key = |row: &Row| Key {
        id: row.get("key_id"),
        public: row.get("public_key"),
        signing: row.get("signing_public_key"),
        schemes: row.get("schemes"),
        introduction: introduction(row),
        created_at: row.get("created_at"),
        valid_until: row.get("valid_until"),
    };
    Ok(client
        .query(
            "-- agents.keys
            select k.key_id, k.public_key, k.signing_public_key, p.schemes, p.introduced_by, p.introduction, k.created_at,
                   k.valid_until
            from agent_key k join public_key p on p.principal_id = k.agent_id and p.device_id = '' and p.key_id = k.key_id
            where k.agent_id = $1 and (k.valid_until is null or k.valid_until > app_now())
            order by k.valid_until desc nulls first, k.key_id",
            &[&agent],
        )
        .await?
        .iter()
        .map(key)
        .collect())
}

/// The version of an agent's list of keys.
pub async fn key_list_version(client: &Conn, agent: AgentId) -> Result<i32> {
    let row = client
        .query_one(
            "-- agents.key_list_version
            select key_list_version from agent where agent_id = $1",
            &[&agent],
        )
        .await?;
    Ok(row.get("key_list_version"))
}

/// Notes a change in what the agent says of its keys.
pub async fn bump_list(tx: &Tx, agent: AgentId) -> Result<()> {
    tx.execute(
        "-- agents.bump_list
        update agent set key_list_version = key_list_version + 1 where agent_id = $1",
        &[&agent],
    )
    .await?;
    Ok(())
}

/// Starts the grace of the current key, unless its id is `but`.
pub async fn end_current_key(tx: &Tx, agent: AgentId, but: &str) -> Result<()> {
    tx.execute(
        "-- agents.end_current_key
        update agent_key set valid_until = app_now() + make_interval(secs => $3), notice_days = null
        where agent_id = $1 and key_id <> $2 and valid_until is null",
        &[&agent, &but, &seconds(AGENT_GRACE)],
    )
    .await?;
    Ok(())
}

/// Makes a key the current one. The oldest keys in grace make room for it.
pub async fn put_key(tx: &Tx, agent: AgentId, keys: &Keys) -> Result<()> {
    tx.execute(
        "-- agents.put_key
        insert into agent_key as k (agent_id, key_id, public_key, signing_public_key) values ($1, $2, $3, $4)
        on conflict (agent_id, key_id) do update
            set valid_until = null, created_at = case when k.valid_until is null then k.created_at else app_now() end",
        &[
            &agent,
            &keys.id(),
            &keys.public.as_slice(),
            &keys.signing.as_slice(),
        ],
    )
    .await?;
    tx.execute(
        "-- agents.trim_keys
        delete from agent_key where agent_id = $1 and key_id in (
            select key_id from agent_key where agent_id = $1
            order by valid_until desc nulls first offset $2
        )",
        &[&agent, &MAX_AGENT_KEYS],
    )
    .await?;
    Ok(())
}

/// Ends all keys.
pub async fn end_keys(tx: &Tx, agent: AgentId) -> Result<()> {
    tx.execute(
        "-- agents.end_keys
        delete from agent_key where agent_id = $1",
        &[&agent],
    )
    .await?;
    Ok(())
}

/// Some agents with a key whose grace is over, after the last one seen.
pub async fn with_ended_keys(
    db: &Db,
    after: Option<(DateTime<Utc>, AgentId)>,
) -> Result<Vec<(DateTime<Utc>, AgentId)>> {
    let client = db.read().await?;
    let (moment, agent) = after.unzip();
    Ok(client
        .query(
            "-- agents.with_ended_keys
            select valid_until, agent_id from agent_key
            where valid_until <= app_now() and (valid_until, agent_id)
                > (coalesce($1, '-infinity'::timestamptz), coalesce($2, '00000000-0000-0000-0000-000000000000'::uuid))
            order by valid_until, agent_id limit 200",
            &[&moment, &agent],
        )
        .await?
        .iter()
        .map(|row| (row.get("valid_until"), row.get("agent_id")))
        .collect())
}

/// Tells agents and owners of some keys whose grace ends within three days, and again within a
/// day. True while there may be more.
pub async fn publish_ending_keys(tx: &Tx) -> Result<bool> {
    let rows = tx
        .query(
            "-- agents.note_ending_keys
            with due as materialized (
                select agent_id, key_id, case when valid_until <= app_now() + interval '1 day' then 1 else 3 end as days
                from agent_key
                where valid_until > app_now() and valid_until <= app_now() + interval '3 days'
                    and (notice_days is null or notice_days > 1 and valid_until <= app_now() + interval '1 day')
                order by valid_until limit $1
                for update skip locked
            )
            update agent_key k set notice_days = due.days
            from due join agent a using (agent_id)
            where (k.agent_id, k.key_id) = (due.agent_id, due.key_id)
            returning k.agent_id, k.key_id, k.valid_until, a.owner_user_id",
            &[&MAX_BATCH_NOTICES],
        )
        .await?;
    for row in &rows {
        let (agent, owner): (AgentId, UserId) = (row.get("agent_id"), row.get("owner_user_id"));
        let ending = AgentKeyEnding {
            agent_id: agent,
            key_id: row.get("key_id"),
            valid_until: Timestamp(row.get("valid_until")),
        };
        tx.emit(
            Event::AgentKeyEnding(ending),
            None,
            vec![agent.into(), owner.into()],
        )?;
    }
    Ok(i64::try_from(rows.len()) == Ok(MAX_BATCH_NOTICES))
}

/// Deletes an agent's keys whose grace is over. True if any key is left.
pub async fn retire_keys(tx: &Tx, agent: AgentId) -> Result<bool> {
    tx.execute(
        "-- agents.retire_keys
        delete from agent_key where agent_id = $1 and valid_until <= app_now()",
        &[&agent],
    )
    .await?;
    Ok(tx
        .query_opt(
            "-- agents.has_key
            select 1 from agent_key where agent_id = $1 limit 1",
            &[&agent],
        )
        .await?
        .is_some())
}
