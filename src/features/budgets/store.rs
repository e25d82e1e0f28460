use std::time::Duration;

use crate::{
    db::Db,
    error::Result,
    ids::UserId,
    limits::quotas::{CODE_TRIES_WINDOW, LOGIN_FAILURES, LOGIN_LOCK},
};

/// What Postgres counts against a user's e-mail.
pub struct Guards {
    pub email: String,
    /// Failed logins that are left, and until the count is forgotten.
    pub logins: (u32, Duration),
    /// Wrong codes of the last hour, and until the oldest is forgotten.
    pub codes: (u32, Duration),
}

pub async fn guards(db: &Db, user: UserId) -> Result<Guards> {
    let client = db.read().await?;
    let stmt = client
        .prepare_cached(
            "-- budgets.guards
            select u.email,
                   case when g.locked_until > app_now() then 0
                        when g.locked_until is null and g.last_failure_at > app_now() - make_interval(secs => $2)
                            then greatest(0, $4 - g.failures)
                        else $4 end,
                   greatest(0, coalesce(extract(epoch from coalesce(g.locked_until, g.last_failure_at + make_interval(secs => $2)) - app_now()), 0))::float8,
                   w.n, coalesce(extract(epoch from w.oldest + make_interval(secs => $3) - app_now()), $3)::float8
            from user_account u
            left join login_guard g on g.email = u.email
            left join code_guard c on c.email = u.email,
            lateral (select count(*)::int as n, min(at) as oldest from unnest(c.failures) as at
                     where at > app_now() - make_interval(secs => $3)) as w
            where u.user_id = $1",
        )
        .await?;
    let (lock, hour) = (LOGIN_LOCK.as_secs_f64(), CODE_TRIES_WINDOW.as_secs_f64());
    let row = client.query_one(&stmt, &[&user, &lock, &hour, &LOGIN_FAILURES]).await?;
    let pair = |count: i32, seconds: f64| {
        (u32::try_from(count).unwrap_or_default(), Duration::try_from_secs_f64(seconds).unwrap_or_default())
    };
    Ok(Guards {
        email: row.get(0),
        logins: pair(row.get(1), row.get(2)),
        codes: pair(row.get(3), row.get(4)),
    })
}
