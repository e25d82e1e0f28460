//! Locks and slow statements of others: they hold up only those who need the same rows.

use std::time::{Duration, Instant};

use blindpipe::db::{Db, Plans};
use futures_util::future::join_all;
use serde_json::json;
use uuid::Uuid;

use crate::support::{Answer, ProcessNode, User, connect, db, nodes, nodes_with, psql, waiting};

/// The waits of production.
const PRODUCTION: (&str, &str) = ("DATABASE_TIMEOUT_MS", "1000");
const MANY_SENDS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "user_message_send=100000/s,default_user=100000/s",
);

fn uuid_of(conversation: &str) -> Uuid {
    conversation.parse::<ulid::Ulid>().expect("an id").into()
}

async fn timed(work: impl Future<Output = Answer>) -> Duration {
    let started = Instant::now();
    work.await.expect(201);
    started.elapsed()
}

fn p99(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() * 99 / 100]
}

/// A row is locked for three seconds. Its conversation waits; the others do not.
async fn only_one_waits(lock: impl Fn(&str, &str) -> String) {
    let [a] = nodes_with(&[PRODUCTION, MANY_SENDS]).await;
    let alice = a.user("alice").await;
    let mut conversations = Vec::new();
    for n in 0..4 {
        let agent = a.agent(&alice, &format!("agent {n}")).await;
        conversations.push((alice.talk_to(&agent).await, agent));
    }
    let mut bobs = Vec::new();
    for (_, agent) in &conversations[1..] {
        let bob = a.user("bob").await;
        bobs.push((bob.talk_to(agent).await, bob));
    }
    let (locked, locked_agent) = &conversations[0];
    let mut client = connect(&a.world.database).await;
    let tx = client.transaction().await.expect("begun");
    tx.batch_execute(&lock(&uuid_of(locked).to_string(), &locked_agent.id))
        .await
        .expect("locked");
    let blocked = join_all((0..5).map(|_| alice.say(locked, "it waits")));
    let others = async {
        // Real time: the blocked ones are on their way.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let since = Instant::now();
        let mut longest = Duration::ZERO;
        while since.elapsed() < Duration::from_secs(2) {
            for (conversation, bob) in &bobs {
                longest = longest.max(timed(bob.say(conversation, "it does not")).await);
            }
        }
        tx.commit().await.expect("released");
        longest
    };
    let (blocked, longest) = tokio::join!(blocked, others);
    assert!(longest < Duration::from_millis(900), "{longest:?}");
    let mut seqs: Vec<i64> = blocked
        .into_iter()
        .map(|answer| answer.expect(201).data()["seq"].as_i64().expect("a number"))
        .collect();
    seqs.sort_unstable();
    assert_eq!(seqs, [1, 2, 3, 4, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_conversation_delays_no_other() {
    only_one_waits(|conversation, _| {
        format!("select 1 from conversation where conversation_id = '{conversation}' for update")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_inbox_delays_only_sends_to_it() {
    only_one_waits(|_, agent| {
        format!("select 1 from inbox where principal_id = '{agent}' for update")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_locks_of_a_frozen_sender_last_a_quarter_of_a_second() {
    let [a] = nodes().await;
    let url = a.world.database.clone();
    let wait = Duration::from_secs(1);
    let sender = Db::new(&url.clone().into(), "frozen", 1, Plans::Pinned, wait).expect("a pool");
    let frozen = sender.begin("messages.send").await.expect("begun");
    let lock = "update cluster set restores = restores";
    frozen.batch_execute(lock).await.expect("locked");
    let started = Instant::now();
    psql(&url, lock).await;
    let took = started.elapsed();
    assert!(took < Duration::from_millis(900), "{took:?}");
    assert!(frozen.commit().await.is_err(), "its locks were gone");
}

/// The life of a stopped node's locks: Postgres ends an idle transaction of the send pool.
const LOCK_LIFE: Duration = Duration::from_millis(250);
/// The wait of a batch for a lock (a tenth of `DATABASE_TIMEOUT_MS`). Sends of others that are in
/// it or behind it wait as well, once for each stop. Within a stop of seconds they are less than a
/// hundredth.
const BATCH_LOCK_WAIT: Duration = Duration::from_millis(100);
/// The times for which a node is stopped, one after the other. The last one is long.
const STOPS: [Duration; 4] = [
    Duration::from_millis(600),
    Duration::from_millis(600),
    Duration::from_millis(600),
    Duration::from_millis(2_500),
];
/// The time up to which a p99 says nothing on a busy machine: other tests run beside.
const NOISE: Duration = Duration::from_millis(150);

/// The p99 of sends that began within `phase`.
fn p99_within(times: &[(Duration, Duration)], phase: impl Fn(Duration) -> bool) -> Duration {
    let times = times.iter().filter(|(began, _)| phase(*began));
    let mut times = Vec::from_iter(times.map(|(_, took)| *took));
    assert!(times.len() > 20, "only {} sends", times.len());
    p99(&mut times)
}

/// Sends until `over`; the begin and the duration of each send.
async fn sends(user: User, conversation: &str, over: Instant) -> Vec<(Duration, Duration)> {
    let (started, mut times) = (Instant::now(), Vec::new());
    while Instant::now() < over {
        times.push((started.elapsed(), timed(user.say(conversation, "x")).await));
    }
    times
}

/// Three nodes write to the same group, so that they wait for each other's locks. A single one is
/// stopped again and again in mid-load. Members of the group wait for its locks, and everybody else
/// for one batch at the most.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_node_holds_up_its_groups_for_a_quarter_of_a_second_and_others_for_a_batch() {
    let [a, b] = nodes_with(&[PRODUCTION, MANY_SENDS]).await;
    let stopped = ProcessNode::start(&a).await;
    let [alice, bob, carol, dave] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
        a.user("dave").await,
    ];
    let group = alice.group_with(&[&bob]).await;
    let elsewhere = [
        carol.talk_to(&a.agent(&carol, "of carol").await).await,
        dave.talk_to(&a.agent(&dave, "of dave").await).await,
    ];
    let started = Instant::now();
    let over = started + Duration::from_secs(7);
    let load = async {
        let sender = alice.at(&stopped.base);
        while Instant::now() < over {
            let path = format!("/conversations/{group}/messages");
            // Search tokens make a second statement, so its transactions are open for longer.
            let body = json!({ "payload": { "type": "encrypted" }, "search_tokens": ["k3JfQ0lZc2VhcmNoLXRva2Vu"] });
            // A request to a stopped node waits; only the load counts.
            tokio::time::timeout(Duration::from_millis(300), sender.post(path, body))
                .await
                .ok();
        }
    };
    let stopping = async {
        let kill = |signal: &str| {
            let pid = stopped.pid().to_string();
            let sent = std::process::Command::new("kill")
                .args([signal, &pid])
                .status();
            assert!(sent.expect("kill").success());
        };
        // Real time: a quiet two seconds first.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let mut frozen = Vec::new();
        for stop in STOPS {
            kill("-STOP");
            let began = started.elapsed();
            tokio::time::sleep(stop).await;
            frozen.push(began..started.elapsed());
            kill("-CONT");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        frozen
    };
    let (members, others, (), frozen) = tokio::join!(
        join_all([
            sends(alice.on(&a), &group, over),
            sends(bob.on(&b), &group, over)
        ]),
        join_all([
            sends(carol.on(&a), &elsewhere[0], over),
            sends(dave.on(&b), &elsewhere[1], over)
        ]),
        load,
        stopping
    );
    let is_quiet = |began: Duration| began < Duration::from_millis(1900);
    let is_frozen = |began: Duration| frozen.iter().any(|span| span.contains(&began));
    for (who, times, wait) in [
        ("members", members.concat(), LOCK_LIFE),
        ("others", others.concat(), BATCH_LOCK_WAIT),
    ] {
        let quiet = p99_within(&times, is_quiet);
        let during = p99_within(&times, is_frozen);
        let most = wait + (2 * quiet).max(NOISE);
        assert!(during <= most, "{who}: {during:?}, quiet {quiet:?}");
    }
    let others = others.concat();
    let quiet = p99_within(&others, is_quiet);
    let long = frozen.last().expect("a long stop");
    let during = p99_within(&others, |began| long.contains(&began));
    let most = (2 * quiet).max(NOISE);
    assert!(during <= most, "a long stop: {during:?}, quiet {quiet:?}");
}

/// Every commit that numbers a message takes 5 ms more, as with a synchronous standby far away.
const SLOW_COMMITS: &str = "
    create function slow_commit() returns trigger language plpgsql as $$ begin
        if current_setting('test.slept', true) is distinct from pg_current_xact_id()::text then
            perform set_config('test.slept', pg_current_xact_id()::text, true), pg_sleep(0.005);
        end if;
        return null;
    end $$;
    create constraint trigger slow_commit after update on conversation deferrable initially deferred
        for each row execute function slow_commit();";

/// The median time of a bystander's sends on the second node, while users of both nodes send
/// without a pause.
async fn median_beside(pairs: &[(User, String)], bystander: &(User, String)) -> Duration {
    let over = Instant::now() + Duration::from_secs(2);
    let load = pairs.iter().map(|(user, to)| sends(user.clone(), to, over));
    let (_, times) = tokio::join!(
        join_all(load),
        sends(bystander.0.clone(), &bystander.1, over)
    );
    let mut times: Vec<Duration> = times.into_iter().map(|(_, took)| took).collect();
    times.sort();
    times[times.len() / 2]
}

/// Two nodes write to the inbox of a popular agent all the time, and each waits for the other's
/// commits. Others wait no longer than beside as many agents.
#[tokio::test(flavor = "multi_thread")]
async fn a_popular_agent_delays_others_no_more_than_many_agents_do() {
    let [a, b] = nodes_with(&[MANY_SENDS]).await;
    let owner = a.user("owner").await;
    let popular = a.agent(&owner, "popular").await;
    let (mut alike, mut apart) = (Vec::new(), Vec::new());
    for n in 0..6 {
        let user = a.user("sender").await.on([&a, &b][n % 2]);
        let own = a.agent(&user, "own").await;
        apart.push((user.clone(), user.talk_to(&own).await));
        alike.push((user.clone(), user.talk_to(&popular).await));
    }
    let bystander = a.user("bystander").await.on(&b);
    let own = a.agent(&bystander, "own").await;
    let bystander = (bystander.clone(), bystander.talk_to(&own).await);
    psql(&a.world.database, SLOW_COMMITS).await;
    let beside_many = median_beside(&apart, &bystander).await;
    let beside_popular = median_beside(&alike, &bystander).await;
    assert!(
        beside_popular <= 2 * beside_many + Duration::from_millis(50),
        "{beside_popular:?}, {beside_many:?}"
    );
}

/// The time that cancelled statements have to be gone. Statements that nobody cancels wait for
/// [`PATIENT`], twice.
const GONE_WITHIN: Duration = Duration::from_secs(20);
const PATIENT: (&str, &str) = ("DATABASE_TIMEOUT_MS", "30000");

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_cancelled_requests_leave_no_statement_behind() {
    let [a] = nodes_with(&[PATIENT, MANY_SENDS]).await;
    let alice = a.user("alice").await;
    let mut client = connect(&a.world.database).await;
    let tx = client.transaction().await.expect("begun");
    tx.batch_execute("lock table relation in access exclusive mode")
        .await
        .expect("locked");
    let mut cancelled = 0;
    for _ in 0..10 {
        let requests = (0..50).map(|_| {
            let request = alice.get("/relations");
            tokio::time::timeout(Duration::from_millis(100), request)
        });
        cancelled += join_all(requests)
            .await
            .iter()
            .filter(|one| one.is_err())
            .count();
    }
    assert!(cancelled > 450, "Postgres was not slow: {cancelled}");
    let since = Instant::now();
    alice.get("/users/me").await.expect(200);
    while waiting(&tx).await > 0 {
        assert!(since.elapsed() < GONE_WITHIN, "statements wait on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(since.elapsed() < GONE_WITHIN, "{:?}", since.elapsed());
    tx.commit().await.expect("released");
    alice.get("/relations").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_with_another_isolation_is_not_used() {
    let [a] = nodes().await;
    let url = &a.world.database;
    let (_, name) = url.rsplit_once('/').expect("a database");
    db(url).read().await.expect("a connection");
    let sql = format!("alter database {name} set default_transaction_isolation = 'serializable'");
    psql(url, &sql).await;
    let Err(refused) = db(url).read().await else {
        panic!("it was used");
    };
    assert!(
        format!("{refused:?}").contains("read committed"),
        "{refused:?}"
    );
}

/// Both take the agent's lock before the group's, so neither waits for the other in a circle.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_added_and_deleted_at_once_and_neither_fails() {
    let limits = "group_agent_instance=100000/s,default_user=100000/s";
    let [a, b] = nodes_with(&[PRODUCTION, ("LIMIT_OVERRIDES", limits)]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let group = alice.group_with(&[&bob]).await;
    for n in 0..12 {
        let agent = a.agent(&alice, &format!("helper {n}")).await;
        alice.talk_to(&agent).await;
        let place = json!({ "agent_id": agent.id, "visibility": "all" });
        let there = alice.on(&b);
        let (place, deleted) = tokio::join!(
            alice.post(format!("/groups/{group}/agent-instances"), place),
            there.delete(format!("/agents/{}", agent.id)),
        );
        assert!(deleted.status < 300, "{}", deleted.body);
        assert!([200, 201, 404].contains(&place.status), "{}", place.body);
    }
}

/// Nodes that start together make the partitions of the delivery log one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_waits_for_the_start_of_another() {
    let [a] = nodes().await;
    let mut client = connect(&a.world.database).await;
    let tx = client.transaction().await.expect("begun");
    let other = "select pg_advisory_xact_lock(hashtext('rotate_webhook_deliveries'))";
    tx.batch_execute(other).await.expect("locked");
    let wait = [("DATABASE_TIMEOUT_MS", "500")];
    let start = ProcessNode::start_with(&a, &wait);
    let held = async {
        // Several time-outs of its wait, in real time.
        while waiting(&tx).await == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        tx.rollback().await.expect("released");
    };
    tokio::join!(start, held);
}
