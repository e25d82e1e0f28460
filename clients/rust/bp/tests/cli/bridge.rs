//! `bp bridge a2a` both ways, with the official server and client of A2A.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    net::TcpStream,
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, OnceLock, mpsc},
    time::Duration,
};

use blindpipe_client::{
    Agent, Content, NewFile, Result,
    agent::{ApprovalDraft, Context, Question},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    recipes::{Texts, asked},
    support::{Group, Home, has_approvals, piped, python_with, root},
};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// The interpreter with the official packages.
pub fn python() -> Option<&'static String> {
    static PYTHON: OnceLock<Option<String>> = OnceLock::new();
    let packages = ["a2a-sdk[http-server]==1.3.0", "uvicorn==0.54.0"];
    PYTHON
        .get_or_init(|| python_with("a2a-python", &packages))
        .as_ref()
}

fn script(name: &str) -> String {
    let file = root().join("clients/rust/bp/tests").join(name);
    file.display().to_string()
}

/// The lines that a process prints, as they come.
fn lines(process: &mut Child) -> mpsc::Receiver<String> {
    let from = BufReader::new(process.stdout.take().expect("a pipe"));
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in from.lines().map_while(std::result::Result::ok) {
            sender.send(line).ok();
        }
    });
    lines
}

/// An agent of A2A, its address, and what it prints.
fn parrot(python: &str, more: &[&str]) -> (Group, String, mpsc::Receiver<String>) {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("an address").port();
    drop(free);
    let mut server = Command::new(python);
    server
        .args([&script("a2a_server.py"), &port.to_string()])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    let mut server = server.spawn().expect("a server");
    let told = lines(&mut server);
    let server = Group(server);
    for _ in 0..600 {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return (server, format!("http://127.0.0.1:{port}"), told);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("the server did not start");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_a2a_speaks_in_conversations() {
    let Some(python) = python() else {
        return;
    };
    let home = Home::with_person().await;
    home.bp(&["agent", "new", "parrot"]).done();
    if !has_approvals(&home) {
        return;
    }
    let (_server, url, told) = parrot(python, &[]);
    let bridge = || {
        let mut bridge = home.command(&["bridge", "a2a", &url]);
        Group(bridge.process_group(0).spawn().expect("bp"))
    };
    let first = bridge();
    let say = |text: &str| {
        let answer = home.json(&["send", "parrot", text, "--wait", "60"]).item();
        assert_eq!(answer["authentic"], true);
        answer
    };
    assert_eq!(say("hello")["content"]["text"], "You said: hello");

    // It waits for words, and the next message is for the same task.
    let question = say("ask");
    assert_eq!(question["content"]["type"], "approval");
    assert_eq!(question["content"]["text"], "Which colour?");
    assert_eq!(say("blue")["content"]["text"], "chosen: blue");
    assert_eq!(say("again")["content"]["text"], "You said: again");

    let file = say("file");
    let message = file["message_id"].as_str().expect("an id");
    let copy = home.path("table.csv");
    home.json(&["file", "get", "parrot", message, "-o", &copy])
        .item();
    assert_eq!(std::fs::read(copy).expect("a file"), b"a,b\n");

    // People decide while no bridge runs, and the proof goes to the agent.
    let texts = Texts::of(&home, "parrot");
    home.json(&["send", "parrot", "pay"]).item();
    let (id, question) = asked(&home);
    assert_eq!(question["text"], "Pay 5?");
    drop(first);
    home.json(&["approvals", "approve", &id]).item();
    let _second = bridge();
    texts.until("approved, proven: True");

    let sent = home.json(&["send", "parrot", "slow"]).item();
    assert_eq!(told.recv_timeout(PATIENCE).expect("a line"), "slow");
    let conversation = sent["conversation_id"].as_str().expect("an id");
    let stop = format!("/conversations/{conversation}/stop");
    home.json(&["api", "POST", &stop, "-d", "{}"]).item();
    assert_eq!(told.recv_timeout(PATIENCE).expect("a line"), "cancelled");
    assert_eq!(say("after")["content"]["text"], "You said: after");
}

/// It has no streams, so the bridge asks for the task until it waits or has ended.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_a2a_without_streams_is_asked_for_its_task() {
    let Some(python) = python() else {
        return;
    };
    let home = Home::with_person().await;
    home.bp(&["agent", "new", "parrot"]).done();
    if !has_approvals(&home) {
        return;
    }
    let (_server, url, told) = parrot(python, &["mute"]);
    let mut bridge = home.command(&["bridge", "a2a", &url]);
    let _bridge = Group(bridge.process_group(0).spawn().expect("bp"));
    let say = |text: &str| {
        let answer = home.json(&["send", "parrot", text, "--wait", "60"]).item();
        answer["content"].clone()
    };
    assert_eq!(say("hello")["text"], "You said: hello");
    // It goes on only when somebody has asked, three times.
    assert_eq!(say("grow")["text"], "one two three");
    assert_eq!(say("ask")["text"], "Which colour?");
    assert_eq!(say("blue")["text"], "chosen: blue");
    let file = say("file");
    assert_eq!(
        (&file["type"], &file["name"]),
        (&json!("file"), &json!("table.csv"))
    );

    let texts = Texts::of(&home, "parrot");
    home.json(&["send", "parrot", "pay"]).item();
    let (id, _) = asked(&home);
    home.json(&["approvals", "approve", &id]).item();
    texts.until("approved, proven: True");

    // A person stops a task that was only begun.
    let sent = home.json(&["send", "parrot", "slow"]).item();
    assert_eq!(told.recv_timeout(PATIENCE).expect("a line"), "slow");
    let conversation = sent["conversation_id"].as_str().expect("an id");
    let stop = format!("/conversations/{conversation}/stop");
    home.json(&["api", "POST", &stop, "-d", "{}"]).item();
    assert_eq!(told.recv_timeout(PATIENCE).expect("a line"), "cancelled");
    assert_eq!(say("after")["text"], "You said: after");
}

/// An agent of the person that runs in this process.
pub async fn helper(home: &Home) -> JoinSet<Result<()>> {
    let builder = home.new_agent("helper").await;
    let agent: Agent = builder
        .on_message(answer)
        .on_answer("colour", async |ctx: Context| {
            let answer = ctx.answer().cloned().expect("an answer");
            let words = answer.choice.or(answer.text).unwrap_or_default();
            ctx.reply(format!("chosen: {words}")).await
        })
        .on_decision("pay", async |ctx: Context| {
            let outcome = json!(ctx.decision().expect("a decision").outcome);
            ctx.reply(outcome.as_str().expect("a word")).await
        })
        .build();
    let agent = Arc::new(agent);
    let mut running = JoinSet::new();
    running.spawn(async move { agent.run_until_stopped().await });
    running
}

async fn answer(ctx: Context) -> Result<()> {
    if ctx.content().get("type") == Some(&json!("file")) {
        let bytes = ctx.file().await?;
        ctx.reply(format!("{} bytes", bytes.len())).await?;
        return Ok(());
    }
    match ctx.text() {
        "ask" => {
            let question = Question {
                tag: "colour".to_owned(),
                text: "Which colour?".to_owned(),
                choices: vec!["red".to_owned(), "blue".to_owned()],
                ..Question::default()
            };
            ctx.ask(question).await?;
        }
        "pay" => {
            let draft = ApprovalDraft {
                text: Some("Pay 5?".to_owned()),
                ..ApprovalDraft::new("pay", Content::new())
            };
            ctx.approve(&draft).await?;
        }
        "file" => {
            let file = NewFile {
                name: "table.csv".to_owned(),
                content_type: "text/csv".to_owned(),
                bytes: b"a,b\n".to_vec(),
            };
            ctx.send_file(file).await?;
            ctx.reply("There it is.").await?;
        }
        "slow" => ctx.stopped().cancelled().await,
        text => {
            let mut stream = ctx.stream()?;
            for piece in ["You said: ", text] {
                stream.write(piece).await;
                stream.flush().await;
            }
            stream.end().await?;
        }
    }
    Ok(())
}

/// The official client, as a process that takes calls.
pub struct Client {
    _process: Group,
    calls: ChildStdin,
    steps: mpsc::Receiver<String>,
}

impl Client {
    pub fn start(python: &str, url: &str, binding: &str) -> Self {
        let mut client = Command::new(python);
        client
            .args([&script("a2a_client.py"), url, binding])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        let mut process = client.spawn().expect("a client");
        Self {
            calls: process.stdin.take().expect("a pipe"),
            steps: lines(&mut process),
            _process: Group(process),
        }
    }

    fn begin(&mut self, call: &Value) {
        writeln!(self.calls, "{call}").expect("written");
    }

    /// The next step; none at the end of a call.
    fn step(&self) -> Option<Value> {
        let line = self.steps.recv_timeout(PATIENCE).expect("a line");
        (!line.is_empty()).then(|| serde_json::from_str(&line).expect(&line))
    }

    pub fn call(&mut self, call: &Value) -> Vec<Value> {
        self.begin(call);
        std::iter::from_fn(|| self.step()).collect()
    }
}

/// The texts of artifacts of a stream, joined.
fn text(steps: &[Value]) -> String {
    let parts = steps
        .iter()
        .map(|step| &step["artifactUpdate"]["artifact"]["parts"][0]["text"]);
    parts.filter_map(Value::as_str).collect()
}

fn last_state(steps: &[Value]) -> &Value {
    &steps.last().expect("a step")["statusUpdate"]["status"]["state"]
}

fn is_served(home: &Home, python: &str, url: &str, binding: &str) {
    let mut client = Client::start(python, url, binding);
    let steps = client.call(&json!({ "do": "send", "text": "hello" }));
    let id = steps[0]["task"]["id"].as_str().expect("an id").to_owned();
    assert_eq!(text(&steps), "You said: hello", "{steps:?}");
    assert_eq!(last_state(&steps), "TASK_STATE_COMPLETED");
    let task = client.call(&json!({ "do": "get", "task": id })).remove(0);
    assert_eq!(
        task["artifacts"][0]["parts"][0]["text"], "You said: hello",
        "{task}"
    );
    let refused = client.call(&json!({ "do": "send", "text": "more", "task": id }));
    assert_eq!(refused[0]["error"], "UnsupportedOperationError");
    let unknown = client.call(&json!({ "do": "get", "task": "none" }));
    assert_eq!(unknown[0]["error"], "TaskNotFoundError");

    let steps = client.call(&json!({ "do": "send", "text": "ask" }));
    let waits = steps.last().expect("a step");
    assert_eq!(last_state(&steps), "TASK_STATE_INPUT_REQUIRED");
    let asked_for = &waits["statusUpdate"]["status"]["message"]["parts"][0]["text"];
    assert!(
        asked_for
            .as_str()
            .is_some_and(|it| it.contains("Which colour?") && it.contains("blue")),
        "{waits}"
    );
    let id = steps[0]["task"]["id"].as_str().expect("an id");
    let steps = client.call(&json!({ "do": "send", "text": "blue", "task": id }));
    assert_eq!(text(&steps), "chosen: blue", "{steps:?}");
    assert_eq!(last_state(&steps), "TASK_STATE_COMPLETED");

    // A call without a stream is answered once somebody has to decide.
    let waits = client.call(&json!({ "do": "send", "text": "pay", "stream": false }));
    let task = &waits[0]["task"];
    assert_eq!(task["status"]["state"], "TASK_STATE_AUTH_REQUIRED");
    client.begin(&json!({ "do": "subscribe", "task": task["id"] }));
    assert_eq!(client.step().expect("the task")["task"]["id"], task["id"]);
    let (approval, _) = asked(home);
    home.json(&["approvals", "approve", &approval]).item();
    let steps: Vec<_> = std::iter::from_fn(|| client.step()).collect();
    assert_eq!(text(&steps), "approved", "{steps:?}");
    assert_eq!(last_state(&steps), "TASK_STATE_COMPLETED");

    let steps = client.call(&json!({ "do": "send", "raw": "12345" }));
    assert_eq!(text(&steps), "5 bytes", "{steps:?}");
    let steps = client.call(&json!({ "do": "send", "text": "file" }));
    let parts = steps
        .iter()
        .map(|it| &it["artifactUpdate"]["artifact"]["parts"][0]);
    let file = parts.clone().find(|part| part["raw"].is_string());
    let file = file.expect("a file");
    assert_eq!(
        (&file["raw"], &file["filename"]),
        (&json!("YSxiCg=="), &json!("table.csv"))
    );

    client.begin(&json!({ "do": "send", "text": "slow" }));
    let task = client.step().expect("a task")["task"]["id"].clone();
    let mut other = Client::start(python, url, binding);
    let ended = other.call(&json!({ "do": "cancel", "task": task }));
    assert_eq!(ended[0]["status"]["state"], "TASK_STATE_CANCELED");
    let steps: Vec<_> = std::iter::from_fn(|| client.step()).collect();
    assert_eq!(last_state(&steps), "TASK_STATE_CANCELED");
    let again = other.call(&json!({ "do": "cancel", "task": task }));
    assert_eq!(again[0]["error"], "TaskNotCancelableError");
}

/// A bridge that serves the agent, and its address.
pub fn serve(home: &Home, more: &[&str]) -> (Group, String) {
    let command = ["--json", "bridge", "a2a", "--serve", "helper"];
    let mut bridge = home.command(&[&command, more].concat());
    bridge.process_group(0);
    let mut bridge = Group(piped(bridge));
    let mut line = String::new();
    let told = bridge.0.stderr.as_mut().expect("a pipe");
    BufReader::new(told).read_line(&mut line).expect("a line");
    let told: Value = serde_json::from_str(&line).expect(&line);
    let url = told["address"].as_str().expect("an address").to_owned();
    (bridge, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_served_to_clients_of_a2a() {
    let Some(python) = python() else {
        return;
    };
    let home = Home::with_person().await;
    let _agent = helper(&home).await;
    if !has_approvals(&home) {
        return;
    }
    let (_bridge, url) = serve(&home, &[]);
    for binding in ["JSONRPC", "HTTP+JSON"] {
        is_served(&home, python, &url, binding);
    }
}
