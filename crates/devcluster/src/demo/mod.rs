//! The conversation of `make run`: a user, an agent and two nodes, through the public interface
//! only. It is also the shortest example of a client.

mod client;
mod mail;
mod socket;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use reqwest::Method;
use serde_json::{Value, json};

use self::{
    client::{DemoClient, ciphertext, message, text},
    socket::Socket,
};
use crate::{
    error::{DevError, Result},
    terminal::say,
};

/// Deadline of each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// The ids and credentials with which the reader can go on.
#[derive(Debug)]
pub struct PlayedDemo {
    pub agent_id: String,
    pub agent_token: String,
    pub conversation_id: String,
}

/// Plays the conversation between the nodes at `first` and `second`.
pub async fn play(first: &str, second: &str, ca: &Path, mails: &Path) -> Result<PlayedDemo> {
    say("A conversation, through the public HTTPS and WebSocket interface only:");
    let client = DemoClient::new(ca)?;
    let began = Instant::now();
    let user_token = client.register(first, mails).await?;
    tell(
        began,
        "Ada",
        "node-1",
        "registers with the code from her mail",
    );
    let demo = Demo {
        played: set_up(&client, first, &user_token).await?,
        client,
        first,
        user_token,
    };
    let (mut ada, mut echo) = demo.connect(second).await?;
    demo.user_to_agent(&mut echo).await?;
    demo.agent_to_user_by_rest(&mut ada).await?;
    demo.agent_to_user_by_frame(&mut echo, &mut ada).await?;
    echo.close().await;
    ada.close().await;
    Ok(demo.played)
}

/// Creates an agent and a conversation with it.
async fn set_up(client: &DemoClient, node: &str, user_token: &str) -> Result<PlayedDemo> {
    let began = Instant::now();
    let body =
        json!({ "display_name": "Echo", "description": "Answers in the played conversation." });
    let agent = client
        .call(node, Method::POST, "/agents", Some(user_token), &body)
        .await?;
    let (agent_id, agent_token) = (text(&agent, "agent_id")?, text(&agent, "token")?);
    let start = &agent_token[..8.min(agent_token.len())];
    let created = format!("creates the agent Echo and sees its token once: {start}…");
    tell(began, "Ada", "node-1", &created);

    let began = Instant::now();
    let body = json!({ "type": "agent", "agent_id": agent_id });
    let conversation = client
        .call(
            node,
            Method::POST,
            "/conversations",
            Some(user_token),
            &body,
        )
        .await?;
    tell(began, "Ada", "node-1", "opens a conversation with Echo");
    Ok(PlayedDemo {
        agent_id,
        agent_token,
        conversation_id: text(&conversation, "conversation_id")?,
    })
}

struct Demo<'a> {
    client: DemoClient,
    /// The node that takes REST calls.
    first: &'a str,
    user_token: String,
    played: PlayedDemo,
}

impl Demo<'_> {
    /// Connects Ada and Echo to `node`.
    async fn connect(&self, node: &str) -> Result<(Socket, Socket)> {
        let began = Instant::now();
        let (agent_id, token) = (&self.played.agent_id, &self.played.agent_token);
        let agent = json!({ "type": "auth", "agent_id": agent_id, "token": token });
        let user = json!({ "type": "auth", "access_token": self.user_token });
        let echo = self.client.connect(node, "Echo", agent).await?;
        let ada = self.client.connect(node, "Ada", user).await?;
        tell(began, "both", "node-2", "are connected by WebSocket");
        Ok((ada, echo))
    }

    async fn post(&self, path: &str, token: &str, body: &Value) -> Result<Value> {
        let call = self
            .client
            .call(self.first, Method::POST, path, Some(token), body);
        call.await
    }

    /// A message of the user reaches the agent on the other node.
    async fn user_to_agent(&self, echo: &mut Socket) -> Result<()> {
        let began = Instant::now();
        let path = format!("/conversations/{}/messages", self.played.conversation_id);
        let body = message(&json!({ "type": "text", "text": "Hello Echo, are you there?" }));
        let sent = self.post(&path, &self.user_token, &body).await?;
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
        let ack = json!({ "type": "ack", "cursor": event["cursor"] });
        echo.send(&ack).await
    }

    /// The agent answers by REST. The server sees only ciphertext.
    async fn agent_to_user_by_rest(&self, ada: &mut Socket) -> Result<()> {
        let began = Instant::now();
        let path = format!("/agents/{}/messages", self.played.agent_id);
        let ciphertext = ciphertext();
        let mut body = message(&ciphertext);
        body["conversation_id"] = json!(self.played.conversation_id);
        let sent = self.post(&path, &self.played.agent_token, &body).await?;
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
        Ok(())
    }

    /// The agent answers by a WebSocket frame.
    async fn agent_to_user_by_frame(&self, echo: &mut Socket, ada: &mut Socket) -> Result<()> {
        let began = Instant::now();
        let mut frame = message(&ciphertext());
        frame["type"] = json!("message.send");
        frame["ref"] = json!("1");
        frame["conversation_id"] = json!(self.played.conversation_id);
        echo.send(&frame).await?;
        let is_answer = |frame: &Value| frame["type"] == "message.sent" && frame["ref"] == "1";
        let sent = echo.expect("message.sent", is_answer).await?;
        tell(
            began,
            "Echo",
            "node-2",
            "answers again by WebSocket frame, encrypted",
        );
        ada.message(&text(&sent["data"], "message_id")?).await?;
        tell(began, "Ada", "node-2", "receives that too");
        Ok(())
    }
}

/// Prints a line about a step.
fn tell(began: Instant, who: &str, node: &str, what: &str) {
    say(format!(
        "  {:>5} ms  {who:<4}  {node}  {what}",
        began.elapsed().as_millis()
    ));
}
