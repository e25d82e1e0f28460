//! `popular`: many users who write to one agent, beside the same load spread over several agents.
//! It shows how much the single row of an inbox, which numbers its events, holds up its senders.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use tokio_postgres::{Client, NoTls};
use ulid::Ulid;
use uuid::Uuid;

use crate::{
    Options, Result,
    cluster::Cluster,
    cpu::{self, Used, Watch},
    crowd::{Crowd, Poster},
    delivery::Faults,
    report::{Goal, Ratio, Report, say, warn},
    stats::{Latencies, Quantiles, median},
};

const PAYLOAD_BYTES: usize = 1024;
const USERS: usize = 1000;
/// The number of agents that share the load in the second phase.
const AGENTS: usize = 8;
const WARM_UP: Duration = Duration::from_secs(1);

/// The findings of one phase of one round.
#[derive(Serialize)]
struct Found {
    agents: usize,
    /// Messages per second.
    rate: f64,
    /// Time to the answer, in µs.
    answer: Quantiles,
    messages: u64,
    cpu: Used,
    /// Messages per transaction.
    batch: f64,
}

/// Agents, and a conversation of each user with one of them.
struct Agents {
    ids: Vec<Uuid>,
    /// By user.
    conversations: Vec<String>,
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, options: &Options) -> Result<Report> {
    let crowd = Crowd::make(cluster, USERS, 1).await?;
    let (mut client, link) = tokio_postgres::connect(&cluster.postgres_url, NoTls).await?;
    tokio::spawn(link);
    let groups = [
        Agents::make(&mut client, &crowd, 1).await?,
        Agents::make(&mut client, &crowd, AGENTS).await?,
    ];
    let watch = Watch::of(cluster).await?;
    let mut rounds: [Vec<Found>; 2] = [Vec::new(), Vec::new()];
    let (mut faults, mut checked) = (Faults::default(), 0);
    for n in 1..=options.rounds {
        say(format!("popular: round {n} of {}", options.rounds));
        for place in 0..groups.len() {
            // The first phase of a round changes, so that the growth of the tables favours none.
            let which = (place + n) % groups.len();
            watch.quiet().await;
            let before = groups[which].delivered(&client).await?;
            let (found, acked, failed) =
                drive(cluster, &watch, &crowd, &groups[which], options).await?;
            let delivered = groups[which].delivered(&client).await? - before;
            faults.failed += failed;
            faults.lost += acked.saturating_sub(delivered);
            faults.strange += delivered.saturating_sub(acked + failed);
            checked += acked;
            rounds[which].push(found);
        }
    }
    let rate = |of: &[Found]| median(of.iter().map(|found| found.rate));
    let cost = |of: &[Found]| {
        median(
            of.iter()
                .map(|found| found.cpu.postgres / found.messages.max(1) as f64),
        )
    };
    let mut notes = vec![format!(
        "{USERS} users, {} sends in flight, two nodes, TLS. Medians of the rounds. CPU: µs of processor time per message.",
        options.in_flight
    )];
    let others = rounds
        .iter()
        .flatten()
        .map(|found| found.cpu.others_percent());
    notes.extend(cpu::remark(others.fold(0.0, f64::max)));
    Ok(Report {
        scenario: "popular",
        tables: vec![table(&rounds)],
        ratios: vec![
            Ratio {
                what: "messages/s to one agent / to eight",
                value: rate(&rounds[0]) / rate(&rounds[1]),
                goal: Goal::AtLeast(0.8, 1.0),
            },
            Ratio {
                what: "Postgres CPU of a message, to one agent / to eight",
                value: cost(&rounds[0]) / cost(&rounds[1]),
                goal: Goal::None,
            },
        ],
        notes,
        details: json!({ "payload_bytes": PAYLOAD_BYTES, "users": USERS, "in_flight": options.in_flight,
            "seconds": options.seconds, "rounds": rounds }),
        faults,
        checked,
        p99_ms: None,
    })
}

impl Agents {
    /// Inserts them with a relation and a conversation to each user.
    async fn make(client: &mut Client, crowd: &Crowd, agents: usize) -> Result<Self> {
        let users: Vec<Uuid> = (0..USERS).map(|user| crowd.session(user, 0).0).collect();
        let tx = client.transaction().await?;
        let made = tx
            .query(
                "with made as (
                     insert into agent (agent_id, owner_user_id, display_name, state)
                     select gen_random_uuid(), $1, 'popular', 'active' from generate_series(1, $2::int4)
                     returning agent_id
                 ), boxes as (insert into inbox (principal_id) select agent_id from made),
                 readers as (insert into inbox_reader (principal_id, device_id, acked_seq) select agent_id, '', 0 from made)
                 select agent_id from made",
                &[&users[0], &i32::try_from(agents)?],
            )
            .await?;
        let ids: Vec<Uuid> = made.iter().map(|row| row.get(0)).collect();
        let of: Vec<Uuid> = (0..USERS).map(|user| ids[user % agents]).collect();
        let rows = tx
            .query(
                "with pair as materialized (
                     select u, a, n, gen_random_uuid() as relation_id, gen_random_uuid() as conversation_id
                     from unnest($1::uuid[], $2::uuid[]) with ordinality p (u, a, n)
                 ), bound as (
                     insert into relation (relation_id, user_id, agent_id) select relation_id, u, a from pair
                 ), made as (
                     insert into conversation (conversation_id, kind, created_by, pair_low, pair_high)
                     select conversation_id, 'agent', u, least(u, a), greatest(u, a) from pair
                 ), members as (
                     insert into member (conversation_id, principal_id, principal_kind, role, relation_id)
                     select conversation_id, u, 'user', 'owner', null from pair
                     union all select conversation_id, a, 'agent', 'agent', relation_id from pair
                 )
                 select conversation_id from pair order by n",
                &[&users, &of],
            )
            .await?;
        tx.commit().await?;
        let conversations = rows
            .iter()
            .map(|row| Ulid(row.get::<_, Uuid>(0).as_u128()).to_string())
            .collect();
        Ok(Agents { ids, conversations })
    }

    /// The number of messages in their inboxes, each of which has no gap.
    async fn delivered(&self, client: &Client) -> Result<u64> {
        let row = client
            .query_one(
                "select coalesce(sum(e.n), 0)::int8, coalesce(bool_and(e.n = i.head_seq), true) from inbox i
                 cross join lateral (select coalesce(sum(events), 0) as n from inbox_entry e where e.principal_id = i.principal_id) e
                 where i.principal_id = any($1)",
                &[&self.ids],
            )
            .await?;
        if !row.get::<_, bool>(1) {
            return Err("an inbox has a gap".into());
        }
        Ok(u64::try_from(row.get::<_, i64>(0))?)
    }
}

/// Keeps `in_flight` sends in progress, each time by another user. Returns the findings, and the
/// numbers of acked and of failed sends.
async fn drive(
    cluster: &Cluster,
    watch: &Watch,
    crowd: &Crowd,
    agents: &Agents,
    options: &Options,
) -> Result<(Found, u64, u64)> {
    let mut shares: Vec<Vec<Poster>> = (0..options.in_flight).map(|_| Vec::new()).collect();
    for (user, conversation) in agents.conversations.iter().enumerate() {
        let share = user % options.in_flight;
        let node = cluster.node(share);
        shares[share].push(
            crowd
                .sender(node, user, conversation, PAYLOAD_BYTES)
                .await?,
        );
    }
    let start = Instant::now() + WARM_UP;
    let end = start + Duration::from_secs(options.seconds);
    let before = batches(cluster).await?;
    let workers: Vec<_> = shares
        .into_iter()
        .map(|share| tokio::spawn(work(share, start, end)))
        .collect();
    sleep_until(start).await;
    let then = watch.now();
    sleep_until(end).await;
    let cpu = watch.now().since(&then);
    let (mut latencies, mut acked, mut failed) = (Latencies::new(), 0, 0);
    for worker in workers {
        let worked = worker.await?;
        latencies.add(&worked.latencies);
        acked += worked.acked;
        failed += worked.failed;
    }
    let after = batches(cluster).await?;
    let answer = latencies.quantiles();
    let found = Found {
        agents: agents.ids.len(),
        rate: answer.count as f64 / options.seconds as f64,
        messages: answer.count,
        answer,
        cpu,
        batch: (after.1 - before.1) / (after.0 - before.0).max(1.0),
    };
    Ok((found, acked, failed))
}

struct Worked {
    latencies: Latencies,
    acked: u64,
    failed: u64,
}

/// Sends one message after the other, each as the next of its users.
async fn work(mut users: Vec<Poster>, start: Instant, end: Instant) -> Worked {
    let mut worked = Worked {
        latencies: Latencies::new(),
        acked: 0,
        failed: 0,
    };
    let users_len = users.len();
    for n in 0.. {
        let began = Instant::now();
        if began >= end || users_len == 0 {
            break;
        }
        match users[n % users_len].send().await {
            Ok(_) => {
                worked.acked += 1;
                let now = Instant::now();
                if now >= start && now < end {
                    worked.latencies.record(now - began);
                }
            }
            Err(failure) => {
                if worked.failed == 0 {
                    warn(format!("a send failed: {failure}"));
                }
                worked.failed += 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    worked
}

/// The number of transactions and of their messages so far, over all nodes.
async fn batches(cluster: &Cluster) -> Result<(f64, f64)> {
    let mut total = (0.0, 0.0);
    for node in &cluster.nodes {
        let metrics = node.metrics().await?;
        total.0 += metrics.sum("send_batch_messages_count");
        total.1 += metrics.sum("send_batch_messages_sum");
    }
    Ok(total)
}

fn table(rounds: &[Vec<Found>]) -> Vec<Vec<String>> {
    let heading = [
        "agents",
        "msg/s",
        "p50 ms",
        "p99 ms",
        "batch",
        "nodes CPU",
        "Postgres",
        "Redis",
        "client",
    ];
    let mut table = vec![heading.map(str::to_owned).into()];
    for of in rounds {
        let middle = |value: &dyn Fn(&Found) -> f64| median(of.iter().map(value));
        let per_message = |seconds: &dyn Fn(&Used) -> f64| {
            let cost = middle(&|found| seconds(&found.cpu) * 1e6 / found.messages.max(1) as f64);
            format!("{cost:.0}")
        };
        table.push(vec![
            of.first().map_or(0, |found| found.agents).to_string(),
            format!("{:.0}", middle(&|found| found.rate)),
            format!("{:.2}", middle(&|found| found.answer.p50 / 1000.0)),
            format!("{:.2}", middle(&|found| found.answer.p99 / 1000.0)),
            format!("{:.1}", middle(&|found| found.batch)),
            per_message(&|used| used.nodes.iter().sum()),
            per_message(&|used| used.postgres),
            per_message(&|used| used.redis),
            per_message(&|used| used.client),
        ]);
    }
    table
}
