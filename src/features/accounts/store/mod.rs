mod address;
mod codes;
mod notices;

use chrono::{DateTime, Utc};
use tokio_postgres::types::ToSql;

pub use self::{
    address::{GivenChange, change_address, change_profile, check_change, hold, put_change},
    codes::{CodeCheck, GivenCode, Sender, check_code, put_code, use_code},
    notices::{
        Addressee, addressee, count_changes, locale_of, now, put_notice, put_security_notice,
    },
};
use crate::{
    db::{
        Db,
        batches::{BATCH_ROWS, paced},
    },
    error::{Code, OnConstraint, Result},
    features::devices,
    ids::UserId,
    inbox,
    limits::table::{Budget, Limit, Overrides},
    validation::Email,
    work::Tx,
};

pub async fn create_user(
    tx: &Tx,
    user: UserId,
    email: &Email,
    display_name: &str,
    locale: &str,
    password_hash: &str,
) -> Result<()> {
    tx.execute(
        "-- accounts.create_user
        insert into user_account (user_id, email, display_name, device_locale, password_hash) values ($1, $2, $3, $4, $5)",
        &[
            &user,
            &email.as_str(),
            &display_name,
            &locale,
            &password_hash,
        ],
    )
    .await
    .on_constraint("user_account_email_key", Code::EmailTaken)?;
    inbox::create(tx, user.into()).await
}

/// The account that a login may belong to.
pub struct LoginCandidate {
    pub user: UserId,
    pub password_hash: String,
}

/// Counts a try against the e-mail, known or not. Returns the seconds to wait if it is locked.
///
/// As many failures as the limit allows lock the e-mail for the limit's window. A window
/// without a failure clears the count. The locking failure is the last that is stored; refused
/// tries count as one more together. The count is a transaction of its own, so that parallel tries
/// wait only as long as it takes.
pub async fn begin_login(
    db: &Db,
    email: &Email,
    budget: Budget,
) -> Result<Result<Option<LoginCandidate>, i64>> {
    let client = db.write().await?;
    let (count, window) = (
        i32::try_from(budget.count).unwrap_or(i32::MAX - 1),
        budget.window.as_secs_f64(),
    );
    let row = client
        .query_one(
            "-- accounts.count_login
            insert into login_guard as g (email, failures, last_failure_at) values ($1, 1, app_now())
            on conflict (email) do update set
                failures = case when g.last_failure_at <= app_now() - make_interval(secs => $3) then 1
                                else least(g.failures, $2) + 1 end,
                last_failure_at = case when g.failures >= $2 and g.last_failure_at > app_now() - make_interval(secs => $3)
                                       then g.last_failure_at else app_now() end
            returning failures > $2 as is_locked,
                      least($3, ceil(extract(epoch from last_failure_at - app_now()) + $3))::bigint as wait_seconds",
            &[&email.as_str(), &count, &window],
        )
        .await?;
    if row.get("is_locked") {
        return Ok(Err(row.get::<_, i64>("wait_seconds").max(1)));
    }
    let row = client
        .query_opt(
            "-- accounts.find
            select user_id, password_hash from user_account where email = $1",
            &[&email.as_str()],
        )
        .await?;
    Ok(Ok(row.map(|row| LoginCandidate {
        user: row.get("user_id"),
        password_hash: row.get("password_hash"),
    })))
}

/// Checks that the verified password is still the account's, and holds it until commit.
pub async fn still_holds(tx: &Tx, known: &LoginCandidate) -> Result<()> {
    tx.query_opt(
        "-- accounts.still_holds
        select 1 from user_account where user_id = $1 and password_hash = $2 and deleted_at is null for share",
        &[&known.user, &known.password_hash],
    )
    .await?
    .ok_or(Code::InvalidCredentials)?;
    Ok(())
}

/// Replaces the verified password, unless it was replaced meanwhile. It is a single statement: two
/// transactions that read the row before they write it would wait for each other.
pub async fn replace_password(tx: &Tx, known: &LoginCandidate, hash: &str) -> Result<()> {
    let replaced = tx
        .execute(
            "-- accounts.replace_password
            update user_account set password_hash = $3 where user_id = $1 and password_hash = $2 and deleted_at is null",
            &[&known.user, &known.password_hash, &hash],
        )
        .await?
        > 0;
    if replaced {
        Ok(())
    } else {
        Err(Code::InvalidCredentials.into())
    }
}

/// The user of this e-mail.
pub async fn user_of(tx: &Tx, email: &Email) -> Result<Option<UserId>> {
    Ok(tx
        .query_opt(
            "-- accounts.user_of
            select user_id from user_account where email = $1",
            &[&email.as_str()],
        )
        .await?
        .map(|row| row.get("user_id")))
}

pub async fn set_password(tx: &Tx, user: UserId, hash: &str) -> Result<()> {
    tx.execute(
        "-- accounts.set_password
        update user_account set password_hash = $2 where user_id = $1",
        &[&user, &hash],
    )
    .await?;
    Ok(())
}

/// Ends the account: nobody can sign in, and its address is free. The caller has locked it.
pub async fn end(tx: &Tx, user: UserId) -> Result<DateTime<Utc>> {
    let row = tx
        .query_one(
            "-- accounts.end
            with changes as (delete from email_change where user_id = $1)
            update user_account set deleted_at = app_now(), email = 'deleted:' || user_id, display_name = 'Deleted account',
                device_locale = '', password_hash = '', key_list_version = key_list_version + 1
            where user_id = $1
            returning deleted_at",
            &[&user],
        )
        .await?;
    Ok(row.get("deleted_at"))
}

/// Keeps the mark of a load test's account beyond its end.
pub async fn keep_load_mark(tx: &Tx, user: UserId) -> Result<()> {
    tx.execute(
        "-- accounts.keep_load_mark
        update user_account set email = 'deleted:' || user_id || '@loadtest.invalid'
        where user_id = $1 and deleted_at is not null",
        &[&user],
    )
    .await?;
    Ok(())
}

/// The accounts of load tests whose address begins with `prefix`, in the order of their ids.
pub async fn load_accounts(db: &Db, prefix: &str) -> Result<Vec<UserId>> {
    let client = db.read().await?;
    let rows = client
        .query(
            "-- accounts.load_accounts
            select user_id from user_account where email like '%@loadtest.invalid' and starts_with(email, $1)
            order by user_id",
            &[&prefix],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get("user_id")).collect())
}

/// Locks the account for its end.
pub async fn lock(tx: &Tx, user: UserId) -> Result<()> {
    tx.execute(
        "-- accounts.lock
        select 1 from user_account where user_id = $1 for update",
        &[&user],
    )
    .await?;
    Ok(())
}

/// An account as its owner sees it.
pub struct Profile {
    pub email: String,
    pub display_name: String,
    pub device_locale: String,
    pub created_at: DateTime<Utc>,
}

pub async fn profile(db: &Db, user: UserId) -> Result<Profile> {
    let client = db.read().await?;
    let row = client
        .query_opt(
            "-- accounts.profile
            select email, display_name, device_locale, created_at from user_account
            where user_id = $1 and deleted_at is null",
            &[&user],
        )
        .await?
        .ok_or(Code::Unauthorized)?;
    Ok(address::profile_of(&row))
}

/// The user's e-mail, for a check of the password.
pub async fn email_of(db: &Db, user: UserId) -> Result<Email> {
    let Profile { email, .. } = profile(db, user).await?;
    Ok(Email::from_stored(email))
}

/// Takes its lock after the account's row.
pub async fn clear_failures(tx: &Tx, email: &Email) -> Result<()> {
    tx.execute(
        "-- accounts.clear_failures
        delete from login_guard where email = $1",
        &[&email.as_str()],
    )
    .await?;
    Ok(())
}

/// Expired rows: codes, notices, guards, long ended sessions, and provisional devices without a
/// session. Each statement deletes one batch and skips locked rows. Rows
/// without a single key go by their time, so a batch may hold a few more. A guard is needed for
/// the window of its limit.
const FORGET: [(Option<Limit>, &str); 6] = [
    (
        None,
        "-- accounts.forget_codes
        delete from email_code where expires_at = any(array(
            select expires_at from email_code where expires_at < app_now() limit $1 for update skip locked))",
    ),
    (
        None,
        "-- accounts.forget_changes
        delete from email_change where expires_at = any(array(
            select expires_at from email_change where expires_at < app_now() limit $1 for update skip locked))",
    ),
    (
        None,
        "-- accounts.forget_notices
        delete from login_notice where noticed_at = any(array(
            select noticed_at from login_notice where noticed_at < app_now() - interval '1 day' limit $1 for update skip locked))",
    ),
    (
        None,
        "-- accounts.forget_security_notices
        delete from security_notice where noticed_at = any(array(
            select noticed_at from security_notice where noticed_at < app_now() - interval '1 day' limit $1 for update skip locked))",
    ),
    (
        Some(Limit::LoginFail),
        "-- accounts.forget_logins
        delete from login_guard where email = any(array(
            select email from login_guard
            where last_failure_at < app_now() - make_interval(secs => $2) limit $1 for update skip locked))",
    ),
    (
        Some(Limit::CodeTries),
        "-- accounts.forget_wrong_codes
        delete from code_guard where email = any(array(
            select email from code_guard
            where coalesce(failures[array_upper(failures, 1)], '-infinity') < app_now() - make_interval(secs => $2)
            limit $1 for update skip locked))",
    ),
];

/// Deletes expired rows batch by batch, each in a transaction. A failure in one table does not stop
/// the others.
pub async fn forget(db: &Db, budgets: &Overrides) -> Result<()> {
    let mut outcome = Ok(());
    for (guarded, delete) in FORGET {
        let window = guarded.map(|limit| budgets.budget(limit).window.as_secs_f64());
        outcome = outcome.and(forget_all(db, delete, window).await);
    }
    for delete in devices::FORGET {
        outcome = outcome.and(forget_all(db, delete, None).await);
    }
    outcome
}

async fn forget_all(db: &Db, delete: &str, window: Option<f64>) -> Result<()> {
    while paced(forget_some(db, delete, window)).await? {}
    Ok(())
}

async fn forget_some(db: &Db, delete: &str, window: Option<f64>) -> Result<bool> {
    let client = db.write().await?;
    let stmt = client.prepare_cached(delete).await?;
    let params: &[&(dyn ToSql + Sync)] = match &window {
        Some(seconds) => &[&BATCH_ROWS, seconds],
        None => &[&BATCH_ROWS],
    };
    Ok(client.execute(&stmt, params).await? >= BATCH_ROWS.unsigned_abs())
}
