//! Whether a server answers, for a program that looks into why nothing works.

use std::time::Duration;

use blindpipe_protocol::service::Version;
use chrono::DateTime;
use tokio::time::Instant;

use super::{Call, Clock, Http, Server};
use crate::{Result, hooks::Hooks};

/// An answer of a server.
#[derive(Clone, Debug)]
pub struct Reached {
    /// The time from the first byte of the connection to the answer's last.
    pub took: Duration,
    /// Seconds by which this machine's clock is ahead of the server's; none if it did not tell.
    pub clock_ahead: Option<i64>,
}

impl Server {
    /// Asks the server how it is, without a credential.
    ///
    /// # Errors
    ///
    /// As any call's: the address, the connection, a refusal.
    pub async fn reach(&self) -> Result<Reached> {
        let http = Http::new(self.http_client()?, self.url(), Hooks::default(), None);
        let begin = Instant::now();
        let answer = http.send(Call::get("/health")).await?;
        let date = answer.headers.get("date").and_then(|it| it.to_str().ok());
        let clock = date.and_then(|date| DateTime::parse_from_rfc2822(date).ok());
        let now = i64::try_from(Clock::default().now_ms() / 1000).unwrap_or_default();
        Ok(Reached {
            took: begin.elapsed(),
            clock_ahead: clock.map(|clock| now - clock.timestamp()),
        })
    }
    /// The versions of the interface that the server serves, and its own.
    ///
    /// # Errors
    ///
    /// As [`Self::reach`].
    pub async fn version(&self) -> Result<Version> {
        let http = Http::new(self.http_client()?, self.url(), Hooks::default(), None);
        http.data(Call::get("/version")).await
    }
}
