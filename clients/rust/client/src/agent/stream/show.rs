//! Shows members a message while it is written.

use std::{sync::Arc, time::Duration};

use blindpipe_e2ee::{envelope::Place, to_base64};
use blindpipe_protocol::{
    frames::{ClientFrame, FrameError},
    ids::{MessageId, Principal},
    raw::RawJson,
    streams::{BeginStream, KeepStreamAlive, SendCheckpoint, SendDelta, SendStatus, StreamCancel},
    text::StreamId,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, mpsc},
    time::sleep,
};

use super::super::{context::Context, outbox::Draft};
use crate::{
    Content, Error, Result,
    content::STATUS_NUMBER,
    session::{SealOptions, raw},
    transport::{Frame, Socket},
};

/// Fewer than the server's 20 a second, so that a burst is never refused.
const DELTA_INTERVAL: Duration = Duration::from_millis(67);
/// Bytes of a delta: escaped, sealed and in base64 it stays below 16 KB.
const MAX_DELTA_BYTES: usize = 2_500;
/// Bytes of a checkpoint: it stays below 256 KB. Of a longer text, the end is shown.
const MAX_CHECKPOINT_BYTES: usize = 40_000;
/// Bytes of a status: it stays below 2 KB.
const MAX_STATUS_BYTES: usize = 250;
/// The server keeps 256.
const DELTAS_BETWEEN_CHECKPOINTS: u64 = 100;
/// The server ends a stream after 60 seconds without a sign.
const SIGN_INTERVAL: Duration = Duration::from_secs(20);
/// Readers take nothing of a stream that is older than five minutes.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(120);
/// The wait before a stream begins again, and as much longer each time.
const BEGIN_WAIT: Duration = Duration::from_secs(2);
/// Between two looks whether the connection is another one.
const NEWS_INTERVAL: Duration = Duration::from_secs(1);
/// The refusals after which a stream begins again. After any other, only its end is sent.
const LOST_CODES: [&str; 4] = [
    "NOT_FOUND",
    "VALIDATION_ERROR",
    "RATE_LIMITED",
    "SERVICE_UNAVAILABLE",
];

/// The text and the status to show.
#[derive(Default)]
pub(in crate::agent) struct Live {
    state: Mutex<State>,
    news: Notify,
    progress: Notify,
}

#[derive(Default)]
struct State {
    text: String,
    /// How much of the text was shown.
    shown: usize,
    status: Option<String>,
    has_new_status: bool,
    is_open: bool,
    is_ended: bool,
}

impl Live {
    pub(super) fn write(&self, part: &str) {
        self.state.lock().text.push_str(part);
        self.news.notify_one();
    }

    /// False if it has ended.
    pub(in crate::agent) fn say_status(&self, text: &str) -> bool {
        let mut state = self.state.lock();
        if state.is_ended {
            return false;
        }
        let end = text.floor_char_boundary(MAX_STATUS_BYTES);
        state.status = Some(text[..end].to_owned());
        state.has_new_status = true;
        drop(state);
        self.news.notify_one();
        true
    }

    /// Shows no more. Whether anything was shown.
    pub(super) fn end(&self) -> bool {
        let mut state = self.state.lock();
        state.is_ended = true;
        state.is_open
    }

    fn is_ended(&self) -> bool {
        self.state.lock().is_ended
    }

    /// Waits until all that was written is shown, while there is a connection.
    pub(super) async fn shown(&self, socket: impl Fn() -> Option<Arc<Socket>>) {
        loop {
            let is_shown = {
                let state = self.state.lock();
                state.is_ended || state.shown >= state.text.len()
            };
            if is_shown || socket().is_none() {
                return;
            }
            tokio::select! {
                () = self.progress.notified() => {}
                () = sleep(NEWS_INTERVAL) => {}
            }
        }
    }
}

/// The connection of a stream that has begun.
struct Begun {
    socket: Arc<Socket>,
    refusals: mpsc::UnboundedReceiver<Frame>,
    generation: u32,
    /// The connection that the last frames went over.
    connection: u64,
    /// Unix milliseconds, as all times here.
    at: u64,
    sign_at: u64,
    /// The server has refused a frame.
    is_lost: bool,
}

/// Shows a stream.
pub(super) struct Show {
    context: Context,
    id: MessageId,
    to: Vec<Principal>,
    live: Arc<Live>,
    begun: Option<Begun>,
    next_number: u64,
    /// The number of deltas at the last checkpoint.
    checkpoint_number: u64,
    checkpoint_at: Option<u64>,
}

/// The frame of a step.
enum Step {
    Nothing,
    Begin(Arc<Socket>),
    Checkpoint,
    KeepAlive,
    Delta(String),
    Status(String),
}

impl Show {
    pub(super) const fn new(
        context: Context,
        id: MessageId,
        to: Vec<Principal>,
        live: Arc<Live>,
    ) -> Self {
        Self {
            context,
            id,
            to,
            live,
            begun: None,
            next_number: 0,
            checkpoint_number: 0,
            checkpoint_at: None,
        }
    }

    /// Shows until its end. The end carries everything, so what is lost costs nothing but the show.
    pub(super) async fn run(mut self) {
        while !self.live.is_ended() && self.hear() {
            let step = self.next_step();
            // A begin is no delta, so the first one follows at once.
            let is_first = matches!(step, Step::Begin(_)) && self.next_number == 0;
            let has_said = !matches!(step, Step::Nothing);
            Box::pin(self.say(step)).await.ok();
            self.live.progress.notify_one();
            if is_first {
                continue;
            }
            if has_said {
                sleep(DELTA_INTERVAL).await;
                continue;
            }
            tokio::select! {
                () = self.live.news.notified() => {}
                () = sleep(NEWS_INTERVAL) => {}
            }
        }
        let mut state = self.live.state.lock();
        state.shown = state.text.len();
        drop(state);
        self.live.progress.notify_one();
    }

    /// Hears refusals, and an end that this stream has not said. False if it cannot go on.
    fn hear(&mut self) -> bool {
        let reference = self.reference();
        let Some(begun) = &mut self.begun else {
            return true;
        };
        while let Ok(frame) = begun.refusals.try_recv() {
            let goes_on = if let Some(cancel) = frame.parse::<StreamCancel>() {
                cancel.reason.as_deref() == Some("idle")
            } else if let Some(refused) = frame.parse::<FrameError>() {
                if refused.r#ref != reference {
                    continue;
                }
                LOST_CODES.contains(&refused.error.code.as_str())
            } else {
                continue;
            };
            begun.is_lost = true;
            if !goes_on {
                return false;
            }
        }
        true
    }

    /// Tells refusals of this generation from those of an earlier one.
    fn reference(&self) -> Value {
        let generation = self.begun.as_ref().map_or(0, |begun| begun.generation);
        format!("{}:{generation}", self.id).into()
    }

    fn next_step(&self) -> Step {
        let Some(socket) = self.context.core().socket() else {
            return Step::Nothing;
        };
        let mut state = self.live.state.lock();
        let is_written = state.shown < state.text.len();
        let Some(begun) = &self.begun else {
            let has_news = is_written || state.has_new_status;
            return if has_news {
                Step::Begin(socket)
            } else {
                Step::Nothing
            };
        };
        if begun.is_lost {
            let is_due = self.is_over(begun.at, BEGIN_WAIT * (begun.generation + 1));
            return if is_due {
                Step::Begin(socket)
            } else {
                Step::Nothing
            };
        }
        let has_text = self.next_number > 0;
        if socket.connection() != begun.connection {
            // The last frames may be lost with the other connection.
            return if has_text {
                Step::Checkpoint
            } else {
                Step::KeepAlive
            };
        }
        let since_checkpoint = self.next_number - self.checkpoint_number;
        if is_written {
            if since_checkpoint >= DELTAS_BETWEEN_CHECKPOINTS {
                return Step::Checkpoint;
            }
            let rest = &state.text[state.shown..];
            let piece = rest[..rest.floor_char_boundary(MAX_DELTA_BYTES)].to_owned();
            state.shown += piece.len();
            state.status = None;
            return Step::Delta(piece);
        }
        if state.has_new_status {
            state.has_new_status = false;
            return state.status.clone().map_or(Step::Nothing, Step::Status);
        }
        if !self.is_over(begun.sign_at, SIGN_INTERVAL) {
            return Step::Nothing;
        }
        let is_old = self
            .checkpoint_at
            .is_none_or(|at| self.is_over(at, CHECKPOINT_INTERVAL));
        if has_text && (is_old || since_checkpoint > 0) {
            Step::Checkpoint
        } else {
            Step::KeepAlive
        }
    }

    fn now_ms(&self) -> u64 {
        self.context.core().session.clock.now_ms()
    }

    /// A clock that was set back makes no wait longer.
    fn is_over(&self, since_ms: u64, wait: Duration) -> bool {
        Duration::from_millis(self.now_ms().abs_diff(since_ms)) >= wait
    }

    async fn say(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Nothing => {}
            Step::Begin(socket) => {
                self.begin(socket)?;
                if self.next_number > 0 {
                    self.say_checkpoint().await?;
                }
            }
            Step::Checkpoint => self.say_checkpoint().await?,
            Step::KeepAlive => {
                let (r#ref, stream_id) = (self.reference(), self.stream_id()?);
                self.send(&ClientFrame::StreamKeepalive(KeepStreamAlive {
                    r#ref,
                    stream_id,
                }));
            }
            Step::Delta(piece) => {
                let n = self.next_number;
                self.next_number += 1;
                let data = self.sealed(n, json!({ "append": piece })).await?;
                let (r#ref, stream_id) = (self.reference(), self.stream_id()?);
                self.send(&ClientFrame::StreamDelta(SendDelta {
                    r#ref,
                    stream_id,
                    n,
                    data,
                }));
            }
            Step::Status(text) => {
                let status = json!({ "type": "status", "text": text });
                let data = self.sealed(STATUS_NUMBER, status).await?;
                let (r#ref, stream_id) = (self.reference(), self.stream_id()?);
                self.send(&ClientFrame::StreamStatus(SendStatus {
                    r#ref,
                    stream_id,
                    data,
                }));
            }
        }
        Ok(())
    }

    /// Begins, or begins again with the next generation.
    fn begin(&mut self, socket: Arc<Socket>) -> Result<()> {
        let stream_id = self.stream_id()?;
        let conversation_id = self.context.conversation_id()?;
        let answered = self.context.answered();
        let in_reply_to = answered.map(|answered| answered.message.message_id);
        let generation = self.begun.take().map_or(0, |begun| begun.generation + 1);
        let now = self.now_ms();
        self.begun = Some(Begun {
            refusals: socket.watch(stream_id.clone()),
            generation,
            connection: socket.connection(),
            at: now,
            sign_at: now,
            is_lost: false,
            socket,
        });
        let mut state = self.live.state.lock();
        state.is_open = true;
        state.has_new_status = state.status.is_some();
        drop(state);
        self.send(&ClientFrame::StreamBegin(BeginStream {
            r#ref: self.reference(),
            stream_id,
            conversation_id,
            in_reply_to,
            generation,
        }));
        Ok(())
    }

    async fn say_checkpoint(&mut self) -> Result<()> {
        let shown = {
            let state = self.live.state.lock();
            let text = &state.text[..state.shown];
            match text.len().checked_sub(MAX_CHECKPOINT_BYTES) {
                None | Some(0) => text.to_owned(),
                Some(left_out) => format!("…{}", &text[text.ceil_char_boundary(left_out)..]),
            }
        };
        let n = self.next_number - 1;
        self.checkpoint_number = self.next_number;
        self.checkpoint_at = Some(self.now_ms());
        if let Some(begun) = &mut self.begun {
            begun.connection = begun.socket.connection();
        }
        let data = self.sealed(n, json!({ "checkpoint": shown })).await?;
        let (r#ref, stream_id) = (self.reference(), self.stream_id()?);
        self.send(&ClientFrame::StreamCheckpoint(SendCheckpoint {
            r#ref,
            stream_id,
            n,
            data,
        }));
        Ok(())
    }

    fn send(&mut self, frame: &ClientFrame) {
        if self.live.is_ended() {
            return;
        }
        let now = self.now_ms();
        if let Some(begun) = &mut self.begun {
            begun.sign_at = now;
            if matches!(frame, ClientFrame::StreamKeepalive(_)) {
                begun.connection = begun.socket.connection();
            }
            begun.socket.send(frame);
        }
    }

    fn stream_id(&self) -> Result<StreamId> {
        self.id.to_string().parse().map_err(Error::other)
    }

    async fn sealed(&self, n: u64, content: Value) -> Result<RawJson> {
        let core = self.context.core();
        let conversation_id = self.context.conversation_id()?;
        let nothing = Content::new();
        let draft = Draft {
            conversation_id,
            content: &nothing,
            client_message_id: self.id,
            answered: self.context.answered(),
            caused_at: self.context.event().created_at,
            to: &self.to,
            refs: &[],
        };
        if !core.outbox().is_to_be_sealed(&draft).await? {
            return Ok(raw(&content));
        }
        let place = Place::Delta {
            stream_id: self.id.to_string(),
            n,
        };
        let options = SealOptions {
            answering: draft.answered.map(|answered| answered.opened.epoch),
            readers: &[],
        };
        let text = content.to_string();
        let sealed = core
            .session
            .seal(conversation_id, &place, text.as_bytes(), options);
        Ok(raw(&Value::String(to_base64(&sealed.await?))))
    }
}
