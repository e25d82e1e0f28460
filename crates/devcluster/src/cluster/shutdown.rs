//! The request to stop everything.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::terminal::say;

/// A requested shutdown. A second request asks to hurry.
#[derive(Debug, Default)]
pub struct Shutdown {
    requested: CancellationToken,
    hurried: CancellationToken,
}

impl Shutdown {
    pub fn request(&self) {
        self.requested.cancel();
    }

    /// Returns once the cluster must stop.
    pub async fn requested(&self) {
        self.requested.cancelled().await;
    }

    /// Returns once there is no time left to stop in order.
    pub async fn hurried(&self) {
        self.hurried.cancelled().await;
    }

    /// Turns Ctrl-C, SIGTERM and SIGHUP into requests. Returns only if the process cannot receive
    /// signals.
    pub async fn listen(&self) -> std::io::Result<()> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            if self.requested.is_cancelled() {
                self.hurried.cancel();
            } else {
                say("\nStopping (once more to hurry).");
                self.request();
            }
        }
    }
}
