//! `purge`: sends before and while `--rows` rows are purged. Half are messages of ended relations,
//! which are emptied with their tokens; half are idempotency keys, which are deleted.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::{
    Options, Result,
    cluster::Cluster,
    cpu::Watch,
    crowd::{Crowd, Poster},
    delivery::Faults,
    plain::Plain,
    report::{Goal, Ratio, Report, say},
    stats::{Latencies, Quantiles},
};

/// Users that send, each into a conversation of its own.
const SENDERS: usize = 8;
/// Pause of a user between two sends.
const PAUSE: Duration = Duration::from_millis(10);
/// Messages of one ended relation.
const MESSAGES: usize = 1000;
/// The longest purge.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// The rows that are to be purged.
struct Rows {
    client: Client,
}

impl Rows {
    async fn open(cluster: &Cluster) -> Result<Self> {
        let (client, link) = tokio_postgres::connect(&cluster.postgres_url, NoTls).await?;
        tokio::spawn(link);
        Ok(Rows { client })
    }

    /// Inserts the rows of old relations and old keys.
    async fn fill(&self, rows: usize, user: Uuid) -> Result<()> {
        let half = rows / 2;
        let relations = half.div_ceil(MESSAGES);
        let sql = format!(
            "with agents as (
                 insert into agent (agent_id, owner_user_id, display_name)
                 select gen_random_uuid(), '{user}', 'Purged' from generate_series(1, {relations}) returning agent_id
             ), relations as (
                 insert into relation (relation_id, user_id, agent_id, state, created_at, revoked_at, purge_at, purge_due)
                 select gen_random_uuid(), '{user}', agent_id, 'revoked', app_now() - interval '9 days',
                     app_now() - interval '7 days', app_now(), app_now() + interval '1 hour' from agents
             ), conversations as (
                 insert into conversation (conversation_id, kind, created_by, pair_low, pair_high, last_seq)
                 select gen_random_uuid(), 'agent', '{user}', least('{user}'::uuid, agent_id),
                     greatest('{user}'::uuid, agent_id), {MESSAGES} from agents returning conversation_id
             )
             insert into message (conversation_id, seq, message_id, sender_id, sender_kind, hop, created_at, payload)
             select conversation_id, n, gen_random_uuid(), '{user}', 'user', 0, app_now() - interval '8 days',
                 json_build_object('type', 'encrypted', 'ciphertext', repeat('x', 200))::text
             from conversations, generate_series(1, {MESSAGES}) n;
             insert into idempotency (key, sender_id, conversation_id, seq, created_at)
             select gen_random_uuid(), '{user}', gen_random_uuid(), 1, app_now() - interval '2 days' - n * interval '1 ms'
             from generate_series(1, {half}) n;
             vacuum (analyze) message, idempotency, relation, conversation"
        );
        for statement in sql.split(';') {
            self.client.batch_execute(statement).await?;
        }
        Ok(())
    }

    /// Makes the purges due, and asks the nodes for them.
    async fn start(&self) -> Result<()> {
        let due = "update relation set purge_due = app_now() where state = 'revoked' and purge_due > app_now()
                       and purge_due < app_now() + interval '2 hours'";
        self.client.batch_execute(due).await?;
        for upkeep in ["purge_relations", "forget_idempotency_keys"] {
            let ask = format!(
                "insert into job (kind, payload, unique_key) values ('upkeep', '{{\"upkeep\":\"{upkeep}\"}}', '{upkeep}')
                 on conflict do nothing"
            );
            self.client.batch_execute(&ask).await?;
        }
        Ok(())
    }

    /// Whether any row is left to be purged.
    async fn are_left(&self) -> Result<bool> {
        let sql = "select exists (select from relation where purge_due <= app_now())
            or exists (select from idempotency where created_at < app_now() - interval '25 hours')";
        Ok(self.client.query_one(sql, &[]).await?.get(0))
    }
}

/// Sends of all users until the end.
async fn send(posters: &mut [Poster], is_over: impl Fn() -> bool) -> Result<Quantiles> {
    let users = posters.iter_mut().map(|poster| {
        let is_over = &is_over;
        async move {
            let mut times = Latencies::new();
            while !is_over() {
                let began = Instant::now();
                poster.send().await?;
                times.record(began.elapsed());
                tokio::time::sleep(PAUSE).await;
            }
            Result::Ok(times)
        }
    });
    let mut all = Latencies::new();
    for times in futures_util::future::try_join_all(users).await? {
        all.add(&times);
    }
    Ok(all.quantiles())
}

/// A phase of the run.
#[derive(Serialize)]
struct Phase {
    name: &'static str,
    seconds: f64,
    sends: Quantiles,
}

/// Runs the scenario once.
pub async fn run(cluster: &Cluster, options: &Options) -> Result<Report> {
    let plain = Plain::start_with(cluster, 2, &[("LIMITS_OFF", "true")]).await?;
    let crowd = Crowd::make(cluster, SENDERS, 1).await?;
    let rows = Rows::open(cluster).await?;
    say(format!("purge: {} rows are inserted", options.rows));
    let user = Uuid::from_u128(ulid::Ulid::from_string(&crowd.id(0))?.0);
    rows.fill(options.rows, user).await?;
    let watch = Watch::of(&plain.cluster).await?;
    watch.quiet().await;
    // Access tokens live five minutes, and a node closes an idle link: both are made last.
    let mut posters = Vec::new();
    for n in 0..SENDERS {
        let conversation = crowd.group(n..n + 1).await?;
        posters.push(
            crowd
                .sender(plain.cluster.node(n), n, &conversation, 1024)
                .await?,
        );
    }
    let span = Duration::from_secs(options.seconds);
    let mut phases = Vec::new();
    for name in ["before", "during", "after"] {
        say(format!("purge: sends {name} the purge"));
        let began = Instant::now();
        let over = std::cell::Cell::new(false);
        let until = async {
            if name == "during" {
                rows.start().await?;
                while rows.are_left().await? {
                    if began.elapsed() > TIMEOUT {
                        return Err("the purge does not end".into());
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            } else {
                tokio::time::sleep(span).await;
            }
            over.set(true);
            Result::Ok(())
        };
        let (sends, ended) = tokio::join!(send(&mut posters, || over.get()), until);
        ended?;
        let seconds = began.elapsed().as_secs_f64();
        phases.push(Phase {
            name,
            seconds,
            sends: sends?,
        });
    }
    let checked = phases.iter().map(|phase| phase.sends.count).sum();
    let quiet = phases[0].sends.p99.max(phases[2].sends.p99);
    Ok(Report {
        scenario: "purge",
        tables: vec![table(&phases)],
        ratios: vec![Ratio {
            what: "p99 of sends during the purge / before and after",
            value: phases[1].sends.p99 / quiet,
            goal: Goal::AtMost(1.2, 1.05),
        }],
        notes: vec![format!(
            "{} rows, {SENDERS} users that pause {} ms between two sends. The larger p99 of before and after counts.",
            options.rows,
            PAUSE.as_millis()
        )],
        details: json!({ "rows": options.rows, "phases": phases }),
        faults: Faults::default(),
        checked,
        p99_ms: None,
    })
}

fn table(phases: &[Phase]) -> Vec<Vec<String>> {
    let heading = ["sends", "seconds", "count", "p50 ms", "p99 ms"]
        .map(str::to_owned)
        .to_vec();
    let rows = phases.iter().map(|phase| {
        let ms = |us: f64| format!("{:.2}", us / 1000.0);
        vec![
            phase.name.to_owned(),
            format!("{:.0}", phase.seconds),
            phase.sends.count.to_string(),
            ms(phase.sends.p50),
            ms(phase.sends.p99),
        ]
    });
    [heading].into_iter().chain(rows).collect()
}
