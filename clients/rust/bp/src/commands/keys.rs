//! `bp keys`.

use std::path::PathBuf;

use blindpipe_client::{Client, protocol::ids::Principal};
use clap::{Args, Subcommand};
use serde_json::json;

use super::account::{hex, new_protection_password, restore_keys};
use crate::{
    context::Context,
    failure::{Failure, Result},
    output::{Output, line},
    prompt, to,
};

#[derive(Subcommand)]
pub enum Keys {
    /// Show this device's key and those of this person's other devices, or somebody's keys.
    Show {
        /// An agent by name or id, or a user's id.
        who: Option<String>,
    },
    /// Compare 60 digits with somebody, and take the keys for verified.
    Verify(Verify),
    /// Back this device's keys up under a protection password; make keys if there are none.
    Backup(Password),
    /// Read the keys' backup, and give this device keys of its own.
    Restore(Password),
    /// Make a fresh secret for a conversation at once.
    Rotate {
        /// An agent by name or id, `user:ID`, or a conversation's id.
        to: String,
    },
}

#[derive(Args)]
pub struct Verify {
    /// An agent by name or id, or a user's id.
    who: String,
    /// The digits were compared elsewhere and are the same.
    #[arg(long)]
    yes: bool,
}

#[derive(Args)]
pub struct Password {
    /// A file with the protection password; asked without it.
    #[arg(long, value_name = "FILE", env = "BP_PROTECTION_PASSWORD_FILE")]
    protection_password_file: Option<PathBuf>,
}

pub async fn run(command: Keys, at: &Context, output: &Output) -> Result<()> {
    match command {
        Keys::Show { who } => show(who, at, output).await,
        Keys::Verify(verify) => compare(verify, at, output).await,
        Keys::Backup(password) => back_up(&password, at, output).await,
        Keys::Restore(password) => {
            let client = at.client().await?;
            let file = password.protection_password_file.as_deref();
            restore_keys(&client, file, output).await?;
            let key = hex(client.key_id()?);
            output.item(&json!({ "key_id": key }), &format!("key {key}"))
        }
        Keys::Rotate { to } => {
            let client = at.client_with_keys().await?;
            let conversation = to::conversation(&client, at, &to).await?;
            conversation.rotate().await?;
            let epoch = conversation.info().await?.epoch;
            output.item(&json!({ "epoch": epoch }), &format!("epoch {epoch}"))
        }
    }
}

/// A user's id is in another form than an agent's.
async fn principal(client: &Client, at: &Context, who: &str) -> Result<Principal> {
    if let Ok(user) = who.parse() {
        return Ok(Principal::User(user));
    }
    Ok(Principal::Agent(to::agent(client, at, who).await?))
}

/// The ids of somebody's present keys, each with its device.
async fn keys_of(client: &Client, who: Principal) -> Result<Vec<(String, Option<String>)>> {
    Ok(match who {
        Principal::User(id) => {
            let devices = client.user_keys(id).await?.devices;
            devices
                .into_iter()
                .map(|it| (it.key_id, Some(it.device_id)))
                .collect()
        }
        Principal::Agent(id) => {
            let keys = client.agent_keys(id).await?.keys;
            keys.into_iter().map(|it| (it.key_id, None)).collect()
        }
    })
}

async fn show(who: Option<String>, at: &Context, output: &Output) -> Result<()> {
    let client = at.client().await?;
    let me = Principal::User(client.user_id()?);
    let own = client.key_id().ok().map(hex);
    let who = match who {
        Some(who) => principal(&client, at, &who).await?,
        None => me,
    };
    for (key, device) in keys_of(&client, who).await? {
        let is_here = who == me && own.as_ref() == Some(&key);
        let device = device.as_deref().unwrap_or_default();
        let here = if is_here { "  (this device)" } else { "" };
        let item = json!({ "of": who, "key_id": key, "device_id": device, "here": is_here });
        output.item(&item, &format!("{key}  {}{here}", line(device)))?;
    }
    Ok(())
}

async fn compare(verify: Verify, at: &Context, output: &Output) -> Result<()> {
    let client = at.client_with_keys().await?;
    let who = principal(&client, at, &verify.who).await?;
    let conversation = match who {
        Principal::User(id) => client.open_direct(id).await?,
        Principal::Agent(id) => client.open_agent(id).await?,
    };
    // The keys of its members are shown to this device.
    conversation.info().await?;
    let number = client.safety_number(who).await?;
    let item = json!({ "of": who, "number": number });
    output.item(&item, &grouped(&number))?;
    output.note("Compare these digits with theirs, face to face or in a call.");
    if !verify.yes && !prompt::confirm("Are they the same?")? {
        let differ = Failure::failed("the keys were not verified");
        return Err(differ.remedy("write nothing secret until you know why they differ"));
    }
    if client.verify(who, &number)? {
        output.note("verified");
        return Ok(());
    }
    Err(Failure::failed("the keys have changed meanwhile").remedy("compare the digits again"))
}

/// Digits in groups of five.
fn grouped(digits: &str) -> String {
    let digits: Vec<_> = digits.chars().filter(char::is_ascii_digit).collect();
    let groups = digits
        .chunks(5)
        .map(|group| group.iter().collect::<String>());
    groups.collect::<Vec<_>>().join(" ")
}

async fn back_up(password: &Password, at: &Context, output: &Output) -> Result<()> {
    let client = at.client().await?;
    let password = new_protection_password(password.protection_password_file.as_deref(), output)?;
    let devices = client.devices();
    let done = if client.has_keys() {
        devices.back_up(&password).await
    } else {
        devices.create(&password).await
    };
    done.map_err(super::account::unfit_password)?;
    let key = hex(client.key_id()?);
    output.item(
        &json!({ "key_id": key }),
        &format!("key {key} is backed up"),
    )
}
