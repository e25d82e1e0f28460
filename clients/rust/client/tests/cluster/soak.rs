//! A service that goes away again and again: each message is answered once, and memory is level.

use std::{collections::BTreeMap, env, fs, time::Duration};

use blindpipe_client::client::Conversation;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use crate::{
    proxy::Proxy,
    readme::Mortal,
    support::{folder, history, is_by_agent, scene, watch},
};

/// Each lasts longer than the one before by the same factor.
const OUTAGES: i32 = 20;
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(600);
/// Longer outages are shorter by this. The waits of the agent are those of production.
const TIME_SCALE: f64 = 300.0;
const PEOPLE: usize = 20;
/// A person may send ten messages a second.
const BETWEEN_SENDS: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(60);
const MAX_GROWTH_KILOBYTES: u64 = 8 * 1024;

/// In an order of their own, so that a long one does not always come last.
fn outages() -> Vec<Duration> {
    let factor =
        (LONGEST.as_secs_f64() / SHORTEST.as_secs_f64()).powf(1.0 / f64::from(OUTAGES - 1));
    let meant = (0..OUTAGES).map(|n| SHORTEST.mul_f64(factor.powi(n * 7 % OUTAGES)));
    meant
        .map(|it| it.div_f64(TIME_SCALE).max(SHORTEST))
        .collect()
}

/// The memory of a process, where the machine tells it.
fn kilobytes(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number
        .and_then(|number| number.parse().ok())
        .unwrap_or_default()
}

/// How often each text was answered.
async fn answers(conversation: &Conversation) -> BTreeMap<String, u32> {
    let mut count = BTreeMap::new();
    for received in history(conversation).await {
        if is_by_agent(&received) {
            *count.entry(received.text().to_owned()).or_default() += 1;
        }
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn each_message_is_answered_once_while_the_service_goes_away_twenty_times() {
    let messages: usize = env::var("SOAK").map_or(1_000, |it| it.parse().expect("a number"));
    let each = messages / PEOPLE;
    let scene = scene("soaked").await;
    scene.builder().build().check().await.expect("a key");
    let proxy = Proxy::before(&scene.cluster, 1).await;
    let pins = folder().join(format!("pins-{}", scene.agent.id));
    let mut agent = Mortal::start(&scene, &proxy, Some(&pins));
    let people = (0..PEOPLE).map(|_| scene.cluster.user("soak"));
    let people = join_all(people).await.into_iter();
    let people: Vec<_> = people.map(|user| user.expect("a person")).collect();
    let open = people
        .iter()
        .map(|user| user.client.open_agent(scene.agent.id));
    let talks = join_all(open)
        .await
        .into_iter()
        .map(|it| it.expect("opened"));
    let talks: Vec<_> = talks.collect();
    let says = talks.iter().map(|talk| async {
        for number in 0..each {
            talk.send(number.to_string()).await.expect("sent");
            sleep(BETWEEN_SENDS).await;
        }
    });
    let began = Instant::now();
    let process = agent.process_id();
    let (first, between) = (Duration::from_secs(2), Duration::from_millis(300));
    let goes_away = async {
        sleep(first).await;
        let memory = kilobytes(process);
        for outage in outages() {
            proxy.go_away();
            sleep(outage).await;
            proxy.come_back();
            sleep(between).await;
        }
        memory
    };
    let (memory, _) = tokio::join!(goes_away, join_all(says));
    let wanted: BTreeMap<_, _> = (0..each).map(|n| (format!("You said: {n}"), 1)).collect();
    for talk in &talks {
        let until = Instant::now() + PATIENCE;
        loop {
            let answered = answers(talk).await;
            if answered.len() >= each {
                break;
            }
            assert!(Instant::now() < until, "all are answered: {answered:?}");
            sleep(Duration::from_millis(200)).await;
        }
    }
    let growth = kilobytes(process).saturating_sub(memory);
    assert!(
        growth < MAX_GROWTH_KILOBYTES,
        "{growth} kB in {:?}",
        began.elapsed()
    );
    let mut events = watch(&people[0]).await;
    let said = events.ask(&talks[0], "Are you there?").await;
    assert_eq!(said, "You said: Are you there?");
    for talk in &talks[1..] {
        assert_eq!(answers(talk).await, wanted);
    }
    agent.die();
}
