//! HTTP/1.1 in its smallest form: one request, one answer, over a connection that stays open. A
//! full client would cost several times as much per request, on cores that the nodes need.

use std::io::{Error, ErrorKind};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::Result;

/// A connection.
pub struct Link<S> {
    stream: S,
    /// Received bytes that no answer has consumed yet.
    received: Vec<u8>,
}

/// A complete answer.
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
    /// The first cookie it sets, `name=value`.
    pub cookie: Option<String>,
}

struct Head {
    status: u16,
    cookie: Option<String>,
    /// The start and end of the body; no end if it is chunked.
    body: usize,
    length: Option<usize>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Link<S> {
    /// A link over `stream`.
    pub fn over(stream: S) -> Self {
        Link {
            stream,
            received: Vec::with_capacity(4096),
        }
    }

    /// Writes a request and reads its answer.
    pub async fn ask(&mut self, request: &[u8]) -> Result<Answer> {
        self.send(request, &[]).await
    }

    /// Writes a request in two parts, and reads its answer.
    pub async fn send(&mut self, request: &[u8], rest: &[u8]) -> Result<Answer> {
        self.stream.write_all(request).await?;
        self.stream.write_all(rest).await?;
        self.stream.flush().await?;
        loop {
            if let Some(head) = head(&self.received)?
                && let Some((body, end)) = body(&self.received, &head)?
            {
                self.received.drain(..end);
                return Ok(Answer {
                    status: head.status,
                    body,
                    cookie: head.cookie,
                });
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(Error::from(ErrorKind::UnexpectedEof).into());
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Link<S> {
    /// Writes a request, and reads and forgets a body with a length. Returns the status and that
    /// length.
    pub async fn drain(&mut self, request: &[u8]) -> Result<(u16, usize)> {
        self.stream.write_all(request).await?;
        self.stream.flush().await?;
        let head = loop {
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(Error::from(ErrorKind::UnexpectedEof).into());
            }
            if let Some(head) = head(&self.received)? {
                break head;
            }
        };
        let length = head.length.ok_or("a body without a length")?;
        let early = (self.received.len() - head.body).min(length);
        self.received.drain(..head.body + early);
        let (mut left, mut some) = (length - early, vec![0; 256 * 1024]);
        while left > 0 {
            let room = some.len().min(left);
            match self.stream.read(&mut some[..room]).await? {
                0 => return Err(Error::from(ErrorKind::UnexpectedEof).into()),
                n => left -= n,
            }
        }
        Ok((head.status, length))
    }
}

fn head(received: &[u8]) -> Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(body) = response.parse(received)? else {
        return Ok(None);
    };
    let value = |name: &str| {
        let header = response
            .headers
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case(name));
        header.and_then(|header| std::str::from_utf8(header.value).ok())
    };
    let length = value("content-length").map(str::parse).transpose()?;
    let cookie = value("set-cookie")
        .and_then(|cookie| cookie.split(';').next())
        .map(str::to_owned);
    Ok(Some(Head {
        status: response.code.unwrap_or_default(),
        cookie,
        body,
        length,
    }))
}

/// The body and its end in the received bytes, if it is complete.
fn body(received: &[u8], head: &Head) -> Result<Option<(Vec<u8>, usize)>> {
    if let Some(length) = head.length {
        let end = head.body + length;
        return Ok((received.len() >= end).then(|| (received[head.body..end].to_vec(), end)));
    }
    let (mut at, mut body) = (head.body, Vec::new());
    loop {
        let Ok(httparse::Status::Complete((start, size))) =
            httparse::parse_chunk_size(&received[at..])
        else {
            return Ok(None);
        };
        let (from, to) = (at + start, at + start + usize::try_from(size)?);
        // Every chunk ends with an empty line.
        if received.len() < to + 2 {
            return Ok(None);
        }
        body.extend_from_slice(&received[from..to]);
        at = to + 2;
        if size == 0 {
            return Ok(Some((body, at)));
        }
    }
}

/// A request with a JSON body. `client` is the address it claims to come from: each client has
/// limits of its own. Empty: it claims nothing.
pub fn post(host: &str, path: &str, client: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    request("POST", host, path, client, headers, Some(body))
}

/// A request without a body.
pub fn get(host: &str, path: &str, client: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    request("GET", host, path, client, headers, None)
}

/// A request with any method.
pub fn request(
    method: &str,
    host: &str,
    path: &str,
    client: &str,
    headers: &[(&str, &str)],
    body: Option<&str>,
) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n");
    if !client.is_empty() {
        text.push_str(&format!(
            "x-forwarded-for: {client}\r\nx-forwarded-proto: https\r\n"
        ));
    }
    if let Some(body) = body {
        text.push_str(&format!(
            "content-type: application/json\r\ncontent-length: {}\r\n",
            body.len()
        ));
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.push_str(body.unwrap_or_default());
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<(u16, String, usize)> {
        let head = head(text.as_bytes()).expect("HTTP")?;
        let (body, end) = body(text.as_bytes(), &head).expect("HTTP")?;
        Some((head.status, String::from_utf8(body).expect("text"), end))
    }

    #[test]
    fn an_answer_is_taken_when_it_is_there_in_full() {
        let whole = "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok";
        assert_eq!(
            read(&format!("{whole}HTTP")),
            Some((201, "ok".to_owned(), whole.len()))
        );
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), None, "cut at {end}");
        }
        let chunked =
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n1\r\n!\r\n0\r\n\r\n";
        assert_eq!(read(chunked), Some((200, "ok!".to_owned(), chunked.len())));
        assert_eq!(read(&chunked[..chunked.len() - 1]), None);
    }
}
