//! A developer's handlers, and how they run.

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc};

use blindpipe_e2ee::{
    from_base64,
    ids::Origin,
    trust::{Notice, NoticeKind},
};
use blindpipe_protocol::{ids::Principal, messages::Message};
use futures_util::{FutureExt, future::BoxFuture};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::{
    approvals::{APPROVAL_CLOSED, ApprovalResult},
    context::{Context, Given},
    core::Core,
    outbox::Answered,
    questions::{Answer, answer_in},
    stream::StatusGuard,
};
use crate::{
    Content, ContentKind, ContentView, Error, InboxEvent, OpenedMessage, Result,
    hooks::Hook,
    session::{clear_message, foreign, is_gone, is_sealed, principal},
};

pub(super) type Handler = Arc<dyn Fn(Context) -> BoxFuture<'static, Result<()>> + Send + Sync>;
type Layer = Arc<dyn Fn(Context, Next) -> BoxFuture<'static, Result<()>> + Send + Sync>;

pub(super) const MESSAGE: &str = "message.created";

/// The handlers of an agent.
#[derive(Clone, Default)]
pub(super) struct Handlers {
    by_event: HashMap<String, Vec<Handler>>,
    by_tag: HashMap<String, Handler>,
    /// By the name of an approval.
    by_decision: HashMap<String, Handler>,
    layers: Vec<Layer>,
}

/// The rest of the layers, and the handlers behind them.
pub struct Next {
    layers: Vec<Layer>,
    handlers: Vec<Handler>,
}

impl Next {
    /// Runs the rest.
    ///
    /// # Errors
    ///
    /// That of the first layer or handler that fails.
    pub async fn run(mut self, context: Context) -> Result<()> {
        if let Some(layer) = self.layers.pop() {
            return layer(context, self).await;
        }
        for handler in self.handlers {
            handler(context.clone()).await?;
        }
        Ok(())
    }
}

pub(super) fn boxed<T, F>(handler: impl Fn(Context) -> F + Send + Sync + 'static) -> Handler
where
    F: Future<Output = Result<T>> + Send + 'static,
{
    Arc::new(move |context| {
        let run = handler(context);
        async move { run.await.map(drop) }.boxed()
    })
}

impl Handlers {
    pub(super) fn add(&mut self, event: &str, handler: Handler) {
        let handlers = self.by_event.entry(event.to_owned()).or_default();
        handlers.push(handler);
    }

    pub(super) fn add_answer(&mut self, tag: &str, handler: Handler) {
        self.by_tag.insert(tag.to_owned(), handler);
    }

    pub(super) fn add_decision(&mut self, name: &str, handler: Handler) {
        self.by_decision.insert(name.to_owned(), handler);
    }

    /// The outermost layer is the first.
    pub(super) fn add_layer(&mut self, layer: Layer) {
        self.layers.insert(0, layer);
    }

    /// Runs the handlers of an event once. The hook hears of a message that does not open; it counts as
    /// handled.
    pub(super) async fn process(
        &self,
        core: &Arc<Core>,
        event: InboxEvent,
        replayed: bool,
        stopping: &CancellationToken,
    ) -> Result<()> {
        let found = match open(core, &event).await {
            Ok(Opened::Message(answered)) => self.find(core, &event, Some(*answered)).await,
            Ok(Opened::Other) => self.find(core, &event, None).await,
            Ok(Opened::Repeated | Opened::Foreign) => return Ok(()),
            Err(error) => Err(error),
        };
        let Call {
            handlers,
            answered,
            answer,
            approval,
        } = match found {
            Err(Error::Decrypt(reason)) => {
                core.hooks.call(&Hook::Undecryptable {
                    reason,
                    event_id: Some(event.event_id),
                    conversation_id: event.conversation_id,
                });
                return Ok(());
            }
            found => found?,
        };
        let handled = answered
            .as_ref()
            .filter(|answered| answered.opened.encrypted);
        let handled = handled.map(|answered| (answered.message.clone(), answered.opened.sent_at));
        if !handlers.is_empty() {
            let Some(turn) = core.turns.begin(&event) else {
                return Ok(());
            };
            let context = Context::new(Given {
                core: core.clone(),
                origin: origin_of(&event, answered.as_ref()),
                event,
                answered,
                replayed,
                answer,
                approval,
                turn: turn.clone(),
                stopping: stopping.clone(),
            });
            let _status = StatusGuard(context.clone());
            let layers = self.layers.clone();
            let run = Next { layers, handlers }.run(context);
            // A panic of a handler is a failure of its event, not the end of the agent.
            let ran = AssertUnwindSafe(run).catch_unwind().await;
            let ran = ran.unwrap_or_else(|_| {
                error!("a handler has panicked");
                Err(Error::other("a handler has panicked"))
            });
            // A turn that was stopped has been handled, however it ended.
            if !turn.stopped.is_cancelled() {
                ran?;
            }
            for taken in core.turns.end(&turn) {
                if taken.opened.encrypted {
                    core.remember(&taken.message, taken.opened.sent_at).await;
                }
            }
        }
        if let Some((message, sent_at)) = handled {
            core.remember(&message, sent_at).await;
        }
        Ok(())
    }

    async fn find(
        &self,
        core: &Core,
        event: &InboxEvent,
        answered: Option<Answered>,
    ) -> Result<Call> {
        let mut call = Call {
            handlers: Vec::new(),
            answered,
            answer: None,
            approval: None,
        };
        let content = call.answered.as_ref().map(|it| &it.opened.content);
        let kind = content.map(|content| ContentView::of(content).kind);
        let name = match kind {
            Some(ContentKind::Answer) if !self.by_tag.is_empty() => {
                self.find_answer(core, &mut call).await?;
                return Ok(call);
            }
            // The words of a decision come with the end of its approval.
            Some(ContentKind::Decision) => return Ok(call),
            Some(kind) if kind.is_change() => kind.name(),
            _ => &event.event,
        };
        let handlers = self.by_event.get(name);
        call.handlers
            .extend(handlers.into_iter().flatten().cloned());
        let is_named = !(self.by_decision.is_empty() && self.by_tag.is_empty());
        if event.event == APPROVAL_CLOSED && is_named {
            self.find_decision(core, event, &mut call).await?;
        }
        Ok(call)
    }

    async fn find_decision(&self, core: &Core, event: &InboxEvent, call: &mut Call) -> Result<()> {
        let Some(decision) = core.approval_result(event).await? else {
            return Ok(());
        };
        call.answer = answer_in(&decision);
        let of_answer = call.answer.as_ref();
        let of_answer = of_answer.and_then(|_| self.by_tag.get(&decision.name));
        let handlers = self.by_decision.get(&decision.name).into_iter();
        call.handlers.extend(handlers.chain(of_answer).cloned());
        call.approval = Some(decision);
        Ok(())
    }

    async fn find_answer(&self, core: &Core, call: &mut Call) -> Result<()> {
        let Some(answered) = &call.answered else {
            return Ok(());
        };
        if let Some(question) = question_of(core, answered).await? {
            let tag = question.get("tag").and_then(Value::as_str);
            let handler = tag.and_then(|tag| self.by_tag.get(tag));
            call.handlers.extend(handler.cloned());
            call.answer = Some(answer_of(&question, &answered.opened.content));
        }
        Ok(())
    }
}

/// The handlers of an event, and what they are told.
struct Call {
    handlers: Vec<Handler>,
    answered: Option<Answered>,
    answer: Option<Answer>,
    approval: Option<ApprovalResult>,
}

pub(super) async fn open(core: &Core, event: &InboxEvent) -> Result<Opened> {
    if event.event != MESSAGE {
        return Ok(Opened::Other);
    }
    let message = event.message()?;
    if is_gone(&message) {
        // It was deleted, or purged, before anybody has handled it.
        return Ok(Opened::Repeated);
    }
    let opened = if !is_sealed(&message) {
        open_clear(core, &message).await?
    } else if core.session.has_keys() {
        core.session.open_message(&message, true).await?
    } else {
        core.session.saw_envelope(message.conversation_id).await;
        return Err(blindpipe_e2ee::Error::NoEpochKey.into());
    };
    if opened.is_replay {
        return Ok(Opened::Repeated);
    }
    // History shows what somebody says who has left; nobody acts on it.
    let foreign = |notice: &&Notice| notice.kind == NoticeKind::NotMember;
    if let Some(notice) = opened.notices.iter().find(foreign) {
        core.hooks.call(&Hook::Notice {
            notice: *notice,
            conversation_id: Some(message.conversation_id),
        });
        return Ok(Opened::Foreign);
    }
    Ok(Opened::Message(Box::new(Answered { message, opened })))
}

/// Nothing in clear counts unless the developer allows it, and then only where nothing was ever
/// encrypted.
async fn open_clear(core: &Core, message: &Message) -> Result<OpenedMessage> {
    let session = &core.session;
    let is_refused = !core.clear_allowed
        || session
            .is_encrypted(message.conversation_id)
            .await
            .map_err(foreign)?;
    if is_refused {
        return Err(blindpipe_e2ee::Error::Clear.into());
    }
    Ok(clear_message(message))
}

pub(super) enum Opened {
    Message(Box<Answered>),
    /// It was handled before.
    Repeated,
    /// Its sender is no member.
    Foreign,
    /// It is no message.
    Other,
}

fn origin_of(event: &InboxEvent, answered: Option<&Answered>) -> Origin {
    let signed = answered.filter(|answered| answered.opened.encrypted);
    origin(event, signed.map(|answered| &answered.message))
}

/// Names what an event brings, as it is told: two events that bring one message have one name.
pub(super) fn told_origin(event: &InboxEvent) -> Origin {
    let message = event.message().ok().filter(|_| event.event == MESSAGE);
    origin(event, message.as_ref())
}

fn origin(event: &InboxEvent, message: Option<&Message>) -> Origin {
    match message.and_then(|message| Some((message, message.client_message_id?))) {
        Some((message, id)) => Origin::message(
            message.conversation_id.0.into_bytes(),
            principal(message.sender.id),
            id.0.into_bytes(),
        ),
        None => Origin::event(event.event_id.0.into_bytes()),
    }
}

/// The question, if it opens as the agent's own, `re` fits it, and the sender may answer.
async fn question_of(core: &Core, answered: &Answered) -> Result<Option<Content>> {
    if answered.message.in_reply_to.is_none() {
        return Ok(None);
    }
    let Some(asked) = core.outbox().question(&answered.message).await? else {
        return Ok(None);
    };
    let field = |name: &str| asked.content.get(name);
    let is_question = field("type").is_some_and(|kind| kind == "question");
    let re = answered.opened.content.get("re").and_then(Value::as_str);
    let re = re.and_then(|re| from_base64(re).ok());
    let fits = asked
        .re
        .is_none_or(|asked| re.as_deref() == Some(&asked[..]));
    let sender = match answered.opened.sender.principal {
        Principal::User(id) => id.to_string(),
        Principal::Agent(id) => id.to_string(),
    };
    let may_answer = field("for").and_then(Value::as_array);
    let may_answer = may_answer.is_some_and(|of| of.iter().any(|id| *id == sender));
    Ok((is_question && fits && may_answer).then_some(asked.content))
}

fn answer_of(question: &Content, content: &Content) -> Answer {
    let text = |content: &Content, name: &str| {
        let text = content.get(name).and_then(Value::as_str);
        text.map(str::to_owned)
    };
    let state = question.get("state").and_then(Value::as_object);
    Answer {
        choice: text(content, "choice"),
        text: text(content, "text"),
        state: state.cloned().unwrap_or_default(),
        question: text(question, "text").unwrap_or_default(),
    }
}
