//! Every window slid: the recorded decisions of three limiters whose clocks differ by minutes, checked afterwards.
//!
//! `SCALE=100 cargo test --release --test it windows` makes it a million decisions.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use blindpipe::{
    clock::Clock,
    db::{Db, Plans},
    ids::NodeId,
    limits::{
        Limits, Rule,
        table::{Limit, Overrides},
    },
    random::Random,
    redis::Redis,
};
use chrono::TimeDelta;

use crate::support::{private_redis, redis_client, services, spawn, ulid};

/// One rule of one decision.
struct Record {
    /// µs of Redis's clock; none if the node's own share decided.
    at: Option<i64>,
    /// µs since the start, by our own measure.
    began: i64,
    ended: i64,
    bucket: (Limit, u32),
    /// How long the call was told to wait, if this rule denied it.
    wait: Option<i64>,
    /// Whether the call was admitted.
    admitted: bool,
}

/// What a check found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Faults {
    /// Windows with more calls than allowed.
    over: usize,
    /// Denials while there was room.
    false_denials: usize,
    /// Waits that were not exactly what was left of the window.
    wrong_waits: usize,
}

const BUCKETS: u32 = 150;
const RULES: [Limit; 3] = [Limit::AgentMessageSend, Limit::UserMessageSend, Limit::AgentTyping];

fn scale() -> usize {
    std::env::var("SCALE").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// Three limiters without nodes around them, each of which knows that there are three.
async fn limiters(url: &str, clocks: [Clock; 3]) -> Vec<(Limits, i64)> {
    let (prefix, random) = (ulid().to_string(), Random::new(Clock::default()));
    let links: Vec<_> = clocks
        .iter()
        .map(|_| (Redis::start(&url.into(), &prefix).expect("a client").0, NodeId::mint(&random)))
        .collect();
    let started = Instant::now();
    while links.iter().any(|(redis, _)| redis.nodes() < 3) {
        assert!(started.elapsed() < Duration::from_secs(10));
        for (redis, node) in &links {
            redis.beat(*node, Duration::from_secs(600)).await.ok();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let limits = links.into_iter().zip(clocks).map(|((redis, _), clock)| {
        let db = Db::new(&services().postgres.url().into(), "test", 1, Plans::Free).expect("a pool");
        let ahead = clock.ahead().num_microseconds().expect("few");
        (Limits::new(redis, db, clock, Overrides::default()), ahead)
    });
    limits.collect()
}

/// So many decisions by nodes with these clocks, until `stop` says so if that is earlier.
async fn record(
    url: &str,
    clocks: [Clock; 3],
    most: usize,
    pause: Duration,
    stop: &Arc<AtomicBool>,
) -> Vec<Record> {
    let (left, zero) = (Arc::new(AtomicUsize::new(most)), Instant::now());
    let mut workers = Vec::new();
    for (limits, ahead) in limiters(url, clocks).await {
        for _ in 0..16 {
            let (limits, left, stop) = (limits.clone(), left.clone(), stop.clone());
            workers.push(spawn(async move {
                let mut records = Vec::new();
                while !stop.load(Ordering::Relaxed)
                    && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
                {
                    let bucket = rand::random::<u32>() % BUCKETS;
                    let first = rand::random::<u32>() as usize % RULES.len();
                    // Every third call is counted by two rules at once.
                    let n = if rand::random::<u32>().is_multiple_of(3) { 2 } else { 1 };
                    let rules: Vec<Limit> = (0..n).map(|i| RULES[(first + i) % RULES.len()]).collect();
                    let asked: Vec<Rule> = rules.iter().map(|limit| Rule::charge(*limit, bucket)).collect();
                    tokio::time::sleep(pause).await;
                    let began = micros(zero);
                    let decision = limits.decide(&asked).await;
                    let ended = micros(zero);
                    for (n, limit) in rules.into_iter().enumerate() {
                        let denier = decision.denied.filter(|(denier, _)| *denier == n);
                        records.push(Record {
                            at: decision.moments.get(n).map(|at| at - ahead),
                            began,
                            ended,
                            bucket: (limit, bucket),
                            wait: denier.map(|(_, wait)| i64::try_from(wait.as_micros()).expect("few")),
                            admitted: decision.denied.is_none(),
                        });
                    }
                }
                records
            }));
        }
    }
    let mut all = Vec::new();
    for worker in workers {
        all.extend(worker.await.expect("no panic"));
    }
    all
}

fn micros(since: Instant) -> i64 {
    i64::try_from(since.elapsed().as_micros()).expect("few")
}

/// Slides every window of every bucket.
fn check(records: &[Record]) -> Faults {
    let mut faults = Faults::default();
    let mut buckets: HashMap<_, Vec<&Record>> = HashMap::new();
    for record in records {
        buckets.entry(record.bucket).or_default().push(record);
    }
    for ((limit, _), records) in buckets {
        let (_, count, seconds, _) = limit.row();
        let (count, window) = (count as usize, i64::try_from(seconds).expect("few") * 1_000_000);
        let mut admitted: Vec<i64> =
            records.iter().filter(|record| record.admitted).filter_map(|record| record.at).collect();
        admitted.sort_unstable();
        faults.over += admitted.windows(count + 1).filter(|run| run[count] - run[0] < window).count();
        for record in &records {
            let (Some(at), Some(wait)) = (record.at, record.wait) else { continue };
            let before = &admitted[..admitted.partition_point(|one| *one <= at)];
            match before.len().checked_sub(count).map(|n| before[n]).filter(|oldest| *oldest > at - window) {
                // When it leaves, a lone retry finds room; a moment earlier it would not.
                Some(oldest) => faults.wrong_waits += usize::from(oldest + window - at != wait),
                None => faults.false_denials += 1,
            }
        }
    }
    faults
}

fn skewed(seconds: i64) -> Clock {
    Clock::skewed(TimeDelta::seconds(seconds))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_window_is_over_and_no_denial_false_with_clocks_five_minutes_apart() {
    let n = 10_000 * scale();
    // At full speed it would starve the tests beside it.
    let pause = Duration::from_millis(if scale() == 1 { 10 } else { 0 });
    let url = services().redis.url();
    let records = record(&url, [skewed(0), skewed(300), skewed(-300)], n, pause, &Arc::default()).await;
    assert!(records.len() >= n && records.iter().all(|record| record.at.is_some()));
    let admitted = records.iter().filter(|record| record.admitted).count();
    let denied = records.iter().filter(|record| record.wait.is_some()).count();
    assert!(admitted > n / 100 && denied > n / 100, "{admitted} admitted, {denied} denied");
    assert_eq!(check(&records), Faults::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_checker_sees_a_limiter_that_goes_by_the_nodes_clocks() {
    // A clock that a test moves is believed by the script: three that were moved apart are the planted fault.
    let clocks = [0, 150, 300].map(|seconds| {
        let clock = Clock::default();
        clock.advance(Duration::from_secs(seconds));
        clock
    });
    let records =
        record(&services().redis.url(), clocks, 3_000, Duration::from_millis(10), &Arc::default()).await;
    let faults = check(&records);
    assert!(faults.over > 0, "{faults:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_redis_forgets_or_keeps_back_costs_no_more_than_a_window_each_time() {
    use fred::interfaces::ClientLike;
    let mut redis = private_redis("windows").await;
    let url = redis.url();
    let stop = Arc::new(AtomicBool::new(false));
    let recording = spawn({
        let (url, stop) = (url.clone(), stop.clone());
        async move {
            record(&url, [skewed(0), skewed(300), skewed(-300)], usize::MAX, Duration::from_millis(10), &stop)
                .await
        }
    });
    let pause = Duration::from_millis(1500);
    let admin = redis_client(&url).await;
    tokio::time::sleep(2 * pause).await;
    admin.flushall::<()>(false).await.expect("flushed");
    tokio::time::sleep(pause).await;
    // Late, but within what a call waits.
    for _ in 0..5 {
        admin.custom::<(), _>(fred::cmd!("CLIENT"), vec!["PAUSE", "100", "ALL"]).await.expect("paused");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    redis.kill();
    tokio::time::sleep(pause).await;
    let restarted = tokio::task::spawn_blocking(move || redis.restart().map(|()| redis)).await;
    let _redis = restarted.expect("no panic").expect("restarted");
    tokio::time::sleep(2 * pause).await;
    stop.store(true, Ordering::Relaxed);
    let records = recording.await.expect("no panic");
    let local = records.iter().filter(|record| record.at.is_none()).count();
    assert!(local > 0 && local < records.len(), "{local} of {} by the nodes' shares", records.len());

    let mut buckets: HashMap<_, Vec<&Record>> = HashMap::new();
    for record in &records {
        buckets.entry(record.bucket).or_default().push(record);
    }
    for ((limit, _), records) in buckets {
        let (_, count, seconds, _) = limit.row();
        let window = i64::try_from(seconds).expect("few") * 1_000_000;
        // By our own measure, since the shares have no other: from a call's beginning to its end.
        let mut admitted: Vec<(i64, i64)> = records
            .iter()
            .filter(|record| record.admitted)
            .map(|record| (record.began, record.ended))
            .collect();
        admitted.sort_unstable();
        // A window in which Redis went away and forgot: its calls twice, and the three shares.
        let most = 2 * count as usize + 3 * (count as usize / 3).max(1);
        let span = |run: &[(i64, i64)]| run.iter().map(|call| call.1).max().unwrap_or_default() - run[0].0;
        let over = admitted.windows(most + 1).filter(|run| span(run) < window).count();
        assert_eq!(over, 0, "{}", limit.scope());
    }
}
