//! The person, who obeys commands.

use std::{collections::HashMap, sync::Arc, time::Duration};

use blindpipe_client::{
    Client, Content, Error, Receipt, Result, Server,
    client::{
        ClientEvent, Conversation, Received, SendOptions, TimelineItem, TimelineState, timeline,
    },
    e2ee::{consent::Sensitivity, to_base64},
    protocol::ids::{ConversationId, MessageId, Principal},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{LOOK_INTERVAL, SCOPE, new_file, object, parsed, variable, word};

const FIND_TIMEOUT: Duration = Duration::from_secs(30);

/// The streams of a conversation, as they are shown.
#[derive(Clone, Default)]
struct Screen {
    statuses: Vec<String>,
    text: String,
}

#[derive(Clone)]
pub struct Person {
    client: Client,
    /// The messages that have come.
    received: Arc<Mutex<HashMap<MessageId, Received>>>,
    screens: Arc<Mutex<HashMap<ConversationId, Screen>>>,
}

impl Person {
    pub async fn sign_in() -> Result<Self> {
        let authority = std::fs::read(variable("BLINDPIPE_CA")?).map_err(Error::other)?;
        let server = Server::new(variable("BLINDPIPE_URL")?).with_authority(authority);
        let builder = Client::builder(server).device_id("speaker");
        let builder = builder.tool("send_email", SCOPE, Sensitivity::Low);
        let (email, password) = (variable("EMAIL")?, variable("PASSWORD")?);
        let client = builder.login(&email, &password, "dev-pass").await?;
        client.devices().restore(&variable("PROTECTION")?).await?;
        Ok(Self {
            client,
            received: Arc::default(),
            screens: Arc::default(),
        })
    }

    /// Reads the events: keeps messages, shows streams, and runs tools.
    pub async fn watch(self) -> Result<()> {
        let mut events = self.client.events()?;
        loop {
            match Box::pin(events.next()).await? {
                ClientEvent::Message { received, .. } => {
                    let id = received.message.message_id;
                    self.received.lock().insert(id, *received);
                }
                ClientEvent::Status {
                    conversation_id,
                    text,
                    ..
                } => self.show(conversation_id, |screen| screen.statuses.push(text)),
                ClientEvent::Delta {
                    conversation_id,
                    append,
                    ..
                } => self.show(conversation_id, |screen| screen.text.push_str(&append)),
                ClientEvent::Checkpoint {
                    conversation_id,
                    text,
                    ..
                } => self.show(conversation_id, |screen| screen.text = text),
                ClientEvent::ToolRequest(request) => {
                    request.approve();
                    let prompt = request.prompt();
                    let run = async |tool, args| {
                        let args = Value::Object(args);
                        Ok(json!({"tool": tool, "args": args, "prompt": prompt}))
                    };
                    let run = |tool: String, args: Content| run(tool, args);
                    Box::pin(request.execute_with(run)).await?;
                }
                _ => {}
            }
        }
    }

    fn show(&self, id: ConversationId, change: impl FnOnce(&mut Screen)) {
        change(self.screens.lock().entry(id).or_default());
    }

    /// The client's answer to a command.
    pub async fn obey(&self, command: &Value) -> Result<Value> {
        if word(command, "do") == "open" {
            let id = parsed(word(command, "agent_id"))?;
            return Ok(json!(self.client.open_agent(id).await?.id()));
        }
        let talk = self
            .client
            .conversation(parsed(word(command, "conversation"))?);
        let content = || object(command["content"].clone());
        match word(command, "do") {
            "send" => Ok(json!(talk.send(content()).await?.message_id)),
            "send_file" => {
                let (file, details) = new_file(&command["file"])?;
                Ok(json!(talk.send_file_with(file, details).await?.message_id))
            }
            "stop" => Ok(json!(talk.stop(None, None).await?)),
            "live" => {
                let screen = self.screens.lock().get(&talk.id()).cloned();
                let Screen { statuses, text } = screen.unwrap_or_default();
                Ok(json!({"statuses": statuses, "text": text}))
            }
            "show" => shown(&talk).await,
            "decide" | "receipt" | "verify" => self.about_approval(command).await,
            _ => {
                let id = parsed(word(command, "message"))?;
                let found = timeout(FIND_TIMEOUT, self.find(id)).await;
                let found = found.map_err(Error::other)?;
                about_message(&talk, command, found, content()).await
            }
        }
    }

    /// A message that has come, or comes soon.
    async fn find(&self, id: MessageId) -> Received {
        loop {
            let found = self.received.lock().get(&id).cloned();
            match found {
                Some(found) => return found,
                None => sleep(LOOK_INTERVAL).await,
            }
        }
    }

    async fn about_approval(&self, command: &Value) -> Result<Value> {
        let id = parsed(word(command, "message"))?;
        let request = Box::pin(self.client.approval(id)).await?;
        match word(command, "do") {
            "receipt" => return Ok(json!(request.receipt().await?)),
            "verify" => {
                let receipt = command["receipt"].clone();
                let receipt: Receipt = serde_json::from_value(receipt).map_err(Error::other)?;
                let proof = request.verify(&receipt).await?.map_err(Error::other)?;
                return Ok(proof.state.into());
            }
            _ => {}
        }
        let seen = json!({
            "text": request.text(),
            "choices": request.choices(),
            "arguments": request.arguments(),
        });
        let words = word(command, "words");
        match word(command, "how") {
            "approve" => Box::pin(request.approve()).await?,
            "deny" => Box::pin(request.deny(Some(words))).await?,
            _ => Box::pin(request.answer(words)).await?,
        };
        Ok(seen)
    }
}

async fn about_message(
    talk: &Conversation,
    command: &Value,
    found: Received,
    content: Content,
) -> Result<Value> {
    let sent = match word(command, "do") {
        "reply" => {
            let options = SendOptions {
                in_reply_to: Some(found),
                ..SendOptions::default()
            };
            talk.send_with(content, options).await?
        }
        "edit" => talk.edit(&found, content).await?,
        "react" => {
            let remove = command["remove"] == true;
            talk.react(&found, word(command, "emoji"), remove).await?
        }
        "delete" => return talk.delete(&found).await.map(|()| Value::Null),
        "answer" => {
            let answer = talk.answer(found, word(command, "choice"));
            return answer.await.map(|()| Value::Null);
        }
        _ => return Err(Error::Usage("there is no such command")),
    };
    Ok(json!(sent.message_id))
}

async fn shown(talk: &Conversation) -> Result<Value> {
    let page = talk.history_page(None).await?;
    let mut items = Vec::new();
    for item in timeline(&page.messages, &page.refs) {
        items.push(shown_item(talk, &item).await?);
    }
    Ok(items.into())
}

async fn shown_item(talk: &Conversation, item: &TimelineItem) -> Result<Value> {
    let kind = |principal: &Principal| match principal {
        Principal::User(_) => "user",
        Principal::Agent(_) => "agent",
    };
    let file = item.content.as_ref();
    let file = file.filter(|content| content.get("type").is_some_and(|kind| kind == "file"));
    let data = match file {
        Some(content) => Some(to_base64(&talk.download(content).await?)),
        None => None,
    };
    let reactions = item.reactions.iter().map(|of| {
        let senders: Vec<_> = of.senders.iter().map(kind).collect();
        json!([of.emoji, senders])
    });
    let (message, opened) = (&item.received.message, item.received.opened.as_ref().ok());
    Ok(json!({
        "id": message.message_id,
        "sender": kind(&message.sender.id),
        "in_reply_to": message.in_reply_to,
        "own_re": opened.and_then(|opened| opened.re).map(|re| to_base64(&re)),
        "state": match item.state {
            TimelineState::Shown => "shown",
            TimelineState::Deleted => "deleted",
            TimelineState::Undecryptable => "undecryptable",
        },
        "content": item.content,
        "data": data,
        "edits": item.edits,
        "reactions": reactions.collect::<Vec<_>>(),
    }))
}
