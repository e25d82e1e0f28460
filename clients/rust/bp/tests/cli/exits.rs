//! Each command: the exit codes of its failures.

use std::collections::BTreeSet;

use axum::{
    Json, Router,
    http::{StatusCode, Uri, header::DATE},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};

use crate::{
    commands::leaves,
    schema::command_of,
    support::{Home, Ran, piped, run},
};

/// A service that renews any session and refuses everything else.
struct Refusing {
    url: String,
    _serving: JoinSet<()>,
}

impl Refusing {
    async fn start(status: StatusCode, code: &'static str, user_id: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let answer = move |uri: Uri| {
            let user_id = user_id.clone();
            async move { refusal(&uri, status, code, &user_id) }
        };
        let router = Router::new().fallback(answer);
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.expect("served") });
        Self {
            url,
            _serving: serving,
        }
    }
}

fn refusal(uri: &Uri, status: StatusCode, code: &str, user_id: &str) -> Response {
    if uri.path().ends_with("/auth/refresh") && status != StatusCode::UNAUTHORIZED {
        let session = json!({ "access_token": "x", "expires_in_seconds": 900, "user_id": user_id, "device_id": "x" });
        return Json(json!({ "data": session })).into_response();
    }
    if uri.path() == "/health" && status == StatusCode::IM_A_TEAPOT {
        let date = [(DATE, "Thu, 01 Jan 2026 00:00:00 GMT")];
        return (date, Json(json!({}))).into_response();
    }
    let error = json!({
        "code": code,
        "message": "no",
        "i18n_key": "errors.x",
        "params": { "retryable": false },
    });
    let id = [("x-request-id", "r-1")];
    (status, id, Json(json!({ "error": error }))).into_response()
}

/// Whose session or token a command needs.
#[derive(Clone, Copy, PartialEq)]
enum Caller {
    Nobody,
    Person,
    Agent,
}

const DELIVERY: &str = "0190b5e0-7c6e-7d3a-9c1b-2f4a5b6c7d8e";
const ULID: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
use Caller::{Agent, Nobody, Person};

/// The calls of the service, a command a line.
const CALLS: &[(Caller, &str)] = &[
    (Nobody, "register --email a@b.c --turnstile-token-file FILE"),
    (
        Nobody,
        "login --email a@b.c --turnstile-token-file FILE --password-file FILE",
    ),
    (Person, "whoami"),
    (Person, "limits"),
    (Person, "agent new other"),
    (Person, "agent ls"),
    (Person, "agent show helper"),
    (Person, "agent manifest helper"),
    (Agent, "agent manifest helper JSON"),
    (Person, "agent rotate helper"),
    (Person, "agent keys helper"),
    (Person, "agent delete helper --yes"),
    (Person, "init rust made"),
    (Person, "chat helper"),
    (Person, "send helper hello"),
    (Person, "tail"),
    (Person, "stop helper"),
    (Person, "inbox"),
    (Agent, "ask Deploy?"),
    (Person, "approvals"),
    (Person, "approvals show MESSAGE"),
    (Person, "approvals approve MESSAGE"),
    (Person, "approvals answer MESSAGE yes"),
    (Person, "approvals deny MESSAGE"),
    (Person, "approvals decide"),
    (Person, "receipt verify RECEIPT"),
    (Person, "receipt keys USER"),
    (
        Agent,
        "webhook listen --forward-to http://localhost:1/ --secret-file FILE",
    ),
    (Person, "webhook set helper https://example.com/hook"),
    (Person, "webhook show helper"),
    (Person, "webhook verify helper"),
    (Person, "webhook test helper"),
    (Person, "webhook ls helper"),
    (Person, "webhook replay helper DELIVERY"),
    (Person, "webhook rm helper"),
    (Person, "bridge a2a --serve helper"),
    (Person, "keys show"),
    (Person, "keys verify helper --yes"),
    (Person, "keys backup --protection-password-file FILE"),
    (Person, "keys restore --protection-password-file FILE"),
    (Person, "keys rotate helper"),
    (Person, "file put helper FILE"),
    (Person, "file get helper MESSAGE -o copy"),
    (Person, "search helper"),
    (Person, "api GET /users/me"),
];
/// These call no service, or report what it said among their items.
const LOCAL: [&str; 12] = [
    "agent env",
    "app verify",
    "completions",
    "context add",
    "context ls",
    "context rm",
    "context show",
    "context use",
    "doctor",
    "logout",
    "man",
    "mcp",
];

fn arguments(home: &Home, line: &str) -> Vec<String> {
    let receipt = json!({ "approval": { "decisions": [{ "user_id": ULID }] }, "question": "{}" });
    let fit = |word: &str| match word {
        "FILE" => home.file("file", "correct horse battery staple"),
        "JSON" => home.file("object.json", "{}"),
        "RECEIPT" => home.file("receipt.json", &receipt.to_string()),
        "DELIVERY" => DELIVERY.to_owned(),
        "MESSAGE" | "USER" => ULID.to_owned(),
        word => word.to_owned(),
    };
    line.split(' ').map(fit).collect()
}

/// Runs all commands of these callers beside each other, and holds each to the exit code. Each has a
/// copy of the home: a session is renewed by one process at a time, which takes seconds in an outage.
fn all_end(home: &Home, of: &[Caller], url: Option<&str>, code: i32) -> Vec<(String, Value)> {
    let called = CALLS.iter().filter(|(caller, _)| of.contains(caller));
    std::thread::scope(|scope| {
        let start = |line: &'static str| {
            let home = home.copy();
            let mut all: Vec<String> = vec!["--json".to_owned()];
            if let Some(url) = url {
                all.extend(["--context", "dev", "--url", url].map(str::to_owned));
            }
            all.extend(arguments(&home, line));
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            let ran = home.bp(&all);
            // Half a project is in the way of the next try.
            assert!(!home.folder.path().join("made").exists(), "{line}");
            (line.to_owned(), ran)
        };
        let running: Vec<_> = called
            .map(|&(_, line)| scope.spawn(move || start(line)))
            .collect();
        let refused = |(line, ran): (String, Ran)| {
            assert!(ran.stdout.is_empty(), "{line}: {}", ran.stdout);
            (line, ran.refused(code))
        };
        let ended = running.into_iter().map(|it| it.join().expect("no panic"));
        ended.map(refused).collect()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_tells_by_its_exit_code_why_it_failed() {
    let home = Home::with_person().await;
    home.bp(&["agent", "new", "helper"]).done();
    let me = home.json(&["whoami"]).item();
    let user_id = me["user_id"].as_str().expect("an id").to_owned();
    let all = leaves(&home);
    let tried = CALLS.iter().map(|(_, line)| {
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        command_of(&words)
    });
    let tried: BTreeSet<_> = tried.chain(LOCAL).map(str::to_owned).collect();
    assert_eq!(all, tried);
    // A misfit is told before anything happens, and in JSON to programs.
    for command in &all {
        let words: Vec<_> = command.split(' ').chain(["--no-such-option"]).collect();
        let error = home.json(&words).refused(2);
        let told = error["message"].as_str().expect("words");
        assert!(told.contains("--no-such-option"), "{command}: {told}");
    }

    // The service refuses.
    let refusing = Refusing::start(StatusCode::FORBIDDEN, "FORBIDDEN", user_id.clone()).await;
    let everybody = [Nobody, Person, Agent];
    for (line, error) in all_end(&home, &everybody, Some(&refusing.url), 4) {
        assert_eq!(error["code"], "FORBIDDEN", "{line}");
        assert_eq!(error["request_id"], "r-1", "{line}");
    }

    // Nobody listens there.
    all_end(&home, &everybody, Some("https://127.0.0.1:1"), 5);
    let whoami = ["--json", "--context", "dev", "--url"];
    for (status, exit) in [
        (StatusCode::UNAUTHORIZED, 3),
        (StatusCode::INTERNAL_SERVER_ERROR, 1),
        (StatusCode::SERVICE_UNAVAILABLE, 5),
    ] {
        let code = if exit == 3 { "UNAUTHORIZED" } else { "OTHER" };
        let refusing = Refusing::start(status, code, user_id.clone()).await;
        home.bp(&[&whoami[..], &[&refusing.url, "whoami"]].concat())
            .refused(exit);
    }

    // The device after a logout. Another process holds the agent's credentials still.
    home.bp(&["logout"]).done();
    all_end(&home, &[Person], None, 3);
    home.bp(&["logout"]).done();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_wrong_is_found() {
    let home = Home::new();
    let service = Refusing::start(StatusCode::IM_A_TEAPOT, "OTHER", ULID.to_owned()).await;
    home.bp(&["context", "add", "here", "--url", &service.url])
        .done();
    let ran = home.json(&["doctor"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let findings = ran.stdout.lines().map(serde_json::from_str::<Value>);
    let findings: Vec<_> = findings.map(|it| it.expect("JSON")).collect();
    let of = |part: &str| findings.iter().find(|it| it["part"] == part).expect(part);
    assert_eq!(of("tls")["ok"], true);
    for (part, remedy) in [("clock", "set the clock"), ("session", "`bp login`")] {
        let finding = of(part);
        assert_eq!(finding["ok"], false, "{finding}");
        let told = finding["remedy"].as_str().expect("a remedy");
        assert!(told.starts_with(remedy), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_leaves_early_is_no_fault() {
    let home = Home::with_person().await;
    for arguments in [&["limits"][..], &["completions", "zsh"]] {
        let mut bp = piped(home.command(arguments));
        drop(bp.stdout.take());
        assert_eq!(bp.wait().expect("an end").code(), Some(0));
    }
    let told = run(home.command(&["limits"]), "").done();
    assert!(told.contains("user_message_send"), "{told}");
}
