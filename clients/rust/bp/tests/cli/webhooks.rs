//! Events handed on to a receiver of this machine, and the webhook itself.

use std::{
    io::{BufRead, BufReader},
    sync::Arc,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use blindpipe_client::agent::verify;
use serde_json::Value;
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};

use crate::support::{Home, piped};

type Posted = (HeaderMap, Bytes);

/// A receiver that refuses its first delivery, and gives every one to the test.
pub struct Receiver {
    pub url: String,
    posted: mpsc::Receiver<Posted>,
    _serving: JoinSet<()>,
}

async fn take(
    State(posts): State<Arc<mpsc::Sender<Posted>>>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, String) {
    let call: Value = serde_json::from_slice(&body).expect("JSON");
    let challenge = &call["data"]["challenge"];
    if challenge.is_string() {
        return (StatusCode::OK, format!(r#"{{"challenge":{challenge}}}"#));
    }
    posts.send((headers, body)).await.ok();
    let is_first = call["attempt"] == 1 && call["event"] == "message.created";
    let status = if is_first {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
    };
    (status, "{}".to_owned())
}

impl Receiver {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
        let (posts, posted) = mpsc::channel(64);
        let router = Router::new()
            .route("/hook", post(take))
            .with_state(Arc::new(posts));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.expect("served") });
        Self {
            url,
            posted,
            _serving: serving,
        }
    }

    /// The next delivery of an event, and its headers.
    pub async fn next(&mut self, event: &str) -> (HeaderMap, Bytes, Value) {
        loop {
            let next = tokio::time::timeout(std::time::Duration::from_secs(60), self.posted.recv());
            let (headers, body) = next.await.expect("in time").expect("a delivery");
            let call: Value = serde_json::from_slice(&body).expect("JSON");
            if call["event"] == event {
                return (headers, body, call);
            }
        }
    }
}

fn seconds(headers: &HeaderMap) -> u64 {
    let at = headers["webhook-timestamp"].to_str().expect("a number");
    at.parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_handed_on_signed_and_acknowledged_once_they_are_taken() {
    let home = Home::with_person().await;
    home.bp(&["agent", "new", "hooked"]).done();
    let mut receiver = Receiver::start().await;
    let listen = ["--json", "webhook", "listen", "--forward-to", &receiver.url];
    let mut bp = piped(home.command(&listen));
    let mut lines = BufReader::new(bp.stdout.take().expect("a pipe")).lines();
    let first = lines.next().expect("a line").expect("text");
    let first: Value = serde_json::from_str(&first).expect("JSON");
    let secret = first["secret"].as_str().expect("a secret").to_owned();
    home.json(&["send", "hooked", "hello"]).item();
    let mut ids = Vec::new();
    for attempt in 1..=2 {
        let (headers, body, call) = receiver.next("message.created").await;
        assert!(
            verify(secret.as_str(), &headers, &body, seconds(&headers)),
            "{headers:?}"
        );
        assert!(!verify(
            "another secret of 24 bytes",
            &headers,
            &body,
            seconds(&headers)
        ));
        assert_eq!(call["attempt"], attempt);
        assert_eq!(
            call["data"]["payload"]["type"], "encrypted",
            "no key is needed"
        );
        ids.push(call["delivery_id"].clone());
    }
    assert_eq!(ids[0], ids[1]);
    let lag = || home.json(&["inbox", "hooked"]).item()["lag"].clone();
    for _ in 0..200 {
        if lag() == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(lag(), 0);
    bp.kill().expect("a process");
    bp.wait().expect("its end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_is_set_tested_listed_replayed_and_ended() {
    let home = Home::with_person().await;
    home.bp(&["agent", "new", "hooked"]).done();
    let mut receiver = Receiver::start().await;
    // A receiver that does not answer is told at once.
    let away = home.bp(&["webhook", "set", "hooked", "http://127.0.0.1:1/"]);
    assert!(away.stderr.contains("webhook verify"), "{}", away.stderr);
    assert!(away.done().starts_with("pending_verification"));
    let set = home
        .json(&["webhook", "set", "hooked", &receiver.url])
        .item();
    assert_eq!(set["status"], "active");
    assert!(
        set["secret"]
            .as_str()
            .expect("a secret")
            .starts_with("whsec_")
    );
    let shown = home.json(&["webhook", "show", "hooked"]).item();
    assert_eq!(
        (&shown["status"], shown.get("secret")),
        (&"active".into(), None)
    );
    assert_eq!(
        home.json(&["webhook", "test", "hooked"]).item()["status"],
        "success"
    );
    assert_eq!(
        home.json(&["webhook", "verify", "hooked"]).item()["status"],
        "active"
    );
    home.json(&["send", "hooked", "hello"]).item();
    receiver.next("message.created").await;
    let (_, _, taken) = receiver.next("message.created").await;
    let id = taken["delivery_id"].as_str().expect("an id").to_owned();
    let all = home.json(&["webhook", "ls", "hooked"]).items();
    assert!(all.iter().any(|it| it["delivery_id"] == id), "{all:?}");
    home.json(&["webhook", "replay", "hooked", &id]).item();
    let (_, _, again) = receiver.next("message.created").await;
    assert_eq!(again["delivery_id"], id);
    let findings = home.json(&["doctor"]).items();
    let webhook = findings
        .iter()
        .find(|it| it["part"] == "webhook hooked")
        .expect("a finding");
    assert_eq!(webhook["ok"], true);
    home.bp(&["webhook", "rm", "hooked"]).done();
    assert_eq!(
        home.json(&["webhook", "show", "hooked"]).refused(4)["code"],
        "NOT_FOUND"
    );
    home.json(&["webhook", "set", "hooked", "http://127.0.0.1:1/"])
        .item();
    let refused = home.json(&["doctor"]);
    assert_eq!(refused.code, 1, "{}", refused.stdout);
    assert!(
        refused.stdout.contains("pending_verification"),
        "{}",
        refused.stdout
    );
}
