//! Malformed input: a node answers in the envelope or closes with a code. It never answers 500 and
//! never hangs.

use std::time::Duration;

use blindpipe::routes::{self, Access};
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{Answer, ProcessNode, TestNode, nodes, nodes_with};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "auth_register_ip=100000/s,auth_login_ip=100000/s,agent_message_send=100000/s,agent_conversation_message_send=100000/s,\
     agent_poll=100000/s,user_message_send=100000/s,default_user=100000/s,default_ip=100000/s,ws_connect_ip=100000/s,\
     agent_tier_1=100000/s,agent_conversations=100000/s,user_conversations_list=100000/s,user_messages_list=100000/s",
);

fn check(answer: &Answer, what: &str) {
    assert!(
        answer.status < 500 || answer.code() == "NOT_AVAILABLE_IN_V1",
        "{what}: {answer:?}"
    );
    if answer.status >= 400 {
        let error = &answer.body["error"];
        for field in ["code", "message", "i18n_key"] {
            assert!(error[field].is_string(), "{what}: {answer:?}");
        }
        assert!(error["params"].is_object(), "{what}: {answer:?}");
        assert!(answer.header("x-request-id").is_some(), "{what}");
    }
}

fn garbage() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = [
        "",
        " ",
        "{",
        "}",
        "[]",
        "null",
        "true",
        "7",
        "1e400",
        "\"x\"",
        "{}",
        "{\"\":{}}",
        "{\"a\":1,\"a\":2}",
        "{\"email\":[]}",
        "{\"payload\":{\"type\":\"\\u0000\"}}",
        "{\"payload\":{\"type\":\"\\ud800\"}}",
        "{\"payload\":{\"type\":{}}}",
        "{\"payload\":{\"type\":\"t\"},\"conversation_id\":\"x\"}",
        "{\"payload\":{\"type\":\"t\"},\"client_message_id\":[]}",
        "{\"payload\":{\"type\":\"t\"},\"in_reply_to\":\"01ARZ3NDEKTSV4RRFFQ69G5FAV\"}",
        "{\"payload\":[[[[]]]]}",
        "{}{}",
        "\u{feff}{}",
        "{\"type\":\"agent\",\"agent_id\":null}",
        "{\"type\":\"group\",\"member_ids\":[null]}",
        "{\"payload\":{\"type\":\"t\"},\"recipients\":[\"{}\"]}",
        "{\"payload\":{\"type\":\"t\"},\"recipients\":[\"01ARZ3NDEKTSV4RRFFQ69G5FAV\"]}",
        "{\"display_name\":\"\\u0007\"}",
        "<xml/>",
        "a=b&c=d",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    all.push(vec![0xff; 100]);
    all.push(b"{\"payload\":\"\xff\"}".to_vec());
    all.push("[".repeat(100_000).into_bytes());
    all.push(format!("{{\"payload\":{}", "{\"a\":".repeat(50_000)).into_bytes());
    all.push(format!("{{\"email\":\"{}\"}}", "x".repeat(60_000)).into_bytes());
    all.push(vec![b'x'; 2 * 1024 * 1024]);
    all
}

/// Parts of the routes that get garbage side by side.
const PARTS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn every_route_answers_garbage_in_the_envelope() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    // A process of its own, because tests share the counters of this one.
    let node = ProcessNode::start(&a).await;
    // Side by side, because an access token is valid for five minutes.
    join_all((0..PARTS).map(|part| Box::pin(send_garbage(&a, &node, part)))).await;
    assert_eq!(node.metric("panics_total", "").await, 0.0);
    let failed = node.metric("http_requests_total", "status=\"500\"").await;
    assert_eq!(failed, 0.0);
}

/// Sends garbage to one of [`PARTS`] of the routes.
async fn send_garbage(a: &TestNode, node: &ProcessNode, part: usize) {
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut routes = Vec::from_iter(routes::table().into_iter().skip(part).step_by(PARTS));
    // Credentials that a garbled request would rightly end come last.
    routes.sort_by_key(|route| route.method == Method::DELETE);
    for route in routes {
        let caller = match route.caller {
            Access::Public => a.anon(),
            // A caller of this cannot call anything else.
            Access::User if (&route.method, route.path) == (&Method::DELETE, "/users/me") => {
                a.user("leaver").await.caller.clone()
            }
            Access::User | Access::Either => alice.caller.clone(),
            Access::Agent => agent.caller.clone(),
        }
        .at(&node.base);
        for (agent_id, conversation_id) in [
            (agent.id.as_str(), conversation.as_str()),
            ("%00", "%ff"),
            ("..%2f", "x'--"),
            ("{}", ""),
        ] {
            let path = route
                .path
                .replace("{agent_id}", agent_id)
                .replace("{user_id}", &alice.id)
                .split('/')
                .map(|part| {
                    if part.starts_with('{') && part.len() > 2 {
                        conversation_id
                    } else {
                        part
                    }
                })
                .collect::<Vec<_>>()
                .join("/");
            // All of it where the path is right, a taste of it where it is not.
            let bodies = if agent_id == agent.id {
                garbage()
            } else {
                garbage().split_off(20)
            };
            for body in bodies
                .into_iter()
                .filter(|body| agent_id == agent.id || body.len() < 100_000)
            {
                let what = format!(
                    "{} {path} {:?}",
                    route.method,
                    String::from_utf8_lossy(&body[..body.len().min(60)])
                );
                let call = caller
                    .request(route.method.clone(), &path)
                    .header("content-type", "application/json");
                // A refusal before the end of a large body may cut the connection under the client.
                if let Ok(answer) = caller.try_send(call.body(body.clone())).await {
                    check(&answer, &what);
                }
            }
            for kind in [
                "text/plain",
                "application/x-www-form-urlencoded",
                "multipart/form-data; boundary=x",
                "",
                "\u{7f}",
            ] {
                let Ok(kind) = reqwest::header::HeaderValue::from_str(kind) else {
                    continue;
                };
                let call = || {
                    caller
                        .request(route.method.clone(), &path)
                        .header("content-type", kind.clone())
                        .body("{}")
                };
                // The connection may be one that an unread body has ended.
                let answer = match caller.try_send(call()).await {
                    Ok(answer) => answer,
                    Err(_) => caller.send(call()).await,
                };
                check(&answer, &path);
            }
            for query in [
                "?limit=99999999999999999999",
                "?cursor=%00",
                "?wait=x",
                "?limit=1&limit=2",
                "?%zz",
                "?cursor=1-1&cursor=2-2",
            ] {
                let call = caller.request(route.method.clone(), format!("{path}{query}"));
                check(&caller.send(call).await, query);
            }
        }
    }
    // Nothing of it was kept, and the node is well.
    let there = alice.at(&node.base);
    there.say(&conversation, "after").await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_requests_are_refused() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    for path in [
        "/",
        "/nothing",
        "//",
        "/agents/",
        "/v1",
        "/v2/agents",
        "/auth",
        "/auth/login/",
        "/metrics",
        "/health/ready",
        "/%2e%2e/",
    ] {
        a.anon().get(path).await.refused(404, "NOT_FOUND");
    }
    for method in [
        Method::TRACE,
        Method::DELETE,
        Method::from_bytes(b"BREW").expect("a method"),
    ] {
        let caller = a.anon();
        caller
            .send(caller.request(method, "/auth/login"))
            .await
            .refused(405, "METHOD_NOT_ALLOWED");
    }
    // A token in the wrong place is no token.
    let nobody = a.anon();
    nobody
        .post(
            format!("/agents?access_token={}", alice.access_token),
            json!({ "display_name": "x" }),
        )
        .await
        .refused(401, "UNAUTHORIZED");
    nobody
        .post("/agents", json!({ "access_token": alice.access_token }))
        .await
        .refused(401, "UNAUTHORIZED");
    let twice = alice
        .request(Method::POST, "/agents")
        .header("authorization", "Bearer x")
        .json(&json!({ "display_name": "x" }));
    alice.send(twice).await.refused(401, "UNAUTHORIZED");
    // A request id is kept if it is sane, and replaced if not.
    let id = |value: &'static str| {
        let caller = a.anon();
        async move {
            caller
                .send(
                    caller
                        .request(Method::GET, "/version")
                        .header("x-request-id", value),
                )
                .await
        }
    };
    assert_eq!(id("mine-1").await.header("x-request-id"), Some("mine-1"));
    assert_ne!(
        id("two words").await.header("x-request-id"),
        Some("two words")
    );
}

/// Sends bytes, returns all that comes back until the node closes.
async fn raw(base: &str, bytes: &[u8], patience: Duration) -> Option<String> {
    let mut stream = TcpStream::connect(base.trim_start_matches("http://"))
        .await
        .expect("connected");
    stream.write_all(bytes).await.ok();
    let mut back = Vec::new();
    tokio::time::timeout(patience, stream.read_to_end(&mut back))
        .await
        .ok()?
        .ok();
    Some(String::from_utf8_lossy(&back).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_http_is_refused_or_cut() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let soon = Duration::from_secs(5);
    for text in [
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        "\0\0\0\0\r\n\r\n".to_owned(),
        "POST /auth/login HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello!".to_owned(),
        "POST /auth/login HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\nConnection: close\r\n\r\n".to_owned(),
        format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "y".repeat(100_000)),
        format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(10_000)),
    ] {
        let back = raw(&a.base, text.as_bytes(), soon).await.expect("closed");
        let first = back.lines().next().unwrap_or_default();
        assert!(first.is_empty() || first.contains(" 4"), "{first} to {:?}", &text[..text.len().min(80)]);
    }
    // Over plain HTTP from anyone but the proxy: refused in the envelope, not redirected.
    let plain = raw(
        &a.base,
        b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        soon,
    )
    .await
    .expect("closed");
    assert!(
        plain.starts_with("HTTP/1.1 403") && plain.contains("TLS_REQUIRED"),
        "{plain}"
    );
    let claimed =
        b"GET /version HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: http\r\nConnection: close\r\n\r\n";
    assert!(
        raw(&a.base, claimed, soon)
            .await
            .expect("closed")
            .contains("TLS_REQUIRED")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_cut_and_hold_nobody_up() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    // Headers that never end, and a body that never comes: both are given ten seconds. Real time:
    // the deadlines are the transport's.
    let patience = Duration::from_secs(20);
    let headers = raw(
        &a.base,
        b"GET /version HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        patience,
    );
    let request = format!(
        "POST /conversations/{conversation}/messages HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{\"payload\":",
        alice.access_token
    );
    let body = raw(&a.base, request.as_bytes(), patience);
    let silent = raw(&a.base, b"", patience);
    let others = async {
        for _ in 0..5 {
            alice.say(&conversation, "meanwhile").await.expect(201);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let (headers, body, silent, ()) = futures_util::join!(headers, body, silent, others);
    assert!(silent.is_some(), "silence is cut within twenty seconds");
    let headers = headers.expect("cut within twenty seconds");
    assert!(
        headers.is_empty() || headers.starts_with("HTTP/1.1 408"),
        "{headers}"
    );
    let body = body.expect("cut within twenty seconds");
    assert!(
        body.starts_with("HTTP/1.1 408") && body.contains("REQUEST_TIMEOUT"),
        "{body}"
    );
}

/// Whether a request on this connection is answered.
async fn answered(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 1024];
    let request = b"GET /version HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\n\r\n";
    stream.write_all(request).await.is_ok()
        && stream
            .read(&mut answer)
            .await
            .is_ok_and(|n| answer[..n].starts_with(b"HTTP/1.1 200"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_can_be_used_again_and_a_dripping_head_cannot() {
    let [a] = nodes().await;
    let connect = async || {
        let mut stream = TcpStream::connect(a.base.trim_start_matches("http://"))
            .await
            .expect("connected");
        assert!(answered(&mut stream).await);
        stream
    };
    // Real time: the deadlines are the transport's. Load balancers keep a connection for a minute
    // and more, and what is closed just when it is used again is a request without an answer.
    let idle = async {
        let mut stream = connect().await;
        tokio::time::sleep(Duration::from_secs(16)).await;
        assert!(answered(&mut stream).await, "closed after 16 s");
    };
    let dripping = async {
        let mut stream = connect().await;
        let started = std::time::Instant::now();
        stream
            .write_all(b"GET /version HTTP/1.1\r\nX: ")
            .await
            .expect("written");
        let mut byte = [0];
        loop {
            match tokio::time::timeout(Duration::from_millis(500), stream.read(&mut byte)).await {
                Ok(Ok(1)) => panic!("answered"),
                Ok(_) => break,
                Err(_) if stream.write_all(b"x").await.is_err() => break,
                Err(_) => assert!(started.elapsed() < Duration::from_secs(20), "not cut"),
            }
        }
        assert!(started.elapsed() > Duration::from_secs(9));
    };
    // A socket's frames are no heads.
    let socket = async {
        let mut socket = a.user("alice").await.connect().await;
        for _ in 0..8 {
            tokio::time::sleep(Duration::from_secs(2)).await;
            socket.say(serde_json::json!({ "type": "ping" })).await;
            socket.expect("pong").await;
        }
    };
    futures_util::join!(idle, dripping, socket);
}
