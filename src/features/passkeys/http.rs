//! `POST /auth/passkey/*`, `/users/me/passkeys`.

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::Response,
};
use blindpipe_protocol::{
    passkeys::{
        BeginPasskeyLogin, CompleteEnrolment, CompletePasskeyLogin, DeletedPasskey,
        EnrolledPasskey, EnrolmentChallenge, LoginChallenge, Passkey,
    },
    raw::RawJson,
};
use serde::{Serialize, de::DeserializeOwned};
use webauthn_rs::prelude::{
    DiscoverableAuthentication, Passkey as StoredPasskey, PasskeyRegistration, PublicKeyCredential,
    RegisterPublicKeyCredential, WebauthnError,
};
use webauthn_rs_proto::ResidentKeyRequirement;

use super::{Passkeys, store};
use crate::{
    auth::user::{User, lock_live_session},
    error::{Code, Error, Result},
    features::{
        accounts::{self, Accounts, SecurityChange},
        devices::{self, NewSession},
    },
    http::{Created, Data, Json, JsonOrNothing, List, Page, Path, Query, client::ClientIp, json},
    ids::{ChallengeId, PasskeyId, UserId},
    limits::{Limiter, table::Limit},
    metrics,
    work::{Tx, UnitOfWork},
};

/// `POST /auth/passkey/begin`: a challenge for a sign-in. The request names no user.
///
/// Caller: anyone. Limit: `auth_passkey_begin`, 30/min per IP. Body `{turnstile_token?}` or none.
/// Answers 200 `{challenge_id, public_key, mediation, expires_at}`. Errors: `TURNSTILE_FAILED`.
pub async fn begin_login(
    limiter: Limiter,
    ip: ClientIp,
    State(accounts): State<Accounts>,
    State(passkeys): State<Passkeys>,
    JsonOrNothing(body): JsonOrNothing<BeginPasskeyLogin>,
) -> Result<Data<LoginChallenge>> {
    limiter.check(Limit::PasskeyBegin, ip).await?;
    if let Some(token) = body.turnstile_token {
        accounts.verify_human(&limiter, ip, &token).await?;
    }
    let (options, state) = passkeys
        .webauthn
        .start_discoverable_authentication()
        .map_err(broken)?;
    let kept = accounts.work.run("passkeys.begin_login", async |tx| {
        store::put_challenge(tx, None, &written(&state)?).await
    });
    let (challenge_id, expires_at) = kept.await?;
    Ok(Data(LoginChallenge {
        challenge_id,
        public_key: RawJson::of(&options.public_key).map_err(broken)?,
        mediation: "conditional".to_owned(),
        expires_at: expires_at.into(),
    }))
}

/// `POST /auth/passkey/complete`: signs in with a passkey, also while the password is locked.
///
/// Caller: anyone. Answers 200 as every sign-in does, with the refresh cookie. The challenge is
/// used up by any answer, right or wrong. A `turnstile_token` is checked before, if present. Errors:
/// `CHALLENGE_EXPIRED`, `PASSKEY_INVALID`, `TURNSTILE_FAILED`.
pub async fn login(
    limiter: Limiter,
    ip: ClientIp,
    State(accounts): State<Accounts>,
    State(passkeys): State<Passkeys>,
    headers: HeaderMap,
    Json(body): Json<CompletePasskeyLogin>,
) -> Result<Response> {
    let credential = json::parse_field("credential", &body.credential)?;
    if let Some(token) = body.turnstile_token {
        accounts.verify_human(&limiter, ip, &token).await?;
    }
    let session = accounts.new_session(body.device_id, body.device_name, body.platform);
    let session = accounts.with_cookie(session, &headers);
    let signed_in = accounts.work.run("passkeys.login", async |tx| {
        let answered = passkeys.answer(tx, body.challenge_id, &credential);
        let (user, passkey) = answered.await?;
        let session = NewSession {
            passkey: Some(passkey),
            ..session
        };
        accounts.sign_in(tx, StatusCode::OK, user, session).await
    });
    signed_in.await
}

impl Passkeys {
    /// Notes that the session's user holds a passkey. The challenge is used up by any answer.
    pub async fn prove_again(
        &self,
        work: &UnitOfWork,
        user: &User,
        challenge: ChallengeId,
        credential: &RawJson,
    ) -> Result<()> {
        let credential = json::parse_field("credential", credential)?;
        let proven = work.run("passkeys.prove_again", async |tx| {
            let (owner, _) = self.answer(tx, challenge, &credential).await?;
            if owner != user.id {
                return tx.commit_with(Code::PasskeyInvalid);
            }
            devices::note_proof(tx, user.session).await
        });
        proven.await
    }

    /// The user and the passkey that have answered a challenge of a sign-in. A refusal is committed,
    /// because it uses the challenge up.
    async fn answer(
        &self,
        tx: &Tx,
        challenge: ChallengeId,
        credential: &PublicKeyCredential,
    ) -> Result<(UserId, PasskeyId)> {
        let Some(state) = store::take_challenge(tx, challenge, None).await? else {
            metrics::passkey_login("expired");
            return tx.commit_with(Code::ChallengeExpired);
        };
        let verified = self.prove(tx, credential, read(&state)?).await?;
        metrics::passkey_login(verified.map_or_else(|outcome| outcome, |_| "signed_in"));
        match verified {
            Ok(answered) => Ok(answered),
            Err(_) => tx.commit_with(Code::PasskeyInvalid),
        }
    }
}

impl Passkeys {
    /// The user and the passkey that have answered the challenge, or the error of the answer.
    async fn prove(
        &self,
        tx: &Tx,
        credential: &PublicKeyCredential,
        state: DiscoverableAuthentication,
    ) -> Result<Result<(UserId, PasskeyId), &'static str>> {
        let Ok((user, credential_id)) = self
            .webauthn
            .identify_discoverable_authentication(credential)
        else {
            return Ok(Err("invalid"));
        };
        let user = UserId(user);
        let Some(claimed) = store::claim(tx, user, credential_id).await? else {
            return Ok(Err("unknown"));
        };
        let mut passkey: StoredPasskey = read(&claimed.credential)?;
        match self
            .webauthn
            .finish_discoverable_authentication_v2(credential, state, &passkey)
        {
            Ok(result) => {
                passkey.update_credential(&result);
                store::used(tx, claimed.id, &written(&passkey)?).await?;
                Ok(Ok((user, claimed.id)))
            }
            Err(WebauthnError::CredentialPossibleCompromise) => {
                // Two parties hold this key, and the server cannot tell which of them is the user.
                tracing::warn!(
                    operation = "passkeys.sign_in",
                    passkey_id = %claimed.id,
                    remedy = "it is removed",
                    "a passkey's counter went back: it was copied"
                );
                store::remove(tx, user, claimed.id).await?;
                Ok(Err("copied"))
            }
            Err(why) => {
                tracing::debug!(%why, "a passkey's answer is refused");
                Ok(Err("invalid"))
            }
        }
    }
}

/// `POST /users/me/passkeys/begin`: a challenge for the enrolment of a passkey.
///
/// Caller: user with a login less than 10 min old. No body. Answers 200 `{challenge_id, public_key,
/// expires_at}`. Errors: `REAUTH_REQUIRED`.
pub async fn begin_enrolment(
    user: User,
    State(work): State<UnitOfWork>,
    State(passkeys): State<Passkeys>,
) -> Result<Data<EnrolmentChallenge>> {
    user.must_be_recent()?;
    let begun = work.run("passkeys.begin_enrolment", async |tx| {
        let owner = store::owner(tx, user.id).await?;
        let known = Some(owner.credential_ids);
        let (mut options, state) = passkeys
            .webauthn
            .start_passkey_registration(user.id.0, &owner.email, &owner.display_name, known)
            .map_err(broken)?;
        if let Some(selection) = &mut options.public_key.authenticator_selection {
            // The library would discourage it, and a login never offers a key that is not
            // discoverable.
            selection.resident_key = Some(ResidentKeyRequirement::Preferred);
        }
        let (challenge_id, expires_at) =
            store::put_challenge(tx, Some(user.id), &written(&state)?).await?;
        Ok(EnrolmentChallenge {
            challenge_id,
            public_key: RawJson::of(&options.public_key).map_err(broken)?,
            expires_at: expires_at.into(),
        })
    });
    begun.await.map(Data)
}

/// `POST /users/me/passkeys/complete`: enrols a passkey.
///
/// Caller: user with a login less than 10 min old. Body `{challenge_id, credential, name?}`.
/// Answers 201 `{passkey_id, name, created_at}`. Errors: `REAUTH_REQUIRED`, `CHALLENGE_EXPIRED`,
/// `PASSKEY_INVALID`, `FORBIDDEN` (the user's quota is full).
pub async fn enrol(
    user: User,
    State(work): State<UnitOfWork>,
    State(passkeys): State<Passkeys>,
    Json(body): Json<CompleteEnrolment>,
) -> Result<Created<EnrolledPasskey>> {
    user.must_be_recent()?;
    let credential: RegisterPublicKeyCredential =
        json::parse_field("credential", &body.credential)?;
    let enrolled = work.run("passkeys.enrol", async |tx| {
        let challenge = store::take_challenge(tx, body.challenge_id, Some(user.id)).await?;
        let Some(state) = challenge else {
            return tx.commit_with(Code::ChallengeExpired);
        };
        let state: PasskeyRegistration = read(&state)?;
        let finished = passkeys
            .webauthn
            .finish_passkey_registration(&credential, &state);
        let passkey = match finished {
            Ok(passkey) => passkey,
            Err(why) => {
                tracing::debug!(%why, "an enrolment is refused");
                return tx.commit_with(Code::PasskeyInvalid);
            }
        };
        let name = body
            .name
            .map_or_else(|| "Passkey".to_owned(), |name| name.0);
        let stored = written(&passkey)?;
        let (passkey_id, created_at) =
            store::create(tx, &user, passkey.cred_id(), &name, &stored).await?;
        accounts::notify(tx, user.id, SecurityChange::PasskeyAdded).await?;
        Ok(EnrolledPasskey {
            passkey_id,
            name,
            created_at: created_at.into(),
        })
    });
    enrolled.await.map(Created)
}

/// `GET /users/me/passkeys?limit=&cursor=`: the user's passkeys, oldest first.
///
/// Caller: user. Answers 200 `{data: [{passkey_id, name, created_at, last_used_at}],
/// next_cursor}`.
pub async fn list(
    user: User,
    State(work): State<UnitOfWork>,
    Query(page): Query<Page<PasskeyId>>,
) -> Result<List<Passkey>> {
    let rows = work.run("passkeys.list", async |tx| {
        store::list(tx, user.id, page.cursor, page.rows()).await
    });
    Ok(page.of(rows.await?, |row| row.id).map(|row| Passkey {
        passkey_id: row.id,
        name: row.name,
        created_at: row.created_at.into(),
        last_used_at: row.last_used_at.map(Into::into),
    }))
}

/// `DELETE /users/me/passkeys/{passkey_id}`: deletes a passkey. Sessions that it opened stay.
///
/// Caller: user with a login less than 10 min old: a stolen token must not take the owner's way in.
/// Answers 200 `{passkey_id, deleted_at}`. Errors: `REAUTH_REQUIRED`, `NOT_FOUND`.
pub async fn remove(
    user: User,
    State(work): State<UnitOfWork>,
    Path(passkey_id): Path<PasskeyId>,
) -> Result<Data<DeletedPasskey>> {
    user.must_be_recent()?;
    let removed = work.run("passkeys.remove", async |tx| {
        lock_live_session(tx, user.id, user.session).await?;
        store::remove(tx, user.id, passkey_id).await
    });
    Ok(Data(DeletedPasskey {
        passkey_id,
        deleted_at: removed.await?.ok_or(Code::NotFound)?.into(),
    }))
}

fn written(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(broken)
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(broken)
}

fn broken(cause: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::internal(Code::InternalError, cause)
}
