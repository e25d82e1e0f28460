//! `login`: the rate of logins compared with Argon2 alone on as many cores, and the effect on other
//! requests.
//!
//! All logins go to the first node, whose pool hashes on all cores but one. For the ceiling, as
//! many threads of this program hash alone. Other requests come to the same node in an open loop,
//! first without and then with the logins.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use argon2::{
    Argon2,
    password_hash::{PasswordHasher, PasswordVerifier},
};
use serde::Serialize;
use serde_json::json;
use tokio::{
    sync::mpsc,
    task::{JoinHandle, spawn_blocking},
};

use crate::{
    Options, Result,
    cluster::Cluster,
    cpu::{self, Used, Watch},
    delivery::Faults,
    fixtures::{self, PASSWORD, Pair},
    http::{get, post},
    pacer::{Pacer, Schedule},
    report::{Goal, Ratio, Report, say, warn},
    stats::{Latencies, Quantiles, median},
};

/// The rate of other requests per second.
const RATE: u64 = 200;
/// The number of connections for them.
const LINKS: usize = 8;
/// The number of concurrent logins, each of a different user: more than are hashed, fewer than may
/// wait.
const IN_FLIGHT: usize = 8;
/// Seconds at the beginning that do not count.
const WARM_UP: u64 = 1;

/// The findings of one round.
#[derive(Serialize)]
struct Round {
    /// Hashes per second without other load.
    ceiling: f64,
    phases: Vec<Found>,
}

/// The findings of one phase; times in µs.
#[derive(Serialize)]
struct Found {
    phase: &'static str,
    logins_per_second: f64,
    login: Quantiles,
    /// The time from a request's due moment.
    other: Quantiles,
    /// This program's own part in that.
    late: Quantiles,
    failed: u64,
    cpu: Used,
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, pairs: &mut [Pair], options: &Options) -> Result<Report> {
    let watch = Arc::new(Watch::of(cluster).await?);
    let threads = std::thread::available_parallelism()
        .map_or(1, |cores| cores.get().saturating_sub(1).max(1));
    let mut rounds = Vec::new();
    for n in 1..=options.rounds {
        say(format!("login: round {n} of {}", options.rounds));
        fixtures::renew(cluster.node(0), pairs).await?;
        watch.quiet().await;
        let ceiling = ceiling(threads, Duration::from_secs(options.seconds)).await?;
        let mut phases = Vec::new();
        for (name, logins) in [("others alone", false), ("with logins", true)] {
            watch.quiet().await;
            let phase = Phase {
                cluster,
                watch: &watch,
                seconds: options.seconds,
                name,
                logins,
            };
            phases.push(Box::pin(phase.run(pairs)).await?);
        }
        rounds.push(Round { ceiling, phases });
    }
    let mut notes = vec![format!(
        "Medians of the rounds; times in µs. The ceiling is Argon2id on {threads} thread(s) of this program, as many as a \
         node's pool has. Logins: {IN_FLIGHT} under way; others: GET /users/me, {RATE}/s, on the same node."
    )];
    let found = || rounds.iter().flat_map(|round| &round.phases);
    let disturbance = found()
        .map(|found| found.cpu.others_percent())
        .fold(0.0, f64::max);
    notes.extend(cpu::remark(disturbance));
    let faults = Faults {
        failed: found().map(|found| found.failed).sum(),
        ..Faults::default()
    };
    let checked = found()
        .map(|found| found.login.count + found.other.count)
        .sum();
    let (tables, ratios) = (vec![table(&rounds)], ratios(&rounds));
    let details = json!({ "threads": threads, "seconds": options.seconds, "rounds": rounds });
    Ok(Report {
        scenario: "login",
        tables,
        ratios,
        notes,
        details,
        faults,
        checked,
        p99_ms: None,
    })
}

/// Hashes per second of `threads` threads.
async fn ceiling(threads: usize, span: Duration) -> Result<f64> {
    let began = Instant::now();
    let workers = (0..threads).map(|_| {
        spawn_blocking(move || {
            let argon2 = Argon2::default();
            let hash = argon2
                .hash_password_with_salt(PASSWORD.as_bytes(), b"some salt bytes.")
                .ok()?;
            let mut count = 0u64;
            while began.elapsed() < span {
                argon2.verify_password(PASSWORD.as_bytes(), &hash).ok()?;
                count += 1;
            }
            Some(count as f64 / began.elapsed().as_secs_f64())
        })
    });
    let mut sum = 0.0;
    for worker in workers.collect::<Vec<_>>() {
        sum += worker.await?.ok_or("Argon2 does not hash")?;
    }
    Ok(sum)
}

struct Phase<'a> {
    cluster: &'a Cluster,
    watch: &'a Arc<Watch>,
    seconds: u64,
    name: &'static str,
    logins: bool,
}

impl Phase<'_> {
    async fn run(&self, pairs: &[Pair]) -> Result<Found> {
        let (stop, failed) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let from = Instant::now() + Duration::from_secs(WARM_UP);
        let until = from + Duration::from_secs(self.seconds);
        let logins = if self.logins {
            self.start_logins(pairs, from, until, &stop, &failed)
                .await?
        } else {
            Vec::new()
        };
        let (mut late, first) = (Latencies::new(), WARM_UP * RATE);
        let mut pacer = Pacer::start(RATE)?;
        let (lanes, others) = self
            .start_others(pairs, pacer.schedule(), first, &failed)
            .await?;
        let mut before = None;
        for _ in 0..first + self.seconds * RATE {
            let n = pacer.next().await?;
            if n == first {
                // Reading /proc takes longer than a request, so it must not happen on the measuring
                // thread.
                let watch = self.watch.clone();
                before = Some(spawn_blocking(move || watch.now()));
            }
            if n >= first {
                late.record(pacer.schedule().moment(n).elapsed());
            }
            lanes[usize::try_from(n)? % lanes.len()]
                .send(n)
                .map_err(|_| "a worker is gone")?;
        }
        let watch = self.watch.clone();
        let after = spawn_blocking(move || watch.now()).await?;
        let before = before.ok_or("nothing was measured")?.await?;
        drop(lanes);
        stop.store(true, Ordering::Relaxed);
        let (mut login, mut other) = (Latencies::new(), Latencies::new());
        for worker in logins {
            login.add(&worker.await?);
        }
        for worker in others {
            other.add(&worker.await?);
        }
        let login = login.quantiles();
        Ok(Found {
            phase: self.name,
            logins_per_second: login.count as f64 / self.seconds as f64,
            login,
            other: other.quantiles(),
            late: late.quantiles(),
            failed: failed.load(Ordering::Relaxed),
            cpu: after.since(&before),
        })
    }

    /// Starts users that log in again and again, on a device that they use for nothing else.
    async fn start_logins(
        &self,
        pairs: &[Pair],
        from: Instant,
        until: Instant,
        stop: &Arc<AtomicBool>,
        failed: &Arc<AtomicU64>,
    ) -> Result<Vec<JoinHandle<Latencies>>> {
        let node = self.cluster.node(0);
        let mut workers = Vec::new();
        for pair in pairs.iter().take(IN_FLIGHT) {
            let body = json!({
                "email": pair.email, "account_password": PASSWORD, "turnstile_token": "dev-pass",
                "device_id": "load-login",
            });
            let request = post(
                &node.address,
                "/auth/login",
                &pair.address,
                &[],
                &body.to_string(),
            );
            let (mut link, stop, failed) = (node.link().await?, stop.clone(), failed.clone());
            workers.push(tokio::spawn(async move {
                let mut latencies = Latencies::new();
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let answer = link.ask(&request).await;
                    let ended = Instant::now();
                    match answer {
                        Ok(answer) if answer.status == 200 => {
                            if ended >= from && ended < until {
                                latencies.record(ended - began);
                            }
                        }
                        other => {
                            note(&failed, "a login", other.map(|answer| answer.status));
                            return latencies;
                        }
                    }
                }
                latencies
            }));
        }
        Ok(workers)
    }

    /// Starts users that read their account at due moments.
    async fn start_others(
        &self,
        pairs: &[Pair],
        schedule: Schedule,
        first: u64,
        failed: &Arc<AtomicU64>,
    ) -> Result<(Vec<mpsc::UnboundedSender<u64>>, Vec<JoinHandle<Latencies>>)> {
        let node = self.cluster.node(0);
        let (mut lanes, mut workers) = (Vec::new(), Vec::new());
        for pair in pairs.iter().rev().take(LINKS) {
            let bearer = format!("Bearer {}", pair.access_token);
            let request = get(
                &node.address,
                "/users/me",
                &pair.address,
                &[("authorization", &bearer)],
            );
            let (lane, mut due) = mpsc::unbounded_channel::<u64>();
            let (mut link, failed) = (node.link().await?, failed.clone());
            lanes.push(lane);
            workers.push(tokio::spawn(async move {
                let mut latencies = Latencies::new();
                while let Some(n) = due.recv().await {
                    match link.ask(&request).await {
                        Ok(answer) if answer.status == 200 => {
                            if n >= first {
                                latencies.record(schedule.moment(n).elapsed());
                            }
                        }
                        other => note(&failed, "a request", other.map(|answer| answer.status)),
                    }
                }
                latencies
            }));
        }
        Ok((lanes, workers))
    }
}

fn note(failed: &AtomicU64, what: &str, outcome: Result<u16>) {
    if failed.fetch_add(1, Ordering::Relaxed) == 0 {
        warn(format!("{what} failed: {outcome:?}"));
    }
}

fn table(rounds: &[Round]) -> Vec<Vec<String>> {
    let heading = [
        "",
        "per second",
        "p50",
        "p99",
        "others p50",
        "p99",
        "late p99",
    ];
    let mut table: Vec<Vec<String>> = vec![heading.map(str::to_owned).into()];
    let ceiling = median(rounds.iter().map(|round| round.ceiling));
    table.push(vec!["Argon2 alone".to_owned(), format!("{ceiling:.1}")]);
    for n in 0..rounds.first().map_or(0, |round| round.phases.len()) {
        let of = |value: &dyn Fn(&Found) -> f64| {
            median(rounds.iter().map(|round| value(&round.phases[n])))
        };
        let mut row = vec![rounds[0].phases[n].phase.to_owned()];
        row.push(format!("{:.1}", of(&|found| found.logins_per_second)));
        let quantiles: [&dyn Fn(&Found) -> f64; 5] = [
            &|found| found.login.p50,
            &|found| found.login.p99,
            &|found| found.other.p50,
            &|found| found.other.p99,
            &|found| found.late.p99,
        ];
        row.extend(quantiles.map(|value| format!("{:.0}", of(value))));
        table.push(row);
    }
    table
}

fn ratios(rounds: &[Round]) -> Vec<Ratio> {
    let of = |n: usize, value: &dyn Fn(&Found) -> f64| {
        median(rounds.iter().map(|round| value(&round.phases[n])))
    };
    let nearness = rounds
        .iter()
        .map(|round| round.phases[1].logins_per_second / round.ceiling);
    vec![
        Ratio {
            what: "logins / Argon2 alone",
            value: median(nearness),
            goal: Goal::AtLeast(0.9, 0.97),
        },
        Ratio {
            what: "others with logins / alone, p99",
            value: of(1, &|found| found.other.p99) / of(0, &|found| found.other.p99),
            goal: Goal::AtMost(2.0, 1.3),
        },
    ]
}
