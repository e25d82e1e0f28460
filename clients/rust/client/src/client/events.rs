//! A person's events, over a socket that reconnects.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use blindpipe_e2ee::Error::Malformed;
use blindpipe_protocol::{
    cursor::Cursor,
    events::Event,
    frames::{Auth, ClientFrame, Ready, ResyncRequired, UserAuth},
    ids::{ConnectionId, ConversationId, EventId, Principal},
    inbox::AckFrame,
    messages::Message,
    text::Secret,
    tool_calls::ToolCall,
};
use futures_util::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Client, ClientEvent, streams::StreamReader};
use crate::{
    ApiError, Error, Hook, InboxEvent, Result,
    session::Session,
    transport::{Frame, Load, Socket, SocketOwner, full_jitter},
};

/// Before a store that failed is asked again.
const STORE_RETRY: Duration = Duration::from_secs(1);
/// While the service is away, waits before an event is read again.
const FIRST_READ_WAIT: Duration = Duration::from_secs(1);
const MAX_READ_WAIT: Duration = Duration::from_secs(30);

/// A frame that nobody has read yet, with the cursor of its event.
#[derive(Clone)]
struct Unread {
    frame: Frame,
    cursor: Option<Cursor>,
}

struct Owner {
    client: Client,
    frames: mpsc::UnboundedSender<Unread>,
    /// The frames that nobody has read yet.
    load: Arc<Load>,
    received: Mutex<Option<Cursor>>,
    /// The rest of this connection's frames comes again with the next one.
    left: AtomicBool,
    socket: Arc<Socket>,
}

impl SocketOwner for Owner {
    fn auth(&self) -> BoxFuture<'_, Result<Auth>> {
        let auth = async {
            self.load.room().await;
            let token = self.client.access_token().await?;
            let token = token.ok_or(Error::Closed { close_code: None })?;
            Ok(Auth::User(UserAuth {
                access_token: Secret(token),
                resume: *self.received.lock(),
            }))
        };
        auth.boxed()
    }

    fn renew(&self) -> BoxFuture<'_, Result<bool>> {
        self.client.renew().boxed()
    }

    fn holders(&self) -> BoxFuture<'_, Vec<ConnectionId>> {
        std::future::ready(Vec::new()).boxed()
    }

    fn ready(&self, _: &Ready) {
        self.left.store(false, Ordering::Relaxed);
    }

    fn frame(&self, frame: Frame) {
        if self.left.load(Ordering::Relaxed) {
            return;
        }
        let event = (frame.kind == "event").then(|| frame.parse::<InboxEvent>());
        let cursor = event.flatten().map(|event| event.cursor);
        if frame.kind == "resync_required"
            && let Some(ResyncRequired { oldest, head }) = frame.parse()
        {
            *self.received.lock() = Some(head);
            if let Ok(session) = self.client.session() {
                session.missed_events();
            }
            self.client.tell(&Hook::Resync { oldest, head });
        }
        self.load.add(frame.bytes());
        self.frames.send(Unread { frame, cursor }).ok();
        if cursor.is_some() {
            *self.received.lock() = cursor;
        }
        if self.load.is_full() {
            self.left.store(true, Ordering::Relaxed);
            self.socket.leave();
        }
    }
}

/// The events of a person, in order. An event is acknowledged when the next one is asked for. While the
/// store fails, [`Hook::StoreFailed`] is told, events are shown, and none is acknowledged.
pub struct Events {
    client: Client,
    socket: Arc<Socket>,
    frames: mpsc::UnboundedReceiver<Unread>,
    load: Arc<Load>,
    /// Of an event that was answered, or dropped for good.
    unacknowledged: Option<Cursor>,
    /// The frame that is being read.
    unread: Option<Unread>,
    /// The person's own list of keys was read.
    is_checked: bool,
    closing: CancellationToken,
    running: JoinSet<Result<()>>,
    /// Reads of keys that events do not wait for.
    reading: JoinSet<()>,
    streams: StreamReader,
}

/// An event and a conversation, as far as the frame names them.
type Origin = (Option<EventId>, Option<ConversationId>);

impl Events {
    pub(super) fn new(client: Client, socket: Arc<Socket>) -> Self {
        let (sender, frames) = mpsc::unbounded_channel();
        let load = Arc::<Load>::default();
        let closing = CancellationToken::new();
        let owner = Owner {
            client: client.clone(),
            frames: sender,
            load: load.clone(),
            received: Mutex::default(),
            left: AtomicBool::default(),
            socket: socket.clone(),
        };
        let mut running = JoinSet::new();
        let (run, end) = (socket.clone(), closing.clone());
        running.spawn(async move { run.run(&owner, &end).await });
        Self {
            client,
            socket,
            frames,
            load,
            unacknowledged: None,
            unread: None,
            is_checked: false,
            closing,
            running,
            reading: JoinSet::new(),
            streams: StreamReader::default(),
        }
    }

    /// The next event. An event whose keys cannot be read for now waits, and so does what follows it.
    /// A call that is cancelled loses nothing: the next call answers the event.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] once the service ended the connection for good; a read that was refused for
    /// good; [`Error::Store`] if a choice of this person, which the event ends, could not be stored:
    /// then the next call answers the event.
    pub async fn next(&mut self) -> Result<ClientEvent> {
        self.check_own_list();
        let mut failures = 0;
        loop {
            let unread = match self.unread.take() {
                Some(unread) => unread,
                None => self.next_frame().await?,
            };
            let Unread { frame, cursor } = self.unread.insert(unread).clone();
            let read = match Box::pin(self.read(frame)).await {
                Err(error) if error.is_retryable() => {
                    self.wait_to_read(failures, &error).await;
                    failures += 1;
                    continue;
                }
                read => read,
            };
            failures = 0;
            if !matches!(read, Err(Error::Store(_))) {
                self.unread = None;
                self.unacknowledged = cursor.or(self.unacknowledged);
            }
            if let Some(event) = read? {
                return Ok(event);
            }
        }
    }

    async fn wait_to_read(&self, failures: u32, error: &Error) {
        let wait = full_jitter(failures, FIRST_READ_WAIT, MAX_READ_WAIT);
        let hinted = error.api().and_then(ApiError::retry_after);
        let wait = wait.max(hinted.unwrap_or_default());
        self.client.tell(&Hook::Retry {
            attempt: failures + 1,
            wait,
            what: "reading of an event".to_owned(),
        });
        sleep(wait).await;
    }

    async fn next_frame(&mut self) -> Result<Unread> {
        let unread = loop {
            if self.acknowledge() {
                break self.frames.recv().await;
            }
            if let Ok(unread) = timeout(STORE_RETRY, self.frames.recv()).await {
                break unread;
            }
        };
        if let Some(unread) = unread {
            self.load.remove(unread.frame.bytes());
            return Ok(unread);
        }
        let ended = self.running.join_next().await;
        let ended = ended.and_then(std::result::Result::ok);
        Err(ended.and_then(Result::err).unwrap_or(Error::closed()))
    }

    /// Once. No event waits for it.
    fn check_own_list(&mut self) {
        if !std::mem::replace(&mut self.is_checked, true) {
            self.read_beside(async |session| session.check_own_list().await);
        }
    }

    /// Acknowledges the last event once its lessons are stored; false if they are not.
    fn acknowledge(&mut self) -> bool {
        let Some(cursor) = self.unacknowledged else {
            return true;
        };
        if !self.client.save_if_dirty() {
            return false;
        }
        self.unacknowledged = None;
        self.socket.send(&ClientFrame::Ack(AckFrame { cursor }));
        true
    }

    /// Acknowledges the last event, unless the store fails, and closes.
    pub async fn close(mut self) {
        self.acknowledge();
        self.closing.cancel();
        while self.running.join_next().await.is_some() {}
    }

    async fn read(&mut self, frame: Frame) -> Result<Option<ClientEvent>> {
        match frame.kind.as_str() {
            "event" => {
                let event = frame.parse::<InboxEvent>();
                let origin = event
                    .as_ref()
                    .map(|it| (Some(it.event_id), it.conversation_id));
                let read = match event {
                    Some(event) => self.read_event(event).await,
                    None => Err(Malformed.into()),
                };
                self.client.save_if_dirty();
                self.shown(read, origin.unwrap_or_default())
            }
            kind if kind.starts_with("stream.") => {
                let origin = (None, StreamReader::origin(&frame));
                let (client, socket) = (&self.client, &self.socket);
                let read = self.streams.read(&frame, client, socket).await;
                self.shown(read, origin)
            }
            "typing" => Ok(frame.parse().map(ClientEvent::Typing)),
            "caught_up" => Ok(Some(ClientEvent::CaughtUp)),
            _ => Ok(None),
        }
    }

    /// Tells the hook of what does not open. Nothing of it is shown.
    fn shown(
        &self,
        read: Result<Option<ClientEvent>>,
        origin: Origin,
    ) -> Result<Option<ClientEvent>> {
        match read {
            Err(Error::Decrypt(reason)) => {
                self.undecryptable(reason, origin);
                Ok(None)
            }
            read => read,
        }
    }

    fn undecryptable(&self, reason: blindpipe_e2ee::Error, (event_id, conversation_id): Origin) {
        self.client.tell(&Hook::Undecryptable {
            reason,
            event_id,
            conversation_id,
        });
    }

    async fn read_event(&mut self, event: InboxEvent) -> Result<Option<ClientEvent>> {
        let session = self.client.session()?;
        session.observe(&event);
        if let Some(of) = session.changed_keys(&event) {
            self.read_beside(async move |session| session.read_changed_keys(of).await);
        }
        self.withdraw_after(&event)?;
        match event.event.as_str() {
            "message.created" if session.has_keys() => {
                let message = event.message()?;
                self.read_message(event, message).await
            }
            "artifact_request" => {
                let call = event.data::<ToolCall>();
                let request = self
                    .client
                    .open_tool_request(call.ok_or(Malformed)?)
                    .await?;
                let Some(request) = request else {
                    return Ok(None);
                };
                if Box::pin(request.answer_if_unknown()).await? {
                    return Ok(Some(ClientEvent::Event(event)));
                }
                Ok(Some(ClientEvent::ToolRequest(Box::new(request))))
            }
            _ => Ok(Some(ClientEvent::Event(event))),
        }
    }

    fn read_beside<F>(&mut self, read: impl FnOnce(Arc<Session>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        while self.reading.try_join_next().is_some() {}
        let Ok(session) = self.client.session() else {
            return;
        };
        let (client, reading) = (self.client.clone(), read(session));
        self.reading.spawn(async move {
            reading.await;
            client.save_if_dirty();
        });
    }

    /// An agent's approvals end with its relation, its grant and its membership.
    fn withdraw_after(&self, event: &InboxEvent) -> Result<()> {
        match event.known() {
            Some(Event::RelationRevoked(relation)) => {
                self.client.withdraw(relation.agent_id, None)?;
            }
            Some(Event::GrantRevoked(grant)) => self.client.withdraw_grant(&grant)?,
            Some(Event::MemberRemoved(change)) => {
                if let Principal::Agent(agent_id) = change.member.principal_id {
                    let conversation = Some(change.conversation_id);
                    self.client.withdraw_in(conversation, agent_id, None)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    async fn read_message(
        &mut self,
        event: InboxEvent,
        message: Message,
    ) -> Result<Option<ClientEvent>> {
        let conversation = self.client.conversation(message.conversation_id);
        let received = conversation.open(message, true).await?;
        match &received.opened {
            Err(_) if received.is_deleted() => {}
            Err(reason) => {
                let origin = (Some(event.event_id), event.conversation_id);
                self.undecryptable(*reason, origin);
            }
            Ok(opened) if opened.is_replay => return Ok(None),
            Ok(opened) => {
                if opened.encrypted {
                    let session = self.client.session()?;
                    session.remember(&received.message, opened.sent_at).await;
                }
                self.streams.finish(received.message.client_message_id);
            }
        }
        Ok(Some(ClientEvent::Message {
            event,
            conversation,
            received: Box::new(received),
        }))
    }
}
