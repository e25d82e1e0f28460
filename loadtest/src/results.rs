//! The recorded ratios: a file per scenario in `loadtest/results`, and the table of
//! `loadtest/README.md`, which is generated from these files.

use std::{fs, path::Path, process::Command};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Result,
    report::{Goal, Ratio, Report},
};

const README: &str = "loadtest/README.md";
const FOLDER: &str = "loadtest/results";
const BEGIN: &str = "<!-- results:begin -->";
const END: &str = "<!-- results:end -->";

/// The last recorded run of a scenario.
#[derive(Serialize, Deserialize)]
struct Recorded {
    scenario: String,
    /// The time of the run, in UTC.
    at: String,
    machine: String,
    commit: String,
    /// The arguments of the run.
    command: String,
    /// The number of messages whose way was checked.
    checked: u64,
    /// Messages that failed, or were lost, repeated or out of order.
    faults: u64,
    ratios: Vec<RecordedRatio>,
}

#[derive(Serialize, Deserialize)]
struct RecordedRatio {
    /// The two numbers, in words.
    what: String,
    value: f64,
    /// The required bound, such as `≥ 2`; empty if there is none.
    bar: String,
}

impl From<&Ratio> for RecordedRatio {
    fn from(ratio: &Ratio) -> Self {
        RecordedRatio {
            what: ratio.what.to_owned(),
            value: ratio.value,
            bar: match ratio.goal {
                Goal::AtLeast(bar, _) => format!("≥ {bar}"),
                Goal::AtMost(bar, _) => format!("≤ {bar}"),
                Goal::None => String::new(),
            },
        }
    }
}

/// Writes a scenario's file and renews the table. Runs in the root of the project.
pub fn record(report: &Report, at: &str, machine: &Value, command: &str) -> Result<()> {
    let scenario = report.scenario;
    let word = |name: &str| machine[name].as_str().unwrap_or("?").to_owned();
    let recorded = Recorded {
        scenario: scenario.to_owned(),
        at: at.to_owned(),
        machine: format!(
            "{} cores, {}, {}",
            machine["cores"],
            word("processor"),
            word("memory")
        ),
        commit: commit()?,
        command: command.to_owned(),
        checked: report.checked,
        faults: report.faults.total(),
        ratios: report.ratios.iter().map(RecordedRatio::from).collect(),
    };
    fs::create_dir_all(FOLDER)?;
    let text = serde_json::to_string_pretty(&recorded)?;
    fs::write(format!("{FOLDER}/{scenario}.json"), text + "\n")?;
    let readme = fs::read_to_string(README)?;
    fs::write(README, with_table(&readme, &table(Path::new(FOLDER))?)?)?;
    Ok(())
}

/// The commit of the sources, with `+` for changes that are not committed.
fn commit() -> Result<String> {
    let described = Command::new("git")
        .args([
            "describe",
            "--always",
            "--abbrev=7",
            "--exclude=*",
            "--dirty=+",
        ])
        .output()?;
    Ok(String::from_utf8(described.stdout)?.trim().to_owned())
}

/// The table over all recorded scenarios.
fn table(folder: &Path) -> Result<String> {
    let mut files: Vec<_> = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "json")
    });
    files.sort();
    let mut lines = vec![
        "| scenario | figure | value | bar | machine | commit |".to_owned(),
        "|---|---|---|---|---|---|".to_owned(),
    ];
    for file in files {
        let run: Recorded = serde_json::from_str(&fs::read_to_string(file)?)?;
        let row = |figure: &str, value: String, bar: &str| {
            let Recorded {
                scenario,
                machine,
                commit,
                ..
            } = &run;
            format!("| {scenario} | {figure} | {value} | {bar} | {machine} | {commit} |")
        };
        lines.extend(
            run.ratios
                .iter()
                .map(|ratio| row(&ratio.what, format!("{:.2}", ratio.value), &ratio.bar)),
        );
        if run.checked > 0 {
            let figure = format!("faults of {} checked messages", run.checked);
            lines.push(row(&figure, run.faults.to_string(), "0"));
        }
    }
    Ok(lines.join("\n"))
}

/// The document with another table between the two marks.
fn with_table(document: &str, table: &str) -> Result<String> {
    let (before, rest) = document.split_once(BEGIN).ok_or("no table to renew")?;
    let (_, after) = rest.split_once(END).ok_or("no end of the table")?;
    Ok(format!("{before}{BEGIN}\n{table}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_readme_is_generated_from_the_recorded_runs() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let readme = fs::read_to_string(root.join("README.md")).expect("a document");
        let table = table(&root.join("results")).expect("recorded runs");
        assert_eq!(with_table(&readme, &table).expect("marks"), readme);
    }
}
