//! `POST /auth/send-code`, `/auth/register`, `/auth/login`, `/auth/login-code`,
//! `/auth/reset-password`.

use std::fmt::Display;

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::Response,
};
use blindpipe_protocol::{
    accounts::{CodeSent, Login, LoginCode, PasswordReset, Register, ResetPassword, SendCode},
    devices::StillThere,
    revocation::RevocationReason,
    text::{Locale, Secret},
};
use secrecy::ExposeSecret;

use super::{
    Codes,
    notices::{SecurityChange, notify},
    rules::{GivenPassword, Password, Scene},
    store::{self, CodeCheck, GivenCode, Sender},
};
use crate::{
    auth::{
        jwt::AccessTokens,
        refresh::RefreshTokens,
        secret::Hasher,
        turnstile::{self, Turnstile},
        unanswered::UnansweredRefreshes,
    },
    error::{Code, Error, Result},
    features::devices,
    http::{Data, Json, client::ClientIp},
    ids::UserId,
    limits::{Limiter, quotas::CODE_TTL, table::Limit},
    metrics,
    validation::{Email, parse_field},
    work::{Tx, UnitOfWork},
};

/// The state of the account handlers.
#[derive(Clone)]
pub struct Accounts {
    pub work: UnitOfWork,
    pub codes: Codes,
    /// Separate from the pool of agent tokens, so that neither pool can starve the other.
    pub passwords: Hasher,
    pub turnstile: Turnstile,
    pub access_tokens: AccessTokens,
    pub refresh_tokens: RefreshTokens,
    pub unanswered: UnansweredRefreshes,
}

impl Accounts {
    /// Verifies that a person sends the request. The charge comes first, so that robots wait for
    /// nothing but their budget; only a refused token keeps it.
    pub async fn verify_human(
        &self,
        limiter: &Limiter,
        ip: ClientIp,
        token: &Secret,
    ) -> Result<()> {
        let token: turnstile::Token = parse_field("turnstile_token", token.expose())?;
        let reservation = limiter.reserve(Limit::HumanIp, ip).await?;
        let verified = self.turnstile.verify(&token.0, ip).await;
        let is_refused = |error: &Error| error.code() == Code::TurnstileFailed;
        if !verified.as_ref().is_err_and(is_refused) {
            limiter.refund(reservation).await;
        }
        verified
    }

    /// Verifies a token that a body may omit. The verdict on a code needs to know whether it came.
    pub async fn verify_if_present(
        &self,
        limiter: &Limiter,
        ip: ClientIp,
        token: Option<&Secret>,
    ) -> Result<Sender> {
        match token {
            None => Ok(Sender::Anybody),
            Some(token) => {
                self.verify_human(limiter, ip, token).await?;
                Ok(Sender::Human)
            }
        }
    }
}

/// `POST /auth/send-code`: mails a code.
///
/// Caller: anyone. Limits: `auth_human_ip` 30 refused/10 min, `auth_send_code` 1/60 s and
/// `auth_send_code_day` 20/24 h per e-mail. Body `{email, scene, turnstile_token}`. Answers 200
/// `{expires_in_seconds}`, the same for known and unknown e-mails. The mail is in the language of the
/// account, else of `Accept-Language`. Errors: `TURNSTILE_FAILED`.
pub async fn send_code(
    State(accounts): State<Accounts>,
    limiter: Limiter,
    ip: ClientIp,
    headers: HeaderMap,
    Json(body): Json<SendCode>,
) -> Result<Data<CodeSent>> {
    let email: Email = parse_field("email", body.email.expose())?;
    accounts
        .verify_human(&limiter, ip, &body.turnstile_token)
        .await?;
    let to = email.as_str();
    let budgets: [(Limit, &(dyn Display + Sync)); 2] =
        [(Limit::SendCode, &to), (Limit::SendCodeDay, &to)];
    limiter.check_all(&budgets).await?;
    let nonce = accounts.work.random().uuid_v7();
    let put = accounts.work.run("accounts.send_code", async |tx| {
        store::put_code(tx, &email, body.scene, nonce, preferred_locale(&headers)).await
    });
    put.await?;
    Ok(Data(CodeSent {
        expires_in_seconds: CODE_TTL.as_secs(),
    }))
}

/// The first locale of `Accept-Language`. The mail to an address without an account follows it.
fn preferred_locale(headers: &HeaderMap) -> Option<String> {
    let preferred = headers.get(header::ACCEPT_LANGUAGE)?.to_str().ok()?;
    let first = preferred.split([',', ';']).next()?.trim();
    first.parse::<Locale>().ok().map(|locale| locale.0)
}

/// `POST /auth/register`: makes an account and signs in.
///
/// Caller: anyone. Limits: `auth_register_ip` 10/10 min, `auth_register_email` 5/10 min. Answers
/// 201 with [`SignedIn`](blindpipe_protocol::accounts::SignedIn) and the refresh cookie. Errors:
/// `TURNSTILE_FAILED`, `CODE_INVALID`, `EMAIL_TAKEN` (only after a right code).
pub async fn register(
    State(accounts): State<Accounts>,
    limiter: Limiter,
    ip: ClientIp,
    Json(body): Json<Register>,
) -> Result<Response> {
    let email: Email = parse_field("email", body.email.expose())?;
    let password: Password = parse_field("account_password", body.account_password.expose())?;
    limiter.check(Limit::RegisterIp, ip).await?;
    accounts
        .verify_human(&limiter, ip, &body.turnstile_token)
        .await?;
    limiter.check(Limit::RegisterEmail, email.as_str()).await?;
    let hash = accounts
        .passwords
        .hash_password(password.0.expose_secret().to_owned())
        .await?;
    let user = UserId::generate(accounts.work.random());
    let session = accounts.new_session(body.device_id, body.device_name, body.platform);
    // A single transaction, so that a code is used up exactly if its account exists. A wrong try is
    // kept either way.
    let budget = limiter.budget(Limit::CodeTries);
    let registered = accounts.work.run("accounts.register", async |tx| {
        let given = GivenCode {
            email: &email,
            scene: Scene::Register,
            code: &body.code.0,
            sender: Sender::Human,
        };
        let checked = store::use_code(tx, &accounts.codes, &given, budget).await?;
        if let Some(refusal) = refusal_of(checked, &limiter) {
            return tx.commit_with(refusal);
        }
        let (name, locale) = (&body.display_name.0, &body.device_locale.0);
        store::create_user(tx, user, &email, name, locale, &hash).await?;
        accounts
            .sign_in(tx, StatusCode::CREATED, user, session)
            .await
    });
    registered.await
}

/// Counts a try of a code. Returns the error of a refused one, if any. The caller must commit the
/// counted try all the same.
pub(super) fn refusal_of(checked: CodeCheck, limiter: &Limiter) -> Option<Error> {
    metrics::code_tried(match &checked {
        CodeCheck::Right => "right",
        CodeCheck::Wrong => "wrong",
        CodeCheck::NeedsHuman => "needs_human",
        CodeCheck::TooMany(_) => "too_many",
    });
    match checked {
        CodeCheck::Right => None,
        CodeCheck::Wrong => Some(Code::CodeInvalid.into()),
        CodeCheck::NeedsHuman => Some(Code::TurnstileFailed.into()),
        CodeCheck::TooMany(wait) => Some(limiter.refusal(Limit::CodeTries, wait)),
    }
}

/// `POST /auth/login`: signs in with a password.
///
/// Caller: anyone. Limits: five failures lock the e-mail for 15 minutes (in Postgres);
/// `auth_login_ip` 30 failures per 10 min, undecided tries included; `auth_human_ip`. Answers 200
/// with [`SignedIn`](blindpipe_protocol::accounts::SignedIn) and the refresh cookie. Errors:
/// `TURNSTILE_FAILED`, `INVALID_CREDENTIALS`, `ACCOUNT_LOCKED`.
pub async fn login(
    State(accounts): State<Accounts>,
    limiter: Limiter,
    ip: ClientIp,
    headers: HeaderMap,
    Json(body): Json<Login>,
) -> Result<Response> {
    let email: Email = parse_field("email", body.email.expose())?;
    let password: GivenPassword = parse_field("account_password", body.account_password.expose())?;
    // The reservation comes before any check, so that a burst gets no more tries. Only a failure
    // keeps it.
    let reservation = limiter.reserve(Limit::LoginIp, ip).await?;
    let verified = async {
        accounts
            .verify_human(&limiter, ip, &body.turnstile_token)
            .await?;
        accounts.prove_password(&limiter, &email, &password).await
    };
    let verified = verified.await;
    metrics::login(outcome(&verified));
    if !matches!(verified, Ok(None)) {
        limiter.refund(reservation).await;
    }
    let known = verified?.ok_or(Code::InvalidCredentials)?;
    let session = accounts.new_session(body.device_id, body.device_name, body.platform);
    let session = accounts.with_cookie(session, &headers);
    let signed_in = accounts.work.run("accounts.sign_in", async |tx| {
        // A reset in between ended all sessions. The password that it replaced must not begin
        // another.
        store::still_holds(tx, &known).await?;
        store::clear_failures(tx, &email).await?;
        accounts
            .sign_in(tx, StatusCode::OK, known.user, session)
            .await
    });
    signed_in.await
}

/// The outcome of a login's check, for the metrics. A rise of `wrong` is an attack on passwords.
fn outcome(verified: &Result<Option<store::LoginCandidate>>) -> &'static str {
    match verified {
        Ok(Some(_)) => "right",
        Ok(None) => "wrong",
        Err(error) => match error.code() {
            Code::AccountLocked => "locked",
            Code::TurnstileFailed => "robot",
            Code::RateLimited => "limited",
            _ => "undecided",
        },
    }
}

impl Accounts {
    /// Returns the account if the password matches. The try is counted before the hash is computed,
    /// so that parallel guesses get no more than the limit. After a success the caller must clear
    /// the count ([`store::clear_failures`]).
    pub(super) async fn prove_password(
        &self,
        limiter: &Limiter,
        email: &Email,
        password: &GivenPassword,
    ) -> Result<Option<store::LoginCandidate>> {
        // The permit comes before the try is counted: an overloaded node must not lock anybody out.
        let permit = self.passwords.permit()?;
        let known = store::begin_login(self.work.db(), email, limiter.budget(Limit::LoginFail))
            .await?
            .map_err(locked)?;
        let hash = known.as_ref().map(|known| known.password_hash.clone());
        let matches = self
            .passwords
            .verify_password(permit, password.0.expose_secret().to_owned(), hash)
            .await?;
        Ok(known.filter(|_| matches))
    }
}

impl Accounts {
    /// Uses a mailed code and returns the account's user. Commits the counted try also if it is
    /// refused.
    pub(super) async fn use_code(
        &self,
        tx: &Tx,
        limiter: &Limiter,
        given: &GivenCode<'_>,
    ) -> Result<UserId> {
        let budget = limiter.budget(Limit::CodeTries);
        let checked = store::use_code(tx, &self.codes, given, budget).await?;
        let user = store::user_of(tx, given.email).await?;
        match (refusal_of(checked, limiter), user) {
            (None, Some(user)) => Ok(user),
            (Some(refusal), _) => tx.commit_with(refusal),
            // The holder of the mailbox asked for this code, but no account exists. The answer is
            // the same as for a wrong code.
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

/// `POST /auth/login-code`: signs in with a code that was mailed for it.
///
/// Caller: anyone. Limit: `auth_code_tries` 10 wrong ones/h per e-mail. Works while the password is
/// locked. Answers 200 with [`SignedIn`](blindpipe_protocol::accounts::SignedIn) and the refresh
/// cookie. Errors: `CODE_INVALID`, `TURNSTILE_FAILED` (a token is checked if present, and required
/// after three wrong codes in an hour).
pub async fn login_code(
    State(accounts): State<Accounts>,
    limiter: Limiter,
    ip: ClientIp,
    headers: HeaderMap,
    Json(body): Json<LoginCode>,
) -> Result<Response> {
    let email: Email = parse_field("email", body.email.expose())?;
    let token = body.turnstile_token.as_ref();
    let given = GivenCode {
        email: &email,
        scene: Scene::Login,
        code: &body.code.0,
        sender: accounts.verify_if_present(&limiter, ip, token).await?,
    };
    let session = accounts.new_session(body.device_id, body.device_name, body.platform);
    let session = accounts.with_cookie(session, &headers);
    let signed_in = accounts.work.run("accounts.login_code", async |tx| {
        let user = accounts.use_code(tx, &limiter, &given).await?;
        accounts.sign_in(tx, StatusCode::OK, user, session).await
    });
    signed_in.await
}

/// `POST /auth/reset-password`: sets another password with a mailed code. Keys and backups stay.
///
/// Caller: anyone. Limit: `auth_code_tries` 10 wrong ones/h per e-mail. Answers 200
/// [`PasswordReset`], with the passkeys and agents that are still there. Ends every session of the
/// user (`session.invalidated`, `password_reset`) and the lock of the login. Errors:
/// `CODE_INVALID`, `TURNSTILE_FAILED` (a token is checked if present, and required after three
/// wrong codes in an hour).
pub async fn reset_password(
    State(accounts): State<Accounts>,
    limiter: Limiter,
    ip: ClientIp,
    Json(body): Json<ResetPassword>,
) -> Result<Data<PasswordReset>> {
    let email: Email = parse_field("email", body.email.expose())?;
    let password: Password =
        parse_field("new_account_password", body.new_account_password.expose())?;
    let token = body.turnstile_token.as_ref();
    let given = GivenCode {
        email: &email,
        scene: Scene::Reset,
        code: &body.code.0,
        sender: accounts.verify_if_present(&limiter, ip, token).await?,
    };
    // This check comes before the costly hash, so that a guess does not cost one. The change below
    // uses the code up.
    let budget = limiter.budget(Limit::CodeTries);
    let checked = accounts.work.run("accounts.check_reset", async |tx| {
        store::check_code(tx, &accounts.codes, &given, budget).await
    });
    if let Some(refusal) = refusal_of(checked.await?, &limiter) {
        return Err(refusal);
    }
    let hash = accounts
        .passwords
        .hash_password(password.0.expose_secret().to_owned())
        .await?;
    let reset = accounts.work.run("accounts.reset", async |tx| {
        let user = accounts.use_code(tx, &limiter, &given).await?;
        store::set_password(tx, user, &hash).await?;
        store::clear_failures(tx, &email).await?;
        devices::end_all(tx, user, None, RevocationReason::PasswordReset).await?;
        notify(tx, user, SecurityChange::PasswordChanged).await?;
        devices::still_there(tx, user).await
    });
    let StillThere { passkeys, agents } = reset.await?;
    Ok(Data(PasswordReset {
        reset: true,
        passkeys,
        agents,
    }))
}
