//! The bars of figures, in a file. A run with `--slo` ends with 1 if it misses one.

use std::{collections::BTreeMap, fs, path::Path};

use serde::Deserialize;

use crate::{Result, report::Report};

/// The file of the bars that the recorded runs are held to.
pub const FILE: &str = "loadtest/slo.json";

/// A file of bars.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slo {
    pub bars: Vec<Bar>,
    /// Why a scenario misses some, in a sentence, by its name.
    #[serde(default)]
    pub why_missed: BTreeMap<String, String>,
}

/// The bar of a figure.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    pub scenario: String,
    /// As the report names it: a ratio, `p99 in ms` or `faults`.
    pub figure: String,
    pub at_least: Option<f64>,
    pub at_most: Option<f64>,
}

impl Bar {
    /// Whether a value reaches it.
    pub fn is_met(&self, value: f64) -> bool {
        self.at_least.is_none_or(|bar| value >= bar) && self.at_most.is_none_or(|bar| value <= bar)
    }

    /// By what factor a value misses the bar.
    pub fn miss(&self, value: f64) -> f64 {
        let short = self.at_least.map_or(0.0, |bar| bar / value);
        short.max(self.at_most.map_or(0.0, |bar| value / bar))
    }

    /// The bar with its sign, as in a table.
    pub fn as_text(&self) -> String {
        let sides = [(self.at_least, "≥"), (self.at_most, "≤")];
        let sides = sides
            .into_iter()
            .filter_map(|(bar, sign)| Some(format!("{sign} {}", bar?)));
        sides.collect::<Vec<_>>().join(", ")
    }

    /// A value, with as many digits as tell on which side of the bar it is, and the bar.
    pub fn beside(&self, value: f64) -> String {
        let is_told = |text: &String| {
            let shown: f64 = text.parse().unwrap_or(value);
            self.is_met(shown) == self.is_met(value)
        };
        let texts = (2..9).map(|digits| format!("{value:.digits$}"));
        let shown = { texts }.find(is_told).unwrap_or(value.to_string());
        format!("{shown} ({})", self.as_text())
    }
}

impl Slo {
    /// Reads a file. A bar without a side is refused, because nothing could miss it.
    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file)
            .map_err(|error| format!("no bars in {} ({error})", file.display()))?;
        let slo: Slo = serde_json::from_str(&text)
            .map_err(|error| format!("the bars of {} are malformed: {error}", file.display()))?;
        let without = (slo.bars.iter()).find(|bar| bar.at_least.or(bar.at_most).is_none());
        match without {
            Some(bar) => Err(format!("{} has neither at_least nor at_most", bar.figure).into()),
            None => Ok(slo),
        }
    }

    /// The bars that a report misses, each in a line. A bar of a figure that the scenario does not
    /// have counts as missed: its name may be wrong.
    pub fn missed(&self, report: &Report) -> Vec<String> {
        let mut figures: BTreeMap<&str, f64> = report
            .ratios
            .iter()
            .map(|ratio| (ratio.what, ratio.value))
            .collect();
        figures.extend(report.p99_ms.map(|p99| ("p99 in ms", p99)));
        figures.insert("faults", report.faults.total() as f64);
        let mut missed = Vec::new();
        for bar in self
            .bars
            .iter()
            .filter(|bar| bar.scenario == report.scenario)
        {
            let Bar {
                scenario, figure, ..
            } = bar;
            match figures.get(figure.as_str()) {
                None => missed.push(format!("{scenario}: {figure} was not measured")),
                Some(value) if bar.is_met(*value) => {}
                Some(value) => {
                    let value = bar.beside(*value);
                    missed.push(format!("{scenario}: {figure} is {value}"));
                }
            }
        }
        missed
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{
        delivery::Faults,
        report::{Goal, Ratio},
    };

    fn slo(text: &str) -> Result<Slo> {
        let file = std::env::temp_dir().join(format!("slo-{}-{}", std::process::id(), text.len()));
        fs::write(&file, text)?;
        let read = Slo::read(&file);
        fs::remove_file(&file)?;
        read
    }

    fn report(value: f64, p99_ms: Option<f64>) -> Report {
        Report {
            scenario: "hop",
            tables: Vec::new(),
            ratios: vec![Ratio {
                what: "ours / theirs",
                value,
                goal: Goal::None,
            }],
            notes: Vec::new(),
            details: Value::Null,
            faults: Faults::default(),
            checked: 1,
            p99_ms,
        }
    }

    #[test]
    fn a_missed_bar_is_named_with_its_value() {
        let bars = r#"{"bars": [
            {"scenario": "hop", "figure": "ours / theirs", "at_least": 0.9},
            {"scenario": "hop", "figure": "p99 in ms", "at_most": 50},
            {"scenario": "hop", "figure": "faults", "at_most": 0},
            {"scenario": "send", "figure": "another", "at_most": 0}]}"#;
        let slo = slo(bars).expect("bars");
        assert!(slo.missed(&report(0.9, Some(50.0))).is_empty());
        assert_eq!(
            slo.missed(&report(0.89997, Some(51.0))),
            [
                "hop: ours / theirs is 0.89997 (≥ 0.9)",
                "hop: p99 in ms is 51.00 (≤ 50)"
            ]
        );
        assert_eq!(
            slo.missed(&report(1.0, None)),
            ["hop: p99 in ms was not measured"]
        );
    }

    #[test]
    fn malformed_bars_are_refused() {
        for text in [
            "{",
            r#"{"bars": [{"scenario": "hop", "figure": "x"}]}"#,
            r#"{"bars": [{"scenario": "hop", "figure": "x", "atmost": 1}]}"#,
        ] {
            assert!(slo(text).is_err(), "{text}");
        }
    }
}
