//! The meaning of a search's parameters.

use std::{fmt, str::FromStr};

use blindpipe_protocol::{
    bad_text::BadText,
    ids::{BadId, Principal},
    search::{SearchKind, SearchToken},
};
use serde::{Deserialize, Deserializer, de};
use uuid::Uuid;

use crate::{
    error::{Code, Error, Result},
    ids::{AgentId, MessageId, UserId},
};

/// The longest words, in bytes.
const MAX_WORDS_BYTES: usize = 100;
/// Tokens that a search may name.
const MAX_TOKENS: usize = 16;
/// The kinds that words can find, in the order of the answer.
const NAMED: [SearchKind; 4] = [
    SearchKind::Conversation,
    SearchKind::User,
    SearchKind::Agent,
    SearchKind::File,
];

/// A search whose parameters fit each other.
#[derive(Debug, PartialEq)]
pub enum Search {
    /// By words, in these kinds.
    Words(String, Vec<SearchKind>),
    /// Messages by tokens, all of which they have.
    Tokens(Vec<String>),
}

/// Reads the parameters. Words for messages are refused, because their content is encrypted.
pub fn read(q: Option<&str>, types: Option<&str>, tokens: Option<&str>) -> Result<Search> {
    let kinds = types.map(read_kinds).transpose()?;
    let wants_messages = kinds.as_ref().map_or(tokens.is_some(), |kinds| {
        kinds.contains(&SearchKind::Message)
    });
    match (q, tokens) {
        (Some(_), _) if wants_messages => Err(Code::SearchContentEncrypted.into()),
        (Some(_), Some(_)) => Err(Error::field("tokens", "conflict", "are for messages alone")),
        (Some(q), None) => Ok(Search::Words(
            read_words(q)?,
            kinds.unwrap_or_else(|| NAMED.to_vec()),
        )),
        (None, Some(tokens)) if kinds.is_none_or(|kinds| kinds == [SearchKind::Message]) => {
            read_tokens(tokens).map(Search::Tokens)
        }
        (None, Some(_)) => Err(Error::field(
            "types",
            "conflict",
            "tokens find messages alone",
        )),
        (None, None) if wants_messages => {
            Err(Error::field("tokens", "required", "missing field `tokens`"))
        }
        (None, None) => Err(Error::field("q", "required", "missing field `q`")),
    }
}

fn read_kinds(types: &str) -> Result<Vec<SearchKind>> {
    let mut kinds = Vec::new();
    for word in types.split(',') {
        let kind = word.parse().ok();
        kinds.push(kind.ok_or_else(|| Error::field("types", "value", "names an unknown kind"))?);
    }
    kinds.sort_unstable();
    kinds.dedup();
    Ok(kinds)
}

fn read_words(q: &str) -> Result<String> {
    let words = q.trim();
    if words.is_empty() || words.len() > MAX_WORDS_BYTES {
        return Err(Error::field("q", "length", "must have 1 to 100 bytes"));
    }
    if words.chars().any(char::is_control) {
        return Err(Error::field(
            "q",
            "characters",
            "control characters are not allowed",
        ));
    }
    Ok(words.to_owned())
}

fn read_tokens(tokens: &str) -> Result<Vec<String>> {
    let mut read: Vec<String> = Vec::new();
    for token in tokens.split(',') {
        let token: SearchToken = token
            .parse()
            .map_err(|_| Error::field("tokens", "format", "has an entry that is no token"))?;
        read.push(token.to_string());
    }
    read.sort_unstable();
    read.dedup();
    if read.len() > MAX_TOKENS {
        return Err(Error::field("tokens", "length", "must name 1 to 16 tokens"));
    }
    Ok(read)
}

/// The last item seen: its kind and id. The wire shows `kind:id`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchCursor {
    pub kind: SearchKind,
    pub id: Uuid,
}

impl SearchCursor {
    /// The id as the wire shows it.
    pub fn wire_id(self) -> String {
        match self.kind {
            SearchKind::Agent => AgentId(self.id).to_string(),
            // All other ids are ULIDs.
            _ => MessageId(self.id).to_string(),
        }
    }
}

impl fmt::Display for SearchCursor {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}:{}", self.kind.as_str(), self.wire_id())
    }
}

impl FromStr for SearchCursor {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let (kind, id) = text.split_once(':').ok_or(BadId)?;
        let kind = kind.parse().map_err(|_| BadId)?;
        match (kind, id.parse()?) {
            (SearchKind::Agent, Principal::Agent(AgentId(id))) => Ok(SearchCursor { kind, id }),
            (SearchKind::Agent, _) | (_, Principal::Agent(_)) => Err(BadId),
            (kind, Principal::User(UserId(id))) => Ok(SearchCursor { kind, id }),
        }
    }
}

impl<'de> Deserialize<'de> for SearchCursor {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse()
            .map_err(|BadId| de::Error::custom(BadText::new("cursor", "is no cursor of a search")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(q: Option<&str>, types: Option<&str>, tokens: Option<&str>) -> Code {
        read(q, types, tokens).expect_err("a refusal").code()
    }

    #[test]
    fn words_find_names_and_tokens_find_messages() {
        let (token, words) = ("0123456789abcdef", Some(" al "));
        let all = Search::Words("al".to_owned(), NAMED.to_vec());
        assert_eq!(read(words, None, None).expect("a search"), all);
        let agents = Search::Words("al".to_owned(), vec![SearchKind::User, SearchKind::Agent]);
        assert_eq!(
            read(words, Some("agent,user,agent"), None).expect("a search"),
            agents
        );
        for types in [None, Some("message")] {
            let found = read(None, types, Some(token)).expect("a search");
            assert_eq!(found, Search::Tokens(vec![token.to_owned()]));
        }
        for types in [Some("message"), Some("user,message")] {
            for tokens in [None, Some(token)] {
                assert_eq!(refusal(words, types, tokens), Code::SearchContentEncrypted);
            }
        }
        assert_eq!(
            refusal(words, None, Some(token)),
            Code::SearchContentEncrypted
        );
        for (q, types, tokens) in [
            (None, None, None),
            (None, Some("message"), None),
            (None, Some("user"), Some(token)),
            (words, Some("user"), Some(token)),
            (None, None, Some("short")),
            (words, Some("mail"), None),
            (words, Some(""), None),
            (Some("  "), None, None),
            (Some("a\u{7}"), None, None),
        ] {
            assert_eq!(
                refusal(q, types, tokens),
                Code::ValidationError,
                "{q:?} {types:?}"
            );
        }
    }

    #[test]
    fn a_cursor_is_read_as_it_was_shown() {
        for text in [
            "user:01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "agent:0190b5e0-7c6e-7d3a-9c1b-2f4a5b6c7d8e",
            "message:01ARZ3NDEKTSV4RRFFQ69G5FAV",
        ] {
            assert_eq!(text.parse::<SearchCursor>().expect(text).to_string(), text);
        }
        for text in [
            "",
            "user",
            "user:x",
            "mail:01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "agent:01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "user:0190b5e0-7c6e-7d3a-9c1b-2f4a5b6c7d8e",
        ] {
            assert!(text.parse::<SearchCursor>().is_err(), "{text}");
        }
    }
}
