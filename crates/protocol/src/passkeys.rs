//! Passkeys: `/auth/passkey/*`, `/users/me/passkeys`. Options and credentials are those of WebAuthn, in JSON.

use serde::{Deserialize, Serialize};

use crate::{
    accounts::SignInDevice,
    ids::{ChallengeId, PasskeyId},
    raw::RawJson,
    text::{PasskeyName, Secret},
    time::Timestamp,
};

/// The body of `POST /auth/passkey/begin`, which may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BeginPasskeyLogin {
    /// A proof of being human: judged if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turnstile_token: Option<Secret>,
}

/// What a page gives to `navigator.credentials.get`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LoginChallenge {
    /// The challenge, for `POST /auth/passkey/complete`.
    pub challenge_id: ChallengeId,
    /// `PublicKeyCredentialRequestOptions`.
    pub public_key: RawJson,
    /// Always `conditional`: no button is needed.
    pub mediation: String,
    /// When the challenge ends, five minutes from now.
    pub expires_at: Timestamp,
}

/// The body of `POST /auth/passkey/complete`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CompletePasskeyLogin {
    /// The challenge that is answered.
    pub challenge_id: ChallengeId,
    /// `PublicKeyCredential` of an assertion.
    pub credential: RawJson,
    /// The device that signs in.
    #[serde(flatten)]
    pub device: SignInDevice,
}

/// What a page gives to `navigator.credentials.create`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EnrolmentChallenge {
    /// The challenge, for `POST /users/me/passkeys/complete`.
    pub challenge_id: ChallengeId,
    /// `PublicKeyCredentialCreationOptions`.
    pub public_key: RawJson,
    /// When the challenge ends, five minutes from now.
    pub expires_at: Timestamp,
}

/// The body of `POST /users/me/passkeys/complete`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CompleteEnrolment {
    /// The challenge that is answered.
    pub challenge_id: ChallengeId,
    /// `PublicKeyCredential` of an attestation.
    pub credential: RawJson,
    /// What the user calls it; `Passkey` if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<PasskeyName>,
}

/// What `POST /users/me/passkeys/complete` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EnrolledPasskey {
    /// The passkey.
    pub passkey_id: PasskeyId,
    /// What the user calls it.
    pub name: String,
    /// When it was enrolled.
    pub created_at: Timestamp,
}

/// A passkey as its owner sees it: an item of `GET /users/me/passkeys`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Passkey {
    /// The passkey; the next page starts after it.
    pub passkey_id: PasskeyId,
    /// What the user calls it.
    pub name: String,
    /// When it was enrolled.
    pub created_at: Timestamp,
    /// When it last signed in; null if never.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub last_used_at: Option<Timestamp>,
}

/// What `DELETE /users/me/passkeys/{passkey_id}` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeletedPasskey {
    /// The passkey.
    pub passkey_id: PasskeyId,
    /// When it was forgotten.
    pub deleted_at: Timestamp,
}
