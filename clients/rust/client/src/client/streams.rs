//! Streams: agents' messages while they are written.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use blindpipe_e2ee::{
    Error::{Clear, Malformed},
    envelope::Place,
};
use blindpipe_protocol::{
    frames::ClientFrame,
    ids::{ConversationId, MessageId, Principal},
    raw::RawJson,
    streams::{
        LiveStream, StreamBegin, StreamCancel, StreamCheckpoint, StreamDelta, StreamStatus,
        SyncStream,
    },
    text::StreamId,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::{Client, ClientEvent, Conversation};
use crate::{
    Result,
    content::STATUS_NUMBER,
    session::{Found, message_id},
    transport::{Call, Frame, Socket},
};

/// The streams that are known, and the messages that ended streams.
const MAX_STREAMS: usize = 1000;
/// The wait for the pieces before the first one that came. Then it is shown without them.
const SYNC_WAIT: Duration = Duration::from_secs(2);

/// Shows each piece once and in order. A stream that was joined in its middle is asked for. Nothing
/// of a stream counts once its message is there, or after five minutes.
#[derive(Default)]
pub(super) struct StreamReader {
    /// Messages that are there: their streams are shown no more.
    finished: VecDeque<MessageId>,
    /// The lowest number that the next piece of a stream may have.
    next_piece: HashMap<(Principal, String), u64>,
    /// When a stream was asked for that was joined in its middle.
    asked_at: HashMap<(Principal, String), Instant>,
}

/// A sealed part of a stream, and the number under which it was sealed.
struct Part<'a> {
    conversation_id: ConversationId,
    stream_id: &'a StreamId,
    sender: Principal,
    n: u64,
    data: &'a RawJson,
}

impl StreamReader {
    /// The conversation of a frame.
    pub(super) fn origin(frame: &Frame) -> Option<ConversationId> {
        #[derive(Deserialize)]
        struct Origin {
            conversation_id: ConversationId,
        }
        frame.parse::<Origin>().map(|it| it.conversation_id)
    }

    /// A message is there.
    pub(super) fn finish(&mut self, id: Option<MessageId>) {
        self.finished.extend(id);
        if self.finished.len() > MAX_STREAMS {
            self.finished.pop_front();
        }
    }

    fn is_finished(&self, stream_id: &StreamId) -> bool {
        let ended = blindpipe_e2ee::ids::from_ulid(stream_id.as_str()).map(message_id);
        ended.is_some_and(|id| self.finished.contains(&id))
    }

    pub(super) async fn read(
        &mut self,
        frame: &Frame,
        client: &Client,
        socket: &Socket,
    ) -> Result<Option<ClientEvent>> {
        match frame.kind.as_str() {
            "stream.begin" => {
                let begun = frame.parse::<StreamBegin>().ok_or(Malformed)?;
                // Its agent has lost its node: what was shown may have a hole.
                if begun.generation > 0 && !self.is_finished(&begun.stream_id) {
                    ask(socket, begun.stream_id);
                }
                Ok(None)
            }
            "stream.delta" => {
                let delta = frame.parse::<StreamDelta>().ok_or(Malformed)?;
                self.read_delta(delta, client, socket).await
            }
            "stream.checkpoint" => {
                let checkpoint = frame.parse::<StreamCheckpoint>().ok_or(Malformed)?;
                self.read_checkpoint(checkpoint, client).await
            }
            "stream.status" => {
                let status = frame.parse::<StreamStatus>().ok_or(Malformed)?;
                self.read_status(status, client).await
            }
            "stream.cancel" => {
                let cancelled = frame.parse::<StreamCancel>().ok_or(Malformed)?;
                Ok(Some(ClientEvent::StreamCancelled {
                    conversation_id: cancelled.conversation_id,
                    stream_id: cancelled.stream_id.into(),
                    reason: cancelled.reason,
                    sender: cancelled.sender.id,
                }))
            }
            _ => Ok(None),
        }
    }

    async fn read_delta(
        &mut self,
        delta: StreamDelta,
        client: &Client,
        socket: &Socket,
    ) -> Result<Option<ClientEvent>> {
        let name = (delta.sender.id, delta.stream_id.as_str().to_owned());
        let next = self.next_piece.get(&name).copied();
        if self.is_finished(&delta.stream_id) || next.is_some_and(|next| delta.n < next) {
            return Ok(None);
        }
        let part = Part {
            conversation_id: delta.conversation_id,
            stream_id: &delta.stream_id,
            sender: delta.sender.id,
            n: delta.n,
            data: &delta.data,
        };
        let opened = open(client, part).await?;
        let Some(append) = opened["append"].as_str() else {
            return Ok(None);
        };
        if next.is_none() && delta.n > 0 && self.waits_for_the_past(&name, &delta, socket) {
            return Ok(None);
        }
        self.note(name, delta.n);
        Ok(Some(ClientEvent::Delta {
            conversation_id: delta.conversation_id,
            stream_id: delta.stream_id.into(),
            n: delta.n,
            append: append.to_owned(),
            sender: delta.sender.id,
        }))
    }

    async fn read_checkpoint(
        &mut self,
        checkpoint: StreamCheckpoint,
        client: &Client,
    ) -> Result<Option<ClientEvent>> {
        let StreamCheckpoint {
            stream_id,
            conversation_id,
            n,
            data,
            sender,
        } = checkpoint;
        let name = (sender.id, stream_id.as_str().to_owned());
        let next = self.next_piece.get(&name).copied().unwrap_or_default();
        if self.is_finished(&stream_id) || n.saturating_add(1) < next {
            return Ok(None);
        }
        let part = Part {
            conversation_id,
            stream_id: &stream_id,
            sender: sender.id,
            n,
            data: &data,
        };
        let opened = open(client, part).await?;
        let Some(text) = opened["checkpoint"].as_str() else {
            return Ok(None);
        };
        self.note(name, n);
        Ok(Some(ClientEvent::Checkpoint {
            conversation_id,
            stream_id: stream_id.into(),
            n,
            text: text.to_owned(),
            sender: sender.id,
        }))
    }

    async fn read_status(
        &self,
        status: StreamStatus,
        client: &Client,
    ) -> Result<Option<ClientEvent>> {
        if self.is_finished(&status.stream_id) {
            return Ok(None);
        }
        let part = Part {
            conversation_id: status.conversation_id,
            stream_id: &status.stream_id,
            sender: status.sender.id,
            n: STATUS_NUMBER,
            data: &status.data,
        };
        let opened = open(client, part).await?;
        let text = opened["text"].as_str();
        let Some(text) = text.filter(|_| opened["type"] == "status") else {
            return Ok(None);
        };
        Ok(Some(ClientEvent::Status {
            conversation_id: status.conversation_id,
            stream_id: status.stream_id.into(),
            text: text.to_owned(),
            sender: status.sender.id,
        }))
    }

    /// Asks once for a stream whose begin nobody here has seen.
    fn waits_for_the_past(
        &mut self,
        name: &(Principal, String),
        delta: &StreamDelta,
        socket: &Socket,
    ) -> bool {
        if let Some(asked_at) = self.asked_at.get(name) {
            return asked_at.elapsed() < SYNC_WAIT;
        }
        if self.asked_at.len() >= MAX_STREAMS {
            self.asked_at.clear();
        }
        self.asked_at.insert(name.clone(), Instant::now());
        ask(socket, delta.stream_id.clone());
        true
    }

    fn note(&mut self, name: (Principal, String), n: u64) {
        self.asked_at.remove(&name);
        if self.next_piece.len() >= MAX_STREAMS {
            self.next_piece.clear();
        }
        self.next_piece.insert(name, n.saturating_add(1));
    }
}

impl Conversation {
    /// The streams that agents are writing here at this moment, oldest first. [`Client::events`] brings all that
    /// they have written so far, and then goes on.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn streams(&self) -> Result<Vec<LiveStream>> {
        let call = Call::get(format!("/conversations/{}/streams", self.id));
        let live: Vec<LiveStream> = self.client.http().data(call).await?;
        let socket = self.client.0.socket.lock().upgrade();
        if let Some(socket) = socket {
            for stream in &live {
                ask(&socket, stream.stream_id.clone());
            }
        }
        Ok(live)
    }
}

/// Asks for a stream so far.
fn ask(socket: &Socket, stream_id: StreamId) {
    socket.send(&ClientFrame::StreamSync(SyncStream {
        r#ref: Value::Null,
        stream_id,
        from_n: None,
    }));
}

async fn open(client: &Client, part: Part<'_>) -> Result<Value> {
    // A part that is no string came in clear.
    let text: Option<String> = serde_json::from_str(part.data.as_str()).ok();
    let envelope = blindpipe_e2ee::from_base64(&text.ok_or(Clear)?)?;
    let session = client.session()?;
    let place = Place::Delta {
        stream_id: part.stream_id.as_str().to_owned(),
        n: part.n,
    };
    let found = Found {
        conversation_id: part.conversation_id,
        sender: part.sender,
        place: &place,
        envelope: &envelope,
        created_at: session.clock.now_ms(),
        live: true,
    };
    let opened = session.open(&found).await?.opened;
    Ok(opened.ok_or(Clear)?.json)
}
