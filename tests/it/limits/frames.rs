//! The budgets of frames. A refused frame gets an `error`, and its socket lives.

use serde_json::{Value, json};

use crate::support::{Socket, nodes, ulid};

/// The answers to as many frames as `count`, alternating between two sockets.
async fn answers(
    sockets: &mut [Socket; 2],
    count: usize,
    frame: impl Fn(usize) -> Value,
    answer: &str,
) -> Vec<Value> {
    let mut answers = Vec::new();
    for n in 0..count {
        let socket = &mut sockets[n % 2];
        socket.say(frame(n)).await;
        answers.push(loop {
            let heard = socket.next().await.expect("the socket lives");
            if heard["type"] == "error" || heard["type"] == answer {
                break heard;
            }
        });
    }
    answers
}

fn is_refused(frame: &Value, scope: &str) -> bool {
    frame["error"]["code"] == "RATE_LIMITED" && frame["error"]["params"]["scope"] == scope
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_begins_sixty_streams_a_minute_and_its_sockets_live() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let mut sockets = [agent.connect().await, agent.on(&b).connect().await];
    // Conversations that do not exist, each another: every begin asks Postgres.
    let begin = |n: usize| json!({ "type": "stream.begin", "stream_id": format!("s{n}"), "conversation_id": ulid().to_string(), "ref": n });
    let heard = answers(&mut sockets, 62, begin, "error").await;
    for (n, frame) in heard.iter().enumerate() {
        let stream = json!(format!("s{n}"));
        assert_eq!((&frame["stream_id"], &frame["ref"]), (&stream, &json!(n)));
        assert_eq!(is_refused(frame, "stream_begin"), n >= 60, "{frame}");
    }
    for socket in &mut sockets {
        socket.say(json!({ "type": "ping" })).await;
        socket.expect("pong").await;
    }
    let wait = heard[61]["error"]["params"]["retry_after_ms"].as_u64();
    a.advance(std::time::Duration::from_millis(wait.expect("ms")))
        .await;
    let later = answers(&mut sockets, 1, begin, "error").await;
    assert!(!is_refused(&later[0], "stream_begin"), "{later:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_renews_thirty_times_a_minute_and_its_sockets_live() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let mut sockets = [alice.connect().await, alice.on(&b).connect().await];
    let renew = |_| json!({ "type": "auth.renew", "access_token": alice.access_token });
    let heard = answers(&mut sockets, 32, renew, "auth.renewed").await;
    for (n, frame) in heard.iter().enumerate() {
        assert_eq!(is_refused(frame, "auth_renew"), n >= 30, "{n}: {frame}");
    }
    for socket in &mut sockets {
        socket.say(json!({ "type": "ping" })).await;
        socket.expect("pong").await;
    }
}
