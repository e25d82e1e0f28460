//! Readers that are cut anywhere and come back anywhere.

use super::*;

/// Everything that a reader has ever been told, by number.
struct Log {
    events: BTreeMap<i64, Value>,
    epoch: String,
    /// The numbers it has acked, and those of them that were answered.
    acked: i64,
    surely_acked: i64,
}

impl Log {
    fn cursor(&self, seq: i64) -> String {
        format!("{}-{seq}", self.epoch)
    }

    fn last(&self) -> i64 {
        self.events.last_key_value().map_or(0, |(seq, _)| *seq)
    }

    /// Takes the next event after `before`; the same number always names the same event.
    fn take(&mut self, before: i64, mut event: Value) -> i64 {
        let seq = event["seq"].as_i64().expect("a number");
        assert_eq!(seq, before + 1, "{event}");
        assert_eq!(event["cursor"], self.cursor(seq));
        event.as_object_mut().expect("an object").remove("type");
        let known = self.events.entry(seq).or_insert_with(|| event.clone());
        assert_eq!(*known, event);
        seq
    }
}

async fn texts(socket: &mut Socket, patience: Duration) -> Option<Value> {
    match tokio::time::timeout(patience, socket.next()).await {
        Ok(Ok(frame)) => Some(frame),
        Ok(Err(code)) => panic!("closed with {code:?}"),
        Err(_) => None,
    }
}

/// A connection by socket: from somewhere, for a while, and then cut.
async fn by_socket(agent: &Agent, log: &mut Log, dice: &mut Dice) {
    let from = match dice.below(3) {
        // From the last ack, wherever that is.
        0 => None,
        1 => Some(log.last()),
        _ => Some(log.acked + dice.below((log.last() - log.acked).unsigned_abs() + 1) as i64),
    };
    let cursor = from.map(|seq| log.cursor(seq));
    let mut socket = agent.connect_from(cursor.as_deref()).await;
    let start = socket.ready["cursor"]
        .as_str()
        .expect("a cursor")
        .split_once('-')
        .expect("a cursor")
        .1;
    let mut at: i64 = start.parse().expect("a number");
    match from {
        Some(from) => assert_eq!(at, from),
        None => {
            assert!(
                (log.surely_acked..=log.acked).contains(&at),
                "{at} {} {}",
                log.surely_acked,
                log.acked
            );
        }
    }
    let replay_to = socket.ready["replay"]["to"].as_i64().expect("a number");
    let mut caught_up = false;
    for _ in 0..dice.below(40) {
        let Some(frame) = texts(&mut socket, Duration::from_millis(50)).await else {
            break;
        };
        match frame["type"].as_str() {
            Some("event") => at = log.take(at, frame),
            Some("caught_up") => {
                assert!(!caught_up && at >= replay_to, "{frame}");
                caught_up = true;
            }
            other => panic!("{other:?}"),
        }
        if dice.below(4) == 0 {
            // Any place that it has seen; an ack never goes back.
            let ack = at - dice.below(5).min(at.unsigned_abs()) as i64;
            socket
                .say(json!({ "type": "ack", "cursor": log.cursor(ack) }))
                .await;
            log.acked = log.acked.max(ack);
        }
    }
    // Dropped without a word, perhaps in the middle of a frame.
}

async fn by_poll(agent: &Agent, log: &mut Log, dice: &mut Dice) {
    let from = log.acked + dice.below((log.last() - log.acked).unsigned_abs() + 1) as i64;
    let (limit, wait) = (1 + dice.below(30), dice.below(2));
    let answer = agent
        .poll(&format!(
            "cursor={}&limit={limit}&wait={wait}",
            log.cursor(from)
        ))
        .await
        .expect(200);
    log.acked = log.acked.max(from);
    log.surely_acked = log.surely_acked.max(from);
    let mut at = from;
    for event in answer.body["data"].as_array().expect("a list") {
        at = log.take(at, event.clone());
    }
    assert_eq!(answer.body["next_cursor"], log.cursor(at));
}

async fn torture(
    nodes: Arc<[TestNode; 2]>,
    agent: Agent,
    mut dice: Dice,
    expected: i64,
    sending: Arc<AtomicBool>,
) -> Log {
    let socket = agent.connect().await;
    let epoch = socket.ready["cursor"]
        .as_str()
        .expect("a cursor")
        .split('-')
        .next()
        .expect("an epoch")
        .to_owned();
    drop(socket);
    let mut log = Log {
        events: BTreeMap::new(),
        epoch,
        acked: 0,
        surely_acked: 0,
    };
    // The last event that was read, and when: a slow machine is no fault.
    let mut progress = (0, Instant::now());
    while log.last() < expected || sending.load(Ordering::Relaxed) {
        let agent = agent.on(&nodes[dice.below(2) as usize]);
        match dice.below(3) {
            0 => by_poll(&agent, &mut log, &mut dice).await,
            _ => by_socket(&agent, &mut log, &mut dice).await,
        }
        if log.last() > progress.0 {
            progress = (log.last(), Instant::now());
        }
        assert!(
            progress.1.elapsed() < Duration::from_secs(30),
            "{} of {expected}",
            log.last()
        );
    }
    log
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_are_cut_anywhere_and_come_back_anywhere_read_exactly_what_was_sent() {
    let nodes: Arc<[TestNode; 2]> = Arc::new(nodes_with(&[RAISED_LIMITS]).await);
    let mut dice = Dice::new();
    let alice = nodes[0].user("alice").await;
    let sending = Arc::new(AtomicBool::new(true));
    let (mut readers, mut conversations) = (Vec::new(), Vec::new());
    let messages = 250;
    for n in 0..4 {
        let agent = nodes[0].agent(&alice, &format!("agent{n}")).await;
        conversations.push(alice.talk_to(&agent).await);
        // Two events come before the messages: the relation and the conversation.
        let torture = torture(
            nodes.clone(),
            agent,
            dice.fork(),
            messages + 2,
            sending.clone(),
        );
        readers.push(spawn(torture));
    }
    for n in 0..messages {
        for conversation in &conversations {
            let alice = alice.on(&nodes[dice.below(2) as usize]);
            alice.say(conversation, &format!("{n}")).await.expect(201);
        }
        tokio::time::sleep(Duration::from_millis(dice.below(8))).await;
    }
    sending.store(false, Ordering::Relaxed);
    for reader in readers {
        let log = reader.await.expect("a reader");
        assert_eq!(log.events.len() as i64, messages + 2);
        let texts: Vec<&str> = log
            .events
            .values()
            .filter_map(|event| event["data"]["payload"]["text"].as_str())
            .collect();
        let sent: Vec<String> = (0..messages).map(|n| n.to_string()).collect();
        assert_eq!(texts, sent);
    }
}
