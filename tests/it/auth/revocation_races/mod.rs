//! Requests that begin with a valid credential and would end after its revocation.

mod passwords;

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_postgres::Client;

use crate::support::{
    Caller, PASSWORD, Socket, TestNode, User, blocked, connect, nodes, nodes_with, patiently,
    private_redis, psql, spawn, waiting,
};

/// A request whose last byte is still to come.
struct Held {
    stream: TcpStream,
    what: String,
    last: u8,
}

impl Held {
    async fn send(base: &str, method: Method, path: String, token: &str, body: Value) -> Self {
        let body = body.to_string();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\nAuthorization: Bearer {token}\r\n\
             Connection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let (early, last) = body.as_bytes().split_at(body.len() - 1);
        let mut stream = TcpStream::connect(base.trim_start_matches("http://"))
            .await
            .expect("connected");
        stream
            .write_all(&[head.as_bytes(), early].concat())
            .await
            .expect("sent");
        Held {
            stream,
            what: format!("{method} {path}"),
            last: last[0],
        }
    }

    /// Sends the last byte; the answer.
    async fn finish(mut self) -> (String, String) {
        self.stream.write_all(&[self.last]).await.ok();
        let mut back = String::new();
        self.stream
            .read_to_string(&mut back)
            .await
            .expect("an answer");
        (self.what, back)
    }
}

async fn count(client: &Client, of: &str) -> i64 {
    client.query_one(of, &[]).await.expect("a count").get(0)
}

const TOKENS: &str = "select count(*) from agent_token where revoked_at is null";
const AGENTS: &str = "select count(*) from agent where state <> 'deleted'";

#[tokio::test(flavor = "multi_thread")]
async fn a_body_held_back_until_the_revocation_comes_too_late() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let [agent, other] = [
        a.agent(&alice, "helper").await,
        a.agent(&alice, "other").await,
    ];
    let group = alice.group_with(&[&bob]).await;
    let conversation = alice.talk_to(&agent).await;
    let thief = alice.login(&a, Some("phone")).await.access_token;
    let client = connect(&a.world.database).await;
    let before = [count(&client, TOKENS).await, count(&client, AGENTS).await];
    let at = |id: &str, way: &str| format!("/agents/{id}{way}");
    let manifest = json!({ "tools": [], "permission_scopes": [] });
    let calls = [
        (
            Method::POST,
            at(&agent.id, "/token/regenerate"),
            &thief,
            json!({ "emergency": false }),
        ),
        (
            Method::POST,
            at(&agent.id, "/token/regenerate"),
            &thief,
            json!({ "emergency": true }),
        ),
        (
            Method::POST,
            at(&agent.id, "/keys/register"),
            &thief,
            json!({}),
        ),
        (
            Method::POST,
            "/agents".to_owned(),
            &thief,
            json!({ "display_name": "spy" }),
        ),
        (
            Method::POST,
            "/conversations".to_owned(),
            &thief,
            json!({ "type": "direct", "user_id": bob.id }),
        ),
        (
            Method::POST,
            "/groups".to_owned(),
            &thief,
            json!({ "member_ids": [bob.id] }),
        ),
        (
            Method::POST,
            format!("/groups/{group}/members"),
            &thief,
            json!({ "user_ids": [bob.id] }),
        ),
        (
            Method::PATCH,
            format!("/conversations/{group}"),
            &thief,
            json!({ "title": "taken" }),
        ),
        (
            Method::POST,
            format!("/conversations/{conversation}/messages"),
            &thief,
            json!({ "payload": { "type": "text" } }),
        ),
        (
            Method::POST,
            at(&other.id, "/ack"),
            &other.token,
            json!({ "up_to_seq": 0 }),
        ),
        (
            Method::POST,
            at(&other.id, "/keys/check"),
            &other.token,
            json!({ "key_id": "" }),
        ),
        (Method::PATCH, at(&other.id, ""), &other.token, manifest),
    ];
    let held = join_all(
        calls
            .into_iter()
            .map(|(method, path, token, body)| Held::send(&a.base, method, path, token, body)),
    )
    .await;
    // Real time: nothing tells from outside that a caller was proven. Were it later, the test would
    // show less, not fail.
    tokio::time::sleep(Duration::from_millis(700)).await;
    alice
        .on(&b)
        .delete("/users/me/devices/phone")
        .await
        .expect(200);
    alice
        .on(&b)
        .delete(format!("/agents/{}/token", other.id))
        .await
        .expect(200);
    for (what, back) in join_all(held.into_iter().map(Held::finish)).await {
        assert!(back.starts_with("HTTP/1.1 401"), "{what}: {back}");
    }
    let after = [count(&client, TOKENS).await, count(&client, AGENTS).await];
    assert_eq!(after, [before[0] - 1, before[1]]);
    // A lock of a live holder is released in time.
    let late = Held::send(
        &a.base,
        Method::POST,
        at(&agent.id, "/token/regenerate"),
        &alice.access_token,
        json!({ "emergency": false }),
    );
    let late = late.await;
    // Real time, as above.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (_, back) = late.finish().await;
    assert!(back.starts_with("HTTP/1.1 200"), "{back}");
}

/// Lets these wait for a user's row, the others behind the first, then go on; their statuses.
async fn in_line(
    client: &mut Client,
    user: &User,
    calls: Vec<(Caller, Method, String, Value)>,
) -> Vec<u16> {
    let id: uuid::Uuid = user.id.parse::<ulid::Ulid>().expect("a ULID").into();
    let tx = client.transaction().await.expect("begun");
    tx.execute(
        "select 1 from user_account where user_id = $1 for update",
        &[&id],
    )
    .await
    .expect("locked");
    let mut waiting = Vec::new();
    for (caller, method, path, body) in calls {
        waiting.push(spawn(async move {
            let request = caller.request(method, path).json(&body);
            caller.send(request).await.status
        }));
        if waiting.len() == 1 {
            blocked(&tx, 1).await;
        }
    }
    blocked(&tx, waiting.len()).await;
    tx.commit().await.expect("released");
    join_all(waiting)
        .await
        .into_iter()
        .map(|status| status.expect("no panic"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_asked_for_behind_the_revocation_is_not_made() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let thief = alice.login(&a, Some("phone")).await.caller;
    let mut client = connect(&a.world.database).await;
    let path = format!("/agents/{}", agent.id);
    let calls = vec![
        (
            alice.on(&b).caller,
            Method::DELETE,
            "/users/me/devices/phone".to_owned(),
            json!({}),
        ),
        (
            thief.clone(),
            Method::POST,
            format!("{path}/token/regenerate"),
            json!({ "emergency": false }),
        ),
        (
            thief.on(&b),
            Method::POST,
            "/agents".to_owned(),
            json!({ "display_name": "spy" }),
        ),
        (
            thief.clone(),
            Method::DELETE,
            format!("{path}/token"),
            json!({}),
        ),
        (
            thief.on(&b),
            Method::DELETE,
            "/users/me/devices/phone".to_owned(),
            json!({}),
        ),
        (thief, Method::DELETE, "/users/me".to_owned(), json!({})),
    ];
    assert_eq!(
        in_line(&mut client, &alice, calls).await,
        [200, 401, 401, 401, 401, 401]
    );
    assert_eq!(
        [count(&client, TOKENS).await, count(&client, AGENTS).await],
        [1, 1]
    );
    agent.on(&b).poll("").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_just_deleted_the_account_has_no_agent_and_is_in_no_conversation() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let group = bob.group_with(&[]).await;
    let mut client = connect(&a.world.database).await;
    let bobs = bob.on(&b).caller;
    let calls = vec![
        (
            alice.on(&b).caller,
            Method::DELETE,
            "/users/me".to_owned(),
            json!({}),
        ),
        (
            alice.caller.clone(),
            Method::POST,
            "/agents".to_owned(),
            json!({ "display_name": "left" }),
        ),
        (
            alice.caller.clone(),
            Method::POST,
            "/groups".to_owned(),
            json!({ "member_ids": [bob.id] }),
        ),
        (
            bobs.clone(),
            Method::POST,
            "/conversations".to_owned(),
            json!({ "type": "direct", "user_id": alice.id }),
        ),
        (
            bobs.clone(),
            Method::POST,
            "/groups".to_owned(),
            json!({ "member_ids": [alice.id] }),
        ),
        (
            bobs,
            Method::POST,
            format!("/groups/{group}/members"),
            json!({ "user_ids": [alice.id] }),
        ),
    ];
    assert_eq!(
        in_line(&mut client, &alice, calls).await,
        [200, 401, 401, 404, 404, 201]
    );
    assert_eq!(
        [count(&client, TOKENS).await, count(&client, AGENTS).await],
        [0, 0]
    );
    // And so it stays.
    let direct = json!({ "type": "direct", "user_id": alice.id });
    bob.post("/conversations", direct)
        .await
        .refused(404, "NOT_FOUND");
    let with_her = json!({ "member_ids": [alice.id] });
    let refused = bob
        .post("/groups", with_her)
        .await
        .refused(404, "NOT_FOUND");
    assert_eq!(
        refused.body["error"]["params"]["user_ids"],
        json!([alice.id])
    );
    let path = format!("/groups/{group}/members");
    let answer = bob
        .post(path, json!({ "user_ids": [alice.id] }))
        .await
        .expect(201);
    assert_eq!(
        answer.data()["failed"],
        json!([{ "user_id": alice.id, "reason": "NOT_FOUND" }])
    );
    let members = "select count(*) from member where principal_id <> all (select created_by from conversation)";
    assert_eq!(count(&client, members).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_acks_nothing_with_a_token_that_dies_meanwhile() {
    const ACKED: &str =
        "select max(acked_seq) from inbox_reader r join agent on agent_id = principal_id";
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    alice.say(&conversation, "x").await.expect(201);
    let cursor = agent.poll("").await.expect(200).body["next_cursor"]
        .as_str()
        .expect("a cursor")
        .to_owned();
    let mut client = connect(&a.world.database).await;
    let before = count(&client, ACKED).await;
    let tx = client.transaction().await.expect("begun");
    tx.execute("update agent_token set revoked_at = app_now()", &[])
        .await
        .expect("revoked");
    // Not committed: who is proven by what is there now goes on, up to the ack.
    let polling = spawn({
        let (agent, cursor) = (agent.clone(), cursor.clone());
        async move { agent.poll(&format!("cursor={cursor}")).await }
    });
    blocked(&tx, 1).await;
    tx.commit().await.expect("committed");
    polling
        .await
        .expect("no panic")
        .refused(401, "AGENT_TOKEN_INVALID");
    assert_eq!(count(&client, ACKED).await, before);
}

/// Revoked between the proof and the seat: no order rings a seat that is not taken yet. The
/// limiter, which is asked in between, is held up for as long as it may be.
#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_is_revoked_before_it_has_its_seat_is_told_nothing() {
    let mut caught = 0;
    let mut redis = private_redis("late-seat").await;
    let url = redis.url();
    let [a] = nodes_with(&[
        ("REDIS_URL", &url),
        ("LIMIT_OVERRIDES", "ws_connect=10000/s"),
    ])
    .await;
    let alice = a.user("alice").await;
    for n in 0..8 {
        let phone = alice.login(&a, Some(&format!("phone-{n}"))).await;
        let mut socket = Socket::open(&phone.caller).await;
        redis.signal("STOP");
        socket
            .say(json!({ "type": "auth", "access_token": phone.access_token }))
            .await;
        // Real time: nothing tells from outside that it was proven. If it was not, it is not let in
        // at all.
        tokio::time::sleep(Duration::from_millis(60)).await;
        psql(
            &a.world.database,
            &format!("update session set revoked_at = app_now() where device_id = 'phone-{n}'"),
        )
        .await;
        redis.signal("CONT");
        let (mut frames, mut code) = (Vec::new(), None);
        loop {
            match socket.next().await {
                Ok(frame) => frames.push(frame["type"].clone()),
                Err(why) => {
                    code = code.or(why);
                    break;
                }
            }
        }
        match code {
            Some(4403) => {
                assert_eq!(frames, ["auth.ok"]);
                caught += 1;
            }
            Some(4401) => assert_eq!(frames, ["auth.error"]),
            other => panic!("{other:?} after {frames:?}"),
        }
        // The node trusts its Redis again.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(caught > 0, "never revoked in time");
}

/// A send reads its credential before it waits for the rows of others, and again after the wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_send_that_waits_for_a_lock_is_refused_if_its_credential_ends_meanwhile() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let thief = alice.login(&a, Some("phone")).await;
    let mut client = connect(&a.world.database).await;

    // The statement waits for the inbox of the recipient.
    let tx = client.transaction().await.expect("begun");
    let inbox = format!(
        "select 1 from inbox where principal_id = '{}' for update",
        agent.id
    );
    tx.batch_execute(&inbox).await.expect("locked");
    let revoked = async {
        blocked(&tx, 1).await;
        let there = alice.on(&b);
        there.delete("/users/me/devices/phone").await.expect(200);
        tx.rollback().await.expect("released");
    };
    let (sent, ()) = tokio::join!(thief.say(&conversation, "of a thief"), revoked);
    sent.refused(401, "UNAUTHORIZED");

    // The statement waits for the conversation, which nobody changes.
    let tx = client.transaction().await.expect("begun");
    let id: uuid::Uuid = conversation.parse::<ulid::Ulid>().expect("an id").into();
    let row = format!("select 1 from conversation where conversation_id = '{id}' for update");
    tx.batch_execute(&row).await.expect("locked");
    let revoked = async {
        blocked(&tx, 1).await;
        let there = alice.on(&b);
        let token = format!("/agents/{}/token", agent.id);
        there.delete(token).await.expect(200);
        tx.rollback().await.expect("released");
    };
    let (sent, ()) = tokio::join!(agent.say(&conversation, "of a thief"), revoked);
    sent.refused(401, "AGENT_TOKEN_INVALID");

    let history = format!("/conversations/{conversation}/messages");
    let history = alice.get(history).await.expect(200);
    assert_eq!(history.data(), &json!([]));
}
