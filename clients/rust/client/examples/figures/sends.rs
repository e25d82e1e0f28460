//! The time that encryption adds to a send.

use std::time::{Duration, Instant};

use blindpipe_client::{Result, client::Conversation, testing::DevCluster};
use serde_json::json;

use crate::{report, scaled};

const SENDS: usize = 2000;

/// Sends in clear and encrypted by turns, so that both meet the same machine.
pub async fn measure(cluster: &DevCluster) -> Result<()> {
    let ada = cluster.user("ada").await?;
    let bob = cluster.user("bob").await?;
    let sealed = ada.client.open_direct(bob.client.user_id()?).await?;
    let agent = cluster.agent("plain", &ada.client, None).await?;
    let clear = ada.client.open_agent(agent.id).await?;
    sealed.send("the first send rotates").await?;
    let text = "x".repeat(200);
    let (mut of_clear, mut of_sealed) = (Vec::new(), Vec::new());
    for _ in 0..scaled(SENDS) {
        let start = Instant::now();
        let payload = json!({ "type": "text", "text": text });
        ada.client.send_raw(clear.id(), &payload).await?;
        of_clear.push(start.elapsed());
        of_sealed.push(send(&sealed, &text).await?);
    }
    let (clear, sealed) = (median(of_clear), median(of_sealed));
    report(&format!(
        "send of 200 bytes, p50: {clear:?} in clear, {sealed:?} encrypted, {:?} more",
        sealed.saturating_sub(clear)
    ));
    Ok(())
}

async fn send(to: &Conversation, text: &str) -> Result<Duration> {
    let start = Instant::now();
    to.send(text).await?;
    Ok(start.elapsed())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
