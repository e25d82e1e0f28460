//! The agent of `make run` that stays, for a person in the web app: it streams, asks, and calls a tool.

use std::{
    fs,
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use blindpipe_client::{
    Agent, Content, Context as Message, MemoryStore, Server,
    agent::{ApprovalDraft, CallStatus, ToolCall, generate_key},
    protocol::agents::Manifest,
};
use serde_json::json;
use tokio::time::sleep;

use super::{sign_up, step};
use crate::{
    error::{Context, Result},
    random,
    terminal::say,
};

/// A tool that the web app has.
const TOOL: &str = "copy_text";
const SCOPE: &str = "clipboard:write";
const WORD_PAUSE: Duration = Duration::from_millis(80);
const WORDS: &str = "I write word by word, and you see each of them at once. Say \"ask\", and I ask for your \
    consent, with a receipt that you can download. Say \"tool\", and I use your clipboard, if you let me.";

/// An account for the web app, and its agent.
pub struct Guide {
    agent: Agent,
    email: String,
    password: String,
}

impl Guide {
    /// Makes the account and its agent, which is at `node`.
    pub async fn make(node: &str, ca: &Path, mails: &Path) -> Result<Self> {
        let authority = fs::read(ca).with_context(|| format!("read {}", ca.display()))?;
        let server = Server::new(node).with_authority(authority);
        let password = random::base62(12);
        let (person, email) = sign_up(&server, mails, "You", &password).await?;
        let manifest: Manifest = serde_json::from_value(json!({
            "description": "Shows what agents can do.",
            "tools": [{ "name": TOOL, "scope": SCOPE }],
            "permission_scopes": [{ "scope": SCOPE, "sensitivity": "high" }],
        }))
        .with_context(|| "describe the Guide".into())?;
        let created = step(
            "create the Guide",
            person.create_agent("Guide", Some(&manifest)),
        );
        let created = created.await?;
        let own = Arc::<OnceLock<Agent>>::default();
        let of_handler = own.clone();
        let agent = Agent::builder(server, created.agent_id, created.token.expose())
            .key(&generate_key())
            .with_context(|| "use a new key".into())?
            .store(MemoryStore::default())
            .on_message(move |message| act(message, of_handler.clone()))
            .on_decision("release", decided)
            .build();
        own.set(agent.clone()).ok();
        step("start the Guide", agent.check()).await?;
        Ok(Self {
            agent,
            email,
            password,
        })
    }

    /// Prints what a person needs for the web app.
    pub fn print(&self) {
        say(format!(
            "In the web app, sign in as {} with the password {}, and talk with the agent Guide.",
            self.email, self.password
        ));
    }

    /// Answers until the cluster stops.
    pub async fn run(&self) {
        self.agent.run_until_stopped().await.ok();
    }
}

async fn act(message: Message, own: Arc<OnceLock<Agent>>) -> blindpipe_client::Result<()> {
    let said = message.text().to_lowercase();
    if said.contains("ask") {
        let version = Content::from_iter([("version".to_owned(), "1.4.2".into())]);
        return message
            .approve(&ApprovalDraft::new("release", version))
            .await
            .map(drop);
    }
    if said.contains("tool") {
        return call(&message, own.get()).await;
    }
    let mut out = message.stream()?;
    for word in WORDS.split_inclusive(' ') {
        out.write(word).await;
        sleep(WORD_PAUSE).await;
    }
    out.end().await.map(drop)
}

async fn decided(message: Message) -> blindpipe_client::Result<()> {
    let outcome = message.decision().map(|it| format!("{:?}", it.outcome));
    let outcome = outcome.unwrap_or_default().to_lowercase();
    let words = format!("Release 1.4.2: {outcome}. The receipt proves it without this service.");
    message.reply(words).await.map(drop)
}

/// Copies a greeting, once the person has granted the scope.
async fn call(message: &Message, own: Option<&Agent>) -> blindpipe_client::Result<()> {
    let call = ToolCall {
        tool: TOOL.to_owned(),
        scope: SCOPE.to_owned(),
        arguments: Content::from_iter([("text".to_owned(), "Greetings from the Guide".into())]),
        prompt: Some("May I put a greeting on your clipboard?".to_owned()),
        ..ToolCall::default()
    };
    let called = message.call(call).await?;
    let reason = called.reason.unwrap_or_default();
    let words = match called.status {
        CallStatus::Executed => "Your clipboard has a greeting now.".to_owned(),
        _ if reason == "scope_not_granted" => {
            if let Some(own) = own {
                let scopes = vec![SCOPE.to_owned()];
                let why = Some("To show you a tool.".to_owned());
                own.request_grant(message.conversation_id()?, None, scopes, why)
                    .await?;
            }
            "Allow me the clipboard, and say \"tool\" once more.".to_owned()
        }
        _ => format!("Nothing was copied: {reason}."),
    };
    message.reply(words).await.map(drop)
}
