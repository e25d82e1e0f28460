//! The maps of the repository for people: the tests of a feature, the targets of CI.

use std::{collections::BTreeSet, fs};

use super::sources::root;

/// The modules of `src/features`.
fn features() -> BTreeSet<String> {
    fs::read_dir(root().join("src/features"))
        .expect("the features")
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| name.to_string_lossy().trim_end_matches(".rs").to_owned())
        .filter(|name| name != "mod")
        .collect()
}

/// The words between backticks of a text.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_feature_names_its_tests_in_contributing() {
    let document = fs::read_to_string(root().join("CONTRIBUTING.md")).expect("the document");
    let (_, map) = document
        .split_once("\n### Where a feature is tested\n")
        .expect("the map");
    let (map, _) = map.split_once("\n##").expect("a next chapter");
    let mut mapped = BTreeSet::new();
    for row in map.lines().filter(|line| line.starts_with("| `")) {
        let names = quoted(row);
        let (feature, tests) = names.split_first().expect("a feature");
        assert!(!tests.is_empty(), "{feature} has no tests");
        for test in tests {
            assert!(
                root().join("tests/it").join(test).exists(),
                "{feature}: tests/it/{test}"
            );
        }
        mapped.insert((*feature).to_owned());
    }
    assert_eq!(mapped, features());
}

#[test]
fn ci_calls_every_part_of_the_full_tests_and_nothing_else() {
    let makefile = fs::read_to_string(root().join("Makefile")).expect("the Makefile");
    let parts_of = |target: &str| {
        let rule = makefile.lines().find_map(|line| line.strip_prefix(target));
        let (parts, _) = rule.and_then(|rule| rule.split_once(" ##")).expect(target);
        parts.split_whitespace()
    };
    let mut parts: BTreeSet<&str> = parts_of("test: ").chain(parts_of("test-full: ")).collect();
    parts.remove("test");
    // Jobs of their own run what a single machine runs side by side.
    parts.remove("clients-and-chart");
    let beside = makefile.split_once(" SIDE_BY_SIDE=1 ").expect("a rule").1;
    parts.extend(beside.lines().next().unwrap_or_default().split_whitespace());
    // `units` lints too. Alone, lints fail within minutes.
    parts.insert("lint");
    let workflow =
        fs::read_to_string(root().join(".github/workflows/ci.yml")).expect("the workflow");
    let jobs = workflow
        .lines()
        .find_map(|line| line.trim().strip_prefix("targets: ["))
        .expect("a matrix");
    let jobs: BTreeSet<&str> = jobs
        .trim_end_matches(']')
        .split([',', ' '])
        .filter(|target| !target.is_empty())
        .collect();
    assert_eq!(jobs, parts);
}
