//! `bp init`: a project with an agent that answers at once.

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use reqwest::Url;
use serde_json::json;

use super::agent;
use crate::{
    context::{Context, whole},
    credentials::{self, Credentials},
    failure::{Failure, Result},
    output::Output,
};

#[derive(Args)]
pub struct Init {
    /// The language.
    language: Language,
    /// The name of the agent and of the new folder.
    name: String,
    /// Take an agent of which the credentials are here, in place of a new one.
    #[arg(long, value_name = "AGENT")]
    agent: Option<String>,
    /// The SDK, as a folder or a package; without it, that of a development cluster's checkout, else
    /// that in `sdk` beside this program, else the package of the language's registry.
    #[arg(long, value_name = "PATH")]
    sdk: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Language {
    Python,
    Typescript,
    Rust,
}

/// A file of a project: its name, its text, its mode.
type File = (&'static str, String, u32);

impl Language {
    /// The SDK's folder below a checkout.
    const fn folder(self) -> &'static str {
        match self {
            Self::Python => "clients/python",
            Self::Typescript => "clients/typescript",
            Self::Rust => "clients/rust/client",
        }
    }

    /// The SDK's name in the folder `sdk` of a release.
    const fn package(self) -> &'static str {
        match self {
            Self::Python => concat!("blindpipe-", env!("CARGO_PKG_VERSION"), "-py3-none-any.whl"),
            Self::Typescript => concat!("blindpipe-client-", env!("CARGO_PKG_VERSION"), ".tgz"),
            Self::Rust => "blindpipe-client",
        }
    }

    /// The files, with the SDK's place if it is on this machine.
    fn files(self, name: &str, sdk: Option<&Path>) -> Vec<File> {
        let sdk = sdk.map(|sdk| sdk.display().to_string());
        match self {
            Self::Python => {
                let address = sdk.and_then(|sdk| Url::from_file_path(sdk).ok());
                let needed =
                    address.map_or("blindpipe".to_owned(), |it| format!("blindpipe @ {it}"));
                vec![
                    (
                        "agent.py",
                        include_str!("../../../../../examples/python/echo.py").to_owned(),
                        0o644,
                    ),
                    ("requirements.txt", format!("{needed}\n"), 0o644),
                    (
                        "run",
                        include_str!("../templates/run-python").to_owned(),
                        0o755,
                    ),
                ]
            }
            Self::Typescript => {
                // The SDK of a checkout is built there; a package is.
                let build = sdk.as_ref().filter(|it| Path::new(it).is_dir());
                let build = build.map_or_else(String::new, |it| {
                    let (folder, npm) = (quoted(it), "npm ci --loglevel=error --prefix");
                    format!("  [ -d {folder}/node_modules ] || {npm} {folder}\n")
                });
                let needed = sdk.map_or("*".to_owned(), |it| format!("file:{it}"));
                let package = json!({
                    "name": name,
                    "private": true,
                    "type": "module",
                    "dependencies": { "@blindpipe/client": needed },
                });
                vec![
                    (
                        "agent.mjs",
                        include_str!("../../../../../examples/typescript/echo.ts").to_owned(),
                        0o644,
                    ),
                    ("package.json", format!("{package:#}\n"), 0o644),
                    (
                        "run",
                        include_str!("../templates/run-typescript").replace("  # SDK\n", &build),
                        0o755,
                    ),
                ]
            }
            Self::Rust => {
                let manifest = include_str!("../templates/Cargo.toml.in");
                let mut manifest = manifest.replace("NAME", name);
                if let Some(sdk) = &sdk {
                    manifest.push_str(&patches(Path::new(sdk)));
                }
                let needed = sdk.map_or("\"0.1\"".to_owned(), |it| format!("{{ path = {it:?} }}"));
                let manifest = manifest.replace("CLIENT", &needed);
                vec![
                    (
                        "src/main.rs",
                        include_str!("../../../../../examples/rust/echo.rs").to_owned(),
                        0o644,
                    ),
                    ("Cargo.toml", manifest, 0o644),
                    (
                        "run",
                        include_str!("../templates/run-rust").to_owned(),
                        0o755,
                    ),
                ]
            }
        }
    }
}

pub async fn run(init: Init, at: &Context, output: &Output) -> Result<()> {
    let folder = PathBuf::from(&init.name);
    let is_fit =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    let is_name =
        init.name.starts_with(|it: char| it.is_ascii_lowercase()) && init.name.chars().all(is_fit);
    if !is_name {
        return Err(Failure::usage(
            "a project's name has small letters, digits and -",
        ));
    }
    fs::create_dir(&folder)
        .map_err(|error| Failure::failed(format!("{}: {error}", folder.display())))?;
    let made = match &init.agent {
        Some(agent) => credentials::of(at, agent),
        None => agent::make(&init.name, None, at).await,
    };
    let written = made.and_then(|credentials| write_project(&init, &folder, &credentials, at));
    // Half a project is in the way of the next try.
    if written.is_err() {
        fs::remove_dir_all(&folder).ok();
    }
    let agent_id = written?;
    let text = format!("{0}/ is ready.\n  ./{0}/run\n  bp chat {0}", init.name);
    output.item(&json!({ "folder": folder, "agent_id": agent_id }), &text)
}

fn write_project(
    init: &Init,
    folder: &Path,
    credentials: &Credentials,
    at: &Context,
) -> Result<String> {
    let sdk = match &init.sdk {
        Some(sdk) => Some(whole(sdk)?),
        None => sdk_of_checkout(at, init.language).or_else(|| sdk_of_release(init.language)),
    };
    let mut files = init.language.files(&init.name, sdk.as_deref());
    let readme = include_str!("../templates/README.md.in").replace("NAME", &init.name);
    files.push(("README.md", readme, 0o644));
    files.push((
        ".gitignore",
        ".env\n.venv\nnode_modules\ntarget\nagent.pins*\n".to_owned(),
        0o644,
    ));
    let mut variables = credentials.variables(at);
    variables.push(("BLINDPIPE_PINS", "agent.pins".to_owned()));
    files.push((".env", credentials::lines(&variables), 0o600));
    for (name, text, mode) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(text.as_bytes())?;
    }
    Ok(credentials.agent_id.to_string())
}

/// A word of a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The lines that take the crates below the client from its neighbours, as a release has them.
fn patches(client: &Path) -> String {
    let names = ["blindpipe-protocol", "blindpipe-e2ee"];
    let crates = names.map(|name| (name, client.with_file_name(name)));
    if !crates.iter().all(|(_, folder)| folder.is_dir()) {
        return String::new();
    }
    let lines = crates.map(|(name, folder)| format!("{name} = {{ path = {folder:?} }}\n"));
    format!("\n[patch.crates-io]\n{}", lines.concat())
}

/// The SDK in `sdk` beside this program, as a release has it.
fn sdk_of_release(language: Language) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?.canonicalize().ok()?;
    let sdk = own.with_file_name("sdk").join(language.package());
    sdk.exists().then_some(sdk)
}

/// The SDK beside a development cluster's folder, which is below the checkout.
fn sdk_of_checkout(at: &Context, language: Language) -> Option<PathBuf> {
    let dev = at.settings.dev.as_deref()?;
    let mut folders = dev.ancestors().map(|it| it.join(language.folder()));
    folders.find(|it| it.is_dir())
}
