//! Strings with a form of their own: names, device ids, stream ids, base64, secrets.

use std::{fmt, str::FromStr, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::bad_text::BadText;

fn check_text(text: &str, min: usize, max: usize) -> Result<(), BadText> {
    if !(min..=max).contains(&text.len()) {
        let message = format!("must have {min} to {max} bytes");
        return Err(BadText::made("length", message));
    }
    if text.chars().any(char::is_control) {
        let message = "control characters are not allowed";
        return Err(BadText::new("characters", message));
    }
    Ok(())
}

/// The fault of a [`DeviceId`] and a [`RequestId`].
const NO_NAME: BadText = BadText::new("format", "must be 1 to 128 of A-Z a-z 0-9 . _ : -");

/// Whether a name contains characters that make it look like another: controls of the direction of
/// text, and characters without width. A joiner counts as visible between two characters that it
/// may join, as in emoji and in Persian.
pub fn is_deceptive(name: &str) -> bool {
    let is_joined =
        |other: Option<char>| other.is_some_and(|other| !other.is_ascii() && !is_invisible(other));
    let mut before = None;
    let mut rest = name.chars().peekable();
    while let Some(letter) = rest.next() {
        let joins = matches!(letter, '\u{200c}' | '\u{200d}')
            && is_joined(before)
            && is_joined(rest.peek().copied());
        if is_invisible(letter) && !joins {
            return true;
        }
        before = Some(letter);
    }
    false
}

/// Whether a character has no width or changes the direction of others.
fn is_invisible(letter: char) -> bool {
    matches!(
        letter,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e001f}'
    )
}

fn check_name(text: &str, min: usize, max: usize) -> Result<(), BadText> {
    check_text(text, min, max)?;
    if is_deceptive(text) {
        let message = "invisible characters and controls of direction are not allowed";
        return Err(BadText::new("characters", message));
    }
    Ok(())
}

macro_rules! text {
    ($check:ident; $(#[doc = $doc:literal] $name:ident: $min:literal to $max:literal;)+) => {$(
        #[doc = $doc]
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
        pub struct $name(pub String);

        impl FromStr for $name {
            type Err = BadText;

            fn from_str(text: &str) -> Result<Self, BadText> {
                $check(text, $min, $max)?;
                Ok($name(text.to_owned()))
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                $check(&text, $min, $max).map_err(D::Error::custom)?;
                Ok($name(text))
            }
        }

        string_schema!(
            $name,
            concat!($doc, " No control characters; the bounds count bytes of UTF-8.").trim(),
            |object| object.min_length(Some($min)).max_length(Some($max))
        );
    )+};
}

text! {
    check_name;
    /// The display name of a user or an agent.
    DisplayName: 1 to 200;
    /// A user's name for a device.
    DeviceName: 1 to 200;
    /// The platform of a device, such as `ios` or `web`.
    Platform: 1 to 64;
    /// A user's name for a passkey.
    PasskeyName: 1 to 200;
    /// The title of a group.
    Title: 1 to 200;
}

text! {
    check_text;
    /// A locale tag, such as `de-CH`.
    Locale: 1 to 35;
    /// A verification code that was mailed.
    MailedCode: 1 to 64;
    /// The purpose of an agent.
    Description: 0 to 2000;
    /// A user's reason for the rotation of a key.
    RotationReason: 0 to 200;
    /// The device of a wrapped key.
    RecipientDevice: 1 to 128;
    /// A conversation's key, encrypted for one recipient.
    WrappedKeyText: 1 to 4096;
    /// An encryption scheme, such as `bp1`.
    Scheme: 1 to 32;
    /// The id of a pair of public keys.
    KeyId: 1 to 64;
    /// The name of a file.
    Filename: 1 to 255;
    /// The MIME type of a file, such as `image/png`.
    ContentType: 1 to 127;
    /// A permission scope, such as `location:read`.
    Scope: 1 to 128;
    /// An agent's reason for the request of a grant.
    GrantReason: 0 to 1000;
    /// The name of a tool.
    ToolName: 1 to 200;
    /// The reason for the answer to a tool call.
    AnswerReason: 1 to 200;
}

fn is_name(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte))
}

/// A device id: the client's choice, 1 to 128 of `A-Z a-z 0-9 . _ : -`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct DeviceId(pub String);

impl DeviceId {
    /// The text, if it is a device id.
    pub fn read(text: String) -> Option<Self> {
        is_name(&text, 128).then_some(DeviceId(text))
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for DeviceId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        DeviceId::read(String::deserialize(from)?).ok_or_else(|| D::Error::custom(NO_NAME))
    }
}

string_schema!(DeviceId, "A device id, chosen by the client.", |object| {
    object.pattern(Some("^[A-Za-z0-9._:-]{1,128}$"))
});

/// An agent's name for a tool call: 1 to 128 of `A-Z a-z 0-9 . _ : -`, for example a ULID.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct RequestId(pub String);

impl fmt::Display for RequestId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for RequestId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        if is_name(&text, 128) {
            Ok(RequestId(text))
        } else {
            Err(D::Error::custom(NO_NAME))
        }
    }
}

string_schema!(
    RequestId,
    "The id of a tool call, chosen by the agent.",
    |object| { object.pattern(Some("^[A-Za-z0-9._:-]{1,128}$")) }
);

/// An agent's name for a stream: 1 to 64 of `A-Z a-z 0-9 . _ : -`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StreamId(Arc<str>);

impl StreamId {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for StreamId {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        if is_name(text, 64) {
            Ok(StreamId(text.into()))
        } else {
            let message = "must be 1 to 64 of A-Z a-z 0-9 . _ : -";
            Err(BadText::new("format", message))
        }
    }
}

impl TryFrom<String> for StreamId {
    type Error = BadText;

    fn try_from(text: String) -> Result<Self, BadText> {
        text.parse()
    }
}

impl From<StreamId> for String {
    fn from(id: StreamId) -> String {
        id.0.as_ref().to_owned()
    }
}

string_schema!(StreamId, "An agent's name for a stream.", |object| {
    object.pattern(Some("^[A-Za-z0-9._:-]{1,64}$"))
});

/// A public key or a salt: base64 of exactly 32 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key32(pub [u8; 32]);

impl Serialize for Key32 {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(self.0))
    }
}

impl<'de> Deserialize<'de> for Key32 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let bytes = BASE64
            .decode(String::deserialize(from)?)
            .ok()
            .and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(Key32)
            .ok_or_else(|| D::Error::custom(BadText::new("key", "must be base64 of 32 bytes")))
    }
}

string_schema!(Key32, "Base64 of exactly 32 bytes.", |object| object
    .content_encoding("base64")
    .pattern(Some("^[A-Za-z0-9+/]{43}=$")));

/// An Ed25519 signature: base64 of exactly 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature(pub [u8; 64]);

impl Serialize for Signature {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(self.0))
    }
}

impl<'de> Deserialize<'de> for Signature {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let bytes = BASE64
            .decode(String::deserialize(from)?)
            .ok()
            .and_then(|bytes| bytes.try_into().ok());
        bytes.map(Signature).ok_or_else(|| {
            D::Error::custom(BadText::new("signature", "must be base64 of 64 bytes"))
        })
    }
}

string_schema!(Signature, "Base64 of exactly 64 bytes.", |object| object
    .content_encoding("base64")
    .min_length(Some(88))
    .max_length(Some(88)));

/// Ciphertext or a key: base64 of 1 to 8,192 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob(pub Vec<u8>);

/// The most bytes of a [`Blob`].
const MAX_BLOB_BYTES: usize = 8192;

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let bytes = BASE64.decode(String::deserialize(from)?).ok();
        let bytes = bytes.filter(|bytes| (1..=MAX_BLOB_BYTES).contains(&bytes.len()));
        bytes.map(Blob).ok_or_else(|| {
            D::Error::custom(BadText::new("backup", "must be base64 of 1 to 8192 bytes"))
        })
    }
}

string_schema!(Blob, "Base64 of 1 to 8,192 bytes.", |object| object
    .content_encoding("base64")
    .pattern(Some("^[A-Za-z0-9+/]{2,}={0,2}$")));

macro_rules! unprinted {
    ($(#[doc = $doc:literal] $name:ident;)+) => {$(
        #[doc = $doc]
        #[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl $name {
            /// The text itself.
            pub fn expose(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                $name(text.to_owned())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    )+};
}

unprinted! {
    /// A password, token or signature. It is not printed by `Debug`.
    Secret;
    /// An e-mail address, in any case. It is not printed by `Debug`.
    EmailAddress;
}

string_schema!(Secret, "A secret: keep it out of logs.", |object| object
    .format(Some(utoipa::openapi::SchemaFormat::KnownFormat(
        utoipa::openapi::KnownFormat::Password
    ))));

string_schema!(
    EmailAddress,
    "An e-mail address, in any case; at most 254 characters.",
    |object| object
        .max_length(Some(254))
        .format(Some(utoipa::openapi::SchemaFormat::Custom("email".into())))
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_its_length_and_no_control_characters() {
        assert!("ios".parse::<Platform>().is_ok());
        for (text, rule) in [("", "length"), ("a\u{7}", "characters")] {
            let fault = serde_json::from_value::<Platform>(text.into()).expect_err(text);
            assert!(fault.to_string().starts_with(rule), "{fault}");
        }
        assert!("x".repeat(65).parse::<Platform>().is_err());
    }

    #[test]
    fn a_name_reads_as_what_it_is() {
        let person = "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} Ada";
        let persian = "\u{645}\u{6cc}\u{200c}\u{62e}\u{648}\u{627}\u{647}\u{645}";
        for name in [
            "Ada",
            "Zoë Ångström",
            "\u{627}\u{62f}\u{627}",
            person,
            persian,
        ] {
            assert!(name.parse::<DisplayName>().is_ok(), "{name:?}");
        }
        for name in [
            "Ad\u{200b}a",
            "Ad\u{200d}a",
            "\u{200d}Ada",
            "Ada\u{feff}",
            "\u{202e}adA",
            "Ada\u{2066}",
            "Ada\u{200f}",
            "\u{1f468}\u{200d}\u{200d}\u{1f469}",
            "\u{3164}",
        ] {
            assert!(name.parse::<DisplayName>().is_err(), "{name:?}");
            assert!(name.parse::<Locale>().is_ok(), "a locale is no name");
        }
    }

    #[test]
    fn names_have_their_characters() {
        assert!("a.b_c:d-1".parse::<StreamId>().is_ok());
        for name in ["", "a b", "ä", &"x".repeat(65)] {
            assert!(name.parse::<StreamId>().is_err(), "{name}");
        }
        assert!(DeviceId::read("x".repeat(128)).is_some());
        assert!(DeviceId::read("x".repeat(129)).is_none());
    }

    #[test]
    fn bytes_travel_as_base64() {
        let key = Key32([7; 32]);
        let text = serde_json::to_string(&key).expect("a string");
        assert_eq!(text.len(), 46);
        assert_eq!(serde_json::from_str::<Key32>(&text).expect("a key"), key);
        assert!(serde_json::from_str::<Key32>(r#""AAAA""#).is_err());
        assert!(serde_json::from_str::<Blob>(r#""""#).is_err());
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert!(!format!("{:?}", Secret::from("hunter2")).contains("hunter2"));
    }
}
