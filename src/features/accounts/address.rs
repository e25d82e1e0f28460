//! `POST /users/me/email`, `POST /users/me/email/confirm`.

use axum::extract::State;
use blindpipe_protocol::accounts::{Account, ChangeEmail, CodeSent, ConfirmEmail};

use super::{
    http::{Accounts, refusal_of},
    me,
    notices::{SecurityChange, notify_address},
    store::{self, GivenChange},
};
use crate::{
    auth::user::User,
    error::{Error, Result},
    http::{Data, Json, client::ClientIp},
    limits::{Limiter, quotas::CODE_TTL, table::Limit},
    validation::{Email, parse_field},
};

/// `POST /users/me/email`: mails a code to the address that the account is to have, and a notice to
/// the present one.
///
/// Caller: user with a login less than 10 min old. Limit: `auth_send_code`, 1/60 s per new address
/// and per user. Body `{email}`. Answers 200 `{expires_in_seconds}`, the same for an address that
/// another account has. Errors: `REAUTH_REQUIRED`.
pub async fn ask(
    user: User,
    limiter: Limiter,
    State(accounts): State<Accounts>,
    Json(body): Json<ChangeEmail>,
) -> Result<Data<CodeSent>> {
    let email: Email = parse_field("email", body.email.expose())?;
    user.must_be_recent()?;
    let profile = store::profile(accounts.work.db(), user.id).await?;
    if profile.email == email.as_str() {
        let fault = "is the account's address already";
        return Err(Error::field("email", "same", fault));
    }
    // The budget of the user comes first, so that one account cannot use up those of many
    // addresses.
    limiter.check(Limit::SendCode, user.id).await?;
    limiter.check(Limit::SendCode, email.as_str()).await?;
    let nonce = accounts.work.random().uuid_v7();
    let asked = accounts.work.run("accounts.ask_address", async |tx| {
        let present = store::hold(tx, &user).await?;
        store::put_change(tx, &user, &email, nonce, &present.device_locale).await?;
        notify_address(tx, &present, SecurityChange::AddressAsked).await
    });
    asked.await?;
    Ok(Data(CodeSent {
        expires_in_seconds: CODE_TTL.as_secs(),
    }))
}

/// `POST /users/me/email/confirm`: gives the account its new address. A notice goes to the one
/// before.
///
/// Caller: user, in the session that asked. Limit: `auth_code_tries` 10 wrong ones/h per new
/// address. Body `{email, code, turnstile_token?}`. Answers 200 with [`Account`]. Errors:
/// `CODE_INVALID`, `TURNSTILE_FAILED` (a token is checked if present, and required after three
/// wrong codes in an hour), `EMAIL_TAKEN` (only after a right code, which stays good).
pub async fn confirm(
    user: User,
    limiter: Limiter,
    ip: ClientIp,
    State(accounts): State<Accounts>,
    Json(body): Json<ConfirmEmail>,
) -> Result<Data<Account>> {
    let email: Email = parse_field("email", body.email.expose())?;
    let token = body.turnstile_token.as_ref();
    let given = GivenChange {
        email: &email,
        code: &body.code.0,
        sender: accounts.verify_if_present(&limiter, ip, token).await?,
    };
    let budget = limiter.budget(Limit::CodeTries);
    let confirmed = accounts.work.run("accounts.confirm_address", async |tx| {
        let (checked, present) =
            store::check_change(tx, &accounts.codes, &user, &given, budget).await?;
        if let Some(refusal) = refusal_of(checked, &limiter) {
            return tx.commit_with(refusal);
        }
        let profile = store::change_address(tx, &user, &email).await?;
        notify_address(tx, &present, SecurityChange::AddressChanged).await?;
        Ok(profile)
    });
    let profile = confirmed.await?;
    Ok(Data(me::shown(user, profile)))
}
