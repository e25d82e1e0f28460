//! Shared sockets: consumer groups that split an agent's conversations.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};

use crate::support::{Agent, ProcessNode, Sleeper, Socket, TestNode, User, nodes_with, spawn};

const SETTINGS: [(&str, &str); 2] = [
    ("AGENT_CONNECTIONS", "16"),
    (
        "LIMIT_OVERRIDES",
        "user_message_send=1000/s,ws_connect=1000/s,ws_connect_ip=1000/s",
    ),
];

fn auth(agent: &Agent, group: &str) -> Value {
    json!({ "type": "auth", "agent_id": agent.id, "token": agent.token, "mode": "shared", "group": group })
}

/// A shared socket that has caught up.
async fn shared(agent: &Agent, group: &str) -> Socket {
    let mut socket = Socket::open(&agent.caller).await;
    socket.say(auth(agent, group)).await;
    socket.welcome().await;
    socket.expect("caught_up").await;
    socket
}

/// An event at a worker.
#[derive(Clone, Debug)]
struct Given {
    worker: usize,
    conversation: String,
    seq: i64,
    at: Instant,
    /// When the ack was sent, or the worker ended.
    until: Option<Instant>,
    is_acked: bool,
}

type History = Arc<Mutex<Vec<Given>>>;

/// A process of an agent that acks each message some time after it came, in order.
struct Worker {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Worker {
    async fn start(n: usize, agent: &Agent, history: &History, delay: Duration) -> Self {
        let mut socket = shared(agent, "default").await;
        let history = history.clone();
        let (stop, mut stopped) = watch::channel(false);
        let task = spawn(async move {
            let mut waiting: VecDeque<(Instant, String, Option<usize>)> = VecDeque::new();
            loop {
                let due = waiting.front().map(|(due, ..)| *due);
                let due = due.unwrap_or(Instant::now() + Duration::from_secs(1));
                tokio::select! {
                    frame = socket.next() => {
                        let Ok(frame) = frame else { break };
                        if frame["type"] != "event" {
                            continue;
                        }
                        let at = Instant::now();
                        let cursor = frame["cursor"].as_str().expect("a cursor").to_owned();
                        let mut record = None;
                        if frame["event"] == "message.created" {
                            let mut history = history.lock();
                            record = Some(history.len());
                            history.push(Given {
                                worker: n,
                                conversation: frame["conversation_id"].as_str().expect("one").to_owned(),
                                seq: frame["seq"].as_i64().expect("a number"),
                                at,
                                until: None,
                                is_acked: false,
                            });
                        }
                        waiting.push_back((at + delay, cursor, record));
                    }
                    () = tokio::time::sleep_until(due.into()) => {
                        let Some((_, cursor, record)) = waiting.pop_front() else { continue };
                        if let Some(record) = record {
                            let given = &mut history.lock()[record];
                            (given.until, given.is_acked) = (Some(Instant::now()), true);
                        }
                        socket.say(json!({ "type": "ack", "cursor": cursor })).await;
                    }
                    _ = stopped.changed() => break,
                }
            }
            drop(socket);
            let now = Instant::now();
            let mut history = history.lock();
            let mine = history.iter_mut().filter(|given| given.worker == n);
            mine.filter(|given| given.until.is_none())
                .for_each(|given| given.until = Some(now));
        });
        Worker { stop, task }
    }

    async fn end(self) {
        self.stop.send(true).ok();
        self.task.await.expect("a worker");
    }
}

/// Waits until so many messages were acked.
async fn until_acked(history: &History, n: usize, within: Duration) {
    let started = Instant::now();
    let acked = || history.lock().iter().filter(|given| given.is_acked).count();
    while acked() < n {
        assert!(
            started.elapsed() < within,
            "{} of {n}: {:#?}",
            acked(),
            history.lock()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Asserts that no conversation was at two workers at once, and that each was acked in order, each
/// message once. Returns the workers of each conversation.
fn judge(history: &History, sent: usize) -> BTreeMap<String, BTreeSet<usize>> {
    let mut conversations: BTreeMap<String, Vec<Given>> = BTreeMap::new();
    for given in history.lock().iter() {
        let conversation = conversations.entry(given.conversation.clone());
        conversation.or_default().push(given.clone());
    }
    let mut acked = BTreeSet::new();
    for all in conversations.values() {
        for one in all {
            for other in all {
                let is_over = one.until.is_some_and(|until| until <= other.at);
                let was_over = other.until.is_some_and(|until| until <= one.at);
                assert!(
                    one.worker == other.worker || is_over || was_over,
                    "{one:?} {other:?}"
                );
            }
        }
        let mut handled: Vec<&Given> = all.iter().filter(|given| given.is_acked).collect();
        handled.sort_by_key(|given| given.until);
        assert!(handled.is_sorted_by_key(|given| given.seq), "{handled:#?}");
        for given in handled {
            assert!(acked.insert(given.seq), "twice: {given:?}");
        }
    }
    assert_eq!(acked.len(), sent);
    let workers = |all: Vec<Given>| all.iter().map(|given| given.worker).collect();
    conversations
        .into_iter()
        .map(|(id, all)| (id, workers(all)))
        .collect()
}

/// An agent and people who each have a conversation with it.
async fn crowd(node: &TestNode, n: usize) -> (Agent, Vec<(User, String)>) {
    let alice = node.user("alice").await;
    let agent = node.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut people = vec![(alice, conversation)];
    for n in 1..n {
        let user = node.user(&format!("user-{n}")).await;
        let conversation = user.talk_to(&agent).await;
        people.push((user, conversation));
    }
    (agent, people)
}

async fn say_to_all(people: &[(User, String)], times: usize) -> usize {
    for n in 0..times {
        let sends = people.iter().map(async |(user, conversation)| {
            user.say(conversation, &n.to_string()).await.expect(201)
        });
        futures_util::future::join_all(sends).await;
    }
    people.len() * times
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_move_whole_and_each_message_is_handled_once_in_order() {
    let [a, b] = nodes_with(&SETTINGS).await;
    // Hashes divide the conversations: one of three workers gets none of twelve once in 4,096 times.
    let (agent, people) = crowd(&a, 12).await;
    let history = History::default();
    let mut everything = agent.on(&b).connect().await;
    let late = Duration::from_millis(150);
    let first = Worker::start(1, &agent, &history, late).await;
    let second = Worker::start(2, &agent.on(&b), &history, late).await;
    let mut sent = say_to_all(&people, 4).await;
    // The third comes while the others have events that they have not acked.
    let third = Worker::start(3, &agent.on(&b), &history, late).await;
    sent += say_to_all(&people, 8).await;
    first.end().await;
    sent += say_to_all(&people, 8).await;
    until_acked(&history, sent, Duration::from_secs(20)).await;
    second.end().await;
    third.end().await;
    let workers = judge(&history, sent);
    assert!(
        workers.values().any(|workers| workers.len() > 1),
        "{workers:?}"
    );
    let all: BTreeSet<usize> = workers.into_values().flatten().collect();
    assert_eq!(all, BTreeSet::from([1, 2, 3]));
    // A socket that shares nothing gets everything, without a gap.
    let mut numbers = Vec::new();
    while numbers.len() < sent {
        let event = everything.event("message.created").await;
        numbers.push(event["seq"].as_i64().expect("a number"));
    }
    assert!(numbers.is_sorted());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_node_gave_comes_again_elsewhere_when_its_lease_is_over() {
    let [a] = nodes_with(&SETTINGS).await;
    let mut b = ProcessNode::start_with(&a, &SETTINGS).await;
    let (agent, people) = crowd(&a, 6).await;
    let history = History::default();
    let never = Duration::from_secs(60);
    let on_b = Worker::start(1, &agent.at(&b.base), &history, never).await;
    let sent = say_to_all(&people, 2).await;
    let started = Instant::now();
    while history.lock().len() < sent {
        assert!(started.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let on_a = Worker::start(2, &agent, &history, Duration::from_millis(5)).await;
    // All conversations are held by the first, so the second is given nothing new either.
    let more = say_to_all(&people, 1).await;
    let killed = Instant::now();
    b.kill();
    on_b.task.await.expect("it ends with its node");
    until_acked(&history, sent + more, Duration::from_secs(15)).await;
    let first_again = history
        .lock()
        .iter()
        .filter(|given| given.worker == 2)
        .map(|given| given.at)
        .min();
    let waited = first_again.expect("given again") - killed;
    assert!(
        (Duration::from_secs(8)..Duration::from_secs(13)).contains(&waited),
        "{waited:?}"
    );
    on_a.end().await;
    judge(&history, sent + more);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_frozen_process_has_comes_again_after_its_ping() {
    let [a] = nodes_with(&SETTINGS).await;
    let (agent, people) = crowd(&a, 1).await;
    let frozen = Sleeper::saying(&agent.caller, &auth(&agent, "default")).await;
    let (alice, conversation) = &people[0];
    alice.say(conversation, "for somebody").await.expect(201);
    let shown = async || agent.get(format!("/agents/{}", agent.id)).await.expect(200);
    // The frozen socket holds it before the other one comes.
    while shown().await.data()["connections"][0]["conversations"] != 1 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut live = shared(&agent, "default").await;
    live.expect_silence(Duration::from_millis(1_500)).await;
    for seconds in [26, 11] {
        a.advance(Duration::from_secs(seconds)).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        live.say(json!({ "type": "ping" })).await;
    }
    let pinged = Instant::now();
    live.event("message.created").await;
    let waited = pinged.elapsed();
    assert!(
        (Duration::from_secs(7)..Duration::from_secs(12)).contains(&waited),
        "{waited:?}"
    );
    drop(frozen);
}

#[tokio::test(flavor = "multi_thread")]
async fn four_groups_get_everything_and_each_has_its_own_ack() {
    let [a, b] = nodes_with(&SETTINGS).await;
    let (agent, people) = crowd(&a, 1).await;
    let (alice, conversation) = &people[0];
    // A new group begins at the agent's own ack.
    alice.say(conversation, "before").await.expect(201);
    let mut own = agent.connect().await;
    own.event("message.created").await;
    let cursor = own.cursor.clone();
    own.say(json!({ "type": "ack", "cursor": cursor })).await;
    own.say(json!({ "type": "ping" })).await;
    own.expect("pong").await;
    drop(own);
    let acked = async || {
        let shown = agent.get(format!("/agents/{}", agent.id)).await.expect(200);
        shown.data()["inbox"]["acked_seq"].clone()
    };
    while acked().await == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut sockets = Vec::new();
    for group in ["default", "audit", "search", "mirror"] {
        sockets.push(shared(&agent.on(&b), group).await);
    }
    alice.say(conversation, "one").await.expect(201);
    alice.say(conversation, "two").await.expect(201);
    let mut cursors = Vec::new();
    for socket in &mut sockets {
        for text in ["one", "two"] {
            let event = socket.event("message.created").await;
            assert!(event["data"].to_string().contains(text), "{event}");
            cursors.push(event["cursor"].clone());
        }
    }
    let mut fifth = Socket::open(&agent.caller).await;
    fifth.say(auth(&agent, "fifth")).await;
    let before = fifth.expect_close(4409).await;
    assert_eq!(
        before,
        [json!({ "type": "auth.error", "reason": "connection_limit" })]
    );

    // The second group acks the first of its two, and only its lag shrinks.
    sockets[1]
        .say(json!({ "type": "ack", "cursor": cursors[2] }))
        .await;
    let lags = async || {
        let shown = alice.get(format!("/agents/{}", agent.id)).await.expect(200);
        let connections = shown.data()["connections"]
            .as_array()
            .expect("a list")
            .clone();
        let lag = |one: &Value| {
            assert_eq!(
                (&one["mode"], &one["conversations"]),
                (&json!("shared"), &json!(1))
            );
            (
                one["group"].as_str().expect("a group").to_owned(),
                one["lag"].as_i64().expect("a lag"),
            )
        };
        connections.iter().map(lag).collect::<BTreeMap<_, _>>()
    };
    let started = Instant::now();
    loop {
        let lags = lags().await;
        assert_eq!((lags["default"], lags["search"], lags["mirror"]), (2, 2, 2));
        if lags["audit"] == 1 {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(5), "{lags:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The second ack counts although its socket closes at once. A resume changes nothing.
    sockets[1]
        .say(json!({ "type": "ack", "cursor": cursors[3] }))
        .await;
    drop(sockets.remove(1));
    tokio::time::sleep(Duration::from_millis(500)).await;
    alice.say(conversation, "three").await.expect(201);
    let mut again = Socket::open(&agent.caller).await;
    let mut resuming = auth(&agent, "audit");
    resuming["resume"] = cursor.clone().into();
    again.say(resuming).await;
    let event = again.event("message.created").await;
    assert!(event["data"].to_string().contains("three"), "{event}");

    for wrong in [
        json!({ "mode": "half" }),
        json!({ "mode": "all", "group": "x" }),
        json!({ "group": "x" }),
        json!({ "mode": "shared", "group": "" }),
        json!({ "mode": "shared", "group": 7 }),
    ] {
        let mut frame = json!({ "type": "auth", "agent_id": agent.id, "token": agent.token });
        let fields = wrong.as_object().expect("an object").clone();
        frame.as_object_mut().expect("an object").extend(fields);
        let mut socket = Socket::open(&agent.caller).await;
        socket.say(frame).await;
        socket.expect_close(4400).await;
    }
}
