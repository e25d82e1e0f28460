//! Accounts: at a terminal, from files, and on a second device.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
};

use serde_json::json;

use crate::support::{Home, cluster, folder, piped, run};

const PASSWORD: &str = "tulip-harbour-491";
const PROTECTION: &str = "nine small boats at noon";

/// The context of the cluster, without its stand-in for the human check.
async fn context(home: &Home) {
    let cluster = cluster().await;
    let (url, authority) = (
        cluster.node(0).expect("a node"),
        cluster.ca_file().expect("a file"),
    );
    let (url, authority) = (url.url().to_owned(), authority.display().to_string());
    let add = [
        "context",
        "add",
        "here",
        "--site-key",
        "1x00",
        "--url",
        &url,
        "--ca-file",
        &authority,
    ];
    home.bp(&add).done();
}

fn address() -> String {
    format!("bp-{:032x}@example.com", rand::random::<u128>())
}

/// Registers at a terminal, and gives all that the terminal showed.
async fn register(home: &Home, email: &str) -> String {
    let human = home.file("human", "dev-pass");
    let mut terminal = home.terminal(&["register", "--turnstile-token-file", &human]);
    let mut shown = String::new();
    let mut answer = |question: &str, words: &str| {
        shown += &terminal.exp_string(question).expect(question);
        terminal.send_line(words).expect("a terminal");
    };
    answer("Address: ", email);
    let code = cluster().await.code(email).await.expect("a mail");
    answer("Code: ", &code);
    answer("Password of the account: ", PASSWORD);
    answer("Once more: ", "another");
    answer("Password of the account: ", PASSWORD);
    answer("Once more: ", PASSWORD);
    answer("Name that others see: ", "Ada");
    answer("Protection password: ", PROTECTION);
    answer("Once more: ", PROTECTION);
    shown + &terminal.exp_eof().expect("an end")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_is_made_at_a_terminal_that_shows_no_secret() {
    let home = Home::new();
    context(&home).await;
    let email = address();
    let shown = register(&home, &email).await;
    assert!(shown.contains(&email), "{shown}");
    assert!(
        !shown.contains(PASSWORD) && !shown.contains(PROTECTION),
        "{shown}"
    );
    let me = home.json(&["whoami"]).item();
    assert_eq!(
        (&me["email"], &me["display_name"]),
        (&json!(email), &json!("Ada"))
    );
    assert_eq!(me["key_id"].as_str().map(str::len), Some(32));

    // On another machine: the password from a file, the keys restored with keys of its own.
    let other = Home::new();
    context(&other).await;
    let (password, human) = (
        other.file("password", PASSWORD),
        other.file("human", "dev-pass"),
    );
    let protection = other.file("protection", &format!("{PROTECTION}\n"));
    let wrong = other.file("wrong", "no such password");
    let login = ["login", "--email", &email, "--turnstile-token-file", &human];
    let refused = other
        .json(&[&login[..], &["--password-file", &wrong]].concat())
        .refused(4);
    assert_eq!(refused["code"], "INVALID_CREDENTIALS");
    assert!(refused["request_id"].is_string(), "{refused}");
    let given = ["--password-file", &password, "--protection-password-file"];
    other
        .json(&[&login[..], &given, &[&wrong]].concat())
        .refused(1);
    let there = other
        .json(&[&login[..], &given, &[&protection]].concat())
        .item();
    assert_eq!(there["user_id"], me["user_id"]);
    assert_ne!(there["key_id"], me["key_id"]);

    other.bp(&["logout"]).done();
    other.json(&["whoami"]).refused(3);
    home.json(&["whoami"]).item();
}

/// A browser's call, and the whole answer.
fn http(address: &str, method: &str, body: &str) -> String {
    let rest = address
        .strip_prefix("http://localhost:")
        .expect("this machine");
    let (port, path) = rest.split_once('/').expect("a path");
    let port: u16 = port.parse().expect("a port");
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let length = body.len();
    let head =
        format!("{method} /{path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n");
    let kind = "Content-Type: application/json\r\n";
    write!(stream, "{head}{kind}Content-Length: {length}\r\n\r\n{body}").expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_this_machine_hands_over_the_token_of_a_human_check() {
    let home = Home::new();
    context(&home).await;
    let password = home.file("password", PASSWORD);
    let login = [
        "login",
        "--email",
        "nobody@example.com",
        "--password-file",
        &password,
    ];
    let mut bp = piped(home.command(&login));
    let mut told = BufReader::new(bp.stderr.take().expect("a pipe"));
    let mut line = String::new();
    told.read_line(&mut line).expect("a line");
    let page = line
        .trim()
        .rsplit(' ')
        .next()
        .expect("an address")
        .to_owned();
    let shown = http(&page, "GET", "");
    assert!(
        shown.contains("content-security-policy: default-src 'none'"),
        "{shown}"
    );
    assert!(shown.contains(r#"data-sitekey="1x00""#), "{shown}");
    // Another page of the browser does not know the address.
    let (place, _) = page.rsplit_once('/').expect("a path");
    let stranger = http(&format!("{place}/0/token"), "POST", r#"{"token":"x"}"#);
    assert!(stranger.starts_with("HTTP/1.1 404 "), "{stranger}");
    let solved = http(&format!("{page}/token"), "POST", r#"{"token":"dev-pass"}"#);
    assert!(solved.starts_with("HTTP/1.1 204 "), "{solved}");
    let ended = bp.wait().expect("an end");
    // The check was passed, and the account is none.
    assert_eq!(ended.code(), Some(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn any_route_can_be_called_and_a_sound_device_is_told_so() {
    let home = Home::with_person().await;
    let me = home.bp(&["api", "get", "/users/me"]).done();
    assert!(me.contains("\"display_name\": \"Ada\""), "{me}");
    let name = home.file("name.json", r#"{"display_name":"Ada L."}"#);
    let from_file = format!("@{name}");
    home.bp(&["api", "PATCH", "/users/me", "--data", &from_file])
        .done();
    let piped = home.command(&["--json", "api", "PATCH", "/users/me", "-d", "-"]);
    let changed = run(piped, r#"{"display_name":"Countess"}"#).item();
    assert_eq!(changed["data"]["display_name"], "Countess");
    home.json(&["api", "GET", "users/me"]).refused(2);
    home.json(&["api", "POST", "/agents", "-d", "no JSON"])
        .refused(2);
    assert_eq!(
        home.json(&["api", "GET", "/no/such/route"]).refused(4)["code"],
        "NOT_FOUND"
    );
    let limits = home.json(&["limits"]).items();
    assert!(
        limits.iter().any(|it| it["scope"] == "user_message_send"),
        "{limits:?}"
    );
    let findings = home.json(&["doctor"]).items();
    let parts: Vec<_> = findings
        .iter()
        .map(|it| it["part"].as_str().expect("a part"))
        .collect();
    assert_eq!(parts, ["proxy", "tls", "clock", "session", "socket", "key"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_share_a_session_do_not_end_it() {
    let home = Home::with_person().await;
    let running: Vec<_> = (0..6).map(|_| piped(home.command(&["whoami"]))).collect();
    for process in running {
        let output = process.wait_with_output().expect("an end");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    home.bp(&["whoami"]).done();
}

#[tokio::test(flavor = "multi_thread")]
async fn colours_are_for_terminals_that_want_them() {
    let home = Home::with_person().await;
    let coloured = |home: &Home, wanted: bool| {
        let mut command = home.command(&["whoami"]);
        command.stdin(std::process::Stdio::inherit());
        if !wanted {
            command.env("NO_COLOR", "1");
        }
        let mut terminal =
            rexpect::session::spawn_command(command, Some(60_000)).expect("a terminal");
        terminal.exp_eof().expect("an end").contains('\x1b')
    };
    assert!(coloured(&home, true));
    assert!(!coloured(&home, false));
    assert!(!home.bp(&["whoami"]).done().contains('\x1b'));
}

/// One of both outputs may be a file, which has no colours.
#[test]
fn what_goes_to_a_file_has_no_colours_beside_a_terminal() {
    let home = Home::new();
    let shown = |script: &str| {
        let mut shell = std::process::Command::new("sh");
        shell
            .args(["-c", script, env!("CARGO_BIN_EXE_bp")])
            .current_dir(home.folder.path())
            .env("XDG_CONFIG_HOME", home.folder.path().join("config"))
            .env("TERM", "xterm");
        let mut terminal =
            rexpect::session::spawn_command(shell, Some(60_000)).expect("a terminal");
        terminal.exp_eof().expect("an end")
    };
    let told = "there is no context";
    let at_terminal = shown("\"$0\" whoami");
    assert!(at_terminal.contains('\x1b') && at_terminal.contains(told));
    let in_file = shown("\"$0\" whoami 2> told; cat told");
    assert!(
        !in_file.contains('\x1b') && in_file.contains(told),
        "{in_file}"
    );
    let beside_file = shown("\"$0\" whoami > printed");
    assert!(beside_file.contains('\x1b'), "{beside_file}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_with_secrets_keeps_its_address_until_another_person_begins() {
    let home = Home::with_person().await;
    home.bp(&["agent", "new", "helper"]).done();
    let elsewhere = ["context", "add", "dev", "--url", "https://example.com"];
    home.json(&elsewhere).refused(2);
    home.bp(&["logout"]).done();
    // The agent's token goes nowhere else either.
    home.json(&elsewhere).refused(2);

    // Another person, whose agent has the same name.
    let dev = folder().display().to_string();
    home.bp(&["register", "--dev", &dev, "--name", "Bea"])
        .done();
    let helper = home.json(&["agent", "new", "helper"]).item();
    let shown = home.json(&["agent", "show", "helper"]).item();
    assert_eq!(shown["agent_id"], helper["BLINDPIPE_AGENT_ID"]);
    home.json(&["send", "helper", "hello"]).item();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_secret_is_in_files_of_the_owner() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::with_person().await;
    let mut folders = vec![home.config()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let mode = path.metadata().expect("a file").permissions().mode() & 0o077;
            assert_eq!(mode, 0, "{}", path.display());
            files += usize::from(path.is_file());
            folders.extend(path.is_dir().then_some(path));
        }
    }
    assert!(files >= 3, "{files} found");
    assert!(folder().join("cluster.json").exists());
}
