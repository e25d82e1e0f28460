//! Facts about a Redis server that an operator must know.

use std::time::{Duration, Instant};

use fred::{
    clients::Client,
    interfaces::{ClientLike, FredResult},
    types::{ClusterHash, CustomCommand, InfoKind},
};
use secrecy::SecretString;

use super::builder;

/// Longest wait for a connection or a command.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A server and its settings.
pub struct Inspection {
    pub version: String,
    /// `maxmemory-policy`; none if the server does not say it.
    pub policy: Option<String>,
    /// The duration of a command.
    pub round_trip: Duration,
    /// The server's clock since 1970, at the moment of the return.
    pub clock: Duration,
}

impl Inspection {
    /// Connects with `url` and looks.
    pub async fn of(url: &SecretString) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let mut builder = builder(url, TIMEOUT)?;
        builder.with_config(|config| config.fail_fast = true);
        let client = builder.build()?;
        client.init().await?;
        let found = Self::look(&client).await;
        client.quit().await.ok();
        Ok(found?)
    }

    async fn look(client: &Client) -> FredResult<Self> {
        let info: String = client.info(Some(InfoKind::Server)).await?;
        let version = info
            .lines()
            .find_map(|line| line.strip_prefix("redis_version:"))
            .unwrap_or("unknown");
        // Some providers forbid the command.
        let policy: FredResult<Vec<String>> =
            ask(client, "CONFIG", &["GET", "maxmemory-policy"]).await;
        let policy = policy.ok().and_then(|pair| pair.into_iter().nth(1));
        let asked = Instant::now();
        let time: Vec<u64> = ask(client, "TIME", &[]).await?;
        let round_trip = asked.elapsed();
        let clock = match time.as_slice() {
            [seconds, micros] => Duration::from_secs(*seconds) + Duration::from_micros(*micros),
            _ => Duration::ZERO,
        };
        Ok(Inspection {
            version: version.trim().to_owned(),
            policy,
            round_trip,
            clock: clock + round_trip / 2,
        })
    }
}

async fn ask<T: fred::types::FromValue>(
    client: &Client,
    command: &'static str,
    arguments: &[&str],
) -> FredResult<T> {
    let command = CustomCommand::new_static(command, ClusterHash::Random, false);
    let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
    client.custom(command, arguments).await
}
