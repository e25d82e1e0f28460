//! `docs/encryption.md` has a row per attack. Each test that it names is here, and each test that
//! is here is named.

use std::{collections::BTreeMap, fs};

use crate::support::root;

/// The tests of each file of this folder.
fn tests() -> BTreeMap<String, Vec<String>> {
    let folder = root().join("clients/rust/client/tests/cluster/attacks");
    let files = fs::read_dir(folder).expect("a folder").flatten();
    let tests = files.map(|file| {
        let path = file.path();
        let name = path.file_stem().and_then(|name| name.to_str());
        let text = fs::read_to_string(&path).expect("a file");
        let tests = text.split("#[tokio::test]\nasync fn ").skip(1);
        let tests = tests.filter_map(|test| Some(test.split_once('(')?.0.to_owned()));
        (name.expect("a name").to_owned(), tests.collect())
    });
    tests.collect()
}

/// The tests that the table names for Rust: a file, and a name with `…` for a part of it.
fn named() -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join("docs/encryption.md")).expect("a document");
    let (_, section) = text.split_once("## An active server").expect("the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with('|'));
    let mut named = Vec::new();
    for cell in rows.filter_map(|row| row.split('|').nth(3)) {
        let parts: Vec<_> = cell.split('`').collect();
        let mut file = "";
        for pair in parts[1..].chunks(2) {
            match pair {
                [name, after] if after.starts_with(':') => file = name,
                [name, ..] => named.push((file.to_owned(), (*name).to_owned())),
                [] => {}
            }
        }
    }
    named
}

fn is_named(test: &str, by: &str) -> bool {
    match by.split_once('…') {
        Some((start, end)) => test.starts_with(start) && test.ends_with(end),
        None => test == by,
    }
}

#[test]
fn the_table_names_every_test_and_no_other() {
    let (tests, named) = (tests(), named());
    assert!(named.len() >= 20, "{named:?}");
    for (file, name) in &named {
        let found = tests.get(file).into_iter().flatten();
        let found = found.filter(|test| is_named(test, name)).count();
        assert_eq!(found, 1, "`{file}`: `{name}`");
    }
    for (file, tests) in &tests {
        for test in tests {
            let is_there = named
                .iter()
                .any(|(of, name)| of == file && is_named(test, name));
            assert!(is_there, "no row names {test}");
        }
    }
}
