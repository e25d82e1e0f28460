//! Cloudflare's siteverify endpoint as its documentation describes it, with configurable faults.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

use super::{services::spawn, ulid};

pub const SECRET: &str = "0x4AAAAAAAsecret";

/// The server's reaction to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultMode {
    /// Answers correctly.
    Well,
    /// Answers correctly after a time.
    Slow(Duration),
    /// Accepts, and never answers.
    Hangs,
    /// Answers this status with this body.
    Says(&'static str, &'static str),
    /// Checks the token, then closes in the middle of the answer.
    Cuts,
    /// Cuts the answer, but only for the first of two equal requests.
    CutsOnce,
    /// Closes without an answer.
    Closes,
}

/// An issued token, as the service knows it.
struct Issued {
    hostname: &'static str,
    action: &'static str,
    expired: bool,
    /// The idempotency key of its use.
    used_by: Option<String>,
}

struct State {
    mood: FaultMode,
    tokens: HashMap<String, Issued>,
    questions: Vec<Value>,
    /// The requests without an answer. A repeated one is the same request.
    open: Vec<Value>,
    max_open_per_ip: usize,
    requests: usize,
}

impl State {
    fn begin(&mut self, question: &Value) {
        if self.open.contains(question) {
            return;
        }
        self.open.push(question.clone());
        let alike = |other: &&Value| other["remoteip"] == question["remoteip"];
        let count = self.open.iter().filter(alike).count();
        self.max_open_per_ip = self.max_open_per_ip.max(count);
    }
}

/// The server; ends with the test.
#[derive(Clone)]
pub struct SiteVerify {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl SiteVerify {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let state = State {
            mood: FaultMode::Well,
            tokens: HashMap::new(),
            questions: Vec::new(),
            open: Vec::new(),
            max_open_per_ip: 0,
            requests: 0,
        };
        let server = SiteVerify {
            address: listener.local_addr().expect("an address"),
            state: Arc::new(Mutex::new(state)),
        };
        let each = server.clone();
        spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = each.clone();
                spawn(async move { server.serve(stream).await });
            }
        });
        server
    }

    pub fn url(&self) -> String {
        format!("http://{}/turnstile/v0/siteverify", self.address)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    pub fn set(&self, mood: FaultMode) {
        self.state().mood = mood;
    }

    /// The requests since the last call.
    pub fn questions(&self) -> Vec<Value> {
        std::mem::take(&mut self.state().questions)
    }

    /// The number of requests so far, answered or not.
    pub fn requests(&self) -> usize {
        self.state().requests
    }

    /// The largest number of requests for one address that were open at once.
    pub fn max_open_per_ip(&self) -> usize {
        self.state().max_open_per_ip
    }

    /// A token as if a person had solved the challenge on our page.
    pub fn token(&self) -> String {
        self.token_of("app.example.org", "login", false)
    }

    pub fn token_of(&self, hostname: &'static str, action: &'static str, expired: bool) -> String {
        let token = format!("0.{}", ulid());
        self.state().tokens.insert(
            token.clone(),
            Issued {
                hostname,
                action,
                expired,
                used_by: None,
            },
        );
        token
    }

    /// Serves one connection, request after request.
    async fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let question = read_question(&mut stream).await?;
            let mood = self.state().mood;
            self.state().requests += 1;
            self.state().begin(&question);
            match mood {
                FaultMode::Hangs => tokio::time::sleep(Duration::from_secs(60)).await,
                FaultMode::Closes => return None,
                FaultMode::Says(status, body) => say(&mut stream, status, body, body.len()).await?,
                FaultMode::Well | FaultMode::Slow(_) | FaultMode::Cuts | FaultMode::CutsOnce => {
                    if let FaultMode::Slow(time) = mood {
                        tokio::time::sleep(time).await;
                    }
                    let again = self.state().questions.contains(&question);
                    let answer = self.judge(&question).to_string();
                    if matches!(mood, FaultMode::Well | FaultMode::Slow(_))
                        || (mood == FaultMode::CutsOnce && again)
                    {
                        say(&mut stream, "200 OK", &answer, answer.len()).await?;
                    } else {
                        say(
                            &mut stream,
                            "200 OK",
                            &answer[..answer.len() / 2],
                            answer.len(),
                        )
                        .await?;
                        return None;
                    }
                }
            }
        }
    }

    fn judge(&self, question: &Value) -> Value {
        let mut state = self.state();
        state.open.retain(|open| open != question);
        state.questions.push(question.clone());
        let refuse =
            |code: &str| json!({ "success": false, "error-codes": [code], "messages": [] });
        if question["secret"] != SECRET {
            return refuse("invalid-input-secret");
        }
        let key = question["idempotency_key"].as_str().map(str::to_owned);
        let Some(token) = question["response"]
            .as_str()
            .and_then(|token| state.tokens.get_mut(token))
        else {
            return refuse("invalid-input-response");
        };
        let used_before = token.used_by.is_some() && token.used_by != key;
        if token.expired || used_before {
            return refuse("timeout-or-duplicate");
        }
        token.used_by = key.or_else(|| Some(String::new()));
        json!({
            "success": true, "error-codes": [], "challenge_ts": "2026-01-31T10:00:00.000Z",
            "hostname": token.hostname, "action": token.action, "cdata": "",
        })
    }
}

/// The fields of a POST, as a form or as JSON.
async fn read_question(stream: &mut BufReader<TcpStream>) -> Option<Value> {
    let (mut length, mut is_json) = (0, false);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok().filter(|n| *n > 0)?;
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        is_json |= line.starts_with("content-type:") && line.contains("json");
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    if is_json {
        return Some(serde_json::from_slice(&body).expect("JSON"));
    }
    let url = reqwest::Url::parse(&format!("http://x/?{}", String::from_utf8_lossy(&body)))
        .expect("a form");
    Some(
        url.query_pairs()
            .map(|(name, value)| (name.into_owned(), Value::from(value.into_owned())))
            .collect(),
    )
}

async fn say(
    stream: &mut BufReader<TcpStream>,
    status: &str,
    body: &str,
    length: usize,
) -> Option<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .await
        .ok()?;
    stream.flush().await.ok()
}
