//! How the launcher hears that it shall stop.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::terminal::say;

/// The wish that everything stop: Ctrl-C, SIGTERM or SIGHUP. A second one is a wish to hurry.
#[derive(Debug, Default)]
pub struct Stop {
    requested: CancellationToken,
    hurried: CancellationToken,
}

impl Stop {
    /// Returns once the cluster is to stop.
    pub async fn requested(&self) {
        self.requested.cancelled().await;
    }

    /// Returns once there is no time to stop in order.
    pub async fn hurried(&self) {
        self.hurried.cancelled().await;
    }

    /// Turns signals into wishes; never returns unless signals cannot be had.
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
                self.requested.cancel();
            }
        }
    }
}
