//! A TCP proxy for tests of faults. It stands before a server, and its mode says what becomes of
//! the connections.
//!
//! The mode changes at run time and holds for open and for new connections. A proxy forwards bytes
//! in order, and it loses them only where a mode ends the connection. It knows no protocol.

mod carry;
#[cfg(test)]
mod tests;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use self::carry::{carry, reset};

/// What becomes of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Bytes pass.
    #[default]
    Pass,
    /// Bytes pass later, in each direction: by `least`, and by up to `jitter` more.
    Delay { least: Duration, jitter: Duration },
    /// Each direction of a connection passes so many bytes in a second.
    Rate { bytes_per_second: u32 },
    /// Nothing moves, and nothing closes. A new connection is accepted, and hears nothing.
    BlackHole,
    /// Nothing moves in one direction.
    HalfOpen(Way),
    /// Connections are reset, open ones at once and new ones when they come.
    Reset,
    /// New connections are refused. Open ones go on.
    Refuse,
    /// A connection is reset after so many more bytes of both directions.
    CutAfter { bytes: u64 },
}

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

impl Mode {
    /// Whether nothing moves in this direction.
    fn holds(self, way: Way) -> bool {
        self == Mode::BlackHole || self == Mode::HalfOpen(way)
    }
}

/// The pause between two tries to listen again at an address that was given up.
const BIND_PAUSE: Duration = Duration::from_millis(5);

/// A running proxy. It ends, with all its connections, when this is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    open: Arc<AtomicUsize>,
    /// The task that accepts, which ends with this.
    _accepting: JoinSet<()>,
}

impl Proxy {
    /// Listens at `listen` for `server`, on the present runtime. `seed` repeats the jitter.
    ///
    /// # Errors
    ///
    /// The address is not free.
    pub async fn start(listen: SocketAddr, server: SocketAddr, seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let (mode, modes) = watch::channel(Mode::Pass);
        let open = Arc::new(AtomicUsize::new(0));
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, server, modes, seed, open.clone()));
        Ok(Proxy {
            address,
            mode,
            open,
            _accepting: accepting,
        })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The present mode.
    pub fn mode(&self) -> Mode {
        *self.mode.borrow()
    }

    /// Changes the mode. [`Mode::CutAfter`] begins to count now.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// The number of open connections.
    pub fn connections(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

/// A connection that counts while it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Counted(open.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Accepts connections until it is aborted, which ends them too.
async fn accept(
    listener: TcpListener,
    server: SocketAddr,
    mut modes: watch::Receiver<Mode>,
    seed: u64,
    open: Arc<AtomicUsize>,
) {
    let Ok(address) = listener.local_addr() else {
        return;
    };
    let (mut listener, mut connections) = (Some(listener), JoinSet::new());
    for n in 0.. {
        let mode = *modes.borrow_and_update();
        if mode == Mode::Refuse {
            listener = None;
        } else if listener.is_none() {
            listener = TcpListener::bind(address).await.ok();
        }
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await.ok(),
                None if mode == Mode::Refuse => std::future::pending().await,
                None => {
                    tokio::time::sleep(BIND_PAUSE).await;
                    None
                }
            }
        };
        tokio::select! {
            accepted = accepted => {
                if let Some((client, _)) = accepted {
                    let counted = Counted::new(&open);
                    let carried = serve(client, server, modes.clone(), seed.wrapping_add(n));
                    connections.spawn(async move {
                        carried.await;
                        drop(counted);
                    });
                }
            }
            changed = modes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Carries a connection, unless the mode or the server refuses it.
async fn serve(client: TcpStream, server: SocketAddr, mut modes: watch::Receiver<Mode>, seed: u64) {
    let Ok(mode) = modes
        .wait_for(|mode| *mode != Mode::BlackHole)
        .await
        .map(|mode| *mode)
    else {
        return;
    };
    if mode == Mode::Reset {
        return reset(&client);
    }
    match TcpStream::connect(server).await {
        Ok(server) => carry(client, server, modes, seed).await,
        Err(_) => reset(&client),
    }
}
