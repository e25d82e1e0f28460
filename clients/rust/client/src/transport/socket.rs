//! A socket to `/ws` that comes back: handshake, liveness, reconnects.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use blindpipe_protocol::{
    frames::{Auth, ClientFrame, FrameError, Ready, ReconnectHint, RenewAuth},
    ids::ConnectionId,
    text::StreamId,
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::{Instant, sleep_until, timeout},
};
use tokio_tungstenite::{Connector, connect_async_tls_with_config, tungstenite::Message};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    Server,
    frame::{Frame, Stream, close, write},
    full_jitter,
};
use crate::{
    ApiError, Error, Result,
    hooks::{Hook, Hooks},
};

const FIRST_WAIT: Duration = Duration::from_millis(500);
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Before a renewal that failed is tried again.
const FIRST_RENEWAL_WAIT: Duration = Duration::from_secs(1);
const LIMIT_WAIT: Duration = Duration::from_secs(10);
const FLOOD_WAIT: Duration = Duration::from_secs(5);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
const GRACE: Duration = Duration::from_secs(15);
const NORMAL: u16 = 1000;
const NO_STATUS: u16 = 1006;
/// A local verdict: the connection said nothing for too long.
const DEAD: u16 = 4999;

/// The client of a socket: it is asked, and told.
pub(crate) trait SocketOwner: Send + Sync {
    /// The credential of this moment.
    fn auth(&self) -> BoxFuture<'_, Result<Auth>>;

    /// Renews the token after a 4401: true if a new one is there, false if the credential has
    /// ended. A failure says nothing about the credential.
    fn renew(&self) -> BoxFuture<'_, Result<bool>>;

    /// The connections that hold the places, for a 4409.
    fn holders(&self) -> BoxFuture<'_, Vec<ConnectionId>>;

    /// A connection, or the attempt at one, has ended, and the next is not made yet. `was_silent`: it
    /// said nothing for too long.
    fn lost(&self, _was_silent: bool) {}

    /// A new connection begins, before its first event.
    fn ready(&self, ready: &Ready);

    fn frame(&self, frame: Frame);
}

struct Ending {
    code: u16,
    /// The wait that the server hinted.
    wait: Option<Duration>,
}

pub(crate) struct Socket {
    url: String,
    connector: Option<Connector>,
    hooks: Hooks,
    /// Present while the connection is ready.
    outgoing: Mutex<Option<mpsc::UnboundedSender<String>>>,
    answers: Mutex<HashMap<u64, oneshot::Sender<Result<Frame>>>>,
    next_reference: AtomicU64,
    attempt: AtomicU32,
    left: Notify,
    connection: AtomicU64,
    /// Listeners to refusals and to the end of a stream.
    streams: Mutex<HashMap<StreamId, mpsc::UnboundedSender<Frame>>>,
}

/// A frame about a stream, as far as it names one.
#[derive(Deserialize)]
struct AboutStream {
    stream_id: Option<StreamId>,
}

impl Socket {
    pub(crate) fn new(server: &Server, hooks: Hooks) -> Result<Self> {
        Ok(Self {
            url: server.socket_url(),
            connector: server.connector()?,
            hooks,
            outgoing: Mutex::default(),
            answers: Mutex::default(),
            next_reference: AtomicU64::default(),
            attempt: AtomicU32::default(),
            left: Notify::new(),
            connection: AtomicU64::default(),
            streams: Mutex::default(),
        })
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.outgoing.lock().is_some()
    }

    /// The number of connections so far.
    pub(crate) fn connection(&self) -> u64 {
        self.connection.load(Ordering::Relaxed)
    }

    /// Tells of refusals and of the end of a stream, until the receiver is dropped.
    pub(crate) fn watch(&self, stream_id: StreamId) -> mpsc::UnboundedReceiver<Frame> {
        let (sender, frames) = mpsc::unbounded_channel();
        let mut streams = self.streams.lock();
        streams.retain(|_, watcher| !watcher.is_closed());
        streams.insert(stream_id, sender);
        frames
    }

    /// Whether somebody watches the stream of this frame, and is told.
    fn tell_watcher(&self, frame: &Frame) -> bool {
        let about = frame.parse::<AboutStream>().and_then(|it| it.stream_id);
        let watcher = about.and_then(|id| self.streams.lock().get(&id).cloned());
        watcher.is_some_and(|watcher| watcher.send(frame.clone()).is_ok())
    }

    /// Writes a frame; false while there is no connection.
    pub(crate) fn send(&self, frame: &ClientFrame) -> bool {
        let Ok(text) = serde_json::to_string(frame) else {
            return false;
        };
        let outgoing = self.outgoing.lock();
        outgoing.as_ref().is_some_and(|to| to.send(text).is_ok())
    }

    /// Writes a frame and waits for its answer.
    pub(crate) async fn request(
        &self,
        frame: impl FnOnce(Value) -> ClientFrame,
        deadline: Duration,
    ) -> Result<Frame> {
        let reference = self.next_reference.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.answers.lock().insert(reference, sender);
        let answered = if self.send(&frame(reference.into())) {
            timeout(deadline, answer).await
        } else {
            Ok(Ok(Err(Error::lost())))
        };
        self.answers.lock().remove(&reference);
        answered
            .ok()
            .and_then(std::result::Result::ok)
            .unwrap_or(Err(Error::lost()))
    }

    /// Leaves this connection; [`Self::run`] makes another one.
    pub(crate) fn leave(&self) {
        self.left.notify_one();
    }

    /// Stays connected until `closing`.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] if the server forbids it.
    pub(crate) async fn run(
        &self,
        owner: &dyn SocketOwner,
        closing: &CancellationToken,
    ) -> Result<()> {
        while !closing.is_cancelled() {
            let ending = self.connect_once(owner, closing).await?;
            self.outgoing.lock().take();
            self.answers.lock().clear();
            if closing.is_cancelled() {
                return Ok(());
            }
            owner.lost(ending.code == DEAD);
            let wait = self.wait_after(&ending, owner).await?;
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = closing.cancelled() => {}
            }
        }
        Ok(())
    }

    async fn connect_once(
        &self,
        owner: &dyn SocketOwner,
        closing: &CancellationToken,
    ) -> Result<Ending> {
        let lost = |wait| Ending {
            code: NO_STATUS,
            wait,
        };
        let auth = tokio::select! {
            auth = owner.auth() => auth,
            () = closing.cancelled() => return Ok(lost(None)),
        };
        let auth = match auth {
            Ok(auth) => auth,
            Err(error @ Error::Closed { .. }) => return Err(error),
            Err(error) => return Ok(lost(Some(self.wait_for_renewal(&error)))),
        };
        let connected = tokio::select! {
            connected = self.connect(auth) => connected,
            () = closing.cancelled() => return Ok(lost(None)),
        };
        let mut stream = match connected {
            Ok(stream) => stream,
            Err(error) => {
                warn!(%error, "no connection");
                return Ok(lost(None));
            }
        };
        let ending = Box::pin(self.serve(&mut stream, owner, closing)).await;
        self.hooks.call(&Hook::Disconnected {
            code: ending.code,
            holders: Vec::new(),
        });
        Ok(ending)
    }

    async fn connect(&self, auth: Auth) -> Result<Stream> {
        let auth = ClientFrame::Auth(auth);
        let connect =
            connect_async_tls_with_config(self.url.as_str(), None, true, self.connector.clone());
        let connected = timeout(HANDSHAKE_TIMEOUT, Box::pin(connect)).await;
        let (mut stream, _) = connected.map_err(Error::lost_by)?.map_err(Error::lost_by)?;
        let text = serde_json::to_string(&auth).map_err(Error::other)?;
        write(&mut stream, text).await?;
        Ok(stream)
    }

    /// Serves a connection to its end.
    async fn serve(
        &self,
        stream: &mut Stream,
        owner: &dyn SocketOwner,
        closing: &CancellationToken,
    ) -> Ending {
        let (sender, mut outgoing) = mpsc::unbounded_channel();
        let mut sender = Some(sender);
        let mut dead_after = HANDSHAKE_TIMEOUT;
        let mut heard = Instant::now();
        let mut wait = None;
        let mut renewal: Option<BoxFuture<'_, Option<ClientFrame>>> = None;
        let end = |code, wait| Ending { code, wait };
        loop {
            let renewed = async {
                match &mut renewal {
                    Some(renewal) => renewal.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = stream.next() => {
                    let before = std::mem::replace(&mut heard, Instant::now());
                    // This process was frozen, and the server may have gone on without it.
                    if heard - before > dead_after {
                        return end(DEAD, wait);
                    }
                    let text = match message {
                        Some(Ok(Message::Text(text))) => text.as_str().to_owned(),
                        Some(Ok(Message::Close(frame))) => {
                            let code = frame.map_or(NO_STATUS, |frame| frame.code.into());
                            return end(code, wait);
                        }
                        Some(Ok(_)) => continue,
                        Some(Err(_)) | None => return end(NO_STATUS, wait),
                    };
                    let Some(frame) = Frame::read(text) else { continue };
                    match frame.kind.as_str() {
                        "ready" => if let Some(ready) = frame.parse::<Ready>() {
                            dead_after = Duration::from_millis(ready.heartbeat_interval_ms) + GRACE;
                            self.connection.fetch_add(1, Ordering::Relaxed);
                            *self.outgoing.lock() = sender.take();
                            self.hooks.call(&Hook::Connected);
                            owner.ready(&ready);
                        },
                        "reconnect" => {
                            let hint = frame.parse::<ReconnectHint>();
                            wait = hint.map(|hint| Duration::from_millis(hint.after_ms));
                        }
                        "auth.expiring" => renewal = Some(renew(owner).boxed()),
                        _ => self.take(frame, owner),
                    }
                }
                text = outgoing.recv() => {
                    if let Some(text) = text && write(stream, text).await.is_err() {
                        return end(NO_STATUS, wait);
                    }
                }
                frame = renewed => {
                    renewal = None;
                    if let Some(frame) = frame {
                        self.send(&frame);
                    }
                }
                () = sleep_until(heard + dead_after) => return end(DEAD, wait),
                () = self.left.notified() => {
                    close(stream).await;
                    return end(NORMAL, Some(Duration::ZERO));
                }
                () = closing.cancelled() => {
                    while let Ok(text) = outgoing.try_recv() {
                        if write(stream, text).await.is_err() {
                            break;
                        }
                    }
                    close(stream).await;
                    return end(NORMAL, None);
                }
            }
        }
    }

    fn wait_for_renewal(&self, error: &Error) -> Duration {
        let attempt = self.attempt.fetch_add(1, Ordering::Relaxed);
        let wait = full_jitter(attempt, FIRST_RENEWAL_WAIT, MAX_WAIT);
        self.hooks.call(&Hook::Retry {
            attempt: attempt + 1,
            wait,
            what: format!("renewal after {}", error.kind()),
        });
        wait
    }

    fn take(&self, frame: Frame, owner: &dyn SocketOwner) {
        match frame.kind.as_str() {
            "caught_up" => {
                self.attempt.store(0, Ordering::Relaxed);
                self.hooks.call(&Hook::CaughtUp);
                owner.frame(frame);
            }
            "message.sent" | "artifact.requested" | "artifact.responded" | "error" => {
                self.answer(frame);
            }
            "stream.cancel" if self.tell_watcher(&frame) => {}
            _ => owner.frame(frame),
        }
    }

    fn answer(&self, frame: Frame) {
        #[derive(Deserialize)]
        struct Reference {
            r#ref: Option<u64>,
        }
        let reference = frame.parse::<Reference>().and_then(|answer| answer.r#ref);
        let Some(waiting) = reference.and_then(|it| self.answers.lock().remove(&it)) else {
            self.tell_watcher(&frame);
            return;
        };
        let refused = frame.parse::<FrameError>();
        let answer = match refused {
            Some(refused) => Err(ApiError::new(0, refused.error, None).into()),
            None => Ok(frame),
        };
        waiting.send(answer).ok();
    }

    /// The wait before the next connection.
    async fn wait_after(&self, ending: &Ending, owner: &dyn SocketOwner) -> Result<Duration> {
        if let Some(wait) = ending.wait {
            return Ok(wait);
        }
        let closed = Err(Error::Closed {
            close_code: Some(ending.code),
        });
        match ending.code {
            4401 => match owner.renew().await {
                Ok(true) => Ok(Duration::ZERO),
                Ok(false) => closed,
                // The next connection asks for the token again.
                Err(error) => Ok(self.wait_for_renewal(&error)),
            },
            4400 | 4403 | 1002 | 1003 | 1007 | 1009 => closed,
            4409 => {
                let holders = owner.holders().await;
                self.hooks.call(&Hook::Disconnected {
                    code: ending.code,
                    holders,
                });
                Ok(LIMIT_WAIT)
            }
            4429 => Ok(FLOOD_WAIT),
            // At once, but a server that ends every connection so is not asked without a pause.
            1011..=1013 | 4410 if self.attempt.load(Ordering::Relaxed) == 0 => {
                self.attempt.fetch_add(1, Ordering::Relaxed);
                Ok(Duration::ZERO)
            }
            _ => {
                let attempt = self.attempt.fetch_add(1, Ordering::Relaxed);
                Ok(full_jitter(attempt, FIRST_WAIT, MAX_WAIT))
            }
        }
    }
}

async fn renew(owner: &dyn SocketOwner) -> Option<ClientFrame> {
    // After the end of the old token, the server asks for a renewal once more.
    if !matches!(owner.renew().await, Ok(true)) {
        return None;
    }
    match owner.auth().await {
        Ok(Auth::User(user)) => Some(ClientFrame::AuthRenew(RenewAuth {
            access_token: user.access_token,
        })),
        _ => None,
    }
}
