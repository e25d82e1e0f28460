//! The findings of an examination, and their text.

use std::fmt;

/// How good a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    Good,
    /// The service runs, but an operator should know of it.
    Warning,
    /// The service does not run, or breaks a promise.
    Fault,
}

/// A part and its state.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The part, such as `postgres.durability`, or the name of a setting.
    pub part: String,
    /// Its grade.
    pub grade: Grade,
    /// Its state in plain words.
    pub said: String,
    /// How to mend it; empty if it is good.
    pub remedy: String,
}

/// The findings, in the order of their making.
#[derive(Debug, Default)]
pub struct Report {
    /// The findings.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Notes that a part is as it should be.
    pub fn good(&mut self, part: &str, said: impl Into<String>) {
        self.note(part, Grade::Good, said.into(), "");
    }

    /// Notes that an operator should look at a part.
    pub fn warning(&mut self, part: &str, said: impl Into<String>, remedy: &str) {
        self.note(part, Grade::Warning, said.into(), remedy);
    }

    /// Notes that a part is broken.
    pub fn fault(&mut self, part: &str, said: impl Into<String>, remedy: &str) {
        self.note(part, Grade::Fault, said.into(), remedy);
    }

    /// Notes a part that is good under a condition, and otherwise broken.
    pub fn require(&mut self, part: &str, is_good: bool, good: String, bad: String, remedy: &str) {
        match is_good {
            true => self.good(part, good),
            false => self.fault(part, bad, remedy),
        }
    }

    fn note(&mut self, part: &str, grade: Grade, said: String, remedy: &str) {
        self.findings.push(Finding {
            part: part.to_owned(),
            grade,
            said,
            remedy: remedy.to_owned(),
        });
    }

    /// The number of findings of a grade.
    pub fn count(&self, grade: Grade) -> usize {
        let of_grade = self.findings.iter().filter(|one| one.grade == grade);
        of_grade.count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            let word = match finding.grade {
                Grade::Good => "ok",
                Grade::Warning => "warning",
                Grade::Fault => "FAULT",
            };
            writeln!(to, "{word:<8} {}: {}", finding.part, finding.said)?;
            if !finding.remedy.is_empty() {
                writeln!(to, "         remedy: {}", finding.remedy)?;
            }
        }
        let (faults, warnings) = (self.count(Grade::Fault), self.count(Grade::Warning));
        writeln!(to, "{faults} fault(s), {warnings} warning(s)")
    }
}
