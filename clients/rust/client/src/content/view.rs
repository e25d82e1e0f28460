//! The kinds of contents, and what a reader shows of them: `docs/content.md`.

use blindpipe_e2ee::from_base64;
use blindpipe_protocol::ids::MessageId;
use serde_json::Value;

use super::Content;

/// The longest text of a status, in characters.
pub(crate) const MAX_STATUS_CHARS: usize = 500;
const MAX_EMOJI_BYTES: usize = 64;

/// The kind of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ContentKind {
    /// Words.
    Text,
    /// An agent's question.
    Question,
    /// The answer to a question.
    Answer,
    /// A question whose decision is signed.
    Approval,
    /// The words of a decision.
    Decision,
    /// A file.
    File,
    /// The present work of an agent.
    Status,
    /// Another content for an earlier message.
    Edit,
    /// The author takes a message back.
    Delete,
    /// An emoji beside an earlier message.
    Reaction,
    /// A kind that this client does not know, or a malformed content.
    Unknown,
}

impl ContentKind {
    /// The `type` of the contents of this kind.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Question => "question",
            Self::Answer => "answer",
            Self::Approval => "approval",
            Self::Decision => "decision",
            Self::File => "file",
            Self::Status => "status",
            Self::Edit => "edit",
            Self::Delete => "delete",
            Self::Reaction => "reaction",
            Self::Unknown => "unknown",
        }
    }

    /// Whether it changes an earlier message, and is no message of its own.
    #[must_use]
    pub const fn is_change(self) -> bool {
        matches!(self, Self::Edit | Self::Delete | Self::Reaction)
    }
}

/// A content as a reader shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentView<'a> {
    /// The kind.
    pub kind: ContentKind,
    /// The words: a file's caption or name, an answer's choice, the `fallback` of an unknown
    /// content. Empty for a change of another message.
    pub text: &'a str,
    /// The text is markdown.
    pub markdown: bool,
}

impl<'a> ContentView<'a> {
    /// Looks at a content. Every object has a view.
    #[must_use]
    pub fn of(content: &'a Content) -> Self {
        let kind = field(content, "type").and_then(|name| kind_of(content, name));
        let (kind, text) = kind.unwrap_or_else(|| {
            let fallback = field(content, "fallback").unwrap_or_default();
            (ContentKind::Unknown, fallback)
        });
        let is_markdown = field(content, "format") == Some("markdown");
        Self {
            kind,
            text,
            markdown: kind == ContentKind::Text && is_markdown,
        }
    }
}

fn field<'a>(content: &'a Content, name: &str) -> Option<&'a str> {
    content.get(name).and_then(Value::as_str)
}

fn kind_of<'a>(content: &'a Content, name: &str) -> Option<(ContentKind, &'a str)> {
    let text = || field(content, "text");
    let choice = || field(content, "choice");
    Some(match name {
        "text" => (ContentKind::Text, text()?),
        "question" => (ContentKind::Question, text()?),
        "answer" => (ContentKind::Answer, choice().or_else(text)?),
        "approval" => (ContentKind::Approval, field(content, "name").and(text())?),
        "decision" => {
            let decision = field(content, "decision").filter(|word| is_decision(word))?;
            let words = choice().or_else(text).unwrap_or(decision);
            (ContentKind::Decision, words)
        }
        "file" => {
            let name = file_name(content)?;
            let caption = field(content, "caption").unwrap_or(name);
            (ContentKind::File, caption)
        }
        "status" => {
            let text = text().filter(|text| text.chars().count() <= MAX_STATUS_CHARS)?;
            (ContentKind::Status, text)
        }
        _ => (Change::read(content)?.1.kind(), ""),
    })
}

fn is_decision(word: &str) -> bool {
    matches!(word, "approved" | "denied" | "answered")
}

fn file_name(content: &Content) -> Option<&str> {
    for name in ["object_key", "sha256", "key"] {
        field(content, name)?;
    }
    field(content, "name")
}

/// The message that a change is about. The hash binds it to what the author saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) message_id: MessageId,
    /// None for a message in clear.
    pub(crate) re: Option<[u8; 32]>,
}

impl Target {
    fn read(content: &Content) -> Option<Self> {
        let target = content.get("target")?.as_object()?;
        let re = match target.get("re") {
            None => None,
            Some(re) => Some(from_base64(re.as_str()?).ok()?.try_into().ok()?),
        };
        let message_id = id_of(field(target, "message_id")?)?;
        Some(Self { message_id, re })
    }
}

/// Ids have several spellings.
fn id_of(text: &str) -> Option<MessageId> {
    let id = text.parse().ok();
    id.or_else(|| uuid::Uuid::parse_str(text).ok().map(MessageId))
}

/// A message that changes an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    Edit(&'a Content),
    Delete,
    Reaction { emoji: &'a str, is_removed: bool },
}

impl<'a> Change<'a> {
    /// None for a content that is no change, or a malformed one.
    pub(crate) fn read(content: &'a Content) -> Option<(Target, Self)> {
        let change = match field(content, "type")? {
            "edit" => {
                let edited = content.get("content")?.as_object()?;
                may_be_edited(edited).then_some(Self::Edit(edited))?
            }
            "delete" => Self::Delete,
            "reaction" => Self::Reaction {
                emoji: field(content, "emoji").filter(|emoji| is_emoji(emoji))?,
                is_removed: content.get("remove") == Some(&Value::Bool(true)),
            },
            _ => return None,
        };
        Some((Target::read(content)?, change))
    }

    const fn kind(self) -> ContentKind {
        match self {
            Self::Edit(_) => ContentKind::Edit,
            Self::Delete => ContentKind::Delete,
            Self::Reaction { .. } => ContentKind::Reaction,
        }
    }
}

pub(super) fn may_be_edited(content: &Content) -> bool {
    let kind = ContentView::of(content).kind;
    matches!(kind, ContentKind::Text | ContentKind::File)
}

pub(super) fn is_emoji(text: &str) -> bool {
    let is_shown = |letter: char| letter > ' ' && !('\u{7f}'..='\u{a0}').contains(&letter);
    (1..=MAX_EMOJI_BYTES).contains(&text.len()) && text.chars().all(is_shown)
}
