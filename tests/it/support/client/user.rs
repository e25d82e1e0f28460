//! A user as a client.

use blindpipe_protocol::{
    accounts::{Login, Refreshed, Register, SignedIn},
    conversations::{Conversation, OpenConversation, OpenGroup},
    messages::SendMessage,
    text::{DeviceId, DisplayName, EmailAddress, Locale, MailedCode, Secret, Title},
};
use chrono::{DateTime, Utc};
use reqwest::Method;
use serde_json::{Value, json};

use super::{Agent, Answer, Caller, TURNSTILE_PASS, claims_of, text_payload, ulid};
use crate::support::{socket::Socket, world::TestNode};

/// A registered user.
#[derive(Clone)]
pub struct User {
    pub caller: Caller,
    pub id: String,
    pub email: String,
    pub access_token: String,
    pub device_id: String,
    /// The cookie `refresh_token=...`, as a client sends it back.
    pub cookie: String,
}

pub const PASSWORD: &str = "correct horse battery";

impl std::ops::Deref for User {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl User {
    pub async fn register(node: &TestNode, name: &str) -> Self {
        Self::register_by(Caller::new(node), name).await
    }

    /// Registers through the API at the caller's node, whose mails are files.
    pub async fn register_by(caller: Caller, name: &str) -> Self {
        let email = format!("{name}-{}@example.org", ulid().to_string().to_lowercase());
        let code = caller.code(&email, "register").await;
        let answer = caller
            .post("/auth/register", Self::registration(&email, name, &code))
            .await
            .expect(201);
        Self::signed_in(caller, email, &answer)
    }

    pub fn registration(email: &str, name: &str, code: &str) -> Value {
        let body = Register {
            email: EmailAddress::from(email),
            code: MailedCode(code.to_owned()),
            account_password: Secret::from(PASSWORD),
            display_name: DisplayName(name.to_owned()),
            device_locale: Locale("en-GB".to_owned()),
            turnstile_token: Secret::from(TURNSTILE_PASS),
            device_id: Some(DeviceId(format!("device-of-{name}"))),
            device_name: None,
            platform: None,
        };
        serde_json::to_value(body).expect("JSON")
    }

    pub fn signed_in(caller: Caller, email: String, answer: &Answer) -> Self {
        let SignedIn {
            user_id,
            access_token: Secret(access_token),
            device_id,
            ..
        } = answer.read();
        let cookie = cookie_of(answer);
        User {
            caller: caller.with_token(&access_token),
            id: user_id.to_string(),
            email,
            access_token,
            device_id,
            cookie,
        }
    }

    pub fn on(&self, node: &TestNode) -> Self {
        User {
            caller: self.caller.on(node),
            ..self.clone()
        }
    }

    pub fn at(&self, base: &str) -> Self {
        User {
            caller: self.caller.at(base),
            ..self.clone()
        }
    }

    /// The time `seconds` after the access token's end.
    pub fn after_its_end(&self, seconds: i64) -> DateTime<Utc> {
        let end = claims_of(&self.access_token)["exp"]
            .as_i64()
            .expect("a number");
        DateTime::from_timestamp(end + seconds, 0).expect("a moment")
    }

    /// The user with a new access token, as a client gets one after five minutes.
    pub async fn refreshed(&self) -> Self {
        let request = self
            .request(Method::POST, "/auth/refresh")
            .header("cookie", &self.cookie);
        let answer = self.send(request).await.expect(200);
        let Refreshed {
            access_token: Secret(access_token),
            ..
        } = answer.read();
        let cookie = cookie_of(&answer);
        User {
            caller: self.caller.with_token(&access_token),
            access_token,
            cookie,
            ..self.clone()
        }
    }

    /// Signs in again with the password, on a device of this name, or one without.
    pub async fn login(&self, node: &TestNode, device: Option<&str>) -> Self {
        self.login_by(node, PASSWORD, device).await
    }

    /// Signs in again on the same device, after a change of the password.
    pub async fn login_with(&self, node: &TestNode, password: &str) -> Self {
        self.login_by(node, password, Some(&self.device_id)).await
    }

    async fn login_by(&self, node: &TestNode, password: &str, device: Option<&str>) -> Self {
        let caller = Caller::new(node);
        let body = Login {
            email: EmailAddress::from(self.email.as_str()),
            account_password: Secret::from(password),
            turnstile_token: Secret::from(TURNSTILE_PASS),
            device_id: device.map(|device| DeviceId(device.to_owned())),
            device_name: None,
            platform: None,
        };
        let answer = caller.post("/auth/login", body).await.expect(200);
        Self::signed_in(caller, self.email.clone(), &answer)
    }

    /// Sends a request with the cookie, as a browser does.
    pub async fn with_cookie(&self, path: &str) -> Answer {
        self.send(
            self.request(Method::POST, path)
                .header("cookie", &self.cookie),
        )
        .await
    }

    /// The cursor before the first event.
    pub async fn start_of_inbox(&self) -> String {
        let socket = self.connect().await;
        let cursor = socket.ready["cursor"].as_str().expect("a cursor");
        format!("{}-0", cursor.split('-').next().expect("an epoch"))
    }

    /// Opens a conversation with an agent; returns its id.
    pub async fn talk_to(&self, agent: &Agent) -> String {
        let agent_id = agent.id.parse().expect("an id");
        self.open(OpenConversation::Agent { agent_id }).await
    }

    /// Opens a conversation with another user; returns its id.
    pub async fn direct_with(&self, user: &User) -> String {
        let user_id = user.id.parse().expect("an id");
        self.open(OpenConversation::Direct { user_id }).await
    }

    async fn open(&self, body: OpenConversation) -> String {
        let answer = self.post("/conversations", body).await.expect(201);
        answer.read::<Conversation>().conversation_id.to_string()
    }

    pub async fn say(&self, conversation: &str, text: &str) -> Answer {
        let path = format!("/conversations/{conversation}/messages");
        self.post(path, SendMessage::new(text_payload(text))).await
    }

    /// Opens a group; returns its id.
    pub async fn group_with(&self, members: &[&User]) -> String {
        let ids = members
            .iter()
            .map(|member| member.id.parse().expect("an id"));
        let body = OpenGroup {
            title: Some(Title("a group".to_owned())),
            member_ids: ids.collect(),
            ..OpenGroup::default()
        };
        let answer = self.post("/groups", body).await.expect(201);
        answer.read::<Conversation>().conversation_id.to_string()
    }

    /// A socket that is authenticated and caught up from the last ack.
    pub async fn connect(&self) -> Socket {
        self.connect_from(None).await
    }

    pub async fn connect_from(&self, resume: Option<&str>) -> Socket {
        let mut socket = Socket::open(&self.caller).await;
        socket
            .say(json!({ "type": "auth", "access_token": self.access_token, "resume": resume }))
            .await;
        socket.welcome().await;
        socket
    }
}

/// The cookie that an answer sets, as a client sends it back.
fn cookie_of(answer: &Answer) -> String {
    let cookie = answer.header("set-cookie").expect("a cookie");
    cookie.split(';').next().expect("a value").to_owned()
}
