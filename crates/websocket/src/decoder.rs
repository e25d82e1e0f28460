//! The decoder of a client's frames.

use crate::frame::{BINARY, CLOSE, CONTINUATION, FIN, MASKED, PING, PONG, RESERVED, TEXT};

/// The longest head of a client's frame.
const MAX_HEADER_BYTES: usize = 14;
/// The largest payload of a control frame.
const MAX_CONTROL_BYTES: usize = 125;

/// The rule that a client has broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The form of a frame, or its place among others: close code 1002.
    Protocol,
    /// A text is not UTF-8: close code 1007.
    Encoding,
    /// A message is larger than allowed: close code 1009.
    TooBig,
}

/// A message of a client.
#[derive(Debug, PartialEq, Eq)]
pub enum Message {
    Text(String),
    Binary(Vec<u8>),
    /// A ping with its payload.
    Ping(Vec<u8>),
    Pong,
    /// A close with its code, if it has any.
    Close(Option<u16>),
}

/// The decoded head of a frame.
struct Head {
    opcode: u8,
    fin: bool,
    mask: [u8; 4],
    /// Bytes of the payload still to come.
    left: usize,
    /// Bytes of the payload received.
    got: usize,
}

/// The decoder of a client's frames.
#[derive(Default)]
pub struct Decoder {
    head: [u8; MAX_HEADER_BYTES],
    head_got: usize,
    frame: Option<Head>,
    /// The message in progress and its kind. Control frames may come between its fragments.
    message: Vec<u8>,
    kind: Option<u8>,
    /// The length of the text that is known to be UTF-8.
    checked: usize,
    control: Vec<u8>,
}

impl Decoder {
    /// Takes bytes off the front of `bytes`. Returns a complete message, or none once all bytes are
    /// taken. A message may have `max_message_bytes` bytes; the head of a frame that exceeds them
    /// is refused.
    pub fn read(
        &mut self,
        bytes: &mut &[u8],
        max_message_bytes: usize,
    ) -> Result<Option<Message>, Fault> {
        loop {
            if self.frame.is_none() {
                if !self.gather_head(bytes) {
                    return Ok(None);
                }
                self.frame = Some(self.open(max_message_bytes)?);
            }
            let Some(frame) = &mut self.frame else {
                return Ok(None);
            };
            let (part, rest) = bytes.split_at(frame.left.min(bytes.len()));
            *bytes = rest;
            let into = if frame.opcode >= CLOSE {
                &mut self.control
            } else {
                &mut self.message
            };
            unmask(part, frame.mask, frame.got, into);
            frame.got += part.len();
            frame.left -= part.len();
            if frame.left > 0 {
                self.check_text()?;
                return Ok(None);
            }
            let (opcode, fin) = (frame.opcode, frame.fin);
            (self.frame, self.head_got) = (None, 0);
            if opcode >= CLOSE {
                return control(opcode, std::mem::take(&mut self.control)).map(Some);
            }
            if fin {
                return self.finish().map(Some);
            }
            self.check_text()?;
        }
    }

    /// The bytes of the message in progress.
    pub fn held(&self) -> usize {
        self.message.len()
    }

    /// Gathers the head of a frame; whether it is complete.
    fn gather_head(&mut self, bytes: &mut &[u8]) -> bool {
        loop {
            let wanted = match (self.head_got, self.head[1] & 0x7f) {
                (0 | 1, _) => 2,
                (_, 126) => 2 + 2 + 4,
                (_, 127) => 2 + 8 + 4,
                _ => 2 + 4,
            };
            // A head without the mask bit has no mask to wait for.
            if self.head_got == wanted || self.head_got >= 2 && self.head[1] & MASKED == 0 {
                return true;
            }
            if bytes.is_empty() {
                return false;
            }
            let (part, rest) = bytes.split_at((wanted - self.head_got).min(bytes.len()));
            self.head[self.head_got..self.head_got + part.len()].copy_from_slice(part);
            self.head_got += part.len();
            *bytes = rest;
        }
    }

    /// Checks a complete head.
    fn open(&mut self, max_message_bytes: usize) -> Result<Head, Fault> {
        let [first, second, rest @ ..] = &self.head;
        let (opcode, fin) = (first & 0x0f, first & FIN != 0);
        let known = matches!(opcode, CONTINUATION | TEXT | BINARY | CLOSE | PING | PONG);
        if first & RESERVED != 0 || !known || second & MASKED == 0 {
            return Err(Fault::Protocol);
        }
        let (length, mask) = match second & 0x7f {
            126 => (
                u64::from(u16::from_be_bytes([rest[0], rest[1]])),
                &rest[2..6],
            ),
            127 => {
                let long = rest[..8]
                    .iter()
                    .fold(0, |length, byte| length << 8 | u64::from(*byte));
                (long, &rest[8..12])
            }
            short => (u64::from(short), &rest[..4]),
        };
        let mask = [mask[0], mask[1], mask[2], mask[3]];
        let left = usize::try_from(length).unwrap_or(usize::MAX);
        if opcode >= CLOSE {
            if !fin || left > MAX_CONTROL_BYTES {
                return Err(Fault::Protocol);
            }
        } else {
            // A frame either continues a message or begins one.
            if (opcode == CONTINUATION) != self.kind.is_some() {
                return Err(Fault::Protocol);
            }
            if left.saturating_add(self.message.len()) > max_message_bytes {
                return Err(Fault::TooBig);
            }
            self.kind.get_or_insert(opcode);
        }
        Ok(Head {
            opcode,
            fin,
            mask,
            left,
            got: 0,
        })
    }

    /// Refuses a text as soon as it cannot become valid UTF-8.
    fn check_text(&mut self) -> Result<(), Fault> {
        if self.kind != Some(TEXT) {
            return Ok(());
        }
        match std::str::from_utf8(&self.message[self.checked..]) {
            Ok(_) => self.checked = self.message.len(),
            Err(error) if error.error_len().is_some() => return Err(Fault::Encoding),
            Err(error) => self.checked += error.valid_up_to(),
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Message, Fault> {
        self.checked = 0;
        let message = std::mem::take(&mut self.message);
        if self.kind.take() == Some(BINARY) {
            return Ok(Message::Binary(message));
        }
        String::from_utf8(message)
            .map(Message::Text)
            .map_err(|_| Fault::Encoding)
    }
}

fn unmask(part: &[u8], mask: [u8; 4], at: usize, into: &mut Vec<u8>) {
    let from = into.len();
    into.extend_from_slice(part);
    let mut turned = mask;
    turned.rotate_left(at % 4);
    let (words, rest) = into[from..].as_chunks_mut::<4>();
    for word in words {
        *word = (u32::from_ne_bytes(*word) ^ u32::from_ne_bytes(turned)).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(turned) {
        *byte ^= mask;
    }
}

fn control(opcode: u8, payload: Vec<u8>) -> Result<Message, Fault> {
    match (opcode, payload.as_slice()) {
        (PING, _) => Ok(Message::Ping(payload)),
        (PONG, _) => Ok(Message::Pong),
        (_, []) => Ok(Message::Close(None)),
        (_, [high, low, reason @ ..]) => {
            let code = u16::from_be_bytes([*high, *low]);
            // Section 7.4, and the codes registered since.
            if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
                return Err(Fault::Protocol);
            }
            std::str::from_utf8(reason).map_err(|_| Fault::Encoding)?;
            Ok(Message::Close(Some(code)))
        }
        _ => Err(Fault::Protocol),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Kind, begin};

    const MAX_RESERVE_BYTES: usize = 16 * 1024;

    /// A generator that repeats its bytes.
    struct Random(u64);

    impl Random {
        fn bytes<const N: usize>(&mut self) -> [u8; N] {
            std::array::from_fn(|_| {
                self.0 = self
                    .0
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (self.0 >> 56) as u8
            })
        }
    }

    /// Encodes a client's frame.
    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = begin(Kind::Text, payload.len(), payload.len() + 4);
        (bytes[0], bytes[1]) = (first, bytes[1] | MASKED);
        let mask = [0x5a, 0x00, 0xff, 0x13];
        bytes.extend(mask);
        bytes.extend(
            payload
                .iter()
                .enumerate()
                .map(|(n, byte)| byte ^ mask[n % 4]),
        );
        bytes
    }

    /// Decodes bytes that arrive in pieces of the given sizes.
    fn read(bytes: &[u8], mut size: impl FnMut() -> usize) -> (Vec<Message>, Option<Fault>) {
        let mut decoder = Decoder::default();
        let (mut messages, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let end = (at + size().max(1)).min(bytes.len());
            let mut piece = &bytes[at..end];
            at = end;
            loop {
                match decoder.read(&mut piece, MAX_RESERVE_BYTES) {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(close) => return (messages, Some(close)),
                }
            }
            assert!(piece.is_empty(), "all of it is taken");
        }
        (messages, None)
    }

    #[test]
    fn however_the_bytes_arrive_the_messages_are_the_same() {
        let long = "long: é😀".repeat(1000);
        let bytes = [
            masked(FIN | TEXT, b"one"),
            masked(FIN | TEXT, b""),
            masked(TEXT, "tw\u{e9}".as_bytes().split_at(3).0),
            masked(FIN | PING, b"?"),
            masked(CONTINUATION, b""),
            masked(FIN | CONTINUATION, "tw\u{e9}".as_bytes().split_at(3).1),
            masked(FIN | TEXT, long.as_bytes()),
            masked(FIN | BINARY, &[0xff, 0]),
            masked(FIN | PONG, b"unasked"),
            masked(FIN | CLOSE, &[3, 232, b'o', b'k']),
            masked(FIN | CLOSE, b""),
        ]
        .concat();
        let expected = || {
            vec![
                Message::Text("one".into()),
                Message::Text(String::new()),
                Message::Ping(b"?".to_vec()),
                Message::Text("twé".into()),
                Message::Text(long.clone()),
                Message::Binary(vec![0xff, 0]),
                Message::Pong,
                Message::Close(Some(1000)),
                Message::Close(None),
            ]
        };
        let mut random = Random(7);
        assert_eq!(read(&bytes, || usize::MAX / 2), (expected(), None));
        for size in 1..40 {
            assert_eq!(read(&bytes, || size), (expected(), None), "{size}");
        }
        for _ in 0..200 {
            assert_eq!(
                read(&bytes, || usize::from(random.bytes::<1>()[0])),
                (expected(), None)
            );
        }
    }

    #[test]
    fn what_breaks_a_rule_is_refused_and_at_the_first_byte_that_does() {
        let refused = |bytes: &[u8]| read(bytes, || 1).1;
        for bytes in [
            masked(FIN | 0x40 | TEXT, b""),
            masked(FIN | 0x3, b""),
            masked(FIN | 0xb, b""),
            masked(FIN | CONTINUATION, b""),
            [masked(TEXT, b"a"), masked(FIN | TEXT, b"b")].concat(),
            masked(PING, b""),
            masked(FIN | PING, &[0; 126]),
            masked(FIN | CLOSE, &[3]),
            masked(FIN | CLOSE, &[0x03, 0xed]),
            masked(FIN | CLOSE, &[0xff, 0xff]),
            vec![FIN | TEXT, 1, b'x'],
        ] {
            assert_eq!(refused(&bytes), Some(Fault::Protocol), "{bytes:?}");
        }
        assert_eq!(
            refused(&masked(FIN | CLOSE, &[3, 232, 0xff])),
            Some(Fault::Encoding)
        );
        assert_eq!(
            refused(&masked(FIN | TEXT, b"\xf0\x9f\x98")),
            Some(Fault::Encoding)
        );
        // The decoder does not wait for the rest of it.
        let bad = masked(TEXT, &[b"a\xc0".as_slice(), &[b'x'; 1000]].concat());
        assert_eq!(refused(&bad[..12]), Some(Fault::Encoding));
        // The head of a frame that is too large suffices for the refusal.
        let large = masked(FIN | TEXT, &[b'x'; MAX_RESERVE_BYTES + 1]);
        assert_eq!(refused(&large[..8]), Some(Fault::TooBig));
        let endless = [
            masked(TEXT, &[b'x'; MAX_RESERVE_BYTES]),
            masked(FIN | PING, b"p"),
            masked(CONTINUATION, b"x"),
        ]
        .concat();
        assert_eq!(refused(&endless), Some(Fault::TooBig));
        let absurd = [
            0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0,
        ];
        assert_eq!(refused(&absurd), Some(Fault::TooBig));
        assert_eq!(
            read(&masked(FIN | TEXT, &[b'x'; MAX_RESERVE_BYTES]), || 999)
                .0
                .len(),
            1
        );
    }

    #[test]
    fn garbage_is_refused_or_waited_on_and_never_more_than_was_sent_is_kept() {
        let mut random = Random(9);
        let (mut refused, mut messages) = (0, 0);
        for _ in 0..5_000 {
            let mut bytes = random.bytes::<64>();
            // Half of the inputs look like frames at first.
            if bytes[2] & 1 == 0 {
                (bytes[0], bytes[1]) = (FIN | bytes[0] & 0x0f, MASKED | bytes[1] & 0x1f);
            }
            let mut decoder = Decoder::default();
            let mut rest = &bytes[..];
            loop {
                match decoder.read(&mut rest, MAX_RESERVE_BYTES) {
                    Ok(Some(_)) => messages += 1,
                    Ok(None) => {
                        assert!(rest.is_empty());
                        break;
                    }
                    Err(_) => {
                        refused += 1;
                        break;
                    }
                }
            }
            assert!(decoder.message.capacity() + decoder.control.capacity() <= 4 * bytes.len());
        }
        assert!(refused > 2_000 && messages > 400, "{refused} {messages}");
    }

    #[test]
    fn nothing_is_kept_of_what_has_been_read_and_nothing_taken_for_what_is_only_claimed() {
        let mut decoder = Decoder::default();
        let whole = masked(FIN | TEXT, &[b'x'; MAX_RESERVE_BYTES]);
        assert!(
            decoder
                .read(&mut &whole[..], MAX_RESERVE_BYTES)
                .expect("good")
                .is_some()
        );
        assert_eq!(
            (decoder.message.capacity(), decoder.control.capacity()),
            (0, 0)
        );
        assert_eq!(decoder.read(&mut &whole[..20], MAX_RESERVE_BYTES), Ok(None));
        assert!(decoder.message.capacity() < 100);
    }
}
