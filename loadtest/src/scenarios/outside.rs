//! The scenarios of a release elsewhere, with ready accounts: `send`, `sockets`, `storm`, `fanout`.
//! They know only what a client sees, and keep the limits of the release.

use std::time::{Duration, Instant};

use blindpipe_protocol::{
    conversations::{Conversation, Encryption, OpenConversation, OpenGroup},
    envelope::Data,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::json;

use super::sender::{Ids, Sender};
use crate::{
    Options, Result,
    cluster::Node,
    delivery::{Acked, Arrival, Faults, Reader},
    fixtures::{self, Pair},
    http::post,
    report::{Report, say},
    socket::{Heard, Socket},
    stats::Latencies,
};

const PAYLOAD_BYTES: usize = 200;
/// Sockets that connect at once in a calm moment.
const AT_ONCE: usize = 8;
/// A user may send ten messages a second.
const SEND_INTERVAL: Duration = Duration::from_millis(110);
/// Sockets that an agent may hold.
const MAX_AGENT_SOCKETS: usize = 3;
/// Members of a group.
const MAX_MEMBERS: usize = 500;
const FANOUT_MESSAGES: u64 = 50;
const FANOUT_INTERVAL: Duration = Duration::from_millis(200);
/// The longest wait for a message.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The findings of some rounds.
#[derive(Default)]
struct Found {
    rows: Vec<Vec<String>>,
    rounds: Vec<serde_json::Value>,
    faults: Faults,
    checked: u64,
    /// The p99 of each round, in milliseconds.
    p99s: Vec<f64>,
}

impl Found {
    fn add(&mut self, name: &str, latencies: &Latencies, count: String) {
        let times = latencies.quantiles();
        self.p99s.push(times.p99 / 1000.0);
        let mut row = vec![name.to_owned(), count];
        row.extend([times.p50, times.p99, times.max].map(|time| format!("{time:.0}")));
        self.rows.push(row);
        self.rounds.push(json!(times));
    }

    fn report(self, scenario: &'static str, count: &str, time: &str, note: &str) -> Report {
        let heading = ["", count, &format!("{time} p50 µs"), "p99", "most"].map(str::to_owned);
        let mut table = vec![heading.into()];
        table.extend(self.rows);
        Report {
            scenario,
            tables: vec![table],
            ratios: Vec::new(),
            notes: vec![format!("{note} Times are over the network.")],
            details: json!({ "rounds": self.rounds }),
            faults: self.faults,
            checked: self.checked,
            p99_ms: self.p99s.into_iter().reduce(f64::max),
        }
    }
}

/// A pair's agent catches up, and its messages are judged.
async fn judge(node: &Node, pair: &mut Pair, acked: &[Acked], failed: u64) -> Result<Faults> {
    let mut socket = Socket::open(node, pair).await?;
    socket.catch_up(pair).await?;
    socket.close().await;
    Ok(pair.reader.judge(acked, failed))
}

/// Every user sends as often as the limit lets it.
pub async fn send(nodes: &[Node], pairs: &mut [Pair], options: &Options) -> Result<Report> {
    let mut found = Found::default();
    for n in 1..=options.rounds {
        say(format!("release send: round {n} of {}", options.rounds));
        fixtures::renew(&nodes[0], pairs).await?;
        let (ids, until) = (
            Ids::new(),
            Instant::now() + Duration::from_secs(options.seconds),
        );
        let senders = pairs
            .iter()
            .enumerate()
            .map(|(who, pair)| send_until(&nodes[0], pair, ids, who, until));
        let sent = futures_util::future::try_join_all(senders).await?;
        let mut latencies = Latencies::new();
        for (pair, (times, acked, failed)) in pairs.iter_mut().zip(sent) {
            latencies.add(&times);
            found.checked += acked.len() as u64;
            let last = &nodes[nodes.len() - 1];
            found.faults.add(&judge(last, pair, &acked, failed).await?);
        }
        let rate = latencies.quantiles().count as f64 / options.seconds as f64;
        found.add(&format!("round {n}"), &latencies, format!("{rate:.1}"));
    }
    Ok(found.report(
        "release-send",
        "messages/s",
        "answer",
        "Each user sends nine messages a second, one after the other.",
    ))
}

async fn send_until(
    node: &Node,
    pair: &Pair,
    ids: Ids,
    who: usize,
    until: Instant,
) -> Result<(Latencies, Vec<Acked>, u64)> {
    let mut sender = Sender::open(node, pair, PAYLOAD_BYTES).await?;
    let (mut latencies, mut acked, mut failed) = (Latencies::new(), Vec::new(), 0);
    let mut ticks = tokio::time::interval(SEND_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for n in 0.. {
        ticks.tick().await;
        let began = Instant::now();
        if began >= until {
            break;
        }
        match sender.send(ids.id(who, n)).await {
            Ok(one) => {
                latencies.record(began.elapsed());
                acked.push(one);
            }
            Err(_) => failed += 1,
        }
    }
    Ok((latencies, acked, failed))
}

/// The number of sockets of each agent.
fn sockets_of_each(pairs: &[Pair], options: &Options) -> Result<usize> {
    let each = options.sockets_or(pairs.len()).div_ceil(pairs.len()).max(1);
    match each <= MAX_AGENT_SOCKETS {
        true => Ok(each),
        false => Err(format!(
            "{} accounts hold at most {} sockets: make more accounts",
            pairs.len(),
            pairs.len() * MAX_AGENT_SOCKETS
        )
        .into()),
    }
}

/// Opens a socket, and returns it when it is caught up.
async fn open(node: &Node, pair: &Pair) -> Result<(Socket, Vec<Arrival>)> {
    let mut socket = Socket::open(node, pair).await?;
    let mut missed = Vec::new();
    loop {
        match tokio::time::timeout(TIMEOUT, socket.hear()).await?? {
            Heard::Event { arrival, .. } => missed.push(arrival),
            Heard::CaughtUp { .. } => return Ok((socket, missed)),
        }
    }
}

/// A message of each user, which all sockets of its agent must get. Returns the faults.
async fn prove(
    nodes: &[Node],
    pair: &Pair,
    sockets: &mut [(Socket, Vec<Arrival>)],
) -> Result<Faults> {
    let mut sender = Sender::open(&nodes[0], pair, PAYLOAD_BYTES).await?;
    let sent = sender.send(ulid::Ulid::generate()).await?;
    let mut faults = Faults::default();
    for (socket, missed) in sockets {
        let is_it = |arrival: &Arrival| arrival.message == Some(sent);
        let heard = async {
            while !missed.iter().any(is_it) {
                if let Heard::Event { arrival, .. } = socket.hear().await? {
                    missed.push(arrival);
                }
            }
            Ok::<_, crate::Failure>(())
        };
        let is_heard = matches!(tokio::time::timeout(TIMEOUT, heard).await, Ok(Ok(())));
        faults.lost += u64::from(!is_heard);
        let twice = missed.iter().filter(|one| is_it(one)).count();
        faults.duplicated += (twice as u64).saturating_sub(1);
    }
    Ok(faults)
}

type Held = Vec<Vec<(Socket, Vec<Arrival>)>>;

/// Opens the sockets of all agents, and measures each.
async fn open_all(
    node: &Node,
    pairs: &[Pair],
    each: usize,
    at_once: usize,
) -> Result<(Held, Latencies)> {
    let opening = pairs.iter().flat_map(|pair| (0..each).map(move |_| pair));
    let opened = stream::iter(opening).map(async |pair| {
        let began = Instant::now();
        Ok::<_, crate::Failure>((open(node, pair).await?, began.elapsed()))
    });
    let opened: Vec<_> = opened.buffered(at_once).try_collect().await?;
    let (mut held, mut latencies) = (Held::new(), Latencies::new());
    for (n, (socket, time)) in opened.into_iter().enumerate() {
        latencies.record(time);
        if n % each == 0 {
            held.push(Vec::new());
        }
        held.last_mut().ok_or("no account")?.push(socket);
    }
    Ok((held, latencies))
}

/// Sockets connect, wait, and then get a message each.
pub async fn sockets(nodes: &[Node], pairs: &mut [Pair], options: &Options) -> Result<Report> {
    let each = sockets_of_each(pairs, options)?;
    let last = &nodes[nodes.len() - 1];
    let mut found = Found::default();
    for n in 1..=options.rounds {
        say(format!("release sockets: round {n} of {}", options.rounds));
        let (mut held, latencies) = open_all(last, pairs, each, AT_ONCE).await?;
        tokio::time::sleep(Duration::from_secs(options.seconds)).await;
        fixtures::renew(&nodes[0], pairs).await?;
        for (pair, sockets) in pairs.iter().zip(&mut held) {
            found.faults.add(&prove(nodes, pair, sockets).await?);
            found.checked += each as u64;
        }
        let count = (pairs.len() * each).to_string();
        found.add(&format!("round {n}"), &latencies, count);
        settle(last, pairs, held).await?;
    }
    Ok(found.report(
        "release-sockets",
        "sockets",
        "connect",
        "Agents' sockets connect, are silent for --seconds, and must get a message.",
    ))
}

/// Closes the sockets, and reads what came, which counts no more.
async fn settle(node: &Node, pairs: &mut [Pair], held: Held) -> Result<()> {
    for (socket, _) in held.into_iter().flatten() {
        socket.close().await;
    }
    for pair in pairs {
        let mut socket = Socket::open(node, pair).await?;
        socket.catch_up(pair).await?;
        socket.close().await;
        // Only the numbers go on.
        pair.reader.judge(&[], 0);
    }
    Ok(())
}

/// All sockets are cut at once, and come back at once while a message waits for each.
pub async fn storm(nodes: &[Node], pairs: &mut [Pair], options: &Options) -> Result<Report> {
    let each = sockets_of_each(pairs, options)?;
    let last = &nodes[nodes.len() - 1];
    let mut found = Found::default();
    for n in 1..=options.rounds {
        say(format!("release storm: round {n} of {}", options.rounds));
        let (held, _) = open_all(last, pairs, each, AT_ONCE).await?;
        fixtures::renew(&nodes[0], pairs).await?;
        // Dropped sockets are cut without a close frame, as by a network.
        drop(held);
        let missed = pairs.iter().map(async |pair| {
            let mut sender = Sender::open(&nodes[0], pair, PAYLOAD_BYTES).await?;
            sender.send(ulid::Ulid::generate()).await
        });
        let missed = futures_util::future::try_join_all(missed).await?;
        let (held, latencies) = open_all(last, pairs, each, pairs.len() * each).await?;
        for (sockets, sent) in held.iter().zip(&missed) {
            for (_, arrivals) in sockets {
                let told = arrivals.iter().filter(|one| one.message == Some(*sent));
                match told.count() {
                    1 => {}
                    0 => found.faults.lost += 1,
                    _ => found.faults.duplicated += 1,
                }
                found.checked += 1;
            }
        }
        let count = (pairs.len() * each).to_string();
        found.add(&format!("round {n}"), &latencies, count);
        settle(last, pairs, held).await?;
    }
    Ok(found.report(
        "release-storm",
        "sockets",
        "back and caught up",
        "All sockets are cut at once and come back at once; each has missed a message.",
    ))
}

/// A group of all users. Each has a socket, and the first one writes.
pub async fn fanout(nodes: &[Node], pairs: &mut [Pair], options: &Options) -> Result<Report> {
    let members = pairs.len().min(MAX_MEMBERS);
    if members < 2 {
        return Err("a group needs two accounts".into());
    }
    let last = &nodes[nodes.len() - 1];
    let mut found = Found::default();
    for n in 1..=options.rounds {
        say(format!("release fanout: round {n} of {}", options.rounds));
        fixtures::renew(&nodes[0], pairs).await?;
        let group = group_of(&nodes[0], &pairs[..members]).await?;
        let sockets = stream::iter(&pairs[1..members]).map(|pair| Socket::open_user(last, pair));
        let sockets: Vec<Socket> = sockets.buffered(AT_ONCE).try_collect().await?;
        let ids = Ids::new();
        let began = Instant::now();
        let hearing = sockets
            .into_iter()
            .map(|socket| tokio::spawn(hear(socket, ids, began)));
        let hearing: Vec<_> = hearing.collect();
        let mut sender =
            Sender::open_to(&nodes[0], &pairs[0], &group.to_string(), PAYLOAD_BYTES).await?;
        let mut acked = Vec::new();
        for n in 0..FANOUT_MESSAGES {
            let due = began + FANOUT_INTERVAL * u32::try_from(n + 1)?;
            tokio::time::sleep_until(due.into()).await;
            acked.push(sender.send(ids.id(0, n)).await?);
        }
        let mut latencies = Latencies::new();
        for heard in hearing {
            let (mut reader, times) = heard.await??;
            latencies.add(&times);
            found.faults.add(&reader.judge(&acked, 0));
        }
        found.checked += FANOUT_MESSAGES * (members as u64 - 1);
        found.add(&format!("round {n}"), &latencies, members.to_string());
    }
    Ok(found.report(
        "release-fanout",
        "members",
        "arrival",
        "The first user sends 50 messages to a group of all. Arrivals count from the moment each was due.",
    ))
}

/// Hears a user's socket until the last message, or too long.
async fn hear(mut socket: Socket, ids: Ids, began: Instant) -> Result<(Reader, Latencies)> {
    let (mut reader, mut latencies) = (Reader::default(), Latencies::new());
    let patience = FANOUT_INTERVAL * u32::try_from(FANOUT_MESSAGES)? + TIMEOUT;
    let hearing = async {
        loop {
            let Heard::Event {
                arrival,
                client_message_id,
                ..
            } = socket.hear().await?
            else {
                continue;
            };
            let Some(n) = client_message_id.and_then(|id| ids.number(id)) else {
                continue;
            };
            let due = began + FANOUT_INTERVAL * u32::try_from(n + 1)?;
            latencies.record(due.elapsed());
            reader.note(arrival);
            if n + 1 == FANOUT_MESSAGES {
                return Ok::<_, crate::Failure>(());
            }
        }
    };
    // The judge finds what did not come.
    if let Ok(heard) = tokio::time::timeout(patience, hearing).await {
        heard?;
    }
    socket.close().await;
    Ok((reader, latencies))
}

/// Makes a group, under the title by which `blindpipe loadtest-accounts --remove` knows it.
async fn group_of(node: &Node, pairs: &[Pair]) -> Result<blindpipe_protocol::ids::ConversationId> {
    let users = pairs[1..].iter().map(|pair| pair.user_id);
    let group = OpenConversation::Group(OpenGroup {
        title: Some(blindpipe_protocol::text::Title("Load test".to_owned())),
        member_ids: users.collect(),
        encryption: Encryption::Optional,
    });
    let bearer = format!("Bearer {}", pairs[0].access_token);
    let bearer = [("authorization", bearer.as_str())];
    let body = serde_json::to_string(&group)?;
    let request = post(
        &node.address,
        "/conversations",
        &pairs[0].address,
        &bearer,
        &body,
    );
    let answer = node.link().await?.ask(&request).await?;
    if answer.status != 201 {
        let body = String::from_utf8_lossy(&answer.body);
        return Err(format!("{} for a group: {body}", answer.status).into());
    }
    let Data { data, .. }: Data<Conversation> = serde_json::from_slice(&answer.body)?;
    Ok(data.conversation_id)
}
