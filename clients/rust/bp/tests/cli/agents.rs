//! Agents: made, listed, shown, changed, deleted; and projects that run at once.

use std::{
    fs,
    io::Write,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::support::{Group, Home, cluster, python_is_there, root};

/// Runs the project `echo` as its README says.
fn running_project(home: &Home) -> Group {
    let mut run = Command::new("./echo/run");
    run.current_dir(home.folder.path())
        .stdout(Stdio::null())
        .process_group(0);
    Group(run.spawn().expect("a project"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_made_shown_changed_and_deleted() {
    let home = Home::with_person().await;
    let manifest = json!({ "name": "helper", "permission_scopes": [], "tools": [] });
    let file = home.file("manifest.json", &manifest.to_string());
    let new = home
        .json(&["agent", "new", "helper", "--manifest", &file])
        .item();
    let id = new["BLINDPIPE_AGENT_ID"]
        .as_str()
        .expect("an id")
        .to_owned();
    assert!(
        new["BLINDPIPE_KEY"]
            .as_str()
            .expect("a key")
            .starts_with("bpk_")
    );
    let shown = home.json(&["agent", "show", "helper"]).item();
    assert_eq!(shown["agent_id"], id);
    // People can encrypt for it before it has ever run.
    let keys = home.json(&["agent", "keys", "helper"]).items();
    assert_eq!((keys.len(), &keys[0]["key_id"]), (1, &shown["key_id"]));
    assert_eq!(home.json(&["agent", "ls"]).items().len(), 1);

    let env = home.path("agent.env");
    home.bp(&["agent", "env", "helper", &env]).done();
    let text = fs::read_to_string(&env).expect("a file");
    let token = new["BLINDPIPE_TOKEN"].as_str().expect("a token");
    assert!(
        text.contains(&format!("BLINDPIPE_TOKEN='{token}'\n")),
        "{text}"
    );
    let mode = fs::metadata(&env).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    home.json(&["agent", "env", "helper", &env]).refused(1);
    home.bp(&["agent", "env", "helper", &env, "--force"]).done();

    let rotated = home.json(&["agent", "rotate", "helper"]).item();
    assert_ne!(rotated["BLINDPIPE_TOKEN"], new["BLINDPIPE_TOKEN"]);
    assert_eq!(rotated["BLINDPIPE_KEY"], new["BLINDPIPE_KEY"]);
    let refused = home.json(&["agent", "new", ""]).refused(4);
    assert!(
        refused["message"]
            .as_str()
            .expect("words")
            .contains("display_name"),
        "{refused}"
    );
    let mut changed = manifest;
    changed["description"] = "helps".into();
    let file = home.file("manifest.json", &changed.to_string());
    home.bp(&["agent", "manifest", "helper", &file]).done();
    let shown = home.json(&["agent", "manifest", "helper"]).item();
    assert_eq!(shown["manifest"]["description"], "helps");

    home.json(&["agent", "delete", "helper"]).refused(2);
    home.bp(&["agent", "delete", &id, "--yes"]).done();
    home.json(&["agent", "show", "helper"]).refused(2);
    home.json(&["agent", "env", &id]).refused(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_in_python_answers_at_once() {
    if !python_is_there() {
        return;
    }
    let home = Home::with_person().await;
    let made = home.json(&["init", "python", "echo"]).item();
    assert_eq!(made["folder"], "echo");
    home.json(&["init", "python", "echo"]).refused(1);
    home.json(&["init", "python", "../echo"]).refused(2);
    let mode = |name: &str| {
        let metadata = fs::metadata(home.path(&format!("echo/{name}"))).expect(name);
        metadata.permissions().mode() & 0o777
    };
    assert_eq!((mode(".env"), mode("run") & 0o100), (0o600, 0o100));
    let _agent = running_project(&home);
    let answer = home
        .json(&["send", "echo", "Hello", "--wait", "120"])
        .item();
    assert_eq!(answer["content"]["text"], "You said: Hello");
    assert_eq!(
        (&answer["encrypted"], &answer["authentic"]),
        (&json!(true), &json!(true))
    );
}

/// The SDK as a fresh checkout has it, which is not built yet.
fn fresh_sdk(home: &Home) -> String {
    let sdk = home.path("a fresh sdk");
    let script = "mkdir \"$1\"; tar -c --exclude node_modules --exclude dist --exclude build -C \"$0\" . \
        | tar -x -C \"$1\"";
    let source = root().join("clients/typescript");
    let copied = Command::new("sh")
        .args(["-ec", script])
        .args([source.as_os_str(), sdk.as_ref()])
        .status();
    assert!(copied.expect("sh").success());
    sdk
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_in_typescript_answers_at_once() {
    let npm = Command::new("npm").arg("--version").output();
    if !npm.is_ok_and(|it| it.status.success()) {
        writeln!(std::io::stderr(), "NOT TESTED: there is no npm").ok();
        return;
    }
    let home = Home::with_person().await;
    let sdk = fresh_sdk(&home);
    home.json(&["init", "typescript", "echo", "--sdk", &sdk])
        .item();
    let _agent = running_project(&home);
    let answer = home
        .json(&["send", "echo", "Hello", "--wait", "240"])
        .item();
    assert_eq!(answer["content"]["text"], "You said: Hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn projects_of_other_languages_have_what_they_need() {
    let home = Home::with_person().await;
    home.bp(&["agent", "new", "shared"]).done();
    for (language, file, needed) in [
        ("typescript", "package.json", "clients/typescript"),
        ("rust", "Cargo.toml", "clients/rust/client"),
    ] {
        home.bp(&["init", language, language, "--agent", "shared"])
            .done();
        let text = fs::read_to_string(home.path(&format!("{language}/{file}"))).expect("a file");
        assert!(text.contains(needed), "{text}");
        let checked = Command::new("sh")
            .args(["-n", &home.path(&format!("{language}/run"))])
            .status();
        assert!(checked.expect("sh").success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_tells_what_an_agent_has_not_acknowledged() {
    cluster().await;
    let home = Home::with_person().await;
    home.bp(&["agent", "new", "sleeper"]).done();
    let lag = |home: &Home| {
        home.json(&["inbox", "sleeper"]).item()["lag"]
            .as_i64()
            .expect("a number")
    };
    let before = lag(&home);
    home.json(&["send", "sleeper", "wake up"]).item();
    assert!(lag(&home) > before);
    // Waiting events are listed, and wait on.
    let listed = home.json(&["inbox", "sleeper", "--events"]).items();
    let [of_agent, events @ ..] = &listed[..] else {
        panic!("the agent, then its events")
    };
    assert_eq!(of_agent["lag"].as_u64(), Some(events.len() as u64));
    let last = events.last().expect("an event");
    assert_eq!(last["event"], "message.created");
    assert_eq!(last["seq"], of_agent["head_seq"]);
    assert_eq!(lag(&home), of_agent["lag"].as_i64().expect("a number"));
    home.json(&["inbox", "--events"]).refused(2);
    let unanswered = home
        .json(&["send", "sleeper", "again", "--wait", "1"])
        .refused(1);
    assert_eq!(unanswered["message"], "no answer came");
    let history = home.json(&["api", "GET", "/conversations"]).item();
    assert_eq!(history["data"].as_array().map(Vec::len), Some(1));
    assert_ne!(history["data"][0]["conversation_id"], Value::Null);
}
