//! Accounts and sessions: `/auth/*`, `/users/me`.

use serde::{Deserialize, Serialize};

use crate::{
    ids::UserId,
    text::{DeviceId, DeviceName, DisplayName, EmailAddress, Locale, MailedCode, Platform, Secret},
    time::Timestamp,
};

words! {
    /// The purpose of a mailed code. A code of one scene is invalid in another.
    pub enum Scene {
        /// A new account.
        Register = "register",
        /// A login without a password.
        Login = "login",
        /// A forgotten password.
        Reset = "reset",
    }
}

/// The body of `POST /auth/send-code`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SendCode {
    /// The address that the code is mailed to.
    pub email: EmailAddress,
    /// The purpose of the code.
    pub scene: Scene,
    /// The token of a solved Turnstile challenge.
    #[cfg_attr(feature = "schema", schema(value_type = String, format = Password, min_length = 1, max_length = 2048))]
    pub turnstile_token: Secret,
}

/// The answer to `POST /auth/send-code`, for known and unknown addresses alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CodeSent {
    /// The validity of the code, in seconds.
    pub expires_in_seconds: u64,
}

/// The body of `POST /auth/register`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// The address of the account, in any case.
    pub email: EmailAddress,
    /// The code that was mailed for the scene `register`.
    pub code: MailedCode,
    /// At least 8 characters in at most 1,024 bytes, and no easily guessed password.
    #[cfg_attr(feature = "schema", schema(value_type = String, format = Password, min_length = 8, max_length = 1024))]
    pub account_password: Secret,
    /// The user's display name.
    pub display_name: DisplayName,
    /// The language of the user's device.
    pub device_locale: Locale,
    /// The token of a solved Turnstile challenge.
    #[cfg_attr(feature = "schema", schema(value_type = String, format = Password, min_length = 1, max_length = 2048))]
    pub turnstile_token: Secret,
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
}

/// The body of `POST /auth/login`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The address of the account.
    pub email: EmailAddress,
    /// The account's password, 1 to 1,024 bytes.
    pub account_password: Secret,
    /// The token of a solved Turnstile challenge.
    #[cfg_attr(feature = "schema", schema(value_type = String, format = Password, min_length = 1, max_length = 2048))]
    pub turnstile_token: Secret,
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
}

/// The body of `POST /auth/login-code`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LoginCode {
    /// The address of the account.
    pub email: EmailAddress,
    /// The code that was mailed for the scene `login`.
    pub code: MailedCode,
    /// The token of a solved Turnstile challenge. It is optional, but checked if present.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, format = Password, min_length = 1, max_length = 2048))]
    pub turnstile_token: Option<Secret>,
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
}

/// The body of `POST /auth/reset-password`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ResetPassword {
    /// The address of the account.
    pub email: EmailAddress,
    /// The code that was mailed for the scene `reset`.
    pub code: MailedCode,
    /// At least 8 characters in at most 1,024 bytes, and no easily guessed password.
    #[cfg_attr(feature = "schema", schema(value_type = String, format = Password, min_length = 8, max_length = 1024))]
    pub new_account_password: Secret,
    /// The token of a solved Turnstile challenge. It is optional, but checked if present.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, format = Password, min_length = 1, max_length = 2048))]
    pub turnstile_token: Option<Secret>,
}

/// The answer to `POST /auth/reset-password`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PasswordReset {
    /// Always true.
    pub reset: bool,
    /// The user's passkeys, which a thief may have added to.
    pub passkeys: i64,
    /// The user's agents, which a thief may have added to.
    pub agents: i64,
}

/// The answer to every sign-in, beside the refresh cookie.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SignedIn {
    /// The account's user.
    pub user_id: UserId,
    /// A JWT for `Authorization: Bearer`.
    pub access_token: Secret,
    /// The validity of the access token, in seconds.
    pub expires_in_seconds: u64,
    /// The device of the session. The server chooses an id if the client gave none.
    pub device_id: String,
    /// Whether the account had no session on this device before.
    pub is_new_device: bool,
    /// A summary of the user's key backups.
    pub key_backup: KeyBackupSummary,
}

/// A summary of a user's key backups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyBackupSummary {
    /// Whether the user has a key backup.
    pub exists: bool,
    /// The devices with backups, the one with the latest backup first.
    pub device_ids: Vec<String>,
}

/// The answer to `POST /auth/refresh`, beside the next cookie.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Refreshed {
    /// A JWT for `Authorization: Bearer`.
    pub access_token: Secret,
    /// The validity of the access token, in seconds.
    pub expires_in_seconds: u64,
    /// The user of the session. A client notices here that a cookie is another user's.
    pub user_id: UserId,
    /// The current name of the session's device.
    pub device_id: String,
}

/// The answer to `POST /auth/logout`, also when there was no session any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LoggedOut {
    /// Always true.
    pub logged_out: bool,
}

/// The caller's account: the answer to `GET /users/me`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Account {
    /// The account's user.
    pub user_id: UserId,
    /// Its address, in lower case.
    pub email: String,
    /// The user's display name.
    pub display_name: String,
    /// The language of the user's device.
    pub device_locale: String,
    /// The device of this session.
    pub device_id: String,
    /// The time of its creation.
    pub created_at: Timestamp,
}

/// The body of `POST /users/me/password`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ChangePassword {
    /// The current password, 1 to 1,024 bytes.
    pub current_password: Secret,
    /// At least 8 characters in at most 1,024 bytes, and no easily guessed password.
    #[cfg_attr(feature = "schema", schema(value_type = String, format = Password, min_length = 8, max_length = 1024))]
    pub new_account_password: Secret,
}

/// The answer to `POST /users/me/password`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PasswordChanged {
    /// Always true.
    pub changed: bool,
}

/// The answer to `DELETE /users/me`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AccountDeleted {
    /// The user of the deleted account.
    pub user_id: UserId,
    /// The time of the deletion.
    pub deleted_at: Timestamp,
}

/// The body of `PATCH /users/me`. It changes at least one of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ChangeProfile {
    /// The user's display name; unchanged if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<DisplayName>,
    /// The language of mails and of the user's device; unchanged if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_locale: Option<Locale>,
}

/// The body of `POST /users/me/email`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ChangeEmail {
    /// The address that the account is to have. A code is mailed to it.
    pub email: EmailAddress,
}

/// The body of `POST /users/me/email/confirm`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ConfirmEmail {
    /// The new address.
    pub email: EmailAddress,
    /// The code that was mailed to it.
    pub code: MailedCode,
    /// The token of a solved Turnstile challenge. It is optional, but checked if present.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, format = Password, min_length = 1, max_length = 2048))]
    pub turnstile_token: Option<Secret>,
}
