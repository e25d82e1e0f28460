//! Every command of the part in Rust of `docs/quickstart.md`.

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::{
        fs::{PermissionsExt, symlink},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::support::{built, cluster, folder, root};

/// The text below a heading, by its title.
fn sections<'a>(text: &'a str, level: &str) -> BTreeMap<&'a str, &'a str> {
    let heading = format!("\n{level} ");
    let parts = text.split(heading.as_str()).skip(1);
    parts.filter_map(|part| part.split_once('\n')).collect()
}

/// The only block of code of a language.
fn block<'a>(text: &'a str, language: &str) -> &'a str {
    let (_, rest) = text
        .split_once(&format!("```{language}\n"))
        .expect(language);
    rest.split_once("```").expect("its end").0
}

/// The programs of this build in the place of `cargo`, which would build them for minutes.
const CARGO: &str = r#"#!/bin/bash
set -e
case "$*" in
    "build --workspace --examples") exit 0;;
    "run --quiet --example "*) name=$4; shift 4; [ "$1" != -- ] || shift; exec "$BUILT/examples/$name" "$@";;
esac
echo "the test knows no such command: cargo $*" >&2
exit 1
"#;

struct Shell {
    folder: PathBuf,
    path: String,
}

impl Shell {
    fn command(&self, commands: &str) -> Command {
        let mut bash = Command::new("bash");
        bash.args(["-ec", commands]).current_dir(&self.folder);
        let built = built("").display().to_string();
        bash.env("PATH", &self.path).env("BUILT", built);
        bash.env("XDG_CONFIG_HOME", self.folder.join("config"));
        bash
    }

    fn run(&self, commands: &str) -> String {
        let output = self.command(commands).output().expect("bash");
        let shown = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{commands}\n{shown}");
        String::from_utf8(output.stdout).expect("text")
    }
}

/// A group of processes that ends with its test.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        Command::new("kill")
            .args(["-TERM", "--", &group])
            .status()
            .ok();
        self.0.wait().ok();
    }
}

fn prepare(folder: &Path) -> Shell {
    fs::remove_dir_all(folder).ok();
    let (programs, checkout) = (folder.join("programs"), folder.join("blindpipe"));
    for folder in [&programs, &checkout] {
        fs::create_dir_all(folder).expect("a folder");
    }
    let cargo = programs.join("cargo");
    fs::write(&cargo, CARGO).expect("written");
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("a mode");
    // The cluster of the tests in the place of the one of `make run`.
    symlink(crate::support::folder(), checkout.join(".dev")).expect("a link");
    fs::create_dir_all(checkout.join("target")).expect("a folder");
    symlink(built(""), checkout.join("target/debug")).expect("a link");
    let path = env::var("PATH").unwrap_or_default();
    Shell {
        folder: checkout,
        path: format!("{}:{path}", programs.display()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_quickstart_works() {
    let _cluster = cluster().await;
    let text = fs::read_to_string(root().join("docs/quickstart.md")).expect("a guide");
    let shown = [
        ("echo.rs", "Write the agent"),
        ("deploy.rs", "Let it ask first, and stop it"),
    ];
    for (name, step) in shown {
        let example = root().join("examples/rust").join(name);
        let example = fs::read_to_string(example).expect("an example");
        let shown = block(steps_of(&text)[step], "rust");
        assert!(example.ends_with(shown), "the guide shows {name}");
    }
    let place = folder().join("quickstart");
    let shell = prepare(&place);
    // The one of an earlier run stays beside the cluster.
    fs::remove_file(folder().join("agent.env")).ok();
    let done = tokio::task::spawn_blocking(move || {
        shell.run(block(steps_of(&text)["Build"], "sh"));
        shell.run(block(
            steps_of(&text)["Register a person and an agent"],
            "sh",
        ));
        let mut run = shell.command(block(steps_of(&text)["Run it"], "sh"));
        let agent = run.process_group(0).stdout(Stdio::null()).spawn();
        let agent = Group(agent.expect("bash"));
        let ask = block(steps_of(&text)["Ask it"], "sh");
        assert_eq!(shell.run(ask), block(steps_of(&text)["Ask it"], "text"));
        drop(agent);
        let step = steps_of(&text)["Let it ask first, and stop it"];
        let mut run = shell.command(block(step, "bash"));
        let agent = run.process_group(0).stdout(Stdio::null()).spawn();
        let _agent = Group(agent.expect("bash"));
        let shown = shell.run(block(step, "sh"));
        assert_eq!(shown.lines().last(), Some(block(step, "text").trim_end()));
        let (export, _) = block(step, "sh").split_once('\n').expect("lines");
        let tail = "timeout 2 bp tail rust-agent -n 9 || true";
        for said in ["Deploy 1.4.2: approved.", "I have stopped."] {
            shell.run(&format!(
                "{export}\nfor i in $(seq 30); do ({tail}) > said; grep -q '{said}' said && exit; \
                 done; cat said >&2; false"
            ));
        }
    });
    done.await.expect("every command works");
    fs::remove_dir_all(place).ok();
}

fn steps_of(text: &str) -> BTreeMap<&str, &str> {
    sections(sections(text, "##")["Rust"], "###")
}
