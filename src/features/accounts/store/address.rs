//! Changes of an account: its name, its locale, its address.

use blindpipe_protocol::accounts::ChangeProfile;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    Profile,
    codes::{CodeCheck, Sender, count_wrong, guard},
};
use crate::{
    auth::user::{User, lock_live_session},
    error::{Code, OnConstraint, Result},
    features::accounts::{Codes, rules::Purpose},
    jobs::Job,
    limits::{
        quotas::{CODE_TTL, MAX_TRIES_PER_CODE},
        table::Budget,
    },
    validation::Email,
    work::Tx,
};

pub fn profile_of(row: &Row) -> Profile {
    Profile {
        email: row.get("email"),
        display_name: row.get("display_name"),
        device_locale: row.get("device_locale"),
        created_at: row.get("created_at"),
    }
}

/// Locks the account and its live session. Returns the account as it is now.
pub async fn hold(tx: &Tx, user: &User) -> Result<Profile> {
    let row = tx
        .query_opt(
            "-- accounts.hold
            select email, display_name, device_locale, created_at from user_account where user_id = $1 for update",
            &[&user.id],
        )
        .await?
        .ok_or(Code::Unauthorized)?;
    lock_live_session(tx, user.id, user.session).await?;
    Ok(profile_of(&row))
}

/// Changes what is given.
pub async fn change_profile(tx: &Tx, user: &User, change: &ChangeProfile) -> Result<Profile> {
    hold(tx, user).await?;
    let name = change.display_name.as_ref().map(|name| name.0.as_str());
    let locale = change.device_locale.as_ref().map(|tag| tag.0.as_str());
    let row = tx
        .query_one(
            "-- accounts.change_profile
            update user_account set display_name = coalesce($2, display_name), device_locale = coalesce($3, device_locale)
            where user_id = $1
            returning email, display_name, device_locale, created_at",
            &[&user.id, &name, &locale],
        )
        .await?;
    Ok(profile_of(&row))
}

/// Stores the newest change of the account's address, and puts the job that mails its code. The
/// account is locked.
pub async fn put_change(
    tx: &Tx,
    user: &User,
    email: &Email,
    nonce: Uuid,
    locale: &str,
) -> Result<()> {
    tx.execute(
        "-- accounts.put_change
        insert into email_change (user_id, email, session_id, nonce, tries_left, expires_at)
        values ($1, $2, $3, $4, $5, app_now() + make_interval(secs => $6))
        on conflict (user_id) do update
        set email = excluded.email, session_id = excluded.session_id, nonce = excluded.nonce,
            tries_left = excluded.tries_left, expires_at = excluded.expires_at",
        &[
            &user.id,
            &email.as_str(),
            &user.session,
            &nonce,
            &MAX_TRIES_PER_CODE,
            &CODE_TTL.as_secs_f64(),
        ],
    )
    .await?;
    tx.enqueue(Job::Mail {
        recipient: email.as_str().to_owned(),
        scene: Purpose::Address.as_str().to_owned(),
        nonce,
        locale: Some(locale.to_owned()),
    });
    Ok(())
}

/// The new address, with the code that proves it.
pub struct GivenChange<'a> {
    pub email: &'a Email,
    pub code: &'a str,
    pub sender: Sender,
}

/// Checks the code of the account's change and counts a wrong one. Returns the account before the
/// change too. A code counts for the session that asked for it, while that session is live.
pub async fn check_change(
    tx: &Tx,
    codes: &Codes,
    user: &User,
    given: &GivenChange<'_>,
    budget: Budget,
) -> Result<(CodeCheck, Profile)> {
    let refused = guard(tx, given.email, given.sender, budget).await?;
    let present = hold(tx, user).await?;
    if let Some(refused) = refused {
        return Ok((refused, present));
    }
    let row = tx
        .query_opt(
            "-- accounts.try_change
            select nonce from email_change
            where user_id = $1 and email = $2 and session_id = $3 and expires_at > app_now() and tries_left > 0
            for update",
            &[&user.id, &given.email.as_str(), &user.session],
        )
        .await?;
    let Some(nonce) = row.map(|row| row.get("nonce")) else {
        return Ok((CodeCheck::Wrong, present));
    };
    if codes.verify(given.email.as_str(), Purpose::Address, nonce, given.code) {
        return Ok((CodeCheck::Right, present));
    }
    count_wrong(tx, given.email).await?;
    tx.execute(
        "-- accounts.wrong_change
        update email_change set tries_left = tries_left - 1 where user_id = $1",
        &[&user.id],
    )
    .await?;
    Ok((CodeCheck::Wrong, present))
}

/// Gives the account its new address and uses the code up. The unique address decides a race.
pub async fn change_address(tx: &Tx, user: &User, email: &Email) -> Result<Profile> {
    tx.execute(
        "-- accounts.burn_change
        delete from email_change where user_id = $1",
        &[&user.id],
    )
    .await?;
    let row = tx
        .query_one(
            "-- accounts.change_address
            update user_account set email = $2 where user_id = $1
            returning email, display_name, device_locale, created_at",
            &[&user.id, &email.as_str()],
        )
        .await
        .on_constraint("user_account_email_key", Code::EmailTaken)?;
    Ok(profile_of(&row))
}
