//! The figures of `docs/encryption.md`, measured against a cluster of two nodes on this machine:
//!
//! ```sh
//! cargo build --locked --release --workspace --bins
//! cargo run --release -p blindpipe-client --example figures          # or: figures send | rotate | backlog | conversations
//! ```
//!
//! `SCALE=10` divides the counts by ten.

mod backlog;
mod conversations;
mod members;
mod rotation;
mod sends;

use std::{
    env, fs,
    io::{self, Write},
    path::PathBuf,
};

use blindpipe_client::{Error, Result, testing::DevCluster};

/// All calls come from a single address here, far beyond the budgets of a person.
const LIMITS: [&str; 10] = [
    "auth_register_ip=100000/10min",
    "auth_human_ip=100000/10min",
    "default_ip=1000000/min",
    "default_user=1000000/min",
    "agent_tier_1=1000000/min",
    "user_message_send=100000/s",
    "conversation_open=10000/h",
    "keys_lookup=100000/min",
    "keys_group_rotate=100000/h",
    "ws_connect=100000/min",
];

#[tokio::main]
async fn main() -> Result<()> {
    let only = env::args().nth(1);
    let cluster = start().await?;
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    if wanted("send") {
        sends::measure(&cluster).await?;
    }
    if wanted("rotate") {
        rotation::measure(&cluster).await?;
    }
    if wanted("backlog") {
        backlog::measure(&cluster).await?;
    }
    if wanted("conversations") {
        conversations::measure(&cluster).await?;
    }
    Ok(())
}

async fn start() -> Result<DevCluster> {
    let folder = env::current_dir().map_err(Error::other)?.join(".dev");
    let dir = folder.join("figures");
    // A database of an older schema would stop the start.
    fs::remove_dir_all(&dir).ok();
    let own = env::current_exe().map_err(Error::other)?;
    let built = own.ancestors().nth(2).map(PathBuf::from);
    let program = built.ok_or(Error::Usage("no folder of programs"))?;
    let limits = LIMITS.join(",");
    let settings = [("LIMIT_OVERRIDES", limits.as_str())];
    let packages = folder.join("packages");
    DevCluster::start(
        &dir,
        &program.join("devcluster"),
        Some(&packages),
        &settings,
    )
    .await
}

/// A count, divided by `SCALE`.
fn scaled(count: usize) -> usize {
    let scale = env::var("SCALE").ok().and_then(|it| it.parse().ok());
    (count / scale.unwrap_or(1)).max(1)
}

fn report(line: &str) {
    writeln!(io::stdout(), "{line}").ok();
}
