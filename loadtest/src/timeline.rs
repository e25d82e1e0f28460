//! The work of the nodes and of the machine in each second of a scenario.

use std::time::Duration;

use serde::Serialize;
use tokio::{sync::oneshot, task::JoinHandle, time::MissedTickBehavior};

use crate::{
    Result,
    cluster::{Cluster, Metrics, Node},
    cpu::{self, Used, Watch},
    page::{Line, plot},
};

/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// The labels of a send over HTTP.
const SEND: [&str; 2] = [
    "route=\"/conversations/{conversation_id}/messages\"",
    "method=\"POST\"",
];
/// Fewest messages of a second whose cost is worth a point.
const MIN_MESSAGES: f64 = 20.0;

/// Takes a sample each second until it is finished.
pub struct Sampler {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Vec<Sample>>,
}

/// A second of a run. A node that does not answer leaves a gap.
#[derive(Serialize)]
pub struct Sample {
    /// Stored messages.
    messages: Option<f64>,
    /// Milliseconds to answer a send, as the nodes' histograms have it.
    send_p50_ms: Option<f64>,
    send_p99_ms: Option<f64>,
    /// Processors in use.
    processors: Used,
    /// MiB of anonymous memory of each node.
    memory_mib: Vec<Option<f64>>,
}

/// The counters of all nodes together.
#[derive(Clone, Default)]
struct Counters {
    messages: f64,
    /// Bounds of the histogram of sends in seconds, with the sends up to each.
    sends: Vec<(f64, f64)>,
}

impl Sampler {
    /// Begins to sample a cluster.
    pub async fn start(cluster: &Cluster) -> Result<Self> {
        let (watch, nodes) = (Watch::of(cluster).await?, cluster.nodes.clone());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(sample(watch, nodes, stopped));
        Ok(Sampler { stop, task })
    }

    /// Ends it and returns the samples.
    pub async fn finish(self) -> Result<Vec<Sample>> {
        self.stop.send(()).ok();
        Ok(self.task.await?)
    }
}

async fn sample(watch: Watch, nodes: Vec<Node>, mut stopped: oneshot::Receiver<()>) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before: Option<(Used, Option<Counters>)> = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = &mut stopped => return samples,
        }
        let now = (watch.now(), Counters::of(&nodes).await.ok());
        if let Some((used, counters)) = &before {
            let counted = counters.as_ref().zip(now.1.as_ref());
            samples.push(Sample::new(&nodes, &now.0.since(used), counted));
        }
        before = Some(now);
    }
}

impl Counters {
    async fn of(nodes: &[Node]) -> Result<Self> {
        let mut total = Counters::default();
        for node in nodes {
            let asked = tokio::time::timeout(INTERVAL, node.metrics()).await;
            total.add(&asked??);
        }
        Ok(total)
    }

    fn add(&mut self, metrics: &Metrics) {
        self.messages += metrics.sum("send_batch_messages_sum");
        for (bound, count) in metrics.buckets("http_request_seconds", &SEND) {
            match self.sends.iter_mut().find(|(other, _)| *other == bound) {
                Some((_, sum)) => *sum += count,
                None => self.sends.push((bound, count)),
            }
        }
    }

    /// The counts since `before`; none if a node began anew in between.
    fn since(&self, before: &Counters) -> Option<Counters> {
        let messages = self.messages - before.messages;
        let of = |bound: f64| {
            let found = before.sends.iter().find(|(other, _)| *other == bound);
            found.map_or(0.0, |(_, count)| *count)
        };
        let sends = self.sends.iter();
        let sends = sends.map(|(bound, count)| (*bound, count - of(*bound)));
        let since = Counters {
            messages,
            sends: sends.collect(),
        };
        let is_whole = messages >= 0.0 && since.sends.iter().all(|(_, count)| *count >= 0.0);
        is_whole.then_some(since)
    }

    /// A quantile of sends in milliseconds, in a straight line within its bucket.
    fn quantile(&self, quantile: f64) -> Option<f64> {
        let mut sends = self.sends.clone();
        sends.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let wanted = quantile * sends.last()?.1;
        let n = sends
            .iter()
            .position(|(_, count)| *count >= wanted && wanted > 0.0)?;
        let (bound, upper) = sends[n];
        let (from, lower) = n.checked_sub(1).map_or((0.0, 0.0), |n| sends[n]);
        if bound.is_infinite() {
            return Some(1_000.0 * from);
        }
        Some(1_000.0 * (from + (bound - from) * (wanted - lower) / (upper - lower)))
    }
}

impl Sample {
    fn new(nodes: &[Node], used: &Used, counted: Option<(&Counters, &Counters)>) -> Self {
        let counters = counted.and_then(|(before, now)| now.since(before));
        let seconds = used.seconds.max(0.001);
        let quantile = |quantile| counters.as_ref()?.quantile(quantile);
        let memory = |node: &Node| Some(cpu::anonymous(&[node.pid]).ok()? / 1024.0);
        Sample {
            messages: counters
                .as_ref()
                .map(|counters| counters.messages / seconds),
            send_p50_ms: quantile(0.5),
            send_p99_ms: quantile(0.99),
            processors: used.per_second(),
            memory_mib: nodes.iter().map(memory).collect(),
        }
    }

    /// The processor time of a message in nodes, Postgres and Redis, in µs.
    fn cost_us(&self) -> Option<f64> {
        let used = &self.processors;
        let total = used.nodes.iter().sum::<f64>() + used.postgres + used.redis;
        let messages = self.messages.filter(|messages| *messages >= MIN_MESSAGES)?;
        Some(1e6 * total / messages)
    }
}

/// The plots of a run.
pub fn plots(samples: &[Sample]) -> String {
    let line = |name: &str, value: &dyn Fn(&Sample) -> Option<f64>| Line {
        name: name.to_owned(),
        values: samples.iter().map(value).collect(),
    };
    let nodes = samples.iter().map(|sample| sample.memory_mib.len()).max();
    let memory = (0..nodes.unwrap_or_default()).map(|n| {
        line(&format!("node {}", n + 1), &move |sample: &Sample| {
            *sample.memory_mib.get(n)?
        })
    });
    [
        plot(
            "Stored messages a second",
            &[line("messages", &|sample| sample.messages)],
        ),
        plot(
            "Milliseconds to answer a send over HTTP, by the nodes\u{2019} histograms",
            &[
                line("p50", &|sample| sample.send_p50_ms),
                line("p99", &|sample| sample.send_p99_ms),
            ],
        ),
        plot(
            "Processors in use",
            &[
                line("nodes", &|sample| {
                    Some(sample.processors.nodes.iter().sum())
                }),
                line("Postgres", &|sample| Some(sample.processors.postgres)),
                line("Redis", &|sample| Some(sample.processors.redis)),
                line("load generator", &|sample| Some(sample.processors.client)),
                line("others", &|sample| Some(sample.processors.others.max(0.0))),
            ],
        ),
        plot(
            "Processor time of a message in nodes, Postgres and Redis, in µs",
            &[line("µs a message", &Sample::cost_us)],
        ),
        plot(
            "Anonymous memory of a node, in MiB",
            &memory.collect::<Vec<_>>(),
        ),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(messages: f64, counts: [f64; 3]) -> Counters {
        let bounds = [0.01, 0.02, f64::INFINITY];
        Counters {
            messages,
            sends: bounds.into_iter().zip(counts).collect(),
        }
    }

    #[test]
    fn a_quantile_lies_within_its_bucket() {
        let since = counters(10.0, [50.0, 100.0, 100.0]).since(&counters(0.0, [0.0; 3]));
        let since = since.expect("it grew");
        assert_eq!(since.quantile(0.5), Some(10.0));
        assert_eq!(since.quantile(0.75), Some(15.0));
        // Beyond the last bound nothing more is known.
        assert_eq!(counters(0.0, [0.0, 0.0, 4.0]).quantile(0.5), Some(20.0));
        assert_eq!(counters(0.0, [0.0; 3]).quantile(0.5), None);
    }

    #[test]
    fn a_node_that_began_anew_leaves_a_gap() {
        let before = counters(10.0, [5.0, 5.0, 5.0]);
        assert!(counters(3.0, [1.0, 1.0, 1.0]).since(&before).is_none());
        assert!(before.since(&before).is_some());
    }
}
