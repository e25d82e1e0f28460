//! Tasks of A2A in the conversation of a person with an agent: a message of a client begins one,
//! and what the agent answers moves it on.

use std::collections::{HashSet, VecDeque};

use base64::{Engine, engine::general_purpose::STANDARD};
use blindpipe_client::{
    Content, NewFile,
    client::{ClientEvent, Conversation, Received},
    protocol::ids::{MessageId, Principal},
};
use serde_json::{Value, json};
use tokio::sync::{Mutex, broadcast};

use super::wire::{
    AUTH_REQUIRED, CANCELED, COMPLETED, INPUT_REQUIRED, WORKING, is_final, said, words_of,
};
use crate::{failure::Failure, show};

/// Tasks that are remembered. The oldest is forgotten.
const MAX_TASKS: usize = 1000;
/// Changes that a slow reader may be behind.
const MAX_BEHIND_CHANGES: usize = 1024;

/// A fault of a call, as JSON-RPC and HTTP tell it.
#[derive(Debug)]
pub struct Fault {
    pub code: i32,
    pub status: u16,
    pub reason: &'static str,
    pub message: String,
}

impl Fault {
    pub fn new(code: i32, status: u16, reason: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            code,
            status,
            reason,
            message,
        }
    }

    pub fn no_task() -> Self {
        Self::new(-32001, 404, "TASK_NOT_FOUND", "there is no such task")
    }

    pub fn unfit(message: &str) -> Self {
        Self::new(-32602, 400, "INVALID_PARAMS", message)
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self::new(-32603, 502, "INTERNAL", failure.message())
    }
}

impl From<blindpipe_client::Error> for Fault {
    fn from(error: blindpipe_client::Error) -> Self {
        Failure::from(error).into()
    }
}

struct Task {
    id: MessageId,
    state: &'static str,
    /// The agent's words beside the state.
    said: Option<Value>,
    artifacts: Vec<Value>,
    history: Vec<Value>,
    /// The question that waits for an answer.
    question: Option<Received>,
    /// The approval that waits for people.
    approval: Option<MessageId>,
    /// The messages to which answers belong to this task.
    asked: Vec<MessageId>,
    /// The stream that the agent writes, and its text so far.
    streamed: Option<(String, String)>,
    changes: broadcast::Sender<Value>,
}

/// The tasks of a conversation.
pub struct Tasks {
    conversation: Conversation,
    agent: Principal,
    /// Held while a message is sent, so that its answer finds its task.
    tasks: Mutex<VecDeque<Task>>,
}

/// A task as it is, and what becomes of it.
pub struct Watched {
    pub task: Value,
    pub changes: broadcast::Receiver<Value>,
}

impl Task {
    fn json(&self, context: &str) -> Value {
        json!({
            "id": self.id,
            "contextId": context,
            "status": self.status(),
            "artifacts": self.artifacts,
            "history": self.history,
        })
    }

    fn status(&self) -> Value {
        let mut status = json!({ "state": self.state });
        if let Some(said) = &self.said {
            status["message"] = said.clone();
        }
        status
    }

    fn is_open(&self) -> bool {
        !is_final(self.state)
    }

    fn tell(&self, kind: &str, context: &str, mut change: Value) {
        change["taskId"] = json!(self.id);
        change["contextId"] = context.into();
        // Nobody may listen.
        self.changes.send(json!({ kind: change })).ok();
    }

    fn turn(&mut self, state: &'static str, said: Option<Value>, context: &str) {
        self.state = state;
        self.said = said;
        self.tell("statusUpdate", context, json!({ "status": self.status() }));
    }

    fn add(&mut self, artifact: Value, context: &str) {
        let change = json!({ "artifact": artifact, "append": false, "lastChunk": true });
        self.artifacts.push(artifact);
        self.tell("artifactUpdate", context, change);
    }

    /// The whole text, of which pieces may have been told.
    fn add_text(&mut self, id: String, text: &str, context: &str) {
        let told = self.streamed.take().filter(|(stream, _)| *stream == id);
        let rest = told.and_then(|(_, told)| text.strip_prefix(&told).map(str::to_owned));
        let whole = json!({ "artifactId": id, "parts": [{ "text": text }] });
        let Some(rest) = rest else {
            return self.add(whole, context);
        };
        let last = json!({ "artifactId": id, "parts": [{ "text": rest }] });
        self.artifacts.push(whole);
        let change = json!({ "artifact": last, "append": true, "lastChunk": true });
        self.tell("artifactUpdate", context, change);
    }
}

impl Tasks {
    pub fn new(conversation: Conversation, agent: Principal) -> Self {
        Self {
            conversation,
            agent,
            tasks: Mutex::default(),
        }
    }

    /// The only context: the conversation.
    fn context(&self) -> String {
        self.conversation.id().to_string()
    }

    /// A task by its id.
    pub async fn watch(&self, id: &str) -> Result<Watched, Fault> {
        let tasks = self.tasks.lock().await;
        let task = tasks.iter().find(|it| it.id.to_string() == id);
        let task = task.ok_or_else(Fault::no_task)?;
        Ok(Watched {
            task: task.json(&self.context()),
            changes: task.changes.subscribe(),
        })
    }

    /// The tasks, the newest first.
    pub async fn list(&self) -> Vec<Value> {
        let context = self.context();
        let tasks = self.tasks.lock().await;
        tasks.iter().rev().map(|it| it.json(&context)).collect()
    }

    /// The ids of all tasks.
    pub async fn ids(&self) -> HashSet<String> {
        let tasks = self.tasks.lock().await;
        tasks.iter().map(|it| it.id.to_string()).collect()
    }

    /// Sends a client's message: a new task, or words for one that waits.
    pub async fn send(&self, message: &Value) -> Result<Watched, Fault> {
        let context = self.context();
        let text = |name: &str| message[name].as_str().filter(|it| !it.is_empty());
        if text("contextId").is_some_and(|it| it != context) {
            return Err(Fault::unfit("the agent has one context"));
        }
        let parts = &message["parts"];
        let words = words_of(parts);
        let files = files_of(parts)?;
        if words.is_empty() && files.is_empty() {
            return Err(Fault::unfit("the message is empty"));
        }
        let mut tasks = self.tasks.lock().await;
        if let Some(id) = text("taskId") {
            let task = tasks.iter_mut().find(|it| it.id.to_string() == id);
            let task = task.ok_or_else(Fault::no_task)?;
            if words.is_empty() || !files.is_empty() {
                return Err(Fault::unfit("the task waits for words"));
            }
            let question = task.question.take().ok_or_else(|| {
                let words = "the task does not wait for a message";
                Fault::new(-32004, 400, "UNSUPPORTED_OPERATION", words)
            })?;
            let sent = self.answer(&question, &words).await;
            if sent.is_err() {
                task.question = Some(question);
            }
            task.asked.push(sent?);
            task.history.push(message.clone());
            task.turn(WORKING, None, &context);
            return Ok(watched(task, &context));
        }
        let mut sent = None;
        for file in files {
            sent = Some(self.conversation.send_file(file).await?.message_id);
        }
        if !words.is_empty() {
            sent = Some(self.conversation.send(words).await?.message_id);
        }
        let id = sent.ok_or_else(|| Fault::unfit("the message is empty"))?;
        let mut history = message.clone();
        history["taskId"] = json!(id);
        history["contextId"] = context.as_str().into();
        let task = Task {
            id,
            state: WORKING,
            said: None,
            artifacts: Vec::new(),
            history: vec![history],
            question: None,
            approval: None,
            asked: vec![id],
            streamed: None,
            changes: broadcast::channel(MAX_BEHIND_CHANGES).0,
        };
        let watched = watched(&task, &context);
        tasks.push_back(task);
        if tasks.len() > MAX_TASKS {
            tasks.pop_front();
        }
        Ok(watched)
    }

    async fn answer(&self, question: &Received, words: &str) -> Result<MessageId, Fault> {
        let content = question.opened.as_ref().map(|it| &it.content);
        let choices = content.map(show::choices).unwrap_or_default();
        let is_choice = choices.iter().any(|it| it == words);
        let is_approval = content.is_ok_and(show::is_approval);
        let conversation = &self.conversation;
        if is_choice || (is_approval && choices.is_empty()) {
            conversation.answer(question.clone(), words).await?;
            return Ok(question.message.message_id);
        }
        if is_approval {
            return Err(Fault::unfit("the task waits for one of its choices"));
        }
        Ok(conversation.reply(question, words).await?.message_id)
    }

    /// Stops what the agent does for a task.
    pub async fn cancel(&self, id: &str) -> Result<Value, Fault> {
        let context = self.context();
        let mut tasks = self.tasks.lock().await;
        let task = tasks.iter_mut().find(|it| it.id.to_string() == id);
        let task = task.ok_or_else(Fault::no_task)?;
        if !task.is_open() {
            let words = "the task has ended";
            return Err(Fault::new(-32002, 409, "TASK_NOT_CANCELABLE", words));
        }
        self.conversation
            .stop(None, task.asked.last().copied())
            .await?;
        task.turn(CANCELED, None, &context);
        Ok(task.json(&context))
    }

    /// Takes what happens in the conversation.
    pub async fn see(&self, event: ClientEvent) {
        let here = self.conversation.id();
        match event {
            ClientEvent::Message {
                conversation,
                received,
                ..
            } if conversation.id() == here && received.message.sender.id == self.agent => {
                self.see_message(*received).await;
            }
            ClientEvent::Delta {
                conversation_id,
                stream_id,
                append,
                sender,
                ..
            } if conversation_id == here && sender == self.agent => {
                self.see_piece(stream_id, &append).await;
            }
            ClientEvent::Event(event) if event.event == "approval.closed" => {
                let data = serde_json::from_str::<Value>(event.data.as_str());
                let id = data.map(|data| data["approval_id"].to_string());
                if let Ok(id) = id {
                    self.see_decision(id.trim_matches('"')).await;
                }
            }
            _ => {}
        }
    }

    async fn see_piece(&self, stream: String, append: &str) {
        let mut tasks = self.tasks.lock().await;
        // A piece names no message; an agent writes about what was said last.
        let Some(task) = tasks.iter_mut().rev().find(|it| it.state == WORKING) else {
            return;
        };
        let is_new = task.streamed.as_ref().is_none_or(|(id, _)| *id != stream);
        if is_new {
            task.streamed = Some((stream.clone(), String::new()));
        }
        if let Some((_, text)) = &mut task.streamed {
            text.push_str(append);
        }
        let artifact = json!({ "artifactId": stream, "parts": [{ "text": append }] });
        let change = json!({ "artifact": artifact, "append": !is_new, "lastChunk": false });
        task.tell("artifactUpdate", &self.context(), change);
    }

    async fn see_decision(&self, approval: &str) {
        let mut tasks = self.tasks.lock().await;
        let is_it = |it: &&mut Task| it.approval.is_some_and(|id| id.to_string() == approval);
        if let Some(task) = tasks.iter_mut().find(is_it)
            && task.is_open()
        {
            task.turn(WORKING, None, &self.context());
        }
    }

    async fn see_message(&self, received: Received) {
        let Ok(opened) = &received.opened else {
            return;
        };
        let content = opened.content.clone();
        let message = &received.message;
        let text = |name: &str| content.get(name).and_then(Value::as_str);
        let kind = text("type").unwrap_or_default().to_owned();
        // It is fetched before the tasks are held.
        let file = match kind.as_str() {
            "file" => Some(self.file(&content).await),
            _ => None,
        };
        let context = self.context();
        let mut tasks = self.tasks.lock().await;
        let is_its = |it: &&mut Task| match message.in_reply_to {
            Some(id) => it.asked.contains(&id),
            // Approvals, and what is said after a decision, are no reply to anything.
            None => it.is_open(),
        };
        let Some(task) = tasks.iter_mut().rev().find(is_its) else {
            return;
        };
        if !task.is_open() {
            return;
        }
        let id = message.message_id;
        let words = show::words(&content, &received);
        let told = said(&id.to_string(), &task.id.to_string(), &context, &words);
        match kind.as_str() {
            "text" => {
                let stream = message.client_message_id.unwrap_or(id);
                task.add_text(stream.to_string(), &words, &context);
                task.turn(COMPLETED, None, &context);
            }
            "question" => {
                task.asked.push(id);
                task.question = Some(received.clone());
                task.turn(INPUT_REQUIRED, Some(told), &context);
            }
            "approval" => {
                task.approval = Some(id);
                task.asked.push(id);
                if text("kind") == Some("ask") {
                    task.question = Some(received.clone());
                    task.turn(INPUT_REQUIRED, Some(told), &context);
                    return;
                }
                task.turn(AUTH_REQUIRED, Some(told), &context);
            }
            "file" => {
                let part = file.unwrap_or_default();
                let artifact = json!({ "artifactId": id, "parts": [part] });
                task.add(artifact, &context);
            }
            _ => {}
        }
    }

    /// A file as a part; one that cannot be had is told in words.
    async fn file(&self, content: &Content) -> Value {
        let text = |name: &str| content.get(name).and_then(Value::as_str);
        match self.conversation.download(content).await {
            Ok(bytes) => json!({
                "raw": STANDARD.encode(bytes),
                "filename": text("name").unwrap_or("file"),
                "mediaType": text("content_type").unwrap_or("application/octet-stream"),
            }),
            Err(_) => json!({ "text": "a file that cannot be read" }),
        }
    }
}

fn watched(task: &Task, context: &str) -> Watched {
    Watched {
        task: task.json(context),
        changes: task.changes.subscribe(),
    }
}

/// The files among parts.
fn files_of(parts: &Value) -> Result<Vec<NewFile>, Fault> {
    let parts = parts.as_array().into_iter().flatten();
    let files = parts.filter(|part| part["raw"].is_string());
    let file = |part: &Value| {
        let text = |name: &str| part[name].as_str().filter(|it| !it.is_empty());
        let coded = text("raw").unwrap_or_default();
        let bytes = STANDARD.decode(coded);
        Ok(NewFile {
            name: text("filename").unwrap_or("file").to_owned(),
            content_type: text("mediaType")
                .unwrap_or("application/octet-stream")
                .to_owned(),
            bytes: bytes.map_err(|_| Fault::unfit("a file is no base64"))?,
        })
    };
    files.map(file).collect()
}
