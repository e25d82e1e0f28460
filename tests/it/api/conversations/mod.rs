//! Conversations: opening, reading, changing.

mod lists;

use std::collections::HashSet;

use serde_json::{Value, json};

use self::lists::column;
use crate::support::{Caller, User, nodes, nodes_with, ulid};

#[tokio::test(flavor = "multi_thread")]
async fn two_have_one_conversation_however_often_it_is_opened() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&bob, "helper").await;
    for body in [
        json!({ "type": "agent", "agent_id": agent.id }),
        json!({ "type": "direct", "user_id": bob.id }),
    ] {
        let users = [alice.on(&a), alice.on(&b)];
        let answers = futures_util::future::join_all(
            (0..10).map(|n| users[n % 2].post("/conversations", body.clone())),
        )
        .await;
        assert_eq!(
            answers.iter().filter(|answer| answer.status == 201).count(),
            1,
            "{answers:?}"
        );
        assert_eq!(
            answers.iter().filter(|answer| answer.status == 200).count(),
            9
        );
        let ids: HashSet<&str> = answers
            .iter()
            .filter_map(|answer| answer.data()["conversation_id"].as_str())
            .collect();
        assert_eq!(ids.len(), 1);
    }
    // From the other side it is the same one.
    let hers = alice
        .post(
            "/conversations",
            json!({ "type": "direct", "user_id": bob.id }),
        )
        .await
        .expect(200);
    let his = bob
        .post(
            "/conversations",
            json!({ "type": "direct", "user_id": alice.id }),
        )
        .await
        .expect(200);
    assert_eq!(
        hers.data()["conversation_id"],
        his.data()["conversation_id"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_tells_both_and_makes_the_relation() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&bob, "helper").await;
    let mut agent_socket = agent.on(&b).connect().await;
    let mut alice_socket = alice.on(&b).connect().await;
    let answer = alice
        .post(
            "/conversations",
            json!({ "type": "agent", "agent_id": agent.id }),
        )
        .await
        .expect(201);
    let conversation = answer.data();
    assert_eq!(
        (&conversation["type"], &conversation["member_count"]),
        (&json!("agent"), &json!(2))
    );
    assert_eq!(conversation["relation"]["state"], "active");
    let names: Vec<_> = conversation["members"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|member| &member["display_name"])
        .collect();
    assert_eq!(names, ["alice", "helper"]);
    for socket in [&mut agent_socket, &mut alice_socket] {
        assert_eq!(
            socket.event("relation.created").await["data"]["agent_id"],
            agent.id
        );
        let mut told = conversation.clone();
        for hers_alone in ["my_role", "unread_count"] {
            assert!(
                told.as_object_mut()
                    .expect("an object")
                    .remove(hers_alone)
                    .is_some(),
                "{conversation}"
            );
        }
        assert_eq!(socket.event("conversation.created").await["data"], told);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_needs_another_who_exists() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let open = async |body| alice.post("/conversations", body).await;
    open(json!({ "type": "direct", "user_id": alice.id }))
        .await
        .refused(400, "VALIDATION_ERROR");
    open(json!({ "type": "direct", "user_id": ulid().to_string() }))
        .await
        .refused(404, "NOT_FOUND");
    open(json!({ "type": "agent", "agent_id": uuid::Uuid::nil() }))
        .await
        .refused(404, "AGENT_NOT_REGISTERED");
    open(json!({ "type": "agent", "agent_id": "x" }))
        .await
        .refused(400, "VALIDATION_ERROR");
    open(json!({ "type": "party" }))
        .await
        .refused(400, "VALIDATION_ERROR");
    open(json!({})).await.refused(400, "VALIDATION_ERROR");
}

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "user_message_send=10000/s,agent_message_send=10000/s,user_conversations_list=10000/s,user_messages_list=10000/s,\
     agent_conversations=10000/s,agent_tier_1=10000/s,default_user=10000/s",
);

#[tokio::test(flavor = "multi_thread")]
async fn a_read_mark_moves_forward_and_its_users_are_told() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&alice, "helper").await;
    let group = alice.group_with(&[&bob]).await;
    alice.talk_to(&agent).await;
    let body = json!({ "agent_id": agent.id, "visibility": "all" });
    alice
        .post(format!("/groups/{group}/agent-instances"), body)
        .await
        .expect(201);
    let mut ids = Vec::new();
    for n in 0..6 {
        let answer = if n == 3 {
            bob.say(&group, "mine").await
        } else {
            alice.say(&group, "hers").await
        };
        ids.push(
            answer.expect(201).data()["message_id"]
                .as_str()
                .expect("an id")
                .to_owned(),
        );
    }
    let unread = async |caller: &Caller| {
        let one = caller
            .get(format!("/conversations/{group}"))
            .await
            .expect(200)
            .data()["unread_count"]
            .clone();
        let list = caller.get("/conversations").await.expect(200);
        let listed = list.body["data"]
            .as_array()
            .expect("a list")
            .iter()
            .find(|item| item["conversation_id"] == *group);
        assert_eq!(listed.expect("listed")["unread_count"], one);
        one
    };
    // A user's own messages are not unread.
    assert_eq!(
        (unread(&bob).await, unread(&alice).await),
        (json!(5), json!(1))
    );
    let mut alice_socket = alice.on(&b).connect().await;
    let mut bob_socket = bob.on(&b).connect().await;
    let read = async |caller: &Caller, id: &str| {
        caller
            .post(
                format!("/conversations/{group}/read"),
                json!({ "message_id": id }),
            )
            .await
    };
    let mark = read(&bob, &ids[2]).await.expect(200);
    assert_eq!(
        mark.data(),
        &json!({ "conversation_id": group, "message_id": ids[2], "unread_count": 2 })
    );
    for socket in [&mut alice_socket, &mut bob_socket] {
        let event = socket.event("message.read").await;
        assert_eq!(
            event["data"],
            json!({ "principal_id": bob.id, "message_id": ids[2] })
        );
        assert_eq!(event["conversation_id"], group);
    }
    // Backwards and again: nothing moves, nobody is told.
    for id in [&ids[0], &ids[2]] {
        assert_eq!(
            read(&bob.on(&b), id).await.expect(200).data()["unread_count"],
            2
        );
    }
    read(&bob, &ids[5]).await.expect(200);
    assert_eq!(
        bob_socket.event("message.read").await["data"]["message_id"],
        ids[5]
    );
    assert_eq!(unread(&bob).await, json!(0));
    // Racing marks end at the furthest.
    let racers = [alice.on(&a), alice.on(&b)];
    let marks = ids
        .iter()
        .enumerate()
        .map(|(n, id)| read(&racers[n % 2], id));
    futures_util::future::join_all(marks)
        .await
        .into_iter()
        .for_each(|answer| drop(answer.expect(200)));
    assert_eq!(unread(&alice).await, json!(0));
    // An agent may say how far it has come; it is told of no mark.
    read(&agent, &ids[1]).await.expect(200);
    let told = column(&agent.poll("limit=100").await.expect(200), "event");
    assert!(!told.contains(&json!("message.read")), "{told:?}");
    read(&bob, &ulid().to_string())
        .await
        .refused(404, "NOT_FOUND");
    let other = alice.talk_to(&a.agent(&alice, "other").await).await;
    let foreign = alice.say(&other, "x").await.expect(201).data()["message_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    read(&alice, &foreign).await.refused(404, "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn encryption_once_required_stays_so() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut agent_socket = agent.on(&b).connect().await;
    let path = format!("/conversations/{conversation}");
    for bad in [
        json!({}),
        json!({ "encryption": "optional" }),
        json!({ "encryption": "maybe" }),
        json!({ "title": "" }),
    ] {
        alice
            .patch(&path, bad)
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    // The two of a pair need no title.
    alice
        .patch(&path, json!({ "title": "ours" }))
        .await
        .refused(403, "FORBIDDEN");
    agent.say(&conversation, "plain").await.expect(201);
    let changed = alice
        .patch(&path, json!({ "encryption": "required" }))
        .await
        .expect(200);
    assert_eq!(changed.data()["encryption"], "required");
    assert_eq!(
        agent_socket.event("conversation.updated").await["data"]["encryption"],
        "required"
    );
    alice
        .patch(&path, json!({ "encryption": "required" }))
        .await
        .expect(200);
    for node in [&a, &b] {
        agent
            .on(node)
            .say(&conversation, "plain")
            .await
            .refused(400, "VALIDATION_ERROR");
        alice
            .on(node)
            .say(&conversation, "plain")
            .await
            .refused(400, "VALIDATION_ERROR");
        let secret = json!({ "payload": { "type": "encrypted", "ciphertext": "AAAA" } });
        alice
            .on(node)
            .post(format!("{path}/messages"), secret)
            .await
            .expect(201);
    }
    // In a group it is for admins to say.
    let group = alice.group_with(&[&bob]).await;
    let path = format!("/conversations/{group}");
    bob.patch(&path, json!({ "encryption": "required" }))
        .await
        .refused(403, "FORBIDDEN");
    let changed = alice
        .patch(
            &path,
            json!({ "encryption": "required", "title": "secret" }),
        )
        .await
        .expect(200);
    assert_eq!(
        (&changed.data()["title"], &changed.data()["encryption"]),
        (&json!("secret"), &json!("required"))
    );
    let made = json!({ "type": "group", "member_ids": [bob.id], "encryption": "required", "title": "from the start" });
    let made = alice.post("/conversations", made).await.expect(201);
    assert_eq!(
        (&made.data()["encryption"], &made.data()["my_role"]),
        (&json!("required"), &json!("owner"))
    );
}

/// The ids of another's things, or of nothing.
struct Hidden {
    group: String,
    pair: String,
    instance: String,
    relation: String,
}

/// Each route that names one of them: method, path, body, kind of caller. `user` is no member, and
/// `agent` is not there either.
fn routes(
    hidden: &Hidden,
    owner: &User,
    user: &User,
    agent: &str,
    message: &str,
) -> Vec<(&'static str, String, Value, &'static str)> {
    let Hidden {
        group,
        pair,
        instance,
        relation,
    } = hidden;
    vec![
        (
            "GET",
            format!("/conversations/{group}"),
            json!({}),
            "either",
        ),
        ("GET", format!("/conversations/{pair}"), json!({}), "either"),
        (
            "PATCH",
            format!("/conversations/{group}"),
            json!({ "encryption": "required" }),
            "user",
        ),
        (
            "POST",
            format!("/conversations/{group}/read"),
            json!({ "message_id": message }),
            "either",
        ),
        (
            "GET",
            format!("/conversations/{group}/messages"),
            json!({}),
            "user",
        ),
        (
            "GET",
            format!("/agents/{agent}/conversations/{group}/messages"),
            json!({}),
            "agent",
        ),
        (
            "DELETE",
            format!("/relations/{relation}"),
            json!({}),
            "user",
        ),
        (
            "POST",
            format!("/groups/{group}/members"),
            json!({ "user_ids": [user.id] }),
            "user",
        ),
        (
            "PATCH",
            format!("/groups/{group}/members/{}", owner.id),
            json!({ "role": "member" }),
            "user",
        ),
        (
            "DELETE",
            format!("/groups/{group}/members/{}", owner.id),
            json!({}),
            "either",
        ),
        (
            "DELETE",
            format!("/groups/{group}/members/{}", user.id),
            json!({}),
            "either",
        ),
        (
            "POST",
            format!("/groups/{group}/agent-instances"),
            json!({ "agent_id": agent }),
            "user",
        ),
        (
            "DELETE",
            format!("/groups/{group}/agent-instances/{instance}"),
            json!({}),
            "user",
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_another_s_looks_like_what_is_not_there() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    let [agent, stranger] = [a.agent(&alice, "hers").await, a.agent(&bob, "his").await];
    let pair = alice.talk_to(&agent).await;
    let group = alice.group_with(&[&carol]).await;
    let body = json!({ "agent_id": agent.id, "visibility": "all" });
    let instance = alice
        .post(format!("/groups/{group}/agent-instances"), body)
        .await
        .expect(201);
    let instance = instance.data()["instance_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let message = alice.say(&group, "x").await.expect(201).data()["message_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let relation = alice.get("/relations").await.expect(200).body["data"][0]["relation_id"].clone();
    let relation = relation.as_str().expect("an id").to_owned();
    // Carol was a member and is none any more.
    carol
        .delete(format!("/groups/{group}/members/{}", carol.id))
        .await
        .expect(200);
    let theirs = Hidden {
        group: group.clone(),
        pair: pair.clone(),
        instance,
        relation,
    };
    let nothing = Hidden {
        group: ulid().to_string(),
        pair: ulid().to_string(),
        instance: ulid().to_string(),
        relation: ulid().to_string(),
    };
    let of = |hidden: &Hidden| routes(hidden, &alice, &bob, &stranger.id, &message);
    let (theirs, missing) = (of(&theirs), of(&nothing));
    let callers = [
        ("user", &bob.caller),
        ("user", &carol.caller),
        ("agent", &stranger.caller),
    ];
    for ((method, path, body, kind), (_, missing, _, _)) in theirs.iter().zip(&missing) {
        let method: reqwest::Method = method.parse().expect("a method");
        for (who, caller) in callers
            .iter()
            .filter(|(who, _)| kind == who || *kind == "either")
        {
            let call = async |path: &String| {
                caller
                    .send(caller.request(method.clone(), path).json(body))
                    .await
            };
            let hidden = call(path).await.refused(404, "NOT_FOUND");
            assert_eq!(
                hidden.body,
                call(missing).await.refused(404, "NOT_FOUND").body,
                "{who} {method} {path}"
            );
        }
        let nobody = a.anon();
        assert_eq!(
            nobody
                .send(nobody.request(method, path).json(body))
                .await
                .status,
            401,
            "{path}"
        );
    }
    // And nothing of it had an effect.
    let kept = alice
        .get(format!("/conversations/{group}"))
        .await
        .expect(200);
    assert_eq!(
        (&kept.data()["member_count"], &kept.data()["encryption"]),
        (&json!(2), &json!("optional"))
    );
    agent.say(&pair, "still related").await.expect(201);
}
