//! Contexts: a service, and this device's session with it.
//!
//! `config.json` has the addresses. A folder for each context has what is secret: the session and
//! the keys of this device, and the credentials of agents. All files are of mode 0600.

use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
};

use blindpipe_client::{Client, FileStore, Server, client::ClientBuilder};
use reqwest::Url;
use serde::{Deserialize, Serialize};

use crate::{
    cli::Global,
    failure::{Failure, Result},
    files::{self, private_folder, write_private},
};

/// A context as the file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The address of the service.
    pub url: String,
    /// The only certificate authority to trust, in PEM; the system's without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// The folder of a development cluster, whose human check passes a stand-in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dev: Option<PathBuf>,
    /// The public key of the widget that checks for a human.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site_key: Option<String>,
    /// This device, as the service knows it. It outlives a logout.
    pub device_id: String,
}

#[derive(Default, Serialize, Deserialize)]
struct Config {
    current: Option<String>,
    contexts: BTreeMap<String, Settings>,
}

/// All contexts of this user of the machine.
pub struct Contexts {
    folder: PathBuf,
    config: Config,
}

/// The context of a command.
#[derive(Clone, Debug)]
pub struct Context {
    pub name: String,
    pub settings: Settings,
    folder: PathBuf,
}

/// `BP_CONFIG_DIR`, or `bp` in the configuration folder of XDG.
fn config_folder() -> Result<PathBuf> {
    let set = |name: &str| {
        env::var_os(name)
            .filter(|it| !it.is_empty())
            .map(PathBuf::from)
    };
    let xdg = || set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")));
    let folder = set("BP_CONFIG_DIR").or_else(|| Some(xdg()?.join("bp")));
    folder.ok_or_else(|| Failure::usage("neither HOME nor XDG_CONFIG_HOME is set"))
}

/// A name that is a folder's as well.
fn check_name(name: &str) -> Result<()> {
    let is_fit = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if !name.is_empty() && name.chars().all(is_fit) && !name.starts_with('.') {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{name:?} is no name: letters, digits, -, _ and . but not first"
    )))
}

fn check_address(url: &str) -> Result<()> {
    let is_fit = |url: &Url| matches!(url.scheme(), "https" | "http") && url.has_host();
    if Url::parse(url).is_ok_and(|url| is_fit(&url)) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{url:?} is no address such as https://chat.example.com"
    )))
}

impl Contexts {
    pub fn load() -> Result<Self> {
        let folder = config_folder()?;
        let file = folder.join("config.json");
        let broken = |error| Failure::failed(format!("{}: {error}", file.display()));
        let config = match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).map_err(broken)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Config::default(),
            Err(error) => return Err(error.into()),
        };
        Ok(Self { folder, config })
    }

    /// Changes the file; another process that does so waits.
    pub fn change<T>(change: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let folder = config_folder()?;
        private_folder(&folder)?;
        let _lock = files::lock(&folder.join("config.lock"))?;
        let mut contexts = Self::load()?;
        let changed = change(&mut contexts)?;
        let text = serde_json::to_vec_pretty(&contexts.config)?;
        write_private(&folder.join("config.json"), &text)?;
        Ok(changed)
    }

    pub fn names(&self) -> impl Iterator<Item = (&String, &Settings)> {
        self.config.contexts.iter()
    }

    pub fn current(&self) -> Option<&str> {
        self.config.current.as_deref()
    }

    /// Adds a context, or changes its address, and uses it from now on. A session and tokens never go
    /// to another address unasked.
    pub fn add_and_use(&mut self, name: &str, settings: Settings) -> Result<Context> {
        let context = self.add(name, settings)?;
        self.config.current = Some(name.to_owned());
        Ok(context)
    }

    fn add(&mut self, name: &str, mut settings: Settings) -> Result<Context> {
        check_name(name)?;
        check_address(&settings.url)?;
        if let Some(before) = self.config.contexts.get(name) {
            // A development cluster has other ports after each start.
            let is_same =
                before.url == settings.url || (before.dev.is_some() && before.dev == settings.dev);
            if !is_same && self.get(name)?.is_in_use() {
                let text = format!("the context {name:?} has secrets of {}", before.url);
                return Err(Failure::usage(text).remedy("another name, or `bp context rm` before"));
            }
            settings.device_id.clone_from(&before.device_id);
        }
        self.config.contexts.insert(name.to_owned(), settings);
        self.get(name)
    }

    pub fn select(&mut self, name: &str) -> Result<Context> {
        let context = self.get(name)?;
        self.config.current = Some(name.to_owned());
        Ok(context)
    }

    /// Forgets a context with its session and keys.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        self.get(name)?.forget_all()?;
        self.config.contexts.remove(name);
        if self.current() == Some(name) {
            self.config.current = None;
        }
        Ok(())
    }

    pub fn get(&self, name: &str) -> Result<Context> {
        let settings = self.config.contexts.get(name).cloned();
        let missing =
            || Failure::usage(format!("there is no context {name:?}")).remedy("`bp context ls`");
        Ok(Context {
            name: name.to_owned(),
            settings: settings.ok_or_else(missing)?,
            folder: self.folder.join("contexts").join(name),
        })
    }

    /// The context whose address it is.
    fn by_url(&self, url: &str) -> Option<&String> {
        let mut found = self.names().filter(|(_, it)| it.url == url);
        found.next().map(|(name, _)| name)
    }
}

/// A name for a service of which only the address is known.
fn name_of(url: &str) -> String {
    let host = url.split("://").nth(1).unwrap_or(url);
    let is_fit = |letter: char| letter.is_ascii_alphanumeric() || letter == '.';
    let letters = host.chars().map(|it| if is_fit(it) { it } else { '-' });
    letters
        .collect::<String>()
        .trim_matches(['-', '.'])
        .to_owned()
}

impl Context {
    /// The context that the options name: `--context`, else the one of `--url`, else the current.
    pub fn of(global: &Global) -> Result<Self> {
        let contexts = Contexts::load()?;
        let url = global.url.as_deref().map(|url| url.trim_end_matches('/'));
        let name = global.context.as_deref();
        let mut context = match (name, url) {
            (Some(name), _) => contexts.get(name)?,
            (None, Some(url)) => match contexts.by_url(url) {
                Some(name) => contexts.get(name)?,
                None => return Self::new_at(url, global),
            },
            (None, None) => contexts.get(contexts.current().ok_or_else(no_context)?)?,
        };
        if let Some(url) = url {
            url.clone_into(&mut context.settings.url);
        }
        if let Some(file) = &global.ca_file {
            context.settings.ca_file = Some(file.clone());
        }
        Ok(context)
    }

    /// As [`Self::of`]; none if nothing names a context.
    pub fn find(global: &Global) -> Result<Option<Self>> {
        let is_named = global.context.is_some() || global.url.is_some();
        if !is_named && Contexts::load()?.current().is_none() {
            return Ok(None);
        }
        Self::of(global).map(Some)
    }

    fn new_at(url: &str, global: &Global) -> Result<Self> {
        let settings = Settings {
            url: url.to_owned(),
            ca_file: authority(global)?,
            dev: None,
            site_key: None,
            device_id: new_device_id(),
        };
        Contexts::change(|contexts| contexts.add(&name_of(url), settings))
    }

    pub fn server(&self) -> Result<Server> {
        let server = Server::new(self.settings.url.as_str());
        let Some(file) = &self.settings.ca_file else {
            return Ok(server);
        };
        let pem = fs::read(file)
            .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
        Ok(server.with_authority(pem))
    }

    /// The folder of what is secret.
    pub fn folder(&self) -> Result<&Path> {
        private_folder(&self.folder)?;
        Ok(&self.folder)
    }

    /// Whether a session or agents' credentials are here.
    fn is_in_use(&self) -> bool {
        let agents = fs::read_dir(self.folder.join("agents"));
        self.session_file().exists() || agents.is_ok_and(|mut files| files.next().is_some())
    }

    fn session_file(&self) -> PathBuf {
        self.folder.join("session.json")
    }

    pub fn builder(&self) -> Result<ClientBuilder> {
        self.folder()?;
        let builder = Client::builder(self.server()?)
            .device_id(self.settings.device_id.as_str())
            .device_name("bp")
            .platform("cli")
            .store(FileStore::new(self.session_file()));
        Ok(builder)
    }

    /// The person who is logged in here.
    pub async fn client(&self) -> Result<Client> {
        if !self.session_file().exists() {
            return Err(Failure::not_logged_in());
        }
        let client = Box::pin(self.builder()?.resume()).await?;
        client.ok_or_else(Failure::not_logged_in)
    }

    /// As [`Self::client`], with keys.
    pub async fn client_with_keys(&self) -> Result<Client> {
        let client = self.client().await?;
        if client.has_keys() {
            return Ok(client);
        }
        Err(Failure::failed("this device has no keys yet").remedy("`bp keys restore`"))
    }

    /// Forgets the session, this device's keys, and the credentials of agents.
    pub fn forget_all(&self) -> Result<()> {
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Forgets the session and this device's keys.
    pub fn forget(&self) -> Result<()> {
        Ok(FileStore::new(self.session_file()).remove()?)
    }
}

/// The whole path of the authority of the options: a context outlives the present folder.
pub fn authority(global: &Global) -> Result<Option<PathBuf>> {
    global.ca_file.as_deref().map(whole).transpose()
}

/// The whole path of a file that is there.
pub fn whole(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

pub fn new_device_id() -> String {
    format!("bp-{:032x}", rand::random::<u128>())
}

fn no_context() -> Failure {
    Failure::usage("there is no context").remedy("`bp context add NAME --url https://…`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_makes_a_name_and_a_name_no_path() {
        assert_eq!(name_of("https://127.0.0.1:8443"), "127.0.0.1-8443");
        assert_eq!(name_of("https://[::1]:1"), "1--1");
        for name in ["", "../x", ".", "a/b", "a b"] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert!(check_name("dev-1.local").is_ok());
    }
}
