//! A change of `SERVER_SECRET`: nobody is logged out, and codes under way still count.

use std::time::Duration;

use serde_json::json;

use crate::support::{ProcessNode, TestNode, World, server_secrets};

/// The names of two secrets.
const OLD: u8 = 2;
const NEW: u8 = 9;

/// Two nodes in the midst of a change: `a` still signs with the old secret, `b` with the new one.
async fn between_two_secrets() -> [TestNode; 2] {
    let world = World::new(&[]).await;
    let (old_first, new_first) = (server_secrets(&[OLD, NEW]), server_secrets(&[NEW, OLD]));
    [
        world.node_with(&[("SERVER_SECRET", &old_first)]).await,
        world.node_with(&[("SERVER_SECRET", &new_first)]).await,
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_secret_logs_nobody_out() {
    let [a, b] = between_two_secrets().await;
    let alice = a.user("alice").await;
    // The cookie wanders between nodes that sign differently.
    let moved = alice.on(&b).refreshed().await;
    let back = moved.on(&a).refreshed().await;
    back.get("/users/me").await.expect(200);
    let moved = back.on(&b).refreshed().await;

    // The last step removes the old secret. A cookie of the new one goes on, one of the old ends.
    let only_new = server_secrets(&[NEW]);
    let c = a.world.node_with(&[("SERVER_SECRET", &only_new)]).await;
    let of_old = a.user("bob").await;
    of_old.on(&c).with_cookie("/auth/refresh").await.expect(401);
    moved.on(&c).refreshed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_code_under_way_counts_after_a_change_of_the_secret() {
    let [a, b] = between_two_secrets().await;
    let alice = a.user("alice").await;
    // The node that mails a code is not known, so several are asked for and used at either node.
    for n in 0..4 {
        a.advance(Duration::from_secs(61)).await;
        let [asked, used] = if n % 2 == 0 { [&a, &b] } else { [&b, &a] };
        let caller = asked.anon();
        let code = caller.code(&alice.email, "login").await;
        let body = json!({ "email": alice.email, "code": code });
        caller
            .on(used)
            .post("/auth/login-code", body)
            .await
            .expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_and_agents_go_on_while_the_secret_changes() {
    let [a, b] = between_two_secrets().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut socket = agent.on(&b).connect().await;
    let mut back = alice.on(&a).connect().await;
    for n in 0..5 {
        alice.say(&conversation, &format!("{n}")).await.expect(201);
        let heard = socket.event("message.created").await;
        assert_eq!(heard["data"]["payload"]["text"], format!("{n}"));
        let answered = agent.on(&b).say(&conversation, "yes").await;
        answered.expect(201);
        back.event("message.created").await;
    }
    // A proof under the old secret spares a node with the new one the hash.
    let new_first = server_secrets(&[NEW, OLD]);
    let cold = ProcessNode::start_with(&a, &[("SERVER_SECRET", &new_first)]).await;
    agent.at(&cold.base).poll("").await.expect(200);
    assert_eq!(cold.metric("token_cache_total", "hashed").await, 0.0);
}
