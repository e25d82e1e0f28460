//! Notices of logins on new devices and of sensitive changes: the number per user and day, and
//! their address.

use chrono::{DateTime, Utc};

use crate::{
    db::Db, error::Result, ids::UserId, jobs::Job, limits::quotas::MAX_LOGIN_NOTICES_PER_DAY,
    work::Tx,
};

/// Puts the job that mails a user about a login, unless the day's notices are used up. Of
/// simultaneous logins only one gets a notice, because they would take the same row.
pub async fn put_notice(tx: &Tx, user: UserId, device_name: Option<&str>) -> Result<()> {
    let placed = tx
        .query_opt(
            "-- accounts.put_notice
            insert into login_notice as n (user_id, place)
            select $1, free.place from generate_series(1, $2::int4) as free (place)
            where not exists (select from login_notice taken where taken.user_id = $1 and taken.place = free.place
                                                               and taken.noticed_at > app_now() - interval '1 day')
            order by free.place limit 1
            on conflict (user_id, place) do update set noticed_at = excluded.noticed_at
                where n.noticed_at <= app_now() - interval '1 day'
            returning noticed_at",
            &[&user, &MAX_LOGIN_NOTICES_PER_DAY],
        )
        .await?;
    if let Some(row) = placed {
        tx.enqueue(Job::LoginNotice {
            user,
            device_name: device_name.map(str::to_owned),
            at: row.get("noticed_at"),
        });
    }
    Ok(())
}

/// Notes a mail about a kind of change. Returns its time, or none if the day has had one. Of
/// simultaneous changes only one gets a mail.
pub async fn put_security_notice(
    tx: &Tx,
    user: UserId,
    kind: &str,
) -> Result<Option<DateTime<Utc>>> {
    let noticed = tx
        .query_opt(
            "-- accounts.put_security_notice
            insert into security_notice as n (user_id, kind) values ($1, $2)
            on conflict (user_id, kind) do update set noticed_at = excluded.noticed_at
                where n.noticed_at <= app_now() - interval '1 day'
            returning noticed_at",
            &[&user, &kind],
        )
        .await?;
    Ok(noticed.map(|row| row.get("noticed_at")))
}

/// An address for mail, and the locale of its mails.
pub struct Addressee {
    pub email: String,
    pub locale: String,
}

/// The user's address for mail, or none if the account is gone.
pub async fn addressee(db: &Db, user: UserId) -> Result<Option<Addressee>> {
    let client = db.read().await?;
    let row = client
        .query_opt(
            "-- accounts.addressee
            select email, device_locale from user_account where user_id = $1 and deleted_at is null",
            &[&user],
        )
        .await?;
    Ok(row.map(|row| Addressee {
        email: row.get("email"),
        locale: row.get("device_locale"),
    }))
}

/// The number of things that sessions have added within 30 days and that are still there.
pub async fn count_changes(db: &Db, user: UserId) -> Result<i64> {
    let client = db.read().await?;
    let row = client
        .query_one(
            "-- accounts.count_changes
            select count(*) as changes from session_change
            where user_id = $1 and made_at > app_now() - interval '30 days'",
            &[&user],
        )
        .await?;
    Ok(row.get("changes"))
}

/// The locale of the account with this address; none if there is no account.
pub async fn locale_of(db: &Db, email: &str) -> Result<Option<String>> {
    let client = db.read().await?;
    let row = client
        .query_opt(
            "-- accounts.locale_of
            select device_locale from user_account where email = $1",
            &[&email],
        )
        .await?;
    Ok(row.map(|row| row.get("device_locale")))
}

/// The time of the database.
pub async fn now(tx: &Tx) -> Result<DateTime<Utc>> {
    let row = tx
        .query_one(
            "-- accounts.now
            select app_now() as now",
            &[],
        )
        .await?;
    Ok(row.get("now"))
}
