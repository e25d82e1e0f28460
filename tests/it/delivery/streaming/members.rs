//! Only members hear a stream.

use std::time::Duration;

use serde_json::json;

use crate::support::{nodes, nodes_with, psql};

use super::{begin, cast, caught_up, expect_deltas, say};

#[tokio::test(flavor = "multi_thread")]
async fn an_ex_member_hears_no_more() {
    let [a, b] = nodes().await;
    let (alice, bob) = (a.user("alice").await, a.user("bob").await);
    let group = alice.group_with(&[&bob]).await;
    let mut hers = [alice.on(&a).connect().await, alice.on(&b).connect().await];
    let mut his = [bob.on(&a).connect().await, bob.on(&b).connect().await];
    for socket in hers.iter_mut().chain(&mut his) {
        caught_up(socket).await;
    }
    let typing = json!({ "type": "typing", "conversation_id": group, "state": "started" });
    // Both nodes have just looked who the members are.
    for n in [0, 1] {
        hers[n].say(typing.clone()).await;
        for socket in &mut his {
            socket.expect("typing").await;
        }
    }
    alice
        .delete(format!("/groups/{group}/members/{}", bob.id))
        .await
        .expect(200);
    hers[0].say(typing.clone()).await;
    // The other node knows once the event is there.
    hers[1].event("member.removed").await;
    hers[1].say(typing.clone()).await;
    // Her own other socket heard it, so it was told.
    hers[0].event("member.removed").await;
    hers[0].expect("typing").await;
    for socket in &mut his {
        socket.event("member.removed").await;
        socket.expect_silence(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_hint_an_ex_member_hears_no_more_after_a_second() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "agent_conversation_message_send=1000/s")]).await;
    let (_, _, conversation, [mut its, mut here, mut there]) = cast(&a, &b).await;
    begin(&mut its, "s", &conversation).await;
    say(&mut its, "s", 0).await;
    for socket in [&mut here, &mut there] {
        expect_deltas(socket, "s", 0..1).await;
    }
    let user = format!(
        "delete from member where conversation_id = '{}' and principal_kind = 'user'",
        uuid::Uuid::from(conversation.parse::<ulid::Ulid>().expect("an id"))
    );
    psql(&a.world.database, &user).await;
    // Real time: for a second the members are remembered.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    say(&mut its, "s", 1).await;
    here.say(json!({ "type": "stream.sync", "stream_id": "s", "from_n": 0 }))
        .await;
    assert_eq!(here.expect("error").await["error"]["code"], "NOT_FOUND");
    there.expect_silence(Duration::from_millis(300)).await;
    // An agent that is none any more ends its stream by trying.
    let agent = user.replace("'user'", "'agent'");
    psql(&a.world.database, &agent).await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    say(&mut its, "s", 2).await;
    assert_eq!(
        its.expect("error").await["error"]["code"],
        "NOT_CONVERSATION_MEMBER"
    );
    say(&mut its, "s", 2).await;
    assert_eq!(its.expect("error").await["error"]["code"], "NOT_FOUND");
}

/// Twelve are more than are told one by one: one message goes to every node.
#[tokio::test(flavor = "multi_thread")]
async fn many_members_hear_events_and_streams_alike() {
    let [a, b] = nodes().await;
    let (alice, _, conversation, [mut its, here, there]) = cast(&a, &b).await;
    let id = uuid::Uuid::from(conversation.parse::<ulid::Ulid>().expect("an id"));
    let mut sockets = Vec::new();
    for n in 0..10 {
        let user = a.user(&format!("user{n}")).await;
        let member = uuid::Uuid::from(user.id.parse::<ulid::Ulid>().expect("an id"));
        let add = format!(
            "insert into member (conversation_id, principal_id, principal_kind, role) values ('{id}', '{member}', 'user', 'member');
             update conversation set epoch = epoch where conversation_id = '{id}'"
        );
        psql(&a.world.database, &add).await;
        let mut socket = user.on(if n % 2 == 0 { &a } else { &b }).connect().await;
        caught_up(&mut socket).await;
        sockets.push(socket);
    }
    alice.say(&conversation, "hello all").await.expect(201);
    begin(&mut its, "s", &conversation).await;
    for n in 0..5 {
        say(&mut its, "s", n).await;
    }
    sockets.extend([here, there]);
    for socket in &mut sockets {
        expect_deltas(socket, "s", 0..5).await;
        assert_eq!(
            socket.event("message.created").await["data"]["payload"]["text"],
            "hello all"
        );
    }
}
