//! The calls to one origin, shared between the agents whose webhooks lead there.

use std::{collections::HashSet, time::Duration};

use super::{BUSY, deliveries, put, until_caught_up};
use crate::support::{Call, Receiver, Reply, nodes_with};

/// Calls to an origin at once.
const PLACES: (&str, &str) = ("EGRESS_MAX_IN_FLIGHT_PER_ORIGIN", "8");
/// Agents whose calls hang, each with three conversations: nearly twice the places.
const SLOW_AGENTS: usize = 5;

/// Slow agents of an origin leave places for their neighbours, and what waits for a place has
/// written nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_is_full_of_slow_calls_serves_its_other_agents() {
    let [a] = nodes_with(&[BUSY, PLACES]).await;
    let owner = a.user("owner").await;
    let receiver = Receiver::start().await;
    let people = [owner.clone(), a.user("bob").await, a.user("carol").await];
    let neighbour = a.agent(&owner, "neighbour").await;
    put(&owner, &neighbour, &receiver.url).await;
    let conversation = owner.talk_to(&neighbour).await;
    let mut slow = Vec::new();
    let mut talks = Vec::new();
    for n in 0..SLOW_AGENTS {
        let agent = a.agent(&owner, &format!("slow {n}")).await;
        put(&owner, &agent, &receiver.url).await;
        for person in &people {
            talks.push((person, person.talk_to(&agent).await));
        }
        slow.push(agent);
    }
    for agent in slow.iter().chain([&neighbour]) {
        until_caught_up(&owner, agent).await;
    }
    let ids: HashSet<String> = slow.iter().map(|agent| agent.id.clone()).collect();
    let is_slow = move |call: &Call| {
        let agent = call.body["agent_id"].as_str().unwrap_or_default();
        ids.contains(agent) && call.event() == "message.created"
    };
    let hangs = is_slow.clone();
    receiver.behave(move |call| match hangs(call) {
        true => Reply::status(200).after(Duration::from_secs(9)),
        false => Reply::status(200),
    });
    for (person, talk) in &talks {
        person.say(talk, "x").await.expect(201);
    }
    let of_slow = |calls: &[Call]| calls.iter().filter(|call| is_slow(call)).count();
    receiver
        .until("call of each", |calls| of_slow(calls) >= SLOW_AGENTS)
        .await;
    for n in 0..2 {
        owner.say(&conversation, "y").await.expect(201);
        let texts = |calls: &[Call]| calls.iter().filter(|call| call.text() == "y").count();
        receiver
            .until("call of the neighbour", |calls| texts(calls) == n + 1)
            .await;
    }
    let mut written = 0;
    for agent in &slow {
        let log = deliveries(&owner, agent, "limit=50").await;
        let of_messages = log.iter().filter(|row| row["event"] == "message.created");
        written += of_messages.count();
    }
    receiver
        .until("call of each row", |calls| of_slow(calls) >= written)
        .await;
    // All of that happened while the slow ones hung.
    let answered = |call: &&Call| is_slow(call) && call.to.is_some();
    assert_eq!(receiver.events().iter().filter(answered).count(), 0);
}
