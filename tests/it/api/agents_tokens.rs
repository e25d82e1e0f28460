//! Agents' tokens: replacement with and without grace, revocation, on every node at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;

use crate::support::{Agent, Answer, User, nodes, nodes_with, patiently, spawn};

const DAY: Duration = Duration::from_secs(86_400);

async fn regenerate(owner: &User, agent: &Agent, emergency: bool) -> Answer {
    owner
        .post(
            format!("/agents/{}/token/regenerate", agent.id),
            json!({ "emergency": emergency }),
        )
        .await
}

/// The agent with the token of an answer.
fn renewed(agent: &Agent, answer: &Answer) -> Agent {
    let token = answer.data()["token"].as_str().expect("a token").to_owned();
    Agent {
        caller: agent.caller.with_token(&token),
        token,
        id: agent.id.clone(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_regenerate_leaves_the_old_token_seven_days() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut socket = agent.on(&b).connect().await;
    let mut alice_socket = alice.on(&b).connect().await;

    let answer = regenerate(&alice, &agent, false).await.expect(200);
    let data = answer.data();
    assert_eq!(
        (&data["emergency"], &data["remaining_today"]),
        (&json!(false), &json!(4))
    );
    let until = data["previous_valid_until"]
        .as_str()
        .expect("a time")
        .to_owned();
    let new = renewed(&agent, &answer);
    assert_ne!(new.token, agent.token);
    let event = alice_socket.event("agent.token_regenerated").await;
    assert_eq!(
        event["data"],
        json!({ "agent_id": agent.id, "emergency": false, "previous_valid_until": until })
    );
    let shown = alice.get(format!("/agents/{}", agent.id)).await.expect(200);
    assert_eq!(shown.data()["token"]["grace_until"], until.as_str());
    for node in [&a, &b] {
        agent.on(node).poll("").await.expect(200);
        new.on(node).poll("").await.expect(200);
    }
    alice.say(&conversation, "still there?").await.expect(201);
    socket.event("message.created").await;
    drop(socket);

    // To the end of the grace, and not a second longer.
    a.advance(7 * DAY - Duration::from_secs(30)).await;
    for node in [&a, &b] {
        agent.on(node).poll("").await.expect(200);
    }
    let socket = agent.on(&b).connect().await;
    a.advance(Duration::from_secs(31)).await;
    for node in [&a, &b] {
        agent
            .on(node)
            .poll("")
            .await
            .refused(401, "AGENT_TOKEN_INVALID");
        agent
            .on(node)
            .say(&conversation, "x")
            .await
            .refused(401, "AGENT_TOKEN_INVALID");
        new.on(node).poll("").await.expect(200);
    }
    let mut late = socket.until_closed().await;
    let farewell = late.pop().expect("a farewell");
    assert_eq!(
        (&farewell["type"], &farewell["reason"]),
        (&json!("session.invalidated"), &json!("token_regenerated"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emergency_kills_all_that_came_before() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let first = a.agent(&alice, "helper").await;
    let second = renewed(&first, &regenerate(&alice, &first, false).await.expect(200));
    for agent in [&first, &second] {
        agent.on(&b).poll("").await.expect(200);
    }
    let sockets = [first.on(&a).connect().await, second.on(&b).connect().await];
    let answer = regenerate(&alice.on(&b), &first, true).await.expect(200);
    assert_eq!(answer.data()["previous_valid_until"], json!(null));
    assert_eq!(answer.data()["remaining_today"], 3);
    for node in [&a, &b] {
        for agent in [&first, &second] {
            agent
                .on(node)
                .poll("")
                .await
                .refused(401, "AGENT_TOKEN_INVALID");
        }
        renewed(&first, &answer).on(node).poll("").await.expect(200);
    }
    for socket in sockets {
        let before = socket.expect_close(4403).await;
        let farewell = before.last().expect("a farewell");
        assert_eq!(
            (&farewell["type"], &farewell["reason"]),
            (&json!("session.invalidated"), &json!("token_regenerated"))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_agent_comes_back_by_a_regenerate() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let path = format!("/agents/{}", agent.id);
    let sockets = [agent.on(&a).connect().await, agent.on(&b).connect().await];
    let mut alice_socket = alice.connect().await;
    let first = alice
        .on(&a)
        .delete(format!("{path}/token"))
        .await
        .expect(200);
    assert_eq!(first.data()["connections_closed"], 2);
    for node in [&a, &b] {
        agent
            .on(node)
            .poll("")
            .await
            .refused(401, "AGENT_TOKEN_INVALID");
    }
    for socket in sockets {
        let before = socket.expect_close(4403).await;
        assert_eq!(
            before.last().expect("a farewell")["reason"],
            "token_revoked"
        );
    }
    let event = alice_socket.event("agent.state_changed").await;
    assert_eq!(event["data"]["state"], "token_revoked");
    // Once more changes nothing, as often as one likes.
    for _ in 0..10 {
        let again = alice
            .on(&b)
            .delete(format!("{path}/token"))
            .await
            .expect(200);
        assert_eq!(again.data()["revoked_at"], first.data()["revoked_at"]);
        assert_eq!(again.data()["connections_closed"], 0);
    }
    let shown = alice.get(&path).await.expect(200);
    assert_eq!(
        (&shown.data()["state"], &shown.data()["token"]),
        (&json!("token_revoked"), &json!(null))
    );

    let answer = regenerate(&alice, &agent, false).await.expect(200);
    assert_eq!(answer.data()["previous_valid_until"], json!(null));
    renewed(&agent, &answer).on(&b).poll("").await.expect(200);
    agent.poll("").await.refused(401, "AGENT_TOKEN_INVALID");
    let event = alice_socket.event("agent.state_changed").await;
    let data = &event["data"];
    assert_eq!(
        (&data["state"], &data["previous_state"]),
        (&json!("registered"), &json!("token_revoked"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sixth_regenerate_of_a_day_is_refused_however_many_ask() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&alice, "helper").await;
    // Strangers and malformed bodies use up nothing of it.
    for _ in 0..6 {
        regenerate(&bob, &agent, true)
            .await
            .refused(404, "AGENT_NOT_REGISTERED");
        let path = format!("/agents/{}/token/regenerate", agent.id);
        alice
            .post(path, json!({}))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    let owners = [alice.on(&a), alice.on(&b)];
    // Both kinds share the budget. They change one agent one after the other: who would wait too
    // long for that is told to come again, and has lost nothing of the budget.
    let tries = (0..50).map(|n| {
        patiently({
            let (owner, agent) = (&owners[n % 2], &agent);
            async move || regenerate(owner, agent, n % 4 == 3).await
        })
    });
    let answers = futures_util::future::join_all(tries).await;
    let unavailable: usize = answers.iter().map(|(_, refused)| refused).sum();
    let answers: Vec<Answer> = answers.into_iter().map(|(answer, _)| answer).collect();
    let good: Vec<&Answer> = answers
        .iter()
        .filter(|answer| answer.status == 200)
        .collect();
    assert_eq!(good.len(), 5);
    let mut left: Vec<u64> = good
        .iter()
        .map(|answer| answer.data()["remaining_today"].as_u64().expect("a number"))
        .collect();
    left.sort_unstable();
    // A budget that was given back was counted to others before.
    let whole = unavailable == 0;
    assert!(
        if whole {
            left == [0, 1, 2, 3, 4]
        } else {
            left.first() == Some(&0)
        },
        "{left:?}"
    );
    for answer in answers.iter().filter(|answer| answer.status != 200) {
        let params = &answer.body["error"]["params"];
        assert_eq!(
            (answer.status, &params["scope"], &params["limit"]),
            (429, &json!("agent_token_regenerate"), &json!("5/24h"))
        );
    }
    // Exactly one of the five is current; the last of an emergency has none beside it.
    let client = crate::support::connect(&a.world.database).await;
    let current =
        "select count(*) from agent_token where revoked_at is null and valid_until is null";
    assert_eq!(
        client
            .query_one(current, &[])
            .await
            .expect("a row")
            .get::<_, i64>(0),
        1
    );
    // Revoking is never limited, and a day later there is room again.
    alice
        .delete(format!("/agents/{}/token", agent.id))
        .await
        .expect(200);
    a.advance(DAY + Duration::from_secs(1)).await;
    regenerate(&alice.refreshed().await, &agent, false)
        .await
        .expect(200);
}

/// The budget of revocations is for calls that end nothing: an owner in distress never meets it.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_revokes_as_often_as_needed_and_a_guesser_does_not() {
    let overrides = ("LIMIT_OVERRIDES", "agent_token_revoke=2/min");
    let [a, b] = nodes_with(&[overrides]).await;
    let [alice, mallory] = [a.user("alice").await, a.user("mallory").await];
    let agent = a.agent(&alice, "helper").await;
    let path = format!("/agents/{}/token", agent.id);
    for n in 0..8 {
        let node = if n % 2 == 0 { &a } else { &b };
        alice.on(node).delete(&path).await.expect(200);
    }
    // Ids of others and of nobody cost the caller's own budget, over all nodes.
    let nobody = format!("/agents/{}/token", uuid::Uuid::from_u128(7));
    mallory
        .delete(&path)
        .await
        .refused(404, "AGENT_NOT_REGISTERED");
    mallory
        .on(&b)
        .delete(&nobody)
        .await
        .refused(404, "AGENT_NOT_REGISTERED");
    let refused = mallory.delete(&nobody).await;
    assert_eq!(refused.code(), "RATE_LIMITED");
    assert_eq!(
        refused.body["error"]["params"]["scope"],
        "agent_token_revoke"
    );
    alice.delete(&path).await.expect(200);
}

/// Calls that hammer an agent's token while it is revoked.
struct Drill {
    /// Set once the revocation was answered.
    revoked: AtomicBool,
    stop: AtomicBool,
    before: AtomicU64,
    after: AtomicU64,
    late: AtomicU64,
}

async fn hammer(agent: Agent, path: String, drill: Arc<Drill>) {
    while !drill.stop.load(Ordering::SeqCst) {
        // Read before the request leaves: what leaves after the answer must be refused.
        let after = drill.revoked.load(Ordering::SeqCst);
        let answer = agent.get(&path).await;
        match (after, answer.status) {
            (true, 401) => drill.after.fetch_add(1, Ordering::SeqCst),
            (false, 200 | 401) => drill.before.fetch_add(1, Ordering::SeqCst),
            (true, 200) => drill.late.fetch_add(1, Ordering::SeqCst),
            (_, status) => panic!("{status}: {}", answer.body),
        };
    }
}

async fn until(done: impl Fn() -> bool) {
    while !done() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_accepted_after_a_revocation_was_answered() {
    let overrides = (
        "LIMIT_OVERRIDES",
        "agent_token_regenerate=1000/24h,ws_connect=1000/s,ws_connect_ip=1000/s,agent_tier_1=1000000/s,default_user=1000000/s",
    );
    let [a, b] = nodes_with(&[overrides]).await;
    let alice = a.user("alice").await;
    let mut agent = a.agent(&alice, "helper").await;
    let path = format!("/agents/{}", agent.id);
    let (mut tried, mut slowest) = (0, Duration::ZERO);
    // Both ways to end a token, on either node.
    for round in 0_u64..4 {
        // Known to both nodes, so that nothing but Postgres's word keeps it out.
        for node in [&a, &b] {
            agent.on(node).get(&path).await.expect(200);
        }
        let sockets = [agent.on(&a).connect().await, agent.on(&b).connect().await];
        let drill = Arc::new(Drill {
            revoked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            before: AtomicU64::new(0),
            after: AtomicU64::new(0),
            late: AtomicU64::new(0),
        });
        let workers: Vec<_> = (0..8)
            .map(|n| {
                spawn(hammer(
                    agent.on(if n % 2 == 0 { &a } else { &b }),
                    path.clone(),
                    drill.clone(),
                ))
            })
            .collect();
        until(|| drill.before.load(Ordering::SeqCst) >= 50).await;
        let owner = alice.on(if round % 2 == 0 { &a } else { &b });
        let answer = if round % 4 < 2 {
            let gone = owner.delete(format!("{path}/token")).await.expect(200);
            drill.revoked.store(true, Ordering::SeqCst);
            gone
        } else {
            let new = regenerate(&owner, &agent, true).await.expect(200);
            drill.revoked.store(true, Ordering::SeqCst);
            new
        };
        let since = Instant::now();
        for socket in sockets {
            socket.expect_close(4403).await;
        }
        slowest = slowest.max(since.elapsed());
        until(|| {
            drill.after.load(Ordering::SeqCst) >= 2_500 || drill.late.load(Ordering::SeqCst) > 0
        })
        .await;
        drill.stop.store(true, Ordering::SeqCst);
        for worker in workers {
            worker.await.expect("no panic");
        }
        assert_eq!(
            drill.late.load(Ordering::SeqCst),
            0,
            "accepted after the answer, in round {round}"
        );
        tried += drill.after.load(Ordering::SeqCst);
        let answer = if answer.data()["token"].is_string() {
            answer
        } else {
            regenerate(&owner, &agent, false).await
        };
        agent = renewed(&agent, &answer.expect(200));
    }
    assert!(tried >= 10_000, "{tried}");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    tracing::info!(
        tried,
        ?slowest,
        "none was accepted after the answer; the slowest socket"
    );
}
