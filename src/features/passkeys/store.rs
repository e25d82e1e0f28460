use chrono::{DateTime, Utc};

use crate::{
    auth::user::{User, lock_live_session},
    db,
    error::{Code, Error, OnConstraint, Result},
    ids::{ChallengeId, PasskeyId, UserId},
    limits::quotas::{CHALLENGE_TTL, MAX_PASSKEYS_PER_USER},
    work::Tx,
};

/// Challenges deleted at once.
const MAX_BATCH_CHALLENGES: i64 = 1000;

/// Keeps what the answer to a challenge will be checked against; returns its id and when it ends.
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
    Ok((id, row.get(0)))
}

/// Takes a challenge away; of many who try, one gets it. None if it is unknown, another's, or too old.
pub async fn take_challenge(
    tx: &Tx,
    id: ChallengeId,
    enrolling: Option<UserId>,
) -> Result<Option<String>> {
    let row = tx
        .query_opt(
            "-- passkeys.take_challenge
            delete from passkey_challenge where challenge_id = $1 and user_id is not distinct from $2
            returning state, expires_at > app_now()",
            &[&id, &enrolling],
        )
        .await?;
    Ok(row.and_then(|row| row.get::<_, bool>(1).then(|| row.get(0))))
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

/// Who enrols, as an authenticator shows it, and what must not be enrolled twice.
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
                   array(select credential_id from passkey where passkey.user_id = $1 order by passkey_id)
            from user_account where user_id = $1",
            &[&user],
        )
        .await?
        .ok_or(Code::Unauthorized)?;
    Ok(Owner {
        email: row.get(0),
        display_name: row.get(1),
        credential_ids: row.get(2),
    })
}

/// Adds a passkey, unless the user has as many as allowed or the credential is somebody's already. The lock on the user
/// makes racing enrolments count one after the other, and nothing is added to an account or by a session that has ended
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
            insert into passkey (passkey_id, user_id, credential_id, name, credential)
            select $1, $2, $3, $4, $5 where (select count(*) from passkey where user_id = $2) < $6
            returning created_at",
            &[
                &id,
                &user.id,
                &credential_id,
                &name,
                &credential,
                &MAX_PASSKEYS_PER_USER,
            ],
        )
        .await;
    let row = row.on_constraint("passkey_credential_id_key", Code::PasskeyInvalid)?;
    row.map(|row| (id, row.get(0)))
        .ok_or_else(|| Error::from(Code::Forbidden).with("limit", MAX_PASSKEYS_PER_USER))
}

/// A passkey that a login claims to use.
pub struct Claimed {
    pub id: PasskeyId,
    pub credential: String,
}

/// The passkey of a user, locked, so that logins with it see each other's counter. The user's row comes first in the
/// order of locks; signing in would take it afterwards.
pub async fn claim(tx: &Tx, user: UserId, credential_id: &[u8]) -> Result<Option<Claimed>> {
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
    Ok(row.map(|row| Claimed {
        id: row.get(0),
        credential: row.get(1),
    }))
}

/// Notes a login: the time, and the counter that the next one must exceed.
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

/// At most `most` passkeys, oldest first, after `cursor`; a cursor that is none of the user's is refused.
pub async fn list(
    tx: &Tx,
    user: UserId,
    cursor: Option<PasskeyId>,
    most: i64,
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
            &[&user, &cursor, &most],
        )
        .await?;
    let shown = rows.iter().map(|row| PasskeyRow {
        id: row.get(0),
        name: row.get(1),
        created_at: row.get(2),
        last_used_at: row.get(3),
    });
    Ok(shown.collect())
}

/// Removes a passkey of the user; when, or none if there is no such.
pub async fn remove(tx: &Tx, user: UserId, id: PasskeyId) -> Result<Option<DateTime<Utc>>> {
    Ok(tx
        .query_opt(
            "-- passkeys.remove
            delete from passkey where user_id = $1 and passkey_id = $2 returning app_now()",
            &[&user, &id],
        )
        .await?
        .map(|row| row.get(0)))
}
