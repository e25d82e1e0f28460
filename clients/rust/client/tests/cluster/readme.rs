//! The README's agent in a process that is killed, behind a server that goes away and lies.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use blindpipe_client::client::{ClientEvent, Received};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::{
    proxy::Proxy,
    support::{PATIENCE, Scene, built, folder, history, is_by_agent, root, scene, until, watch},
};

/// Outages and deaths by turns; five messages each.
const ROUNDS_WITH_STORE: u32 = 6;
const ROUNDS_WITHOUT_STORE: u32 = 2;
/// A person may send ten messages a second.
const BETWEEN_SENDS: Duration = Duration::from_millis(110);

/// A program without its comments and the blanks between its words.
pub fn words(program: &str) -> Vec<String> {
    let lines = program
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""));
    let words = lines.flat_map(|line| line.split_whitespace().map(str::to_owned));
    words.collect()
}

#[test]
fn the_example_is_the_program_of_the_readme() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("a file");
    let readme = read("clients/rust/client/README.md");
    let shown = readme.split("```rust\n").nth(1).expect("a program");
    let shown = shown.split("```").next().expect("its end");
    assert_eq!(words(shown), words(&read("examples/rust/echo.rs")));
}

/// The README's agent in a process of its own.
pub struct Mortal(Child);

impl Mortal {
    pub fn start(scene: &Scene, proxy: &Proxy, store: Option<&Path>) -> Self {
        let mut command = Command::new(built("examples/agent-echo"));
        command
            .env("BLINDPIPE_URL", proxy.server().url())
            .env("BLINDPIPE_AGENT_ID", scene.agent.id.to_string())
            .env("BLINDPIPE_TOKEN", &scene.agent.token)
            .env("BLINDPIPE_KEY", &scene.agent.key)
            .stderr(Stdio::null());
        if let Some(path) = store {
            command.env("BLINDPIPE_PINS", path);
        }
        Self(command.spawn().expect("an example that is built"))
    }

    pub fn process_id(&self) -> u32 {
        self.0.id()
    }

    /// By SIGKILL. It must have lived until now.
    pub fn die(&mut self) {
        assert!(
            self.0.try_wait().expect("a state").is_none(),
            "it has ended"
        );
        self.0.kill().expect("killed");
        self.0.wait().expect("its end");
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The message in clear, and another one that was altered, before the message itself.
fn lies(frame: Value, told: &AtomicU32) -> Vec<Value> {
    if frame["event"] != "message.created" {
        return vec![frame];
    }
    let number = told.fetch_add(1, Ordering::Relaxed);
    let lie = |payload: Value, place: u32| {
        let mut lie = frame.clone();
        lie["data"]["payload"] = payload;
        lie["event_id"] = json!(format!("01BX5ZZKBKACTAV9WEVGEM{:04}", number * 2 + place));
        // A victim that handles a lie in a message's own place acknowledges the message by that.
        let cursor = lie["cursor"].as_str().expect("a cursor").to_owned();
        let (epoch, seq) = cursor.rsplit_once('-').expect("its number");
        let seq = seq.parse::<i64>().expect("a number") - 1;
        lie["cursor"] = json!(format!("{epoch}-{seq}"));
        lie["seq"] = json!(seq);
        lie
    };
    let mut altered = frame["data"]["payload"].clone();
    let text = altered["ciphertext"].as_str().expect("an envelope");
    let middle = text.len() / 2;
    let other = if text[middle..].starts_with('A') {
        "B"
    } else {
        "A"
    };
    altered["ciphertext"] = json!(format!("{}{other}{}", &text[..middle], &text[middle + 1..]));
    let clear = json!({ "type": "text", "text": "in clear" });
    let lies = [lie(clear, 0), lie(altered, 1)];
    lies.into_iter().chain([frame]).collect()
}

async fn lane(rounds: u32, has_store: bool) {
    let scene = scene("of the readme").await;
    // Its key is there before Ada writes.
    scene.builder().build().check().await.expect("a key");
    let path = folder().join(format!("pins-{}", scene.agent.id));
    let store = has_store.then_some(path.as_path());
    let proxy = Proxy::before(&scene.cluster, 1).await;
    let told = Arc::<AtomicU32>::default();
    let count = told.clone();
    proxy.on_frame(move |frame| lies(frame, &count));
    let mut mortal = Mortal::start(&scene, &proxy, store);
    let conversation = scene.conversation().await;
    let mut events = watch(&scene.ada).await;
    let mut said = 0;
    let mut say = async |messages: u32| {
        for _ in 0..messages {
            let text = format!("message {said}");
            conversation.send(text).await.expect("sent");
            said += 1;
            sleep(BETWEEN_SENDS).await;
        }
    };
    for round in 0..rounds {
        let is_death = round % 2 == 1;
        let before = told.load(Ordering::Relaxed);
        say(1).await;
        until(|| told.load(Ordering::Relaxed) > before).await;
        if is_death {
            mortal.die();
        } else {
            proxy.go_away();
        }
        say(3).await;
        if is_death {
            mortal = Mortal::start(&scene, &proxy, store);
        }
        proxy.come_back();
        say(1).await;
    }
    let wanted: Vec<_> = (0..said)
        .map(|n| format!("You said: message {n}"))
        .collect();
    let mut shown = Vec::new();
    while shown.len() < wanted.len() {
        if let ClientEvent::Message { received, .. } = events.next().await
            && is_by_agent(&received)
        {
            shown.push(received.text().to_owned());
        }
    }
    assert_eq!(shown, wanted);
    let all = timeout(PATIENCE, history(&conversation))
        .await
        .expect("read");
    let answers = all.iter().filter(|received| is_by_agent(received));
    let answers: Vec<_> = answers.map(Received::text).collect();
    assert_eq!(answers, wanted);
    assert_eq!(path.exists(), has_store);
    mortal.die();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_readmes_agent_dies_and_loses_its_server_and_answers_each_message_once() {
    tokio::join!(
        lane(ROUNDS_WITH_STORE, true),
        lane(ROUNDS_WITHOUT_STORE, false)
    );
}
