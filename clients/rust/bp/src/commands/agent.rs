//! `bp agent`.

use std::{fs, path::PathBuf};

use blindpipe_client::{
    Client,
    agent::generate_key,
    protocol::agents::{Agent as Info, AgentView, Manifest},
};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    context::Context,
    credentials::{self, Credentials},
    failure::{Failure, Result},
    files::{create_private, write_private},
    output::{Output, line},
    prompt, to,
};

#[derive(Subcommand)]
pub enum Agent {
    /// Make an agent, with a key that is made here, and print its variables once.
    New(New),
    /// List this person's agents.
    Ls,
    /// Show an agent.
    Show {
        /// Its name or id.
        agent: String,
    },
    /// Write an agent's variables into a file of mode 0600.
    Env(Env),
    /// Show an agent's manifest, or replace it.
    Manifest {
        /// Its name or id.
        agent: String,
        /// A file with the new manifest, in JSON.
        file: Option<PathBuf>,
    },
    /// Give an agent a new token. The old one ends after its grace.
    Rotate {
        /// Its name or id.
        agent: String,
        /// The old token was stolen: it ends at once, and the webhook is suspended.
        #[arg(long)]
        emergency: bool,
    },
    /// List an agent's public keys.
    Keys {
        /// Its name or id.
        agent: String,
    },
    /// Delete an agent for good.
    Delete {
        /// Its name or id.
        agent: String,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Args)]
pub struct New {
    /// The name that people see.
    name: String,
    /// A file with its manifest, in JSON.
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
}

#[derive(Args)]
pub struct Env {
    /// Its name or id.
    agent: String,
    /// The file.
    #[arg(default_value = ".env")]
    file: PathBuf,
    /// Replace the file if it is there.
    #[arg(long)]
    force: bool,
}

pub async fn run(command: Agent, at: &Context, output: &Output) -> Result<()> {
    match command {
        Agent::New(new) => {
            let credentials = make(&new.name, new.manifest.as_deref(), at).await?;
            tell_new(&credentials, at, output)
        }
        Agent::Ls => list(&at.client().await?, output).await,
        Agent::Show { agent } => show(&agent, at, output).await,
        Agent::Env(env) => write_env(&env, at, output),
        Agent::Manifest { agent, file: None } => show_manifest(&agent, at, output).await,
        Agent::Manifest {
            agent,
            file: Some(file),
        } => update_manifest(&agent, &file, at, output).await,
        Agent::Rotate { agent, emergency } => rotate(&agent, emergency, at, output).await,
        Agent::Keys { agent } => keys(&agent, at, output).await,
        Agent::Delete { agent, yes } => delete(&agent, yes, at, output).await,
    }
}

fn json_of<T: serde::de::DeserializeOwned>(file: &std::path::Path) -> Result<T> {
    let fault = |text: String| Failure::usage(format!("{}: {text}", file.display()));
    let text = fs::read(file).map_err(|error| fault(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| fault(error.to_string()))
}

/// Makes an agent, keeps its credentials, and registers its key, so that people can encrypt for it.
pub async fn make(
    name: &str,
    manifest: Option<&std::path::Path>,
    at: &Context,
) -> Result<Credentials> {
    let manifest: Option<Manifest> = manifest.map(json_of).transpose()?;
    let client = at.client().await?;
    let made = client.create_agent(name, manifest.as_ref()).await?;
    let name = made.display_name;
    let credentials = Credentials::new(made.agent_id, name, made.token, generate_key());
    credentials.save(at)?;
    credentials.builder(at)?.build().check().await?;
    // Its conversation with its owner has a secret, so that the agent can speak first.
    if client.has_keys() {
        let conversation = client.open_agent(credentials.agent_id).await?;
        conversation.rotate().await?;
    }
    Ok(credentials)
}

fn tell_new(credentials: &Credentials, at: &Context, output: &Output) -> Result<()> {
    let variables = credentials.variables(at);
    let item: serde_json::Map<String, Value> = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.as_str().into()))
        .collect();
    output.note(
        "Its variables, which are not printed again; `bp agent env` writes them into a file:",
    );
    output.item(&item, credentials::lines(&variables).trim_end())
}

async fn list(client: &Client, output: &Output) -> Result<()> {
    let mut cursor = None;
    loop {
        let (page, next) = client.agents(cursor).await?;
        for agent in &page {
            output.item(agent, &row(agent, output))?;
        }
        cursor = next;
        if cursor.is_none() {
            return Ok(());
        }
    }
}

fn row(agent: &Info, output: &Output) -> String {
    let name = output.bold(&line(&agent.display_name));
    let online = agent.connections.len();
    let lag = agent.inbox.lag;
    format!(
        "{}  {name}  {}, {online} connections, {lag} events wait",
        agent.agent_id, agent.state
    )
}

async fn show(agent: &str, at: &Context, output: &Output) -> Result<()> {
    let client = at.client().await?;
    let id = to::agent(&client, at, agent).await?;
    match client.agent(id).await? {
        AgentView::Full(agent) => {
            let key = agent.key_id.as_deref().unwrap_or("none");
            let text = format!(
                "{}\n  key {key}\n  made {}",
                row(&agent, output),
                agent.created_at
            );
            output.item(&agent, &text)
        }
        AgentView::Card(card) => {
            let name = output.bold(&line(&card.display_name));
            output.item(&card, &format!("{}  {name}  {}", card.agent_id, card.state))
        }
    }
}

fn write_env(env: &Env, at: &Context, output: &Output) -> Result<()> {
    let lines = credentials::lines(&credentials::of(at, &env.agent)?.variables(at));
    let written = if env.force {
        write_private(&env.file, lines.as_bytes())
    } else {
        create_private(&env.file, lines.as_bytes())
    };
    written.map_err(|error| {
        let fault = Failure::failed(format!("{}: {error}", env.file.display()));
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => fault.remedy("--force replaces it"),
            _ => fault,
        }
    })?;
    output.note(&format!("written to {}; it is secret", env.file.display()));
    Ok(())
}

async fn show_manifest(agent: &str, at: &Context, output: &Output) -> Result<()> {
    let client = at.client().await?;
    let id = to::agent(&client, at, agent).await?;
    let (manifest, version) = match client.agent(id).await? {
        AgentView::Full(agent) => (agent.manifest, agent.manifest_version),
        AgentView::Card(card) => (card.manifest, card.manifest_version),
    };
    let manifest: Value = match &manifest {
        Some(manifest) => serde_json::from_str(manifest.as_str())?,
        None => Value::Null,
    };
    let item = json!({ "manifest_version": version, "manifest": manifest });
    output.item(&item, &serde_json::to_string_pretty(&manifest)?)
}

async fn update_manifest(
    agent: &str,
    file: &std::path::Path,
    at: &Context,
    output: &Output,
) -> Result<()> {
    let manifest: Value = json_of(file)?;
    let agent = credentials::of(at, agent)?.builder(at)?.build();
    let updated = agent.update_manifest(&manifest).await?;
    let mut text = format!("version {}", updated.manifest_version);
    for warning in &updated.warnings {
        text += &format!(
            "\n  {} {}: {}",
            warning.path,
            warning.code,
            line(&warning.message)
        );
    }
    output.item(&updated, &text)
}

async fn rotate(agent: &str, emergency: bool, at: &Context, output: &Output) -> Result<()> {
    let credentials = credentials::of(at, agent)?;
    let client = at.client().await?;
    let fresh = client
        .regenerate_token(credentials.agent_id, emergency)
        .await?;
    let until = fresh.previous_valid_until;
    let credentials = credentials.with_token(fresh.token);
    credentials.save(at)?;
    match until {
        Some(until) => output.note(&format!("The old token serves until {until}.")),
        None => output.note("The old token has ended."),
    }
    // The key goes on, with the new token.
    credentials.builder(at)?.build().check().await?;
    tell_new(&credentials, at, output)
}

async fn keys(agent: &str, at: &Context, output: &Output) -> Result<()> {
    let client = at.client().await?;
    let id = to::agent(&client, at, agent).await?;
    for key in client.agent_keys(id).await?.keys {
        let end = key
            .valid_until
            .map_or_else(String::new, |at| format!(", until {at}"));
        let now = if key.current { ", current" } else { "" };
        let text = format!("{}  since {}{now}{end}", key.key_id, key.created_at);
        output.item(&key, &text)?;
    }
    Ok(())
}

async fn delete(agent: &str, yes: bool, at: &Context, output: &Output) -> Result<()> {
    let client = at.client().await?;
    let id = to::agent(&client, at, agent).await?;
    if !yes && !prompt::confirm(&format!("Delete the agent {agent} for good?"))? {
        return Err(Failure::failed("nothing was deleted"));
    }
    let deleted = client.delete_agent(id).await?;
    if let Ok(credentials) = credentials::of(at, &id.to_string()) {
        credentials.forget(at)?;
    }
    output.item(&deleted, &format!("{id} is deleted"))
}
