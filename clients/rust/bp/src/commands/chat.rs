//! `bp chat`: a conversation at the terminal, or of a script's lines.

use std::{
    collections::HashSet,
    io::{BufRead, IsTerminal, stdin, stdout},
    time::Duration,
};

use blindpipe_client::{
    ApprovalState, Content,
    client::{Client, ClientEvent, Conversation, Events, Received},
    protocol::ids::{MessageId, Principal},
};
use clap::Args;
use serde_json::Value;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use crate::{
    context::Context,
    failure::{Exit, Failure, Result},
    output::{Output, plain},
    show::{self, Names},
    to,
};

/// At the first start of a conversation, the socket comes before the first word.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Args)]
pub struct Chat {
    /// An agent by name or id, `user:ID`, or a conversation's id.
    to: String,
    /// Seconds to wait for answers once the lines of standard input have ended.
    #[arg(long, default_value_t = 30)]
    wait: u64,
}

/// A message that is being written.
#[derive(Default)]
struct Growing {
    stream_id: String,
    shown: String,
}

struct Talk<'a> {
    client: Client,
    conversation: Conversation,
    me: Principal,
    names: Names,
    output: &'a Output,
    /// Pieces are shown while they come.
    shows_pieces: bool,
    growing: Option<Growing>,
    /// The newest question that the next line may answer.
    question: Option<Received>,
    /// A decision that was sent; what comes of it is no reply.
    decided: Option<MessageId>,
    /// Messages that have no answer yet.
    unanswered: HashSet<MessageId>,
}

pub async fn run(chat: Chat, at: &Context, output: &Output) -> Result<()> {
    let client = at.client_with_keys().await?;
    let conversation = to::conversation(&client, at, &chat.to).await?;
    let names = Names::of(&conversation).await?;
    let mut events = client.events()?;
    let mut talk = Talk {
        client: client.clone(),
        me: Principal::User(client.user_id()?),
        names,
        output,
        shows_pieces: !output.is_json() && stdout().is_terminal(),
        growing: None,
        question: None,
        decided: None,
        unanswered: HashSet::new(),
        conversation,
    };
    let talked = talk.run(&mut events, Duration::from_secs(chat.wait)).await;
    events.close().await;
    talked
}

/// The lines of standard input, which a thread reads.
pub fn lines() -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in stdin().lock().lines().map_while(std::io::Result::ok) {
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// Waits until the socket is live; what comes before is from before.
pub async fn caught_up(events: &mut Events) -> Result<()> {
    let caught_up = async {
        while !matches!(events.next().await?, ClientEvent::CaughtUp) {}
        Ok(())
    };
    let away =
        || Failure::new(Exit::Unreachable, "the socket did not come up").remedy("`bp doctor`");
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, caught_up).await;
    connected.map_err(|_| away())?
}

impl Talk<'_> {
    async fn run(&mut self, events: &mut Events, wait: Duration) -> Result<()> {
        caught_up(events).await?;
        self.hint("Encrypted end to end. Ctrl-D ends.");
        let mut input = lines();
        let mut end = None;
        loop {
            tokio::select! {
                line = input.recv(), if end.is_none() => match line {
                    Some(line) => self.say(line.trim()).await?,
                    None => end = Some(Instant::now() + wait),
                },
                event = events.next() => self.show(event?)?,
                () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => {
                    return Err(Failure::failed("no answer came").remedy("`bp inbox` tells whether the agent runs"));
                }
            }
            if end.is_some() && (self.unanswered.is_empty() || self.shows_pieces) {
                return Ok(());
            }
        }
    }

    fn hint(&self, text: &str) {
        self.output.note(&self.output.for_stderr().dim(text));
    }

    async fn say(&mut self, line: &str) -> Result<()> {
        if line.is_empty() {
            return Ok(());
        }
        if let Some(question) = self.question.take()
            && let Some(verdict) = verdict(&question, line)
            && self.decide(question, verdict).await?
        {
            return Ok(());
        }
        let sent = self.conversation.send(line).await?;
        self.unanswered.insert(sent.message_id);
        Ok(())
    }

    /// Answers a question; not one that has ended, or that others are asked.
    async fn decide(&mut self, question: Received, verdict: Verdict) -> Result<bool> {
        let id = question.message.message_id;
        let content = question.opened.as_ref().map(|opened| &opened.content);
        if content.is_ok_and(show::is_approval) {
            let request = self.client.approval(id).await?;
            let is_asked = request.approval.asked.contains(&self.client.user_id()?);
            if !is_asked || request.approval.state != ApprovalState::Open {
                return Ok(false);
            }
            match verdict {
                Verdict::Approve => request.approve().await?,
                Verdict::Choose(choice) => request.answer(&choice).await?,
                Verdict::Say(words) => request.answer_in_words(&words).await?,
                Verdict::Deny => request.deny(None).await?,
            };
        } else if let Verdict::Choose(choice) = verdict {
            self.conversation.answer(question, &choice).await?;
        }
        self.decided = Some(id);
        self.unanswered.insert(id);
        Ok(true)
    }

    fn show(&mut self, event: ClientEvent) -> Result<()> {
        match event {
            ClientEvent::Message {
                conversation,
                received,
                ..
            } if conversation.id() == self.conversation.id()
                && received.message.sender.id != self.me =>
            {
                self.show_message(*received)
            }
            ClientEvent::Delta {
                conversation_id,
                stream_id,
                append,
                sender,
                ..
            } if conversation_id == self.conversation.id() && self.shows_pieces => {
                self.show_piece(stream_id, sender, &append)
            }
            ClientEvent::Checkpoint {
                conversation_id,
                stream_id,
                text,
                sender,
                ..
            } if conversation_id == self.conversation.id() && self.shows_pieces => {
                let growing = self.growing.as_ref();
                let shown = growing.filter(|it| it.stream_id == stream_id);
                let shown = shown.map_or("", |it| it.shown.as_str());
                // Printed text stays. A message that differs is printed whole.
                let rest = text.strip_prefix(shown).unwrap_or_default().to_owned();
                self.show_piece(stream_id, sender, &rest)
            }
            _ => Ok(()),
        }
    }

    fn show_piece(&mut self, stream_id: String, sender: Principal, append: &str) -> Result<()> {
        let is_new = self
            .growing
            .as_ref()
            .is_none_or(|it| it.stream_id != stream_id);
        if is_new {
            let end = if self.growing.is_some() { "\n" } else { "" };
            let name = self.output.bold(&self.names.get(sender));
            self.output.piece(&format!("{end}{name}: "))?;
            self.growing = Some(Growing {
                stream_id,
                shown: String::new(),
            });
        }
        if let Some(growing) = &mut self.growing {
            growing.shown.push_str(append);
        }
        self.output.piece(&plain(append))
    }

    fn show_message(&mut self, received: Received) -> Result<()> {
        let answered = received.message.in_reply_to.or(self.decided.take());
        if let Some(answered) = answered {
            self.unanswered.remove(&answered);
        }
        let grown = self.growing.take();
        let is_whole = grown.as_ref().is_some_and(|it| it.shown == received.text());
        if is_whole {
            self.output.raw(&show::remarks(&received, self.output))?;
        } else {
            if grown.is_some() {
                self.output.raw("")?;
            }
            let text = show::text(&received, &self.names, self.output);
            self.output.item(&show::json(&received), &text)?;
        }
        let content = received.opened.as_ref().map(|opened| &opened.content);
        let is_approval = content.is_ok_and(show::is_approval);
        if is_approval {
            // It is what the agent has to say, and no reply to anything.
            self.unanswered.clear();
            self.hint(hint(&received));
        }
        if is_approval || content.is_ok_and(|content| !show::choices(content).is_empty()) {
            self.question = Some(received);
        }
        Ok(())
    }
}

/// A person's decision.
enum Verdict {
    Approve,
    Choose(String),
    Say(String),
    Deny,
}

fn is_yes_or_no(content: &Content) -> bool {
    show::is_approval(content) && content.get("kind").and_then(Value::as_str) == Some("approve")
}

/// The line that decides an approval.
fn hint(question: &Received) -> &'static str {
    let content = question.opened.as_ref().map(|opened| &opened.content);
    if content.is_ok_and(is_yes_or_no) {
        "`yes` approves, `no` refuses; your device signs it."
    } else if content.is_ok_and(|content| show::choices(content).is_empty()) {
        "Your next line answers; your device signs it."
    } else {
        "A number or a choice answers; your device signs it."
    }
}

/// The decision that a line is. Any other line is a message.
fn verdict(question: &Received, line: &str) -> Option<Verdict> {
    let content = &question.opened.as_ref().ok()?.content;
    if is_yes_or_no(content) {
        return match line.to_lowercase().as_str() {
            "yes" | "approve" => Some(Verdict::Approve),
            "no" | "deny" => Some(Verdict::Deny),
            _ => None,
        };
    }
    let choices = show::choices(content);
    if choices.is_empty() {
        return show::is_approval(content).then(|| Verdict::Say(line.to_owned()));
    }
    let by_number = line
        .parse::<usize>()
        .ok()
        .and_then(|n| choices.get(n.checked_sub(1)?));
    let choice = by_number.or_else(|| choices.iter().find(|it| *it == line));
    choice.cloned().map(Verdict::Choose)
}
