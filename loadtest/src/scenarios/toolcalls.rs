//! `toolcalls`: from an agent's request to the device's answer in the agent's hands, beside a
//! message and its reply, which take the same way: two requests and two deliveries.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use ulid::Ulid;

use crate::{
    Options, Result,
    cluster::{Cluster, Node, Wire},
    crowd::Line,
    delivery::Faults,
    fixtures::{self, Pair},
    http::{Link, request},
    report::{Goal, Ratio, Report, say},
    stats::{Latencies, Quantiles, median},
};

/// The scope of the calls. Nobody is prompted.
const SCOPE: &str = "notification:send";
/// The longest wait for an event.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The most pairs that call at once. More would measure a queue.
const MAX_PAIRS: usize = 8;

/// An end of a conversation: a connection for requests, and a socket on the same node.
struct End {
    node: Node,
    link: Link<Wire>,
    line: Line,
    address: String,
    bearer: String,
}

impl End {
    async fn open(node: &Node, pair: &Pair, token: &str, auth: Value) -> Result<Self> {
        let mut line = Line::open(node, auth.to_string()).await?;
        line.caught_up().await?;
        Ok(End {
            link: node.link().await?,
            line,
            address: pair.address.clone(),
            bearer: format!("Bearer {token}"),
            node: node.clone(),
        })
    }

    async fn ask(&mut self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let headers = [("authorization", self.bearer.as_str())];
        let body = body.to_string();
        let text = request(
            method,
            &self.node.address,
            path,
            &self.address,
            &headers,
            Some(&body),
        );
        let answer = self.link.ask(&text).await?;
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        if answer.status >= 300 {
            return Err(format!("{} for {method} {path}: {body}", answer.status).into());
        }
        Ok(body["data"].clone())
    }

    /// Waits for the event of this kind whose data has this value.
    async fn event(&mut self, kind: &str, name: &str, value: &str) -> Result<Value> {
        let wanted = async {
            loop {
                let text = self.line.hear().await?;
                // Other events are not parsed.
                if text.contains(value) {
                    let event: Value = serde_json::from_str(&text)?;
                    if event["event"] == kind && event["data"][name] == value {
                        return Ok(event["data"].clone());
                    }
                }
            }
        };
        tokio::time::timeout(TIMEOUT, wanted).await?
    }
}

/// A user and an agent on two nodes, and a grant between them.
struct Players<'a> {
    pair: &'a Pair,
    user: End,
    agent: End,
}

impl<'a> Players<'a> {
    async fn new(cluster: &Cluster, n: usize, pair: &'a Pair) -> Result<Self> {
        let auth = json!({ "type": "auth", "access_token": pair.access_token });
        let user = End::open(cluster.node(n), pair, &pair.access_token, auth).await?;
        let auth = json!({ "type": "auth", "agent_id": pair.agent_id, "token": pair.agent_token });
        let agent = End::open(cluster.node(n + 1), pair, &pair.agent_token, auth).await?;
        Ok(Players { pair, user, agent })
    }

    /// Declares the scope, and has the user approve it.
    async fn grant(&mut self) -> Result<()> {
        let own = format!("/agents/{}", self.pair.agent_id);
        let scopes = json!([{ "scope": SCOPE, "sensitivity": "low" }]);
        let manifest = json!({ "manifest": { "tools": [], "permission_scopes": scopes } });
        self.agent.ask("PATCH", &own, &manifest).await?;
        let body = json!({ "conversation_id": self.pair.conversation_id, "scopes": [SCOPE] });
        let grant = self
            .agent
            .ask("POST", &format!("{own}/grants/request"), &body)
            .await?;
        let grant = grant["grant_id"].as_str().ok_or("no grant")?.to_owned();
        let decision = json!({ "decision": "approve" });
        let path = format!("/grants/{grant}/decision");
        self.user.ask("POST", &path, &decision).await?;
        Ok(())
    }

    /// A call and its answer.
    async fn call(&mut self) -> Result<Duration> {
        let id = Ulid::generate().to_string();
        let body = json!({
            "request_id": id, "conversation_id": self.pair.conversation_id, "tool": "notify", "scope": SCOPE,
            "payload": { "type": "encrypted", "ciphertext": "x".repeat(512) },
        });
        let began = Instant::now();
        let path = format!("/agents/{}/artifact-requests", self.pair.agent_id);
        self.agent.ask("POST", &path, &body).await?;
        self.user
            .event("artifact_request", "request_id", &id)
            .await?;
        let answer =
            json!({ "status": "executed", "payload": { "type": "encrypted", "ciphertext": "y" } });
        let path = format!("/artifact-requests/{id}/response");
        self.user.ask("POST", &path, &answer).await?;
        self.agent
            .event("artifact_response", "request_id", &id)
            .await?;
        Ok(began.elapsed())
    }

    /// A message and its reply.
    async fn talk(&mut self) -> Result<Duration> {
        let body = json!({ "payload": { "type": "encrypted", "ciphertext": "x".repeat(512) } });
        let conversation = &self.pair.conversation_id;
        let began = Instant::now();
        let path = format!(
            "/agents/{}/conversations/{conversation}/messages",
            self.pair.agent_id
        );
        let sent = self.agent.ask("POST", &path, &body).await?;
        let id = sent["message_id"].as_str().ok_or("no message")?;
        self.user.event("message.created", "message_id", id).await?;
        let path = format!("/conversations/{conversation}/messages");
        let replied = self.user.ask("POST", &path, &body).await?;
        let id = replied["message_id"].as_str().ok_or("no message")?;
        self.agent
            .event("message.created", "message_id", id)
            .await?;
        Ok(began.elapsed())
    }

    /// Calls and messages in turns.
    async fn play(&mut self, span: Duration) -> Result<[Latencies; 2]> {
        let [mut calls, mut messages] = [Latencies::new(), Latencies::new()];
        let began = Instant::now();
        while began.elapsed() < span {
            calls.record(self.call().await?);
            messages.record(self.talk().await?);
        }
        Ok([calls, messages])
    }
}

/// A round.
#[derive(Serialize)]
struct Found {
    pairs: usize,
    calls: Quantiles,
    messages: Quantiles,
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, pairs: &mut [Pair], options: &Options) -> Result<Report> {
    let mut rounds = Vec::new();
    for n in 1..=options.rounds {
        say(format!("toolcalls: round {n} of {}", options.rounds));
        fixtures::renew(cluster.node(0), pairs).await?;
        for at_once in [1, MAX_PAIRS.min(pairs.len())] {
            let mut players = Vec::new();
            for (number, pair) in pairs.iter().take(at_once).enumerate() {
                players.push(Players::new(cluster, number, pair).await?);
            }
            if n == 1 {
                // The agent of the first pair has its grant already.
                let first = usize::from(at_once > 1);
                for player in players.iter_mut().skip(first) {
                    player.grant().await?;
                }
            }
            let span = Duration::from_secs(options.seconds);
            let playing = players.iter_mut().map(|player| player.play(span));
            let [mut calls, mut messages] = [Latencies::new(), Latencies::new()];
            for played in futures_util::future::try_join_all(playing).await? {
                calls.add(&played[0]);
                messages.add(&played[1]);
            }
            let (calls, messages) = (calls.quantiles(), messages.quantiles());
            rounds.push(Found {
                pairs: at_once,
                calls,
                messages,
            });
        }
    }
    let checked = rounds.iter().map(|round| 2 * round.messages.count).sum();
    Ok(Report {
        scenario: "toolcalls",
        tables: vec![table(&rounds)],
        ratios: ratios(&rounds),
        notes: vec![
            "Medians of the rounds. A message and its reply take the same way as a call and its answer: two requests, \
             two deliveries, across two nodes."
                .to_owned(),
        ],
        details: json!({ "seconds": options.seconds, "rounds": rounds }),
        faults: Faults::default(),
        checked,
        p99_ms: None,
    })
}

/// A value of a round.
type Column = fn(&Found) -> f64;

fn of(rounds: &[Found], is_alone: bool, value: Column) -> f64 {
    let rounds = rounds.iter().filter(|round| (round.pairs == 1) == is_alone);
    median(rounds.map(value))
}

fn table(rounds: &[Found]) -> Vec<Vec<String>> {
    let heading = ["", "p50 ms", "p99 ms"].map(str::to_owned);
    let mut table = vec![heading.to_vec()];
    for (is_alone, name) in [(true, "one pair"), (false, "many pairs")] {
        let cells: [(&str, Column, Column); 2] = [
            ("call", |round| round.calls.p50, |round| round.calls.p99),
            (
                "message and reply",
                |round| round.messages.p50,
                |round| round.messages.p99,
            ),
        ];
        for (what, p50, p99) in cells {
            let ms = |value| format!("{:.2}", of(rounds, is_alone, value) / 1000.0);
            table.push(vec![format!("{name}, {what}"), ms(p50), ms(p99)]);
        }
    }
    table
}

fn ratios(rounds: &[Found]) -> Vec<Ratio> {
    vec![
        Ratio {
            what: "tool call p50 / message and reply p50, one pair",
            value: of(rounds, true, |round| round.calls.p50 / round.messages.p50),
            goal: Goal::AtMost(2.0, 1.2),
        },
        Ratio {
            what: "tool call p99 / message and reply p99, one pair",
            value: of(rounds, true, |round| round.calls.p99 / round.messages.p99),
            goal: Goal::AtMost(2.0, 1.2),
        },
        Ratio {
            what: "tool call p50 / message and reply p50, many pairs",
            value: of(rounds, false, |round| round.calls.p50 / round.messages.p50),
            goal: Goal::AtMost(2.0, 1.2),
        },
    ]
}
