//! The README's person, word for word, behind a server that lies, repeats, exchanges and drops.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use blindpipe_client::{
    Client, Content, Result, Server,
    client::{Conversation, Received, ToolRequest},
    e2ee::consent::Decision,
    protocol::ids::{AgentId, Principal},
    testing::{PROTECTION_PASSWORD, TestUser},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    proxy::Proxy,
    readme::{Mortal, words},
    support::{PATIENCE, folder, root, scene, texts},
};

tokio::task_local! {
    /// The program's output.
    static PRINTED: Arc<Mutex<Vec<String>>>;
}

macro_rules! println {
    ($($text:tt)*) => {
        PRINTED.with(|printed| printed.lock().push(format!($($text)*)))
    };
}

/// The names that the README's person is given.
struct Given {
    url: Server,
    path: PathBuf,
    email: String,
    password: String,
    agent_id: AgentId,
}

/// The reader's own dialogues.
fn agrees_to_scopes(_: &[String]) -> bool {
    false
}

fn agrees(_: &Content, _: Option<&str>) -> bool {
    true
}

fn chosen(_: &Content) -> String {
    "Yes".to_owned()
}

mod program {
    use blindpipe_client::{
        Client, FileStore, Result,
        client::ClientEvent,
        protocol::{events::Event, grants::Decision},
    };

    use super::{Given, PROTECTION_PASSWORD, agrees_to_scopes, decide, show};

    #[rustfmt::skip]
    pub(super) async fn run(given: Given) -> Result<()> {
        let Given { url, path, email, password, agent_id } = given;
        let (email, password, human) = (email.as_str(), password.as_str(), "dev-pass");
        let protection_password = PROTECTION_PASSWORD;
let ada = Client::builder(url).store(FileStore::new(path)).login(email, password, human).await?;
ada.devices().restore(protection_password).await?;  // or create() on the first device
let conversation = ada.open_agent(agent_id).await?;
conversation.send("Hello").await?;
let mut events = ada.events()?;
loop {
    match events.next().await? {
        ClientEvent::Message { conversation, received, .. } => show(&ada, &conversation, *received).await?,
        ClientEvent::ToolRequest(request) => decide(&request).await?,
        ClientEvent::Event(event) => {
            if let Some(Event::GrantRequested(grant)) = event.known() {    // an agent asks for `grant.scopes`
                let decision = if agrees_to_scopes(&grant.scopes) { Decision::Approve } else { Decision::Deny };
                ada.decide_grant(grant.grant_id, decision).await?;
            }
        }
        _ => {}
    }
}
    }
}

#[rustfmt::skip]
async fn show(ada: &Client, conversation: &Conversation, received: Received) -> Result<()> {
    if received.message.sender.id == Principal::User(ada.user_id()?) {
        return Ok(());                              // one's own messages come as well
    }
    let opened = match &received.opened {
        Ok(opened) => opened,
        Err(reason) => {
            println!("({reason})");                 // it does not open, so nobody has said it
            return Ok(());
        }
    };
    println!("{}", received.text());
    if opened.content.get("kind").is_some_and(|it| it == "ask") {
        let choice = chosen(&opened.content);       // one of its `choices`
        conversation.answer(received, &choice).await?;
    }
    Ok(())
}

#[rustfmt::skip]
async fn decide(request: &ToolRequest) -> Result<()> {
    let decision = request.decide();                // `Decision` of `e2ee::consent`
    if decision == Decision::Ask {
        if !agrees(request.arguments(), request.prompt()) {
            return request.deny("user_denied").await;
        }
        request.approve();                          // this request, once
    }
    match decision {
        Decision::Execute | Decision::Ask => request.execute().await,
        Decision::Unable | Decision::Repeated => Ok(()), // for somebody else, or for another device
    }
}

#[test]
fn the_program_is_that_of_the_readme() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("a file");
    let here = words(&read("clients/rust/client/tests/cluster/readme_person.rs")).join(" ");
    let readme = read("clients/rust/client/README.md");
    let section = readme.split("\n## A person\n").nth(1).expect("a section");
    let section = section.split("\n## ").next().expect("its end");
    let blocks: Vec<_> = section.split("```rust\n").skip(1).collect();
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        let program = block.split("```").next().expect("its end");
        // The functions of a block stand one after the other here, too.
        for part in program.split("\n\n") {
            let part = words(part).join(" ");
            assert!(here.contains(&part), "another one is tested: {part}");
        }
    }
}

/// Lies before each message, tells it twice, drops the first telling, and exchanges two.
struct Liar {
    exchanges: AtomicBool,
    drops: AtomicBool,
    lies: AtomicU32,
    held: Mutex<Option<Value>>,
    dropped: Mutex<Vec<Value>>,
    /// The last message.
    seen: Mutex<Value>,
}

/// The id of nobody.
const STRANGER: &str = "01BX5ZZKBKACTAV9WEVGEMMVRY";

impl Liar {
    fn before(proxy: &Proxy) -> Arc<Self> {
        let liar = Arc::new(Self {
            exchanges: AtomicBool::default(),
            drops: AtomicBool::default(),
            lies: AtomicU32::default(),
            held: Mutex::default(),
            dropped: Mutex::default(),
            seen: Mutex::default(),
        });
        let lying = liar.clone();
        proxy.on_frame(move |frame| lying.frames(frame));
        liar
    }

    fn frames(&self, frame: Value) -> Vec<Value> {
        if frame["event"] != "message.created" {
            return vec![frame];
        }
        *self.seen.lock() = frame.clone();
        let id = frame["event_id"].clone();
        if self.drops.load(Ordering::Relaxed) && !self.dropped.lock().contains(&id) {
            self.dropped.lock().push(id);
            return Vec::new();
        }
        let mut held = self.held.lock();
        if self.exchanges.load(Ordering::Relaxed) && held.is_none() {
            *held = Some(frame);
            return Vec::new();
        }
        let told = [Some(frame), held.take()].into_iter().flatten();
        told.flat_map(|frame| self.twice(frame)).collect()
    }

    /// The message, altered in each part that says who said what to whom; then itself, and again.
    fn twice(&self, frame: Value) -> Vec<Value> {
        let altered = |alter: &dyn Fn(&mut Value)| {
            let mut lie = self.again(&frame);
            alter(&mut lie["data"]);
            lie
        };
        vec![
            altered(&|data| flip(&mut data["payload"])),
            altered(&|data| data["payload"] = json!({ "type": "text", "text": "in clear" })),
            altered(&|data| data["client_message_id"] = STRANGER.into()),
            altered(&|data| data["conversation_id"] = STRANGER.into()),
            altered(&|data| data["sender"]["id"] = STRANGER.into()),
            frame.clone(),
            self.again(&frame),
        ]
    }

    fn again(&self, frame: &Value) -> Value {
        let number = self.lies.fetch_add(1, Ordering::Relaxed);
        let mut again = frame.clone();
        again["event_id"] = format!("01BX5ZZKBKACTAV9WEVGEM{number:04}").into();
        again
    }

    /// A wish that no agent has.
    fn invented(&self, agent_id: AgentId) -> Value {
        let told = self.seen.lock()["data"].clone();
        json!({
            "request_id": STRANGER,
            "agent_id": agent_id,
            "user_id": told["sender"]["id"],
            "conversation_id": told["conversation_id"],
            "tool": "send_email",
            "scope": "notification:send",
            "sensitivity": "low",
            "created_at": told["created_at"],
            "payload": told["payload"],
        })
    }
}

/// Changes a character of an envelope.
fn flip(payload: &mut Value) {
    let text = payload["ciphertext"].as_str().expect("an envelope");
    let (start, end) = text.split_at(text.len() / 2);
    let other = if end.starts_with('A') { "B" } else { "A" };
    payload["ciphertext"] = format!("{start}{other}{}", &end[1..]).into();
}

/// The README's person, who runs, and what she prints.
struct Person {
    task: JoinSet<Result<()>>,
    printed: Arc<Mutex<Vec<String>>>,
}

impl Person {
    fn start(proxy: &Proxy, user: &TestUser, agent_id: AgentId) -> Self {
        let given = Given {
            url: proxy.server(),
            path: folder().join(format!("person-{agent_id}")),
            email: user.email.clone(),
            password: user.password.clone(),
            agent_id,
        };
        let printed = Arc::<Mutex<Vec<String>>>::default();
        let mut task = JoinSet::new();
        task.spawn(PRINTED.scope(printed.clone(), Box::pin(program::run(given))));
        Self { task, printed }
    }

    /// The accepted texts, and the refused ones.
    fn printed(&self) -> (Vec<String>, Vec<String>) {
        let printed = self.printed.lock().clone();
        printed.into_iter().partition(|line| !line.starts_with('('))
    }

    /// Waits for so many answers. A dropped event comes with another connection.
    async fn has_shown(&mut self, answers: usize, proxies: &[&Proxy]) {
        let shown = async {
            while self.printed().0.len() < answers {
                if let Some(ended) = self.task.try_join_next() {
                    panic!("it has ended: {ended:?}");
                }
                sleep(Duration::from_millis(500)).await;
                proxies.iter().for_each(|proxy| proxy.cut());
            }
        };
        timeout(PATIENCE, shown).await.expect("it shows them");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_programs_of_the_readme_show_and_answer_each_message_once() {
    let scene = scene("of the readme").await;
    // Its key is there before Ada writes.
    scene.builder().build().check().await.expect("a key");
    let before_person = Proxy::before(&scene.cluster, 0).await;
    let before_agent = Proxy::before(&scene.cluster, 1).await;
    let liars = [Liar::before(&before_person), Liar::before(&before_agent)];
    let pins = folder().join(format!("pins-{}", scene.agent.id));
    let mut agent = Mortal::start(&scene, &before_agent, Some(&pins));
    let mut person = Person::start(&before_person, &scene.ada, scene.agent.id);
    person.has_shown(1, &[]).await;
    let conversation = scene.conversation().await;
    let mut said = vec!["Hello"];
    let mut say = async |words: &[&'static str]| {
        for text in words {
            conversation.send(*text).await.expect("sent");
            said.push(text);
        }
    };
    say(&["one"]).await;
    person.has_shown(2, &[]).await;
    liars[1].exchanges.store(true, Ordering::Relaxed);
    say(&["two", "three"]).await;
    person.has_shown(4, &[]).await;
    liars[1].exchanges.store(false, Ordering::Relaxed);
    for liar in &liars {
        liar.drops.store(true, Ordering::Relaxed);
    }
    say(&["four"]).await;
    person.has_shown(5, &[&before_agent, &before_person]).await;
    // An invented wish runs nothing and ends nothing.
    let place = conversation.id().to_string();
    let wish = liars[0].invented(scene.agent.id);
    before_person.inject_event("artifact_request", &place, &wish);
    say(&["five"]).await;
    person.has_shown(6, &[&before_agent, &before_person]).await;
    // Both go through an outage, and the agent's process dies.
    for proxy in [&before_agent, &before_person] {
        proxy.go_away();
    }
    say(&["six"]).await;
    agent.die();
    agent = Mortal::start(&scene, &before_agent, Some(&pins));
    sleep(Duration::from_millis(500)).await;
    for proxy in [&before_agent, &before_person] {
        proxy.come_back();
    }
    person.has_shown(7, &[&before_agent, &before_person]).await;
    let mut wanted: Vec<_> = said
        .iter()
        .map(|text| format!("You said: {text}"))
        .collect();
    let (mut shown, refused) = person.printed();
    let mut answers: Vec<_> = texts(&conversation).await;
    answers.retain(|text| !said.contains(&text.as_str()));
    for list in [&mut wanted, &mut shown, &mut answers] {
        list.sort_unstable();
    }
    assert_eq!(shown, wanted);
    assert_eq!(answers, wanted);
    for reason in ["(clear)", "(bad_ciphertext)"] {
        assert!(refused.iter().any(|line| line == reason), "{refused:?}");
    }
    agent.die();
}
