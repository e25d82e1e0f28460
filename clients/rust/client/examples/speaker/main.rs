//! A person and an agent, for tests beside the clients of other languages.
//!
//! It reads the person's commands as lines of JSON, `{id, do, …}`, and prints a line `{id, answer}` or
//! `{id, error}` for each. The agent prints a line `{conversation, …}` for all that it hears.

mod agent;
mod person;

use std::{
    env,
    io::{self, BufRead, Write},
    str::FromStr,
    thread,
    time::Duration,
};

use blindpipe_client::{
    Content, Error, FileDetails, NewFile, Result, Thumbnail, e2ee::from_base64,
};
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet};

use self::person::Person;

const SCOPE: &str = "notification:send";
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

fn print(line: &Value) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").map_err(Error::other)
}

fn variable(name: &str) -> Result<String> {
    env::var(name).map_err(Error::other)
}

fn object(value: Value) -> Content {
    match value {
        Value::Object(object) => object,
        _ => Content::new(),
    }
}

fn word<'a>(given: &'a Value, name: &str) -> &'a str {
    given[name].as_str().unwrap_or_default()
}

fn bytes(given: &Value, name: &str) -> Result<Vec<u8>> {
    Ok(from_base64(word(given, name))?)
}

fn parsed<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(text: &str) -> Result<T> {
    text.parse().map_err(Error::other)
}

fn new_file(given: &Value) -> Result<(NewFile, FileDetails)> {
    let picture = &given["thumbnail"];
    let pixels = |name: &str| picture[name].as_u64().and_then(|it| u32::try_from(it).ok());
    let file = NewFile {
        name: word(given, "name").to_owned(),
        content_type: word(given, "content_type").to_owned(),
        bytes: bytes(given, "data")?,
    };
    let details = FileDetails {
        caption: Some(word(given, "caption").to_owned()),
        thumbnail: Some(Thumbnail {
            content_type: word(picture, "content_type").to_owned(),
            bytes: bytes(picture, "data")?,
            width: pixels("width").unwrap_or_default(),
            height: pixels("height").unwrap_or_default(),
        }),
        ..FileDetails::default()
    };
    Ok((file, details))
}

/// Obeys until the input ends.
async fn listen(person: Person) -> Result<()> {
    let (sender, mut lines) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(io::Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let mut running = JoinSet::new();
    while let Some(line) = lines.recv().await {
        let command: Value = serde_json::from_str(&line).map_err(Error::other)?;
        let person = person.clone();
        running.spawn(async move {
            let answer = match Box::pin(person.obey(&command)).await {
                Ok(answer) => json!({"id": command["id"], "answer": answer}),
                Err(error) => json!({"id": command["id"], "error": error.to_string()}),
            };
            print(&answer)
        });
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let agent = agent::agent()?;
    let person = Person::sign_in().await?;
    tokio::select! {
        ended = agent.run() => ended,
        ended = person.clone().watch() => ended,
        ended = listen(person) => ended,
    }
}
