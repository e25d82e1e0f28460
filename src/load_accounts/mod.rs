//! `blindpipe loadtest-accounts`: the accounts of a load test against this release.
//!
//! Promises: an account is marked by an address below `loadtest.invalid`, to which no mail can go, so
//! nobody registers one or signs in to one. Only marked accounts are removed. They end by the
//! service's own erasure, and then [`remove`] takes their rows as the owner of the schema.

mod making;
mod remove;

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use secrecy::ExposeSecret;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    auth::{
        refresh::RefreshTokens,
        secret::{HashCost, Hasher},
        server_secret::ServerSecret,
    },
    clock::Clock,
    config::MigrationUrls,
    db::{Db, Plans},
    delivery::{self, MessageSigner, NoEphemeralEvents, Parts, RedisPubSub},
    features::revocations,
    ids::NodeId,
    inbox::Inbox,
    node::{self, Failure},
    random::Random,
    redis::Redis,
    work::UnitOfWork,
};

/// The longest name. An address has room for more.
const MAX_NAME_CHARS: usize = 32;
/// A file with more accounts is a mistake, and its hashes take minutes.
const MAX_ACCOUNTS: u32 = 10_000;
const POOL_SIZE: usize = 8;
/// The revocations of ended accounts reach the other nodes within this time.
const PUBLISH_TIME: Duration = Duration::from_secs(1);

/// The options of the command.
#[derive(Args)]
pub struct LoadAccounts {
    /// Make this many users, each with an agent and a conversation between them, at most 10,000
    #[arg(long, requires = "file", required_unless_present = "remove")]
    count: Option<u32>,
    /// End the accounts that this command has made, all or those of --name, and remove their rows
    #[arg(long, conflicts_with_all = ["count", "file"])]
    remove: bool,
    /// Name of these accounts, of a-z, 0-9 and -; names of earlier accounts are refused until
    /// these are removed
    #[arg(long)]
    name: Option<String>,
    /// The file to write, for `loadtest --accounts`. It holds secrets and must not exist
    #[arg(long)]
    file: Option<PathBuf>,
}

/// Does it. Returns a line about it.
pub async fn run(
    wanted: &LoadAccounts,
    get: impl Fn(&str) -> Option<String>,
) -> Result<String, Failure> {
    if let Some(name) = &wanted.name {
        check_name(name)?;
    }
    match (wanted.count, &wanted.file) {
        (Some(count), Some(file)) => {
            if !(1..=MAX_ACCOUNTS).contains(&count) {
                return Err(format!("--count is between 1 and {MAX_ACCOUNTS}").into());
            }
            let name = wanted.name.as_deref().unwrap_or("load");
            let release = Release::open(&get).await?;
            making::make(&release, name, count, file).await
        }
        _ => {
            let urls = MigrationUrls::read(&get).map_err(|faults| faults.to_string())?;
            let release = Release::open(&get).await?;
            remove::remove(&release, &urls.owner, wanted.name.as_deref()).await
        }
    }
}

fn check_name(name: &str) -> Result<(), Failure> {
    let is_fit = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || name.len() > MAX_NAME_CHARS || !name.bytes().all(is_fit) {
        let rule = format!("--name has 1 to {MAX_NAME_CHARS} characters of a-z, 0-9 and -");
        return Err(rule.into());
    }
    Ok(())
}

/// The beginning of the addresses of a name.
fn prefix(name: &str) -> String {
    format!("{name}.")
}

/// The stores of the release, and what publishes to its nodes. Dropped, it publishes no more.
struct Release {
    work: UnitOfWork,
    refresh_tokens: RefreshTokens,
    hasher: Hasher,
    stop: CancellationToken,
}

impl Release {
    async fn open(get: &impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let config = node::read_settings(get).map_err(|faults| faults.to_string())?;
        let secret: ServerSecret = config.server_secret.expose_secret().parse()?;
        let wait = config.database_timeout.millis();
        let name = "blindpipe loadtest-accounts";
        let db = Db::new(&config.database_url, name, POOL_SIZE, Plans::Free, wait)?;
        node::check_postgres(&db, &config).await?;
        let epoch = Inbox::new(db.clone()).epoch().await;
        let epoch = epoch.map_err(|error| format!("cannot read the inbox's epoch: {error:?}"))?;
        let wait = config.redis_timeout.millis();
        let (redis, subscriber) = Redis::start(&config.redis_url, &config.redis_prefix, wait)?;
        redis.ping().await;
        let random = Random::new(Clock::default());
        let (id, stop) = (NodeId::generate(&random), CancellationToken::new());
        let backplane = delivery::start(Parts {
            store: &db,
            redis: &redis,
            transport: RedisPubSub::new(id, &redis, subscriber),
            signer: MessageSigner::new(id, &secret, epoch),
            secret: &secret,
            observer: Arc::new(|_| ()),
            handler: Arc::new(NoEphemeralEvents),
            mark_revoked: revocations::marking(db.clone()),
            tasks: &TaskTracker::new(),
            stop: &stop,
        });
        Ok(Release {
            work: UnitOfWork::new(db, random, backplane),
            refresh_tokens: RefreshTokens::new(&secret),
            hasher: Hasher::new("tokens", HashCost::of(&config)),
            stop,
        })
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
