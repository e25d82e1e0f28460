//! The licences, bans and sources of `deny.toml`, enforced with cargo alone, so that they hold on
//! machines without cargo-deny. Advisories need that tool; see the Makefile.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{env, fs, path::PathBuf, process::Command};

use serde_json::Value;

/// The root of the workspace.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// The quoted strings of the list `key` in section `[section]`.
fn list(section: &str, key: &str) -> Vec<String> {
    let text = read("deny.toml");
    let body = text
        .split(&format!("\n[{section}]\n"))
        .nth(1)
        .unwrap()
        .split("\n[")
        .next()
        .unwrap()
        .to_owned();
    let list = body
        .split(&format!("\n{key} = ["))
        .nth(1)
        .unwrap_or_else(|| panic!("deny.toml has no {key}"));
    let lines = list.split("\n]").next().unwrap().lines();
    let code = lines.map(|line| line.split('#').next().unwrap_or_default());
    code.flat_map(|line| {
        line.split('"')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    })
    .collect()
}

fn cargo(arguments: &[&str]) -> String {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    let output = command
        .args(arguments)
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "cargo {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Every crate that is built for this platform, from any member of the workspace.
fn packages() -> Vec<Value> {
    // Only crates that the build has already fetched are read, so this works without a network.
    let platform = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let metadata = cargo(&[
        "metadata",
        "--locked",
        "--offline",
        "--format-version",
        "1",
        "--filter-platform",
        &platform,
    ]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// Whether an SPDX expression can be satisfied with `allowed` licences alone.
fn satisfied(expression: &str, allowed: &[String]) -> bool {
    // Old crates write OR as `/`.
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = either(&words, &mut at, allowed);
    assert_eq!(at, words.len(), "not understood: {expression}");
    met
}

fn either(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut met = both(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= both(words, at, allowed);
    }
    met
}

fn both(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut met = single(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= single(words, at, allowed);
    }
    met
}

fn single(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let word = *words.get(*at).unwrap();
    *at += 1;
    if word == "(" {
        let met = either(words, at, allowed);
        assert_eq!(words.get(*at), Some(&")"));
        *at += 1;
        return met;
    }
    // An exception to a licence only permits more.
    if words.get(*at) == Some(&"WITH") {
        *at += 2;
    }
    allowed.iter().any(|licence| licence == word)
}

#[test]
fn expressions_are_understood() {
    let allowed = ["MIT".to_owned(), "ISC".to_owned()];
    for (expression, met) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("ISC AND (GPL-3.0 OR MIT)", true),
        ("GPL-3.0 AND ISC OR MIT", true),
        ("MIT WITH LLVM-exception", true),
    ] {
        assert_eq!(satisfied(expression, &allowed), met, "{expression}");
    }
}

#[test]
fn every_licence_is_allowed() {
    let allowed = list("licenses", "allow");
    let refused: Vec<_> = packages()
        .iter()
        .filter(|package| !satisfied(package["license"].as_str().unwrap_or("none"), &allowed))
        .map(|package| {
            format!(
                "{} {}: {}",
                package["name"], package["version"], package["license"]
            )
        })
        .collect();
    assert!(
        refused.is_empty(),
        "licences that deny.toml does not allow:\n{}",
        refused.join("\n")
    );
}

#[test]
fn no_banned_crate_is_built() {
    let banned = list("bans", "deny");
    assert!(banned.len() > 3);
    // The lock file also names crates that no enabled feature needs; the tree does not.
    let tree = cargo(&[
        "tree",
        "--locked",
        "--offline",
        "--workspace",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]);
    let built: Vec<_> = tree
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let found: Vec<_> = banned
        .iter()
        .filter(|name| built.contains(&name.as_str()))
        .collect();
    assert!(found.is_empty(), "deny.toml bans {found:?}");
}

#[test]
fn every_crate_comes_from_the_allowed_registry() {
    let registries: Vec<_> = list_line("sources", "allow-registry");
    let lock = read("Cargo.lock");
    let sources = lock
        .lines()
        .filter_map(|line| line.strip_prefix("source = \"")?.strip_suffix('"'));
    let foreign: Vec<_> = sources
        .filter(|source| {
            !registries
                .iter()
                .any(|known| source == &format!("registry+{known}"))
        })
        .collect();
    assert!(foreign.is_empty(), "crates from elsewhere: {foreign:?}");
}

/// The quoted strings of a list on a single line.
fn list_line(section: &str, key: &str) -> Vec<String> {
    let text = read("deny.toml");
    let body = text.split(&format!("\n[{section}]\n")).nth(1).unwrap();
    let line = body
        .lines()
        .find(|line| line.starts_with(&format!("{key} = [")))
        .unwrap();
    line.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}
