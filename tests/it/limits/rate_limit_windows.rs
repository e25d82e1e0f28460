//! The sliding windows: recorded decisions of three limiters whose clocks differ by minutes,
//! checked afterwards.
//!
//! `SCALE=100 cargo test --release --test it rate_limit_windows:: -- --nocapture` makes a million
//! decisions, and two million more while Redis is flushed, slowed and restarted. They take some
//! minutes.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use blindpipe::{
    clock::Clock,
    ids::NodeId,
    limits::{
        Limits, Rule,
        table::{Limit, Overrides},
    },
    random::Random,
};
use chrono::TimeDelta;
use devcluster::services::RedisServer;
use tokio_util::task::TaskTracker;

use crate::support::{
    chosen_redis, db, private_redis, redis_client, redis_link, services, spawn, ulid,
};

/// A rule of a decision.
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

/// The findings of a check.
#[derive(Debug, Default, PartialEq, Eq)]
struct Faults {
    /// Windows with more calls than allowed.
    over: usize,
    /// Denials while there was room.
    false_denials: usize,
    /// Waits that were not exactly what was left of the window.
    wrong_waits: usize,
}

/// Between two disturbances: longer than any window here, so that a window meets one of them.
const APART: Duration = Duration::from_millis(1500);

const BUCKETS: u32 = 150;
const RULES: [Limit; 3] = [
    Limit::AgentMessageSend,
    Limit::UserMessageSend,
    Limit::AgentTyping,
];

fn scale() -> usize {
    std::env::var("SCALE")
        .ok()
        .and_then(|times| times.parse().ok())
        .unwrap_or(1)
}

/// Three limiters without nodes around them, each of which knows that there are three.
async fn limiters(url: &str, clocks: [Clock; 3], overrides: &Overrides) -> Vec<(Limits, i64)> {
    let (prefix, random) = (ulid().to_string(), Random::new(Clock::default()));
    let links: Vec<_> = clocks
        .iter()
        .map(|_| (redis_link(url, &prefix), NodeId::generate(&random)))
        .collect();
    let started = Instant::now();
    while links.iter().any(|(redis, _)| redis.nodes() < 3) {
        assert!(started.elapsed() < Duration::from_secs(10));
        for (redis, node) in &links {
            redis.heartbeat(*node, Duration::from_secs(600)).await.ok();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let limits = links.into_iter().zip(clocks).map(|((redis, _), clock)| {
        let db = db(&services().postgres.url());
        let ahead = clock.ahead().num_microseconds().expect("few");
        (
            Limits::start(
                redis,
                Arc::new(str::to_owned),
                db,
                clock,
                overrides.clone(),
                false,
                &TaskTracker::new(),
            ),
            ahead,
        )
    });
    limits.collect()
}

/// So many decisions by nodes with these clocks, all by the table as it is.
async fn record(url: &str, clocks: [Clock; 3], most: usize, pause: Duration) -> Vec<Record> {
    record_by(&Overrides::default(), url, clocks, most, pause).await
}

/// Another table gives this result as well.
async fn record_by(
    overrides: &Overrides,
    url: &str,
    clocks: [Clock; 3],
    most: usize,
    pause: Duration,
) -> Vec<Record> {
    let (left, zero) = (Arc::new(AtomicUsize::new(most)), Instant::now());
    let mut workers = Vec::new();
    for (limits, ahead) in limiters(url, clocks, overrides).await {
        for _ in 0..16 {
            let (limits, left) = (limits.clone(), left.clone());
            workers.push(spawn(async move {
                let mut records = Vec::new();
                while left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                    .is_ok()
                {
                    let bucket = rand::random::<u32>() % BUCKETS;
                    let first = rand::random::<u32>() as usize % RULES.len();
                    // Every third call is counted by two rules at once.
                    let n = if rand::random::<u32>().is_multiple_of(3) {
                        2
                    } else {
                        1
                    };
                    let rules: Vec<Limit> =
                        (0..n).map(|i| RULES[(first + i) % RULES.len()]).collect();
                    let asked: Vec<Rule> = rules
                        .iter()
                        .map(|limit| Rule::charge(*limit, bucket))
                        .collect();
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
                            wait: denier
                                .map(|(_, wait)| i64::try_from(wait.as_micros()).expect("few")),
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
        let (count, window) = (
            count as usize,
            i64::try_from(seconds).expect("few") * 1_000_000,
        );
        let mut admitted: Vec<i64> = records
            .iter()
            .filter(|record| record.admitted)
            .filter_map(|record| record.at)
            .collect();
        admitted.sort_unstable();
        faults.over += admitted
            .windows(count + 1)
            .filter(|run| run[count] - run[0] < window)
            .count();
        for record in &records {
            let (Some(at), Some(wait)) = (record.at, record.wait) else {
                continue;
            };
            let before = &admitted[..admitted.partition_point(|one| *one <= at)];
            match before
                .len()
                .checked_sub(count)
                .map(|n| before[n])
                .filter(|oldest| *oldest > at - window)
            {
                // When it leaves, a lone retry finds room; a moment earlier it would not.
                Some(oldest) => faults.wrong_waits += usize::from(oldest + window - at != wait),
                None => faults.false_denials += 1,
            }
        }
    }
    faults
}

/// Of machines whose clocks are wrong by five minutes to either side.
fn clocks() -> [Clock; 3] {
    [0, 300, -300].map(|seconds| Clock::skewed(TimeDelta::seconds(seconds)))
}

#[expect(
    clippy::print_stdout,
    reason = "whoever runs a million of them wants to see that it was a million"
)]
fn report(what: &str, faults: &Faults) {
    println!("windows, {what}: {faults:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_window_is_over_and_no_denial_false_with_clocks_five_minutes_apart() {
    let n = 10_000 * scale();
    // At full speed it would starve the tests beside it.
    let pause = Duration::from_millis(if scale() == 1 { 10 } else { 0 });
    let url = chosen_redis().await;
    let (mut records, mut took) = (Vec::new(), Duration::ZERO);
    // Where the machine is so busy that Redis is late, nodes decide by their shares, which is
    // another test's matter.
    for _ in 0..5 {
        let started = Instant::now();
        records = record(&url, clocks(), n, pause).await;
        took = started.elapsed();
        if records.iter().all(|record| record.at.is_some()) {
            break;
        }
    }
    let late = records.iter().filter(|record| record.at.is_none()).count();
    assert_eq!(
        late,
        0,
        "of {} decisions: the machine is too busy to tell",
        records.len()
    );
    assert!(records.len() >= n);
    let admitted = records.iter().filter(|record| record.admitted).count();
    let denied = records
        .iter()
        .filter(|record| record.wait.is_some())
        .count();
    assert!(
        admitted > n / 100 && denied > n / 100,
        "{admitted} admitted, {denied} denied"
    );
    let faults = check(&records);
    report(
        &format!(
            "{n} decisions in {took:?}: {} records, {admitted} admitted, {denied} denied",
            records.len()
        ),
        &faults,
    );
    assert_eq!(faults, Faults::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_checker_sees_a_limiter_that_goes_by_the_nodes_clocks() {
    // A clock that a test moves is believed by the script: three that were moved apart are the
    // planted fault.
    let clocks = [0, 150, 300].map(|seconds| {
        let clock = Clock::default();
        clock.advance(Duration::from_secs(seconds));
        clock
    });
    let records = record(
        &chosen_redis().await,
        clocks,
        3_000,
        Duration::from_millis(10),
    )
    .await;
    let faults = check(&records);
    assert!(faults.over > 0, "{faults:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_checker_sees_a_limiter_that_is_off_by_one() {
    for (planted, over, false_denials) in [
        ("agent_message_send=6/s", true, false),
        ("agent_message_send=4/s", false, true),
    ] {
        let (url, overrides) = (chosen_redis().await, planted.parse().expect("overrides"));
        let records = record_by(&overrides, &url, clocks(), 3_000, Duration::from_millis(10)).await;
        let faults = check(&records);
        assert_eq!(
            (faults.over > 0, faults.false_denials > 0),
            (over, false_denials),
            "{planted}: {faults:?}"
        );
    }
}

/// The decisions of three nodes while `disturb` happens to their Redis, again and again until they
/// have decided enough.
async fn disturbed(
    name: &'static str,
    mut disturb: impl AsyncFnMut(&mut RedisServer, &fred::clients::Client),
) -> Vec<Record> {
    let mut redis = private_redis(name).await;
    let url = redis.url();
    let admin = redis_client(&url).await;
    let recording = spawn(async move {
        let pause = Duration::from_millis(10);
        record(&url, clocks(), 20_000 * scale(), pause).await
    });
    let mut times = 0;
    loop {
        tokio::time::sleep(APART).await;
        if recording.is_finished() {
            break;
        }
        disturb(&mut redis, &admin).await;
        times += 1;
    }
    let records = recording.await.expect("no panic");
    let faults = check(&records);
    let local = records.iter().filter(|record| record.at.is_none()).count();
    report(
        &format!(
            "{name} {times} times: {} records, {local} by the nodes' shares",
            records.len()
        ),
        &faults,
    );
    assert!(times > 0, "{name}: over before anything happened");
    records
}

/// Windows with more than `most(calls of the row)` by our own measure, since the shares have no
/// other: from a call's beginning to its end.
fn over(records: &[Record], most: impl Fn(usize) -> usize) -> usize {
    let mut buckets: HashMap<_, Vec<(i64, i64)>> = HashMap::new();
    for record in records.iter().filter(|record| record.admitted) {
        buckets
            .entry(record.bucket)
            .or_default()
            .push((record.began, record.ended));
    }
    let windows = buckets.into_iter().map(|((limit, _), mut admitted)| {
        let (_, count, seconds, _) = limit.row();
        let window = i64::try_from(seconds).expect("few") * 1_000_000;
        admitted.sort_unstable();
        let span =
            |run: &[(i64, i64)]| run.iter().map(|call| call.1).max().unwrap_or_default() - run[0].0;
        admitted
            .windows(most(count as usize) + 1)
            .filter(|run| span(run) < window)
            .count()
    });
    windows.sum()
}

/// The calls that three nodes admit without Redis, if they did.
fn shares(records: &[Record], count: usize) -> usize {
    if records.iter().all(|record| record.at.is_some()) {
        0
    } else {
        3 * (count / 3).max(1)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flushed_redis_costs_a_budget_and_no_more() {
    use fred::interfaces::ClientLike;
    let records = disturbed("flushed", async |_, admin| {
        admin.flushall::<()>(false).await.expect("flushed");
    })
    .await;
    // On a busy machine a call may be late, and a share of the node decides.
    assert_eq!(
        over(&records, |count| 2 * count + shares(&records, count)),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_redis_is_exact_and_a_late_one_costs_the_nodes_shares() {
    use fred::interfaces::ClientLike;
    let mut pauses = ["100", "400"].iter().cycle();
    let records = disturbed("slowed", async |_, admin| {
        // The first is within what a call waits, the second is not.
        let pause = vec!["PAUSE", pauses.next().expect("endless"), "ALL"];
        admin
            .custom::<(), _>(fred::cmd!("CLIENT"), pause)
            .await
            .expect("paused");
    })
    .await;
    // A decision of Redis is exact however late its answer was. (Denials are not checked: a call
    // that was given up is counted all the same when Redis comes to it.)
    assert_eq!(check(&records).over, 0);
    assert_eq!(over(&records, |count| count + shares(&records, count)), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_redis_costs_a_budget_and_the_nodes_shares() {
    let records = disturbed("restarted", async |redis, _| {
        redis.kill();
        tokio::time::sleep(APART).await;
        tokio::task::block_in_place(|| redis.restart()).expect("restarted");
    })
    .await;
    let local = records.iter().filter(|record| record.at.is_none()).count();
    assert!(
        local > 0 && local < records.len(),
        "{local} of {} by the nodes' shares",
        records.len()
    );
    assert_eq!(
        over(&records, |count| 2 * count + shares(&records, count)),
        0
    );
}
