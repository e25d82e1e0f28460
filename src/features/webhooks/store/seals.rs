//! Webhook secrets by the key that they are sealed under: the first four bytes name it.

use tokio_postgres::Row;

use crate::{db::Db, error::Result, ids::AgentId, work::Tx};

/// Most rows of a batch. Each costs four short encryptions.
const MAX_BATCH_WEBHOOKS: i64 = 500;

/// A webhook with a secret under a key.
pub struct UnderKey {
    pub agent: AgentId,
    pub secret: Vec<u8>,
    pub previous: Option<Vec<u8>>,
    /// The previous secret, while it signs.
    pub valid_previous: Option<Vec<u8>>,
}

/// The numbers of secrets by key.
#[derive(Clone, Copy, Debug)]
pub struct Seals {
    /// Under a key of the ring that is not the first.
    pub old: i64,
    /// Under a key that is not in the ring.
    pub unreadable: i64,
}

fn under_key(row: &Row) -> UnderKey {
    UnderKey {
        agent: row.get("agent_id"),
        secret: row.get("sealed_secret"),
        previous: row.get("sealed_previous"),
        valid_previous: row.get("valid_previous"),
    }
}

/// A batch of webhooks with a secret under one of these keys. Those whose secret is known not to
/// open are left out.
pub async fn under(db: &Db, keys: &[Vec<u8>]) -> Result<Vec<UnderKey>> {
    let client = db.read().await?;
    let rows = client
        .query(
            "-- webhooks.sealed_under
            select w.agent_id, w.sealed_secret, w.sealed_previous,
                case when w.previous_valid_until > app_now() then w.sealed_previous end as valid_previous
            from (
                (select agent_id from webhook
                 where substring(sealed_secret from 1 for 4) = any($1) and last_error is distinct from 'secret_unreadable' limit $2)
                union
                (select agent_id from webhook
                 where substring(sealed_previous from 1 for 4) = any($1) and sealed_secret is not null
                    and last_error is distinct from 'secret_unreadable' limit $2)
            ) found join webhook w on w.agent_id = found.agent_id
            where w.sealed_secret is not null",
            &[&keys, &MAX_BATCH_WEBHOOKS],
        )
        .await?;
    Ok(rows.iter().map(under_key).collect())
}

/// Webhooks whose secret is known not to open, after an agent and in order.
pub async fn unreadable(db: &Db, after: AgentId) -> Result<Vec<UnderKey>> {
    let client = db.read().await?;
    let rows = client
        .query(
            "-- webhooks.unreadable
            select agent_id, sealed_secret, sealed_previous, sealed_previous as valid_previous from webhook
            where last_error = 'secret_unreadable' and sealed_secret is not null and agent_id > $1
            order by agent_id limit $2",
            &[&after, &MAX_BATCH_WEBHOOKS],
        )
        .await?;
    Ok(rows.iter().map(under_key).collect())
}

/// A webhook whose secrets are sealed anew.
pub struct ResealedSecret {
    pub before: UnderKey,
    pub secret: Vec<u8>,
    pub previous: Option<Vec<u8>>,
}

/// Stores secrets that are sealed anew, unless they have changed. Rows that another transaction
/// holds wait for the next run. Returns the number of rows.
pub async fn replace(db: &Db, rows: &[ResealedSecret]) -> Result<u64> {
    if rows.is_empty() {
        return Ok(0);
    }
    let agents: Vec<AgentId> = rows.iter().map(|row| row.before.agent).collect();
    let secrets_before: Vec<&[u8]> = rows.iter().map(|row| &*row.before.secret).collect();
    let secrets: Vec<&[u8]> = rows.iter().map(|row| &*row.secret).collect();
    let previous_before: Vec<Option<&[u8]>> = rows
        .iter()
        .map(|row| row.before.previous.as_deref())
        .collect();
    let previous: Vec<Option<&[u8]>> = rows.iter().map(|row| row.previous.as_deref()).collect();
    let client = db.write().await?;
    let replaced = client
        .execute(
            "-- webhooks.reseal
            with said as materialized (
                select * from unnest($1::uuid[], $2::bytea[], $3::bytea[], $4::bytea[], $5::bytea[])
                    as said (agent_id, secret_before, secret, previous_before, previous)
            ), held as materialized (
                select w.agent_id, said.secret, said.previous from webhook w join said on said.agent_id = w.agent_id
                where w.sealed_secret = said.secret_before
                    and w.sealed_previous is not distinct from said.previous_before
                order by w.agent_id for no key update of w skip locked
            )
            update webhook w set sealed_secret = held.secret, sealed_previous = held.previous
            from held where w.agent_id = held.agent_id",
            &[
                &agents,
                &secrets_before,
                &secrets,
                &previous_before,
                &previous,
            ],
        )
        .await?;
    Ok(replaced)
}

/// Counts the secrets that are not under the first key.
pub async fn count(db: &Db, current: &[u8], others: &[Vec<u8>]) -> Result<Seals> {
    let client = db.read().await?;
    let row = client
        .query_one(
            "-- webhooks.count_seals
            select count(*) filter (where name = any($2)) as old, count(*) filter (where name <> all($2)) as unreadable
            from (
                select substring(sealed_secret from 1 for 4) as name from webhook
                where substring(sealed_secret from 1 for 4) < $1
                union all
                select substring(sealed_secret from 1 for 4) from webhook
                where substring(sealed_secret from 1 for 4) > $1
                union all
                select substring(sealed_previous from 1 for 4) from webhook
                where substring(sealed_previous from 1 for 4) < $1 and previous_valid_until > app_now()
                union all
                select substring(sealed_previous from 1 for 4) from webhook
                where substring(sealed_previous from 1 for 4) > $1 and previous_valid_until > app_now()
            ) sealed",
            &[&current, &others],
        )
        .await?;
    Ok(Seals {
        old: row.get("old"),
        unreadable: row.get("unreadable"),
    })
}

/// Sets the reason of the last failure that the webhook shows. Its row is locked.
pub async fn set_error(tx: &Tx, agent: AgentId, error: Option<&str>) -> Result<()> {
    tx.execute(
        "-- webhooks.set_error
        update webhook set last_error = $2 where agent_id = $1",
        &[&agent, &error],
    )
    .await?;
    Ok(())
}
