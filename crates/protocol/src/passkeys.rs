//! Passkeys: `/auth/passkey/*`, `/users/me/passkeys`. Options and credentials are those of
//! WebAuthn, in JSON.

use serde::{Deserialize, Serialize};

use crate::{
    ids::{ChallengeId, PasskeyId},
    raw::RawJson,
    text::{DeviceId, DeviceName, PasskeyName, Platform, Secret},
    time::Timestamp,
};

/// The body of `POST /auth/passkey/begin`, which may be omitted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BeginPasskeyLogin {
    /// The token of a solved Turnstile challenge. It is optional, but checked if present.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, format = Password, min_length = 1, max_length = 2048))]
    pub turnstile_token: Option<Secret>,
}

/// The input of `navigator.credentials.get`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LoginChallenge {
    /// The challenge, for `POST /auth/passkey/complete`.
    pub challenge_id: ChallengeId,
    /// `PublicKeyCredentialRequestOptions`.
    pub public_key: RawJson,
    /// Always `conditional`: no button is needed.
    pub mediation: String,
    /// The end of the challenge, after five minutes.
    pub expires_at: Timestamp,
}

/// The body of `POST /auth/passkey/complete`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CompletePasskeyLogin {
    /// The answered challenge.
    pub challenge_id: ChallengeId,
    /// `PublicKeyCredential` of an assertion.
    pub credential: RawJson,
    /// The id of the device that signs in, which must outlive a reinstallation of the program. If
    /// omitted, the server chooses an id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_id: Option<DeviceId>,
    /// The user's name for the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_name: Option<DeviceName>,
    /// The device's platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// The token of a solved Turnstile challenge. It is optional, but checked if present.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, format = Password, min_length = 1, max_length = 2048))]
    pub turnstile_token: Option<Secret>,
}

/// The input of `navigator.credentials.create`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EnrolmentChallenge {
    /// The challenge, for `POST /users/me/passkeys/complete`.
    pub challenge_id: ChallengeId,
    /// `PublicKeyCredentialCreationOptions`.
    pub public_key: RawJson,
    /// The end of the challenge, after five minutes.
    pub expires_at: Timestamp,
}

/// The body of `POST /users/me/passkeys/complete`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CompleteEnrolment {
    /// The answered challenge.
    pub challenge_id: ChallengeId,
    /// `PublicKeyCredential` of an attestation.
    pub credential: RawJson,
    /// The user's name for it; `Passkey` if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<PasskeyName>,
}

/// The answer to `POST /users/me/passkeys/complete`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EnrolledPasskey {
    /// The passkey.
    pub passkey_id: PasskeyId,
    /// The user's name for it.
    pub name: String,
    /// The time of the enrolment.
    pub created_at: Timestamp,
}

/// A passkey as its owner sees it: an item of `GET /users/me/passkeys`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Passkey {
    /// The passkey; the next page starts after it.
    pub passkey_id: PasskeyId,
    /// The user's name for it.
    pub name: String,
    /// The time of the enrolment.
    pub created_at: Timestamp,
    /// The time of its last sign-in; null if never.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub last_used_at: Option<Timestamp>,
}

/// The answer to `DELETE /users/me/passkeys/{passkey_id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeletedPasskey {
    /// The passkey.
    pub passkey_id: PasskeyId,
    /// The time of the deletion.
    pub deleted_at: Timestamp,
}
