//! The speed of Postgres alone on this machine: pgbench with the least SQL that a send needs, in a
//! database of its own on the same server. As a yardstick, it varies with the machine and the hour
//! just as the measured numbers do.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde::Serialize;
use tokio::process::Command;
use tokio_postgres::{Config, NoTls, config::Host};

use crate::{Result, cluster::Cluster, stats::median};

const DATABASE: &str = "pgbench_peer";
/// The number of messages of one statement in [`Peer::Batch`].
pub const BATCH: u64 = 64;

/// Many conversations, so that clients seldom wait for each other. Keys are numbers. There is no
/// inbox, no check of the sender, and one index less than in the nodes' schema.
const SCHEMA: &str = "
    drop table if exists conversation, message, sent;
    create table conversation (conversation_id bigint primary key, seq bigint not null) with (fillfactor = 60);
    create table message (conversation_id bigint, seq bigint, message_id uuid not null, payload text not null,
                          primary key (conversation_id, seq));
    create table sent (sender_id bigint, key uuid, message_id uuid not null, primary key (sender_id, key));
    alter table message alter column payload set storage external;
    insert into conversation select n, 0 from generate_series(0, 999) n;
    vacuum analyze conversation;";

const SINGLE: &str = r"\set conversation random(0, 999)
with bumped as (
    update conversation set seq = seq + 1 where conversation_id = :conversation returning seq
), keyed as (
    insert into sent (sender_id, key, message_id) values (:conversation, gen_random_uuid(), gen_random_uuid())
)
insert into message (conversation_id, seq, message_id, payload)
select :conversation, seq, gen_random_uuid(), :payload from bumped;
";

/// Each client has conversations of its own. Two statements that lock shared ones in different
/// orders would deadlock.
const MANY: &str = r"\set first random(0, 499)
with item as materialized (
    select :client_id * 500 + (:first + n) % 500 as conversation_id, gen_random_uuid() as message_id,
           gen_random_uuid() as key
    from generate_series(1, 64) n
), bumped as (
    update conversation c set seq = c.seq + 1 from item where c.conversation_id = item.conversation_id
    returning c.conversation_id, c.seq
), keyed as (
    insert into sent (sender_id, key, message_id) select conversation_id, key, message_id from item
)
insert into message (conversation_id, seq, message_id, payload)
select conversation_id, bumped.seq, message_id, :payload from item join bumped using (conversation_id);
";

/// A way to run pgbench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Peer {
    /// A message per statement, one client.
    Alone,
    /// A message per statement, 32 clients.
    Single,
    /// 64 messages per statement, two clients.
    Batch,
}

/// The result of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Speed {
    /// Transactions per second.
    pub tps: f64,
    /// The mean time of a transaction, in µs.
    pub mean: f64,
    /// The median time in µs, only for [`Peer::Alone`]: logging each transaction takes time too.
    pub p50: Option<f64>,
}

/// pgbench, ready to run.
pub struct Pgbench {
    program: PathBuf,
    environment: Vec<(&'static str, String)>,
    folder: PathBuf,
    payload: String,
}

impl Pgbench {
    /// Finds the program and creates database and scripts anew.
    pub async fn prepare(cluster: &Cluster, payload: usize) -> Result<Self> {
        let config: Config = cluster.postgres_url.parse()?;
        create_database(&config).await?;
        let mut peer = config.clone();
        peer.dbname(DATABASE);
        let (client, link) = peer.connect(NoTls).await?;
        let link = tokio::spawn(link);
        for statement in SCHEMA.split_inclusive(';') {
            client.batch_execute(statement).await?;
        }
        drop(client);
        link.await??;
        let folder = env::temp_dir().join(format!("blindpipe-pgbench-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("single.sql"), SINGLE)?;
        fs::write(folder.join("many.sql"), MANY)?;
        let host = match config.get_hosts().first() {
            Some(Host::Tcp(host)) => host.clone(),
            Some(Host::Unix(path)) => path.display().to_string(),
            None => "127.0.0.1".to_owned(),
        };
        let password =
            String::from_utf8_lossy(config.get_password().unwrap_or_default()).into_owned();
        let environment = vec![
            ("PGHOST", host),
            (
                "PGPORT",
                config
                    .get_ports()
                    .first()
                    .copied()
                    .unwrap_or(5432)
                    .to_string(),
            ),
            ("PGUSER", config.get_user().unwrap_or_default().to_owned()),
            ("PGPASSWORD", password),
            ("PGDATABASE", DATABASE.to_owned()),
            ("PGOPTIONS", "-c jit=off".to_owned()),
        ];
        Ok(Pgbench {
            program: find(&cluster.folder)?,
            environment,
            folder,
            payload: "x".repeat(payload),
        })
    }

    /// Runs one peer for `seconds` seconds.
    pub async fn run(&self, peer: Peer, seconds: u64) -> Result<Speed> {
        let (script, clients, jobs) = match peer {
            Peer::Alone => ("single.sql", "1", "1"),
            Peer::Single => ("single.sql", "32", "2"),
            Peer::Batch => ("many.sql", "2", "2"),
        };
        let mut command = Command::new(&self.program);
        command.args([
            "-n", "-M", "prepared", "-f", script, "-c", clients, "-j", jobs,
        ]);
        command.args([
            "-T",
            &seconds.to_string(),
            "-D",
            &format!("payload={}", self.payload),
        ]);
        if peer == Peer::Alone {
            command.args(["-l", "--log-prefix", "alone"]);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = command.output().await?;
        let text = String::from_utf8_lossy(&output.stdout);
        let Some(mut speed) = read(&text).filter(|_| output.status.success()) else {
            return Err(format!(
                "pgbench failed: {text}{}",
                String::from_utf8_lossy(&output.stderr)
            )
            .into());
        };
        if peer == Peer::Alone {
            speed.p50 = self.median_of_log()?;
        }
        Ok(speed)
    }

    /// The median of the transactions' times. The third column is µs.
    fn median_of_log(&self) -> Result<Option<f64>> {
        for file in fs::read_dir(&self.folder)?.flatten() {
            if file.file_name().to_string_lossy().starts_with("alone.") {
                let text = fs::read_to_string(file.path())?;
                fs::remove_file(file.path())?;
                let times = text
                    .lines()
                    .filter_map(|line| line.split(' ').nth(2)?.parse().ok());
                return Ok(Some(median(times)));
            }
        }
        Ok(None)
    }
}

impl Drop for Pgbench {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).ok();
    }
}

async fn create_database(config: &Config) -> Result<()> {
    let (client, link) = config.connect(NoTls).await?;
    let link = tokio::spawn(link);
    if client
        .query_opt("select 1 from pg_database where datname = $1", &[&DATABASE])
        .await?
        .is_none()
    {
        client
            .batch_execute(&format!("create database {DATABASE}"))
            .await?;
    }
    drop(client);
    Ok(link.await??)
}

/// Searches the path from the cluster's launcher, Debian's folders, and `PATH`.
fn find(folder: &Path) -> Result<PathBuf> {
    let mut places = vec![folder.join("bin")];
    let mut versions: Vec<_> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .collect();
    versions.sort_by_key(|version| version.file_name().to_string_lossy().parse().unwrap_or(0));
    places.extend(
        versions
            .iter()
            .rev()
            .map(|version| version.path().join("bin")),
    );
    places.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let mut programs = places.into_iter().map(|place| place.join("pgbench"));
    let found = programs.find(|program| program.exists());
    Ok(found
        .ok_or("there is no pgbench here; --no-peers leaves the comparison out")?
        .canonicalize()?)
}

fn read(text: &str) -> Option<Speed> {
    let after = |label: &str| -> Option<f64> {
        let rest = text.lines().find_map(|line| line.strip_prefix(label))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    Some(Speed {
        tps: after("tps = ")?,
        mean: after("latency average = ")? * 1000.0,
        p50: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pgbench_is_understood() {
        let text = "number of clients: 1\nlatency average = 0.139 ms\ntps = 7203.94 (without initial connection time)\n";
        let speed = read(text).expect("numbers");
        assert_eq!((speed.tps, speed.mean.round()), (7203.94, 139.0));
    }
}
