//! The table of attacks: each names tests that exist, and each test of an attack is in its row.

use std::{collections::BTreeSet, fs};

use super::sources::{root, sources};

/// The attacks that the bar asks for.
const ATTACKS: std::ops::RangeInclusive<u32> = 1..=55;

/// The names of all tests below `tests/it`, and of those of `bp`.
fn tests() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut files = sources(&root().join("tests/it"));
    files.extend(sources(&root().join("clients/rust/bp/tests")));
    for (_, text) in files {
        let mut lines = text.lines().map(str::trim);
        while let Some(line) = lines.next() {
            // A story that runs over every kind of store.
            if let Some(story) = line.strip_prefix("on_stores!(") {
                all.insert(story.split(':').next().expect("a name").to_owned());
            }
            if !line.starts_with("#[tokio::test") && line != "#[test]" {
                continue;
            }
            let declaration = lines
                .by_ref()
                .find(|line| line.contains("fn "))
                .expect("a test");
            let (_, name) = declaration.split_once("fn ").expect("a test");
            all.insert(name.split('(').next().expect("a name").to_owned());
        }
    }
    all
}

/// The rows of the document: (number, the names in the last column).
fn rows() -> Vec<(u32, Vec<String>)> {
    let document = fs::read_to_string(root().join("docs/threat-model.md")).expect("the document");
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let number = cells.get(1)?.parse().ok()?;
        let names = cells.get(4)?.split('`').skip(1).step_by(2);
        Some((number, names.map(str::to_owned).collect()))
    };
    document.lines().filter_map(row).collect()
}

#[test]
fn each_attack_names_its_tests_and_each_test_of_an_attack_is_named() {
    let (tests, rows) = (tests(), rows());
    let makefile = fs::read_to_string(root().join("Makefile")).expect("the Makefile");
    let exists = |name: &str| {
        tests.contains(name)
            || name
                .strip_prefix("make ")
                .is_some_and(|target| makefile.contains(&format!("\n{target}:")))
            || root().join("tests/it").join(name).is_file()
    };
    for (number, names) in &rows {
        assert!(
            names.iter().any(|name| tests.contains(name)),
            "{number} has no test"
        );
        for name in names {
            assert!(exists(name), "{number}: there is no {name}");
        }
    }
    let numbers: BTreeSet<u32> = rows.iter().map(|(number, _)| *number).collect();
    let missing: Vec<u32> = ATTACKS.filter(|number| !numbers.contains(number)).collect();
    assert!(missing.is_empty(), "{missing:?}");

    for test in &tests {
        let Some(rest) = test.strip_prefix("attack_") else {
            continue;
        };
        let number: u32 = rest[..2].parse().expect("a number");
        let is_named = rows
            .iter()
            .any(|(of, names)| *of == number && names.contains(test));
        assert!(is_named, "{test} is not in its row");
    }
}
