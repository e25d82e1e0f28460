//! The recipes of `docs/recipes`, with the real libraries and without a model.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener as Port,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{OnceLock, mpsc},
    time::Duration,
};

use axum::{Json, Router, routing::post};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};

use crate::{
    mcp::{client_of, official_client},
    support::{Group, Home, has_approvals, piped, python_with, root},
};

const PATIENCE: Duration = Duration::from_secs(90);

fn recipe(name: &str) -> PathBuf {
    root().join("docs/recipes").join(name)
}

/// The interpreter with the packages of the recipes and those of the SDK.
fn python() -> Option<&'static String> {
    static PYTHON: OnceLock<Option<String>> = OnceLock::new();
    let install = || {
        let text = fs::read_to_string(recipe("requirements.txt")).expect("a list");
        let listed = text.lines().filter(|line| !line.starts_with('#'));
        let packages: Vec<_> = listed
            .chain(["aiohttp>=3.14", "cryptography>=48"])
            .collect();
        python_with("recipes-python", &packages)
    };
    PYTHON.get_or_init(install).as_ref()
}

/// A person with an agent of this name; none where the recipes cannot be tested.
async fn home(agent: &str) -> Option<Home> {
    let home = Home::with_person().await;
    home.bp(&["agent", "new", agent]).done();
    has_approvals(&home).then_some(home)
}

/// A program in Python that runs as the agent.
fn program(home: &Home, agent: &str, python: &str, arguments: &[&str]) -> Command {
    let mut program = Command::new(python);
    program
        .args(arguments)
        .current_dir(home.folder.path())
        .envs(home.variables(agent))
        .env("PYTHONPATH", root().join("clients/python/src"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdout(Stdio::null())
        .process_group(0);
    program
}

/// Texts of a conversation, as they come.
pub struct Texts {
    tail: Child,
    come: mpsc::Receiver<String>,
}

impl Texts {
    pub fn of(home: &Home, agent: &str) -> Self {
        let mut tail = piped(home.command(&["--json", "tail", agent, "-n", "9"]));
        let lines = BufReader::new(tail.stdout.take().expect("a pipe")).lines();
        let (sender, come) = mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let message: Value = serde_json::from_str(&line).expect("JSON");
                let text = message["content"]["text"].as_str().unwrap_or_default();
                sender.send(text.to_owned()).ok();
            }
        });
        Self { tail, come }
    }

    pub fn until(&self, text: &str) {
        while self.come.recv_timeout(PATIENCE).expect(text) != text {}
    }
}

impl Drop for Texts {
    fn drop(&mut self) {
        self.tail.kill().ok();
        self.tail.wait().ok();
    }
}

/// The next question that waits.
pub fn asked(home: &Home) -> (String, Value) {
    for _ in 0..900 {
        if let Some(open) = home.json(&["approvals"]).items().pop() {
            let id = open["approval"]["approval_id"].as_str().expect("an id");
            return (id.to_owned(), open["question"].clone());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("nobody was asked");
}

/// Wishes to an agent that a framework runs: one is approved after the agent's process was
/// killed, one is denied.
fn wishes(home: &Home, script: &str, arguments: &Value, denied: &str, settings: &[(&str, &str)]) {
    let python = python().expect("packages");
    let script = recipe(script).display().to_string();
    let start = || {
        let mut program = program(home, "worker", python, &[&script]);
        Group(program.envs(settings.to_vec()).spawn().expect("a process"))
    };
    let texts = Texts::of(home, "worker");
    let first = start();
    home.json(&["send", "worker", "1.4"]).item();
    let (id, question) = asked(home);
    assert_eq!(question["text"], "Run deploy?");
    assert_eq!(&question["arguments"], arguments);
    drop(first);

    let _second = start();
    home.json(&["approvals", "approve", &id]).item();
    texts.until("1.4 is live.");
    home.json(&["send", "worker", "1.4"]).item();
    let (id, _) = asked(home);
    home.json(&["approvals", "deny", &id]).item();
    texts.until(denied);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_of_langgraph_is_an_approval() {
    let (Some(_), Some(home)) = (python(), home("worker").await) else {
        return;
    };
    let call = json!({ "tool": "deploy", "arguments": { "version": "1.4" } });
    wishes(&home, "langgraph_agent.py", &call, "Not deployed.", &[]);
}

/// A model behind OpenAI's interface: it wants a tool, and repeats what the tool told.
async fn model(Json(request): Json<Value>) -> Json<Value> {
    let input = request["input"].as_array().expect("a list");
    let is_told = |item: &&Value| item["type"] == "function_call_output";
    let item = match input.iter().rev().find(is_told) {
        Some(told) => {
            let text = format!("{}.", told["output"].as_str().expect("text"));
            let content = json!([{ "type": "output_text", "text": text, "annotations": [] }]);
            json!({ "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": content })
        }
        None => {
            json!({ "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "deploy",
            "arguments": r#"{"version":"1.4"}"#, "status": "completed" })
        }
    };
    Json(json!({
        "id": "resp_1", "object": "response", "created_at": 1, "status": "completed",
        "model": request["model"], "output": [item], "parallel_tool_calls": false,
        "tool_choice": "auto", "tools": [],
        "usage": { "input_tokens": 1, "output_tokens": 1, "total_tokens": 2,
            "input_tokens_details": { "cached_tokens": 0 },
            "output_tokens_details": { "reasoning_tokens": 0 } },
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_of_openai_agents_runs_with_a_signature() {
    let (Some(_), Some(home)) = (python(), home("worker").await) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let router = Router::new().route("/v1/responses", post(model));
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, router).await.expect("served") });
    let settings = [
        ("OPENAI_BASE_URL", url.as_str()),
        ("OPENAI_API_KEY", "none"),
        ("OPENAI_AGENTS_DISABLE_TRACING", "1"),
    ];
    let calls = json!({ "calls": [{ "tool": "deploy", "arguments": { "version": "1.4" } }] });
    let denied = "Tool execution was not approved..";
    wishes(&home, "openai_agent.py", &calls, denied, &settings);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_behind_a_webhook_answers_without_a_tunnel() {
    let (Some(python), Some(home)) = (python(), home("hooked").await) else {
        return;
    };
    let free = Port::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("an address").port().to_string();
    drop(free);
    let secret = "a secret of more than 24 bytes";
    let file = home.file("secret", secret);
    let folder = recipe("").display().to_string();
    let serve = [
        "-m",
        "uvicorn",
        "webhook_agent:app",
        "--app-dir",
        &folder,
        "--port",
        &port,
    ];
    let mut serve = program(&home, "hooked", python, &serve);
    serve.env("WEBHOOK_SECRET", secret).stderr(Stdio::null());
    let _receiver = Group(serve.spawn().expect("a receiver"));
    let to = format!("http://127.0.0.1:{port}/");
    let listen = [
        "webhook",
        "listen",
        "--forward-to",
        &to,
        "--secret-file",
        &file,
    ];
    let mut listen = home.command(&listen);
    listen.stdout(Stdio::null()).process_group(0);
    let _listening = Group(listen.spawn().expect("bp"));
    let answer = home
        .json(&["send", "hooked", "Hello", "--wait", "90"])
        .item();
    assert_eq!(answer["content"]["text"], "You said: Hello");
    assert_eq!(answer["authentic"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_deploys_with_a_signature_of_an_approver() {
    let Some(home) = home("deployer").await else {
        return;
    };
    let me = home.json(&["whoami"]).item();
    let user = me["user_id"].as_str().expect("an id");
    let keys = home.bp(&["receipt", "keys", user]).done();
    home.file("approvers.jsonl", &keys);
    home.file("deploy", "echo \"$1\" > live\n");
    let script = recipe("pipeline.sh").display().to_string();
    let step = |run: &str, version: &str| {
        // `deploy` is a program of the pipeline.
        let mut step = Command::new("sh");
        step.args([
            "-ec",
            "chmod +x deploy; exec \"$@\"",
            "sh",
            &script,
            version,
        ])
        .envs(
            home.command(&[])
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .env("RUN", run)
        .current_dir(home.folder.path())
        .process_group(0);
        Group(piped(step))
    };
    let code = |mut step: Group| step.0.wait().expect("an end").code();
    let live = || fs::read_to_string(home.path("live")).ok();

    let killed = step("7", "1.4");
    let (id, question) = asked(&home);
    assert_eq!(question["text"], "Deploy 1.4?");
    drop(killed);
    // The step is repeated, and people are asked once.
    let again = step("7", "1.4");
    home.json(&["approvals", "approve", &id]).item();
    assert_eq!(code(again), Some(0));
    assert_eq!(live().as_deref(), Some("1.4\n"));
    assert!(home.json(&["approvals"]).items().is_empty());

    let denied = step("8", "1.5");
    let (id, _) = asked(&home);
    home.json(&["approvals", "deny", &id]).item();
    assert_eq!(code(denied), Some(1));
    // The service vouches for the person, and the pipeline does not know the key.
    home.file("approvers.jsonl", "");
    let unknown = step("9", "1.6");
    let (id, _) = asked(&home);
    home.json(&["approvals", "approve", &id]).item();
    assert_eq!(code(unknown), Some(1));
    assert_eq!(live().as_deref(), Some("1.4\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_of_a_coding_agent_starts_a_server_that_asks() {
    let Some(python) = official_client() else {
        return;
    };
    let Some(home) = home("assistant").await else {
        return;
    };
    let text = fs::read_to_string(recipe("README.md")).expect("a page");
    let (_, rest) = text.split_once("```json\n").expect("a configuration");
    let (file, _) = rest.split_once("```").expect("its end");
    let file: Value = serde_json::from_str(file).expect("JSON");
    let server = file["mcpServers"]["people"].to_string();
    let script = root().join("clients/rust/bp/tests/mcp_question.py");
    let client = client_of(&home, python, &script, &server);
    let (id, question) = asked(&home);
    assert_eq!(question["text"], "Which colour?");
    home.json(&["approvals", "answer", &id, "red"]).item();
    let output = client.wait_with_output().expect("an end");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains(r#""answer": "red""#), "{told}");
}
