//! A single error type with the fixed reasons that applications and tests see.

use std::fmt;

/// Why something does not open, or is not sealed. The names are part of the scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Error {
    /// The bytes do not have the form, or a value does not fit its field.
    Malformed,
    /// The first byte names a version that this client does not know.
    UnknownVersion,
    /// The kind is unknown, is not that of the place, or not one that this sender may write.
    UnknownKind,
    /// The secret of the epoch is not held, or was not given to this reader.
    NoEpochKey,
    /// A secret, a password or a key is not the one that these bytes were made with.
    WrongKey,
    /// The authentication tag does not fit: something was altered or moved.
    BadCiphertext,
    /// The padding is not exact, or not of zeros.
    BadPadding,
    /// No usable key of the sender has this id.
    UnknownSenderKey,
    /// The signature does not hold.
    BadSignature,
    /// The key had left the directory before the message came.
    RetiredKey,
    /// The signed time is too long ago, or too far ahead.
    Stale,
    /// It came in clear where only encrypted things count.
    Clear,
    /// The content is not a JSON object that all languages read alike.
    NotJson,
}

impl Error {
    /// The name of the reason, the same in every language.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownVersion => "unknown_version",
            Self::UnknownKind => "unknown_kind",
            Self::NoEpochKey => "no_epoch_key",
            Self::WrongKey => "wrong_key",
            Self::BadCiphertext => "bad_ciphertext",
            Self::BadPadding => "bad_padding",
            Self::UnknownSenderKey => "unknown_sender_key",
            Self::BadSignature => "bad_signature",
            Self::RetiredKey => "retired_key",
            Self::Stale => "stale",
            Self::Clear => "clear",
            Self::NotJson => "not_json",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for Error {}

/// The outcome of whatever can be refused.
pub type Result<T> = std::result::Result<T, Error>;
