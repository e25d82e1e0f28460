//! `GET /users/me`, `PATCH /users/me`, `POST /users/me/password`.

use axum::extract::State;
use blindpipe_protocol::{
    accounts::{Account, ChangePassword, ChangeProfile, PasswordChanged},
    revocation::RevocationReason,
};
use secrecy::ExposeSecret;

use super::{
    http::Accounts,
    notices::{SecurityChange, notify},
    rules::{GivenPassword, Password},
    store,
};
use crate::{
    auth::user::User,
    db::Db,
    error::{Code, Error, Result},
    features::devices,
    http::{Data, Json},
    limits::Limiter,
    validation::parse_field,
};

/// `GET /users/me`: the caller's account.
///
/// Caller: user. Answers 200 with [`Account`].
pub async fn get(user: User, State(db): State<Db>) -> Result<Data<Account>> {
    let profile = store::profile(&db, user.id).await?;
    Ok(Data(shown(user, profile)))
}

/// The account as its user sees it.
pub fn shown(user: User, profile: store::Profile) -> Account {
    Account {
        user_id: user.id,
        email: profile.email,
        display_name: profile.display_name,
        device_locale: profile.device_locale,
        device_id: user.device_id,
        created_at: profile.created_at.into(),
    }
}

/// `PATCH /users/me`: changes the display name, or the locale, which mails follow.
///
/// Caller: user. Body `{display_name?, device_locale?}`, at least one of them. Answers 200 with
/// [`Account`].
pub async fn change(
    user: User,
    State(accounts): State<Accounts>,
    Json(body): Json<ChangeProfile>,
) -> Result<Data<Account>> {
    if body.display_name.is_none() && body.device_locale.is_none() {
        let fault = "nothing to change: display_name or device_locale";
        return Err(Error::field("display_name", "required", fault));
    }
    let changed = accounts.work.run("accounts.change_profile", async |tx| {
        store::change_profile(tx, &user, &body).await
    });
    let profile = changed.await?;
    Ok(Data(shown(user, profile)))
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
) -> Result<Data<PasswordChanged>> {
    let current: GivenPassword = parse_field("current_password", body.current_password.expose())?;
    let password: Password =
        parse_field("new_account_password", body.new_account_password.expose())?;
    let email = store::email_of(accounts.work.db(), user.id).await?;
    let known = accounts.prove_password(&limiter, &email, &current).await?;
    let known = known
        .filter(|known| known.user == user.id)
        .ok_or(Code::InvalidCredentials)?;
    let hash = accounts
        .passwords
        .hash_password(password.0.expose_secret().to_owned())
        .await?;
    let changed = accounts.work.run("accounts.change_password", async |tx| {
        store::replace_password(tx, &known, &hash).await?;
        store::clear_failures(tx, &email).await?;
        devices::note_proof(tx, user.session).await?;
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
    Ok(Data(PasswordChanged { changed: true }))
}
