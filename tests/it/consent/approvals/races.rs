//! Decisions, withdrawals and deadlines that meet on two nodes: an approval closes once.

use std::{collections::HashSet, time::Duration};

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{Room, closed, decide, heard, heard_by_agent, text, withdraw};
use crate::support::{Answer, ProcessNode, connect};

/// Asserts that an approval has left `open` once, and that the events say what the rows say.
async fn must_be_closed_once(room: &Room, item: &Value) -> Value {
    let done = closed(&room.agent, item).await;
    for events in [
        heard(&room.carol.user).await,
        heard_by_agent(&room.agent).await,
    ] {
        let of_this = |name: &str| -> Vec<Value> {
            let mine = events.iter().filter(|(event, data)| {
                event == name && data["approval_id"] == item["approval_id"]
            });
            mine.map(|(_, data)| data.clone()).collect()
        };
        assert_eq!(of_this("approval.closed"), std::slice::from_ref(&done));
        let decided = of_this("approval.decided");
        assert_eq!(
            decided.len(),
            done["decisions"].as_array().expect("a list").len()
        );
    }
    done
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_and_a_withdrawal_on_two_nodes_close_it_once() {
    let room = Room::new().await;
    let mut states = HashSet::new();
    for round in 0..12 {
        let item = room.ask(json!({})).await;
        let people = [&room.alice, &room.bob, &room.carol];
        let words = ["approved", "denied", "approved"];
        let decisions = people
            .iter()
            .zip(words)
            .enumerate()
            .map(|(n, (one, word))| {
                let (node, item) = (room.node(n + round), &item);
                async move { one.decide(node, item, word).await }
            });
        let taken_back = async {
            tokio::time::sleep(Duration::from_millis(3 * round as u64)).await;
            withdraw(&room.agent.on(room.node(round)), &item).await
        };
        let (decided, withdrawn) = tokio::join!(join_all(decisions), taken_back);
        let done = must_be_closed_once(&room, &item).await;
        let passed = |answer: &&Answer| answer.status == 200;
        let count = decided.iter().filter(passed).count();
        assert_eq!(done["decisions"].as_array().expect("a list").len(), count);
        assert_eq!(count + usize::from(withdrawn.status == 200), 1);
        for refused in decided.iter().filter(|one| !passed(one)) {
            assert_eq!(refused.code(), "APPROVAL_CLOSED", "{refused:?}");
            assert_eq!(refused.body["error"]["params"]["state"], done["state"]);
        }
        states.insert(text(&done, "state"));
    }
    assert!(states.len() > 1, "only {states:?}: no race was played");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_s_devices_on_two_nodes_decide_once() {
    let room = Room::new().await;
    let item = room.ask(json!({ "quorum": 3, "deny_quorum": 3 })).await;
    let calls = (0..12).map(|n| {
        let (alice, node, item) = (&room.alice, room.node(n / 2), &item);
        let word = ["approved", "denied"][n % 2];
        async move { (word, alice.decide(node, item, word).await) }
    });
    let answers = join_all(calls).await;
    let done = room.item(&item).await;
    let word = text(&done["decisions"][0], "decision");
    assert_eq!(done["decisions"].as_array().expect("a list").len(), 1);
    for (said, answer) in answers {
        match said == word {
            true => assert_eq!(answer.status, 200, "{answer:?}"),
            false => drop(answer.refused(409, "ALREADY_DECIDED")),
        }
    }
    let events = heard_by_agent(&room.agent).await;
    assert_eq!(super::names(&events), ["approval.decided"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_meets_decisions_and_withdrawals() {
    let room = Room::new().await;
    let mut items = Vec::new();
    for _ in 0..10 {
        items.push(room.ask(json!({ "expires_in_seconds": 60 })).await);
    }
    let late = items.iter().enumerate().map(|(n, item)| {
        let room = &room;
        async move {
            tokio::time::sleep(Duration::from_millis(100 * n as u64)).await;
            match n % 2 {
                0 => room.bob.decide(room.node(n / 2), item, "approved").await,
                _ => withdraw(&room.agent.on(room.node(n / 2)), item).await,
            }
        }
    });
    let (answers, ()) = tokio::join!(join_all(late), async {
        tokio::time::sleep(Duration::from_millis(450)).await;
        room.advance(61).await;
    });
    for (item, answer) in items.iter().zip(&answers) {
        let done = must_be_closed_once(&room, item).await;
        match answer.status {
            200 => assert_ne!(done["reason"], "deadline"),
            _ => assert_eq!(
                (answer.code(), &done["reason"]),
                ("APPROVAL_CLOSED", &json!("deadline"))
            ),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_outlives_the_node_that_took_the_request() {
    let room = Room::new().await;
    let mut node = ProcessNode::start(&room.nodes[0]).await;
    let agent = room.agent.at(&node.base);
    let more = json!({ "expires_in_seconds": 60 });
    let asked = super::ask_in(&agent, &room.group, more).await.expect(201);
    let item = asked.data().clone();
    node.kill();
    room.advance(61).await;
    let done = must_be_closed_once(&room, &item).await;
    assert_eq!(done["reason"], "deadline");
}

/// Kills a node in the middle of decisions with answers. Each decision that names a message has it,
/// and each answer has its decision.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_leaves_no_half_of_a_decision() {
    let room = Room::new().await;
    let mut items = Vec::new();
    for _ in 0..40 {
        items.push(room.ask(json!({ "kind": "ask" })).await);
    }
    let mut node = ProcessNode::start(&room.nodes[0]).await;
    let user = room.bob.user.at(&node.base);
    let body = |item: &Value| {
        let mut body = room.bob.answer(item, "answered", Some([1; 32]), room.now());
        body["payload"] = json!({ "type": "encrypted", "c": "yes" });
        body
    };
    let calls = items.iter().map(|item| {
        let path = format!("/approvals/{}/decision", text(item, "approval_id"));
        let request = user.request(reqwest::Method::POST, path).json(&body(item));
        let user = &user;
        async move { user.try_send(request).await.ok() }
    });
    let (answers, ()) = tokio::join!(join_all(calls), async {
        tokio::time::sleep(Duration::from_millis(60)).await;
        node.kill();
    });
    for (item, answer) in items.iter().zip(answers) {
        let again = decide(&room.bob.user, item, body(item)).await.expect(200);
        if let Some(answer) = answer.filter(|answer| answer.status == 200) {
            assert_eq!(again.data()["decisions"], answer.data()["decisions"]);
        }
    }
    let client = connect(&room.nodes[0].world.database).await;
    let row = client
        .query_one(
            "select (select count(*) from message where sender_kind = 'user') as answers,
                    (select count(*) from approval_asked q join approval a using (approval_id)
                     join message m on m.conversation_id = a.conversation_id and m.message_id = q.message_id) as both",
            &[],
        )
        .await
        .expect("counts");
    assert_eq!(row.get::<_, i64>("answers"), 40);
    assert_eq!(row.get::<_, i64>("both"), 40);
}
