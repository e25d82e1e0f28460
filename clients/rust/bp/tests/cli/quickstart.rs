//! The part of `docs/quickstart.md` about the command line.

use std::{
    env, fs,
    os::unix::{fs::symlink, process::CommandExt},
    path::Path,
    process::{Command, Stdio},
};

use crate::support::{Group, Home, cluster, folder, python_is_there, root, run};

/// The only block of code of a language below a heading.
fn block(title: &str, language: &str) -> String {
    let text = fs::read_to_string(root().join("docs/quickstart.md")).expect("a guide");
    let (_, rest) = text.split_once(&format!("\n## {title}\n")).expect(title);
    let (_, rest) = rest
        .split_once(&format!("```{language}\n"))
        .expect(language);
    rest.split_once("```").expect("its end").0.to_owned()
}

fn shell(home: &Home, commands: &str) -> Command {
    let mut bash = Command::new("bash");
    bash.args(["-ec", commands])
        .current_dir(home.folder.path())
        .env("XDG_CONFIG_HOME", home.folder.path().join("config"));
    bash
}

#[tokio::test(flavor = "multi_thread")]
async fn three_commands_lead_to_an_agent_that_answers() {
    cluster().await;
    if !python_is_there() {
        return;
    }
    let home = Home::new();
    let checkout = home.folder.path().join("blindpipe");
    fs::create_dir_all(checkout.join("target")).expect("a folder");
    symlink(folder(), checkout.join(".dev")).expect("a link");
    let built = Path::new(env!("CARGO_BIN_EXE_bp"))
        .parent()
        .expect("a folder");
    symlink(built, checkout.join("target/debug")).expect("a link");
    let mut agent = shell(&home, &block("The command line", "sh"));
    agent.process_group(0).stdout(Stdio::null());
    let _agent = Group(agent.spawn().expect("bash"));
    for _ in 0..600 {
        if home.folder.path().join("hello/.env").exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    // A reader types it once the agent runs; the answer comes when it does.
    let chat = block("The command line", "bash").replace("bp chat", "bp chat --wait 120");
    let said = run(shell(&home, &chat), "Hello\n").done();
    assert!(said.contains("hello: You said: Hello"), "{said}");
}
