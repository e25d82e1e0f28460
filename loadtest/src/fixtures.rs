//! Users, agents and their conversations, created through the public API.

use std::{
    fs,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};

use crate::{
    Result,
    cluster::{Cluster, Node, Wire},
    delivery::Reader,
    http::{Answer, Link, post},
};

/// The number of concurrent hashes of passwords and tokens. All share the same cores, so more would
/// only wait longer.
const AT_ONCE: usize = 8;
/// An access token lives 300 s. One older than this is renewed before a phase begins.
const FRESH: Duration = Duration::from_secs(150);

/// The password of every user.
pub const PASSWORD: &str = "correct horse battery";

/// A user and an agent with a conversation between them.
pub struct Pair {
    /// The user's address.
    pub email: String,
    /// The address from which the user's requests claim to come.
    pub address: String,
    /// The user's access token.
    pub access_token: String,
    cookie: String,
    renewed: Instant,
    /// The agent.
    pub agent_id: String,
    /// The agent's token.
    pub agent_token: String,
    /// Their conversation.
    pub conversation_id: String,
    /// The agent's reading position, and its check.
    pub reader: Reader,
}

/// Makes `pairs` pairs, spread over the nodes.
pub async fn make(cluster: &Cluster, pairs: usize) -> Result<Vec<Pair>> {
    let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
    let pairs = stream::iter(0..pairs)
        .map(|n| Pair::make(cluster, run, n))
        .buffered(AT_ONCE);
    pairs.try_collect().await
}

/// Renews all access tokens that would end during the phase.
pub async fn renew(cluster: &Cluster, pairs: &mut [Pair]) -> Result<()> {
    let old = pairs
        .iter_mut()
        .filter(|pair| pair.renewed.elapsed() > FRESH);
    stream::iter(old)
        .map(|pair| pair.renew(cluster.node(0)))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

impl Pair {
    async fn make(cluster: &Cluster, run: u128, n: usize) -> Result<Pair> {
        let node = cluster.node(n);
        let address = format!("10.{}.{}.{}", n >> 16 & 0xff, n >> 8 & 0xff, n & 0xff);
        let mut client = Client {
            link: node.link().await?,
            node,
            address: &address,
        };
        let email = format!("load-{run}-{n}@example.org");
        let turnstile = "dev-pass";
        let code = json!({ "email": email, "scene": "register", "turnstile_token": turnstile });
        client
            .post("/auth/send-code", &[], &code)
            .await?
            .expect(200)?;
        let account = json!({
            "email": email, "code": mailed_code(&cluster.mail_dir, &email).await?, "turnstile_token": turnstile,
            "account_password": PASSWORD, "display_name": format!("User {n}"),
            "device_locale": "en-GB", "device_id": format!("load-{run}-{n}"),
        });
        let registered = client.post("/auth/register", &[], &account).await?;
        let cookie = registered.cookie.clone().ok_or("no refresh cookie")?;
        let access_token = text(&registered.expect(201)?, "access_token")?;
        let renewed = Instant::now();
        let bearer = format!("Bearer {access_token}");
        let bearer = [("authorization", bearer.as_str())];
        let agent = json!({ "display_name": format!("Agent {n}") });
        let agent = client.post("/agents", &bearer, &agent).await?.expect(201)?;
        let agent_id = text(&agent, "agent_id")?;
        let conversation = json!({ "type": "agent", "agent_id": agent_id });
        let conversation = client
            .post("/conversations", &bearer, &conversation)
            .await?
            .expect(201)?;
        Ok(Pair {
            email,
            access_token,
            cookie,
            renewed,
            agent_token: text(&agent, "token")?,
            agent_id,
            conversation_id: text(&conversation, "conversation_id")?,
            reader: Reader::default(),
            address,
        })
    }

    async fn renew(&mut self, node: &Node) -> Result<()> {
        let mut client = Client {
            link: node.link().await?,
            node,
            address: &self.address,
        };
        let answer = client
            .post("/auth/refresh", &[("cookie", &self.cookie)], &json!({}))
            .await?;
        self.cookie = answer.cookie.clone().ok_or("no new refresh cookie")?;
        self.access_token = text(&answer.expect(200)?, "access_token")?;
        self.renewed = Instant::now();
        Ok(())
    }
}

struct Client<'a> {
    link: Link<Wire>,
    node: &'a Node,
    address: &'a str,
}

impl Client<'_> {
    async fn post(&mut self, path: &str, headers: &[(&str, &str)], body: &Value) -> Result<Answer> {
        self.link
            .ask(&post(
                &self.node.address,
                path,
                self.address,
                headers,
                &body.to_string(),
            ))
            .await
    }
}

impl Answer {
    /// Asserts a status and returns the `data` of the answer.
    fn expect(self, status: u16) -> Result<Value> {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        if self.status != status {
            return Err(format!("{} where {status} was due: {body}", self.status).into());
        }
        Ok(body["data"].clone())
    }
}

fn text(data: &Value, name: &str) -> Result<String> {
    Ok(data[name]
        .as_str()
        .ok_or_else(|| format!("no {name} in {data}"))?
        .to_owned())
}

/// Waits for the code in the mail to `email`, and deletes the mail.
async fn mailed_code(folder: &str, email: &str) -> Result<String> {
    for _ in 0..400 {
        for file in fs::read_dir(folder)?.flatten() {
            // Other tasks delete their mails meanwhile.
            let Ok(mail) = fs::read_to_string(file.path()) else {
                continue;
            };
            let is_code =
                |line: &&str| line.len() == 8 && line.bytes().all(|byte| byte.is_ascii_digit());
            if mail.contains(email)
                && let Some(code) = mail.lines().map(str::trim).find(is_code)
            {
                fs::remove_file(file.path()).ok();
                return Ok(code.to_owned());
            }
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    Err(format!("no mail came for {email}").into())
}
