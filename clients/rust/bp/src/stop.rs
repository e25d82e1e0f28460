//! Ctrl-C, which ends what serves in an orderly way.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Result;

/// Hears Ctrl-C from now on: a program that reads an address may send it at once.
pub struct Stop(Signal);

impl Stop {
    pub fn hear() -> Result<Self> {
        Ok(Self(signal(SignalKind::interrupt())?))
    }

    pub async fn came(&mut self) {
        self.0.recv().await;
    }
}
