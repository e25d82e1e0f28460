//! Questions of pipelines: killed, resumed, decided, proven.

use std::{
    io::{BufRead, BufReader},
    process::Child,
};

use serde_json::{Value, json};

use crate::{
    support::{Home, Ran, has_approvals, piped, run},
    way::Way,
};

/// A person and an agent that may ask.
async fn asking() -> Home {
    let home = Home::with_person().await;
    home.bp(&["agent", "new", "deployer"]).done();
    home
}

/// Starts a question, and waits for its ticket.
pub fn start(home: &Home, arguments: &[&str]) -> (Child, String) {
    let mut asking = piped(home.command(&[&["--json", "ask"], arguments].concat()));
    let told = asking.stderr.as_mut().expect("a pipe");
    let mut line = String::new();
    BufReader::new(told).read_line(&mut line).expect("a line");
    let told: Value = serde_json::from_str(&line).expect(&line);
    (
        asking,
        told["ticket"].as_str().expect("a ticket").to_owned(),
    )
}

fn kill(mut asking: Child) {
    asking.kill().expect("a process");
    asking.wait().expect("its end");
}

fn receipt(ran: &Ran) -> Value {
    serde_json::from_str(ran.stdout.trim()).expect("a receipt")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_shows_its_time_on_a_terminal_only() {
    let home = asking().await;
    if !has_approvals(&home) {
        return;
    }
    let mut terminal = home.terminal(&["ask", "Deploy 1.4?", "--timeout", "10m"]);
    // It waits for a second of real time.
    terminal
        .exp_string("\r\u{1b}[Kno decision yet: 0:01, 9:59 left")
        .expect("the time");
    let waiting = home.json(&["approvals"]).item();
    let ticket = waiting["approval"]["approval_id"].as_str().expect("an id");
    home.json(&["approvals", "approve", ticket]).item();
    let shown = terminal.exp_eof().expect("an end");
    let (waited, printed) = shown.rsplit_once("\r\u{1b}[K").expect("a line that goes");
    assert!(!waited.contains('\n'), "{shown:?}");
    assert!(printed.starts_with('{'), "{shown:?}");

    let piped = home.bp(&["ask", "--resume", ticket]);
    assert_eq!(piped.code, 0, "{}", piped.stderr);
    assert!(
        !piped.stderr.contains("no decision yet"),
        "{}",
        piped.stderr
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_outlives_its_process_and_ends_in_a_receipt() {
    let home = asking().await;
    if !has_approvals(&home) {
        return;
    }
    let question = ["Deploy 1.4?", "--choices", "yes,no", "--timeout", "10m"];
    let (asking, ticket) = start(&home, &question);
    kill(asking);
    let waiting = home.json(&["approvals"]).item();
    assert_eq!(waiting["approval"]["approval_id"], ticket);
    assert_eq!(waiting["question"]["text"], "Deploy 1.4?");
    assert_eq!(waiting["question"]["choices"], json!(["yes", "no"]));
    for choices in ["here,", "here,here"] {
        home.json(&["ask", "Where?", "--choices", choices])
            .refused(2);
    }
    home.json(&["approvals", "answer", &ticket, "perhaps"])
        .refused(2);
    home.json(&["approvals", "approve", &ticket]).refused(2);
    let decided = home.json(&["approvals", "answer", &ticket, "no"]).item();
    assert_eq!(decided["state"], "answered");
    let again = home
        .json(&["approvals", "answer", &ticket, "yes"])
        .refused(4);
    assert_eq!(again["code"], "ALREADY_DECIDED");
    assert!(home.json(&["approvals"]).items().is_empty());

    let resumed = home.json(&["ask", "--resume", &ticket]);
    assert_eq!(resumed.code, 11, "{}", resumed.stderr);
    let proof = receipt(&resumed);
    assert_eq!(proof["approval"]["state"], "answered");
    let user = proof["approval"]["decisions"][0]["user_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let file = home.file("receipt.json", &resumed.stdout);
    let holds = home.json(&["receipt", "verify", &file]).item();
    assert_eq!(holds["state"], "answered");
    assert_eq!(holds["answers"][&user]["choice"], "no");

    // Without the service: the keys, and nothing else.
    let keys = home.bp(&["receipt", "keys", &user]).done();
    let keys = home.file("keys.json", &keys);
    let elsewhere = Home::new();
    elsewhere
        .json(&["receipt", "verify", &file, "--keys", &keys])
        .item();
    let forged = resumed
        .stdout
        .replace(r#"\"choice\":\"no\""#, r#"\"choice\":\"yes\""#);
    assert_ne!(forged, resumed.stdout);
    let forged = elsewhere.file("forged.json", &forged);
    let refused = elsewhere
        .json(&["receipt", "verify", &forged, "--keys", &keys])
        .refused(1);
    assert!(
        refused["message"]
            .as_str()
            .expect("words")
            .ends_with("wrong_answer"),
        "{refused}"
    );
    let none = elsewhere.file("none.json", "");
    let refused = elsewhere
        .json(&["receipt", "verify", &file, "--keys", &none])
        .refused(1);
    assert!(
        refused["message"]
            .as_str()
            .expect("words")
            .ends_with("unknown_key"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_yes_is_success_and_a_no_is_none() {
    let home = asking().await;
    if !has_approvals(&home) {
        return;
    }
    let arguments = home.file("arguments.json", r#"{"version":"1.4"}"#);
    let question = ["Deploy?", "--key", "run-7", "--arguments", &arguments];
    let (asking, ticket) = start(&home, &question);
    // The same key in another process is the same question.
    let (again, same) = start(&home, &question);
    assert_eq!(ticket, same);
    kill(again);
    let shown = home.json(&["approvals", "show", &ticket]).item();
    assert_eq!(shown["question"]["arguments"], json!({ "version": "1.4" }));
    home.json(&["approvals", "approve", &ticket]).item();
    let ended = asking.wait_with_output().expect("an end");
    assert_eq!(ended.status.code(), Some(0));

    let (asking, ticket) = start(&home, &["Delete all?"]);
    let mut terminal = home.terminal(&["approvals", "decide"]);
    terminal.exp_string("Delete all?").expect("the question");
    terminal.exp_string("leave it open: ").expect("a prompt");
    terminal.send_line("no").expect("a terminal");
    terminal.exp_string("denied").expect("the decision");
    terminal.exp_eof().expect("an end");
    let ended = asking.wait_with_output().expect("an end");
    assert_eq!(ended.status.code(), Some(1));
    let closed = home.json(&["approvals", "ls", "--closed"]).items();
    assert!(
        closed
            .iter()
            .any(|it| it["approval"]["approval_id"] == ticket),
        "{closed:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_without_a_context_asks_with_the_variables_of_its_agent() {
    let home = asking().await;
    if !has_approvals(&home) {
        return;
    }
    let variables = home.variables("deployer");
    let elsewhere = Home::new();
    let mut ask = elsewhere.command(&["--json", "ask", "Release?", "--timeout", "30s"]);
    ask.envs(variables.clone());
    run(ask, "").refused(2);
    let mut ask = elsewhere.command(&["--json", "ask", "Release?"]);
    ask.envs(variables);
    let mut asking = piped(ask);
    let mut line = String::new();
    let told = asking.stderr.as_mut().expect("a pipe");
    BufReader::new(told).read_line(&mut line).expect("a line");
    let told: Value = serde_json::from_str(&line).expect(&line);
    let ticket = told["ticket"].as_str().expect("a ticket");
    home.json(&["approvals", "approve", ticket]).item();
    assert_eq!(asking.wait().expect("an end").code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_waits_through_an_outage() {
    let home = asking().await;
    if !has_approvals(&home) {
        return;
    }
    let way = Way::open().await;
    let there = ["--context", "dev", "--url", way.url.as_str()];
    let (asking, ticket) = start(&home, &[&["Deploy?"], &there[..]].concat());
    way.cut().await;
    home.json(&["approvals", "approve", &ticket]).item();
    // An earlier question is not waited for where nothing answers.
    let resume = ["ask", "--resume", &ticket];
    home.json(&[&resume[..], &there].concat()).refused(5);
    way.mend();
    let ended = tokio::task::spawn_blocking(|| asking.wait_with_output());
    let ended = ended.await.expect("no panic").expect("an end");
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
}
