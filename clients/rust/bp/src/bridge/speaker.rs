//! An A2A agent that speaks as an agent: what people write goes to it, and what it does comes back.
//!
//! The bridge has the agent's key. Encryption ends here, on the machine of the agent's developer.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use blindpipe_client::{
    ApprovalState, Content, Error, NewFile,
    agent::{AgentBuilder, ApprovalDraft, ApprovalResult, Context, MessageStream, Question},
    protocol::ids::{ConversationId, MessageId},
};
use serde_json::{Value, json};

use super::{
    client::Remote,
    wire::{
        AUTH_REQUIRED, CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, REJECTED, WORKING,
        is_under_way, words_of,
    },
};
use crate::{
    failure::{Exit, Failure, Result},
    output::{Output, line},
};

/// The tag of questions and the name of approvals.
const TAG: &str = "a2a";
/// A stopped task gets its name at the agent's first step.
const NAME_TIMEOUT: Duration = Duration::from_secs(10);
/// An agent that tells nothing by itself is asked after this time, then after twice as long, and so on.
const FIRST_POLL: Duration = Duration::from_millis(500);
const MAX_POLL: Duration = Duration::from_secs(15);
/// Polls without an answer that end a task: the agent is away for five minutes.
const MAX_FAILED_POLLS: u32 = 24;

/// The state of a conversation at the agent. It travels with a question as well.
#[derive(Clone, Default)]
struct Place {
    context: Option<String>,
    task: Option<String>,
    /// The question of a task that waits for words. The next message is for it, and answers it too.
    asked: Option<MessageId>,
    /// The artifacts of the task, by their ids.
    shown: HashMap<String, Shown>,
}

/// The part of an artifact that people have.
#[derive(Clone, Default)]
struct Shown {
    words: String,
    files: usize,
}

struct Speaker {
    remote: Remote,
    places: Mutex<HashMap<ConversationId, Place>>,
}

/// The outcome of a message.
#[derive(Default)]
struct Turn {
    stream: Option<MessageStream>,
    files: Vec<NewFile>,
    state: String,
    /// The words beside the last state, or a message without a task.
    said: String,
}

pub async fn speak(remote: Remote, builder: AgentBuilder, output: &Output) -> Result<()> {
    output.note(&format!("{} speaks; Ctrl-C ends.", line(&remote.name)));
    let speaker = Arc::new(Speaker {
        remote,
        places: Mutex::default(),
    });
    let (on_message, on_answer) = (speaker.clone(), speaker.clone());
    let on_decision = speaker;
    let builder = builder
        .on_message(move |ctx| {
            let speaker = on_message.clone();
            async move { speaker.message(&ctx).await }
        })
        .on_answer(TAG, move |ctx| {
            let speaker = on_answer.clone();
            async move { speaker.answer(&ctx).await }
        })
        .on_decision(TAG, move |ctx| {
            let speaker = on_decision.clone();
            async move { speaker.decision(&ctx).await }
        });
    Ok(Box::pin(builder.run()).await?)
}

/// Waits for a person's stop, and then for the task to have a name, without which it is not cancelled.
async fn given_up(ctx: &Context, place: &Place) {
    ctx.stopped().cancelled().await;
    if place.task.is_none() {
        tokio::time::sleep(NAME_TIMEOUT).await;
    }
}

fn failed(failure: &Failure) -> Error {
    Error::other(failure.message().to_owned())
}

impl Speaker {
    fn place(&self, of: ConversationId) -> Place {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.get(&of).cloned().unwrap_or_default()
    }

    fn keep(&self, of: ConversationId, place: Place) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.insert(of, place);
    }

    async fn message(&self, ctx: &Context) -> blindpipe_client::Result<()> {
        let content = ctx.content();
        let field = |name: &str| content.get(name).and_then(Value::as_str);
        let part = if field("type") == Some("file") {
            json!({
                "raw": STANDARD.encode(ctx.file().await?),
                "filename": field("name"),
                "mediaType": field("content_type"),
            })
        } else {
            let words = Some(ctx.text()).filter(|words| !words.is_empty());
            json!({ "text": words.or_else(|| field("fallback")).unwrap_or_default() })
        };
        let mut place = self.place(ctx.conversation_id()?);
        if let Some(question) = place.asked {
            // Somebody may have decided it meanwhile, or an earlier run has taken it back.
            Box::pin(ctx.withdraw(question)).await.ok();
        } else {
            place.task = None;
            place.shown.clear();
        }
        Box::pin(self.turn(ctx, json!([part]), place)).await
    }

    async fn answer(&self, ctx: &Context) -> blindpipe_client::Result<()> {
        let Some(answer) = ctx.answer() else {
            return Ok(());
        };
        let words = answer.choice.as_ref().or(answer.text.as_ref());
        let parts = json!([{ "text": words }]);
        Box::pin(self.turn(ctx, parts, place_of(&answer.state))).await
    }

    /// Tells the agent of a decision in words, and with the receipt that proves it.
    async fn decision(&self, ctx: &Context) -> blindpipe_client::Result<()> {
        // An answer goes to the agent in its own words. A message has answered what was withdrawn.
        let is_told =
            |it: &&ApprovalResult| ctx.answer().is_none() && it.outcome != ApprovalState::Withdrawn;
        let Some(decided) = ctx.decision().filter(is_told) else {
            return Ok(());
        };
        let outcome = json!(decided.outcome);
        let parts = json!([
            { "text": outcome },
            { "data": { "outcome": outcome, "receipt": decided.receipt } },
        ]);
        Box::pin(self.turn(ctx, parts, place_of(&decided.state))).await
    }

    async fn turn(
        &self,
        ctx: &Context,
        parts: Value,
        mut place: Place,
    ) -> blindpipe_client::Result<()> {
        let conversation = ctx.conversation_id()?;
        place.asked = None;
        let mut message = json!({ "messageId": ctx.key(), "role": "ROLE_USER", "parts": parts });
        if let Some(context) = &place.context {
            message["contextId"] = context.as_str().into();
        }
        if let Some(task) = &place.task {
            message["taskId"] = task.as_str().into();
        }
        let mut turn = Turn::default();
        let ended = self.follow(ctx, &message, &mut place, &mut turn).await;
        let is_asked = turn.state == INPUT_REQUIRED;
        let waits = is_asked || turn.state == AUTH_REQUIRED;
        if !waits {
            place.shown.clear();
        }
        self.keep(conversation, place.clone());
        if ctx.stopped().is_cancelled() {
            if let Some(task) = &place.task {
                // A task that has ended meanwhile cannot be cancelled.
                self.remote.cancel(task).await.ok();
            }
            if let Some(stream) = turn.stream.take() {
                stream.cancel(Some("stopped"));
            }
            return Ok(());
        }
        match ended {
            Ok(()) => {}
            // A repeat would be refused again.
            Err(failure) if failure.exit() == Exit::Refused => {
                ctx.reply(failure.message()).await?;
                return Ok(());
            }
            Err(failure) => return Err(failed(&failure)),
        }
        for file in std::mem::take(&mut turn.files) {
            ctx.send_file(file).await?;
        }
        if let Some(stream) = turn.stream.take() {
            stream.end().await?;
        } else if !waits {
            ctx.reply(turn.last_words()).await?;
        }
        if is_asked {
            let question = Question {
                tag: TAG.to_owned(),
                text: turn.said,
                state: state_of(&place),
                ..Question::default()
            };
            let asked = Box::pin(ctx.ask(question)).await?;
            place.asked = Some(asked.approval_id);
            self.keep(conversation, place);
        } else if waits {
            let draft = ApprovalDraft {
                text: Some(turn.said),
                state: state_of(&place),
                ..ApprovalDraft::new(TAG, Content::new())
            };
            Box::pin(ctx.approve(&draft)).await?;
        }
        Ok(())
    }

    /// Takes the steps of the agent until it waits or has ended, or a person stops it.
    async fn follow(
        &self,
        ctx: &Context,
        message: &Value,
        place: &mut Place,
        turn: &mut Turn,
    ) -> Result<()> {
        let sent = tokio::select! {
            sent = self.remote.send(message) => sent,
            () = given_up(ctx, place) => return Ok(()),
        };
        let mut steps = sent?;
        let mut is_silent = true;
        loop {
            let step = tokio::select! {
                step = steps.next() => step,
                () = given_up(ctx, place) => return Ok(()),
            };
            let step = match step {
                Ok(Some(step)) => step,
                Ok(None) => break,
                // A stream that breaks ends no task.
                Err(failure) if failure.exit() == Exit::Unreachable && place.task.is_some() => {
                    is_silent |= turn.state.is_empty();
                    break;
                }
                Err(failure) => return Err(failure),
            };
            is_silent = false;
            let (_, of) = step
                .as_object()
                .and_then(|step| step.iter().next())
                .ok_or_else(|| Failure::failed("the A2A agent answers with nothing"))?;
            let id = |name: &str| of[name].as_str().map(str::to_owned);
            place.context = id("contextId").or_else(|| place.context.take());
            let task = if step["task"].is_object() {
                "id"
            } else {
                "taskId"
            };
            place.task = id(task).or_else(|| place.task.take());
            turn.take(ctx, &step, &mut place.shown).await?;
            // Some agents leave the stream open meanwhile.
            if matches!(turn.state.as_str(), INPUT_REQUIRED | AUTH_REQUIRED) {
                return Ok(());
            }
        }
        if is_silent {
            WORKING.clone_into(&mut turn.state);
        }
        self.poll(ctx, place, turn).await
    }

    /// Asks for a task that goes on after the agent's last step, until it waits or has ended.
    async fn poll(&self, ctx: &Context, place: &mut Place, turn: &mut Turn) -> Result<()> {
        let Some(id) = &place.task else {
            return Ok(());
        };
        let (mut wait, mut failed) = (FIRST_POLL, 0);
        while is_under_way(&turn.state) {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = ctx.stopped().cancelled() => return Ok(()),
            }
            wait = (wait * 2).min(MAX_POLL);
            match self.remote.task(id).await {
                Ok(task) => {
                    failed = 0;
                    let step = json!({ "task": task });
                    turn.take(ctx, &step, &mut place.shown).await?;
                }
                Err(failure)
                    if failure.exit() == Exit::Unreachable && failed < MAX_FAILED_POLLS =>
                {
                    failed += 1;
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }
}

impl Turn {
    async fn take(
        &mut self,
        ctx: &Context,
        step: &Value,
        shown: &mut HashMap<String, Shown>,
    ) -> Result<()> {
        if step["message"].is_object() {
            self.said = words_of(&step["message"]["parts"]);
        }
        let status = [&step["task"]["status"], &step["statusUpdate"]["status"]];
        for status in status.into_iter().filter(|it| it.is_object()) {
            self.state = status["state"].as_str().unwrap_or_default().to_owned();
            self.said = words_of(&status["message"]["parts"]);
        }
        // A task has the whole artifacts, and people have a part of them.
        for artifact in step["task"]["artifacts"].as_array().into_iter().flatten() {
            let had = shown.entry(id_of(artifact)).or_default();
            let all = std::mem::take(had);
            *had = self.take_rest(ctx, &artifact["parts"], all).await?;
        }
        let update = &step["artifactUpdate"];
        if let Some(artifact) = update.get("artifact") {
            let had = shown.entry(id_of(artifact)).or_default();
            if update["append"] != true {
                *had = Shown::default();
            }
            let new = self
                .take_rest(ctx, &artifact["parts"], Shown::default())
                .await?;
            had.words += &new.words;
            had.files += new.files;
        }
        Ok(())
    }

    /// Takes what people do not have yet, and answers what they have then.
    async fn take_rest(&mut self, ctx: &Context, parts: &Value, had: Shown) -> Result<Shown> {
        let parts = parts.as_array().map(Vec::as_slice).unwrap_or_default();
        let (files, texts): (Vec<_>, Vec<_>) =
            parts.iter().partition(|part| part["raw"].is_string());
        for part in files.iter().skip(had.files) {
            self.files.push(file_of(part)?);
        }
        let words: String = texts.iter().map(|part| words_of(&json!([part]))).collect();
        // Words that were replaced are shown anew.
        let rest = words.strip_prefix(&had.words).unwrap_or(&words);
        if !rest.is_empty() {
            let stream = match &mut self.stream {
                Some(stream) => stream,
                none => none.insert(ctx.stream()?),
            };
            stream.write(rest).await;
        }
        let files = files.len();
        Ok(Shown { words, files })
    }

    fn last_words(&self) -> String {
        if !self.said.is_empty() {
            return self.said.clone();
        }
        let words = match self.state.as_str() {
            COMPLETED => "Done.",
            CANCELED => "The task was cancelled.",
            REJECTED => "The agent refuses this.",
            FAILED => "The agent has failed.",
            _ => "The agent said nothing.",
        };
        words.to_owned()
    }
}

fn id_of(artifact: &Value) -> String {
    artifact["artifactId"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn file_of(part: &Value) -> Result<NewFile> {
    let text = |name: &str| part[name].as_str().unwrap_or_default().to_owned();
    let bytes = STANDARD.decode(text("raw"));
    let name = Some(text("filename")).filter(|name| !name.is_empty());
    Ok(NewFile {
        name: name.unwrap_or_else(|| "file".to_owned()),
        content_type: text("mediaType"),
        bytes: bytes.map_err(|_| Failure::failed("a file is no base64"))?,
    })
}

fn state_of(place: &Place) -> Content {
    let mut state = Content::new();
    state.insert("context".to_owned(), json!(place.context));
    state.insert("task".to_owned(), json!(place.task));
    state
}

fn place_of(state: &Content) -> Place {
    let text = |name: &str| state.get(name).and_then(Value::as_str).map(str::to_owned);
    Place {
        context: text("context"),
        task: text("task"),
        ..Place::default()
    }
}
