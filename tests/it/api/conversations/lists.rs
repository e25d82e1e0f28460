//! Lists and histories, page by page.

use serde_json::{Value, json};

use crate::support::{Answer, Caller, nodes_with, ulid};

use super::RAISED_LIMITS;

pub(super) fn column(answer: &Answer, name: &str) -> Vec<Value> {
    answer.body["data"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|item| item[name].clone())
        .collect()
}

/// All pages of a list, and how long each was.
async fn walk(caller: &Caller, path: &str, name: &str) -> (Vec<Value>, Vec<usize>) {
    let (mut items, mut sizes, mut cursor) = (Vec::new(), Vec::new(), String::new());
    loop {
        let page = caller.get(format!("{path}{cursor}")).await.expect(200);
        let column = column(&page, name);
        sizes.push(column.len());
        items.extend(column);
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return (items, sizes),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_has_the_latest_activity_first_and_pages_without_skips() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let mut conversations = Vec::new();
    for n in 0..5 {
        let agent = a.agent(&alice, &format!("agent {n}")).await;
        conversations.push(alice.talk_to(&agent).await);
        a.advance(std::time::Duration::from_millis(5)).await;
    }
    // Two have a message, the rest only their beginning.
    alice.say(&conversations[1], "x").await.expect(201);
    alice.say(&conversations[3], "y").await.expect(201);
    let expected: Vec<Value> = [3, 1, 4, 2, 0]
        .map(|n: usize| json!(conversations[n]))
        .into();
    for limit in 1..=6 {
        let (seen, _) = walk(
            &alice.on(&b),
            &format!("/conversations?limit={limit}"),
            "conversation_id",
        )
        .await;
        assert_eq!(seen, expected, "by {limit}");
    }
    // A conversation that moves up meanwhile is not repeated in this walk; the next one begins with
    // it.
    let first = alice.get("/conversations?limit=2").await.expect(200);
    alice.say(&conversations[4], "z").await.expect(201);
    let next = first.body["next_cursor"].as_str().expect("more");
    let second = alice
        .get(format!("/conversations?limit=2&cursor={next}"))
        .await
        .expect(200);
    assert_eq!(
        column(&second, "conversation_id"),
        [json!(conversations[2]), json!(conversations[0])]
    );
    assert_eq!(second.body["next_cursor"], Value::Null);
    let again = alice.get("/conversations?limit=1").await.expect(200);
    assert_eq!(column(&again, "conversation_id"), [json!(conversations[4])]);
    assert_eq!(again.body["data"][0]["members"], Value::Null);
    assert_eq!(again.body["data"][0]["member_count"], 2);

    let bob = a.user("bob").await;
    let his = bob.talk_to(&a.agent(&bob, "his").await).await;
    // A cursor is a place in time: it need not exist, and the conversation of another is only its
    // time.
    for place in [ulid().to_string(), his] {
        let page = alice
            .get(format!("/conversations?cursor={place}"))
            .await
            .expect(200);
        assert_eq!(column(&page, "conversation_id").len(), 5);
    }
    for bad in ["x", ""] {
        alice
            .get(format!("/conversations?cursor={bad}"))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    for bad in ["limit=0", "limit=101", "limit=x", "limit="] {
        alice
            .get(format!("/conversations?{bad}"))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    assert_eq!(
        bob.get("/conversations").await.expect(200).body["data"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_is_read_both_ways_by_number() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let other = alice.talk_to(&a.agent(&alice, "other").await).await;
    let elsewhere = alice.say(&other, "elsewhere").await.expect(201);
    let empty = alice
        .get(format!("/conversations/{conversation}/messages"))
        .await
        .expect(200);
    assert_eq!(empty.body, json!({ "data": [], "next_cursor": null }));
    for n in 1..=25 {
        // A clock that runs backwards must not matter: nothing is ordered by time.
        let sql = format!("update test_clock set ahead = interval '{} s'", -n);
        crate::support::psql(&a.world.database, &sql).await;
        alice.say(&conversation, &n.to_string()).await.expect(201);
    }
    let hers = format!("/conversations/{conversation}/messages");
    let its = format!("/agents/{}/conversations/{conversation}/messages", agent.id);
    let (up, down): (Vec<Value>, Vec<Value>) = (
        (1..=25).map(Value::from).collect(),
        (1..=25).rev().map(Value::from).collect(),
    );
    for (caller, path) in [(&alice.on(&b).caller, &hers), (&agent.on(&b).caller, &its)] {
        for limit in [1, 7, 24, 25, 26] {
            for (direction, expected) in [
                ("", &down),
                ("&direction=backward", &down),
                ("&direction=forward", &up),
            ] {
                let (seqs, _) =
                    walk(caller, &format!("{path}?limit={limit}{direction}"), "seq").await;
                assert_eq!(&seqs, expected, "{limit} {direction}");
            }
        }
        let bad = ulid().to_string();
        let foreign = elsewhere.data()["message_id"].as_str().expect("an id");
        for query in ["cursor=x", "limit=0", "limit=101", "direction=sideways"]
            .map(str::to_owned)
            .into_iter()
            .chain([format!("cursor={bad}"), format!("cursor={foreign}")])
        {
            caller
                .get(format!("{path}?{query}"))
                .await
                .refused(400, "VALIDATION_ERROR");
        }
    }
    let newest = alice.get(format!("{hers}?limit=1")).await.expect(200).body["data"][0].clone();
    assert_eq!(newest["payload"], json!({ "type": "text", "text": "25" }));
    assert_eq!(
        newest["sender"],
        json!({ "type": "user", "id": alice.id, "device_id": alice.device_id })
    );
    assert_eq!(
        (&newest["hop"], &newest["purged"]),
        (&json!(0), &Value::Null)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_large_messages_ends_early_and_the_walk_goes_on() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let conversation = alice.talk_to(&a.agent(&alice, "helper").await).await;
    let path = format!("/conversations/{conversation}/messages");
    let large = format!(
        r#"{{"payload":{{"type":"text","text":"{}"}}}}"#,
        "x".repeat(1_000_000)
    );
    for _ in 0..9 {
        alice.post_raw(&path, large.clone()).await.expect(201);
    }
    for (direction, expected) in [
        ("backward", (1..=9).rev().collect::<Vec<i64>>()),
        ("forward", (1..=9).collect()),
    ] {
        let (seqs, sizes) = walk(
            &alice.caller,
            &format!("{path}?direction={direction}"),
            "seq",
        )
        .await;
        assert_eq!(
            seqs,
            expected.into_iter().map(Value::from).collect::<Vec<_>>()
        );
        assert_eq!(sizes, [4, 4, 1]);
    }
}
