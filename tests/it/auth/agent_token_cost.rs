//! The cost of verifying agent tokens: none for junk, one hash for a token in the whole cluster, a
//! few for guesses.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use blindpipe::{auth::agent::NewToken, clock::Clock, random::Random};
use fred::{clients::Client, interfaces::ClientLike};
use futures_util::{StreamExt, stream};
use secrecy::ExposeSecret;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{
    Agent, Caller, ProcessNode, Socket, TestNode, User, connect, forged, nodes, nodes_with,
    private_redis, redis_client, spawn, wrong_secret,
};

/// How many of something: `SCALE` times as many as the suite has time for.
fn scale(n: usize) -> usize {
    n * std::env::var("SCALE")
        .ok()
        .and_then(|times| times.parse::<usize>().ok())
        .unwrap_or(1)
}

/// Agents of `owner` with real tokens, put straight into the database: their hashes are cheaper
/// than ours, so that making and proving thousands of them does not rule the test's time. The test
/// counts how often one is computed.
async fn many_agents(node: &TestNode, owner: &User, n: usize) -> Vec<Agent> {
    let random = Random::new(Clock::default());
    let tokens: Vec<NewToken> = (0..n).map(|_| NewToken::generate(&random)).collect();
    let secrets: Vec<String> = tokens
        .iter()
        .map(|token| token.token.expose_secret().to_owned())
        .collect();
    let hashes = tokio::task::spawn_blocking({
        let secrets = secrets.clone();
        move || -> Vec<String> {
            secrets
                .iter()
                .map(|secret| bcrypt::non_truncating_hash(secret, 4).expect("a hash"))
                .collect()
        }
    });
    let lookups: Vec<String> = tokens.into_iter().map(|token| token.lookup).collect();
    let ids: Vec<uuid::Uuid> = (0..n).map(|_| random.uuid_v7()).collect();
    let owner: uuid::Uuid = owner.id.parse::<ulid::Ulid>().expect("a ULID").into();
    let sql = "with new as (select * from unnest($1::uuid[], $2::text[], $3::text[]) as t (id, lookup, hash)),
                    a as (insert into agent (agent_id, owner_user_id, display_name) select id, $4, 'one of many' from new),
                    i as (insert into inbox (principal_id) select id from new),
                    r as (insert into inbox_reader (principal_id, acked_seq) select id, 0 from new)
               insert into agent_token (token_id, agent_id, lookup, bcrypt_hash)
               select gen_random_uuid(), id, lookup, hash from new";
    let client = connect(&node.world.database).await;
    client
        .execute("set constraints all deferred", &[])
        .await
        .ok();
    let hashes = hashes.await.expect("no panic");
    client
        .execute(sql, &[&ids, &lookups, &hashes, &owner])
        .await
        .expect("agents");
    let agents = ids.iter().zip(secrets).map(|(id, token)| Agent {
        caller: Caller::new(node).with_token(&token),
        id: id.to_string(),
        token,
    });
    agents.collect()
}

/// A socket, however often it takes: a node with more callers than it can serve at once asks to
/// come back.
async fn reconnect(agent: &Agent, base: &str) -> Socket {
    for n in 0..200 {
        let mut socket = Socket::open(&agent.caller.at(base)).await;
        socket
            .say(json!({ "type": "auth", "agent_id": agent.id, "token": agent.token }))
            .await;
        loop {
            match socket.next().await {
                Ok(frame) if frame["type"] == "caught_up" => return socket,
                Ok(frame) => assert_ne!(frame["type"], "auth.error", "{frame}"),
                Err(code) => {
                    assert_eq!(code, Some(1013));
                    break;
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(
            50 + rand::random::<u64>() % (50 * (n + 1)),
        ))
        .await;
    }
    panic!("no socket");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_agents_come_to_a_cold_node_without_a_hash() {
    let n = scale(100);
    let [a] = nodes_with(&[(
        "LIMIT_OVERRIDES",
        "ws_connect=1000/s,agent_token_unknown=100000/s",
    )])
    .await;
    let alice = a.user("alice").await;
    let agents = many_agents(&a, &alice, n).await;
    let c = ProcessNode::start(&a).await;
    let proven =
        stream::iter(&agents).map(async |agent| agent.at(&c.base).poll("").await.expect(200));
    proven.buffer_unordered(32).collect::<Vec<_>>().await;
    let b = ProcessNode::start(&a).await;
    let sockets =
        futures_util::future::join_all(agents.iter().map(|agent| reconnect(agent, &b.base))).await;
    assert_eq!(sockets.len(), n);
    assert_eq!(b.metric("token_cache_total", "hashed").await, 0.0);
    assert_eq!(b.metric("hash_seconds_count", "bcrypt").await, 0.0);
    assert!(b.metric("token_cache_total", "shared").await >= n as f64);
}

/// The keys of a Redis, or of all masters of a cluster, that match a pattern.
async fn keys(redis: &Client, pattern: String) -> Vec<String> {
    let found: Vec<_> = if redis.is_clustered() {
        let scan = redis.scan_cluster_buffered(pattern, Some(1000), None);
        scan.collect().await
    } else {
        let scan = redis.scan_buffered(pattern, Some(1000), None);
        scan.collect().await
    };
    let keys = found.into_iter().map(|key| key.expect("a key"));
    keys.map(|key| key.into_string().expect("text")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_can_write_to_redis_can_make_nobody_believe_a_token() {
    use fred::interfaces::KeysInterface;
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let [one, two] = [a.agent(&alice, "one").await, a.agent(&alice, "two").await];
    let redis = redis_client(a.world.setting("REDIS_URL")).await;
    let prefix = format!("{}:tok:", a.world.setting("REDIS_PREFIX"));
    let entries = || keys(&redis, format!("{prefix}*"));
    one.poll("").await.expect(200);
    let of_one = entries().await;
    assert_eq!(of_one.len(), 1);
    two.poll("").await.expect(200);
    let of_two: Vec<String> = entries()
        .await
        .into_iter()
        .filter(|key| !of_one.contains(key))
        .collect();
    let read = async |key: &str| redis.get::<String, _>(key).await.expect("an entry");
    let (entry_of_one, entry_of_two) = (read(&of_one[0]).await, read(&of_two[0]).await);
    for (key, entry) in [(&of_one[0], &entry_of_one), (&of_two[0], &entry_of_two)] {
        // Nothing of the token itself.
        for secret in [&one.token[12..], &two.token[12..]] {
            assert!(!key.contains(secret) && !entry.contains(secret));
        }
    }
    // A token is made to prove the other agent: with the other's entry as it is, and with its ids
    // under the first's seal.
    let mixed = format!("{}{}", &entry_of_two[..64], &entry_of_one[64..]);
    for forgery in [
        entry_of_two.clone(),
        mixed,
        String::new(),
        "é".repeat(64),
        "0".repeat(128),
    ] {
        redis
            .set::<(), _, _>(&of_one[0], forgery, None, None, false)
            .await
            .expect("written");
        let cold = ProcessNode::start(&a).await;
        let liar = one.caller.at(&cold.base);
        liar.get(format!("/agents/{}/messages/poll", two.id))
            .await
            .refused(401, "AGENT_TOKEN_INVALID");
        liar.get(format!("/agents/{}/messages/poll", one.id))
            .await
            .expect(200);
        assert_eq!(cold.metric("token_cache_total", "hashed").await, 1.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_in_use_is_shared_anew_and_not_at_every_use() {
    use fred::interfaces::KeysInterface;
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    agent.poll("").await.expect(200);
    let redis = redis_client(a.world.setting("REDIS_URL")).await;
    let all = format!("{}:tok:*", a.world.setting("REDIS_PREFIX"));
    let proofs = keys(&redis, all).await;
    let proof = proofs.first().expect("a proof");
    for renewed in [true, false] {
        redis.expire::<(), _>(proof, 100, None).await.expect("set");
        agent.poll("").await.expect(200);
        let left: i64 = redis.ttl(proof).await.expect("seconds");
        assert_eq!(left > 100, renewed, "{left}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_junk_waits_for_nothing_and_keeps_nobody_out() {
    let mut redis = private_redis("tokens-away").await;
    let url = redis.url();
    let [a] = nodes_with(&[
        ("REDIS_URL", &url),
        ("LIMIT_OVERRIDES", "agent_token_unknown=100000/s"),
    ])
    .await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    redis.kill();
    // In turn: asking Redis again and again took two seconds for each.
    let started = Instant::now();
    for n in 0..10 {
        let junk = a.anon().with_token(&forged(&format!("{n:08}"), n));
        junk.get("/limits")
            .await
            .refused(401, "AGENT_TOKEN_INVALID");
    }
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
    agent.poll("").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_wrong_secrets_of_an_agent_are_hashed_in_a_minute() {
    let [a] = nodes().await;
    let [b, c] = [ProcessNode::start(&a).await, ProcessNode::start(&a).await];
    let alice = a.user("alice").await;
    let [agent, other] = [
        a.agent(&alice, "helper").await,
        a.agent(&alice, "other").await,
    ];
    agent.at(&b.base).poll("").await.expect(200);
    let before = b.metric("token_cache_total", "hashed").await;
    let path = format!("/agents/{}/messages/poll", agent.id);
    let guesses = (0..60).map(async |n| {
        let base = [&b.base, &c.base][n as usize % 2];
        a.anon()
            .at(base)
            .with_token(&wrong_secret(&agent.token, n))
            .get(&path)
            .await
    });
    let answers = futures_util::future::join_all(guesses).await;
    let refused = answers.iter().filter(|answer| answer.status == 401).count();
    assert_eq!(refused, 10);
    for answer in answers.into_iter().filter(|answer| answer.status != 401) {
        let params = &answer.refused(429, "RATE_LIMITED").body["error"]["params"];
        assert_eq!(
            (&params["scope"], &params["limit"]),
            (&json!("agent_token_wrong"), &json!("10/min"))
        );
    }
    let hashed = b.metric("token_cache_total", "hashed").await
        + c.metric("token_cache_total", "hashed").await
        - before;
    assert_eq!(hashed, 10.0);
    // A proven agent goes on, on a node that never saw the token too; and another agent is not
    // concerned.
    agent.at(&b.base).poll("").await.expect(200);
    agent.at(&c.base).poll("").await.expect(200);
    other.at(&c.base).poll("").await.expect(200);
    // A socket is told alike.
    let mut socket = Socket::open(&a.anon().at(&b.base)).await;
    socket
        .say(json!({ "type": "auth", "agent_id": agent.id, "token": wrong_secret(&agent.token, 99) }))
        .await;
    let before = socket.expect_close(4429).await;
    assert_eq!(
        before,
        [json!({ "type": "auth.error", "reason": "rate_limited" })]
    );
}

/// The `n`-th junk token; every fourth has a right checksum, and is nobody's all the same.
fn junk_token(n: u32) -> String {
    match n % 4 {
        0 => forged(&format!("{n:08}"), n),
        // A wrong checksum.
        1 => format!("hsk_{n:040}"),
        // Too long.
        2 => format!("hsk_{}", "x".repeat(200)),
        _ => format!("hsk_{n}é"),
    }
}

/// So many requests with junk tokens on one connection, at a steady pace or, without one, many
/// before each answer is read: a client costs less than the node. Every one of them is answered
/// with 401.
async fn junk(address: String, numbers: Range<u32>, pace: Option<Duration>) {
    const AT_ONCE: usize = 100;
    let stream = TcpStream::connect(&address).await.expect("connected");
    let (mut read, mut write) = stream.into_split();
    let n = numbers.len();
    let writer = spawn(async move {
        let mut ticks = tokio::time::interval(pace.unwrap_or(Duration::from_nanos(1)));
        for some in numbers
            .collect::<Vec<_>>()
            .chunks(if pace.is_some() { 1 } else { AT_ONCE })
        {
            ticks.tick().await;
            let request = |n: &u32| {
                format!(
                    "GET /limits HTTP/1.1\r\nhost: x\r\nx-forwarded-proto: https\r\nx-forwarded-for: 10.77.0.1\r\n\
                     authorization: Bearer {}\r\n\r\n",
                    junk_token(*n)
                )
            };
            let requests: String = some.iter().map(request).collect();
            write.write_all(requests.as_bytes()).await.expect("sent");
        }
        write
    });
    let (mut refused, mut text) = (0, Vec::new());
    while refused < n {
        // A status may be split over two reads.
        text.drain(..text.len().saturating_sub(3));
        assert_ne!(
            read.read_buf(&mut text).await.expect("answers"),
            0,
            "cut after {refused}"
        );
        refused += text.windows(4).filter(|four| four == b" 401").count();
    }
    writer.await.expect("written");
}

/// Sends at a steady pace for so long, each at its time whatever became of those before it: how
/// long each took from when it was due.
async fn steady_sends(alice: &User, conversation: &str, lasting: Duration) -> Vec<Duration> {
    const PACE: Duration = Duration::from_millis(20);
    let mut ticks = tokio::time::interval(PACE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    let mut sends = Vec::new();
    for _ in 0..lasting.as_millis() / PACE.as_millis() {
        let due = ticks.tick().await;
        let (alice, conversation) = (alice.clone(), conversation.to_owned());
        sends.push(spawn(async move {
            alice.say(&conversation, "x").await.expect(201);
            due.elapsed()
        }));
    }
    let mut times = Vec::new();
    for send in sends {
        times.push(send.await.expect("no panic"));
    }
    times.sort_unstable();
    times
}

#[expect(
    clippy::print_stdout,
    reason = "whoever makes it long wants to see what it found"
)]
fn report(what: &str) {
    println!("{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn junk_tokens_cost_no_hash_and_others_little() {
    let n = u32::try_from(scale(2_000)).expect("few");
    // The rate that two cores can carry beside the sends; a build without optimisation less.
    let per_second = if cfg!(debug_assertions) { 400 } else { 2_000 };
    let lasting = Duration::from_secs(u64::from(n / per_second));
    let [a] = nodes_with(&[(
        "LIMIT_OVERRIDES",
        "user_message_send=1000/s,agent_token_unknown=100000/s",
    )])
    .await;
    let b = ProcessNode::start(&a).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let alice = User {
        caller: alice.caller.at(&b.base),
        ..alice
    };
    steady_sends(&alice, &conversation, Duration::from_secs(1)).await;
    let quiet = steady_sends(&alice, &conversation, lasting.min(Duration::from_secs(20))).await;
    let address = b.base.trim_start_matches("http://").to_owned();
    let links = 10;
    let flood = (0..links).map(|i| {
        let numbers = i * (n / links)..(i + 1) * (n / links);
        spawn(junk(
            address.clone(),
            numbers,
            Some(Duration::from_secs(1) * links / per_second),
        ))
    });
    let flood = spawn(futures_util::future::join_all(flood.collect::<Vec<_>>()));
    let started = Instant::now();
    let busy = steady_sends(&alice, &conversation, lasting).await;
    for link in flood.await.expect("no panic") {
        link.expect("all refused");
    }
    let rate = f64::from(n) / started.elapsed().as_secs_f64();
    let shown = |times: &[Duration]| {
        [50, 90, 99]
            .map(|p| format!("{:.1}", times[times.len() * p / 100].as_secs_f64() * 1000.0))
            .join("/")
    };
    report(&format!(
        "{n} junk tokens, {rate:.0}/s; sends at 50/s, p50/p90/p99 ms: {} without, {} with",
        shown(&quiet),
        shown(&busy)
    ));
    assert_eq!(b.metric("hash_seconds_count", "bcrypt").await, 0.0);
    assert_eq!(b.metric("token_cache_total", "hashed").await, 0.0);
    // Half of it never comes further than its checksum; a quarter is no text at all, and a quarter
    // is looked up in vain.
    assert_eq!(
        b.metric("token_cache_total", "malformed").await,
        f64::from(n / 2)
    );
    assert_eq!(
        b.metric("token_cache_total", "unknown").await,
        f64::from(n / 4)
    );
    // Without optimisation, and beside other tests, the slowest of a few hundred sends says
    // nothing.
    let percentile = if cfg!(debug_assertions) { 50 } else { 99 };
    let of = |times: &[Duration]| times[times.len() * percentile / 100];
    assert!(
        of(&busy) < 5 * of(&quiet) + Duration::from_millis(250),
        "{:?} after {:?}",
        of(&busy),
        of(&quiet)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_junk_token_is_answered_however_many_come_at_once() {
    let [a] = nodes_with(&[("LIMIT_OVERRIDES", "agent_token_unknown=100000/s")]).await;
    let b = ProcessNode::start(&a).await;
    let caller = a.anon().at(&b.base);
    let calls = (0..u32::try_from(scale(1_000)).expect("few")).map(async |n| {
        caller
            .with_token(&junk_token(n))
            .get("/limits")
            .await
            .expect(401);
    });
    stream::iter(calls)
        .buffer_unordered(256)
        .collect::<Vec<_>>()
        .await;
}
