//! Users, agents and their conversations, created through the public API.

use std::{
    fs,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use blindpipe_protocol::{
    accounts::{CodeSent, Refreshed, Register, Scene, SendCode, SignedIn},
    agents::{CreateAgent, CreatedAgent},
    conversations::{Conversation, OpenConversation},
    envelope::Data,
    frames::Empty,
    ids::UserId,
    text::{DeviceId, DisplayName, EmailAddress, Locale, MailedCode, Secret},
};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    Result,
    cluster::{Cluster, Node, Wire},
    delivery::Reader,
    http::{Answer, Link, post},
};

/// The number of concurrent hashes of passwords and tokens. All share the same cores, so more would
/// only wait longer.
const AT_ONCE: usize = 8;
/// An access token lives 300 s. A token older than this is renewed before a phase begins.
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
    /// `name=value` of the refresh cookie.
    pub cookie: String,
    /// When the access token was made; none for an account that has none yet.
    renewed: Option<Instant>,
    /// The user's id, known from the first renewal on.
    pub user_id: UserId,
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
pub async fn renew(node: &Node, pairs: &mut [Pair]) -> Result<()> {
    let old = pairs
        .iter_mut()
        .filter(|pair| pair.renewed.is_none_or(|renewed| renewed.elapsed() > FRESH));
    stream::iter(old)
        .map(|pair| pair.renew(node))
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
        let turnstile_token = Secret::from("dev-pass");
        let code = SendCode {
            email: EmailAddress::from(email.as_str()),
            scene: Scene::Register,
            turnstile_token: turnstile_token.clone(),
        };
        client
            .post("/auth/send-code", &[], &code)
            .await?
            .expect::<CodeSent>(200)?;
        let account = Register {
            email: EmailAddress::from(email.as_str()),
            code: MailedCode(mailed_code(&cluster.mail_dir, &email).await?),
            account_password: Secret::from(PASSWORD),
            display_name: DisplayName(format!("User {n}")),
            device_locale: Locale("en-GB".to_owned()),
            turnstile_token,
            device_id: Some(DeviceId(format!("load-{run}-{n}"))),
            device_name: None,
            platform: None,
        };
        let registered = client.post("/auth/register", &[], &account).await?;
        let cookie = registered.cookie.clone().ok_or("no refresh cookie")?;
        let SignedIn {
            access_token: Secret(access_token),
            user_id,
            ..
        } = registered.expect(201)?;
        let renewed = Some(Instant::now());
        let bearer = format!("Bearer {access_token}");
        let bearer = [("authorization", bearer.as_str())];
        let agent = CreateAgent {
            display_name: DisplayName(format!("Agent {n}")),
            description: None,
            manifest: None,
        };
        let CreatedAgent {
            agent_id, token, ..
        } = client.post("/agents", &bearer, &agent).await?.expect(201)?;
        let conversation = OpenConversation::Agent { agent_id };
        let conversation: Conversation = client
            .post("/conversations", &bearer, &conversation)
            .await?
            .expect(201)?;
        Ok(Pair {
            email,
            access_token,
            cookie,
            renewed,
            user_id,
            agent_token: token.0,
            agent_id: agent_id.to_string(),
            conversation_id: conversation.conversation_id.to_string(),
            reader: Reader::default(),
            address,
        })
    }

    /// A ready account of a release. Its first renewal brings the access token. The release sees
    /// the true address of this program.
    pub fn ready(
        cookie: String,
        agent_id: String,
        agent_token: String,
        conversation_id: String,
    ) -> Self {
        Pair {
            email: String::new(),
            address: String::new(),
            access_token: String::new(),
            cookie,
            renewed: None,
            user_id: UserId::NIL,
            agent_id,
            agent_token,
            conversation_id,
            reader: Reader::default(),
        }
    }

    async fn renew(&mut self, node: &Node) -> Result<()> {
        let mut client = Client {
            link: node.link().await?,
            node,
            address: &self.address,
        };
        let answer = client
            .post("/auth/refresh", &[("cookie", &self.cookie)], &Empty {})
            .await?;
        self.cookie = answer.cookie.clone().ok_or("no new refresh cookie")?;
        let refreshed: Refreshed = answer.expect(200)?;
        self.access_token = refreshed.access_token.0;
        self.user_id = refreshed.user_id;
        self.renewed = Some(Instant::now());
        Ok(())
    }
}

struct Client<'a> {
    link: Link<Wire>,
    node: &'a Node,
    address: &'a str,
}

impl Client<'_> {
    async fn post(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        body: &impl Serialize,
    ) -> Result<Answer> {
        let body = serde_json::to_string(body)?;
        self.link
            .ask(&post(
                &self.node.address,
                path,
                self.address,
                headers,
                &body,
            ))
            .await
    }
}

impl Answer {
    /// Asserts a status and returns the `data` of the answer.
    fn expect<T: DeserializeOwned>(self, status: u16) -> Result<T> {
        if self.status != status {
            let body = String::from_utf8_lossy(&self.body);
            return Err(format!("{} where {status} was due: {body}", self.status).into());
        }
        Ok(serde_json::from_slice::<Data<T>>(&self.body)?.data)
    }
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
