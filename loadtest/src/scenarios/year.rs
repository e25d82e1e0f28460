//! `year`: a year of `--rows` messages in small. Each week is written with the database's clock moved
//! on, the nodes' own jobs remove what is too old, and tables are vacuumed by the rule of autovacuum
//! and their own settings. Sizes, dead rows and the cost of retention must then stay what they are.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::{
    Options, Result,
    cluster::Cluster,
    crowd::Crowd,
    delivery::Faults,
    plain::Plain,
    report::{Goal, Ratio, Report, say},
    stats::median,
};

const WEEKS: usize = 52;
/// Entries are kept 30 days, and events 31: from here on as much goes as comes.
const STEADY_FROM: usize = 8;
/// The weeks whose medians are compared: the first ones of the steady state, and the last ones.
const COMPARED: usize = 6;
const USERS: usize = 200;
const GROUPS: usize = 100;
/// The longest retention of a week.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Postgres reports its counts a second late.
const COUNTED: Duration = Duration::from_millis(1_100);
/// The tables that retention cleans, and those that each send updates.
const TABLES: [&str; 6] = [
    "inbox_entry",
    "event",
    "idempotency",
    "inbox",
    "conversation",
    "inbox_reader",
];
/// The upkeep that removes rows by age.
const UPKEEP: [&str; 2] = ["expire_inboxes", "forget_idempotency_keys"];
/// The real time of the database again.
const PRESENT: &str =
    "create or replace function app_now() returns timestamptz language sql stable parallel safe
    as 'select statement_timestamp()'";

/// A table after a week.
#[derive(Clone, Serialize)]
struct Size {
    table: &'static str,
    /// With its indexes.
    bytes: f64,
    live: f64,
    dead: f64,
    /// Whether it was vacuumed this week.
    is_vacuumed: bool,
}

/// A week.
#[derive(Serialize)]
struct Week {
    /// Seconds until nothing too old was left.
    retention_seconds: f64,
    /// Rows that retention removed.
    removed: f64,
    /// Pages that it read, in memory or not, in tables and indexes.
    pages: f64,
    sizes: Vec<Size>,
}

/// The counts of Postgres over the tables that retention cleans.
#[derive(Clone, Copy)]
struct Counted {
    removed: f64,
    pages: f64,
}

struct Year {
    client: Client,
    messages: usize,
}

impl Year {
    /// Moves the database's clock on to a week.
    async fn turn(&self, week: usize) -> Result<()> {
        let sql = format!(
            "create or replace function app_now() returns timestamptz language sql stable parallel safe
             as 'select statement_timestamp() + interval ''{} days'''",
            week * 7
        );
        Ok(self.client.batch_execute(&sql).await?)
    }

    /// Writes a week's messages with their entries and keys, a tenth as many events, and the updates of
    /// the rows that sends change.
    async fn write(&self) -> Result<()> {
        let messages = self.messages;
        let sql = format!(
            "create temp table sent on commit drop as
             select c.conversation_id, c.last_seq + row_number() over (partition by g.id order by n) as seq, c.created_by,
                 app_now() - interval '7 days' * (1 - n / {messages}::float8) as at
             from generate_series(1, {messages}) n
             join (select conversation_id as id, row_number() over (order by conversation_id) as place from conversation
                   where title = 'year') g on g.place = n % {GROUPS} + 1
             join conversation c on c.conversation_id = g.id;
             insert into message (conversation_id, seq, message_id, sender_id, sender_kind, hop, created_at, payload)
             select conversation_id, seq, gen_random_uuid(), created_by, 'user', 0, at, '{{\"type\":\"text\"}}' from sent;
             insert into idempotency (key, sender_id, conversation_id, seq, created_at)
             select (left(replace(ulid_floor(at)::text, '-', ''), 12) || substr(md5(random()::text), 13))::uuid, created_by,
                 conversation_id, seq, at
             from sent;
             insert into inbox_entry (principal_id, seq, created_at, events, conversation_id, message_seq)
             select m.principal_id, i.head_seq + row_number() over (partition by m.principal_id order by s.at), s.at, 1,
                 s.conversation_id, s.seq
             from sent s join member m using (conversation_id) join inbox i using (principal_id);
             insert into event (event_id, kind, created_at, data)
             select gen_random_uuid(), 'member.added', at, '{{}}' from sent where random() < 0.1;
             update conversation c set last_seq = s.seq
                 from (select conversation_id, max(seq) as seq from sent group by conversation_id) s
                 where s.conversation_id = c.conversation_id;
             update inbox i set head_seq = e.seq
                 from (select principal_id, max(seq) as seq from inbox_entry group by principal_id) e
                 where e.principal_id = i.principal_id;
             update inbox_reader r set acked_seq = i.head_seq from inbox i where i.principal_id = r.principal_id"
        );
        // Statements of one call are one transaction.
        Ok(self.client.batch_execute(&sql).await?)
    }

    /// Asks the nodes for retention, and waits until nothing too old is left. Returns the seconds.
    async fn retain(&self) -> Result<f64> {
        let began = Instant::now();
        for upkeep in UPKEEP {
            let ask = format!(
                "insert into job (kind, payload, unique_key) values ('upkeep', '{{\"upkeep\":\"{upkeep}\"}}', '{upkeep}')
                 on conflict do nothing"
            );
            self.client.batch_execute(&ask).await?;
        }
        let left = "select exists (select from inbox_entry where created_at < app_now() - interval '30 days')
            or exists (select from event where created_at < app_now() - interval '31 days')
            or exists (select from idempotency where created_at < app_now() - interval '25 hours')";
        while self.client.query_one(left, &[]).await?.get(0) {
            if began.elapsed() > TIMEOUT {
                return Err("retention does not keep up with a week".into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(began.elapsed().as_secs_f64())
    }

    async fn counted(&self) -> Result<Counted> {
        let sql = "select sum(n_tup_del)::float8, sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::float8
            from pg_stat_user_tables join pg_statio_user_tables using (relid)
            where pg_stat_user_tables.relname in ('inbox_entry', 'event', 'idempotency')";
        let row = self.client.query_one(sql, &[]).await?;
        Ok(Counted {
            removed: row.get(0),
            pages: row.get(1),
        })
    }

    /// Vacuums the tables that autovacuum would, and measures all.
    async fn vacuum(&self) -> Result<Vec<Size>> {
        // Postgres's own rule: 50 dead rows and a share of all; or 1,000 new rows and a share.
        let sql = "select c.relname::text, pg_total_relation_size(c.oid)::float8, n_live_tup::float8, n_dead_tup::float8,
                n_dead_tup > 50 + c.reltuples * coalesce(
                    (select option_value::float8 from pg_options_to_table(c.reloptions)
                     where option_name = 'autovacuum_vacuum_scale_factor'), 0.2)
                or n_ins_since_vacuum > 1000 + c.reltuples * coalesce(
                    (select option_value::float8 from pg_options_to_table(c.reloptions)
                     where option_name = 'autovacuum_vacuum_insert_scale_factor'), 0.2)
            from pg_class c join pg_stat_user_tables s on s.relid = c.oid
            where s.relname = any($1)";
        let names: Vec<&str> = TABLES.to_vec();
        let rows = self.client.query(sql, &[&names]).await?;
        let mut sizes = Vec::new();
        for row in rows {
            let name: String = row.get(0);
            let table = TABLES.into_iter().find(|table| *table == name);
            let size = Size {
                table: table.ok_or("a table that was not asked for")?,
                bytes: row.get(1),
                live: row.get(2),
                dead: row.get(3),
                is_vacuumed: row.get(4),
            };
            if size.is_vacuumed {
                let vacuum = format!("vacuum (analyze) {}", size.table);
                self.client.batch_execute(&vacuum).await?;
            }
            sizes.push(size);
        }
        Ok(sizes)
    }

    async fn week(&self, week: usize) -> Result<Week> {
        self.turn(week).await?;
        self.write().await?;
        tokio::time::sleep(COUNTED).await;
        let before = self.counted().await?;
        let retention_seconds = self.retain().await?;
        tokio::time::sleep(COUNTED).await;
        let after = self.counted().await?;
        Ok(Week {
            retention_seconds,
            removed: after.removed - before.removed,
            pages: after.pages - before.pages,
            sizes: self.vacuum().await?,
        })
    }

    async fn weeks(&self) -> Result<Vec<Week>> {
        let mut weeks = Vec::with_capacity(WEEKS);
        for n in 1..=WEEKS {
            weeks.push(self.week(n).await?);
            if n % 13 == 0 {
                say(format!("year: {n} weeks"));
            }
        }
        Ok(weeks)
    }
}

async fn groups(client: &Client, crowd: &Crowd) -> Result<()> {
    for n in 0..GROUPS {
        let id = crowd
            .group(n * USERS / GROUPS..(n + 1) * USERS / GROUPS)
            .await?;
        let id = Uuid::from_u128(ulid::Ulid::from_string(&id)?.0);
        let name = "update conversation set title = 'year' where conversation_id = $1";
        client.execute(name, &[&id]).await?;
    }
    Ok(())
}

/// Runs the scenario once. It needs a cluster of its own, because it moves the database's clock.
pub async fn run(cluster: &Cluster, options: &Options) -> Result<Report> {
    let _plain = Plain::start_with(cluster, 1, &[("LIMITS_OFF", "true")]).await?;
    let crowd = Crowd::make(cluster, USERS, 1).await?;
    let (client, link) = tokio_postgres::connect(&cluster.postgres_url, NoTls).await?;
    tokio::spawn(link);
    groups(&client, &crowd).await?;
    let year = Year {
        client,
        messages: options.rows / WEEKS,
    };
    let weeks = year.weeks().await;
    year.client.batch_execute(PRESENT).await?;
    let weeks = weeks?;
    Ok(Report {
        scenario: "year",
        tables: vec![table(&weeks)],
        ratios: ratios(&weeks),
        notes: vec![format!(
            "{WEEKS} weeks of {} messages with two entries each. Early: the median of weeks {STEADY_FROM} to {}; late: of the \
             last {COMPARED}. Dead rows are those before the week's vacuum.",
            year.messages,
            STEADY_FROM + COMPARED - 1
        )],
        details: json!({ "messages_per_week": year.messages, "weeks": weeks }),
        faults: Faults::default(),
        checked: 0,
        p99_ms: None,
    })
}

/// The medians of the first weeks of the steady state, and of the last ones.
fn ends(weeks: &[Week], value: impl Fn(&Week) -> f64) -> [f64; 2] {
    let early = &weeks[STEADY_FROM - 1..STEADY_FROM - 1 + COMPARED];
    let late = &weeks[weeks.len() - COMPARED..];
    [early, late].map(|weeks| median(weeks.iter().map(&value)))
}

fn size<'a>(week: &'a Week, table: &str) -> Option<&'a Size> {
    week.sizes.iter().find(|size| size.table == table)
}

fn table(weeks: &[Week]) -> Vec<Vec<String>> {
    let heading = [
        "",
        "MB early",
        "MB late",
        "dead % early",
        "dead % late",
        "vacuums",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for table in TABLES {
        let of =
            |value: &dyn Fn(&Size) -> f64| ends(weeks, |week| size(week, table).map_or(0.0, value));
        let [early, late] = of(&|size| size.bytes / 1_048_576.0);
        let [dead, dead_late] = of(&dead_percent);
        let vacuums = weeks.iter().filter_map(|week| size(week, table));
        let vacuums = vacuums.filter(|size| size.is_vacuumed).count();
        rows.push(vec![
            table.to_owned(),
            format!("{early:.1}"),
            format!("{late:.1}"),
            format!("{dead:.0}"),
            format!("{dead_late:.0}"),
            vacuums.to_string(),
        ]);
    }
    rows
}

fn dead_percent(size: &Size) -> f64 {
    100.0 * size.dead / (size.live + size.dead).max(1.0)
}

fn ratios(weeks: &[Week]) -> Vec<Ratio> {
    let late_to_early = |what, [early, late]: [f64; 2]| Ratio {
        what,
        value: late / early,
        goal: Goal::AtMost(1.2, 1.05),
    };
    let bytes = |table| {
        ends(weeks, |week| {
            size(week, table).map_or(0.0, |size| size.bytes)
        })
    };
    let sizes = [
        ("bytes of inbox_entry, late / early", "inbox_entry"),
        ("bytes of event, late / early", "event"),
        ("bytes of idempotency, late / early", "idempotency"),
        ("bytes of inbox, late / early", "inbox"),
        ("bytes of conversation, late / early", "conversation"),
    ];
    let mut ratios: Vec<Ratio> = sizes
        .map(|(what, table)| late_to_early(what, bytes(table)))
        .into();
    let pages = ends(weeks, |week| week.pages / week.removed.max(1.0));
    ratios.extend([
        late_to_early(
            "pages that retention reads per removed row, late / early",
            pages,
        ),
        Ratio {
            what: "pages that retention reads per removed row, late",
            value: pages[1],
            goal: Goal::None,
        },
    ]);
    ratios
}
