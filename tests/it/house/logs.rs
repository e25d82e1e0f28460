//! The lines that an operator reads: each names its operation and what the node does about it, and
//! a node without work writes none.

use std::{process::Command, time::Duration};

use blindpipe::{jobs::Upkeep, telemetry};
use reqwest::Method;
use serde_json::{Value, json};

use super::sources::{root, sources};
use crate::support::{ProcessNode, World, nodes};

/// The text of a macro's call, from its name to the parenthesis that closes it.
fn call(text: &str) -> &str {
    let mut depth = 0;
    let mut quoted = false;
    let mut before = ' ';
    for (at, letter) in text.char_indices() {
        match letter {
            '"' if before != '\\' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => {
                depth -= 1;
                if depth == 0 {
                    return &text[..at];
                }
            }
            _ => {}
        }
        before = letter;
    }
    text
}

#[test]
fn every_warning_names_its_operation_and_remedy() {
    let mut calls = 0;
    for (file, text) in sources(&root().join("src")) {
        for level in ["warn!(", "error!("] {
            let places = text.match_indices(level);
            for (at, _) in places.filter(|(at, _)| !text[..*at].ends_with("compile_")) {
                let call = call(&text[at..]);
                calls += 1;
                let names_operation = call.contains("operation =") || call.contains("(operation,");
                let names_remedy = call.contains("remedy =") || call.contains("remedy,");
                assert!(names_operation && names_remedy, "{file}: {call}");
            }
        }
    }
    assert!(calls > 20, "{calls} found");
}

/// The number of times that each upkeep runs in an hour.
fn runs_of_an_hour(upkeep: Upkeep) -> f64 {
    (3600 / upkeep.row().1) as f64
}

/// Jobs that fell due in the same instant once waited for each other's connections. An hour of
/// upkeep passes in six seconds here, so a node has far less time between two jobs than in
/// production.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_node_logs_nothing_in_an_hour() {
    let world = World::new(&[("UPKEEP_SPEED", "600"), ("DATABASE_TIMEOUT_MS", "3000")]).await;
    let node = ProcessNode::start_in(&world).await;
    let mut behind = Vec::new();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        behind.clear();
        for upkeep in Upkeep::ALL {
            let (name, _) = upkeep.row();
            let label = format!("name=\"{name}\"");
            let runs = node.metric("job_seconds_count", &label).await;
            // A run that is still waiting in the queue is not asked for twice.
            if runs < runs_of_an_hour(*upkeep).min(60.0) {
                behind.push((name, runs));
            }
        }
        if behind.is_empty() {
            break;
        }
    }
    assert!(behind.is_empty(), "{behind:?}");
    assert_eq!(node.log(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_is_warned_of_a_proxy_that_hides_its_clients() {
    let [a] = nodes().await;
    let process = ProcessNode::start_with(&a, &[("TRUSTED_PROXIES", "0.0.0.0/0")]).await;
    let caller = a.anon().at(&process.base);
    for hop in ["unknown", "hidden-by-a-proxy"] {
        let begin = caller.request(Method::POST, "/auth/passkey/begin");
        let begin = begin.header("x-forwarded-for", hop).json(&json!({}));
        caller.send(begin).await.expect(200);
    }
    let log = process.log();
    for (operation, times) in [("node.start", 1), ("http.client_address", 1)] {
        let field = format!("\"operation\":\"{operation}\"");
        assert_eq!(log.matches(&field).count(), times, "{operation}: {log}");
    }
    assert!(!log.contains("hidden-by-a-proxy"), "{log}");
}

/// The name of the variable that makes [`a_process_that_panics`] panic.
const PANICS: &str = "BLINDPIPE_TEST_PANICS";

#[test]
fn a_process_that_panics() {
    let Ok(secret) = std::env::var(PANICS) else {
        return;
    };
    telemetry::start("info");
    telemetry::log_panics();
    let panics: [fn(&str); 2] = [|_| panic!("a literal"), |secret| panic!("about {secret}")];
    for panic in panics {
        let secret = secret.clone();
        std::thread::spawn(move || panic(&secret)).join().ok();
    }
}

/// A formatted message may quote what a client sent, so the log has the place instead.
#[test]
fn a_panic_is_a_line_of_json_without_what_it_quotes() {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args([
            "house::logs::a_process_that_panics",
            "--exact",
            "--nocapture",
        ])
        .env(PANICS, "secret-of-a-client")
        .output()
        .expect("a process");
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
        .collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert_eq!(
        (&lines[0]["said"], &lines[1]["said"]),
        (&json!("a literal"), &Value::Null)
    );
    for line in &lines {
        assert_eq!(
            (&line["level"], &line["message"]),
            (&json!("ERROR"), &json!("a panic"))
        );
        assert!(
            line["place"]
                .as_str()
                .is_some_and(|place| place.contains("logs.rs")),
            "{line}"
        );
    }
    assert!(!said.contains("secret-of-a-client"), "{said}");
}
