//! A backlog of 10,000 encrypted messages that an agent handles after its return.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use blindpipe_client::{
    Error, Result,
    client::Conversation,
    testing::{DevCluster, TestAgent},
};
use futures_util::future::try_join_all;
use tokio::task::JoinSet;

use crate::{report, scaled};

const EVENTS: usize = 10_000;
/// Conversations are handled side by side; each has an equal part of the backlog.
const CONVERSATIONS: usize = 8;

pub async fn measure(cluster: &DevCluster) -> Result<()> {
    let (agent, count) = write(cluster).await?;
    reset_peak();
    let before = memory("VmRSS");
    let handled = Arc::new(AtomicUsize::default());
    let counting = handled.clone();
    let builder = cluster.builder(&agent, 1)?.on_message(move |ctx| {
        counting.fetch_add(usize::from(!ctx.text().is_empty()), Ordering::Relaxed);
        async { Ok(()) }
    });
    let agent = builder.build();
    let start = Instant::now();
    let mut running = JoinSet::new();
    let runs = agent.clone();
    running.spawn(async move { runs.run_until_stopped().await });
    while handled.load(Ordering::Relaxed) < count {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let took = start.elapsed();
    agent.stop();
    while let Some(ended) = running.join_next().await {
        ended.map_err(Error::other)??;
    }
    let peak = memory("VmHWM");
    let each = took / u32::try_from(count).map_err(Error::other)?;
    report(&format!(
        "backlog of {count} events: {took:?}, {:.0} events a second; memory rose from {} to {} MiB at most",
        1.0 / each.as_secs_f64(),
        before / 1024,
        peak / 1024
    ));
    Ok(())
}

/// Writes the backlog. The agent has its key and is away.
async fn write(cluster: &DevCluster) -> Result<(TestAgent, usize)> {
    let owner = cluster.user("owner").await?;
    let agent = cluster.agent("away", &owner.client, None).await?;
    cluster.builder(&agent, 0)?.build().check().await?;
    // A stranger may not open a conversation with the agent, so its owner's groups hold it.
    owner.client.open_agent(agent.id).await?;
    let mut conversations = Vec::new();
    for n in 0..CONVERSATIONS {
        let title = format!("group {n}");
        let group = owner.client.open_group(&title, Vec::new()).await?;
        let visibility = blindpipe_client::protocol::groups::Visibility::All;
        group.add_agent(agent.id, visibility).await?;
        conversations.push(group);
    }
    let each = scaled(EVENTS) / CONVERSATIONS;
    let fill = |to: Conversation| async move {
        for n in 0..each {
            to.send(format!("message {n} {}", "x".repeat(200))).await?;
        }
        Ok::<_, Error>(())
    };
    try_join_all(conversations.into_iter().map(fill)).await?;
    Ok((agent, each * CONVERSATIONS))
}

/// A line of `/proc/self/status` in KiB; 0 where there is none.
pub fn memory(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    value.unwrap_or_default()
}

/// The peak counts from here on.
pub fn reset_peak() {
    fs::write("/proc/self/clear_refs", "5").ok();
}
