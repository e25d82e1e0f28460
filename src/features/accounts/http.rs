//! `POST /auth/send-code`, `/auth/register`, `/auth/login`, `/auth/refresh`.

use std::sync::Arc;

use axum::{
    extract::{FromRef, FromRequestParts},
    http::{HeaderMap, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::{
    Codes,
    rules::{DeviceId, Email, GivenPassword, Password, Scene},
    store::{self, CodeCheck, NewSession, Refreshed},
};
use crate::{
    auth::{jwt::AccessTokens, refresh::RefreshTokens, secret::Hasher, turnstile, turnstile::Turnstile},
    backplane::Backplane,
    db::{Db, Tx},
    error::{Code, Error, Result},
    http::{Data, Json, client::ClientIp, json::Text},
    ids::{MailId, SessionId, UserId},
    limits::{
        Limiter,
        quotas::{ACCESS_TOKEN_LIFE, CODE_LIFE},
        table::Limit,
    },
    random::Random,
};

/// What the account handlers work with.
#[derive(Clone, FromRef)]
pub struct Accounts {
    pub db: Db,
    pub random: Random,
    pub codes: Codes,
    /// Apart from the pool of agent tokens, so that neither can starve the other.
    pub passwords: Hasher,
    pub turnstile: Turnstile,
    pub access_tokens: AccessTokens,
    pub refresh_tokens: RefreshTokens,
    pub backplane: Backplane,
    pub mail_bell: Arc<Notify>,
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
    limiter.take_here(Limit::DefaultIp, ip).await?;
    accounts.turnstile.verify(&body.turnstile_token.0, ip.ip()).await?;
    limiter.take(Limit::SendCode, body.email.as_str()).await?;
    let mail = MailId::mint(&accounts.random);
    let nonce = accounts.random.uuid_v7();
    let tx = accounts.db.begin("accounts.send_code").await?;
    store::put_code(&tx, &body.email, body.scene, nonce, mail).await?;
    tx.commit().await?;
    // The schedule would find it too, a second later.
    accounts.mail_bell.notify_one();
    Ok(Data(CodeSent { expires_in_seconds: CODE_LIFE.as_secs() }))
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

/// What every way of signing in answers, beside the refresh cookie.
#[derive(Serialize)]
pub struct SignedIn {
    user_id: UserId,
    access_token: String,
    expires_in_seconds: u64,
    device_id: String,
    is_new_device: bool,
    key_backup: KeyBackup,
}

/// What key backups the user has.
#[derive(Serialize)]
pub struct KeyBackup {
    exists: bool,
    device_ids: Vec<String>,
}

/// `POST /auth/register`: makes an account and signs in.
///
/// Caller: anyone. Limits: `auth_register_ip` 10/10 min, `auth_register_email` 5/10 min. Answers 201 with [`SignedIn`] and
/// the refresh cookie. Errors: `TURNSTILE_FAILED`, `CODE_INVALID`, `EMAIL_TAKEN` (only after a right code).
pub async fn register(
    accounts: Accounts,
    limiter: Limiter,
    ip: ClientIp,
    Json(body): Json<Register>,
) -> Result<Response> {
    limiter.take(Limit::RegisterIp, ip).await?;
    accounts.turnstile.verify(&body.turnstile_token.0, ip.ip()).await?;
    limiter.take(Limit::RegisterEmail, body.email.as_str()).await?;
    let hash = accounts.passwords.hash_password(body.account_password.0.expose_secret().to_owned()).await?;
    let user = UserId::mint(&accounts.random);
    let session = accounts.new_session(body.device_id, body.device_name, body.platform);
    // One transaction, so that a code is used up if and only if its account exists; a wrong try is kept either way.
    let tx = accounts.db.begin("accounts.register").await?;
    let checked = store::use_code(&tx, &accounts.codes, &body.email, Scene::Register, &body.code.0).await?;
    let refusal = match checked {
        CodeCheck::Right => None,
        CodeCheck::Wrong => Some(Code::CodeInvalid.into()),
        CodeCheck::TooMany(wait) => Some(limiter.refusal(Limit::CodeTries, wait)),
    };
    if let Some(refusal) = refusal {
        tx.commit().await?;
        return Err(refusal);
    }
    store::create_user(&tx, user, &body.email, &body.display_name.0, &body.device_locale.0, &hash).await?;
    accounts.sign_in(tx, StatusCode::CREATED, user, session).await
}

/// `POST /auth/login`: signs in with a password.
///
/// Caller: anyone. Limits: five failures lock the e-mail for 15 minutes (in Postgres), `auth_login_ip` 30 failures per
/// 10 min. Answers 200 with [`SignedIn`] and the refresh cookie. Errors: `TURNSTILE_FAILED`, `INVALID_CREDENTIALS`,
/// `ACCOUNT_LOCKED`.
pub async fn login(
    accounts: Accounts,
    limiter: Limiter,
    ip: ClientIp,
    Json(body): Json<Login>,
) -> Result<Response> {
    limiter.check(Limit::LoginIp, ip).await?;
    accounts.turnstile.verify(&body.turnstile_token.0, ip.ip()).await?;
    // The try is counted before the hash is computed, so that parallel guesses get no more than five.
    let tx = accounts.db.begin("accounts.login").await?;
    let known = store::begin_login(&tx, &body.email).await?;
    tx.commit().await?;
    let known = known.map_err(locked)?;
    let password = body.account_password.0;
    let hash = known.as_ref().map(|known| known.password_hash.clone());
    let matches = match accounts.passwords.verify_password(password.expose_secret().to_owned(), hash).await {
        Ok(matches) => matches,
        Err(overload) => {
            // Nothing was tried, so nothing has failed: our overload must not lock anybody out.
            let tx = accounts.db.begin("accounts.forgive").await?;
            store::forgive(&tx, &body.email).await?;
            tx.commit().await?;
            return Err(overload);
        }
    };
    let Some(known) = known.filter(|_| matches) else {
        limiter.take(Limit::LoginIp, ip).await?;
        return Err(Code::InvalidCredentials.into());
    };
    let session = accounts.new_session(body.device_id, body.device_name, body.platform);
    let tx = accounts.db.begin("accounts.sign_in").await?;
    store::clear_failures(&tx, &body.email).await?;
    accounts.sign_in(tx, StatusCode::OK, known.user, session).await
}

fn locked(seconds: i64) -> Error {
    let wait = std::time::Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    Error::from(Code::AccountLocked).with("retry_after", seconds).retry_after(wait)
}

/// What a refresh answers, beside the next cookie.
#[derive(Serialize)]
pub struct RefreshedToken {
    access_token: String,
    expires_in_seconds: u64,
}

/// `POST /auth/refresh`: the next access token and refresh cookie.
///
/// Caller: the holder of the cookie; no body. Limit: `auth_refresh`, 60/min per session. Answers 200 `{access_token,
/// expires_in_seconds}`. The predecessor gives the same successor for 10 s; later it was stolen, and the session ends
/// on every node. Errors: `TOKEN_EXPIRED`.
pub async fn refresh(
    accounts: Accounts,
    limiter: Limiter,
    ip: ClientIp,
    headers: HeaderMap,
) -> Result<Response> {
    let Some((session, generation)) = accounts.refresh_tokens.read(&headers) else {
        limiter.take_here(Limit::DefaultIp, ip).await?;
        return Err(Code::TokenExpired.into());
    };
    // Each use gives another token, so a budget per token would never be met: it is the session's.
    limiter.take(Limit::Refresh, session).await?;
    let tx = accounts.db.begin("accounts.refresh").await?;
    let outcome = store::refresh(&tx, session, generation).await?;
    tx.commit().await?;
    match outcome {
        Refreshed::Next { user, device_id, generation } => {
            let data = RefreshedToken {
                access_token: accounts.access_tokens.sign(user, &device_id, session)?,
                expires_in_seconds: ACCESS_TOKEN_LIFE.as_secs(),
            };
            let cookie = accounts.refresh_tokens.cookie(session, generation);
            Ok(([(header::SET_COOKIE, cookie)], Data(data)).into_response())
        }
        Refreshed::Stolen => {
            accounts.backplane.invalidate(vec![session.0], "refresh_reuse");
            Err(Code::TokenExpired.into())
        }
        Refreshed::Dead => Err(Code::TokenExpired.into()),
    }
}

impl Accounts {
    /// A session to be, on the device that the caller names or on one that we do.
    pub fn new_session(
        &self,
        device: Option<DeviceId>,
        name: Option<Text<1, 200>>,
        platform: Option<Text<1, 64>>,
    ) -> NewSession {
        NewSession {
            id: SessionId::mint(&self.random),
            provisional: device.is_none(),
            device_id: device
                .map_or_else(|| format!("provisional-{}", self.random.uuid_v7().simple()), |device| device.0),
            device_name: name.map(|name| name.0),
            platform: platform.map(|platform| platform.0),
        }
    }

    /// The end of every way of signing in: makes the session in `tx`, commits, answers.
    pub async fn sign_in(
        &self,
        tx: Tx,
        status: StatusCode,
        user: UserId,
        session: NewSession,
    ) -> Result<Response> {
        let signed = store::sign_in(&tx, user, &session).await?;
        tx.commit().await?;
        self.signed_in(status, user, session, signed)
    }

    fn signed_in(
        &self,
        status: StatusCode,
        user: UserId,
        session: NewSession,
        signed: store::SignedIn,
    ) -> Result<Response> {
        if !signed.replaced.is_empty() {
            self.backplane.invalidate(signed.replaced.iter().map(|old| old.0).collect(), "logout");
        }
        let data = SignedIn {
            user_id: user,
            access_token: self.access_tokens.sign(user, &session.device_id, session.id)?,
            expires_in_seconds: ACCESS_TOKEN_LIFE.as_secs(),
            device_id: session.device_id,
            is_new_device: signed.is_new_device,
            key_backup: KeyBackup { exists: false, device_ids: Vec::new() },
        };
        let cookie = self.refresh_tokens.cookie(session.id, 0);
        Ok((status, [(header::SET_COOKIE, cookie)], Data(data)).into_response())
    }
}
