//! `bp send`, `tail` and `inbox`.

use std::{
    collections::HashMap,
    io::{IsTerminal, Read, stdin},
    time::Duration,
};

use blindpipe_client::{
    InboxEvent,
    client::{ClientEvent, Events, Received},
    protocol::{
        ids::{AgentId, ConversationId},
        messages::Sent,
    },
};
use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};

use super::chat::caught_up;
use crate::{
    context::Context,
    credentials,
    failure::{Failure, Result},
    output::{Output, line},
    show::{self, Names},
    to,
};

/// Events of a page.
const MAX_EVENTS: usize = 100;

#[derive(Args)]
pub struct Send {
    /// An agent by name or id, `user:ID`, or a conversation's id.
    to: String,
    /// The text; standard input without it.
    text: Option<String>,
    /// Wait this many seconds for the first answer, and print it.
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
}

#[derive(Args)]
pub struct Tail {
    /// Only of this conversation: an agent by name or id, `user:ID`, or a conversation's id.
    to: Option<String>,
    /// Print the last messages of the conversation first.
    #[arg(long, short = 'n', value_name = "COUNT", requires = "to")]
    lines: Option<usize>,
    /// Print events of other kinds too.
    #[arg(long)]
    events: bool,
}

#[derive(Args)]
pub struct Stop {
    /// An agent by name or id, or a conversation's id.
    to: String,
}

#[derive(Args)]
pub struct Inbox {
    /// Only of this agent, by name or id.
    agent: Option<String>,
    /// List the events that wait too, with the agent's credentials. None is acknowledged.
    #[arg(long, requires = "agent")]
    events: bool,
}

fn text_of(send: &Send, output: &Output) -> Result<String> {
    let text = match &send.text {
        Some(text) => text.clone(),
        None => {
            if stdin().is_terminal() {
                output.note("The text, which Ctrl-D ends:");
            }
            let mut text = String::new();
            stdin().lock().read_to_string(&mut text)?;
            text.trim_end_matches('\n').to_owned()
        }
    };
    if text.is_empty() {
        return Err(Failure::usage("the text is empty"));
    }
    Ok(text)
}

pub async fn send(send: Send, at: &Context, output: &Output) -> Result<()> {
    let text = text_of(&send, output)?;
    let client = at.client_with_keys().await?;
    let conversation = to::conversation(&client, at, &send.to).await?;
    let Some(wait) = send.wait else {
        let sent = conversation.send(text).await?;
        return output.item(&sent, &output.dim(&format!("sent {}", sent.message_id)));
    };
    let mut events = client.events()?;
    caught_up(&mut events).await?;
    let sent = conversation.send(text).await?;
    let answered = answer(&mut events, &sent);
    let all = Duration::from_secs(wait);
    let answered = tokio::time::timeout(all, answered);
    let answered = output.waiting("no answer yet", Some(all), answered).await;
    let missing =
        || Failure::failed("no answer came").remedy("`bp inbox` tells whether the agent runs");
    let received = answered.map_err(|_| missing())??;
    let names = Names::of(&conversation).await?;
    output.item(
        &show::json(&received),
        &show::text(&received, &names, output),
    )?;
    events.close().await;
    Ok(())
}

/// The answer to a message: a reply, or an approval that is asked for. The latter replies to nothing.
async fn answer(events: &mut Events, to: &Sent) -> Result<Received> {
    loop {
        let ClientEvent::Message { received, .. } = events.next().await? else {
            continue;
        };
        let message = &received.message;
        let content = received.opened.as_ref().map(|opened| &opened.content);
        let is_asked = message.conversation_id == to.conversation_id
            && message.seq > to.seq
            && content.is_ok_and(show::is_approval);
        if is_asked || message.in_reply_to == Some(to.message_id) {
            return Ok(*received);
        }
    }
}

pub async fn stop(stop: Stop, at: &Context, output: &Output) -> Result<()> {
    let client = at.client().await?;
    let conversation = to::conversation(&client, at, &stop.to).await?;
    let stopped = conversation.stop(None, None).await?;
    let agents = if stopped == 1 { "agent" } else { "agents" };
    output.item(
        &json!({ "stopped": stopped }),
        &format!("stopped {stopped} {agents}"),
    )
}

pub async fn tail(tail: Tail, at: &Context, output: &Output) -> Result<()> {
    let client = at.client_with_keys().await?;
    // The socket comes back after any outage, but a wrong address is told at once.
    at.server()?.reach().await?;
    let only = match &tail.to {
        Some(to) => Some(to::conversation(&client, at, to).await?),
        None => None,
    };
    let mut names = HashMap::<ConversationId, Names>::new();
    if let (Some(conversation), Some(lines)) = (&only, tail.lines) {
        let of = Names::of(conversation).await?;
        let mut last = conversation.history(None).await?;
        last.truncate(lines);
        for received in last.iter().rev() {
            output.item(&show::json(received), &show::text(received, &of, output))?;
        }
        names.insert(conversation.id(), of);
    }
    let mut events = client.events()?;
    loop {
        match events.next().await? {
            ClientEvent::Message {
                conversation,
                received,
                ..
            } if only.as_ref().is_none_or(|it| it.id() == conversation.id()) => {
                let of = match names.remove(&conversation.id()) {
                    Some(of) => of,
                    None => Names::of(&conversation).await?,
                };
                let id = output.dim(&conversation.id().to_string());
                let text = show::text(&received, &of, output);
                output.item(&show::json(&received), &format!("{id} {text}"))?;
                names.insert(conversation.id(), of);
            }
            ClientEvent::Event(event) if tail.events => {
                let data: Value = serde_json::from_str(event.data.as_str())?;
                let item =
                    json!({ "event": event.event, "event_id": event.event_id, "data": data });
                output.item(
                    &item,
                    &format!("{} {}", event.event, line(&data.to_string())),
                )?;
            }
            ClientEvent::CaughtUp => output.note(&output.for_stderr().dim("live")),
            _ => {}
        }
    }
}

/// The events that agents have not acknowledged.
pub async fn inbox(inbox: Inbox, at: &Context, output: &Output) -> Result<()> {
    let client = at.client().await?;
    let only = match &inbox.agent {
        Some(agent) => Some(to::agent(&client, at, agent).await?),
        None => None,
    };
    let mut cursor = None;
    loop {
        let (page, next) = client.agents(cursor).await?;
        for agent in page
            .iter()
            .filter(|it| only.is_none_or(|id| id == it.agent_id))
        {
            let item = json!({
                "agent_id": agent.agent_id,
                "display_name": agent.display_name,
                "state": agent.state,
                "delivery_mode": agent.delivery_mode,
                "connections": agent.connections,
                "head_seq": agent.inbox.head_seq,
                "acked_seq": agent.inbox.acked_seq,
                "lag": agent.inbox.lag,
            });
            let online = agent.connections.len();
            let text = format!(
                "{}  {} not acknowledged (acked {} of {}), {online} connections, by {}",
                output.bold(&line(&agent.display_name)),
                agent.inbox.lag,
                agent.inbox.acked_seq,
                agent.inbox.head_seq,
                agent.delivery_mode,
            );
            output.item(&item, &text)?;
        }
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    match &only {
        Some(id) if inbox.events => waiting(*id, at, output).await,
        _ => Ok(()),
    }
}

/// Lists what waits for an agent, the oldest first. A poll without a cursor acknowledges nothing, and
/// so there is no second page.
async fn waiting(agent: AgentId, at: &Context, output: &Output) -> Result<()> {
    #[derive(Deserialize)]
    struct Page {
        data: Vec<InboxEvent>,
    }
    let agent = credentials::of(at, &agent.to_string())?
        .builder(at)?
        .build();
    let path = format!("/agents/{}/messages/poll?limit={MAX_EVENTS}", agent.id());
    let page: Page = serde_json::from_slice(&agent.request("GET", &path, None).await?)?;
    for event in &page.data {
        let item = json!({
            "agent_id": agent.id(),
            "seq": event.seq,
            "event": event.event,
            "event_id": event.event_id,
            "conversation_id": event.conversation_id,
            "created_at": event.created_at,
        });
        let place = event.conversation_id.map(|id| id.to_string());
        let text = format!(
            "  {} {}  {}  {}",
            event.seq,
            event.created_at,
            line(&event.event),
            place.unwrap_or_default(),
        );
        output.item(&item, text.trim_end())?;
    }
    if page.data.len() == MAX_EVENTS {
        output.note("There may be more, which come once these are acknowledged.");
    }
    Ok(())
}
