//! The order of the top-level modules and of the features. A file uses only those that stand before
//! its own on the map in `src/lib.rs`.

use std::{collections::BTreeSet, fs};

use super::sources::{root, sources};

/// The modules in order, as `clock` or `features::typing`, out of the map in the crate's
/// documentation.
fn top_modules(documentation: &str) -> Vec<String> {
    let lines = documentation
        .lines()
        .filter_map(|line| line.strip_prefix("//!"))
        .map(|line| line.strip_prefix(' ').unwrap_or(line));
    let map = lines
        .skip_while(|line| *line != "```text")
        .skip(1)
        .take_while(|line| *line != "```");
    let mut layer = "";
    let mut top_modules = Vec::new();
    for line in map {
        let mut words = line.split_whitespace();
        if !line.starts_with(' ') {
            layer = words.next().expect("a layer");
        }
        let prefix = if layer == "features" {
            "features::"
        } else {
            ""
        };
        top_modules.extend(words.map(|top_module| format!("{prefix}{top_module}")));
    }
    top_modules
}

/// The module of a file: `src/redis/keys.rs` is `redis::keys`.
fn module(file: &str) -> Vec<String> {
    let path = file.trim_start_matches("src/").trim_end_matches(".rs");
    let mut module: Vec<String> = path.split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    module
}

/// The top-level module of a module or an item; none for the crate itself and for the list of
/// features.
fn top_module(path: &[String]) -> Option<String> {
    match path {
        [features, feature, ..] if features == "features" => Some(format!("features::{feature}")),
        [features] if features == "features" => None,
        [top_module, ..] => Some(top_module.clone()),
        [] => None,
    }
}

/// The text without its comments.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let comment = line
            .match_indices("//")
            .find(|(at, _)| !line[..*at].ends_with(':'));
        comment.map_or(line, |(at, _)| &line[..at])
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Words, `::`, and single signs.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|sign: char| sign != '_' && !sign.is_alphanumeric());
        let length = match word.unwrap_or(rest.len()) {
            0 if rest.starts_with("::") => 2,
            0 => first.len_utf8(),
            length => length,
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

/// Reads what follows `path` in a path or a `use` tree, and adds each path that is named.
fn follow(
    tokens: &mut std::iter::Peekable<std::slice::Iter<'_, &str>>,
    path: Vec<String>,
    all: &mut Vec<Vec<String>>,
) {
    if tokens.next_if(|token| **token == "::").is_none() {
        return all.push(path);
    }
    if tokens.next_if(|token| **token == "{").is_none() {
        let mut path = path;
        path.extend(tokens.next().map(|word| (*word).to_owned()));
        return follow(tokens, path, all);
    }
    while let Some(token) = tokens.next() {
        match *token {
            "}" => return,
            "," => {}
            word => follow(tokens, [&path[..], &[word.to_owned()]].concat(), all),
        }
    }
}

/// Every path of this crate that a file names, in `use` trees and in code.
fn paths(file: &str, text: &str) -> Vec<Vec<String>> {
    let text = code(text);
    let tokens = tokens(&text);
    let mut rest = tokens.iter().peekable();
    let mut all = Vec::new();
    while let Some(token) = rest.next() {
        let mut start = match *token {
            "crate" => Vec::new(),
            "super" => module(file)[..module(file).len().saturating_sub(1)].to_vec(),
            _ => continue,
        };
        let mut ahead = rest.clone();
        while ahead.next_if(|token| **token == "::").is_some()
            && ahead.next_if(|token| **token == "super").is_some()
        {
            start.pop();
            rest = ahead.clone();
        }
        if rest.peek().is_some_and(|token| **token == "::") {
            follow(&mut rest, start, &mut all);
        }
    }
    all
}

/// A line for each mention of a module that does not stand before the module of the file.
fn upward_mentions(top_modules: &[String], files: &[(String, String)]) -> BTreeSet<String> {
    let place = |top_module: &String| top_modules.iter().position(|other| other == top_module);
    let mut faults = BTreeSet::new();
    for (file, text) in files {
        let Some(own) = top_module(&module(file)) else {
            continue;
        };
        let mentioned = paths(file, text);
        for other in mentioned.iter().filter_map(|path| top_module(path)) {
            if other != own && place(&other).is_some() && place(&other) > place(&own) {
                faults.insert(format!("{file} uses {other}, which stands above {own}"));
            }
        }
    }
    faults
}

fn map() -> Vec<String> {
    top_modules(&fs::read_to_string(root().join("src/lib.rs")).expect("a source"))
}

/// All sources but those of the crate's two roots.
fn files() -> Vec<(String, String)> {
    let mut files = sources(&root().join("src"));
    files.retain(|(file, _)| !["src/lib.rs", "src/main.rs"].contains(&file.as_str()));
    files
}

#[test]
fn every_top_module_is_on_the_map_once() {
    let found = files()
        .iter()
        .filter_map(|(file, _)| top_module(&module(file)))
        .collect::<BTreeSet<_>>();
    let map = map();
    assert_eq!(map.iter().cloned().collect::<BTreeSet<_>>(), found);
    assert_eq!(map.len(), found.len());
}

#[test]
fn a_module_uses_only_modules_before_it() {
    let faults = upward_mentions(&map(), &files());
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn a_feature_uses_only_the_front_of_another() {
    for (file, text) in files() {
        let own = top_module(&module(&file));
        for path in paths(&file, &text) {
            let inside = path.len() > 2 && ["store", "rules"].contains(&path[2].as_str());
            let other =
                path.first().is_some_and(|first| first == "features") && top_module(&path) != own;
            assert!(
                !(inside && other),
                "{file} reaches into {}",
                path.join("::")
            );
        }
    }
}

#[test]
fn an_upward_mention_is_found_wherever_it_stands() {
    let documentation = "//! The map:\n//!\n//! ```text\n//! foundation  clock ids\n//! features    typing\n//!             streams\n//! edge        gateway\n//! ```\n//! More.";
    let top_modules = top_modules(documentation);
    assert_eq!(
        top_modules,
        [
            "clock",
            "ids",
            "features::typing",
            "features::streams",
            "gateway"
        ]
    );
    let faults = |file: &str, text: &str| {
        let files = [(file.to_owned(), text.to_owned())];
        upward_mentions(&top_modules, &files).len()
    };
    for (file, text) in [
        ("src/clock.rs", "use crate::ids::AgentId;"),
        (
            "src/clock.rs",
            "pub use crate::{\n    clock::{self, iso},\n    ids::{AgentId as Id},\n};",
        ),
        (
            "src/clock.rs",
            "fn f() -> u8 { \"http://x\"; crate::gateway::close::<u8>() }",
        ),
        ("src/ids/mod.rs", "use super::gateway;"),
        ("src/ids/agent.rs", "use super::super::gateway::Gateway;"),
        (
            "src/features/typing/mod.rs",
            "use super::{streams::Streams};",
        ),
        (
            "src/features/typing/http.rs",
            "use crate::features::{typing, streams::{self}};",
        ),
    ] {
        assert_eq!(faults(file, text), 1, "{file}: {text}");
    }
    for (file, text) in [
        (
            "src/gateway/mod.rs",
            "use crate::{clock::Clock, features::streams};",
        ),
        (
            "src/gateway/close.rs",
            "use super::frames; use super::super::clock;",
        ),
        (
            "src/clock.rs",
            "/// See [`crate::gateway`].\nuse std::time; // crate::gateway::X",
        ),
        (
            "src/features/streams/mod.rs",
            "use self::gateway::X; use super::typing::Typing;",
        ),
    ] {
        assert_eq!(faults(file, text), 0, "{file}: {text}");
    }
}
