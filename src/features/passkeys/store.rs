use chrono::{DateTime, Utc};

use crate::{
    auth::user::{User, lock_live_session},
    db,
    error::{Code, Error, OnConstraint, Result},
    ids::{ChallengeId, PasskeyId, UserId},
    limits::quotas::{CHALLENGE_TTL, MAX_PASSKEYS_PER_USER},
    work::Tx,
};

/// The most challenges that one statement deletes.
const MAX_BATCH_CHALLENGES: i64 = 1000;

/// Stores the state that the answer to a challenge is checked against. Returns its id and its end.
pub async fn put_challenge(
    tx: &Tx,
    enrolling: Option<UserId>,
    state: &str,
) -> Result<(ChallengeId, DateTime<Utc>)> {
    let id = ChallengeId::generate(tx.random());
    let row = tx
        .query_one(
            "-- passkeys.put_challenge
            insert into passkey_challenge (challenge_id, user_id, state, expires_at)
            values ($1, $2, $3, app_now() + make_interval(secs => $4))
            returning expires_at",
            &[&id, &enrolling, &state, &CHALLENGE_TTL.as_secs_f64()],
        )
        .await?;
    Ok((id, row.get("expires_at")))
}

/// Takes a challenge away; of many requests, only one gets it. None if it is unknown, too old, or
/// of another user.
pub async fn take_challenge(
    tx: &Tx,
    id: ChallengeId,
    enrolling: Option<UserId>,
) -> Result<Option<String>> {
    let row = tx
        .query_opt(
            "-- passkeys.take_challenge
            delete from passkey_challenge where challenge_id = $1 and user_id is not distinct from $2
            returning state, expires_at > app_now() as is_open",
            &[&id, &enrolling],
        )
        .await?;
    Ok(row.and_then(|row| row.get::<_, bool>("is_open").then(|| row.get("state"))))
}

pub async fn forget_challenges(tx: &db::Tx) -> Result<bool> {
    Ok(tx
        .execute(
            "-- passkeys.forget_challenges
            delete from passkey_challenge where challenge_id in (
                select challenge_id from passkey_challenge where expires_at <= app_now() limit $1 for update skip locked
            )",
            &[&MAX_BATCH_CHALLENGES],
        )
        .await?
        == MAX_BATCH_CHALLENGES.unsigned_abs())
}

/// The enrolling user as an authenticator shows it, with the credentials that must not be enrolled
/// again.
pub struct Owner {
    pub email: String,
    pub display_name: String,
    pub credential_ids: Vec<Vec<u8>>,
}

pub async fn owner(tx: &Tx, user: UserId) -> Result<Owner> {
    let row = tx
        .query_opt(
            "-- passkeys.owner
            select email, display_name,
                   array(select credential_id from passkey where passkey.user_id = $1 order by passkey_id) as credential_ids
            from user_account where user_id = $1",
            &[&user],
        )
        .await?
        .ok_or(Code::Unauthorized)?;
    Ok(Owner {
        email: row.get("email"),
        display_name: row.get("display_name"),
        credential_ids: row.get("credential_ids"),
    })
}

/// Adds a passkey, unless the user's quota is full or the credential exists already. The lock on
/// the user serialises racing enrolments. It also refuses an account or session that has ended
/// meanwhile.
pub async fn create(
    tx: &Tx,
    user: &User,
    credential_id: &[u8],
    name: &str,
    credential: &str,
) -> Result<(PasskeyId, DateTime<Utc>)> {
    let id = PasskeyId::generate(tx.random());
    tx.execute(
        "-- passkeys.lock_owner
        select 1 from user_account where user_id = $1 for update",
        &[&user.id],
    )
    .await?;
    lock_live_session(tx, user.id, user.session).await?;
    let row = tx
        .query_opt(
            "-- passkeys.create
            insert into passkey (passkey_id, user_id, credential_id, name, credential, session_id)
            select $1, $2, $3, $4, $5, $7 where (select count(*) from passkey where user_id = $2) < $6
            returning created_at",
            &[
                &id,
                &user.id,
                &credential_id,
                &name,
                &credential,
                &MAX_PASSKEYS_PER_USER,
                &user.session,
            ],
        )
        .await;
    let row = row.on_constraint("passkey_credential_id_key", Code::PasskeyInvalid)?;
    row.map(|row| (id, row.get("created_at")))
        .ok_or_else(|| Error::from(Code::Forbidden).with("limit", MAX_PASSKEYS_PER_USER))
}

/// A passkey that a login claims to use.
pub struct ClaimedPasskey {
    pub id: PasskeyId,
    pub credential: String,
}

/// The passkey of a user, locked, so that logins with it see each other's counter. The user's row
/// comes first in the order of locks; the sign-in would lock it afterwards.
pub async fn claim(tx: &Tx, user: UserId, credential_id: &[u8]) -> Result<Option<ClaimedPasskey>> {
    if tx
        .query_opt(
            "-- passkeys.hold_owner
            select 1 from user_account where user_id = $1 and deleted_at is null for share",
            &[&user],
        )
        .await?
        .is_none()
    {
        return Ok(None);
    }
    let row = tx
        .query_opt(
            "-- passkeys.claim
            select passkey_id, credential from passkey where user_id = $1 and credential_id = $2 for update",
            &[&user, &credential_id],
        )
        .await?;
    Ok(row.map(|row| ClaimedPasskey {
        id: row.get("passkey_id"),
        credential: row.get("credential"),
    }))
}

/// Notes a login: its time, and the counter that the next login must exceed.
pub async fn used(tx: &Tx, id: PasskeyId, credential: &str) -> Result<()> {
    tx.execute(
        "-- passkeys.used
        update passkey set credential = $2, last_used_at = app_now() where passkey_id = $1",
        &[&id, &credential],
    )
    .await?;
    Ok(())
}

/// A passkey as its owner sees it.
pub struct PasskeyRow {
    pub id: PasskeyId,
    pub name: String,
    pub created_at: DateTime<Utc>,
    pub last_used_at: Option<DateTime<Utc>>,
}

/// At most `most` passkeys, oldest first, after `cursor`. Refuses a cursor that is not the user's.
pub async fn list(
    tx: &Tx,
    user: UserId,
    cursor: Option<PasskeyId>,
    limit: i64,
) -> Result<Vec<PasskeyRow>> {
    if let Some(cursor) = cursor {
        tx.query_opt(
            "-- passkeys.find_cursor
            select 1 from passkey where user_id = $1 and passkey_id = $2",
            &[&user, &cursor],
        )
        .await?
        .ok_or_else(|| Error::field("cursor", "unknown", "is no id of this list"))?;
    }
    let rows = tx
        .query(
            "-- passkeys.list
            select passkey_id, name, created_at, last_used_at from passkey
            where user_id = $1 and ($2::uuid is null or passkey_id > $2)
            order by passkey_id limit $3",
            &[&user, &cursor, &limit],
        )
        .await?;
    let shown = rows.iter().map(|row| PasskeyRow {
        id: row.get("passkey_id"),
        name: row.get("name"),
        created_at: row.get("created_at"),
        last_used_at: row.get("last_used_at"),
    });
    Ok(shown.collect())
}

/// Removes a passkey of the user. Returns the time, or none if it does not exist.
pub async fn remove(tx: &Tx, user: UserId, id: PasskeyId) -> Result<Option<DateTime<Utc>>> {
    Ok(tx
        .query_opt("-- passkeys.remove
        delete from passkey where user_id = $1 and passkey_id = $2 returning app_now() as removed_at", &[&user, &id])
        .await?
        .map(|row| row.get("removed_at")))
}

/// Deletes the passkeys of a user and its challenges.
pub async fn end_all(tx: &Tx, user: UserId) -> Result<()> {
    tx.execute(
        "-- passkeys.end_all
        with challenges as (delete from passkey_challenge where user_id = $1)
        delete from passkey where user_id = $1",
        &[&user],
    )
    .await?;
    Ok(())
}
