//! The floor: a broadcast over WebSockets and Redis that knows nobody, checks, limits and stores
//! nothing, and answers no ping. What it does do is done as cheaply as we know how:
//!
//! - a frame is encoded once, by the process that hears it, and travels through Redis encoded;
//! - listeners of its own process are written to by whoever has something to say, without a task in
//!   between; what is said by others meanwhile is then written together, once for each listener;
//! - what waits in a sender's or in Redis's connection is taken at once, and published and written
//!   together.
//!
//! Nothing is queued: who speaks waits until it has been written. A listener whose connection does
//! not take everything at once (the kernel's buffers are full) is dropped, and whoever counts
//! arrivals finds them missing.

use std::sync::{Arc, Mutex as Lock};

use futures_util::{FutureExt, StreamExt};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, join, sink},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Mutex,
};
use tokio_tungstenite::{
    WebSocketStream, accept_hdr_async,
    tungstenite::{
        Message,
        handshake::server::{Request, Response},
        protocol::{
            Role, WebSocketConfig,
            frame::{
                Frame,
                coding::{Data, OpCode},
            },
        },
    },
};

use crate::{Result, redis};

const SUBSCRIBE: &[u8] = b"*2\r\n$9\r\nSUBSCRIBE\r\n$5\r\nfloor\r\n";
const SUBSCRIBED: &[u8] = b"*3\r\n$9\r\nsubscribe\r\n$5\r\nfloor\r\n:1\r\n";
/// What stands before the length of what is published.
const PUBLISH: &[u8] = b"*3\r\n$7\r\nPUBLISH\r\n$5\r\nfloor\r\n$";
const PUBLISHED: &[u8] = b"*3\r\n$7\r\nmessage\r\n$5\r\nfloor\r\n$";
/// Listeners that have been told sooner than Redis has.
const FEW: usize = 8;
/// Bytes of the mark by which a process knows what it has published itself.
const MARK: usize = 2;

struct Floor {
    mark: [u8; MARK],
    redis: Mutex<OwnedWriteHalf>,
    listeners: Mutex<Vec<OwnedWriteHalf>>,
    /// Frames that nobody has begun to write.
    waiting: Lock<Vec<u8>>,
}

/// Serves until Redis is gone.
pub async fn serve(listener: TcpListener, url: &str) -> Result<()> {
    let mut subscription = BufReader::with_capacity(1 << 16, redis::connect(url).await?);
    subscription.write_all(SUBSCRIBE).await?;
    expect(&mut subscription, SUBSCRIBED).await?;
    let (mut answers, redis) = redis::connect(url).await?.into_split();
    let floor = Arc::new(Floor {
        mark: listener.local_addr()?.port().to_be_bytes(),
        redis: Mutex::new(redis),
        listeners: Mutex::default(),
        waiting: Lock::default(),
    });
    // How many were reached by what was published: nobody wants to know.
    tokio::spawn(async move { tokio::io::copy(&mut answers, &mut sink()).await });
    let relay = tokio::spawn(floor.clone().relay(subscription));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(floor.clone().attend(stream));
        }
    });
    relay.await?
}

impl Floor {
    /// Takes a connection, listens to it, and lets it listen unless it does not want to.
    async fn attend(self: Arc<Self>, stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        let mut silent = false;
        #[expect(clippy::result_large_err, reason = "the library wants it so")]
        let look = |request: &Request, response: Response| {
            silent = request.uri().query() == Some("silent=1");
            Ok(response)
        };
        let (read, write) = accept_hdr_async(stream, look)
            .await?
            .into_inner()
            .into_split();
        // Dropped, it would end the connection.
        let mut unused = Some(write);
        if !silent {
            self.listeners.lock().await.extend(unused.take());
        }
        self.hear(read).await
    }

    async fn hear(&self, read: OwnedReadHalf) -> Result<()> {
        let config = WebSocketConfig::default().read_buffer_size(4096);
        let mut heard =
            WebSocketStream::from_raw_socket(join(read, sink()), Role::Server, Some(config)).await;
        while let Some(message) = heard.next().await {
            let mut frames = Vec::new();
            let mut next = Some(message);
            while let Some(message) = next {
                if let Message::Text(text) = message? {
                    Frame::message(text, OpCode::Data(Data::Text), true).format(&mut frames)?;
                }
                next = heard.next().now_or_never().flatten();
            }
            if !frames.is_empty() {
                self.spread(&frames).await?;
            }
        }
        Ok(())
    }

    /// A few listeners are written to sooner than Redis wakes up; while many are, it and other
    /// processes can work.
    async fn spread(&self, frames: &[u8]) -> Result<()> {
        if self
            .listeners
            .try_lock()
            .is_ok_and(|listeners| listeners.len() <= FEW)
        {
            self.tell(frames).await;
            return self.publish(frames).await;
        }
        self.publish(frames).await?;
        self.tell(frames).await;
        Ok(())
    }

    async fn publish(&self, frames: &[u8]) -> Result<()> {
        let length = (MARK + frames.len()).to_string();
        let command = [
            PUBLISH,
            length.as_bytes(),
            b"\r\n",
            &self.mark,
            frames,
            b"\r\n",
        ]
        .concat();
        Ok(self.redis.lock().await.write_all(&command).await?)
    }

    /// Writes frames to every listener of this process. Who gets the listeners writes for all that
    /// wait for them.
    async fn tell(&self, frames: &[u8]) {
        let waiting = || {
            self.waiting
                .lock()
                .unwrap_or_else(|never| unreachable!("nobody panics: {never}"))
        };
        waiting().extend_from_slice(frames);
        let mut listeners = self.listeners.lock().await;
        let batch = std::mem::take(&mut *waiting());
        if !batch.is_empty() {
            listeners.retain(|listener| listener.try_write(&batch).is_ok_and(|n| n == batch.len()));
        }
    }

    /// Tells what other processes publish.
    async fn relay(self: Arc<Self>, mut subscription: BufReader<TcpStream>) -> Result<()> {
        let (mut length, mut frames) = (String::new(), Vec::new());
        loop {
            expect(&mut subscription, PUBLISHED).await?;
            length.clear();
            subscription.read_line(&mut length).await?;
            let start = frames.len();
            frames.resize(start + length.trim_end().parse::<usize>()? + 2, 0);
            subscription.read_exact(&mut frames[start..]).await?;
            frames.truncate(frames.len() - 2);
            let own = frames[start..].starts_with(&self.mark);
            frames.drain(start..if own { frames.len() } else { start + MARK });
            if subscription.buffer().is_empty() && !frames.is_empty() {
                self.tell(&frames).await;
                frames.clear();
            }
        }
    }
}

/// Reads exactly this.
async fn expect(redis: &mut BufReader<TcpStream>, what: &[u8]) -> Result<()> {
    let mut said = vec![0; what.len()];
    redis.read_exact(&mut said).await?;
    if said != what {
        return Err(format!("Redis said {}", String::from_utf8_lossy(&said)).into());
    }
    Ok(())
}
