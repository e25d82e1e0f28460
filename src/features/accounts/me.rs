//! `GET /users/me`, `DELETE /users/me`, `POST /users/me/password`.

use axum::extract::State;
use blindpipe_protocol::revocation::RevocationReason;
use chrono::{DateTime, Utc};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};

use super::{
    http::Accounts,
    notices::{SecurityChange, notify},
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
    limits::Limiter,
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
/// Caller: user. Answers 200 with [`Me`].
pub async fn get(user: User, State(db): State<Db>) -> Result<Data<Me>> {
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

/// `POST /users/me/password`: sets another password, authorised by the current one.
///
/// Caller: user. A wrong password counts as a failed login of the e-mail. Answers 200
/// `{changed:true}`. This session stays and counts as just logged in. All others of the user end
/// (`session.invalidated`, `password_reset`). Errors: `INVALID_CREDENTIALS`, `ACCOUNT_LOCKED`.
pub async fn change_password(
    user: User,
    limiter: Limiter,
    State(accounts): State<Accounts>,
    Json(body): Json<ChangePassword>,
) -> Result<Data<Changed>> {
    let email = store::email_of(accounts.work.db(), user.id).await?;
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
        notify(tx, user.id, SecurityChange::PasswordChanged).await?;
        devices::end_all(
            tx,
            user.id,
            Some(user.session),
            RevocationReason::PasswordReset,
        )
        .await
    });
    changed.await?;
    Ok(Data(Changed { changed: true }))
}

/// A deleted account.
#[derive(Serialize)]
pub struct Deleted {
    user_id: UserId,
    #[serde(serialize_with = "crate::clock::as_iso")]
    deleted_at: DateTime<Utc>,
}

/// `DELETE /users/me`: ends the account with its sessions, agents, keys and backups. Within seconds
/// its relations end and it leaves its conversations. Its messages stay with their recipients.
///
/// Caller: user with a login less than 10 min old. Answers 200 with [`Deleted`]. All sockets of the
/// user and its agents get `session.invalidated`, `account_deleted`. Errors: `REAUTH_REQUIRED`.
/// Publishes, within seconds, `key.device_removed`, `relation.revoked` and `member.removed`.
pub async fn delete(user: User, State(accounts): State<Accounts>) -> Result<Data<Deleted>> {
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
