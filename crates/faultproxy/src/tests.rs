//! Every mode, over real sockets.

#![expect(clippy::disallowed_methods, reason = "its tasks end with a test")]

use std::{io::ErrorKind, time::Instant};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::*;

/// A wait in which something would have happened.
const SHORT: Duration = Duration::from_millis(80);
/// A wait in which something must happen.
const LONG: Duration = Duration::from_secs(10);

/// A proxy before a server that repeats what it hears.
async fn echo() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let server = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await.ok();
                to.shutdown().await.ok();
            });
        }
    });
    let listen = "127.0.0.1:0".parse().expect("an address");
    Proxy::start(listen, server, 7).await.expect("a proxy")
}

async fn connect(proxy: &Proxy) -> TcpStream {
    let connected = TcpStream::connect(proxy.address()).await;
    connected.expect("a connection")
}

/// Says a word and waits for its echo.
async fn talk(stream: &mut TcpStream, word: &str) -> io::Result<String> {
    stream.write_all(word.as_bytes()).await?;
    hear(stream, word.len()).await
}

async fn hear(stream: &mut TcpStream, n: usize) -> io::Result<String> {
    let mut heard = vec![0; n];
    let reading = timeout(LONG, stream.read_exact(&mut heard));
    reading.await.map_err(io::Error::other)??;
    Ok(String::from_utf8(heard).expect("text"))
}

/// Whether nothing comes for a while.
async fn is_silent(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    timeout(SHORT, stream.read(&mut byte)).await.is_err()
}

/// The end of a stream: the bytes before it, and the kind of its error.
async fn end(stream: &mut TcpStream) -> (Vec<u8>, Option<ErrorKind>) {
    let mut heard = Vec::new();
    let ended = timeout(LONG, stream.read_to_end(&mut heard)).await;
    let ended = ended.expect("an end");
    (heard, ended.err().map(|error| error.kind()))
}

#[tokio::test]
async fn bytes_pass_in_both_directions_and_so_does_an_end() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    assert_eq!(talk(&mut stream, "word").await.expect("an echo"), "word");
    assert_eq!(proxy.connections(), 1);
    // A half close reaches the server, which then ends its own half.
    stream.write_all(b"last").await.expect("written");
    stream.shutdown().await.expect("closed");
    assert_eq!(end(&mut stream).await, (b"last".to_vec(), None));
    // A megabyte is larger than all buffers on the way.
    let large = "x".repeat(1 << 20);
    let (mut from, mut to) = connect(&proxy).await.into_split();
    let sent = large.clone();
    tokio::spawn(async move {
        to.write_all(sent.as_bytes()).await.expect("written");
        to.shutdown().await.expect("closed");
    });
    let mut heard = String::new();
    from.read_to_string(&mut heard).await.expect("text");
    assert!(heard == large);
}

#[tokio::test]
async fn a_delay_counts_in_each_direction_and_keeps_the_order() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    talk(&mut stream, "word").await.expect("an echo");
    let (least, jitter) = (Duration::from_millis(40), Duration::from_millis(30));
    proxy.set(Mode::Delay { least, jitter });
    let began = Instant::now();
    talk(&mut stream, "word").await.expect("an echo");
    assert!(began.elapsed() >= 2 * least, "{:?}", began.elapsed());
    // Pieces that are under way together do not overtake each other, nor add up.
    let began = Instant::now();
    let words: String = (100..150).map(|n| n.to_string()).collect();
    for n in 100..150 {
        let piece = n.to_string();
        stream.write_all(piece.as_bytes()).await.expect("written");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(hear(&mut stream, words.len()).await.expect("words"), words);
    assert!(began.elapsed() < 50 * least, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_rate_bounds_the_bytes_of_a_second() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    proxy.set(Mode::Rate {
        bytes_per_second: 10_000,
    });
    let began = Instant::now();
    let word = "x".repeat(3_000);
    assert_eq!(talk(&mut stream, &word).await.expect("an echo"), word);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(250), "{took:?}");
}

#[tokio::test]
async fn a_black_hole_keeps_everything_for_later() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    talk(&mut stream, "word").await.expect("an echo");
    proxy.set(Mode::BlackHole);
    stream.write_all(b"held").await.expect("written");
    let mut other = connect(&proxy).await;
    other.write_all(b"also").await.expect("written");
    assert!(is_silent(&mut stream).await && is_silent(&mut other).await);
    proxy.set(Mode::Pass);
    assert_eq!(hear(&mut stream, 4).await.expect("an echo"), "held");
    assert_eq!(hear(&mut other, 4).await.expect("an echo"), "also");
}

#[tokio::test]
async fn a_half_open_connection_moves_in_one_direction() {
    let proxy = echo().await;
    for way in [Way::ToServer, Way::ToClient] {
        proxy.set(Mode::Pass);
        let mut stream = connect(&proxy).await;
        talk(&mut stream, "word").await.expect("an echo");
        proxy.set(Mode::HalfOpen(way));
        stream.write_all(b"held").await.expect("written");
        assert!(is_silent(&mut stream).await, "{way:?}");
        // The other direction, alone, has brought what was held on this side.
        proxy.set(Mode::HalfOpen(match way {
            Way::ToServer => Way::ToClient,
            Way::ToClient => Way::ToServer,
        }));
        let arrived = !is_silent(&mut stream).await;
        assert_eq!(arrived, way == Way::ToClient, "{way:?}");
    }
}

#[tokio::test]
async fn a_reset_ends_open_and_new_connections() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    talk(&mut stream, "word").await.expect("an echo");
    proxy.set(Mode::Reset);
    let reset = Some(ErrorKind::ConnectionReset);
    assert_eq!(end(&mut stream).await, (Vec::new(), reset));
    let mut new = connect(&proxy).await;
    assert_eq!(end(&mut new).await, (Vec::new(), reset));
    proxy.set(Mode::Pass);
    let mut stream = connect(&proxy).await;
    talk(&mut stream, "word").await.expect("an echo");
}

#[tokio::test]
async fn refused_are_new_connections_only() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    talk(&mut stream, "word").await.expect("an echo");
    proxy.set(Mode::Refuse);
    let began = Instant::now();
    loop {
        match TcpStream::connect(proxy.address()).await {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => break,
            _ => assert!(began.elapsed() < LONG, "it listens"),
        }
    }
    talk(&mut stream, "word").await.expect("an echo");
    proxy.set(Mode::Pass);
    while TcpStream::connect(proxy.address()).await.is_err() {
        assert!(began.elapsed() < LONG, "it does not listen");
    }
}

#[tokio::test]
async fn a_connection_is_cut_after_a_number_of_bytes() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    talk(&mut stream, "before").await.expect("an echo");
    // Ten bytes to the server, and six of its answer.
    proxy.set(Mode::CutAfter { bytes: 16 });
    // The connection has to learn of it.
    tokio::time::sleep(Duration::from_millis(10)).await;
    stream.write_all(b"0123456789").await.expect("written");
    let mut heard = [0; 6];
    let (mut read, mut cut) = (0, None);
    while read < heard.len() && cut.is_none() {
        match timeout(LONG, stream.read(&mut heard[read..]))
            .await
            .expect("an end")
        {
            Ok(n) => read += n,
            Err(error) => cut = Some(error.kind()),
        }
    }
    // A reset may overtake bytes that were not read yet.
    assert!(b"012345".starts_with(&heard[..read]));
    if cut.is_none() {
        assert_eq!(end(&mut stream).await.1, Some(ErrorKind::ConnectionReset));
    }
    // Each connection has a count of its own.
    let mut new = connect(&proxy).await;
    new.write_all(b"0123456789abcdefg").await.expect("written");
    let reset = Some(ErrorKind::ConnectionReset);
    assert_eq!(end(&mut new).await, (Vec::new(), reset));
}

#[tokio::test]
async fn a_server_that_is_away_or_ends_is_passed_on() {
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let server = closed.local_addr().expect("an address");
    let listen = "127.0.0.1:0".parse().expect("an address");
    let proxy = Proxy::start(listen, server, 1).await.expect("a proxy");
    let mut stream = connect(&proxy).await;
    let (accepted, _) = closed.accept().await.expect("a connection");
    accepted.set_zero_linger().expect("an open socket");
    drop((accepted, closed));
    let reset = Some(ErrorKind::ConnectionReset);
    assert_eq!(end(&mut stream).await.1, reset);
    let mut stream = connect(&proxy).await;
    assert_eq!(end(&mut stream).await.1, reset);
}

#[tokio::test]
async fn a_dropped_proxy_ends_with_its_connections() {
    let proxy = echo().await;
    let (mut stream, address) = (connect(&proxy).await, proxy.address());
    talk(&mut stream, "word").await.expect("an echo");
    drop(proxy);
    let (heard, _) = end(&mut stream).await;
    assert!(heard.is_empty());
    let began = Instant::now();
    while TcpStream::connect(address).await.is_ok() {
        assert!(began.elapsed() < LONG, "it listens");
    }
}
