//! In production nothing leaves the machine in cleartext, unless the operator names the host.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::support::{Ended, FULL_HASHES, ProcessNode, World, nodes, services, spawn};

/// Settings that production needs besides those of a test.
const PRODUCTION: [(&str, &str); 9] = [
    ("PROFILE", "production"),
    FULL_HASHES,
    ("PUBLIC_URL", "https://chat.example.org"),
    ("ALLOWED_ORIGINS", "https://chat.example.org"),
    ("RP_ID", "example.org"),
    ("RP_ORIGIN", "https://chat.example.org"),
    ("MAIL_FROM", "Chat <no-reply@example.org>"),
    ("MAIL_URL", "smtps://mail.example.org"),
    ("TURNSTILE_SECRET", "0x4AAAAAAA"),
];
/// This machine, by an address that is not a loopback address.
const HERE: &str = "0.0.0.0";

fn with<'a>(own: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&PRODUCTION[..], own].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn production_refuses_every_host_that_it_would_reach_in_cleartext() {
    let world = World::new(&[]).await;
    let listener = TcpListener::bind((HERE, 0)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let reached = Arc::<AtomicUsize>::default();
    let count = reached.clone();
    spawn(async move {
        while listener.accept().await.is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let links = [
        ("DATABASE_URL", format!("postgres://x:x@{HERE}:{port}/x")),
        ("REDIS_URL", format!("redis://{HERE}:{port}")),
        ("MAIL_URL", format!("smtp://{HERE}:{port}")),
        ("TURNSTILE_URL", format!("http://{HERE}:{port}/verify")),
        ("OBJECT_STORE_ENDPOINT", format!("http://{HERE}:{port}")),
    ];
    let all: Vec<_> = links.iter().map(|(name, url)| (*name, &**url)).collect();
    let Ended { code, said } = ProcessNode::ends(&world, &with(&all)).await;
    assert_eq!(code, Some(1), "{said}");
    for (name, _) in &links {
        let fault = format!("{name}: {HERE} would be reached without TLS");
        assert!(said.contains(&fault), "{name}: {said}");
    }
    // Each is enough.
    for (name, url) in &links {
        let Ended { code, said } = ProcessNode::ends(&world, &with(&[(*name, url.as_str())])).await;
        assert_eq!(code, Some(1), "{name}: {said}");
        assert!(said.contains(&format!("{name}: {HERE} would")), "{said}");
    }
    assert_eq!(reached.load(Ordering::SeqCst), 0, "nothing was sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn production_reaches_a_host_in_cleartext_that_the_operator_names() {
    let [a] = nodes().await;
    let (database, redis) = (a.world.setting("DATABASE_URL"), services().redis.url());
    let [database, redis] = [database, redis.as_str()].map(|url| url.replace("127.0.0.1", HERE));
    let named = [
        ("DATABASE_URL", database.as_str()),
        ("REDIS_URL", redis.as_str()),
        ("ALLOW_CLEARTEXT", HERE),
    ];
    let node = ProcessNode::start_with(&a, &with(&named)).await;
    let anybody = a.anon().at(&node.base);
    anybody.get("/version").await.expect(200);
}

/// With `sslmode=prefer` an attacker on the path would answer for the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_declines_tls_learns_nothing() {
    let world = World::new(&[]).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let asked = Arc::<AtomicUsize>::default();
    let more = Arc::<AtomicUsize>::default();
    let (count, bytes) = (asked.clone(), more.clone());
    spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 8];
            stream.read_exact(&mut request).await.expect("a request");
            assert_eq!(request[4..], 80_877_103_u32.to_be_bytes(), "for TLS");
            count.fetch_add(1, Ordering::SeqCst);
            stream.write_all(b"N").await.expect("declined");
            let mut rest = Vec::new();
            let reading = stream.read_to_end(&mut rest);
            tokio::time::timeout(Duration::from_secs(5), reading)
                .await
                .ok();
            bytes.fetch_add(rest.len(), Ordering::SeqCst);
        }
    });
    let url = format!("postgres://x:x@127.0.0.1:{port}/x?sslmode=require");
    let Ended { code, said } = ProcessNode::ends(&world, &[("DATABASE_URL", &url)]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(asked.load(Ordering::SeqCst) > 0, "{said}");
    assert_eq!(more.load(Ordering::SeqCst), 0);
}
