//! The probe of readiness: a probe costs Postgres at most a query a second.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use crate::support::{Held, Proxy, World};

/// How long an answer of Postgres stands.
const TTL: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_postgres_stands_for_a_second() {
    let world = World::new(&[("DATABASE_TIMEOUT_MS", "500")]).await;
    let url = world.setting("DATABASE_URL").to_owned();
    let (_, place) = url.split_once('@').expect("a role in the URL");
    let (address, _) = place.split_once('/').expect("a database in the URL");
    let proxy = Proxy::before(address).await;
    let url = url.replace(address, &proxy.address);
    let node = world.node_with(&[("DATABASE_URL", &url)]).await;
    let http = reqwest::Client::new();
    let probe = async || {
        let answer = http
            .get(format!("{}/health/ready", node.admin))
            .send()
            .await;
        answer.expect("an answer").status().as_u16()
    };
    // Real time: the next probe asks Postgres.
    tokio::time::sleep(TTL).await;
    assert_eq!(probe().await, 200);
    proxy.hold(Held::Both);
    let started = Instant::now();
    let statuses = join_all((0..20).map(|_| probe())).await;
    assert!(started.elapsed() < TTL, "{:?}", started.elapsed());
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");

    // Once it has passed, twenty probes share one question, and its deadline.
    tokio::time::sleep(TTL).await;
    let started = Instant::now();
    let statuses = join_all((0..20).map(|_| probe())).await;
    assert!(statuses.iter().all(|status| *status == 503), "{statuses:?}");
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
    proxy.hold(Held::Nothing);
}
