//! The errors: their codes, and the envelope that carries them.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::bad_text::BadText;

catalogue! {
    /// The codes of errors: (HTTP status, wire code, fallback message).
    pub enum Code: (u16, &'static str, &'static str) {
        ValidationError       = (400, "VALIDATION_ERROR",       "The request is not valid.");
        CodeInvalid           = (400, "CODE_INVALID",           "The code is wrong, used or expired.");
        ChallengeExpired      = (400, "CHALLENGE_EXPIRED",      "The challenge is unknown, used or expired; begin again.");
        SignatureInvalid      = (400, "SIGNATURE_INVALID",      "The signature does not hold for this decision.");
        SearchContentEncrypted = (400, "SEARCH_CONTENT_ENCRYPTED", "Messages are encrypted; search them by tokens.");
        Unauthorized          = (401, "UNAUTHORIZED",           "The access token is missing, invalid or expired.");
        TokenExpired          = (401, "TOKEN_EXPIRED",          "The refresh token is expired or revoked; log in again.");
        InvalidCredentials    = (401, "INVALID_CREDENTIALS",    "The e-mail or the password is wrong.");
        PasskeyInvalid        = (401, "PASSKEY_INVALID",        "The passkey or its answer is not valid.");
        AgentTokenInvalid     = (401, "AGENT_TOKEN_INVALID",    "The agent token is invalid or revoked.");
        TurnstileFailed       = (403, "TURNSTILE_FAILED",       "The human verification failed.");
        Forbidden             = (403, "FORBIDDEN",              "The caller may not do this.");
        TlsRequired           = (403, "TLS_REQUIRED",           "Only HTTPS is served here.");
        OriginNotAllowed      = (403, "ORIGIN_NOT_ALLOWED",     "This origin may not call this endpoint.");
        ReauthRequired        = (403, "REAUTH_REQUIRED",        "This needs a recent login; log in again.");
        AgentLimitExceeded    = (403, "AGENT_LIMIT_EXCEEDED",   "The user already has as many agents as allowed.");
        StorageLimitExceeded  = (403, "STORAGE_LIMIT_EXCEEDED", "The account has no room for this file; delete others first.");
        ApprovalLimitExceeded = (403, "APPROVAL_LIMIT_EXCEEDED", "The agent has too many open approvals with this user.");
        NotConversationMember = (403, "NOT_CONVERSATION_MEMBER", "The sender is not a member of the conversation.");
        NotConversationMemberUpload = (403, "NOT_CONVERSATION_MEMBER_UPLOAD", "The uploader is not a member of the conversation.");
        RelationRequired      = (403, "RELATION_REQUIRED",      "The user has no relation with this agent.");
        RelationRevoked       = (403, "RELATION_REVOKED",       "The user has ended the relation with this agent.");
        ScopeNotDeclared      = (403, "SCOPE_NOT_DECLARED",     "The agent's manifest does not declare this scope.");
        AgentLoopDetected     = (403, "AGENT_LOOP_DETECTED",    "Agents have answered each other too many times without a human.");
        NotFound              = (404, "NOT_FOUND",              "There is nothing here.");
        AgentNotRegistered    = (404, "AGENT_NOT_REGISTERED",   "The agent does not exist.");
        MethodNotAllowed      = (405, "METHOD_NOT_ALLOWED",     "This method is not served here.");
        RequestTimeout        = (408, "REQUEST_TIMEOUT",        "The request arrived too slowly.");
        EmailTaken            = (409, "EMAIL_TAKEN",            "An account with this e-mail exists.");
        DeviceMismatch        = (409, "DEVICE_MISMATCH",        "The session belongs to another device.");
        VersionMismatch       = (409, "VERSION_MISMATCH",       "It was changed meanwhile; read it again.");
        RecipientsMismatch    = (409, "RECIPIENTS_MISMATCH",    "The wrapped keys do not fit the members' current devices.");
        AgentKeysMismatch     = (409, "AGENT_KEYS_MISMATCH",    "The private key held does not match the registered public key.");
        IdempotencyConflict   = (409, "IDEMPOTENCY_CONFLICT",   "This id was used for something else before.");
        AlreadyDecided        = (409, "ALREADY_DECIDED",        "This was decided before.");
        ApprovalClosed        = (409, "APPROVAL_CLOSED",        "The approval is no longer open.");
        ApprovalOpen          = (409, "APPROVAL_OPEN",          "The message belongs to an approval that is still open.");
        KeyMismatch           = (409, "KEY_MISMATCH",           "The key is no current key of the caller.");
        ToolCallExpired       = (409, "TOOL_CALL_EXPIRED",      "The tool call has ended without an answer.");
        CursorExpired         = (409, "CURSOR_EXPIRED",         "The cursor is older than what is kept, or of another epoch.");
        UploadIncomplete      = (409, "UPLOAD_INCOMPLETE",      "The bytes of this upload have not arrived.");
        Sha256Mismatch        = (409, "SHA256_MISMATCH",        "The hash of the uploaded bytes is another; the upload is gone.");
        FileTooLarge          = (413, "FILE_TOO_LARGE",         "A file may have 100 MB.");
        MessageTooLarge       = (413, "MESSAGE_TOO_LARGE",      "A message may have 1 MB.");
        WebhookPayloadTooLarge = (413, "WEBHOOK_PAYLOAD_TOO_LARGE", "An agent's message may have 1 MB.");
        ManifestTooLarge      = (413, "MANIFEST_TOO_LARGE",     "A manifest may have 128 KB.");
        PayloadTooLarge       = (413, "PAYLOAD_TOO_LARGE",      "The request body is too large.");
        RangeNotSatisfiable   = (416, "RANGE_NOT_SATISFIABLE",  "The object does not have these bytes, or more than one range was asked for.");
        AccountLocked         = (423, "ACCOUNT_LOCKED",         "Too many failed logins; try again later.");
        RateLimited           = (429, "RATE_LIMITED",           "Too many requests; try again after the wait.");
        InternalError         = (500, "INTERNAL_ERROR",         "Something broke on our side.");
        NotAvailableInV1      = (501, "NOT_AVAILABLE_IN_V1",    "Planned, and not part of V1.");
        ServiceUnavailable    = (503, "SERVICE_UNAVAILABLE",    "The service cannot answer now; try again shortly.");
    }
}

impl Code {
    /// The HTTP status.
    pub const fn http_status(self) -> u16 {
        self.row().0
    }

    /// The stable identifier on the wire.
    pub const fn wire(self) -> &'static str {
        self.row().1
    }

    /// The English text for a client that has no translation.
    pub const fn message(self) -> &'static str {
        self.row().2
    }

    /// The key under which clients keep their translation: `errors.<wire code in lower case>`.
    pub fn i18n_key(self) -> String {
        format!("errors.{}", self.wire().to_ascii_lowercase())
    }

    /// Whether the same request may succeed later without being changed.
    pub const fn retryable(self) -> bool {
        matches!(
            self,
            Code::RateLimited
                | Code::ServiceUnavailable
                | Code::AccountLocked
                | Code::RequestTimeout
        )
    }

    /// The code of a wire name; `None` for one that a newer server has added.
    pub fn from_wire(name: &str) -> Option<Self> {
        Code::ALL.iter().copied().find(|code| code.wire() == name)
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.wire())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = std::borrow::Cow::<'de, str>::deserialize(from)?;
        Code::from_wire(&name)
            .ok_or_else(|| serde::de::Error::custom(BadText::new("value", "unknown error code")))
    }
}

string_schema!(Code, "The stable identifier of an error.", |object| object
    .enum_values(Some(Code::ALL.iter().map(|code| code.wire()))));

/// The error for a word that its list does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownWord;

impl fmt::Display for UnknownWord {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("unknown word")
    }
}

impl std::error::Error for UnknownWord {}

/// The object under `error`, in answers and in `error` frames.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ErrorBody {
    /// The stable identifier, one of [`Code`]. A newer server may have more of them.
    #[cfg_attr(feature = "schema", schema(value_type = Code))]
    pub code: String,
    /// English text for a client that has no translation.
    pub message: String,
    /// The key of a translation: `errors.<code in lower case>`.
    pub i18n_key: String,
    /// The parameters of the code.
    pub params: ErrorParams,
}

impl ErrorBody {
    /// The body of `code`; `retryable` is added to `params`.
    pub fn new(code: Code, extra: Map<String, Value>) -> Self {
        ErrorBody {
            code: code.wire().to_owned(),
            message: code.message().to_owned(),
            i18n_key: code.i18n_key(),
            params: ErrorParams {
                retryable: code.retryable(),
                extra,
            },
        }
    }

    /// The code, if this crate knows it.
    pub fn known(&self) -> Option<Code> {
        Code::from_wire(&self.code)
    }
}

/// The parameters of an error: `retryable`, and those of its code.
///
/// - `VALIDATION_ERROR`: `fields` (a list of [`FieldFault`]).
/// - `RATE_LIMITED`: `retry_after_ms`, `limit` and `scope` ([`RateLimitParams`]).
/// - `ACCOUNT_LOCKED`: `retry_after` (seconds).
/// - `AGENT_LIMIT_EXCEEDED`: `limit` and `alias`.
/// - `STORAGE_LIMIT_EXCEEDED`: `limit_bytes` and `used_bytes`, of the whole account.
/// - `VERSION_MISMATCH`: `current_version` or `current_epoch`.
/// - `RECIPIENTS_MISMATCH`: `missing` and `extra`.
/// - `AGENT_KEYS_MISMATCH`: `expected_key_ids`.
/// - `CURSOR_EXPIRED`: `oldest` and `head`.
/// - `SCOPE_NOT_DECLARED`: `scopes`, the undeclared ones.
/// - `ALREADY_DECIDED`: `status`, the present one.
/// - `APPROVAL_CLOSED`: `state`, and `reason` if it has one.
/// - `APPROVAL_LIMIT_EXCEEDED`: `limit` and `user_ids`, those with whom it is reached.
/// - `TOOL_CALL_EXPIRED`: `reason`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ErrorParams {
    /// Whether the same request may succeed later without being changed.
    pub retryable: bool,
    /// The code's own parameters.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A wrong field of the request: an item of `params.fields`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FieldFault {
    /// The place in the body or the query, such as `wrapped_keys[3].principal_id`; empty for the
    /// whole.
    pub path: String,
    /// The broken rule, such as `required`, `length` or `format`.
    pub rule: String,
    /// English text for developers.
    pub message: String,
}

/// The parameters of `RATE_LIMITED`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RateLimitParams {
    /// The wait before the next try, in milliseconds. The header `Retry-After` has it in whole
    /// seconds.
    pub retry_after_ms: u64,
    /// The limit, such as `5/s`.
    pub limit: String,
    /// The name of the limit, such as `agent_message_send`.
    pub scope: String,
}

/// The body of every error answer: `{"error": {...}}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ErrorEnvelope {
    /// The error.
    pub error: ErrorBody,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_body_says_whether_to_retry() {
        let extra = Map::from_iter([("retry_after_ms".to_owned(), 250.into())]);
        let body = ErrorBody::new(Code::RateLimited, extra);
        let text = serde_json::to_string(&body).expect("JSON");
        let read: ErrorBody = serde_json::from_str(&text).expect("a body");
        assert_eq!(read, body);
        assert_eq!(read.known(), Some(Code::RateLimited));
        assert!(read.params.retryable);
        assert_eq!(read.i18n_key, "errors.rate_limited");
        assert_eq!(read.params.extra["retry_after_ms"], 250);
    }

    #[test]
    fn codes_have_no_name_twice_and_find_themselves() {
        for code in Code::ALL {
            assert_eq!(Code::from_wire(code.wire()), Some(*code));
            assert!((400..=599).contains(&code.http_status()));
        }
        assert_eq!(Code::from_wire("LATER"), None);
    }
}
