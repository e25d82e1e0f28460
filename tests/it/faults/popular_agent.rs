//! A thousand senders to one agent, and two nodes that write to one group.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;
use uuid::Uuid;

use crate::support::{
    Agent, ProcessNode, TestNode, User, claims_of, connect, crowd, nodes_with, ulid,
};

const LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "user_message_send=100000/s,default_user=100000/s,default_ip=100000/s",
);
/// The production value. A batch waits a tenth of it for a lock.
const DATABASE_TIMEOUT: (&str, &str) = ("DATABASE_TIMEOUT_MS", "1000");
const SENDERS: usize = 1_000;
/// The lock of a slow transaction, three times as long as a batch waits for one.
const LOCK: Duration = Duration::from_millis(300);
/// The time that each commit to the agent's inbox takes at least, as on a disk. Without it, a message
/// a commit is as fast as the nodes of a test are, and no collapse would show.
const COMMIT: Duration = Duration::from_millis(20);
/// The time after the lock within which the throughput is back.
const RECOVERY: Duration = Duration::from_secs(3);

/// Users with a session and a conversation with `agent`, made in the database: their tokens and
/// conversations.
async fn senders(node: &TestNode, agent: &Agent, model: &User) -> Vec<(User, String)> {
    let ids = crowd(&node.world.database, SENDERS).await;
    let users: Vec<Uuid> = ids
        .iter()
        .map(|id| id.parse::<ulid::Ulid>().expect("an id").into())
        .collect();
    let fresh = || -> Vec<Uuid> { users.iter().map(|_| ulid().into()).collect() };
    let (sessions, conversations) = (fresh(), fresh());
    let client = connect(&node.world.database).await;
    let agent: Uuid = agent.id.parse().expect("an id");
    let sql = "with said as (
            select * from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as said (user_id, session_id, conversation_id)
        ), device as (
            insert into device (user_id, device_id, provisional) select user_id, 'd', false from said
        ), session as (
            insert into session (session_id, user_id, device_id, refresh_expires_at, absolute_expires_at)
            select session_id, user_id, 'd', now() + interval '1 day', now() + interval '1 day' from said
        ), conversation as (
            insert into conversation (conversation_id, kind, created_by)
            select conversation_id, 'group', user_id from said
        )
        insert into member (conversation_id, principal_id, principal_kind, role)
        select conversation_id, user_id, 'user', 'owner' from said
        union all
        select conversation_id, $4::uuid, 'agent', 'agent' from said";
    client
        .execute(sql, &[&users, &sessions, &conversations, &agent])
        .await
        .expect("senders");
    let claims = claims_of(&model.access_token);
    let header = Header {
        kid: Some("k1".to_owned()),
        typ: Some("at+jwt".to_owned()),
        ..Header::new(Algorithm::HS256)
    };
    let key = BASE64.decode(BASE64.encode([1; 32])).expect("a key");
    let key = EncodingKey::from_secret(&key);
    let each = ids.into_iter().zip(sessions).zip(conversations);
    each.map(|((id, session), conversation)| {
        let mut own = claims.clone();
        own["sub"] = json!(id);
        own["did"] = json!("d");
        own["sid"] = json!(ulid::Ulid::from(session).to_string());
        own["jti"] = json!(ulid().to_string());
        let token = encode(&header, &own, &key).expect("a token");
        let user = User {
            caller: model.caller.with_token(&token),
            ..model.clone()
        };
        (user, ulid::Ulid::from(conversation).to_string())
    })
    .collect()
}

/// Lets each commit that changes the inbox of `agent` take [`COMMIT`].
async fn slow_commits(database: &str, agent: &Agent) {
    let sql = format!(
        "create function wait_for_disk() returns trigger language plpgsql as
            'begin perform pg_sleep({}); return null; end';
        create constraint trigger wait_for_disk after update on inbox deferrable initially deferred
            for each row when (new.principal_id = '{}') execute function wait_for_disk()",
        COMMIT.as_secs_f64(),
        agent.id
    );
    let client = connect(database).await;
    client.batch_execute(&sql).await.expect("a trigger");
}

/// Sends at a steady rate, whatever becomes of the sends before. The moments of the answers.
async fn open_loop(
    senders: &[(User, String)],
    per_second: f64,
    span: Duration,
    refused: &AtomicUsize,
) -> Vec<Duration> {
    let started = Instant::now();
    let (mut answered, mut under_way) = (Vec::new(), FuturesUnordered::new());
    let mut sent = 0;
    loop {
        let due = started.elapsed().as_secs_f64() * per_second;
        while (sent as f64) < due && started.elapsed() < span {
            let (user, conversation) = &senders[sent % senders.len()];
            under_way.push(user.say(conversation, "x"));
            sent += 1;
        }
        if under_way.is_empty() && started.elapsed() >= span {
            return answered;
        }
        tokio::select! {
            Some(answer) = under_way.next() => match answer.status {
                201 => answered.push(started.elapsed()),
                503 => { refused.fetch_add(1, Ordering::Relaxed); }
                other => panic!("{other}: {}", answer.body),
            },
            () = tokio::time::sleep(Duration::from_millis(2)) => {}
        }
    }
}

/// As many sends at once as keep the writers busy: the sends per second that the machine makes.
async fn capacity(senders: &[(User, String)]) -> f64 {
    let over = Instant::now() + Duration::from_secs(2);
    let counts = senders.chunks(senders.len() / 64).map(async |own| {
        let mut count = 0;
        for (user, conversation) in own.iter().cycle() {
            if Instant::now() > over {
                return count;
            }
            user.say(conversation, "x").await.expect(201);
            count += 1;
        }
        count
    });
    let all: u32 = join_all(counts).await.into_iter().sum();
    f64::from(all) / 2.0
}

/// Sends from [`SENDERS`] at half of what two fresh nodes can take, with a lock of [`LOCK`] in the
/// middle. The fault that the round shows, if it shows one.
async fn round() -> Result<(), String> {
    let [a, b] = nodes_with(&[LIMITS, DATABASE_TIMEOUT]).await;
    let database = &a.world.database;
    let owner = a.user("owner").await;
    let popular = a.agent(&owner, "popular").await;
    slow_commits(database, &popular).await;
    let mut senders = senders(&a, &popular, &owner).await;
    for (n, (user, _)) in senders.iter_mut().enumerate() {
        *user = user.on([&a, &b][n % 2]);
    }
    let rate = 0.5 * capacity(&senders).await;
    let refused = AtomicUsize::new(0);
    let lock_at = Duration::from_secs(2);
    let lock = async {
        tokio::time::sleep(lock_at).await;
        let mut client = connect(database).await;
        let tx = client.transaction().await.expect("begun");
        let held = format!(
            "select 1 from inbox where principal_id = '{}' for update",
            popular.id
        );
        tx.batch_execute(&held).await.expect("locked");
        tokio::time::sleep(LOCK).await;
        tx.rollback().await.expect("released");
    };
    let span = Duration::from_secs(8);
    let (answered, ()) = tokio::join!(open_loop(&senders, rate, span, &refused), lock);
    let per_second = |from: Duration, to: Duration| {
        let count = answered
            .iter()
            .filter(|at| (from..to).contains(*at))
            .count();
        count as f64 / (to - from).as_secs_f64()
    };
    let second = Duration::from_secs(1);
    let before = per_second(second, lock_at);
    let after = per_second(lock_at + LOCK + RECOVERY, span);
    // Whatever waited has been answered by then.
    let late = answered.iter().filter(|at| **at > span + second).count();
    let refused = refused.into_inner();
    if after >= 0.8 * before && (late, refused) == (0, 0) {
        return Ok(());
    }
    let of = answered.len();
    Err(format!(
        "{before} a second before, {after} after; {late} late and {refused} refused of {of}"
    ))
}

/// A lock of 300 ms must not leave the agent's sends at a message a commit: at a load that the nodes
/// carried before, they would never come back. Other tests share the cores and can take more of them
/// than they took while the capacity was measured, so one round of three is enough. The fault itself
/// shows in every round, because each has nodes of its own, which no lock has slowed yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_wait_does_not_slow_a_popular_agent_for_longer_than_it_lasts() {
    let mut faults = Vec::new();
    for _ in 0..3 {
        match round().await {
            Ok(()) => return,
            Err(fault) => faults.push(fault),
        }
    }
    panic!("{faults:#?}");
}

/// A statement that waits for another node's commit numbers a message late and with an old snapshot.
/// Nodes that write to one conversation lock it first, and gather more messages meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_that_write_to_a_group_lock_it_first() {
    let [a] = nodes_with(&[LIMITS]).await;
    // Processes of their own, because tests share the counters of this one.
    let pair = [ProcessNode::start(&a).await, ProcessNode::start(&a).await];
    let alice = a.user("alice").await;
    let bob = a.user("bob").await;
    let group = alice.group_with(&[&bob]).await;
    let over = Instant::now() + Duration::from_secs(3);
    let senders = (0..8).map(|n| (n, [&alice, &bob][n % 2].at(&pair[n / 4].base)));
    let sends = senders.map(async |(_, user)| {
        while Instant::now() < over {
            user.say(&group, "x").await.expect(201);
        }
    });
    join_all(sends).await;
    for node in &pair {
        let first = node.metric("send_batches_total", "locks=\"first\"").await;
        let inside = node.metric("send_batches_total", "locks=\"inside\"").await;
        assert!(first > 4.0 * inside, "{first} first, {inside} inside");
    }
}
