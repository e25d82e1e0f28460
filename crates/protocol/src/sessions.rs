//! Sessions and what they have added: `/users/me/sessions`, `/auth/reauth`.

use serde::{Deserialize, Serialize};

use crate::{
    ids::{ChallengeId, SessionId},
    raw::RawJson,
    text::{MailedCode, Secret},
    time::Timestamp,
};

/// A sign-in of a device: an item of `GET /users/me/sessions`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Session {
    /// The session; the next page starts after it.
    pub session_id: SessionId,
    /// The current id of its device.
    pub device_id: String,
    /// The user's name for the device; null if none.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub display_name: Option<String>,
    /// The device's platform; null if not given.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub platform: Option<String>,
    /// The time of the sign-in.
    pub created_at: Timestamp,
    /// The time at which it was revoked; null while it is not.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub revoked_at: Option<Timestamp>,
    /// Whether it is the caller's session.
    pub current: bool,
    /// The number of things that it added and that are still there.
    pub changes: i64,
}

words! {
    /// A thing that a session added.
    pub enum ChangeKind {
        /// An agent of the user's.
        Agent = "agent",
        /// A token of an agent that another session made. Its id is the token's.
        Token = "token",
        /// The webhook of an agent that another session made. Its id is the agent's.
        Webhook = "webhook",
        /// A relation with an agent.
        Relation = "relation",
        /// An agent's place in a group, or its wider visibility there.
        Instance = "instance",
        /// A passkey.
        Passkey = "passkey",
        /// A share. Its id opens nothing.
        Share = "share",
    }
}

/// A thing that a session added and that is still there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionChange {
    /// The kind of thing.
    pub kind: ChangeKind,
    /// Its id, for the undo.
    pub id: String,
    /// The name of the agent, passkey or file.
    pub name: String,
    /// The time at which it was added.
    pub at: Timestamp,
}

/// The body of `POST /users/me/sessions/{session_id}/undo`, which may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UndoChanges {
    /// The ids of what is to be undone; everything if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<String>>,
}

/// The answer to `POST /users/me/sessions/{session_id}/undo`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UndoneChanges {
    /// What this call has undone.
    pub undone: Vec<SessionChange>,
}

/// The body of `POST /auth/reauth`: one proof. A passkey's is `challenge_id` with `credential`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Reauthenticate {
    /// The password of the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account_password: Option<Secret>,
    /// The code that was mailed for the scene `login`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<MailedCode>,
    /// The answered challenge of `POST /auth/passkey/begin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub challenge_id: Option<ChallengeId>,
    /// `PublicKeyCredential` of an assertion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<RawJson>,
    /// The token of a solved Turnstile challenge. It is optional, but checked if present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turnstile_token: Option<Secret>,
}

/// The answer to `POST /auth/reauth`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Reauthenticated {
    /// Seconds for which the session counts as just signed in.
    pub expires_in_seconds: u64,
}
