//! The contents that change an earlier message.

use blindpipe_e2ee::to_base64;
use blindpipe_protocol::ids::MessageId;
use serde_json::{Value, json};

use super::{
    Content, ContentView,
    view::{is_emoji, may_be_edited},
};
use crate::{Error, OpenedMessage, Result};

/// A change of a message that opened.
pub(crate) enum NewChange<'a> {
    Edit(Content),
    Delete,
    Reaction { emoji: &'a str, is_removed: bool },
}

impl NewChange<'_> {
    /// The content of the change, bound to the envelope that its author has seen.
    pub(crate) fn of(self, message_id: MessageId, opened: &OpenedMessage) -> Result<Content> {
        let mut target = Content::new();
        target.insert("message_id".to_owned(), json!(message_id));
        target.extend(opened.re.map(|re| ("re".to_owned(), to_base64(&re).into())));
        let content = match self {
            Self::Edit(content) => {
                if !may_be_edited(&content) {
                    return Err(Error::Usage("a text or a file can be edited"));
                }
                let fallback = ContentView::of(&content).text;
                json!({"type": "edit", "target": target, "content": content, "fallback": fallback})
            }
            Self::Delete => json!({"type": "delete", "target": target, "fallback": ""}),
            Self::Reaction { emoji, is_removed } => {
                if !is_emoji(emoji) {
                    return Err(Error::Usage("an emoji is 1 to 64 bytes without spaces"));
                }
                json!({
                    "type": "reaction", "target": target, "emoji": emoji,
                    "remove": is_removed, "fallback": emoji,
                })
            }
        };
        match content {
            Value::Object(content) => Ok(content),
            _ => unreachable!("an object"),
        }
    }
}
