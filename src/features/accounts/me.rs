//! `GET /users/me`, `DELETE /users/me`, `POST /users/me/password`.

use axum::extract::State;
use chrono::{DateTime, Utc};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};

use super::{
    http::Accounts,
    rules::{GivenPassword, Password},
    store,
};
use crate::{
    auth::user::User,
    db::Db,
    error::{Code, Result},
    features::devices,
    http::{Data, Json},
    ids::UserId,
    limits::{Limiter, table::Limit},
};

/// The caller's account.
#[derive(Serialize)]
pub struct Me {
    user_id: UserId,
    email: String,
    display_name: String,
    device_locale: String,
    /// The device of this session.
    device_id: String,
    #[serde(serialize_with = "crate::clock::as_iso")]
    created_at: DateTime<Utc>,
}

/// `GET /users/me`: the caller's account.
///
/// Caller: user. Limit: `default_user`, 120/min. Answers 200 with [`Me`].
pub async fn get(user: User, limiter: Limiter, State(db): State<Db>) -> Result<Data<Me>> {
    limiter.check_route(Limit::DefaultUser, user.id).await?;
    let store::Profile {
        email,
        display_name,
        device_locale,
        created_at,
    } = store::profile(&db, user.id).await?;
    let device_id = user.device_id;
    Ok(Data(Me {
        user_id: user.id,
        email,
        display_name,
        device_locale,
        device_id,
        created_at,
    }))
}

#[derive(Deserialize)]
pub struct ChangePassword {
    current_password: GivenPassword,
    new_account_password: Password,
}

#[derive(Serialize)]
pub struct Changed {
    changed: bool,
}

/// `POST /users/me/password`: another password, by the one before.
///
/// Caller: user. Limits: `default_user`, 120/min; a wrong password counts as a failed login of the e-mail. Answers 200
/// `{changed:true}`. This session stays, and counts as just logged in; all others of the user end
/// (`session.invalidated`, `password_reset`). Errors: `INVALID_CREDENTIALS`, `ACCOUNT_LOCKED`.
pub async fn change_password(
    user: User,
    limiter: Limiter,
    accounts: Accounts,
    Json(body): Json<ChangePassword>,
) -> Result<Data<Changed>> {
    limiter.check_route(Limit::DefaultUser, user.id).await?;
    let email = store::email_of(&accounts.db, user.id).await?;
    let known = accounts
        .prove_password(&limiter, &email, &body.current_password)
        .await?;
    let known = known
        .filter(|known| known.user == user.id)
        .ok_or(Code::InvalidCredentials)?;
    let hash = accounts
        .passwords
        .hash_password(body.new_account_password.0.expose_secret().to_owned())
        .await?;
    let changed = accounts.work.run("accounts.change_password", async |tx| {
        store::replace_password(tx, &known, &hash).await?;
        store::clear_failures(tx, &email).await?;
        store::note_proof(tx, user.session).await?;
        devices::end_all(tx, user.id, Some(user.session), "password_reset").await
    });
    changed.await?;
    Ok(Data(Changed { changed: true }))
}

/// An account that is gone.
#[derive(Serialize)]
pub struct Deleted {
    user_id: UserId,
    #[serde(serialize_with = "crate::clock::as_iso")]
    deleted_at: DateTime<Utc>,
}

/// `DELETE /users/me`: ends the account, its sessions, agents, keys and backups; its relations, too, and it leaves its
/// conversations, within seconds. What it said stays with those who were told.
///
/// Caller: user with a login less than 10 min old. Limit: `default_user`, 120/min. Answers 200 with [`Deleted`]. All
/// sockets of the user and its agents get `session.invalidated`, `account_deleted`. Errors: `REAUTH_REQUIRED`. Tells,
/// within seconds, `key.device_removed`, `relation.revoked` and `member.removed`.
pub async fn delete(user: User, limiter: Limiter, accounts: Accounts) -> Result<Data<Deleted>> {
    limiter.check_route(Limit::DefaultUser, user.id).await?;
    user.must_be_recent()?;
    let deleted = accounts
        .work
        .run("accounts.delete", async |tx| store::delete(tx, &user).await);
    let deleted_at = deleted.await?;
    Ok(Data(Deleted {
        user_id: user.id,
        deleted_at,
    }))
}
