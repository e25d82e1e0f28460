//! Delivery in a simulated world: several nodes, Postgres and Redis in one thread, with a clock that
//! jumps. The hub, the backplane, the sweep and the order of a socket's events are the real ones.
//! Only what they ask of Redis ([`redis`]) and of Postgres ([`postgres`]), the heartbeats and the
//! clients ([`client`]) are simulated.
//!
//! A seed chooses the sends, the faults ([`faults`]) and the time of every call. It does not choose the
//! order of hash maps and of `select!`, so a seed repeats the world and not each step in it.
//! `SIMULATION_SEED` runs a single seed, and `SIMULATION_SEEDS` sets their number.

mod chance;
mod client;
mod faults;
mod postgres;
mod redis;
mod world;

use std::time::{Duration, Instant};

use history::{Fault, judge};

use self::world::World;

/// Seeds of a quick run: some seconds.
const QUICK_SEEDS: u64 = 150;
/// Seeds of a long run.
const LONG_SEEDS: u64 = 5_000;

/// The faults of the world of a seed.
fn faults_of(seed: u64) -> Vec<Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let history = runtime.block_on(World::run(seed));
    assert!(!history.sends.is_empty(), "seed {seed}: nobody sent");
    judge(&history)
}

#[expect(clippy::print_stderr, reason = "how fast it is")]
fn run(default: u64) {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seeds = match number("SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SIMULATION_SEEDS").unwrap_or(default),
    };
    let (began, count) = (Instant::now(), seeds.end - seeds.start);
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let found: Vec<(u64, Vec<Fault>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|n| {
                let own = seeds.clone().filter(move |seed| seed % threads == n);
                scope.spawn(move || {
                    let judged = own.map(|seed| (seed, faults_of(seed)));
                    judged
                        .filter(|(_, faults)| !faults.is_empty())
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let joined = workers.into_iter().map(|one| one.join().expect("no panic"));
        joined.flatten().collect()
    });
    let time = began.elapsed();
    let rate = Duration::from_secs(60).as_secs_f64() * count as f64 / time.as_secs_f64();
    eprintln!("{count} seeds in {time:.1?}, {rate:.0} a minute");
    let (some, all) = (&found[..found.len().min(3)], found.len());
    assert!(
        found.is_empty(),
        "{all} of {count} seeds have faults: {some:?}"
    );
}

#[test]
fn nothing_is_lost_doubled_or_reordered_in_a_simulated_world() {
    run(QUICK_SEEDS);
}

#[test]
#[ignore = "takes minutes"]
fn nothing_is_lost_doubled_or_reordered_in_many_simulated_worlds() {
    run(LONG_SEEDS);
}

/// A simulation that finds no bug shows nothing.
#[cfg(feature = "planted-bugs")]
#[test]
fn planted_bugs_are_found_in_a_simulated_world() {
    let program = std::env::current_exe().expect("a program");
    for bug in ["no_sweep", "hint_is_truth"] {
        let found = std::process::Command::new(&program)
            .args(["a_simulated_world", "--skip", "planted", "--nocapture"])
            .env("PLANTED_BUG", bug)
            .env("SIMULATION_SEEDS", "100")
            .output()
            .expect("a process");
        let said = String::from_utf8_lossy(&found.stderr);
        assert!(said.contains("seeds have faults"), "{bug}: {said}");
    }
}
