//! An agent as a client.

use blindpipe_protocol::{
    agents::{CreateAgent, CreatedAgent},
    messages::SendMessage,
    text::{DisplayName, Secret},
};
use serde_json::json;

use super::{Answer, Caller, User, text_payload};
use crate::support::{socket::Socket, world::TestNode};

/// An agent with its token.
#[derive(Clone)]
pub struct Agent {
    pub caller: Caller,
    pub id: String,
    pub token: String,
}

impl std::ops::Deref for Agent {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl Agent {
    pub async fn create(node: &TestNode, owner: &User, name: &str) -> Self {
        Self::create_by(Caller::new(node), &owner.on(node), name).await
    }

    /// Creates an agent through the API at the owner's node. `caller` becomes the agent's.
    pub async fn create_by(caller: Caller, owner: &User, name: &str) -> Self {
        let body = CreateAgent {
            display_name: DisplayName(name.to_owned()),
            description: None,
            manifest: None,
        };
        let answer = owner.post("/agents", body).await.expect(201);
        let CreatedAgent {
            agent_id,
            token: Secret(token),
            ..
        } = answer.read();
        Agent {
            caller: caller.with_token(&token),
            id: agent_id.to_string(),
            token,
        }
    }

    pub fn on(&self, node: &TestNode) -> Self {
        Agent {
            caller: self.caller.on(node),
            ..self.clone()
        }
    }

    pub fn at(&self, base: &str) -> Self {
        Agent {
            caller: self.caller.at(base),
            ..self.clone()
        }
    }

    pub async fn say(&self, conversation: &str, text: &str) -> Answer {
        let body = SendMessage {
            conversation_id: Some(conversation.parse().expect("an id")),
            ..SendMessage::new(text_payload(text))
        };
        self.post(format!("/agents/{}/messages", self.id), body)
            .await
    }

    /// The path of the agent's webhook, or below it.
    pub fn webhook(&self, below: &str) -> String {
        format!("/agents/{}/webhook{below}", self.id)
    }

    pub async fn poll(&self, query: &str) -> Answer {
        self.get(format!("/agents/{}/messages/poll?{query}", self.id))
            .await
    }

    pub async fn connect(&self) -> Socket {
        self.connect_from(None).await
    }

    pub async fn connect_from(&self, resume: Option<&str>) -> Socket {
        self.try_connect(resume).await.expect("a socket")
    }

    /// Connects to a node that may be gone.
    pub async fn try_connect(&self, resume: Option<&str>) -> Option<Socket> {
        let mut socket = Socket::try_open(&self.caller).await?;
        socket
            .say(json!({ "type": "auth", "agent_id": self.id, "token": self.token, "resume": resume }))
            .await;
        socket.welcome().await;
        Some(socket)
    }
}
