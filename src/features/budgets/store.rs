use std::time::Duration;

use crate::{db::Db, error::Result, ids::UserId, limits::table::Budget};

/// The counts in Postgres against a user's e-mail.
pub struct Guards {
    pub email: String,
    /// Remaining failed logins, and the time until the count is cleared.
    pub logins: (u32, Duration),
    /// Remaining wrong codes, and the time until the oldest expires.
    pub codes: (u32, Duration),
}

/// The remainders of the limits for failed logins and wrong codes.
pub async fn guards(db: &Db, user: UserId, [logins, codes]: [Budget; 2]) -> Result<Guards> {
    let client = db.read().await?;
    let windows = [logins, codes].map(|budget| budget.window.as_secs_f64());
    let row = client
        .query_one(
            "-- budgets.guards
            select u.email,
                   case when g.last_failure_at > app_now() - make_interval(secs => $2) then g.failures else 0 end as login_failures,
                   greatest(0, coalesce(extract(epoch from g.last_failure_at + make_interval(secs => $2) - app_now()), 0))::float8
                       as login_seconds,
                   w.n as wrong_codes, coalesce(extract(epoch from w.oldest + make_interval(secs => $3) - app_now()), $3)::float8
                       as code_seconds
            from user_account u
            left join login_guard g on g.email = u.email
            left join code_guard c on c.email = u.email,
            lateral (select count(*)::int as n, min(at) as oldest from unnest(c.failures) as at
                     where at > app_now() - make_interval(secs => $3)) as w
            where u.user_id = $1",
            &[&user, &windows[0], &windows[1]],
        )
        .await?;
    let left = |budget: Budget, used: i32, seconds: f64| {
        let used = u32::try_from(used).unwrap_or_default();
        (
            budget.count.saturating_sub(used),
            Duration::try_from_secs_f64(seconds).unwrap_or_default(),
        )
    };
    Ok(Guards {
        email: row.get("email"),
        logins: left(logins, row.get("login_failures"), row.get("login_seconds")),
        codes: left(codes, row.get("wrong_codes"), row.get("code_seconds")),
    })
}
