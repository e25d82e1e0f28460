//! `POST /auth/send-code`, `/auth/register`, `/auth/login`, `/auth/login-code`, `/auth/reset-password`.

use axum::{
    extract::{FromRef, FromRequestParts},
    http::{StatusCode, request::Parts},
    response::Response,
};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};

use super::{
    Codes,
    rules::{GivenPassword, Password, Scene},
    store::{self, CodeCheck},
};
use crate::{
    auth::{
        jwt::AccessTokens,
        refresh::RefreshTokens,
        secret::Hasher,
        turnstile::{self, Turnstile},
    },
    db::Db,
    error::{Code, Error, Result},
    features::devices,
    http::{Data, Json, client::ClientIp},
    ids::UserId,
    limits::{Limiter, quotas::CODE_TTL, table::Limit},
    random::Random,
    validation::{DeviceId, Email, Text},
    work::{Tx, UnitOfWork},
};

/// What the account handlers work with.
#[derive(Clone)]
pub struct Accounts {
    pub work: UnitOfWork,
    pub db: Db,
    pub random: Random,
    pub codes: Codes,
    /// Apart from the pool of agent tokens, so that neither can starve the other.
    pub passwords: Hasher,
    pub turnstile: Turnstile,
    pub access_tokens: AccessTokens,
    pub refresh_tokens: RefreshTokens,
}

impl<S: Send + Sync> FromRequestParts<S> for Accounts
where
    Accounts: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request_parts(_: &mut Parts, state: &S) -> Result<Self> {
        Ok(Accounts::from_ref(state))
    }
}

/// A proof of being human.
type TurnstileToken = turnstile::Token;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SendCode {
    email: Email,
    scene: Scene,
    turnstile_token: TurnstileToken,
}

#[derive(Serialize)]
pub struct CodeSent {
    expires_in_seconds: u64,
}

/// `POST /auth/send-code`: mails a code.
///
/// Caller: anyone. Limits: `default_ip` per IP, `auth_send_code` 1/60 s per e-mail. Body `{email, scene,
/// turnstile_token}`. Answers 200 `{expires_in_seconds}`, the same for known and unknown e-mails.
/// Errors: `TURNSTILE_FAILED`.
pub async fn send_code(
    accounts: Accounts,
    limiter: Limiter,
    ip: ClientIp,
    Json(body): Json<SendCode>,
) -> Result<Data<CodeSent>> {
    limiter.check_route(Limit::DefaultIp, ip).await?;
    accounts
        .turnstile
        .verify(&body.turnstile_token.0, ip.ip())
        .await?;
    limiter.check(Limit::SendCode, body.email.as_str()).await?;
    let nonce = accounts.random.uuid_v7();
    let put = accounts.work.run("accounts.send_code", async |tx| {
        store::put_code(tx, &body.email, body.scene, nonce).await
    });
    put.await?;
    Ok(Data(CodeSent {
        expires_in_seconds: CODE_TTL.as_secs(),
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    email: Email,
    code: Text<1, 64>,
    account_password: Password,
    display_name: Text<1, 200>,
    device_locale: Text<1, 35>,
    turnstile_token: TurnstileToken,
    device_id: Option<DeviceId>,
    device_name: Option<Text<1, 200>>,
    platform: Option<Text<1, 64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Login {
    email: Email,
    account_password: GivenPassword,
    turnstile_token: TurnstileToken,
    device_id: Option<DeviceId>,
    device_name: Option<Text<1, 200>>,
    platform: Option<Text<1, 64>>,
}

/// `POST /auth/register`: makes an account and signs in.
///
/// Caller: anyone. Limits: `auth_register_ip` 10/10 min, `auth_register_email` 5/10 min. Answers 201 with [`SignedIn`](super::session::SignedIn) and
/// the refresh cookie. Errors: `TURNSTILE_FAILED`, `CODE_INVALID`, `EMAIL_TAKEN` (only after a right code).
pub async fn register(
    accounts: Accounts,
    limiter: Limiter,
    ip: ClientIp,
    Json(body): Json<Register>,
) -> Result<Response> {
    limiter.check(Limit::RegisterIp, ip).await?;
    accounts
        .turnstile
        .verify(&body.turnstile_token.0, ip.ip())
        .await?;
    limiter
        .check(Limit::RegisterEmail, body.email.as_str())
        .await?;
    let hash = accounts
        .passwords
        .hash_password(body.account_password.0.expose_secret().to_owned())
        .await?;
    let user = UserId::generate(&accounts.random);
    let session = accounts.new_session(body.device_id, body.device_name, body.platform);
    // One transaction, so that a code is used up if and only if its account exists; a wrong try is kept either way.
    let budget = limiter.budget(Limit::CodeTries);
    let registered = accounts.work.run("accounts.register", async |tx| {
        let (email, code) = (&body.email, &body.code.0);
        let checked =
            store::use_code(tx, &accounts.codes, email, Scene::Register, code, budget).await?;
        if let Some(refusal) = refusal_of(checked, &limiter) {
            return tx.commit_with(refusal);
        }
        let (name, locale) = (&body.display_name.0, &body.device_locale.0);
        store::create_user(tx, user, email, name, locale, &hash).await?;
        accounts
            .sign_in(tx, StatusCode::CREATED, user, session)
            .await
    });
    registered.await
}

/// Why a code was not taken, if it was not. What a try has counted must be committed all the same.
fn refusal_of(checked: CodeCheck, limiter: &Limiter) -> Option<Error> {
    match checked {
        CodeCheck::Right => None,
        CodeCheck::Wrong => Some(Code::CodeInvalid.into()),
        CodeCheck::TooMany(wait) => Some(limiter.refusal(Limit::CodeTries, wait)),
    }
}

/// `POST /auth/login`: signs in with a password.
///
/// Caller: anyone. Limits: five failures lock the e-mail for 15 minutes (in Postgres), `auth_login_ip` 30 failures per
/// 10 min, those that may still become one included. Answers 200 with [`SignedIn`](super::session::SignedIn) and the refresh cookie. Errors: `TURNSTILE_FAILED`,
/// `INVALID_CREDENTIALS`, `ACCOUNT_LOCKED`.
pub async fn login(
    accounts: Accounts,
    limiter: Limiter,
    ip: ClientIp,
    Json(body): Json<Login>,
) -> Result<Response> {
    // Before anything is judged, so that a burst gets no more; only a failure keeps it.
    let reservation = limiter.reserve(Limit::LoginIp, ip).await?;
    let proven = async {
        accounts
            .turnstile
            .verify(&body.turnstile_token.0, ip.ip())
            .await?;
        accounts
            .prove_password(&limiter, &body.email, &body.account_password)
            .await
    };
    let proven = proven.await;
    if !matches!(proven, Ok(None)) {
        limiter.refund(reservation).await;
    }
    let known = proven?.ok_or(Code::InvalidCredentials)?;
    let session = accounts.new_session(body.device_id, body.device_name, body.platform);
    let signed_in = accounts.work.run("accounts.sign_in", async |tx| {
        // A reset that came in between has ended all sessions; the password it replaced must not begin another.
        store::still_holds(tx, &known).await?;
        store::clear_failures(tx, &body.email).await?;
        accounts
            .sign_in(tx, StatusCode::OK, known.user, session)
            .await
    });
    signed_in.await
}

impl Accounts {
    /// The account, if the password is its own. The try is counted before the hash is computed, so that parallel guesses
    /// get no more than the limit; who succeeds must take it back ([`store::clear_failures`]).
    pub(super) async fn prove_password(
        &self,
        limiter: &Limiter,
        email: &Email,
        password: &GivenPassword,
    ) -> Result<Option<store::Known>> {
        // Before the try is counted: our overload must not lock anybody out.
        let turn = self.passwords.turn()?;
        let known = store::begin_login(&self.db, email, limiter.budget(Limit::LoginFail))
            .await?
            .map_err(locked)?;
        let hash = known.as_ref().map(|known| known.password_hash.clone());
        let matches = self
            .passwords
            .verify_password(turn, password.0.expose_secret().to_owned(), hash)
            .await?;
        Ok(known.filter(|_| matches))
    }
}

impl Accounts {
    /// Uses a code that was mailed to an account; whose it is. What a refused try has counted is committed all the same.
    async fn use_code(
        &self,
        tx: &Tx,
        limiter: &Limiter,
        scene: Scene,
        (email, code): (&Email, &str),
    ) -> Result<UserId> {
        let budget = limiter.budget(Limit::CodeTries);
        let checked = store::use_code(tx, &self.codes, email, scene, code, budget).await?;
        let user = store::user_of(tx, email).await?;
        match (refusal_of(checked, limiter), user) {
            (None, Some(user)) => Ok(user),
            (Some(refusal), _) => tx.commit_with(refusal),
            // A right code without an account was asked for by the holder of the mailbox: it says no more than a wrong one.
            (None, None) => tx.commit_with(Code::CodeInvalid),
        }
    }
}

fn locked(seconds: i64) -> Error {
    let wait = std::time::Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    Error::from(Code::AccountLocked)
        .with("retry_after", seconds)
        .retry_after(wait)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoginCode {
    email: Email,
    code: Text<1, 64>,
    turnstile_token: Option<TurnstileToken>,
    device_id: Option<DeviceId>,
    device_name: Option<Text<1, 200>>,
    platform: Option<Text<1, 64>>,
}

/// `POST /auth/login-code`: signs in with a code that was mailed for it.
///
/// Caller: anyone. Limits: `default_ip` per IP, `auth_code_tries` 10 wrong ones/h per e-mail. Works while the password is
/// locked. Answers 200 with [`SignedIn`](super::session::SignedIn) and the refresh cookie. Errors: `CODE_INVALID`,
/// `TURNSTILE_FAILED` (a token is not required, but judged if there is one).
pub async fn login_code(
    accounts: Accounts,
    limiter: Limiter,
    ip: ClientIp,
    Json(body): Json<LoginCode>,
) -> Result<Response> {
    limiter.check_route(Limit::DefaultIp, ip).await?;
    if let Some(token) = &body.turnstile_token {
        accounts.turnstile.verify(&token.0, ip.ip()).await?;
    }
    let session = accounts.new_session(body.device_id, body.device_name, body.platform);
    let signed_in = accounts.work.run("accounts.login_code", async |tx| {
        let given = (&body.email, body.code.0.as_str());
        let user = accounts.use_code(tx, &limiter, Scene::Login, given).await?;
        accounts.sign_in(tx, StatusCode::OK, user, session).await
    });
    signed_in.await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResetPassword {
    email: Email,
    code: Text<1, 64>,
    new_account_password: Password,
    turnstile_token: Option<TurnstileToken>,
}

#[derive(Serialize)]
pub struct Reset {
    reset: bool,
}

/// `POST /auth/reset-password`: another password, by a code that was mailed for it. Keys and backups stay.
///
/// Caller: anyone. Limits: `default_ip` per IP, `auth_code_tries` 10 wrong ones/h per e-mail. Answers 200 `{reset:true}`.
/// Ends every session of the user (`session.invalidated`, `password_reset`) and the lock of the login. Errors:
/// `CODE_INVALID`, `TURNSTILE_FAILED` (a token is not required, but judged if there is one).
pub async fn reset_password(
    accounts: Accounts,
    limiter: Limiter,
    ip: ClientIp,
    Json(body): Json<ResetPassword>,
) -> Result<Data<Reset>> {
    limiter.check_route(Limit::DefaultIp, ip).await?;
    if let Some(token) = &body.turnstile_token {
        accounts.turnstile.verify(&token.0, ip.ip()).await?;
    }
    // Looked at before the costly hash, so that guessing does not buy one; used up below, with the change.
    let budget = limiter.budget(Limit::CodeTries);
    let given = (&body.email, body.code.0.as_str());
    let checked = accounts.work.run("accounts.check_reset", async |tx| {
        store::check_code(tx, &accounts.codes, given.0, Scene::Reset, given.1, budget).await
    });
    if let Some(refusal) = refusal_of(checked.await?, &limiter) {
        return Err(refusal);
    }
    let hash = accounts
        .passwords
        .hash_password(body.new_account_password.0.expose_secret().to_owned())
        .await?;
    let reset = accounts.work.run("accounts.reset", async |tx| {
        let user = accounts.use_code(tx, &limiter, Scene::Reset, given).await?;
        store::set_password(tx, user, &hash).await?;
        store::clear_failures(tx, &body.email).await?;
        devices::end_all(tx, user, None, "password_reset").await
    });
    reset.await?;
    Ok(Data(Reset { reset: true }))
}
