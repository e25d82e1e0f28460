//! The conversation of `make run`: a person and an agent on two nodes, encrypted end to end,
//! through the public interface only.

mod guide;
mod mail;

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use blindpipe_client::{
    Agent, Client, Context as Message, MemoryStore, Server,
    agent::generate_key,
    client::{ClientEvent, Conversation, Events, Received, Registration},
    protocol::accounts::Scene,
};
use tokio::time::{sleep, timeout};

pub use self::guide::Guide;
use self::mail::find_code;
use crate::{
    error::{Context, DevError, Result},
    random,
    terminal::say,
};

/// Deadline of each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
const HUMAN: &str = "dev-pass";
const HELLO: &str = "Hello Echo, are you there?";
const COUNT: &str = "Count to three, please.";

/// Plays the conversation: Ada is at the node `first`, and Echo at `second`.
pub async fn play(first: &str, second: &str, ca: &Path, mails: &Path) -> Result<()> {
    say("A person and an agent, encrypted end to end, through the public interface only:");
    let authority = fs::read(ca).with_context(|| format!("read {}", ca.display()))?;
    let server = Server::new(first).with_authority(authority);
    let ada = register(&server, mails).await?;

    let began = Instant::now();
    let created = ada.create_agent("Echo", None).await;
    let created = created.with_context(|| "create an agent".into())?;
    let token = created.token.expose();
    let start = &token[..8.min(token.len())];
    let seen = format!("creates the agent Echo and sees its token once: {start}…");
    tell(began, "Ada", "node-1", &seen);
    let echo = Agent::builder(server.at(second), created.agent_id, token)
        .key(&generate_key())
        .with_context(|| "use a new key".into())?
        .store(MemoryStore::default())
        .on_message(answer)
        .build();
    let began = Instant::now();
    step("start Echo", echo.check()).await?;
    let made = "makes a key of its own and shows the public half";
    tell(began, "Echo", "node-2", made);

    let began = Instant::now();
    let conversation = step("open a conversation", ada.open_agent(created.agent_id)).await?;
    tell(began, "Ada", "node-1", "opens a conversation with Echo");
    let talk = async {
        let talked = talk(&ada, &conversation).await;
        echo.stop();
        talked
    };
    let (ended, talked) = tokio::join!(echo.run_until_stopped(), talk);
    talked?;
    ended.with_context(|| "run Echo".into())?;
    Ok(())
}

/// The whole agent.
async fn answer(message: Message) -> blindpipe_client::Result<()> {
    if message.text() != COUNT {
        message
            .reply(format!("You said: {}", message.text()))
            .await?;
        return Ok(());
    }
    let mut out = message.stream()?;
    for word in ["One, ", "two, ", "three."] {
        out.write(word).await;
        sleep(Duration::from_millis(70)).await;
    }
    out.end().await?;
    Ok(())
}

/// Makes an account with the code from its mail; the client, and the address.
async fn sign_up(
    server: &Server,
    mails: &Path,
    name: &str,
    password: &str,
) -> Result<(Client, String)> {
    let email = format!(
        "{}-{}@example.com",
        name.to_lowercase(),
        random::base62(6).to_lowercase()
    );
    let builder = Client::builder(server.clone()).store(MemoryStore::default());
    step(
        "ask for a code",
        builder.send_code(&email, Scene::Register, HUMAN),
    )
    .await?;
    let code = timeout(STEP_TIMEOUT, async {
        loop {
            if let Some(code) = find_code(mails, &email) {
                return code;
            }
            sleep(Duration::from_millis(20)).await;
        }
    });
    let late = |_| DevError::new(format!("no mail with a code came to {}", mails.display()));
    let registration = Registration {
        email: email.clone(),
        code: code.await.map_err(late)?,
        password: password.to_owned(),
        display_name: name.into(),
        turnstile_token: HUMAN.into(),
    };
    let client = step("register", builder.register(registration)).await?;
    Ok((client, email))
}

/// Registers Ada with the code from her mail, and makes the keys of her device.
async fn register(server: &Server, mails: &Path) -> Result<Client> {
    let began = Instant::now();
    let (ada, _) = sign_up(server, mails, "Ada", &random::base62(20)).await?;
    tell(
        began,
        "Ada",
        "node-1",
        "registers with the code from her mail",
    );
    let began = Instant::now();
    step("make keys", ada.devices().create(&random::base62(24))).await?;
    let made = "makes keys on her device and backs them up, encrypted";
    tell(began, "Ada", "node-1", made);
    Ok(ada)
}

/// Ada speaks twice and is answered twice, the second time while she watches.
async fn talk(ada: &Client, conversation: &Conversation) -> Result<()> {
    let mut events = ada.events().with_context(|| "open a socket".into())?;
    let began = Instant::now();
    step("make a secret", conversation.rotate()).await?;
    let given = "makes the conversation's secret, wrapped for her device and for Echo";
    tell(began, "Ada", "node-1", given);

    let began = Instant::now();
    step("send", conversation.send(HELLO)).await?;
    tell(began, "Ada", "node-1", &format!("sends: \"{HELLO}\""));
    let answer = next_answer(&mut events, &mut 0).await?;
    check(&answer, &format!("You said: {HELLO}"))?;
    let read = format!(
        "reads Echo's answer (time since she pressed send): \"{}\"",
        answer.text()
    );
    tell(began, "Ada", "node-1", &read);

    let began = Instant::now();
    step("send", conversation.send(COUNT)).await?;
    let mut pieces = 0;
    let answer = next_answer(&mut events, &mut pieces).await?;
    check(&answer, "One, two, three.")?;
    let watched = format!(
        "watches Echo write the next one in {pieces} pieces: \"{}\"",
        answer.text()
    );
    tell(began, "Ada", "node-1", &watched);
    let stored = answer
        .message
        .payload
        .as_ref()
        .map_or("", |payload| payload.as_str());
    if stored.contains("three") {
        return Err(DevError::new("the pipe could read the conversation"));
    }
    let shown = stored.get(..60).unwrap_or(stored);
    say(format!("            what the pipe has of it: {shown}…"));
    events.close().await;
    Ok(())
}

/// Waits for the agent's next message, and counts the pieces that come before.
async fn next_answer(events: &mut Events, pieces: &mut u32) -> Result<Received> {
    let next = async {
        loop {
            match events.next().await {
                Ok(ClientEvent::Message { received, .. })
                    if received.message.sender.device_id.is_none() =>
                {
                    return Ok(*received);
                }
                Ok(ClientEvent::Delta { .. }) => *pieces += 1,
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
    };
    step("wait for an answer", next).await
}

/// The answer opens, and is signed by a key that Ada accepts.
fn check(answer: &Received, text: &str) -> Result<()> {
    let opened = answer.opened.as_ref();
    let opened = opened.with_context(|| "open Echo's answer".into())?;
    if opened.encrypted && opened.sender.authentic && opened.text() == text {
        return Ok(());
    }
    Err(DevError::new("Echo's answer is another one"))
}

/// A step with its deadline.
async fn step<T>(what: &str, step: impl Future<Output = blindpipe_client::Result<T>>) -> Result<T> {
    let done = timeout(STEP_TIMEOUT, Box::pin(step)).await;
    let late = |_| DevError::new(format!("waited {} s to {what}", STEP_TIMEOUT.as_secs()));
    done.map_err(late)?.with_context(|| what.to_owned())
}

/// Prints a line about a step.
fn tell(began: Instant, who: &str, node: &str, what: &str) {
    say(format!(
        "  {:>5} ms  {who:<4}  {node}  {what}",
        began.elapsed().as_millis()
    ));
}
