//! `bp mcp`, over standard input and output and over HTTP, and with the official clients of Python and TypeScript.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::OnceLock,
};

use serde_json::{Value, json};

use crate::{
    support::{Home, has_approvals, piped, python_with, root, run},
    way::Way,
};

/// A host of the protocol, as a program that writes lines.
struct Host {
    bp: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    next: u64,
}

impl Host {
    fn start(home: &Home) -> Self {
        Self::start_at(home, &[])
    }

    fn start_at(home: &Home, options: &[&str]) -> Self {
        let mut command = home.command(&[&["mcp"], options].concat());
        command.stdin(Stdio::piped());
        let mut bp = piped(command);
        let to = bp.stdin.take().expect("a pipe");
        let from = BufReader::new(bp.stdout.take().expect("a pipe"));
        let mut host = Self {
            bp,
            to,
            from,
            next: 0,
        };
        let hello =
            json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {} });
        let welcome = host.request("initialize", hello);
        assert_eq!(welcome["result"]["protocolVersion"], "2025-06-18");
        host.write(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        host
    }

    fn write(&mut self, message: &Value) {
        writeln!(self.to, "{message}").expect("written");
    }

    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect(&line)
    }

    fn send(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        self.write(
            &json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params }),
        );
        self.next
    }

    fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        let answer = self.read();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    /// The structured result of a tool.
    fn call(&mut self, name: &str, arguments: Value) -> Value {
        let called = self.request(
            "tools/call",
            json!({ "name": name, "arguments": arguments }),
        );
        let result = &called["result"];
        assert_ne!(result["isError"], true, "{result}");
        let text = result["content"][0]["text"].as_str().expect("a text");
        assert_eq!(
            serde_json::from_str::<Value>(text).expect("JSON"),
            result["structuredContent"]
        );
        result["structuredContent"].clone()
    }

    fn kill(mut self) {
        self.bp.kill().expect("a process");
        self.bp.wait().expect("its end");
    }
}

/// A person, and the only agent, which speaks for hosts.
pub async fn home() -> Home {
    let home = Home::with_person().await;
    home.bp(&["agent", "new", "assistant"]).done();
    home
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_outlives_the_server_that_asked_it() {
    let home = home().await;
    if !has_approvals(&home) {
        return;
    }
    let mut host = Host::start(&home);
    let question =
        json!({ "question": "Which colour?", "choices": ["red", "blue"], "wait_seconds": 0 });
    let pending = host.call("ask_human", question);
    assert_eq!(pending["status"], "pending");
    let ticket = pending["ticket"].as_str().expect("a ticket").to_owned();
    host.kill();

    let mut host = Host::start(&home);
    let check = json!({ "ticket": ticket, "wait_seconds": 0 });
    assert_eq!(host.call("check", check.clone())["status"], "pending");
    // A question that waits keeps nothing else from being answered.
    let waiting = host.send(
        "tools/call",
        json!({ "name": "check", "arguments": { "ticket": ticket } }),
    );
    host.request("ping", json!({}));
    home.json(&["approvals", "answer", &ticket, "blue"]).item();
    let answered = host.read();
    assert_eq!(answered["id"], waiting);
    let result = &answered["result"]["structuredContent"];
    assert_eq!(
        (&result["status"], &result["answer"]),
        (&json!("answered"), &json!("blue"))
    );
    let receipt = home.file("receipt.json", &result["receipt"].to_string());
    home.json(&["receipt", "verify", &receipt]).item();
    assert_eq!(host.call("check", check)["answer"], "blue");

    let words = json!({ "question": "Where to?", "schema": { "type": "object" }, "wait_seconds": 0, "key": "trip" });
    let pending = host.call("ask_human", words.clone());
    assert_eq!(
        host.call("ask_human", words)["ticket"],
        pending["ticket"],
        "one question"
    );
    let ticket = pending["ticket"].as_str().expect("a ticket").to_owned();
    home.json(&["approvals", "answer", &ticket, r#"{"city":"Oslo"}"#])
        .item();
    let answered = host.call("check", json!({ "ticket": ticket }));
    assert_eq!(answered["answer"], json!({ "city": "Oslo" }));
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_wait_through_an_outage() {
    let home = home().await;
    if !has_approvals(&home) {
        return;
    }
    let way = Way::open().await;
    let mut host = Host::start_at(&home, &["--context", "dev", "--url", &way.url]);
    let call = json!({ "tool_name": "Write", "input": { "path": "a" }, "tool_use_id": "one" });
    let prompt = json!({ "name": "permission_prompt", "arguments": call });
    let waiting = host.send("tools/call", prompt);
    let asked = || home.json(&["approvals"]).items().pop();
    let asked = std::iter::from_fn(|| Some(asked())).flatten().next();
    way.cut().await;
    let ticket = &asked.expect("a question")["approval"]["approval_id"];
    let ticket = ticket.as_str().expect("an id").to_owned();
    home.json(&["approvals", "approve", &ticket]).item();
    // A check of an earlier question begins in the outage.
    let check = json!({ "ticket": ticket, "wait_seconds": 45 });
    let check = json!({ "name": "check", "arguments": check });
    let refused = host.request("tools/call", check);
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    way.mend();
    let answered = host.read();
    assert_eq!(answered["id"], waiting);
    let result = &answered["result"]["structuredContent"];
    assert_eq!(result["behavior"], "allow", "{answered}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_signed_yes_permits_a_call() {
    let home = home().await;
    if !has_approvals(&home) {
        return;
    }
    let mut host = Host::start(&home);
    let mut ask = |home: &Home, verdict: &str| {
        let call =
            json!({ "tool": "deploy", "arguments": { "to": "production" }, "wait_seconds": 0 });
        let ticket = host.call("request_approval", call)["ticket"]
            .as_str()
            .expect("a ticket")
            .to_owned();
        let shown = home.json(&["approvals", "show", &ticket]).item();
        assert_eq!(
            shown["question"]["arguments"],
            json!({ "to": "production" })
        );
        home.json(&["approvals", verdict, &ticket]).item();
        host.call("check", json!({ "ticket": ticket }))["approved"].clone()
    };
    assert_eq!(ask(&home, "approve"), true);
    assert_eq!(ask(&home, "deny"), false);
    let prompt =
        json!({ "tool_name": "Bash", "input": { "command": "ls" }, "tool_use_id": "use-1" });
    let waiting = host.send(
        "tools/call",
        json!({ "name": "permission_prompt", "arguments": prompt }),
    );
    let open = loop {
        if let Some(open) = home.json(&["approvals"]).items().pop() {
            break open;
        }
    };
    let ticket = open["approval"]["approval_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    home.json(&["approvals", "approve", &ticket]).item();
    let allowed = host.read();
    assert_eq!(allowed["id"], waiting);
    let allowed = &allowed["result"]["structuredContent"];
    assert_eq!(
        *allowed,
        json!({ "behavior": "allow", "updatedInput": { "command": "ls" } })
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_go_both_ways_and_what_does_not_fit_is_told() {
    let home = home().await;
    let mut host = Host::start(&home);
    host.call("notify", json!({ "text": "The build is green." }));
    home.json(&["send", "assistant", "Thanks!"]).item();
    let read = host.call("read_messages", json!({ "limit": 2 }));
    let texts: Vec<_> = read["messages"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|it| it["content"]["text"].clone())
        .collect();
    assert_eq!(texts, ["The build is green.", "Thanks!"]);
    assert_eq!(read["messages"][0]["encrypted"], true);
    let tools = host.request("tools/list", json!({}));
    let names: Vec<_> = tools["result"]["tools"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|it| it["name"].clone())
        .collect();
    assert_eq!(names.len(), 7, "{names:?}");
    for (name, arguments) in [
        ("no_such_tool", json!({})),
        ("ask_human", json!({})),
        ("check", json!({ "ticket": "none" })),
    ] {
        let refused = host.request(
            "tools/call",
            json!({ "name": name, "arguments": arguments }),
        );
        assert_eq!(refused["result"]["isError"], true, "{refused}");
    }
    assert_eq!(
        host.request("no/such/method", json!({}))["error"]["code"],
        -32601
    );
    writeln!(host.to, "garbage").expect("written");
    assert_eq!(host.read()["error"]["code"], -32700);
}

fn post(port: u16, origin: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let length = body.len();
    write!(
        stream,
        "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{origin}Connection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// A server over HTTP, and its port.
pub fn serve(home: &Home) -> (Child, u16) {
    let mut bp = piped(home.command(&["--json", "mcp", "--http", "0"]));
    let mut line = String::new();
    let told = bp.stderr.as_mut().expect("a pipe");
    BufReader::new(told).read_line(&mut line).expect("a line");
    let told: Value = serde_json::from_str(&line).expect(&line);
    let address = told["address"].as_str().expect("an address");
    let end = address
        .strip_prefix("http://127.0.0.1:")
        .expect("this machine");
    let port = end.strip_suffix("/mcp").expect("a path").parse();
    (bp, port.expect("a port"))
}

#[tokio::test(flavor = "multi_thread")]
async fn http_serves_this_machine_and_no_web_page() {
    let home = home().await;
    let (mut bp, port) = serve(&home);
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    assert!(post(port, "", ping).ends_with(r#"{"id":1,"jsonrpc":"2.0","result":{}}"#));
    let notified = post(
        port,
        "",
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    );
    assert!(notified.starts_with("HTTP/1.1 202 "), "{notified}");
    let page = post(port, "Origin: https://example.com\r\n", ping);
    assert!(page.starts_with("HTTP/1.1 403 "), "{page}");
    bp.kill().expect("a process");
    bp.wait().expect("its end");
}

/// The interpreter with the official client, which is installed once.
pub fn official_client() -> Option<&'static String> {
    static PYTHON: OnceLock<Option<String>> = OnceLock::new();
    let install = || python_with("mcp-python", &["mcp==2.3.0"]);
    PYTHON.get_or_init(install).as_ref()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_of_python_asks_and_is_answered() {
    let Some(python) = official_client() else {
        return;
    };
    let home = home().await;
    if !has_approvals(&home) {
        return;
    }
    let script = root().join("clients/rust/bp/tests/mcp_client.py");
    let bp = env!("CARGO_BIN_EXE_bp");
    is_answered(&home, client_of(&home, python, &script, bp));
}

/// A program with an official client, which starts `bp mcp` by itself, or calls it at an address.
pub fn client_of(home: &Home, interpreter: &str, script: &Path, server: &str) -> Child {
    let bp = home.command(&[]);
    let mut client = Command::new(interpreter);
    client
        .arg(script)
        .arg(server)
        .current_dir(home.folder.path())
        .envs(
            bp.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .stdin(Stdio::piped());
    piped(client)
}

fn next_line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("a line");
    line.trim().to_owned()
}

/// Answers what the program asks, and judges what it then reads from a server that did not ask.
fn is_answered(home: &Home, mut client: Child) {
    let mut from = BufReader::new(client.stdout.take().expect("a pipe"));
    let question = next_line(&mut from);
    let approval = next_line(&mut from);
    home.json(&["approvals", "answer", &question, "yes"]).item();
    home.json(&["approvals", "approve", &approval]).item();
    writeln!(client.stdin.as_mut().expect("a pipe"), "answered").expect("written");
    let mut rest = String::new();
    from.read_to_string(&mut rest).expect("an answer");
    let output = client.wait_with_output().expect("an end");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let (answer, decided) = rest.trim().split_once('\n').expect("two lines");
    assert_eq!(answer, "yes");
    let decided: Value = serde_json::from_str(decided).expect("JSON");
    assert_eq!(decided["approved"], true);
    let receipt = home.file("receipt.json", &decided["receipt"].to_string());
    home.json(&["receipt", "verify", &receipt]).item();
}

/// The script with the official client, whose packages are installed once per lock file.
fn official_client_of_typescript() -> Option<PathBuf> {
    let source = root().join("clients/rust/bp/tests/mcp_typescript");
    let folder = root().join(".dev/mcp-typescript");
    let lock = "package-lock.json";
    fs::create_dir_all(&folder).expect("a folder");
    let done = folder.join("installed");
    let wanted = fs::read(source.join(lock)).expect("a lock file");
    if fs::read(&done).ok().as_ref() != Some(&wanted) {
        for name in ["package.json", lock] {
            fs::copy(source.join(name), folder.join(name)).expect("copied");
        }
        let install = Command::new("npm")
            .args(["ci", "--no-fund", "--no-audit", "--loglevel=error"])
            .current_dir(&folder)
            .stdout(Stdio::null())
            .status();
        if !install.is_ok_and(|status| status.success()) {
            let text = "NOT TESTED: the official TypeScript client of MCP could not be installed\n";
            std::io::stderr().write_all(text.as_bytes()).ok();
            return None;
        }
        fs::write(done, wanted).expect("written");
    }
    let script = folder.join("client.mjs");
    fs::copy(source.join("client.mjs"), &script).expect("copied");
    Some(script)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_of_typescript_outlives_a_killed_server() {
    let Some(script) = official_client_of_typescript() else {
        return;
    };
    let home = home().await;
    if !has_approvals(&home) {
        return;
    }
    let bp = env!("CARGO_BIN_EXE_bp");
    is_answered(&home, client_of(&home, "node", &script, bp));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_script_pipes_in_is_answered_before_the_end() {
    let home = home().await;
    let call = |id: u8| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/list\"}}\n");
    let answers = run(home.command(&["mcp"]), &(call(1) + &call(2))).done();
    let answers = answers.lines().map(serde_json::from_str::<Value>);
    let mut ids: Vec<_> = answers.map(|it| it.expect("JSON")["id"].as_i64()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [Some(1), Some(2)]);
}
