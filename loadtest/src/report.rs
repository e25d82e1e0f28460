//! The findings of a scenario, as a table for people and a file for programs.

use std::{
    fmt::Display,
    fs,
    io::{IsTerminal, Write, stderr, stdout},
    path::Path,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::{Value, json};
use tokio_postgres::NoTls;

use crate::{
    Options, Result,
    cluster::Cluster,
    delivery::Faults,
    page, results,
    scenarios::Scenario,
    slo::Slo,
    timeline::{self, Sample},
};

/// Ends the line of the progress, which the next line replaces.
const ERASE_LINE: &str = "\r\x1b[K";

/// Prints a line. A closed pipe is not an error.
pub fn say(line: impl Display) {
    if stderr().is_terminal() {
        let _ = write!(stderr(), "{ERASE_LINE}");
    }
    let _ = writeln!(stdout(), "{line}");
}

/// Runs a scenario, and shows on a terminal for how long it has run.
pub async fn with_progress<T>(scenario: Scenario, running: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let mut running = std::pin::pin!(running);
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            biased;
            done = &mut running => return done,
            _ = ticks.tick(), if stderr().is_terminal() => {
                let _ = write!(stderr(), "{ERASE_LINE}{scenario:?}: {} s", began.elapsed().as_secs());
                let _ = stderr().flush();
            }
        }
    }
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
    /// The p99 of a message's way to its reader, in milliseconds, where the scenario measures it.
    pub p99_ms: Option<f64>,
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
    /// Whether no message was lost, repeated or out of order, and the figures are within the bounds of
    /// the options. Says which are not.
    pub fn is_sound(&self, options: &Options) -> Result<bool> {
        let missed = match &options.slo {
            Some(file) => Slo::read(Path::new(file))?.missed(self),
            None => Vec::new(),
        };
        missed
            .iter()
            .for_each(|line| warn(format!("missed: {line}")));
        let bound = options.max_p99.unwrap_or(f64::INFINITY);
        let is_late = self.p99_ms.is_some_and(|p99| p99 > bound);
        if let Some(p99) = self.p99_ms.filter(|_| is_late) {
            warn(format!(
                "{}: a message\u{2019}s p99 is {p99:.1} ms, and --max-p99 is {bound} ms.",
                self.scenario
            ));
        }
        Ok(self.faults.none() && !is_late && missed.is_empty())
    }

    /// Prints the report and writes it beside the cluster.
    pub async fn publish(
        &self,
        cluster: &Cluster,
        samples: &[Sample],
        options: &Options,
    ) -> Result<()> {
        let (at, machine) = machine(cluster).await?;
        self.write(&at, &machine, samples, options)
    }

    /// Prints the report of a release elsewhere and writes it. The machine is the load generator's.
    pub fn publish_release(&self, options: &Options) -> Result<()> {
        let at = chrono::Utc::now().format("%Y-%m-%dT%H:%M:%SZ").to_string();
        self.write(&at, &json!({ "base_urls": options.base_url }), &[], options)
    }

    fn write(
        &self,
        at: &str,
        machine: &Value,
        samples: &[Sample],
        options: &Options,
    ) -> Result<()> {
        for table in &self.tables {
            say("");
            print(table);
        }
        if !self.ratios.is_empty() {
            say("");
            print(&self.ratio_rows());
        }
        say("");
        self.notes.iter().for_each(say);
        say(self.verdict());
        let content = json!({
            "scenario": self.scenario,
            "at": at,
            "machine": machine,
            "command": command(),
            "ratios": self.ratios,
            "faults": self.faults,
            "checked": self.checked,
            "details": self.details,
            "samples": samples,
        });
        fs::create_dir_all(&options.dir)?;
        let name = format!("report-{}-{}", self.scenario, at.replace(':', ""));
        let file = options.dir.join(format!("{name}.json"));
        fs::write(&file, format!("{content:#}\n"))?;
        let page = options.dir.join(format!("{name}.html"));
        fs::write(&page, self.page(at, machine, samples))?;
        say(format!(
            "Written to {}, and as a page to {}.",
            file.display(),
            page.display()
        ));
        if options.record {
            results::record(self, at, &content["machine"], &command())?;
            say("Recorded in loadtest/README.md.");
        }
        Ok(())
    }
}

impl Report {
    fn ratio_rows(&self) -> Vec<Vec<String>> {
        let heading = ["ratio", "value", "ahead", "moonshot", "so"].map(str::to_owned);
        [heading.into()]
            .into_iter()
            .chain(self.ratios.iter().map(Ratio::row))
            .collect()
    }

    /// The faults in a sentence.
    fn verdict(&self) -> String {
        let Faults {
            failed,
            lost,
            duplicated,
            reordered,
            inbox_gaps,
            strange,
        } = self.faults;
        format!(
            "{} messages checked: {failed} failed, {lost} lost, {duplicated} duplicated, {reordered} reordered, \
             {inbox_gaps} gaps in inboxes, {strange} strange.",
            self.checked
        )
    }

    /// The report as a page, with a plot of each second.
    fn page(&self, at: &str, machine: &Value, samples: &[Sample]) -> String {
        let paragraph = |text: &str| format!("<p>{}</p>", page::escaped(text));
        let mut body = paragraph(&self.verdict());
        if !self.ratios.is_empty() {
            body.push_str(&page::table(&self.ratio_rows()));
        }
        body.extend(self.tables.iter().map(|table| page::table(table)));
        body.extend(self.notes.iter().map(|note| paragraph(note)));
        body.push_str(&timeline::plots(samples));
        body.push_str(&paragraph(&format!("{} at {at}, on {machine}", command())));
        page::document(&format!("loadtest {}", self.scenario), "", &body)
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
    use clap::Parser;

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

    #[test]
    fn a_run_is_sound_within_its_bounds() {
        let report = |p99_ms, lost| Report {
            scenario: "hop",
            tables: Vec::new(),
            ratios: Vec::new(),
            notes: Vec::new(),
            details: Value::Null,
            faults: Faults {
                lost,
                ..Faults::default()
            },
            checked: 1,
            p99_ms,
        };
        let bound = Options::parse_from(["loadtest", "--max-p99", "50"]);
        let is_sound = |p99_ms, lost, options: &Options| {
            let sound = report(p99_ms, lost).is_sound(options);
            sound.expect("no file")
        };
        assert!(is_sound(Some(50.0), 0, &bound));
        assert!(!is_sound(Some(50.1), 0, &bound));
        assert!(!is_sound(Some(1.0), 1, &bound));
        let free = Options::parse_from(["loadtest"]);
        assert!(is_sound(Some(1e9), 0, &free));
    }
}
