//! A connection: two pumps, and what may end both.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Notify, mpsc, watch},
    time::Instant,
};

use crate::{Mode, Way};

/// The largest piece that is read at once, in bytes.
const PIECE: usize = 16 * 1024;
/// The most pieces under way in a direction. They bound what a delay holds.
const MAX_PIECES: usize = 256;
/// Slices of a second at a bounded rate.
const SLICES: u32 = 50;

/// Makes the close of a stream a reset, which takes away what was not read.
pub fn reset(stream: &TcpStream) {
    stream.set_zero_linger().ok();
}

/// The bytes of a connection, and when it is cut.
struct Count {
    passed: AtomicU64,
    /// The number of bytes after which it is cut.
    limit: AtomicU64,
    cut: Notify,
}

impl Count {
    /// Lets up to `n` bytes pass, and says how many.
    fn take(&self, n: usize) -> usize {
        let passed = self.passed.load(Ordering::Relaxed);
        let room = self.limit.load(Ordering::Relaxed).saturating_sub(passed);
        let taken = n.min(usize::try_from(room).unwrap_or(usize::MAX));
        self.passed.store(passed + taken as u64, Ordering::Relaxed);
        taken
    }

    /// Whether no byte may pass any more.
    fn is_used_up(&self) -> bool {
        self.passed.load(Ordering::Relaxed) >= self.limit.load(Ordering::Relaxed)
    }
}

/// Forwards both directions until both have ended, one fails, or the mode ends them.
pub async fn carry(client: TcpStream, server: TcpStream, modes: watch::Receiver<Mode>, seed: u64) {
    client.set_nodelay(true).ok();
    server.set_nodelay(true).ok();
    let count = Count {
        passed: AtomicU64::new(0),
        limit: AtomicU64::new(u64::MAX),
        cut: Notify::new(),
    };
    let (from_client, mut to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let pumps = async {
        let up = Pump::new(Way::ToServer, &modes, &count, seed);
        let down = Pump::new(Way::ToClient, &modes, &count, !seed);
        tokio::try_join!(
            up.run(from_client, &mut to_server),
            down.run(from_server, &mut to_client)
        )
    };
    let watched = until_cut(modes.clone(), &count);
    let ended = tokio::select! {
        ended = pumps => ended.is_ok(),
        () = watched => false,
    };
    if !ended {
        reset(to_client.as_ref());
        reset(to_server.as_ref());
        // A dropped half would say goodbye first.
        to_client.forget();
        to_server.forget();
    }
}

/// Returns when the mode ends the connection.
async fn until_cut(mut modes: watch::Receiver<Mode>, count: &Count) {
    loop {
        let passed = count.passed.load(Ordering::Relaxed);
        let limit = match *modes.borrow_and_update() {
            Mode::Reset => return,
            Mode::CutAfter { bytes } => passed.saturating_add(bytes),
            _ => u64::MAX,
        };
        count.limit.store(limit, Ordering::Relaxed);
        tokio::select! {
            changed = modes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = count.cut.notified() => return,
        }
    }
}

/// A piece of a direction, and when it is due.
type Piece = (Instant, Vec<u8>);

/// A direction of a connection.
struct Pump<'a> {
    way: Way,
    modes: watch::Receiver<Mode>,
    count: &'a Count,
    chance: u64,
}

impl<'a> Pump<'a> {
    fn new(way: Way, modes: &watch::Receiver<Mode>, count: &'a Count, seed: u64) -> Self {
        Pump {
            way,
            modes: modes.clone(),
            count,
            chance: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    async fn run(self, from: OwnedReadHalf, to: &mut OwnedWriteHalf) -> io::Result<()> {
        let (queue, queued) = mpsc::channel(MAX_PIECES);
        let (way, modes, count) = (self.way, self.modes.clone(), self.count);
        let writing = async {
            write(queued, to, way, modes, count).await?;
            to.shutdown().await
        };
        tokio::try_join!(self.read(from, queue), writing)?;
        Ok(())
    }

    /// Reads until the end of the stream.
    async fn read(mut self, mut from: OwnedReadHalf, queue: mpsc::Sender<Piece>) -> io::Result<()> {
        let mut due = Instant::now();
        loop {
            let mode = passable(&mut self.modes, self.way).await?;
            let mut piece = vec![0; PIECE];
            let n = tokio::select! {
                read = from.read(&mut piece) => read?,
                _ = self.modes.changed() => continue,
            };
            if n == 0 {
                return Ok(());
            }
            piece.truncate(n);
            // Never before the piece ahead of it.
            due = due.max(Instant::now() + self.delay(mode));
            if queue.send((due, piece)).await.is_err() {
                return Ok(());
            }
        }
    }

    fn delay(&mut self, mode: Mode) -> Duration {
        let Mode::Delay { least, jitter } = mode else {
            return Duration::ZERO;
        };
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        least + jitter.mul_f64((self.chance >> 11) as f64 / (1_u64 << 53) as f64)
    }
}

/// Waits until the mode lets this direction move, and returns it.
async fn passable(modes: &mut watch::Receiver<Mode>, way: Way) -> io::Result<Mode> {
    let mode = modes.wait_for(|mode| !mode.holds(way)).await;
    mode.map(|mode| *mode).map_err(io::Error::other)
}

/// Writes pieces when they are due.
async fn write(
    mut queued: mpsc::Receiver<Piece>,
    to: &mut OwnedWriteHalf,
    way: Way,
    mut modes: watch::Receiver<Mode>,
    count: &Count,
) -> io::Result<()> {
    while let Some((due, piece)) = queued.recv().await {
        tokio::time::sleep_until(due).await;
        let mut rest = &piece[..];
        while !rest.is_empty() {
            let mode = passable(&mut modes, way).await?;
            let most = match mode {
                Mode::Rate { bytes_per_second } => (bytes_per_second / SLICES).max(1) as usize,
                _ => rest.len(),
            };
            let slice = &rest[..count.take(most.min(rest.len()))];
            to.write_all(slice).await?;
            if count.is_used_up() {
                // What was written is to arrive before the reset.
                to.flush().await?;
                count.cut.notify_one();
                std::future::pending::<()>().await;
            }
            rest = &rest[slice.len()..];
            if let Mode::Rate { bytes_per_second } = mode {
                let took = slice.len() as f64 / f64::from(bytes_per_second.max(1));
                tokio::time::sleep(Duration::from_secs_f64(took)).await;
            }
        }
    }
    Ok(())
}
