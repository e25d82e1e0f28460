//! The listeners: they record every event and, at the end, every message.

use serde_json::Value;
use tokio::time::Instant;

use super::{Actor, DONE, Drive, Subscriber, TIMEOUT, last_tag, tag_of, work::seen};
use crate::{Heard, Said, Tag};

impl<A: Actor> Drive<'_, A> {
    /// Records every event until the last message of each of the listener's conversations.
    pub(super) async fn listen(&self, principal: usize, ears: &mut impl Subscriber) -> Vec<Heard> {
        let mut heard: Vec<Heard> = Vec::new();
        let mut waiting: Vec<usize> = (0..self.plan.conversations)
            .filter(|conversation| self.is_in(principal, *conversation))
            .collect();
        let mut heard_at = Instant::now();
        while !waiting.is_empty() && heard_at.elapsed() < TIMEOUT {
            let Ok(Some(frame)) = tokio::time::timeout(TIMEOUT, ears.next()).await else {
                break;
            };
            if frame["type"] != "event" {
                continue;
            }
            heard_at = Instant::now();
            let message = (frame["event"] == "message.created")
                .then(|| self.said(&frame["data"]))
                .flatten();
            heard.push(Heard {
                number: frame["seq"].as_u64().unwrap_or_default(),
                message,
            });
            waiting.retain(|conversation| {
                message.is_none_or(|said| said.tag != last_tag(*conversation))
            });
        }
        heard
    }

    fn said(&self, message: &Value) -> Option<Said> {
        let id = message["conversation_id"].as_str()?;
        let conversation = self
            .conversations
            .iter()
            .position(|conversation| conversation == id)?;
        Some(Said {
            conversation,
            seq: message["seq"].as_u64()?,
            tag: tag_of(message)?,
        })
    }

    /// All messages of a conversation, oldest first, as its owner reads them.
    pub(super) async fn whole(&self, conversation: usize) -> Result<Vec<(u64, Tag)>, String> {
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let id = &self.conversations[conversation];
            let path = format!("/conversations/{id}/messages?direction=forward&limit=100{cursor}");
            let (page, _) = self.must("GET", &path, None, DONE).await?;
            all.extend(seen(&page));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok(all),
            }
        }
    }
}
