//! `bp context`.

use std::{fs, path::PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::{
    cli::Global,
    context::{self, Contexts, Settings, new_device_id},
    failure::{Failure, Result},
    output::{Output, line},
};

#[derive(Subcommand)]
pub enum Context {
    /// Add a service, and use it.
    Add(Add),
    /// Use another context from now on.
    Use {
        /// Its name.
        name: String,
    },
    /// List the contexts.
    Ls,
    /// Show a context.
    Show {
        /// Its name; the current one without it.
        name: Option<String>,
    },
    /// Forget a context, with its session and keys.
    Rm {
        /// Its name.
        name: String,
    },
}

#[derive(Args)]
pub struct Add {
    /// The name of the context.
    name: String,
    /// The folder of a development cluster: its address, authority and human check.
    #[arg(long, value_name = "FOLDER")]
    dev: Option<PathBuf>,
    /// The public key of the widget that checks for a human.
    #[arg(long, value_name = "KEY")]
    site_key: Option<String>,
}

#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    current: bool,
    #[serde(flatten)]
    settings: &'a Settings,
}

pub fn run(command: Context, global: &Global, output: &Output) -> Result<()> {
    match command {
        Context::Add(add) => {
            let context = added(&add, global)?;
            output.note(&format!(
                "context {} is {}",
                context.name, context.settings.url
            ));
            Ok(())
        }
        Context::Use { name } => {
            let context = Contexts::change(|contexts| contexts.select(&name))?;
            output.note(&format!("context {} is {}", name, context.settings.url));
            Ok(())
        }
        Context::Ls => list(output),
        Context::Show { name } => {
            let contexts = Contexts::load()?;
            let context = match name {
                Some(name) => contexts.get(&name)?,
                None => context::Context::of(global)?,
            };
            show(&contexts, &context.name, &context.settings, output)
        }
        Context::Rm { name } => Contexts::change(|contexts| contexts.remove(&name)),
    }
}

fn list(output: &Output) -> Result<()> {
    let contexts = Contexts::load()?;
    for (name, settings) in contexts.names() {
        show(&contexts, name, settings, output)?;
    }
    Ok(())
}

fn show(contexts: &Contexts, name: &str, settings: &Settings, output: &Output) -> Result<()> {
    let current = contexts.current() == Some(name);
    let mark = if current { "*" } else { " " };
    let text = format!("{mark} {} {}", output.bold(name), line(&settings.url));
    let shown = Shown {
        name,
        current,
        settings,
    };
    output.item(&shown, &text)
}

fn added(add: &Add, global: &Global) -> Result<context::Context> {
    let settings = match (&add.dev, &global.url) {
        (Some(folder), _) => dev_settings(folder)?,
        (None, Some(url)) => Settings {
            url: url.trim_end_matches('/').to_owned(),
            ca_file: context::authority(global)?,
            dev: None,
            site_key: add.site_key.clone(),
            device_id: new_device_id(),
        },
        (None, None) => {
            let missing = Failure::usage("a context needs an address");
            return Err(missing.remedy("`bp context add NAME --url https://…`"));
        }
    };
    Contexts::change(|contexts| contexts.add_and_use(&add.name, settings))
}

/// The settings of a development cluster that runs.
pub fn dev_settings(folder: &std::path::Path) -> Result<Settings> {
    #[derive(serde::Deserialize)]
    struct Node {
        base_url: String,
    }
    #[derive(serde::Deserialize)]
    struct Cluster {
        nodes: Vec<Node>,
        ca_file: PathBuf,
    }
    let not_there = || {
        let text = format!("no development cluster runs in {}", folder.display());
        Failure::new(crate::failure::Exit::Unreachable, text).remedy("`make run` in the checkout")
    };
    let text = fs::read(folder.join("cluster.json")).map_err(|_| not_there())?;
    let cluster: Cluster = serde_json::from_slice(&text)?;
    let node = cluster.nodes.into_iter().next().ok_or_else(not_there)?;
    Ok(Settings {
        url: node.base_url,
        ca_file: Some(cluster.ca_file),
        dev: Some(context::whole(folder)?),
        site_key: None,
        device_id: new_device_id(),
    })
}
