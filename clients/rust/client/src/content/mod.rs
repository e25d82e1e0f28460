//! Contents: the JSON objects that people and agents send each other.

mod changes;
mod view;

use serde_json::{Map, Value};

pub use self::view::{ContentKind, ContentView};
pub(crate) use self::{
    changes::NewChange,
    view::{Change, Target},
};

/// A JSON object with a `type`.
pub type Content = Map<String, Value>;

/// The content of a plain text.
#[must_use]
pub fn text(text: impl Into<String>) -> Content {
    let mut content = Content::new();
    content.insert("type".to_owned(), "text".into());
    content.insert("text".to_owned(), Value::String(text.into()));
    content
}

impl From<&str> for Body {
    fn from(words: &str) -> Self {
        Self(text(words))
    }
}

impl From<String> for Body {
    fn from(words: String) -> Self {
        Self(text(words))
    }
}

impl From<Content> for Body {
    fn from(content: Content) -> Self {
        Self(content)
    }
}

/// The input of a send: a text, or a content.
#[derive(Clone, Debug)]
pub struct Body(pub(crate) Content);

/// The number under which a status of a stream is sealed.
pub(crate) const STATUS_NUMBER: u64 = (1 << 53) - 1;

/// The text of a text message, else "".
pub(crate) fn text_of(content: &Content) -> &str {
    if content.get("type").is_some_and(|kind| kind == "text") {
        return content.get("text").and_then(Value::as_str).unwrap_or("");
    }
    ""
}

pub(crate) fn encode(content: &Content) -> crate::Result<Vec<u8>> {
    let bytes = serde_json::to_vec(content).map_err(|_| blindpipe_e2ee::Error::NotJson)?;
    Ok(bytes)
}

/// The text of an encoded content.
pub(crate) fn text_of_bytes(bytes: &[u8]) -> crate::Result<&str> {
    let text = std::str::from_utf8(bytes).map_err(|_| blindpipe_e2ee::Error::NotJson)?;
    Ok(text)
}
