//! `storm`: a node is killed with all its sockets. It measures the time until its clients are back
//! on other nodes with the missed events. They retry at once, without the wait of good clients.

use std::{
    cell::RefCell,
    rc::Rc,
    time::{Duration, Instant},
};

use serde_json::json;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use crate::{
    Options, Result,
    cluster::Cluster,
    crowd::{Crowd, event},
    delivery::Faults,
    plain::Plain,
    report::{Goal, Ratio, Report, say},
    stats::{Latencies, median},
};

const PAYLOAD_BYTES: usize = 200;
/// The number of members of one conversation.
const GROUP: usize = 100;
/// The wait between two tries of one client.
const PAUSE: Duration = Duration::from_millis(100);
/// The required time.
const GOAL: Duration = Duration::from_secs(10);
/// The time after which the scenario gives up.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the scenario.
pub async fn run(cluster: &Cluster, options: &Options) -> Result<Report> {
    LocalSet::new().run_until(measure(cluster, options)).await
}

#[derive(Default)]
struct Back {
    times: Vec<Duration>,
    /// The number of sockets that got anything but the one message that they missed.
    wrong: u64,
}

impl Back {
    fn note(&mut self, killed_at: Option<Instant>, missed: &[i64]) {
        self.times
            .push(killed_at.map_or(Duration::ZERO, |at| at.elapsed()));
        self.wrong += u64::from(missed != [1]);
    }
}

async fn measure(cluster: &Cluster, options: &Options) -> Result<Report> {
    let sockets = options.sockets_or(5_000);
    let (mut rows, mut shares, mut faults, mut rounds) =
        (Vec::new(), Vec::new(), Faults::default(), Vec::new());
    for n in 1..=options.rounds {
        say(format!("storm: round {n} of {}", options.rounds));
        let (back, calm, stormy) = Box::pin(round(cluster, sockets)).await?;
        let mut times: Vec<f64> = back.times.iter().map(Duration::as_secs_f64).collect();
        times.sort_by(f64::total_cmp);
        let at = |percent: usize| times.get((sockets * percent / 100).max(1) - 1).copied();
        let told = |time: Option<f64>| time.map_or("never".to_owned(), |time| format!("{time:.2}"));
        let in_time =
            back.times.iter().filter(|time| **time <= GOAL).count() as f64 / sockets as f64;
        faults.lost += (sockets - back.times.len()) as u64;
        faults.strange += back.wrong;
        shares.push((in_time, at(99).unwrap_or(f64::MAX)));
        let [calm, stormy] = [calm.quantiles(), stormy.quantiles()];
        rounds.push(json!({
            "back_p50_s": at(50), "back_p99_s": at(99), "back_last_s": at(100), "in_time": in_time,
            "others_calm": calm, "others_in_the_storm": stormy,
        }));
        rows.push(vec![
            format!("round {n}"),
            told(at(50)),
            told(at(99)),
            told(at(100)),
            format!("{:.1}", in_time * 100.0),
            format!("{:.0}", calm.p99),
            format!("{:.0}", stormy.p99),
        ]);
    }
    let heading = [
        "",
        "back p50 s",
        "p99 s",
        "last s",
        "% in 10 s",
        "others' send p99 µs before",
        "during",
    ]
    .map(str::to_owned);
    let mut table = vec![heading.into()];
    table.extend(rows);
    let ratios = vec![Ratio {
        what: "99 % back and caught up / 10 s",
        value: median(shares.iter().map(|(_, p99)| p99 / GOAL.as_secs_f64())),
        goal: Goal::AtMost(1.0, 0.5),
    }];
    let notes = vec![format!(
        "{sockets} sockets of as many users on a node that is killed; another node takes them all. Each misses one message, \
         which is sent while it is away."
    )];
    let details = json!({ "sockets": sockets, "rounds": rounds });
    let checked = (sockets * options.rounds) as u64;
    Ok(Report {
        scenario: "storm",
        tables: vec![table],
        ratios,
        notes,
        details,
        faults,
        checked,
        p99_ms: None,
    })
}

async fn round(cluster: &Cluster, sockets: usize) -> Result<(Back, Latencies, Latencies)> {
    let mut plain = Plain::start(cluster, 2).await?;
    let crowd = Rc::new(Crowd::make(cluster, sockets + 1, 1).await?);
    let mut groups = Vec::new();
    for first in (0..sockets).step_by(GROUP) {
        groups.push((
            first,
            crowd.group(first..(first + GROUP).min(sockets)).await?,
        ));
    }
    let alone = crowd.group(sockets..sockets + 1).await?;
    let back = Rc::new(RefCell::new(Back::default()));
    let nodes = Rc::new(plain.cluster.with_nodes(plain.cluster.nodes.clone()));
    let mut clients: Vec<JoinHandle<()>> = Vec::new();
    let killed_at = Rc::new(RefCell::new(None));
    for user in 0..sockets {
        let mut line = crowd.connect(nodes.node(1), user, 0, None).await?;
        let (_, cursor) = line.caught_up().await?;
        let (crowd, nodes, back, killed_at) = (
            crowd.clone(),
            nodes.clone(),
            back.clone(),
            killed_at.clone(),
        );
        clients.push(spawn_local(async move {
            while line.hear().await.is_ok() {}
            loop {
                let again = async {
                    let mut line = crowd.connect(nodes.node(0), user, 0, Some(&cursor)).await?;
                    let (missed, _) = line.caught_up().await?;
                    Ok::<_, crate::Failure>((line, missed))
                };
                let Ok((mut line, mut missed)) = again.await else {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                };
                // The message may come live, if it was sent after the return.
                while missed.is_empty() {
                    match line.hear().await {
                        Ok(text) => missed.extend(event(&text)),
                        Err(_) => break,
                    }
                }
                back.borrow_mut().note(*killed_at.borrow(), &missed);
                // The socket is held until the round is over.
                while line.hear().await.is_ok() {}
                return;
            }
        }));
    }
    let probe = async |lasting: Duration| -> Result<Latencies> {
        let mut sender = crowd
            .sender(nodes.node(0), sockets, &alone, PAYLOAD_BYTES)
            .await?;
        let (mut latencies, began) = (Latencies::new(), Instant::now());
        while began.elapsed() < lasting {
            let at = Instant::now();
            sender.send().await?;
            latencies.record(at.elapsed());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(latencies)
    };
    let calm = probe(Duration::from_secs(2)).await?;
    *killed_at.borrow_mut() = Some(Instant::now());
    plain.kill(1);
    let send_all = async {
        for (first, group) in &groups {
            crowd
                .sender(nodes.node(0), *first, group, PAYLOAD_BYTES)
                .await?
                .send()
                .await?;
        }
        Ok::<_, crate::Failure>(())
    };
    let (sent, stormy) = tokio::join!(send_all, probe(Duration::from_secs(4)));
    sent?;
    let began = Instant::now();
    while back.borrow().times.len() < sockets && began.elapsed() < TIMEOUT {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    clients.iter().for_each(JoinHandle::abort);
    Ok((back.take(), calm, stormy?))
}
