//! A client of A2A over JSON-RPC, with streams.

use std::{collections::VecDeque, net::IpAddr, time::Duration};

use reqwest::{Client, Response, Url, header::CONTENT_TYPE, redirect::Policy};
use serde_json::{Value, json};

use super::wire::{CARD_PATH, VERSION, VERSION_HEADER};
use crate::{
    failure::{Exit, Failure, Result},
    output::line,
};

/// A peer that says nothing for so long is away.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer or event: a file in it is in base64.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// An A2A agent.
pub struct Remote {
    http: Client,
    url: Url,
    token: Option<String>,
    is_streaming: bool,
    pub name: String,
}

/// In clear, a message goes to this machine only.
fn address(text: &str) -> Result<Url> {
    let fault = || Failure::usage(format!("{text:?} is no https:// address"));
    let url = Url::parse(text).map_err(|_| fault())?;
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let ip = host.parse::<IpAddr>();
    let is_here = host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback());
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_here => Ok(url),
        _ => Err(fault()),
    }
}

fn away(error: reqwest::Error) -> Failure {
    let text = format!("the A2A agent does not answer: {}", error.without_url());
    Failure::new(Exit::Unreachable, text)
}

impl Remote {
    /// Reads the card of the agent at an address.
    pub async fn discover(at: &str, token: Option<String>) -> Result<Self> {
        let mut card_url = address(at)?;
        if !card_url.path().ends_with(".json") {
            let folder = card_url.path().trim_end_matches('/').to_owned();
            card_url.set_path(&format!("{folder}{CARD_PATH}"));
        }
        let http = Client::builder()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(IDLE_TIMEOUT)
            .build()
            .map_err(away)?;
        let answer = http.get(card_url.clone()).send().await.map_err(away)?;
        if !answer.status().is_success() {
            let text = format!("there is no card: {}", answer.status());
            return Err(Failure::new(Exit::Refused, text).remedy("the address of the agent"));
        }
        let card: Value = serde_json::from_slice(&whole(answer).await?)?;
        let speaks = |it: &&Value| {
            let version = it["protocolVersion"].as_str().unwrap_or_default();
            it["protocolBinding"] == "JSONRPC" && version.starts_with("1.")
        };
        let interfaces = card["supportedInterfaces"].as_array();
        let interface = interfaces.into_iter().flatten().find(speaks);
        let missing = || Failure::failed("the agent does not speak JSON-RPC of A2A 1.x");
        let url = interface.and_then(|it| it["url"].as_str());
        let url = address(url.ok_or_else(missing)?)?;
        // The token and what people write go where the person said, and nowhere else.
        if url.origin() != card_url.origin() {
            let text = format!("the card leads to another place: {}", line(url.as_str()));
            return Err(Failure::failed(text).remedy("that address, if you trust it"));
        }
        Ok(Self {
            http,
            url,
            token,
            is_streaming: card["capabilities"]["streaming"] == true,
            name: card["name"].as_str().unwrap_or("agent").to_owned(),
        })
    }

    /// Sends a message. The agent's progress comes step by step, as far as it tells of it.
    pub async fn send(&self, message: &Value) -> Result<Steps> {
        if self.is_streaming {
            let params = json!({ "message": message });
            return self.call("SendStreamingMessage", &params).await;
        }
        // A new task is known at once, so that a person can stop it.
        let is_new = message["taskId"].is_null();
        let configuration = json!({ "returnImmediately": is_new });
        let params = json!({ "message": message, "configuration": configuration });
        match self.post("SendMessage", &params).await {
            // The agent has it; what becomes of the task is asked for.
            Err(error) if !is_new && error.is_timeout() && !error.is_connect() => {
                Ok(Steps::default())
            }
            posted => steps_of(posted.map_err(away)?).await,
        }
    }

    /// A task as it is now.
    pub async fn task(&self, id: &str) -> Result<Value> {
        let params = json!({ "id": id, "historyLength": 0 });
        let task = self.call("GetTask", &params).await?.next().await?;
        task.ok_or_else(|| Failure::failed("the A2A agent answers with nothing"))
    }

    /// Asks the agent to end a task. A task that has ended is refused.
    pub async fn cancel(&self, task: &str) -> Result<()> {
        self.call("CancelTask", &json!({ "id": task })).await?;
        Ok(())
    }

    async fn call(&self, method: &str, params: &Value) -> Result<Steps> {
        steps_of(self.post(method, params).await.map_err(away)?).await
    }

    async fn post(&self, method: &str, params: &Value) -> reqwest::Result<Response> {
        let body = json!({ "jsonrpc": "2.0", "id": "1", "method": method, "params": params });
        let mut request = self.http.post(self.url.clone()).json(&body);
        request = request.header(VERSION_HEADER, VERSION);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        request.send().await
    }
}

async fn steps_of(answer: Response) -> Result<Steps> {
    match answer.status() {
        status if status.is_success() => {}
        status if status.is_server_error() => {
            let text = format!("the A2A agent fails: {status}");
            return Err(Failure::new(Exit::Unreachable, text));
        }
        status => {
            let text = format!("the A2A agent refuses: {status}");
            return Err(Failure::new(Exit::Refused, text));
        }
    }
    let kind = answer.headers().get(CONTENT_TYPE);
    let is_stream = kind
        .and_then(|kind| kind.to_str().ok())
        .is_some_and(|kind| kind.starts_with("text/event-stream"));
    let mut steps = Steps::default();
    if is_stream {
        steps.answer = Some(answer);
    } else {
        steps.read.push_back(whole(answer).await?);
    }
    Ok(steps)
}

async fn whole(mut answer: Response) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(away)? {
        bytes.extend_from_slice(&piece);
        check(&bytes)?;
    }
    Ok(bytes)
}

fn check(bytes: &[u8]) -> Result<()> {
    if bytes.len() > MAX_ANSWER_BYTES {
        return Err(Failure::failed("the A2A agent's answer is too long"));
    }
    Ok(())
}

/// The results of a call, as they come.
#[derive(Default)]
pub struct Steps {
    answer: Option<Response>,
    rest: Vec<u8>,
    read: VecDeque<Vec<u8>>,
}

impl Steps {
    /// The next result; none at the end.
    pub async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some(read) = self.read.pop_front() {
                return result_of(&read).map(Some);
            }
            let Some(answer) = &mut self.answer else {
                return Ok(None);
            };
            match answer.chunk().await.map_err(away)? {
                Some(piece) => {
                    self.rest.extend_from_slice(&piece);
                    check(&self.rest)?;
                    self.read.extend(events(&mut self.rest));
                }
                None => self.answer = None,
            }
        }
    }
}

/// Takes the whole events out of what was read, and gives their data.
fn events(read: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut data: Vec<u8> = Vec::new();
    let (mut begin, mut taken) = (0, 0);
    while let Some(length) = read[begin..].iter().position(|byte| *byte == b'\n') {
        let line = &read[begin..begin + length];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        begin += length + 1;
        if line.is_empty() {
            if !data.is_empty() {
                all.push(std::mem::take(&mut data));
            }
            taken = begin;
        } else if let Some(text) = line.strip_prefix(b"data:") {
            data.extend_from_slice(text.strip_prefix(b" ").unwrap_or(text));
        }
    }
    read.drain(..taken);
    all
}

fn result_of(answer: &[u8]) -> Result<Value> {
    let mut answer: Value = serde_json::from_slice(answer)?;
    let error = &answer["error"];
    if error.is_object() {
        let text = error["message"].as_str().unwrap_or("no reason");
        let text = format!("the A2A agent refuses: {}", line(text));
        return Err(Failure::new(Exit::Refused, text));
    }
    Ok(answer["result"].take())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_any_pieces() {
        let stream =
            b"event: x\r\ndata: {\"a\":1}\r\n\r\n: ping\n\ndata: {\"b\":\ndata: 2}\n\nrest";
        for size in 1..stream.len() {
            let (mut read, mut all) = (Vec::new(), Vec::new());
            for piece in stream.chunks(size) {
                read.extend_from_slice(piece);
                all.extend(events(&mut read));
            }
            assert_eq!(all, [b"{\"a\":1}".to_vec(), b"{\"b\":2}".to_vec()]);
            assert_eq!(read, b"rest");
        }
    }

    #[test]
    fn what_is_in_clear_stays_on_this_machine() {
        for (text, is_fit) in [
            ("https://agent.example", true),
            ("http://localhost:9999/", true),
            ("http://[::1]:9999/", true),
            ("http://agent.example", false),
            ("http://127.0.0.1.example.com", false),
            ("ftp://localhost", false),
            ("agent", false),
        ] {
            assert_eq!(address(text).is_ok(), is_fit, "{text}");
        }
    }
}
