//! Each command: its work, and the items that it prints.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, Command},
};

use serde_json::{Value, json};

use crate::{
    app,
    ask::start,
    schema::{self, command_of},
    support::{Home, cluster, folder, piped},
    webhooks::Receiver,
};

/// The commands without commands below them, by their man pages.
pub fn leaves(home: &Home) -> BTreeSet<String> {
    let pages = home.path("pages");
    home.bp(&["man", &pages]).done();
    let name = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().expect("a name");
        let name = name.strip_suffix(".1").expect("a page");
        Some(name.strip_prefix("bp-")?.replace('-', " "))
    };
    let read = fs::read_dir(pages).expect("a folder");
    let all: BTreeSet<String> = read.filter_map(|it| name(it.expect("an entry"))).collect();
    let is_leaf = |name: &&String| {
        let below = format!("{name} ");
        !all.iter().any(|it| it.starts_with(&below))
    };
    all.iter().filter(is_leaf).cloned().collect()
}

#[test]
fn each_command_has_its_schema() {
    let known: BTreeSet<String> = schema::commands().cloned().collect();
    assert_eq!(leaves(&Home::new()), known);
}

/// Ctrl-C is an orderly end.
fn interrupt(mut bp: Child) {
    let id = bp.id().to_string();
    let stop = Command::new("kill").args(["-INT", &id]).status();
    assert!(stop.expect("kill").success());
    assert_eq!(bp.wait().expect("an end").code(), Some(0));
}

/// A day of a person, and the commands that have done their work in it.
struct Day {
    home: Home,
    done: BTreeSet<&'static str>,
}

impl Day {
    fn note(&mut self, arguments: &[&str]) -> &'static str {
        let arguments: Vec<_> = arguments.iter().map(|&it| it.to_owned()).collect();
        let command = command_of(&arguments);
        self.done.insert(command);
        command
    }

    /// The items of a command that ends well.
    fn does(&mut self, arguments: &[&str]) -> Vec<Value> {
        self.note(arguments);
        self.home.json(arguments).items()
    }

    fn gives(&mut self, arguments: &[&str]) -> Value {
        let mut items = self.does(arguments);
        items.pop().expect("an item")
    }

    /// The first item of a command that goes on.
    fn begins(&mut self, arguments: &[&str]) -> (Child, Value) {
        let command = self.note(arguments);
        let mut bp = piped(self.home.command(&[&["--json"], arguments].concat()));
        let mut line = String::new();
        let from = bp.stdout.as_mut().expect("a pipe");
        BufReader::new(from).read_line(&mut line).expect("a line");
        schema::hold_item(command, &line);
        let item = serde_json::from_str(&line).expect(&line);
        (bp, item)
    }

    /// The exit code and the receipt of a question that is decided meanwhile.
    fn asks(&mut self, question: &[&str], decide: &[&str]) -> (i32, String) {
        self.note(&["ask"]);
        let (mut asking, ticket) = start(&self.home, question);
        let shown = self.gives(&["approvals", "show", &ticket]);
        assert_eq!(shown["question"]["text"], question[0]);
        self.does(&["approvals", "ls"]);
        let [verb, rest @ ..] = decide else {
            panic!("a verb")
        };
        self.does(&[&["approvals", verb, &ticket], rest].concat());
        let mut receipt = String::new();
        let mut from = asking.stdout.take().expect("a pipe");
        from.read_to_string(&mut receipt).expect("a receipt");
        schema::hold_item("ask", &receipt);
        let ended = asking.wait().expect("an end");
        (ended.code().expect("no signal"), receipt)
    }

    fn accounts(&mut self) {
        let dev = folder().display().to_string();
        let me = self.gives(&["register", "--dev", &dev, "--name", "Ada"]);
        let other = "https://other.example.com";
        assert!(
            self.does(&["context", "add", "other", "--url", other])
                .is_empty()
        );
        assert_eq!(self.does(&["context", "ls"]).len(), 2);
        self.does(&["context", "use", "dev"]);
        assert_eq!(self.gives(&["context", "show"])["name"], "dev");
        self.does(&["context", "rm", "other"]);
        assert_eq!(self.gives(&["whoami"]), me);
        self.does(&["api", "GET", "/users/me"]);
        assert!(self.gives(&["limits"])["storage"].is_object());
        assert!(self.does(&["doctor"]).len() > 5);
        self.done.insert("completions");
        assert!(!self.home.bp(&["completions", "zsh"]).done().is_empty());
        self.does(&["man", &self.home.path("man")]);
    }

    async fn app(&mut self) {
        let (url, _serving) = app::serve(app::Trick::None).await;
        let list = self.home.file("SHA256SUMS", &app::sums());
        self.does(&["app", "verify", &url, "--sums", &list]);
    }

    fn agents(&mut self) {
        let manifest = json!({ "name": "helper", "permission_scopes": [], "tools": [] });
        let file = self.home.file("manifest.json", &manifest.to_string());
        self.does(&["agent", "new", "helper"]);
        assert_eq!(self.does(&["agent", "ls"]).len(), 1);
        self.does(&["agent", "show", "helper"]);
        self.does(&["agent", "keys", "helper"]);
        self.does(&["agent", "manifest", "helper"]);
        self.does(&["agent", "manifest", "helper", &file]);
        self.does(&["agent", "rotate", "helper"]);
        self.does(&["agent", "env", "helper", &self.home.path("agent.env")]);
        self.does(&["init", "rust", "made", "--agent", "helper"]);
        self.does(&["search", "helper"]);
    }

    fn conversations(&mut self) {
        self.does(&["send", "helper", "hello"]);
        self.does(&["stop", "helper"]);
        self.does(&["inbox"]);
        let (mut tail, last) = self.begins(&["tail", "helper", "-n", "1"]);
        assert_eq!(last["content"]["text"], "hello");
        tail.kill().expect("a process");
        tail.wait().expect("its end");
        self.does(&["chat", "helper"]);
        self.note(&["bridge", "a2a"]);
        let mut bridge = piped(self.home.command(&["bridge", "a2a", "--serve", "helper"]));
        let mut line = String::new();
        let told = bridge.stderr.as_mut().expect("a pipe");
        BufReader::new(told).read_line(&mut line).expect("a line");
        assert!(line.starts_with("http://127.0.0.1:"), "{line}");
        interrupt(bridge);
        let file = self.home.file("notes.txt", "a note");
        let sent = self.gives(&["file", "put", "helper", &file]);
        let message = sent["message_id"].as_str().expect("an id");
        let copy = self.home.path("copy.txt");
        self.does(&["file", "get", "helper", message, "-o", &copy]);
        assert_eq!(fs::read_to_string(copy).expect("a file"), "a note");
    }

    fn keys(&mut self) {
        let password = self.home.file("protection", "correct horse battery staple");
        let file = ["--protection-password-file", password.as_str()];
        self.does(&["keys", "show"]);
        self.does(&["keys", "verify", "helper", "--yes"]);
        self.does(&[&["keys", "backup"], &file[..]].concat());
        self.does(&[&["keys", "restore"], &file[..]].concat());
        self.does(&["keys", "rotate", "helper"]);
    }

    async fn webhooks(&mut self) {
        let mut receiver = Receiver::start().await;
        let url = receiver.url.clone();
        self.does(&["webhook", "set", "helper", &url]);
        self.does(&["webhook", "show", "helper"]);
        self.does(&["webhook", "verify", "helper"]);
        self.does(&["webhook", "test", "helper"]);
        self.does(&["send", "helper", "by webhook"]);
        let (_, _, call) = receiver.next("message.created").await;
        let delivery = call["delivery_id"].as_str().expect("an id").to_owned();
        self.does(&["webhook", "ls", "helper"]);
        self.does(&["webhook", "replay", "helper", &delivery]);
        self.does(&["webhook", "rm", "helper"]);
        let (bp, first) = self.begins(&["webhook", "listen", "--forward-to", &url]);
        assert!(first["secret"].is_string(), "{first}");
        interrupt(bp);
    }

    fn questions(&mut self) {
        let (code, receipt) = self.asks(&["Deploy?"], &["approve"]);
        assert_eq!(code, 0);
        let file = self.home.file("receipt.json", &receipt);
        let proof = self.gives(&["receipt", "verify", &file]);
        assert_eq!(proof["state"], "approved");
        let user = proof["decisions"][0][0]
            .as_str()
            .expect("a user")
            .to_owned();
        self.does(&["receipt", "keys", &user]);
        assert_eq!(self.asks(&["Delete?"], &["deny"]).0, 1);
        let choices = ["Where?", "--choices", "here,there"];
        assert_eq!(self.asks(&choices, &["answer", "here"]).0, 10);
        assert_eq!(self.asks(&choices, &["answer", "there"]).0, 11);
        // Nothing waits any more.
        assert!(self.does(&["approvals", "decide"]).is_empty());
        self.does(&["mcp"]);
    }

    fn ends(&mut self) {
        self.does(&["agent", "delete", "helper", "--yes"]);
        let made_up = self.home.config().join("contexts/dev/person.env");
        let made_up = fs::read_to_string(made_up).expect("a file");
        let value = |name: &str| {
            let mut lines = made_up.lines();
            let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            found.expect(name).trim_matches('\'').to_owned()
        };
        assert!(self.does(&["logout"]).is_empty());
        let password = self.home.file("password", &value("PERSON_PASSWORD"));
        let protection = value("PERSON_PROTECTION_PASSWORD");
        let protection = self.home.file("protection", &protection);
        let secrets = ["--password-file", &password];
        let keys = ["--protection-password-file", &protection];
        let email = value("PERSON_EMAIL");
        self.does(&[&["login", "--email", &email][..], &secrets, &keys].concat());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_does_its_work_and_prints_what_its_schema_says() {
    cluster().await;
    let mut day = Day {
        home: Home::new(),
        done: BTreeSet::new(),
    };
    day.accounts();
    day.app().await;
    day.agents();
    day.conversations();
    day.keys();
    day.webhooks().await;
    day.questions();
    day.ends();
    let all = leaves(&day.home);
    let left: Vec<_> = all
        .iter()
        .filter(|it| !day.done.contains(it.as_str()))
        .collect();
    assert!(left.is_empty(), "not tried: {left:?}");
}
