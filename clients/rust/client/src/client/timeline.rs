//! From messages to what is shown: edits, reactions, and what was taken back.

use std::collections::BTreeMap;

use blindpipe_protocol::ids::{MessageId, Principal};

use super::Received;
use crate::{
    Content, ContentView,
    content::{Change, Target},
};

/// The state of a message in a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimelineState {
    /// Its content is shown.
    Shown,
    /// It was taken back, or its payload is gone.
    Deleted,
    /// It does not open.
    Undecryptable,
}

/// The people and agents with one emoji.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reactions {
    /// The emoji.
    pub emoji: String,
    /// Its senders, the earliest first.
    pub senders: Vec<Principal>,
}

/// A message as it is shown.
#[derive(Clone, Debug)]
pub struct TimelineItem {
    /// The message, as it was sent.
    pub received: Received,
    /// Whether it is shown.
    pub state: TimelineState,
    /// The content of its last edit; its own without any. None unless it is shown.
    pub content: Option<Content>,
    /// The number of its edits.
    pub edits: u32,
    /// Its reactions, the earliest emoji first.
    pub reactions: Vec<Reactions>,
}

/// Makes what is shown of messages and of the messages that refer to them, by rising `seq`. Their
/// order plays no part. A change of a message that is not there shows nothing.
#[must_use]
pub fn timeline(messages: &[Received], refs: &[Received]) -> Vec<TimelineItem> {
    let mut all = BTreeMap::new();
    for received in refs.iter().chain(messages) {
        all.insert(received.message.seq, received);
    }
    let page: BTreeMap<_, _> = messages.iter().map(|it| (it.message.seq, it)).collect();
    let shown = page.into_values().filter(|it| change_of(it).is_none());
    let mut folds: Vec<Fold<'_>> = shown.map(Fold::new).collect();
    let places: BTreeMap<MessageId, usize> = folds
        .iter()
        .enumerate()
        .map(|(place, fold)| (fold.received.message.message_id, place))
        .collect();
    for received in all.into_values() {
        let Some((target, change)) = change_of(received) else {
            continue;
        };
        if let Some(place) = places.get(&target.message_id) {
            folds[*place].apply(&target, change, received.message.sender.id);
        }
    }
    folds.into_iter().map(Fold::item).collect()
}

fn change_of(received: &Received) -> Option<(Target, Change<'_>)> {
    let opened = received.opened.as_ref().ok()?;
    Change::read(&opened.content)
}

/// A message, and the changes that count up to now.
struct Fold<'a> {
    received: &'a Received,
    state: TimelineState,
    content: Option<&'a Content>,
    edits: u32,
    /// Those that stand, the earliest first.
    reactions: Vec<(&'a str, Principal)>,
}

impl<'a> Fold<'a> {
    fn new(received: &'a Received) -> Self {
        let content = received.opened.as_ref().ok().map(|opened| &opened.content);
        let state = match content {
            _ if received.message.payload.is_none() => TimelineState::Deleted,
            None => TimelineState::Undecryptable,
            Some(_) => TimelineState::Shown,
        };
        Self {
            received,
            state,
            content: content.filter(|_| state == TimelineState::Shown),
            edits: 0,
            reactions: Vec::new(),
        }
    }

    fn apply(&mut self, target: &Target, change: Change<'a>, sender: Principal) {
        let (Some(content), Ok(opened)) = (self.content, &self.received.opened) else {
            return;
        };
        if target.re != opened.re {
            return;
        }
        let is_author = sender == self.received.message.sender.id;
        match change {
            Change::Edit(edited) => {
                let kind = |content| ContentView::of(content).kind;
                if is_author && kind(edited) == kind(content) {
                    self.content = Some(edited);
                    self.edits += 1;
                }
            }
            Change::Delete if is_author => {
                self.state = TimelineState::Deleted;
                (self.content, self.edits) = (None, 0);
                self.reactions.clear();
            }
            Change::Delete => {}
            Change::Reaction { emoji, is_removed } => {
                self.reactions.retain(|before| *before != (emoji, sender));
                if !is_removed {
                    self.reactions.push((emoji, sender));
                }
            }
        }
    }

    fn item(self) -> TimelineItem {
        let mut reactions: Vec<Reactions> = Vec::new();
        for (emoji, sender) in self.reactions {
            match reactions.iter_mut().find(|of| of.emoji == emoji) {
                Some(of) => of.senders.push(sender),
                None => reactions.push(Reactions {
                    emoji: emoji.to_owned(),
                    senders: vec![sender],
                }),
            }
        }
        TimelineItem {
            received: self.received.clone(),
            state: self.state,
            content: self.content.cloned(),
            edits: self.edits,
            reactions,
        }
    }
}

#[cfg(test)]
mod tests {
    use blindpipe_e2ee::from_base64;
    use blindpipe_protocol::messages::Message;
    use serde_json::{Value, json};

    use super::*;
    use crate::{OpenedMessage, OpenedSender};

    fn vectors() -> Value {
        let text = include_str!("../../../../vectors/content_kinds.json");
        serde_json::from_str(text).expect("JSON")
    }

    fn received(case: &Value) -> Received {
        let is_deleted = case["state"] == "deleted";
        let message: Message = serde_json::from_value(json!({
            "message_id": case["message_id"],
            "conversation_id": "01K9ZZZZZZ0000000000000009",
            "seq": case["seq"],
            "sender": case["sender"],
            "payload": (!is_deleted).then(|| json!({"type": "encrypted"})),
            "hop": 0,
            "created_at": "2026-03-01T12:00:00.000Z",
        }))
        .expect("a message");
        let re = case["re"]
            .as_str()
            .map(|re| from_base64(re).expect("base64"));
        let opened = case["content"].as_object().map(|content| OpenedMessage {
            content: content.clone(),
            source: String::new(),
            encrypted: re.is_some(),
            sender: OpenedSender {
                principal: message.sender.id,
                device_id: None,
                key: None,
                authentic: true,
                pinned: false,
                verified: false,
                member: true,
            },
            sent_at: None,
            epoch: 0,
            re: re.map(|re| re.try_into().expect("32 bytes")),
            is_replay: false,
            notices: Vec::new(),
        });
        let opened = opened.ok_or(blindpipe_e2ee::Error::Clear);
        Received { message, opened }
    }

    fn all(cases: &Value) -> Vec<Received> {
        cases
            .as_array()
            .expect("a list")
            .iter()
            .map(received)
            .collect()
    }

    fn told(item: &TimelineItem) -> Value {
        let sender = |sender: &Principal| {
            let kind = if matches!(sender, Principal::User(_)) {
                "user"
            } else {
                "agent"
            };
            json!({"type": kind, "id": sender.to_string()})
        };
        let reactions = item.reactions.iter().map(|of| {
            let senders: Vec<_> = of.senders.iter().map(sender).collect();
            json!({"emoji": of.emoji, "senders": senders})
        });
        json!({
            "message_id": item.received.message.message_id,
            "state": match item.state {
                TimelineState::Shown => "shown",
                TimelineState::Deleted => "deleted",
                TimelineState::Undecryptable => "undecryptable",
            },
            "content": item.content,
            "edits": item.edits,
            "reactions": reactions.collect::<Vec<_>>(),
        })
    }

    #[test]
    fn contents_are_viewed_as_the_vectors_say() {
        for case in vectors()["kinds"].as_array().expect("a list") {
            let content = case["content"].as_object().expect("an object");
            let view = ContentView::of(content);
            let told = json!({
                "content": content,
                "kind": view.kind.name(),
                "text": view.text,
                "markdown": view.markdown,
            });
            assert_eq!(told, *case);
        }
    }

    #[test]
    fn timelines_are_as_the_vectors_say_in_any_order() {
        for case in vectors()["folds"].as_array().expect("a list") {
            let (mut messages, mut refs) = (all(&case["messages"]), all(&case["refs"]));
            for _ in 0..2 {
                let shown: Vec<_> = timeline(&messages, &refs).iter().map(told).collect();
                assert_eq!(json!(shown), case["shown"], "{}", case["name"]);
                messages.reverse();
                refs.reverse();
            }
        }
    }
}
