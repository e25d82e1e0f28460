//! A user, authenticated by the access token of a live session.

use axum::{
    extract::{FromRef, FromRequestParts},
    http::request::Parts,
};
use chrono::{DateTime, Utc};

use super::{
    bearer,
    caller::{Caller, VerifiedCredential},
    jwt::AccessTokens,
    revoked::RevokedCredentials,
};
use crate::{
    db::{Db, Tx},
    error::{Code, Error, Result},
    ids::{SessionId, UserId},
    limits::{
        buffers::{ByteAccount, Owner},
        quotas::{FRESH_SESSION_AGE, REAUTH_WINDOW},
    },
    planted::PlantedBug,
};

/// A genuine, unexpired access token. Its session may have been revoked, so its holder must ask
/// Postgres.
#[derive(Clone, Debug)]
pub struct UserToken {
    pub user: UserId,
    /// The session, which must still be live.
    pub session: SessionId,
    pub expires_at: DateTime<Utc>,
}

/// A user whose session is live.
#[derive(Clone, Debug)]
pub struct User {
    pub id: UserId,
    pub session: SessionId,
    /// The current name of the session's device.
    pub device_id: String,
    /// Whether the login is recent enough for sensitive changes.
    recent: bool,
}

impl User {
    /// Refuses with `REAUTH_REQUIRED` unless the login is less than ten minutes old.
    pub fn must_be_recent(&self) -> Result<()> {
        if self.recent {
            Ok(())
        } else {
            Err(Code::ReauthRequired.into())
        }
    }
}

impl UserToken {
    /// Verifies a token's signature and age.
    pub fn from_token(tokens: &AccessTokens, token: &str) -> Result<Self> {
        let claims = tokens.verify(token)?;
        Ok(UserToken {
            user: claims.sub,
            session: claims.sid,
            expires_at: claims.expires_at(),
        })
    }

    /// Asks Postgres whether the session is still live.
    pub async fn check_live(&self, db: &Db, revoked: &RevokedCredentials) -> Result<User> {
        let client = db.read().await?;
        let Some(row) = client
            .query_opt(
                "-- auth.user
                select device_id, user_id, authenticated_at > app_now() - make_interval(secs => $2) as is_recent from live_session
                where session_id = $1",
                &[&self.session, &REAUTH_WINDOW.as_secs_f64()],
            )
            .await?
        else {
            if PlantedBug::JwtIsEnough.is_planted() {
                return Ok(User {
                    id: self.user,
                    session: self.session,
                    device_id: String::new(),
                    recent: false,
                });
            }
            revoked.mark_revoked(self.session.into()).await;
            return Err(Code::Unauthorized.into());
        };
        if row.get::<_, UserId>("user_id") != self.user {
            return Err(Code::Unauthorized.into());
        }
        Ok(User {
            id: self.user,
            session: self.session,
            device_id: row.get("device_id"),
            recent: row.get("is_recent"),
        })
    }
}

/// Refuses a session or user that has ended since it was verified, and locks both until the
/// transaction ends. It serves results that must not outlive them, such as a token. This lock comes
/// before all others.
pub async fn lock_live_session(tx: &Tx, user: UserId, session: SessionId) -> Result<()> {
    tx.query_opt(
        "-- auth.hold_user
        select 1 from user_account where user_id = $1 and deleted_at is null for share",
        &[&user],
    )
    .await?
    .ok_or(Code::Unauthorized)?;
    // A separate statement, because one that waited for the user would see the session's earlier
    // state.
    tx.query_opt(
        "-- auth.lock_live_session
        select 1 from live_session where session_id = $1 and user_id = $2 for share",
        &[&session, &user],
    )
    .await?
    .ok_or(Code::Unauthorized)?;
    Ok(())
}

/// Refuses with `REAUTH_REQUIRED` a session that began more than an hour ago, unless its user has
/// proven the identity within ten minutes. A thief of an old session has no proof.
pub async fn must_be_fresh(tx: &Tx, session: SessionId) -> Result<()> {
    tx.query_opt(
        "-- auth.is_fresh
        select 1 from session where session_id = $1
            and (created_at > app_now() - make_interval(secs => $2) or authenticated_at > app_now() - make_interval(secs => $3))",
        &[
            &session,
            &FRESH_SESSION_AGE.as_secs_f64(),
            &REAUTH_WINDOW.as_secs_f64(),
        ],
    )
    .await?
    .ok_or(Code::ReauthRequired)?;
    Ok(())
}

impl<S: Send + Sync> FromRequestParts<S> for UserToken
where
    AccessTokens: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        if let Some(token) = parts.extensions.get::<UserToken>() {
            return Ok(token.clone());
        }
        let token = bearer(&parts.headers).ok_or(Code::Unauthorized)?;
        let token = UserToken::from_token(&AccessTokens::from_ref(state), token)?;
        if let Some(account) = parts.extensions.get::<ByteAccount>() {
            account.set_owner(Owner::Principal(token.user.into()));
        }
        Ok(token)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for User
where
    AccessTokens: FromRef<S>,
    Db: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        if let Some(Caller::User(user)) = parts.extensions.get() {
            return Ok(user.clone());
        }
        let token = UserToken::from_request_parts(parts, state).await?;
        let (db, revoked) = (Db::from_ref(state), AccessTokens::from_ref(state).revoked);
        let user = token.check_live(&db, &revoked).await?;
        VerifiedCredential::user(token, db, revoked).attach(parts);
        Ok(user)
    }
}
