//! Users by the thousand. They are restored into the database as an operator would, because
//! creating each through the API costs a password hash. Their access tokens are signed with the
//! cluster's key, as a node signs them.

use std::{
    collections::HashMap,
    fs,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use blindpipe::{
    auth::{jwt::AccessTokens, revoked::RevokedCredentials},
    clock::Clock,
    ids::{SessionId, UserId},
    node,
    random::Random,
};
use blindpipe_protocol::{
    envelope::Data,
    messages::{SendMessage, Sent},
    raw::RawJson,
};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpSocket;
use tokio_postgres::NoTls;
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{Message, client::IntoClientRequest, protocol::WebSocketConfig},
};
use ulid::Ulid;
use uuid::Uuid;

use crate::{
    Result,
    cluster::{Cluster, Node, Wire},
    http::{Link, post},
    socket::user_auth,
};

/// The longest wait. Anything longer is a fault.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The read buffer of a client's socket, in bytes. There are thousands of sockets.
const READ_BUFFER: usize = 4096;

/// The environment that a node was started with.
pub fn environment(pid: u32) -> Result<HashMap<String, String>> {
    let text = fs::read(format!("/proc/{pid}/environ"))?;
    let text = String::from_utf8_lossy(&text);
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    Ok(pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect())
}

/// Users with several devices each, all signed in.
pub struct Crowd {
    tokens: AccessTokens,
    database: String,
    /// By user and device.
    sessions: Vec<Vec<(UserId, SessionId)>>,
}

/// The name of a device.
fn device(n: usize) -> String {
    format!("device-{n}")
}

impl Crowd {
    /// Inserts them into the database of a cluster.
    pub async fn make(cluster: &Cluster, users: usize, devices: usize) -> Result<Self> {
        let environment = environment(cluster.node(0).pid)?;
        let config = node::read_settings(|name| environment.get(name).cloned())
            .map_err(|faults| faults.to_string())?;
        let clock = Clock::default();
        let random = Random::new(clock.clone());
        let tokens = AccessTokens::new(
            &config.access_token_keys,
            &config.public_url,
            clock,
            random,
            RevokedCredentials::default(),
        )?;
        let mut crowd = Crowd {
            tokens,
            database: cluster.postgres_url.clone(),
            sessions: Vec::new(),
        };
        crowd.insert(users, devices).await?;
        Ok(crowd)
    }

    async fn insert(&mut self, users: usize, devices: usize) -> Result<()> {
        let (mut client, link) = tokio_postgres::connect(&self.database, NoTls).await?;
        tokio::spawn(link);
        let run = SystemTime::now()
            .duration_since(UNIX_EPOCH)?
            .as_millis()
            .to_string();
        let names: Vec<String> = (0..devices).map(device).collect();
        let tx = client.transaction().await?;
        let ids: Vec<Uuid> = tx
            .query(
                "insert into user_account (user_id, email, display_name, device_locale, password_hash)
                 select gen_random_uuid(), 'crowd-' || $2 || '-' || n || '@example.org', 'Crowd ' || n, 'en-GB', ''
                 from generate_series(1, $1::int4) n returning user_id",
                &[&i32::try_from(users)?, &run],
            )
            .await?
            .iter()
            .map(|row| row.get(0))
            .collect();
        tx.execute(
            "insert into device (user_id, device_id, provisional) select u, d, false from unnest($1::uuid[]) u, unnest($2::text[]) d",
            &[&ids, &names],
        )
        .await?;
        let rows = tx
            .query(
                "insert into session (session_id, user_id, device_id, refresh_expires_at, absolute_expires_at)
                 select gen_random_uuid(), u, d, app_now() + interval '1 day', app_now() + interval '1 day'
                 from unnest($1::uuid[]) u, unnest($2::text[]) d returning user_id, device_id, session_id",
                &[&ids, &names],
            )
            .await?;
        tx.execute(
            "insert into inbox (principal_id) select unnest($1::uuid[])",
            &[&ids],
        )
        .await?;
        tx.execute(
            "insert into inbox_reader (principal_id, device_id, acked_seq) select u, d, 0 from unnest($1::uuid[]) u, unnest($2::text[]) d",
            &[&ids, &names],
        )
        .await?;
        tx.commit().await?;
        let found: HashMap<(Uuid, String), Uuid> = rows
            .iter()
            .map(|row| ((row.get(0), row.get(1)), row.get(2)))
            .collect();
        for user in ids {
            let of = |name: &String| (UserId(user), SessionId(found[&(user, name.clone())]));
            self.sessions.push(names.iter().map(of).collect());
        }
        Ok(())
    }

    /// Makes a conversation of these users and returns its id.
    pub async fn group(&self, users: std::ops::Range<usize>) -> Result<String> {
        let (mut client, link) = tokio_postgres::connect(&self.database, NoTls).await?;
        tokio::spawn(link);
        let ids: Vec<Uuid> = self.sessions[users]
            .iter()
            .map(|devices| devices[0].0.0)
            .collect();
        let tx = client.transaction().await?;
        let made = tx
            .query_one(
                "insert into conversation (conversation_id, kind, created_by) values (gen_random_uuid(), 'group', $1)
                 returning conversation_id",
                &[&ids[0]],
            )
            .await?;
        let id: Uuid = made.get(0);
        tx.execute(
            "insert into member (conversation_id, principal_id, principal_kind, role)
             select $1, u, 'user', 'member' from unnest($2::uuid[]) u",
            &[&id, &ids],
        )
        .await?;
        tx.commit().await?;
        Ok(Ulid(id.as_u128()).to_string())
    }

    /// The ids of a user and of its session on a device.
    pub fn session(&self, user: usize, n: usize) -> (Uuid, Uuid) {
        let (id, session) = self.sessions[user][n];
        (id.0, session.0)
    }

    /// The id of a user.
    pub fn id(&self, user: usize) -> String {
        Ulid(self.sessions[user][0].0.0.as_u128()).to_string()
    }

    /// A fresh access token.
    pub fn token(&self, user: usize, n: usize) -> Result<String> {
        let (id, session) = self.sessions[user][n];
        self.tokens
            .sign(id, &device(n), session)
            .map_err(|error| format!("{error:?}").into())
    }

    /// Opens a socket and reads what was missed.
    pub async fn connect(
        &self,
        node: &Node,
        user: usize,
        n: usize,
        resume: Option<&str>,
    ) -> Result<Line> {
        let auth = user_auth(&self.token(user, n)?, resume)?;
        Line::open(node, auth).await
    }

    /// Opens a socket that is not read. Its small buffer fills soon.
    pub async fn connect_sleepy(&self, node: &Node, user: usize) -> Result<Line> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        let mut line = Line::upgrade(node, node.dial_from(socket).await?).await?;
        line.say(user_auth(&self.token(user, 0)?, None)?).await?;
        Ok(line)
    }

    /// A connection for one user's sends into one conversation.
    pub async fn sender(
        &self,
        node: &Node,
        user: usize,
        conversation: &str,
        payload: usize,
    ) -> Result<Poster> {
        let path = format!("/conversations/{conversation}/messages");
        let payload = RawJson::of(&json!({ "type": "text", "text": "x".repeat(payload) }))?;
        let body = serde_json::to_string(&SendMessage::new(payload))?;
        let token = format!("Bearer {}", self.token(user, 0)?);
        let request = post(
            &node.address,
            &path,
            &address(),
            &[("authorization", &token)],
            &body,
        );
        Ok(Poster {
            link: node.link().await?,
            request,
        })
    }
}

/// A client address that is not used elsewhere.
pub fn address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0x0b00_0001);
    std::net::Ipv4Addr::from(NEXT.fetch_add(1, Ordering::Relaxed)).to_string()
}

/// A sender that repeats one request.
pub struct Poster {
    link: Link<Wire>,
    request: Vec<u8>,
}

impl Poster {
    /// Sends once; returns after the commit, with the message's number.
    pub async fn send(&mut self) -> Result<i64> {
        let answer = self.link.ask(&self.request).await?;
        if answer.status != 201 {
            let body = String::from_utf8_lossy(&answer.body);
            return Err(format!("{} for a send: {body}", answer.status).into());
        }
        Ok(serde_json::from_slice::<Data<Sent>>(&answer.body)?.data.seq)
    }
}

/// A WebSocket of a user of the crowd, or of a peer.
pub struct Line(WebSocketStream<Wire>);

impl Line {
    /// Upgrades a connection to a node.
    async fn upgrade(node: &Node, wire: Wire) -> Result<Self> {
        let mut request = format!("ws://{}/ws", node.address).into_client_request()?;
        let headers = request.headers_mut();
        headers.insert("x-forwarded-proto", "https".parse()?);
        headers.insert("x-forwarded-for", address().parse()?);
        Self::over(request, wire).await
    }

    /// Opens a socket to a node and authenticates.
    pub async fn open(node: &Node, auth: String) -> Result<Self> {
        let mut line = Line::upgrade(node, node.dial().await?).await?;
        line.say(auth).await?;
        Ok(line)
    }

    /// Upgrades any connection.
    pub async fn over(
        request: tokio_tungstenite::tungstenite::handshake::client::Request,
        wire: Wire,
    ) -> Result<Self> {
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER)
            .write_buffer_size(0);
        let (stream, _) = client_async_with_config(request, wire, Some(config)).await?;
        Ok(Line(stream))
    }

    /// Writes a frame.
    pub async fn say(&mut self, text: String) -> Result<()> {
        Ok(self.0.send(Message::text(text)).await?)
    }

    /// The next text frame. Cancel safe.
    pub async fn hear(&mut self) -> Result<tokio_tungstenite::tungstenite::Utf8Bytes> {
        loop {
            match self.0.next().await.ok_or("a socket was closed")?? {
                Message::Text(text) => return Ok(text),
                Message::Close(why) => return Err(format!("a socket was closed: {why:?}").into()),
                _ => {}
            }
        }
    }

    /// Reads until all missed events have been replayed. Returns the numbers of the events, and the
    /// cursor.
    pub async fn caught_up(&mut self) -> Result<(Vec<i64>, String)> {
        let mut missed = Vec::new();
        loop {
            let text = tokio::time::timeout(TIMEOUT, self.hear()).await??;
            if let Some(seq) = event(&text) {
                missed.push(seq);
                continue;
            }
            let frame: Value = serde_json::from_str(&text)?;
            match frame["type"].as_str() {
                Some("caught_up") => {
                    return Ok((
                        missed,
                        frame["cursor"].as_str().unwrap_or_default().to_owned(),
                    ));
                }
                Some("auth.ok" | "ready") => {}
                _ => return Err(format!("a new socket was told {text}").into()),
            }
        }
    }
}

/// The number of an event in its inbox, read from the front of its frame. At this rate, a full
/// parse costs too much.
pub fn event(text: &str) -> Option<i64> {
    let rest = text.strip_prefix(r#"{"type":"event","cursor":""#)?;
    let (_, rest) = rest.split_once(r#"","seq":"#)?;
    rest.split_once(',')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_known_by_its_front() {
        assert_eq!(
            event(r#"{"type":"event","cursor":"10000-17","seq":17,"event_id":"x"}"#),
            Some(17)
        );
        assert_eq!(event(r#"{"type":"caught_up","cursor":"10000-17"}"#), None);
    }
}
