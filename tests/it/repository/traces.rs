//! Traces: a request, its effects on other nodes and its jobs are a single trace at a collector.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    Agent, Caller, Collector, ExportedSpan, ProcessNode, Receiver, User, World, ulid,
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

/// The spans of the trace of the newest span with this name.
fn trace_of<'a>(spans: &'a [ExportedSpan], name: &str) -> Vec<&'a ExportedSpan> {
    let Some(root) = spans.iter().rfind(|one| one.span.name == name) else {
        return Vec::new();
    };
    let is_of_it = |one: &&ExportedSpan| one.span.trace_id == root.span.trace_id;
    spans.iter().filter(is_of_it).collect()
}

fn has(trace: &[&ExportedSpan], node: &str, name: &str) -> bool {
    trace
        .iter()
        .any(|one| one.node == node && one.span.name == name)
}

const SEND: &str = "POST /conversations/{conversation_id}/messages";

#[tokio::test(flavor = "multi_thread")]
async fn a_send_and_all_that_follows_on_other_nodes_are_a_single_trace() {
    let collector = Collector::start().await;
    let world = World::new(&[]).await;
    // Only the second node delivers webhooks.
    let first = [
        &collector.settings("first", "1")[..],
        &[("WEBHOOK_WORKER", "false")],
    ]
    .concat();
    let a = ProcessNode::start_in_with(&world, &first).await;
    let b = ProcessNode::start_in_with(&world, &collector.settings("second", "1")).await;
    let on_a = Caller::to(&world, &a.base);
    let alice = User::register_by(on_a.clone(), "alice").await;
    let receiver = Receiver::start().await;
    let agent = Agent::create_by(on_a.clone(), &alice, "helper").await;
    let hook = json!({ "url": receiver.url });
    alice.put(agent.webhook(""), hook).await.expect(200);
    let conversation = alice.talk_to(&agent).await;
    // A turn that is under way may read an event before its trace is noted.
    receiver.receives(2).await;
    while b.metric("webhook_turns", "").await > 0.0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut socket = alice.at(&b.base).connect().await;

    alice.say(&conversation, "a traced text").await.expect(201);
    socket.event("message.created").await;
    receiver
        .until("delivered", |calls| {
            calls.iter().any(|call| call.event() == "message.created")
        })
        .await;
    let spans = collector
        .until("a whole trace", |spans| {
            let trace = trace_of(spans, SEND);
            has(&trace, "first", "messages.send")
                && has(&trace, "second", "hint deliver")
                && has(&trace, "second", "webhook attempt")
        })
        .await;
    let trace = trace_of(&spans, SEND);
    let root = trace
        .iter()
        .find(|one| one.span.name == SEND)
        .expect("the request");
    let send = trace
        .iter()
        .find(|one| one.span.name == "messages.send")
        .expect("the send");
    assert_eq!(root.parent_id(), "");
    assert_eq!(
        root.attribute("http.response.status_code").as_deref(),
        Some("201")
    );
    assert_eq!(send.parent_id(), root.id());
    for name in ["hint deliver", "webhook attempt"] {
        let follower = trace
            .iter()
            .find(|one| one.span.name == name)
            .expect("a follower");
        assert_eq!(follower.parent_id(), send.id(), "{name}");
    }

    // A frame is a request, too.
    socket.say(json!({
        "type": "message.send", "conversation_id": conversation, "ref": 1,
        "client_message_id": ulid().to_string(), "payload": { "type": "text", "text": "by frame" },
    })).await;
    collector
        .until("a frame with its send", |spans| {
            has(&trace_of(spans, "message.send"), "second", "messages.send")
        })
        .await;

    // The queue of jobs: any node does it.
    let code =
        json!({ "email": "bob@example.org", "scene": "register", "turnstile_token": "dev-pass" });
    on_a.post("/auth/send-code", code).await.expect(200);
    collector
        .until("a job in the trace of its request", |spans| {
            let trace = trace_of(spans, "POST /auth/send-code");
            trace.iter().any(|one| one.span.name == "job mail")
        })
        .await;
}

/// The line of a request with this id in a log.
fn line_of(node: &ProcessNode, request_id: &str) -> Option<Value> {
    let log = node.log();
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut lines = lines.filter(|line| line["request_id"] == request_id);
    lines.next()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_decides_on_its_trace_only_where_it_is_trusted() {
    let collector = Collector::start().await;
    let world = World::new(&[]).await;
    let trusting = [
        &collector.settings("trusting", "0")[..],
        &[("TRACE_TRUST_CALLERS", "true"), ("LOG", "blindpipe=debug")],
    ]
    .concat();
    let trusting = ProcessNode::start_in_with(&world, &trusting).await;
    let wary = ProcessNode::start_in_with(&world, &collector.settings("wary", "1")).await;
    let rare = ProcessNode::start_in_with(&world, &collector.settings("rare", "0")).await;
    let ask = async |node: &ProcessNode, path: &str, traceparent: &str| {
        let request = Caller::to(&world, &node.base).request(Method::GET, path);
        let answer = request.header("traceparent", traceparent).send().await;
        let answer = answer.expect("an answer");
        answer.headers()["x-request-id"]
            .to_str()
            .expect("text")
            .to_owned()
    };
    // The calls that must leave no span come first, so that its span would be here with the last.
    ask(&rare, "/limits", &traceparent("01")).await;
    ask(&trusting, "/limits", &traceparent("00")).await;
    ask(&trusting, "/limits", "nonsense").await;
    ask(&wary, "/version", &traceparent("01")).await;
    let id = ask(&trusting, "/version", &traceparent("01")).await;
    let of_version = |node: &'static str| {
        move |one: &&ExportedSpan| one.node == node && one.span.name == "GET /version"
    };
    let spans = collector
        .until("both spans", |spans| {
            spans
                .iter()
                .find(of_version("trusting"))
                .and(spans.iter().find(of_version("wary")))
                .is_some()
        })
        .await;
    assert!(
        spans.iter().all(|one| one.span.name == "GET /version"),
        "{spans:#?}"
    );
    let child = spans.iter().find(of_version("trusting")).expect("a span");
    assert_eq!(
        (child.trace_id(), child.parent_id()),
        (TRACE.into(), PARENT.into())
    );
    let own = spans.iter().find(of_version("wary")).expect("a span");
    assert_ne!(own.trace_id(), TRACE);
    assert_eq!(own.parent_id(), "");
    assert_eq!(own.span.links.len(), 1, "{own:#?}");
    assert_eq!(own.span.links[0].trace_id, child.span.trace_id);
    // Its log line has both ids.
    let line = line_of(&trusting, &id).expect("a line");
    assert_eq!(line["trace_id"], TRACE, "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lines_of_a_job_have_its_trace_and_a_lost_collector_costs_spans_only() {
    let collector = Collector::start().await;
    let world = World::new(&[]).await;
    let node = ProcessNode::start_in_with(&world, &collector.settings("node", "1")).await;
    // No mail can be written below a file.
    std::fs::remove_dir_all(&world.mail_dir).ok();
    std::fs::write(&world.mail_dir, "").expect("written");
    let code =
        json!({ "email": "bob@example.org", "scene": "register", "turnstile_token": "dev-pass" });
    let caller = Caller::to(&world, &node.base);
    caller.post("/auth/send-code", &code).await.expect(200);
    let spans = collector
        .until("a job that is tried again", |spans| {
            let is_tried =
                |one: &ExportedSpan| one.attribute("outcome").as_deref() == Some("retried");
            spans
                .iter()
                .any(|one| one.span.name == "job mail" && is_tried(one))
        })
        .await;
    let job = spans
        .iter()
        .find(|one| one.span.name == "job mail")
        .expect("the job");
    let log = node.log();
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut failures = lines.filter(|line| line["message"] == "a job failed");
    let line = failures.next().expect("a line");
    assert_eq!(line["span"]["trace_id"], job.trace_id(), "{line}");

    drop(collector);
    caller.get("/version").await.expect(200);
    for _ in 0..200 {
        if node.metric("trace_exports_total", "outcome=\"lost\"").await > 0.0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{}", node.metrics().await);
}
