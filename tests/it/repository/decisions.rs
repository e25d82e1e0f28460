//! The records of `docs/adr`: few, short, and named by the modules that they explain.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::sources::root;

/// The most records that a reader can be asked to know.
const MAX_RECORDS: usize = 38;

/// The most lines of a record: it fits on a screen.
const MAX_RECORD_LINES: usize = 60;

/// The folders whose files may name a record.
const SOURCES: [&str; 8] = [
    "src", "crates", "clients", "examples", "loadtest", "sql", "helm", "tests",
];

/// The files beside them that may.
const DOCUMENTS: [&str; 5] = [
    "docs",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "Cargo.toml",
];

/// Landed migrations never change, so they keep the numbers of merged records.
const LANDED: &str = "sql/migrations/";

/// Folders of installed or built files.
const NOT_OURS: [&str; 4] = ["node_modules", "target", "dist", "__pycache__"];

/// The records: (number, text).
fn records() -> BTreeMap<u32, String> {
    let mut all = BTreeMap::new();
    for (file, text) in files(&root().join("docs/adr")) {
        let name = file.trim_start_matches("docs/adr/");
        let Some(number) = name.split('-').next().and_then(|it| it.parse().ok()) else {
            continue;
        };
        assert!(
            text.starts_with(&format!("# {number}. ")),
            "{file}: its title has another number"
        );
        assert_eq!(all.insert(number, text), None, "{number} is there twice");
    }
    all
}

/// The text files of a folder, or a single one: (path below the root, text).
pub(super) fn files(path: &Path) -> Vec<(String, String)> {
    if path.is_dir() {
        let mut all = Vec::new();
        for entry in fs::read_dir(path).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') && !NOT_OURS.contains(&name.as_str()) {
                all.extend(files(&entry.path()));
            }
        }
        return all;
    }
    let ends = [
        "rs", "py", "ts", "svelte", "sql", "lua", "md", "yaml", "toml",
    ];
    let is_text = path
        .extension()
        .is_some_and(|end| ends.iter().any(|known| end == *known));
    if !is_text {
        return Vec::new();
    }
    let name = path.strip_prefix(root()).expect("below the root");
    vec![(
        name.display().to_string(),
        fs::read_to_string(path).expect("a text"),
    )]
}

/// The records that a text names as `ADR 7`.
fn named(text: &str) -> BTreeSet<u32> {
    text.split("ADR ")
        .skip(1)
        .filter_map(|rest| {
            let end = rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len());
            rest[..end].parse().ok()
        })
        .collect()
}

#[test]
fn records_are_few_and_short_and_in_their_table() {
    let records = records();
    assert!(records.len() <= MAX_RECORDS, "{} records", records.len());
    let table = fs::read_to_string(root().join("docs/adr/README.md")).expect("the table");
    for (number, text) in &records {
        let lines = text.lines().count();
        assert!(lines <= MAX_RECORD_LINES, "ADR {number}: {lines} lines");
        let title = text.lines().next().expect("a title");
        let (_, title) = title.split_once(". ").expect("a title");
        assert!(
            table.contains(&format!("| [{number:04}](")) && table.contains(&format!("| {title} |")),
            "docs/adr/README.md lacks `{title}`"
        );
        for part in ["Context", "Decision", "Alternatives", "Consequences"] {
            assert!(
                text.contains(&format!("\n## {part}\n")),
                "ADR {number} has no part `{part}`"
            );
        }
    }
}

#[test]
fn a_source_names_each_record_and_each_named_record_exists() {
    let records = records();
    let mut unnamed: BTreeSet<u32> = records.keys().copied().collect();
    for folder in SOURCES {
        for (file, text) in files(&root().join(folder)) {
            for number in named(&text) {
                let is_known = records.contains_key(&number) || file.starts_with(LANDED);
                assert!(is_known, "{file} names ADR {number}, which is not there");
            }
            let reasons = text.lines().filter(|line| line.contains("Why: ADR "));
            for number in reasons.flat_map(named) {
                unnamed.remove(&number);
            }
        }
    }
    assert_eq!(unnamed, BTreeSet::new(), "no source ends with `Why: ADR …`");
    for document in DOCUMENTS {
        for (file, text) in files(&root().join(document)) {
            for number in named(&text) {
                assert!(
                    records.contains_key(&number) || file == "docs/adr/README.md",
                    "{file} names ADR {number}, which is not there"
                );
            }
        }
    }
}

#[test]
fn every_link_of_a_record_leads_to_a_file() {
    for (file, text) in files(&root().join("docs")) {
        let folder = root().join(&file);
        let folder = folder.parent().expect("a folder");
        for link in text.split("](").skip(1) {
            let link = link.split([')', '#']).next().expect("a link");
            if link.is_empty() || link.contains(':') || link.starts_with('/') {
                continue;
            }
            assert!(folder.join(link).exists(), "{file}: {link}");
        }
    }
}
