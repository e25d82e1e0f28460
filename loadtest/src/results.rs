//! The recorded ratios: a file per scenario in `loadtest/results`. The table of `loadtest/README.md` and
//! the lines of `README.md` are generated from these files and the bars of `loadtest/slo.json`.

use std::{fs, path::Path, process::Command};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Result,
    report::{Goal, Ratio, Report},
    slo::{self, Bar, Slo},
};

const README: &str = "loadtest/README.md";
const FRONT_PAGE: &str = "README.md";
const FOLDER: &str = "loadtest/results";
const BEGIN: &str = "<!-- results:begin -->";
const END: &str = "<!-- results:end -->";
/// Most lines about bars on the front page.
const MAX_LINES: usize = 10;

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
    fs::write(README, between_marks(&readme, &table(Path::new(FOLDER))?)?)?;
    let page = fs::read_to_string(FRONT_PAGE)?;
    let lines = verdicts(Path::new(FOLDER), &Slo::read(Path::new(slo::FILE))?)?;
    fs::write(FRONT_PAGE, between_marks(&page, &lines)?)?;
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

/// All recorded runs, in the order of their names.
fn runs(folder: &Path) -> Result<Vec<Recorded>> {
    let mut files: Vec<_> = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|end| end == "json"));
    files.sort();
    let runs = files
        .iter()
        .map(|file| Ok(serde_json::from_str(&fs::read_to_string(file)?)?));
    runs.collect()
}

/// The table over all recorded scenarios: the figures that have a bar.
fn table(folder: &Path) -> Result<String> {
    let mut lines = vec![
        "| scenario | figure | value | bar | machine | commit |".to_owned(),
        "|---|---|---|---|---|---|".to_owned(),
    ];
    for run in runs(folder)? {
        let row = |figure: &str, value: String, bar: &str| {
            let Recorded {
                scenario,
                machine,
                commit,
                ..
            } = &run;
            format!("| {scenario} | {figure} | {value} | {bar} | {machine} | {commit} |")
        };
        let barred = run.ratios.iter().filter(|ratio| !ratio.bar.is_empty());
        lines.extend(barred.map(|one| row(&one.what, format!("{:.2}", one.value), &one.bar)));
        if run.checked > 0 {
            let figure = format!("faults of {} checked messages", run.checked);
            lines.push(row(&figure, run.faults.to_string(), "0"));
        }
    }
    Ok(lines.join("\n"))
}

/// The bars that the recorded runs met and missed, with the reasons: at most ten lines.
fn verdicts(folder: &Path, slo: &Slo) -> Result<String> {
    let (runs, mut met, mut missed) = (runs(folder)?, 0, Vec::new());
    for run in &runs {
        let bars = slo.bars.iter().filter(|bar| bar.scenario == run.scenario);
        let held: Vec<(&Bar, f64)> = bars
            .filter_map(|bar| {
                let ratio = run.ratios.iter().find(|one| one.what == bar.figure)?;
                Some((bar, ratio.value))
            })
            .collect();
        let mut failed: Vec<&(&Bar, f64)> =
            held.iter().filter(|(bar, v)| !bar.is_met(*v)).collect();
        met += held.len() - failed.len();
        failed.sort_by(|(one, v), (other, w)| other.miss(*w).total_cmp(&one.miss(*v)));
        let Some((worst, value)) = failed.first() else {
            continue;
        };
        let join = if failed.len() == 1 { ":" } else { ", such as" };
        let why = slo.why_missed.get(&run.scenario);
        let why = why.ok_or_else(|| format!("{}: no reason why it misses", run.scenario))?;
        missed.push(format!(
            "- `{}` misses {} of {}{join} {}, {}. {why}",
            run.scenario,
            failed.len(),
            held.len(),
            worst.figure,
            worst.beside(*value),
        ));
    }
    let checked: u64 = runs.iter().map(|run| run.checked).sum();
    let faults: u64 = runs.iter().map(|run| run.faults).sum();
    let mut lines = vec![format!(
        "- Met: {met} bars, and {faults} faults in {checked} checked messages."
    )];
    lines.append(&mut missed);
    match lines.len() <= MAX_LINES {
        true => Ok(lines.join("\n")),
        false => Err(format!("more than {MAX_LINES} lines about bars").into()),
    }
}

/// The document with another text between the two marks.
fn between_marks(document: &str, text: &str) -> Result<String> {
    let (before, rest) = document.split_once(BEGIN).ok_or("no table to renew")?;
    let (_, after) = rest.split_once(END).ok_or("no end of the table")?;
    Ok(format!("{before}{BEGIN}\n{text}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn the_table_of_the_readme_is_generated_from_the_recorded_runs() {
        let readme = fs::read_to_string(root().join("README.md")).expect("a document");
        let table = table(&root().join("results")).expect("recorded runs");
        assert_eq!(between_marks(&readme, &table).expect("marks"), readme);
    }

    #[test]
    fn the_lines_of_the_front_page_are_generated_from_the_runs_and_the_bars() {
        let page = fs::read_to_string(root().join("../README.md")).expect("a document");
        let slo = Slo::read(&root().join("slo.json")).expect("bars");
        let lines = verdicts(&root().join("results"), &slo).expect("recorded runs");
        assert!(lines.lines().count() <= MAX_LINES);
        let generated = between_marks(&page, &lines).expect("marks");
        assert!(generated == page, "README.md must have:\n{lines}");
    }

    #[test]
    fn the_bars_of_the_file_are_those_of_the_recorded_runs() {
        let slo = Slo::read(&root().join("slo.json")).expect("bars");
        let mut filed: Vec<_> = (slo.bars.iter())
            .map(|bar| (bar.scenario.clone(), bar.figure.clone(), bar.as_text()))
            .collect();
        let runs = runs(&root().join("results")).expect("recorded runs");
        let mut recorded: Vec<_> = (runs.into_iter())
            .flat_map(|run| {
                let scenario = run.scenario;
                (run.ratios.into_iter()).map(move |one| (scenario.clone(), one.what, one.bar))
            })
            .filter(|(_, _, bar)| !bar.is_empty())
            .collect();
        filed.sort();
        recorded.sort();
        assert_eq!(filed, recorded);
    }
}
