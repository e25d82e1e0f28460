//! Load scenarios for a blindpipe cluster: the source of the README's numbers.
//!
//! `loadtest send hop` measures a running cluster. `loadtest --start target/release/devcluster`
//! measures one that it starts and stops itself. Everything runs on one thread: the load generator
//! shares the machine with the nodes and must use as little of it as possible. Its own usage is in
//! the report.
#![allow(
    clippy::disallowed_methods,
    reason = "real time and plain tasks are what a load generator is about"
)]

mod baseline;
mod capacity;
mod cluster;
mod compare;
mod cpu;
mod crowd;
mod delivery;
mod fixtures;
mod http;
mod launch;
mod pacer;
mod page;
mod passage;
mod peers;
mod pgbench;
mod plain;
mod receiver;
mod redis;
mod release;
mod report;
mod results;
mod scenarios;
mod slo;
mod socket;
mod stats;
mod timeline;

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;

use self::{
    baseline::Baseline, capacity::Capacity, cluster::Cluster, compare::Comparison,
    launch::Launched, report::say, scenarios::Scenario, slo::Slo, timeline::Sampler,
};

/// An error that prevents a measurement.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
/// The outcome of anything here.
pub type Result<T> = std::result::Result<T, Failure>;

/// Measures a cluster and checks that it loses, repeats and reorders nothing. Ends with 1 if it
/// does. `loadtest compare OLD NEW SCENARIO` measures two sets of programs in turns, and `loadtest
/// capacity` says what a cluster needs for a load.
#[derive(Parser)]
pub struct Options {
    /// Scenarios to run, in this order [default: those without thousands of sockets]
    #[arg(value_enum)]
    scenarios: Vec<Scenario>,
    /// The running cluster
    #[arg(long, default_value = ".dev/cluster.json")]
    cluster: PathBuf,
    /// Start a cluster with this `devcluster` program instead, with limits raised, and stop it
    /// afterwards
    #[arg(long, value_name = "PROGRAM")]
    start: Option<PathBuf>,
    /// Folder of the cluster that --start starts, and of the reports
    #[arg(long, default_value = ".dev/load")]
    dir: PathBuf,
    /// Measure a release elsewhere, with these base URLs: sends go to the first, sockets to the
    /// last. Takes hop, send, sockets, storm and fanout [default: hop]. The release's limits hold:
    /// --rate is at most ten a second and account
    #[arg(long, value_name = "URL", requires = "accounts", conflicts_with_all = ["start", "record"])]
    base_url: Vec<String>,
    /// The ready accounts of that release. The run renews the cookies in this file
    #[arg(long, value_name = "FILE", requires = "base_url")]
    accounts: Option<PathBuf>,
    /// The certificate authority of that release [default: those that this machine trusts]
    #[arg(long, value_name = "FILE", requires = "base_url")]
    ca: Option<PathBuf>,
    /// Make --pairs accounts in the cluster, write them to this file, and measure nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["base_url", "scenarios"])]
    write_accounts: Option<PathBuf>,
    /// Conversations of one user with one agent
    #[arg(long, default_value_t = 50)]
    pairs: usize,
    /// Rounds; every phase is measured once in each, and the medians count
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of each measured phase, after one second of warming up
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    /// Sends under way at once (send)
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// Messages per second (hop)
    #[arg(long, default_value_t = 1000)]
    rate: u64,
    /// Sockets [default: 1000 (fanout, sweep), 10000 (idle), 5000 (storm), 2000 (slow), 20000 (nodes)]
    #[arg(long)]
    sockets: Option<usize>,
    /// Sends and reads, by so many clients at once as are given by --in-flight (history)
    #[arg(long, default_value_t = 100_000)]
    operations: usize,
    /// Minutes of the soak
    #[arg(long, default_value_t = 3)]
    minutes: u64,
    /// Repeats the choices of an earlier run (history, soak)
    #[arg(long)]
    seed: Option<u64>,
    /// Nodes [default: 2 (sweep), 4 (scaleout), 100 (nodes)]
    #[arg(long)]
    nodes: Option<usize>,
    /// Members of the group (sweep)
    #[arg(long, default_value_t = 50)]
    members: usize,
    /// Rows at full size (search, purge, size), and rows of a year (year)
    #[arg(long, default_value_t = 1_000_000)]
    rows: usize,
    /// Size of a file, in MB of 1,048,576 bytes (upload)
    #[arg(long, default_value_t = 100)]
    megabytes: usize,
    /// Agents whose webhooks have nothing to deliver, beside a thousand that have (webhooks)
    #[arg(long, default_value_t = 20_000)]
    agents: usize,
    /// Leave out the comparison with pgbench (send), the floor and Socket.IO (hop, fanout, idle)
    #[arg(long)]
    no_peers: bool,
    /// End with 1 if a message's way to its reader takes longer than so many milliseconds at its p99
    /// (hop, and a release elsewhere)
    #[arg(long, value_name = "MS")]
    max_p99: Option<f64>,
    /// Hold the figures to the bars of this file, and end with 1 if one is missed
    #[arg(long, value_name = "FILE")]
    slo: Option<PathBuf>,
    /// Record the ratios in loadtest/results and in the table of loadtest/README.md
    #[arg(long)]
    record: bool,
    #[command(flatten)]
    baseline: Baseline,
}

impl Options {
    /// The number of sockets from the options, or `default`.
    fn sockets_or(&self, default: usize) -> usize {
        self.sockets.unwrap_or(default)
    }

    /// The seed from the options, or another one for each run.
    fn seed_or_random(&self) -> u64 {
        self.seed.unwrap_or_else(|| std::process::id().into())
    }
}

fn main() -> ExitCode {
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .ok();
    let mut arguments = std::env::args_os();
    let first = arguments.nth(1).unwrap_or_default();
    let rest = |program: &str| [program.into()].into_iter().chain(arguments);
    match first.to_str() {
        Some("compare") => return ended(Comparison::parse_from(rest("loadtest compare")).run()),
        Some("capacity") => {
            Capacity::parse_from(rest("loadtest capacity")).run();
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let options = Options::parse();
    let runtime = options.baseline.runtime();
    let outcome = runtime
        .map_err(Failure::from)
        .and_then(|runtime| runtime.block_on(until_interrupted(&options)));
    ended(outcome)
}

fn ended(outcome: Result<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            report::warn(format!("loadtest: {failure}"));
            ExitCode::FAILURE
        }
    }
}

/// Ctrl-C drops the run, and with it the cluster that it may have started.
async fn until_interrupted(options: &Options) -> Result<bool> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        outcome = Box::pin(run(options)) => outcome,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
        _ = terminate.recv() => Err("terminated".into()),
    }
}

/// Raises the limit on open files, which child processes inherit. Sockets are files.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    )
    .ok();
}

/// Runs the scenarios. True if every acked message arrived exactly once, in order and within the
/// bound of the options.
async fn run(options: &Options) -> Result<bool> {
    raise_file_limit();
    if let Some(file) = &options.slo {
        // A fault in the file shows before the run, not after it.
        Slo::read(file)?;
    }
    if options.baseline.is_wanted() {
        return options.baseline.serve().await.map(|()| true);
    }
    if let Some(accounts) = &options.accounts {
        return release::run(accounts, options).await;
    }
    let launched = match &options.start {
        Some(program) => Some(Launched::start(program, &options.dir).await?),
        None => None,
    };
    let file = launched
        .as_ref()
        .map_or(&options.cluster, |launched| &launched.cluster_file);
    let cluster = Cluster::read(file)?;
    if let Some(file) = &options.write_accounts {
        let pairs = fixtures::make(&cluster, options.pairs).await?;
        release::write_accounts(file, &pairs)?;
        say(format!(
            "{} accounts are in {}.",
            pairs.len(),
            file.display()
        ));
        return Ok(true);
    }
    let all = [
        Scenario::Login,
        Scenario::Send,
        Scenario::Hop,
        Scenario::Limiter,
    ];
    let wanted = if options.scenarios.is_empty() {
        &all[..]
    } else {
        &options.scenarios
    };
    if options.max_p99.is_some() && !wanted.iter().any(|one| matches!(one, Scenario::Hop)) {
        return Err("--max-p99 bounds hop, which is not among the scenarios".into());
    }
    let mut sound = true;
    let mut fixtures = Vec::new();
    if wanted.iter().any(|scenario| scenario.needs_people()) {
        say(format!(
            "Making {} users, agents and conversations.",
            options.pairs
        ));
        fixtures = fixtures::make(&cluster, options.pairs).await?;
    }
    for scenario in wanted {
        let sampler = Sampler::start(&cluster).await?;
        let running = scenario.run(&cluster, &mut fixtures, options);
        let report = report::with_progress(*scenario, running).await?;
        sound &= report.is_sound(options)?;
        let samples = sampler.finish().await?;
        report.publish(&cluster, &samples, options).await?;
    }
    Ok(sound)
}
