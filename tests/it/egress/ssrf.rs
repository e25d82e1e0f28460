//! Attacks 40 and 41: nothing but the public internet is called, however its address is written and
//! whatever the name servers say.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::http::{HeaderMap, HeaderValue};
use blindpipe::egress::{AddressRules, EgressError, EgressSettings, UrlRules};
use bytes::Bytes;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::{egress, loopback, post, word};
use crate::support::{NameServer, spawn};

/// Hosts that must not be called: addresses in every notation, and names.
const FORBIDDEN_HOSTS: &[&str] = &[
    // Loopback, plainly.
    "127.0.0.1",
    "127.0.0.2",
    "127.1.2.3",
    "127.127.127.127",
    "127.255.255.254",
    // Loopback in decimal, octal, hexadecimal, mixed and short forms.
    "2130706433",
    "017700000001",
    "0x7f000001",
    "0x7F000001",
    "0x7f.0x0.0x0.0x1",
    "0x7f.1",
    "127.1",
    "127.0.1",
    "0177.0.0.1",
    "0177.0.0.01",
    "00000177.0.0.1",
    "127.0.0.0x1",
    "0x7f.0.0.01",
    "127.0.0.1.",
    "127.1.",
    "0x7f.1.",
    // Loopback in other scripts and with encoded characters.
    "①②⑦.⓪.⓪.①",
    "１２７.０.０.１",
    "127。0。0。1",
    "127%2e0%2e0%2e1",
    "%31%32%37.0.0.1",
    "ⓛocalhost",
    "l%6fcalhost",
    "ℒocalhost",
    // Names of loopback.
    "localhost",
    "LOCALHOST",
    "localhost.",
    "sub.localhost",
    "localhost.localdomain",
    "a.b.localhost",
    "ip6-localhost",
    "ip6-loopback",
    // Unspecified.
    "0.0.0.0",
    "0",
    "0x0",
    "00",
    "0.0",
    "0.1.2.3",
    "0.255.255.255",
    // Private.
    "10.0.0.0",
    "10.0.0.1",
    "10.255.255.255",
    "0xa.1",
    "012.0.0.1",
    "167772161",
    "0x0a000001",
    "172.16.0.1",
    "172.31.255.255",
    "172.20.1",
    "192.168.0.1",
    "192.168.255.255",
    "192.168.1",
    "3232235521",
    "0300.0250.0.1",
    "0xc0a80001",
    // Carrier-grade NAT.
    "100.64.0.1",
    "100.127.255.255",
    "100.100.100.200",
    // Link-local and metadata services.
    "169.254.0.1",
    "169.254.169.254",
    "169.254.170.2",
    "169.254.169.123",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "169.254.43518",
    "168.63.129.16",
    "192.0.0.192",
    "[fd00:ec2::254]",
    "[fe80::a9fe:a9fe]",
    "metadata.google.internal",
    "metadata",
    "instance-data.ec2.internal",
    // Protocol assignments, documentation, benchmarks, relays.
    "192.0.0.1",
    "192.0.0.170",
    "192.0.2.1",
    "198.51.100.7",
    "203.0.113.9",
    "198.18.0.1",
    "198.19.255.255",
    "192.88.99.1",
    "192.31.196.1",
    "192.52.193.1",
    "192.175.48.1",
    // Multicast, reserved, broadcast.
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "254.255.255.254",
    "255.255.255.255",
    "4294967295",
    "0xffffffff",
    // IPv6 loopback and unspecified.
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[0000:0000:0000:0000:0000:0000:0000:0001]",
    "[::0.0.0.1]",
    // IPv4 inside IPv6: mapped, compatible, translated.
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:127.0.0.1]",
    "[::FFFF:0:0]",
    "[::ffff:10.0.0.1]",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]",
    "[::ffff:192.168.1.1]",
    "[::ffff:8.8.8.8]",
    "[::127.0.0.1]",
    "[::7f00:1]",
    "[::a00:1]",
    "[::ffff:0:127.0.0.1]",
    // NAT64, with both prefixes.
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::a00:1]",
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b::8.8.8.8]",
    "[64:ff9b:1::7f00:1]",
    "[64:ff9b:1:ffff::a00:1]",
    // 6to4, Teredo, ISATAP.
    "[2002:7f00:1::]",
    "[2002:a00:1::1]",
    "[2002:a9fe:a9fe::]",
    "[2002:c0a8:101::1]",
    "[2001::1]",
    "[2001:0:53aa:64c:0:fbff:80ff:fffe]",
    "[2a00:1450::5efe:127.0.0.1]",
    "[2a00:1450::200:5efe:a00:1]",
    // Unique local, link-local, site-local, multicast.
    "[fc00::1]",
    "[fd00::1]",
    "[fd12:3456:789a:1::1]",
    "[fe80::1]",
    "[febf::1]",
    "[fec0::1]",
    "[feff::1]",
    "[ff01::1]",
    "[ff02::1]",
    "[ff05::2]",
    "[ff0e::1]",
    // Discard, documentation, benchmarks, ORCHID, segment routing.
    "[100::1]",
    "[100:0:0:1::1]",
    "[2001:db8::1]",
    "[3fff::1]",
    "[2001:2::1]",
    "[2001:10::1]",
    "[2001:20::1]",
    "[5f00::1]",
    "[2620:4f:8000::1]",
    "[4000::1]",
    // Zones, broken brackets, names of private networks.
    "[fe80::1%25eth0]",
    "[::1%25lo]",
    "printer",
    "router.lan",
    "nas.local",
    "db.internal",
    "wiki.corp",
    "gw.home.arpa",
    "x.onion",
    "kubernetes.default.svc.cluster.local",
    "own.example.org",
    "OWN.example.org",
    "own.example.org.",
];

/// Whole URLs whose form hides their host.
const FORBIDDEN_URLS: &[&str] = &[
    "https://acme.com@127.0.0.1:PORT/",
    "https://acme.com:443@127.0.0.1:PORT/",
    "https://127.0.0.1:PORT@acme.com/",
    "https://acme.com#@127.0.0.1:PORT/",
    "https://acme.com\\@127.0.0.1:PORT/",
    "https:\\\\127.0.0.1:PORT/",
    "https:/127.0.0.1:PORT/",
    "https:127.0.0.1:PORT/",
    "https:///127.0.0.1:PORT/",
    "//127.0.0.1:PORT/",
    "127.0.0.1:PORT/",
    " https://127.0.0.1:PORT/",
    "https://127.0.0.1:PORT/\r\nHost: acme.com",
    "https://127.0.0.1\t:PORT/",
    "https://127.0.0.1 :PORT/",
    "http://127.0.0.1:PORT/",
    "http://acme.com/",
    "ws://127.0.0.1:PORT/",
    "gopher://127.0.0.1:PORT/_x",
    "ftp://127.0.0.1:PORT/",
    "file:///etc/passwd",
    "file://127.0.0.1/etc/passwd",
    "data:text/plain,x",
    "javascript:alert(1)",
    "jar:https://127.0.0.1:PORT!/",
    "https://1.1.1.1:22/",
    "https://1.1.1.1:25/",
    "https://1.1.1.1:6379/",
    "https://1.1.1.1:0/",
    "https://1.1.1.1:65536/",
    "https://0x01010101:443/",
    "https://16843009:443/",
];

/// A listener on every address of this machine, IPv4 and IPv6, that counts connections.
fn everywhere() -> (u16, Arc<AtomicUsize>) {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).expect("a socket");
    socket.set_only_v6(false).expect("both families");
    let any: SocketAddr = "[::]:0".parse().expect("an address");
    socket.bind(&any.into()).expect("a port");
    socket.listen(1024).expect("listening");
    socket.set_nonblocking(true).expect("not blocking");
    let listener = TcpListener::from_std(socket.into()).expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    (port, count(listener))
}

/// Counts connections and answers each request with 200.
fn count(listener: TcpListener) -> Arc<AtomicUsize> {
    let connections = Arc::<AtomicUsize>::default();
    let counted = connections.clone();
    spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, SeqCst);
            spawn(async move {
                let mut request = [0; 4096];
                while stream.read(&mut request).await.is_ok_and(|n| n > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                    stream.write_all(answer).await.ok();
                }
            });
        }
    });
    connections
}

fn production(port: u16, names: Option<&NameServer>) -> EgressSettings {
    let own = ["https://own.example.org"].map(|own| own.parse().expect("a URL"));
    EgressSettings {
        rules: UrlRules {
            dev: false,
            ports: vec![443, port],
            own: own.into(),
            addresses: AddressRules::default(),
        },
        ..loopback(names)
    }
}

/// The refusals that name the address or its form; any other word would mean a try to connect.
fn is_refused(word: &str) -> bool {
    ["forbidden_address", "invalid_url"].contains(&word)
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_40_internal_addresses_are_refused_in_every_notation() {
    let (port, connections) = everywhere();
    // No name of the corpus may get as far as a name server.
    let names = NameServer::start().await;
    let egress = egress(production(port, Some(&names)));
    let hosts = FORBIDDEN_HOSTS.iter();
    let urls: Vec<String> = hosts
        .flat_map(|host| {
            [
                format!("https://{host}:{port}/x?y"),
                format!("https://{host}/x"),
            ]
        })
        .chain(
            FORBIDDEN_URLS
                .iter()
                .map(|url| url.replace("PORT", &port.to_string())),
        )
        .collect();
    assert!(FORBIDDEN_HOSTS.len() + FORBIDDEN_URLS.len() >= 190);
    for url in &urls {
        let checked = egress
            .check(url)
            .await
            .err()
            .map_or("allowed", EgressError::word);
        assert!(is_refused(checked), "check {url}: {checked}");
        let posted = word(&post(&egress, url).await);
        assert!(is_refused(&posted), "post {url}: {posted}");
    }
    assert_eq!(connections.load(SeqCst), 0);
    // The listener would have noticed: the dev profile reaches it.
    let dev = super::egress(loopback(None));
    for host in ["127.0.0.1", "[::1]", "localhost"] {
        let outcome = post(&dev, &format!("http://{host}:{port}/")).await;
        assert_eq!(word(&outcome), "200", "{host}");
    }
    assert_eq!(connections.load(SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_40_names_that_lead_inside_are_refused() {
    let (port, connections) = everywhere();
    let names = NameServer::start().await;
    let production = egress(production(port, Some(&names)));
    let dev = egress(loopback(Some(&names)));
    let addresses = FORBIDDEN_HOSTS.iter().filter_map(|host| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host.parse::<IpAddr>().ok()
    });
    let mut checked = 0;
    for (n, ip) in addresses.enumerate() {
        let name = format!("n{n}.acme.com");
        names.set(&name, &[&ip.to_string()]);
        let url = format!("https://{name}:{port}/");
        assert_eq!(
            word(&post(&production, &url).await),
            "forbidden_address",
            "{ip}"
        );
        assert!(production.check(&url).await.is_err(), "{ip}");
        if !ip.is_loopback() || ip.to_string() == "127.0.0.2" {
            assert_eq!(
                word(&post(&dev, &url).await),
                "forbidden_address",
                "dev, {ip}"
            );
        }
        checked += 1;
    }
    assert!(checked >= 80, "{checked}");
    for name in ["missing.acme.com", "empty.acme.com"] {
        names.set("empty.acme.com", &[]);
        let outcome = post(&production, &format!("https://{name}:{port}/")).await;
        assert_eq!(word(&outcome), "dns");
    }
    assert_eq!(connections.load(SeqCst), 0);
}

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

#[tokio::test(flavor = "multi_thread")]
async fn attack_41_a_redirect_is_an_answer_and_leads_nowhere() {
    let (inside_port, inside) = everywhere();
    let egress = egress(loopback(None));
    for status in ["300", "301", "302", "303", "305", "307", "308"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let answer = format!(
            "HTTP/1.1 {status} Moved\r\nlocation: http://127.0.0.1:{inside_port}/\r\n\
             refresh: 0; url=http://127.0.0.1:{inside_port}/\r\nalt-svc: http/1.1=\":{inside_port}\"\r\n\
             content-length: 0\r\n\r\n"
        );
        spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a call");
            let mut request = [0; 4096];
            while stream.read(&mut request).await.is_ok_and(|n| n > 0) {
                stream.write_all(answer.as_bytes()).await.ok();
            }
        });
        for _ in 0..2 {
            let outcome = post(&egress, &format!("http://{address}/")).await;
            assert_eq!(word(&outcome), status);
        }
    }
    tokio::time::sleep(Duration::from_millis(50)).await; // for a call that nobody should have made
    assert_eq!(inside.load(SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_receiver_sees_the_name_and_the_path_and_exactly_the_body() {
    let names = NameServer::start().await;
    names.set("hooks.acme.com", &["127.0.0.1"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let received = spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a call");
        let mut request = Vec::new();
        while !request.ends_with(b"{\"a\": 1.50}") {
            assert_ne!(stream.read_buf(&mut request).await.expect("a request"), 0);
        }
        stream
            .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
            .await
            .expect("answered");
        String::from_utf8(request).expect("text")
    });
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    let url = format!("http://Hooks.acme.com:{port}/a%20b/?key=s3cret&x");
    let body = Bytes::from_static(b"{\"a\": 1.50}");
    let reply = egress(loopback(Some(&names)))
        .post(&url, headers, body)
        .await;
    assert_eq!(word(&reply), "204");
    let request = received.await.expect("a request");
    let (head, _) = request.split_once("\r\n\r\n").expect("an end");
    let mut lines: Vec<&str> = head.split("\r\n").collect();
    lines.sort_unstable();
    let host = format!("host: hooks.acme.com:{port}");
    let mut expected = [
        "POST /a%20b/?key=s3cret&x HTTP/1.1",
        "content-length: 11",
        "content-type: application/json",
        &host,
        concat!("user-agent: blindpipe/", env!("CARGO_PKG_VERSION")),
    ];
    expected.sort_unstable();
    assert_eq!(lines, expected);
}
