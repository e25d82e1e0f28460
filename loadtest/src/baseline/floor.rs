//! The floor: a broadcast over WebSockets and Redis without users, checks, limits or storage. It
//! answers no ping. It does the remaining work as cheaply as we know how:
//!
//! - The first process that receives a frame encodes it once; the frame travels through Redis
//!   encoded.
//! - The speaker's task writes to the listeners of its own process, without a task in between.
//!   Frames that arrive meanwhile are then written together, once for each listener.
//! - All waiting bytes of a sender's or Redis's connection are read at once, and published and
//!   written together.
//!
//! There is no queue: a speaker waits until its frame has been written. A listener whose connection
//! does not accept everything at once (full kernel buffers) is dropped. The count of arrivals then
//! shows the gap.

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
/// The bytes before the length of a published frame.
const PUBLISH: &[u8] = b"*3\r\n$7\r\nPUBLISH\r\n$5\r\nfloor\r\n$";
const PUBLISHED: &[u8] = b"*3\r\n$7\r\nmessage\r\n$5\r\nfloor\r\n$";
/// The number of listeners that are written to before Redis.
const FEW: usize = 8;
/// The length of the mark by which a process recognises its own publications.
const MARK: usize = 2;

struct Floor {
    mark: [u8; MARK],
    redis: Mutex<OwnedWriteHalf>,
    listeners: Mutex<Vec<OwnedWriteHalf>>,
    /// Frames that no task has begun to write.
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
    // The number of receivers in each answer is not needed.
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
    /// Accepts a connection, reads from it, and adds it to the listeners unless it opts out.
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
        // Dropping it would end the connection.
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

    /// Writes to a few listeners before Redis. Many listeners come after Redis, so that Redis and
    /// other processes can work meanwhile.
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

    /// Writes frames to every listener of this process. The task that gets the listeners writes for
    /// all waiting tasks.
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

    /// Delivers frames that other processes publish.
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

/// Reads exactly these bytes.
async fn expect(redis: &mut BufReader<TcpStream>, what: &[u8]) -> Result<()> {
    let mut said = vec![0; what.len()];
    redis.read_exact(&mut said).await?;
    if said != what {
        return Err(format!("Redis said {}", String::from_utf8_lossy(&said)).into());
    }
    Ok(())
}
