//! The conversation that `make run` plays: one user, one agent, two nodes, through the public interface only. It is
//! also the shortest example of a client.

use std::{
    error::Error,
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use reqwest::Method;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{
    demo_socket::Socket,
    terminal::say,
    trouble::{Context, DevError, Result},
};
use crate::{clock::Clock, random::Random};

/// How long any one step may take.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// What the conversation leaves behind for the reader to go on with.
#[derive(Debug)]
pub struct Played {
    /// The agent.
    pub agent_id: String,
    /// Its token.
    pub agent_token: String,
    /// Where it may write.
    pub conversation_id: String,
}

/// Plays it between the nodes at `first` and `second`.
pub async fn play(first: &str, second: &str, ca: &Path, mails: &Path) -> Result<Played> {
    let stage = Stage::new(ca)?;
    say("A conversation, through the public HTTPS and WebSocket interface only:");

    let began = Instant::now();
    let user = stage.register(first, mails).await?;
    tell(
        began,
        "Ada",
        "node-1",
        "registers with the code from her mail",
    );

    let began = Instant::now();
    let body =
        json!({ "display_name": "Echo", "description": "Answers in the played conversation." });
    let agent = stage
        .call(first, Method::POST, "/agents", Some(&user), &body)
        .await?;
    let (agent_id, token) = (text(&agent, "agent_id")?, text(&agent, "token")?);
    tell(
        began,
        "Ada",
        "node-1",
        &format!(
            "creates the agent Echo and sees its token once: {}…",
            &token[..8.min(token.len())]
        ),
    );

    let began = Instant::now();
    let body = json!({ "type": "agent", "agent_id": agent_id });
    let conversation = text(
        &stage
            .call(first, Method::POST, "/conversations", Some(&user), &body)
            .await?,
        "conversation_id",
    )?;
    tell(began, "Ada", "node-1", "opens a conversation with Echo");

    let began = Instant::now();
    let mut echo = stage
        .connect(
            second,
            "Echo",
            json!({ "type": "auth", "agent_id": agent_id, "token": token }),
        )
        .await?;
    let mut ada = stage
        .connect(
            second,
            "Ada",
            json!({ "type": "auth", "access_token": user }),
        )
        .await?;
    tell(began, "both", "node-2", "are connected by WebSocket");

    // What a user says reaches the agent on the other node.
    let began = Instant::now();
    let path = format!("/conversations/{conversation}/messages");
    let body = stage.message(&json!({ "type": "text", "text": "Hello Echo, are you there?" }));
    let sent = stage
        .call(first, Method::POST, &path, Some(&user), &body)
        .await?;
    tell(
        began,
        "Ada",
        "node-1",
        "sends by REST: \"Hello Echo, are you there?\"",
    );
    let event = echo.message(&text(&sent, "message_id")?).await?;
    tell(
        began,
        "Echo",
        "node-2",
        "receives it (time since Ada pressed send) and acknowledges",
    );
    echo.send(&json!({ "type": "ack", "cursor": event["cursor"] }))
        .await?;

    // The agent answers, once by each way there is. The pipe sees only that something passes.
    let began = Instant::now();
    let path = format!("/agents/{agent_id}/messages");
    let ciphertext = stage.ciphertext();
    let mut body = stage.message(&ciphertext);
    body["conversation_id"] = json!(conversation);
    let sent = stage
        .call(first, Method::POST, &path, Some(&token), &body)
        .await?;
    tell(
        began,
        "Echo",
        "node-1",
        "answers by REST, encrypted: the pipe cannot read it",
    );
    let event = ada.message(&text(&sent, "message_id")?).await?;
    if event["data"]["payload"] != ciphertext {
        return Err(DevError::new("the ciphertext was changed on its way"));
    }
    tell(began, "Ada", "node-2", "receives the ciphertext, unchanged");

    let began = Instant::now();
    let mut frame = stage.message(&stage.ciphertext());
    frame["type"] = json!("message.send");
    frame["ref"] = json!("1");
    frame["conversation_id"] = json!(conversation);
    echo.send(&frame).await?;
    let sent = echo
        .expect("message.sent", |frame| {
            frame["type"] == "message.sent" && frame["ref"] == "1"
        })
        .await?;
    tell(
        began,
        "Echo",
        "node-2",
        "answers again by WebSocket frame, encrypted",
    );
    ada.message(&text(&sent["data"], "message_id")?).await?;
    tell(began, "Ada", "node-2", "receives that too");

    echo.close().await;
    ada.close().await;
    Ok(Played {
        agent_id,
        agent_token: token,
        conversation_id: conversation,
    })
}

/// One line of the story.
fn tell(began: Instant, who: &str, node: &str, what: &str) {
    say(format!(
        "  {:>5} ms  {who:<4}  {node}  {what}",
        began.elapsed().as_millis()
    ));
}

/// An error and what is behind it: the HTTP client's own message names neither a refused connection nor a bad
/// certificate.
fn causes(error: &dyn Error) -> String {
    let behind = error.source().map(|cause| format!(": {}", causes(cause)));
    format!("{error}{}", behind.unwrap_or_default())
}

/// A field of an answer that must be there.
fn text(data: &Value, field: &str) -> Result<String> {
    let value = data[field].as_str().map(str::to_owned);
    value.ok_or_else(|| DevError::new(format!("an answer has no field {field}: {data}")))
}

/// What the players share.
struct Stage {
    http: reqwest::Client,
    tls: Arc<ClientConfig>,
    random: Random,
}

impl Stage {
    /// Players who trust the authority in `ca` and nobody else.
    fn new(ca: &Path) -> Result<Self> {
        let pem = fs::read(ca).doing(|| format!("read {}", ca.display()))?;
        let trusted = reqwest::Certificate::from_pem(&pem)
            .doing(|| "read the authority's certificate".into())?;
        let http = reqwest::Client::builder()
            .tls_certs_only([trusted])
            .no_proxy()
            .timeout(STEP_TIMEOUT)
            .build();
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(&pem)
            .doing(|| "read the authority's certificate".into())?;
        roots.add(root).doing(|| "trust the authority".into())?;
        Ok(Stage {
            http: http.doing(|| "make an HTTP client".into())?,
            tls: ClientConfig::builder()
                .with_root_certificates(roots)
                .with_no_client_auth()
                .into(),
            random: Random::new(Clock::default()),
        })
    }

    /// Calls the interface and gives the answer's `data`.
    async fn call(
        &self,
        node: &str,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: &Value,
    ) -> Result<Value> {
        let what = || format!("{method} {path}");
        let mut request = self
            .http
            .request(method.clone(), format!("{node}{path}"))
            .json(body);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let answer = request
            .send()
            .await
            .map_err(|error| causes(&error))
            .doing(what)?;
        let status = answer.status();
        let body: Value = answer
            .json()
            .await
            .doing(|| format!("read the answer of {}", what()))?;
        if !status.is_success() {
            let error = &body["error"];
            return Err(DevError::new(format!(
                "{} was answered {status}: {} ({})",
                what(),
                error["code"],
                error["message"]
            )));
        }
        Ok(body["data"].clone())
    }

    /// Registers a new user as anyone would, and gives the access token.
    async fn register(&self, node: &str, mails: &Path) -> Result<String> {
        let email = format!("ada-{}@example.com", self.random.base62(10).to_lowercase());
        let body = json!({ "email": email, "scene": "register", "turnstile_token": "dev-pass" });
        self.call(node, Method::POST, "/auth/send-code", None, &body)
            .await?;
        let code = timeout(STEP_TIMEOUT, async {
            loop {
                if let Some(code) = find_code(mails, &email) {
                    return code;
                }
                sleep(Duration::from_millis(20)).await;
            }
        });
        let code = code.await.map_err(|_| {
            DevError::new(format!("no mail with a code came to {}", mails.display()))
        })?;
        let body = json!({
            "email": email,
            "code": code,
            "account_password": self.random.base62(20),
            "display_name": "Ada",
            "device_locale": "en",
            "turnstile_token": "dev-pass",
        });
        text(
            &self
                .call(node, Method::POST, "/auth/register", None, &body)
                .await?,
            "access_token",
        )
    }

    async fn connect(&self, node: &str, who: &'static str, auth: Value) -> Result<Socket> {
        let url = format!("{}/ws", node.replacen("https://", "wss://", 1));
        Socket::open(&url, self.tls.clone(), who, &auth).await
    }

    /// A message that may be sent again without being delivered twice.
    fn message(&self, payload: &Value) -> Value {
        json!({ "payload": payload, "client_message_id": ulid::Ulid::from(self.random.ulid()).to_string() })
    }

    /// Stands for what a real client would encrypt.
    fn ciphertext(&self) -> Value {
        json!({ "type": "encrypted", "ciphertext": BASE64.encode(self.random.bytes::<48>()) })
    }
}

/// The code in the mail to `address`, once it is there.
fn find_code(mails: &Path, address: &str) -> Option<String> {
    let files = fs::read_dir(mails)
        .ok()?
        .flatten()
        .map(|entry| entry.path());
    let mails = files.filter(|path| path.extension().is_some_and(|extension| extension == "eml"));
    mails
        .filter_map(|path| fs::read_to_string(path).ok())
        .find_map(|mail| read_code(&mail, address))
}

fn read_code(mail: &str, address: &str) -> Option<String> {
    let mut lines = mail.lines().map(str::trim);
    lines
        .by_ref()
        .take_while(|line| !line.is_empty())
        .find(|line| line.starts_with("To:") && line.contains(address))?;
    let is_code = |line: &&str| line.len() == 8 && line.bytes().all(|byte| byte.is_ascii_digit());
    lines.find(is_code).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_read_only_from_the_right_mail() {
        let mail = "From: x@y\r\nSubject: 11111111\r\nTo: ada@example.com\r\n\r\nYour code:\r\n\r\n12345678\r\n\r\nBye 99999999\r\n";
        assert_eq!(
            read_code(mail, "ada@example.com").as_deref(),
            Some("12345678")
        );
        assert_eq!(read_code(mail, "bob@example.com"), None);
        assert_eq!(
            read_code("To: ada@example.com\n\nwritten half", "ada@example.com"),
            None
        );
    }
}
