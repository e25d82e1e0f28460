//! A receiver of webhooks that costs next to nothing: it shares the cores with what it measures.

use std::{cell::RefCell, collections::HashMap, net::SocketAddr, rc::Rc, time::Instant};

use serde::Deserialize;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::LocalSet,
};
use ulid::Ulid;

use crate::{Result, delivery::Faults};

/// An answer without news.
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";

/// The arrivals so far.
#[derive(Default)]
pub struct Arrivals {
    /// Requests, whatever they carried.
    pub requests: u64,
    /// Messages at their first arrival, in order.
    pub messages: Vec<(Instant, Option<Ulid>)>,
    /// The last number of each conversation.
    last: HashMap<String, i64>,
    pub faults: Faults,
}

/// The receiver.
#[derive(Clone)]
pub struct Receiver {
    pub address: SocketAddr,
    pub arrivals: Rc<RefCell<Arrivals>>,
}

#[derive(Deserialize)]
struct Delivery<'a> {
    event: &'a str,
    #[serde(borrow, default)]
    data: Option<Data<'a>>,
}

#[derive(Deserialize)]
struct Data<'a> {
    challenge: Option<&'a str>,
    client_message_id: Option<&'a str>,
    conversation_id: Option<&'a str>,
    seq: Option<i64>,
}

impl Receiver {
    /// The number of requests so far.
    pub fn requests(&self) -> u64 {
        self.arrivals.borrow().requests
    }

    /// The number of messages so far.
    pub fn messages(&self) -> usize {
        self.arrivals.borrow().messages.len()
    }

    /// Serves on tasks of `local`.
    pub async fn start(local: &LocalSet) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let receiver = Receiver {
            address: listener.local_addr()?,
            arrivals: Rc::default(),
        };
        let each = receiver.clone();
        local.spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let receiver = each.clone();
                tokio::task::spawn_local(async move { receiver.serve(stream).await.ok() });
            }
        });
        Ok(receiver)
    }

    async fn serve(&self, mut stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        let mut received = Vec::with_capacity(8192);
        loop {
            while let Some((start, end)) = complete(&received)? {
                let answer = self.note(&received[start..end]);
                received.drain(..end);
                stream.write_all(answer.as_bytes()).await?;
            }
            if stream.read_buf(&mut received).await? == 0 {
                return Ok(());
            }
        }
    }

    /// Notes a delivery. Returns the answer.
    fn note(&self, body: &[u8]) -> String {
        let now = Instant::now();
        let mut arrivals = self.arrivals.borrow_mut();
        arrivals.requests += 1;
        let Ok(Delivery {
            event,
            data: Some(data),
        }) = serde_json::from_slice(body)
        else {
            return OK.to_owned();
        };
        if let ("webhook.verify", Some(challenge)) = (event, data.challenge) {
            let body = serde_json::json!({ "challenge": challenge }).to_string();
            return format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
        }
        if let ("message.created", Some(conversation), Some(seq)) =
            (event, data.conversation_id, data.seq)
        {
            let id = data
                .client_message_id
                .and_then(|id| Ulid::from_string(id).ok());
            arrivals.message(now, conversation, seq, id);
        }
        OK.to_owned()
    }
}

impl Arrivals {
    fn message(&mut self, now: Instant, conversation: &str, seq: i64, id: Option<Ulid>) {
        let last = self.last.entry(conversation.to_owned()).or_default();
        match seq - *last {
            1 => {
                *last = seq;
                self.messages.push((now, id));
            }
            // Delivery is at least once, but nothing fails here.
            ..=0 => self.faults.duplicated += 1,
            2.. => self.faults.reordered += 1,
        }
    }
}

/// The start and end of the first request's body, if it is complete.
fn complete(received: &[u8]) -> Result<Option<(usize, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(start) = request.parse(received)? else {
        return Ok(None);
    };
    let length = request
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-length"))
        .and_then(|header| {
            std::str::from_utf8(header.value)
                .ok()?
                .parse::<usize>()
                .ok()
        });
    let end = start + length.unwrap_or_default();
    Ok((received.len() >= end).then_some((start, end)))
}
