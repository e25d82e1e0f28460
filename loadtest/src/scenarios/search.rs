//! `search`: search and the access log at a hundredth of `--rows`, and at `--rows`, in one run. The
//! caller sees 200 conversations at both sizes, and pages of the access log at both.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use tokio_postgres::NoTls;
use uuid::Uuid;

use crate::{
    Options, Result,
    cluster::{Cluster, Wire},
    crowd::{Crowd, address},
    delivery::Faults,
    http::{Link, get},
    plain::Plain,
    report::{Goal, Ratio, Report, say},
    stats::{Latencies, Quantiles},
};

/// Conversations that the caller sees.
const VISIBLE: usize = 200;
/// A token that a message of every conversation has.
const TOKEN: &str = "0123456789abcdef";
/// The tables that grow.
const TABLES: &str = "conversation, member, message, message_token, access_log, access_log_head";
/// Past the triggers of the log, in a transaction: a run that fails changes no schema.
const FAST_FILL: &str = "set maintenance_work_mem = '512MB'; begin;
    alter table access_log disable trigger user; alter table access_log_head disable trigger user";
/// The triggers are back, and the rows are there.
const FILLED: &str = "alter table access_log enable trigger user;
    alter table access_log_head enable trigger user; commit";
/// The id of row `n`: a ULID of some milliseconds after that of the row before.
const ID: &str = "(left(replace(ulid_floor(app_now() - interval '1 day' + n * interval '10 ms')::text, '-', ''), 12)
    || substr(md5(n::text || random()::text), 13))::uuid";
/// The requests that are measured.
const QUERIES: [(&str, &str); 5] = [
    ("names", "/search?q=garden%20199"),
    ("a slip", "/search?q=gardn&types=conversation"),
    ("tokens", "/search?tokens=0123456789abcdef"),
    ("access log", "/grants/access-log?limit=50"),
    (
        "access log of an agent",
        "/grants/access-log?limit=50&agent_id=",
    ),
];

/// The times of one request at one size.
#[derive(Serialize)]
struct Found {
    query: &'static str,
    rows: usize,
    times: Quantiles,
}

/// The tables that grow, and their caller.
struct Tables {
    client: tokio_postgres::Client,
    caller: Uuid,
    agent: Uuid,
    conversations: usize,
    log: usize,
}

impl Tables {
    async fn open(cluster: &Cluster, caller: Uuid) -> Result<Self> {
        let (client, link) = tokio_postgres::connect(&cluster.postgres_url, NoTls).await?;
        tokio::spawn(link);
        let agent = client
            .query_one("select gen_random_uuid()", &[])
            .await?
            .get(0);
        Ok(Tables {
            client,
            caller,
            agent,
            conversations: 0,
            log: 0,
        })
    }

    /// Grows the tables to so many rows. The first conversations are the caller's.
    async fn grow(&mut self, rows: usize) -> Result<()> {
        let began = Instant::now();
        self.client.batch_execute(FAST_FILL).await?;
        let dropped = self.drop_indexes().await?;
        if self.conversations == 0 {
            self.conversations(VISIBLE, self.caller).await?;
        }
        let stranger: Uuid = self
            .client
            .query_one("select gen_random_uuid()", &[])
            .await?
            .get(0);
        if self.conversations < rows {
            self.conversations(rows - self.conversations, stranger)
                .await?;
        }
        self.log(rows).await?;
        for statement in dropped {
            self.client.batch_execute(&statement).await?;
        }
        self.client.batch_execute(FILLED).await?;
        self.client
            .batch_execute(&format!("vacuum (analyze) {TABLES}"))
            .await?;
        let seconds = began.elapsed().as_secs_f64();
        say(format!("search: the tables grew in {seconds:.0} s"));
        Ok(())
    }

    /// Drops the foreign keys, and the indexes that no constraint needs. Returns the statements
    /// that make them again.
    async fn drop_indexes(&self) -> Result<Vec<String>> {
        let tables: Vec<&str> = TABLES.split(", ").collect();
        let sql = "select format('alter table %s drop constraint %I', conrelid::regclass, conname),
                format('alter table %s add constraint %I %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
            from pg_constraint where contype = 'f' and conrelid::regclass::text = any($1)
            union all
            select format('drop index %s', indexrelid::regclass), pg_get_indexdef(indexrelid) from pg_index
            where indrelid::regclass::text = any($1)
                and not exists (select from pg_constraint where conindid = indexrelid)";
        let rows = self.client.query(sql, &[&tables]).await?;
        for row in &rows {
            self.client.batch_execute(row.get(0)).await?;
        }
        Ok(rows.iter().map(|row| row.get(1)).collect())
    }

    /// Half of the log is the caller's, and a hundredth of that is of one agent. The rows have the
    /// numbers that the log's trigger would give, and no true hashes.
    async fn log(&mut self, rows: usize) -> Result<()> {
        if self.log >= rows {
            return Ok(());
        }
        let (caller, agent, from) = (self.caller, self.agent, self.log + 1);
        let sql = format!(
            "insert into access_log (subject_id, seq, access_id, agent_id, kind, items, at, hash)
             select case when n % 2 = 0 then '{caller}'::uuid else md5('{caller}' || n % 100)::uuid end,
                    case when n % 2 = 0 then n / 2 else n / 100 + 1 end, {ID},
                    case when n % 200 = 0 then '{agent}'::uuid else md5('other')::uuid end, 'keys', 1, app_now(),
                    sha256(n::text::bytea)
             from generate_series({from}, {rows}) n;
             insert into access_log_head
             select subject_id, max(seq), sha256('end') from access_log group by subject_id
             on conflict (subject_id) do update set seq = excluded.seq"
        );
        self.client.batch_execute(&sql).await?;
        self.log = rows;
        Ok(())
    }

    async fn conversations(&mut self, n: usize, member: Uuid) -> Result<()> {
        let [first, last] = [self.conversations + 1, self.conversations + n];
        let sql = format!(
            "create temp table made as select {ID} as conversation_id, n from generate_series({first}, {last}) n;
             insert into conversation (conversation_id, kind, created_by, title, last_seq)
             select conversation_id, 'group', '{}', 'garden ' || n, 1 from made;
             insert into member (conversation_id, principal_id, principal_kind, role)
             select conversation_id, '{member}', 'user', 'member' from made;
             insert into message (conversation_id, seq, message_id, sender_id, sender_kind, hop, created_at, payload)
             select conversation_id, 1, {ID}, '{member}', 'user', 0, app_now(), '{{}}' from made;
             insert into message_token select conversation_id, '{TOKEN}', 1 from made;
             drop table made",
            self.caller
        );
        self.client.batch_execute(&sql).await?;
        self.conversations += n;
        Ok(())
    }
}

/// Measures one request again and again.
async fn measure(link: &mut Link<Wire>, request: &[u8], span: Duration) -> Result<Quantiles> {
    let mut times = Latencies::new();
    let began = Instant::now();
    while began.elapsed() < span {
        let asked = Instant::now();
        let answer = link.ask(request).await?;
        if answer.status != 200 {
            return Err(format!(
                "{}: {}",
                answer.status,
                String::from_utf8_lossy(&answer.body)
            )
            .into());
        }
        times.record(asked.elapsed());
    }
    Ok(times.quantiles())
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, options: &Options) -> Result<Report> {
    let plain = Plain::start_with(cluster, 1, &[("LIMITS_OFF", "true")]).await?;
    let crowd = Crowd::make(cluster, 1, 1).await?;
    let caller = Uuid::from_u128(ulid::Ulid::from_string(&crowd.id(0))?.0);
    let mut tables = Tables::open(cluster, caller).await?;
    let node = plain.cluster.node(0);
    let mut found = Vec::new();
    for rows in [options.rows / 100, options.rows] {
        say(format!(
            "search: {rows} conversations and {rows} rows of the access log"
        ));
        tables.grow(rows).await?;
        // A node closes a link that was idle for so long.
        let mut link = node.link().await?;
        for (query, path) in QUERIES {
            let path = match path.strip_suffix("agent_id=") {
                Some(_) => format!("{path}{}", tables.agent),
                None => path.to_owned(),
            };
            let bearer = format!("Bearer {}", crowd.token(0, 0)?);
            let request = get(
                &node.address,
                &path,
                &address(),
                &[("authorization", &bearer)],
            );
            // A second to warm up.
            measure(&mut link, &request, Duration::from_secs(1)).await?;
            let times = measure(&mut link, &request, Duration::from_secs(options.seconds)).await?;
            found.push(Found { query, rows, times });
        }
    }
    let checked = found.iter().map(|one| one.times.count).sum();
    Ok(Report {
        scenario: "search",
        tables: vec![table(&found)],
        ratios: ratios(&found),
        notes: vec![format!(
            "The caller sees {VISIBLE} conversations. One request at a time, without limits."
        )],
        details: json!({ "seconds": options.seconds, "found": found }),
        faults: Faults::default(),
        checked,
        p99_ms: None,
    })
}

fn table(found: &[Found]) -> Vec<Vec<String>> {
    let heading = ["", "rows", "p50 ms", "p99 ms"].map(str::to_owned).to_vec();
    let rows = found.iter().map(|one| {
        let ms = |us: f64| format!("{:.2}", us / 1000.0);
        vec![
            one.query.to_owned(),
            one.rows.to_string(),
            ms(one.times.p50),
            ms(one.times.p99),
        ]
    });
    [heading].into_iter().chain(rows).collect()
}

fn ratios(found: &[Found]) -> Vec<Ratio> {
    let (small, large) = found.split_at(found.len() / 2);
    let names = [
        "search of names, p99 at full size / at a hundredth",
        "search with a slip, p99 at full size / at a hundredth",
        "search by tokens, p99 at full size / at a hundredth",
        "access log, p99 at full size / at a hundredth",
        "access log of an agent, p99 at full size / at a hundredth",
    ];
    let pairs = names.into_iter().zip(small.iter().zip(large));
    let ratio = |(what, (small, large)): (&'static str, (&Found, &Found))| Ratio {
        what,
        value: large.times.p99 / small.times.p99,
        goal: Goal::AtMost(2.0, 1.2),
    };
    pairs.map(ratio).collect()
}
