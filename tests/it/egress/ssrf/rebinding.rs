//! Attack 41: name servers that change their mind, and names with several addresses.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use tokio::net::TcpListener;

use super::{
    super::{egress, loopback, post, word},
    count,
};
use crate::support::NameServer;

/// A listener on 127.0.0.1 that may be called, and one on 127.0.0.2 that may not, at the same port.
async fn good_and_bad() -> (u16, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    loop {
        let good = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = good.local_addr().expect("an address").port();
        if let Ok(bad) = TcpListener::bind(("127.0.0.2", port)).await {
            return (port, count(good), count(bad));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_41_a_name_server_that_changes_its_mind_wins_nothing() {
    let (port, good, bad) = good_and_bad().await;
    let names = NameServer::start().await;
    names.flip("flip.acme.com", &[&["127.0.0.1"], &["127.0.0.2"]]);
    let egress = egress(loopback(Some(&names)));
    let url = format!("http://flip.acme.com:{port}/");
    let mut outcomes = [0, 0];
    for n in 0..500 {
        // A look at registration, which finds the good address, and the call after it.
        let checked = egress.check(&url).await.is_ok();
        let outcome = word(&post(&egress, &url).await);
        assert!(
            ["200", "forbidden_address"].contains(&outcome.as_str()),
            "{n}: {outcome}"
        );
        assert_eq!(checked, outcome != "200", "each takes the next answer");
        outcomes[usize::from(checked)] += 1;
        if n % 7 == 0 {
            // Shifts the turns, so that both orders are played.
            egress.check(&url).await.ok();
        }
    }
    assert!(outcomes.iter().all(|n| *n > 100), "{outcomes:?}");
    assert!(
        names.asked("flip.acme.com") >= 1000,
        "a question per look and call"
    );
    assert_eq!(bad.load(SeqCst), 0);
    assert!(good.load(SeqCst) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_41_a_single_bad_address_forbids_the_name() {
    let (port, good, bad) = good_and_bad().await;
    let names = NameServer::start().await;
    names.set("inside.acme.com", &["127.0.0.2"]);
    names.set("outside.acme.com", &["127.0.0.1"]);
    names.set("both.acme.com", &["127.0.0.1", "127.0.0.2"]);
    names.set("reversed.acme.com", &["127.0.0.2", "127.0.0.1"]);
    names.set("mapped.acme.com", &["127.0.0.1", "::ffff:127.0.0.1"]);
    names.set("local.acme.com", &["127.0.0.1", "fd00::1"]);
    names.alias("alias.acme.com", "inside.acme.com");
    names.alias("chain.acme.com", "alias.acme.com");
    names.alias("fine.acme.com", "outside.acme.com");
    let egress = egress(loopback(Some(&names)));
    for (name, expected) in [
        ("inside", "forbidden_address"),
        ("both", "forbidden_address"),
        ("reversed", "forbidden_address"),
        ("mapped", "forbidden_address"),
        ("local", "forbidden_address"),
        ("alias", "forbidden_address"),
        ("chain", "forbidden_address"),
        ("outside", "200"),
        ("fine", "200"),
    ] {
        let outcome = post(&egress, &format!("http://{name}.acme.com:{port}/")).await;
        assert_eq!(word(&outcome), expected, "{name}");
    }
    assert_eq!(bad.load(SeqCst), 0);
    assert_eq!(good.load(SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_41_an_open_connection_is_used_only_for_an_address_that_was_checked_now() {
    let (port, good, bad) = good_and_bad().await;
    let third = TcpListener::bind(("127.0.0.3", port))
        .await
        .expect("the port");
    let third = count(third);
    let names = NameServer::start().await;
    let egress = egress(loopback(Some(&names)));
    let url = format!("http://moves.acme.com:{port}/");
    for (address, expected) in [
        ("127.0.0.1", "200"),
        ("127.0.0.1", "200"),
        ("127.0.0.2", "forbidden_address"),
        ("127.0.0.3", "200"),
        ("127.0.0.3", "200"),
    ] {
        names.set("moves.acme.com", &[address]);
        assert_eq!(word(&post(&egress, &url).await), expected, "{address}");
    }
    let counts = [good, bad, third].map(|count| count.load(SeqCst));
    assert_eq!(
        counts,
        [1, 0, 1],
        "connections are kept, and not across addresses"
    );
}
