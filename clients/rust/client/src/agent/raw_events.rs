//! An agent's events as they came, for a program that hands them on unopened.

use std::{collections::BTreeMap, sync::Arc};

use blindpipe_protocol::{
    cursor::Cursor,
    frames::{AgentAuth, Auth, ClientFrame, Ready, ResyncRequired},
    ids::ConnectionId,
    inbox::AckFrame,
    raw::RawJson,
};
use futures_util::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{Agent, core::Config};
use crate::{
    Error, InboxEvent, Result,
    transport::{Frame, Load, Socket, SocketOwner},
};

/// An event, and its object as the service wrote it.
#[derive(Clone, Debug)]
pub struct RawEvent {
    /// The event.
    pub event: InboxEvent,
    /// The object of the event: `event_id`, `event`, `cursor`, `seq`, `data` and so on.
    pub object: BTreeMap<String, RawJson>,
}

/// The events of an agent, in order, over a socket that reconnects. None is acknowledged before
/// [`Self::acknowledge`].
pub struct RawEvents {
    socket: Arc<Socket>,
    frames: mpsc::UnboundedReceiver<Frame>,
    load: Arc<Load>,
    closing: CancellationToken,
    running: JoinSet<Result<()>>,
}

struct Owner {
    auth: AgentAuth,
    frames: mpsc::UnboundedSender<Frame>,
    load: Arc<Load>,
    received: Mutex<Option<Cursor>>,
    socket: Arc<Socket>,
    /// The rest of this connection's frames comes again with the next one.
    left: Mutex<bool>,
}

impl SocketOwner for Owner {
    fn auth(&self) -> BoxFuture<'_, Result<Auth>> {
        let auth = async {
            self.load.room().await;
            let resume = *self.received.lock();
            Ok(Auth::Agent(AgentAuth {
                resume,
                ..self.auth.clone()
            }))
        };
        auth.boxed()
    }

    fn renew(&self) -> BoxFuture<'_, Result<bool>> {
        std::future::ready(Ok(false)).boxed()
    }

    fn holders(&self) -> BoxFuture<'_, Vec<ConnectionId>> {
        std::future::ready(Vec::new()).boxed()
    }

    fn ready(&self, _: &Ready) {
        *self.left.lock() = false;
    }

    fn frame(&self, frame: Frame) {
        if *self.left.lock() {
            return;
        }
        if let Some(ResyncRequired { head, .. }) = (frame.kind == "resync_required")
            .then(|| frame.parse())
            .flatten()
        {
            *self.received.lock() = Some(head);
        }
        if frame.kind != "event" {
            return;
        }
        if let Some(event) = frame.parse::<InboxEvent>() {
            *self.received.lock() = Some(event.cursor);
        }
        self.load.add(frame.bytes());
        self.frames.send(frame).ok();
        if self.load.is_full() {
            *self.left.lock() = true;
            self.socket.leave();
        }
    }
}

impl Agent {
    /// The events of this agent, unopened: for a forwarder, which holds no key.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] if the authority is no certificate.
    pub fn raw_events(&self) -> Result<RawEvents> {
        let Config {
            server,
            agent_id,
            token,
            hooks,
            ..
        } = &self.0.config;
        let socket = Arc::new(Socket::new(server, hooks.clone())?);
        let (sender, frames) = mpsc::unbounded_channel();
        let load = Arc::<Load>::default();
        let owner = Owner {
            auth: AgentAuth {
                agent_id: *agent_id,
                token: token.clone(),
                resume: None,
                mode: None,
                group: None,
            },
            frames: sender,
            load: load.clone(),
            received: Mutex::default(),
            socket: socket.clone(),
            left: Mutex::default(),
        };
        let closing = CancellationToken::new();
        let mut running = JoinSet::new();
        let (run, end) = (socket.clone(), closing.clone());
        running.spawn(async move { run.run(&owner, &end).await });
        Ok(RawEvents {
            socket,
            frames,
            load,
            closing,
            running,
        })
    }
}

impl RawEvents {
    /// The next event. A call that is cancelled loses none.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] once the service ended the connection for good.
    pub async fn next(&mut self) -> Result<RawEvent> {
        while let Some(frame) = self.frames.recv().await {
            self.load.remove(frame.bytes());
            let object = frame.parse::<BTreeMap<String, RawJson>>();
            let (Some(event), Some(mut object)) = (frame.parse(), object) else {
                continue;
            };
            object.remove("type");
            return Ok(RawEvent { event, object });
        }
        let ended = self.running.join_next().await;
        let ended = ended.and_then(std::result::Result::ok);
        Err(ended.and_then(Result::err).unwrap_or(Error::closed()))
    }

    /// This event and all before it are handled.
    pub fn acknowledge(&self, event: &RawEvent) {
        let cursor = event.event.cursor;
        self.socket.send(&ClientFrame::Ack(AckFrame { cursor }));
    }

    /// Closes the socket.
    pub async fn close(mut self) {
        self.closing.cancel();
        while self.running.join_next().await.is_some() {}
    }
}
