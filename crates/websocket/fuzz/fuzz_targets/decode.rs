//! The decoder gives the same messages and the same fault however the bytes arrive, and holds no
//! more than was sent.

#![no_main]

use libfuzzer_sys::fuzz_target;
use websocket::{Decoder, Fault, Message};

const MAX_MESSAGE_BYTES: usize = 4096;

/// Decodes bytes that arrive in pieces of `size`.
fn decode(bytes: &[u8], size: usize) -> (Vec<Message>, Option<Fault>) {
    let mut decoder = Decoder::default();
    let mut messages = Vec::new();
    let mut sent = 0;
    for piece in bytes.chunks(size) {
        sent += piece.len();
        let mut rest = piece;
        loop {
            match decoder.read(&mut rest, MAX_MESSAGE_BYTES) {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(fault) => return (messages, Some(fault)),
            }
            assert!(decoder.held() <= sent.min(MAX_MESSAGE_BYTES));
        }
        assert!(rest.is_empty());
        assert!(decoder.held() <= sent.min(MAX_MESSAGE_BYTES));
    }
    (messages, None)
}

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = (usize::from(input.0).max(1), input.1);
    assert_eq!(decode(bytes, size), decode(bytes, bytes.len().max(1)));
});
