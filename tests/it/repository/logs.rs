//! The lines that an operator reads: each names its operation and what the node does about it, and
//! a node without work writes none.

use std::{process::Command, time::Duration};

use blindpipe::{
    jobs::{
        Upkeep,
        queue::{self, NewJob},
    },
    telemetry,
};
use reqwest::Method;
use serde_json::{Value, json};

use super::sources::server_sources;
use crate::support::{ProcessNode, World, db, nodes};

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
    for (file, text) in server_sources() {
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

/// An hour of the database's clock: steps of a quarter of a job's lease, and the real time of each.
/// The upkeep runs so many times as often, by the schedule's own code, so the two stay in step.
const HOUR: u32 = 3600;
const STEP: Duration = Duration::from_secs(15);
const STEP_TIME: Duration = Duration::from_millis(30);
const SPEED: u32 = 300;

/// The number of times that each upkeep has run.
async fn runs(node: &ProcessNode, upkeep: Upkeep) -> f64 {
    let label = format!("name=\"{}\"", upkeep.row().0);
    node.metric("job_seconds_count", &label).await
}

/// Waits until each upkeep has run so often.
async fn until_run(node: &ProcessNode, times: impl Fn(Upkeep) -> f64) {
    let mut behind = Vec::new();
    for _ in 0..100 {
        behind.clear();
        for upkeep in Upkeep::ALL {
            let (runs, due) = (runs(node, *upkeep).await, times(*upkeep));
            if runs < due {
                behind.push((upkeep.row().0, runs, due));
            }
        }
        if behind.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    panic!("{behind:?}");
}

/// The clock of the database moves by an hour, and everything that is due within it becomes due.
/// The heartbeat, the sweep and the probes run in real time: their intervals are a second or two.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_node_logs_nothing_in_an_hour() {
    let speed = SPEED.to_string();
    let world = World::new(&[("UPKEEP_SPEED", &speed), ("DATABASE_TIMEOUT_MS", "3000")]).await;
    let node = ProcessNode::start_in(&world).await;
    for _ in 0..HOUR / STEP.as_secs() as u32 {
        world.advance(STEP).await;
        tokio::time::sleep(STEP_TIME).await;
    }
    // A run that is still waiting in the queue is not asked for twice.
    let runs_of_an_hour = |upkeep: Upkeep| f64::from(HOUR / upkeep.row().1 as u32).min(60.0);
    until_run(&node, runs_of_an_hour).await;
    assert_eq!(node.log(), "");
}

/// The worst coincidence of an idle node: every kind of upkeep falls due in the same instant. Once,
/// ten minutes after its start, three of them waited for each other's connections.
#[tokio::test(flavor = "multi_thread")]
async fn all_upkeep_at_once_waits_for_nothing_and_logs_nothing() {
    let world = World::new(&[("DATABASE_TIMEOUT_MS", "3000")]).await;
    let node = ProcessNode::start_in(&world).await;
    let db = db(&world.database);
    for round in 1..=5 {
        let all = Upkeep::ALL.iter().map(|upkeep| NewJob {
            job: upkeep.job(),
            delay: Duration::ZERO,
        });
        let client = db.write().await.expect("a connection");
        let enqueued = queue::enqueue(&client, &Vec::from_iter(all)).await;
        enqueued.expect("enqueued");
        until_run(&node, |_| f64::from(round)).await;
    }
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
    telemetry::start("info", None);
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
            "repository::logs::a_process_that_panics",
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
