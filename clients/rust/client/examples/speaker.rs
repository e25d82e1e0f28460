//! A person and an agent, for tests beside the clients of other languages.
//!
//! It reads the person's commands as lines of JSON, `{id, do, …}`, and prints a line `{id, answer}` or
//! `{id, error}` for each. The agent prints a line `{conversation, …}` for all that it hears.

use std::{
    collections::HashMap,
    env,
    io::{self, BufRead, Write},
    str::FromStr,
    sync::Arc,
    thread,
    time::Duration,
};

use blindpipe_client::{
    Agent, Client, Content, Context, Error, FileDetails, NewFile, Receipt, Result, Server,
    Thumbnail,
    agent::{ApprovalDraft, CallStatus, Question, ToolCall},
    client::{
        ClientEvent, Conversation, Received, SendOptions, TimelineItem, TimelineState, timeline,
    },
    e2ee::{consent::Sensitivity, from_base64, to_base64},
    protocol::ids::{ConversationId, MessageId, Principal},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};

const SCOPE: &str = "notification:send";
/// More than an envelope holds.
const LARGE_TEXT_REPEATS: usize = 125_000;
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
const FIND_TIMEOUT: Duration = Duration::from_secs(30);

fn print(line: &Value) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").map_err(Error::other)
}

fn variable(name: &str) -> Result<String> {
    env::var(name).map_err(Error::other)
}

fn object(value: Value) -> Content {
    match value {
        Value::Object(object) => object,
        _ => Content::new(),
    }
}

fn word<'a>(given: &'a Value, name: &str) -> &'a str {
    given[name].as_str().unwrap_or_default()
}

fn bytes(given: &Value, name: &str) -> Result<Vec<u8>> {
    Ok(from_base64(word(given, name))?)
}

fn parsed<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(text: &str) -> Result<T> {
    text.parse().map_err(Error::other)
}

fn new_file(given: &Value) -> Result<(NewFile, FileDetails)> {
    let picture = &given["thumbnail"];
    let pixels = |name: &str| picture[name].as_u64().and_then(|it| u32::try_from(it).ok());
    let file = NewFile {
        name: word(given, "name").to_owned(),
        content_type: word(given, "content_type").to_owned(),
        bytes: bytes(given, "data")?,
    };
    let details = FileDetails {
        caption: Some(word(given, "caption").to_owned()),
        thumbnail: Some(Thumbnail {
            content_type: word(picture, "content_type").to_owned(),
            bytes: bytes(picture, "data")?,
            width: pixels("width").unwrap_or_default(),
            height: pixels("height").unwrap_or_default(),
        }),
        ..FileDetails::default()
    };
    Ok((file, details))
}

// The agent.

fn tell(ctx: &Context, name: &str, what: &Value) -> Result<()> {
    print(&json!({"conversation": ctx.conversation_id()?, name: what}))
}

async fn hear(ctx: Context) -> Result<()> {
    let mut content = ctx.content().clone();
    if content.get("type").is_some_and(|kind| kind == "file") {
        let data = to_base64(&ctx.file().await?);
        content.insert("data".to_owned(), data.into());
    }
    tell(&ctx, "heard", &content.into())
}

async fn hear_and_act(ctx: Context) -> Result<()> {
    hear(ctx.clone()).await?;
    if Box::pin(act(&ctx)).await? && !ctx.stopped().is_cancelled() {
        tell(&ctx, "done", &ctx.text().into())?;
    }
    Ok(())
}

/// Acts, if a person has said one of these words.
async fn act(ctx: &Context) -> Result<bool> {
    match ctx.text() {
        "changes" => {
            ctx.react("👀", false).await?;
            ctx.react("🎉", false).await?;
            ctx.react("🎉", true).await?;
            let draft = ctx.reply("a draft").await?;
            ctx.edit(&draft, "done").await?;
            let mistake = ctx.reply("a mistake").await?;
            ctx.delete(&mistake).await?;
        }
        "file" => {
            let given = serde_json::from_str(&variable("FILE")?).map_err(Error::other)?;
            let (file, details) = new_file(&given)?;
            ctx.send_file_with(file, details).await?;
        }
        "large" => {
            ctx.reply("large ".repeat(LARGE_TEXT_REPEATS)).await?;
        }
        "question" | "ask" | "approve" => ask(ctx).await?,
        "tool" => call(ctx).await?,
        "stream" => stream(ctx).await?,
        "status" => {
            ctx.status("searching")?;
            ctx.stopped().cancelled().await;
            tell(ctx, "stopped", &true.into())?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

async fn ask(ctx: &Context) -> Result<()> {
    let words = |words: [&str; 2]| words.map(str::to_owned).to_vec();
    match ctx.text() {
        "question" => {
            let asked = ctx.sender().map(|sender| sender.principal.to_string());
            let question = json!({
                "type": "question",
                "text": "Which shade?",
                "tag": "shade",
                "choices": ["Dark", "Light"],
                "state": {"n": 1},
                "for": [asked],
            });
            ctx.reply(object(question)).await?;
        }
        "ask" => {
            let question = Question {
                tag: "colour".to_owned(),
                text: "Which colour?".to_owned(),
                choices: words(["Red", "Blue"]),
                state: object(json!({"n": 2})),
                ..Question::default()
            };
            ctx.ask(question).await?;
        }
        _ => {
            let draft = ApprovalDraft {
                text: Some("Deploy?".to_owned()),
                state: object(json!({"n": 3})),
                ..ApprovalDraft::new("deploy", object(json!({"version": "1.4.2"})))
            };
            ctx.approve(&draft).await?;
        }
    }
    Ok(())
}

async fn call(ctx: &Context) -> Result<()> {
    let call = ToolCall {
        tool: "send_email".to_owned(),
        scope: SCOPE.to_owned(),
        arguments: object(json!({"to": "bob"})),
        prompt: Some("Write to Bob?".to_owned()),
        ..ToolCall::default()
    };
    let got = ctx.call(call).await?;
    let status = match got.status {
        CallStatus::Executed => "executed",
        CallStatus::Denied => "denied",
        CallStatus::Failed => "failed",
    };
    tell(
        ctx,
        "call",
        &json!({"status": status, "result": got.result}),
    )
}

async fn stream(ctx: &Context) -> Result<()> {
    let mut stream = ctx.stream()?;
    stream.write("One, ").await;
    stream.write("two").await;
    let mut steered = Vec::new();
    while steered.is_empty() {
        sleep(LOOK_INTERVAL).await;
        let arrived = ctx.steer().await?;
        steered.extend(arrived.iter().map(|message| message.text().to_owned()));
    }
    tell(ctx, "steered", &json!(steered))?;
    stream.write(", three.").await;
    stream.end().await.map(drop)
}

async fn decided(ctx: Context) -> Result<()> {
    let result = ctx.decision().ok_or(Error::Usage("this is no decision"))?;
    let decision = json!({
        "outcome": result.outcome,
        "name": result.name,
        "arguments": result.arguments,
        "state": result.state,
        "choice": result.choice,
        "text": result.text,
    });
    let id = ctx.conversation_id()?;
    print(&json!({"conversation": id, "decision": decision, "receipt": result.receipt}))
}

async fn answered(ctx: Context) -> Result<()> {
    let answer = ctx.answer().ok_or(Error::Usage("this is no answer"))?;
    let told = json!({
        "choice": answer.choice,
        "text": answer.text,
        "state": answer.state,
        "question": answer.question,
    });
    tell(&ctx, "answer", &told)
}

fn agent() -> Result<Agent> {
    let builder = Agent::from_env()?.on_message(hear_and_act);
    let builder = ["edit", "delete", "reaction"]
        .into_iter()
        .fold(builder, |builder, change| builder.on(change, hear));
    let builder = builder
        .on_decision("deploy", decided)
        .on_decision("colour", decided);
    let builder = builder.on_answer("shade", answered);
    Ok(builder.on_answer("colour", answered).build())
}

// The person.

/// What is shown of the streams of a conversation.
#[derive(Clone, Default)]
struct Screen {
    statuses: Vec<String>,
    text: String,
}

#[derive(Clone)]
struct Person {
    client: Client,
    /// The messages that have come.
    received: Arc<Mutex<HashMap<MessageId, Received>>>,
    screens: Arc<Mutex<HashMap<ConversationId, Screen>>>,
}

impl Person {
    async fn sign_in() -> Result<Self> {
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
    async fn watch(self) -> Result<()> {
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

    /// What the client answers to a command.
    async fn obey(&self, command: &Value) -> Result<Value> {
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

/// Obeys until the input ends.
async fn listen(person: Person) -> Result<()> {
    let (sender, mut lines) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(io::Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let mut running = JoinSet::new();
    while let Some(line) = lines.recv().await {
        let command: Value = serde_json::from_str(&line).map_err(Error::other)?;
        let person = person.clone();
        running.spawn(async move {
            let answer = match Box::pin(person.obey(&command)).await {
                Ok(answer) => json!({"id": command["id"], "answer": answer}),
                Err(error) => json!({"id": command["id"], "error": error.to_string()}),
            };
            print(&answer)
        });
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let agent = agent()?;
    let person = Person::sign_in().await?;
    tokio::select! {
        ended = agent.run() => ended,
        ended = person.clone().watch() => ended,
        ended = listen(person) => ended,
    }
}
