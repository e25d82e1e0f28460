//! A handler that dies at every await point: each event is answered exactly once.

use std::{
    collections::HashMap,
    env,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context as TaskContext, Poll},
    time::Duration,
};

use axum::{body::Bytes, http::HeaderMap, response::IntoResponse};
use blindpipe_client::{
    Agent, Clock, Context, Result,
    agent::{AgentBuilder, Transport},
    client::{Conversation, Received},
    testing::{DevCluster, TestAgent},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{task::yield_now, time::timeout};

use crate::support::{PATIENCE, cluster, history, is_by_agent, run, scene};

/// `CRASHES=1000` for the long form.
const DEFAULT_CRASHES: u32 = 50;
/// Polls of a start and of a message together; a later death needs a message to be handled first.
const MAX_POLLS: u32 = 120;
const MAX_LIFE: Duration = Duration::from_millis(1500);
const LANES: u32 = 5;

/// A future that ends at one of its await points, as a process does that is killed there.
pub struct Mortal<F> {
    pub life: Pin<Box<F>>,
    pub polls_left: u32,
}

impl<F: Future> Future for Mortal<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<()> {
        if self.polls_left == 0 {
            return Poll::Ready(());
        }
        self.polls_left -= 1;
        self.life.as_mut().poll(context).map(drop)
    }
}

/// Lives an agent for some polls. All that it began is dropped where it stands.
async fn live(agent: Agent, polls: u32) {
    let life = Mortal {
        life: Box::pin(async move { agent.run_until_stopped().await }),
        polls_left: polls,
    };
    timeout(MAX_LIFE, life).await.ok();
}

/// Two replies with awaits around them, and never the same text twice.
async fn answer(ctx: Context) -> Result<()> {
    static TRIES: AtomicU32 = AtomicU32::new(0);
    let told = || TRIES.fetch_add(1, Ordering::Relaxed);
    yield_now().await;
    ctx.reply(format!("first to {} #{}", ctx.text(), told()))
        .await?;
    yield_now().await;
    ctx.reply(format!("second to {} #{}", ctx.text(), told()))
        .await?;
    yield_now().await;
    Ok(())
}

fn mortal(cluster: &DevCluster, agent: &TestAgent, node: usize, lane: u32) -> AgentBuilder {
    let builder = cluster.builder(agent, node).expect("a node");
    let by_poll = lane == LANES - 1;
    let transport = if by_poll {
        Transport::Poll
    } else {
        Transport::Socket
    };
    builder.transport(transport).on_message(answer)
}

/// An agent's lives, one after the other, on alternating nodes; then one that is not killed.
async fn lane(cluster: &DevCluster, lane: u32, crashes: u32) {
    let mut chance = StdRng::seed_from_u64(lane.into());
    let ada = cluster.user("ada").await.expect("a person");
    let agent = cluster
        .agent("mortal", &ada.client, None)
        .await
        .expect("an agent");
    let first = cluster.builder(&agent, 1).expect("a node").build();
    first.check().await.expect("a key");
    let conversation = ada
        .client
        .open_agent(agent.id)
        .await
        .expect("a conversation");
    for life in 0..crashes {
        conversation
            .send(format!("message {life}"))
            .await
            .expect("sent");
        let node = usize::try_from(life).expect("a number");
        let polls = chance.random_range(1..MAX_POLLS);
        live(mortal(cluster, &agent, node, lane).build(), polls).await;
    }
    let immortal = run(mortal(cluster, &agent, 0, lane).build()).await;
    let wanted = usize::try_from(crashes * 3).expect("a number");
    let patience = PATIENCE + Duration::from_millis(500) * crashes;
    let all = timeout(patience, all_answered(&conversation, wanted)).await;
    let all = all.expect("everything is answered");
    immortal.stop().await;
    check(&all, crashes);
    let later = history(&conversation).await;
    assert_eq!(later.len(), wanted, "nothing comes twice");
}

async fn all_answered(conversation: &Conversation, wanted: usize) -> Vec<Received> {
    loop {
        let all = history(conversation).await;
        if all.len() >= wanted {
            return all;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn check(all: &[Received], sent: u32) {
    let replies = all.iter().filter(|received| is_by_agent(received));
    let replies: Vec<_> = replies
        .map(|received| {
            received.opened.as_ref().expect("everything opens");
            received
                .text()
                .split(" #")
                .next()
                .unwrap_or_default()
                .to_owned()
        })
        .collect();
    let wanted = (0..sent).flat_map(|n| {
        [
            format!("first to message {n}"),
            format!("second to message {n}"),
        ]
    });
    assert_eq!(
        replies,
        wanted.collect::<Vec<_>>(),
        "both, once, and in order"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn after_every_death_each_message_has_both_replies_once_and_in_order() {
    let cluster = cluster().await;
    let crashes = env::var("CRASHES")
        .ok()
        .and_then(|crashes| crashes.parse().ok());
    let each = crashes.unwrap_or(DEFAULT_CRASHES).div_ceil(LANES);
    let lanes = (0..LANES).map(|number| lane(&cluster, number, each));
    futures_util::future::join_all(lanes).await;
}

/// Attempts of a delivery that may die. The service makes eight, and the last of them must live.
const MORTAL_ATTEMPTS: u32 = 4;
/// Polls of a start and of a delivery together.
const MAX_DELIVERY_POLLS: u32 = 60;
/// The service waits between the attempts of a delivery, so these are fewer.
const DEFAULT_DELIVERY_CRASHES: u32 = 10;
/// The service's waits of a delivery that dies four times, for each of its deaths.
const MAX_DELIVERY_WAIT: Duration = Duration::from_secs(5);
/// Conversations at once: a delivery that failed holds up those of its own conversation alone.
const DELIVERY_LANES: u32 = 10;
/// Messages between two looks at the whole history.
const MESSAGES_PER_ROUND: u32 = 5;
const SECRET: &str = "whsec_CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk=";

/// Receives each delivery with an agent that was started for it, and that may die in between.
fn receiver(cluster: &DevCluster, agent: &TestAgent, deaths: &Arc<AtomicU32>) -> axum::Router {
    let chance = Arc::new(parking_lot::Mutex::new(StdRng::seed_from_u64(11)));
    let attempts = Arc::new(parking_lot::Mutex::new(HashMap::<String, u32>::new()));
    let builders = [0, 1].map(|node| {
        let (server, id) = (cluster.node(node).expect("a node"), agent.id);
        let (token, key) = (agent.token.clone(), agent.key.clone());
        move || {
            let builder = Agent::builder(server.clone(), id, token.as_str());
            builder.key(&key).expect("a key").on_message(answer)
        }
    });
    let (builders, deaths) = (Arc::new(builders), deaths.clone());
    let receive = move |headers: HeaderMap, body: Bytes| {
        let id = headers.get("webhook-id").and_then(|id| id.to_str().ok());
        let attempt = {
            let mut attempts = attempts.lock();
            let attempt = attempts
                .entry(id.unwrap_or_default().to_owned())
                .or_default();
            *attempt += 1;
            *attempt
        };
        let polls = chance.lock().random_range(1..MAX_DELIVERY_POLLS);
        let (builders, deaths) = (builders.clone(), deaths.clone());
        async move {
            let webhook = builders[attempt as usize % 2]()
                .build()
                .webhook(SECRET)
                .expect("a secret");
            let mut given = None;
            let life = Mortal {
                life: Box::pin(async { given = Some(webhook.receive(&headers, &body).await) }),
                polls_left: if attempt > MORTAL_ATTEMPTS {
                    u32::MAX
                } else {
                    polls
                },
            };
            life.await;
            given.map_or_else(
                || {
                    deaths.fetch_add(1, Ordering::Relaxed);
                    axum::http::StatusCode::BAD_GATEWAY.into_response()
                },
                axum::response::Response::from,
            )
        }
    };
    axum::Router::new().route("/", axum::routing::post(receive))
}

#[tokio::test(flavor = "multi_thread")]
async fn by_webhook_after_every_death_each_message_has_both_replies_once_and_in_order() {
    let crashes = env::var("CRASHES").ok().and_then(|it| it.parse().ok());
    let crashes: u32 = crashes.unwrap_or(DEFAULT_DELIVERY_CRASHES);
    let each = crashes.div_ceil(DELIVERY_LANES);
    futures_util::future::join_all((0..DELIVERY_LANES).map(|_| delivery_lane(each))).await;
}

/// An agent with a webhook that dies so often, and the conversation that it answers.
async fn delivery_lane(crashes: u32) {
    let scene = scene("hooked").await;
    let agent = scene.builder().build();
    agent.check().await.expect("a key");
    let deaths = Arc::new(AtomicU32::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let router = receiver(scene.cluster.cluster, &scene.agent, &deaths);
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(async move { axum::serve(listener, router).await });
    agent.set_webhook(&url, SECRET).await.expect("registered");
    let conversation = scene.conversation().await;
    let mut sent = 0;
    let patience = PATIENCE + MAX_DELIVERY_WAIT * crashes;
    let all = timeout(patience, async {
        // A delivery dies at most four times.
        while deaths.load(Ordering::Relaxed) < crashes {
            for _ in 0..MESSAGES_PER_ROUND {
                let text = format!("message {sent}");
                conversation.send(text).await.expect("sent");
                sent += 1;
            }
            let wanted = usize::try_from(sent * 3).expect("a number");
            all_answered(&conversation, wanted).await;
        }
        history(&conversation).await
    });
    let all = all.await.expect("everything is answered");
    check(&all, sent);
    assert_eq!(all.len(), usize::try_from(sent * 3).expect("a number"));
}

#[tokio::test]
async fn after_two_days_away_the_history_says_what_was_sent() {
    let cluster = cluster().await;
    let ada = cluster.user("ada").await.expect("a person");
    let agent = cluster
        .agent("traveller", &ada.client, None)
        .await
        .expect("an agent");
    let builder = || cluster.builder(&agent, 1).expect("a node");
    builder().build().check().await.expect("a key");
    let conversation = ada
        .client
        .open_agent(agent.id)
        .await
        .expect("a conversation");
    conversation.send("hello").await.expect("sent");
    let (sent, told) = tokio::sync::oneshot::channel();
    let sent = Arc::new(parking_lot::Mutex::new(Some(sent)));
    let dying = builder().on_message(move |ctx: Context| {
        let sent = sent.clone();
        async move {
            ctx.reply("first, of the first run").await?;
            sent.lock().take().map(|sent| sent.send(()));
            std::future::pending::<Result<()>>().await
        }
    });
    let dying = dying.build();
    tokio::select! {
        _ = dying.run_until_stopped() => panic!("it does not end by itself"),
        told = told => told.expect("the first reply"),
    }
    let clock = Clock::default();
    clock.advance(Duration::from_secs(2 * 24 * 3600));
    let again = builder().clock(clock).on_message(async |ctx| {
        let sent = ctx.reply("first, of the second run").await?;
        assert!(sent.duplicate, "the history has it");
        ctx.reply("second").await
    });
    let again = run(again.build()).await;
    let all = timeout(PATIENCE, all_answered(&conversation, 3))
        .await
        .expect("answered");
    again.stop().await;
    let texts: Vec<_> = all.iter().map(Received::text).collect();
    assert_eq!(texts, ["hello", "first, of the first run", "second"]);
}
