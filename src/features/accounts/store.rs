use std::time::Duration;

use chrono::{DateTime, Utc};
use subtle::ConstantTimeEq;
use uuid::Uuid;

use super::{
    Codes,
    rules::{Email, Scene},
};
use crate::{
    db::Tx,
    error::{Code, OnConstraint, Result},
    features::inbox::{self, Reader},
    ids::{MailId, Principal, SessionId, UserId},
    limits::quotas::{CODE_LIFE, CODE_TRIES, LOGIN_FAILURES, REFRESH_TOKEN_LIFE},
};

/// Wrong codes of one e-mail in an hour, over all scenes and codes.
const WRONG_CODES: usize = 10;
/// Absolute end of a session, however often it is refreshed.
const SESSION_DAYS: i32 = 180;

/// The newest code of an e-mail and scene, and the mail that carries it.
pub async fn put_code(tx: &Tx, email: &Email, scene: Scene, nonce: Uuid, mail: MailId) -> Result<()> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.put_code
            with code as (
                insert into email_code (email, scene, nonce, tries_left, expires_at)
                values ($1, $2, $3, $4, app_now() + make_interval(secs => $5))
                on conflict (email, scene) do update
                set nonce = excluded.nonce, tries_left = excluded.tries_left, expires_at = excluded.expires_at
            )
            insert into mail_outbox (mail_id, recipient, kind, nonce, expires_at)
            values ($6, $1, $2, $3, app_now() + make_interval(secs => $5))",
        )
        .await?;
    let life = CODE_LIFE.as_secs_f64();
    tx.execute(&stmt, &[&email.as_str(), &scene.name(), &nonce, &CODE_TRIES, &life, &mail]).await?;
    Ok(())
}

/// What a code was worth.
pub enum CodeCheck {
    /// It was the one, and is now used.
    Right,
    /// It was not, or is used, burnt or too old.
    Wrong,
    /// Too many wrong ones; not even a right one counts for this long.
    TooMany(Duration),
}

/// Uses a code. The guard's row lock makes parallel tries of one e-mail wait for each other.
pub async fn use_code(tx: &Tx, codes: &Codes, email: &Email, scene: Scene, given: &str) -> Result<CodeCheck> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.guard_code
            insert into code_guard as g (email, failures) values ($1, '{}')
            on conflict (email) do update
            set failures = array(select at from unnest(g.failures) as at where at > app_now() - interval '1 hour' order by at)
            returning failures, app_now()",
        )
        .await?;
    let row = tx.query_one(&stmt, &[&email.as_str()]).await?;
    let (failures, now): (Vec<DateTime<Utc>>, DateTime<Utc>) = (row.get(0), row.get(1));
    if failures.len() >= WRONG_CODES {
        let frees = failures[failures.len() - WRONG_CODES] + Duration::from_secs(3600);
        return Ok(CodeCheck::TooMany((frees - now).to_std().unwrap_or_default()));
    }
    let stmt = tx
        .prepare_cached(
            "-- accounts.try_code
            select nonce from email_code
            where email = $1 and scene = $2 and expires_at > app_now() and tries_left > 0 for update",
        )
        .await?;
    let nonce: Option<Uuid> =
        tx.query_opt(&stmt, &[&email.as_str(), &scene.name()]).await?.map(|row| row.get(0));
    let right = nonce.is_some_and(|nonce| {
        codes.derive(email.as_str(), scene, nonce).as_bytes().ct_eq(given.as_bytes()).into()
    });
    let stmt = if right {
        tx.prepare_cached(
            "-- accounts.burn_code
            delete from email_code where email = $1 and scene = $2",
        )
        .await?
    } else {
        tx.prepare_cached(
            "-- accounts.wrong_code
            with counted as (update code_guard set failures = failures || app_now() where email = $1)
            update email_code set tries_left = tries_left - 1 where email = $1 and scene = $2",
        )
        .await?
    };
    tx.execute(&stmt, &[&email.as_str(), &scene.name()]).await?;
    Ok(if right { CodeCheck::Right } else { CodeCheck::Wrong })
}

pub async fn create_user(
    tx: &Tx,
    user: UserId,
    email: &Email,
    display_name: &str,
    locale: &str,
    password_hash: &str,
) -> Result<()> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.create_user
            insert into user_account (user_id, email, display_name, device_locale, password_hash) values ($1, $2, $3, $4, $5)",
        )
        .await?;
    tx.execute(&stmt, &[&user, &email.as_str(), &display_name, &locale, &password_hash])
        .await
        .on_constraint("user_account_email_key", Code::EmailTaken)?;
    inbox::create(tx, user.0).await
}

/// An account that a login may be for.
pub struct Known {
    pub user: UserId,
    pub password_hash: String,
}

/// Counts a try against the e-mail, known or not; the seconds to wait if it is locked.
pub async fn begin_login(tx: &Tx, email: &Email) -> Result<Result<Option<Known>, i64>> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.count_login
            insert into login_guard as g (email, failures, last_failure_at) values ($1, 1, app_now())
            on conflict (email) do update set
                failures = case when g.locked_until > app_now() then g.failures
                                when g.locked_until is not null or g.last_failure_at <= app_now() - interval '15 minutes' then 1
                                else g.failures + 1 end,
                locked_until = case when g.locked_until > app_now() then g.locked_until
                                    when g.locked_until is null and g.last_failure_at > app_now() - interval '15 minutes'
                                         and g.failures + 1 >= $2 then app_now() + interval '15 minutes' end,
                last_failure_at = case when g.locked_until > app_now() then g.last_failure_at else app_now() end
            returning failures, last_failure_at = app_now(),
                      least(900, coalesce(ceil(extract(epoch from locked_until - app_now())), 0))::bigint",
        )
        .await?;
    let row = tx.query_one(&stmt, &[&email.as_str(), &LOGIN_FAILURES]).await?;
    let (counted, seconds): (bool, i64) = (row.get(1), row.get(2));
    if !counted {
        return Ok(Err(seconds.max(1)));
    }
    let stmt = tx
        .prepare_cached(
            "-- accounts.find
            select user_id, password_hash from user_account where email = $1",
        )
        .await?;
    let row = tx.query_opt(&stmt, &[&email.as_str()]).await?;
    Ok(Ok(row.map(|row| Known { user: row.get(0), password_hash: row.get(1) })))
}

/// Takes a counted try back, with the lock that it brought.
pub async fn forgive(tx: &Tx, email: &Email) -> Result<()> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.forgive
            update login_guard set failures = greatest(failures - 1, 0), locked_until = null where email = $1",
        )
        .await?;
    tx.execute(&stmt, &[&email.as_str()]).await?;
    Ok(())
}

pub async fn clear_failures(tx: &Tx, email: &Email) -> Result<()> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.clear_failures
            delete from login_guard where email = $1",
        )
        .await?;
    tx.execute(&stmt, &[&email.as_str()]).await?;
    Ok(())
}

/// A session to be.
pub struct NewSession {
    pub id: SessionId,
    pub device_id: String,
    /// Whether we chose the device's id.
    pub provisional: bool,
    pub device_name: Option<String>,
    pub platform: Option<String>,
}

/// What a sign-in found.
pub struct SignedIn {
    pub is_new_device: bool,
    /// Sessions that the device had before; they are over.
    pub replaced: Vec<SessionId>,
}

/// Makes a session of a user's device; the one it had before ends.
pub async fn sign_in(tx: &Tx, user: UserId, new: &NewSession) -> Result<SignedIn> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.see_device
            insert into device (user_id, device_id, display_name, platform, provisional) values ($1, $2, $3, $4, $5)
            on conflict (user_id, device_id) do update set
                display_name = coalesce(excluded.display_name, device.display_name),
                platform = coalesce(excluded.platform, device.platform), last_seen_at = app_now()
            returning xmax = 0",
        )
        .await?;
    let row = tx
        .query_one(&stmt, &[&user, &new.device_id, &new.device_name, &new.platform, &new.provisional])
        .await?;
    let is_new_device = row.get(0);
    let stmt = tx
        .prepare_cached(
            "-- accounts.replace_sessions
            update session set revoked_at = app_now(), revoke_reason = 'logout'
            where user_id = $1 and device_id = $2 and revoked_at is null
            returning session_id",
        )
        .await?;
    let replaced = tx.query(&stmt, &[&user, &new.device_id]).await?.iter().map(|row| row.get(0)).collect();
    let stmt = tx
        .prepare_cached(
            "-- accounts.create_session
            insert into session (session_id, user_id, device_id, refresh_expires_at, absolute_expires_at)
            values ($1, $2, $3, app_now() + make_interval(secs => $4), app_now() + make_interval(days => $5))",
        )
        .await?;
    tx.execute(&stmt, &[&new.id, &user, &new.device_id, &REFRESH_TOKEN_LIFE.as_secs_f64(), &SESSION_DAYS])
        .await?;
    inbox::create_reader(tx, &Reader::new(Principal::User(user), &new.device_id)).await?;
    Ok(SignedIn { is_new_device, replaced })
}

/// What a refresh token was worth.
pub enum Refreshed {
    /// The session goes on with this generation.
    Next { user: UserId, device_id: String, generation: i32 },
    /// An old token came back after its grace: the session is over.
    Stolen,
    /// There is no such session any more.
    Dead,
}

/// Rotates: the current generation gives the next one; its predecessor gives the current one for ten seconds.
pub async fn refresh(tx: &Tx, session: SessionId, generation: i32) -> Result<Refreshed> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.refresh
            select user_id, device_id, generation, rotated_at > app_now() - interval '10 seconds'
            from session
            where session_id = $1 and revoked_at is null and refresh_expires_at > app_now() and absolute_expires_at > app_now()
            for update",
        )
        .await?;
    let Some(row) = tx.query_opt(&stmt, &[&session]).await? else { return Ok(Refreshed::Dead) };
    let (user, device_id, current, recent): (UserId, String, i32, bool) =
        (row.get(0), row.get(1), row.get(2), row.get(3));
    if generation == current {
        let stmt = tx
            .prepare_cached(
                "-- accounts.rotate
                with seen as (update device set last_seen_at = app_now() where user_id = $3 and device_id = $4)
                update session set generation = generation + 1, rotated_at = app_now(),
                    refresh_expires_at = least(app_now() + make_interval(secs => $2), absolute_expires_at)
                where session_id = $1",
            )
            .await?;
        tx.execute(&stmt, &[&session, &REFRESH_TOKEN_LIFE.as_secs_f64(), &user, &device_id]).await?;
        return Ok(Refreshed::Next { user, device_id, generation: current + 1 });
    }
    if generation + 1 == current && recent {
        return Ok(Refreshed::Next { user, device_id, generation: current });
    }
    let stmt = tx
        .prepare_cached(
            "-- accounts.end_stolen
            update session set revoked_at = app_now(), revoke_reason = 'refresh_reuse' where session_id = $1",
        )
        .await?;
    tx.execute(&stmt, &[&session]).await?;
    Ok(Refreshed::Stolen)
}

/// A mail that is due, claimed by its caller for a minute.
pub struct Mail {
    pub id: MailId,
    pub recipient: String,
    pub scene: Scene,
    pub nonce: Uuid,
}

pub async fn claim_mail(tx: &Tx) -> Result<Option<Mail>> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.claim_mail
            update mail_outbox set due_at = app_now() + interval '1 minute', attempts = attempts + 1
            where mail_id = (
                select mail_id from mail_outbox where due_at <= app_now() order by due_at limit 1 for update skip locked
            )
            returning mail_id, recipient, kind, nonce, expires_at > app_now()",
        )
        .await?;
    let Some(row) = tx.query_opt(&stmt, &[]).await? else { return Ok(None) };
    let scene = match row.get(2) {
        "register" => Scene::Register,
        "login" => Scene::Login,
        _ => Scene::Reset,
    };
    let mail = Mail { id: row.get(0), recipient: row.get(1), scene, nonce: row.get(3) };
    if row.get(4) {
        return Ok(Some(mail));
    }
    delete_mail(tx, mail.id).await?;
    Ok(None)
}

pub async fn delete_mail(tx: &Tx, id: MailId) -> Result<()> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.delete_mail
            delete from mail_outbox where mail_id = $1",
        )
        .await?;
    tx.execute(&stmt, &[&id]).await?;
    Ok(())
}

/// The server did not take it: again after 2, 4, 8 ... seconds, at most a minute, while the code lives.
pub async fn retry_mail(tx: &Tx, id: MailId) -> Result<()> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.retry_mail
            update mail_outbox set due_at = app_now() + make_interval(secs => least(60, 2 ^ attempts)) where mail_id = $1",
        )
        .await?;
    tx.execute(&stmt, &[&id]).await?;
    Ok(())
}

/// Deletes what no longer says anything: old codes, guards, idempotency keys of the last day and before.
pub async fn forget(tx: &Tx) -> Result<()> {
    tx.batch_execute(
        "delete from email_code where expires_at < app_now();
         delete from login_guard where greatest(last_failure_at, locked_until) < app_now() - interval '1 hour';
         delete from code_guard where not exists (
             select 1 from unnest(failures) as at where at > app_now() - interval '1 hour');",
    )
    .await?;
    Ok(())
}
