//! `GET /users/me/sessions`, `GET /users/me/sessions/{session_id}/changes`,
//! `POST /users/me/sessions/{session_id}/undo`, `POST /auth/reauth`.

use std::collections::HashSet;

use axum::extract::State;
use blindpipe_protocol::{
    ids::ChallengeId,
    raw::RawJson,
    sessions::{
        Reauthenticate, Reauthenticated, Session, SessionChange, UndoChanges, UndoneChanges,
    },
    text::{MailedCode, Secret},
};

use super::store;
use crate::{
    auth::user::User,
    db::Db,
    error::{Error, Result},
    features::{accounts::Accounts, passkeys::Passkeys},
    http::{Data, Json, JsonOrNothing, List, Page, Path, Query, client::ClientIp},
    ids::SessionId,
    limits::{Limiter, quotas::REAUTH_WINDOW},
    work::UnitOfWork,
};

/// `GET /users/me/sessions`: the caller's sessions, newest first, and those that have ended within
/// 30 days.
///
/// Caller: user. Query `limit`, `cursor`. Answers 200 with [`Session`]s.
pub async fn list(
    user: User,
    State(db): State<Db>,
    Query(page): Query<Page<SessionId>>,
) -> Result<List<Session>> {
    let sessions = store::list(&db, &user, page.cursor, page.rows()).await?;
    Ok(page.of(sessions, |session| session.session_id))
}

/// `GET /users/me/sessions/{session_id}/changes`: what a session has added and is still there,
/// newest first, at most 1,000.
///
/// Caller: the session's user. Answers 200 with [`SessionChange`]s. Errors: `NOT_FOUND`.
pub async fn changes(
    user: User,
    State(db): State<Db>,
    Path(session): Path<SessionId>,
) -> Result<List<SessionChange>> {
    let client = db.read().await?;
    store::must_be_of(&client, user.id, session).await?;
    let changes = store::changes(&client, user.id, session).await?;
    Ok(List {
        data: changes.into_iter().map(|(_, shown)| shown).collect(),
        next_cursor: None,
    })
}

/// `POST /users/me/sessions/{session_id}/undo`: undoes what a session has added. Its own end is
/// another call's.
///
/// Caller: the session's user. Body `{ids?}`, or none for everything. An agent is deleted, a token
/// revoked and a webhook suspended, a relation ended, an instance removed, a passkey and a share
/// deleted. Answers 200 with [`UndoneChanges`]; ids of nothing that is there are left out. Publishes
/// what the owner's own calls do. Errors: `NOT_FOUND`, `REAUTH_REQUIRED` (a passkey is among them,
/// and the login is older than 10 min).
pub async fn undo(
    user: User,
    State(work): State<UnitOfWork>,
    Path(session): Path<SessionId>,
    JsonOrNothing(body): JsonOrNothing<UndoChanges>,
) -> Result<Data<UndoneChanges>> {
    let ids = body.ids.map(HashSet::from_iter);
    let undone = super::undo(&work, &user, session, ids.as_ref()).await?;
    Ok(Data(UndoneChanges { undone }))
}

/// A proof of the user's identity.
enum Proof {
    Password(Secret),
    Code(MailedCode),
    Passkey(ChallengeId, RawJson),
}

impl Proof {
    fn of(body: Reauthenticate) -> Result<(Self, Option<Secret>)> {
        let given = (
            body.account_password,
            body.code,
            body.challenge_id,
            body.credential,
        );
        let proof = match given {
            (Some(password), None, None, None) => Proof::Password(password),
            (None, Some(code), None, None) => Proof::Code(code),
            (None, None, Some(challenge), Some(credential)) => {
                Proof::Passkey(challenge, credential)
            }
            _ => {
                let fault = "needs account_password, code, or challenge_id with credential";
                return Err(Error::field("", "proof", fault));
            }
        };
        Ok((proof, body.turnstile_token))
    }
}

/// `POST /auth/reauth`: proves the caller's identity anew. For ten minutes the session counts as
/// just signed in.
///
/// Caller: user. Body `{account_password}`, `{code}` (scene `login`) or `{challenge_id, credential}`
/// (of `POST /auth/passkey/begin`), each with `turnstile_token?`. Limits as of the logins: a wrong
/// password counts towards the lock and `auth_login_ip`, a wrong code towards `auth_code_tries`.
/// Answers 200 with [`Reauthenticated`]. Errors: `INVALID_CREDENTIALS`, `ACCOUNT_LOCKED`,
/// `CODE_INVALID`, `PASSKEY_INVALID` (also another user's), `CHALLENGE_EXPIRED`, `TURNSTILE_FAILED`.
pub async fn reauthenticate(
    user: User,
    (limiter, ip): (Limiter, ClientIp),
    State(accounts): State<Accounts>,
    State(passkeys): State<Passkeys>,
    Json(body): Json<Reauthenticate>,
) -> Result<Data<Reauthenticated>> {
    let (proof, token) = Proof::of(body)?;
    let sender = accounts
        .verify_if_present(&limiter, ip, token.as_ref())
        .await?;
    match proof {
        Proof::Password(password) => {
            let caller = (&limiter, ip);
            accounts.prove_again(caller, &user, &password).await?;
        }
        Proof::Code(code) => {
            let code = (code.0.as_str(), sender);
            accounts.prove_again_by_code(&limiter, &user, code).await?;
        }
        Proof::Passkey(challenge, credential) => {
            let proven = passkeys.prove_again(&accounts.work, &user, challenge, &credential);
            proven.await?;
        }
    }
    Ok(Data(Reauthenticated {
        expires_in_seconds: REAUTH_WINDOW.as_secs(),
    }))
}
