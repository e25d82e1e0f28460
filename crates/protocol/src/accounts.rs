//! Accounts and sessions: `/auth/*`, `/users/me`.

use serde::{Deserialize, Serialize};

use crate::{
    ids::UserId,
    text::{DeviceId, DeviceName, DisplayName, Locale, MailedCode, Platform, Secret},
    time::Timestamp,
};

words! {
    /// What a mailed code is for. A code of one scene is worth nothing in another.
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
pub struct SendCode {
    /// The address that the code is mailed to.
    #[cfg_attr(feature = "schema", schema(format = "email", max_length = 254))]
    pub email: String,
    /// What the code is for.
    pub scene: Scene,
    /// A proof of being human.
    pub turnstile_token: Secret,
}

/// What `POST /auth/send-code` answers, for known and unknown addresses alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CodeSent {
    /// How long the code is good, in seconds.
    pub expires_in_seconds: u64,
}

/// The device that a sign-in names. All fields may be left out; the server then names the device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SignInDevice {
    /// The device's own id, which must outlive a reinstallation of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_id: Option<DeviceId>,
    /// What the user calls the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_name: Option<DeviceName>,
    /// What the device runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
}

/// The body of `POST /auth/register`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Register {
    /// The address of the account, in any case.
    #[cfg_attr(feature = "schema", schema(format = "email", max_length = 254))]
    pub email: String,
    /// The code that was mailed for the scene `register`.
    pub code: MailedCode,
    /// 8 to 1,024 bytes, and none of the passwords that are guessed first.
    pub account_password: Secret,
    /// What the user is called.
    pub display_name: DisplayName,
    /// The language of the user's device.
    pub device_locale: Locale,
    /// A proof of being human.
    pub turnstile_token: Secret,
    /// The device that signs in.
    #[serde(flatten)]
    pub device: SignInDevice,
}

/// The body of `POST /auth/login`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Login {
    /// The address of the account.
    #[cfg_attr(feature = "schema", schema(format = "email", max_length = 254))]
    pub email: String,
    /// The account's password, 1 to 1,024 bytes.
    pub account_password: Secret,
    /// A proof of being human.
    pub turnstile_token: Secret,
    /// The device that signs in.
    #[serde(flatten)]
    pub device: SignInDevice,
}

/// The body of `POST /auth/login-code`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LoginCode {
    /// The address of the account.
    #[cfg_attr(feature = "schema", schema(format = "email", max_length = 254))]
    pub email: String,
    /// The code that was mailed for the scene `login`.
    pub code: MailedCode,
    /// A proof of being human: judged if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turnstile_token: Option<Secret>,
    /// The device that signs in.
    #[serde(flatten)]
    pub device: SignInDevice,
}

/// The body of `POST /auth/reset-password`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ResetPassword {
    /// The address of the account.
    #[cfg_attr(feature = "schema", schema(format = "email", max_length = 254))]
    pub email: String,
    /// The code that was mailed for the scene `reset`.
    pub code: MailedCode,
    /// 8 to 1,024 bytes, and none of the passwords that are guessed first.
    pub new_account_password: Secret,
    /// A proof of being human: judged if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turnstile_token: Option<Secret>,
}

/// What `POST /auth/reset-password` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PasswordReset {
    /// Always true.
    pub reset: bool,
}

/// What every way of signing in answers, beside the refresh cookie.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SignedIn {
    /// The account.
    pub user_id: UserId,
    /// A JWT for `Authorization: Bearer`.
    pub access_token: Secret,
    /// How long the access token is good, in seconds.
    pub expires_in_seconds: u64,
    /// The device of the session; the server's choice if the client named none.
    pub device_id: String,
    /// Whether the account had no session on this device before.
    pub is_new_device: bool,
    /// What key backups the user has.
    pub key_backup: KeyBackupSummary,
}

/// What key backups a user has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyBackupSummary {
    /// Whether there is one.
    pub exists: bool,
    /// The devices that made them, the latest first.
    pub device_ids: Vec<String>,
}

/// What `POST /auth/refresh` answers, beside the next cookie.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Refreshed {
    /// A JWT for `Authorization: Bearer`.
    pub access_token: Secret,
    /// How long the access token is good, in seconds.
    pub expires_in_seconds: u64,
}

/// What `POST /auth/logout` answers, also when there was no session any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LoggedOut {
    /// Always true.
    pub logged_out: bool,
}

/// The caller's account: what `GET /users/me` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Account {
    /// The account.
    pub user_id: UserId,
    /// Its address, in lower case.
    pub email: String,
    /// What the user is called.
    pub display_name: String,
    /// The language of the user's device.
    pub device_locale: String,
    /// The device of this session.
    pub device_id: String,
    /// When the account was made.
    pub created_at: Timestamp,
}

/// The body of `POST /users/me/password`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ChangePassword {
    /// The password until now, 1 to 1,024 bytes.
    pub current_password: Secret,
    /// 8 to 1,024 bytes, and none of the passwords that are guessed first.
    pub new_account_password: Secret,
}

/// What `POST /users/me/password` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PasswordChanged {
    /// Always true.
    pub changed: bool,
}

/// What `DELETE /users/me` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AccountDeleted {
    /// The account that is gone.
    pub user_id: UserId,
    /// When it was deleted.
    pub deleted_at: Timestamp,
}
