//! The load of a fault: users that send to their agents on all nodes, agents that listen, and a
//! judge of what all of them saw.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{Agent, Socket, TestNode, User, spawn, ulid};

/// Limits that a load stays below.
pub const LOAD_LIMITS: &str = "user_message_send=100000/s,ws_connect=100000/s,ws_connect_ip=100000/s,\
     default_user=100000/s,default_ip=100000/s,user_messages_list=100000/s,agent_poll=11/10min";
/// Conversations of a load.
const LINES: usize = 4;
/// Users' sends that are under way in a conversation at once.
const SENDERS_PER_LINE: usize = 2;
/// The longest time without an answer that counts. Debug builds on a busy machine are slow.
const MAX_TRY: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// A running load.
pub struct Load {
    lines: Vec<Line>,
    acked: Arc<AtomicUsize>,
    /// How many times listeners had to start anew.
    resyncs: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

/// A conversation of a user with its agent.
struct Line {
    user: User,
    conversation: String,
    senders: Vec<JoinHandle<Vec<Acked>>>,
    listener: JoinHandle<Listened>,
    /// The number of the last message, once all are sent.
    last: Arc<Mutex<Option<i64>>>,
}

/// An acked message: the sender's mark, the message's id and its number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Acked {
    mark: String,
    id: String,
    seq: i64,
}

/// The messages that a listener has received, and the number of times that it had to start anew.
#[derive(Default)]
struct Listened {
    messages: Vec<Acked>,
    resyncs: usize,
}

/// The judged outcome of a load.
#[derive(Debug)]
pub struct Outcome {
    /// The number of messages.
    pub acked: usize,
    /// The most times that a listener had to start anew.
    pub max_resyncs: usize,
}

impl Load {
    /// Starts to send and to listen.
    pub async fn start(nodes: &[TestNode; 2]) -> Self {
        let [acked, resyncs] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
        let stop = Arc::<AtomicBool>::default();
        let mut lines = Vec::new();
        for n in 0..LINES {
            let user = nodes[0].user(&format!("sender{n}")).await;
            let agent = nodes[0].agent(&user, "listener").await;
            let conversation = user.talk_to(&agent).await;
            let senders = (0..SENDERS_PER_LINE).map(|sender| {
                let path = format!("/conversations/{conversation}/messages");
                let users = [user.on(&nodes[0]), user.on(&nodes[1])];
                spawn(send(users, path, sender, acked.clone(), stop.clone()))
            });
            let senders = senders.collect();
            let last = Arc::default();
            // A listener that is cut goes to the other node.
            let agents = [agent.on(&nodes[n % 2]), agent.on(&nodes[(n + 1) % 2])];
            lines.push(Line {
                senders,
                listener: spawn(listen(agents, Arc::clone(&last), resyncs.clone())),
                user,
                conversation,
                last,
            });
        }
        Load {
            lines,
            acked,
            resyncs,
            stop,
        }
    }

    /// Waits until a listener had to start anew.
    pub async fn until_resynced(&self) {
        let since = Instant::now();
        while self.resyncs.load(SeqCst) == 0 {
            assert!(since.elapsed() < MAX_TRY, "no listener starts anew");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until so many more messages are acked.
    pub async fn until_acked(&self, more: usize) {
        let wanted = self.acked.load(SeqCst) + more;
        let since = Instant::now();
        while self.acked.load(SeqCst) < wanted {
            assert!(since.elapsed() < MAX_TRY, "{more} more are not acked");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops, waits for all that was sent, and judges it: each acked message is there once, under
    /// the number of its ack, in the order of its sender, and its listener has seen the same.
    pub async fn judge(self) -> Outcome {
        self.stop.store(true, SeqCst);
        let mut outcome = Outcome {
            acked: 0,
            max_resyncs: 0,
        };
        for line in self.lines {
            let mut acked = Vec::new();
            for sender in line.senders {
                let own = sender.await.expect("no panic");
                assert!(own.is_sorted_by_key(|message| message.seq), "{own:?}");
                acked.extend(own);
            }
            acked.sort_by_key(|message| message.seq);
            let seqs: Vec<i64> = acked.iter().map(|message| message.seq).collect();
            assert_eq!(seqs, (1..=acked.len() as i64).collect::<Vec<_>>());
            let stored = history(&line.user, &line.conversation).await;
            assert_eq!(stored, acked, "lost, doubled or reordered");
            *line.last.lock() = acked.last().map(|message| message.seq);
            let listened = tokio::time::timeout(MAX_TRY, line.listener).await;
            let listened = listened.expect("the last message").expect("no panic");
            assert_eq!(listened.messages, acked, "lost or doubled on the way");
            outcome.acked += acked.len();
            outcome.max_resyncs = outcome.max_resyncs.max(listened.resyncs);
        }
        outcome
    }
}

/// Sends on both nodes in turn until told to stop. A message keeps its id through all tries.
async fn send(
    users: [User; 2],
    path: String,
    sender: usize,
    count: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
) -> Vec<Acked> {
    let mut acked = Vec::new();
    while !stop.load(SeqCst) {
        let n = acked.len();
        let mark = format!("{sender}-{n}");
        let body = json!({
            "client_message_id": ulid().to_string(),
            "payload": { "type": "text", "text": mark },
        });
        let since = Instant::now();
        for turn in n.. {
            let user = &users[turn % 2];
            let request = user.request(Method::POST, &path).json(&body);
            match user.try_send(request).await {
                Ok(answer) if matches!(answer.status, 200 | 201) => {
                    acked.push(Acked::new(mark.clone(), answer.data()));
                    break;
                }
                Ok(answer) => assert_eq!(answer.status, 503, "{answer:?}"),
                Err(_) => {}
            }
            assert!(since.elapsed() < MAX_TRY, "{mark} is not acked");
            tokio::time::sleep(RETRY_PAUSE).await;
        }
        count.fetch_add(1, SeqCst);
    }
    acked
}

impl Acked {
    fn new(mark: String, data: &Value) -> Self {
        Acked {
            mark,
            id: data["message_id"].as_str().expect("an id").to_owned(),
            seq: data["seq"].as_i64().expect("a number"),
        }
    }
}

/// A message with its payload, as readers get it.
fn message(data: &Value) -> Acked {
    let mark = data["payload"]["text"].as_str().expect("a text");
    Acked::new(mark.to_owned(), data)
}

/// All messages of a conversation, oldest first.
async fn history(user: &User, conversation: &str) -> Vec<Acked> {
    let mut all: Vec<Acked> = Vec::new();
    loop {
        let after = all.last().map(|message| format!("&cursor={}", message.id));
        let path = format!(
            "/conversations/{conversation}/messages?direction=forward&limit=100{}",
            after.unwrap_or_default()
        );
        let page = user.get(path).await.expect(200);
        let page = page.body["data"].as_array().expect("a list").clone();
        if page.is_empty() {
            return all;
        }
        all.extend(page.iter().map(message));
    }
}

/// Listens until the last message has come. A listener that has to start anew reads its inbox from
/// the beginning of the new epoch.
async fn listen(
    agents: [Agent; 2],
    last: Arc<Mutex<Option<i64>>>,
    resyncs: Arc<AtomicUsize>,
) -> Listened {
    let (mut listened, mut cursor) = (Listened::default(), None::<String>);
    let mut number = None;
    for turn in 0.. {
        let Some(mut socket) = authenticated(&agents[turn % 2], cursor.as_deref()).await else {
            tokio::time::sleep(RETRY_PAUSE).await;
            continue;
        };
        while let Some(frame) = next(&mut socket, &listened, &last).await {
            if frame["type"] == "resync_required" {
                let head = frame["head"].as_str().expect("a cursor");
                let epoch = head.split('-').next().expect("an epoch");
                cursor = Some(format!("{epoch}-0"));
                listened.messages.clear();
                listened.resyncs += 1;
                resyncs.fetch_add(1, SeqCst);
                number = None;
                break;
            }
            if frame["type"] == "event" {
                let seq = frame["seq"].as_i64().expect("a number");
                assert!(
                    number.is_none_or(|last| seq == last + 1),
                    "{seq} after {number:?}"
                );
                number = Some(seq);
                cursor = frame["cursor"].as_str().map(str::to_owned);
            }
            if frame["event"] == "message.created" {
                listened.messages.push(message(&frame["data"]));
            }
        }
        if is_done(&listened, &last) {
            return listened;
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
    listened
}

async fn authenticated(agent: &Agent, resume: Option<&str>) -> Option<Socket> {
    let mut socket = Socket::try_open(&agent.caller).await?;
    let auth = json!({
        "type": "auth", "agent_id": agent.id, "token": agent.token, "resume": resume,
    });
    socket.say(auth).await;
    Some(socket)
}

fn is_done(listened: &Listened, last: &Mutex<Option<i64>>) -> bool {
    let last = *last.lock();
    last.is_some() && listened.messages.last().map(|message| message.seq) == last
}

/// The next frame; none when the socket has closed or the last message has come.
async fn next(
    socket: &mut Socket,
    listened: &Listened,
    last: &Mutex<Option<i64>>,
) -> Option<Value> {
    while !is_done(listened, last) {
        let wait = Duration::from_millis(100);
        if let Ok(frame) = tokio::time::timeout(wait, socket.next()).await {
            return frame.ok();
        }
    }
    None
}

/// Without Redis a revoked socket is closed by the sweep, which comes every two seconds.
pub async fn is_closed_by_the_sweep(socket: Socket) {
    let since = Instant::now();
    socket.expect_close(4403).await;
    let took = since.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
}

/// A device that was revoked before or during a fault. No node ever serves it again.
pub struct Revoked {
    watchers: Vec<JoinHandle<usize>>,
    stop: Arc<AtomicBool>,
}

impl Revoked {
    /// Revokes the device of `thief` on the first node, and asks both nodes as the thief from the
    /// moment of the answer on.
    pub async fn watch(nodes: &[TestNode; 2], owner: &User, thief: &User) -> Self {
        let path = format!("/users/me/devices/{}", thief.device_id);
        owner.on(&nodes[0]).delete(path).await.expect(200);
        let stop = Arc::<AtomicBool>::default();
        let watchers = nodes.iter().map(|node| {
            let (thief, stop) = (thief.on(node), stop.clone());
            spawn(async move {
                let mut refusals = 0;
                while !stop.load(SeqCst) {
                    let answer = thief.get("/users/me").await;
                    assert!(matches!(answer.status, 401 | 503), "{answer:?}");
                    refusals += usize::from(answer.status == 401);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                refusals
            })
        });
        Revoked {
            watchers: watchers.collect(),
            stop,
        }
    }

    /// Ends the watch. Each node has refused the thief.
    pub async fn was_refused(self) {
        self.stop.store(true, SeqCst);
        for watcher in self.watchers {
            assert!(watcher.await.expect("served nowhere") > 0);
        }
    }
}
