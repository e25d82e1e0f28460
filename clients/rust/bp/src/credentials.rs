//! The credentials of agents that were made here: token and key, in files of mode 0600.

use std::{env, fs, io, path::PathBuf};

use blindpipe_client::{
    Agent, FileStore, agent::AgentBuilder, protocol::ids::AgentId, protocol::text::Secret,
};
use serde::{Deserialize, Serialize};

use crate::{
    context::Context,
    failure::{Failure, Result},
    files::{private_folder, write_private},
};

/// An agent's token and key, as the file has them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Credentials {
    pub agent_id: AgentId,
    pub name: String,
    token: Secret,
    key: Secret,
}

fn folder(at: &Context) -> Result<PathBuf> {
    let folder = at.folder()?.join("agents");
    private_folder(&folder)?;
    Ok(folder)
}

/// The agents whose credentials are here, by name.
pub fn all(at: &Context) -> Result<Vec<Credentials>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder(at)?)? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "json") {
            all.push(serde_json::from_slice::<Credentials>(&fs::read(path)?)?);
        }
    }
    all.sort_by(|a, b| (&a.name, a.agent_id).cmp(&(&b.name, b.agent_id)));
    Ok(all)
}

/// The credentials of an agent that is named by its id or its name.
pub fn of(at: &Context, named: &str) -> Result<Credentials> {
    let is_it = |it: &Credentials| it.name == named || it.agent_id.to_string() == named;
    let mut found = all(at)?.into_iter().filter(is_it);
    let missing = || {
        Failure::usage(format!("there are no credentials of {named:?} here"))
            .remedy("`bp agent new`, `bp agent rotate`, or the variables of `bp agent env`")
    };
    let first = found.next().ok_or_else(missing)?;
    if found.next().is_some() {
        return Err(
            Failure::usage(format!("several agents are called {named:?}")).remedy("its id"),
        );
    }
    Ok(first)
}

/// The agent that a command acts as: a named one, else that of the environment's variables, else
/// the only one of the context.
pub fn acting(at: &Context, named: Option<&str>) -> Result<AgentBuilder> {
    if let Some(named) = named {
        return of(at, named)?.builder(at);
    }
    if env::var_os("BLINDPIPE_AGENT_ID").is_some() {
        return Ok(Agent::from_env()?);
    }
    match &all(at)?[..] {
        [only] => only.builder(at),
        [] => Err(Failure::usage("there is no agent to act as").remedy("`bp agent new NAME`")),
        _ => Err(Failure::usage("there are several agents").remedy("--agent NAME")),
    }
}

impl Credentials {
    pub fn new(agent_id: AgentId, name: String, token: Secret, key: String) -> Self {
        Self {
            agent_id,
            name,
            token,
            key: Secret(key),
        }
    }

    /// The same agent with another token.
    pub fn with_token(self, token: Secret) -> Self {
        Self { token, ..self }
    }

    fn file(&self, at: &Context, end: &str) -> Result<PathBuf> {
        Ok(folder(at)?.join(format!("{}.{end}", self.agent_id)))
    }

    pub fn save(&self, at: &Context) -> Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        Ok(write_private(&self.file(at, "json")?, &text)?)
    }

    pub fn forget(&self, at: &Context) -> Result<()> {
        for end in ["json", "pins", "pins.handled"] {
            match fs::remove_file(self.file(at, end)?) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// The agent, with what it learns about others' keys beside its credentials.
    pub fn builder(&self, at: &Context) -> Result<AgentBuilder> {
        let builder = Agent::builder(at.server()?, self.agent_id, self.token.expose())
            .key(self.key.expose())?
            .store(FileStore::new(self.file(at, "pins")?));
        Ok(builder)
    }

    /// The variables that every SDK reads, as lines for a shell.
    pub fn variables(&self, at: &Context) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            ("BLINDPIPE_URL", at.settings.url.clone()),
            ("BLINDPIPE_AGENT_ID", self.agent_id.to_string()),
            ("BLINDPIPE_TOKEN", self.token.expose().to_owned()),
            ("BLINDPIPE_KEY", self.key.expose().to_owned()),
        ];
        if let Some(file) = &at.settings.ca_file {
            let file = file.display().to_string();
            for name in ["BLINDPIPE_CA", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"] {
                variables.push((name, file.clone()));
            }
        }
        variables
    }
}

/// Lines of a file for a shell or a `.env` reader.
pub fn lines(variables: &[(&'static str, String)]) -> String {
    let line = |(name, value): &(&str, String)| format!("{name}='{value}'\n");
    variables.iter().map(line).collect()
}
