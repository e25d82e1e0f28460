//! Two sets of release programs, measured in turns on one machine: old, new, old, new, and so on.
//!
//! A figure of one day says little about a figure of another: other machines, other neighbours. Both
//! sets of a pair see the same ones, so their ratio holds.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use clap::Parser;
use serde_json::{Value, json};

use crate::{
    Result,
    report::{print, say},
    stats::median,
};

/// Runs scenarios with two sets of release programs in turns, and prints the figures of both with
/// their ratio and its spread.
#[derive(Parser)]
pub struct Comparison {
    /// Folder of the programs of before: `blindpipe` and `devcluster`
    old: PathBuf,
    /// Folder of the programs of now, whose `loadtest` measures both
    new: PathBuf,
    /// Scenarios to run
    #[arg(required = true)]
    scenarios: Vec<String>,
    /// Runs of each set
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Folder of the clusters and the reports
    #[arg(long, default_value = ".dev/compare")]
    dir: PathBuf,
    /// Further options of each run, such as `-- --agents 1000`
    #[arg(last = true)]
    options: Vec<String>,
}

/// The figures of a run by their names.
type Figures = BTreeMap<String, f64>;

impl Comparison {
    /// Measures both sets. True if no message was lost, repeated or out of order.
    pub fn run(&self) -> Result<bool> {
        let mut sound = true;
        for set in ["old", "new"] {
            // The database of an earlier comparison may have a later schema than these programs.
            fs::remove_dir_all(self.dir.join(set).join("postgres")).ok();
        }
        for scenario in &self.scenarios {
            let (mut pairs, mut faults) = (Vec::new(), [0.0; 2]);
            for round in 1..=self.rounds {
                say(format!("{scenario}: round {round} of {}.", self.rounds));
                let pair = [("old", &self.old), ("new", &self.new)]
                    .map(|(name, programs)| self.measure(scenario, name, programs));
                let [old, new] = pair;
                let [(old, old_faults), (new, new_faults)] = [old?, new?];
                faults = [faults[0] + old_faults, faults[1] + new_faults];
                pairs.push([old, new]);
            }
            let lines = compared(&pairs);
            print(&table(&lines));
            let [of_old, of_new] = faults;
            say(format!(
                "Faults: {of_old} of the old programs, {of_new} of the new ones."
            ));
            self.write(scenario, &lines)?;
            sound &= faults == [0.0; 2];
        }
        Ok(sound)
    }

    /// One run of one set: its figures, and the number of its faults.
    fn measure(&self, scenario: &str, name: &str, programs: &Path) -> Result<(Figures, f64)> {
        let dir = self.dir.join(name);
        let mut run = Command::new(self.new.join("loadtest"));
        run.arg(scenario)
            .arg("--start")
            .arg(programs.join("devcluster"));
        run.args(["--rounds", "1", "--dir"])
            .arg(&dir)
            .args(&self.options);
        let output = run.output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let file = said
            .lines()
            .find_map(|line| line.strip_prefix("Written to "))
            .and_then(|line| line.split(", ").next());
        let Some(file) = file else {
            let cause = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{name}: no report of {scenario}:\n{said}{cause}").into());
        };
        let report: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
        Ok((figures(&report), faults(&report["faults"])))
    }

    /// Writes the pairs beside the reports.
    fn write(&self, scenario: &str, lines: &[Line]) -> Result<()> {
        let at = chrono::Utc::now().format("%Y-%m-%dT%H%M%SZ");
        let file = self.dir.join(format!("compare-{scenario}-{at}.json"));
        let lines: Vec<Value> = lines.iter().map(Line::json).collect();
        let content = json!({ "scenario": scenario, "rounds": self.rounds, "figures": lines });
        fs::write(&file, format!("{content:#}\n"))?;
        say(format!("Written to {}.", file.display()));
        Ok(())
    }
}

/// A figure of both sets.
struct Line {
    name: String,
    /// The medians of old and new.
    medians: [f64; 2],
    /// New / old: the median over the rounds, the least and the largest.
    ratio: [f64; 3],
}

impl Line {
    fn json(&self) -> Value {
        let Line {
            name,
            medians: [old, new],
            ratio: [ratio, least, largest],
        } = self;
        json!({ "figure": name, "old": old, "new": new, "ratio": ratio, "least": least, "largest": largest })
    }
}

/// The figures that all runs have.
fn compared(pairs: &[[Figures; 2]]) -> Vec<Line> {
    let Some([first, _]) = pairs.first() else {
        return Vec::new();
    };
    let of = |name: &str, set: usize| -> Option<Vec<f64>> {
        pairs
            .iter()
            .map(|pair| pair[set].get(name).copied())
            .collect()
    };
    first
        .keys()
        .filter_map(|name| {
            let (old, new) = (of(name, 0)?, of(name, 1)?);
            let ratios = || old.iter().zip(&new).map(|(old, new)| new / old);
            if !ratios().all(f64::is_finite) {
                return None;
            }
            let (least, largest) = (
                ratios().fold(f64::MAX, f64::min),
                ratios().fold(0.0, f64::max),
            );
            Some(Line {
                name: name.clone(),
                ratio: [median(ratios()), least, largest],
                medians: [median(old), median(new)],
            })
        })
        .collect()
}

fn table(lines: &[Line]) -> Vec<Vec<String>> {
    let heading = ["figure", "old", "new", "new / old", "spread"].map(str::to_owned);
    let rows = lines.iter().map(|line| {
        let [ratio, least, largest] = line.ratio;
        vec![
            line.name.clone(),
            format!("{:.2}", line.medians[0]),
            format!("{:.2}", line.medians[1]),
            format!("{ratio:.2}"),
            format!("{least:.2}–{largest:.2}"),
        ]
    });
    [heading.to_vec()].into_iter().chain(rows).collect()
}

/// The ratios to baselines and peers, and every number among the details.
fn figures(report: &Value) -> Figures {
    let mut figures = Figures::new();
    for ratio in report["ratios"].as_array().into_iter().flatten() {
        if let (Some(what), Some(value)) = (ratio["what"].as_str(), ratio["value"].as_f64()) {
            figures.insert(what.to_owned(), value);
        }
    }
    collect("", &report["details"], &mut figures);
    figures
}

fn collect(path: &str, value: &Value, figures: &mut Figures) {
    let below = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    match value {
        Value::Number(number) => {
            figures.extend(number.as_f64().map(|number| (path.to_owned(), number)));
        }
        Value::Array(values) => {
            for (n, value) in values.iter().enumerate() {
                // The place of a phase says nothing to a reader.
                let place = n.to_string();
                let name = value["phase"].as_str().unwrap_or(&place);
                collect(&below(name), value, figures);
            }
        }
        Value::Object(values) => {
            for (name, value) in values {
                collect(&below(name), value, figures);
            }
        }
        _ => {}
    }
}

fn faults(faults: &Value) -> f64 {
    let counts = faults
        .as_object()
        .into_iter()
        .flat_map(|faults| faults.values());
    counts.filter_map(Value::as_f64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(sends: f64) -> Figures {
        figures(&json!({
            "ratios": [{ "what": "ours / theirs", "value": sends / 10.0 }],
            "details": { "found": [{ "sends": sends, "phase": "alone" }] },
        }))
    }

    #[test]
    fn a_ratio_is_taken_within_each_round() {
        // The machine was half as fast in the second round, for both.
        let rounds = [[report(100.0), report(110.0)], [report(50.0), report(60.0)]];
        let lines = compared(&rounds);
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["found.alone.sends", "ours / theirs"]);
        let Line { medians, ratio, .. } = &lines[0];
        assert_eq!(medians, &[75.0, 85.0]);
        assert_eq!(
            ratio.map(|ratio| (ratio * 100.0).round()),
            [115.0, 110.0, 120.0]
        );
    }

    #[test]
    fn what_one_set_lacks_is_left_out() {
        assert!(compared(&[[Figures::new(), report(1.0)]]).is_empty());
        assert!(compared(&[[report(0.0), report(1.0)]]).is_empty());
    }
}
