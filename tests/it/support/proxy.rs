//! A proxy that can stop forwarding: the sockets on both sides stay open, and no bytes move.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
};

use super::services::spawn;

/// The direction that the proxy does not forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    Nothing,
    /// From the client to the server.
    Up,
    Both,
}

#[derive(Clone, Copy)]
enum Way {
    Up,
    Down,
}

/// A proxy in front of one server at a time. Once dropped, it accepts no more connections.
pub struct Proxy {
    /// Its address, `host:port`.
    pub address: String,
    target: Arc<Mutex<String>>,
    held: watch::Sender<Held>,
    /// The number of bytes that servers have sent, forwarded or not.
    sent: Arc<AtomicUsize>,
    /// The number of connections whose server could not be reached.
    refused: Arc<AtomicUsize>,
    cut: watch::Sender<()>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy in front of `target`, `host:port`.
    pub async fn before(target: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let target = Arc::new(Mutex::new(target.to_owned()));
        let (held, holding) = watch::channel(Held::Nothing);
        let (cut, cutting) = watch::channel(());
        let sent = Arc::<AtomicUsize>::default();
        let refused = Arc::<AtomicUsize>::default();
        let (to, count, refusals) = (target.clone(), sent.clone(), refused.clone());
        let accepting = spawn(async move {
            loop {
                let (client, _) = listener.accept().await.expect("a client");
                let target = to.lock().expect("no panic").clone();
                let (holding, mut cutting) = (holding.clone(), cutting.clone());
                let (count, refusals) = (count.clone(), refusals.clone());
                cutting.mark_unchanged();
                spawn(async move {
                    let Ok(server) = TcpStream::connect(target).await else {
                        refusals.fetch_add(1, Ordering::SeqCst);
                        return;
                    };
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    let up = carry(from_client, to_server, Way::Up, holding.clone(), &count);
                    let down = carry(from_server, to_client, Way::Down, holding, &count);
                    tokio::select! {
                        _ = async { tokio::join!(up, down) } => {}
                        _ = cutting.changed() => {}
                    }
                });
            }
        });
        Proxy {
            address,
            target,
            held,
            sent,
            refused,
            cut,
            accepting,
        }
    }

    /// The base of a node's URLs.
    pub fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets the directions that are held from now on.
    pub fn hold(&self, held: Held) {
        self.held.send_replace(held);
    }

    /// The number of bytes that servers have sent so far, forwarded or not.
    pub fn sent(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }

    /// The number of connections so far whose server could not be reached.
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }

    /// Waits until more than `before` connections have been refused.
    pub async fn until_refused(&self, before: usize) {
        for _ in 0..1_000 {
            if self.refused() > before {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("no connection was refused");
    }

    /// Cuts all connections. New ones go to `target`.
    pub fn move_to(&self, target: &str) {
        target.clone_into(&mut self.target.lock().expect("no panic"));
        self.cut.send_replace(());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Runs until one side ends. Held bytes are forwarded after the release, and so is the end.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    way: Way,
    mut held: watch::Receiver<Held>,
    sent: &AtomicUsize,
) -> io::Result<()> {
    let (put, mut waiting) = mpsc::unbounded_channel();
    let reading = async {
        let mut some = vec![0; 16 * 1024];
        loop {
            let n = from.read(&mut some).await.unwrap_or(0);
            if matches!(way, Way::Down) {
                sent.fetch_add(n, Ordering::SeqCst);
            }
            // An empty chunk is the end.
            if put.send(some[..n].to_vec()).is_err() || n == 0 {
                return;
            }
        }
    };
    let writing = async {
        while let Some(some) = waiting.recv().await {
            let free = |held: &Held| match way {
                Way::Up => *held == Held::Nothing,
                Way::Down => *held != Held::Both,
            };
            held.wait_for(free).await.map_err(io::Error::other)?;
            if some.is_empty() {
                return to.shutdown().await;
            }
            to.write_all(&some).await?;
        }
        Ok(())
    };
    tokio::join!(reading, writing).1
}

/// A forwarder to a local port that delays every answer by `by`, however many are in progress.
/// Returns its port and its future.
pub async fn late(to: u16, by: Duration) -> (u16, impl Future<Output = ()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let relay = async move {
        loop {
            let (near, _) = listener.accept().await.expect("a client");
            let far = TcpStream::connect(("127.0.0.1", to))
                .await
                .expect("a server");
            let (mut ask, mut write) = near.into_split();
            let (mut answer, mut forward) = far.into_split();
            let (line, mut waiting) = mpsc::unbounded_channel();
            spawn(async move { tokio::io::copy(&mut ask, &mut forward).await });
            spawn(async move {
                let mut bytes = vec![0; 65_536];
                while let Ok(n @ 1..) = answer.read(&mut bytes).await {
                    line.send((tokio::time::Instant::now() + by, bytes[..n].to_vec()))
                        .ok();
                }
            });
            spawn(async move {
                while let Some((due, bytes)) = waiting.recv().await {
                    tokio::time::sleep_until(due).await;
                    if write.write_all(&bytes).await.is_err() {
                        break;
                    }
                }
            });
        }
    };
    (port, relay)
}
