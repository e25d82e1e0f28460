//! The life of an approval: asked, decided, closed.

use serde_json::{Value, json};

use super::{
    Person, Room, admit, ask_in, closed, decide, heard, heard_by_agent, item_of, names, text,
    withdraw,
};

#[tokio::test(flavor = "multi_thread")]
async fn two_of_two_approve_and_everybody_hears_it_in_order() {
    let room = Room::new().await;
    let Room {
        nodes: [a, b],
        agent,
        alice,
        bob,
        carol,
        group,
        developer,
    } = &room;
    let other = b.agent(developer, "other").await;
    alice.user.talk_to(&other).await;
    admit(&alice.user, group, &other, "all").await;
    let of = [&alice.user.id, &bob.user.id];
    let item = room.ask(json!({ "of": of, "quorum": 2 })).await;
    let mut asked = of.map(String::as_str);
    asked.sort_unstable();
    assert_eq!(item["asked"], json!(asked));
    assert_eq!(
        (&item["state"], &item["duplicate"], &item["seq"]),
        (&json!("open"), &json!(false), &json!(1))
    );
    assert_eq!(
        (&item["quorum"], &item["deny_quorum"], &item["closed_at"]),
        (&json!(2), &json!(1), &Value::Null)
    );
    assert!(item.get("reason").is_none() && item["decisions"] == json!([]));
    let first = alice.decide(b, &item, "approved").await.expect(200);
    assert_eq!(first.data()["state"], "open");
    let second = bob.decide(a, &item, "approved").await.expect(200);
    let done = second.data();
    assert_eq!(done["state"], "approved");
    assert!(done["closed_at"].is_string());
    let decided = done["decisions"].as_array().expect("a list");
    let by: Vec<&Value> = decided.iter().map(|one| &one["user_id"]).collect();
    assert_eq!(by, [&json!(alice.user.id), &json!(bob.user.id)]);
    assert_eq!(decided[0]["answer_digest"], Value::Null);
    assert_eq!(decided[0]["key_id"], json!(alice.keys.id()));
    assert!(decided[0].get("message_id").is_none());

    let all = ["approval.decided", "approval.decided", "approval.closed"];
    for asked in [alice, bob] {
        let events = heard(&asked.user).await;
        assert_eq!(names(&events), [&["approval.requested"], &all[..]].concat());
        assert_eq!(events[0].1["state"], "open");
        assert_eq!(&events[3].1, done);
    }
    assert_eq!(names(&heard(&carol.user).await), all);
    assert_eq!(names(&heard_by_agent(agent).await), all);
    assert!(heard_by_agent(&other).await.is_empty());
    // The question is a message to all, and the other agent hears it like any other.
    let page = other.poll("limit=100").await.expect(200);
    let messages = page.body["data"].as_array().expect("events").iter();
    let ids: Vec<&Value> = messages
        .filter(|event| event["event"] == "message.created")
        .map(|event| &event["data"]["message_id"])
        .collect();
    assert_eq!(ids, [&item["approval_id"]]);

    // Members see it, and nobody else does.
    let path = format!("/approvals/{}", text(&item, "approval_id"));
    for reader in [&alice.user, &carol.user] {
        let read = reader.on(a).get(&path).await.expect(200);
        assert_eq!(read.data(), done);
    }
    assert_eq!(&room.item(&item).await, done);
    developer.get(&path).await.refused(404, "NOT_FOUND");
    other.get(&path).await.refused(404, "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_a_message_that_names_the_agent() {
    let room = Room::new().await;
    let addressed = room.nodes[0].agent(&room.developer, "addressed").await;
    room.alice.user.talk_to(&addressed).await;
    admit(&room.alice.user, &room.group, &addressed, "addressed").await;
    let asked = ask_in(&addressed, &room.group, json!({ "kind": "ask" })).await;
    let item = asked.expect(201).data().clone();
    let at = room.now();
    let mut body = room.bob.answer(&item, "answered", Some([3; 32]), at);
    body["payload"] = json!({ "type": "encrypted", "c": "a sealed answer" });
    let done = decide(&room.bob.user, &item, body).await.expect(200);
    let done = done.data();
    assert_eq!(done["state"], "answered");
    let message = text(&done["decisions"][0], "message_id");
    assert_ne!(message, text(&item, "approval_id"));
    // The agent that hears only what names it gets the answer, in its inbox and in its history.
    let page = addressed.poll("limit=100").await.expect(200);
    let events = page.body["data"].as_array().expect("events");
    let created = events
        .iter()
        .find(|event| event["event"] == "message.created")
        .expect("the answer");
    let data = &created["data"];
    assert_eq!(data["message_id"], json!(message));
    assert_eq!(data["in_reply_to"], item["approval_id"]);
    assert_eq!(data["recipients"], json!([addressed.id]));
    assert_eq!(data["payload"]["c"], "a sealed answer");
    assert_eq!(data["sender"]["id"], json!(room.bob.user.id));
    // Its message comes before the events about it.
    let place = |name: &str| events.iter().position(|event| event["event"] == name);
    assert!(place("message.created") < place("approval.decided"));
}

#[tokio::test(flavor = "multi_thread")]
async fn denials_and_ties_end_it() {
    let room = Room::new().await;
    let [a, b] = &room.nodes;
    let denied = room.ask(json!({})).await;
    let done = room.carol.decide(b, &denied, "denied").await.expect(200);
    assert_eq!(done.data()["state"], "denied");

    let of = [&room.alice.user.id, &room.bob.user.id];
    let split = json!({ "of": of, "quorum": 2, "deny_quorum": 2 });
    let tie = room.ask(split).await;
    room.alice.decide(a, &tie, "approved").await.expect(200);
    let done = room.bob.decide(b, &tie, "denied").await.expect(200);
    assert_eq!(
        (&done.data()["state"], &done.data()["reason"]),
        (&json!("expired"), &json!("undecidable"))
    );
    let refused = room.carol.decide(b, &tie, "denied").await;
    refused.refused(404, "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_closes_it_and_a_late_decision_is_refused() {
    let room = Room::new().await;
    let short = room.ask(json!({ "expires_in_seconds": 60 })).await;
    let long = room.ask(json!({})).await;
    room.advance(61).await;
    let late = room.alice.decide(room.node(1), &short, "approved").await;
    let refused = late.refused(409, "APPROVAL_CLOSED");
    assert_eq!(
        (
            &refused.body["error"]["params"]["state"],
            &refused.body["error"]["params"]["reason"]
        ),
        (&json!("expired"), &json!("deadline"))
    );
    let item = closed(&room.agent, &short).await;
    assert_eq!(
        (&item["state"], &item["reason"]),
        (&json!("expired"), &json!("deadline"))
    );
    withdraw(&room.agent, &short)
        .await
        .refused(409, "APPROVAL_CLOSED");
    assert_eq!(room.item(&long).await["state"], "open");
    let events = heard_by_agent(&room.agent).await;
    assert_eq!(names(&events), ["approval.closed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sweep_closes_what_nobody_touches() {
    let room = Room::new().await;
    let item = room.ask(json!({ "expires_in_seconds": 60 })).await;
    room.advance(61).await;
    let mut socket = room.carol.user.on(room.node(1)).connect().await;
    let event = socket.event("approval.closed").await;
    assert_eq!(event["data"]["approval_id"], item["approval_id"]);
    assert_eq!(event["data"]["reason"], "deadline");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_withdraws_what_is_open() {
    let room = Room::new().await;
    let [a, b] = &room.nodes;
    let item = room.ask(json!({})).await;
    for node in [a, b, a] {
        let withdrawn = withdraw(&room.agent.on(node), &item).await.expect(200);
        assert_eq!(withdrawn.data()["state"], "withdrawn");
        assert!(withdrawn.data().get("reason").is_none());
    }
    assert_eq!(
        names(&heard(&room.bob.user).await),
        ["approval.requested", "approval.closed"]
    );
    let refused = room.bob.decide(a, &item, "approved").await;
    let refused = refused.refused(409, "APPROVAL_CLOSED");
    assert_eq!(refused.body["error"]["params"]["state"], "withdrawn");

    let approved = room.ask(json!({})).await;
    room.bob.decide(a, &approved, "approved").await.expect(200);
    let refused = withdraw(&room.agent, &approved).await;
    let refused = refused.refused(409, "APPROVAL_CLOSED");
    assert_eq!(refused.body["error"]["params"]["state"], "approved");
    let other = b.agent(&room.developer, "other").await;
    withdraw(&other, &approved).await.refused(404, "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_question_cannot_be_deleted_while_it_is_open() {
    let room = Room::new().await;
    let [a, b] = &room.nodes;
    let item = room.ask(json!({})).await;
    let path = format!(
        "/agents/{}/conversations/{}/messages/{}",
        room.agent.id,
        text(&item, "conversation_id"),
        text(&item, "approval_id")
    );
    for node in [a, b] {
        let refused = room.agent.on(node).delete(&path).await;
        refused.refused(409, "APPROVAL_OPEN");
    }
    withdraw(&room.agent, &item).await.expect(200);
    room.agent.on(b).delete(&path).await.expect(200);
    let kept = room.item(&item).await;
    assert_eq!(
        (&kept["state"], &kept["digest"]),
        (&json!("withdrawn"), &item["digest"])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_decision_again_is_200_and_another_is_refused_also_after_the_end() {
    let room = Room::new().await;
    let [a, b] = &room.nodes;
    let item = room.ask(json!({ "quorum": 2 })).await;
    room.alice.decide(a, &item, "approved").await.expect(200);
    // From another device, with its own key, and late.
    let phone = room.alice.user.login(b, Some("phone")).await;
    let keys = super::Keys::of(&phone).await;
    let phone = Person { user: phone, keys };
    let long_ago = room.now() - chrono::TimeDelta::hours(2);
    for _ in 0..2 {
        let again = phone.word(&item, "approved", long_ago);
        let same = decide(&phone.user, &item, again).await.expect(200);
        assert_eq!(
            same.data()["decisions"][0]["key_id"],
            json!(room.alice.keys.id())
        );
        let other = phone.decide(b, &item, "denied").await;
        let other = other.refused(409, "ALREADY_DECIDED");
        assert_eq!(other.body["error"]["params"]["status"], "approved");
        let digest = phone.answer(&item, "approved", Some([1; 32]), room.now());
        let other = decide(&phone.user, &item, digest).await;
        other.refused(409, "ALREADY_DECIDED");
        // And once more after the end.
        if room.item(&item).await["state"] == "open" {
            room.bob.decide(b, &item, "approved").await.expect(200);
        }
    }
    let item = item_of(&room.agent, &item).await;
    assert_eq!(item["decisions"].as_array().expect("a list").len(), 2);
    room.carol
        .decide(a, &item, "approved")
        .await
        .refused(409, "APPROVAL_CLOSED");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_have_pages_and_only_what_the_caller_sees() {
    let room = Room::new().await;
    let [a, b] = &room.nodes;
    let mut items = Vec::new();
    for _ in 0..5 {
        items.push(text(&room.ask(json!({})).await, "approval_id"));
    }
    let newest_first: Vec<&String> = items.iter().rev().collect();
    let ids = |answer: &crate::support::Answer| -> Vec<String> {
        let data = answer.body["data"].as_array().expect("a list");
        data.iter().map(|one| text(one, "approval_id")).collect()
    };
    let own = format!("/agents/{}/approvals", room.agent.id);
    for list in [
        room.carol.user.on(b).get("/approvals").await.expect(200),
        room.carol
            .user
            .on(b)
            .get("/approvals?state=open")
            .await
            .expect(200),
        room.agent.on(a).get(&own).await.expect(200),
    ] {
        assert_eq!(ids(&list).iter().collect::<Vec<_>>(), newest_first);
    }
    let mut walked = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = room
            .carol
            .user
            .get(format!("/approvals?limit=2{cursor}"))
            .await
            .expect(200);
        walked.extend(ids(&page));
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(walked.iter().collect::<Vec<_>>(), newest_first);
    let item = json!({ "approval_id": items[2] });
    withdraw(&room.agent, &item).await.expect(200);
    let shut = room
        .carol
        .user
        .get("/approvals?state=closed")
        .await
        .expect(200);
    assert_eq!(ids(&shut), [items[2].clone()]);
    let shut = room
        .agent
        .get(format!("{own}?state=closed"))
        .await
        .expect(200);
    assert_eq!(ids(&shut), [items[2].clone()]);
    assert_eq!(
        ids(&room.carol.user.get("/approvals").await.expect(200)).len(),
        4
    );

    // Who comes later sees none of them, and no cursor of theirs.
    let dave = b.user("dave").await;
    let members = json!({ "user_ids": [dave.id] });
    let path = format!("/groups/{}/members", room.group);
    room.alice.user.post(path, members).await.expect(201);
    assert!(ids(&dave.get("/approvals").await.expect(200)).is_empty());
    let path = format!("/approvals?cursor={}", items[1]);
    dave.get(&path).await.refused(400, "VALIDATION_ERROR");
    dave.get(format!("/approvals/{}", items[1]))
        .await
        .refused(404, "NOT_FOUND");
    for query in ["state=maybe", "limit=0", "cursor=x"] {
        dave.get(format!("/approvals?{query}"))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
}
