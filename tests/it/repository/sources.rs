//! Rules for the sources that the compiler does not check.

use std::{
    fs,
    path::{Path, PathBuf},
};

use blindpipe::{config, documents, error::Code};

use crate::support::{connect, nodes};

pub(super) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The code that runs in a node: the server's, and the crate's that calls users' addresses for it.
pub(super) fn server_sources() -> Vec<(String, String)> {
    let mut all = sources(&root().join("src"));
    all.extend(sources(&root().join("crates/egress/src")));
    all
}

pub(super) fn sources(folder: &Path) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
    {
        if entry.is_dir() {
            all.extend(sources(&entry));
        } else if entry.extension().is_some_and(|end| end == "rs") {
            let name = entry
                .strip_prefix(root())
                .expect("below the root")
                .display()
                .to_string();
            all.push((name, fs::read_to_string(&entry).expect("a source")));
        }
    }
    all
}

/// The send path has a commit of its own.
#[test]
fn no_feature_begins_commits_or_publishes_by_hand() {
    for (file, text) in sources(&root().join("src/features")) {
        for word in [".begin(\"", ".commit()", ".publish(", ".invalidate("] {
            assert!(
                file.starts_with("src/features/messages/") || !text.contains(word),
                "{file}: {word}"
            );
        }
    }
}

#[test]
fn the_document_of_the_settings_is_the_table() {
    let document = fs::read_to_string(root().join("docs/configuration.md")).expect("the document");
    assert!(
        document.contains(&config::as_markdown()),
        "docs/configuration.md must contain:\n{}",
        config::as_markdown()
    );
}

#[test]
fn the_documents_of_the_interface_are_what_the_types_say() {
    for (path, command, document) in [
        ("docs/api/openapi.json", "openapi", documents::openapi()),
        ("docs/api/asyncapi.yaml", "asyncapi", documents::asyncapi()),
        (
            "docs/api/event-types.json",
            "event-types",
            documents::event_types(),
        ),
    ] {
        let committed = fs::read_to_string(root().join(path)).expect(path);
        assert!(
            committed == document,
            "{path} is stale; write it with `blindpipe {command} > {path}`"
        );
    }
}

/// Every string in the sources that begins like a statement: `-- name`.
pub fn statements() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (file, text) in sources(&root().join("src")) {
        for piece in text.split("\"-- ").skip(1) {
            let sql = piece.split('"').next().expect("an end");
            all.push((file.clone(), format!("-- {sql}")));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn every_statement_is_named_and_fits_the_schema() {
    let [a] = nodes().await;
    let client = connect(&a.world.database).await;
    let statements = statements();
    assert!(statements.len() > 30, "{} found", statements.len());
    let mut names = Vec::new();
    for (file, sql) in statements {
        let name = sql
            .lines()
            .next()
            .expect("a name")
            .trim_start_matches("-- ")
            .to_owned();
        assert!(name.contains('.') && !name.contains(' '), "{file}: {name}");
        client
            .prepare(&sql)
            .await
            .unwrap_or_else(|error| panic!("{file}: {name}: {error:?}"));
        names.push(name);
    }
    names.sort();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(twice, None);
}

/// Crates that the server must depend on and use directly.
const ORDERED_CRATES: [&str; 15] = [
    "tokio",
    "axum",
    "fred",
    "deadpool-postgres",
    "tokio-postgres",
    "serde",
    "jsonwebtoken",
    "bcrypt",
    "hmac",
    "sha2",
    "uuid",
    "ulid",
    "object_store",
    "metrics",
    "metrics-exporter-prometheus",
];

#[test]
fn the_ordered_crates_are_dependencies_and_used() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the manifest");
    let dependencies = manifest
        .split("\n[dependencies]\n")
        .nth(1)
        .and_then(|rest| rest.split("\n[").next())
        .expect("the dependencies");
    let sources = sources(&root().join("src"));
    let code: Vec<&str> = sources
        .iter()
        .flat_map(|(_, text)| text.lines())
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect();
    for name in ORDERED_CRATES {
        let declared = dependencies.lines().any(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with([' ', '.']))
        });
        assert!(declared, "{name} is no dependency");
        // A module of ours is called `metrics` too, but it has no macros.
        let path = match name {
            "metrics" => "metrics::counter!".to_owned(),
            name => format!("{}::", name.replace('-', "_")),
        };
        let used = code.iter().any(|line| uses(line, &path));
        assert!(used, "no source uses {name}");
    }
}

/// Whether `line` mentions the crate of `path`, and not a module below another path or a longer
/// name.
fn uses(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ':' | '{'))
    })
}

/// Tasks that begin outside of the supervisor, or that it does not start again: (file, text,
/// reason).
const OTHER_TASKS: [(&str, &str, &str); 14] = [
    (
        "src/features/push/dispatcher.rs",
        "supervisor::spawn_once(",
        "a call, which another worker makes after the lease",
    ),
    (
        "src/db/pool.rs",
        "tokio::spawn(link)",
        "ends with its client",
    ),
    (
        "src/db/connection.rs",
        "runtime.spawn(work)",
        "settles one connection before a deadline",
    ),
    (
        "src/objects/backend.rs",
        "tokio::task::spawn_blocking(",
        "deletes some files for a caller that waits",
    ),
    (
        "src/telemetry/export.rs",
        "runtime.spawn(async",
        "a call to the collector, for a thread that waits",
    ),
    (
        "src/telemetry/export.rs",
        "tokio::task::spawn_blocking(",
        "the end of the export, for a caller that waits",
    ),
    (
        "src/auth/secret.rs",
        ".spawn(work)",
        "threads that catch the panic of each job",
    ),
    (
        "src/jobs/worker.rs",
        "tasks.spawn(attempt.instrument(",
        "a job, which runs again after its lease",
    ),
    (
        "src/auth/agent.rs",
        "supervisor::spawn_once(",
        "a verification, for which a caller comes again",
    ),
    (
        "src/http/listener.rs",
        "supervisor::spawn_once(",
        "a connection",
    ),
    ("src/gateway/mod.rs", "supervisor::spawn_once(", "a socket"),
    (
        "src/features/webhooks/dispatcher/mod.rs",
        "\"webhooks.give_up\"",
        "the end of a turn, which another one follows",
    ),
    (
        "src/features/webhooks/dispatcher/mod.rs",
        "supervisor::spawn_once(",
        "a turn, which another one follows",
    ),
    (
        "src/features/webhooks/dispatcher/stops.rs",
        "supervisor::spawn_once(",
        "a call, whose event the deliveries bring without it",
    ),
];

/// A task that must live and dies in silence leaves a node that looks well.
#[test]
fn every_task_that_must_live_is_supervised() {
    let mut others = Vec::new();
    let mut supervised = 0;
    let mut sources = server_sources();
    // A simulation is a test, and its tasks end with it.
    sources.retain(|(file, _)| !file.starts_with("src/gateway/simulation/"));
    for (file, text) in sources {
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        for line in code.filter(|line| line.contains("spawn") && line.contains('(')) {
            if line.contains("supervisor::spawn(") || line.contains("supervisor::spawn_until(") {
                supervised += 1;
            } else if file != "src/supervisor.rs" {
                let known = OTHER_TASKS
                    .iter()
                    .position(|(path, text, _)| *path == file && line.contains(text));
                others.push(known.unwrap_or_else(|| panic!("{file}: {line}")));
            }
        }
    }
    others.sort_unstable();
    assert_eq!(
        others,
        Vec::from_iter(0..OTHER_TASKS.len()),
        "a row without a task"
    );
    // More tasks need a reason: a loop can run beside another in its task.
    assert!((26..=32).contains(&supervised), "{supervised} found");
}

#[test]
fn the_glossary_has_at_most_forty_terms_in_the_order_of_the_alphabet() {
    let glossary = fs::read_to_string(root().join("docs/glossary.md")).expect("the glossary");
    let rows = glossary.lines().filter_map(|line| line.strip_prefix("| "));
    let terms = rows.filter_map(|row| row.split_once(" |")).skip(1);
    let terms = Vec::from_iter(terms.map(|(term, _)| term));
    assert!((30..=40).contains(&terms.len()), "{} terms", terms.len());
    assert!(terms.is_sorted(), "{terms:?}");
}

#[test]
fn the_page_of_the_errors_has_every_code_and_every_parameter() {
    let page = fs::read_to_string(root().join("docs/api/errors.md")).expect("the page");
    let (codes, parameters) = page.split_once("## Parameters").expect("a heading");
    for code in Code::ALL {
        assert!(
            codes.contains(&format!("`{}`", code.wire())),
            "{}",
            code.wire()
        );
    }
    let mut count = 0;
    for (file, text) in server_sources() {
        for given in text.split(".with(\"").skip(1) {
            let name = given.split('"').next().expect("a name");
            assert!(parameters.contains(&format!("`{name}`")), "{file}: {name}");
            count += 1;
        }
    }
    assert!(count > 25, "{count} found");
}

#[test]
fn no_source_prints_or_forgets() {
    for (file, text) in server_sources() {
        for word in [
            concat!("todo", "!("),
            concat!("unimplemented", "!("),
            concat!("FIX", "ME"),
            "dbg!(",
        ] {
            assert!(!text.contains(word), "{file}: {word}");
        }
    }
}
