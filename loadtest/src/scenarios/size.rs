//! `size`: a send, an empty poll, a page of a history and a connect beside few stored messages, and
//! beside `--rows` of them with all their inbox entries, in one run. Every stored message belongs to
//! a conversation of the measured users, and sends and reads go to all of these in turn.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use tokio_postgres::{Client, NoTls};
use ulid::Ulid;
use uuid::Uuid;

use super::sender::Ids;
use crate::{
    Options, Result,
    cluster::{Cluster, Node, Wire},
    cpu::Watch,
    crowd::Crowd,
    delivery::{Faults, Reader},
    fixtures::{self, Pair},
    http::{Link, get, post},
    report::{Goal, Ratio, Report, say},
    socket::Socket,
    stats::{Latencies, Quantiles},
};

/// Messages of a stored group.
const GROUP_MESSAGES: usize = 1000;
/// Messages of every conversation before the first measurement. A page of a history is full.
const FIRST_MESSAGES: usize = 100;
/// Of a pair's messages, the part in the conversation of the user and the agent.
const PAIR_SHARE: usize = 10;
/// Bytes of a payload.
const PAYLOAD_BYTES: usize = 200;
/// Messages of a page.
const PAGE_MESSAGES: usize = 50;
/// Time without counting before each measurement.
const WARM_UP: Duration = Duration::from_secs(1);
/// The tables that grow.
const TABLES: &str = "message, inbox_entry, idempotency, conversation, member, inbox, inbox_reader, user_account, \
                      device, session";

/// The times of one request beside so many stored messages.
#[derive(Serialize)]
struct Found {
    what: &'static str,
    messages: usize,
    times: Quantiles,
}

/// The stored rows.
struct Store {
    client: Client,
    url: String,
    /// The pairs' conversations.
    pairs: Vec<Uuid>,
    messages: usize,
}

fn uuid(id: &str) -> Result<Uuid> {
    Ok(Uuid::from_u128(Ulid::from_string(id)?.0))
}

async fn connect(url: &str) -> Result<Client> {
    let (client, link) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(link);
    Ok(client)
}

impl Store {
    async fn open(cluster: &Cluster, pairs: &[Pair]) -> Result<Self> {
        let ids = pairs.iter().map(|pair| uuid(&pair.conversation_id));
        Ok(Store {
            client: connect(&cluster.postgres_url).await?,
            url: cluster.postgres_url.clone(),
            pairs: ids.collect::<Result<_>>()?,
            messages: 0,
        })
    }

    /// Adds groups of each user and the next one, with messages, and messages of the pairs.
    /// Returns the seconds.
    async fn grow(&mut self, groups: usize, of_group: usize, of_pair: usize) -> Result<f64> {
        let began = Instant::now();
        let pairs = self.pairs.iter().map(|id| format!("('{id}'::uuid)"));
        let pairs: Vec<String> = pairs.collect();
        // The conversations to fill: (conversation, number of its last message so far, new messages).
        let plan = format!(
            "drop table if exists filling;
             create unlogged table filling as
             select c.conversation_id, c.last_seq as after, {of_pair}::int8 as messages
             from (values {}) as p (id) join conversation c on c.conversation_id = p.id;
             create temp table person on commit preserve rows as
             select principal_id as id, coalesce(lead(principal_id) over w, first_value(principal_id) over w) as next
             from filling join member using (conversation_id) where principal_kind = 'user' window w as (order by principal_id
                 rows between unbounded preceding and unbounded following);
             with made as (
                 insert into conversation (conversation_id, kind, created_by, title)
                 select gen_random_uuid(), 'group', id, 'stored' from person, generate_series(1, {groups})
                 returning conversation_id, created_by
             ), members as (
                 insert into member (conversation_id, principal_id, principal_kind, role)
                 select conversation_id, unnest(array[created_by, next]), 'user', 'member' from made
                 join person on id = created_by
             )
             insert into filling select conversation_id, 0, {of_group} from made;
             drop table person;
             analyze filling",
            pairs.join(", ")
        );
        self.client.batch_execute(&plan).await?;
        let other = connect(&self.url).await?;
        // Messages and entries are inserted side by side.
        tokio::try_join!(
            async { Ok(self.client.batch_execute(&messages()).await?) },
            entries(&other),
        )?;
        self.messages += self.pairs.len() * (groups * of_group + of_pair);
        self.client.batch_execute("drop table filling").await?;
        let vacuum = format!("vacuum (analyze) {TABLES}");
        self.client.batch_execute(&vacuum).await?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Adds a day's keys, and users who have nothing to do with the rest.
    async fn strangers(&self, cluster: &Cluster) -> Result<()> {
        let keys = self.messages / 30;
        let sql = format!(
            "insert into idempotency (key, sender_id, conversation_id, seq, created_at)
             select (left(replace(ulid_floor(at)::text, '-', ''), 12) || substr(md5(n::text), 13))::uuid,
                 gen_random_uuid(), gen_random_uuid(), 1, at
             from (select n, app_now() - n * interval '1 day' / {keys} as at from generate_series(1, {keys}) n) k"
        );
        self.client.batch_execute(&sql).await?;
        Crowd::make(cluster, self.messages / 100, 1).await?;
        Ok(())
    }

    /// The groups of each pair's user, in the order of the pairs.
    async fn groups(&self) -> Result<Vec<Vec<String>>> {
        let rows = self
            .client
            .query(
                "select p.n, g.conversation_id from unnest($1::uuid[]) with ordinality as p (id, n)
                 join conversation c on c.conversation_id = p.id
                 join conversation g on g.created_by = c.created_by and g.title = 'stored'",
                &[&self.pairs],
            )
            .await?;
        let mut groups = vec![Vec::new(); self.pairs.len()];
        for row in rows {
            let (n, id): (i64, Uuid) = (row.get(0), row.get(1));
            groups[usize::try_from(n - 1)?].push(Ulid(id.as_u128()).to_string());
        }
        Ok(groups)
    }

    /// Brings every reader to the end of its inbox, and the dirty pages to the disk.
    async fn settle(&self) -> Result<()> {
        let sql = "insert into inbox_reader (principal_id, device_id, acked_seq, logged_seq)
                select a.agent_id, '', i.head_seq, i.head_seq from agent a join inbox i on i.principal_id = a.agent_id
            on conflict do nothing;
            update inbox_reader r set acked_seq = head_seq, logged_seq = head_seq
                from inbox i where i.principal_id = r.principal_id and r.acked_seq < head_seq;
            vacuum (analyze) inbox_reader";
        for statement in sql.split(';') {
            self.client.batch_execute(statement).await?;
        }
        Ok(())
    }

    /// The size of the database, in MB of 1,048,576 bytes; and the bytes of a message and of an
    /// entry, with their indexes.
    async fn sizes(&self) -> Result<(i64, f64, f64)> {
        let sql = "select pg_database_size(current_database()) >> 20,
            (select sum(pg_total_relation_size(inhrelid))::float8 from pg_inherits where inhparent = 'message'::regclass),
            pg_total_relation_size('inbox_entry')::float8";
        let row = self.client.query_one(sql, &[]).await?;
        let (messages, entries): (f64, f64) = (row.get(1), row.get(2));
        let stored = self.messages as f64;
        Ok((row.get(0), messages / stored, entries / stored / 2.0))
    }
}

/// A month of messages.
fn messages() -> String {
    format!(
        "insert into message (conversation_id, seq, message_id, sender_id, sender_kind, hop, created_at, payload)
         select f.conversation_id, f.after + n, gen_random_uuid(), c.created_by, 'user', 0,
             app_now() - interval '28 days' * (1 - n / f.messages::float8),
             '{{\"type\":\"text\",\"text\":\"{}\"}}'
         from filling f join conversation c using (conversation_id), generate_series(1, f.messages) n;
         update conversation c set last_seq = f.after + f.messages from filling f
             where c.conversation_id = f.conversation_id",
        "x".repeat(PAYLOAD_BYTES)
    )
}

/// Their entries: a row for each message and member.
async fn entries(client: &Client) -> Result<()> {
    let sql = "drop index inbox_entry_age;
        insert into inbox_entry (principal_id, seq, created_at, events, conversation_id, message_seq)
        select p.principal_id, p.seq + n, app_now() - interval '28 days' * (1 - (p.before + n) / p.total::float8), 1,
            p.conversation_id, p.after + n
        from (select m.principal_id, f.*, i.head_seq + sum(f.messages) over w - f.messages as seq,
                  sum(f.messages) over w - f.messages as before,
                  sum(f.messages) over (partition by m.principal_id) as total
              from filling f join member m using (conversation_id) join inbox i using (principal_id)
              window w as (partition by m.principal_id order by f.conversation_id)) p,
            generate_series(1, p.messages) n;
        update inbox i set head_seq = head_seq + added
            from (select principal_id, sum(messages) as added from filling join member using (conversation_id)
                  group by principal_id) f
            where f.principal_id = i.principal_id;
        create index inbox_entry_age on inbox_entry using btree (created_at)";
    Ok(client.batch_execute(sql).await?)
}

/// The measured requests of the pairs, one at a time.
struct Requests<'a> {
    node: &'a Node,
    pairs: &'a mut [Pair],
    groups: Vec<Vec<String>>,
    span: Duration,
}

/// Asks again and again, and times the answers after the warm-up.
async fn repeat(
    span: Duration,
    mut ask: impl AsyncFnMut(usize) -> Result<()>,
) -> Result<Quantiles> {
    let (mut times, began) = (Latencies::new(), Instant::now());
    for n in 0.. {
        let asked = Instant::now();
        ask(n).await?;
        if asked - began > WARM_UP {
            times.record(asked.elapsed());
        }
        if began.elapsed() > WARM_UP + span {
            break;
        }
    }
    Ok(times.quantiles())
}

async fn ask(link: &mut Link<Wire>, request: &[u8], status: u16) -> Result<()> {
    let answer = link.ask(request).await?;
    if answer.status == status {
        return Ok(());
    }
    let body = String::from_utf8_lossy(&answer.body);
    Err(format!("{} where {status} was due: {body}", answer.status).into())
}

impl Requests<'_> {
    /// The pair of request `n`, and one of its groups.
    fn group(&self, n: usize) -> (&Pair, &str) {
        let pair = n % self.pairs.len();
        let groups = &self.groups[pair];
        (
            &self.pairs[pair],
            &groups[n / self.pairs.len() % groups.len()],
        )
    }

    /// From the dial to `caught_up`, of an agent that has missed nothing.
    async fn connects(&mut self) -> Result<Quantiles> {
        let (node, span) = (self.node, self.span);
        let pairs = &mut *self.pairs;
        repeat(span, async |n| {
            let pair = &mut pairs[n % pairs.len()];
            pair.reader = Reader::default();
            let mut socket = Socket::open(node, pair).await?;
            socket.catch_up(pair).await?;
            socket.close().await;
            Ok(())
        })
        .await
    }

    /// Polls of agents that have missed nothing.
    async fn polls(&self) -> Result<Quantiles> {
        let mut link = self.node.link().await?;
        repeat(self.span, async |n| {
            let pair = &self.pairs[n % self.pairs.len()];
            let path = format!("/agents/{}/messages/poll", pair.agent_id);
            let bearer = format!("Bearer {}", pair.agent_token);
            let headers = [("authorization", bearer.as_str())];
            let request = get(&self.node.address, &path, &pair.address, &headers);
            ask(&mut link, &request, 200).await
        })
        .await
    }

    /// Newest pages of groups.
    async fn histories(&self) -> Result<Quantiles> {
        let mut link = self.node.link().await?;
        repeat(self.span, async |n| {
            let (pair, group) = self.group(n);
            let path = format!("/conversations/{group}/messages?limit={PAGE_MESSAGES}");
            let bearer = format!("Bearer {}", pair.access_token);
            let headers = [("authorization", bearer.as_str())];
            let request = get(&self.node.address, &path, &pair.address, &headers);
            ask(&mut link, &request, 200).await
        })
        .await
    }

    /// Sends into groups, each with its own key.
    async fn sends(&self) -> Result<Quantiles> {
        let (mut link, ids) = (self.node.link().await?, Ids::new());
        let text = "x".repeat(PAYLOAD_BYTES);
        repeat(self.span, async |n| {
            let (pair, group) = self.group(n);
            let path = format!("/conversations/{group}/messages");
            let bearer = format!("Bearer {}", pair.access_token);
            let headers = [("authorization", bearer.as_str())];
            let payload = json!({ "type": "text", "text": text });
            let body =
                json!({ "client_message_id": ids.id(0, n as u64).to_string(), "payload": payload });
            let body = body.to_string();
            let request = post(&self.node.address, &path, &pair.address, &headers, &body);
            ask(&mut link, &request, 201).await
        })
        .await
    }
}

async fn measure(
    cluster: &Cluster,
    store: &Store,
    pairs: &mut [Pair],
    options: &Options,
) -> Result<Vec<Found>> {
    store.settle().await?;
    Watch::of(cluster).await?.quiet().await;
    fixtures::renew(cluster.node(0), pairs).await?;
    let mut requests = Requests {
        node: cluster.node(0),
        pairs,
        groups: store.groups().await?,
        span: Duration::from_secs(options.seconds),
    };
    let found = [
        ("connect", requests.connects().await?),
        ("empty poll", requests.polls().await?),
        ("page of a history", requests.histories().await?),
        ("send", requests.sends().await?),
    ];
    let row = |(what, times)| Found {
        what,
        messages: store.messages,
        times,
    };
    Ok(found.map(row).into())
}

/// Runs the scenario once.
pub async fn run(cluster: &Cluster, pairs: &mut [Pair], options: &Options) -> Result<Report> {
    if pairs.len() < 2 {
        return Err("a group has two users: --pairs must be 2 or more".into());
    }
    let mut store = Store::open(cluster, pairs).await?;
    store.grow(1, FIRST_MESSAGES, FIRST_MESSAGES).await?;
    say(format!("size: beside {} messages", store.messages));
    let mut found = measure(cluster, &store, pairs, options).await?;
    let of_pair = options.rows / pairs.len() / PAIR_SHARE;
    let groups = (options.rows / pairs.len() - of_pair).div_ceil(GROUP_MESSAGES);
    let seconds = store.grow(groups, GROUP_MESSAGES, of_pair).await?;
    store.strangers(cluster).await?;
    let (megabytes, of_message, of_entry) = store.sizes().await?;
    say(format!(
        "size: beside {} messages, {megabytes} MB, which took {seconds:.0} s",
        store.messages
    ));
    found.extend(measure(cluster, &store, pairs, options).await?);
    let checked = found.iter().map(|one| one.times.count).sum();
    Ok(Report {
        scenario: "size",
        tables: vec![table(&found)],
        ratios: ratios(&found, of_message, of_entry),
        notes: vec![format!(
            "One request at a time, on one node. {} users have {groups} groups of {GROUP_MESSAGES} messages each at full \
             size, and sends and pages go to all of them in turn. The database has {megabytes} MB.",
            pairs.len()
        )],
        details: json!({ "messages": store.messages, "megabytes": megabytes, "filled_in_seconds": seconds,
            "seconds": options.seconds, "found": found }),
        faults: Faults::default(),
        checked,
        p99_ms: None,
    })
}

fn table(found: &[Found]) -> Vec<Vec<String>> {
    let heading = ["", "messages", "count", "p50 ms", "p99 ms"];
    let rows = found.iter().map(|one| {
        let ms = |us: f64| format!("{:.2}", us / 1000.0);
        vec![
            one.what.to_owned(),
            one.messages.to_string(),
            one.times.count.to_string(),
            ms(one.times.p50),
            ms(one.times.p99),
        ]
    });
    [heading.map(str::to_owned).to_vec()]
        .into_iter()
        .chain(rows)
        .collect()
}

fn ratios(found: &[Found], of_message: f64, of_entry: f64) -> Vec<Ratio> {
    let (few, many) = found.split_at(found.len() / 2);
    let names = [
        "connect, p50 beside many messages / few",
        "empty poll, p50 beside many messages / few",
        "page of a history, p50 beside many messages / few",
        "send, p50 beside many messages / few",
    ];
    let pairs = names.into_iter().zip(few.iter().zip(many));
    let ratio = |(what, (few, many)): (&'static str, (&Found, &Found))| Ratio {
        what,
        value: many.times.p50 / few.times.p50,
        goal: Goal::AtMost(1.3, 1.1),
    };
    let mut ratios: Vec<Ratio> = pairs.map(ratio).collect();
    let stored = many.first().map_or(0, |one| one.messages);
    let payload = format!(
        r#"{{"type":"text","text":"{}"}}"#,
        "x".repeat(PAYLOAD_BYTES)
    )
    .len();
    let figures = [
        ("stored messages", stored as f64),
        (
            "bytes of a message without its payload",
            of_message - payload as f64,
        ),
        ("bytes of an entry", of_entry),
    ];
    ratios.extend(figures.map(|(what, value)| Ratio {
        what,
        value,
        goal: Goal::None,
    }));
    ratios
}
