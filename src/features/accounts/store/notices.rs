//! Notices of logins on new devices, which wait for the mail server beside the codes.

use chrono::{DateTime, Utc};

use crate::{db::Tx, error::Result, ids::UserId, limits::quotas::MAX_LOGIN_NOTICES_PER_DAY};

/// A notice that is due, claimed by its caller for a minute.
pub struct Notice {
    pub user: UserId,
    place: i32,
    pub device_name: Option<String>,
    pub at: DateTime<Utc>,
}

/// Puts a notice into one of the day's places; false if none is free. Of logins at the very same moment, one has it: they
/// would take the same place.
pub async fn put_notice(tx: &Tx, user: UserId, device_name: Option<&str>) -> Result<bool> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.put_notice
            insert into login_notice as n (user_id, place, device_name)
            select $1, free.place, $2 from generate_series(1, $3::int4) as free (place)
            where not exists (select from login_notice taken where taken.user_id = $1 and taken.place = free.place
                                                               and taken.noticed_at > app_now() - interval '1 day')
            order by free.place limit 1
            on conflict (user_id, place) do update
                set device_name = excluded.device_name, noticed_at = excluded.noticed_at, attempts = 0, due_at = excluded.due_at
                where n.noticed_at <= app_now() - interval '1 day'",
        )
        .await?;
    Ok(tx
        .execute(&stmt, &[&user, &device_name, &MAX_LOGIN_NOTICES_PER_DAY])
        .await?
        > 0)
}

/// With the address that it goes to. What is a day old, or an account's that is gone, is no news any more.
pub async fn claim_notice(tx: &Tx) -> Result<Option<(Notice, String)>> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.claim_notice
            update login_notice n set due_at = app_now() + interval '1 minute', attempts = attempts + 1
            from user_account u
            where (n.user_id, n.place) = (
                select w.user_id, w.place from login_notice w join user_account using (user_id)
                where w.due_at <= app_now() and w.noticed_at > app_now() - interval '1 day' and deleted_at is null
                order by w.due_at limit 1 for update of w skip locked
            ) and u.user_id = n.user_id
            returning n.user_id, n.place, n.device_name, n.noticed_at, u.email",
        )
        .await?;
    let Some(row) = tx.query_opt(&stmt, &[]).await? else {
        return Ok(None);
    };
    let notice = Notice {
        user: row.get("user_id"),
        place: row.get("place"),
        device_name: row.get("device_name"),
        at: row.get("noticed_at"),
    };
    Ok(Some((notice, row.get("email"))))
}

/// It was sent, or will be tried again after 2, 4, 8 ... seconds, at most a minute.
pub async fn settle_notice(tx: &Tx, notice: &Notice, sent: bool) -> Result<()> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.settle_notice
            update login_notice
            set due_at = case when not $4 then app_now() + make_interval(secs => least(60, 2 ^ attempts)) end
            where user_id = $1 and place = $2 and noticed_at = $3",
        )
        .await?;
    tx.execute(&stmt, &[&notice.user, &notice.place, &notice.at, &sent])
        .await?;
    Ok(())
}
