use blindpipe_protocol::blocks::{Block, Blocked};
use uuid::Uuid;

use crate::{
    auth::user::{User, lock_live_session},
    db::Db,
    error::{Code, Result},
    features::relations,
    http::page,
    ids::{Principal, PrincipalId, UserId},
    work::Tx,
};

/// Those of `users` who have blocked `who`. The caller has locked their accounts for sharing, so
/// none of them blocks before the transaction ends.
pub async fn blockers(tx: &Tx, users: &[UserId], who: UserId) -> Result<Vec<UserId>> {
    Ok(tx
        .query(
            "-- blocks.blockers
            select user_id from block where user_id = any($1) and blocked_id = $2",
            &[&users, &who],
        )
        .await?
        .iter()
        .map(|row| row.get("user_id"))
        .collect())
}

/// Whether `user` has blocked `who`. The caller has locked the user's account for sharing.
pub async fn is_blocked(tx: &Tx, user: UserId, who: PrincipalId) -> Result<bool> {
    let row = tx
        .query_opt(
            "-- blocks.find
            select 1 from block where user_id = $1 and blocked_id = $2",
            &[&user, &who],
        )
        .await?;
    Ok(row.is_some())
}

/// Blocks a principal, and ends the relation with an agent.
pub async fn put(tx: &Tx, user: &User, who: Principal) -> Result<Blocked> {
    // Openings share this row. The lock comes before that of the session, which shares it too.
    tx.execute(
        "-- blocks.lock
        select 1 from user_account where user_id = $1 for no key update",
        &[&user.id],
    )
    .await?;
    lock_live_session(tx, user.id, user.session).await?;
    must_exist(tx, who).await?;
    let row = tx
        .query_one(
            "-- blocks.put
            insert into block (block_id, user_id, blocked_id, blocked_kind) values ($1, $2, $3, $4)
            on conflict on constraint block_pair do update set blocked_kind = excluded.blocked_kind
            returning blocked_at",
            &[&tx.random().ulid(), &user.id, &who.id(), &who.kind()],
        )
        .await?;
    if let Principal::Agent(agent) = who {
        relations::end_with(tx, user.id, agent).await?;
    }
    Ok(Blocked {
        principal_id: who,
        blocked_at: row.get("blocked_at"),
    })
}

/// Ends a block, if there is one.
pub async fn remove(tx: &Tx, user: UserId, who: Principal) -> Result<()> {
    let removed = tx
        .execute(
            "-- blocks.remove
            delete from block where user_id = $1 and blocked_id = $2",
            &[&user, &who.id()],
        )
        .await?;
    // A principal that is gone may still be on the list.
    if removed == 0 {
        must_exist(tx, who).await?;
    }
    Ok(())
}

async fn must_exist(tx: &Tx, who: Principal) -> Result<()> {
    tx.query_opt(
        "-- blocks.exists
        select 1 from user_account where user_id = $1 and deleted_at is null
        union all select 1 from agent where agent_id = $1 and state <> 'deleted'",
        &[&who.id()],
    )
    .await?
    .ok_or(Code::NotFound)?;
    Ok(())
}

/// A page of the list, newest first. Refuses a cursor that is not on the list.
pub async fn list(
    db: &Db,
    user: UserId,
    cursor: Option<Principal>,
    rows: i64,
) -> Result<Vec<Block>> {
    let client = db.read().await?;
    let after: Option<Uuid> = match cursor {
        None => None,
        Some(cursor) => {
            let row = client
                .query_opt(
                    "-- blocks.cursor
                    select block_id from block where user_id = $1 and blocked_id = $2",
                    &[&user, &cursor.id()],
                )
                .await?
                .ok_or_else(page::unknown)?;
            Some(row.get("block_id"))
        }
    };
    let rows = client
        .query(
            "-- blocks.list
            select b.blocked_kind, b.blocked_id, b.blocked_at, coalesce(u.display_name, a.display_name, '') as display_name
            from block b
            left join user_account u on u.user_id = b.blocked_id
            left join agent a on a.agent_id = b.blocked_id
            where b.user_id = $1 and ($2::uuid is null or b.block_id < $2)
            order by b.block_id desc limit $3",
            &[&user, &after, &rows],
        )
        .await?;
    let block = |row: &tokio_postgres::Row| {
        let who = Principal::from_row(row.get("blocked_kind"), row.get("blocked_id"));
        Block {
            principal_type: who.kind(),
            principal_id: who,
            display_name: row.get("display_name"),
            blocked_at: row.get("blocked_at"),
        }
    };
    Ok(rows.iter().map(block).collect())
}

/// Ends all blocks of a user.
pub async fn end_all(tx: &Tx, user: UserId) -> Result<()> {
    tx.execute(
        "-- blocks.end_all
        delete from block where user_id = $1",
        &[&user],
    )
    .await?;
    Ok(())
}
