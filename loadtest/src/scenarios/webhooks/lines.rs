//! Agents with webhooks: those of the pairs, and a crowd that is restored into the database.

use blindpipe::{clock::Clock, random::Random};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::{
    Result, cluster::Cluster, fixtures::Pair, http::request, receiver::Receiver, report::say,
};

/// Agents of the crowd that have something to deliver.
const ACTIVE: usize = 1000;
/// Rows of one statement.
const BATCH: usize = 20_000;
/// Requests under way at once.
const AT_ONCE: usize = 8;

/// An agent with a webhook and a conversation.
pub struct Line {
    /// The pair whose user owns the agent and sends to it.
    pub pair: usize,
    pub conversation: String,
}

/// Gives every pair's agent a webhook at the receiver.
pub async fn of_pairs(cluster: &Cluster, pairs: &[Pair], receiver: &Receiver) -> Result<Vec<Line>> {
    let lines = stream::iter(pairs.iter().enumerate()).map(async |(n, pair)| {
        register(cluster, pair, &pair.agent_id, receiver).await?;
        Ok(Line {
            pair: n,
            conversation: pair.conversation_id.clone(),
        })
    });
    lines.buffered(AT_ONCE).try_collect().await
}

/// Restores `agents` agents with a webhook and an empty inbox, and makes a thousand more that have
/// conversations.
pub async fn of_crowd(
    cluster: &Cluster,
    pairs: &[Pair],
    receiver: &Receiver,
    agents: usize,
) -> Result<Vec<Line>> {
    say(format!("webhooks: restoring {agents} agents"));
    let (client, link) = tokio_postgres::connect(&cluster.postgres_url, NoTls).await?;
    tokio::spawn(link);
    let random = Random::new(Clock::default());
    let ids = |n: usize| -> Vec<Uuid> { (0..n).map(|_| random.uuid_v7()).collect() };
    let mut left = agents;
    while left > 0 {
        let batch = ids(left.min(BATCH));
        left -= batch.len();
        restore(&client, &pairs[0].email, &batch).await?;
        let webhooks = "with w as (insert into webhook (agent_id, url, status, credential_id, sealed_secret)
                select a, 'http://127.0.0.1:9/hook', 'active', gen_random_uuid(), '\\x00' from unnest($1::uuid[]) a)
            insert into webhook_turn (agent_id, is_open) select a, true from unnest($1::uuid[]) a";
        client.execute(webhooks, &[&batch]).await?;
    }
    let mut active = Vec::new();
    for (n, pair) in pairs.iter().enumerate() {
        let of_pair = ids(ACTIVE.min(agents).div_ceil(pairs.len()));
        restore(&client, &pair.email, &of_pair).await?;
        active.extend(of_pair.into_iter().map(|agent| (n, agent)));
    }
    client.batch_execute("analyze").await?;
    let lines = stream::iter(active).map(async |(n, agent)| {
        let (pair, agent) = (&pairs[n], agent.to_string());
        register(cluster, pair, &agent, receiver).await?;
        let body = json!({ "type": "agent", "agent_id": agent });
        let made = ask(cluster, pair, "POST", "/conversations", &body).await?;
        let conversation = made["conversation_id"].as_str().ok_or("no id")?.to_owned();
        Ok(Line {
            pair: n,
            conversation,
        })
    });
    lines.buffered(AT_ONCE).try_collect().await
}

/// Inserts agents of a user with an empty inbox.
async fn restore(client: &Client, owner: &str, agents: &[Uuid]) -> Result<()> {
    let insert = "with made as (insert into agent (agent_id, owner_user_id, display_name)
            select a, user_id, 'Crowd' from user_account, unnest($1::uuid[]) a where email = $2 returning agent_id),
        boxes as (insert into inbox (principal_id) select agent_id from made)
        insert into inbox_reader (principal_id, device_id, acked_seq) select agent_id, '', 0 from made";
    client.execute(insert, &[&agents, &owner]).await?;
    Ok(())
}

async fn register(cluster: &Cluster, pair: &Pair, agent: &str, receiver: &Receiver) -> Result<()> {
    let body = json!({ "url": format!("http://{}/hook", receiver.address) });
    let path = format!("/agents/{agent}/webhook");
    let webhook = ask(cluster, pair, "PUT", &path, &body).await?;
    if webhook["status"] != "active" {
        return Err(format!("the webhook is not verified: {}", webhook["last_error"]).into());
    }
    Ok(())
}

/// A request of the pair's user; the answer's data.
async fn ask(
    cluster: &Cluster,
    pair: &Pair,
    method: &str,
    path: &str,
    body: &Value,
) -> Result<Value> {
    let node = cluster.node(0);
    let bearer = format!("Bearer {}", pair.access_token);
    let headers = [("authorization", bearer.as_str())];
    let body = body.to_string();
    let request = request(
        method,
        &node.address,
        path,
        &pair.address,
        &headers,
        Some(&body),
    );
    let answer = node.link().await?.ask(&request).await?;
    let text = String::from_utf8_lossy(&answer.body);
    if !matches!(answer.status, 200 | 201) {
        return Err(format!("{method} {path}: {text}").into());
    }
    let answer: Value = serde_json::from_str(&text)?;
    Ok(answer["data"].clone())
}
