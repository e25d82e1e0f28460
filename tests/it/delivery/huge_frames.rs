//! Frames that announce or bring more than a message may have, and the memory of the node
//! meanwhile.

use crate::support::{
    ProcessNode, nodes_with,
    raw::{CONTINUATION, FIN, RawSocket, TEXT},
};

const MB: u64 = 1024 * 1024;
/// The sockets of the test. Each announces or sends more than a message may have.
const SOCKETS: usize = 60;

#[tokio::test(flavor = "multi_thread")]
async fn attack_43_huge_frames_take_no_memory() {
    let [a] = nodes_with(&[(
        "LIMIT_OVERRIDES",
        "ws_connect_ip=100000/s,ws_connect=100000/s",
    )])
    .await;
    let process = ProcessNode::start(&a).await;
    let alice = a.user("alice").await;
    // The first connections of a process take memory of their own.
    for _ in 0..5 {
        RawSocket::at(&process.base, &alice).await;
    }
    let before = process.memory();
    let mut most = before;
    for n in 0..SOCKETS {
        // Announced and never sent: 63 bits, and a gigabyte in the next fragment.
        let mut socket = RawSocket::at(&process.base, &alice).await;
        if n % 2 == 0 {
            socket
                .bytes(&RawSocket::head(FIN | TEXT, (1 << 63) - 1))
                .await;
        } else {
            socket.frame(TEXT, b"{").await;
            socket.bytes(&RawSocket::head(CONTINUATION, 1 << 30)).await;
        }
        most = most.max(process.memory());
        socket.expect_close(1009, "announced").await;
    }
    // Sent without an end: each socket is cut at a message's size, and its memory returns.
    let fragment = vec![b' '; 64 * 1024];
    for _ in 0..8 {
        let mut socket = RawSocket::at(&process.base, &alice).await;
        socket.frame(TEXT, b"{").await;
        for _ in 0..16 {
            socket.frame(CONTINUATION, &fragment).await;
        }
        socket
            .bytes(&RawSocket::head(CONTINUATION, fragment.len() as u64))
            .await;
        most = most.max(process.memory());
        socket.expect_close(1009, "endless").await;
    }
    let grown = most - before;
    assert!(grown < 24 * MB, "{} MB", grown / MB);
}
