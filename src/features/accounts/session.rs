//! The end of every sign-in, `POST /auth/logout` and
//! `DELETE /users/me/devices/{device_id}`.

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use blindpipe_protocol::{
    accounts::{KeyBackupSummary, LoggedOut, SignedIn},
    devices::RevokedDevice,
    revocation::RevocationReason,
    text::{DeviceId, DeviceName, Platform, Secret},
};

use super::{
    http::Accounts,
    notices::{SecurityChange, notify},
    store,
};
use crate::{
    auth::{refresh::RefreshTokens, user::User},
    error::{Code, Result},
    features::{
        devices::{self, NewSession},
        keys,
    },
    http::{Data, Path},
    ids::{SessionId, UserId},
    limits::quotas::ACCESS_TOKEN_TTL,
    work::Tx,
};

impl Accounts {
    /// A session for the device that the client names. Without an id, the server chooses one.
    pub fn new_session(
        &self,
        device: Option<DeviceId>,
        name: Option<DeviceName>,
        platform: Option<Platform>,
    ) -> NewSession {
        NewSession {
            id: SessionId::generate(self.work.random()),
            provisional: device.is_none(),
            device_id: device.map_or_else(
                || format!("provisional-{}", self.work.random().uuid_v7().simple()),
                |device| device.0,
            ),
            device_name: name.map(|name| name.0),
            platform: platform.map(|platform| platform.0),
            cookie: None,
            passkey: None,
        }
    }

    /// Notes the refresh cookie that a login brings, as proof of its device.
    pub fn with_cookie(&self, session: NewSession, headers: &HeaderMap) -> NewSession {
        let cookie = self.refresh_tokens.read(headers);
        NewSession {
            cookie: cookie.map(|(session, _)| session),
            ..session
        }
    }

    /// Ends every sign-in: makes the session in `tx`, which has verified the user. It ends the
    /// device's earlier session. It mails the user unless the login proves that it comes from a
    /// known device. The caller sends the answer after the commit.
    pub async fn sign_in(
        &self,
        tx: &Tx,
        status: StatusCode,
        user: UserId,
        session: NewSession,
    ) -> Result<Response> {
        let is_known = devices::is_known(tx, user, &session).await?;
        let is_new_device = devices::sign_in(tx, user, &session).await?;
        let backups = keys::backed_up_devices(tx, user).await?;
        // A new user needs no notice. It comes last, so that another login of the user hardly waits
        // for its lock.
        if (is_new_device || !is_known) && status != StatusCode::CREATED {
            store::put_notice(tx, user, session.device_name.as_deref()).await?;
        }
        let data = SignedIn {
            user_id: user,
            access_token: Secret(
                self.access_tokens
                    .sign(user, &session.device_id, session.id)?,
            ),
            expires_in_seconds: ACCESS_TOKEN_TTL.as_secs(),
            device_id: session.device_id,
            is_new_device,
            key_backup: KeyBackupSummary {
                exists: !backups.is_empty(),
                device_ids: backups,
            },
        };
        let cookie = self.refresh_tokens.cookie(session.id, 0);
        Ok((status, [(header::SET_COOKIE, cookie)], Data(data)).into_response())
    }
}

/// `POST /auth/logout`: ends the session of the cookie, and clears it.
///
/// Caller: the holder of the cookie; no body. Answers 200 `{logged_out:true}`, also without a
/// session: nobody should be unable to log out. Its sockets get `session.invalidated`.
pub async fn logout(State(accounts): State<Accounts>, headers: HeaderMap) -> Result<Response> {
    if let Some((session, _)) = accounts.refresh_tokens.read(&headers) {
        let ended = accounts.work.run("accounts.logout", async |tx| {
            devices::end_session(tx, session, RevocationReason::Logout).await
        });
        ended.await?;
    }
    let cookie = RefreshTokens::no_cookie();
    Ok((
        [(header::SET_COOKIE, cookie)],
        Data(LoggedOut { logged_out: true }),
    )
        .into_response())
}

/// `DELETE /users/me/devices/{device_id}`: ends the device's session and takes its keys out of the
/// directory. Its backups stay. Signing in on it again makes it a new device.
///
/// Caller: user, who is mailed. Answers 200 with [`RevokedDevice`]. Its sockets get
/// `session.invalidated`. Errors: `NOT_FOUND`. Publishes `key.device_removed`. Within seconds
/// publishes `conversation.updated` where the device holds the current key, because another one is
/// required.
pub async fn revoke(
    user: User,
    State(accounts): State<Accounts>,
    Path(device_id): Path<String>,
) -> Result<Data<RevokedDevice>> {
    let device = DeviceId::read(device_id).ok_or(Code::NotFound)?;
    let revoked = accounts.work.run("devices.revoke", async |tx| {
        let revoked = devices::revoke(tx, &user, &device.0).await?;
        notify(tx, user.id, SecurityChange::DeviceRevoked).await?;
        Ok(revoked)
    });
    revoked.await.map(Data)
}
