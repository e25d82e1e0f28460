//! The findings of a scenario, as a table for people and a file for programs.

use std::{
    fmt::Display,
    fs,
    io::{Write, stderr, stdout},
};

use serde::Serialize;
use serde_json::{Value, json};
use tokio_postgres::NoTls;

use crate::{Options, Result, cluster::Cluster, delivery::Faults, results};

/// Prints a line. A closed pipe is not an error.
pub fn say(line: impl Display) {
    let _ = writeln!(stdout(), "{line}");
}

/// Prints a line about a fault.
pub fn warn(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}

/// The findings of one scenario.
pub struct Report {
    /// Its name.
    pub scenario: &'static str,
    /// For people: the first row is the heading.
    pub tables: Vec<Vec<Vec<String>>>,
    /// Ratios with their goals.
    pub ratios: Vec<Ratio>,
    /// Remarks for people.
    pub notes: Vec<String>,
    /// Everything measured, for programs.
    pub details: Value,
    /// The faults of the messages.
    pub faults: Faults,
    /// The number of checked messages.
    pub checked: u64,
}

/// Our number divided by a peer's, from the same run.
#[derive(Serialize)]
pub struct Ratio {
    /// The two numbers, in words.
    pub what: &'static str,
    /// The ratio.
    pub value: f64,
    /// The required bound and the aim.
    pub goal: Goal,
}

/// The side of (required, aim) on which a ratio must be.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    AtLeast(f64, f64),
    AtMost(f64, f64),
    /// No goal; the ratio is information only.
    None,
}

impl Ratio {
    fn row(&self) -> Vec<String> {
        let value = self.value;
        let judged = |sign, reached: fn(&f64, &f64) -> bool, ahead, moonshot| {
            let verdict = match (reached(&value, &ahead), reached(&value, &moonshot)) {
                (_, true) => "moonshot",
                (true, false) => "ahead",
                (false, false) => "behind",
            };
            [
                format!("{sign} {ahead}"),
                format!("{sign} {moonshot}"),
                verdict.to_owned(),
            ]
        };
        let goal = match self.goal {
            Goal::AtLeast(ahead, moonshot) => judged("≥", f64::ge, ahead, moonshot),
            Goal::AtMost(ahead, moonshot) => judged("≤", f64::le, ahead, moonshot),
            Goal::None => ["–", "–", "–"].map(str::to_owned),
        };
        [self.what.to_owned(), format!("{value:.2}")]
            .into_iter()
            .chain(goal)
            .collect()
    }
}

impl Report {
    /// Whether no message was lost, repeated or out of order.
    pub fn is_sound(&self) -> bool {
        self.faults.none()
    }

    /// Prints the report and writes it beside the cluster.
    pub async fn publish(&self, cluster: &Cluster, options: &Options) -> Result<()> {
        let (at, machine) = machine(cluster).await?;
        self.write(&at, &machine, options)
    }

    /// Prints the report of a release elsewhere and writes it. The machine is the load generator's.
    pub fn publish_release(&self, options: &Options) -> Result<()> {
        let at = chrono::Utc::now().format("%Y-%m-%dT%H:%M:%SZ").to_string();
        self.write(&at, &json!({ "base_urls": options.base_url }), options)
    }

    fn write(&self, at: &str, machine: &Value, options: &Options) -> Result<()> {
        for table in &self.tables {
            say("");
            print(table);
        }
        if !self.ratios.is_empty() {
            say("");
            let heading = ["ratio", "value", "ahead", "moonshot", "so"]
                .map(str::to_owned)
                .into();
            let rows: Vec<Vec<String>> = [heading]
                .into_iter()
                .chain(self.ratios.iter().map(Ratio::row))
                .collect();
            print(&rows);
        }
        say("");
        self.notes.iter().for_each(say);
        let Faults {
            failed,
            lost,
            duplicated,
            reordered,
            inbox_gaps,
            strange,
        } = self.faults;
        say(format!(
            "{} messages checked: {failed} failed, {lost} lost, {duplicated} duplicated, {reordered} reordered, \
             {inbox_gaps} gaps in inboxes, {strange} strange.",
            self.checked
        ));
        let content = json!({
            "scenario": self.scenario,
            "at": at,
            "machine": machine,
            "command": command(),
            "ratios": self.ratios,
            "faults": self.faults,
            "checked": self.checked,
            "details": self.details,
        });
        fs::create_dir_all(&options.dir)?;
        let file = options.dir.join(format!(
            "report-{}-{}.json",
            self.scenario,
            at.replace(':', "")
        ));
        fs::write(&file, format!("{content:#}\n"))?;
        say(format!("Written to {}.", file.display()));
        if options.record {
            results::record(self, at, &content["machine"], &command())?;
            say("Recorded in loadtest/README.md.");
        }
        Ok(())
    }
}

/// The arguments of this run, without the path of the program.
fn command() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    format!("loadtest {}", arguments.join(" "))
}

/// Prints rows in columns. The first is the heading.
pub fn print(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..columns)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    for row in rows {
        let cells = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(n, (cell, width))| {
                // Names are aligned left, numbers right.
                if n == 0 {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
        say(cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

/// The time of the cluster's Postgres, and a description of the machine.
async fn machine(cluster: &Cluster) -> Result<(String, Value)> {
    let (client, link) = tokio_postgres::connect(&cluster.postgres_url, NoTls).await?;
    let link = tokio::spawn(link);
    let query = "select to_char(now() at time zone 'utc', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), version(),
        current_setting('fsync'), current_setting('synchronous_commit'), current_setting('shared_buffers')";
    let row = client.query_one(query, &[]).await?;
    drop(client);
    link.await??;
    let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, name: &str| {
        let line = text
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_default();
        line.split_once(':')
            .map(|(_, value)| value.trim().to_owned())
    };
    let machine = json!({
        "processor": value(&file("/proc/cpuinfo"), "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": value(&file("/proc/meminfo"), "MemTotal"),
        "kernel": file("/proc/sys/kernel/osrelease").trim(),
        "postgres": row.get::<_, String>(1),
        "fsync": row.get::<_, String>(2),
        "synchronous_commit": row.get::<_, String>(3),
        "shared_buffers": row.get::<_, String>(4),
    });
    Ok((row.get(0), machine))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(value: f64, goal: Goal) -> String {
        Ratio {
            what: "ours / theirs",
            value,
            goal,
        }
        .row()
        .pop()
        .unwrap()
    }

    #[test]
    fn a_ratio_is_judged_by_its_goal_if_it_has_one() {
        let more = |value| verdict(value, Goal::AtLeast(2.0, 4.0));
        assert_eq!([1.9, 2.0, 4.0].map(more), ["behind", "ahead", "moonshot"]);
        let less = |value| verdict(value, Goal::AtMost(1.3, 1.1));
        assert_eq!([1.4, 1.3, 1.1].map(less), ["behind", "ahead", "moonshot"]);
        assert_eq!(verdict(0.5, Goal::None), "–");
    }
}
