//! A user that sends over one connection.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use ulid::Ulid;

use crate::{
    Result,
    cluster::{Node, Wire},
    delivery::Acked,
    fixtures::Pair,
    http::{Link, post},
};

/// The message ids of one phase: its time, then the sender, then a count.
#[derive(Clone, Copy)]
pub struct Ids(u128);

const COUNT_BITS: u32 = 40;

impl Ids {
    /// The ids of a phase that begins now.
    pub fn new() -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Ids(now.as_millis() << 80)
    }

    /// Number `n` of sender `who`.
    pub fn id(self, who: usize, n: u64) -> Ulid {
        Ulid(self.0 | (who as u128) << COUNT_BITS | u128::from(n))
    }

    /// The number inside an id, if it is one of this phase.
    pub fn number(self, id: Ulid) -> Option<u64> {
        let same = id.0 >> 80 == self.0 >> 80;
        same.then(|| u64::try_from(id.0 & ((1 << COUNT_BITS) - 1)).unwrap_or_default())
    }
}

/// A connection and its request, which is repeated with another id each time. Nothing is
/// built or copied per message.
pub struct Sender {
    link: Link<Wire>,
    request: Vec<u8>,
    id_at: usize,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    data: Sent<'a>,
}

#[derive(Deserialize)]
struct Sent<'a> {
    message_id: &'a str,
    seq: i64,
}

impl Sender {
    /// Connects the pair's user to `node`. Its payloads are JSON of `payload_bytes` bytes.
    pub async fn open(node: &Node, pair: &Pair, payload_bytes: usize) -> Result<Self> {
        Self::open_to(node, pair, &pair.conversation_id, payload_bytes).await
    }

    /// Like [`Sender::open`], for another conversation of the pair's user.
    pub async fn open_to(
        node: &Node,
        pair: &Pair,
        conversation: &str,
        payload_bytes: usize,
    ) -> Result<Self> {
        let frame = r#"{"type":"text","text":""}"#.len();
        let payload = format!(
            r#"{{"type":"text","text":"{}"}}"#,
            "x".repeat(payload_bytes.saturating_sub(frame))
        );
        let before_id = r#"{"client_message_id":""#;
        let body = format!(r#"{before_id}{}","payload":{payload}}}"#, Ulid::nil());
        let path = format!("/conversations/{conversation}/messages");
        let bearer = format!("Bearer {}", pair.access_token);
        let request = post(
            &node.address,
            &path,
            &pair.address,
            &[("authorization", &bearer)],
            &body,
        );
        let id_at = request.len() - body.len() + before_id.len();
        Ok(Sender {
            link: node.link().await?,
            request,
            id_at,
        })
    }

    /// Sends one message. Returns when it is durable.
    pub async fn send(&mut self, id: Ulid) -> Result<Acked> {
        let mut text = [0; ulid::ULID_LEN];
        let text = id.array_to_str(&mut text);
        self.request[self.id_at..self.id_at + text.len()].copy_from_slice(text.as_bytes());
        let answer = self.link.ask(&self.request).await?;
        if answer.status != 201 {
            return Err(format!(
                "{}: {}",
                answer.status,
                String::from_utf8_lossy(&answer.body)
            )
            .into());
        }
        let Envelope { data } = serde_json::from_slice(&answer.body)?;
        Ok(Acked {
            seq: data.seq,
            message: Ulid::from_string(data.message_id)?,
        })
    }
}
