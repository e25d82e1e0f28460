//! Members come and go while others send.

use std::time::Duration;

use serde_json::json;

use crate::support::nodes_with;

use super::{RAISED_LIMITS, add, remove, roles};

#[tokio::test(flavor = "multi_thread")]
async fn who_is_removed_in_mid_stream_gets_nothing_that_commits_after() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let start = bob.start_of_inbox().await;
    let mut bob_socket = bob.on(&b).connect().await;
    bob_socket.expect("caught_up").await;
    for round in 0..5 {
        let group = alice.group_with(&[&bob]).await;
        let senders = [alice.on(&a), alice.on(&b)];
        let sends = (0..60).map(|n| {
            let (sender, group) = (&senders[n % 2], &group);
            async move {
                sender.say(group, "x").await.expect(201).data()["seq"]
                    .as_i64()
                    .expect("a number")
            }
        });
        let removal = async {
            tokio::time::sleep(Duration::from_millis(5 * round)).await; // Real time: somewhere among the sends.
            remove(&alice.on(&b), &group, &bob.id).await.expect(200);
            // Everything said from here on was committed after the removal.
            alice.say(&group, "after").await.expect(201).data()["seq"]
                .as_i64()
                .expect("a number")
        };
        let (mut seqs, after) = tokio::join!(futures_util::future::join_all(sends), removal);
        seqs.push(after);
        seqs.sort_unstable();
        assert_eq!(seqs, (1..=61).collect::<Vec<_>>());
        // His events are a prefix of it without gaps; then his removal, and nothing behind it.
        let mut heard = 0;
        loop {
            let frame = bob_socket.next().await.expect("a frame");
            if frame["event"] == "message.created" {
                heard += 1;
                assert_eq!(frame["data"]["seq"], heard);
            } else if frame["event"] == "member.removed" {
                break;
            }
        }
        assert!(heard < after, "heard {heard}, removed before {after}");
        bob_socket.expect_silence(Duration::from_millis(100)).await;
        let replayed = bob.connect_from(Some(&start)).await;
        let count = messages_of(replayed, &group).await;
        assert_eq!(count, heard, "his inbox has what his socket had");
    }
}

/// How many messages of a conversation a socket replays.
async fn messages_of(mut socket: crate::support::Socket, group: &str) -> i64 {
    let mut count = 0;
    loop {
        let frame = socket.next().await.expect("a frame");
        if frame["type"] == "caught_up" {
            return count;
        }
        count +=
            i64::from(frame["event"] == "message.created" && frame["conversation_id"] == *group);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn races_of_members_leave_one_owner_and_no_one_twice() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    for _ in 0..10 {
        let group = alice.group_with(&[&bob]).await;
        // Two add the same one at once, the owner leaves, a member leaves, someone is made admin:
        // in any order.
        let (here, there, his) = (alice.on(&a), alice.on(&b), bob.on(&b));
        let ids = [carol.id.as_str()];
        let promote = bob.id.clone();
        let promote = here.patch(
            format!("/groups/{group}/members/{promote}"),
            json!({ "role": "admin" }),
        );
        let (one, two, left, promoted, spoke) = tokio::join!(
            add(&here, &group, &ids),
            add(&there, &group, &ids),
            remove(&there, &group, &alice.id),
            promote,
            his.say(&group, "x"),
        );
        left.expect(200);
        spoke.expect(201);
        for answer in [&one, &two, &promoted] {
            assert!([200, 201, 403, 404].contains(&answer.status), "{answer:?}");
        }
        let added = [&one, &two]
            .iter()
            .filter(|one| one.data()["added"] == json!(ids))
            .count();
        let all = roles(&bob, &group).await;
        assert!(added <= 1, "{one:?} {two:?}");
        assert_eq!(all.len(), 1 + added, "{all:?}");
        assert_eq!(
            all.iter().filter(|(_, role)| role == "owner").count(),
            1,
            "{all:?}"
        );
    }
}
