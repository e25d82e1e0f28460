//! The protocol over standard input and output: a message is a line.

use std::time::Duration;

use tokio::{task::JoinSet, time::timeout};

use super::Server;
use crate::{commands::chat::lines, failure::Result, output::Output};

/// The time of calls that are under way when standard input ends.
const LAST_CALLS: Duration = Duration::from_secs(2);

/// Serves until standard input ends. Calls run beside each other: a question that waits keeps
/// nothing else from being answered.
pub(super) async fn serve(server: Server, output: &Output) -> Result<()> {
    let mut input = lines();
    let mut calls = JoinSet::new();
    loop {
        tokio::select! {
            line = input.recv() => match line {
                Some(line) if line.trim().is_empty() => {}
                Some(line) => {
                    let server = server.clone();
                    calls.spawn(async move { server.answer(line.as_bytes()).await });
                }
                None => break,
            },
            Some(answered) = calls.join_next() => {
                if let Ok(Some(answer)) = answered {
                    output.raw(&answer.to_string())?;
                }
            }
        }
    }
    let rest = async {
        while let Some(answered) = calls.join_next().await {
            if let Ok(Some(answer)) = answered {
                output.raw(&answer.to_string())?;
            }
        }
        Ok(())
    };
    // The host has gone; what still waits is found again by its ticket.
    timeout(LAST_CALLS, rest).await.unwrap_or(Ok(()))
}
