//! Search over what the server can see: `GET /search`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{bad_text::BadText, ids::ConversationId};

words! {
    /// A kind of things to find.
    pub enum SearchKind {
        /// A conversation, by its title or by the name of the other one.
        Conversation = "conversation",
        /// A user who shares a conversation with the caller, by name.
        User = "user",
        /// An agent of the caller's, or related with the caller, or in a conversation of the
        /// caller's, by name.
        Agent = "agent",
        /// A file of a conversation of the caller's, by the name that its uploader declared.
        File = "file",
        /// A message, by the tokens that its sender gave.
        Message = "message",
    }
}

words! {
    /// The way in which something was found.
    pub enum SearchMatch {
        /// The text contains the words, whatever their case.
        Substring = "substring",
        /// The text is similar to the words.
        Trigram = "trigram",
        /// The message has all tokens.
        Token = "token",
    }
}

/// A keyed hash that a client made of a word: 16 to 64 characters of base64url or hex.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SearchToken(String);

impl SearchToken {
    /// The characters.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SearchToken {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        let plain = text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        if plain && (16..=64).contains(&text.len()) {
            Ok(SearchToken(text.to_owned()))
        } else {
            let message = "must have 16 to 64 characters of base64url or hex";
            Err(BadText::new("format", message))
        }
    }
}

impl fmt::Display for SearchToken {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

impl Serialize for SearchToken {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SearchToken {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(D::Error::custom)
    }
}

string_schema!(
    SearchToken,
    "A keyed hash that a client made of a word, in base64url or hex.",
    |object| object.min_length(Some(16)).max_length(Some(64))
);

/// The query of a search: words in `q`, or tokens of messages in `tokens`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SearchQuery {
    /// The words, 1 to 100 bytes. Any substring of a name counts, and so do similar names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub q: Option<String>,
    /// A comma list of kinds; without it every kind that has names, or messages if there are
    /// tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub types: Option<String>,
    /// A comma list of 1 to 16 tokens. A message must have all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<String>,
    /// The number of items of a page, 1 to 100; 50 if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 100, default = 50))]
    pub limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SearchHit {
    /// The kind of thing.
    pub kind: SearchKind,
    /// Its id.
    pub id: String,
    /// The text in which the words were found; null for messages.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub title: Option<String>,
    /// The way in which it was found.
    pub r#match: SearchMatch,
    /// The conversation of a file or a message; absent for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<ConversationId>,
    /// The number of a message in its conversation; absent for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_hash_and_no_word() {
        for text in ["0123456789abcdef", "AZ-_azAZ-_az0123", &"a".repeat(64)] {
            assert!(text.parse::<SearchToken>().is_ok(), "{text}");
        }
        for text in [
            "",
            "hello",
            "0123456789abcde",
            "0123456789abcde!",
            &"a".repeat(65),
        ] {
            assert!(text.parse::<SearchToken>().is_err(), "{text}");
        }
    }
}
