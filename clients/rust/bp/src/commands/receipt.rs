//! `bp receipt`: proofs of what people decided, checked without the service.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, stdin},
    path::PathBuf,
};

use blindpipe_client::{
    Receipt,
    e2ee::PublicKeys,
    protocol::{
        ids::UserId,
        keys::{DeviceKeys, KeyDirectory},
        text::Blob,
    },
};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::account::hex;
use crate::{
    context::Context,
    failure::{Failure, Result},
    output::Output,
};

#[derive(Subcommand)]
pub enum Command {
    /// Check a receipt under keys that you know.
    Verify(Verify),
    /// Fetch the public keys of people, for checks without the service.
    Keys {
        /// The users' ids.
        #[arg(required = true)]
        users: Vec<UserId>,
    },
}

#[derive(Args)]
pub struct Verify {
    /// The file of the receipt; standard input without it.
    file: Option<PathBuf>,
    /// A file of `bp receipt keys`: nothing is asked of the service. Without it, the service is asked
    /// for the keys of those who decided, and is believed.
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
}

pub async fn run(
    command: Command,
    at: impl Fn() -> Result<Context>,
    output: &Output,
) -> Result<()> {
    match command {
        Command::Verify(verify) => check(verify, at, output).await,
        Command::Keys { users } => {
            let client = at()?.client().await?;
            for user in users {
                output.raw(&serde_json::to_string(&client.user_keys(user).await?)?)?;
            }
            Ok(())
        }
    }
}

fn read(file: Option<&PathBuf>) -> Result<String> {
    let mut text = String::new();
    match file {
        Some(file) => {
            text = fs::read_to_string(file)
                .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
        }
        None => {
            stdin().lock().read_to_string(&mut text)?;
        }
    }
    Ok(text)
}

/// Keys by the ids of their user and of themselves.
type Known = BTreeMap<(String, String), PublicKeys>;

fn keys_of(directory: &KeyDirectory) -> impl Iterator<Item = ((String, String), PublicKeys)> {
    let user = directory.user_id.to_string();
    directory.devices.iter().filter_map(move |device| {
        let keys = public_keys(device)?;
        Some(((user.clone(), hex(keys.key_id())), keys))
    })
}

/// None for a key that is no key.
fn public_keys(device: &DeviceKeys) -> Option<PublicKeys> {
    let bytes = |blob: &Blob| blob.0.as_slice().try_into().ok();
    PublicKeys::new(
        bytes(&device.public_key)?,
        bytes(&device.signing_public_key)?,
    )
    .ok()
}

async fn check(verify: Verify, at: impl Fn() -> Result<Context>, output: &Output) -> Result<()> {
    let receipt: Receipt = serde_json::from_str(&read(verify.file.as_ref())?)
        .map_err(|error| Failure::failed(format!("malformed: {error}")))?;
    let known: Known = match &verify.keys {
        Some(file) => {
            let text = read(Some(file))?;
            let lines = text.lines().map(serde_json::from_str::<KeyDirectory>);
            let lines: Vec<_> = lines.collect::<std::result::Result<_, _>>()?;
            lines.iter().flat_map(keys_of).collect()
        }
        None => ask_service(&receipt, &at()?).await?,
    };
    let find = |user: &str, key: &str| known.get(&(user.to_owned(), key.to_owned())).copied();
    let proof = receipt
        .verify(find)
        .map_err(|error| Failure::failed(format!("the receipt does not hold: {error}")))?;
    let by = proof
        .decisions
        .iter()
        .map(|(user, word)| format!("\n  {word} by {user}"));
    let parsed = receipt.answers.iter().map(|(user, text)| {
        let answer = serde_json::from_str::<Value>(text);
        answer.map(|answer| (user, answer))
    });
    let answers: BTreeMap<_, _> = parsed.collect::<serde_json::Result<_>>()?;
    let item = json!({
        "holds": true,
        "approval_id": receipt.approval["approval_id"],
        "state": proof.state,
        "decisions": proof.decisions,
        "answers": answers,
    });
    let text = format!(
        "{} {}{}",
        output.green("holds:"),
        proof.state,
        by.collect::<String>()
    );
    output.item(&item, &text)
}

async fn ask_service(receipt: &Receipt, at: &Context) -> Result<Known> {
    let client = at.client().await?;
    let mut known = Known::new();
    let decisions = receipt.approval["decisions"].as_array();
    for decision in decisions.into_iter().flatten() {
        let user = decision["user_id"]
            .as_str()
            .and_then(|id| id.parse::<UserId>().ok());
        let user = user.ok_or_else(|| Failure::failed("the receipt does not hold: malformed"))?;
        known.extend(keys_of(&client.user_keys(user).await?));
    }
    Ok(known)
}
