//! Reads, counts and judges the report of the suite.

use std::{collections::BTreeMap, fs, path::Path};

use serde::Deserialize;

use crate::{
    error::{Context, DevError, Result},
    terminal::say,
};

/// Required sections: framing, pings, reserved bits, opcodes, fragments, UTF-8, closing, limits,
/// chopping.
const SECTIONS: [u32; 9] = [1, 2, 3, 4, 5, 6, 7, 9, 10];
/// Outcomes that count as passed.
const PASSED: [&str; 3] = ["OK", "NON-STRICT", "INFORMATIONAL"];

/// The outcome of a case.
#[derive(Deserialize)]
pub struct Case {
    /// The outcome of the answers.
    behavior: String,
    /// The outcome of the close.
    #[serde(rename = "behaviorClose")]
    behavior_close: String,
}

/// Cases by name, such as `6.4.2`.
pub type Cases = BTreeMap<String, Case>;

pub fn read(report: &Path) -> Result<Cases> {
    let text = fs::read_to_string(report).with_context(|| format!("read {}", report.display()))?;
    let agents: BTreeMap<String, Cases> =
        serde_json::from_str(&text).with_context(|| "read the report".into())?;
    Ok(agents.into_values().next().unwrap_or_default())
}

impl Case {
    fn passed(&self) -> bool {
        [&self.behavior, &self.behavior_close]
            .iter()
            .all(|outcome| PASSED.contains(&outcome.as_str()))
    }
}

fn section(case: &str) -> u32 {
    case.split('.')
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or_default()
}

/// Per section, the number of cases with each outcome of [`PASSED`], and the number of failures.
pub fn tally(cases: &Cases) -> BTreeMap<u32, [usize; 4]> {
    let mut sections: BTreeMap<u32, [usize; 4]> = BTreeMap::new();
    for (name, case) in cases {
        let known = PASSED
            .iter()
            .position(|known| *known == case.behavior)
            .filter(|_| case.passed());
        sections.entry(section(name)).or_default()[known.unwrap_or(PASSED.len())] += 1;
    }
    sections
}

pub fn print(sections: &BTreeMap<u32, [usize; 4]>) {
    let row = |cells: [String; 5]| {
        let [section, rest @ ..] = cells;
        say(format!(
            "{section:<8}{}",
            rest.map(|cell| format!("{cell:>14}")).concat()
        ));
    };
    row(["section", PASSED[0], PASSED[1], PASSED[2], "FAILED"].map(str::to_owned));
    for (section, [ok, lax, told, failed]) in sections {
        row([*section as usize, *ok, *lax, *told, *failed].map(|n| n.to_string()));
    }
}

pub fn verdict(cases: &Cases) -> Result<()> {
    let missing: Vec<_> = SECTIONS
        .iter()
        .filter(|product| !cases.keys().any(|case| section(case) == **product))
        .collect();
    if !missing.is_empty() {
        return Err(DevError::new(format!(
            "the suite did not run the sections {missing:?}"
        )));
    }
    let failed = cases.iter().filter(|(_, case)| !case.passed());
    let failed: Vec<_> = failed
        .map(|(name, case)| {
            format!(
                "  {name}: {}, closing {}",
                case.behavior, case.behavior_close
            )
        })
        .collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(DevError::new(format!("failed:\n{}", failed.join("\n"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases(change: Option<(&str, &str, &str)>) -> Cases {
        let case = |behavior: &str, close: &str| Case {
            behavior: behavior.to_owned(),
            behavior_close: close.to_owned(),
        };
        let mut cases: Cases = SECTIONS
            .iter()
            .map(|section| (format!("{section}.1.1"), case("OK", "OK")))
            .collect();
        cases.insert("6.4.1".to_owned(), case("NON-STRICT", "OK"));
        cases
            .extend(change.map(|(name, behavior, close)| (name.to_owned(), case(behavior, close))));
        cases
    }

    #[test]
    fn what_passed_is_counted_and_what_did_not_is_named() {
        let sound = cases(Some(("7.1.6", "INFORMATIONAL", "INFORMATIONAL")));
        verdict(&sound).expect("all passed");
        let sections = tally(&sound);
        assert_eq!(
            (sections[&6], sections[&7], sections[&10]),
            ([1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0])
        );
        for (behavior, close) in [("FAILED", "OK"), ("OK", "UNCLEAN"), ("UNIMPLEMENTED", "OK")] {
            let internal = cases(Some(("10.1.1", behavior, close)));
            assert!(
                verdict(&internal)
                    .expect_err("one failed")
                    .to_string()
                    .contains("10.1.1")
            );
            assert_eq!(tally(&internal)[&10], [0, 0, 0, 1]);
        }
    }

    #[test]
    fn a_suite_that_ran_nothing_has_not_passed() {
        assert!(verdict(&Cases::new()).is_err());
        let mut some = cases(None);
        some.retain(|name, _| section(name) != 6);
        assert!(
            verdict(&some)
                .expect_err("no UTF-8")
                .to_string()
                .contains('6')
        );
    }
}
