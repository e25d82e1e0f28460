//! RFC 6455, by raw frames: accepted frames, and refused frames with the close code.

use std::time::Duration;

use serde_json::json;

use crate::support::{
    nodes_with,
    raw::{BINARY, CLOSE, CONTINUATION, FIN, PING, PONG, RawSocket, TEXT},
};

const RAISED_LIMITS: (&str, &str) = ("LIMIT_OVERRIDES", "ws_connect=100000/s");

/// The largest frame after authentication.
const LARGEST: usize = 1024 * 1024 + 64 * 1024;

const HELLO: &[u8] = br#"{"type":"ping"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn fragments_and_control_frames_between_them_are_understood() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let mut socket = RawSocket::of(&a, &alice).await;

    // Byte by byte, with a ping after each, every one of which is answered first.
    for (n, byte) in HELLO.iter().enumerate() {
        let last = n + 1 == HELLO.len();
        let first = if n == 0 { TEXT } else { CONTINUATION } | if last { FIN } else { 0 };
        if n > 0 {
            socket.frame(FIN | PING, &[b'a' + n as u8]).await;
            assert_eq!(socket.next().await, Some((PONG, vec![b'a' + n as u8])));
        }
        socket.frame(first, &[*byte]).await;
    }
    assert_eq!(socket.text().await, json!({ "type": "pong" }));

    // Empty fragments, and a character that is split between two.
    let text = r#"{"type":"ping","x":"é😀"}"#.as_bytes();
    let split = text
        .iter()
        .position(|byte| *byte == 0xf0)
        .expect("four bytes")
        + 2;
    socket.frame(TEXT, b"").await;
    socket.frame(CONTINUATION, &text[..split]).await;
    socket.frame(CONTINUATION, b"").await;
    socket.frame(CONTINUATION, &text[split..]).await;
    socket.frame(FIN | CONTINUATION, b"").await;
    assert_eq!(socket.text().await, json!({ "type": "pong" }));

    // Pings of any size that is allowed; pongs that nobody asked for.
    for size in [0, 1, 125] {
        socket.frame(FIN | PONG, &vec![b'x'; size]).await;
        socket.frame(FIN | PING, &vec![b'y'; size]).await;
        assert_eq!(socket.next().await, Some((PONG, vec![b'y'; size])));
    }
    // In pieces of TCP, too.
    let mut bytes = RawSocket::head(FIN | PING, 3);
    bytes.extend_from_slice(b"abc");
    for byte in bytes {
        socket.bytes(&[byte]).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(socket.next().await.expect("a pong").0, PONG);
    // Many at once, of bytes that are no text, each answered in its turn.
    let many: Vec<u8> = (0..10)
        .flat_map(|n| RawSocket::masked(FIN | PING, &[0, 0xff, 0xfe, n]))
        .collect();
    socket.bytes(&many).await;
    for n in 0..10 {
        assert_eq!(socket.next().await, Some((PONG, vec![0, 0xff, 0xfe, n])));
    }
    // Lengths that need not be so long.
    let mut head = vec![FIN | PING, 0x80 | 126, 0, 1, 0, 0, 0, 0];
    head.push(b'z');
    socket.bytes(&head).await;
    assert_eq!(socket.next().await, Some((PONG, vec![b'z'])));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_frame_is_read_in_one_or_many_pieces() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let mut socket = RawSocket::of(&a, &alice).await;
    let text = |bytes: usize| {
        let around = r#"{"type":"ping","x":""}"#.len();
        format!(r#"{{"type":"ping","x":"{}"}}"#, "x".repeat(bytes - around)).into_bytes()
    };
    for size in [125, 126, 127, 65_535, 65_536, LARGEST] {
        socket.frame(FIN | TEXT, &text(size)).await;
        assert_eq!(socket.text().await, json!({ "type": "pong" }), "{size}");
    }
    for (whole, at_once) in [(text(LARGEST), 50_000), (text(65_536), 1300)] {
        let mut pieces = whole.chunks(at_once).peekable();
        let mut first = TEXT;
        while let Some(piece) = pieces.next() {
            let fin = if pieces.peek().is_none() { FIN } else { 0 };
            socket.frame(first | fin, piece).await;
            first = CONTINUATION;
        }
        assert_eq!(socket.text().await, json!({ "type": "pong" }));
    }
    socket.frame(FIN | TEXT, &text(LARGEST + 1)).await;
    socket.expect_close(1009, "one byte more").await;

    // Without an end.
    let mut socket = RawSocket::of(&a, &alice).await;
    socket.frame(TEXT, b"{").await;
    let piece = vec![b' '; 64 * 1024];
    while socket.frame(CONTINUATION, &piece).await {
        // It is closed while we write.
        if tokio::time::timeout(Duration::from_millis(1), socket.next())
            .await
            .is_ok()
        {
            return;
        }
    }
}

/// The edges of what is UTF-8, and what no Unicode text should hold but may.
#[tokio::test(flavor = "multi_thread")]
async fn every_character_is_understood_whole_and_in_pieces() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let mut socket = RawSocket::of(&a, &alice).await;
    for code in [
        0x7f, 0x80, 0x7ff, 0x800, 0xd7ff, 0xe000, 0xfdd0, 0xfeff, 0xfffd, 0xfffe, 0xffff, 0x1_0000,
        0x1_ffff, 0xf_ffff, 0x10_ffff,
    ] {
        let character = char::from_u32(code).expect("a character");
        let text = format!(r#"{{"type":"ping","x":"{character}"}}"#);
        socket.frame(FIN | TEXT, text.as_bytes()).await;
        assert_eq!(socket.text().await, json!({ "type": "pong" }), "{code:x}");
        // A frame for each byte; then one frame in two pieces of TCP, cut within the character.
        let last = text.len() - 1;
        for (n, byte) in text.bytes().enumerate() {
            let first = if n == 0 { TEXT } else { CONTINUATION } | if n == last { FIN } else { 0 };
            socket.frame(first, &[byte]).await;
        }
        assert_eq!(
            socket.text().await,
            json!({ "type": "pong" }),
            "{code:x}, byte by byte"
        );
        let bytes = RawSocket::masked(FIN | TEXT, text.as_bytes());
        let (left, right) = bytes.split_at(bytes.len() - 3);
        socket.bytes(left).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        socket.bytes(right).await;
        assert_eq!(
            socket.text().await,
            json!({ "type": "pong" }),
            "{code:x}, in two pieces"
        );
    }
}

/// (what, code, bytes): each is refused once it has arrived.
fn broken() -> Vec<(String, u16, Vec<u8>)> {
    let mut cases: Vec<(String, u16, Vec<u8>)> = Vec::new();
    let mut case = |what: String, code: u16, frames: &[(u8, &[u8])]| {
        cases.push((
            what,
            code,
            frames
                .iter()
                .flat_map(|(first, payload)| RawSocket::masked(*first, payload))
                .collect(),
        ));
    };
    for bit in [0x40, 0x20, 0x10, 0x70] {
        case(
            format!("reserved bit {bit:x}"),
            1002,
            &[(FIN | bit | TEXT, HELLO)],
        );
        case(
            format!("reserved bit {bit:x} on a ping"),
            1002,
            &[(FIN | bit | PING, b"")],
        );
    }
    for opcode in [3, 4, 5, 6, 7, 0xb, 0xc, 0xd, 0xe, 0xf] {
        case(format!("opcode {opcode:x}"), 1002, &[(FIN | opcode, b"")]);
        case(
            format!("opcode {opcode:x} with a payload"),
            1002,
            &[(FIN | opcode, HELLO)],
        );
        case(
            format!("opcode {opcode:x} after a message"),
            1002,
            &[(FIN | TEXT, HELLO), (FIN | opcode, b"")],
        );
        case(
            format!("opcode {opcode:x} within a message"),
            1002,
            &[(TEXT, b"{"), (FIN | opcode, b"")],
        );
    }
    case("a long ping".into(), 1002, &[(FIN | PING, &[b'x'; 126])]);
    case("a long pong".into(), 1002, &[(FIN | PONG, &[b'x'; 126])]);
    case(
        "a long close".into(),
        1002,
        &[(FIN | CLOSE, &[[3, 232].as_slice(), &[b'x'; 124]].concat())],
    );
    case("a ping in fragments".into(), 1002, &[(PING, b"x")]);
    case("a close in fragments".into(), 1002, &[(CLOSE, &[3, 232])]);
    case(
        "a continuation of nothing".into(),
        1002,
        &[(FIN | CONTINUATION, HELLO)],
    );
    case(
        "an unfinished continuation of nothing".into(),
        1002,
        &[(CONTINUATION, HELLO)],
    );
    case(
        "a text within a text".into(),
        1002,
        &[(TEXT, b"{"), (FIN | TEXT, HELLO)],
    );
    case(
        "a continuation after the end".into(),
        1002,
        &[
            (TEXT, b"{\"type\":"),
            (FIN | CONTINUATION, b"\"ping\"}"),
            (FIN | CONTINUATION, b""),
        ],
    );
    case("binary".into(), 1003, &[(FIN | BINARY, HELLO)]);
    case(
        "binary in fragments".into(),
        1003,
        &[(BINARY, b"{"), (FIN | CONTINUATION, b"}")],
    );
    for (what, text) in [
        ("a lone continuation byte", b"{\"\x80\"}".as_slice()),
        ("an overlong slash", b"\xc0\xaf"),
        ("a surrogate", b"\xed\xa0\x80"),
        ("beyond Unicode", b"\xf4\x90\x80\x80"),
        ("five bytes", b"\xf8\x88\x80\x80\x80"),
        ("a character cut short", b"{\"\xf0\x9f\x98"),
        ("0xff", b"\xff"),
    ] {
        case(what.into(), 1007, &[(FIN | TEXT, text)]);
        let (left, right) = text.split_at(1);
        case(
            format!("{what}, split"),
            1007,
            &[
                (TEXT, left),
                (CONTINUATION, b""),
                (FIN | CONTINUATION, right),
            ],
        );
        // Refused as soon as it shows, whatever may still come. A character that is cut short may
        // go on.
        if what != "a character cut short" {
            case(format!("{what}, unfinished"), 1007, &[(TEXT, text)]);
        }
        case(
            format!("{what}, after a good fragment"),
            1007,
            &[(TEXT, "é".as_bytes()), (FIN | CONTINUATION, text)],
        );
    }
    cases
}

#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_the_protocol_is_closed_with_its_code() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    for (what, code, bytes) in broken() {
        let mut socket = RawSocket::of(&a, &alice).await;
        socket.bytes(&bytes).await;
        socket.expect_close(code, &what).await;
    }
    // Unmasked, and lengths that nobody can mean: refused at the head, no payload is waited for.
    for (what, code, bytes) in [
        (
            "unmasked",
            1002,
            [&[FIN | TEXT, HELLO.len() as u8], HELLO].concat(),
        ),
        ("an unmasked ping", 1002, vec![FIN | PING, 0]),
        (
            "one byte too many",
            1009,
            RawSocket::head(FIN | TEXT, LARGEST as u64 + 1),
        ),
        ("4 GB", 1009, RawSocket::head(FIN | TEXT, 1 << 32)),
        ("63 bits", 1009, RawSocket::head(FIN | TEXT, (1 << 63) - 1)),
        ("64 bits", 1009, RawSocket::head(FIN | TEXT, u64::MAX)),
        (
            "63 bits of a continuation",
            1009,
            [
                RawSocket::masked(TEXT, b"{"),
                RawSocket::head(FIN | CONTINUATION, (1 << 63) - 1),
            ]
            .concat(),
        ),
        (
            "the sum of two",
            1009,
            [
                RawSocket::masked(TEXT, &vec![b' '; LARGEST / 2]),
                RawSocket::masked(CONTINUATION, &vec![b' '; LARGEST / 2 + 1]),
            ]
            .concat(),
        ),
    ] {
        let mut socket = RawSocket::of(&a, &alice).await;
        socket.bytes(&bytes).await;
        socket.expect_close(code, what).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closes_is_answered() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let close = |code: u16, reason: &str| [&code.to_be_bytes(), reason.as_bytes()].concat();
    for (payload, answer) in [
        (vec![], vec![]),
        (close(1000, ""), close(1000, "")),
        (close(1000, "bye é"), close(1000, "")),
        (close(1001, &"x".repeat(123)), close(1001, "")),
        (close(1002, ""), close(1002, "")),
        (close(1003, ""), close(1003, "")),
        (close(1007, ""), close(1007, "")),
        (close(1008, ""), close(1008, "")),
        (close(1009, ""), close(1009, "")),
        (close(1010, ""), close(1010, "")),
        (close(1011, ""), close(1011, "")),
        (close(3000, ""), close(3000, "")),
        (close(3999, ""), close(3999, "")),
        (close(4000, ""), close(4000, "")),
        (close(4999, ""), close(4999, "")),
        // Frames that no client may send.
        (vec![3], close(1002, "")),
        (close(0, ""), close(1002, "")),
        (close(999, ""), close(1002, "")),
        (close(1004, ""), close(1002, "")),
        (close(1005, ""), close(1002, "")),
        (close(1006, ""), close(1002, "")),
        (close(1015, ""), close(1002, "")),
        (close(1016, ""), close(1002, "")),
        (close(1100, ""), close(1002, "")),
        (close(2000, ""), close(1002, "")),
        (close(2999, ""), close(1002, "")),
        (close(5000, ""), close(1002, "")),
        (close(65535, ""), close(1002, "")),
        (
            [close(1000, "").as_slice(), b"\xff"].concat(),
            close(1007, ""),
        ),
    ] {
        let mut socket = RawSocket::of(&a, &alice).await;
        socket.frame(FIN | CLOSE, &payload).await;
        // Later frames are ignored.
        socket.frame(FIN | TEXT, b"junk").await;
        let (opcode, told) = socket.next().await.expect("an answer");
        assert_eq!(
            (opcode, &told[..told.len().min(2)]),
            (CLOSE, answer.as_slice()),
            "{payload:?}"
        );
        assert_eq!(socket.next().await, None);
    }
    // In the middle of a message, and followed by a ping and another close: answered once.
    let mut socket = RawSocket::of(&a, &alice).await;
    let frames: [(u8, &[u8]); 4] = [
        (TEXT, b"{"),
        (FIN | CLOSE, &close(1000, "")),
        (FIN | PING, b"x"),
        (FIN | CLOSE, &close(1001, "")),
    ];
    let bytes: Vec<u8> = frames
        .iter()
        .flat_map(|(first, payload)| RawSocket::masked(*first, payload))
        .collect();
    socket.bytes(&bytes).await;
    assert_eq!(socket.next().await, Some((CLOSE, close(1000, ""))));
    assert_eq!(socket.next().await, None);
    // Earlier frames count.
    let mut socket = RawSocket::of(&a, &alice).await;
    let said = [
        RawSocket::masked(FIN | TEXT, HELLO),
        RawSocket::masked(FIN | CLOSE, &close(1000, "")),
    ];
    socket.bytes(&said.concat()).await;
    assert_eq!(socket.text().await, json!({ "type": "pong" }));
    assert_eq!(socket.next().await, Some((CLOSE, close(1000, ""))));
}

#[tokio::test(flavor = "multi_thread")]
async fn before_authentication_a_frame_may_have_16_kb() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let auth = |bytes: usize| {
        let text =
            json!({ "type": "auth", "access_token": alice.access_token, "x": "" }).to_string();
        text.replace(
            r#""x":"""#,
            &format!(r#""x":"{}""#, "x".repeat(bytes - text.len())),
        )
        .into_bytes()
    };
    // Whole, in pieces, with pings between them.
    let mut socket = RawSocket::open(&a).await;
    socket.frame(FIN | TEXT, &auth(16 * 1024)).await;
    assert_eq!(socket.text().await["type"], "auth.ok");
    let mut socket = RawSocket::open(&a).await;
    let text = auth(16 * 1024);
    socket.frame(TEXT, &text[..1]).await;
    for n in 0..20 {
        socket.frame(FIN | PING, &[n; 125]).await;
        assert_eq!(socket.next().await.expect("a pong").0, PONG);
    }
    socket.frame(CONTINUATION, &text[1..9000]).await;
    socket.frame(FIN | CONTINUATION, &text[9000..]).await;
    assert_eq!(socket.text().await["type"], "auth.ok");

    // The head alone is enough to be refused: nothing of it is waited for, or kept.
    for (what, bytes) in [
        ("one byte more", RawSocket::head(FIN | TEXT, 16 * 1024 + 1)),
        ("63 bits", RawSocket::head(FIN | TEXT, (1 << 63) - 1)),
        ("a megabyte", RawSocket::head(FIN | TEXT, 1024 * 1024)),
    ] {
        let mut socket = RawSocket::open(&a).await;
        socket.bytes(&bytes).await;
        socket.expect_close(1009, what).await;
    }
    let mut socket = RawSocket::open(&a).await;
    socket.frame(TEXT, &[b' '; 16 * 1024]).await;
    socket.bytes(&RawSocket::head(FIN | CONTINUATION, 1)).await;
    socket.expect_close(1009, "the sum").await;
    // Pings alone do not keep it open: they are counted, and the deadline stands.
    let mut socket = RawSocket::open(&a).await;
    for _ in 0..61 {
        socket.frame(FIN | PING, b"").await;
    }
    socket.expect_close(4429, "a flood of pings").await;
    // As before for what breaks the protocol.
    let mut socket = RawSocket::open(&a).await;
    socket.frame(FIN | BINARY, b"x").await;
    socket.expect_close(1003, "binary").await;
    let mut socket = RawSocket::open(&a).await;
    socket.bytes(&[FIN | TEXT, 2, b'{', b'}']).await;
    socket.expect_close(1002, "unmasked").await;
}
