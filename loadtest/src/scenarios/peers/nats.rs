//! NATS with JetStream: its text protocol, as much as a sender needs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use ulid::Ulid;

use crate::{
    Options, Result,
    plain::{Child, dial, free_port},
};

/// The stream of all messages. Each conversation is a subject of it.
const STREAM: &str = "chat";
const END_OF_LINE: &str = "\r\n";

/// When NATS writes through to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Before each answer.
    Always,
    /// Every two minutes, as it is delivered.
    Default,
}

/// A server.
pub struct Nats {
    child: Child,
    port: u16,
}

impl Nats {
    /// Starts a server with an empty stream.
    pub async fn start(options: &Options, sync: Sync) -> Result<Self> {
        let program = fetch(options)?;
        let folder = std::path::absolute(options.dir.join("peers").join("nats"))?;
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(&folder)?;
        let port = free_port()?;
        let always = match sync {
            Sync::Always => "sync_interval: always",
            Sync::Default => "",
        };
        let config = format!(
            "listen: 127.0.0.1:{port}\njetstream {{\n  store_dir: {:?}\n  {always}\n}}\n",
            folder.display().to_string()
        );
        let file = folder.join("nats.conf");
        fs::write(&file, config)?;
        let mut command = Command::new(program);
        command.arg("--config").arg(&file);
        let child = Child::spawn(command)?;
        let nats = Nats { child, port };
        let mut sender = nats.sender(0).await?;
        let stream = json!({
            "name": STREAM, "subjects": [format!("{STREAM}.*")], "storage": "file",
        });
        let create = format!("$JS.API.STREAM.CREATE.{STREAM}");
        let made = sender.ask(&create, &stream.to_string()).await?;
        let made: Value = serde_json::from_str(&made)?;
        if made["error"].is_null() {
            Ok(nats)
        } else {
            Err(format!("NATS made no stream: {made}").into())
        }
    }

    /// The id of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A connection that sends into conversation `n`.
    pub async fn sender(&self, n: usize) -> Result<Sender> {
        Sender::open(dial(self.port).await?, n).await
    }

    /// The number of stored messages.
    pub async fn stored(&self) -> Result<u64> {
        let mut sender = self.sender(0).await?;
        let info = sender
            .ask(&format!("$JS.API.STREAM.INFO.{STREAM}"), "")
            .await?;
        let info: Value = serde_json::from_str(&info)?;
        let stored = info["state"]["messages"].as_u64();
        stored.ok_or_else(|| format!("NATS says nothing of its stream: {info}").into())
    }
}

/// The program, which the `devcluster` of this run fetches.
fn fetch(options: &Options) -> Result<PathBuf> {
    let devcluster = match &options.start {
        Some(program) => program.clone(),
        None => std::env::current_exe()?.with_file_name("devcluster"),
    };
    let output = Command::new(devcluster)
        .arg("fetch-nats")
        .arg("--dir")
        .arg(&options.dir)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    match said.lines().last() {
        Some(path) if output.status.success() && Path::new(path).is_file() => Ok(path.into()),
        _ => Err(String::from_utf8_lossy(&output.stderr)
            .trim()
            .to_owned()
            .into()),
    }
}

/// The answer to a stored message.
#[derive(Deserialize)]
struct Acked {
    #[serde(default)]
    seq: u64,
}

/// A connection.
pub struct Sender {
    stream: BufReader<TcpStream>,
    /// The subject of its answers.
    answers: String,
    /// The subject of its conversation.
    subject: String,
    line: String,
    body: Vec<u8>,
}

impl Sender {
    async fn open(stream: TcpStream, conversation: usize) -> Result<Self> {
        let mut sender = Sender {
            stream: BufReader::new(stream),
            answers: format!("answers.{}", Ulid::generate()),
            subject: format!("{STREAM}.{conversation}"),
            line: String::new(),
            body: Vec::new(),
        };
        let hello = format!(
            "CONNECT {{\"verbose\":false,\"pedantic\":false,\"headers\":true}}\r\nSUB {} 1\r\n",
            sender.answers
        );
        sender.stream.write_all(hello.as_bytes()).await?;
        Ok(sender)
    }

    /// Sends a message. Returns when it is stored. The id makes a repeat harmless.
    pub async fn send(&mut self, id: Ulid, payload: &str) -> Result<()> {
        let head = format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n");
        let (subject, answers) = (&self.subject, &self.answers);
        let (before, all) = (head.len(), head.len() + payload.len());
        let frame = format!("HPUB {subject} {answers} {before} {all}\r\n{head}{payload}\r\n");
        self.stream.write_all(frame.as_bytes()).await?;
        let answer = self.answer().await?;
        let acked: Acked = serde_json::from_str(answer)?;
        if acked.seq == 0 {
            return Err(format!("NATS refused a message: {answer}").into());
        }
        Ok(())
    }

    async fn ask(&mut self, subject: &str, body: &str) -> Result<String> {
        let (answers, bytes) = (&self.answers, body.len());
        let frame = format!("PUB {subject} {answers} {bytes}\r\n{body}\r\n");
        self.stream.write_all(frame.as_bytes()).await?;
        Ok(self.answer().await?.to_owned())
    }

    /// The body of the next answer.
    async fn answer(&mut self) -> Result<&str> {
        loop {
            self.line.clear();
            if self.stream.read_line(&mut self.line).await? == 0 {
                return Err("NATS closed a connection".into());
            }
            let mut words = self.line.split_ascii_whitespace();
            match words.next() {
                Some("MSG") => {
                    let bytes: usize = words.next_back().unwrap_or_default().parse()?;
                    self.body.resize(bytes + END_OF_LINE.len(), 0);
                    self.stream.read_exact(&mut self.body).await?;
                    return Ok(std::str::from_utf8(&self.body[..bytes])?);
                }
                Some("PING") => self.stream.write_all(b"PONG\r\n").await?,
                Some("-ERR") => return Err(format!("NATS: {}", self.line).into()),
                _ => {}
            }
        }
    }
}
