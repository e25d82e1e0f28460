//! The walkthroughs of `ARCHITECTURE.md` are short, and every name in them is in the code. The paths
//! that documents name exist.

use std::{collections::BTreeSet, fs};

use super::{
    decisions::files,
    sources::{root, sources},
};

/// The most sentences of a walkthrough's steps.
const MAX_SENTENCES: usize = 15;

/// The walkthroughs: (title, text).
fn walkthroughs() -> Vec<(String, String)> {
    let document = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the document");
    let (_, walkthroughs) = document
        .split_once("\n## Walkthroughs\n")
        .expect("a chapter");
    let (walkthroughs, _) = walkthroughs.split_once("\n## ").expect("a next chapter");
    walkthroughs
        .split("\n### ")
        .skip(1)
        .map(|section| {
            let (title, text) = section.split_once('\n').expect("a title");
            (title.to_owned(), text.to_owned())
        })
        .collect()
}

/// The numbered steps of a walkthrough, each on a single line.
fn steps(text: &str) -> Vec<String> {
    let mut steps: Vec<String> = Vec::new();
    for line in text.lines() {
        let is_step = line.starts_with(|c: char| c.is_ascii_digit());
        match steps.last_mut() {
            _ if is_step => steps.push(line.to_owned()),
            Some(step) if line.starts_with("   ") => step.push_str(&line[2..]),
            _ => {}
        }
    }
    steps
}

/// The words of a text that names things of the code.
fn words(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.chars().any(char::is_alphabetic))
        .collect()
}

#[test]
fn a_walkthrough_has_at_most_fifteen_sentences() {
    let long: Vec<_> = walkthroughs()
        .into_iter()
        .map(|(title, text)| {
            // The number of a step ends with a point as well, and its last sentence with the line.
            let sentences = |step: &String| step.matches(". ").count();
            (title, steps(&text).iter().map(sentences).sum::<usize>())
        })
        .filter(|(_, sentences)| *sentences > MAX_SENTENCES)
        .collect();
    assert_eq!(long, []);
}

#[test]
fn every_name_of_a_walkthrough_is_in_the_code() {
    let mut code: Vec<String> = ["src", "crates/protocol/src"]
        .iter()
        .flat_map(|folder| sources(&root().join(folder)))
        .map(|(_, text)| text)
        .collect();
    code.push(fs::read_to_string(root().join("sql/schema.sql")).expect("the schema"));
    let known: BTreeSet<&str> = code.iter().flat_map(|text| words(text)).collect();
    let mut names = 0;
    for (title, text) in walkthroughs() {
        for name in text.split('`').skip(1).step_by(2) {
            let is_folder = !name.starts_with('/') && root().join("src").join(name).exists();
            let unknown: Vec<_> = words(name).difference(&known).copied().collect();
            assert!(is_folder || unknown.is_empty(), "{title}: `{name}`");
            names += 1;
        }
    }
    assert!(names > 40, "{names} names were found");
}

/// The documents whose paths are checked.
const DOCUMENTS: [&str; 5] = [
    "docs",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "sql/README.md",
];
/// Folders that documents name paths from.
const BASES: [&str; 5] = ["", "src", "src/features", "tests/it", "crates/protocol/src"];
/// Endings of files that documents name with their folders.
const ENDINGS: [&str; 8] = ["rs", "md", "sql", "toml", "py", "ts", "tsx", "lua"];

/// Whether a quoted name is a path with a folder: `http/idle.rs`, or `tests/it/limits/table`.
fn is_path(name: &str) -> bool {
    let of_path = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    let Some((folder, file)) = name.rsplit_once('/') else {
        return false;
    };
    let is_file = file
        .rsplit_once('.')
        .is_some_and(|(_, ending)| ENDINGS.contains(&ending));
    name.chars().all(of_path) && (is_file || folder.starts_with("tests/it"))
}

#[test]
fn every_path_that_a_document_names_exists() {
    let mut paths = 0;
    let mut unknown = Vec::new();
    let documents = DOCUMENTS.iter().flat_map(|path| files(&root().join(path)));
    for (document, text) in documents.filter(|(name, _)| name.ends_with(".md")) {
        let own = root().join(&document);
        let own = own.parent().expect("a folder");
        for name in text
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|name| is_path(name))
        {
            let is_known = BASES
                .iter()
                .any(|base| root().join(base).join(name).exists());
            if !is_known && !own.join(name).exists() {
                unknown.push(format!("{document}: {name}"));
            }
            paths += 1;
        }
    }
    assert!(unknown.is_empty(), "{unknown:?}");
    assert!(paths > 100, "{paths} paths were found");
}
