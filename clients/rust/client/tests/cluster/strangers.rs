//! A client that was written against the interface alone: it has registered keys, and knows nothing
//! of `bp1`.

use blindpipe_client::{
    agent::generate_key,
    client::Conversation,
    e2ee::to_base64,
    protocol::ids::{ConversationId, UserId},
};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{net::TcpStream, time::timeout};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, tungstenite::Message};

use crate::{
    attacks::{keys_of, next_message},
    proxy::Upstream,
    support::{PATIENCE, Shared, cluster, echo, history, pair, scene, watch},
};

/// Carol, with nothing but HTTP, JSON and a WebSocket.
struct Plain {
    node: Upstream,
    token: String,
    user_id: UserId,
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl Plain {
    /// Registers a person and a device with keys, as docs/api says.
    async fn register(cluster: &Shared, number: usize) -> Self {
        let node = Upstream::new(cluster, number);
        // Chance is the client's: a new key is like no other.
        let unique: String = generate_key()
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .collect();
        let email = format!("carol-{}@example.com", unique[..24].to_lowercase());
        let body = json!({ "email": email, "scene": "register", "turnstile_token": "dev-pass" });
        call(&node, None, "POST", "/auth/send-code", Some(body)).await;
        let body = json!({
            "email": email,
            "code": cluster.code(&email).await.expect("a mail"),
            "account_password": "account password of Carol",
            "display_name": "Carol",
            "device_locale": "en",
            "turnstile_token": "dev-pass",
            "device_id": "carols-terminal",
        });
        let made = call(&node, None, "POST", "/auth/register", Some(body)).await;
        let token = made["access_token"].as_str().expect("a token").to_owned();
        let keys = keys_of(5);
        let body = json!({
            "backup_a": to_base64(&[1; 93]),
            "backup_b": to_base64(&[2; 93]),
            "argon2_salt": to_base64(&[3; 32]),
            "argon2_params": { "m": 65_536, "t": 3, "p": 1 },
            "public_key": to_base64(keys.public().public_key()),
            "signing_public_key": to_base64(keys.public().signing_public_key()),
            "device_id": "carols-terminal",
        });
        call(&node, Some(&token), "POST", "/keys/backup", Some(body)).await;
        let mut socket = node.socket().await.expect("a socket");
        let auth = json!({ "type": "auth", "access_token": token });
        socket
            .send(Message::text(auth.to_string()))
            .await
            .expect("sent");
        let user_id = serde_json::from_value(made["user_id"].clone()).expect("an id");
        Self {
            node,
            token,
            user_id,
            socket,
        }
    }

    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        call(&self.node, Some(&self.token), method, path, body).await
    }

    async fn send(&self, to: ConversationId, text: &str) {
        let body = json!({ "payload": { "type": "text", "text": text } });
        self.call("POST", &format!("/conversations/{to}/messages"), Some(body))
            .await;
    }

    /// The payloads of a conversation, oldest first.
    async fn payloads(&self, of: ConversationId) -> Vec<Value> {
        let path = format!("/conversations/{of}/messages?direction=forward");
        let page = self.call("GET", &path, None).await;
        let page = page.as_array().expect("a page").iter();
        page.map(|message| message["payload"].clone()).collect()
    }

    /// The payload of the next message in a conversation, acknowledged.
    async fn next(&mut self, of: ConversationId) -> Value {
        let next = async {
            loop {
                let frame = self.socket.next().await.expect("a frame").expect("a frame");
                let Message::Text(text) = frame else { continue };
                let frame: Value = serde_json::from_str(&text).expect("JSON");
                if frame["event"] != "message.created" {
                    continue;
                }
                let ack = json!({ "type": "ack", "cursor": frame["cursor"] });
                self.socket
                    .send(Message::text(ack.to_string()))
                    .await
                    .expect("sent");
                if frame["conversation_id"] == of.to_string() {
                    return frame["data"]["payload"].clone();
                }
            }
        };
        timeout(PATIENCE, next).await.expect("an event in time")
    }
}

async fn call(
    node: &Upstream,
    token: Option<&str>,
    method: &str,
    path: &str,
    body: Option<Value>,
) -> Value {
    let method = method.parse().expect("a method");
    let mut request = node.http.request(method, format!("{}{path}", node.url));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    if let Some(body) = body {
        request = request.json(&body);
    }
    let answer = request.send().await.expect("an answer");
    assert!(answer.status().is_success(), "{path}: {}", answer.status());
    let answer: Value = answer.json().await.expect("JSON");
    answer["data"].clone()
}

/// The last message of a conversation, if it opened: its text, else the reason.
async fn last(of: &Conversation) -> String {
    let last = history(of).await.pop().expect("a message");
    match last.opened {
        Ok(opened) => opened.text().to_owned(),
        Err(reason) => reason.reason().to_owned(),
    }
}

#[tokio::test]
async fn it_talks_with_a_bp1_client_that_chose_clear_text() {
    let cluster = cluster().await;
    let mut carol = Plain::register(&cluster, 1).await;
    let ada = cluster.user("ada").await.expect("a person");
    let conversation = ada.client.open_direct(carol.user_id).await.expect("opened");
    let mut events = watch(&ada).await;
    assert!(
        conversation.send("hello").await.is_err(),
        "nobody chose clear text"
    );
    conversation.choose_clear().expect("chosen");
    conversation.send("hello").await.expect("sent");
    let id = conversation.id();
    assert_eq!(
        carol.next(id).await,
        json!({ "type": "text", "text": "hello" })
    );
    carol.send(id, "hello Ada").await;
    // A person's own messages come too, for her other devices.
    assert_eq!(next_message(&mut events, id).await.text(), "hello");
    let received = next_message(&mut events, id).await;
    assert_eq!(received.text(), "hello Ada");
    let opened = received.opened.expect("it may be shown");
    assert!(!opened.encrypted && !opened.sender.authentic);
    assert_eq!(carol.payloads(id).await.len(), 2);
}

#[tokio::test]
async fn it_goes_on_in_a_group_beside_bp1_clients() {
    let cluster = cluster().await;
    let mut carol = Plain::register(&cluster, 0).await;
    let (ada, bob) = pair(&cluster).await;
    let bob_id = bob.client.user_id().expect("an id");
    let group = ada
        .client
        .open_group("mixed", vec![bob_id, carol.user_id])
        .await;
    let group = group.expect("a group");
    let (id, bobs) = (group.id(), bob.client.conversation(group.id()));
    // Each person chooses on her own device.
    group.choose_clear().expect("chosen");
    group.send("from Ada").await.expect("sent");
    assert_eq!(carol.next(id).await["text"], "from Ada");
    assert!(bobs.send("from Bob").await.is_err());
    assert_eq!(last(&bobs).await, "clear");
    bobs.choose_clear().expect("chosen");
    bobs.send("from Bob").await.expect("sent");
    assert_eq!(carol.next(id).await["text"], "from Bob");
    carol.send(id, "from Carol").await;
    assert_eq!(last(&group).await, "from Carol");
    assert_eq!(last(&bobs).await, "from Carol");
}

#[tokio::test]
async fn an_encrypted_group_that_it_joins_stays_encrypted() {
    let cluster = cluster().await;
    let mut carol = Plain::register(&cluster, 1).await;
    let (ada, bob) = pair(&cluster).await;
    let bob_id = bob.client.user_id().expect("an id");
    let group = ada.client.open_group("encrypted", vec![bob_id]).await;
    let group = group.expect("a group");
    group.send("before Carol").await.expect("sent");
    group.add_members(vec![carol.user_id]).await.expect("added");
    group.send("beside Carol").await.expect("sent");
    let id = group.id();
    assert_eq!(carol.next(id).await["type"], "encrypted");
    // Her device has its wrap, as the interface says; a client that learns `bp1` reads on.
    let wraps = carol.call("GET", &format!("/keys/groups/{id}"), None).await;
    let wrap = wraps["wrapped_keys"][0]["wrapped_key"].as_str();
    assert_eq!(wrap.map(str::len), Some(316), "235 bytes in base64");
    carol.send(id, "in clear").await;
    assert_eq!(carol.next(id).await["text"], "in clear");
    assert_eq!(last(&group).await, "clear", "said by nobody");
    group.send("still encrypted").await.expect("sent");
    assert_eq!(carol.next(id).await["type"], "encrypted");
    assert_eq!(last(&bob.client.conversation(id)).await, "still encrypted");
}

#[tokio::test]
async fn an_agent_with_a_key_answers_it_where_its_developer_allows_clear_text() {
    let scene = scene("polyglot").await;
    let mut carol = Plain::register(&scene.cluster, 0).await;
    let mut talk = scene.talk(echo(scene.builder().allow_plaintext())).await;
    let body = json!({ "type": "agent", "agent_id": scene.agent.id });
    let opened = carol.call("POST", "/conversations", Some(body)).await;
    let id = serde_json::from_value(opened["conversation_id"].clone()).expect("an id");
    carol.send(id, "in clear").await;
    for text in ["in clear", "You said: in clear"] {
        assert_eq!(carol.next(id).await["text"], text);
    }
    // Beside that, it speaks `bp1` with Ada.
    talk.conversation.send("sealed").await.expect("sent");
    let answer = talk.answer().await.opened.expect("it opens");
    assert!(answer.encrypted);
    assert_eq!(answer.text(), "You said: sealed");
    talk.agent.stop().await;
}
