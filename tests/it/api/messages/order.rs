//! Numbers have no gaps, and every reader sees the same order.

use serde_json::json;

use crate::support::{nodes_with, spawn};

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_sends_on_two_nodes_are_numbered_without_gaps_and_read_alike() {
    let [a, b] = nodes_with(&[(
        "LIMIT_OVERRIDES",
        "agent_message_send=10000/s,user_message_send=10000/s",
    )])
    .await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut agent_socket = agent.on(&b).connect().await;
    let mut alice_socket = alice.on(&a).connect().await;

    let sends = (0..300).map(|n| {
        let (alice, agent) = if n % 2 == 0 {
            (alice.on(&a), agent.on(&a))
        } else {
            (alice.on(&b), agent.on(&b))
        };
        let conversation = &conversation;
        async move {
            let text = format!("m{n}");
            if n % 3 == 0 {
                agent.say(conversation, &text).await
            } else {
                alice.say(conversation, &text).await
            }
        }
    });
    let answers = futures_util::future::join_all(sends).await;
    let mut by_seq: Vec<(i64, String)> = answers
        .into_iter()
        .map(|answer| answer.expect(201))
        .map(|answer| {
            (
                answer.data()["seq"].as_i64().expect("a number"),
                answer.data()["message_id"].to_string(),
            )
        })
        .collect();
    by_seq.sort();
    assert_eq!(
        by_seq.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(),
        (1..=300).collect::<Vec<_>>()
    );

    let mut last_inbox = 0;
    for (seq, id) in &by_seq {
        let event = alice_socket.event("message.created").await;
        assert_eq!(
            (
                event["data"]["seq"].as_i64(),
                &event["data"]["message_id"].to_string()
            ),
            (Some(*seq), id)
        );
        let inbox = event["seq"].as_i64().expect("a number");
        assert!(
            last_inbox == 0 || inbox == last_inbox + 1,
            "{inbox} after {last_inbox}"
        );
        last_inbox = inbox;
    }
    // The agent hears what the user said, in the same order, and never itself.
    let mut last = 0;
    for _ in 0..200 {
        let event = agent_socket.event("message.created").await;
        let seq = event["data"]["seq"].as_i64().expect("a number");
        assert_eq!(event["data"]["sender"]["type"], "user");
        assert!(seq > last);
        last = seq;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn polls_and_sockets_are_the_same_reader() {
    let [a, b] = nodes_with(&[(
        "LIMIT_OVERRIDES",
        "user_message_send=1000/s,agent_poll=1000/s",
    )])
    .await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let seqs = |answer: &crate::support::Answer| -> Vec<i64> {
        answer.body["data"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|event| event["seq"].as_i64().expect("a number"))
            .collect()
    };
    // 1 and 2 are relation.created and conversation.created.
    for n in 3..=10 {
        alice.say(&conversation, &n.to_string()).await.expect(201);
    }
    let page = agent.poll("limit=4").await.expect(200);
    assert_eq!(seqs(&page), [1, 2, 3, 4]);
    let cursor = page.body["next_cursor"]
        .as_str()
        .expect("a cursor")
        .to_owned();
    // Not acked yet, so without a cursor it comes again; with it, it is acked.
    assert_eq!(
        seqs(&agent.on(&b).poll("limit=4").await.expect(200)),
        [1, 2, 3, 4]
    );
    assert_eq!(
        seqs(
            &agent
                .on(&b)
                .poll(&format!("limit=2&cursor={cursor}"))
                .await
                .expect(200)
        ),
        [5, 6]
    );
    let mut socket = agent.on(&b).connect().await;
    assert_eq!(socket.ready["replay"], json!({ "from": 4, "to": 10 }));
    for n in 5..=10 {
        assert_eq!(socket.next().await.expect("an event")["seq"], n);
    }
    socket.expect("caught_up").await;
    socket
        .say(json!({ "type": "ack", "cursor": socket.cursor }))
        .await;
    drop(socket);
    let mut left = vec![0];
    for _ in 0..100 {
        left = seqs(&agent.poll("").await.expect(200));
        if left.is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(left, [0; 0], "the socket's ack is the agent's");

    // A waiting poll on the other node is woken by a send.
    let started = std::time::Instant::now();
    let waiting = spawn({
        let agent = agent.on(&b);
        async move { agent.poll("wait=25").await }
    });
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    alice.say(&conversation, "wake").await.expect(201);
    assert_eq!(seqs(&waiting.await.expect("no panic").expect(200)), [11]);
    assert!(started.elapsed() < std::time::Duration::from_secs(5));

    for bad in [
        "cursor=x",
        "cursor=",
        "limit=0",
        "limit=1001",
        "limit=x",
        "wait=26",
        "wait=-1",
    ] {
        agent.poll(bad).await.refused(400, "VALIDATION_ERROR");
    }
    let ahead = cursor.replace("-4", "-999");
    agent
        .poll(&format!("cursor={ahead}"))
        .await
        .refused(409, "CURSOR_EXPIRED");
    let refused = agent
        .poll("cursor=999-4")
        .await
        .refused(409, "CURSOR_EXPIRED");
    assert!(
        refused.body["error"]["params"]["head"]
            .as_str()
            .expect("a cursor")
            .ends_with("-11")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_inbox_written_from_many_conversations_on_two_nodes_has_no_gaps() {
    let room = "agent_message_send=10000/s,user_message_send=10000/s,default_user=1000/s";
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", room), ("SEND_WRITERS", "3")]).await;
    let alice = a.user("alice").await;
    let mut pairs = Vec::new();
    for n in 0..5 {
        let agent = a.agent(&alice, &format!("agent {n}")).await;
        let conversation = alice.talk_to(&agent).await;
        pairs.push((agent, conversation));
    }
    let mut alice_socket = alice
        .on(&b)
        .connect_from(Some(&alice.start_of_inbox().await))
        .await;
    let sends = (0..400).map(|n| {
        let (agent, conversation) = &pairs[n % 5];
        let node = if n % 2 == 0 { &a } else { &b };
        async move { agent.on(node).say(conversation, "x").await }
    });
    let mut sent: Vec<String> = futures_util::future::join_all(sends)
        .await
        .into_iter()
        .map(|answer| answer.expect(201).data()["message_id"].to_string())
        .collect();
    let mut heard = Vec::new();
    let mut last = [0; 5];
    // Ten events were there before: a relation and a conversation with each agent.
    for n in 1..=410 {
        let event = loop {
            let frame = alice_socket.next().await.expect("an event");
            if frame["type"] == "event" {
                break frame;
            }
        };
        assert_eq!(event["seq"], n);
        if event["event"] == "message.created" {
            let place = pairs
                .iter()
                .position(|(_, id)| event["conversation_id"] == **id)
                .expect("one of them");
            assert_eq!(event["data"]["seq"], last[place] + 1);
            last[place] += 1;
            heard.push(event["data"]["message_id"].to_string());
        }
    }
    sent.sort();
    heard.sort();
    assert_eq!(sent, heard);
}
