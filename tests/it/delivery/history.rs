//! A judged history of many clients on three nodes: conversations are linearizable, inboxes
//! complete. The judge itself is tested with numbers that are taken outside the lock.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use history::{Actor, Fault, History, Plan, Subscriber};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Agent, Caller, Socket, TestNode, User, nodes_with, psql, ulid};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "user_message_send=100000/s,agent_message_send=100000/s,agent_conversation_message_send=100000/s,\
     user_messages_list=100000/s,agent_tier_1=100000/s,default_user=100000/s,group_member_add=100000/s,\
     group_agent_instance=100000/s",
);

/// A principal with a client for each node; a user's are renewed in a long run.
struct Player {
    id: String,
    is_agent: bool,
    at: Arc<Mutex<Vec<Caller>>>,
}

impl Actor for Player {
    fn id(&self) -> &str {
        &self.id
    }

    fn is_agent(&self) -> bool {
        self.is_agent
    }

    async fn call(
        &self,
        node: usize,
        method: &'static str,
        path: &str,
        body: Option<String>,
    ) -> Option<(u16, Value)> {
        let caller = self.at.lock().expect("no panic")[node].clone();
        let method: Method = method.parse().expect("a method");
        let request = caller
            .request(method, path)
            .header("content-type", "application/json");
        let request = body
            .into_iter()
            .fold(request, |request, body| request.body(body));
        let answer = caller.try_send(request).await.ok()?;
        Some((answer.status, answer.body))
    }

    fn fresh_id(&self) -> String {
        ulid().to_string()
    }
}

struct Listener {
    socket: Socket,
    /// The user whose access token lasts for five minutes only, and since when.
    user: Option<(User, Instant)>,
    callers: Arc<Mutex<Vec<Caller>>>,
}

impl Listener {
    async fn renew(&mut self) {
        let Some((user, since)) = &mut self.user else {
            return;
        };
        if since.elapsed() > Duration::from_secs(120) {
            *user = user.refreshed().await;
            *since = Instant::now();
            let renewed = self
                .callers
                .lock()
                .expect("no panic")
                .iter()
                .map(|at| at.with_token(&user.access_token))
                .collect();
            *self.callers.lock().expect("no panic") = renewed;
            self.socket
                .say(json!({ "type": "auth.renew", "access_token": user.access_token }))
                .await;
        }
    }
}

impl Subscriber for Listener {
    async fn next(&mut self) -> Option<Value> {
        self.renew().await;
        self.socket.next().await.ok()
    }
}

/// Five users and two agents, each heard on one node and acting on all.
async fn make(nodes: &[TestNode; 3], plan: Plan) -> History {
    let mut users: Vec<User> = Vec::new();
    for name in ["owner", "bob", "carol", "dave", "guest"] {
        users.push(nodes[0].user(name).await);
    }
    let mut agents: Vec<Agent> = Vec::new();
    for name in ["one", "two"] {
        let agent = nodes[0].agent(&users[0], name).await;
        users[0].talk_to(&agent).await;
        agents.push(agent);
    }
    let everywhere = |caller: &Caller| {
        Arc::new(Mutex::new(
            nodes.iter().map(|node| caller.on(node)).collect(),
        ))
    };
    let (mut players, mut ears) = (Vec::new(), Vec::new());
    let (guest, others) = users.split_last().expect("five");
    for (n, user) in others.iter().enumerate() {
        players.push(Player {
            id: user.id.clone(),
            is_agent: false,
            at: everywhere(&user.caller),
        });
        let socket = user.on(&nodes[n % 3]).connect().await;
        let user = Some((user.clone(), Instant::now()));
        ears.push(Listener {
            socket,
            user,
            callers: players[n].at.clone(),
        });
    }
    for (n, agent) in agents.iter().enumerate() {
        let at = everywhere(&agent.caller);
        let socket = agent.on(&nodes[(n + 1) % 3]).connect().await;
        ears.push(Listener {
            socket,
            user: None,
            callers: at.clone(),
        });
        players.push(Player {
            id: agent.id.clone(),
            is_agent: true,
            at,
        });
    }
    let at = everywhere(&guest.caller);
    let socket = guest.on(&nodes[2]).connect().await;
    ears.push(Listener {
        socket,
        user: Some((guest.clone(), Instant::now())),
        callers: at.clone(),
    });
    players.push(Player {
        id: guest.id.clone(),
        is_agent: false,
        at,
    });
    history::drive(plan, &players, &mut ears)
        .await
        .expect("a history")
}

fn kinds(faults: &[Fault]) -> BTreeMap<&'static str, usize> {
    let mut kinds = BTreeMap::new();
    for fault in faults {
        *kinds.entry(fault.kind()).or_default() += 1;
    }
    kinds
}

/// `HISTORY_OPERATIONS` makes it longer.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::print_stdout, reason = "a long run is made for its numbers")]
async fn a_history_of_three_nodes_is_sound() {
    let nodes = nodes_with(&[RAISED_LIMITS]).await;
    let operations = std::env::var("HISTORY_OPERATIONS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(2000);
    let history = make(
        &nodes,
        Plan {
            nodes: 3,
            conversations: 2,
            operations,
            workers: 24,
            seed: 7,
        },
    )
    .await;
    let faults = history::judge(&history);
    assert_eq!(
        kinds(&faults),
        BTreeMap::new(),
        "{:?}",
        &faults[..faults.len().min(5)]
    );
    // It was one worth judging: nearly everything was answered, someone came and went, and much was
    // heard.
    let answered = history
        .sends
        .iter()
        .filter(|send| send.seq.is_some())
        .count();
    let heard: usize = history.heard.iter().map(Vec::len).sum();
    assert!(answered > operations / 2, "{answered} sends");
    assert!(
        history.reads.len() > operations / 8,
        "{} reads",
        history.reads.len()
    );
    assert!(
        history
            .stays
            .iter()
            .filter(|stay| stay.left.is_some())
            .count()
            > 2,
        "{} stays",
        history.stays.len()
    );
    assert!(heard > answered * 3, "{heard} events");
    let refused = history.sends.iter().filter(|send| send.refused).count();
    let unknown = history.sends.len() - answered - refused;
    let (reads, stays) = (history.reads.len(), history.stays.len());
    println!(
        "{answered} sends stored, {refused} refused, {unknown} unknown, {reads} reads, {stays} stays, {heard} events"
    );
}

/// The bug that a lock is there to prevent: numbers from a sequence, which each connection takes in
/// handfuls.
const PLANTED: &str = "
    create sequence planted cache 20;
    grant usage on sequence planted to public;
    create function planted() returns trigger language plpgsql as $$
        begin
            if exists (select from conversation where conversation_id = new.conversation_id and kind = 'group') then
                new.seq := nextval('planted');
            end if;
            return new;
        end $$;
    create trigger planted before insert on message for each row execute function planted();";

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_that_is_taken_outside_the_lock_is_caught() {
    let nodes = nodes_with(&[RAISED_LIMITS]).await;
    psql(&nodes[0].world.database, PLANTED).await;
    let mut history = make(
        &nodes,
        Plan {
            nodes: 3,
            conversations: 1,
            operations: 600,
            workers: 24,
            seed: 7,
        },
    )
    .await;
    // The answer has the number that the lock gave, and that the two differ would be too easy a
    // find: only what readers see is judged here.
    for send in &mut history.sends {
        let place = history.ends[0].iter().find(|(_, tag)| *tag == send.tag);
        send.seq = send.seq.and(place.map(|(seq, _)| *seq));
    }
    let found = kinds(&history::judge(&history));
    assert!(
        found.contains_key("gap") && found.contains_key("order"),
        "{found:?}"
    );
}
