//! Holds what `bp --json` prints to `docs/cli.schema.json`.

use std::{
    collections::HashMap,
    fs,
    sync::{Arc, LazyLock, Mutex},
};

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::support::root;

/// The document, with the schemas of the interface that it names in itself.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let read = |name: &str| fs::read_to_string(root().join("docs").join(name)).expect(name);
    let text = read("cli.schema.json").replace("api/openapi.json#", "#");
    let mut document: Value = serde_json::from_str(&text).expect("JSON");
    let interface: Value = serde_json::from_str(&read("api/openapi.json")).expect("JSON");
    document["components"] = json!({ "schemas": interface["components"]["schemas"] });
    document
});
static VALIDATORS: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);

/// The commands that the document knows.
pub fn commands() -> impl Iterator<Item = &'static String> {
    DOCUMENT["properties"].as_object().expect("commands").keys()
}

/// The command that arguments begin with, after the options of all commands.
pub fn command_of(arguments: &[String]) -> &'static str {
    let begins = |at: usize, name: &str| {
        let mut words = name.split(' ').enumerate();
        words.all(|(index, word)| arguments.get(at + index).is_some_and(|it| it == word))
    };
    let found = (0..arguments.len()).find_map(|at| commands().find(|name| begins(at, name)));
    match found {
        Some(name) => name,
        // Its default.
        None if arguments.iter().any(|it| it == "approvals") => "approvals ls",
        None => panic!("no command of the document: {arguments:?}"),
    }
}

fn validator(place: &str) -> Arc<Validator> {
    let mut validators = VALIDATORS.lock().expect("no panic");
    let compile = || {
        let schema = json!({
            "allOf": [DOCUMENT.pointer(place).expect(place)],
            "$defs": DOCUMENT["$defs"],
            "components": DOCUMENT["components"],
        });
        Arc::new(jsonschema::draft202012::new(&schema).expect("a schema"))
    };
    let known = validators.entry(place.to_owned());
    known.or_insert_with(compile).clone()
}

fn hold_line(place: &str, line: &str) {
    let item: Value = serde_json::from_str(line).expect(line);
    if let Some(error) = validator(place).iter_errors(&item).next() {
        panic!("{place}: {}: {error}: {item}", error.instance_path());
    }
}

/// A line of standard output.
pub fn hold_item(command: &str, line: &str) {
    hold_line(&format!("/properties/{command}"), line);
}

/// All that a command with `--json` has printed.
pub fn hold(arguments: &[String], stdout: &str, stderr: &str) {
    if !arguments.iter().any(|it| it == "--json") {
        return;
    }
    for line in stderr.lines() {
        hold_line("/$defs/stderr", line);
    }
    if !stdout.is_empty() {
        let command = command_of(arguments);
        stdout.lines().for_each(|line| hold_item(command, line));
    }
}
